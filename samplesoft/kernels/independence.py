"""The law of a Metropolis-Hastings chain whose proposals do not depend on its state.

With p the target, q the proposal and ``w = p / q``, classes in the order of rising w, and P_s the
sum of p up to the class in place s, a step from s stays where it is, after a refusal, with chance
``lambda_s = sum of q_k (1 - w_k / w_s) over k < s``. These are the eigenvalues but for 1 (Liu,
1996), and the chances of T steps are known (Smith and Tierney, 1996, "Exact transition
probabilities for the independence Metropolis sampler"): from x to y

    lambda_x^T [x = y] + p_y gamma(max(x, y)),
    gamma(s) = sum of (lambda_{r+1}^T - lambda_r^T) / P_r over r >= s, lambda_{n+1} = 1.

Below are this sum times P_s, and, for what is to lose no digits to the p that it tends to, that of
``1 - gamma``; both follow from place to place by means with weights ``p_s / P_s`` and the rest, so
that nothing leaves the range of float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray


class Chain(NamedTuple):
    """The eigenvalues of a chain, (n,) in the order of rising w, and what goes with them."""

    order: IntArray  # the classes in this order
    log_stay: FloatArray  # log lambda_s; -1e300 where a step never stays, so that 0 steps are 0
    shares: FloatArray  # p_s / P_s
    others: FloatArray  # P_{s-1} / P_s


def make_chain(log_p: FloatArray, log_q: FloatArray) -> Chain:
    """Return the chain of target p and proposal q, by their finite logarithms (n,)."""
    order: IntArray = np.argsort(log_p - log_q, kind="stable")
    columns = np.empty((3, len(order)))
    q = np.exp(log_q[order])
    # what is above is added up and not subtracted, for one class may have nearly all of q
    above = np.append(np.cumsum(q[::-1])[-2::-1], 0.0)
    _eigenvalues(log_p[order], log_q[order], np.cumsum(q), above, columns)
    columns[0] = np.maximum.accumulate(columns[0])  # rounding puts equal ones out of order
    return Chain(order, *columns)


@njit
def _eigenvalues(
    log_p: FloatArray, log_q: FloatArray, below: FloatArray, above: FloatArray, columns: FloatArray
) -> None:
    """Write the columns of a `Chain`; `below` and `above` (n,) are sums of q up to s and after."""
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
        # both, for the one that is near 1 has not the digits of the other
        stay = stay * ratio + rest * below[s - 1]
        accept = accept * ratio + rest * above[s - 1]
        columns[0, s] = math.log1p(-accept) if accept < 0.5 else max(np.log(stay), -1e300)
        rise = log_p[s] - log_mass
        columns[1, s] = 1.0 / (1.0 + np.exp(-rise))
        columns[2, s] = 1.0 / (1.0 + np.exp(rise))
        log_mass += np.logaddexp(0.0, rise)


@njit
def after_steps(chain: Chain, start: FloatArray, steps: int, centred: bool = False) -> FloatArray:
    """Return (n,) what some steps make of a law `start` (n,), by classes; no number is negative.

    With `centred`, `start` is the difference of two laws. Then ``gamma - 1`` stands for gamma,
    which changes nothing but the digits.
    """
    order, log_stay, shares, others = chain
    sums = np.cumsum(start[order])
    out = np.empty(len(order))
    # lambda^T; P gamma or its like; the mean of lambda^T over what is after s, and the part of it
    power = 1.0
    factor = 0.0
    mean = 0.0
    after = 0.0
    for s in range(len(order) - 1, -1, -1):
        next_power = power
        power = math.exp(steps * log_stay[s])
        rise = 0.0 if s == len(order) - 1 else log_stay[s + 1]
        if s < len(order) - 1:
            after = others[s + 1] * (after + start[order[s + 1]] * factor)
            mean = others[s + 1] * mean + shares[s + 1] * next_power
            factor *= others[s + 1]
        factor -= next_power * math.expm1(steps * (log_stay[s] - rise))
        if centred:
            factor = mean - power
        out[order[s]] = start[order[s]] * power + shares[s] * (sums[s] * factor + after)
    return out
