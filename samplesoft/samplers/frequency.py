"""Samplers by class frequency: Zipf's law, counts, and frequencies learned from labels.

A sampler with fixed frequencies derives from `WeightedSampler` and passes it a weight per class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device.select import to_host
from samplesoft._jit import njit
from samplesoft._memory import require_memory
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_array_dict,
    as_count,
    as_counts,
    as_fraction,
    as_ids,
    as_positive,
    scale_by_power_of_two,
    writable,
)
from samplesoft.samplers.base import Draw, Rows, Sampler
from samplesoft.samplers.static import WeightedSampler
from samplesoft.samplers.tree.kernel_tree import MIN_FLOOR, KernelTree

_MAX_LABELS = 1 << 62  # maximum number of labels that a sampler can observe
# An open gap, which is the number of labels since a class was last observed, counts if it is longer
# than this many mean gaps of the class. At a constant frequency, a gap so long has the probability
# exp(-16), 1 in 9 million.
_LONG_GAP_RATIO = 16.0
_MIN_COUNT = 5e-324  # the smallest positive float64
# the unit of the counts is so large that a count of 1 has a weight of at most 2 to this power
_MAX_EXPONENT = 900
# largest mean gap, in labels, that a class may have before its first observation; larger values are
# lowered to it
_MAX_GAP = 1e300
_BLOCK_CLASSES = 1024  # number of classes whose open gaps are checked together


class LogUniformSampler(WeightedSampler):
    """Draw the class of rank k with probability ``log((k + 2) / (k + 1)) / log(n + 1)``.

    This is Zipf's law for classes that are ranked by decreasing frequency, as in TensorFlow's
    ``log_uniform_candidate_sampler``. Without `counts`, **the index of a class must be its rank**:
    0 is the most frequent class. If classes are in another order, such as alphabetical, draws are
    often worse than uniform draws.

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    counts : array_like, shape (n,), optional
        Count of each class, in any unit, by which classes are ranked. Classes with equal counts are
        ranked by index.
    replace : bool
        False to draw without replacement.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If the sampler does not fit in memory.

    Examples
    --------
    >>> LogUniformSampler(3).probs(None).round(3)
    array([[0.5  , 0.292, 0.208]])
    >>> LogUniformSampler(3, counts=[5, 2, 70]).probs(None).round(3)
    array([[0.292, 0.208, 0.5  ]])
    """

    def __init__(
        self, num_classes: int, *, counts: ArrayLike | None = None, replace: bool = True
    ) -> None:
        n = as_count("num_classes", num_classes)
        require_memory("num_classes", n, 40.0 * n)  # includes the alias table
        class_counts = None if counts is None else as_counts("counts", to_host(counts), n)
        # the base class divides these weights by their sum, log(n + 1)
        super().__init__(log_uniform_weights(n), replace=replace)

        # The base class draws ranks, and `_order` maps ranks to classes. It is None if the rank of
        # each class is its index.
        self._order: IntArray | None = None
        if class_counts is not None:
            order = _classes_by_decreasing_count(class_counts)
            if (order[1:] < order[:-1]).any():
                self._order = order
                self._ranks = np.argsort(order)

    def _ranks_of(self, classes: IntArray) -> IntArray:
        """Return the rank of each class; entries that are `NO_CLASS` stay `NO_CLASS`."""
        if self._order is None:
            return classes
        ranks: IntArray = np.where(classes >= 0, self._ranks[classes], classes)
        return ranks

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        draw = super()._sample(h, m, self._ranks_of(exclude), key)
        if self._order is None:
            return draw
        return Draw(self._order[draw.ids], draw.log_q, draw.log_inclusion)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        return super()._log_prob(h, self._ranks_of(ids), self._ranks_of(exclude))

    def _inclusion_probs_of_classes(self, m: int, ids: IntArray, exclude: IntArray) -> FloatArray:
        return super()._inclusion_probs_of_classes(m, self._ranks_of(ids), self._ranks_of(exclude))

    def _log_total_weight(self, h: Rows, exclude: IntArray) -> FloatArray:
        return super()._log_total_weight(h, self._ranks_of(exclude))


class UnigramSampler(WeightedSampler):
    """Draw each class in proportion to a power of its count.

    A count of 0 is replaced by half of the smallest positive count.

    Parameters
    ----------
    counts : array_like, shape (n,)
        Count of each class, in any unit: at least 0, not all 0.
    power : float
        Exponent: 1 for the counts themselves, near 0 for uniform.
    replace : bool
        False to draw without replacement.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    Mikolov et al. (2013), "Distributed representations of words and phrases and their
    compositionality", section 2.2: the power 0.75.

    Examples
    --------
    >>> UnigramSampler([16, 81, 256]).probs(None).round(3)
    array([[0.081, 0.273, 0.646]])
    """

    def __init__(self, counts: ArrayLike, *, power: float = 0.75, replace: bool = True) -> None:
        # checked here, because error messages of the base class speak of weights, not of counts
        class_counts = as_counts("counts", to_host(counts))
        weights = unigram_weights(class_counts, as_positive("power", power))
        super().__init__(weights, replace=replace)


class LearnedUnigramSampler(Sampler):
    """Draw each class in proportion to a power of the number of times it was observed as a label.

    The weights are in a tree, so that each observation and each draw cost O(log n).

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    power : float
        Exponent: 1 for the counts themselves, near 0 for uniform.
    initial : float or array_like, shape (n,)
        Count before the first observation: one for all classes, or one for each class; greater than
        0.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If the sampler does not fit in memory.

    Notes
    -----
    With ``power=1`` and integer `initial`, sums in the tree are integers, which are exact in any
    order of observations. Otherwise the sums are rounded in float64. The draws follow the rounded
    sums, so that q is still their exact probability.

    References
    ----------
    .. [1] TensorFlow, ``learned_unigram_candidate_sampler``, whose counts also start at 1.

    Examples
    --------
    >>> sampler = LearnedUnigramSampler(3)
    >>> sampler.observe([2, 2, 1])
    >>> sampler.probs(None).round(3)
    array([[0.167, 0.333, 0.5  ]])
    """

    def __init__(self, num_classes: int, *, power: float = 1.0, initial: ArrayLike = 1.0) -> None:
        super().__init__(as_count("num_classes", num_classes))
        self.power = as_positive("power", power)
        # memory of the counts and of the tree
        require_memory("num_classes", self.num_classes, 40.0 * self.num_classes)

        # a scalar is the initial count of each class
        initial_counts = as_array("initial", initial)
        if initial_counts.ndim == 0:
            initial_counts = np.broadcast_to(initial_counts, self.num_classes)
        self._counts = as_counts("initial", initial_counts, self.num_classes).copy()
        if self._counts.min() <= 0.0:
            raise ValueError(
                f"`initial` must be greater than 0, got {self._counts.min()}; a class without a "
                "count is never drawn."
            )

        # Counts are divided by a unit before the power is taken. The unit is a power of two, so
        # that integer counts stay exact. It is at least `min_unit`, so that a count of 1 has a
        # finite weight, however small the initial counts are.
        min_unit = 2.0 ** -min(int(_MAX_EXPONENT / self.power), _MAX_EXPONENT)
        self._count_unit = max(2.0 ** (np.frexp(self._counts.max())[1] - 1), min_unit)

        self._tree = KernelTree(self._tree_weights(self._counts)[:, None], floor=MIN_FLOOR)

    @property
    def counts(self) -> FloatArray:
        """Number of observations of each class plus its initial count, (n,)."""
        return self._counts.copy()

    def observe(self, labels: Any) -> None:
        """Add labels (k,) to the counts. If one label is malformed, no count changes."""
        ids, num_observed = np.unique(
            as_ids("labels", labels, self.num_classes), return_counts=True
        )
        if len(ids) == 0:
            return
        self._set_counts(ids, self._counts[ids] + num_observed)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the counts (n,) under the key "counts"."""
        return {"counts": self.counts}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the counts that `state` returned."""
        if set(as_array_dict("state", state)) != {"counts"}:
            raise ValueError(f"`state` must hold counts, got {', '.join(state) or 'nothing'}.")

        counts = as_counts("state['counts']", state["counts"], self.num_classes)
        if counts.min() <= 0.0:
            raise ValueError(f"`state['counts']` must be greater than 0, got {counts.min()}.")

        # an update of all classes rebuilds the tree, with the same bits as in a new sampler
        self._set_counts(np.arange(self.num_classes), counts)

    def _set_counts(self, ids: IntArray, counts: FloatArray) -> None:
        """Set the counts (k,) of classes `ids` (k,); change nothing if the tree refuses them."""
        self._tree._prepare_update(ids, self._tree_weights(counts)[:, None])()
        self._counts = writable(self._counts)
        self._counts[ids] = counts

    def _tree_weights(self, counts: FloatArray) -> FloatArray:
        """Return the weights (k,) of classes with `counts` (k,): ``(counts / unit)**power``."""
        with np.errstate(over="ignore"):
            weights: FloatArray = (counts / self._count_unit) ** self.power
        if not np.isfinite(weights).all():
            raise ValueError(
                f"`power` must leave powers of the counts finite, got {self.power}; lower it."
            )
        return weights

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        # The tree draws in proportion to the product of context and features. The only feature of a
        # class is its weight, and the context is 1, so that the product is the weight.
        return self._tree._sample(np.ones((len(h), 1)), m, exclude, key)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        return self._tree._log_prob(np.ones((len(h), 1)), ids, exclude)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        return self._tree._probs(np.ones((len(h), 1)), exclude)


class StreamingUnigramSampler(LearnedUnigramSampler):
    r"""Draw classes in proportion to a power of recent frequencies, estimated from gaps.

    A gap is the number of labels from one observation of a class to the next. For each class, the
    sampler keeps the time of the last observation and a moving average of the gaps. The frequency
    estimate is 1 divided by this average. The open gap, from the last observation until now, counts
    as soon as it is longer than 16 average gaps. The estimates therefore follow a stream whose
    frequencies change and in which classes appear and disappear, whereas `LearnedUnigramSampler`
    adapts ever more slowly.

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    rate : float
        Weight of a new gap, above 0 and at most 1. Estimates average over about ``1 / rate`` gaps,
        and have a relative error of about ``sqrt(rate / 2)``.
    power : float
        Exponent: 1 for the frequencies themselves, near 0 for uniform.
    initial : float or array_like, shape (n,)
        Count before the first observation, in any unit: one for all classes, or one for each class;
        greater than 0. It defines the frequency of a class until the class is observed, or has been
        missing for a long time.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If the sampler does not fit in memory.

    Notes
    -----
    The paper [1]_ measures time in batches, in which a class is seen or not; classes that are in
    every batch therefore have the same estimate. This sampler counts every label as a time step, so
    that the order within a batch matters. While a class has had fewer than ``1 / rate`` gaps, these
    gaps and the initial one have equal weights, so that rare classes forget their initial
    frequency. The paper's hashing of classes is omitted: n values fit in memory if class vectors
    do.

    **Classes that disappear.** In the paper, a class that is no longer seen keeps its frequency for
    ever. This sampler adds an open gap that is longer than 16 average gaps to the average, as if
    the gap ended now. After a gap of ``a`` labels, the frequency estimate is then at most
    ``1 / (rate * a)``. For a class with a constant frequency, only one gap in nine million is so
    long, so that the estimate of a rare class depends on completed gaps only. The factor by which
    an open gap raises the average is rounded down to four binary digits, so that it changes the
    estimate only occasionally, and not at each label. The estimates do not depend on how the labels
    are divided into calls of `observe`.

    The estimates need not sum to 1. They are normalised for the draws, and q is exact. `counts` are
    the estimates times the sum of `initial`, scaled by a power of two if this sum overflows.

    References
    ----------
    .. [1] X. Yi et al., "Sampling-bias-corrected neural modeling for large corpus item
       recommendations", RecSys 2019, Algorithm 2.

    Examples
    --------
    >>> sampler = StreamingUnigramSampler(3)
    >>> sampler.observe([0, 1, 0, 2] * 1000)
    >>> sampler.probs(None).round(3)
    array([[0.5 , 0.25, 0.25]])
    >>> sampler.observe([0, 2, 1, 2] * 1000)
    >>> sampler.probs(None).round(3)
    array([[0.25, 0.25, 0.5 ]])
    >>> sampler.observe([1, 2] * 100_000)
    >>> sampler.probs(None).round(3)
    array([[0.001, 0.5  , 0.5  ]])
    """

    # (blocks, _BLOCK_CLASSES): time, in labels, when the open gap of each class is checked next
    _next_checks: IntArray
    _min_next_checks: IntArray  # (blocks,): lower bound on the times in each block

    def __init__(
        self,
        num_classes: int,
        *,
        rate: float = 0.01,
        power: float = 1.0,
        initial: ArrayLike = 1.0,
    ) -> None:
        super().__init__(num_classes, power=power, initial=initial)
        self.rate = as_positive("rate", as_fraction("rate", rate))

        with np.errstate(over="ignore"):
            # the count of each class is this total divided by the average gap of the class
            self._initial_total = float(self._counts.sum())

        if self._initial_total == np.inf:
            self._counts = np.maximum(scale_by_power_of_two(self._counts), _MIN_COUNT)
            self._count_unit = 0.5  # the unit of scaled counts: weights do not change
            self._initial_total = float(self._counts.sum())

        with np.errstate(over="ignore"):
            gaps = np.minimum(self._initial_total / self._counts, _MAX_GAP)
        self._mean_gaps: FloatArray = gaps  # average of the completed gaps, in labels

        # number of observations of each class, and time of the last one
        self._num_seen, self._last_seen = np.zeros((2, self.num_classes), np.int64)
        self._time = 0  # number of labels observed so far
        self._schedule_gap_checks()

    def observe(self, labels: Any) -> None:
        """Update the estimates by labels (k,), which were observed in this order.

        If one label is malformed, no estimate changes.
        """
        ids = as_ids("labels", labels, self.num_classes).reshape(-1)
        if len(ids) == 0:
            return

        classes, indices = np.unique(ids, return_inverse=True)
        gaps = self._mean_gaps[classes]
        num_seen = self._num_seen[classes]
        last_seen = self._last_seen[classes]
        _update_gaps(indices, self._time, self.rate, gaps, num_seen, last_seen)

        now = self._time + len(ids)
        blocks, overdue_classes = self._blocks_and_overdue_classes(now, classes)
        mean_gaps, next_checks = _mean_gaps_and_next_checks(
            np.append(gaps, self._mean_gaps[overdue_classes]),
            np.append(num_seen, self._num_seen[overdue_classes]),
            np.append(last_seen, self._last_seen[overdue_classes]),
            now,
            self.rate,
        )

        changed_classes = np.append(classes, overdue_classes)
        # this call comes before all other changes, because it may raise an error
        self._set_counts(changed_classes, self._initial_total / mean_gaps)

        self._mean_gaps = writable(self._mean_gaps)
        self._num_seen = writable(self._num_seen)
        self._last_seen = writable(self._last_seen)
        self._mean_gaps[classes] = gaps
        self._num_seen[classes] = num_seen
        self._last_seen[classes] = last_seen
        self._time = now

        self._next_checks = writable(self._next_checks)
        self._min_next_checks = writable(self._min_next_checks)
        self._next_checks.reshape(-1)[changed_classes] = next_checks
        np.minimum.at(self._min_next_checks, changed_classes // _BLOCK_CLASSES, next_checks)
        self._min_next_checks[blocks] = self._next_checks[blocks].min(axis=1)

    def _blocks_and_overdue_classes(
        self, now: int, observed: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return the blocks, and the classes, whose open gaps must be checked at time `now`.

        The classes `observed` (k,) are left out, because `observe` updates them anyway.
        """
        # `_min_next_checks` shows for most blocks that none of their classes must be checked
        blocks = np.flatnonzero(self._min_next_checks <= now)
        rows, columns = np.nonzero(self._next_checks[blocks] <= now)
        overdue_classes = np.setdiff1d(
            blocks[rows] * _BLOCK_CLASSES + columns, observed, assume_unique=True
        )
        return blocks, overdue_classes

    def _schedule_gap_checks(self) -> None:
        """Compute for all classes when their open gap is checked next."""
        mean_gaps, next_checks = _mean_gaps_and_next_checks(
            self._mean_gaps, self._num_seen, self._last_seen, self._time, self.rate
        )
        # averages that an earlier version saved may not include long open gaps: check them at the
        # next label
        next_checks[mean_gaps != self._mean_gaps] = self._time + 1

        num_blocks = -(-self.num_classes // _BLOCK_CLASSES)
        self._next_checks = np.full((num_blocks, _BLOCK_CLASSES), _MAX_LABELS)
        self._next_checks.reshape(-1)[: self.num_classes] = next_checks
        self._min_next_checks = self._next_checks.min(axis=1)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return counts, average gaps, numbers of observations, their last times, and the time.

        The keys are "counts", "gaps", "seen", "last" and "time".
        """
        times = {"seen": self._num_seen.copy(), "last": self._last_seen.copy()}
        estimates = {"counts": self.counts, "gaps": self._mean_gaps.copy()}
        return {**estimates, **times, "time": np.array([self._time])}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the arrays that `state` returned."""
        names = {"counts", "gaps", "seen", "last", "time"}
        if set(as_array_dict("state", state)) != names:
            raise ValueError(
                f"`state` must contain {', '.join(sorted(names))}, got "
                f"{', '.join(state) or 'nothing'}; it is that of another sampler."
            )

        counts, gaps = (
            as_counts(f"state['{name}']", state[name], self.num_classes).copy()
            for name in ("counts", "gaps")
        )
        num_seen, last_seen, time = (
            as_ids(f"state['{name}']", state[name], _MAX_LABELS)
            for name in ("seen", "last", "time")
        )

        shapes_match = num_seen.shape == last_seen.shape == gaps.shape and time.shape == (1,)
        if (
            not shapes_match
            or min(gaps.min(), counts.min()) <= 0.0
            or max(num_seen.max(), last_seen.max()) > time[0]
        ):
            raise ValueError(
                "`state` must contain, for each class, a count and a gap greater than 0, and the "
                f"time when it was last seen; got gaps from {gaps.min()}, and times of shapes "
                f"{num_seen.shape}, {last_seen.shape} and {time.shape}."
            )

        self._set_counts(np.arange(self.num_classes), counts)
        self._mean_gaps = gaps
        self._num_seen = num_seen.copy()
        self._last_seen = last_seen.copy()
        self._time = int(time[0])
        self._schedule_gap_checks()


@njit
def _update_gaps(
    ids: IntArray, time: int, rate: float, gaps: FloatArray, num_seen: IntArray, last_seen: IntArray
) -> None:
    """Update the statistics of k classes in place by new observations.

    The statistics (k,) are the average `gaps`, the numbers of observations `num_seen`, and the
    times of the last observation `last_seen`. Observation i is made at time ``time + i + 1``, of
    the class with index ``ids[i]`` in these arrays.
    """
    for i in range(len(ids)):
        j = ids[i]
        now = time + i + 1
        num_seen[j] += 1
        # until the weight has fallen to `rate`, the average is the plain mean of all gaps and of
        # the initial one
        weight = max(rate, 1.0 / (num_seen[j] + 1))
        gaps[j] += weight * (now - last_seen[j] - gaps[j])
        last_seen[j] = now


def _mean_gaps_and_next_checks(
    gaps: FloatArray, num_seen: IntArray, last_seen: IntArray, now: int, rate: float
) -> tuple[FloatArray, IntArray]:
    """Return average gaps (k,) that include long open gaps, and times (k,) of the next check.

    At the time of the next check, the open gap may have grown enough to change the average again.
    The arguments are, for k classes, the average `gaps`, the numbers of observations `num_seen`,
    and the times of the last observation `last_seen`. The results do not depend on how labels are
    divided into calls of `observe`.
    """
    weight = np.maximum(rate, 1.0 / (num_seen + 2.0))  # weight of a gap that would end now
    with np.errstate(over="ignore"):  # the ratio overflows if the average gap is tiny
        gap_ratios = (now - last_seen) / gaps
        growth = np.where(gap_ratios > _LONG_GAP_RATIO, 1.0 + weight * (gap_ratios - 1.0), 1.0)

        # round the growth down to four binary digits
        mantissa, exponent = np.frexp(growth)
        growth = np.ldexp(np.floor(16.0 * mantissa) / 16.0, exponent)
        next_growth = growth + np.ldexp(1.0 / 16.0, exponent)
        gap_ratios = np.maximum(_LONG_GAP_RATIO, 1.0 + (next_growth - 1.0) / weight)
        # Check one label early, to allow for rounding. A check that is too early changes nothing.
        next_check = np.minimum(last_seen + np.floor(gap_ratios * gaps) - 1.0, float(_MAX_LABELS))

    return gaps * growth, np.maximum(next_check.astype(np.int64), now + 1)


def log_uniform_weights(num_classes: int, counts: FloatArray | None = None) -> FloatArray:
    """Return the Zipf weights (n,): ``log((k + 2) / (k + 1))`` for the class of rank k.

    The weights sum to ``log(n + 1)``. Rank 0 has the largest of `counts` (n,); without counts the
    rank of a class is its index.
    """
    # log1p(1 / (k + 1)), because log(k + 2) - log(k + 1) would lose digits
    weights = np.log1p(1.0 / np.arange(1.0, num_classes + 1.0))
    if counts is not None:
        weights[_classes_by_decreasing_count(counts)] = weights.copy()
    return weights


def _classes_by_decreasing_count(counts: FloatArray) -> IntArray:
    """Return the classes (n,) sorted by decreasing counts (n,)."""
    # stable: classes with equal counts stay in the order of their index
    return np.argsort(-counts, kind="stable")


def unigram_weights(counts: FloatArray, power: float) -> FloatArray:
    """Return the weights (n,) ``(counts / max(counts))**power``.

    A count of 0 is replaced by half of the smallest positive count, so that every class can be
    drawn.
    """
    unseen_count = max(0.5 * counts[counts > 0.0].min(), _MIN_COUNT)
    counts = np.where(counts > 0.0, counts, unseen_count)
    with np.errstate(over="ignore"):  # power * log may overflow to -inf
        weights: FloatArray = np.exp(power * (np.log(counts) - np.log(counts.max())))
    return weights
