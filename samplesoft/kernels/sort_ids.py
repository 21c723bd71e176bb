"""Grouping of equal ids, so that one thread can sum all contributions to a row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_bare
from samplesoft._validation import IntArray

_DIGIT_BITS = 9  # bits of a digit in the radix sort
_DIGIT_VALUES = 1 << _DIGIT_BITS
# Largest number of classes per id at which ids are grouped by counting over all classes. With more
# classes, sorting the ids is faster.
_MAX_CLASSES_PER_ID = 16


@njit
def group_equal_ids(ids: IntArray, n: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Group equal ids (K,) in ``range(n)``, and return four arrays that describe the groups.

    Returns
    -------
    unique (k,)
        The distinct ids, sorted.
    inverse (K,)
        The index in `unique` of each of `ids`.
    order (K,)
        Indices that sort `ids`, stable.
    offsets (k + 1,)
        The occurrences of ``unique[g]`` are ``order[offsets[g] : offsets[g + 1]]``.
    """
    if n <= _MAX_CLASSES_PER_ID * len(ids):
        return _group_by_counting(ids, n)
    return _group_by_sorting(ids, n)


@njit_bare
def count_below(increasing: NDArray[Any], x: float) -> int:
    """Return how many values of a sorted array (k,) are below x, by binary search."""
    low = 0
    high = len(increasing)
    while low < high:
        middle = (low + high) >> 1
        if increasing[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def _group_by_counting(ids: IntArray, n: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return the results of `group_equal_ids`, by counting the occurrences of all n classes."""
    # for each class the number of its occurrences, and later its index in `unique`
    slot = np.zeros(n, np.int64)
    for i in ids:
        slot[i] += 1

    num_unique = 0
    for j in range(n):
        num_unique += slot[j] > 0

    unique = np.empty(num_unique, np.int64)
    offsets = np.zeros(num_unique + 1, np.int64)
    group = 0
    for j in range(n):
        if slot[j] > 0:
            unique[group] = j
            offsets[group + 1] = offsets[group] + slot[j]
            slot[j] = group
            group += 1

    inverse = np.empty(len(ids), np.int64)
    order = np.empty(len(ids), np.int64)
    ends = offsets[:-1].copy()

    # a stable order, so that sums over equal ids are always the same
    for k in range(len(ids)):
        inverse[k] = slot[ids[k]]
        order[ends[inverse[k]]] = k
        ends[inverse[k]] += 1

    return unique, inverse, order, offsets


@njit
def _group_by_sorting(ids: IntArray, n: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return the results of `group_equal_ids`, by a radix sort of the ids."""
    # sort by each digit of `_DIGIT_BITS` bits, from the last to the first; each pass is stable
    order = np.empty(len(ids), np.int64)
    for k in range(len(ids)):
        order[k] = k

    sorted_order = np.empty(len(ids), np.int64)
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
            sorted_order[ends[digit]] = order[k]
            ends[digit] += 1

        order, sorted_order = sorted_order, order
        shift += _DIGIT_BITS

    unique = np.empty(len(ids), np.int64)
    inverse = np.empty(len(ids), np.int64)
    offsets = np.empty(len(ids) + 1, np.int64)
    num_unique = 0

    for k in range(len(order)):
        index = order[k]
        if num_unique == 0 or ids[index] != unique[num_unique - 1]:
            unique[num_unique] = ids[index]
            offsets[num_unique] = k
            num_unique += 1
        inverse[index] = num_unique - 1

    offsets[num_unique] = len(ids)
    return unique[:num_unique].copy(), inverse, order, offsets[: num_unique + 1].copy()
