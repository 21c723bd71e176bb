"""Compiled kernels of a training step with drawn classes, in the order in which they are called.

They list the classes of a batch, score them, correct the scores, and sum the gradients.

Each class is listed once, however many examples draw it or have it as a label. Sums over examples
and draws have a fixed order, so that results do not depend on the number of threads.
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
from samplesoft.kernels.sort_ids import count_below, group_equal_ids
from samplesoft.kernels.weights import row_max
from samplesoft.samplers.base import Rows

# arrays of float32 or float64; all arguments of a call have the same dtype
Floats = NDArray[Any]
# number of rows between the row that is copied and the row that is prefetched
_PREFETCHED_ROWS = 4


class Pairs(NamedTuple):
    """The P pairs of an example and a label. All pairs of an example share its m draws.

    Accidental hits are draws of a label of the example. Draws of the pair's label enter its loss
    only if `keeps_label_hits`, draws of other labels of the example only if `keeps_other_hits`. All
    other draws always enter. Draws of the label of pair p are in the columns
    ``hit_columns[hit_starts[p]:hit_stops[p]]``.
    """

    label_logits: FloatArray  # (P,)
    sampled_scores: Rows  # (B, m)
    log_counts: FloatArray  # (B, m) or (1, m): subtracted from the draws' scores
    example_ids: IntArray  # (P,): example of each pair, ascending
    first_example: int  # example of row 0 of `sampled_scores`
    # (P,): weight of the pair in its example's loss; (0,) if all are 1
    label_weights: FloatArray
    hit_starts: IntArray  # (P,)
    hit_stops: IntArray  # (P,)
    hit_columns: IntArray  # columns of `sampled_scores`
    keeps_label_hits: bool
    keeps_other_hits: bool
    counts_draws_once_per_example: bool  # only the first pair of an example has draws


@njit
def are_valid_draws(ids: IntArray, log_counts: FloatArray, n: int) -> bool:
    """Whether all `ids` (B, m) are in ``range(n)`` and all `log_counts` (B, m) are finite."""
    num_invalid = 0
    for b in range(len(ids)):
        for k in range(ids.shape[1]):
            num_invalid += not (0 <= ids[b, k] < n and abs(log_counts[b, k]) < np.inf)
    return num_invalid == 0


@njit
def list_candidates(
    labels: IntArray, ids: IntArray, log_counts: FloatArray, n: int, out: IntArray
) -> int:
    """List the K candidates, which are the labels and the drawn classes, and group them by class.

    Returns the number of distinct classes; or -1, without writing anything, for invalid draws.

    Row 0 of `out` (5, K + 1) receives the K candidates, labels first. Rows 1 to 4 receive the
    arrays that `group_equal_ids` returns for the candidates: the distinct classes, the index of
    each candidate's class among them, the candidates sorted by class, and the offset of each class
    in that order. All are in one array, because each array passed from Python costs time. The last
    entry of row 0 is the number of classes that are both a label and drawn.
    """
    if not are_valid_draws(ids, log_counts, n):
        return -1

    candidates = out[0, :-1]
    copy_row(candidates, labels)
    copy_row(candidates[len(labels) :], ids.ravel())
    unique, inverse, order, offsets = group_equal_ids(candidates, n)
    copy_row(out[1], unique)
    copy_row(out[2], inverse)
    copy_row(out[3], order)
    copy_row(out[4], offsets)

    # `order` lists the labels of a class before its draws, so the first and the last candidate of a
    # class tell whether the class is both a label and drawn
    num_label_and_drawn = 0
    for g in range(len(unique)):
        num_label_and_drawn += order[offsets[g]] < len(labels) <= order[offsets[g + 1] - 1]

    out[0, -1] = num_label_and_drawn
    return len(unique)


@njit_bare
def gather_rows(
    ids: IntArray, rows: Floats, normalize: bool, block: Floats, norms: FloatArray
) -> None:
    """Copy the vectors of the classes `ids` (k,) from `rows` (n, d) to `block` (k, d).

    If `normalize`, also write their `norms` (k,), and divide the copies by them.
    """
    for k in range(len(ids)):
        if k + _PREFETCHED_ROWS < len(ids):
            prefetch_row(rows, ids[k + _PREFETCHED_ROWS])
        copy_row(block[k], rows[ids[k]])

    if normalize:
        divide_by_norms(block, norms)


@njit_bare
def score_labels(
    block: Floats,
    rows: IntArray,
    z: Floats,
    example_ids: IntArray,
    first_example: int,
    start: int,
    stop: int,
    label_scores: FloatArray,
) -> None:
    """Write the label scores (P,) of the pairs [start, stop).

    The vector of label p is row ``rows[p]`` of the block. Its context is row
    ``example_ids[p] - first_example`` of `z`.
    """
    for p in range(start, stop):
        label_scores[p] = row_dot(block, rows[p], z, example_ids[p] - first_example)


@njit_bare
def add_label_context_gradients(
    d_labels: Floats,
    block: Floats,
    rows: IntArray,
    example_ids: IntArray,
    first_example: int,
    start: int,
    stop: int,
    dz: Floats,
) -> None:
    """Add the labels' contribution to the gradients `dz` of the contexts.

    `d_labels` (P,) are derivatives in the label scores. For the other arguments see `score_labels`.
    """
    for p in range(start, stop):
        add_row(dz[example_ids[p] - first_example], d_labels[p], block[rows[p]])


@njit
def score_draws(
    block: Rows, z: Rows, num_draws: int, chunk_width: int, scores: Rows, product: Rows
) -> None:
    """Write the scores of `num_draws` draws that a block of examples shares.

    The vectors of the draws are the first rows of `block`; `z` (b, d) are the contexts. The flat
    array `scores` receives `num_draws` scores for each example, one example after the other. Scores
    are computed for `chunk_width` draws at a time; `product` is workspace.
    """
    for start in range(0, num_draws, chunk_width):
        stop = min(start + chunk_width, num_draws)
        chunk_scores = product[: len(z) * (stop - start)].reshape((len(z), stop - start))
        np.dot(z, block[start:stop].T, chunk_scores)
        for b in range(len(z)):
            copy_row(scores[b * num_draws + start :], chunk_scores[b])


@njit
def context_gradients_of_draws(
    d_sampled: Rows, block: Rows, num_draws: int, chunk_width: int, dz: Rows, product: Rows
) -> None:
    """Write the gradients in a block of b contexts, summed over `num_draws` shared draws.

    `dz` (b, d) receives the gradients. The vectors of the draws are the first rows of `block`. The
    derivatives in the scores come in chunks of `chunk_width` draws: the flat array ``d_sampled[j]``
    holds, for each context, the derivatives of chunk j. `product` is workspace.
    """
    chunk_product = product[: dz.size].reshape(dz.shape)
    dz[:] = 0.0
    for start in range(0, num_draws, chunk_width):
        chunk_draws = min(chunk_width, num_draws - start)
        flat_scores = d_sampled[start // chunk_width][: len(dz) * chunk_draws]
        d_scores = flat_scores.reshape((len(dz), chunk_draws))
        np.dot(d_scores, block[start : start + chunk_draws], chunk_product)
        for b in range(len(dz)):
            add_row(dz[b], 1.0, chunk_product[b])


@njit
def class_gradients_of_draws(
    d_sampled: Rows, j: int, block_size: int, z: Rows, num_drawn: int, gradient: Rows, product: Rows
) -> None:
    """Write the gradients in the vectors of the classes of block j, summed over all contexts `z`.

    Only the first `num_drawn` classes of the block are drawn; the rows of `gradient` after them
    become 0. The flat array ``d_sampled[i, j]`` holds the derivatives in the scores of the drawn
    classes for the i-th block of `block_size` examples. `product` is workspace.
    """
    gradient[:] = 0.0

    if num_drawn > 0:
        chunk_product = product[: num_drawn * z.shape[1]].reshape((num_drawn, z.shape[1]))
        for start in range(0, len(z), block_size):
            stop = min(start + block_size, len(z))
            d_scores = d_sampled[start // block_size, j][: (stop - start) * num_drawn]
            np.dot(d_scores.reshape((stop - start, num_drawn)).T, z[start:stop], chunk_product)
            for k in range(num_drawn):
                add_row(gradient[k], 1.0, chunk_product[k])


@njit
def score_shared_draws(
    labels: IntArray,
    example_ids: IntArray,
    ids: IntArray,
    log_counts: FloatArray,
    z: Floats,
    rows: Floats,
    biases: Floats,
    multiply: bool,
    candidate_table: IntArray,
    block: Floats,
    norms: FloatArray,
    label_scores: FloatArray,
    sampled_scores: Floats,
) -> int:
    """Write the scores of the labels (P,) and of one set of draws (1, m) that all examples share.

    Fills `candidate_table`, and returns the number of distinct classes, as `list_candidates` does.
    Fills `block` (P + m, d) with the vectors of the labels and draws. If `norms` is not empty, it
    receives the norms of the vectors, which are divided by them. If `multiply` is False, neither
    the scores of the draws (B, m) nor the `biases` are computed: only the label scores are written,
    without biases. `biases` may be empty.
    """
    num_unique = list_candidates(labels, ids, log_counts, len(rows), candidate_table)
    if num_unique < 0:
        return num_unique

    num_pairs = len(label_scores)
    m = sampled_scores.shape[1]
    classes = candidate_table[0, :-1]
    gather_rows(classes, rows, len(norms) > 0, block, norms)
    score_labels(block, np.arange(num_pairs), z, example_ids, 0, 0, num_pairs, label_scores)

    if multiply:
        if m > 0:
            # a contiguous copy makes the product faster
            np.dot(z, np.ascontiguousarray(block[num_pairs:].T), sampled_scores)
        add_biases_and_mark_not_finite(example_ids, classes, biases, label_scores, sampled_scores)

    return num_unique


@njit
def add_biases_and_mark_not_finite(
    example_ids: IntArray,
    candidates: IntArray,
    biases: Floats,
    label_scores: FloatArray,
    sampled_scores: Floats,
) -> None:
    """Add biases to the scores, and set label scores to NaN if a draw's score is not finite.

    If the score of one draw of an example is not finite, all label scores of the example become
    NaN. `candidates` holds the P labels, and then either m shared draws or m draws for each
    example. `biases` (n,) may be empty.
    """
    num_pairs = len(label_scores)
    m = sampled_scores.shape[1]
    if len(biases) > 0:
        for p in range(num_pairs):
            # the float64 score is rounded first, so that the sum is computed in the dtype of the
            # sampled scores and the biases
            label_scores[p] = sampled_scores.dtype.type(label_scores[p]) + biases[candidates[p]]

        first_draw = num_pairs
        for b in range(len(sampled_scores)):
            for k in range(m):
                sampled_scores[b, k] += biases[candidates[first_draw + k]]
            first_draw += m if len(candidates) > num_pairs + m else 0

    nan_where_not_finite(label_scores, sampled_scores, example_ids, 0, 0)


@njit
def shared_draw_gradients(
    d_labels: Floats,
    d_sampled: Floats,
    z: Floats,
    weights: FloatArray,
    example_ids: IntArray,
    block: Floats,
    norms: FloatArray,
    candidate_table: IntArray,
    draw_gradients: Floats,
    dz: Floats,
    dW: Floats,
) -> None:
    """Write the gradients in contexts and class vectors, for draws that all examples share.

    `dz` (B, d) receives the gradients in the contexts, `dW` (k, d) the gradients in the vectors of
    the k classes that are labels or drawn. `d_labels` (P,) and `d_sampled` (B, m) are the
    derivatives of the examples' losses in the scores; `weights` (B,) multiply the losses. `block`,
    `norms` and `candidate_table` come from `score_shared_draws`.

    If `draw_gradients` (m, d) is not empty, the caller has computed the large matrix products:
    `draw_gradients` holds the weighted gradients in the vectors of the draws, and `dz` the sums
    over draws of derivatives times vectors, not yet weighted.
    """
    num_pairs = len(d_labels)
    m = d_sampled.shape[1]
    order = candidate_table[3]
    offsets = candidate_table[4]
    example_weights = weights.astype(z.dtype)
    weighted_z = np.empty_like(z)

    for b in range(len(z)):
        for f in range(z.shape[1]):
            weighted_z[b, f] = example_weights[b] * z[b, f]

    if len(draw_gradients) == 0:
        draw_gradients = np.empty((m, z.shape[1]), z.dtype)
        if m > 0:
            np.dot(d_sampled, block[num_pairs:], dz)
            np.dot(d_sampled.T, weighted_z, draw_gradients)
        else:
            dz[:] = 0.0

    class_gradients(
        d_labels, d_sampled, weighted_z, example_ids, draw_gradients, order, offsets, dW
    )
    add_label_context_gradients(
        d_labels, block, np.arange(num_pairs), example_ids, 0, 0, num_pairs, dz
    )

    for b in range(len(z)):
        for f in range(z.shape[1]):
            dz[b, f] *= example_weights[b]

    if len(norms) > 0:
        # a class may have several rows in the block, which are equal: use the first
        unit = np.empty_like(dW)
        class_norms = np.empty(len(dW))
        for g in range(len(dW)):
            copy_row(unit[g], block[order[offsets[g]]])
            class_norms[g] = norms[order[offsets[g]]]
        unit_gradient(dW, unit, class_norms)


@njit
def _add_multiple(factor: float, matrix: Floats, i: int, total: Floats) -> None:
    for f in range(len(total)):
        total[f] += factor * matrix[i, f]


@njit
def score_rows(
    z: Floats, example_ids: IntArray, block: Floats, rows: IntArray, scores: Floats
) -> None:
    """Write ``scores[i, k] = z[example_ids[i]] . block[rows[i, k]]``, for `rows` (N, k)."""
    for i in range(len(rows)):
        # stored in a variable: otherwise the compiler reads it again after each write to `scores`,
        # which might overlap `example_ids`
        example = example_ids[i]
        for k in range(rows.shape[1]):
            scores[i, k] = row_dot(block, rows[i, k], z, example)


@njit
def context_gradients(d_scores: Floats, block: Floats, rows: IntArray, dz: Floats) -> None:
    """Write ``dz[b] = sum_k d_scores[b, k] block[rows[b, k]]``, summed in float64."""
    total = np.empty(dz.shape[1])  # float64: terms of many draws largely cancel
    for b in range(len(rows)):
        total[:] = 0.0
        for k in range(rows.shape[1]):
            if d_scores[b, k] != 0.0:  # masked draws have a derivative of 0
                _add_multiple(d_scores[b, k], block, rows[b, k], total)
        copy_row(dz[b], total)


@njit
def class_gradients(
    d_labels: Floats,
    d_sampled: Floats,
    z: Floats,
    example_ids: IntArray,
    draw_gradients: Floats,
    order: IntArray,
    offsets: IntArray,
    out: Floats,
) -> None:
    """Write the gradients in the vectors of k classes to `out` (k, d).

    A gradient is a sum of derivatives times contexts, computed in float64. `d_labels` (P,) and
    `d_sampled` (B, m) are the derivatives in the scores of labels and draws. Pair p belongs to
    example ``example_ids[p]``. If examples share the draws, `draw_gradients` (m, d) holds the
    gradients in the vectors of the draws, summed over the examples; otherwise it is empty.

    The labels and then the draws are numbered as candidates. The candidates of class g are
    ``order[offsets[g]:offsets[g + 1]]``; see `kernels.sort_ids.group_equal_ids`.
    """
    num_pairs = len(d_labels)
    m = d_sampled.shape[1]
    d_draws = d_sampled.ravel()
    total = np.empty(out.shape[1])
    one = d_labels.dtype.type(1)

    for g in range(len(out)):
        start, stop = offsets[g], offsets[g + 1]
        for i in range(start, stop):
            index = order[i]
            draw = index - num_pairs
            if draw < 0:
                factor = d_labels[index]
                matrix = z
                row = example_ids[index]
            elif len(draw_gradients) > 0:
                factor = one
                matrix = draw_gradients
                row = draw
            else:
                factor = d_draws[draw]
                matrix = z
                row = draw // m

            # a single term needs no sum
            if stop == start + 1:
                for f in range(out.shape[1]):
                    out[g, f] = factor * matrix[row, f]
            else:
                if i == start:
                    total[:] = 0.0
                if factor != 0.0:
                    _add_multiple(factor, matrix, row, total)

        if stop > start + 1:
            copy_row(out[g], total)


@njit
def find_accidental_hits(
    label_indices: IntArray,
    example_ids: IntArray,
    order: IntArray,
    offsets: IntArray,
    num_draws: int,
    shares_draws: bool,
) -> tuple[IntArray, IntArray, IntArray]:
    """Find the columns of the draws that equal the label of a pair (accidental hits).

    Returns ``(starts, stops, columns)``: the hits of pair p are in the columns
    ``columns[starts[p]:stops[p]]`` of its example's draws. `label_indices` (P,) are the indices of
    the labels among the distinct classes. There are `num_draws` draws for each example, or for all
    examples together if `shares_draws`.

    The labels and then the draws are numbered as candidates. The candidates of class g are
    ``order[offsets[g]:offsets[g + 1]]``.
    """
    num_pairs = len(label_indices)
    hit_starts = np.empty(num_pairs, np.int64)
    hit_stops = np.empty(num_pairs, np.int64)
    hit_columns = np.empty(len(order), np.int64)

    for p in range(num_pairs):
        start = offsets[label_indices[p]]
        stop = offsets[label_indices[p] + 1]
        first_draw = num_pairs + (0 if shares_draws else example_ids[p] * num_draws)
        i = start + count_below(order[start:stop], first_draw)
        hit_starts[p] = i
        while i < stop and order[i] < first_draw + num_draws:
            hit_columns[i] = order[i] - first_draw
            i += 1
        hit_stops[p] = i

    return hit_starts, hit_stops, hit_columns


@njit_bare
def nan_where_not_finite(
    label_scores: FloatArray,
    sampled_scores: Floats,
    example_ids: IntArray,
    first_example: int,
    first_pair: int,
) -> None:
    """Set the label scores (P,) of an example to NaN if one of its `sampled_scores` is not finite.

    `sampled_scores` is (B, m). Its row 0 belongs to the example `first_example`, whose first pair
    has the index `first_pair`.
    """
    p = first_pair
    for b in range(len(sampled_scores)):
        num_not_finite = 0
        for k in range(sampled_scores.shape[1]):
            num_not_finite += 0 if abs(sampled_scores[b, k]) < np.inf else 1
        while p < len(label_scores) and example_ids[p] - first_example == b:
            label_scores[p] = label_scores[p] if num_not_finite == 0 else np.nan
            p += 1


@njit
def write_pair_logits(pairs: Pairs, first_pair: int, logits: Floats) -> None:
    """Write the logits (N, 1 + m) of label and draws for N pairs, from `first_pair` on.

    Draws that do not enter the loss of a pair get -inf. If `logits` is float32, the maximum of each
    row is first subtracted in float64, so that differences of large logits keep their digits.
    """
    example_ids = pairs.example_ids
    sampled_scores = pairs.sampled_scores
    log_counts = pairs.log_counts
    row = np.empty(logits.shape[1])

    for i in range(len(logits)):
        p = first_pair + i
        b = example_ids[p] - pairs.first_example
        count_row = b if len(log_counts) > 1 else 0
        row[0] = pairs.label_logits[p]

        for k in range(sampled_scores.shape[1]):
            row[1 + k] = sampled_scores[b, k] - log_counts[count_row, k]

        if has_draws(pairs, p):
            mask_hits(pairs, p, row)
        else:
            row[1:] = -np.inf

        shift = row_max(row) if logits.itemsize == 4 else 0.0
        for k in range(len(row)):
            logits[i, k] = row[k] - shift


@njit_bare
def has_draws(pairs: Pairs, p: int) -> bool:
    """Whether the loss of pair p includes the draws.

    If draws count once per example, only the example's first pair includes them.
    """
    is_first = not (p > 0 and pairs.example_ids[p - 1] == pairs.example_ids[p])
    return is_first or not pairs.counts_draws_once_per_example


@njit_bare
def keeps_hits(pairs: Pairs, p: int, q: int) -> bool:
    """Whether draws of the label of pair q enter the loss of pair p of the same example."""
    return pairs.keeps_label_hits if q == p else pairs.keeps_other_hits


@njit_bare
def mask_hits(pairs: Pairs, p: int, row: FloatArray) -> None:
    """Set to -inf the logits of accidental hits that must not enter the loss of pair p.

    The row (1 + m,) holds the logit of the label, followed by the logits of the draws.
    """
    example_ids = pairs.example_ids
    start = p
    stop = p + 1
    if not pairs.keeps_other_hits:  # also go through the hits of the example's other labels
        while start > 0 and example_ids[start - 1] == example_ids[p]:
            start -= 1
        while stop < len(example_ids) and example_ids[stop] == example_ids[p]:
            stop += 1

    for q in range(start, stop):
        if not keeps_hits(pairs, p, q):
            for i in range(pairs.hit_starts[q], pairs.hit_stops[q]):
                row[1 + pairs.hit_columns[i]] = -np.inf


@njit
def scatter_logit_gradients(
    pairs: Pairs,
    first_pair: int,
    d_logits: Floats,
    losses: FloatArray,
    d_labels: Floats,
    d_sampled: Floats,
) -> None:
    """Convert derivatives in the logits of N pairs to derivatives in the scores.

    `d_logits` (N, 1 + m) are the derivatives of the losses of N pairs, from `first_pair` on.
    `d_labels` (P,) receives the derivatives in the label scores, `d_sampled` (B, m) the derivatives
    in the sampled scores, summed over the pairs of each example in float64. All derivatives, and
    the `losses` (P,), are multiplied by the label weights.
    """
    example_ids = pairs.example_ids
    label_logits = pairs.label_logits
    label_weights = pairs.label_weights
    width = d_logits.shape[1] - 1
    total = np.empty(width)  # float64: terms of several labels may cancel

    for i in range(len(d_logits)):
        p = first_pair + i
        b = example_ids[p] - pairs.first_example
        label_weight = label_weights[p] if len(label_weights) > 0 else 1.0
        losses[p] *= label_weight if abs(label_logits[p]) < np.inf else np.nan
        d_labels[p] = label_weight * d_logits[i, 0]
        is_first = p == 0 or example_ids[p - 1] != example_ids[p]
        is_last = i + 1 == len(d_logits) or example_ids[p + 1] != example_ids[p]

        if is_first:
            for k in range(width):
                total[k] = label_weight * d_logits[i, 1 + k]
        else:
            if i == 0:
                for k in range(width):
                    total[k] = d_sampled[b, k]
            for k in range(width):
                total[k] += label_weight * d_logits[i, 1 + k]

        if is_last:
            for k in range(width):
                d_sampled[b, k] = total[k]


@njit
def reject_correction(m: int, num_hits: int, label_count: float) -> float:
    """Return the term that scheme "reject" adds to the logits of the accepted draws.

    Of the m draws, `num_hits` are the label t, and are discarded. The ``k = m - num_hits`` accepted
    draws have the distribution q given that the class is not t. Class j therefore has the expected
    count ``k q_j / (1 - q_t)``, not ``m q_j``: the term is the log of the ratio
    ``m (1 - q_t) / k``. `label_count` is ``log(m q_t)``. To subtract the term from the label's
    logit gives the same softmax.
    """
    # m (1 - q_t) by expm1, which keeps its digits if q_t is near 1
    expected_count = -m * math.expm1(min(label_count - math.log(m), 0.0))
    has_correction = expected_count > 0.0 and num_hits < m
    return math.log(expected_count / (m - num_hits)) if has_correction else 0.0


@njit
def reject_corrections(m: int, hit_counts: IntArray, label_counts: FloatArray) -> FloatArray:
    """Return the `reject_correction` (P,) of each pair, a term of logits.

    `hit_counts` (P,) are the numbers of accidental hits of the pairs, or (0,) if no pair has hits.
    `label_counts` (P,) are the log expected counts of the labels.
    """
    corrections = np.empty(len(label_counts))
    for p in range(len(corrections)):
        num_hits = hit_counts[p] if len(hit_counts) > 0 else 0
        corrections[p] = reject_correction(m, num_hits, label_counts[p])
    return corrections
