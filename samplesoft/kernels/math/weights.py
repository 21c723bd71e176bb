"""Weights of a few classes side by side: exponentials, and the class that a draw meets."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.math.exponential import exp_to

LEAST = 1e-300  # no uniform but 0 would draw what weighs less, and `exp_to` never gives 0


@njit
def exp_weights(weights: FloatArray, excluded: int) -> tuple[float, float]:
    """Replace logits by exp(logit) divided by the greatest, and that of `excluded` by 0.

    Returns the sum of the weights, and the greatest logit.
    """
    greatest = -np.inf
    for c in range(len(weights)):
        if c != excluded:
            greatest = max(greatest, weights[c])
    for c in range(len(weights)):
        weights[c] = weights[c] - greatest if c != excluded else -np.inf
    exp_to(weights)
    total = 0.0
    for c in range(len(weights)):
        weights[c] = weights[c] if c != excluded and weights[c] > LEAST else 0.0
        total += weights[c]
    return total, greatest


@njit
def find(
    weights: FloatArray, size: int, target: float, start: int, below: float
) -> tuple[int, float]:
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
