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
    """Write ``out[g]``, the sum of ``values[k] * matrix[rows[k]]`` over one group of k.

    Group g holds the k from ``starts[g]`` up to ``starts[g + 1]``; `rows` and `values` are (K,),
    the matrix (N, d) and `out` (groups, d).
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
