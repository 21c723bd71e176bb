"""How far the mean of 1/S lies above 1 over the mean of S: the closer of two bounds.

``S = mu + Y``, where Y is the centred sum of r / m over M draws. Section 14 of
``samplesoft/bias/README.md`` derives them.
"""

from __future__ import annotations

import math

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.draw_transform import make_transform
from samplesoft.bias.exponential_gap import exponential_gap
from samplesoft.bias.negatives import Negatives

_DIGITS = 1e-9  # ratios that are known less well get the bounds of order 2 only


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
        self._transform = make_transform(law, negatives.rounding) if known else None

    def logs(
        self, draws: int, log_base: FloatArray, log_mu: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the logs of bounds on the gap of sums of `draws` draws, both (k,).

        `log_base` (k,) is the log of what is in S besides the draws, `log_mu` (k,) of E[S].
        """
        low, high = (
            v + log_part(draws, self._m) - math.log(self._m) - 2.0 * log_mu
            - np.logaddexp(log_base, r + log_part(draws, self._m))
            for v, r in zip(self._log_variance, self._log_ends, strict=True)
        )  # fmt: skip
        if self._transform is None or draws == 0:
            return low, high
        base = np.exp(log_base)
        variance = math.exp(min(self._log_variance[1], LARGEST_EXPONENT))
        least = float(base.min()) * (1.0 - self._slack)
        least += math.exp(self._log_ends[1]) * draws / self._m
        sums = exponential_gap(self._transform, draws, self._m, variance, least, self._slack)
        below, above = sums.bounds(base)
        # not a number is no bound
        return np.fmax(low, np.log(below)), np.fmin(high, np.log(above))


def log_part(draws: int, m: int) -> float:
    """Return ``log(draws / m)``."""
    return math.log(draws) - math.log(m) if draws else -math.inf
