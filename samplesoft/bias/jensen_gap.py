"""How far the mean of 1/S lies above 1 over the mean of S: bounds of orders 2 to 5.

``S = mu + Y``, where Y is the centred sum of r / m over M draws. Section 14 of
``samplesoft/bias/README.md`` derives them.
"""

from __future__ import annotations

import math

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.draw_moments import SumMoments, draw_moments, sum_moments
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
        if self._moments is not None:
            self._transform = make_transform(law, negatives.rounding)

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
        law = None
        if self._moments is not None and draws > 0:
            law = sum_moments(self._moments, draws, self._m)
        if law is None:
            return order2[0], order2[1]
        tail = chernoff(self._transform, draws, self._m, self._log_ends[1])
        mu, base = np.exp(log_mu), math.exp(float(log_base.min()) - self._slack)
        low = gap_below(law, mu * (1.0 + self._slack))
        high = gap_above(law, tail, base, mu * (1.0 - self._slack))
        return np.maximum(order2[0], np.log(low)), np.minimum(order2[1], np.log(high))


def log_part(draws: int, m: int) -> float:
    """Return ``log(draws / m)``."""
    return math.log(draws) - math.log(m) if draws else -math.inf


def gap_below(law: SumMoments, mu: FloatArray) -> FloatArray:
    """Return a lower bound on ``E[1 / (mu + Y)] - 1 / mu`` for each mu, (k,), eq. (B37).

    Gauss's rule of three nodes, as a continued fraction. It needs no bound on Y.
    """
    delta = law.b1.low / (mu + law.g1.high - law.b2.low / (mu + law.g2.high))
    gap: FloatArray = delta / (mu * (mu - delta))
    return gap


def gap_above(law: SumMoments, tail: LowerTail, base: float, mu: FloatArray) -> FloatArray:
    """Return an upper bound on ``E[1 / (mu + Y)] - 1 / mu`` for each mu, (k,), infinite for none.

    Radau's rule with a node at a threshold, and what 1/S has above it below that threshold. The
    threshold is the best for the least mu. `base` is the least that S holds besides the draws.
    """
    least = np.array([float(mu.min())])
    tries = [_above(law, tail, k, base, least)[0] for k in range(len(tail.x))]
    return _above(law, tail, int(np.argmin(tries)), base, mu)


def _above(law: SumMoments, tail: LowerTail, k: int, base: float, mu: FloatArray) -> FloatArray:
    """Return the bound with threshold number `k`, eqs. (B39) and (B40)."""
    d = float(tail.below[k])
    b1, g1, b2 = law.b1, law.g1, law.b2
    narrow, wide = (d * d + g * d - b for g, b in ((g1.low, b1.high), (g1.high, b1.low)))
    if not narrow > 0.0:  # the node would not be the least
        return np.full_like(mu, np.inf)
    least, most = d / wide, d / narrow
    above = mu - d
    outer = mu + g1.low - b2.high / (above + b2.high * least)
    delta = b1.high / outer
    rest = mu - delta
    # the square of pi(-t) = t^2 + (g1 + b2 kappa) t - b1 (1 - b2 kappa / d)
    t, s = tail.below[k + 1 :], base + tail.x[k + 1 :]
    s = np.where(s > _LEAST, s, 0.0)  # so that the bound is infinite
    pi = t**2 + (g1.high + b2.high * most) * t - b1.low + b1.high * b2.high * most / d
    layer = tail.chance[k:-1] - tail.chance[k + 1 :]
    beyond = float(np.sum((t - d) * pi**2 * layer / s))
    pi_mu = mu**2 + (g1.low + b2.low * least) * mu - b1.high + b1.low * b2.low * least / d
    gap = delta / (mu * rest) + beyond / (above * pi_mu**2)
    sound = (above > 0.0) & (outer > 0.0) & (rest > 0.0) & (pi_mu > 0.0) & np.isfinite(gap)
    found: FloatArray = np.where(sound, gap, np.inf)
    return found
