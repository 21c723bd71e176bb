"""What the terms of all losses need of a row of logits: its maximum, its weights, their sum."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit, njit_sum
from samplesoft._validation import FloatArray
from samplesoft.kernels.math.exponential import exp_to

_LEAST = 5e-324  # what `exp_to` gives for all that is too small


@njit
def greatest(x: FloatArray) -> float:
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
def total(x: FloatArray) -> float:
    """Return the sum of `x`."""
    found = 0.0
    for i in range(len(x)):
        found += x[i]
    return found


@njit
def weigh(x: FloatArray) -> None:
    """Replace each of `x`, at most 0, by its exponential; what is too small has no weight."""
    exp_to(x)
    for i in range(len(x)):
        x[i] = x[i] if x[i] > _LEAST else 0.0
