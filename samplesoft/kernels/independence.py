"""The distribution of a Metropolis-Hastings chain whose proposals do not depend on its state.

The target is p, the proposal q, and ``w = p / q``. Classes are sorted by increasing w, and P_s is
the sum of p up to position s. A step from s is rejected, and the state stays, with probability
``lambda_s = sum of q_k (1 - w_k / w_s) over k < s``. These are the eigenvalues except 1 (Liu,
1996). The transition probabilities of T steps from x to y are (Smith and Tierney, 1996, "Exact
transition probabilities for the independence Metropolis sampler")

    lambda_x^T [x = y] + p_y gamma(max(x, y)),
    gamma(s) = sum of (lambda_{r+1}^T - lambda_r^T) / P_r over r >= s, lambda_{n+1} = 1.

The code below computes gamma times P_s or, to preserve the digits of differences from the limit p,
``1 - gamma`` times P_s. Both are updated from position to position by averages with the weights
``p_s / P_s`` and ``1 - p_s / P_s``, so that nothing overflows or underflows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray


class Chain(NamedTuple):
    """The eigenvalues of a chain, (n,) by increasing w, and the weights of the averages."""

    order: IntArray  # classes by increasing w
    log_stay: FloatArray  # log lambda_s; -1e300 for 0, so that 0 steps give lambda**0 = 1
    shares: FloatArray  # p_s / P_s
    others: FloatArray  # P_{s-1} / P_s


def make_chain(log_p: FloatArray, log_q: FloatArray) -> Chain:
    """Return the chain for target p and proposal q, given their finite logarithms (n,)."""
    order: IntArray = np.argsort(log_p - log_q, kind="stable")
    columns = np.empty((3, len(order)))
    q = np.exp(log_q[order])
    # added from the end rather than subtracted from 1, because one class may have nearly all of q
    above = np.append(np.cumsum(q[::-1])[-2::-1], 0.0)
    _eigenvalues(log_p[order], log_q[order], np.cumsum(q), above, columns)
    columns[0] = np.maximum.accumulate(columns[0])  # rounding may unsort equal ones
    return Chain(order, *columns)


@njit
def _eigenvalues(
    log_p: FloatArray, log_q: FloatArray, below: FloatArray, above: FloatArray, columns: FloatArray
) -> None:
    """Write the columns of a `Chain`; `below` and `above` (n,) are sums of q up to s and beyond."""
    stay = 0.0
    accept = 1.0
    log_mass = log_p[0]
    columns[0, 0] = -1e300
    columns[1, 0] = 1.0
    columns[2, 0] = 0.0
    for s in range(1, len(log_p)):
        fall = min((log_p[s - 1] - log_q[s - 1]) - (log_p[s] - log_q[s]), 0.0)
        ratio = math.exp(fall)
        rest = -math.expm1(fall)
        # both, because the one near 1 lacks the digits of the other
        stay = stay * ratio + rest * below[s - 1]
        accept = accept * ratio + rest * above[s - 1]
        columns[0, s] = math.log1p(-accept) if accept < 0.5 else max(np.log(stay), -1e300)
        rise = log_p[s] - log_mass
        columns[1, s] = 1.0 / (1.0 + np.exp(-rise))
        columns[2, s] = 1.0 / (1.0 + np.exp(rise))
        log_mass += np.logaddexp(0.0, rise)


@njit
def after_steps(chain: Chain, start: FloatArray, steps: int, centred: bool = False) -> FloatArray:
    """Return the distribution (n,) after `steps` steps from `start` (n,), by class; never negative.

    With `centred`, `start` is the difference of two distributions. Then ``gamma - 1`` replaces
    gamma, which changes the rounding only.
    """
    order, log_stay, shares, others = chain
    sums = np.cumsum(start[order])
    result = np.empty(len(order))
    # lambda^T; P gamma or P (gamma - 1); the mean of lambda^T beyond s; the flow from beyond s
    power = 1.0
    factor = 0.0
    mean = 0.0
    after = 0.0
    for s in range(len(order) - 1, -1, -1):
        next_power = power
        power = math.exp(steps * log_stay[s])
        next_log_stay = 0.0 if s == len(order) - 1 else log_stay[s + 1]
        if s < len(order) - 1:
            after = others[s + 1] * (after + start[order[s + 1]] * factor)
            mean = others[s + 1] * mean + shares[s + 1] * next_power
            factor *= others[s + 1]
        factor -= next_power * math.expm1(steps * (log_stay[s] - next_log_stay))
        if centred:
            factor = mean - power
        result[order[s]] = start[order[s]] * power + shares[s] * (sums[s] * factor + after)
    return result
