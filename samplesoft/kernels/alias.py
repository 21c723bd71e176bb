"""Alias tables: draws from any distribution in constant time, from one random 64-bit word each."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray

_S32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_TWO_64 = 2.0**64


@njit
def build_alias(q: FloatArray) -> tuple[np.ndarray, np.ndarray]:
    """Return thresholds (n,) uint64 and aliases (n,) int32 for weights `q` (n,), by Vose's method.

    Column j yields class j if a uniform 64-bit word is below its threshold, and its alias
    otherwise.
    """
    n = len(q)
    scaled = np.empty(n)  # weights with mean 1; a column below 1 is filled by another class
    thresholds = np.empty(n, np.uint64)
    alias = np.empty(n, np.int32)
    total = 0.0
    heaviest = 0
    for j in range(n):
        total += q[j]
        heaviest = j if q[j] > q[heaviest] else heaviest
    stack = np.empty(n, np.int32)  # columns below 1 from the left, others from the right
    light = 0
    heavy = n
    for j in range(n):
        scaled[j] = q[j] / total * n
        thresholds[j] = _FULL
        alias[j] = j
        if scaled[j] < 1.0:
            stack[light] = j
            light += 1
        else:
            heavy -= 1
            stack[heavy] = j
    while light > 0:
        light -= 1
        low = stack[light]
        # rounding can use up the heavy columns too early. Then the heaviest class fills the rest,
        # because a light column must never be rounded up to a full one
        high = stack[heavy] if heavy < n else heaviest
        thresholds[low] = np.uint64(scaled[low] * _TWO_64)
        alias[low] = high  # fills the rest of the column
        if heavy < n:
            scaled[high] = (scaled[high] + scaled[low]) - 1.0
            if scaled[high] < 1.0:
                heavy += 1
                stack[light] = high
                light += 1
    return thresholds, alias


@njit
def alias_draw(word: np.uint64, thresholds: np.ndarray, alias: np.ndarray) -> np.int64:
    """Return the class that a uniform 64-bit `word` draws."""
    n = np.uint64(len(thresholds))
    # an exact draw of a column from one word, without division or floats: the upper half of the
    # 128-bit product word * n is the column, the lower half is uniform within it
    column = ((word >> _S32) * n + (((word & _LOW) * n) >> _S32)) >> _S32
    other = np.int64(alias[column])
    return np.int64(column) if word * n < thresholds[column] else other
