"""Encoding of labels as class indices; class counts; weights of classes and examples.

The argument `codes` of functions is the result of `LabelCodec.encode`: class indices (N,) if each
example has one label, otherwise a CSR matrix (N, n) of ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array

from samplesoft._cached import cached_property
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_csr,
    as_nonnegative,
    as_real_array,
    native_byte_order,
    scale_by_power_of_two,
    short_repr,
)
from samplesoft.sklearn.exact_labels import (
    class_indices,
    python_value,
    read_labels,
    sorted_distinct,
    unwrap_container,
)

# forms of labels, as error messages name them
SINGLE = "single"
DENSE = "dense indicator"
SPARSE = "sparse indicator"
LISTS = "lists of labels"
_LIST_TYPES = (list, tuple, set, frozenset, np.ndarray)
_NUMBER_TYPES = (int, float, np.generic)
_MAX_WEIGHT = 1e15  # max weight of an example; beyond it, float32 gradients might overflow


@dataclass(frozen=True, eq=False)
class LabelCodec:
    """Encoder of labels as class indices, which decodes predictions into the form of the labels.

    Labels are encoded as an array of class indices (N,) if each example has one label, otherwise as
    a CSR matrix (N, n) of ones.
    """

    # LabelEncoder and MultiLabelBinarizer of scikit-learn do not suffice: they have no code for
    # unseen labels, each accepts only one form, and their errors do not name the argument

    # (n,): labels in ascending order, or the columns of an indicator matrix
    classes: NDArray[Any]
    form: str  # form of the labels: SINGLE, DENSE, SPARSE or LISTS
    dtype: np.dtype[Any]  # dtype of the labels, or of an indicator matrix

    @property
    def multilabel(self) -> bool:
        """Whether an example may have several labels."""
        return self.form != SINGLE

    def encode(self, y: Any, unseen: bool = False) -> Any:
        """Return labels `y` as class indices (N,), or as a CSR matrix (N, n) of ones.

        The form of `y` must be the form of the codec. With `unseen`, labels that are not classes
        get the index n; for lists of labels, the matrix then has n + 1 columns. Without `unseen`,
        such labels raise ValueError.
        """
        y, form, names = _labels_form_and_columns("y", y)

        # lists of labels that all have the same length may look like an indicator matrix
        if self.form == LISTS and _is_list_of_lists(y):
            form = LISTS
        if form != self.form:
            raise ValueError(
                f"`y` must come as {self.form}, as in the first call, got {form}; convert it."
            )

        if form == SINGLE:
            return self._checked_class_indices(read_labels("y", y), unseen)
        if form == LISTS:
            return self._encode_lists("y", y, unseen)

        matrix = _checked_indicator(y)
        if matrix.shape[1] != len(self.classes):
            raise ValueError(
                f"`y` must have {len(self.classes)} columns, one for each class, got "
                f"{matrix.shape[1]}."
            )

        # if the columns had no names in the first call, their names in this call do not matter
        is_named = not np.array_equal(self.classes, np.arange(len(self.classes)))
        if (
            names is not None
            and is_named
            and not np.array_equal(self._class_indices(names), np.arange(len(self.classes)))
        ):
            raise ValueError(
                f"`y` must have the columns {short_repr(self.classes.tolist())} of the first "
                f"call, in their order, got {short_repr(names.tolist())}."
            )

        return matrix

    def encode_excluded(self, name: str, excluded: Any, num_rows: int) -> Any:
        """Return labels to exclude, as a CSR matrix (N, n).

        They may be lists of labels or a sparse matrix, whatever the form of the codec. Labels that
        are not classes are ignored. `name` is the name of the argument in errors.
        """
        excluded, _, _ = _labels_form_and_columns(name, excluded)
        if sparse.issparse(excluded):
            matrix = as_csr(name, excluded)
            matrix.eliminate_zeros()
        elif _is_list_of_lists(excluded):
            matrix = self._encode_lists(name, excluded, unseen=True)[:, :-1]
        else:
            raise TypeError(
                f"`{name}` must be a scipy.sparse matrix or a list of lists of labels, got "
                f"{type(excluded).__name__} {short_repr(excluded)}."
            )

        if matrix.shape != (num_rows, len(self.classes)):
            raise ValueError(
                f"`{name}` must have a row for each of the {num_rows} inputs and, as a matrix, a "
                f"column for each of the {len(self.classes)} classes, got {matrix.shape[0]} rows"
                + (f" and {matrix.shape[1]} columns." if sparse.issparse(excluded) else ".")
            )

        return matrix

    def decode_matrix(self, chosen: sparse.csr_array) -> Any:
        """Return a CSR matrix (N, n) of predicted labels in the form of the codec."""
        if self.form == SPARSE:
            return chosen.astype(self.dtype)
        if self.form == DENSE:
            return chosen.toarray().astype(self.dtype)
        return [self.classes[ids] for ids in np.split(chosen.indices, chosen.indptr[1:-1])]

    def has_same_classes(self, classes: Any) -> bool:
        """Return whether `classes` and the classes of the codec are the same, in any order."""
        distinct = sorted_distinct(read_labels("classes", classes, integral=False))
        return np.array_equal(np.sort(self._class_indices(distinct)), np.arange(len(self.classes)))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the cached dict of class indices."""
        return {name: value for name, value in vars(self).items() if name != "_index_of_class"}

    @cached_property
    def _index_of_class(self) -> dict[Any, int]:
        """Return a dict from classes, as Python values, to their indices."""
        return {label: index for index, label in enumerate(self.classes.tolist())}

    def _class_indices(self, labels: NDArray[Any]) -> IntArray:
        """Return the class indices of labels (N,); n for labels that are not classes."""
        return class_indices(self.classes, labels, lambda: self._index_of_class)

    def _checked_class_indices(self, labels: NDArray[Any], unseen: bool) -> IntArray:
        """Return the class indices of labels (N,).

        A label that is no class has the index n if `unseen` is True, and raises ValueError
        otherwise.
        """
        codes = self._class_indices(labels)
        is_unseen = codes == len(self.classes)
        if not unseen and is_unseen.any():
            raise ValueError(
                f"`y` must hold labels among the {len(self.classes)} classes, got "
                f"{short_repr(labels[is_unseen].tolist()[0])}, which is none of them; give all "
                "classes to the first call of partial_fit."
            )

        return codes

    def _encode_lists(self, name: str, rows: Any, unseen: bool) -> sparse.csr_array:
        """Return N lists of labels as a CSR matrix of ones, (N, n), or (N, n + 1) with `unseen`."""
        ids = self._checked_class_indices(_concatenate_labels(name, rows), unseen)
        indptr = np.cumsum([0, *map(len, rows)])
        shape = len(rows), len(self.classes) + unseen
        return _with_unit_entries(sparse.csr_array((np.ones(len(ids)), ids, indptr), shape))


def infer_codec(y: Any, classes: Any = None) -> LabelCodec:
    """Return a codec for labels of the form of `y`.

    The classes are `classes` (n,) if they are given. Otherwise they are the distinct labels in `y`,
    or the names of the columns if `y` is an indicator matrix.
    """
    y, form, names = _labels_form_and_columns("y", y)

    class_array = None
    if classes is not None:
        # `integral` is False, because a column may have the name 0.5
        class_array = read_labels("classes", classes, integral=False)
        if not len(class_array):
            raise ValueError("`classes` must hold a label, got none.")

        distinct = sorted_distinct(class_array)
        if form in (SINGLE, DENSE) and _is_list_of_lists(y) and len(y[0]) != len(distinct):
            form = LISTS  # an indicator matrix would have a column per class

    if form in (SINGLE, LISTS):
        labels = read_labels("y", y) if form == SINGLE else _concatenate_labels("y", y)
        return LabelCodec(
            sorted_distinct(labels) if class_array is None else distinct, form, labels.dtype
        )

    matrix = _checked_indicator(y)
    columns = np.arange(matrix.shape[1]) if names is None else names
    if class_array is not None and len(distinct) != len(columns):
        raise ValueError(
            f"`classes` must name the {len(columns)} columns of `y`, got {len(distinct)} names."
        )

    dtype = y.dtype if hasattr(y, "dtype") else np.asarray(y).dtype
    return LabelCodec(columns if class_array is None else class_array, form, dtype)


def _labels_form_and_columns(name: str, y: Any) -> tuple[Any, str, NDArray[Any] | None]:
    """Return three values: the labels, their form, and the names of their columns or None.

    The labels are taken out of a dataframe of several columns. A series or an array of lists
    becomes a list of lists. `name` is the name of the argument in errors.
    """
    if hasattr(y, "columns") and hasattr(y, "__array__"):
        columns = list(y.columns)
        are_text = {isinstance(column, str) for column in columns}
        are_whole = {isinstance(column, (int, np.integer)) for column in columns}
        if (
            not columns
            or (are_text != {True} and are_whole != {True})
            or bool in map(type, columns)
        ):
            raise ValueError(
                "`y` must have columns whose names are text or integers, got "
                f"{short_repr(columns)}; rename them."
            )

        names = read_labels("y", columns)
        if len(names) > 1:
            if hasattr(y, "sparse"):  # a pandas dataframe whose columns are all sparse
                return y.sparse.to_coo(), SPARSE, names

            y = check_array(y, dtype=None, ensure_min_samples=0, input_name="y")
            return y, _infer_form(y), names
        return y, _infer_form(y), None

    if not sparse.issparse(y):
        container = y
        y = unwrap_container(name, y)

    # an array of objects may contain labels, or lists of labels
    rows = y
    if isinstance(y, np.ndarray) and y.dtype == object and y.ndim == 1:
        rows = container.to_list() if hasattr(container, "to_list") else y.tolist()
    if isinstance(rows, (list, tuple)):
        kinds_of_rows = set(map(type, rows))
        non_lists = [kind.__name__ for kind in kinds_of_rows if not issubclass(kind, _LIST_TYPES)]
        if non_lists and len(non_lists) < len(kinds_of_rows):
            raise ValueError(
                f"`{name}` must hold a list of labels for each example, got {non_lists[0]} for "
                "one; write [] for an example without labels."
            )

    y = rows if _is_list_of_lists(rows) else y
    return y, _infer_form(y), None


def _infer_form(y: Any) -> str:
    """Return the form of labels: SINGLE, DENSE, SPARSE or LISTS."""
    if sparse.issparse(y):
        return SPARSE
    if _is_list_of_lists(y):
        row_lengths = {len(row) for row in y}
        if len(row_lengths) != 1 or max(row_lengths) < 2 or isinstance(y[0], (set, frozenset)):
            return LISTS
        if _contains_type(chain.from_iterable(y), (str, bytes)):
            return LISTS  # without a conversion by NumPy, which would pad all texts to the longest
    elif isinstance(y, (list, tuple)) and _contains_type(y, (str, bytes, *_NUMBER_TYPES)):
        return SINGLE

    array = np.asarray(y)
    if array.ndim == 2 and array.shape[1] > 1:
        if array.dtype.kind in "buif" and np.isin(array, (0, 1)).all():
            return DENSE
        if not isinstance(y, np.ndarray):
            return LISTS

    return SINGLE


def _contains_type(values: Iterable[Any], kinds: tuple[type, ...]) -> bool:
    """Return whether a value is an instance of one of the types `kinds`."""
    return any(issubclass(kind, kinds) for kind in set(map(type, values)))


def _is_list_of_lists(y: Any) -> bool:
    """Return whether labels are a list of lists, or of other containers of labels."""
    return isinstance(y, (list, tuple)) and all(isinstance(row, _LIST_TYPES) for row in y)


def _concatenate_labels(name: str, rows: Any) -> NDArray[Any]:
    """Return the labels of all lists in one array (P,)."""
    labels = list(chain.from_iterable(rows))
    return read_labels(name, labels) if labels else np.empty(0, np.int64)


def _checked_indicator(y: Any) -> sparse.csr_array:
    """Return an indicator matrix as a CSR matrix (N, n) of ones; raise if it is malformed."""
    is_sparse: bool = sparse.issparse(y)

    # a 1-D sparse array could be one label for each example, or the labels of one example
    if is_sparse and y.ndim != 2:
        raise ValueError(
            f"`y` must have a row for each example and a column for each class as a sparse matrix, "
            f"got shape {y.shape}; reshape it to (1, n), or pass y.toarray() for one label each."
        )

    checked = as_csr("y", y) if is_sparse else y
    checked = check_array(checked, accept_sparse="csr", dtype=None, input_name="y")
    if isinstance(checked, np.ndarray):
        checked = native_byte_order(checked)  # SciPy requires native byte order

    matrix = sparse.csr_array(checked, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()

    if not (matrix.data == 1).all():
        raise ValueError(
            "`y` as a matrix must hold zeros and ones, one for each label, got "
            f"{matrix.data[matrix.data != 1][0]}."
        )

    return _with_unit_entries(matrix)


def _with_unit_entries(matrix: sparse.csr_array) -> sparse.csr_array:
    """Return a copy of `matrix` (N, n) whose entries are all 1.

    Repeated entries of `matrix` are merged, and its indices sorted, in place.
    """
    matrix.sum_duplicates()  # the labels of an example may contain a label twice
    ones = np.ones(matrix.nnz)
    return sparse.csr_array((ones, matrix.indices, matrix.indptr), matrix.shape)


def example_and_class_indices(codes: Any) -> tuple[IntArray, IntArray]:
    """Return the example indices (P,) and the class indices (P,) of all P encoded labels.

    `codes` is the result of `LabelCodec.encode`.
    """
    if isinstance(codes, np.ndarray):
        return np.arange(len(codes)), codes
    return np.repeat(np.arange(codes.shape[0]), np.diff(codes.indptr)), codes.indices


def class_counts(codes: Any, num_classes: int, sample_weight: FloatArray) -> FloatArray:
    """Return, for each class (n,), the sum of the weights of its examples.

    `codes` is the result of `LabelCodec.encode`.
    """
    example_ids, ids = example_and_class_indices(codes)
    counts = np.bincount(ids, sample_weight[example_ids], num_classes).astype(np.float64)
    if not np.isfinite(counts).all():
        raise ValueError(
            "`sample_weight` must have a finite sum over the examples of each class, got "
            f"{counts.max()}; divide all by one number."
        )
    return counts


def check_sample_weight(sample_weight: Any, num_examples: int) -> FloatArray:
    """Return the argument `sample_weight` as an array (N,), ones for None; raise if malformed."""
    if sample_weight is None:
        return np.ones(num_examples)

    weights = as_real_array("sample_weight", sample_weight, (1,))
    if len(weights) != num_examples:
        raise ValueError(
            f"`sample_weight` must have shape ({num_examples},), one for each example, got "
            f"{weights.shape}."
        )
    if weights.min() < 0.0:
        raise ValueError(f"`sample_weight` must be at least 0, got {weights.min()}.")

    return weights


def class_weights(
    class_weight: Any, codec: LabelCodec, codes: Any, sample_weight: FloatArray
) -> FloatArray:
    """Return the weights (n + 1,) of the classes; the last weight, for unseen labels, is 0.

    `class_weight` is the parameter of the classifier, and `codes` the result of
    `LabelCodec.encode`. "balanced" weights are inversely proportional to class counts. Raises
    ValueError if `class_weight` names a label that is not a class.
    """
    n = len(codec.classes)
    weights_by_class = np.append(np.ones(n), 0.0)

    if isinstance(class_weight, dict):
        for label, weight in class_weight.items():
            as_nonnegative(f"class_weight[{short_repr(label)}]", weight)
        labels = codec.classes.tolist()
        class_weight = {python_value(label): weight for label, weight in class_weight.items()}

        unknown = class_weight.keys() - set(labels)
        if unknown:
            raise ValueError(
                f"`class_weight` must name classes, got {short_repr(min(unknown, key=repr))}, "
                f"which is none of the {n}; check its type."
            )
        weights_by_class[:n] = [class_weight.get(label, 1.0) for label in labels]
    elif class_weight is not None:
        if not isinstance(class_weight, str) or class_weight != "balanced":
            raise ValueError(
                "`class_weight` must be a dict, 'balanced' or None, got "
                f"{type(class_weight).__name__}."
            )

        # scikit-learn's compute_class_weight accepts only one label per example, and sample weights
        # only since version 1.7. Sample weights may be scaled, because only their ratios matter.
        counts = class_counts(codes, n, scale_by_power_of_two(sample_weight))
        weights_by_class = np.zeros(n + 1)

        # a class without examples keeps weight 0, which is not used
        occurs = np.flatnonzero(class_counts(codes, n, (sample_weight > 0.0).astype(np.float64)))
        with np.errstate(divide="ignore"):  # `example_weights` raises for infinite weights
            weights_by_class[occurs] = counts.sum() / (len(occurs) * counts[occurs])

    return weights_by_class


def example_weights(
    weights_by_class: FloatArray, codes: Any, sample_weight: FloatArray
) -> FloatArray:
    """Return the weights (N,) of the examples: `sample_weight` times the mean class weight.

    The mean is over the labels of an example, and `codes` is the result of `LabelCodec.encode`.
    Raises ValueError if a weight is so large that gradients might overflow in float32.
    """
    example_ids, ids = example_and_class_indices(codes)
    num_examples = len(sample_weight)
    weights = np.bincount(example_ids, weights_by_class[ids], num_examples) / np.maximum(
        np.bincount(example_ids, None, num_examples), 1
    )
    weights *= sample_weight

    if weights.max() > _MAX_WEIGHT:
        raise ValueError(
            f"`sample_weight` times `class_weight` must be at most {_MAX_WEIGHT:g}, got "
            f"{weights.max():g}; divide all by one number."
        )

    return weights
