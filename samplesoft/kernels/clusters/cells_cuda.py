"""Cells of classes on the device, a warp for each: mean and variance of their vectors.

Lanes, one for each column, read rows side by side and add in the order of `kernels.clusters.cells`.
"""

from __future__ import annotations

from typing import Any

from samplesoft._cuda import WARP_SIZE, kernel, lane, warp_index


@kernel
def sum_up_leaves(rows: Any, ranges: Any, which: Any, cells: Any) -> None:
    """Write the cells `which` (k,), each over the rows of its range [first, last) of (N, 2)."""
    if warp_index() >= which.shape[0]:
        return
    cell, dim = which[warp_index()], rows.shape[1]
    first, last = ranges[cell, 0], ranges[cell, 1]
    for f in range(lane(), dim, WARP_SIZE):
        mean, square = 0.0, 0.0
        for i in range(first, last):
            mean += float(rows[i, f])
        mean /= last - first
        share = 1.0 / (last - first)
        for i in range(first, last):  # about the mean, so that nothing cancels
            difference = float(rows[i, f]) - mean
            square += difference * (share * difference)  # never above the greatest square
        cells[cell, f] = mean
        cells[cell, dim + f] = square


@kernel
def sum_up_children(cells: Any, sizes: Any, ranges: Any, which: Any) -> None:
    """Write the cells `which` (k,), each over the cells of its range, of `sizes` (N,) classes."""
    if warp_index() >= which.shape[0]:
        return
    cell, dim = which[warp_index()], cells.shape[1] // 2
    first, last = ranges[cell, 0], ranges[cell, 1]
    for f in range(lane(), dim, WARP_SIZE):
        mean, square = 0.0, 0.0
        for i in range(first, last):
            mean += sizes[i] / sizes[cell] * float(cells[i, f])
        for i in range(first, last):
            difference = float(cells[i, f]) - mean
            share = sizes[i] / sizes[cell]
            square += share * (float(cells[i, dim + f]) + difference * difference)
        cells[cell, f] = mean
        cells[cell, dim + f] = square
