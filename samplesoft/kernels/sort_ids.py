"""Equal ids brought together, so that one thread adds up what belongs to one row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_bare
from samplesoft._validation import IntArray

_DIGIT_BITS = 9  # of a digit that ids are sorted by
_DIGIT_VALUES = 1 << _DIGIT_BITS
_MOST_CLASSES_PER_ID = (
    16  # classes for each id up to which counting all of them beats sorting the ids
)


@njit
def equal_runs(ids: IntArray, n: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Find runs of equal ids (K,) in ``range(n)``, as they would stand if the ids were sorted.

    Returns the ids that occur, rising and each once (k,); the place there of each of `ids` (K,);
    the places in `ids` (K,), sorted by id and within a run rising; and where each run starts among
    the latter, (k + 1,).
    """
    if n <= _MOST_CLASSES_PER_ID * len(ids):
        return _by_counting(ids, n)
    return _by_sorting(ids, n)


@njit_bare
def count_below(rising: NDArray[Any], x: float) -> int:
    """Return how many of the numbers, which rise, are below x."""
    low = 0
    high = len(rising)
    while low < high:
        middle = (low + high) >> 1
        if rising[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def _by_counting(ids: IntArray, n: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    place = np.zeros(n, np.int64)  # counts, and later places in `unique`
    for i in ids:
        place[i] += 1
    num = 0
    for j in range(n):
        num += place[j] > 0
    unique = np.empty(num, np.int64)
    starts = np.zeros(num + 1, np.int64)
    num = 0
    for j in range(n):
        if place[j] > 0:
            unique[num] = j
            starts[num + 1] = starts[num] + place[j]
            place[j] = num
            num += 1
    inverse = np.empty(len(ids), np.int64)
    order = np.empty(len(ids), np.int64)
    ends = starts[:-1].copy()
    # places of equal ids rise: sums over them are the same on every run
    for k in range(len(ids)):
        inverse[k] = place[ids[k]]
        order[ends[inverse[k]]] = k
        ends[inverse[k]] += 1
    return unique, inverse, order, starts


@njit
def _by_sorting(ids: IntArray, n: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    # digit after digit, from the last: places with the same digit keep their order
    order = np.empty(len(ids), np.int64)
    for k in range(len(ids)):
        order[k] = k
    other = np.empty(len(ids), np.int64)
    ends = np.empty(_DIGIT_VALUES + 1, np.int64)
    shift = 0
    while shift == 0 or (n - 1) >> shift > 0:
        for d in range(len(ends)):
            ends[d] = 0
        for i in ids:
            ends[1 + (i >> shift & _DIGIT_VALUES - 1)] += 1
        for d in range(_DIGIT_VALUES):
            ends[d + 1] += ends[d]
        for k in range(len(order)):
            digit = ids[order[k]] >> shift & _DIGIT_VALUES - 1
            other[ends[digit]] = order[k]
            ends[digit] += 1
        order, other = other, order
        shift += _DIGIT_BITS
    unique = np.empty(len(ids), np.int64)
    inverse = np.empty(len(ids), np.int64)
    starts = np.empty(len(ids) + 1, np.int64)
    num = 0
    for k in range(len(order)):
        place = order[k]
        if num == 0 or ids[place] != unique[num - 1]:
            unique[num] = ids[place]
            starts[num] = k
            num += 1
        inverse[place] = num - 1
    starts[num] = len(ids)
    return unique[:num].copy(), inverse, order, starts[: num + 1].copy()
