"""Bounds on the gap E[1/S] - 1/E[S], from which the bounds on the bias follow.

S is a base (the label's mass, for example) plus the mean of the ratios r of the draws.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import chunks, njit_sum, thread_for_each
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.negatives import NegativeSums
from samplesoft.bias.numerics.summation import LogSum
from samplesoft.bias.with_replacement.atoms import Atoms
from samplesoft.bias.with_replacement.draws import Draws
from samplesoft.bias.with_replacement.nodes import evaluate_nodes
from samplesoft.bias.with_replacement.ratios import Ratios
from samplesoft.kernels.exponential import exp64

_MAX_LOG_ROUNDING = 1e-9  # largest error of log r for which the Laplace transform of r is used
_LOG_STEP = 0.2  # step in log v of the trapezoid rule
_FIRST_LOG_RATE = -14.0  # log(m v E[r]) at the first node v
_BASES_PER_CHUNK = 1 << 14

# bound on the relative error of the Laplace transform and of sums; exp(-v r), interpolated within
# panels of log r, contributes 2e-15
TRANSFORM_ROUNDING = 1e-12

_MAX_DIGIT_LOSS = 1e8  # nodes at which the transform loses more than 8 digits are not used
FARTHEST_EXPONENT = 700.0  # for y > 700, exp(-700) is an upper bound on exp(-y)
_UNDERFLOW_EXPONENT = 745.0  # exp(-745) is nearly the smallest positive float64


class RatioRange:
    """The variance and the range of the ratios r of the negatives, as sums that can be merged.

    Z_t is the sum of the softmax probabilities of the negatives, which is the mean of r under the
    proposal qn.
    """

    def __init__(self) -> None:
        self.chi2_sum = LogSum()  # sum of qn (r / Z_t - 1)**2
        self.log_ratio_range = -math.inf, math.inf  # the largest and the smallest log(r / Z_t)

    def add(self, columns: FloatArray) -> RatioRange:
        """Add k negatives, given by the logs (4, k) of `NegativeSums.compute_logs`; return self."""
        _, log_qn, log_ratio, log_deviation = columns
        self.chi2_sum.add_exps(log_qn + 2.0 * log_deviation)
        self.log_ratio_range = (
            float(log_ratio.max(initial=self.log_ratio_range[0])),
            float(log_ratio.min(initial=self.log_ratio_range[1])),
        )
        return self

    def merge(self, other: RatioRange) -> RatioRange:
        """Add the sums of `other`; return self."""
        self.chi2_sum.merge(other.chi2_sum)
        self.log_ratio_range = (
            max(self.log_ratio_range[0], other.log_ratio_range[0]),
            min(self.log_ratio_range[1], other.log_ratio_range[1]),
        )
        return self


class GapBounds:
    """Bounds on ``E[1/S] - 1/E[S]`` of one example, for any number of draws and any base of S.

    S is the base plus the sum of r / m over the draws. There are two kinds of bounds: by the
    variance and range of r, and, if `transform` is not None, by the Laplace transform of r. The
    closer one is used. `slack` bounds the relative error of each value in the bounds.
    """

    def __init__(
        self,
        draws: Draws,
        sums: NegativeSums,
        spread: RatioRange,
        slack: float,
        transform: TransformBounds | None,
    ) -> None:
        self._slack = slack
        self._m = draws.num_draws

        # Let every ratio r_j / Z_t have a relative error of at most `rounding`. By the triangle
        # inequality, the root of the chi-square divergence then changes by at most
        # rounding * sqrt(sum_j qn_j (r_j / Z_t + 1)^2).
        with np.errstate(divide="ignore", over="ignore"):
            root = float(np.exp(0.5 * spread.chi2_sum.log))
            root_error = 2.0 * sums.log_error_bound * math.hypot(root, 2.0)
            ends = np.log([max(root - root_error, 0.0), root + root_error])

        self._log_variance = 2.0 * (sums.log_zt + ends)  # (2,) lower and upper bound on log V
        max_log_ratio, min_log_ratio = spread.log_ratio_range
        self._log_ends = sums.log_zt + max_log_ratio + slack, sums.log_zt + min_log_ratio - slack
        self._transform = transform

    def log_bounds(
        self, num_draws: int, log_base: FloatArray, log_mu: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the logs of lower and upper bounds on ``E[1/S] - 1/E[S]`` for k bases of S.

        Both are (k,). `num_draws` is the number of draws in S. `log_base` (k,) is the log of each
        base, and `log_mu` (k,) the log of E[S].
        """
        # Var[S] / (E[S]^2 s), with s at the upper and the lower end of the range of S
        low, high = (
            v + log_fraction(num_draws, self._m) - math.log(self._m) - 2.0 * log_mu
            - np.logaddexp(log_base, r + log_fraction(num_draws, self._m))
            for v, r in zip(self._log_variance, self._log_ends, strict=True)
        )  # fmt: skip
        if self._transform is None or num_draws == 0:
            return low, high

        # fmax and fmin ignore NaN, which means that the transform has no bound for a base
        below, above = self._bounds_by_transform(self._transform, num_draws, np.exp(log_base))
        return np.fmax(low, np.log(below)), np.fmin(high, np.log(above))

    def _bounds_by_transform(
        self, transform: TransformBounds, num_draws: int, base: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper bounds on ``E[1/S] - 1/E[S]`` for k bases of S, eq. (B79).

        Both are (k,). ``1/S`` is the integral of ``exp(-u S)`` over u. The trapezoid rule in log u
        computes it with a relative error that has a proved bound, for every distribution of S.
        """
        m = self._m
        slack = self._slack
        step = transform.step

        u = m * transform.v
        decay = num_draws * transform.v * transform.mean_ratio
        with np.errstate(all="ignore"):  # a bound that is not finite is ignored
            # With X = S - base, the difference E exp(-u X) - exp(-u E[X]) cancels for small u. It
            # equals exp(log E exp(-u X)) (1 - exp(-excess)), in which nothing cancels. Both forms
            # yield bounds, and the closer one is used.
            products = [
                np.exp(num_draws * excess - decay + sign * 2.0 * slack * decay)
                * -np.expm1(-num_draws * excess)
                for sign, excess in ((-1.0, transform.excess_low), (1.0, transform.excess_high))
            ]

            transform_low = np.exp(num_draws * transform.log_transform_low)
            transform_high = np.exp(num_draws * transform.log_transform_high)
            difference_low = transform_low - np.exp(-(1.0 - 2.0 * slack) * decay)

            low = step * u * np.maximum(np.fmax(products[0], difference_low), 0.0)
            high = step * u * np.fmin(products[1], transform_high)
            if transform_high[-1] > 0.0:
                min_sum = float(base.min(initial=np.inf)) * (1.0 - slack)
                min_sum += math.exp(self._log_ends[1]) * num_draws / m
                tail = _sum_beyond_last_node(float(u[-1]), step, min_sum)
                high[-1] += step * transform_high[-1] * tail
            high = np.where(np.isnan(high), np.inf, high)

        is_kept = high > 0.0
        sums = np.empty((2, len(base)))

        def bound_slice(chunk: slice) -> None:
            _exponential_sums(base[chunk], u[is_kept], low[is_kept], high[is_kept], sums[:, chunk])

        thread_for_each(bound_slice, chunks(len(base), _BASES_PER_CHUNK))

        variance = math.exp(min(self._log_variance[1], LARGEST_EXPONENT))
        sums[1] += _sum_before_first_node(float(u[0]), step, variance * num_draws / m**2)

        relative_error = (
            trapezoid_error(step) + 2.0 * FARTHEST_EXPONENT * slack + TRANSFORM_ROUNDING
        )
        return sums[0] * (1.0 - relative_error), sums[1] * (1.0 + relative_error)


def log_fraction(num_draws: int, m: int) -> float:
    """Return ``log(num_draws / m)``, which is -inf for 0 draws."""
    return math.log(num_draws) - math.log(m) if num_draws else -math.inf


def _sum_before_first_node(u: float, step: float, variance: float) -> float:
    """Return an upper bound on the sum of the terms that are left out before the first node `u`.

    `variance` is the variance of S.
    """
    # for Y = S - E[S] and such small u, E exp(-u Y) - 1 is at most u^2 Var[S] / 2
    return 0.5 * variance * u**3 * step / math.expm1(3.0 * step)


def _sum_beyond_last_node(u: float, step: float, min_sum: float) -> float:
    """Return the sum of ``w exp((u - w) min_sum)`` over all nodes w after the last one, `u`.

    `min_sum` is the smallest possible S. The result bounds the terms that are left out, relative to
    the transform at u.
    """
    if not min_sum > 0.0:
        return math.inf
    span = math.log(_UNDERFLOW_EXPONENT) - math.log(min_sum) - math.log(u)
    if span > FARTHEST_EXPONENT:
        return math.inf

    later_nodes = u * np.exp(step * np.arange(1.0, max(span / step, 1.0) + 2.0))
    return float((later_nodes * np.exp((u - later_nodes) * min_sum)).sum())


def trapezoid_error(step: float) -> float:
    """Return a bound on the relative error of the gap by the trapezoid rule in log u, eq. (B79)."""
    # the terms of (B79) fall like exp(-pi^2 n / step)
    total = 0.0
    for n in range(1, 20):
        y = 2.0 * math.pi * n / step
        gamma = math.sqrt(2.0 * math.pi * y / -math.expm1(-2.0 * math.pi * y))
        gamma *= math.exp(-0.5 * math.pi * y)
        total += 2.0 * gamma * (1.0 + 2.0 * y) * math.hypot(1.0, y)
    return total


@njit_sum
def _exponential_sums(
    base: FloatArray, u: FloatArray, low: FloatArray, high: FloatArray, out: FloatArray
) -> None:
    """Write ``sum low exp(-u base)`` and ``sum high exp(-u base)`` for k bases to `out` (2, k).

    The sums are over K nodes with `u`, `low` and `high` (K,). For ``u base > 700``, the exponential
    is replaced by its lower bound 0 and its upper bound exp(-700).
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
    """Bounds on the Laplace transform E[exp(-v r)] of the ratio r of one draw, at K nodes v.

    Arrays are (K,).
    """

    v: FloatArray  # the nodes
    excess_low: FloatArray  # lower bound on log E[exp(-v (r - mean))]
    excess_high: FloatArray  # upper bound on log E[exp(-v (r - mean))]
    log_transform_low: FloatArray  # lower bound on log E[exp(-v r)]
    log_transform_high: FloatArray  # upper bound on log E[exp(-v r)]
    mean_ratio: float  # E[r]
    step: float  # distance of the nodes in log v


def has_accurate_ratios(draws: Draws, sums: NegativeSums) -> bool:
    """Return whether the ratios are accurate enough for bounds from their Laplace transform."""
    return sums.log_error_bound < _MAX_LOG_ROUNDING and draws.other_mass > 0.0


def make_transform_bounds(
    draws: Draws, ratios: Ratios, atoms: Atoms, rounding: float
) -> TransformBounds | None:
    """Return bounds on the Laplace transform of the ratio r of one draw, at nodes v.

    Nodes at which rounding leaves no correct digits are omitted. Returns None if no node is left.
    `rounding` bounds the errors of the log ratios.
    """
    log_mean = math.log(draws.mean_ratio)
    log_m = math.log(draws.num_draws)
    with np.errstate(all="ignore"):
        # at the last node, exp(-u S) has decayed even for the smallest possible S
        log_min_rate = log_m + float(np.logaddexp(draws.log_base, ratios.log_r0))
        max_log_v = min(math.log(_UNDERFLOW_EXPONENT) - log_min_rate, LARGEST_EXPONENT - log_m)

        x = np.arange(_FIRST_LOG_RATE - log_m - log_mean, max_log_v, _LOG_STEP)
        nodes = evaluate_nodes(draws, ratios, atoms, x, np.zeros_like(x))
        digit_loss = np.exp(-nodes.log_scaled_transform)

    is_accurate = np.isfinite(nodes.excess) & (digit_loss < _MAX_DIGIT_LOSS)
    if not is_accurate.any():
        return None

    v = nodes.v[is_accurate]
    excess = nodes.excess[is_accurate]
    relative = 4.0 * rounding + TRANSFORM_ROUNDING
    mean_exponent = v * draws.mean_ratio
    error = relative * (excess + 2.0 * mean_exponent + digit_loss[is_accurate] - 1.0)

    with np.errstate(over="ignore", invalid="ignore"):
        # the excess is of second order in v, and so must be the bound on its error
        p = np.expm1(excess)
        root = np.sqrt(2.0 * p * np.exp(mean_exponent))
        error_near_zero = TRANSFORM_ROUNDING * p + 2.0 * rounding * (
            (2.0 + mean_exponent) * p + 2.0 * mean_exponent * root
        )

    error = np.fmin(error, error_near_zero)

    # A relative error of all ratios changes log E exp(-v r) by at most this error times v times the
    # tilted mean of r, which is at most |log E exp(-v r)|.
    log_transform = nodes.log_transform[is_accurate]
    log_error = (
        2.0 * rounding * np.abs(log_transform) + TRANSFORM_ROUNDING * digit_loss[is_accurate]
    )

    return TransformBounds(
        v=v,
        excess_low=np.maximum(excess - error, 0.0),
        excess_high=excess + error,
        log_transform_low=log_transform - log_error,
        log_transform_high=np.minimum(log_transform + log_error, 0.0),
        mean_ratio=draws.mean_ratio,
        step=_LOG_STEP,
    )
