"""Weighted sums of the rows of a matrix, as in a sparse matrix times a dense one."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft.kernels.math.prefetch import prefetch_row

_AHEAD = 4  # rows, so that a row is there when its turn comes


@njit
def weighted_rows(
    starts: NDArray[Any],
    rows: NDArray[Any],
    values: NDArray[Any],
    matrix: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Write ``out[g] = sum of values[k] matrix[rows[k]]`` for k from ``starts[g]`` on.

    Parameters
    ----------
    starts : ndarray of int, shape (groups + 1,)
        Where the entries of each group start in `rows` and `values`.
    rows : ndarray of int, shape (K,)
        Rows of `matrix`.
    values : ndarray, shape (K,)
        Their weights.
    matrix : ndarray, shape (N, d)
        Rows to add.
    out : ndarray, shape (groups, d)
        Output.
    """
    for g in range(len(out)):
        total = out[g]
        total[:] = 0.0
        for k in range(starts[g], starts[g + 1]):
            if k + _AHEAD < starts[g + 1]:
                prefetch_row(matrix, rows[k + _AHEAD])
            row, factor = matrix[rows[k]], values[k]
            for i in range(len(total)):
                total[i] += factor * row[i]
