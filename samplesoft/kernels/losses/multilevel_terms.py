"""The multilevel estimate of the full softmax loss, and its derivatives.

The M draws of a row are cut into blocks. S is the sum of label and draws, ``S_b`` that with block b
in place of all draws, ``H_1`` and ``H_2`` those with one half. Each is a sum of positive numbers
that is scaled by its own greatest, for they may be hundreds of orders apart.
"""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.losses.logit_rows import weigh
from samplesoft.kernels.losses.softmax_terms import log_ratio
from samplesoft.kernels.weights import greatest, total

_NEAR = 0.5  # below it differences are taken of sums, above it of their logarithms


@njit
def multilevel_terms(
    logits: FloatArray, losses: FloatArray, block: int, num_draws: int, weight: float
) -> None:
    """Write the estimate of each row (P, 1 + M + c), and turn rows into its gradient.

    Column 0 is the label's logit, then come M = `num_draws` draws, in blocks of `block`, and either
    none or all c other classes. The estimate is the mean of ``log(S_b)``, plus `weight` times a
    `_difference_of_halves` or a `_difference_from_all`, less the label's logit.
    """
    blocks = num_draws // block
    tops, sums, slopes = np.empty(blocks), np.empty(blocks), np.empty(blocks)
    for p in range(len(logits)):
        row, drawn, others = logits[p], logits[p, 1 : 1 + num_draws], logits[p, 1 + num_draws :]
        label, loss, own_slope = row[0], 0.0, 0.0
        for b in range(blocks):
            part = drawn[b * block : (b + 1) * block]
            tops[b] = weigh_block(part, label)
            sums[b] = total(part)
            own, mass = math.exp(label - tops[b]), blocks * sums[b]
            loss += log_ratio(own, mass, tops[b] - label)
            own_slope -= mass / (own + mass)
            slopes[b] = 1.0 / (own + mass)
        if len(others) > 0:
            more, own_more = _difference_from_all(label, tops, sums, slopes, others, weight)
        else:
            more, own_more = _difference_of_halves(label, tops, sums, slopes, weight)
        losses[p] = loss / blocks + more
        row[0] = own_slope / blocks + own_more
        for b in range(blocks):
            for k in range(b * block, (b + 1) * block):
                drawn[k] *= slopes[b]


@njit
def weigh_block(part: FloatArray, label: float) -> float:
    """Turn logits into weights in the unit of the greatest of them and `label`; return that."""
    top = max(label, greatest(part))
    for k in range(len(part)):
        part[k] -= top
    weigh(part)
    return float(top)


@njit
def _sum(label: float, tops: FloatArray, sums: FloatArray) -> tuple[float, float, float]:
    """Return a unit, and in it the weight of the label and of all draws of some blocks."""
    top, mass = greatest(tops), 0.0
    for b in range(len(tops)):
        mass += sums[b] * math.exp(tops[b] - top)
    return top, math.exp(label - top), mass


@njit
def _difference_of_halves(
    label: float, tops: FloatArray, sums: FloatArray, slopes: FloatArray, weight: float
) -> tuple[float, float]:
    """Return ``log S - (log H_1 + log H_2) / 2`` and its slope in the label's logit, both weighted.

    What a draw of each block gets is added to `slopes`. With ``u = (H_1 - H_2) / (H_1 + H_2)`` the
    difference is ``-log(1 - u**2) / 2``; its slope in a draw is u times its weight in ``H_1``, or
    -u times that in ``H_2``, and in the label's logit ``u / 2`` times the weight in ``H_1`` less
    that in ``H_2``.
    """
    half = len(tops) // 2
    top_1, own_1, mass_1 = _sum(label, tops[:half], sums[:half])
    top_2, own_2, mass_2 = _sum(label, tops[half:], sums[half:])
    whole_1, whole_2, top = own_1 + 2.0 * mass_1, own_2 + 2.0 * mass_2, max(top_1, top_2)
    one, two = mass_1 * math.exp(top_1 - top), mass_2 * math.exp(top_2 - top)
    own = math.exp(label - top)
    whole = own + one + two
    u = (one - two) / whole
    if abs(u) < _NEAR:
        more = -0.5 * math.log1p(-u * u)
        own_slope = -u * u / (1.0 - u * u) * (own / whole)
    else:
        behind = 0.5 * ((top - top_1) + (top - top_2))
        more = behind + math.log(whole) - 0.5 * (math.log(whole_1) + math.log(whole_2))
        own_slope = 0.5 * u * (own_1 / whole_1 - own_2 / whole_2)
    for b in range(half):
        slopes[b] += weight * u / whole_1 * math.exp(tops[b] - top_1)
    for b in range(half, len(tops)):
        slopes[b] -= weight * u / whole_2 * math.exp(tops[b] - top_2)
    return weight * more, weight * own_slope


@njit
def _difference_from_all(
    label: float,
    tops: FloatArray,
    sums: FloatArray,
    slopes: FloatArray,
    others: FloatArray,
    weight: float,
) -> tuple[float, float]:
    """Return ``log Z - log S + (S / Z - 1)`` and its slope in the label's logit, both weighted.

    What a draw of each block gets is added to `slopes`, and `others` (c,) become slopes. With
    ``x = S / Z - 1``, whose mean is 0, the difference is ``x - log(1 + x)``, and its slopes are x
    times those of ``log S - log Z``.
    """
    top, own, mass = _sum(label, tops, sums)
    top_z = weigh_block(others, label)
    own_z, mass_z = math.exp(label - top_z), total(others)
    whole, whole_z = own + mass, own_z + mass_z
    gap = (top - top_z) + (math.log(whole) - math.log(whole_z))
    if abs(gap) < _NEAR:
        x = (mass * math.exp(top - top_z) - mass_z) / whole_z
        gap = math.log1p(x)
    else:
        x = math.expm1(gap)
    for k in range(len(others)):
        others[k] *= -weight * x / whole_z
    for b in range(len(tops)):
        slopes[b] += weight * x / whole * math.exp(tops[b] - top)
    return weight * (x - gap), -weight * x * (x * (own / whole))
