"""Gradients of a loss: rows of class vectors, each at most once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from samplesoft._device.select import to_host
from samplesoft._validation import IntArray


class SparseRows(NamedTuple):
    """A gradient that is zero outside a few rows.

    Parameters
    ----------
    ids : ndarray of int64, shape (k,)
        Rows of the parameter, ascending and each once.
    rows : ndarray, shape (k, d) or (k,)
        Gradient of those rows; of shape (k,) where the parameter is a vector.
    """

    ids: IntArray
    rows: NDArray[Any]

    def to_host(self) -> SparseRows:
        """Return the same in NumPy arrays, copied if they lie on a GPU."""
        return SparseRows(to_host(self.ids), to_host(self.rows))


@dataclass(frozen=True, eq=False)
class Gradients:
    """Derivatives of a loss of shape-(B, d) contexts and shape-(n, d) class vectors.

    Parameters
    ----------
    dh : ndarray, shape (B, d)
        With respect to the contexts.
    dW : SparseRows
        With respect to the class vectors: k rows of d.
    db : SparseRows or None
        With respect to the class biases, k numbers; None where there are none.
    """

    dh: NDArray[Any]
    dW: SparseRows
    db: SparseRows | None

    def to_host(self) -> Gradients:
        """Return the same in NumPy arrays, copied if they lie on a GPU."""
        db = None if self.db is None else self.db.to_host()
        return Gradients(to_host(self.dh), self.dW.to_host(), db)
