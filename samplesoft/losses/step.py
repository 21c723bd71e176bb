"""The compiled core of a step: classes listed, scored and corrected, and gradients summed.

One class is listed once, whoever draws it and whoever has it as a label. Sums over examples and
draws have one order, whatever runs beside them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_bare
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.rows import (
    add_row,
    copy_row,
    divide_by_norms,
    prefetch_row,
    row_dot,
    unit_gradient,
)
from samplesoft.kernels.sort_ids import count_below, equal_runs
from samplesoft.kernels.weights import greatest
from samplesoft.samplers.base import Rows

Floats = NDArray[Any]  # float32 or float64, the same for all arguments of a call
_AHEAD = 4  # rows, so that a row is there when its turn comes


class Pairs(NamedTuple):
    """The P pairs of an example and a label, all of which have its m draws.

    A draw of its own label has weight for a pair where `keeps_own`, one of another label of its
    example where `keeps_others`, and one of no label always. The columns of the draws of the label
    of pair p are ``hit_columns[hit_starts[p]:hit_stops[p]]``.
    """

    own: FloatArray  # (P,): logits of the labels
    drawn: Rows  # (B, m): scores of the draws
    log_counts: FloatArray  # (B, m) or (1, m): what scores of draws lose
    example_ids: IntArray  # (P,): example of each, rising, counted from `begin`
    begin: int
    label_weights: FloatArray  # (P,): weight in the loss of its example; (0,) if all are 1
    hit_starts: IntArray  # (P,)
    hit_stops: IntArray
    hit_columns: IntArray
    keeps_own: bool
    keeps_others: bool
    once: bool  # draws have weight for the first pair of an example alone


@njit
def are_drawable(ids: IntArray, log_counts: FloatArray, n: int) -> bool:
    """Tell whether all `ids` (P, m) lie in ``range(n)`` and all `log_counts` (P, m) are finite."""
    bad = 0
    for b in range(len(ids)):
        for k in range(ids.shape[1]):
            bad += not (0 <= ids[b, k] < n and abs(log_counts[b, k]) < np.inf)
    return bad == 0


@njit
def list_candidates(
    labels: IntArray, ids: IntArray, log_counts: FloatArray, n: int, out: IntArray
) -> int:
    """Write K labels and drawn classes in one list, and its `equal_runs`; return their number.

    They are rows of one array `out` (5, K + 1): Python takes as long to be handed an array. The
    last number of the first row is that of the classes that are a label and drawn as well. Returns
    -1, and writes nothing, where the draws are not `are_drawable`.
    """
    if not are_drawable(ids, log_counts, n):
        return -1
    candidates = out[0, :-1]
    copy_row(candidates, labels)
    copy_row(candidates[len(labels) :], ids.ravel())
    unique, inverse, order, starts = equal_runs(candidates, n)
    copy_row(out[1], unique)
    copy_row(out[2], inverse)
    copy_row(out[3], order)
    copy_row(out[4], starts)
    both = 0
    for g in range(len(unique)):  # of each class the labels come first
        both += order[starts[g]] < len(labels) <= order[starts[g + 1] - 1]
    out[0, -1] = both
    return len(unique)


@njit_bare
def gather(ids: IntArray, rows: Floats, normalize: bool, block: Floats, norms: FloatArray) -> None:
    """Copy the vectors of some classes, divided by their norms, which are written, if asked for."""
    for k in range(len(ids)):
        if k + _AHEAD < len(ids):
            prefetch_row(rows, ids[k + _AHEAD])
        copy_row(block[k], rows[ids[k]])
    if normalize:
        divide_by_norms(block, norms)


@njit_bare
def score_labels(
    block: Floats,
    rows: IntArray,
    z: Floats,
    example_ids: IntArray,
    begin: int,
    first: int,
    last: int,
    own: FloatArray,
) -> None:
    """Write the scores (P,) of the labels of pairs [first, last), some `rows` (P,) of a block.

    Their examples are `example_ids` (P,), of which `begin` has the first of the contexts `z`.
    """
    for p in range(first, last):
        own[p] = row_dot(block, rows[p], z, example_ids[p] - begin)


@njit_bare
def add_labels(
    d_own: Floats,
    block: Floats,
    rows: IntArray,
    example_ids: IntArray,
    begin: int,
    first: int,
    last: int,
    dz: Floats,
) -> None:
    """Add the part of the gradients of contexts that comes from labels; see `score_labels`."""
    for p in range(first, last):
        add_row(dz[example_ids[p] - begin], d_own[p], block[rows[p]])


@njit
def score_draws(block: Rows, z: Rows, num: int, width: int, scores: Rows, product: Rows) -> None:
    """Write the scores of a block of examples, of the draws of each one after another."""
    for start in range(0, num, width):
        stop = min(start + width, num)
        part = product[: len(z) * (stop - start)].reshape((len(z), stop - start))
        np.dot(z, block[start:stop].T, part)
        for b in range(len(z)):
            copy_row(scores[b * num + start :], part[b])


@njit
def context_gradients_of_draws(
    d_drawn: Rows, block: Rows, num: int, width: int, dz: Rows, product: Rows
) -> None:
    """Write the part of the gradients of a block of contexts, times tau, that comes from draws."""
    part = product[: dz.size].reshape(dz.shape)
    dz[:] = 0.0
    for start in range(0, num, width):
        wide = min(width, num - start)
        d_scores = d_drawn[start // width][: len(dz) * wide].reshape((len(dz), wide))
        np.dot(d_scores, block[start : start + wide], part)
        for b in range(len(dz)):
            add_row(dz[b], 1.0, part[b])


@njit
def class_gradients_of_draws(
    d_drawn: Rows, j: int, size: int, z: Rows, num: int, gradient: Rows, product: Rows
) -> None:
    """Write the gradients of a block of classes, of which the first `num` are drawn.

    `d_drawn` holds derivatives in scores by blocks of `size` examples and by blocks of classes, of
    which this is block j.
    """
    gradient[:] = 0.0
    if num > 0:
        part = product[: num * z.shape[1]].reshape((num, z.shape[1]))
        for start in range(0, len(z), size):
            stop = min(start + size, len(z))
            d_scores = d_drawn[start // size, j][: (stop - start) * num]
            np.dot(d_scores.reshape((stop - start, num)).T, z[start:stop], part)
            for k in range(num):
                add_row(gradient[k], 1.0, part[k])


@njit
def score_set(
    labels: IntArray,
    example_ids: IntArray,
    ids: IntArray,
    log_counts: FloatArray,
    z: Floats,
    rows: Floats,
    biases: Floats,
    multiply: bool,
    listed: IntArray,
    block: Floats,
    norms: FloatArray,
    own: FloatArray,
    drawn: Floats,
) -> int:
    """Write the scores of labels (P,), and of one set of draws (1, m) for all examples.

    Returns what `list_candidates` does, for `listed`. `block` (P + m, d) is filled with the vectors
    of the candidates, which have norm 1 where there is room for their `norms`. `biases` may be
    empty. Scores of draws (B, m) are multiplied here, or else not written.
    """
    num = list_candidates(labels, ids, log_counts, len(rows), listed)
    if num < 0:
        return num
    pairs, m, candidates = len(own), drawn.shape[1], listed[0, :-1]
    gather(candidates, rows, len(norms) > 0, block, norms)
    score_labels(block, np.arange(pairs), z, example_ids, 0, 0, pairs, own)
    if multiply:
        if m > 0:
            np.dot(z, np.ascontiguousarray(block[pairs:].T), drawn)  # a copy is quicker
        complete_scores(example_ids, candidates, biases, own, drawn)
    return num


@njit
def complete_scores(
    example_ids: IntArray, candidates: IntArray, biases: Floats, own: FloatArray, drawn: Floats
) -> None:
    """Add biases to scores of labels (P,) and draws (B, m), and make NaN what is not sound.

    Candidates are the labels, and then one set of draws for all, or the sets one after another.
    """
    pairs, m = len(own), drawn.shape[1]
    if len(biases) > 0:
        for p in range(pairs):
            own[p] = drawn.dtype.type(own[p]) + biases[candidates[p]]  # in the type of both
        first = pairs
        for b in range(len(drawn)):
            for k in range(m):
                drawn[b, k] += biases[candidates[first + k]]
            first += m if len(candidates) > pairs + m else 0
    nan_where_not_finite(own, drawn, example_ids, 0, 0)


@njit
def set_gradients(
    d_own: Floats,
    d_drawn: Floats,
    z: Floats,
    weights: FloatArray,
    example_ids: IntArray,
    block: Floats,
    norms: FloatArray,
    listed: IntArray,
    of_draws: Floats,
    dz: Floats,
    dW: Floats,
) -> None:
    """Write the gradients in contexts (B, d) and in classes (k, d), of one set of draws for all.

    From derivatives in scores of labels (P,) and of draws (B, m), weights (B,) of the examples, and
    the block, its norms and the list as `score_set` has written them. What the draws bring to `dz`,
    and `of_draws` (m, d), are multiplied here where the latter is empty.
    """
    pairs, m, order, starts = len(d_own), d_drawn.shape[1], listed[3], listed[4]
    column, weighted = weights.astype(z.dtype), np.empty_like(z)
    for b in range(len(z)):
        for f in range(z.shape[1]):
            weighted[b, f] = column[b] * z[b, f]
    if len(of_draws) == 0:
        of_draws = np.empty((m, z.shape[1]), z.dtype)
        if m > 0:
            np.dot(d_drawn, block[pairs:], dz)
            np.dot(d_drawn.T, weighted, of_draws)
        else:
            dz[:] = 0.0
    class_sums(d_own, d_drawn, weighted, example_ids, of_draws, order, starts, dW)
    add_labels(d_own, block, np.arange(pairs), example_ids, 0, 0, pairs, dz)
    for b in range(len(z)):
        for f in range(z.shape[1]):
            dz[b, f] *= column[b]
    if len(norms) > 0:
        # a class may stand in several rows of the block, all of them the same
        unit, had = np.empty_like(dW), np.empty(len(dW))
        for g in range(len(dW)):
            copy_row(unit[g], block[order[starts[g]]])
            had[g] = norms[order[starts[g]]]
        unit_gradient(dW, unit, had)


@njit
def _add(factor: float, matrix: Floats, i: int, total: Floats) -> None:
    for f in range(len(total)):
        total[f] += factor * matrix[i, f]


@njit
def score_rows(
    z: Floats, example_ids: IntArray, block: Floats, rows: IntArray, scores: Floats
) -> None:
    """Write ``scores[i, k] = z[example_ids[i]] . block[rows[i, k]]``, for `rows` (N, k)."""
    for i in range(len(rows)):
        example = example_ids[
            i
        ]  # read once: the compiler cannot know that scores do not alias the ids
        for k in range(rows.shape[1]):
            scores[i, k] = row_dot(block, rows[i, k], z, example)


@njit
def context_sums(d_scores: Floats, block: Floats, rows: IntArray, dz: Floats) -> None:
    """Write ``sum_k d_scores[b, k] block[rows[b, k]]``, summed in float64, to each row of `dz`."""
    total = np.empty(dz.shape[1])  # float64: many draws pull at a context, mostly against others
    for b in range(len(rows)):
        total[:] = 0.0
        for k in range(rows.shape[1]):
            if d_scores[b, k] != 0.0:  # draws that are left out cost nothing
                _add(d_scores[b, k], block, rows[b, k], total)
        copy_row(dz[b], total)


@njit
def class_sums(
    d_own: Floats,
    d_drawn: Floats,
    z: Floats,
    example_ids: IntArray,
    of_draws: Floats,
    order: IntArray,
    starts: IntArray,
    out: Floats,
) -> None:
    """Write the sums (k, d) over k classes of derivatives times contexts, each in float64.

    Derivatives are of the labels (P,), whose examples are `example_ids` (P,), and of the draws
    (B, m). Their sums `of_draws` (m, d) over the examples are given if these share the draws. Class
    g has those at ``order[starts[g]:starts[g + 1]]`` of the labels and then the draws, as
    `kernels.sort_ids.equal_runs` says.
    """
    pairs, m = len(d_own), d_drawn.shape[1]
    d_draws, total, one = d_drawn.ravel(), np.empty(out.shape[1]), d_own.dtype.type(1)
    for g in range(len(out)):
        start, stop = starts[g], starts[g + 1]
        for i in range(start, stop):
            place = order[i]
            draw = place - pairs
            if draw < 0:
                factor, matrix, row = d_own[place], z, example_ids[place]
            elif len(of_draws) > 0:
                factor, matrix, row = one, of_draws, draw
            else:
                factor, matrix, row = d_draws[draw], z, draw // m
            if stop == start + 1:  # nothing to add up
                for f in range(out.shape[1]):
                    out[g, f] = factor * matrix[row, f]
            else:
                if i == start:
                    total[:] = 0.0
                if factor != 0.0:
                    _add(factor, matrix, row, total)
        if stop > start + 1:
            copy_row(out[g], total)


@njit
def find_hits(
    label_places: IntArray,
    example_ids: IntArray,
    order: IntArray,
    starts: IntArray,
    num_draws: int,
    shared: bool,
) -> tuple[IntArray, IntArray, IntArray]:
    """Return which draws are the label of each pair: starts (P,), stops (P,) and columns.

    `label_places` (P,) are classes, of which class g stands at ``order[starts[g]:starts[g + 1]]``
    of the labels and then the draws, so many of each example, or one set for all.
    """
    pairs = len(label_places)
    first, last = np.empty(pairs, np.int64), np.empty(pairs, np.int64)
    columns = np.empty(len(order), np.int64)
    for p in range(pairs):
        begin, end = starts[label_places[p]], starts[label_places[p] + 1]
        least = pairs + (0 if shared else example_ids[p] * num_draws)  # place of the first draw
        i = begin + count_below(order[begin:end], least)
        first[p] = i
        while i < end and order[i] < least + num_draws:
            columns[i] = order[i] - least
            i += 1
        last[p] = i
    return first, last, columns


@njit_bare
def nan_where_not_finite(
    own: FloatArray, drawn: Floats, example_ids: IntArray, begin: int, first: int
) -> None:
    """Make NaN of those of `own` (P,) whose examples have scores `drawn` (B, m) beyond all.

    Of examples from `begin` on, whose pairs, of `example_ids` (P,), begin with the first.
    """
    p = first
    for b in range(len(drawn)):
        bad = 0
        for k in range(drawn.shape[1]):
            bad += 0 if abs(drawn[b, k]) < np.inf else 1
        while p < len(own) and example_ids[p] - begin == b:
            own[p] = own[p] if bad == 0 else np.nan
            p += 1


@njit
def pair_logits(pairs: Pairs, start: int, logits: Floats) -> None:
    """Write logits (N, 1 + m) of pairs from `start` on: of the label, then of each draw.

    A draw that has no weight for a pair gets -inf. Rows of float32 are less their maximum.
    """
    example_ids, drawn, log_counts = pairs.example_ids, pairs.drawn, pairs.log_counts
    wide = np.empty(logits.shape[1])
    for i in range(len(logits)):
        p = start + i
        b = example_ids[p] - pairs.begin
        row = b if len(log_counts) > 1 else 0
        wide[0] = pairs.own[p]
        for k in range(drawn.shape[1]):
            wide[1 + k] = drawn[b, k] - log_counts[row, k]
        if has_draws(pairs, p):
            leave_out(pairs, p, wide)
        else:
            wide[1:] = -np.inf
        shift = greatest(wide) if logits.itemsize == 4 else 0.0
        for k in range(len(wide)):
            logits[i, k] = wide[k] - shift


@njit_bare
def has_draws(pairs: Pairs, p: int) -> bool:
    """Tell whether any draws have weight for pair p."""
    return not (pairs.once and p > 0 and pairs.example_ids[p - 1] == pairs.example_ids[p])


@njit_bare
def keeps_hits(pairs: Pairs, p: int, q: int) -> bool:
    """Tell whether draws of the label of pair q have weight for pair p of the same example."""
    return pairs.keeps_own if q == p else pairs.keeps_others


@njit_bare
def leave_out(pairs: Pairs, p: int, row: FloatArray) -> None:
    """Make -inf of those logits of draws that have no weight for a pair; row[0] is the label's."""
    example_ids = pairs.example_ids
    first, last = p, p + 1
    if not pairs.keeps_others:  # then those of all labels of the example are asked for
        while first > 0 and example_ids[first - 1] == example_ids[p]:
            first -= 1
        while last < len(example_ids) and example_ids[last] == example_ids[p]:
            last += 1
    for q in range(first, last):
        if not keeps_hits(pairs, p, q):
            for i in range(pairs.hit_starts[q], pairs.hit_stops[q]):
                row[1 + pairs.hit_columns[i]] = -np.inf


@njit
def scatter_logit_gradients(
    pairs: Pairs, start: int, d_logits: Floats, losses: FloatArray, d_own: Floats, d_drawn: Floats
) -> None:
    """Write the derivatives of the losses of examples, from those of N pairs from `start` on.

    `d_logits` (N, 1 + m) are derivatives of the `losses` (P,) of the pairs in their logits. Losses
    are multiplied by what they weigh, `d_own` (P,) written, and sums, made in float64, written to
    `d_drawn` (B, m), or added to those of earlier pairs.
    """
    example_ids, own, label_weights, width = (
        pairs.example_ids,
        pairs.own,
        pairs.label_weights,
        d_logits.shape[1] - 1,
    )
    total = np.empty(width)  # float64, for labels of an example pull at a draw in turn
    for i in range(len(d_logits)):
        p = start + i
        b = example_ids[p] - pairs.begin
        label_weight = label_weights[p] if len(label_weights) > 0 else 1.0
        losses[p] *= label_weight if abs(own[p]) < np.inf else np.nan
        d_own[p] = label_weight * d_logits[i, 0]
        begins = p == 0 or example_ids[p - 1] != example_ids[p]
        ends = i + 1 == len(d_logits) or example_ids[p + 1] != example_ids[p]
        if begins:
            for k in range(width):
                total[k] = label_weight * d_logits[i, 1 + k]
        else:
            if i == 0:
                for k in range(width):
                    total[k] = d_drawn[b, k]
            for k in range(width):
                total[k] += label_weight * d_logits[i, 1 + k]
        if ends:
            for k in range(width):
                d_drawn[b, k] = total[k]


@njit
def reject_correction(m: int, hits: int, label_count: float) -> float:
    """Return the correction of the draws' logits where `hits` of the m are the label, and left out.

    The draws that are left are divided by their number, not by m, and their distribution is q given
    that the class is not the label. A softmax is the same where the label's logit loses as much.
    """
    # expm1: a label that is hardly ever drawn leaves nearly all of the m draws expected
    expected = -m * math.expm1(min(label_count - math.log(m), 0.0))
    return math.log(expected / (m - hits)) if expected > 0.0 and hits < m else 0.0


@njit
def reject_corrections(m: int, hits: IntArray, label_counts: FloatArray) -> FloatArray:
    """Return `reject_correction` (P,) for each of `hits`, (P,) or (0,), and `label_counts` (P,)."""
    gains = np.empty(len(label_counts))
    for p in range(len(gains)):
        gains[p] = reject_correction(m, hits[p] if len(hits) > 0 else 0, label_counts[p])
    return gains
