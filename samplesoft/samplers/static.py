"""Samplers whose distribution is the same for every context: any weights, and uniform.

Their draws work on the processor; a `SoftmaxLayer` on a GPU copies them there. Every draw takes
its words from the stream of its example: draw k reads word k, and further words at a stride of the
number of draws where the first is refused.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._cached import cached_property
from samplesoft._device.select import to_host
from samplesoft._jit import njit, row_chunks, thread_each
from samplesoft._random import mix64, uniform
from samplesoft._validation import FloatArray, IntArray, as_array, as_count, as_counts, as_flag
from samplesoft.kernels.alias import alias_draw, build_alias
from samplesoft.samplers.base import Draw, Rows, Sampler
from samplesoft.samplers.without_replacement import SuccessiveInclusion

Table = tuple[NDArray[np.uint64], NDArray[np.int32]]  # from build_alias
_CHUNK_DRAWS = 1 << 16
_EXACT_RATIO = 1e-300  # below, a ratio of weights loses digits that a difference of logs keeps
_EMPTY_SLOT = -1  # a place of a hash set that holds no class
_ONE = np.uint64(1)


class _Tables(NamedTuple):
    """Alias tables to draw from, so that no draw is refused more than about once in the mean."""

    every: Table  # of all classes
    others: Table  # without class `top`, which may have more than half of the mass
    top: int
    log_weights: FloatArray  # (n,), for draws without replacement that find no new class


class WeightedSampler(Sampler):
    """Draw classes in proportion to any weights.

    One draw takes constant time from an alias table. Where the excluded class comes up, the draw is
    repeated; if that class is the heaviest, a second table without it is used instead.

    Parameters
    ----------
    weights : array_like, shape (n,)
        Weights: finite, at least 0, not all 0. A class of weight 0 is never drawn.
    replace : bool
        False to draw without replacement: in turn, in proportion to the weights of the classes
        not yet drawn. A draw's weight is then 1 over its probability to be in the set,
        ``exp(draw.log_inclusion)``, not 1 / (m q): see
        `samplesoft.samplers.without_replacement.SuccessiveInclusion`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    Vose (1991), "A linear algorithm for generating random numbers with a given distribution".

    Examples
    --------
    >>> sampler = WeightedSampler([3.0, 2.0, 1.0, 0.0])
    >>> sampler.probs(None, exclude=0).round(3)
    array([[0.   , 0.667, 0.333, 0.   ]])
    >>> draw = sampler.sample(None, 5, exclude=0, rng=1)
    >>> draw.ids
    array([[2, 1, 2, 1, 1]])
    >>> np.exp(draw.log_q).round(3)
    array([[0.333, 0.667, 0.333, 0.667, 0.667]])
    """

    def __init__(self, weights: ArrayLike, *, replace: bool = True) -> None:
        remedy = "give at least one class a weight greater than 0"
        values = as_counts("weights", to_host(weights), remedy=remedy)
        super().__init__(len(values))
        self.replace = as_flag("replace", replace)
        # of the greatest, so that neither sums nor tables overflow
        ratios = values / values.max()
        with np.errstate(divide="ignore"):
            precise = np.log(ratios)
            coarse = np.log(values) - np.log(values.max())
        self._log_weights = np.where(ratios > _EXACT_RATIO, precise, coarse)
        self._log_total = float(np.log(ratios.sum()))
        self._log_scale = float(np.log(values.max()))  # of what was divided by
        # weights that underflow in it are never drawn, as their true probability has it
        self._table = build_alias(ratios)
        self._top = int(np.argmax(values))
        self._positive = values > 0.0
        self._last_inclusion: tuple[int, SuccessiveInclusion] | None = None  # of this m

    def inclusion_probs(self, num_sampled: int, *, exclude: Any = None) -> FloatArray:
        """Return the probability that a sample contains each class.

        With replacement this is ``1 - (1 - q)**m``. Without, it is that of successive draws in
        proportion to the weights among the classes not yet drawn, exact but for rounding.

        Parameters
        ----------
        num_sampled : int
            Number of draws m.
        exclude : int or array_like of int, shape (B,), optional
            Classes that are not drawn, one for each row.

        Returns
        -------
        ndarray of float64, shape (n,), or (B, n) for B excluded classes
            Without replacement, each row sums to m.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or there are fewer than m classes to draw without
            replacement.

        Examples
        --------
        >>> WeightedSampler([3.0, 2.0, 1.0], replace=False).inclusion_probs(2).round(3)
        array([0.85 , 0.733, 0.417])
        """
        m = as_count("num_sampled", num_sampled)
        shape = () if exclude is None else as_array("exclude", exclude).shape[:1]
        if self.replace:
            q = self.probs(None, exclude=exclude)
            with np.errstate(divide="ignore"):  # of a class that is drawn with certainty
                probs: FloatArray = -np.expm1(m * np.log1p(-np.minimum(q, 1.0)))
        else:
            excluded = self._check_excluded(exclude, max(1, *shape, 1))
            self._check_left(m, excluded)
            probs = self._inclusion_of(m, self._all_classes(excluded), excluded)
        return probs.reshape(*shape, self.num_classes)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        # first, for it raises where nothing is left to draw
        excludes = exclude[0] >= 0 if exclude.shape[0] == 1 else np.maximum.reduce(exclude) >= 0
        log_left = self._log_left(exclude)[:, None] if excludes else None
        if not self.replace:
            self._check_left(m, exclude)
        ids = np.empty((exclude.shape[0], m), np.int64)
        if ids.size <= _CHUNK_DRAWS:
            self._draw(key, 0, exclude, ids)
        else:
            thread_each(
                lambda part: self._draw(key, part.start, exclude[part], ids[part]),
                row_chunks(ids.shape, _CHUNK_DRAWS),
            )
        log_q = self._log_q(ids)
        if log_left is not None:
            log_q -= log_left
        return Draw(ids, log_q, None if self.replace else np.log(self._inclusion(m, ids, exclude)))

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        log_q = self._log_q(ids) - self._log_left(exclude)[:, None]
        return np.where(ids == exclude[:, None], -np.inf, log_q)

    def _log_expected_count(self, h: Rows, ids: IntArray, m: int, exclude: IntArray) -> FloatArray:
        if self.replace:
            return super()._log_expected_count(h, ids, m, exclude)
        self._check_left(m, exclude)
        with np.errstate(divide="ignore"):
            return np.log(self._inclusion_of(m, ids, exclude))

    def _inclusion_of(self, m: int, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return `_inclusion`; to override where classes have other places in the tables."""
        return self._inclusion(m, ids, exclude)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        return np.exp(self._log_prob(h, self._all_classes(exclude), exclude))

    def _log_mass(self, h: Rows, exclude: IntArray) -> FloatArray:
        return self._log_scale + self._log_total + self._log_left(exclude)

    def _all_classes(self, exclude: IntArray) -> IntArray:
        return np.broadcast_to(np.arange(self.num_classes), (len(exclude), self.num_classes))

    def _check_left(self, m: int, exclude: IntArray) -> None:
        left = int(self._drawable(exclude).min())
        if m > left:
            raise ValueError(
                f"`num_sampled` must be at most {left}, the number of classes that can be drawn "
                f"without replacement, got {m}; draw fewer, or make the sampler with replace=True."
            )

    @cached_property
    def _others(self) -> tuple[Table, float]:
        """Return the alias table without the heaviest class, and the log of the mass of that."""
        logs = self._log_weights.copy()
        logs[self._top] = -np.inf
        largest = float(logs.max())
        if largest == -np.inf:
            raise ValueError(
                f"`exclude` must leave a class to draw, got {self._top}, the only one with a "
                "weight greater than 0; leave `exclude` out or give another class a weight."
            )
        weights = np.exp(logs - largest)
        return build_alias(weights), largest + float(np.log(weights.sum())) - self._log_total

    def _log_q(self, ids: IntArray) -> FloatArray:
        """Return the log-probabilities of classes where none is excluded."""
        log_q: FloatArray = self._log_weights[ids] - self._log_total
        return log_q

    def _log_left(self, exclude: IntArray) -> FloatArray:
        """Return the logarithm of the mass (B,) that excluding leaves; raise if it is none."""
        without = np.zeros(len(exclude))
        known = (exclude >= 0) & (exclude != self._top)
        # 1 - q loses no digits, for the heaviest class, the only one above 1/2, is apart
        without[known] = np.log1p(-np.exp(self._log_q(exclude[known])))
        if np.any(exclude == self._top):
            without[exclude == self._top] = self._others[1]
        return without

    def _drawable(self, exclude: IntArray) -> IntArray:
        """Return how many classes (B,) can be drawn."""
        # excluding a class of weight 0 takes nothing away
        left: IntArray = self._positive.sum() - ((exclude >= 0) & self._positive[exclude])
        return left

    def _draw(self, key: np.uint64, first: int, exclude: IntArray, ids: IntArray) -> None:
        """Fill `ids` (B, m) for examples from `first` on."""
        # the second table is not made before a context excludes the heaviest class
        others = self._others[0] if np.logical_or.reduce(exclude == self._top) else self._table
        tables = _Tables(self._table, others, self._top, self._log_weights)
        draw = _alias_rows if self.replace else _distinct_rows
        draw(key, first, tables, exclude, ids)

    def _inclusion(self, m: int, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the probability (B, k) that m draws without replacement contain classes (B, k)."""
        last = self._last_inclusion
        # m rarely changes between calls, and the integral for one m serves all of them
        if last is None or last[0] != m:
            self._last_inclusion = last = m, SuccessiveInclusion(self._log_weights, m)
        return last[1].of_classes(ids, exclude)


class UniformSampler(WeightedSampler):
    """Draw all classes with the same probability.

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    replace : bool
        False to draw without replacement.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> UniformSampler(4, replace=False).sample(None, 3, exclude=2, rng=0).ids
    array([[3, 0, 1]])
    """

    def __init__(self, num_classes: int, *, replace: bool = True) -> None:
        # without the weights and tables of the parent, for all follows from the number of classes
        Sampler.__init__(self, as_count("num_classes", num_classes))
        self.replace = as_flag("replace", replace)
        self._log_num = math.log(self.num_classes)

    def _log_q(self, ids: IntArray) -> FloatArray:
        return np.zeros(ids.shape) - self._log_num

    def _log_mass(self, h: Rows, exclude: IntArray) -> FloatArray:
        return np.log(self._drawable(exclude))

    def _log_left(self, exclude: IntArray) -> FloatArray:
        log_left: FloatArray = np.log(self._drawable(exclude)) - np.log(self.num_classes)
        return log_left

    def _drawable(self, exclude: IntArray) -> IntArray:
        return self.num_classes - (exclude >= 0).astype(np.int64)

    def _draw(self, key: np.uint64, first: int, exclude: IntArray, ids: IntArray) -> None:
        draw = _uniform_rows if self.replace else _uniform_distinct_rows
        draw(key, first, self.num_classes, exclude, ids)

    def _inclusion(self, m: int, ids: IntArray, exclude: IntArray) -> FloatArray:
        return np.where(ids == exclude[:, None], 0.0, m / self._drawable(exclude)[:, None])


@njit
def _alias_rows(
    key: np.uint64, first: int, tables: _Tables, exclude: IntArray, ids: IntArray
) -> None:
    """Write draws with replacement into `ids` (B, m) for examples ``first, first + 1, ...``.

    `exclude` (B,) holds classes that are not drawn, none where negative. Examples that exclude the
    heaviest class draw from the table without it, so that all others refuse at most every other
    draw.
    """
    num = ids.shape[1]
    for b in range(len(ids)):
        row = np.uint64(mix64(key, np.uint64(first + b)))
        excluded = exclude[b]
        thresholds, alias = tables.others if excluded == tables.top else tables.every
        for k in range(num):  # without a branch, so that many reads of the table overlap
            ids[b, k] = alias_draw(mix64(row, np.uint64(k)), thresholds, alias)
        if excluded >= 0:
            for k in range(num):
                place = k
                while ids[b, k] == excluded:
                    place += num
                    ids[b, k] = alias_draw(mix64(row, np.uint64(place)), thresholds, alias)


@njit
def _uniform_rows(key: np.uint64, first: int, n: int, exclude: IntArray, ids: IntArray) -> None:
    """Write equally likely classes of ``range(n)`` into `ids`, as `_alias_rows` does."""
    for b in range(len(ids)):
        row = np.uint64(mix64(key, np.uint64(first + b)))
        excluded = exclude[b]
        left = n - 1 if excluded >= 0 else n
        for k in range(ids.shape[1]):
            # one of the classes that are left; those from the excluded one on are one further
            drawn = np.int64(uniform(row, np.uint64(k)) * left)
            ids[b, k] = drawn + 1 if 0 <= excluded <= drawn else drawn


@njit
def _new_set(size: int) -> IntArray:
    """Return an empty hash set for up to `size` classes: places, a power of two."""
    places = 4
    # at most half full: a search then ends after two or three steps
    while places < 2 * size:
        places *= 2
    return np.full(places, _EMPTY_SLOT)


@njit
def _place(members: IntArray, value: np.int64) -> np.int64:
    """Return the place of `value` in a hash set, or the empty one where it belongs."""
    # of all ones, for the number of places is a power of two
    last = np.int64(len(members) - 1)
    place = np.int64(mix64(np.uint64(value), _ONE)) & last
    while members[place] != _EMPTY_SLOT and members[place] != value:
        place = np.int64(place + 1) & last
    return place


@njit
def _distinct_rows(
    key: np.uint64, first: int, tables: _Tables, exclude: IntArray, ids: IntArray
) -> None:
    """Write successive draws without replacement into `ids`, as `_alias_rows` does.

    Draws from the table that repeat a class are dropped. Where that takes long, exponential
    clocks in the classes that are left decide: they have no memory, so the law is the same.
    """
    n = len(tables.log_weights)
    num = ids.shape[1]
    tries = n + 4 * num  # about what the clocks would cost
    members = _new_set(num + 1)
    for b in range(len(ids)):
        row = np.uint64(mix64(key, np.uint64(first + b)))
        thresholds, alias = tables.others if exclude[b] == tables.top else tables.every
        members[:] = _EMPTY_SLOT
        if exclude[b] >= 0:
            members[_place(members, exclude[b])] = exclude[b]
        taken = 0
        for k in range(tries):
            if taken == num:
                break
            drawn = alias_draw(mix64(row, np.uint64(k)), thresholds, alias)
            place = _place(members, drawn)
            if members[place] == _EMPTY_SLOT:
                members[place] = drawn
                ids[b, taken] = drawn
                taken += 1
        if taken < num:
            later = mix64(row, np.uint64(tries))
            _first_clocks(later, tables.log_weights, members, ids[b, taken:])


@njit
def _first_clocks(
    key: np.uint64, log_weights: FloatArray, members: IntArray, ids: IntArray
) -> None:
    """Fill `ids` with the classes outside `members` whose clocks ring first, in their order."""
    kept = [(-math.inf, np.int64(_EMPTY_SLOT)) for _ in range(len(ids))]  # a heap, the latest first
    for j in range(len(log_weights)):
        if log_weights[j] > -math.inf and members[_place(members, np.int64(j))] == _EMPTY_SLOT:
            # an exponential time of rate w is -log(1 - u) / w; in logs no weight underflows
            log_time = math.log(-math.log1p(-uniform(key, np.uint64(j)))) - log_weights[j]
            if -log_time > kept[0][0]:
                heapq.heapreplace(kept, (-log_time, np.int64(j)))
    for k in range(len(ids) - 1, -1, -1):
        ids[k] = heapq.heappop(kept)[1]


@njit
def _uniform_distinct_rows(
    key: np.uint64, first: int, n: int, exclude: IntArray, ids: IntArray
) -> None:
    """Write equally likely sequences of distinct classes into `ids`, as `_alias_rows` does.

    Floyd's method draws the set in O(m); a shuffle orders it.
    """
    num = ids.shape[1]
    members = _new_set(num)
    for b in range(len(ids)):
        row = np.uint64(mix64(key, np.uint64(first + b)))
        members[:] = _EMPTY_SLOT
        excluded = exclude[b]
        left = n - 1 if excluded >= 0 else n
        for k in range(num):
            # Floyd: step k draws from one class more, and takes that one if the draw is a repeat
            bound = left - num + k
            drawn = np.int64(uniform(row, np.uint64(2 * k)) * (bound + 1))
            place = _place(members, drawn)
            if members[place] != _EMPTY_SLOT:
                drawn = np.int64(bound)
                place = _place(members, drawn)
            members[place] = drawn
            # an inside-out shuffle, as the set that Floyd draws is not in random order
            other = np.int64(uniform(row, np.uint64(2 * k + 1)) * (k + 1))
            ids[b, k] = ids[b, other]
            ids[b, other] = drawn + 1 if 0 <= excluded <= drawn else drawn
