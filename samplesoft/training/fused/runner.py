"""The compiled function that takes the steps of a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from samplesoft._jit import meet, njit_bare
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.rows import add_row, divide_by_norms, unit_gradient, weighted_rows
from samplesoft.losses.differentiate import named
from samplesoft.losses.sampled import CHUNK_NUMBERS, Terms
from samplesoft.losses.step import (
    Pairs,
    add_labels,
    gather,
    gradient_of_draws,
    pull_of_draws,
    score_draws,
    score_labels,
    void_unsound,
)
from samplesoft.samplers.base import Rows
from samplesoft.training.fused.layout import BLOCK_EXAMPLES, Job, LossRules, StepPairs

_BLOCK_FEATURES = 64
Kernel = Callable[..., Any]


class TrainedRows(NamedTuple):
    """Rows that are trained, and the state of their optimizer."""

    rows: Rows
    states: tuple[Rows, ...]


class Update(NamedTuple):
    """What is trained, and how."""

    inputs: TrainedRows
    intercept: TrainedRows
    row: IntArray  # (1,): that of the intercept, 0
    classes: TrainedRows
    numbers: Rows  # (S, k): what the optimizer's kernel takes, for each step
    limit: float  # of the numbers of a gradient


class Scratch(NamedTuple):
    """Room of a worker, for what no other one reads."""

    scores: Rows  # of a block of examples
    gradients: Rows  # of a block of rows
    product: Rows
    drawn: Rows  # scores of each draw of a block of examples, in the type of their logits
    d_drawn: Rows
    logits: FloatArray


def scratch_of(job: Job, terms: Terms) -> Scratch:
    """Make room for a worker."""
    (most, dim), dtype = job.room.block.shape, job.room.block.dtype
    wide = max(job.width, BLOCK_EXAMPLES, _BLOCK_FEATURES)
    # a loss that merges exponentials needs no more digits than scores have
    kind = dtype if terms.merge is not None and terms.adds_exponentials else np.float64
    num_logits = max(job.draws.logs.shape[1], most)
    return Scratch(
        scores=np.empty(BLOCK_EXAMPLES * most, dtype),
        gradients=np.empty(wide * dim, dtype),
        product=np.empty(max(wide * dim, BLOCK_EXAMPLES * job.width), dtype),
        drawn=np.empty(BLOCK_EXAMPLES * num_logits, kind),
        d_drawn=np.empty(BLOCK_EXAMPLES * num_logits, kind),
        logits=np.empty(max(CHUNK_NUMBERS, 3 * (2 + num_logits))),
    )


@njit_bare
def _embed(loss: LossRules, intercept: Rows, contexts: Rows, norms: FloatArray, z: Rows) -> None:
    """Complete the contexts of a block of examples."""
    tau = z.dtype.type(loss.tau)
    for b in range(len(z)):
        add_row(contexts[b], 1.0, intercept)
    if loss.normalize:
        divide_by_norms(contexts, norms)
    for b in range(len(z)):
        for i in range(z.shape[1]):
            z[b, i] = tau * contexts[b, i]


@njit_bare
def _scores_of_draws(
    loss: LossRules, columns: IntArray, scores: Rows, num: int, drawn: Rows
) -> None:
    """Write the scores of draws, from those of `num` classes of one example after another."""
    for b in range(len(drawn)):
        for k in range(drawn.shape[1]):
            drawn[b, k] = scores[b * num + (columns[k] if len(columns) > 0 else k)]
        if loss.absolute:
            for k in range(drawn.shape[1]):
                drawn[b, k] = abs(drawn[b, k])


@njit_bare
def _slopes_of_classes(
    loss: LossRules, columns: IntArray, d_drawn: Rows, num: int, scores: Rows
) -> None:
    """Turn the scores of the classes drawn into derivatives in them."""
    for b in range(len(d_drawn)):
        if loss.absolute:  # from derivatives in |o| to those in o
            for k in range(d_drawn.shape[1]):
                place = columns[k] if len(columns) > 0 else k
                d_drawn[b, k] *= np.sign(scores[b * num + place])
        if len(columns) == 0:
            for k in range(num):
                scores[b * num + k] = d_drawn[b, k]
        else:
            for k in range(num):
                scores[b * num + k] = 0.0
            for k in range(len(columns)):
                scores[b * num + columns[k]] += d_drawn[b, k]


@njit_bare
def _spread(
    factors: FloatArray,
    first: int,
    last: int,
    scores: Rows,
    num: int,
    width: int,
    d_drawn: Rows,
) -> None:
    """Weigh derivatives of examples in scores of `num` classes; put them where blocks find them."""
    for b in range(last - first):
        factor = scores.dtype.type(factors[first + b])
        for start in range(0, num, width):
            wide = min(width, num - start)
            out = d_drawn[start // width]
            for k in range(wide):
                out[b * wide + k] = factor * scores[b * num + start + k]


@njit_bare
def _times_tau(tau: float, slopes: Rows) -> None:
    """Go on from derivatives in contexts times tau to those in contexts."""
    typed = slopes.dtype.type(tau)
    for b in range(len(slopes)):
        for i in range(slopes.shape[1]):
            slopes[b, i] *= typed


@njit_bare
def _of_labels(pairs: StepPairs, i: int, stop: int, first: int, z: Rows, gradient: Rows) -> None:
    """Add what the labels of the pairs [i, stop) bring to those of the classes from `first` on."""
    end = stop
    while i < stop:  # a search for the first label of the block
        middle = (i + stop) // 2
        if pairs.labels[pairs.by_place[middle]] < first:
            i = middle + 1
        else:
            stop = middle
    while i < end and pairs.labels[pairs.by_place[i]] < first + len(gradient):
        p = pairs.by_place[i]
        add_row(gradient[pairs.labels[p] - first], pairs.slopes[p], z[pairs.owners[p]])
        i += 1


# the kernel of an optimizer, and the runner -------------------------------------------------------


@cache
def make_updater(rows_kernel: Kernel) -> Kernel:
    """Return a kernel that changes rows, and returns how many numbers of a gradient are refused."""

    def update_rows(
        ids: IntArray, gradient: Rows, table: TrainedRows, numbers: Rows, limit: float
    ) -> int:
        bad = 0
        for row in gradient:
            for i in range(len(row)):
                bad += 0 if abs(row[i]) <= limit else 1  # NaN too
        if bad == 0:
            rows_kernel(ids, gradient, table.rows, table.states, numbers)
        return bad

    return njit_bare(named(update_rows, rows_kernel))


@cache
def make_runner(differentiate: Kernel, update_rows: Kernel, plain: bool) -> Kernel:
    """Return the kernel that takes steps by a loss and an optimizer; it is compiled when called.

    It is `plain` where the scores of the classes drawn are the logits of draws, but for what these
    lose.
    """

    def run(
        job: Job,
        update: Update,
        scratch: Scratch,
        arrived: IntArray,
        worker: int,
        workers: int,
    ) -> None:
        """Take all the steps, as one of some workers that do so together."""
        loss, draws, pairs, hits = job.loss, job.draws, job.pairs, job.hits
        entries, room = job.entries, job.room
        gradients, product = scratch.gradients, scratch.product
        dim, width, meetings, bad = room.z.shape[1], job.width, 0, 0
        for s in range(len(draws.num_drawn)):
            begin, end = s * job.size, min((s + 1) * job.size, len(job.factors))
            num, num_classes, numbers = draws.num_drawn[s], draws.num_classes[s], update.numbers[s]
            for first in range(worker * width, num_classes, workers * width):
                last = min(first + width, num_classes)
                ids, norms = draws.classes[s, first:last], room.block_norms[first:last]
                gather(ids, update.classes.rows, loss.normalize, room.block[first:last], norms)
            meetings += 1
            meet(arrived, workers, meetings)
            for first in range(begin + worker * BLOCK_EXAMPLES, end, workers * BLOCK_EXAMPLES):
                last = min(first + BLOCK_EXAMPLES, end)
                block = slice(first - begin, last - begin)
                z, slopes = room.z[block], room.slopes[block]
                contexts, norms = room.contexts[block], room.norms[block]
                bounds = entries.bounds[first : last + 1]
                weighted_rows(bounds, entries.columns, entries.values, update.inputs.rows, contexts)
                _embed(loss, update.intercept.rows[0], contexts, norms, z)
                score_draws(room.block, z, num, width, scratch.scores, scratch.product)
                # from scores of draws and labels to derivatives, which take their place
                columns = draws.columns[s]
                num_logits = len(columns) if len(columns) > 0 else num
                shape, size = (len(z), num_logits), len(z) * num_logits
                d_drawn = scratch.d_drawn[:size].reshape(shape)
                if plain:
                    drawn = scratch.scores[:size].reshape(shape)
                else:
                    drawn = scratch.drawn[:size].reshape(shape)
                    _scores_of_draws(loss, columns, scratch.scores, num, drawn)
                begin_pairs, end_pairs = pairs.firsts[first], pairs.firsts[last]
                here = first - begin
                score_labels(
                    room.block,
                    pairs.labels,
                    z,
                    pairs.owners,
                    here,
                    begin_pairs,
                    end_pairs,
                    hits.scores,
                )
                for p in range(begin_pairs, end_pairs):
                    score = abs(hits.scores[p]) if loss.absolute else hits.scores[p]
                    pairs.slopes[p] = score - pairs.logs[p]
                void_unsound(pairs.slopes, drawn, pairs.owners, here, begin_pairs)
                of_block = Pairs(
                    own=pairs.slopes,
                    drawn=drawn,
                    log_counts=draws.logs[s : s + 1],
                    owners=pairs.owners,
                    begin=here,
                    shares=pairs.shares,
                    hit_starts=hits.starts,
                    hit_stops=hits.stops,
                    hit_columns=hits.columns,
                    keeps_own=loss.keeps_own,
                    keeps_others=loss.keeps_others,
                    once=loss.once,
                )
                differentiate(
                    of_block,
                    begin_pairs,
                    end_pairs,
                    job.numbers,
                    draws.weights[s : s + 1],
                    scratch.logits,
                    hits.losses,
                    pairs.slopes,
                    d_drawn,
                )
                blocks = room.d_drawn[here // BLOCK_EXAMPLES]
                for b in range(first, last):
                    lost = 0.0
                    for p in range(pairs.firsts[b], pairs.firsts[b + 1]):
                        lost += hits.losses[p]
                        sign = np.sign(hits.scores[p]) if loss.absolute else 1.0
                        pairs.slopes[p] *= job.factors[b] * sign
                    job.losses[b] = lost
                    if not abs(lost) < np.inf:
                        job.trouble[1] = 1
                if plain:
                    _spread(job.factors, first, last, scratch.d_drawn, num, width, blocks)
                else:
                    _slopes_of_classes(loss, columns, d_drawn, num, scratch.scores)
                    _spread(job.factors, first, last, scratch.scores, num, width, blocks)
                pull_of_draws(blocks, room.block, num, width, slopes, scratch.product)
                add_labels(
                    pairs.slopes,
                    room.block,
                    pairs.labels,
                    pairs.owners,
                    here,
                    begin_pairs,
                    end_pairs,
                    slopes,
                )
                _times_tau(loss.tau, slopes)
                if loss.normalize:
                    unit_gradient(slopes, contexts, norms)
            meetings += 1
            meet(arrived, workers, meetings)
            if job.trouble[1] != 0:  # nothing changes by a loss that is not finite
                return
            for first in range(worker * width, num_classes, workers * width):
                last = min(first + width, num_classes)
                gradient = gradients[: (last - first) * dim].reshape((last - first, dim))
                z, num_here = room.z[: end - begin], min(last, num) - first
                gradient_of_draws(
                    room.d_drawn, first // width, BLOCK_EXAMPLES, z, num_here, gradient, product
                )
                _of_labels(pairs, pairs.firsts[begin], pairs.firsts[end], first, z, gradient)
                if loss.normalize:
                    unit_gradient(gradient, room.block[first:last], room.block_norms[first:last])
                ids = draws.classes[s, first:last]
                bad += update_rows(ids, gradient, update.classes, numbers, update.limit)
            low = entries.bounds[begin]
            for first in range(
                worker * _BLOCK_FEATURES, entries.num_features[s], workers * _BLOCK_FEATURES
            ):
                last = min(first + _BLOCK_FEATURES, entries.num_features[s])
                gradient = gradients[: (last - first) * dim].reshape((last - first, dim))
                starts = entries.starts[low + s + first : low + s + last + 1]
                weighted_rows(starts, entries.owners, entries.by_feature, room.slopes, gradient)
                ids = entries.features[low + first : low + last]
                bad += update_rows(ids, gradient, update.inputs, numbers, update.limit)
            if worker == workers - 1:  # which has the fewest blocks
                gradient = gradients[:dim].reshape((1, dim))
                gradient[:] = 0.0
                for b in range(end - begin):
                    add_row(gradient[0], 1.0, room.slopes[b])
                bad += update_rows(update.row, gradient, update.intercept, numbers, update.limit)
            if bad > 0:  # all write the same
                job.trouble[0] = 1
            meetings += 1
            meet(arrived, workers, meetings)

    if not plain:
        run.__name__ = "run_of_draws"
    return njit_bare(named(run, differentiate, update_rows))
