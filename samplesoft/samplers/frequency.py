"""Samplers by how frequent classes are: Zipf's law, counts, and what has been seen.

A new one of fixed frequencies makes weights for a `WeightedSampler`.
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
    as_count,
    as_counts,
    as_ids,
    as_named_arrays,
    as_positive,
    as_share,
    scale_by_power_of_two,
    writable,
)
from samplesoft.samplers.base import Draw, Rows, Sampler
from samplesoft.samplers.static import WeightedSampler
from samplesoft.samplers.tree.kernel_tree import MIN_FLOOR, KernelTree

_MOST_LABELS = 1 << 62  # that a sampler may follow
_LONG_GAPS = 16.0  # mean gaps: chance leaves one open for so long once in exp(16), 9 million, times
_LEAST_COUNT = 5e-324  # that is above 0
_LARGEST_EXPONENT = 900  # of two: the weight of one observation in a tree at most
_LONGEST_GAP = 1e300  # mean gap of a class before it is observed
_BLOCK_CLASSES = (
    1024  # classes of which it is known together when the next open gap has to be looked at
)


class LogUniformSampler(WeightedSampler):
    """Draw the class of rank k with probability ``log((k + 2) / (k + 1)) / log(n + 1)``.

    Zipf's law for classes by falling frequency, as TensorFlow's ``log_uniform_candidate_sampler``
    has it. Without `counts` **the number of a class must be its rank**: 0 is the most frequent
    one. With classes in another order, such as that of their names, draws are often worse than
    uniform ones.

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    counts : array_like, shape (n,), optional
        How often each class occurs, in any unit, by which classes are ranked; of equal counts the
        first class comes first.
    replace : bool
        False to draw without replacement.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If so many classes do not fit.

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
        require_memory("num_classes", n, 40.0 * n)  # an alias table is made of them
        checked = None if counts is None else as_counts("counts", to_host(counts), n)
        # the sum of all is log(n + 1), by which the base class divides
        super().__init__(log_uniform_weights(n), replace=replace)
        # ranks are drawn, and each is the class at its place in the order
        self._order: IntArray | None = None
        if checked is not None:
            order = _by_falling(checked)
            if (order[1:] < order[:-1]).any():  # else classes are ranks
                self._order = order
                self._ranks = np.argsort(order)

    def _rank(self, classes: IntArray) -> IntArray:
        """Return the ranks of classes; where there is none, `NO_CLASS`, it stays."""
        if self._order is None:
            return classes
        ranks: IntArray = np.where(classes >= 0, self._ranks[classes], classes)
        return ranks

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        draw = super()._sample(h, m, self._rank(exclude), key)
        if self._order is None:
            return draw
        return Draw(self._order[draw.ids], draw.log_q, draw.log_inclusion)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        return super()._log_prob(h, self._rank(ids), self._rank(exclude))

    def _inclusion_of(self, m: int, ids: IntArray, exclude: IntArray) -> FloatArray:
        return super()._inclusion_of(m, self._rank(ids), self._rank(exclude))

    def _log_mass(self, h: Rows, exclude: IntArray) -> FloatArray:
        return super()._log_mass(h, self._rank(exclude))


class UnigramSampler(WeightedSampler):
    """Draw each class in proportion to a power of its count.

    A class that never occurs counts as half of the rarest that does.

    Parameters
    ----------
    counts : array_like, shape (n,)
        How often each class occurs, in any unit: at least 0, not all 0.
    power : float
        Distortion: 1 for the counts as they are, near 0 for uniform.
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
        # the message speaks of counts, not of the weights that the base class would check
        checked = as_counts("counts", to_host(counts))
        weights = unigram_weights(checked, as_positive("power", power))
        super().__init__(weights, replace=replace)


class LearnedUnigramSampler(Sampler):
    """Classes in proportion to a power of how often they have been observed.

    A tree over the counts makes an observation and a draw cost O(log n).

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    power : float
        Distortion: 1 for the counts as they are, near 0 for uniform.
    initial : float or array_like, shape (n,)
        Count of every class, or of each, before the first observation; greater than 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If so many classes do not fit.

    Notes
    -----
    With ``power=1`` and a whole `initial`, sums in the tree are whole numbers and exact, in any
    order of observations. Else they are rounded in float64, as is q then; it is exact for the
    draws all the same.

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
        require_memory("num_classes", self.num_classes, 40.0 * self.num_classes)  # and a tree
        # one count for all classes, or one for each
        every = as_array("initial", initial)
        if every.ndim == 0:
            every = np.broadcast_to(every, self.num_classes)
        self._counts = as_counts("initial", every, self.num_classes).copy()
        if self._counts.min() <= 0.0:
            raise ValueError(
                f"`initial` must be greater than 0, got {self._counts.min()}; a class without a "
                "count is never drawn."
            )
        # a power of two, so that whole counts stay exact; the power of an observation, which counts
        # 1, must be finite in it, however small the first counts are
        least = 2.0 ** -min(int(_LARGEST_EXPONENT / self.power), _LARGEST_EXPONENT)
        self._unit = max(2.0 ** (np.frexp(self._counts.max())[1] - 1), least)
        self._tree = KernelTree(self._weights(self._counts)[:, None], floor=MIN_FLOOR)

    @property
    def counts(self) -> FloatArray:
        """How often each class has been observed, with its initial count, (n,)."""
        return self._counts.copy()

    def observe(self, labels: Any) -> None:
        """Count labels (k,), each as often as it occurs; none of them if one is malformed."""
        ids, times = np.unique(as_ids("labels", labels, self.num_classes), return_counts=True)
        if len(ids) == 0:
            return
        self._count(ids, self._counts[ids] + times)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the counts, (n,)."""
        return {"counts": self.counts}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to the counts of a `state`."""
        if set(as_named_arrays("state", state)) != {"counts"}:
            raise ValueError(f"`state` must hold counts, got {', '.join(state) or 'nothing'}.")
        counts = as_counts("state['counts']", state["counts"], self.num_classes)
        if counts.min() <= 0.0:
            raise ValueError(f"`state['counts']` must be greater than 0, got {counts.min()}.")
        # all sums anew: they are those of a new sampler with these counts, to the bit
        self._count(np.arange(self.num_classes), counts)

    def _count(self, ids: IntArray, counts: FloatArray) -> None:
        """Set the counts (k,) of classes."""
        # into the tree first, which may refuse them; then nothing has changed
        self._tree._prepare_update(ids, self._weights(counts)[:, None])()
        self._counts = writable(self._counts)
        self._counts[ids] = counts

    def _weights(self, counts: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            weights: FloatArray = (counts / self._unit) ** self.power
        if not np.isfinite(weights).all():
            raise ValueError(
                f"`power` must leave powers of the counts finite, got {self.power}; lower it."
            )
        return weights

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        # one feature, the weight: with a context of 1 the tree draws in proportion to it
        return self._tree._sample(np.ones((len(h), 1)), m, exclude, key)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        return self._tree._log_prob(np.ones((len(h), 1)), ids, exclude)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        return self._tree._probs(np.ones((len(h), 1)), exclude)


class StreamingUnigramSampler(LearnedUnigramSampler):
    r"""Classes in proportion to a power of how often they occur of late, by the gaps between them.

    Of each class there is kept when it was last observed, and a moving mean of the gaps between
    its observations, counted in labels. Its frequency is one over that. A gap that is still open
    counts once it is longer than 16 mean ones. So the estimates follow a stream whose frequencies
    change, in which classes come and go, as `LearnedUnigramSampler` does ever less.

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    rate : float
        Weight of a new gap, above 0 and at most 1. Estimates remember some ``1 / rate`` gaps, and
        are off by about ``sqrt(rate / 2)`` of themselves.
    power : float
        Distortion: 1 for the frequencies as they are, near 0 for uniform.
    initial : float or array_like, shape (n,)
        Count of every class, or of each, in any unit, before the first observation; greater than
        0. A class has the frequency that follows from it until it is observed, or missing for long.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If so many classes do not fit.

    Notes
    -----
    The paper [1]_ counts time in batches, in which a class is seen or not; so classes that are in
    every batch are alike to it. Here each label is a moment, and their order within a batch
    counts. While a class has had fewer than ``1 / rate`` gaps, all of them and the initial one
    weigh the same, so that rare classes do not keep what they began with. The paper's hashing of
    classes into fewer places is left out: n numbers fit where class vectors do.

    **Classes that stay away.** In the paper a class that is not seen any more keeps its frequency
    for ever. Here a gap that has been open for a labels, more than 16 times the mean, is added to
    the mean as if it ended now; so the frequency of a class is at most ``1 / (rate * a)`` then.
    Where a class keeps coming, chance leaves a gap open for so long once in nine million times, so
    that a rare class has what the gaps between its observations say. The mean is rounded down to
    four binary digits of its growth, so that an open gap is looked at now and then, and not with
    each label; how labels are divided among calls of `observe` changes nothing.

    Estimates of all classes need not sum to 1; what is drawn from is divided by their sum, and q
    is exact. `counts` are the estimates times the sum of `initial`, of which a unit is taken in
    which the sum is finite.

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

    # (blocks, _BLOCK_CLASSES): the time when the open gap of a class may count for more
    _due: IntArray
    _due_in_block: IntArray  # (blocks,): no later than the first of a block

    def __init__(
        self,
        num_classes: int,
        *,
        rate: float = 0.01,
        power: float = 1.0,
        initial: ArrayLike = 1.0,
    ) -> None:
        super().__init__(num_classes, power=power, initial=initial)
        self.rate = as_positive("rate", as_share("rate", rate))
        with np.errstate(over="ignore"):
            self._total = float(self._counts.sum())  # of which a class with a gap of 1 has all
        if self._total == np.inf:
            self._counts = np.maximum(scale_by_power_of_two(self._counts), _LEAST_COUNT)
            self._unit = 0.5  # of the greatest, as before: what is drawn from stays as it is
            self._total = float(self._counts.sum())
        with np.errstate(over="ignore"):
            gaps = np.minimum(self._total / self._counts, _LONGEST_GAP)
        self._gaps: FloatArray = gaps  # means of those that have ended
        self._seen, self._last = np.zeros((2, self.num_classes), np.int64)  # how often, and when
        self._time = 0  # labels so far
        self._schedule_all()

    def observe(self, labels: Any) -> None:
        """Follow labels (k,) in their order; none of them if one is malformed."""
        ids = as_ids("labels", labels, self.num_classes).reshape(-1)
        if len(ids) == 0:
            return
        classes, places = np.unique(ids, return_inverse=True)
        gaps = self._gaps[classes]
        seen = self._seen[classes]
        last = self._last[classes]
        _follow(places, self._time, self.rate, gaps, seen, last)
        now = self._time + len(ids)
        blocks, missing = self._missing(now, classes)
        means, due = _with_open_gaps(
            np.append(gaps, self._gaps[missing]),
            np.append(seen, self._seen[missing]),
            np.append(last, self._last[missing]),
            now,
            self.rate,
        )
        changed = np.append(classes, missing)
        self._count(changed, self._total / means)  # which may refuse; then nothing has changed
        for name, values in (("_gaps", gaps), ("_seen", seen), ("_last", last)):
            setattr(self, name, writable(getattr(self, name)))
            getattr(self, name)[classes] = values
        self._time = now
        self._due = writable(self._due)
        self._due_in_block = writable(self._due_in_block)
        self._due.reshape(-1)[changed] = due
        np.minimum.at(self._due_in_block, changed // _BLOCK_CLASSES, due)
        self._due_in_block[blocks] = self._due[blocks].min(axis=1)

    def _missing(self, now: int, observed: IntArray) -> tuple[IntArray, IntArray]:
        """Return blocks whose classes are looked at, and those whose open gap counts for more.

        Classes that are `observed`, (k,), are none of these.
        """
        # of a block it is known when the first of its classes is due, or that none is before
        blocks = np.flatnonzero(self._due_in_block <= now)
        places, within = np.nonzero(self._due[blocks] <= now)
        missing = np.setdiff1d(
            blocks[places] * _BLOCK_CLASSES + within, observed, assume_unique=True
        )
        return blocks, missing

    def _schedule_all(self) -> None:
        """Find anew when the open gap of each class is to be looked at."""
        means, due = _with_open_gaps(self._gaps, self._seen, self._last, self._time, self.rate)
        # as of a state of an earlier version, in which open gaps do not count
        due[means != self._gaps] = self._time + 1
        num_blocks = -(-self.num_classes // _BLOCK_CLASSES)
        self._due = np.full((num_blocks, _BLOCK_CLASSES), _MOST_LABELS)
        self._due.reshape(-1)[: self.num_classes] = due
        self._due_in_block = self._due.min(axis=1)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return counts, mean gaps, how often and when last observed, (n,), and the time."""
        times = {"seen": self._seen.copy(), "last": self._last.copy()}
        numbers = {"counts": self.counts, "gaps": self._gaps.copy()}
        return {**numbers, **times, "time": np.array([self._time])}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state`."""
        names = {"counts", "gaps", "seen", "last", "time"}
        if set(as_named_arrays("state", state)) != names:
            raise ValueError(
                f"`state` must hold {', '.join(sorted(names))}, got "
                f"{', '.join(state) or 'nothing'}; it is that of another sampler."
            )
        counts, gaps = (
            as_counts(f"state['{name}']", state[name], self.num_classes).copy()
            for name in ("counts", "gaps")
        )
        seen, last, time = (
            as_ids(f"state['{name}']", state[name], _MOST_LABELS)
            for name in ("seen", "last", "time")
        )
        same = seen.shape == last.shape == gaps.shape and time.shape == (1,)
        if (
            not same
            or min(gaps.min(), counts.min()) <= 0.0
            or max(seen.max(), last.max()) > time[0]
        ):
            raise ValueError(
                "`state` must hold counts and gaps greater than 0, and of each class when it was "
                f"last seen, before the time; got gaps from {gaps.min()}, and times of shapes "
                f"{seen.shape}, {last.shape} and {time.shape}."
            )
        self._count(np.arange(self.num_classes), counts)
        self._gaps = gaps
        self._seen = seen.copy()
        self._last = last.copy()
        self._time = int(time[0])
        self._schedule_all()


@njit
def _follow(
    ids: IntArray, time: int, rate: float, gaps: FloatArray, seen: IntArray, last: IntArray
) -> None:
    """Move the mean gaps of classes by observations (k,) after a time."""
    for i in range(len(ids)):
        j = ids[i]
        now = time + i + 1
        seen[j] += 1
        weight = max(rate, 1.0 / (seen[j] + 1))  # of the first gaps, and the initial one, a mean
        gaps[j] += weight * (now - last[j] - gaps[j])
        last[j] = now


def _with_open_gaps(
    gaps: FloatArray, seen: IntArray, last: IntArray, now: int, rate: float
) -> tuple[FloatArray, IntArray]:
    """Return mean gaps (k,) in which long open ones count, and when they next count for more.

    They are a function of the arguments alone, and so are estimates of the labels so far.
    """
    weight = np.maximum(rate, 1.0 / (seen + 2.0))  # which a gap would have that ended now
    with np.errstate(over="ignore"):  # of a class that is hardly ever expected
        lengths = (now - last) / gaps
        growth = np.where(lengths > _LONG_GAPS, 1.0 + weight * (lengths - 1.0), 1.0)
        mantissa, exponent = np.frexp(growth)
        growth = np.ldexp(np.floor(16.0 * mantissa) / 16.0, exponent)
        more = growth + np.ldexp(1.0 / 16.0, exponent)
        lengths = np.maximum(_LONG_GAPS, 1.0 + (more - 1.0) / weight)
        # a label early, whatever rounding does: there is nothing to change then
        later = np.minimum(last + np.floor(lengths * gaps) - 1.0, float(_MOST_LABELS))
    return gaps * growth, np.maximum(later.astype(np.int64), now + 1)


def log_uniform_weights(num_classes: int, counts: FloatArray | None = None) -> FloatArray:
    """Return Zipf's law (n,), ``log((k + 2) / (k + 1))`` for the class of rank k.

    Their sum is ``log(n + 1)``. The rank is that by falling `counts` (n,), or the number of the
    class where there are none.
    """
    # log1p keeps the digits of a ratio next to 1, where a difference of logs would cancel
    weights = np.log1p(1.0 / np.arange(1.0, num_classes + 1.0))
    if counts is not None:
        weights[_by_falling(counts)] = weights.copy()
    return weights


def _by_falling(counts: FloatArray) -> IntArray:
    """Return the classes from the greatest of counts (n,) to the least."""
    # stable, so that classes that are numbered by rank stay as they are
    return np.argsort(-counts, kind="stable")


def unigram_weights(counts: FloatArray, power: float) -> FloatArray:
    """Return the counts (n,) to a power, divided by the greatest.

    A class that never occurs counts as half of the rarest that does, so that it can be drawn.
    """
    # an estimate for unseen classes, as q must be above 0 for each
    unseen = max(0.5 * counts[counts > 0.0].min(), _LEAST_COUNT)
    counts = np.where(counts > 0.0, counts, unseen)
    with np.errstate(over="ignore"):  # the power of a ratio below 1 may be 0
        weights: FloatArray = np.exp(power * (np.log(counts) - np.log(counts.max())))
    return weights
