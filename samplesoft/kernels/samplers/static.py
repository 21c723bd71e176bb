"""Draws from one distribution for all examples, with and without replacement.

Every draw takes its words from the stream of its example: draw k reads word k, and further words
at a stride of the number of draws where the first is refused.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._random import mix64, uniform
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.samplers.alias import alias_draw

Table = tuple[NDArray[np.uint64], NDArray[np.int32]]  # from build_alias

_EMPTY = -1
_ONE = np.uint64(1)


@njit
def alias_rows(
    key: np.uint64,
    first: int,
    tables: tuple[Table, Table],
    top: int,
    exclude: IntArray,
    ids: IntArray,
) -> None:
    """Write draws with replacement into `ids` (B, m) for examples ``first, first + 1, ...``.

    `exclude` (B,) holds classes that are not drawn, none where negative. `tables` are the alias
    table of all classes, and that without class `top`, which may have more than half of the mass:
    examples that exclude it draw from the second one, so that all others refuse at most every other
    draw.
    """
    num = ids.shape[1]
    for b in range(len(ids)):
        row = np.uint64(mix64(key, np.uint64(first + b)))
        excluded = exclude[b]
        thresholds, alias = tables[1] if excluded == top else tables[0]
        for k in range(num):  # without a branch, so that many reads of the table overlap
            ids[b, k] = alias_draw(mix64(row, np.uint64(k)), thresholds, alias)
        if excluded >= 0:
            for k in range(num):
                place = k
                while ids[b, k] == excluded:
                    place += num
                    ids[b, k] = alias_draw(mix64(row, np.uint64(place)), thresholds, alias)


@njit
def uniform_rows(key: np.uint64, first: int, n: int, exclude: IntArray, ids: IntArray) -> None:
    """Write equally likely classes of ``range(n)`` into `ids`, as `alias_rows` does."""
    for b in range(len(ids)):
        row = np.uint64(mix64(key, np.uint64(first + b)))
        excluded = exclude[b]
        left = n - 1 if excluded >= 0 else n
        for k in range(ids.shape[1]):
            drawn = np.int64(uniform(row, np.uint64(k)) * left)
            ids[b, k] = drawn + 1 if 0 <= excluded <= drawn else drawn


@njit
def _new_set(size: int) -> IntArray:
    """Return an empty hash set for up to `size` classes: places, a power of two."""
    places = 4
    while places < 2 * size:
        places *= 2
    return np.full(places, _EMPTY)


@njit
def _place(members: IntArray, value: np.int64) -> np.int64:
    """Return the place of `value` in a hash set, or the empty one where it belongs."""
    last = np.int64(len(members) - 1)
    place = np.int64(mix64(np.uint64(value), _ONE)) & last
    while members[place] != _EMPTY and members[place] != value:
        place = np.int64(place + 1) & last
    return place


@njit
def distinct_rows(
    key: np.uint64,
    first: int,
    tables: tuple[Table, Table],
    top: int,
    log_weights: FloatArray,
    exclude: IntArray,
    ids: IntArray,
) -> None:
    """Write successive draws without replacement into `ids`, as `alias_rows` does.

    Draws from the table that repeat a class are dropped. Where that takes long, exponential
    clocks in the classes that are left decide: they have no memory, so the law is the same.
    """
    n, num = len(log_weights), ids.shape[1]
    tries = n + 4 * num  # about what the clocks would cost
    members = _new_set(num + 1)
    for b in range(len(ids)):
        row = np.uint64(mix64(key, np.uint64(first + b)))
        thresholds, alias = tables[1] if exclude[b] == top else tables[0]
        members[:] = _EMPTY
        if exclude[b] >= 0:
            members[_place(members, exclude[b])] = exclude[b]
        found = 0
        for k in range(tries):
            if found == num:
                break
            drawn = alias_draw(mix64(row, np.uint64(k)), thresholds, alias)
            place = _place(members, drawn)
            if members[place] == _EMPTY:
                members[place] = drawn
                ids[b, found] = drawn
                found += 1
        if found < num:
            _first_clocks(mix64(row, np.uint64(tries)), log_weights, members, ids[b, found:])


@njit
def _first_clocks(
    key: np.uint64, log_weights: FloatArray, members: IntArray, ids: IntArray
) -> None:
    """Fill `ids` with the classes outside `members` whose clocks ring first, in their order."""
    kept = [(-math.inf, np.int64(_EMPTY)) for _ in range(len(ids))]  # a heap, the latest first
    for j in range(len(log_weights)):
        if log_weights[j] > -math.inf and members[_place(members, np.int64(j))] == _EMPTY:
            log_time = math.log(-math.log1p(-uniform(key, np.uint64(j)))) - log_weights[j]
            if -log_time > kept[0][0]:
                heapq.heapreplace(kept, (-log_time, np.int64(j)))
    for k in range(len(ids) - 1, -1, -1):
        ids[k] = heapq.heappop(kept)[1]


@njit
def uniform_distinct_rows(
    key: np.uint64, first: int, n: int, exclude: IntArray, ids: IntArray
) -> None:
    """Write equally likely sequences of distinct classes into `ids`, as `alias_rows` does.

    Floyd's method draws the set in O(m); a shuffle orders it.
    """
    num = ids.shape[1]
    members = _new_set(num)
    for b in range(len(ids)):
        row = np.uint64(mix64(key, np.uint64(first + b)))
        members[:] = _EMPTY
        excluded = exclude[b]
        left = n - 1 if excluded >= 0 else n
        for k in range(num):
            bound = left - num + k
            drawn = np.int64(uniform(row, np.uint64(2 * k)) * (bound + 1))
            place = _place(members, drawn)
            if members[place] != _EMPTY:
                drawn = np.int64(bound)
                place = _place(members, drawn)
            members[place] = drawn
            other = np.int64(uniform(row, np.uint64(2 * k + 1)) * (k + 1))
            ids[b, k] = ids[b, other]
            ids[b, other] = drawn + 1 if 0 <= excluded <= drawn else drawn
