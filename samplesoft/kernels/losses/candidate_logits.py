"""Scores turned into logits in which what was drawn stands for all that could have been."""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.losses.candidate_scores import Floats


@njit
def are_drawable(ids: IntArray, log_counts: FloatArray, n: int) -> bool:
    """Tell whether all `ids` (P, m) lie in ``range(n)`` and all `log_counts` (P, m) are finite."""
    bad = 0
    for b in range(len(ids)):
        for k in range(ids.shape[1]):
            bad += not (0 <= ids[b, k] < n and abs(log_counts[b, k]) < np.inf)
    return bad == 0


@njit
def correct(
    own: Floats,
    drawn: Floats,
    owners: IntArray,
    ids: IntArray,
    log_counts: FloatArray,
    labels: IntArray,
    logits: FloatArray,
    hits: IntArray,
) -> bool:
    """Write logits (P, 1 + m): scores, those of draws less the logs of their expected counts.

    `own` (P,) are the logits of the `labels` (P,), and go to column 0. `drawn` (B, m) are those of
    the draws of each example, of which pair p has row ``owners[p]``; `ids` and `log_counts` are
    (B, m), or (1, m) for all. A draw of its pair's label gets -inf, no weight, and `hits` (P,)
    count these; negative labels keep them. Return whether all scores are finite, also of such
    draws.
    """
    unsound = 0
    for p in range(len(own)):
        row = owners[p] if len(ids) > 1 else 0
        classes, corrections, out, given = ids[row], log_counts[row], logits[p], drawn[owners[p]]
        out[0] = own[p]
        unsound += not abs(own[p]) < np.inf
        found = 0
        for k in range(len(classes)):
            score = given[k]
            unsound += not abs(score) < np.inf
            out[k + 1] = score - corrections[k]
            found += classes[k] == labels[p]
        hits[p] = found
        if found:
            for k in range(len(classes)):
                if classes[k] == labels[p]:
                    out[k + 1] = -np.inf
    return unsound == 0


@njit
def share_out_slopes(
    slopes: FloatArray, shares: FloatArray, owners: IntArray, d_own: Floats, d_drawn: Floats
) -> None:
    """Write the derivatives of what each example loses, from those of its pairs.

    `slopes` (P, 1 + m) are derivatives of the losses of the pairs in their logits, `shares` (P,)
    the weights of these losses, `owners` (P,) their examples, each in one run. `d_own` (P,) are
    written, and sums, made in float64, added to `d_drawn` (B, m).
    """
    width = slopes.shape[1] - 1
    total = np.empty(width)
    first = 0
    while first < len(owners):
        b, last = owners[first], first
        total[:] = 0.0
        while last < len(owners) and owners[last] == b:
            row, share = slopes[last], shares[last]
            d_own[last] = share * row[0]
            for k in range(width):
                total[k] += share * row[1 + k]
            last += 1
        for k in range(width):
            d_drawn[b, k] += total[k]
        first = last


@njit
def gain_of_kept(m: int, hits: int, label_count: float) -> float:
    """Return what the logits of draws gain where `hits` of the m are of the label, and left out."""
    expected = -m * math.expm1(min(label_count - math.log(m), 0.0))
    return math.log(expected / (m - hits)) if expected > 0.0 and hits < m else 0.0


@njit
def gains_of_kept(m: int, hits: IntArray, label_counts: FloatArray, gains: FloatArray) -> None:
    """Write `gain_of_kept` (P,) for each of `hits` (P,) and `label_counts` (P,)."""
    for p in range(len(gains)):
        gains[p] = gain_of_kept(m, hits[p], label_counts[p])
