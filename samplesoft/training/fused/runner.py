"""The compiled function that takes the steps of a block.

A step has five stages. Workers (threads) divide the blocks of each stage, and synchronise at three
barriers:

1. class vectors are gathered, a block of classes at a time - barrier;
2. examples are embedded, scored and differentiated, a block of them at a time - barrier;
3. gradients of classes are summed, and their rows updated, a block of classes at a time;
4. gradients of features likewise, a block of features at a time;
5. the gradient of the intercept likewise, by one worker - barrier.

The result of a block does not depend on the worker, and each sum is computed within one block, so
that results do not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from samplesoft._jit import barrier_wait, njit_bare
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.rows import add_row, divide_by_norms, unit_gradient, weighted_rows
from samplesoft.losses.differentiate import name_after_kernels
from samplesoft.losses.sampled import CHUNK_LOGITS, Terms
from samplesoft.losses.step import (
    Pairs,
    add_label_context_gradients,
    class_gradients_of_draws,
    context_gradients_of_draws,
    gather_rows,
    nan_where_not_finite,
    score_draws,
    score_labels,
)
from samplesoft.samplers.base import Rows
from samplesoft.training.fused.layout import BLOCK_EXAMPLES, LossSettings, StepBlock, StepPairs

_BLOCK_FEATURES = 64
_GRADIENT = 0  # index in `StepBlock.diverged`
_LOSS = 1
Kernel = Callable[..., Any]


class TrainedRows(NamedTuple):
    """Parameter rows, and the state of their optimizer."""

    rows: Rows
    states: tuple[Rows, ...]


class Updates(NamedTuple):
    """Trained parameters, and the hyper-parameters of the optimizer's kernel in each step."""

    inputs: TrainedRows
    intercept: TrainedRows
    intercept_id: IntArray  # (1,): index of its only row, 0
    classes: TrainedRows
    hyper_parameters: Rows  # (S, k)
    largest_gradient: float  # in absolute value; larger entries are rejected


class WorkerWorkspace(NamedTuple):
    """Arrays of one worker, for one block at a time."""

    scores: Rows  # of drawn classes, for a block of examples
    gradients: Rows  # for a block of rows
    product: Rows
    sampled_scores: Rows  # scores of draws, in the dtype of the logits
    d_sampled: Rows
    logits: FloatArray


def worker_workspace(steps: StepBlock, terms: Terms) -> WorkerWorkspace:
    """Return the workspace of a worker."""
    max_classes, dim = steps.workspace.class_vectors.shape
    dtype = steps.workspace.class_vectors.dtype
    max_rows = max(steps.width, BLOCK_EXAMPLES, _BLOCK_FEATURES)
    # a loss that merges exponentials computes in the precision of the scores
    merges = terms.merge is not None and terms.adds_exponentials
    logit_dtype = dtype if merges else np.float64
    num_logits = max(steps.classes.log_counts.shape[1], max_classes)
    return WorkerWorkspace(
        scores=np.empty(BLOCK_EXAMPLES * max_classes, dtype),
        gradients=np.empty(max_rows * dim, dtype),
        product=np.empty(max(max_rows * dim, BLOCK_EXAMPLES * steps.width), dtype),
        sampled_scores=np.empty(BLOCK_EXAMPLES * num_logits, logit_dtype),
        d_sampled=np.empty(BLOCK_EXAMPLES * num_logits, logit_dtype),
        logits=np.empty(max(CHUNK_LOGITS, 3 * (2 + num_logits))),
    )


# stages of a block of examples, in their order ----------------------------------------------------


@njit_bare
def _embed_examples(
    loss: LossSettings,
    offsets: IntArray,
    features: IntArray,
    values: Rows,
    inputs: Rows,
    intercept: Rows,
    contexts: Rows,
    norms: FloatArray,
    z: Rows,
) -> None:
    """Write the contexts of a block of examples, and `z`, contexts times tau."""
    weighted_rows(offsets, features, values, inputs, contexts)
    for b in range(len(z)):
        add_row(contexts[b], 1.0, intercept)
    if loss.normalize:
        divide_by_norms(contexts, norms)
    tau = z.dtype.type(loss.tau)
    for b in range(len(z)):
        for i in range(z.shape[1]):
            z[b, i] = tau * contexts[b, i]


@njit_bare
def _expand_class_scores(
    loss: LossSettings, class_of_draw: IntArray, scores: Rows, num_drawn: int, sampled_scores: Rows
) -> None:
    """Write the scores of draws, from the scores of the distinct drawn classes."""
    for b in range(len(sampled_scores)):
        for k in range(sampled_scores.shape[1]):
            sampled_scores[b, k] = scores[
                b * num_drawn + (class_of_draw[k] if len(class_of_draw) > 0 else k)
            ]
        if loss.absolute:
            for k in range(sampled_scores.shape[1]):
                sampled_scores[b, k] = abs(sampled_scores[b, k])


@njit_bare
def _label_logits(
    loss: LossSettings,
    label_scores: FloatArray,
    log_counts: FloatArray,
    begin: int,
    end: int,
    logits: FloatArray,
) -> None:
    """Write the logits of the labels of pairs [begin, end)."""
    for p in range(begin, end):
        score = abs(label_scores[p]) if loss.absolute else label_scores[p]
        logits[p] = score - log_counts[p]


@njit_bare
def _sum_pair_losses(
    loss: LossSettings,
    offsets: IntArray,
    example_weights: FloatArray,
    first: int,
    last: int,
    pair_losses: FloatArray,
    label_scores: FloatArray,
    d_labels: FloatArray,
    losses: FloatArray,
    diverged: IntArray,
) -> None:
    """Write the losses of examples [first, last), and weight the derivatives of their labels."""
    for b in range(first, last):
        total = 0.0
        for p in range(offsets[b], offsets[b + 1]):
            total += pair_losses[p]
            sign = np.sign(label_scores[p]) if loss.absolute else 1.0
            d_labels[p] *= example_weights[b] * sign
        losses[b] = total
        if not abs(total) < np.inf:
            diverged[_LOSS] = 1


@njit_bare
def _sum_derivatives_by_class(
    loss: LossSettings, class_of_draw: IntArray, d_sampled: Rows, num_drawn: int, class_scores: Rows
) -> None:
    """Overwrite the scores of the drawn classes by derivatives, summed over draws of a class."""
    for b in range(len(d_sampled)):
        if loss.absolute:  # d|o| / do is the sign of o
            for k in range(d_sampled.shape[1]):
                column = class_of_draw[k] if len(class_of_draw) > 0 else k
                d_sampled[b, k] *= np.sign(class_scores[b * num_drawn + column])
        if len(class_of_draw) == 0:
            for k in range(num_drawn):
                class_scores[b * num_drawn + k] = d_sampled[b, k]
        else:
            for k in range(num_drawn):
                class_scores[b * num_drawn + k] = 0.0
            for k in range(len(class_of_draw)):
                class_scores[b * num_drawn + class_of_draw[k]] += d_sampled[b, k]


@njit_bare
def _weigh_and_store(
    example_weights: FloatArray,
    first: int,
    last: int,
    d_scores: Rows,
    num_drawn: int,
    width: int,
    d_sampled_blocks: Rows,
) -> None:
    """Weight derivatives in scores, and store them by blocks of classes for stage 3."""
    for b in range(last - first):
        weight = d_scores.dtype.type(example_weights[first + b])
        for start in range(0, num_drawn, width):
            num = min(width, num_drawn - start)
            out = d_sampled_blocks[start // width]
            for k in range(num):
                out[b * num + k] = weight * d_scores[b * num_drawn + start + k]


@njit_bare
def _context_gradients(
    loss: LossSettings, contexts: Rows, norms: FloatArray, d_embedded: Rows
) -> None:
    """Turn gradients in contexts times tau into gradients in embedded inputs."""
    tau = d_embedded.dtype.type(loss.tau)
    for b in range(len(d_embedded)):
        for i in range(d_embedded.shape[1]):
            d_embedded[b, i] *= tau
    if loss.normalize:
        unit_gradient(d_embedded, contexts, norms)


# stages of a block of rows ------------------------------------------------------------------------


@njit_bare
def _add_label_gradients(
    pairs: StepPairs,
    d_labels: FloatArray,
    begin: int,
    end: int,
    first: int,
    z: Rows,
    gradient: Rows,
) -> None:
    """Add the contribution of labels to the gradients of a block of classes.

    The block begins at class `first`. The step has the pairs [begin, end).
    """
    low = begin
    high = end
    while low < high:  # binary search for the first label in the block
        middle = (low + high) // 2
        if pairs.classes[pairs.by_class[middle]] < first:
            low = middle + 1
        else:
            high = middle
    while low < end and pairs.classes[pairs.by_class[low]] < first + len(gradient):
        p = pairs.by_class[low]
        add_row(gradient[pairs.classes[p] - first], d_labels[p], z[pairs.example_ids[p]])
        low += 1


@njit_bare
def _sum_rows(rows: Rows, gradient: Rows) -> None:
    """Write the sum of rows to the only row of a gradient, the intercept's."""
    gradient[:] = 0.0
    for b in range(len(rows)):
        add_row(gradient[0], 1.0, rows[b])


@cache
def make_updater(rows_kernel: Kernel) -> Kernel:
    """Return a kernel that updates rows, or none, and returns the number of rejected entries."""

    def update_rows(
        ids: IntArray,
        gradient: Rows,
        trained: TrainedRows,
        hyper_parameters: Rows,
        largest_gradient: float,
    ) -> int:
        num_refused = 0
        for row in gradient:
            for i in range(len(row)):
                num_refused += 0 if abs(row[i]) <= largest_gradient else 1  # NaN too
        if num_refused == 0:
            rows_kernel(ids, gradient, trained.rows, trained.states, hyper_parameters)
        return num_refused

    return njit_bare(name_after_kernels(update_rows, rows_kernel))


# the runner ---------------------------------------------------------------------------------------


@cache
def make_runner(differentiate: Kernel, update_rows: Kernel, draws_are_classes: bool) -> Kernel:
    """Return the kernel that takes steps with a loss and an optimizer; it compiles when called.

    If `draws_are_classes`, logits are those of the drawn classes. Else scores are copied for each
    draw, and derivatives are summed by class again.
    """

    def run(
        steps: StepBlock,
        updates: Updates,
        local: WorkerWorkspace,
        arrived: IntArray,
        worker: int,
        workers: int,
    ) -> None:
        """Take all steps, as one of several workers that run concurrently."""
        loss, classes, pairs, hits = steps.loss, steps.classes, steps.pairs, steps.hits
        entries, shared = steps.entries, steps.workspace
        dim = shared.z.shape[1]
        width = steps.width
        limit = updates.largest_gradient
        num_barriers = 0
        num_refused = 0
        for s in range(len(classes.num_drawn)):
            begin = s * steps.batch_size
            end = min(begin + steps.batch_size, len(steps.example_weights))
            num_drawn = classes.num_drawn[s]
            num_classes = classes.num_classes[s]
            class_of_draw = classes.class_of_draw[s]
            hyper_parameters = updates.hyper_parameters[s]

            # 1. class vectors
            for first in range(worker * width, num_classes, workers * width):
                last = min(first + width, num_classes)
                gather_rows(
                    classes.ids[s, first:last],
                    updates.classes.rows,
                    loss.normalize,
                    shared.class_vectors[first:last],
                    shared.class_norms[first:last],
                )
            num_barriers += 1
            barrier_wait(arrived, workers, num_barriers)

            # 2. losses, derivatives in scores, and gradients of contexts
            for first in range(begin + worker * BLOCK_EXAMPLES, end, workers * BLOCK_EXAMPLES):
                last = min(first + BLOCK_EXAMPLES, end)
                row_begin = first - begin
                of_block = slice(row_begin, last - begin)
                z = shared.z[of_block]
                d_embedded = shared.d_embedded[of_block]
                contexts = shared.contexts[of_block]
                norms = shared.context_norms[of_block]
                begin_pairs = pairs.offsets[first]
                end_pairs = pairs.offsets[last]
                d_sampled_blocks = shared.d_sampled[row_begin // BLOCK_EXAMPLES]
                _embed_examples(
                    loss,
                    entries.offsets[first : last + 1],
                    entries.features,
                    entries.values,
                    updates.inputs.rows,
                    updates.intercept.rows[0],
                    contexts,
                    norms,
                    z,
                )

                score_draws(shared.class_vectors, z, num_drawn, width, local.scores, local.product)
                num_logits = len(class_of_draw) if len(class_of_draw) > 0 else num_drawn
                shape = (len(z), num_logits)
                size = len(z) * num_logits
                d_sampled = local.d_sampled[:size].reshape(shape)
                if draws_are_classes:  # a constant when compiled
                    sampled_scores = local.scores[:size].reshape(shape)
                else:
                    sampled_scores = local.sampled_scores[:size].reshape(shape)
                    _expand_class_scores(
                        loss, class_of_draw, local.scores, num_drawn, sampled_scores
                    )
                score_labels(
                    shared.class_vectors,
                    pairs.classes,
                    z,
                    pairs.example_ids,
                    row_begin,
                    begin_pairs,
                    end_pairs,
                    shared.label_scores,
                )
                _label_logits(
                    loss,
                    shared.label_scores,
                    pairs.log_counts,
                    begin_pairs,
                    end_pairs,
                    shared.d_labels,
                )
                nan_where_not_finite(
                    shared.d_labels, sampled_scores, pairs.example_ids, row_begin, begin_pairs
                )

                differentiate(
                    Pairs(
                        label_logits=shared.d_labels,
                        sampled_scores=sampled_scores,
                        log_counts=classes.log_counts[s : s + 1],
                        example_ids=pairs.example_ids,
                        first_example=row_begin,
                        label_weights=pairs.weights,
                        hit_starts=hits.starts,
                        hit_stops=hits.stops,
                        hit_columns=hits.columns,
                        keeps_label_hits=loss.keeps_label_hits,
                        keeps_other_hits=loss.keeps_other_hits,
                        counts_draws_once=loss.counts_draws_once,
                    ),
                    begin_pairs,
                    end_pairs,
                    steps.loss_parameters,
                    classes.weights[s : s + 1],
                    local.logits,
                    shared.pair_losses,
                    shared.d_labels,  # overwrites the logits
                    d_sampled,
                )
                _sum_pair_losses(
                    loss,
                    pairs.offsets,
                    steps.example_weights,
                    first,
                    last,
                    shared.pair_losses,
                    shared.label_scores,
                    shared.d_labels,
                    steps.losses,
                    steps.diverged,
                )
                if draws_are_classes:
                    d_scores = local.d_sampled
                else:
                    d_scores = local.scores
                    _sum_derivatives_by_class(loss, class_of_draw, d_sampled, num_drawn, d_scores)
                _weigh_and_store(
                    steps.example_weights, first, last, d_scores, num_drawn, width, d_sampled_blocks
                )

                context_gradients_of_draws(
                    d_sampled_blocks,
                    shared.class_vectors,
                    num_drawn,
                    width,
                    d_embedded,
                    local.product,
                )
                add_label_context_gradients(
                    shared.d_labels,
                    shared.class_vectors,
                    pairs.classes,
                    pairs.example_ids,
                    row_begin,
                    begin_pairs,
                    end_pairs,
                    d_embedded,
                )
                _context_gradients(loss, contexts, norms, d_embedded)
            num_barriers += 1
            barrier_wait(arrived, workers, num_barriers)
            if steps.diverged[_LOSS] != 0:  # no update with a loss that is not finite
                return

            # 3. gradients of classes
            for first in range(worker * width, num_classes, workers * width):
                last = min(first + width, num_classes)
                gradient = local.gradients[: (last - first) * dim].reshape((last - first, dim))
                z = shared.z[: end - begin]
                class_gradients_of_draws(
                    shared.d_sampled,
                    first // width,
                    BLOCK_EXAMPLES,
                    z,
                    min(last, num_drawn) - first,
                    gradient,
                    local.product,
                )
                _add_label_gradients(
                    pairs,
                    shared.d_labels,
                    pairs.offsets[begin],
                    pairs.offsets[end],
                    first,
                    z,
                    gradient,
                )
                if loss.normalize:
                    vectors = shared.class_vectors[first:last]
                    unit_gradient(gradient, vectors, shared.class_norms[first:last])
                ids = classes.ids[s, first:last]
                num_refused += update_rows(ids, gradient, updates.classes, hyper_parameters, limit)

            # 4. gradients of features
            low = entries.offsets[begin]
            num_unique = entries.num_unique[s]
            for first in range(worker * _BLOCK_FEATURES, num_unique, workers * _BLOCK_FEATURES):
                last = min(first + _BLOCK_FEATURES, num_unique)
                gradient = local.gradients[: (last - first) * dim].reshape((last - first, dim))
                weighted_rows(
                    entries.feature_offsets[low + s + first : low + s + last + 1],
                    entries.example_ids,
                    entries.values_by_feature,
                    shared.d_embedded,
                    gradient,
                )
                ids = entries.unique_features[low + first : low + last]
                num_refused += update_rows(ids, gradient, updates.inputs, hyper_parameters, limit)

            # 5. gradient of the intercept, by the worker with the fewest blocks
            if worker == workers - 1:
                gradient = local.gradients[:dim].reshape((1, dim))
                _sum_rows(shared.d_embedded[: end - begin], gradient)
                num_refused += update_rows(
                    updates.intercept_id, gradient, updates.intercept, hyper_parameters, limit
                )
            if num_refused > 0:  # all workers store the same value
                steps.diverged[_GRADIENT] = 1
            num_barriers += 1
            barrier_wait(arrived, workers, num_barriers)

    if not draws_are_classes:
        run.__name__ = "run_of_draws"
    return njit_bare(name_after_kernels(run, differentiate, update_rows))
