"""Samplers whose distribution is the same for every context: any weights, and uniform."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device.select import to_host, twin
from samplesoft._jit import row_chunks, thread_each
from samplesoft._validation import FloatArray, IntArray, as_array, as_count, as_flag, as_real_array
from samplesoft.kernels.samplers import static
from samplesoft.kernels.samplers.alias import build_alias
from samplesoft.samplers.base import Draw, Rows, Sampler
from samplesoft.samplers.without_replacement import Inclusion, SuccessiveInclusion, UniformInclusion

_CHUNK_DRAWS = 1 << 16
_EXACT_RATIO = 1e-300  # below, a ratio of weights loses digits that a difference of logs keeps


class StaticSampler(Sampler):
    """A distribution that does not look at the contexts; without replacement on the CPU alone."""

    _engine_name: ClassVar[str]

    def __init__(self, num_classes: int, replace: bool, device: str) -> None:
        super().__init__(num_classes, device=device)
        if not as_flag("replace", replace) and device != "cpu":
            raise ValueError(
                f"`replace` must be True on {device!r}, got False; without replacement there are "
                "only kernels for 'cpu'."
            )
        self.replace = replace
        self._last_inclusion: tuple[int, Inclusion] | None = None

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
        excluded = self._check_excluded(exclude, max(1, *shape, 1))
        if self.replace:
            probs = self._probs(np.empty((len(excluded), 0)), excluded)
            with np.errstate(divide="ignore"):  # of a class that is drawn with certainty
                every: FloatArray = -np.expm1(m * np.log1p(-np.minimum(probs, 1.0)))
        else:
            self._check_left(m, excluded)
            every = self._inclusion_of(m).of_all(excluded)
        return every.reshape(*shape, self.num_classes)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        return self._engine.sample(m, exclude, key)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        return self._engine.log_prob(ids, exclude)

    def _log_expected_count(self, h: Rows, ids: IntArray, m: int, exclude: IntArray) -> FloatArray:
        if self.replace:
            return super()._log_expected_count(h, ids, m, exclude)
        self._check_left(m, exclude)
        with np.errstate(divide="ignore"):
            inclusion = np.log(self._inclusion_of(m).of_classes(ids, exclude))
        drawn = np.isfinite(self._log_prob(h, ids, exclude))
        return np.where(drawn, inclusion, -np.inf)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        return self._engine.probs(exclude)

    def _check_left(self, m: int, exclude: IntArray) -> None:
        left = int(self._drawable(exclude).min())
        if m > left:
            raise ValueError(
                f"`num_sampled` must be at most {left}, the number of classes that can be drawn "
                f"without replacement, got {m}; draw fewer, or make the sampler with replace=True."
            )

    def _inclusion_of(self, m: int) -> Inclusion:
        last = self._last_inclusion
        if last is None or last[0] != m:
            self._last_inclusion = last = m, self._make_inclusion(m)
        return last[1]

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made from: without the engine, which draws as this one is set."""
        return {k: value for k, value in super().__getstate__().items() if k != "_engine"}

    @cached_property
    def _engine(self) -> HostWeighted:
        """What draws and computes on the sampler's device."""
        engine: HostWeighted = twin(self.device, self._engine_name)(self)
        return engine

    @abstractmethod
    def _log_q(self, ids: IntArray) -> FloatArray:
        """Return the log-probabilities of classes where none is excluded."""

    @abstractmethod
    def _log_left(self, exclude: IntArray) -> FloatArray:
        """Return the logarithm of the mass (B,) that excluding leaves; raise if it is none."""

    @abstractmethod
    def _drawable(self, exclude: IntArray) -> IntArray:
        """Return how many classes (B,) can be drawn."""

    @abstractmethod
    def _draw(self, key: np.uint64, first: int, exclude: IntArray, ids: IntArray) -> None:
        """Fill `ids` (B, m) for examples from `first` on."""

    @abstractmethod
    def _make_inclusion(self, m: int) -> Inclusion:
        """Return the inclusion probabilities of m draws without replacement."""


class WeightedSampler(StaticSampler):
    """Draw classes in proportion to any weights.

    One draw takes constant time from an alias table. Where the excluded class comes up, the draw is
    repeated; if that class is the heaviest, a second table without it is used instead.

    Parameters
    ----------
    weights : array_like, shape (n,)
        Weights: finite, at least 0, not all 0. A class of weight 0 is never drawn.
    replace : bool
        False to draw without replacement: in turn, in proportion to the weights of the classes
        not yet drawn. See `samplesoft.samplers.without_replacement.SuccessiveInclusion`.
    device : {"cpu", "cuda"}
        Where it works, and where what it returns stays.

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

    _engine_name = "samplesoft.samplers.static:Weighted"

    def __init__(self, weights: ArrayLike, *, replace: bool = True, device: str = "cpu") -> None:
        values = as_real_array("weights", to_host(weights), (1,))
        if values.min() < 0.0 or not values.any():
            raise ValueError(
                f"`weights` must be at least 0 and not all 0, got a least of {values.min()} and a "
                f"greatest of {values.max()}; give at least one class a weight greater than 0."
            )
        super().__init__(len(values), replace, device)
        ratios = values / values.max()
        with np.errstate(divide="ignore"):
            precise = np.log(ratios)
            coarse = np.log(values) - np.log(values.max())
        self._log_weights = np.where(ratios > _EXACT_RATIO, precise, coarse)
        self._log_total = float(np.log(ratios.sum()))
        self._table = build_alias(ratios)
        self._top = int(np.argmax(values))
        self._positive = values > 0.0

    @cached_property
    def _others(self) -> tuple[static.Table, float]:
        """The alias table without the heaviest class, and the log of the mass of that."""
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
        log_q: FloatArray = self._log_weights[ids] - self._log_total
        return log_q

    def _log_left(self, exclude: IntArray) -> FloatArray:
        without = np.zeros(len(exclude))
        known = (exclude >= 0) & (exclude != self._top)
        without[known] = np.log1p(-np.exp(self._log_q(exclude[known])))
        if np.any(exclude == self._top):
            without[exclude == self._top] = self._others[1]
        return without

    def _drawable(self, exclude: IntArray) -> IntArray:
        left: IntArray = self._positive.sum() - ((exclude >= 0) & self._positive[exclude])
        return left

    def _draw(self, key: np.uint64, first: int, exclude: IntArray, ids: IntArray) -> None:
        others = self._others[0] if np.any(exclude == self._top) else self._table
        tables = self._table, others
        if self.replace:
            static.alias_rows(key, first, tables, self._top, exclude, ids)
        else:
            static.distinct_rows(key, first, tables, self._top, self._log_weights, exclude, ids)

    def _make_inclusion(self, m: int) -> Inclusion:
        return SuccessiveInclusion(self._log_weights, m)


class UniformSampler(StaticSampler):
    """Draw all classes with the same probability.

    Parameters
    ----------
    num_classes : int
        Number of classes n.
    replace : bool
        False to draw without replacement.
    device : {"cpu", "cuda"}
        Where it works, and where what it returns stays.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> UniformSampler(4, replace=False).sample(None, 3, exclude=2, rng=0).ids
    array([[3, 0, 1]])
    """

    _engine_name = "samplesoft.samplers.static:Uniform"

    def __init__(self, num_classes: int, *, replace: bool = True, device: str = "cpu") -> None:
        super().__init__(as_count("num_classes", num_classes), replace, device)

    def _log_q(self, ids: IntArray) -> FloatArray:
        return np.full(ids.shape, -np.log(self.num_classes))

    def _log_left(self, exclude: IntArray) -> FloatArray:
        log_left: FloatArray = np.log(self._drawable(exclude)) - np.log(self.num_classes)
        return log_left

    def _drawable(self, exclude: IntArray) -> IntArray:
        return self.num_classes - (exclude >= 0).astype(np.int64)

    def _draw(self, key: np.uint64, first: int, exclude: IntArray, ids: IntArray) -> None:
        draw = static.uniform_rows if self.replace else static.uniform_distinct_rows
        draw(key, first, self.num_classes, exclude, ids)

    def _make_inclusion(self, m: int) -> Inclusion:
        return UniformInclusion(self.num_classes, m)


class HostWeighted:
    """What a `StaticSampler` does on the processor, for checked arguments."""

    def __init__(self, sampler: StaticSampler) -> None:
        self._sampler = sampler

    def sample(self, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        """Draw m classes for each of the excluded ones (B,)."""
        own = self._sampler
        # which raises where nothing is left to draw
        log_left = own._log_left(exclude)[:, None] if exclude.max() >= 0 else None
        if not own.replace:
            own._check_left(m, exclude)
        ids = np.empty((len(exclude), m), np.int64)

        def fill(part: slice) -> None:
            own._draw(key, part.start, exclude[part], ids[part])

        thread_each(fill, row_chunks(ids.shape, _CHUNK_DRAWS))
        log_q = own._log_q(ids)
        if log_left is not None:
            log_q -= log_left
        if own.replace:
            return Draw(ids, log_q)
        return Draw(ids, log_q, np.log(own._inclusion_of(m).of_classes(ids, exclude)))

    def log_prob(self, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the log-probabilities (B, k) of classes."""
        log_q = self._sampler._log_q(ids) - self._sampler._log_left(exclude)[:, None]
        return np.where(ids == exclude[:, None], -np.inf, log_q)

    def probs(self, exclude: IntArray) -> FloatArray:
        """Return the probabilities (B, n) of all classes."""
        every = np.arange(self._sampler.num_classes)
        shape = len(exclude), len(every)
        return np.exp(self.log_prob(np.broadcast_to(every, shape), exclude))


HostUniform = HostWeighted
