"""Second-order jackknife of sampled softmax: losses and their derivatives, O(m) a draw.

With W the sum of the weights of the draws, a that of the label and ``S = a + W``, the sums without
a draw, or two, are

    S_i = a + (W - w_i) m / (m - 1),  S_ij = a + (W - w_i - w_j) m / (m - 2).

A mean over all pairs of the logarithms of these has no closed form.
"""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.exponential import log1p_to
from samplesoft.kernels.losses.logit_rows import weigh
from samplesoft.kernels.losses.softmax_terms import log_ratio
from samplesoft.kernels.weights import greatest, total


@njit
def jackknife2_terms(logits: FloatArray, losses: FloatArray) -> None:
    """Write the jackknife of the loss of each row (P, 1 + m), and turn rows into its gradient.

    That is ``log S + A sum_i log(S_i / S) + B sum_ij log(S_ij / S) - logits[0]`` over the m >= 3
    draws and their pairs, with ``A = -(m - 1)**2 / m`` and ``B = (m - 2)**2 / (m (m - 1))``.
    Nothing cancels in S_i / S - 1 and S_ij / S - 1 unless a draw that is left out carries much of
    S. Of these only sums without the heaviest may be hundreds of orders below S: they are added up
    anew, and so is the one without the heaviest two.
    """
    m = logits.shape[1] - 1
    of_one, of_two = -((m - 1.0) ** 2) / m, (m - 2.0) ** 2 / (m * (m - 1.0))
    slope_one, slope_two = 1.0 - m, (m - 2.0) / (m - 1.0)  # times the gain of the others
    gain_one, gain_two = m / (m - 1.0), m / (m - 2.0)
    weights, rest, last = np.empty(1 + m), np.empty(1 + m), np.empty(1 + m)
    ratios, inverse = np.empty(1 + m), np.empty(1 + m)
    for b in range(len(logits)):
        row = logits[b]
        label = row[0]
        top = _weigh_without(row, 0, 0, weights)
        drawn = total(weights[1:])
        mass = weights[0] + drawn
        log_mass = math.log(mass)
        first = _heaviest(weights, 0)
        if weights[first] < 0.25 * mass:
            first = 0  # none has much
        else:
            top_rest = _weigh_without(row, first, 0, rest)
            second = _heaviest(rest, first)
            top_last = _weigh_without(row, first, second, last)
        lost_one, lost_two = _leave_out(weights, first, drawn, mass, ratios)
        all_one, all_two = ratios[0], 0.5 * total(ratios[1:])
        single = (m - 1) * mass
        for k in range(1, 1 + m):
            one = 0.0
            if k != first:
                change = (drawn - m * weights[k]) / single
                one = change / (1.0 + change)
            slope = 1.0 - slope_one * (all_one - one) - slope_two * (all_two - ratios[k])
            row[k] = weights[k] / mass * slope
        if first > 0:  # left out alone, and with each other draw
            drawn_rest = total(rest[1:])
            without = rest[0] + gain_one * drawn_rest
            lost_one += (top_rest - top) + (math.log(without) - log_mass)
            every = 0.0
            for k in range(1, 1 + m):
                inverse[k] = 0.0
                if k not in (first, second):
                    pair = rest[0] + gain_two * (drawn_rest - rest[k])
                    lost_two += (top_rest - top) + (math.log(pair) - log_mass)
                    inverse[k] = 1.0 / pair
                    every += inverse[k]
            least = last[0] + gain_two * total(last[1:])
            lost_two += (top_last - top) + (math.log(least) - log_mass)
            for k in range(1, 1 + m):
                if k != first:
                    share = weights[k] / mass
                    row[k] += slope_one * (rest[k] / without - share)
                    found = rest[k] * (every - inverse[k]) - (m - 2) * share
                    if k != second:
                        found += last[k] / least
                    row[k] += slope_two * found
        loss = log_ratio(weights[0], drawn, top - label)
        losses[b] = loss + of_one * lost_one + of_two * lost_two
        row[0] = -total(row[1:])


@njit
def _heaviest(weights: FloatArray, other: int) -> int:
    """Return the place of the draw of the largest weight, another than `other`."""
    best = 2 if other == 1 else 1
    for k in range(best + 1, len(weights)):
        if k != other and weights[k] > weights[best]:
            best = k
    return best


@njit
def _weigh_without(row: FloatArray, first: int, second: int, weights: FloatArray) -> float:
    """Write the weights of a row without two draws (0 for none); return the logit of weight 1."""
    for k in range(len(row)):
        weights[k] = row[k] if k == 0 or k not in (first, second) else -np.inf
    top = greatest(weights)
    for k in range(len(row)):
        weights[k] -= top
    weigh(weights)
    return top


@njit
def _leave_out(
    weights: FloatArray, first: int, drawn: float, mass: float, ratios: FloatArray
) -> tuple[float, float]:
    """Return the sums of log(S_i / S) and log(S_ij / S) over draws other than `first`, 0 for none.

    `ratios` (1 + m,) gets the sum of 1 - S / S_i, and for each draw that of 1 - S / S_ij over the
    others.
    """
    m = len(weights) - 1
    ratios[:] = 0.0
    scaled, places = np.empty(m), np.empty(m, np.int64)
    num = 0
    for k in range(1, 1 + m):
        if k != first:
            scaled[num], places[num] = m * weights[k], k
            num += 1
    change, sums = np.zeros(m), np.zeros(m)
    unit = 1.0 / ((m - 1) * mass)
    for i in range(num):
        change[i] = (drawn - scaled[i]) * unit
        ratios[0] += change[i] / (1.0 + change[i])
    log1p_to(change)
    lost_one, lost_two = total(change), 0.0
    unit = 1.0 / ((m - 2) * mass)
    for i in range(num - 1):
        part = change[: num - 1 - i]
        whole, far = 2.0 * drawn - scaled[i], False
        for j in range(len(part)):
            part[j] = (whole - scaled[i + 1 + j]) * unit
            far |= part[j] < -0.5 or part[j] > 1.0  # from -2/3 to 2
        own = 0.0
        for j in range(len(part)):
            ratio = part[j] / (1.0 + part[j])
            sums[i + 1 + j] += ratio
            own += ratio
        sums[i] += own
        if far:
            for j in range(len(part)):
                part[j] = math.log1p(part[j])
        else:
            log1p_to(part)
        lost_two += total(part)
    for i in range(num):
        ratios[places[i]] = sums[i]
    return lost_one, lost_two
