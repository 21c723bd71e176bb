"""The compiled function that takes a block of training steps.

A step has five stages. Each stage splits its work into blocks, which the workers (threads) divide
among themselves. All workers wait for each other at three barriers:

1. gather the class vectors of the step, by blocks of classes; barrier;
2. embed and score the examples, compute losses and derivatives, by blocks of examples; barrier;
3. sum the gradients of the classes and update their rows, by blocks of classes;
4. sum the gradients of the features and update their rows, by blocks of features;
5. sum the gradient of the intercept and update it, on one worker; barrier.

Each sum is computed within one block, in an order that is the same on every worker. So the result
does not depend on the number of workers.
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
from samplesoft.losses.sampled import CHUNK_LOGITS, LossKernel
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
# indices of the two flags in `StepBlock.diverged`
_BAD_GRADIENT = 0
_BAD_LOSS = 1
Kernel = Callable[..., Any]


class TrainedRows(NamedTuple):
    """Rows of a parameter, and the optimizer's state for each row."""

    rows: Rows
    states: tuple[Rows, ...]  # state arrays, of the same shape as `rows`


class TrainedParameters(NamedTuple):
    """The trained parameters, and the optimizer's hyper-parameters for each of S steps."""

    inputs: TrainedRows
    intercept: TrainedRows
    intercept_id: IntArray  # (1,): index of the intercept's only row, 0
    classes: TrainedRows
    hyper_parameters: Rows  # (S, k): arguments of the optimizer's kernel, such as the rate
    largest_gradient: float  # gradient entries of larger absolute value are rejected


class WorkerWorkspace(NamedTuple):
    """Intermediate arrays of one worker (thread), for one block of a stage; all are flat."""

    scores: Rows  # scores of the drawn classes for a block of examples
    gradients: Rows  # gradients in a block of class or feature rows
    product: Rows  # results of matrix products
    sampled_scores: Rows  # scores of the draws, in the dtype of the logits
    d_sampled: Rows  # derivatives of the loss in `sampled_scores`
    logits: FloatArray  # workspace of the loss kernel


def make_worker_workspace(steps: StepBlock, loss_kernel: LossKernel) -> WorkerWorkspace:
    """Return the uninitialised workspace of one worker."""
    max_classes, dim = steps.workspace.class_vectors.shape
    dtype = steps.workspace.class_vectors.dtype
    max_rows = max(steps.classes_per_block, BLOCK_EXAMPLES, _BLOCK_FEATURES)

    # a loss that merges exponentials computes logits in the dtype of the scores, others in float64
    merges = loss_kernel.merge is not None and loss_kernel.adds_exponentials
    logit_dtype = dtype if merges else np.float64
    num_logits = max(steps.classes.log_counts.shape[1], max_classes)

    return WorkerWorkspace(
        scores=np.empty(BLOCK_EXAMPLES * max_classes, dtype),
        gradients=np.empty(max_rows * dim, dtype),
        product=np.empty(max(max_rows * dim, BLOCK_EXAMPLES * steps.classes_per_block), dtype),
        sampled_scores=np.empty(BLOCK_EXAMPLES * num_logits, logit_dtype),
        d_sampled=np.empty(BLOCK_EXAMPLES * num_logits, logit_dtype),
        logits=np.empty(max(CHUNK_LOGITS, 3 * (2 + num_logits))),
    )


# functions of stage 2, for one block of examples, in the order of the calls ----------------------


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
    """Write the contexts (b, d) of a block of b examples, and `z`, the contexts times tau.

    A context is the embedded input, divided by its norm if the loss normalises.
    """
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
def _write_draw_scores(
    loss: LossSettings, class_of_draw: IntArray, scores: Rows, num_drawn: int, sampled_scores: Rows
) -> None:
    """Copy the scores of the distinct drawn classes to `sampled_scores` (b, m), one for each draw.

    If `loss.absolute`, their absolute values are written.
    """
    for b in range(len(sampled_scores)):
        for k in range(sampled_scores.shape[1]):
            sampled_scores[b, k] = scores[
                b * num_drawn + (class_of_draw[k] if len(class_of_draw) > 0 else k)
            ]
        if loss.absolute:
            for k in range(sampled_scores.shape[1]):
                sampled_scores[b, k] = abs(sampled_scores[b, k])


@njit_bare
def _write_label_logits(
    loss: LossSettings,
    label_scores: FloatArray,
    log_counts: FloatArray,
    start: int,
    stop: int,
    logits: FloatArray,
) -> None:
    """Write the label logits of pairs [start, stop): label scores minus their corrections.

    If `loss.absolute`, the absolute values of the scores are used.
    """
    for p in range(start, stop):
        score = abs(label_scores[p]) if loss.absolute else label_scores[p]
        logits[p] = score - log_counts[p]


@njit_bare
def _sum_losses_and_weight_derivatives(
    loss: LossSettings,
    offsets: IntArray,
    example_weights: FloatArray,
    start: int,
    stop: int,
    pair_losses: FloatArray,
    label_scores: FloatArray,
    d_labels: FloatArray,
    losses: FloatArray,
    diverged: IntArray,
) -> None:
    """Write the losses of examples [start, stop), each the sum over its label pairs.

    `d_labels` holds the derivatives of the losses in label logits. They are overwritten by the
    derivatives of the weighted losses in label scores. A loss that is not finite sets a flag in
    `diverged`.
    """
    for b in range(start, stop):
        total = 0.0
        for p in range(offsets[b], offsets[b + 1]):
            total += pair_losses[p]
            sign = np.sign(label_scores[p]) if loss.absolute else 1.0
            d_labels[p] *= example_weights[b] * sign
        losses[b] = total
        if not abs(total) < np.inf:
            diverged[_BAD_LOSS] = 1


@njit_bare
def _sum_derivatives_by_class(
    loss: LossSettings, class_of_draw: IntArray, d_sampled: Rows, num_drawn: int, class_scores: Rows
) -> None:
    """Overwrite the scores of the distinct drawn classes by the derivatives of the loss in them.

    The derivative in the score of a class is the sum of `d_sampled` (b, m) over its draws.
    """
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
def _store_weighted_derivatives(
    example_weights: FloatArray,
    start: int,
    stop: int,
    d_scores: Rows,
    num_drawn: int,
    width: int,
    d_sampled_blocks: Rows,
) -> None:
    """Store the derivatives in the scores of examples [start, stop), times the examples' weights.

    The derivatives are stored by blocks of `width` classes, because stage 3 reads one such block at
    a time.
    """
    for b in range(stop - start):
        weight = d_scores.dtype.type(example_weights[start + b])
        for first_class in range(0, num_drawn, width):
            num_classes = min(width, num_drawn - first_class)
            out = d_sampled_blocks[first_class // width]
            for k in range(num_classes):
                out[b * num_classes + k] = weight * d_scores[b * num_drawn + first_class + k]


@njit_bare
def _convert_to_embedded_gradients(
    loss: LossSettings, contexts: Rows, norms: FloatArray, d_embedded: Rows
) -> None:
    """Convert `d_embedded` (b, d) from gradients in `z` to gradients in embedded inputs."""
    tau = d_embedded.dtype.type(loss.tau)
    for b in range(len(d_embedded)):
        for i in range(d_embedded.shape[1]):
            d_embedded[b, i] *= tau
    if loss.normalize:
        unit_gradient(d_embedded, contexts, norms)


# functions of stages 3 to 5, for one block of rows ------------------------------------------------


@njit_bare
def _add_label_class_gradients(
    pairs: StepPairs,
    d_labels: FloatArray,
    start: int,
    stop: int,
    first_class: int,
    z: Rows,
    gradient: Rows,
) -> None:
    """Add the contributions of label scores to the gradients (k, d) of a block of k classes.

    The block begins at class `first_class` of the step, which has the pairs [start, stop).
    """
    # binary search for the first label in the block
    low = start
    high = stop
    while low < high:
        middle = (low + high) // 2
        if pairs.classes[pairs.sorted_by_class[middle]] < first_class:
            low = middle + 1
        else:
            high = middle

    block_end = first_class + len(gradient)
    while low < stop and pairs.classes[pairs.sorted_by_class[low]] < block_end:
        p = pairs.sorted_by_class[low]
        add_row(gradient[pairs.classes[p] - first_class], d_labels[p], z[pairs.example_ids[p]])
        low += 1


@njit_bare
def _sum_rows(rows: Rows, gradient: Rows) -> None:
    """Write the sum of `rows` (b, d) to `gradient` (1, d)."""
    gradient[:] = 0.0
    for b in range(len(rows)):
        add_row(gradient[0], 1.0, rows[b])


@cache
def make_row_updater(rows_kernel: Kernel) -> Kernel:
    """Return a kernel that updates parameter rows if all entries of their gradient are valid.

    The kernel returns the number of invalid entries. An entry is invalid if it is NaN, or if its
    absolute value exceeds the largest gradient.
    """

    def update_rows(
        ids: IntArray,
        gradient: Rows,
        trained: TrainedRows,
        hyper_parameters: Rows,
        largest_gradient: float,
    ) -> int:
        num_rejected = 0
        for row in gradient:
            for i in range(len(row)):
                num_rejected += 0 if abs(row[i]) <= largest_gradient else 1  # NaN counts too
        if num_rejected == 0:
            rows_kernel(ids, gradient, trained.rows, trained.states, hyper_parameters)
        return num_rejected

    return njit_bare(name_after_kernels(update_rows, rows_kernel))


# all stages ---------------------------------------------------------------------------------------


@cache
def make_step_runner(differentiate: Kernel, update_rows: Kernel, draws_are_classes: bool) -> Kernel:
    """Return the kernel that takes training steps; it is compiled at its first call.

    `differentiate` computes loss and derivatives of a block of examples, and `update_rows` is from
    `make_row_updater`. If `draws_are_classes`, the scores of the distinct drawn classes are used as
    they are. Otherwise the kernel copies the score of a class, or its absolute value, for each
    draw, and sums the derivatives over the draws of a class.
    """

    def run(
        steps: StepBlock,
        parameters: TrainedParameters,
        local: WorkerWorkspace,
        arrived: IntArray,
        worker: int,
        num_workers: int,
    ) -> None:
        """Take all steps, as worker number `worker` of `num_workers` that run this concurrently.

        `arrived` (1,) counts the arrivals at barriers.
        """
        loss = steps.loss
        classes = steps.classes
        pairs = steps.pairs
        hits = steps.hits
        entries = steps.entries
        shared = steps.workspace
        dim = shared.z.shape[1]
        width = steps.classes_per_block
        limit = parameters.largest_gradient
        num_barriers = 0
        num_rejected = 0

        for s in range(len(classes.num_drawn)):
            begin = s * steps.batch_size
            end = min(begin + steps.batch_size, len(steps.example_weights))
            num_drawn = classes.num_drawn[s]
            num_classes = classes.num_classes[s]
            class_of_draw = classes.class_of_draw[s]
            hyper_parameters = parameters.hyper_parameters[s]

            # 1. class vectors
            for start in range(worker * width, num_classes, num_workers * width):
                stop = min(start + width, num_classes)
                gather_rows(
                    classes.ids[s, start:stop],
                    parameters.classes.rows,
                    loss.normalize,
                    shared.class_vectors[start:stop],
                    shared.class_norms[start:stop],
                )

            num_barriers += 1
            barrier_wait(arrived, num_workers, num_barriers)

            # 2. losses, derivatives in scores, and gradients of contexts
            for start in range(begin + worker * BLOCK_EXAMPLES, end, num_workers * BLOCK_EXAMPLES):
                stop = min(start + BLOCK_EXAMPLES, end)
                row_begin = start - begin
                block_rows = slice(row_begin, stop - begin)
                pair_start = pairs.offsets[start]
                pair_stop = pairs.offsets[stop]

                z = shared.z[block_rows]
                d_embedded = shared.d_embedded[block_rows]
                contexts = shared.contexts[block_rows]
                norms = shared.context_norms[block_rows]
                d_sampled_blocks = shared.d_sampled[row_begin // BLOCK_EXAMPLES]

                _embed_examples(
                    loss,
                    entries.offsets[start : stop + 1],
                    entries.features,
                    entries.values,
                    parameters.inputs.rows,
                    parameters.intercept.rows[0],
                    contexts,
                    norms,
                    z,
                )

                # scores of the draws and of the labels
                score_draws(shared.class_vectors, z, num_drawn, width, local.scores, local.product)

                num_logits = len(class_of_draw) if len(class_of_draw) > 0 else num_drawn
                shape = (len(z), num_logits)
                num_scores = len(z) * num_logits
                d_sampled = local.d_sampled[:num_scores].reshape(shape)

                if draws_are_classes:  # a constant when the kernel is compiled
                    sampled_scores = local.scores[:num_scores].reshape(shape)
                else:
                    sampled_scores = local.sampled_scores[:num_scores].reshape(shape)
                    _write_draw_scores(loss, class_of_draw, local.scores, num_drawn, sampled_scores)

                score_labels(
                    shared.class_vectors,
                    pairs.classes,
                    z,
                    pairs.example_ids,
                    row_begin,
                    pair_start,
                    pair_stop,
                    shared.label_scores,
                )

                _write_label_logits(
                    loss,
                    shared.label_scores,
                    pairs.log_counts,
                    pair_start,
                    pair_stop,
                    shared.d_labels,
                )
                nan_where_not_finite(
                    shared.d_labels, sampled_scores, pairs.example_ids, row_begin, pair_start
                )

                # losses, and their derivatives in the scores
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
                        counts_draws_once_per_example=loss.counts_draws_once_per_example,
                    ),
                    pair_start,
                    pair_stop,
                    steps.loss_parameters,
                    classes.weights[s : s + 1],
                    local.logits,
                    shared.pair_losses,
                    shared.d_labels,  # holds the label logits, which are overwritten
                    d_sampled,
                )

                _sum_losses_and_weight_derivatives(
                    loss,
                    pairs.offsets,
                    steps.example_weights,
                    start,
                    stop,
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
                _store_weighted_derivatives(
                    steps.example_weights, start, stop, d_scores, num_drawn, width, d_sampled_blocks
                )

                # gradients of the contexts, and of the embedded inputs
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
                    pair_start,
                    pair_stop,
                    d_embedded,
                )
                _convert_to_embedded_gradients(loss, contexts, norms, d_embedded)

            num_barriers += 1
            barrier_wait(arrived, num_workers, num_barriers)
            if steps.diverged[_BAD_LOSS] != 0:  # no update with a loss that is not finite
                return

            # 3. gradients of classes
            for start in range(worker * width, num_classes, num_workers * width):
                stop = min(start + width, num_classes)
                gradient = local.gradients[: (stop - start) * dim].reshape((stop - start, dim))
                z = shared.z[: end - begin]

                class_gradients_of_draws(
                    shared.d_sampled,
                    start // width,
                    BLOCK_EXAMPLES,
                    z,
                    min(stop, num_drawn) - start,
                    gradient,
                    local.product,
                )

                _add_label_class_gradients(
                    pairs,
                    shared.d_labels,
                    pairs.offsets[begin],
                    pairs.offsets[end],
                    start,
                    z,
                    gradient,
                )

                if loss.normalize:
                    vectors = shared.class_vectors[start:stop]
                    unit_gradient(gradient, vectors, shared.class_norms[start:stop])

                ids = classes.ids[s, start:stop]
                num_rejected += update_rows(
                    ids, gradient, parameters.classes, hyper_parameters, limit
                )

            # 4. gradients of features
            first_entry = entries.offsets[begin]
            num_unique = entries.num_unique[s]
            for start in range(worker * _BLOCK_FEATURES, num_unique, num_workers * _BLOCK_FEATURES):
                stop = min(start + _BLOCK_FEATURES, num_unique)
                gradient = local.gradients[: (stop - start) * dim].reshape((stop - start, dim))
                weighted_rows(
                    entries.feature_offsets[first_entry + s + start : first_entry + s + stop + 1],
                    entries.example_ids,
                    entries.values_by_feature,
                    shared.d_embedded,
                    gradient,
                )
                ids = entries.unique_features[first_entry + start : first_entry + stop]
                num_rejected += update_rows(
                    ids, gradient, parameters.inputs, hyper_parameters, limit
                )

            # 5. gradient of the intercept, on the last worker, which has the fewest blocks
            if worker == num_workers - 1:
                gradient = local.gradients[:dim].reshape((1, dim))
                _sum_rows(shared.d_embedded[: end - begin], gradient)
                num_rejected += update_rows(
                    parameters.intercept_id, gradient, parameters.intercept, hyper_parameters, limit
                )

            if num_rejected > 0:  # several workers may do this, with the same value
                steps.diverged[_BAD_GRADIENT] = 1

            num_barriers += 1
            barrier_wait(arrived, num_workers, num_barriers)

    if not draws_are_classes:
        run.__name__ = "run_of_draws"
    return njit_bare(name_after_kernels(run, differentiate, update_rows))
