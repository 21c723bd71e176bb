"""Delete-one jackknife of examples with several labels, which share the work on their draws.

The jackknife of a pair needs ``log S_i``, for the sum S_i without each draw i. With w_i the share
of a draw in those that stand together, and in the same unit a the weight of the label and W that
of all of its draws,

    S_i / S = A (1 - v w_i),  A = 1 + W / ((m - 1) S),  v = k / (a + k W),  k = m / (m - 1),

so that draws and label meet in products alone. Sums over the draws of ``log(1 - v w)`` and
``1 / (1 - v w)`` are power series in v, whose coefficients, the moments of w, serve all pairs of
the example. They converge fast for small w; of draws with more there are few.
"""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.losses.candidate_scores import Floats
from samplesoft.kernels.losses.jackknife_terms import jackknife_terms
from samplesoft.kernels.losses.label_draws import has_weight
from samplesoft.kernels.losses.logit_rows import weigh
from samplesoft.kernels.losses.softmax_terms import log_ratio
from samplesoft.kernels.weights import greatest, total

_TERMS = 14  # of the series: _SMALL to the power of so many is below rounding
_SMALL = 1.0 / 16.0
_HEAVY = 0.5  # a draw with more of the mass than about this is left to `jackknife_terms`


@njit
def jackknife_examples(
    start: int,
    ends: IntArray,
    own: FloatArray,
    logits: FloatArray,
    apart: FloatArray,
    places: IntArray,
    found: IntArray,
    keeps_own: bool,
    keeps_others: bool,
    shares: FloatArray,
    losses: FloatArray,
    d_own: Floats,
    d_drawn: Floats,
) -> None:
    """Write the jackknife of each pair, and the derivatives of what each example loses.

    Examples have the pairs from ``ends[b]`` up to ``ends[b + 1]`` of all, the first of which is
    `start`; `own`, `shares`, `losses` and `d_own` (p,) are of these pairs. `logits` (b, m) of
    draws, those `apart` (b, h) and their `places` are from `merged_draws.set_apart`, `found`
    (b, m) and what is kept as for `has_weight`. `d_drawn` (b, m) are written.
    """
    m = logits.shape[1]
    k = m / (m - 1)
    weights, slopes = np.empty(m), np.empty(m)
    moments, series = np.empty(1 + _TERMS), np.empty(_TERMS)
    few = np.empty(m, np.int64)  # draws that are computed one by one
    beside, columns = np.empty(apart.shape[1]), np.empty(apart.shape[1], np.int64)
    row, one = np.empty((1, 1 + m)), np.empty(1)
    for b in range(len(logits)):
        top = greatest(logits[b])
        mass, largest, num_few = 0.0, 0.0, 0
        if top > -np.inf:
            for i in range(m):
                weights[i] = logits[b, i] - top
            weigh(weights)
            mass = total(weights)
            largest = 1.0 / mass
            num_few = _moments(weights, mass, moments, few)
        unit = top + np.log(mass) if mass > 0.0 else 0.0
        series[:], slopes[:], rest = 0.0, 0.0, 0.0
        for p in range(ends[b] - start, ends[b + 1] - start):
            share, drawn, most, num = shares[p], 1.0, largest, 0
            for column in range(apart.shape[1]):
                if places[b, column] >= 0 and has_weight(
                    start + p, found[b, places[b, column]], keeps_own, keeps_others
                ):
                    beside[num], columns[num] = np.exp(apart[b, column] - unit), column
                    drawn += beside[num]
                    most = max(most, beside[num])
                    num += 1
            a = np.exp(own[p] - unit)
            v = k / (a + k * drawn)
            if mass == 0.0 or not v * most <= _HEAVY:
                row[0, 0] = own[p]
                row[0, 1:] = logits[b]
                for c in range(num):
                    row[0, 1 + places[b, columns[c]]] = apart[b, columns[c]]
                jackknife_terms(row, one)
                losses[p], d_own[p] = one[0], share * row[0, 0]
                for i in range(m):
                    slopes[i] += share * row[0, 1 + i]
                continue
            whole = a + drawn
            more = drawn / ((m - 1) * whole)  # A - 1
            power, lost, inverse = 1.0, m * np.log1p(more), 0.0
            for j in range(1, 1 + _TERMS):
                inverse += power * moments[j]
                power *= v
                lost -= power * moments[j] / j
            for c in range(num_few):
                w = weights[few[c]]
                inverse += w / (1.0 - v * w)
                lost += np.log1p(-v * w)
            for c in range(num):
                inverse += beside[c] / (1.0 - v * beside[c])
                lost += np.log1p(-v * beside[c])
            losses[p] = log_ratio(a, drawn, unit - own[p]) - (m - 1) / m * lost
            kept = (m * more - v * inverse) / (1.0 + more)
            every, each = share * kept / whole, share / (whole * (1.0 + more))
            d_own[p] = -(every * drawn + each * inverse)
            rest += every
            power = each
            for j in range(_TERMS):
                series[j] += power
                power *= v
            for c in range(num_few):
                w = weights[few[c]]
                slopes[few[c]] += w * (every + each / (1.0 - v * w))
            for c in range(num):
                slopes[places[b, columns[c]]] += beside[c] * (every + each / (1.0 - v * beside[c]))
        if mass > 0.0:
            for c in range(num_few):
                weights[few[c]] = 0.0  # they have theirs
            _add_series(weights, rest, series, slopes)
        for i in range(m):
            d_drawn[b, i] = slopes[i]


@njit
def _moments(weights: FloatArray, mass: float, moments: FloatArray, few: IntArray) -> int:
    """Turn weights into shares, write the sums of powers of small ones, and count the others.

    ``moments[j]`` gets the sum of powers j, and `few` the places of the shares that are not small.
    """
    moments[:] = 0.0
    num = 0
    for i in range(len(weights)):
        weights[i] /= mass
        if weights[i] > _SMALL:
            few[num] = i
            num += 1
    powers = weights.copy()
    for c in range(num):
        powers[few[c]] = 0.0
    small = powers.copy()
    for j in range(1, len(moments)):
        moments[j] = total(powers)
        for i in range(len(powers)):
            powers[i] *= small[i]
    return num


@njit
def _add_series(weights: FloatArray, rest: float, series: FloatArray, slopes: FloatArray) -> None:
    """Add ``w (rest + sum of series[j] w**j)`` to the slope of each draw."""
    for i in range(len(weights)):
        w = weights[i]
        found = 0.0
        for j in range(len(series) - 1, -1, -1):
            found = found * w + series[j]
        slopes[i] += w * (rest + found)
