"""Logistic losses of a block of scores, classes by examples, and their derivatives."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.exponential import exp64_to, log1p_to
from samplesoft.kernels.losses.candidate_scores import Floats


@njit
def add_softplus(scores: Floats, excluded: IntArray, examples: IntArray, total: FloatArray) -> None:
    """Add ``log(1 + exp(score))`` of a block of classes, scores (r, B), to sums `total` (B,).

    That of class ``excluded[i]`` of the block stays out of the sum of example ``examples[i]``.
    """
    for i in range(len(excluded)):
        scores[excluded[i], examples[i]] = -np.inf
    size = len(total)
    small = np.empty(size)
    for j in range(len(scores)):
        row = scores[j]
        for b in range(size):
            small[b] = -abs(row[b])
            total[b] += 0.0 if row[b] <= 0.0 else row[b]  # NaN too, so that it is seen
        exp64_to(small, size)
        log1p_to(small)
        for b in range(size):
            total[b] += small[b]


@njit
def sigmoids(scores: Floats, factor: FloatArray) -> None:
    """Replace scores (r, B) by ``factor / (1 + exp(-score))``, for factors (B,)."""
    size = len(factor)
    small = np.empty(size)
    for j in range(len(scores)):
        row = scores[j]
        for b in range(size):
            small[b] = -abs(row[b])
        exp64_to(small, size)
        for b in range(size):
            row[b] = factor[b] * (1.0 if row[b] >= 0.0 else small[b]) / (1.0 + small[b])
