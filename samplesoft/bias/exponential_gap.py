"""How far the mean of 1/S lies above 1 over the mean of S, from a sum of exponentials.

``1/s`` is an integral of ``exp(-u s)``, and the trapezoid rule on log u gives the gap up to a
factor near 1 that is known, whatever the law of S; see section 14 of
``samplesoft/bias/README.md``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import chunks, thread_each
from samplesoft._validation import FloatArray
from samplesoft.bias.draw_transform import Transform
from samplesoft.kernels.bias.exponential_sums import exponential_sums

_CHUNK = 1 << 14
_LARGEST = 700.0  # of u times the base: beyond it exp(-700) stands for less
_GONE = 745.0
_ROUNDING = 1e-12  # of sums and functions


class ExponentialGap(NamedTuple):
    """Weights of ``exp(-u base)`` at nodes u, (K,), whose sums bound a gap of any base."""

    u: FloatArray
    low: FloatArray
    high: FloatArray
    left: float  # what nodes below the first may add
    slack: float  # relative, of the two sums

    def bounds(self, base: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return a lower and an upper bound on the gap for each base of S, (k,)."""
        sums = np.empty((2, len(base)))

        def work(part: slice) -> None:
            exponential_sums(base[part], self.u, self.low, self.high, sums[:, part])

        thread_each(work, chunks(len(base), _CHUNK))
        return sums[0] * (1.0 - self.slack), (sums[1] + self.left) * (1.0 + self.slack)


def exponential_gap(
    transform: Transform,
    draws: int,
    m: int,
    variance: float,
    least: float,
    rounding: float,
) -> ExponentialGap:
    """Return the weights for ``S = base + (sum of r over M draws) / m``, eq. (B79).

    `variance` is not less than that of r, `least` not more than any S; `rounding` bounds the
    relative errors of the mean of r and of each base.
    """
    v, step = transform.v, transform.step
    u = m * v
    decay = draws * v * transform.mean
    with np.errstate(all="ignore"):  # a bound that is not finite is none
        # E exp(-u X) - exp(-u E[X]) as a product, and as a difference
        product = [
            np.exp(draws * excess - decay + sign * 2.0 * rounding * decay)
            * -np.expm1(-draws * excess)
            for sign, excess in ((-1.0, transform.excess_low), (1.0, transform.excess_high))
        ]
        less = np.exp(draws * transform.log_low) - np.exp(-(1.0 - 2.0 * rounding) * decay)
        most = np.exp(draws * transform.log_high)
        low = step * u * np.maximum(np.fmax(product[0], less), 0.0)
        high = step * u * np.fmin(product[1], most)
        if most[-1] > 0.0:
            high[-1] += step * most[-1] * _beyond(float(u[-1]), step, least)
        high = np.where(np.isnan(high), np.inf, high)
    # below the first node exp(-u s) is at most its tangent and u^2 / 2 times the variance
    left = 0.5 * variance * draws / m**2 * u[0] ** 3 * step / math.expm1(3.0 * step)
    kept = high > 0.0
    slack = trapezoid_error(step) + 2.0 * _LARGEST * rounding + _ROUNDING
    return ExponentialGap(u[kept], low[kept], high[kept], left, slack)


def _beyond(u: float, step: float, least: float) -> float:
    """Return the sum of ``w exp((u - w) least)`` over the nodes w beyond the last, which is u."""
    span = math.log(_GONE) - math.log(least) - math.log(u) if least > 0.0 else math.inf
    if span > _LARGEST:
        return math.inf
    later = u * np.exp(step * np.arange(1.0, max(span / step, 1.0) + 2.0))
    return float((later * np.exp((u - later) * least)).sum())


def trapezoid_error(step: float) -> float:
    """Return how much of any gap the trapezoid rule in log u of this `step` may miss, at most."""
    total = 0.0
    for n in range(1, 20):
        y = 2.0 * math.pi * n / step
        gamma = math.sqrt(2.0 * math.pi * y / -math.expm1(-2.0 * math.pi * y))
        gamma *= math.exp(-0.5 * math.pi * y)
        total += 2.0 * gamma * (1.0 + 2.0 * y) * math.hypot(1.0, y)
    return total
