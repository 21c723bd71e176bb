"""Weights of classes side by side: exponentials, their sum, and the class that a draw meets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_inline, njit_sum
from samplesoft.kernels.exponential import exp32, exp64

Real = NDArray[Any]  # float32 or float64
LEAST = 1e-300  # no uniform but 0 would draw what weighs less, and `exp64` never gives 0


@njit
def greatest(x: Real) -> float:
    """Return the maximum of `x`, or -inf if it is empty."""
    a = b = c = d = x.dtype.type(-np.inf)
    whole = len(x) // 4 * 4  # four at a time, for one comparison waits for the one before
    for i in range(0, whole, 4):
        a = x[i] if x[i] > a else a
        b = x[i + 1] if x[i + 1] > b else b
        c = x[i + 2] if x[i + 2] > c else c
        d = x[i + 3] if x[i + 3] > d else d
    for i in range(whole, len(x)):
        a = x[i] if x[i] > a else a
    a = a if a > b else b
    c = c if c > d else d
    return float(a if a > c else c)


@njit_sum
def total(x: Real) -> float:
    """Return the sum of `x` in float64."""
    found = 0.0
    for i in range(len(x)):
        found += x[i]
    return found


@njit_inline
def exp_weights(
    logits: Real, weights: Real, row: int, size: int, excluded: int
) -> tuple[float, float]:
    """Write exp(logit) divided by the greatest for `size` logits in a row, and 0 for `excluded`.

    Weights may take the place of logits. Returns the sum of the weights, and the greatest logit.
    There may be no class at `excluded`, whose logit is changed.
    """
    kind = weights.dtype.type
    # before the greatest is taken, for it may be the excluded class
    if 0 <= excluded < size:
        logits[row, excluded] = -np.inf
    a = b = c = d = kind(-np.inf)
    whole = size // 4 * 4  # four at a time, for one comparison waits for the one before
    for i in range(0, whole, 4):
        a = logits[row, i] if logits[row, i] > a else a
        b = logits[row, i + 1] if logits[row, i + 1] > b else b
        c = logits[row, i + 2] if logits[row, i + 2] > c else c
        d = logits[row, i + 3] if logits[row, i + 3] > d else d
    for i in range(whole, size):
        a = logits[row, i] if logits[row, i] > a else a
    a = a if a > b else b
    c = c if c > d else d
    top = float(a if a > c else c)
    shift = kind(top if top > -np.inf else 0.0)
    # compiled for one type, without the branch of the other
    if weights.itemsize == 4:
        for i in range(size):
            weights[row, i] = exp32(logits[row, i] - shift)
    else:
        for i in range(size):
            weight = exp64(logits[row, i] - shift)
            weights[row, i] = weight if weight > LEAST else 0.0
    s0 = s1 = s2 = s3 = 0.0  # in one order for all arrays, which may be typed as read-only or not
    for i in range(0, whole, 4):
        s0 += weights[row, i]
        s1 += weights[row, i + 1]
        s2 += weights[row, i + 2]
        s3 += weights[row, i + 3]
    for i in range(whole, size):
        s0 += weights[row, i]
    return (s0 + s1) + (s2 + s3), top


@njit_inline
def find(
    weights: Real, row: int, size: int, target: float, start: int, below: float
) -> tuple[int, float]:
    """Return the first place in a row, from `start` on, whose running total exceeds `target`.

    Also returns the total `below` that place. Of places without a weight none is returned, even
    where `target` rounds to the sum of all.
    """
    chosen = start
    under = below
    for c in range(start, size):
        # a class without weight must not be drawn, even by a uniform of 0
        if weights[row, c] > 0.0:
            chosen = c
            under = below
            below += weights[row, c]
            if below > target:
                break
    return chosen, under
