"""Labels as users write them, the class numbers that models work with, and what examples weigh."""

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
    native,
    scale_by_power_of_two,
    short_repr,
)
from samplesoft.sklearn.exact_labels import (
    ascending,
    places,
    python_value,
    read_labels,
    unpacked,
)

SINGLE, DENSE, SPARSE, LISTS = "single", "dense indicator", "sparse indicator", "lists of labels"
_LISTS = (list, tuple, set, frozenset, np.ndarray)
_NUMBERS = (int, float, np.generic)
_HEAVIEST = 1e15  # weight of an example, which gradients of float32 stand


@dataclass(frozen=True, eq=False)
class LabelCodec:
    """Classes, and the form in which labels come and go; encodes and decodes them.

    Codes are class numbers (N,) where an example has one label, else a CSR matrix (N, n) of ones.
    """

    # scikit-learn's LabelEncoder and MultiLabelBinarizer have no number for labels that are no
    # class, take one form each, and name neither the argument nor the remedy
    classes: NDArray[Any]  # (n,): labels in ascending order, or columns of an indicator matrix
    form: str  # one of the four
    dtype: np.dtype[Any]  # of the labels, or of the entries of the matrix

    @property
    def multilabel(self) -> bool:
        """Whether an example may have several labels."""
        return self.form != SINGLE

    def encode(self, y: Any, unseen: bool = False) -> Any:
        """Turn labels of this form into codes.

        With `unseen`, labels that are no class get the number n; the matrix of lists of labels has
        a column more for them. Else they are an error.
        """
        y, form, names = _read("y", y)
        if self.form == LISTS and _is_nested(y):  # even if all are of one length
            form = LISTS
        if form != self.form:
            raise ValueError(
                f"`y` must come as {self.form}, as in the first call, got {form}; convert it."
            )
        if form == SINGLE:
            return self._numbers(read_labels("y", y), unseen)
        if form == LISTS:
            return self._matrix("y", y, unseen)
        matrix = _indicator(y)
        if matrix.shape[1] != len(self.classes):
            raise ValueError(
                f"`y` must have {len(self.classes)} columns, one for each class, got "
                f"{matrix.shape[1]}."
            )
        # columns that had no names in the first call may have any now
        is_named = not np.array_equal(self.classes, np.arange(len(self.classes)))
        if (
            names is not None
            and is_named
            and not np.array_equal(self._places(names), np.arange(len(self.classes)))
        ):
            raise ValueError(
                f"`y` must have the columns {short_repr(self.classes.tolist())} of the first "
                "call, in "
                f"their order, got {short_repr(names.tolist())}."
            )
        return matrix

    def encode_unwanted(self, name: str, unwanted: Any, num_rows: int) -> Any:
        """Turn lists of labels or a sparse matrix into a CSR matrix (N, n), whatever the form.

        Labels that are no class are ignored; errors call the argument `name`.
        """
        unwanted, _, _ = _read(name, unwanted)
        if sparse.issparse(unwanted):
            matrix = as_csr(name, unwanted)
            matrix.eliminate_zeros()
        elif _is_nested(unwanted):
            matrix = self._matrix(name, unwanted, unseen=True)[:, :-1]
        else:
            raise TypeError(
                f"`{name}` must be a scipy.sparse matrix or a list of lists of labels, got "
                f"{type(unwanted).__name__} {short_repr(unwanted)}."
            )
        if matrix.shape != (num_rows, len(self.classes)):
            raise ValueError(
                f"`{name}` must have a row for each of the {num_rows} inputs and, as a matrix, a "
                f"column for each of the {len(self.classes)} classes, got {matrix.shape[0]} rows"
                + (f" and {matrix.shape[1]} columns." if sparse.issparse(unwanted) else ".")
            )
        return matrix

    def decode_matrix(self, chosen: sparse.csr_array) -> Any:
        """Turn a CSR matrix (N, n) into the form in which labels came."""
        if self.form == SPARSE:
            return chosen.astype(self.dtype)
        if self.form == DENSE:
            return chosen.toarray().astype(self.dtype)
        return [self.classes[ids] for ids in np.split(chosen.indices, chosen.indptr[1:-1])]

    def has_same_classes(self, classes: Any) -> bool:
        """Return whether `classes` of a user are those of the codec, in whatever order."""
        given = ascending(read_labels("classes", classes, whole=False))
        return np.array_equal(np.sort(self._places(given)), np.arange(len(self.classes)))

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: not what is made of it."""
        return {name: value for name, value in vars(self).items() if name != "_lookup"}

    @cached_property
    def _lookup(self) -> dict[Any, int]:
        return {label: place for place, label in enumerate(self.classes.tolist())}

    def _places(self, labels: NDArray[Any]) -> IntArray:
        return places(self.classes, labels, lambda: self._lookup)

    def _numbers(self, labels: NDArray[Any], unseen: bool) -> IntArray:
        ids = self._places(labels)
        strange = ids == len(self.classes)
        if not unseen and strange.any():
            raise ValueError(
                f"`y` must hold labels among the {len(self.classes)} classes, got "
                f"{short_repr(labels[strange].tolist()[0])}, which is none of them; give all "
                "classes to "
                "the first call of partial_fit."
            )
        return ids

    def _matrix(self, name: str, rows: Any, unseen: bool) -> sparse.csr_array:
        """Turn lists of labels into a CSR matrix (N, n) of ones; of (N, n + 1) with `unseen`."""
        ids = self._numbers(_all_labels(name, rows), unseen)
        starts = np.cumsum([0, *map(len, rows)])
        shape = len(rows), len(self.classes) + unseen
        return _of_ones(sparse.csr_array((np.ones(len(ids)), ids, starts), shape))


def infer_codec(y: Any, classes: Any = None) -> LabelCodec:
    """Find out in which form labels come, and the classes: those of `y`, or `classes` (n,).

    Of an indicator matrix, these are what its columns are called.
    """
    y, form, names = _read("y", y)
    given = None
    if classes is not None:
        given = read_labels("classes", classes, whole=False)  # columns may be called 0.5
        if not len(given):
            raise ValueError("`classes` must hold a label, got none.")
        distinct = ascending(given)
        if form in (SINGLE, DENSE) and _is_nested(y) and len(y[0]) != len(distinct):
            form = LISTS  # of one length each, and so no indicator matrix
    if form in (SINGLE, LISTS):
        labels = read_labels("y", y) if form == SINGLE else _all_labels("y", y)
        return LabelCodec(ascending(labels) if given is None else distinct, form, labels.dtype)
    matrix = _indicator(y)
    columns = np.arange(matrix.shape[1]) if names is None else names
    if given is not None and len(distinct) != len(columns):
        raise ValueError(
            f"`classes` must name the {len(columns)} columns of `y`, got {len(distinct)} of them."
        )
    dtype = y.dtype if hasattr(y, "dtype") else np.asarray(y).dtype
    return LabelCodec(columns if given is None else given, form, dtype)


def _read(name: str, y: Any) -> tuple[Any, str, NDArray[Any] | None]:
    """Return labels without a dataframe or series around them, their form, and names of columns.

    A series or an array of lists becomes a list of them. Errors call the labels `name`.
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
                f"{short_repr(columns)}; "
                "rename them."
            )
        names = read_labels("y", columns)
        if len(names) > 1:
            if hasattr(y, "sparse"):  # of pandas, where all columns are
                return y.sparse.to_coo(), SPARSE, names
            y = check_array(y, dtype=None, ensure_min_samples=0, input_name="y")
            return y, _form(y), names
        return y, _form(y), None
    if not sparse.issparse(y):
        carrier, y = y, unpacked(name, y)
    rows = y
    if isinstance(y, np.ndarray) and y.dtype == object and y.ndim == 1:  # labels, or lists of them
        rows = carrier.to_list() if hasattr(carrier, "to_list") else y.tolist()
    if isinstance(rows, (list, tuple)):
        kinds_of_rows = set(map(type, rows))
        others = [kind.__name__ for kind in kinds_of_rows if not issubclass(kind, _LISTS)]
        if others and len(others) < len(kinds_of_rows):
            raise ValueError(
                f"`{name}` must hold a list of labels for each example, got {others[0]} for one; "
                "write [] for an example without labels."
            )
    y = rows if _is_nested(rows) else y
    return y, _form(y), None


def _form(y: Any) -> str:
    if sparse.issparse(y):
        return SPARSE
    if _is_nested(y):
        sizes = {len(row) for row in y}
        if len(sizes) != 1 or max(sizes) < 2 or isinstance(y[0], (set, frozenset)):
            return LISTS
        if _hold_any(chain.from_iterable(y), (str, bytes)):
            return LISTS  # NumPy would pad them to the longest text
    elif isinstance(y, (list, tuple)) and _hold_any(y, (str, bytes, *_NUMBERS)):
        return SINGLE
    array = np.asarray(y)
    if array.ndim == 2 and array.shape[1] > 1:
        if array.dtype.kind in "buif" and np.isin(array, (0, 1)).all():
            return DENSE
        if not isinstance(y, np.ndarray):
            return LISTS
    return SINGLE


def _hold_any(values: Iterable[Any], kinds: tuple[type, ...]) -> bool:
    return any(issubclass(kind, kinds) for kind in set(map(type, values)))


def _is_nested(y: Any) -> bool:
    return isinstance(y, (list, tuple)) and all(isinstance(row, _LISTS) for row in y)


def _all_labels(name: str, rows: Any) -> NDArray[Any]:
    """Return the labels of lists of them, one after another."""
    labels = list(chain.from_iterable(rows))
    return read_labels(name, labels) if labels else np.empty(0, np.int64)


def _indicator(y: Any) -> sparse.csr_array:
    """Return an indicator matrix as a CSR matrix (N, n) of ones."""
    is_sparse: bool = sparse.issparse(y)
    if is_sparse and y.ndim != 2:  # one label each, or the labels of one example?
        raise ValueError(
            f"`y` must have a row for each example and a column for each class as a sparse matrix, "
            f"got shape {y.shape}; reshape it to (1, n), or pass y.toarray() for one label each."
        )
    checked = as_csr("y", y) if is_sparse else y
    checked = check_array(checked, accept_sparse="csr", dtype=None, input_name="y")
    if isinstance(checked, np.ndarray):
        checked = native(checked)  # as SciPy asks
    matrix = sparse.csr_array(checked, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if not (matrix.data == 1).all():
        raise ValueError(
            "`y` as a matrix must hold zeros and ones, one for each label, got "
            f"{matrix.data[matrix.data != 1][0]}."
        )
    return _of_ones(matrix)


def _of_ones(matrix: sparse.csr_array) -> sparse.csr_array:
    matrix.sum_duplicates()  # a label that an example has twice
    ones = np.ones(matrix.nnz)
    return sparse.csr_array((ones, matrix.indices, matrix.indptr), matrix.shape)


def examples_and_ids(codes: Any) -> tuple[IntArray, IntArray]:
    """Return the example and the class of each label (P,), of codes."""
    if isinstance(codes, np.ndarray):
        return np.arange(len(codes)), codes
    return np.repeat(np.arange(codes.shape[0]), np.diff(codes.indptr)), codes.indices


def class_counts(codes: Any, num_classes: int, sample_weight: FloatArray) -> FloatArray:
    """Return how often each class occurs, (n,); an example counts as often as its weight says."""
    example_ids, ids = examples_and_ids(codes)
    counts = np.bincount(ids, sample_weight[example_ids], num_classes).astype(np.float64)
    if not np.isfinite(counts).all():
        raise ValueError(
            "`sample_weight` must have a finite sum over the examples of each class, got "
            f"{counts.max()}; divide all by one number."
        )
    return counts


def check_sample_weight(sample_weight: Any, num_examples: int) -> FloatArray:
    """Return the weights (N,) that a user gives to examples; ones for None."""
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
    """Return the weights (n + 1,) of classes, the last, 0, for a label that is none.

    "balanced" divides by how often a class occurs in `codes`. A weight for a label that is no class
    is an error.
    """
    n = len(codec.classes)
    of_class = np.append(np.ones(n), 0.0)
    if isinstance(class_weight, dict):
        for label, weight in class_weight.items():
            as_nonnegative(f"class_weight[{short_repr(label)}]", weight)
        labels = codec.classes.tolist()
        class_weight = {python_value(label): weight for label, weight in class_weight.items()}
        strange = class_weight.keys() - set(labels)
        if strange:
            raise ValueError(
                f"`class_weight` must name classes, got {short_repr(min(strange, key=repr))}, "
                "which is "
                f"none of the {n}; mind the type."
            )
        of_class[:n] = [class_weight.get(label, 1.0) for label in labels]
    elif class_weight is not None:
        if not isinstance(class_weight, str) or class_weight != "balanced":
            raise ValueError(
                "`class_weight` must be a dict, 'balanced' or None, got "
                f"{type(class_weight).__name__}."
            )
        # scikit-learn's compute_class_weight takes one label an example, and weights since 1.7
        # ratios, whatever the unit of the weights is
        counts = class_counts(codes, n, scale_by_power_of_two(sample_weight))
        of_class = np.zeros(n + 1)
        # what a class without examples weighs does not matter
        occurs = np.flatnonzero(class_counts(codes, n, (sample_weight > 0.0).astype(np.float64)))
        with np.errstate(divide="ignore"):  # refused as too heavy
            of_class[occurs] = counts.sum() / (len(occurs) * counts[occurs])
    return of_class


def example_weights(of_class: FloatArray, codes: Any, sample_weight: FloatArray) -> FloatArray:
    """Return the weights (N,) of examples, their own times that of the class or classes.

    Of several labels it is the mean. A weight that gradients of float32 would not stand is an
    error.
    """
    example_ids, ids = examples_and_ids(codes)
    num = len(sample_weight)
    weights = np.bincount(example_ids, of_class[ids], num) / np.maximum(
        np.bincount(example_ids, None, num), 1
    )
    weights *= sample_weight
    if weights.max() > _HEAVIEST:
        raise ValueError(
            f"`sample_weight` times `class_weight` must be at most {_HEAVIEST:g}, got "
            f"{weights.max():g}; divide all by one number."
        )
    return weights
