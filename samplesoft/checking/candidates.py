"""A candidate: a hypothesis about a loss, the exact means that it predicts, and its score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.checking.estimators import SampledSum
from samplesoft.checking.exact import Means, expectation
from samplesoft.checking.faults import AND, FAULTS
from samplesoft.checking.observe import Observer
from samplesoft.checking.spread import Spread, linearised_spread

_MAX_MEAN_DISTANCE = 1e-7  # relative distance of means that no experiment can tell apart
_ERROR = 1e-11  # relative error of exact means
_ERROR_OF_SETS = 1e-7
_ERROR_OF_MIXTURES = 1e-5  # of sets by their numbers of tries


@dataclass(frozen=True, eq=False)
class Candidate:
    """A scheme, optionally with faults; its exact means; and the distance of the loss from them.

    Attributes
    ----------
    scheme, fault : str, str or None
        A name in `ESTIMATORS`, and one in `FAULTS`, or two of these with `AND` between them.
    means : ndarray, shape (K,)
        Means over the draws of what an `Observer` looks at.
    expected : Means or None
        Exact means of losses and gradients in the logits, where they are known, and do not depend
        on the batch at hand.
    sums : tuple of SampledSum
        The random sums that the means follow from; empty without a closed form.
    spread : Spread or None
        Standard deviations and skewness of single calls, if known.
    digits : float
        Error of the means, relative to the magnitudes of their terms.
    number : str
        What was fitted or is not given, in words.
    same : tuple of Candidate
        Other candidates with the same means.
    z : float
        The largest distance of a mean from the observed one, in standard errors; of a loss that
        is the same for every seed the root mean square of the errors of single values.
    allowed : bool
        Whether all are within the limit.
    sd_ratio : float or None
        Standard deviation of single losses, as a multiple of the candidate's; None where that is
        not tested.
    factor : float
        Multiple of the gradient of the losses that the gradient is.
    """

    scheme: str
    fault: str | None
    means: FloatArray
    expected: Means | None = None
    sums: tuple[SampledSum, ...] = ()
    spread: Spread | None = None
    relative_error: float = _ERROR
    detail: str = ""
    equivalents: tuple[Candidate, ...] = ()
    z: float = np.inf
    allowed: bool = False
    sd_ratio: float | None = None
    gradient_factor: float = 1.0

    @property
    def name(self) -> tuple[str, str | None]:
        """The scheme and the mistake."""
        return self.scheme, self.fault

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of the mistakes."""
        return () if self.fault is None else tuple(self.fault.split(AND))

    @property
    def title(self) -> str:
        """The scheme and the mistakes, in words."""
        words = [FAULTS[name].description for name in self.faults]
        return f"`{self.scheme}`" + (", but " + "; and ".join(words) if words else "")


def make_candidate(
    observer: Observer,
    scheme: str,
    fault: str | None,
    sums: Sequence[SampledSum],
    detail: str = "",
    with_spread: bool = False,
) -> Candidate:
    """Return the candidate for a loss with one of the given random sums, optionally with spread."""
    problem, num_gradients = observer.problem, observer.num_gradients
    expected = expectation(sums)
    relative_error = _ERROR
    if any(one.set_distributions is not None for one in sums):
        relative_error = _ERROR_OF_SETS if len(sums) == 1 else _ERROR_OF_MIXTURES
    return Candidate(
        scheme,
        fault,
        means=expected.observed_means(problem, num_gradients),
        expected=expected,
        sums=tuple(sums),
        spread=linearised_spread(sums, expected.losses, problem, num_gradients)
        if with_spread
        else None,
        relative_error=relative_error,
        detail=detail,
    )


def merge_equal_means(candidates: Iterator[Candidate]) -> list[Candidate]:
    """Return one candidate for each group with equal means; the rest of the group is in `same`."""
    groups: list[list[Candidate]] = []  # the first of a group represents it
    means = np.empty((0, 0))
    for one in candidates:
        if len(groups) == len(means):
            means = np.resize(means, (2 * len(means) + 64, len(one.means)))
        apart = np.abs(means[: len(groups)] - one.means).max(axis=1)
        same = np.flatnonzero(apart <= _MAX_MEAN_DISTANCE * (1.0 + np.abs(one.means).max()))
        if not len(same):
            means[len(groups)] = one.means
            groups.append([one])
        elif all(one.name != other.name for other in groups[same[0]]):
            groups[same[0]].append(one)
    return [replace(first, equivalents=tuple(rest)) for first, *rest in groups]
