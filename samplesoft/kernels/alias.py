"""Alias tables: one keyed 64-bit word draws a class from any distribution in constant time."""

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

    Column j yields j where a uniform 64-bit word lies below its threshold, else its alias.
    """
    n = len(q)
    scaled = np.empty(n)  # columns of mean 1: below it there is room for another class
    thresholds = np.empty(n, np.uint64)
    alias = np.empty(n, np.int32)
    total = 0.0
    heaviest = 0
    for j in range(n):
        total += q[j]
        heaviest = j if q[j] > q[heaviest] else heaviest
    stack = np.empty(n, np.int32)  # light columns grow from the left, heavy ones from the right
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
        # rounding can use up the heavy columns too early: the heaviest class then fills the
        # rest, for a light column must never be rounded up to a full one
        high = stack[heavy] if heavy < n else heaviest
        thresholds[low] = np.uint64(scaled[low] * _TWO_64)
        alias[low] = high  # what the light column leaves free
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
    # without a division or a float: an exact draw of a column from one word
    # word * n has 128 bits: the upper half is the column, the lower half uniform inside it
    column = ((word >> _S32) * n + (((word & _LOW) * n) >> _S32)) >> _S32
    other = np.int64(alias[column])
    return np.int64(column) if word * n < thresholds[column] else other
