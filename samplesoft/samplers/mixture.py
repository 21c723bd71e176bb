"""A mixture of two samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device.select import require_cpu
from samplesoft._names import part, prefixed
from samplesoft._random import mix64, uniform_block
from samplesoft._validation import FloatArray, IntArray, as_named_arrays, as_positive
from samplesoft.samplers.base import Draw, Rows, Sampler
from samplesoft.samplers.certain import CertainSampler


class MixtureSampler(Sampler):
    """Each draw comes from `first` with probability `weight`, else from `second`.

    A narrow proposal that follows the model, mixed with a broad one that reaches every class,
    keeps the importance weights bounded: they are at most those of `second` alone divided by
    ``1 - weight``.

    Parameters
    ----------
    first, second : Sampler
        Over the same classes; they are used, not copied. Their draws are with replacement.
    weight : float
        Probability of `first`, between 0 and 1.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the two do not fit together.

    Notes
    -----
    The probability of a class is the exact mixture of the two, so that each draw costs the
    probability of its class under both. With an excluded class, q is the mixture of the two
    conditional distributions, with the same weight: what is drawn, and not the mixture conditioned
    afterwards, which would weigh the two by the mass that each has left.

    `update` goes to both, once both have found the vectors fit.

    References
    ----------
    .. [1] A. Owen and Y. Zhou, "Safe and Effective Importance Sampling", JASA 95, 2000.

    Examples
    --------
    >>> from samplesoft.samplers.softmax import SoftmaxSampler
    >>> from samplesoft.samplers.static import UniformSampler
    >>> narrow = SoftmaxSampler([[5.0], [0.0], [0.0], [0.0]])
    >>> MixtureSampler(narrow, UniformSampler(4), 0.8).probs([1.0]).round(3)
    array([[0.834, 0.055, 0.055, 0.055]])
    """

    def __init__(self, first: Sampler, second: Sampler, weight: float = 0.5) -> None:
        for name, sampler in (("first", first), ("second", second)):
            if not isinstance(sampler, Sampler):
                raise TypeError(
                    f"`{name}` must be a Sampler, got {type(sampler).__name__}; "
                    "samplesoft.samplers has some."
                )
            require_cpu(f"`{name}` of a mixture", sampler.device)
            if isinstance(sampler, CertainSampler):
                raise ValueError(
                    f"`{name}` must have no certain classes, got a CertainSampler; make one of a "
                    "mixture."
                )
            if not getattr(sampler, "replace", True):
                raise _draws_distinct(name, sampler)
        if first.num_classes != second.num_classes:
            raise ValueError(
                "`first` and `second` must have the same number of classes, got "
                f"{first.num_classes} and {second.num_classes}."
            )
        dims = {sampler.dim for sampler in (first, second) if sampler.dim is not None}
        if len(dims) > 1:
            raise ValueError(
                "`first` and `second` must take vectors of the same dimension, got "
                f"{first.dim} and {second.dim}."
            )
        self.weight = as_positive("weight", weight)
        if self.weight >= 1.0:
            raise ValueError(
                f"`weight` must be less than 1, got {weight}; use `first` without a mixture."
            )
        taus = [sampler.tau for sampler in (first, second) if sampler.tau is not None]
        if len(taus) > 1 and not isclose(*taus, rel_tol=1e-6):
            raise ValueError(
                f"`first` and `second` must have the same tau, got {taus[0]} and {taus[1]}; make "
                "both with that of the loss."
            )
        super().__init__(first.num_classes, max(dims, default=None))
        self.first, self.second = first, second
        self.tau = taus[0] if taus else None

    def refresh(self, rng: int | np.random.Generator | None = None) -> None:
        """Let both samplers draw anew what serves many draws."""
        for sampler in (self.first, self.second):
            sampler.refresh(rng)

    def observe(self, labels: Any) -> None:
        """Let both samplers learn from labels."""
        for sampler in (self.first, self.second):
            sampler.observe(labels)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the states of both samplers."""
        return prefixed({"first": self.first.state(), "second": self.second.state()}, "/")

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to the states of both samplers."""
        state = as_named_arrays("state", state)
        foreign = [key for key in state if not key.startswith(("first/", "second/"))]
        if foreign:
            raise ValueError(f"`state` must be that of a mixture, got {', '.join(foreign)}.")
        for name, sampler in (("first", self.first), ("second", self.second)):
            sampler.load_state(part(name, state, "/"))

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        choice, *keys = (np.uint64(mix64(key, np.uint64(i))) for i in range(3))
        ids = []
        both = ("first", self.first), ("second", self.second)
        for (name, sampler), own in zip(both, keys, strict=True):
            draw = sampler._sample(sampler._check_contexts(h), m, exclude, own)
            if draw.log_inclusion is not None:
                raise _draws_distinct(name, sampler)
            ids.append(draw.ids)
        mixed = np.where(uniform_block(choice, len(h), m) < self.weight, *ids)
        return Draw(mixed, self._log_prob(h, mixed, exclude))

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        first = self.first._log_prob(self.first._check_contexts(h), ids, exclude)
        second = self.second._log_prob(self.second._check_contexts(h), ids, exclude)
        log_q: FloatArray = np.logaddexp(
            np.log(self.weight) + first, np.log1p(-self.weight) + second
        )
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        first = self.first._probs(self.first._check_contexts(h), exclude)
        second = self.second._probs(self.second._check_contexts(h), exclude)
        return self.weight * first + (1.0 - self.weight) * second

    def _prepare(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        both = [s for s in (self.first, self.second) if s.dim is not None]
        commits = [sampler._prepare(ids, sampler._check_class_rows(rows)) for sampler in both]

        def commit() -> None:
            for one in commits:
                one()

        return commit


def _draws_distinct(name: str, sampler: Sampler) -> ValueError:
    return ValueError(
        f"`{name}` must draw with replacement, got a {type(sampler).__name__} that does not; make "
        "it with replace=True."
    )
