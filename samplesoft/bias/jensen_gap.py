"""How far the mean of 1/S lies above 1 over the mean of S: bounds of several orders.

``S = mu + Y``, where Y is the centred sum of r / m over M draws. Section 14 of
``samplesoft/bias/README.md`` derives them.
"""

from __future__ import annotations

import math

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.draw_moments import SumMoments, draw_moments, sum_moments
from samplesoft.bias.exponential_gap import exponential_gap
from samplesoft.bias.lower_tail import LowerTail, chernoff, make_transform
from samplesoft.bias.negatives import Negatives

_DIGITS = 1e-9  # ratios that are known less well get the bounds of order 2 only
_LEAST = 1e-290  # numbers near the end of float64 have few digits


class Gaps:
    """Bounds on ``E[1/S] - 1/E[S]`` of one example, for any number of draws and any base of S.

    `slack` bounds the relative error of any of its numbers.
    """

    def __init__(self, law: DrawLaw, negatives: Negatives, slack: float) -> None:
        self._slack = slack
        self._m = law.num_draws
        # An error of `rounding` in every ratio moves the root of the divergence by at most
        # rounding * sqrt(sum_j qn_j (ratio_j + 1)^2), by the triangle inequality.
        with np.errstate(divide="ignore", over="ignore"):
            root = float(np.exp(0.5 * negatives.log_chi2))
            moved = 2.0 * negatives.rounding * math.hypot(root, 2.0)
            ends = np.log([max(root - moved, 0.0), root + moved])
        self._log_variance = 2.0 * (negatives.log_zt + ends)
        log_r = negatives.log_zt + negatives.log_ratio
        self._log_ends = float(log_r.max()) + slack, float(log_r.min()) - slack
        known = negatives.rounding < _DIGITS and law.other_mass > 0.0
        self._moments = draw_moments(negatives) if known else None
        self._transform = make_transform(law, negatives.rounding) if known else None

    def logs(
        self, draws: int, log_base: FloatArray, log_mu: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the logs of bounds on the gap of sums of `draws` draws, both (k,).

        `log_base` (k,) is the log of what is in S besides the draws, `log_mu` (k,) of E[S].
        """
        order2 = [
            v + log_part(draws, self._m) - math.log(self._m) - 2.0 * log_mu
            - np.logaddexp(log_base, r + log_part(draws, self._m))
            for v, r in zip(self._log_variance, self._log_ends, strict=True)
        ]  # fmt: skip
        low, high = order2
        if self._transform is None or draws == 0:
            return low, high
        base = np.exp(log_base)
        least = float(base.min()) * (1.0 - self._slack)
        moments = self._moments
        law = None if moments is None else sum_moments(moments, draws, self._m)
        if law is not None:
            tail = chernoff(self._transform, draws, self._m, self._log_ends[1])
            mu = np.exp(log_mu)
            # not a number is no bound
            low = np.fmax(low, np.log(gap_below(law, mu * (1.0 + self._slack))))
            high = np.fmin(high, np.log(gap_above(law, tail, least, mu * (1.0 - self._slack))))
        variance = math.exp(min(self._log_variance[1], LARGEST_EXPONENT))
        every = least + math.exp(self._log_ends[1]) * draws / self._m
        sums = exponential_gap(self._transform, draws, self._m, variance, every, self._slack)
        below, above = sums.bounds(base)
        return np.fmax(low, np.log(below)), np.fmin(high, np.log(above))


def log_part(draws: int, m: int) -> float:
    """Return ``log(draws / m)``."""
    return math.log(draws) - math.log(m) if draws else -math.inf


def gap_below(law: SumMoments, mu: FloatArray) -> FloatArray:
    """Return a lower bound on ``E[1 / (mu + Y)] - 1 / mu`` for each mu, (k,), eq. (B37).

    Gauss's rule, as a continued fraction. It needs no bound on Y.
    """
    rest = mu + law.slopes[-1].high
    for k in range(len(law.norms) - 1, 0, -1):
        rest = mu + law.slopes[k - 1].high - law.norms[k].low / rest
    delta = law.norms[0].low / rest
    gap: FloatArray = delta / (mu * (mu - delta))
    return gap


def gap_above(law: SumMoments, tail: LowerTail, base: float, mu: FloatArray) -> FloatArray:
    """Return an upper bound on ``E[1 / (mu + Y)] - 1 / mu`` for each mu, (k,), infinite for none.

    Radau's rule with a node at a threshold, and what 1/S has above it below that threshold. Its
    order and the threshold are the best for the least mu. `base` is the least that S holds besides
    the draws.
    """
    least, every = np.array([float(mu.min())]), np.arange(len(tail.x))
    orders = range(2, len(law.norms) + 1)
    with np.errstate(all="ignore"):  # a bound that is not finite is none
        tries = np.array([_above(law, n, tail, every, base, least)[:, 0] for n in orders])
        order, threshold = np.unravel_index(int(np.argmin(tries)), tries.shape)
        best = every[threshold : threshold + 1]
        found: FloatArray = _above(law, orders[order], tail, best, base, mu)[0]
    return found


def _above(
    law: SumMoments, order: int, tail: LowerTail, chosen: IntArray, base: float, mu: FloatArray
) -> FloatArray:
    """Return the bounds (K, k) of Radau's rules with nodes at K thresholds, (B39) and (B40)."""
    d = tail.below[chosen][:, None]
    node = _ratios(law, order, d)
    above = mu - d
    rest = above + law.norms[order - 1].high / node[-1][1]
    sound = (above > 0.0) & np.all([low > 0.0 for low, _ in node], axis=0)
    for k in range(order - 1, 0, -1):
        rest = mu + law.slopes[k - 1].low - law.norms[k].high / rest
        sound &= rest > 0.0
    delta = law.norms[0].high / rest
    s = base + tail.x[1:]
    layers = (tail.chance[:-1] - tail.chance[1:]) / np.where(s > _LEAST, s, 0.0)
    t = tail.below[1:]
    parts = (t - d) * _square(law, order, t, node)[1] * layers
    beyond = np.where(np.arange(1, len(tail.x)) > chosen[:, None], parts, 0.0).sum(axis=1)
    square = _square(law, order, mu, node)[0]
    gap = delta / (mu * (mu - delta)) + beyond[:, None] / (above * square)
    sound &= (mu > delta) & (square > 0.0) & np.isfinite(gap)
    found: FloatArray = np.where(sound, gap, np.inf)
    return found


def _ratios(law: SumMoments, order: int, t: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
    """Return bounds on ``-p_k / p_k-1`` at -t for k = 1 to `order`, p_k orthogonal for Y.

    All are above 0 left of the roots of the last.
    """
    low = high = t
    ratios = [(low, high)]
    for norm, slope in zip(law.norms[: order - 1], law.slopes, strict=False):
        low, high = t + slope.low - norm.high / low, t + slope.high - norm.low / high
        ratios.append((low, high))
    return ratios


def _square(
    law: SumMoments, order: int, t: FloatArray, node: list[tuple[FloatArray, FloatArray]]
) -> tuple[FloatArray, FloatArray]:
    """Return bounds on ``pi_d(-t)^2``, from the ratios at t and at the `node`, eq. (B39)."""
    ratios = _ratios(law, order, t)
    least = most = np.ones(1)
    for norm, (low, high), (first, last) in zip(law.norms, ratios, node, strict=False):
        least = 1.0 + norm.low * least / (high * last)
        most = 1.0 + norm.high * most / (low * first)
    for low, high in ratios:
        least, most = least * low, most * high
    return np.where(least > 0.0, least, 0.0) ** 2, most**2
