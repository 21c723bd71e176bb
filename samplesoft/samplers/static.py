"""Samplers with the same distribution for every context: by weights, and uniform.

They draw on the CPU; a `SoftmaxLayer` on a GPU copies the draws to the device. Each example has a
stream of random words. With replacement, draw k of m reads words k, k + m, k + 2 m and so on, until
a class is not rejected.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._cached import cached_property
from samplesoft._device.select import to_host
from samplesoft._jit import njit, row_chunks, thread_for_each
from samplesoft._random import mix64, uniform
from samplesoft._validation import FloatArray, IntArray, as_array, as_count, as_counts, as_flag
from samplesoft.kernels.alias import alias_draw, build_alias
from samplesoft.samplers.base import Draw, Rows, Sampler
from samplesoft.samplers.without_replacement import SuccessiveInclusion

# thresholds and aliases, from `build_alias`
AliasTable = tuple[NDArray[np.uint64], NDArray[np.int32]]
_CHUNK_DRAWS = 1 << 16  # number of draws in one task of a thread
# Smallest ratio of weights of which the logarithm is taken. A smaller ratio may have lost digits by
# underflow, and a difference of logarithms is computed instead.
_MIN_ACCURATE_RATIO = 1e-300
_EMPTY_SLOT = -1  # marks an empty slot of a hash set
_ONE = np.uint64(1)


class _AliasTables(NamedTuple):
    """Alias tables with and without the class of the largest weight, so that rejections are rare.

    An example that excludes the heaviest class uses the table without it. Any other class has at
    most half of the mass, so that on average at most half of the draws are rejected.
    """

    all_classes: AliasTable
    without_heaviest: AliasTable
    heaviest: int  # class with the largest weight
    log_weights: FloatArray  # (n,): for draws without replacement, after too many rejections


class WeightedSampler(Sampler):
    """Draw classes in proportion to given weights, the same for every context.

    A draw from an alias table takes constant time, and is repeated if it gives the excluded class.
    If the excluded class has the largest weight, draws come from a second table without this class.

    Parameters
    ----------
    weights : array_like, shape (n,)
        Weights: finite, at least 0, not all 0. A class of weight 0 is never drawn.
    replace : bool
        False to draw without replacement: successively, in proportion to the weights of the classes
        not yet drawn. The importance weight of a draw is then not 1 / (m q), but 1 divided by its
        inclusion probability ``exp(draw.log_inclusion)``: see
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

        # divided by the largest weight, so that sums and tables do not overflow
        ratios = values / values.max()
        with np.errstate(divide="ignore"):
            logs_of_ratios = np.log(ratios)
            differences_of_logs = np.log(values) - np.log(values.max())

        self._log_weights = np.where(
            ratios > _MIN_ACCURATE_RATIO, logs_of_ratios, differences_of_logs
        )
        self._log_total = float(np.log(ratios.sum()))
        self._log_scale = float(np.log(values.max()))  # log of the largest weight

        # classes whose ratio underflows to 0 are never drawn
        self._alias_table = build_alias(ratios)
        self._heaviest = int(np.argmax(values))
        self._is_drawable = values > 0.0

        # m of the last draws without replacement, and an object that computes inclusion
        # probabilities for this m
        self._last_inclusion: tuple[int, SuccessiveInclusion] | None = None

    def inclusion_probs(self, num_sampled: int, *, exclude: Any = None) -> FloatArray:
        """Return, for each class, the probability that m draws contain it.

        For draws with replacement it is ``1 - (1 - q)**m``. For draws without replacement it is the
        inclusion probability of successive draws, exact up to rounding.

        Parameters
        ----------
        num_sampled : int
            Number of draws m.
        exclude : int or array_like of int, shape (B,), optional
            One excluded class for each row of the result.

        Returns
        -------
        ndarray of float64, shape (n,), or (B, n) for B excluded classes
            Inclusion probabilities. For draws without replacement, each row sums to m.

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
            with np.errstate(divide="ignore"):  # log(0) for q = 1
                probs: FloatArray = -np.expm1(m * np.log1p(-np.minimum(q, 1.0)))
        else:
            excluded = self._checked_excluded(exclude, max(1, *shape, 1))
            self._require_enough_classes(m, excluded)
            probs = self._inclusion_probs_of_classes(m, self._all_classes(excluded), excluded)
        return probs.reshape(*shape, self.num_classes)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        # computed before the draws, because it raises if exclusion leaves no class
        num_examples = exclude.shape[0]
        has_exclusion = exclude[0] >= 0 if num_examples == 1 else np.maximum.reduce(exclude) >= 0
        log_mass_left = self._log_mass_left(exclude)[:, None] if has_exclusion else None

        if not self.replace:
            self._require_enough_classes(m, exclude)

        ids = np.empty((num_examples, m), np.int64)
        if ids.size <= _CHUNK_DRAWS:
            self._write_draws(key, 0, exclude, ids)
        else:
            thread_for_each(
                lambda chunk: self._write_draws(key, chunk.start, exclude[chunk], ids[chunk]),
                row_chunks(ids.shape, _CHUNK_DRAWS),
            )

        log_q = self._log_q_without_exclusion(ids)
        if log_mass_left is not None:
            log_q -= log_mass_left
        log_inclusion = None if self.replace else np.log(self._inclusion_probs(m, ids, exclude))
        return Draw(ids, log_q, log_inclusion)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        log_q = self._log_q_without_exclusion(ids) - self._log_mass_left(exclude)[:, None]
        return np.where(ids == exclude[:, None], -np.inf, log_q)

    def _log_expected_count(self, h: Rows, ids: IntArray, m: int, exclude: IntArray) -> FloatArray:
        if self.replace:
            return super()._log_expected_count(h, ids, m, exclude)
        self._require_enough_classes(m, exclude)
        with np.errstate(divide="ignore"):
            return np.log(self._inclusion_probs_of_classes(m, ids, exclude))

    def _inclusion_probs_of_classes(self, m: int, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the inclusion probabilities of classes `ids` (B, k) in m draws, (B, k).

        A subclass whose tables hold permuted classes overrides this method.
        """
        return self._inclusion_probs(m, ids, exclude)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        return np.exp(self._log_prob(h, self._all_classes(exclude), exclude))

    def _log_total_weight(self, h: Rows, exclude: IntArray) -> FloatArray:
        return self._log_scale + self._log_total + self._log_mass_left(exclude)

    def _all_classes(self, exclude: IntArray) -> IntArray:
        """Return the indices of all classes for each row of `exclude` (B,), (B, n)."""
        return np.broadcast_to(np.arange(self.num_classes), (len(exclude), self.num_classes))

    def _require_enough_classes(self, m: int, exclude: IntArray) -> None:
        """Raise ValueError if there are fewer than m classes to draw without replacement."""
        num_left = int(self._num_drawable(exclude).min())
        if m > num_left:
            raise ValueError(
                f"`num_sampled` must be at most {num_left}, the number of classes that can be "
                f"drawn without replacement, got {m}; draw fewer, or make the sampler with "
                "replace=True."
            )

    @cached_property
    def _table_and_log_mass_without_heaviest(self) -> tuple[AliasTable, float]:
        """Return the alias table without the heaviest class, and the log of its total probability.

        The probabilities are those without exclusion.
        """
        log_weights = self._log_weights.copy()
        log_weights[self._heaviest] = -np.inf
        max_log = float(log_weights.max())
        if max_log == -np.inf:
            raise ValueError(
                f"`exclude` must leave a class to draw, got {self._heaviest}, the only one with a "
                "weight greater than 0; omit `exclude` or give another class a weight."
            )

        weights = np.exp(log_weights - max_log)
        return build_alias(weights), max_log + float(np.log(weights.sum())) - self._log_total

    def _log_q_without_exclusion(self, ids: IntArray) -> FloatArray:
        """Return the log-probabilities of `ids`, an array of any shape, if no class is excluded."""
        log_q: FloatArray = self._log_weights[ids] - self._log_total
        return log_q

    def _log_mass_left(self, exclude: IntArray) -> FloatArray:
        """Return ``log(1 - q)`` (B,), the log of the mass that each excluded class leaves.

        The value is 0 for a context without an excluded class. Raises ValueError if no class is
        left.
        """
        log_mass = np.zeros(len(exclude))
        in_table = (exclude >= 0) & (exclude != self._heaviest)
        # 1 - q loses no digits, because only the heaviest class, handled below, may have q > 1/2
        log_mass[in_table] = np.log1p(-np.exp(self._log_q_without_exclusion(exclude[in_table])))
        if np.any(exclude == self._heaviest):
            log_mass[exclude == self._heaviest] = self._table_and_log_mass_without_heaviest[1]
        return log_mass

    def _num_drawable(self, exclude: IntArray) -> IntArray:
        """Return the number (B,) of classes with positive weight that are not excluded."""
        # exclusion of a class of weight 0 does not change the number
        num_left: IntArray = self._is_drawable.sum() - ((exclude >= 0) & self._is_drawable[exclude])
        return num_left

    def _write_draws(
        self, key: np.uint64, first_example: int, exclude: IntArray, ids: IntArray
    ) -> None:
        """Write draws to `ids` (B, m); row b uses the stream of example ``first_example + b``."""
        # the table without the heaviest class is built when a context first excludes this class
        if np.logical_or.reduce(exclude == self._heaviest):
            without_heaviest = self._table_and_log_mass_without_heaviest[0]
        else:
            without_heaviest = self._alias_table

        tables = _AliasTables(
            self._alias_table, without_heaviest, self._heaviest, self._log_weights
        )
        write_draws = _write_alias_draws if self.replace else _write_distinct_draws
        write_draws(key, first_example, tables, exclude, ids)

    def _inclusion_probs(self, m: int, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the inclusion probabilities of `ids` (B, k) in m draws without replacement.

        `ids` and `exclude` (B,) are indices in the tables, which for `LogUniformSampler` are ranks.
        """
        cached = self._last_inclusion
        # reused, because m rarely changes from one call to the next
        if cached is None or cached[0] != m:
            cached = (m, SuccessiveInclusion(self._log_weights, m))
            self._last_inclusion = cached
        return cached[1].of_classes(ids, exclude)


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
        # not the constructor of the parent class, because there are no weights and tables
        Sampler.__init__(self, as_count("num_classes", num_classes))
        self.replace = as_flag("replace", replace)
        self._log_num = math.log(self.num_classes)

    def _log_q_without_exclusion(self, ids: IntArray) -> FloatArray:
        return np.zeros(ids.shape) - self._log_num

    def _log_total_weight(self, h: Rows, exclude: IntArray) -> FloatArray:
        return np.log(self._num_drawable(exclude))

    def _log_mass_left(self, exclude: IntArray) -> FloatArray:
        log_left: FloatArray = np.log(self._num_drawable(exclude)) - np.log(self.num_classes)
        return log_left

    def _num_drawable(self, exclude: IntArray) -> IntArray:
        return self.num_classes - (exclude >= 0).astype(np.int64)

    def _write_draws(
        self, key: np.uint64, first_example: int, exclude: IntArray, ids: IntArray
    ) -> None:
        write_draws = _write_uniform_draws if self.replace else _write_distinct_uniform_draws
        write_draws(key, first_example, self.num_classes, exclude, ids)

    def _inclusion_probs(self, m: int, ids: IntArray, exclude: IntArray) -> FloatArray:
        return np.where(ids == exclude[:, None], 0.0, m / self._num_drawable(exclude)[:, None])


@njit
def _write_alias_draws(
    key: np.uint64, first_example: int, tables: _AliasTables, exclude: IntArray, ids: IntArray
) -> None:
    """Write draws with replacement to `ids` (B, m).

    Row b uses the random stream of example ``first_example + b``, and `exclude` (B,) holds the
    class that the row excludes, or a negative number for none. A row that excludes the heaviest
    class uses the table without this class. Other rows reject draws of the excluded class.
    """
    num_draws = ids.shape[1]

    for b in range(len(ids)):
        row = np.uint64(mix64(key, np.uint64(first_example + b)))
        excluded = exclude[b]
        thresholds, alias = (
            tables.without_heaviest if excluded == tables.heaviest else tables.all_classes
        )

        for k in range(num_draws):  # no branches, so that the processor overlaps many table reads
            ids[b, k] = alias_draw(mix64(row, np.uint64(k)), thresholds, alias)

        if excluded >= 0:
            for k in range(num_draws):
                word = k
                while ids[b, k] == excluded:
                    word += num_draws
                    ids[b, k] = alias_draw(mix64(row, np.uint64(word)), thresholds, alias)


@njit
def _write_uniform_draws(
    key: np.uint64, first_example: int, n: int, exclude: IntArray, ids: IntArray
) -> None:
    """Write uniform draws from ``range(n)`` to `ids`; see `_write_alias_draws` for arguments."""
    for b in range(len(ids)):
        row = np.uint64(mix64(key, np.uint64(first_example + b)))
        excluded = exclude[b]
        num_left = n - 1 if excluded >= 0 else n

        for k in range(ids.shape[1]):
            # draw an index among the remaining classes, then skip the excluded class
            drawn = np.int64(uniform(row, np.uint64(k)) * num_left)
            ids[b, k] = drawn + 1 if 0 <= excluded <= drawn else drawn


@njit
def _empty_hash_set(max_classes: int) -> IntArray:
    """Return an empty hash set, an array of slots, for up to `max_classes` classes.

    The number of slots is a power of two, and at least twice the number of classes, so that a
    search takes two or three steps on average.
    """
    num_slots = 4
    while num_slots < 2 * max_classes:
        num_slots *= 2
    return np.full(num_slots, _EMPTY_SLOT)


@njit
def _hash_slot(members: IntArray, value: np.int64) -> np.int64:
    """Return the slot of `value` in the hash set `members`, or the empty slot to insert it."""
    # `& mask` is the remainder modulo the number of slots, which is a power of two
    mask = np.int64(len(members) - 1)
    slot = np.int64(mix64(np.uint64(value), _ONE)) & mask
    while members[slot] != _EMPTY_SLOT and members[slot] != value:
        slot = np.int64(slot + 1) & mask
    return slot


@njit
def _write_distinct_draws(
    key: np.uint64, first_example: int, tables: _AliasTables, exclude: IntArray, ids: IntArray
) -> None:
    """Write successive draws without replacement to `ids`; see `_write_alias_draws` for arguments.

    Repeated classes are rejected. After too many rejections, each class not yet drawn gets an
    exponential clock, and the classes whose clocks ring first are the remaining draws. They have
    the same distribution as with further rejections.
    """
    n = len(tables.log_weights)
    num_draws = ids.shape[1]
    max_tries = n + 4 * num_draws  # so many table reads take about as long as n clocks
    members = _empty_hash_set(num_draws + 1)

    for b in range(len(ids)):
        row = np.uint64(mix64(key, np.uint64(first_example + b)))
        thresholds, alias = (
            tables.without_heaviest if exclude[b] == tables.heaviest else tables.all_classes
        )

        members[:] = _EMPTY_SLOT
        if exclude[b] >= 0:
            members[_hash_slot(members, exclude[b])] = exclude[b]

        num_drawn = 0
        for k in range(max_tries):
            if num_drawn == num_draws:
                break
            drawn = alias_draw(mix64(row, np.uint64(k)), thresholds, alias)
            slot = _hash_slot(members, drawn)
            if members[slot] == _EMPTY_SLOT:
                members[slot] = drawn
                ids[b, num_drawn] = drawn
                num_drawn += 1

        if num_drawn < num_draws:
            clock_key = mix64(row, np.uint64(max_tries))
            _draw_by_earliest_clocks(clock_key, tables.log_weights, members, ids[b, num_drawn:])


@njit
def _draw_by_earliest_clocks(
    key: np.uint64, log_weights: FloatArray, members: IntArray, ids: IntArray
) -> None:
    """Fill `ids` with the classes whose exponential clocks ring first, in the order of the rings.

    The rate of a clock is the weight of its class. Classes in the hash set `members` are left out.
    """
    # a heap of (-log time, class) of the earliest clocks so far, with the latest of them at the top
    heap = [(-math.inf, np.int64(_EMPTY_SLOT)) for _ in range(len(ids))]

    for j in range(len(log_weights)):
        if log_weights[j] > -math.inf and members[_hash_slot(members, np.int64(j))] == _EMPTY_SLOT:
            # an exponential time with rate w is -log(1 - u) / w; its log is computed, because w may
            # underflow
            log_time = math.log(-math.log1p(-uniform(key, np.uint64(j)))) - log_weights[j]
            if -log_time > heap[0][0]:
                heapq.heapreplace(heap, (-log_time, np.int64(j)))

    for k in range(len(ids) - 1, -1, -1):
        ids[k] = heapq.heappop(heap)[1]


@njit
def _write_distinct_uniform_draws(
    key: np.uint64, first_example: int, n: int, exclude: IntArray, ids: IntArray
) -> None:
    """Write uniform draws from ``range(n)`` without replacement to `ids` (B, m).

    Floyd's method draws the set of classes in O(m), and a shuffle puts them in random order. See
    `_write_alias_draws` for the other arguments.
    """
    num_draws = ids.shape[1]
    members = _empty_hash_set(num_draws)

    for b in range(len(ids)):
        row = np.uint64(mix64(key, np.uint64(first_example + b)))
        members[:] = _EMPTY_SLOT
        excluded = exclude[b]
        num_left = n - 1 if excluded >= 0 else n

        for k in range(num_draws):
            # Floyd's step k draws from range(bound + 1), and takes `bound` instead of a repeat
            bound = num_left - num_draws + k
            drawn = np.int64(uniform(row, np.uint64(2 * k)) * (bound + 1))
            slot = _hash_slot(members, drawn)
            if members[slot] != _EMPTY_SLOT:
                drawn = np.int64(bound)
                slot = _hash_slot(members, drawn)
            members[slot] = drawn

            # inside-out shuffle, because Floyd's set is not in random order
            swap_index = np.int64(uniform(row, np.uint64(2 * k + 1)) * (k + 1))
            ids[b, k] = ids[b, swap_index]
            ids[b, swap_index] = drawn + 1 if 0 <= excluded <= drawn else drawn
