"""Cells of classes: a row (2 d) of the mean and the diagonal variance of their vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import IntArray

Real = NDArray[Any]  # float32 or float64


@njit
def sum_up_leaves(rows: Real, ranges: IntArray, which: IntArray, cells: Real) -> None:
    """Write the cells `which` (k,), each over the rows of its range [first, last) of (N, 2)."""
    dim = rows.shape[1]
    mean, square = np.empty(dim), np.empty(dim)
    for cell in which:
        first, last = ranges[cell]
        mean[:] = 0.0
        square[:] = 0.0
        for i in range(first, last):
            for f in range(dim):
                mean[f] += rows[i, f]
        mean /= last - first
        share = 1.0 / (last - first)
        for i in range(first, last):  # about the mean, so that nothing cancels
            for f in range(dim):
                difference = rows[i, f] - mean[f]
                square[f] += difference * (share * difference)  # never above the greatest square
        for f in range(dim):
            cells[cell, f] = mean[f]
            cells[cell, dim + f] = square[f]


@njit
def sum_up_children(cells: Real, sizes: IntArray, ranges: IntArray, which: IntArray) -> None:
    """Write the cells `which` (k,), each over the cells of its range, of `sizes` (N,) classes."""
    dim = cells.shape[1] // 2
    mean, square = np.empty(dim), np.empty(dim)
    for cell in which:
        first, last = ranges[cell]
        mean[:] = 0.0
        square[:] = 0.0
        for i in range(first, last):
            share = sizes[i] / sizes[cell]
            for f in range(dim):
                mean[f] += share * cells[i, f]
        for i in range(first, last):
            share = sizes[i] / sizes[cell]
            for f in range(dim):
                difference = cells[i, f] - mean[f]
                square[f] += share * (cells[i, dim + f] + difference * difference)
        for f in range(dim):
            cells[cell, f] = mean[f]
            cells[cell, dim + f] = square[f]
