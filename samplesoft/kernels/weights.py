"""Softmax weights of the classes in a row of logits, their sum, and draws by inversion."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_inline, njit_sum
from samplesoft.kernels.exponential import exp32, exp64

Real = NDArray[Any]  # float32 or float64
# Weights up to this are set to 0. Because the largest weight is 1, only a uniform value of exactly
# 0 could draw such a class.
MIN_WEIGHT = 1e-300


@njit
def row_max(x: Real) -> float:
    """Return the maximum of `x` (n,), or -inf if it is empty."""
    a = b = c = d = x.dtype.type(-np.inf)
    whole = len(x) // 4 * 4
    # four independent maxima, which are computed in parallel
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
    """Return the sum of `x` (n,), computed in float64."""
    result = 0.0
    for i in range(len(x)):
        result += x[i]
    return result


@njit_inline
def exp_weights(
    logits: Real, weights: Real, row: int, size: int, excluded: int
) -> tuple[float, float]:
    """Write the weights ``exp(logit - max_logit)`` of the first `size` classes of a row.

    Logits are read from ``logits[row]``, and weights are written to ``weights[row]``, which may be
    the same array. The class `excluded` gets the weight 0, and its logit is set to -inf; no class
    is excluded if `excluded` is outside ``range(size)``. Returns the sum of the weights, and
    `max_logit`, the maximum of the logits of the other classes.
    """
    kind = weights.dtype.type

    # exclude the class before the maximum is computed, because it may have the largest logit
    if 0 <= excluded < size:
        logits[row, excluded] = -np.inf

    # four independent maxima, which are computed in parallel
    a = b = c = d = kind(-np.inf)
    whole = size // 4 * 4
    for i in range(0, whole, 4):
        a = logits[row, i] if logits[row, i] > a else a
        b = logits[row, i + 1] if logits[row, i + 1] > b else b
        c = logits[row, i + 2] if logits[row, i + 2] > c else c
        d = logits[row, i + 3] if logits[row, i + 3] > d else d

    for i in range(whole, size):
        a = logits[row, i] if logits[row, i] > a else a

    a = a if a > b else b
    c = c if c > d else d
    max_logit = float(a if a > c else c)

    shift = kind(max_logit if max_logit > -np.inf else 0.0)
    # the condition is a constant for each dtype, so only one of the branches is compiled
    if weights.itemsize == 4:
        for i in range(size):
            weights[row, i] = exp32(logits[row, i] - shift)
    else:
        for i in range(size):
            weight = exp64(logits[row, i] - shift)
            weights[row, i] = weight if weight > MIN_WEIGHT else 0.0

    # four independent sums; the order of additions does not depend on the compiler
    s0 = s1 = s2 = s3 = 0.0
    for i in range(0, whole, 4):
        s0 += weights[row, i]
        s1 += weights[row, i + 1]
        s2 += weights[row, i + 2]
        s3 += weights[row, i + 3]

    for i in range(whole, size):
        s0 += weights[row, i]

    return (s0 + s1) + (s2 + s3), max_logit


@njit_inline
def search_cumulative(
    weights: Real, row: int, size: int, target: float, start: int, below: float
) -> tuple[int, float]:
    """Return the first index in a row at which the cumulative weight exceeds `target`.

    The search is over ``weights[row, start:size]``, and `below` is the sum of the weights before
    `start`. The second result is the sum of the weights before the returned index. A class with
    weight 0 is never returned: if rounding makes `target` as large as the total, the last class
    with a positive weight is returned.
    """
    index = start
    before = below

    for c in range(start, size):
        # a class with weight 0 must not be drawn, even if `target` is 0
        if weights[row, c] > 0.0:
            index = c
            before = below
            below += weights[row, c]
            if below > target:
                break

    return index, before
