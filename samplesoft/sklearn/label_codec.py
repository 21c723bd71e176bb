"""Labels in the form in which users write them, and the class numbers that models work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array, column_or_1d

from samplesoft._validation import as_csr, shown
from samplesoft.sklearn.label_forms import (
    DENSE,
    LISTS,
    SINGLE,
    SPARSE,
    all_labels,
    checked_indicator,
    checked_labels,
    form_of,
    is_nested,
    without_frame,
)


@dataclass(frozen=True, eq=False)
class LabelCodec:
    """Classes, and the form in which labels come and go; encodes and decodes them."""

    classes: NDArray[Any]  # (n,): labels in ascending order, or columns of an indicator matrix
    form: str  # one of the four of `label_forms`
    dtype: np.dtype[Any]  # of the labels, or of the entries of the matrix

    @property
    def multilabel(self) -> bool:
        """Whether an example may have several labels."""
        return self.form != SINGLE

    def encode(self, y: Any, unseen: bool = False) -> Any:
        """Turn labels of this form into class numbers (N,), or a CSR matrix (N, n) of ones.

        With `unseen`, labels that are no class get the number n; the matrix of lists of labels has
        a column more for them. Else they are an error.
        """
        y, names = without_frame("y", y)
        found = form_of(y)
        if self.form == LISTS and is_nested(y):  # even if all are of one length
            found = LISTS
        if found != self.form:
            raise ValueError(
                f"`y` must come as {self.form}, as in the first call, got {found}; convert it."
            )
        if self.form == SINGLE:
            return self._numbers(checked_labels("y", y), unseen)
        if self.form == LISTS:
            return self._matrix("y", y, unseen)
        matrix = checked_indicator(y)
        if matrix.shape[1] != len(self.classes):
            raise ValueError(
                f"`y` must have {len(self.classes)} columns, one for each class, got "
                f"{matrix.shape[1]}."
            )
        if names is not None and self._is_named and not np.array_equal(names, self.classes):
            raise ValueError(
                f"`y` must have the columns {shown(self.classes.tolist())} of the first call, in "
                f"their order, got {shown(names.tolist())}."
            )
        return matrix

    @property
    def _is_named(self) -> bool:
        """Whether columns have names, and not just numbers from 0."""
        return not np.array_equal(self.classes, np.arange(len(self.classes)))

    def encode_unwanted(self, name: str, unwanted: Any, num_rows: int) -> Any:
        """Turn lists of labels or a sparse matrix into a CSR matrix (N, n), whatever the form.

        Labels that are no class are ignored; errors call the argument `name`.
        """
        unwanted, _ = without_frame(name, unwanted)
        if sparse.issparse(unwanted):
            matrix = as_csr(name, unwanted)
            matrix.eliminate_zeros()
        elif is_nested(unwanted):
            matrix = self._matrix(name, unwanted, unseen=True)[:, :-1]
        else:
            raise TypeError(
                f"`{name}` must be a scipy.sparse matrix or a list of lists of labels, got "
                f"{type(unwanted).__name__} {shown(unwanted)}."
            )
        if matrix.shape != (num_rows, len(self.classes)):
            raise ValueError(
                f"`{name}` must have a row for each of the {num_rows} inputs and, as a matrix, a "
                f"column for each of the {len(self.classes)} classes, got {matrix.shape[0]} rows"
                + (f" and {matrix.shape[1]} columns." if sparse.issparse(unwanted) else ".")
            )
        return matrix

    def decode(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Turn class numbers into labels."""
        return self.classes[ids]

    def decode_matrix(self, chosen: sparse.csr_array) -> Any:
        """Turn a CSR matrix (N, n) into the form in which labels came."""
        if self.form == SPARSE:
            return chosen.astype(self.dtype)
        if self.form == DENSE:
            return chosen.toarray().astype(self.dtype)
        starts = chosen.indptr
        return [
            self.classes[chosen.indices[a:b]] for a, b in zip(starts[:-1], starts[1:], strict=True)
        ]

    def _numbers(self, labels: NDArray[Any], unseen: bool) -> NDArray[np.int64]:
        if not len(labels):
            return np.empty(0, np.int64)
        ascending = self.form in (SINGLE, LISTS)
        try:
            order = None if ascending else np.argsort(self.classes)
            found = np.searchsorted(self.classes, labels, sorter=order)
            found = np.minimum(found, len(self.classes) - 1)
            found = found if order is None else order[found]
        except TypeError:  # Python objects that have no order, such as text and numbers
            found = np.zeros(len(labels), np.int64)
        strange = self.classes[found] != labels
        if unseen:
            found[strange] = len(self.classes)
        elif strange.any():
            raise ValueError(
                f"`y` must hold labels among the {len(self.classes)} classes, got "
                f"{labels[strange].tolist()[0]!r}, which is none of them; give all classes to the "
                "first call of partial_fit."
            )
        return found.astype(np.int64)

    def _matrix(self, name: str, rows: Any, unseen: bool) -> sparse.csr_array:
        """Turn lists of labels into a CSR matrix (N, n) of ones; of (N, n + 1) with `unseen`."""
        ids = self._numbers(all_labels(name, rows), unseen)
        starts = np.cumsum([0, *map(len, rows)])
        shape = len(rows), len(self.classes) + unseen
        matrix = sparse.csr_array((np.ones(len(ids)), ids, starts), shape)
        matrix.sum_duplicates()
        matrix.data[:] = 1.0
        return matrix


def infer_codec(y: Any, classes: Any = None) -> LabelCodec:
    """Find out in which form labels come, and the classes: those of `y`, or `classes` (n,).

    Of an indicator matrix, these are what its columns are called.
    """
    y, names = without_frame("y", y)
    form, given = form_of(y), None
    if classes is not None:
        given = np.unique(column_or_1d(check_array(classes, ensure_2d=False, dtype=None)))
        if form in (SINGLE, DENSE) and is_nested(y) and len(np.asarray(y)[0]) != len(given):
            form = LISTS  # of one length each
    if form == SINGLE:
        labels = checked_labels("y", y)
        return LabelCodec(np.unique(labels) if given is None else given, form, labels.dtype)
    if form == LISTS:
        if given is None:
            given = np.unique(all_labels("y", y))
        return LabelCodec(given, form, given.dtype)
    matrix = checked_indicator(y)
    columns = np.arange(matrix.shape[1]) if names is None else names
    if given is not None and len(given) != len(columns):
        raise ValueError(
            f"`classes` must name the {len(columns)} columns of `y`, got {len(given)} of them."
        )
    dtype = y.dtype if hasattr(y, "dtype") else np.asarray(y).dtype
    return LabelCodec(columns if classes is None else np.asarray(classes), form, dtype)
