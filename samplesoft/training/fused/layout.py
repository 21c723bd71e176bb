"""The arrays that a block of training steps reads and writes.

They hold the examples in the order of training, and the indices of the distinct classes and
features of each step. These indices do not depend on the parameters, so that they are computed
before the first step. A step gathers the rows at its indices, and updates each row once.
"""

from __future__ import annotations

from math import exp, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, num_threads, thread_for_each
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.rows import copy_row
from samplesoft.kernels.sort_ids import group_equal_ids
from samplesoft.losses.base import Targets
from samplesoft.losses.sampled import LossKernel
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.samplers.base import Rows
from samplesoft.training.fused.draws import StepDraws

BLOCK_EXAMPLES = 32
_MIN_BLOCK_CLASSES = 8
# Largest number of multiplications in a matrix product. Up to this size BLAS works on one thread at
# full speed, without copies. Larger products would start BLAS threads, which wait for each other.
_MAX_BLOCK_MULTIPLICATIONS = 1 << 18

# Array shapes: N examples in S steps, at most B in a step; P pairs of an example and a label; E
# nonzero entries of the inputs; m draws and at most K classes in a step; vectors of length d.
# The arrays are in several small records, so that a kernel gets few arrays that it does not use:
# each array in the arguments of a kernel adds to its compile time.


class LossSettings(NamedTuple):
    """How a loss scores vectors, and which accidental hits (draws of a label) it keeps.

    The last three fields have the same meaning as in `samplesoft.losses.step.Pairs`.
    """

    tau: float  # inverse temperature: scores are tau * h . c
    normalize: bool  # whether vectors are divided by their norms
    absolute: bool  # whether logits are absolute values of scores
    keeps_label_hits: bool  # whether draws of the pair's label remain in the loss
    keeps_other_hits: bool  # whether draws of the example's other labels remain
    # whether draws count once for an example, not for each of its labels
    counts_draws_once_per_example: bool


class StepClasses(NamedTuple):
    """The distinct classes of each step: drawn classes first, then labels that are not drawn."""

    ids: IntArray  # (S, K): class indices
    num_drawn: IntArray  # (S,): number of distinct drawn classes
    num_classes: IntArray  # (S,): number of drawn classes and labels, at most K
    # If the loss adds exponentials, the draws of a class merge into one logit, and the matrix of
    # logits has one column for each distinct drawn class. Otherwise it has a column for each draw.
    class_of_draw: IntArray  # (S, m): index of each draw's class in `ids`; (S, 0) if draws merge
    log_counts: Rows  # (S, m): log expected counts of the columns, subtracted from scores
    # (S, m): 1 / expected count of each draw; (S, 0) if the loss does not use such weights
    weights: FloatArray


class StepPairs(NamedTuple):
    """All pairs of an example and one of its labels, in the order of the examples."""

    offsets: IntArray  # (N + 1,): first pair of each example
    weights: FloatArray  # (P,): weight of the pair in its example's loss
    log_counts: FloatArray  # (P,): correction that is subtracted from the label's score
    classes: IntArray  # (P,): index of the label in the `ids` of the step
    sorted_by_class: IntArray  # (P,): indices of the pairs of each step, sorted by `classes`
    example_ids: IntArray  # (P,): index of the example in its step


class AccidentalHits(NamedTuple):
    """Accidental hits: the columns of the logits whose class is the label of a pair.

    The hits of pair p are ``columns[starts[p]:stops[p]]``.
    """

    columns: IntArray  # (S m,) for all steps; (m,) if each column is a distinct class
    starts: IntArray  # (P,): index of the pair's first hit in `columns`
    stops: IntArray  # (P,): index after its last hit


class InputEntries(NamedTuple):
    """Nonzero entries of the inputs, sorted by example, and for each step also by feature."""

    offsets: IntArray  # (N + 1,): first entry of each example
    features: IntArray  # (E,): feature of each entry
    values: Rows  # (E,): value of each entry
    # The entries of each step, sorted by feature. The slice of step s begins at the index of the
    # step's first entry. In `feature_offsets` it begins s elements later, because the slice of each
    # step has one element more.
    unique_features: IntArray  # (E,): distinct features; only the first `num_unique` are used
    num_unique: IntArray  # (S,): number of distinct features of each step
    feature_offsets: IntArray  # (E + S,): first entry of each distinct feature; end of the last
    example_ids: IntArray  # (E,): index of the entry's example in its step
    values_by_feature: Rows  # (E,): value of each entry


class Workspace(NamedTuple):
    """Intermediate arrays of one step, shared by all workers (threads)."""

    contexts: Rows  # (B, d), of norm 1 if the loss normalises
    context_norms: FloatArray  # (B,): norms of the contexts before the division
    z: Rows  # (B, d): contexts times tau
    d_embedded: Rows  # (B, d): gradients in the embedded inputs
    class_vectors: Rows  # (K, d), of norm 1 if the loss normalises
    class_norms: FloatArray  # (K,): norms of the class vectors before the division
    # (blocks of examples, blocks of classes, 32 * classes_per_block): derivatives of the loss in
    # the scores of the drawn classes
    d_sampled: Rows
    label_scores: FloatArray  # (P,): score of each pair's label
    d_labels: FloatArray  # (P,): label logits, later derivatives of the loss in label scores
    pair_losses: FloatArray  # (P,): loss of each pair


class StepBlock(NamedTuple):
    """A block of training steps: examples, the classes and features of each step, a workspace."""

    loss: LossSettings
    loss_parameters: tuple[Any, ...]  # arguments of the loss kernel
    batch_size: int  # examples of a step; the last step may have fewer
    classes_per_block: int  # classes in one matrix product
    example_weights: FloatArray  # (N,): factors of the examples' losses
    classes: StepClasses
    pairs: StepPairs
    hits: AccidentalHits
    entries: InputEntries
    workspace: Workspace
    losses: FloatArray  # (N,): loss of each example, written by the steps
    # (2,): flags, which say whether a gradient exceeds the limit, and whether a loss is not finite.
    # The flag of the loss is written before a barrier and read after it, so that all workers stop
    # at the same step.
    diverged: IntArray


def make_step_block(
    loss: LossSettings,
    x: Any,
    targets: Targets,
    draws: StepDraws,
    label_log_counts: FloatArray,
    example_weights: FloatArray,
    batch_size: int,
    model: LinearSoftmax,
) -> StepBlock:
    """Return the arrays for training on inputs `x` (N, v), in steps of `batch_size` examples.

    `label_log_counts` are the corrections that are subtracted from label scores: (P,), or (1,) if
    all are equal. `example_weights` (N,) are the factors of the examples' losses.
    """
    num_examples = x.shape[0]
    dim = model.softmax.class_embeddings.shape[1]
    num_steps = -(-num_examples // batch_size)
    num_pairs = len(targets.labels)
    num_draws = draws.ids.shape[1]

    pairs = _allocate_step_pairs(targets, label_log_counts, num_examples, batch_size)
    pairs_of_steps = np.diff(np.append(pairs.offsets[:-1:batch_size], num_pairs))

    max_classes = num_draws + int(pairs_of_steps.max())
    classes = _allocate_step_classes(draws.loss_kernel, num_steps, num_draws, max_classes, x.dtype)
    entries = _allocate_input_entries(x, num_steps)

    def fill_chunk(steps: slice) -> None:
        _fill_steps(
            classes,
            pairs,
            entries,
            batch_size,
            steps.start,
            steps.stop,
            targets.labels,
            draws.ids,
            draws.log_counts,
            x.shape[1],
            np.zeros(model.num_classes, np.int32),
            np.empty(num_draws),
        )

    thread_for_each(fill_chunk, chunks(num_steps, -(-num_steps // num_threads())))

    width = max(_MAX_BLOCK_MULTIPLICATIONS // (BLOCK_EXAMPLES * dim), _MIN_BLOCK_CLASSES)
    batch = min(batch_size, num_examples)
    return StepBlock(
        loss=loss,
        loss_parameters=draws.loss_kernel.parameters,
        batch_size=batch_size,
        classes_per_block=width,
        example_weights=example_weights,
        classes=classes,
        pairs=pairs,
        hits=_find_accidental_hits(classes, pairs, batch_size),
        entries=entries,
        workspace=_make_workspace(batch, max_classes, num_pairs, dim, width, x.dtype),
        losses=np.zeros(num_examples),
        diverged=np.zeros(2, np.int64),
    )


def _allocate_step_classes(
    loss_kernel: LossKernel, num_steps: int, num_draws: int, max_classes: int, dtype: Any
) -> StepClasses:
    """Return arrays for the classes of all steps, uninitialised."""
    return StepClasses(
        ids=np.empty((num_steps, max_classes), np.int64),
        num_drawn=np.empty(num_steps, np.int64),
        num_classes=np.empty(num_steps, np.int64),
        class_of_draw=np.empty(
            (num_steps, 0 if loss_kernel.adds_exponentials else num_draws), np.int64
        ),
        log_counts=np.empty((num_steps, num_draws), dtype),
        weights=np.empty((num_steps, num_draws if loss_kernel.weighs_draws else 0)),
    )


def _allocate_step_pairs(
    targets: Targets, log_counts: FloatArray, num_examples: int, batch_size: int
) -> StepPairs:
    """Return the label pairs of the examples; `classes` and `sorted_by_class` are uninitialised."""
    num_pairs = len(targets.labels)
    offsets = np.append(targets.offsets(), num_pairs)
    return StepPairs(
        offsets=offsets,
        weights=np.ones(num_pairs) if targets.label_weights is None else targets.label_weights,
        log_counts=np.broadcast_to(log_counts, num_pairs).copy(),
        classes=np.empty(num_pairs, np.int64),
        sorted_by_class=np.empty(num_pairs, np.int64),
        example_ids=np.repeat(np.arange(num_examples) % batch_size, np.diff(offsets)),
    )


def _allocate_input_entries(x: Any, num_steps: int) -> InputEntries:
    """Return the entries of a CSR matrix; the arrays sorted by feature are uninitialised."""
    return InputEntries(
        offsets=x.indptr.astype(np.int64),
        features=x.indices[: x.nnz].astype(np.int64),
        values=x.data[: x.nnz],
        unique_features=np.empty(x.nnz, np.int64),
        num_unique=np.empty(num_steps, np.int64),
        feature_offsets=np.empty(x.nnz + num_steps, np.int64),
        example_ids=np.empty(x.nnz, np.int64),
        values_by_feature=np.empty(x.nnz, x.dtype),
    )


def _make_workspace(
    batch: int, max_classes: int, num_pairs: int, dim: int, width: int, dtype: Any
) -> Workspace:
    """Return an uninitialised workspace for steps of at most `batch` examples."""
    num_blocks = -(-batch // BLOCK_EXAMPLES), -(-max_classes // width)
    contexts, z, d_embedded = np.empty((3, batch, dim), dtype)

    return Workspace(
        contexts=contexts,
        context_norms=np.empty(batch),
        z=z,
        d_embedded=d_embedded,
        class_vectors=np.empty((max_classes, dim), dtype),
        class_norms=np.empty(max_classes),
        d_sampled=np.empty((*num_blocks, BLOCK_EXAMPLES * width), dtype),
        label_scores=np.empty(num_pairs),
        d_labels=np.empty(num_pairs),
        pair_losses=np.empty(num_pairs),
    )


def _find_accidental_hits(
    classes: StepClasses, pairs: StepPairs, batch_size: int
) -> AccidentalHits:
    """Return, for each pair, the columns of the logits whose class is the pair's label."""
    # the index of the first pair of each step, followed by the number of pairs
    first_pairs = np.append(pairs.offsets[:-1:batch_size], pairs.offsets[-1])
    if classes.class_of_draw.shape[1] == 0:  # columns are the distinct drawn classes
        num_drawn = np.repeat(classes.num_drawn, np.diff(first_pairs))
        return AccidentalHits(
            columns=np.arange(classes.log_counts.shape[1]),
            starts=pairs.classes,
            stops=pairs.classes + (pairs.classes < num_drawn),
        )

    draws_by_class = np.argsort(classes.class_of_draw, axis=1, kind="stable")
    starts = np.empty_like(pairs.classes)
    stops = np.empty_like(pairs.classes)

    for s, order in enumerate(draws_by_class):
        step_pairs = slice(first_pairs[s], first_pairs[s + 1])
        drawn = classes.class_of_draw[s][order]
        first_column = s * len(order)
        labels = pairs.classes[step_pairs]  # as indices of the step's classes, like `drawn`
        starts[step_pairs] = first_column + np.searchsorted(drawn, labels, "left")
        stops[step_pairs] = first_column + np.searchsorted(drawn, labels, "right")

    return AccidentalHits(draws_by_class.ravel(), starts, stops)


@njit
def _fill_steps(
    classes: StepClasses,
    pairs: StepPairs,
    entries: InputEntries,
    batch_size: int,
    start: int,
    stop: int,
    labels: IntArray,
    ids: IntArray,
    log_counts: FloatArray,
    num_features: int,
    index_plus_one: NDArray[np.int32],
    multiplicities: FloatArray,
) -> None:
    """Fill `classes`, `pairs` and `entries` for steps [start, stop).

    `labels` (P,) are the labels of the pairs. The draws `ids` and `log_counts` are (S, m), or
    (1, m) if all steps have the same draws. The last two arguments are workspace. `index_plus_one`
    (n,) must be zeros on entry; it holds 1 + the index of a class among the classes of a step.
    `multiplicities` (m,) holds the number of draws of each class.
    """
    adds_exponentials = classes.class_of_draw.shape[1] == 0
    weighs_draws = classes.weights.shape[1] > 0
    for s in range(start, stop):
        begin = s * batch_size
        end = min(begin + batch_size, len(pairs.offsets) - 1)

        # list the distinct drawn classes, and fill in the columns of the logits
        drawn = ids[s if len(ids) > 1 else 0]
        log_count = log_counts[s if len(log_counts) > 1 else 0]
        listed = classes.ids[s]
        num_listed = 0
        for k in range(len(drawn)):
            if index_plus_one[drawn[k]] == 0:
                listed[num_listed] = drawn[k]
                multiplicities[num_listed] = 0.0
                if adds_exponentials:
                    classes.log_counts[s, num_listed] = log_count[k]
                num_listed += 1
                index_plus_one[drawn[k]] = num_listed
            multiplicities[index_plus_one[drawn[k]] - 1] += 1.0
            if not adds_exponentials:
                classes.class_of_draw[s, k] = index_plus_one[drawn[k]] - 1
                classes.log_counts[s, k] = 0.0 if weighs_draws else log_count[k]
            if weighs_draws:
                classes.weights[s, k] = exp(-log_count[k])

        classes.num_drawn[s] = num_listed
        if adds_exponentials:
            # merge t draws of a class: t exp(o - log count) = exp(o - (log count - log t))
            for k in range(num_listed):
                classes.log_counts[s, k] -= log(multiplicities[k])

        # labels: append those that were not drawn to the classes of the step
        low = pairs.offsets[begin]
        high = pairs.offsets[end]
        for p in range(low, high):
            if index_plus_one[labels[p]] == 0:
                listed[num_listed] = labels[p]
                num_listed += 1
                index_plus_one[labels[p]] = num_listed
            pairs.classes[p] = index_plus_one[labels[p]] - 1

        classes.num_classes[s] = num_listed
        _, _, order, _ = group_equal_ids(pairs.classes[low:high], num_listed)
        for p in range(low, high):
            pairs.sorted_by_class[p] = low + order[p - low]

        for k in range(num_listed):
            index_plus_one[listed[k]] = 0

        # sort the entries of the inputs by feature
        low = entries.offsets[begin]
        high = entries.offsets[end]
        unique, _, order, starts = group_equal_ids(entries.features[low:high], num_features)
        entries.num_unique[s] = len(unique)
        copy_row(entries.unique_features[low:], unique)
        for k in range(len(starts)):
            entries.feature_offsets[low + s + k] = low + starts[k]

        example_of_entry = np.empty(high - low, np.int64)
        for b in range(begin, end):
            for i in range(entries.offsets[b], entries.offsets[b + 1]):
                example_of_entry[i - low] = b - begin

        for i in range(low, high):
            entries.example_ids[i] = example_of_entry[order[i - low]]
            entries.values_by_feature[i] = entries.values[low + order[i - low]]
