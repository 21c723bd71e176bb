"""Lloyd's algorithm for k-means: each vector to the nearest center, each center to their mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.rows import dot

Real = NDArray[Any]  # float32 or float64


@njit
def nearest(rows: Real, centers: Real, halves: FloatArray, labels: IntArray) -> None:
    """Write for each row the nearest center; `halves` (k,) are half their squared norms."""
    for i in range(len(rows)):
        best, greatest = 0, -np.inf
        for c in range(len(centers)):
            score = dot(rows[i], centers[c]) - halves[c]
            if score > greatest:
                best, greatest = c, score
        labels[i] = best


@njit
def move_centers(rows: Real, labels: IntArray, centers: Real) -> None:
    """Move each center to the mean of its rows; one without rows stays."""
    sums = np.zeros(centers.shape)
    counts = np.zeros(len(centers), np.int64)
    for i in range(len(rows)):
        counts[labels[i]] += 1
        total = sums[labels[i]]
        for f in range(len(total)):
            total[f] += rows[i, f]
    for c in range(len(centers)):
        if counts[c] > 0:
            for f in range(centers.shape[1]):
                centers[c, f] = sums[c, f] / counts[c]
