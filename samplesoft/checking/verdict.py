"""Which hypotheses the observed means allow."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from samplesoft._validation import FloatArray
from samplesoft.checking.hypotheses import Hypothesis
from samplesoft.checking.observe import Means
from samplesoft.checking.spread import Spread, Squares

ALPHA = 1e-4  # chance that a right hypothesis is excluded, over all looks
LOOKS = 14  # at most
_MOST_SKEWNESS = 0.3  # of a mean that is tested: eleven or so of the rare draws behind it
_LEAST_SPREAD = 0.5  # of what is predicted; a lower one comes of draws that have not been seen


@dataclass(frozen=True, eq=False)
class Score:
    """How far one hypothesis is from what was observed.

    `z` is the greatest distance of a mean, in standard errors. The hypothesis is allowed where that
    is within the limit. `sd_ratio` is the standard deviation of single losses, as a multiple of
    what the hypothesis has; None where that is not tested.
    """

    hypothesis: Hypothesis
    z: float
    allowed: bool
    number: str = ""  # fitted, in words
    sd_ratio: float | None = None


def z_limit(observed: Means) -> float:
    """Return what |z| exceeds with a chance of `ALPHA` in all looks, by Bonferroni."""
    return float(-stdtrit(observed.calls - 1, ALPHA / (2.0 * LOOKS * observed.tests)))


def score(
    hypothesis: Hypothesis, observed: Means, number: str = "", errors: FloatArray | None = None
) -> Score:
    """Return how far a hypothesis, of means that may have `errors`, is from what was observed."""
    limit = z_limit(observed)
    if errors is not None:  # of expected means that are simulated
        observed = replace(observed, stderrs=np.hypot(observed.stderrs, errors))
    return Score(
        hypothesis, *_distance(hypothesis.means, hypothesis.spread, observed, limit), number
    )


def with_squares(
    found: Score, expected: Squares | None, observed: Means, centre: FloatArray
) -> Score:
    """Return the score of means that are allowed, excluded where single losses spread otherwise."""
    if not found.allowed or expected is None or observed.squares is None:
        return found
    limit = z_limit(observed)
    z, allowed = _distance(expected.means, expected.spread, observed.squares, limit)
    size = len(centre)
    # variances of single losses: as observed, and as the hypothesis has them
    seen = observed.squares.means - (observed.means[:size] - centre) ** 2
    due = expected.means - (found.hypothesis.means[:size] - centre) ** 2
    ratio = float(np.sqrt((seen / due).mean()))
    return replace(found, z=max(z, found.z), allowed=allowed, sd_ratio=ratio)


def of_means_alone(found: Score, observed: Means) -> Score:
    """Return the score of a hypothesis by its means, where single losses spread otherwise."""
    z = score(found.hypothesis, observed).z
    words = f"their standard deviation is {found.sd_ratio:.3g} times that of independent draws"
    return Score(replace(found.hypothesis, fault="dependent_draws", same=()), z, True, words)


def _distance(
    means: FloatArray, spread: Spread | None, observed: Means, limit: float
) -> tuple[float, bool]:
    """Return the greatest |z|, and whether all are within their limits."""
    skewness = np.abs(observed.skewness)
    if spread is not None:
        least = _LEAST_SPREAD * spread.deviations / np.sqrt(observed.sets * observed.calls)
        observed = replace(observed, stderrs=np.maximum(observed.stderrs, least))
        skewness = np.maximum(skewness, spread.skewness / np.sqrt(observed.sets))
    skewness /= np.sqrt(observed.calls)  # of a mean
    z = z_scores(means, observed)
    z[skewness > _MOST_SKEWNESS] = 0.0  # nobody knows how far such a mean may be off
    # of means that are a little skewed, by the expansion of Cornish and Fisher for Student's t
    limits = limit + skewness * (2.0 * limit**2 + 1.0) / 6.0
    return float(z.max()), bool((z <= limits).all())


def losses_alone(observed: Means, examples: int) -> Means:
    """Return what was observed of the losses, without the gradients."""
    # losses stand before gradients
    parts = ("means", "stderrs", "rounding", "skewness")
    first = {part: getattr(observed, part)[:examples] for part in parts}
    return replace(observed, **first, squares=None)


def z_scores(means: FloatArray, observed: Means) -> FloatArray:
    """Return |z| (K,): differences beyond rounding, in standard errors."""
    rounding = observed.rounding + 1e-12 * (1.0 + np.abs(means))
    apart = np.maximum(np.abs(observed.means - means) - rounding, 0.0)
    z: FloatArray = np.divide(
        apart,
        observed.stderrs,
        out=np.where(apart > 0.0, np.inf, 0.0),
        where=observed.stderrs > rounding * 1e-3,
    )
    return z


def ranked(scores: list[Score]) -> list[Score]:
    """Return scores with those that are allowed first, without a mistake before those with one."""
    return sorted(
        scores,
        key=lambda s: (not s.allowed, s.allowed and s.hypothesis.fault is not None, s.z),
    )


def nearest(scores: tuple[Score, ...], num: int) -> list[Score]:
    """Return the first scores, one for each scheme and fault."""
    seen: dict[tuple[str, str | None], Score] = {}
    for s in scores:
        seen.setdefault((s.hypothesis.scheme, s.hypothesis.fault), s)
    return list(seen.values())[:num]
