"""Alias tables: draws from a discrete distribution in constant time, one 64-bit word per draw."""

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
    """Return the alias table of a distribution with weights `q` (n,), by Vose's method.

    The table consists of thresholds (n,), uint64, and aliases (n,), int32. A draw selects a column
    j and a 64-bit word, both uniformly. It yields class j if the word is below ``thresholds[j]``,
    and class ``aliases[j]`` otherwise.
    """
    n = len(q)
    scaled = np.empty(n)  # weights with mean 1, of which another class fills columns below 1
    thresholds = np.empty(n, np.uint64)
    alias = np.empty(n, np.int32)

    total = 0.0
    heaviest = 0
    for j in range(n):
        total += q[j]
        heaviest = j if q[j] > q[heaviest] else heaviest

    stack = np.empty(n, np.int32)  # columns below 1 from the left, other columns from the right
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
        # By rounding, there may be no heavy column left. Then the heaviest class is the alias,
        # because a light column must keep its threshold, or a class of weight 0 might be drawn.
        high = stack[heavy] if heavy < n else heaviest
        thresholds[low] = np.uint64(scaled[low] * _TWO_64)
        alias[low] = high
        if heavy < n:
            scaled[high] = (scaled[high] + scaled[low]) - 1.0
            if scaled[high] < 1.0:
                heavy += 1
                stack[light] = high
                light += 1

    return thresholds, alias


@njit
def alias_draw(word: np.uint64, thresholds: np.ndarray, alias: np.ndarray) -> np.int64:
    """Return the class that a uniform 64-bit `word` draws from the table of `build_alias`."""
    n = np.uint64(len(thresholds))

    # One word selects both the column and the word within the column, without division or floats:
    # they are the upper and the lower 64 bits of the 128-bit product word * n.
    column = ((word >> _S32) * n + (((word & _LOW) * n) >> _S32)) >> _S32
    other = np.int64(alias[column])
    return np.int64(column) if word * n < thresholds[column] else other
