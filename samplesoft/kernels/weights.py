"""Weights of classes side by side: exponentials, their sum, and the class that a draw meets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_sum
from samplesoft.kernels.exponential import exp_to

Real = NDArray[Any]  # float32 or float64
LEAST = 1e-300  # no uniform but 0 would draw what weighs less, and `exp_to` may never give 0


@njit
def greatest(x: Real) -> float:
    """Return the maximum of `x`, or -inf if it is empty."""
    return _greatest(x, len(x))


@njit
def _greatest(x: Real, size: int) -> float:
    a = b = c = d = x.dtype.type(-np.inf)
    whole = size // 4 * 4  # four at a time, for one comparison waits for the one before
    for i in range(0, whole, 4):
        a = x[i] if x[i] > a else a
        b = x[i + 1] if x[i + 1] > b else b
        c = x[i + 2] if x[i + 2] > c else c
        d = x[i + 3] if x[i + 3] > d else d
    for i in range(whole, size):
        a = x[i] if x[i] > a else a
    a, c = a if a > b else b, c if c > d else d
    return float(a if a > c else c)


@njit_sum
def total(x: Real) -> float:
    """Return the sum of `x` in float64."""
    found = 0.0
    for i in range(len(x)):
        found += x[i]
    return found


@njit
def exp_weights(weights: Real, size: int, excluded: int) -> tuple[float, float]:
    """Replace `size` logits by exp(logit) divided by the greatest, and that of `excluded` by 0.

    Returns the sum of the weights, and the greatest logit. There may be no class at `excluded`.
    """
    # before the greatest is taken, for it may be the excluded class
    if 0 <= excluded < size:
        weights[excluded] = -np.inf
    top = _greatest(weights, size)
    shift = weights.dtype.type(top if top > -np.inf else 0.0)
    for c in range(size):
        weights[c] -= shift
    exp_to(weights, size)
    least = weights.dtype.type(LEAST)
    for c in range(size):
        weights[c] = weights[c] if weights[c] > least else weights.dtype.type(0.0)
    s0 = s1 = s2 = s3 = 0.0  # in one order for all arrays, which may be typed as read-only or not
    whole = size // 4 * 4
    for c in range(0, whole, 4):
        s0 += weights[c]
        s1 += weights[c + 1]
        s2 += weights[c + 2]
        s3 += weights[c + 3]
    for c in range(whole, size):
        s0 += weights[c]
    return (s0 + s1) + (s2 + s3), top


@njit
def find(weights: Real, size: int, target: float, start: int, below: float) -> tuple[int, float]:
    """Return the first place from `start` on whose running total exceeds `target`.

    Also returns the total `below` that place. Of places without a weight none is returned, even
    where `target` rounds to the sum of all.
    """
    chosen, under = start, below
    for c in range(start, size):
        # a class without weight must not be drawn, even by a uniform of 0
        if weights[c] > 0.0:
            chosen, under = c, below
            below += weights[c]
            if below > target:
                break
    return chosen, under
