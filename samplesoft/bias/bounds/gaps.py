"""Bounds on the gap between E[1/S] and 1/E[S], from which the bounds on the bias follow."""

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

_MAX_LOG_ROUNDING = 1e-9  # beyond it, ratios are too inexact for their transform
_LOG_STEP = 0.2  # in log v, of the trapezoid rule
_FIRST_LOG_RATE = -14.0  # log(m v mean) at the first node
_BASES_PER_CHUNK = 1 << 14
TRANSFORM_ROUNDING = (
    1e-12  # relative, of the transform, sums and functions; panels give exp(-v r) to 2e-15
)
_MAX_DIGIT_LOSS = 1e8  # nodes where the transform loses more than 8 digits are dropped
FARTHEST_EXPONENT = 700.0  # for u base > 700, exp(-700) is an upper bound on exp(-u base)
_UNDERFLOW_EXPONENT = 745.0  # exp(-745) is 0


class RatioSpread:
    """Variance and range of the ratios of the negatives: mergeable sums."""

    def __init__(self) -> None:
        self.square = LogSum()  # sum of qn (r / Z_t - 1)**2
        self.ends = -math.inf, math.inf  # the largest and the smallest log(r / Z_t)

    def add(self, columns: FloatArray) -> RatioSpread:
        """Add k negatives with `columns` (4, k), see `NegativeSums.columns`."""
        _, log_qn, log_ratio, log_deviation = columns
        self.square.add_exps(log_qn + 2.0 * log_deviation)
        self.ends = (
            float(log_ratio.max(initial=self.ends[0])),
            float(log_ratio.min(initial=self.ends[1])),
        )
        return self

    def merge(self, other: RatioSpread) -> RatioSpread:
        """Add the sums of `other`."""
        self.square.merge(other.square)
        self.ends = max(self.ends[0], other.ends[0]), min(self.ends[1], other.ends[1])
        return self


class Gaps:
    """Bounds on ``E[1/S] - 1/E[S]`` of one example, for any number of draws and any base of S.

    ``S = mu + Y``, where Y is the centred sum of r / m over the draws. There are two bounds, of
    which the closer one is taken. `slack` bounds the relative error of each value in them.
    """

    def __init__(
        self,
        draws: Draws,
        sums: NegativeSums,
        spread: RatioSpread,
        slack: float,
        transform: TransformBounds | None,
    ) -> None:
        self._slack = slack
        self._m = draws.num_draws
        # By the triangle inequality, a relative error `rounding` in every ratio changes the root
        # of the chi-square divergence by at most rounding * sqrt(sum_j qn_j (ratio_j + 1)^2).
        with np.errstate(divide="ignore", over="ignore"):
            root = float(np.exp(0.5 * spread.square.log))
            moved = 2.0 * sums.rounding * math.hypot(root, 2.0)
            ends = np.log([max(root - moved, 0.0), root + moved])
        self._log_variance = 2.0 * (sums.log_zt + ends)  # (2,) lower and upper bound on log V
        most, least = spread.ends
        self._log_ends = sums.log_zt + most + slack, sums.log_zt + least - slack
        self._transform = transform

    def logs(
        self, draws: int, log_base: FloatArray, log_mu: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the logs of a lower and an upper bound on the gap for `draws` draws, both (k,).

        `log_base` (k,) is the log of the base of S, `log_mu` (k,) the log of E[S].
        """
        # Var[S] / (E[S]^2 s), with s at the upper and the lower end of the range of S
        low, high = (
            v + log_fraction(draws, self._m) - math.log(self._m) - 2.0 * log_mu
            - np.logaddexp(log_base, r + log_fraction(draws, self._m))
            for v, r in zip(self._log_variance, self._log_ends, strict=True)
        )  # fmt: skip
        if self._transform is None or draws == 0:
            return low, high
        below, above = self._sums(self._transform, draws, np.exp(log_base))
        # fmax and fmin ignore NaN, which is no bound
        return np.fmax(low, np.log(below)), np.fmin(high, np.log(above))

    def _sums(
        self, transform: TransformBounds, draws: int, base: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return a lower and an upper bound on the gap for each base of S, (k,), eq. (B79).

        ``1/s`` is the integral of ``exp(-u s)``. The trapezoid rule in log u gives the gap up to a
        known factor near 1, for every distribution of S.
        """
        m, slack, step = self._m, self._slack, transform.step
        u = m * transform.v
        decay = draws * transform.v * transform.mean
        with np.errstate(all="ignore"):  # a bound that is not finite is ignored
            # E exp(-u X) - exp(-u E[X]): a difference that cancels for small u, where it is taken
            # as the product exp(log E exp(-u X)) (1 - exp(-excess)); the closer bound counts
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

        thread_each(work, chunks(len(base), _BASES_PER_CHUNK))
        variance = math.exp(min(self._log_variance[1], LARGEST_EXPONENT))
        sums[1] += _before(float(u[0]), step, variance * draws / m**2)
        widen = trapezoid_error(step) + 2.0 * FARTHEST_EXPONENT * slack + TRANSFORM_ROUNDING
        return sums[0] * (1.0 - widen), sums[1] * (1.0 + widen)


def log_fraction(draws: int, m: int) -> float:
    """Return log(draws / m), and -inf for no draws."""
    return math.log(draws) - math.log(m) if draws else -math.inf


def _before(u: float, step: float, variance: float) -> float:
    """Return an upper bound on the terms of all nodes before the first, u, given Var[Y]."""
    # there E exp(-u Y) - 1 is at most u^2 Var[Y] / 2
    return 0.5 * variance * u**3 * step / math.expm1(3.0 * step)


def _beyond(u: float, step: float, least: float) -> float:
    """Return the sum of ``w exp((u - w) least)`` over the nodes w beyond the last, u."""
    span = (
        math.log(_UNDERFLOW_EXPONENT) - math.log(least) - math.log(u) if least > 0.0 else math.inf
    )
    if span > FARTHEST_EXPONENT:
        return math.inf
    later = u * np.exp(step * np.arange(1.0, max(span / step, 1.0) + 2.0))
    return float((later * np.exp((u - later) * least)).sum())


def trapezoid_error(step: float) -> float:
    """Return the largest relative error of any gap by the trapezoid rule in log u."""
    total = 0.0
    for n in range(1, 20):  # terms of (B79), which fall like exp(-pi^2 n / step)
        y = 2.0 * math.pi * n / step
        gamma = math.sqrt(2.0 * math.pi * y / -math.expm1(-2.0 * math.pi * y))
        gamma *= math.exp(-0.5 * math.pi * y)
        total += 2.0 * gamma * (1.0 + 2.0 * y) * math.hypot(1.0, y)
    return total


@njit_sum
def _exponential_sums(
    base: FloatArray, u: FloatArray, low: FloatArray, high: FloatArray, out: FloatArray
) -> None:
    """Write the sums of ``low exp(-u base)`` and ``high exp(-u base)`` into `out` (2, k).

    u, `low` and `high` are (K,), `base` is (k,). For ``u base > 700`` the exponential is replaced
    by its bounds 0 and exp(-700).
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
    excess_low: FloatArray  # lower bound on log E[exp(-v (r - mean))]
    excess_high: FloatArray
    log_low: FloatArray  # lower bound on log E[exp(-v r)]
    log_high: FloatArray
    mean: float
    step: float  # in log v


def is_known(draws: Draws, sums: NegativeSums) -> bool:
    """Whether the ratios are accurate enough for bounds by their transform."""
    return sums.rounding < _MAX_LOG_ROUNDING and draws.other_mass > 0.0


def make_transform(
    draws: Draws, ratios: Ratios, atoms: Atoms, rounding: float
) -> TransformBounds | None:
    """Return the transform of one draw at the nodes of the bounds; None if no node has digits."""
    log_mean = math.log(draws.mean)
    with np.errstate(all="ignore"):
        # up to the node where the smallest possible S has decayed
        slowest = math.log(draws.num_draws) + float(np.logaddexp(draws.log_base, ratios.log_least))
        last = min(
            math.log(_UNDERFLOW_EXPONENT) - slowest, LARGEST_EXPONENT - math.log(draws.num_draws)
        )
        x = np.arange(_FIRST_LOG_RATE - math.log(draws.num_draws) - log_mean, last, _LOG_STEP)
        nodes = evaluate_nodes(draws, ratios, atoms, x, np.zeros_like(x))
        digit_loss = np.exp(-nodes.log_transform_least)
    good = np.isfinite(nodes.excess) & (digit_loss < _MAX_DIGIT_LOSS)
    if not good.any():
        return None
    v, excess = nodes.v[good], nodes.excess[good]
    relative = 4.0 * rounding + TRANSFORM_ROUNDING
    mean_exponent = v * draws.mean
    error = relative * (excess + 2.0 * mean_exponent + digit_loss[good] - 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.expm1(excess)  # of second order in v, like its error
        root = np.sqrt(2.0 * p * np.exp(mean_exponent))
        near = TRANSFORM_ROUNDING * p + 2.0 * rounding * (
            (2.0 + mean_exponent) * p + 2.0 * mean_exponent * root
        )
    error = np.fmin(error, near)
    # a relative error in all ratios changes log E exp(-v r) by at most v times the tilted mean,
    # which is at most |log E exp(-v r)|
    log = nodes.log_transform[good]
    log_error = 2.0 * rounding * np.abs(log) + TRANSFORM_ROUNDING * digit_loss[good]
    return TransformBounds(
        v=v,
        excess_low=np.maximum(excess - error, 0.0),
        excess_high=excess + error,
        log_low=log - log_error,
        log_high=np.minimum(log + log_error, 0.0),
        mean=draws.mean,
        step=_LOG_STEP,
    )
