"""Bounds on the bias of each class of one example, and the sums over classes that they need."""

from __future__ import annotations

import math

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.bounds.gaps import GapBounds, RatioRange, TransformBounds, log_fraction
from samplesoft.bias.negatives import NegativeSums
from samplesoft.bias.numerics.summation import EPS, Sum
from samplesoft.bias.with_replacement.draws import Draws

TINY = float(np.finfo(np.float64).tiny)
_LOGS_PER_BOUND = 8.0  # largest number of rounded logs that add up in a bound

# largest error of the logs for which bounds are computed; beyond it (logits that differ by about
# 1e12), the bounds are -1 and 1
_MAX_LOG_ROUNDING = 1e-3


def trivial_bounds(sums: NegativeSums, num_classes: int) -> tuple[FloatArray, FloatArray] | None:
    """Return lower and upper bounds, both (num_classes,), if they are trivial; otherwise None.

    The bounds are 0 if every draw has the same outcome, for example a single negative, and -1 and 1
    if the logs are too inaccurate.
    """
    if sums.num_classes - 1 + (sums.q_masked > 0.0) == 1:
        return np.zeros(num_classes), np.zeros(num_classes)
    if sums.log_error_bound > _MAX_LOG_ROUNDING:
        return np.full(num_classes, -1.0), np.ones(num_classes)
    return None


class ClassBounds:
    """Bounds on the bias of each class of one example.

    They do not use that the bias sums to 0; `tighten_by_zero_sum` does so later.
    """

    def __init__(
        self,
        draws: Draws,
        sums: NegativeSums,
        spread: RatioRange,
        transform: TransformBounds | None,
    ) -> None:
        self._m = draws.num_draws
        self._negatives = sums
        self._slack = _LOGS_PER_BOUND * sums.log_error_bound
        self._gaps = GapBounds(draws, sums, spread, self._slack, transform)

        # logs of the lower and the upper bound on the gap E[1/S] - 1/E[S] of the label
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            self._label_gaps = self._gaps.log_bounds(self._m, np.array([sums.log_a]), np.zeros(1))

    def bounds_of_classes(
        self, label: int | None, columns: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper bounds on the bias of k negatives, and of the label at `label`.

        Both are (k + 1,), with the label inserted at index `label`; or (k,) without the label if
        `label` is None. `columns` (4, k) are the logs of `NegativeSums.compute_logs` for the
        negatives.
        """
        m = self._m
        slack = self._slack
        log_a = self._negatives.log_a
        log_zt = self._negatives.log_zt
        log_m = math.log(m)
        log_p, _, log_ratio, log_deviation = columns

        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            # log of the label's mass plus the weight of one draw of class j
            log_base = np.logaddexp(log_a, log_zt + log_ratio - log_m)
            log_mu = np.logaddexp(log_base, log_zt + log_fraction(m - 1, m))

            common = log_p + log_zt - log_m - log_mu
            first_term = -np.sign(log_ratio) * np.exp(common + log_deviation)
            first_magnitude = np.exp(common + np.logaddexp(log_ratio, 0.0))
            other_gaps = self._gaps.log_bounds(m - 1, log_base, log_mu)

            ends = []
            for sign, label_gap, gap in zip((-1.0, 1.0), self._label_gaps, other_gaps, strict=True):
                factor = 1.0 + sign * slack
                label_end = float(np.exp(log_a + label_gap[0])) * factor + sign * TINY
                second_term = np.exp(log_p + gap)
                end = first_term + sign * (slack * first_magnitude + TINY) + second_term * factor
                ends.append((label_end, end))

            # p' lies between 0 and 1
            floor = np.append(-np.exp(log_p) * (1.0 + slack) - TINY, 0.0)
            label_end = float(np.exp(log_zt)) * (1.0 + slack) + TINY
            ceiling = np.append(slack - np.expm1(log_p), label_end)

        lower = np.maximum(np.append(ends[0][1], ends[0][0]), floor)
        upper = np.minimum(np.append(ends[1][1], ends[1][0]), ceiling)
        if label is None:
            return lower[:-1], upper[:-1]

        order = np.insert(np.arange(len(log_p)), label, len(log_p))
        return lower[order], upper[order]


class EndTotals:
    """Sums of the bounds over all classes, which can be merged."""

    def __init__(self) -> None:
        # sums of the lower bounds, of the upper bounds, and of max(|lower|, |upper|)
        self.totals = Sum((3,))

    def add(self, lower: FloatArray, upper: FloatArray) -> EndTotals:
        """Add the lower and upper bounds, both (k,), of k classes; return self."""
        magnitudes = np.maximum(-lower, upper)
        self.totals.add(np.array([lower.sum(), upper.sum(), magnitudes.sum()]))
        return self

    def merge(self, other: EndTotals) -> EndTotals:
        """Add the sums of `other`; return self."""
        self.totals.merge(other.totals)
        return self


def negative_sums(draws: Draws) -> NegativeSums:
    """Return the `NegativeSums` of an example from the totals of its draws."""
    totals = draws.totals
    counts_masked_hits = not draws.scheme.excludes_label
    q_masked = totals.label_q if counts_masked_hits else 0.0
    q_sum = float(totals.q_others.value) + q_masked

    with np.errstate(all="ignore"):
        label_gap = float(np.clip(totals.label_logit - totals.top, -1e300, 1e300))
    max_log_magnitude = math.log(q_sum) + totals.top - totals.min_log_product

    return NegativeSums(
        totals.num, totals.top, totals.exp_sum, q_sum, label_gap, q_masked, max_log_magnitude
    )


def tighten_by_zero_sum(
    lower: FloatArray, upper: FloatArray, ends: EndTotals, n: int
) -> tuple[FloatArray, FloatArray]:
    """Return `lower` and `upper` (k,), tightened by the constraint that the bias sums to 0.

    The bias of a class is minus the sum of the bias of all other classes, and this sum lies between
    the sums of their lower and of their upper bounds. `ends` are the sums over all n classes.
    """
    lower_sum, upper_sum, magnitude = ends.totals.value.tolist()
    rounding = EPS * (n + 8) * magnitude
    tight_lower = np.maximum(lower, upper - upper_sum - rounding)
    tight_upper = np.minimum(upper, lower - lower_sum + rounding)
    return tight_lower, tight_upper
