"""`Candidate`: a hypothesis about a loss, its exact means, and how well the loss fits them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.checking.estimators import SampledSum
from samplesoft.checking.exact import Means, expectation
from samplesoft.checking.faults import ALL_FAULTS, AND
from samplesoft.checking.observe import Observer
from samplesoft.checking.spread import Spread, linearised_spread

_MAX_MEAN_DISTANCE = 1e-7  # means with a smaller relative distance count as equal
_RELATIVE_ERROR = 1e-11  # relative error of exact means of independent draws
_RELATIVE_ERROR_OF_SETS = 1e-7  # relative error of exact means of sets of draws
# relative error of exact means of sets of draws, if S is one of several sums at random
_RELATIVE_ERROR_OF_MIXTURES = 1e-5


@dataclass(frozen=True, eq=False)
class Candidate:
    """A hypothesis about a loss: a scheme, optionally with faults, and the means that it predicts.

    Attributes
    ----------
    scheme, fault : str, str or None
        A key of `ESTIMATORS`; and a key of `FAULTS`, two of these keys joined by `AND`, or None.
    means : ndarray, shape (K,)
        Exact means of the K values that an `Observer` records: losses, then gradients.
    expected : Means or None
        Exact means of the losses and of their gradients in the logits. None if they are not known,
        or hold for one particular batch only.
    sums : tuple of SampledSum
        The random sums S from which the means are computed; empty without a closed form.
    spread : Spread or None
        Standard deviations and skewness of the values of single calls, if known.
    relative_error : float
        Error of the means, relative to the magnitudes of their terms.
    detail : str
        Text for reports: the fitted constant, or which variant of the scheme this is.
    equivalents : tuple of Candidate
        Other candidates with the same means.
    z : float
        The largest distance between a predicted and an observed mean, in standard errors. For a
        deterministic loss it is the root mean square of the differences instead.
    allowed : bool
        Whether all distances are within the limit of the test, so that the hypothesis may be true.
    sd_ratio : float or None
        Observed standard deviation of single losses, divided by the predicted one; None if it was
        not tested.
    gradient_factor : float
        The gradient that the loss returns, as a multiple of the true gradient of its losses.
    """

    scheme: str
    fault: str | None
    means: FloatArray
    expected: Means | None = None
    sums: tuple[SampledSum, ...] = ()
    spread: Spread | None = None
    relative_error: float = _RELATIVE_ERROR
    detail: str = ""
    equivalents: tuple[Candidate, ...] = ()
    z: float = np.inf
    allowed: bool = False
    sd_ratio: float | None = None
    gradient_factor: float = 1.0

    @property
    def name(self) -> tuple[str, str | None]:
        """The pair (scheme, fault), which identifies the candidate."""
        return self.scheme, self.fault

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of the candidate's faults, which are keys of `FAULTS`; empty without a fault."""
        return () if self.fault is None else tuple(self.fault.split(AND))

    @property
    def title(self) -> str:
        """The scheme and its faults as text, such as "`masked`, but log m is left out ..."."""
        words = [ALL_FAULTS[name].description for name in self.faults]
        return f"`{self.scheme}`" + (", but " + "; and ".join(words) if words else "")


def make_candidate(
    observer: Observer,
    scheme: str,
    fault: str | None,
    sums: Sequence[SampledSum],
    detail: str = "",
    with_spread: bool = False,
) -> Candidate:
    """Return the candidate with the exact means of a loss whose random sum S is one of `sums`.

    With several `sums`, S is one of them at random, each with its `probability`. `with_spread` says
    whether the standard deviations of single calls are computed too.
    """
    problem = observer.problem
    num_gradients = observer.num_gradients
    expected = expectation(sums)
    relative_error = _RELATIVE_ERROR
    if any(sampled_sum.set_distributions is not None for sampled_sum in sums):
        relative_error = _RELATIVE_ERROR_OF_SETS if len(sums) == 1 else _RELATIVE_ERROR_OF_MIXTURES

    spread = None
    if with_spread:
        spread = linearised_spread(sums, expected.losses, problem, num_gradients)

    return Candidate(
        scheme,
        fault,
        means=expected.observed_means(problem, num_gradients),
        expected=expected,
        sums=tuple(sums),
        spread=spread,
        relative_error=relative_error,
        detail=detail,
    )


def merge_equal_means(candidates: Iterator[Candidate]) -> list[Candidate]:
    """Group candidates with equal means; return the first candidate of each group.

    The other members of the group become `equivalents` of the first. A candidate whose name is
    already in the group is dropped.
    """
    groups: list[list[Candidate]] = []
    means = np.empty((0, 0))
    for candidate in candidates:
        if len(groups) == len(means):
            means = np.resize(means, (2 * len(means) + 64, len(candidate.means)))

        distances = np.abs(means[: len(groups)] - candidate.means).max(axis=1)
        matches = np.flatnonzero(
            distances <= _MAX_MEAN_DISTANCE * (1.0 + np.abs(candidate.means).max())
        )
        if not len(matches):
            means[len(groups)] = candidate.means
            groups.append([candidate])
        elif all(candidate.name != member.name for member in groups[matches[0]]):
            groups[matches[0]].append(candidate)

    return [replace(first, equivalents=tuple(others)) for first, *others in groups]
