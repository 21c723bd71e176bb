"""The draws of an example once for all of its labels: what they share stands in one logit.

Draws that are no label of the example have the same logit in the row of each of its pairs. A loss
whose value these change through one number alone needs that number, the *merged* logit, and not the
draws: a row of a pair is then its label, the few draws that pairs treat differently, which stand
*apart*, and the merged logit.
"""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.exponential import log1p_to
from samplesoft.kernels.losses.candidate_scores import Floats
from samplesoft.kernels.losses.label_draws import has_weight
from samplesoft.kernels.losses.logit_rows import weigh
from samplesoft.kernels.weights import greatest, total


@njit
def merge_exponentials(logits: FloatArray, merged: FloatArray) -> None:
    """Write the logit (B,) whose exponential is that of all of a row, which becomes its slopes.

    `logits` are (B, m). A row of -inf merges to -inf.
    """
    for b in range(len(logits)):
        row = logits[b]
        merged[b] = greatest(row)
        if merged[b] != -np.inf:
            for k in range(len(row)):
                row[k] -= merged[b]
    weigh(logits.reshape(-1))
    for b in range(len(logits)):
        row = logits[b]
        mass = total(row)
        if mass > 0.0:
            merged[b] += np.log(mass)
            for k in range(len(row)):
                row[k] /= mass


@njit
def merge_softplus(logits: FloatArray, merged: FloatArray) -> None:
    """Write the logit (B,) whose softplus is that of all of a row, which becomes its slopes.

    `logits` are (B, m). A row of -inf merges to -inf.
    """
    small, large = np.empty(logits.shape[1]), np.empty(logits.shape[1])
    for b in range(len(logits)):
        row = logits[b]
        for k in range(len(row)):
            small[k] = -abs(row[k])
            large[k] = max(row[k], 0.0)
        weigh(small)
        for k in range(len(row)):
            row[k] = (1.0 if row[k] >= 0.0 else small[k]) / (1.0 + small[k])
        log1p_to(small)
        lost = total(large) + total(small)
        share = -np.expm1(-lost)  # the slope of softplus at the merged logit
        merged[b] = lost + np.log(share) if lost > 0.0 else -np.inf
        for k in range(len(row)):
            row[k] = row[k] / share if lost > 0.0 else 0.0


@njit
def set_apart(
    drawn: Floats,
    log_counts: FloatArray,
    found: IntArray,
    logits: FloatArray,
    apart: FloatArray,
    places: IntArray,
) -> bool:
    """Write the logits of draws, those of labels apart, and return whether all scores are finite.

    Scores `drawn` (b, m), and `log_counts` of their shape or (1, m); `found` (b, m) from
    `find_labels`, or (b, 0) where no draw is to stand apart. `logits` (b, m) are -inf for draws
    that do, of which `apart` (b, h) get the logits and `places` (b, h) where they stood, -1 for
    none. With h = 0 those draws have no weight for any pair.
    """
    unsound = 0
    apart[:] = -np.inf
    places[:] = -1
    for b in range(len(logits)):
        corrections, given, out = log_counts[b if len(log_counts) > 1 else 0], drawn[b], logits[b]
        for k in range(len(out)):
            unsound += not abs(given[k]) < np.inf
            out[k] = given[k] - corrections[k]
        column = 0
        for k in range(found.shape[1]):
            if found[b, k] >= 0:
                if apart.shape[1] > 0:
                    apart[b, column], places[b, column] = out[k], k
                    column += 1
                out[k] = -np.inf
    return unsound == 0


@njit
def pair_rows(
    start: int,
    own: Floats,
    owners: IntArray,
    found: IntArray,
    merged: FloatArray,
    apart: FloatArray,
    places: IntArray,
    keeps_own: bool,
    keeps_others: bool,
    rows: FloatArray,
) -> None:
    """Write a row for each pair from `start` on: its label, what stands apart, what is merged.

    `own` (p,) are logits of the labels, `owners` (p,) their examples among the b that `found`,
    `merged` (b,), `apart` and `places` (b, h) are of. `rows` are (p, 1 + w + 1), where no example
    has more than w draws apart. What is kept is as for `has_weight`.
    """
    last = rows.shape[1] - 1
    for i in range(len(rows)):
        b, row = owners[i], rows[i]
        row[0] = own[i]
        for column in range(last - 1):
            row[1 + column] = -np.inf
            if places[b, column] >= 0:
                whose = found[b, places[b, column]]
                if has_weight(start + i, whose, keeps_own, keeps_others):
                    row[1 + column] = apart[b, column]
        row[last] = merged[b]


@njit
def share_out_merged(
    rows: FloatArray,
    shares: FloatArray,
    owners: IntArray,
    slopes: FloatArray,
    places: IntArray,
    d_own: Floats,
    d_drawn: Floats,
) -> None:
    """Write the derivatives of what each example loses, from those of the rows of its pairs.

    `rows` (p, 1 + w + 1) are derivatives of the losses of pairs, `shares` (p,) the weights of
    these, `owners` (p,) their examples, each in one run, and `slopes` (b, m) the derivatives of
    the merged logits. `d_own` (p,) and the rows of `d_drawn` (b, m) for these examples are written.
    """
    last = rows.shape[1] - 1
    first = 0
    while first < len(owners):
        b, stop = owners[first], first
        while stop < len(owners) and owners[stop] == b:
            d_own[stop] = shares[stop] * rows[stop, 0]
            stop += 1
        total_slope = 0.0
        for i in range(first, stop):
            total_slope += shares[i] * rows[i, last]
        for k in range(d_drawn.shape[1]):
            d_drawn[b, k] = total_slope * slopes[b, k]
        for column in range(last - 1):
            if places[b, column] >= 0:
                slope = 0.0
                for i in range(first, stop):
                    slope += shares[i] * rows[i, 1 + column]
                d_drawn[b, places[b, column]] = slope
        first = stop
