"""Labels of a batch: one for each example, or several by the multi-class reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_csr,
    as_labels,
    as_real_array,
)


@dataclass(frozen=True, eq=False)
class Targets:
    """The P (example, label) pairs of a batch, in the order of the examples."""

    labels: IntArray
    owners: IntArray | None = None  # (P,): example of each pair, rising; None where each has one
    shares: FloatArray | None = None  # (P,): weights in the loss of an example
    starts: IntArray | None = None  # (B,): first pair of each example

    def rows(self, values: Any) -> Any:
        """Return the row of each pair, for `values` with one row for each example."""
        return values if self.owners is None else values[self.owners]

    def per_example(self, values: Any) -> Any:
        """Return the sums over the pairs of each example, for `values` with one row for each."""
        if self.owners is None:
            return values
        return np.add.reduceat(values, self.firsts(), axis=0)

    def firsts(self) -> IntArray:
        """Return the place (B,) of the first pair of each example."""
        return np.arange(len(self.labels)) if self.starts is None else self.starts


def check_targets(labels: Any, batch: int, num_classes: int, reduction: str = "pal-n") -> Targets:
    """Return the pairs of labels (B,), or of a sparse matrix (B, n) with several for an example.

    Shares are the values of the matrix, for reduction "pal-n" divided by their sums; for "ova"
    they must be 1.
    """
    if not sparse.issparse(labels):
        given = as_array("labels", labels)
        if given.ndim != 1:
            raise ValueError(
                f"`labels` must have shape ({batch},), got {given.shape}; several labels of "
                "an example come as a scipy.sparse matrix (B, n)."
            )
        return Targets(as_labels("labels", given, num_classes, (batch,)))
    matrix = as_csr("labels", labels)  # a copy, for it is put in order
    if matrix.shape != (batch, num_classes):
        raise ValueError(
            f"`labels` must have shape {(batch, num_classes)} as a matrix, got {matrix.shape}."
        )
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    counts = np.diff(matrix.indptr)
    if not counts.all():
        raise ValueError(
            f"`labels` must have a label in each row, got none in row {int(np.argmin(counts))}; "
            "leave such examples out."
        )
    values = as_real_array("labels", matrix.data, (1,))
    if values.min() < 0.0:
        raise ValueError(f"`labels` must hold weights of at least 0, got {values.min()}.")
    if reduction == "ova" and (values != 1.0).any():
        raise ValueError(
            "`labels` must hold ones with label_reduction='ova', for which a class is a label or "
            f"is none, got {values[values != 1.0][0]}; take 'pal' for labels of other weights."
        )
    owners = np.repeat(np.arange(batch), counts)
    starts, places = matrix.indptr[:-1].astype(np.int64), matrix.indices.astype(np.int64)
    if reduction != "pal-n":
        return Targets(places, owners, values, starts)
    values = values / np.maximum.reduceat(values, matrix.indptr[:-1])[owners]
    totals = np.add.reduceat(values, matrix.indptr[:-1])
    return Targets(places, owners, values / totals[owners], starts)
