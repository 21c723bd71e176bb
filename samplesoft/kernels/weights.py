"""Softmax weights of adjacent classes, their sum, and draws by inversion."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_inline, njit_sum
from samplesoft.kernels.exponential import exp32, exp64

Real = NDArray[Any]  # float32 or float64
MIN_WEIGHT = 1e-300  # smaller weights become 0: no uniform except 0 would draw such a class


@njit
def row_max(x: Real) -> float:
    """Return the maximum of `x`, or -inf if it is empty."""
    a = b = c = d = x.dtype.type(-np.inf)
    whole = len(x) // 4 * 4  # four independent chains of comparisons run in parallel
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
    """Return the sum of `x`, in float64."""
    result = 0.0
    for i in range(len(x)):
        result += x[i]
    return result


@njit_inline
def exp_weights(
    logits: Real, weights: Real, row: int, size: int, excluded: int
) -> tuple[float, float]:
    """Write ``exp(logit - max_logit)`` for `size` logits in a row, and 0 for `excluded`.

    Returns the sum of the weights, and `max_logit`, the maximum without `excluded`. `weights` may
    be the same array as `logits`. `excluded` may be out of range; otherwise its logit is changed.
    """
    kind = weights.dtype.type
    # before the maximum is computed: it may be the excluded class
    if 0 <= excluded < size:
        logits[row, excluded] = -np.inf
    a = b = c = d = kind(-np.inf)
    whole = size // 4 * 4  # four independent chains of comparisons run in parallel
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
    # compiled for one type, without the branch of the other
    if weights.itemsize == 4:
        for i in range(size):
            weights[row, i] = exp32(logits[row, i] - shift)
    else:
        for i in range(size):
            weight = exp64(logits[row, i] - shift)
            weights[row, i] = weight if weight > MIN_WEIGHT else 0.0
    s0 = s1 = s2 = s3 = 0.0  # a fixed order, whether or not arrays are typed as read-only
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
    """Return the first index from `start` on whose cumulative weight exceeds `target`.

    `below` is the cumulative weight before `start`; the second result is the one before the
    returned index. Classes of weight 0 are never returned, even if `target` rounds to the total.
    """
    index = start
    before = below
    for c in range(start, size):
        # a class of weight 0 must not be drawn, even with a uniform of 0
        if weights[row, c] > 0.0:
            index = c
            before = below
            below += weights[row, c]
            if below > target:
                break
    return index, before
