"""Alias tables: draws from a discrete distribution in constant time, one 64-bit word per draw."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray

_SHIFT_32 = np.uint64(32)
_LOW_32_BITS = np.uint64(0xFFFFFFFF)
_MAX_WORD = np.uint64(0xFFFFFFFFFFFFFFFF)
_TWO_64 = 2.0**64


@njit
def build_alias(q: FloatArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the alias table of a distribution with weights `q` (n,), by Vose's method.

    The table consists of thresholds (n,), uint64, and aliases (n,), int32. A draw selects a column
    j and a 64-bit word, both uniformly. It yields class j if the word is below ``thresholds[j]``,
    and class ``aliases[j]`` otherwise.
    """
    n = len(q)
    # The weight of each class, scaled to mean 1, is the content of its column. A column with less
    # than 1 is filled up to 1 from the column of another class.
    scaled = np.empty(n)
    thresholds = np.empty(n, np.uint64)
    alias = np.empty(n, np.int32)

    total = 0.0
    heaviest = 0
    for j in range(n):
        total += q[j]
        heaviest = j if q[j] > q[heaviest] else heaviest

    # two stacks in one array: from the left, columns with less than 1; from the right, the others
    stack = np.empty(n, np.int32)
    num_light = 0
    heavy_start = n

    for j in range(n):
        scaled[j] = q[j] / total * n
        thresholds[j] = _MAX_WORD
        alias[j] = j
        if scaled[j] < 1.0:
            stack[num_light] = j
            num_light += 1
        else:
            heavy_start -= 1
            stack[heavy_start] = j

    while num_light > 0:
        num_light -= 1
        light_column = stack[num_light]
        # Rounding may leave a light column when there is no heavy one. Its alias is then the class
        # of the largest weight. It keeps its threshold, because otherwise a class of weight 0 could
        # be drawn.
        heavy_column = stack[heavy_start] if heavy_start < n else heaviest
        thresholds[light_column] = np.uint64(scaled[light_column] * _TWO_64)
        alias[light_column] = heavy_column
        if heavy_start < n:
            scaled[heavy_column] = (scaled[heavy_column] + scaled[light_column]) - 1.0
            if scaled[heavy_column] < 1.0:
                heavy_start += 1
                stack[num_light] = heavy_column
                num_light += 1

    return thresholds, alias


@njit
def alias_draw(word: np.uint64, thresholds: np.ndarray, alias: np.ndarray) -> np.int64:
    """Return the class that a uniform 64-bit `word` draws from the table of `build_alias`."""
    n = np.uint64(len(thresholds))

    # One word gives both the column and the word to compare with its threshold, without division or
    # floats: they are the upper and the lower 64 bits of the 128-bit product word * n.
    column = ((word >> _SHIFT_32) * n + (((word & _LOW_32_BITS) * n) >> _SHIFT_32)) >> _SHIFT_32
    other = np.int64(alias[column])
    return np.int64(column) if word * n < thresholds[column] else other
