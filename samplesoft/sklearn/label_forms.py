"""Labels as users write them: one of each example, matrices, dataframes and lists."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from samplesoft._validation import as_csr, shown

_LISTS = (list, tuple, set, frozenset, np.ndarray)
SINGLE, DENSE, SPARSE, LISTS = "single", "dense indicator", "sparse indicator", "lists of labels"


def require_labels(y: Any) -> None:
    """Raise ValueError where there are no labels."""
    if y is None:
        raise ValueError(
            "SampledSoftmaxClassifier requires y to be passed, but the target y is None."
        )


def without_frame(name: str, y: Any) -> tuple[Any, NDArray[Any] | None]:
    """Return labels of a dataframe as a matrix, and the names of its columns if it has several.

    A series or an array of lists becomes a list of them. Other labels stay as they are. Errors call
    them `name`.
    """
    if hasattr(y, "columns") and hasattr(y, "__array__"):
        names = _column_names(list(y.columns))
        if len(names) < 2:
            return y, None
        if hasattr(y, "sparse"):  # of pandas, where all columns are
            return y.sparse.to_coo(), names
        return check_array(y, dtype=None, ensure_min_samples=0, input_name="y"), names
    if isinstance(y, np.ndarray):
        lists = y.tolist() if y.dtype == object and y.ndim == 1 else y
    else:
        lists = y.to_list() if hasattr(y, "to_list") else y
    if isinstance(lists, (list, tuple)):
        kinds = set(map(type, lists))
        others = [kind.__name__ for kind in kinds if not issubclass(kind, _LISTS)]
        if others and len(others) < len(kinds):
            raise ValueError(
                f"`{name}` must hold a list of labels for each example, got {others[0]} for one; "
                "write [] for an example without labels."
            )
    return (lists if is_nested(lists) else y), None


def _column_names(names: list[Any]) -> NDArray[Any]:
    found = np.array(names)
    kinds = {isinstance(name, str) for name in names}
    if found.ndim != 1 or found.dtype.kind not in "iuU" or len(kinds) != 1:
        raise ValueError(
            f"`y` must have columns whose names are text or integers, got {shown(names)}; rename "
            "them."
        )
    return found


def form_of(y: Any) -> str:
    """Return in which of the four forms labels come."""
    if sparse.issparse(y):
        return SPARSE
    if is_nested(y):
        sizes = {len(row) for row in y}
        if len(sizes) != 1 or max(sizes) < 2 or isinstance(y[0], (set, frozenset)):
            return LISTS
    array = np.asarray(y)
    if array.ndim == 2 and array.shape[1] > 1:
        if array.dtype.kind in "buif" and np.isin(array, (0, 1)).all():
            return DENSE
        if not isinstance(y, np.ndarray):
            return LISTS
    return SINGLE


def is_nested(y: Any) -> bool:
    """Return whether something is a list of lists."""
    return isinstance(y, (list, tuple)) and all(isinstance(row, _LISTS) for row in y)


def checked_labels(name: str, y: Any) -> NDArray[Any]:
    """Return labels (N,), one of each example."""
    labels: NDArray[Any] = column_or_1d(
        check_array(y, ensure_2d=False, dtype=None, ensure_min_samples=0, input_name=name),
        warn=True,
    )
    if labels.dtype.hasobject:
        kinds = set(map(type, labels.tolist()))
        others = [kind.__name__ for kind in kinds if not issubclass(kind, str)]
        if others and len(others) < len(kinds):
            raise ValueError(
                f"`{name}` must hold labels of one kind, got text and {others[0]}; convert them, "
                "and leave out examples without a label, or give each a list of labels."
            )
    if labels.dtype.kind not in "biuSU":
        # floats are cast to see if they are whole; many classes are no sign of a regression here
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            check_classification_targets(labels)
    return labels


def checked_indicator(y: Any) -> sparse.csr_array:
    """Return an indicator matrix as a CSR matrix (N, n) of ones."""
    given = as_csr("y", y) if sparse.issparse(y) else y
    checked = check_array(given, accept_sparse="csr", dtype=None, input_name="y")
    matrix = sparse.csr_array(checked, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if not (matrix.data == 1).all():
        raise ValueError(
            "`y` as a matrix must hold zeros and ones, one for each label, got "
            f"{matrix.data[matrix.data != 1][0]}."
        )
    ones = np.ones(matrix.nnz)
    return sparse.csr_array((ones, matrix.indices, matrix.indptr), matrix.shape)


def all_labels(name: str, rows: Any) -> NDArray[Any]:
    """Return the labels of lists of them, one after another."""
    arrays = [np.asarray(list(row)) for row in rows if len(row)]
    kinds = {"text" if array.dtype.kind in "US" else "numbers" for array in arrays}
    if len(kinds) > 1:
        raise ValueError(f"`{name}` must hold labels of one kind, got text and numbers.")
    return checked_labels(name, np.concatenate(arrays)) if arrays else np.empty(0, np.int64)
