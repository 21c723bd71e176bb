"""The ratios r = e / q of the classes, and the three centres from which they are measured.

The centres are the ratio R of a reference class, the mean, and a lower bound r0; see section 4 of
the README of `bias`. `RatioStatistics` computes them by sums over all classes, and `Ratios` has the
result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from samplesoft._cached import cached_property
from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.summation import Sum, weighted_median
from samplesoft.bias.with_replacement.deviations import Floats, relative_ratios
from samplesoft.bias.with_replacement.draws import Draws, map_classes
from samplesoft.kernels import panels

# for |kappa| below this, 2 artanh(kappa) has more digits than the equal log(r / R) from logs
MAX_KAPPA_FOR_ARTANH = 0.3
_NO_CLASSES = np.empty(0)
_NO_EXTREMES = np.array([np.inf, -np.inf, np.inf, -np.inf, np.nan])


class KappaErrorSums(NamedTuple):
    """Sums over classes, to estimate the errors of flows that come from errors of kappa.

    A near class has 0 < |kappa| < `MAX_REFINED_KAPPA`, and a far class has a larger |kappa|.
    """

    near_probs: float  # softmax probabilities of the near classes
    far_probs: float  # (1 - kappa**2) times the softmax probability, of the far classes
    near_draw_probs: float  # draw probabilities of the near classes
    far_draw_probs: float  # (1 - kappa**2)**2 times the draw probability, of the far classes
    abs_kappa_probs: float  # |kappa| times the softmax probability, of all classes


@dataclass
class Ratios:
    """The ratios r of classes, and their centres: the reference R, the mean, and r0.

    The arrays contain all classes, or a chunk of them; they are empty if only the centres are
    needed.
    """

    reference: Floats  # the logit and q of the class whose ratio is R, and log R
    mean_deviation: float  # (mean ratio of a draw) / R - 1
    log_mean: float  # log of the mean ratio of a draw
    log_r0: float  # log of r0, a lower bound on all ratios; -inf if draws may be weightless (r = 0)
    all_near: bool  # whether |kappa| of every class is below `MAX_KAPPA_FOR_ARTANH`
    log_ratio_range: tuple[float, float]  # the smallest and the largest log(r / R)
    min_ratio_draw_prob: float  # probability of drawing the class with the smallest ratio
    error_sums: KappaErrorSums
    log_r: FloatArray  # (n,) log of each ratio
    kappa: FloatArray  # (n,) kappa = (r - R) / (r + R)

    def of_classes(self, log_r: FloatArray, kappa: FloatArray) -> Ratios:
        """Return `Ratios` of other classes (n,) with the same centres."""
        return Ratios(
            reference=self.reference,
            mean_deviation=self.mean_deviation,
            log_mean=self.log_mean,
            log_r0=self.log_r0,
            all_near=self.all_near,
            log_ratio_range=self.log_ratio_range,
            min_ratio_draw_prob=self.min_ratio_draw_prob,
            error_sums=self.error_sums,
            log_r=log_r,
            kappa=kappa,
        )

    @property
    def log_ref(self) -> float:
        """Log of the reference ratio R."""
        return self.reference[2]

    @property
    def kappa_mean(self) -> float:
        """The kappa of the mean: (mean - R) / (mean + R)."""
        return self.mean_deviation / (2.0 + self.mean_deviation)

    @property
    def log_mean_distance(self) -> float:
        """Log of mean / R, accurate also if the mean is near R."""
        if abs(self.mean_deviation) < MAX_KAPPA_FOR_ARTANH:
            return float(np.log1p(self.mean_deviation))
        return self.log_mean - self.log_ref

    @cached_property
    def log_ref_above_r0(self) -> float:
        """Log of R - r0."""
        with np.errstate(divide="ignore"):
            return float(self.log_ref + np.log(self._fraction_above_r0(self.log_ref)))

    @cached_property
    def log_mean_above_r0(self) -> float:
        """Log of (mean ratio) - r0."""
        with np.errstate(divide="ignore"):
            if self.mean_deviation > -0.5:
                # mean - r0 = (R - r0) + (mean - R), without cancellation
                fraction = self._fraction_above_r0(self.log_ref) + self.mean_deviation
                return float(self.log_ref + np.log(max(fraction, 0.0)))
            return float(self.log_mean + np.log(self._fraction_above_r0(self.log_mean)))

    def _fraction_above_r0(self, log_centre: float) -> float:
        """Return 1 - r0 / centre, given the log of a centre."""
        return float(-np.expm1(min(self.log_r0 - log_centre, 0.0)))

    @cached_property
    def log_distances(self) -> FloatArray:
        """Log of r / R, (n,).

        The difference log r - log R loses digits where r is near R. So 2 artanh(kappa), which is
        equal, is used if all ratios are near R.
        """
        if self.all_near:
            return 2.0 * np.arctanh(self.kappa)
        return self.log_r - self.log_ref


class RatioStatistics:
    """Sums over classes in the second pass, which measures ratios from the reference ratio R.

    R is the softmax-weighted median of the ratios. If there are several slices of classes, or if
    the scheme draws the label, R is a weighted median of the medians of the slices and of the
    label's ratio. With this R the flows cancel little: the sum of their magnitudes is at most the
    L1 norm of the bias of the drawn classes if R is the median, and at most three times this norm
    if R is a median of medians. Section 2 of the README of `bias` has the proof.
    """

    def __init__(self, draws: Draws) -> None:
        weights, logits, q = draws.totals.medians.T
        middle = 0
        if len(weights) > 1:
            with np.errstate(under="ignore", over="ignore"):
                middle = weighted_median(logits - np.log(q), np.exp(weights - weights.max()))
        o_ref = float(logits[middle])
        q_ref = float(q[middle])
        is_label = draws.scheme.draws_label and o_ref == draws.totals.label_logit
        is_label = is_label and q_ref == draws.totals.label_q
        log_p = draws.log_label if is_label else draws.log_softmax_of(o_ref)
        drawn = q_ref / draws.q_total
        self.reference = o_ref, q_ref, float(log_p - math.log(drawn))
        self.weightless = draws.weightless
        self.log_mean = float(np.log(draws.mean_ratio))
        self.sums = Sum((6,))

        # (5,) minimum and maximum of log r, minimum and maximum of kappa, and the draw probability
        # of the class with the smallest ratio
        self.extremes = _NO_EXTREMES

    def add(self, draws: Draws) -> tuple[FloatArray, FloatArray]:
        """Add the classes of a chunk; return their log r and their kappa, both (n,)."""
        log_r, kappa, slices = _measure(draws, self.reference)
        for sums, extremes in slices:
            self.sums.add(sums)
            self._merge_extremes(extremes)
        return log_r, kappa

    def merge(self, other: RatioStatistics) -> RatioStatistics:
        """Add the sums of `other`, which are over other classes; return self."""
        self.sums.merge(other.sums)
        self._merge_extremes(other.extremes)
        return self

    def _merge_extremes(self, extremes: FloatArray) -> None:
        if self.extremes is _NO_EXTREMES:
            self.extremes = extremes.copy()
            return
        if extremes[0] < self.extremes[0]:
            self.extremes[4] = extremes[4]
        self.extremes[[0, 2]] = np.minimum(self.extremes[[0, 2]], extremes[[0, 2]])
        self.extremes[[1, 3]] = np.maximum(self.extremes[[1, 3]], extremes[[1, 3]])

    def finish(self) -> Ratios:
        """Return the centres, as `Ratios` with empty arrays."""
        sums: FloatArray = self.sums.value
        log_ref = self.reference[2]
        # r / R - 1 is -1 for a weightless draw, whose ratio is 0
        mean_deviation = float(sums[0]) - self.weightless
        if mean_deviation > -0.5:
            log_mean = log_ref + math.log1p(mean_deviation)
        else:  # the mean is far below R, so 1 + `mean_deviation` cancels: use the mean of `Draws`
            log_mean = self.log_mean
        low, high, least_kappa, largest_kappa, min_ratio_draw_prob = self.extremes.tolist()
        all_near = max(abs(least_kappa), abs(largest_kappa)) < MAX_KAPPA_FOR_ARTANH
        log_ratio_range = low - log_ref, high - log_ref
        if all_near:
            log_ratio_range = 2.0 * math.atanh(least_kappa), 2.0 * math.atanh(largest_kappa)
        log_r0 = -math.inf
        if not self.weightless:
            # r0 is the lower edge of the lowest panel of full width: no atom is below it
            log_r0 = log_ref + panels.WIDTH * math.floor(log_ratio_range[0] / panels.WIDTH)

        return Ratios(
            reference=self.reference,
            mean_deviation=mean_deviation,
            log_mean=log_mean,
            log_r0=log_r0,
            all_near=all_near,
            log_ratio_range=log_ratio_range,
            min_ratio_draw_prob=min_ratio_draw_prob,
            error_sums=KappaErrorSums(*sums[1:].tolist()),
            log_r=_NO_CLASSES,
            kappa=_NO_CLASSES,
        )


def _measure(
    draws: Draws, reference: Floats
) -> tuple[FloatArray, FloatArray, list[tuple[FloatArray, FloatArray]]]:
    """Return log r and kappa of the classes, both (n,), and the sums and extremes of each slice.

    The sums and extremes are those that `relative_ratios` returns.
    """
    with np.errstate(divide="ignore"):
        log_r = draws.log_probs - np.log(draws.draw_probs)
    kappa = np.zeros(len(log_r))

    def work(part: slice) -> tuple[FloatArray, FloatArray]:
        return relative_ratios(
            draws.logits[part],
            log_r[part],
            draws.q[part],
            draws.draw_probs[part],
            draws.probs[part],
            reference,
            kappa[part],
        )

    return log_r, kappa, list(map_classes(work, len(log_r)))


def ratios_of_chunk(draws: Draws, centres: Ratios) -> Ratios:
    """Return the ratios of the classes of a chunk, measured from the `centres`."""
    log_r, kappa, _ = _measure(draws, centres.reference)
    return centres.of_classes(log_r, kappa)


def make_ratios(draws: Draws) -> Ratios:
    """Return the ratios of all classes, measured from the centres of these classes."""
    statistics = RatioStatistics(draws)
    log_r, kappa = statistics.add(draws)
    return statistics.finish().of_classes(log_r, kappa)
