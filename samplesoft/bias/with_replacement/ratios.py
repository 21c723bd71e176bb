"""The ratios of the classes, and the three centres that they are measured from.

`Ratios` measures the ratios of classes from three centres, which `RatioStatistics` finds by sums
over all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from samplesoft._cached import cached_property
from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.summation import Sum, weighted_median
from samplesoft.bias.with_replacement.deviations import Floats, relative_ratios
from samplesoft.bias.with_replacement.draws import Draws, map_classes
from samplesoft.kernels import panels

DIGITS_OF_KAPPA = 0.3  # of kappa: below it, it has more digits than a difference of logs
_NO_CLASSES = np.empty(0)
_NO_ENDS = np.array([np.inf, -np.inf, np.inf, -np.inf, np.nan])  # of no ratios


@dataclass
class Ratios:
    """The ratios r of classes, and the three centres: R, the mean and the least of all ratios.

    The arrays are of all classes, of a chunk, or empty where the centres alone are asked for.
    """

    reference: Floats  # o and q of the class whose ratio is R, and log R
    mean_deviation: float  # mean / R - 1
    log_mean: float  # of the mean of r over a draw
    log_least: float  # log r0, which no ratio lies below
    near: bool  # whether all ratios are near R
    span: tuple[float, float]  # the least and the largest of log (r / R)
    least_drawn: float  # probability of the class of the least ratio
    errors: FloatArray  # (5,) sums of `relative_ratios`
    log_r: FloatArray  # (n,)
    contrast: FloatArray  # (n,) kappa = (r - R) / (r + R)

    def of_classes(self, log_r: FloatArray, contrast: FloatArray) -> Ratios:
        """Return the ratios of other classes (n,) around the same centres."""
        return Ratios(
            reference=self.reference,
            mean_deviation=self.mean_deviation,
            log_mean=self.log_mean,
            log_least=self.log_least,
            near=self.near,
            span=self.span,
            least_drawn=self.least_drawn,
            errors=self.errors,
            log_r=log_r,
            contrast=contrast,
        )

    @property
    def log_ref(self) -> float:
        """The log of R."""
        return self.reference[2]

    @property
    def kappa_mean(self) -> float:
        """(mean - R) / (mean + R)."""
        return self.mean_deviation / (2.0 + self.mean_deviation)

    @property
    def log_mean_distance(self) -> float:
        """Log (mean / R)."""
        if abs(self.mean_deviation) < DIGITS_OF_KAPPA:
            return float(np.log1p(self.mean_deviation))
        return self.log_mean - self.log_ref

    @cached_property
    def log_above_least(self) -> FloatArray:
        """Log (R - r0) and log (mean - r0)."""
        upper = np.array([self.log_ref, self.log_mean])
        with np.errstate(divide="ignore"):
            parts = -np.expm1(np.minimum(self.log_least - upper, 0.0))  # 1 - r0 / upper
            above: FloatArray = upper + np.log(parts)
            if self.mean_deviation > -0.5:  # mean - r0 keeps what the mean has above R
                above[1] = self.log_ref + np.log(max(parts[0] + self.mean_deviation, 0.0))
        return above

    @cached_property
    def log_distances(self) -> FloatArray:
        """Log (r / R), (n,); where all ratios are near R, with the digits of kappa."""
        if self.near:
            return 2.0 * np.arctanh(self.contrast)
        return self.log_r - self.log_ref


class RatioStatistics:
    """The second sums over classes: how far the ratios lie from that of the reference.

    It is the softmax-weighted median of the ratios, or of the medians of chunks: measured from
    there, the sizes of the flows (B6) add up to little more than the L1 norm of the bias in case
    (B9), so nothing cancels there.
    """

    def __init__(self, draws: Draws) -> None:
        weights, logits, q = draws.totals.medians.T
        middle = 0
        if len(weights) > 1:
            with np.errstate(under="ignore", over="ignore"):
                middle = weighted_median(logits - np.log(q), np.exp(weights - weights.max()))
        o_ref, q_ref = float(logits[middle]), float(q[middle])
        is_label = draws.scheme.draws_label and o_ref == draws.totals.label_logit
        is_label = is_label and q_ref == draws.totals.label_q
        log_p = draws.log_label if is_label else draws.log_of(o_ref)
        drawn = q_ref / draws.q_total
        self.reference = o_ref, q_ref, float(log_p - math.log(drawn))
        self.weightless = draws.weightless
        self.log_mean = float(np.log(draws.mean))
        self.sums = Sum((6,))
        # the least and the largest of log r and of kappa, and the probability of the least class
        self.ends = _NO_ENDS

    def add(self, draws: Draws) -> tuple[FloatArray, FloatArray]:
        """Add the classes of a chunk, and return their log r and kappa."""
        log_r, contrast, found = _measure(draws, self.reference)
        for sums, ends in found:
            self.sums.add(sums)
            self._take(ends)
        return log_r, contrast

    def merge(self, other: RatioStatistics) -> RatioStatistics:
        """Add what another has summed."""
        self.sums.merge(other.sums)
        self._take(other.ends)
        return self

    def _take(self, ends: FloatArray) -> None:
        if self.ends is _NO_ENDS:
            self.ends = ends.copy()
            return
        if ends[0] < self.ends[0]:
            self.ends[4] = ends[4]
        self.ends[[0, 2]] = np.minimum(self.ends[[0, 2]], ends[[0, 2]])
        self.ends[[1, 3]] = np.maximum(self.ends[[1, 3]], ends[[1, 3]])

    def finish(self) -> Ratios:
        """Return the centres, around the ratios of no classes."""
        sums: FloatArray = self.sums.value
        log_ref = self.reference[2]
        # a draw without weight has r = 0, and so r / R - 1 = -1
        mean_deviation = float(sums[0]) - self.weightless
        if mean_deviation > -0.5:
            log_mean = log_ref + math.log1p(mean_deviation)
        else:  # far below R the sum has cancelled, while the mean itself is known
            log_mean = self.log_mean
        low, high, least_kappa, largest_kappa, least_drawn = self.ends.tolist()
        near = max(abs(least_kappa), abs(largest_kappa)) < DIGITS_OF_KAPPA
        span = low - log_ref, high - log_ref
        if near:
            span = 2.0 * math.atanh(least_kappa), 2.0 * math.atanh(largest_kappa)
        log_least = -math.inf
        if not self.weightless:
            # r0 is a panel's edge: no Chebyshev atom lies below it, nor any class by its distance
            log_least = log_ref + panels.WIDTH * math.floor(span[0] / panels.WIDTH)
        return Ratios(
            reference=self.reference,
            mean_deviation=mean_deviation,
            log_mean=log_mean,
            log_least=log_least,
            near=near,
            span=span,
            least_drawn=least_drawn,
            errors=sums[1:],
            log_r=_NO_CLASSES,
            contrast=_NO_CLASSES,
        )


def _measure(
    draws: Draws, reference: Floats
) -> tuple[FloatArray, FloatArray, list[tuple[FloatArray, FloatArray]]]:
    """Return log r and kappa of classes, (n,), and what `relative_ratios` returns of slices."""
    with np.errstate(divide="ignore"):
        log_r = draws.log_probs - np.log(draws.drawn)
    contrast = np.zeros(len(log_r))

    def work(part: slice) -> tuple[FloatArray, FloatArray]:
        return relative_ratios(
            draws.logits[part],
            log_r[part],
            draws.q[part],
            draws.drawn[part],
            draws.probs[part],
            reference,
            contrast[part],
        )

    return log_r, contrast, list(map_classes(work, len(log_r)))


def ratios_of_chunk(draws: Draws, centres: Ratios) -> Ratios:
    """Return the ratios of the classes of a chunk around centres that are known."""
    log_r, contrast, _ = _measure(draws, centres.reference)
    return centres.of_classes(log_r, contrast)


def make_ratios(draws: Draws) -> Ratios:
    """Return the ratios of all classes around their centres."""
    statistics = RatioStatistics(draws)
    log_r, contrast = statistics.add(draws)
    return statistics.finish().of_classes(log_r, contrast)
