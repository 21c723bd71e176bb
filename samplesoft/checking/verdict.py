"""Which hypotheses the observed means allow."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from samplesoft._validation import FloatArray
from samplesoft.checking.hypotheses import Hypothesis
from samplesoft.checking.observe import Means

ALPHA = 1e-4  # chance that a right hypothesis is excluded, over all looks
LOOKS = 14  # at most
_MOST_SKEWNESS = 0.3  # of a mean that is tested: eleven or so of the rare draws behind it
_LEAST_SPREAD = 0.5  # of what is predicted; a lower one comes of draws that have not been seen


@dataclass(frozen=True, eq=False)
class Score:
    """How far one hypothesis is from what was observed.

    `z` is the greatest distance of a mean, in standard errors. The hypothesis is allowed where that
    is within the limit.
    """

    hypothesis: Hypothesis
    z: float
    allowed: bool
    number: str = ""  # fitted, in words


def z_limit(tests: int, calls: int) -> float:
    """Return what |z| exceeds with a chance of `ALPHA` in all looks, by Bonferroni."""
    return float(-stdtrit(calls - 1, ALPHA / (2.0 * LOOKS * tests)))


def score(
    hypothesis: Hypothesis, observed: Means, number: str = "", errors: FloatArray | None = None
) -> Score:
    """Return how far a hypothesis, of means that may have `errors`, is from what was observed."""
    if errors is not None:
        observed = replace(observed, stderrs=np.hypot(observed.stderrs, errors))
    skewness = np.abs(observed.skewness)
    if hypothesis.spread is not None:
        least = _LEAST_SPREAD * hypothesis.spread.deviations
        least /= np.sqrt(observed.sets * observed.calls)
        observed = replace(observed, stderrs=np.maximum(observed.stderrs, least))
        skewness = np.maximum(skewness, hypothesis.spread.skewness / np.sqrt(observed.sets))
    skewness /= np.sqrt(observed.calls)  # of a mean
    z = z_scores(hypothesis.means, observed)
    z[skewness > _MOST_SKEWNESS] = 0.0  # nobody knows how far such a mean may be off
    limit = z_limit(len(z), observed.calls)
    # of means that are a little skewed, by the expansion of Cornish and Fisher for Student's t
    limits = limit + skewness * (2.0 * limit**2 + 1.0) / 6.0
    return Score(hypothesis, float(z.max()), bool((z <= limits).all()), number)


def losses_alone(observed: Means, examples: int) -> Means:
    """Return what was observed of the losses, without the gradients."""
    parts = ("means", "stderrs", "rounding", "skewness")
    return replace(observed, **{part: getattr(observed, part)[:examples] for part in parts})


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
