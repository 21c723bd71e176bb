"""The distribution of a Metropolis-Hastings chain whose proposals do not depend on its state.

The chain has the target p, the proposal q, and ``w = p / q``. Classes are sorted by increasing w,
so that s is a position in this order, and P_s is the sum of p up to position s. A step from s is
rejected, so that the state does not change, with the probability

    lambda_s = sum of q_k (1 - w_k / w_s) over k < s.

The eigenvalues of the chain are 1 and the lambda_s (Liu, 1996). The probability that T steps lead
from x to y is (Smith and Tierney, 1996, "Exact transition probabilities for the independence
Metropolis sampler")

    lambda_x^T [x = y] + p_y gamma(max(x, y)),
    gamma(s) = sum of (lambda_{r+1}^T - lambda_r^T) / P_r over r >= s, lambda_{n+1} = 1.

This module computes ``gamma P_s`` or, to preserve the digits of differences from the limit p,
``(gamma - 1) P_s``. Both are updated from one position to the next by averages with the weights
``p_s / P_s`` and ``1 - p_s / P_s``, so that nothing overflows or underflows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray


class MetropolisChain(NamedTuple):
    """The rejection probabilities of a chain, and weights of averages.

    Arrays are (n,), and sorted by increasing w.
    """

    order: IntArray  # classes by increasing w
    # log lambda_s; -1e300 stands for log 0, so that 0 steps give lambda**0 = 1
    log_rejection: FloatArray
    fraction: FloatArray  # p_s / P_s
    fraction_below: FloatArray  # P_{s-1} / P_s, equal to 1 - p_s / P_s


def make_chain(log_p: FloatArray, log_q: FloatArray) -> MetropolisChain:
    """Return the chain with target p and proposal q, given log p and log q (n,), both finite."""
    order: IntArray = np.argsort(log_p - log_q, kind="stable")
    columns = np.empty((3, len(order)))

    q = np.exp(log_q[order])
    # Sum from the end, because 1 minus the sum up to s cancels if one class has nearly all of q.
    q_above = np.append(np.cumsum(q[::-1])[-2::-1], 0.0)

    _write_chain_columns(log_p[order], log_q[order], np.cumsum(q), q_above, columns)
    columns[0] = np.maximum.accumulate(columns[0])  # rounding may make nearly equal values decrease
    return MetropolisChain(order, *columns)


@njit
def _write_chain_columns(
    log_p: FloatArray,
    log_q: FloatArray,
    q_below: FloatArray,
    q_above: FloatArray,
    columns: FloatArray,
) -> None:
    """Write `log_rejection`, `fraction` and `fraction_below` of a chain to `columns` (3, n).

    All arrays are sorted by increasing w. For each position s, `q_below` (n,) is the sum of q up to
    and including s, and `q_above` (n,) the sum of q after s.
    """
    stay = 0.0
    accept = 1.0
    log_mass = log_p[0]
    columns[0, 0] = -1e300
    columns[1, 0] = 1.0
    columns[2, 0] = 0.0

    for s in range(1, len(log_p)):
        fall = min((log_p[s - 1] - log_q[s - 1]) - (log_p[s] - log_q[s]), 0.0)
        ratio = math.exp(fall)
        one_minus_ratio = -math.expm1(fall)

        # compute both lambda_s and 1 - lambda_s, because each loses digits when it is near 1
        stay = stay * ratio + one_minus_ratio * q_below[s - 1]
        accept = accept * ratio + one_minus_ratio * q_above[s - 1]
        columns[0, s] = math.log1p(-accept) if accept < 0.5 else max(np.log(stay), -1e300)

        rise = log_p[s] - log_mass
        columns[1, s] = 1.0 / (1.0 + np.exp(-rise))
        columns[2, s] = 1.0 / (1.0 + np.exp(rise))
        log_mass += np.logaddexp(0.0, rise)


@njit
def after_steps(
    chain: MetropolisChain, start: FloatArray, steps: int, centred: bool = False
) -> FloatArray:
    """Return the distribution of the chain's state, (n,) by class, after a number of steps.

    `start` (n,) is the distribution of the first state. Rounding never makes a probability
    negative. If `centred` is True, `start` and the result are differences of two distributions. The
    formula then has ``gamma - 1`` instead of gamma. This preserves digits, and the result is equal,
    because such a `start` sums to 0.
    """
    order, log_rejection, fraction, fraction_below = chain
    sums = np.cumsum(start[order])
    result = np.empty(len(order))
    power = 1.0  # lambda_s^T
    factor = 0.0  # gamma(s) P_s or, if centred, (gamma(s) - 1) P_s
    mean = 0.0  # average of lambda^T over the positions after s
    later_starts = 0.0  # contribution to the result of first states at the positions after s

    for s in range(len(order) - 1, -1, -1):
        next_power = power
        power = math.exp(steps * log_rejection[s])
        next_log_stay = 0.0 if s == len(order) - 1 else log_rejection[s + 1]

        if s < len(order) - 1:
            later_starts = fraction_below[s + 1] * (later_starts + start[order[s + 1]] * factor)
            mean = fraction_below[s + 1] * mean + fraction[s + 1] * next_power
            factor *= fraction_below[s + 1]

        factor -= next_power * math.expm1(steps * (log_rejection[s] - next_log_stay))
        if centred:
            factor = mean - power
        result[order[s]] = start[order[s]] * power + fraction[s] * (sums[s] * factor + later_starts)

    return result
