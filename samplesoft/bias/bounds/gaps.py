"""Bounds on gaps between E[1/S] and 1/E[S], which the bounds on the bias are made of."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import chunks, njit_sum, thread_each
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.negatives import NegativeSums
from samplesoft.bias.numerics.summation import LogSum
from samplesoft.bias.with_replacement.atoms import Atoms
from samplesoft.bias.with_replacement.draws import Draws
from samplesoft.bias.with_replacement.nodes import evaluate_nodes
from samplesoft.bias.with_replacement.ratios import Ratios
from samplesoft.kernels.exponential import exp64

_DIGITS = 1e-9  # ratios that are known less well get the bounds of order 2 only
_STEP = 0.2  # of log v, in the trapezoid rule
_LEFT = -14.0  # of log (m v mean), the first node
_CHUNK = 1 << 14
TRANSFORM_ROUNDING = (
    1e-12  # of the transform, sums and functions; panels hold each exp(-v r) to 2e-15 of 1
)
_LOST = 1e8  # nodes where that leaves few digits of the transform are not used
FARTHEST_EXPONENT = 700.0  # of u times the base: beyond it exp(-700) stands for less
_GONE = 745.0  # exp(-745) is 0


class Spread:
    """How far the ratios of negatives spread: sums that merge."""

    def __init__(self) -> None:
        self.square = LogSum()  # of qn (r / Z_t - 1)**2
        self.ends = -math.inf, math.inf  # the largest and the least log (r / Z_t)

    def add(self, columns: FloatArray) -> Spread:
        """Add the columns (4, k) of some negatives."""
        _, log_qn, log_ratio, log_deviation = columns
        self.square.add_logs(log_qn + 2.0 * log_deviation)
        self.ends = (
            float(log_ratio.max(initial=self.ends[0])),
            float(log_ratio.min(initial=self.ends[1])),
        )
        return self

    def merge(self, other: Spread) -> Spread:
        """Add what another has summed."""
        self.square.merge(other.square)
        self.ends = max(self.ends[0], other.ends[0]), min(self.ends[1], other.ends[1])
        return self


class Gaps:
    """Bounds on ``E[1/S] - 1/E[S]`` of one example, for any number of draws and any base of S.

    ``S = mu + Y``, where Y is the centred sum of r / m over the draws. Two bounds are taken, and
    the closer one of them counts. `slack` bounds the relative error of any of their numbers.
    """

    def __init__(
        self,
        draws: Draws,
        sums: NegativeSums,
        spread: Spread,
        slack: float,
        transform: TransformBounds | None,
    ) -> None:
        self._slack = slack
        self._m = draws.num_draws
        # An error of `rounding` in every ratio moves the root of the divergence by at most
        # rounding * sqrt(sum_j qn_j (ratio_j + 1)^2), by the triangle inequality.
        with np.errstate(divide="ignore", over="ignore"):
            root = float(np.exp(0.5 * spread.square.log))
            moved = 2.0 * sums.rounding * math.hypot(root, 2.0)
            ends = np.log([max(root - moved, 0.0), root + moved])
        self._log_variance = 2.0 * (sums.log_zt + ends)  # (2,): not above, and not below V
        most, least = spread.ends
        self._log_ends = sums.log_zt + most + slack, sums.log_zt + least - slack
        self._transform = transform

    def logs(
        self, draws: int, log_base: FloatArray, log_mu: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the logs of bounds on the gap of sums of `draws` draws, both (k,).

        `log_base` (k,) is the log of what is in S besides the draws, `log_mu` (k,) of E[S].
        """
        # Var[S] / (E[S]^2 s), with s at either end of the range of S
        low, high = (
            v + log_part(draws, self._m) - math.log(self._m) - 2.0 * log_mu
            - np.logaddexp(log_base, r + log_part(draws, self._m))
            for v, r in zip(self._log_variance, self._log_ends, strict=True)
        )  # fmt: skip
        if self._transform is None or draws == 0:
            return low, high
        below, above = self._sums(self._transform, draws, np.exp(log_base))
        # not a number is no bound
        return np.fmax(low, np.log(below)), np.fmin(high, np.log(above))

    def _sums(
        self, transform: TransformBounds, draws: int, base: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return a lower and an upper bound on the gap for each base of S, (k,), eq. (B79).

        ``1/s`` is an integral of ``exp(-u s)``, and the trapezoid rule on log u gives the gap up to
        a factor near 1 that is known, whatever the distribution of S.
        """
        m, slack, step = self._m, self._slack, transform.step
        u = m * transform.v
        decay = draws * transform.v * transform.mean
        with np.errstate(all="ignore"):  # a bound that is not finite is none
            # E exp(-u X) - exp(-u E[X]) as a product, and as a difference
            product = [
                np.exp(draws * excess - decay + sign * 2.0 * slack * decay)
                * -np.expm1(-draws * excess)
                for sign, excess in ((-1.0, transform.excess_low), (1.0, transform.excess_high))
            ]
            less = np.exp(draws * transform.log_low) - np.exp(-(1.0 - 2.0 * slack) * decay)
            most = np.exp(draws * transform.log_high)
            low = step * u * np.maximum(np.fmax(product[0], less), 0.0)
            high = step * u * np.fmin(product[1], most)
            if most[-1] > 0.0:
                least = float(base.min(initial=np.inf)) * (1.0 - slack)
                least += math.exp(self._log_ends[1]) * draws / m
                high[-1] += step * most[-1] * _beyond(float(u[-1]), step, least)
            high = np.where(np.isnan(high), np.inf, high)
        kept = high > 0.0
        sums = np.empty((2, len(base)))

        def work(part: slice) -> None:
            _exponential_sums(base[part], u[kept], low[kept], high[kept], sums[:, part])

        thread_each(work, chunks(len(base), _CHUNK))
        variance = math.exp(min(self._log_variance[1], LARGEST_EXPONENT))
        sums[1] += _before(float(u[0]), step, variance * draws / m**2)
        widen = trapezoid_error(step) + 2.0 * FARTHEST_EXPONENT * slack + TRANSFORM_ROUNDING
        return sums[0] * (1.0 - widen), sums[1] * (1.0 + widen)


def log_part(draws: int, m: int) -> float:
    """Return log (draws / m)."""
    return math.log(draws) - math.log(m) if draws else -math.inf


def _before(u: float, step: float, variance: float) -> float:
    """Bound what the nodes before the first, which is u, may add for a sum of this variance."""
    # there E exp(-u Y) - 1 is at most u^2 / 2 times the variance of Y
    return 0.5 * variance * u**3 * step / math.expm1(3.0 * step)


def _beyond(u: float, step: float, least: float) -> float:
    """Return the sum of ``w exp((u - w) least)`` over the nodes w beyond the last, which is u."""
    span = math.log(_GONE) - math.log(least) - math.log(u) if least > 0.0 else math.inf
    if span > FARTHEST_EXPONENT:
        return math.inf
    later = u * np.exp(step * np.arange(1.0, max(span / step, 1.0) + 2.0))
    return float((later * np.exp((u - later) * least)).sum())


def trapezoid_error(step: float) -> float:
    """Return how much of any gap the trapezoid rule in log u of this `step` may miss, at most."""
    total = 0.0
    for n in range(1, 20):  # the sum of (B79), which falls like exp(-pi^2 n / step)
        y = 2.0 * math.pi * n / step
        gamma = math.sqrt(2.0 * math.pi * y / -math.expm1(-2.0 * math.pi * y))
        gamma *= math.exp(-0.5 * math.pi * y)
        total += 2.0 * gamma * (1.0 + 2.0 * y) * math.hypot(1.0, y)
    return total


@njit_sum
def _exponential_sums(
    base: FloatArray, u: FloatArray, low: FloatArray, high: FloatArray, out: FloatArray
) -> None:
    """Write the sums of `low` and of `high` (K,) times exp(-u base) into `out` (2, k).

    Where u times the base, (k,), is above 700 it is taken for 700, and `low` for 0.
    """
    for i in range(len(base)):
        below = above = 0.0
        for k in range(len(u)):
            y = u[k] * base[i]
            e = exp64(-y if y < FARTHEST_EXPONENT else -FARTHEST_EXPONENT)
            below += low[k] * (e if y < FARTHEST_EXPONENT else 0.0)
            above += high[k] * e
        out[0, i] = below
        out[1, i] = above


class TransformBounds(NamedTuple):
    """Bounds on the transform of the ratio of one draw at nodes v, all (K,)."""

    v: FloatArray
    excess_low: FloatArray  # of log E[exp(-v (r - mean))]
    excess_high: FloatArray
    log_low: FloatArray  # of log E[exp(-v r)]
    log_high: FloatArray
    mean: float
    step: float  # of log v


def is_known(draws: Draws, sums: NegativeSums) -> bool:
    """Whether ratios are known well enough for their transform to be of use."""
    return sums.rounding < _DIGITS and draws.other_mass > 0.0


def make_transform(
    draws: Draws, ratios: Ratios, atoms: Atoms, rounding: float
) -> TransformBounds | None:
    """Compute the transform of one draw where a bound may need it, None if it has no digits."""
    log_mean = math.log(draws.mean)
    with np.errstate(all="ignore"):
        # until the least sum has decayed
        slowest = math.log(draws.num_draws) + float(np.logaddexp(draws.log_base, ratios.log_least))
        last = min(math.log(_GONE) - slowest, LARGEST_EXPONENT - math.log(draws.num_draws))
        x = np.arange(_LEFT - math.log(draws.num_draws) - log_mean, last, _STEP)
        nodes = evaluate_nodes(draws, ratios, atoms, x, np.zeros_like(x))
        lost = np.exp(-nodes.log_transform_least)
    good = np.isfinite(nodes.excess) & (lost < _LOST)
    if not good.any():
        return None
    v, excess = nodes.v[good], nodes.excess[good]
    relative = 4.0 * rounding + TRANSFORM_ROUNDING
    moved = v * draws.mean
    error = relative * (excess + 2.0 * moved + lost[good] - 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.expm1(excess)  # of second order in v, and so is its error
        root = np.sqrt(2.0 * p * np.exp(moved))
        near = TRANSFORM_ROUNDING * p + 2.0 * rounding * ((2.0 + moved) * p + 2.0 * moved * root)
    error = np.fmin(error, near)
    # an error in all ratios moves the log by v times the tilted mean, which is less than its size
    log = nodes.log_transform[good]
    off = 2.0 * rounding * np.abs(log) + TRANSFORM_ROUNDING * lost[good]
    return TransformBounds(
        v=v,
        excess_low=np.maximum(excess - error, 0.0),
        excess_high=excess + error,
        log_low=log - off,
        log_high=np.minimum(log + off, 0.0),
        mean=draws.mean,
        step=_STEP,
    )
