"""Weights of classes side by side: exponentials, their sum, and the class that a draw meets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_sum
from samplesoft.kernels.math.exponential import exp_to

Real = NDArray[Any]  # float32 or float64
LEAST = 1e-300  # no uniform but 0 would draw what weighs less, and `exp_to` may never give 0


@njit
def greatest(x: Real) -> float:
    """Return the maximum of `x`, or -inf if it is empty."""
    a = b = c = d = -np.inf  # four at a time, for one comparison waits for the one before
    whole = len(x) // 4 * 4
    for i in range(0, whole, 4):
        a, b = max(a, x[i]), max(b, x[i + 1])
        c, d = max(c, x[i + 2]), max(d, x[i + 3])
    for i in range(whole, len(x)):
        a = max(a, x[i])
    return max(max(a, b), max(c, d))


@njit_sum
def total(x: Real) -> float:
    """Return the sum of `x` in float64."""
    found = 0.0
    for i in range(len(x)):
        found += x[i]
    return found


@njit
def exp_weights(weights: Real, excluded: int) -> tuple[float, float]:
    """Replace logits by exp(logit) divided by the greatest, and that of `excluded` by 0.

    Returns the sum of the weights, and the greatest logit. There may be no class at `excluded`.
    """
    if 0 <= excluded < len(weights):
        weights[excluded] = -np.inf
    top = greatest(weights)
    shift = weights.dtype.type(top if top > -np.inf else 0.0)
    for c in range(len(weights)):
        weights[c] -= shift
    exp_to(weights)
    least = weights.dtype.type(LEAST)
    found = 0.0  # in the same order for all arrays, which may be typed as read-only or not
    for c in range(len(weights)):
        weights[c] = weights[c] if weights[c] > least else weights.dtype.type(0.0)
        found += weights[c]
    return found, top


@njit
def find(weights: Real, size: int, target: float, start: int, below: float) -> tuple[int, float]:
    """Return the first place from `start` on whose running total exceeds `target`.

    Also returns the total `below` that place. Of places without a weight none is returned, even
    where `target` rounds to the sum of all.
    """
    chosen, under = start, below
    for c in range(start, size):
        if weights[c] > 0.0:
            chosen, under = c, below
            below += weights[c]
            if below > target:
                break
    return chosen, under
