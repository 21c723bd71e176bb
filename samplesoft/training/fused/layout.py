"""The arrays of a block of steps: its examples in order, and the classes and features of each step.

Indices that do not depend on the parameters are computed once, before the first step: the classes
of each step, and the row of the class or feature of each label, draw and input entry. A step then
reads and writes rows by these indices, and updates each row once.
"""

from __future__ import annotations

from math import exp, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, num_threads, thread_each
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.rows import copy_row
from samplesoft.kernels.sort_ids import equal_runs
from samplesoft.losses.base import Targets
from samplesoft.losses.sampled import Terms
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.samplers.base import Rows
from samplesoft.training.fused.draws import StepDraws

BLOCK_EXAMPLES = 32
_MIN_BLOCK_CLASSES = 8
# Multiplications in a matrix product: up to so many, BLAS uses one thread and no copies at full
# speed. In such small products, BLAS threads would wait for each other.
_BLOCK_MULTIPLICATIONS = 1 << 18

# Sizes: N examples in S steps, at most B in a step; P pairs of an example and a label; E entries of
# the inputs; m draws and at most K classes in a step; vectors of length d.
# Kernels take only the records that they need, because each array argument costs compile time.


class LossSettings(NamedTuple):
    """How scores come from vectors, and which draws have weight, as in `losses.step.Pairs`."""

    tau: float
    normalize: bool
    absolute: bool
    keeps_label_hits: bool
    keeps_other_hits: bool
    counts_draws_once: bool


class StepClasses(NamedTuple):
    """The distinct classes of each step: drawn classes first, then labels that are not drawn."""

    ids: IntArray  # (S, K)
    num_drawn: IntArray  # (S,)
    num_classes: IntArray  # (S,)
    # Columns of the logits are the drawn classes; or the draws, if the loss does not add
    # exponentials, so that two draws of a class cannot be merged into one logit.
    class_of_draw: IntArray  # (S, m): index of each draw's class in `ids`; (S, 0) for the former
    log_counts: Rows  # (S, m): log expected counts of the columns, subtracted from scores
    weights: FloatArray  # (S, m): 1 over expected counts; (S, 0) if not needed


class StepPairs(NamedTuple):
    """Pairs of an example and a label, in the order of the examples."""

    offsets: IntArray  # (N + 1,): first pair of each example
    weights: FloatArray  # (P,): weight of the pair in its example's loss
    log_counts: FloatArray  # (P,): corrections subtracted from label scores
    classes: IntArray  # (P,): index of the label in the `ids` of the step
    by_class: IntArray  # (P,): pairs of each step sorted by `classes`
    example_ids: IntArray  # (P,): index of the example in its step


class AccidentalHits(NamedTuple):
    """The columns of the logits that are the label of a pair: ``columns[starts[p]:stops[p]]``."""

    columns: IntArray  # (S m,) for all steps; (m,) if columns are classes
    starts: IntArray  # (P,)
    stops: IntArray  # (P,)


class InputEntries(NamedTuple):
    """Entries of the inputs, sorted by example, and for each step also by feature."""

    offsets: IntArray  # (N + 1,): first entry of each example
    features: IntArray  # (E,)
    values: Rows  # (E,)
    # the arrays of a step begin at the index of its first entry
    unique_features: IntArray  # (E,)
    num_unique: IntArray  # (S,)
    feature_offsets: IntArray  # (E + S,): first entry of each unique feature
    example_ids: IntArray  # (E,): sorted by feature; index of the example in its step
    values_by_feature: Rows  # (E,)


class Workspace(NamedTuple):
    """Arrays of a step that are shared by the workers."""

    contexts: Rows  # (B, d), of norm 1 if the loss normalises
    context_norms: FloatArray  # (B,)
    z: Rows  # (B, d): contexts times tau
    d_embedded: Rows  # (B, d): gradients in the embedded inputs
    class_vectors: Rows  # (K, d), of norm 1 if the loss normalises
    class_norms: FloatArray  # (K,)
    d_sampled: Rows  # (blocks of examples, blocks of classes, 32 * width): in their scores
    label_scores: FloatArray  # (P,)
    d_labels: FloatArray  # (P,): label logits, then derivatives in label scores
    pair_losses: FloatArray  # (P,)


class StepBlock(NamedTuple):
    """A block of steps: examples in order, the rows that each step touches, and a workspace."""

    loss: LossSettings
    loss_parameters: tuple[Any, ...]  # of the loss kernel
    batch_size: int  # examples of a step; the last step may have fewer
    width: int  # classes in a block
    example_weights: FloatArray  # (N,)
    classes: StepClasses
    pairs: StepPairs
    hits: AccidentalHits
    entries: InputEntries
    workspace: Workspace
    losses: FloatArray  # (N,)
    # (2,): whether a gradient exceeds the limit, and whether a loss is not finite. The latter is
    # written before a barrier and read after it, so that all workers stop at the same step.
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
    """Return the arrays of a block of steps, with a workspace."""
    num_examples, dim = x.shape[0], model.softmax.class_embeddings.shape[1]
    num_steps = -(-num_examples // batch_size)
    num_pairs, num_draws = len(targets.labels), draws.ids.shape[1]
    pairs = _empty_pairs(targets, label_log_counts, num_examples, batch_size)
    pairs_of_steps = np.diff(np.append(pairs.offsets[:-1:batch_size], num_pairs))
    max_classes = num_draws + int(pairs_of_steps.max())  # of a step
    classes = _empty_classes(draws.terms, num_steps, num_draws, max_classes, x.dtype)
    entries = _empty_entries(x, num_steps)

    def fill_part(steps: slice) -> None:
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

    thread_each(fill_part, chunks(num_steps, -(-num_steps // num_threads())))
    width = max(_BLOCK_MULTIPLICATIONS // (BLOCK_EXAMPLES * dim), _MIN_BLOCK_CLASSES)
    batch = min(batch_size, num_examples)
    return StepBlock(
        loss=loss,
        loss_parameters=draws.terms.parameters,
        batch_size=batch_size,
        width=width,
        example_weights=example_weights,
        classes=classes,
        pairs=pairs,
        hits=_find_accidental_hits(classes, pairs, batch_size),
        entries=entries,
        workspace=_workspace(batch, max_classes, num_pairs, dim, width, x.dtype),
        losses=np.zeros(num_examples),
        diverged=np.zeros(2, np.int64),
    )


def _empty_classes(
    terms: Terms, num_steps: int, num_draws: int, max_classes: int, dtype: Any
) -> StepClasses:
    return StepClasses(
        ids=np.empty((num_steps, max_classes), np.int64),
        num_drawn=np.empty(num_steps, np.int64),
        num_classes=np.empty(num_steps, np.int64),
        class_of_draw=np.empty((num_steps, 0 if terms.adds_exponentials else num_draws), np.int64),
        log_counts=np.empty((num_steps, num_draws), dtype),
        weights=np.empty((num_steps, num_draws if terms.weighs_draws else 0)),
    )


def _empty_pairs(
    targets: Targets, log_counts: FloatArray, num_examples: int, batch_size: int
) -> StepPairs:
    num_pairs = len(targets.labels)
    offsets = np.append(targets.offsets(), num_pairs)
    return StepPairs(
        offsets=offsets,
        weights=np.ones(num_pairs) if targets.label_weights is None else targets.label_weights,
        log_counts=np.broadcast_to(log_counts, num_pairs).copy(),
        classes=np.empty(num_pairs, np.int64),
        by_class=np.empty(num_pairs, np.int64),
        example_ids=np.repeat(np.arange(num_examples) % batch_size, np.diff(offsets)),
    )


def _empty_entries(x: Any, num_steps: int) -> InputEntries:
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


def _workspace(
    batch: int, max_classes: int, num_pairs: int, dim: int, width: int, dtype: Any
) -> Workspace:
    blocks = -(-batch // BLOCK_EXAMPLES), -(-max_classes // width)
    contexts, z, d_embedded = np.empty((3, batch, dim), dtype)
    return Workspace(
        contexts=contexts,
        context_norms=np.empty(batch),
        z=z,
        d_embedded=d_embedded,
        class_vectors=np.empty((max_classes, dim), dtype),
        class_norms=np.empty(max_classes),
        d_sampled=np.empty((*blocks, BLOCK_EXAMPLES * width), dtype),
        label_scores=np.empty(num_pairs),
        d_labels=np.empty(num_pairs),
        pair_losses=np.empty(num_pairs),
    )


def _find_accidental_hits(
    classes: StepClasses, pairs: StepPairs, batch_size: int
) -> AccidentalHits:
    """Return the columns of the logits that are the label of each pair."""
    first_pairs = np.append(pairs.offsets[:-1:batch_size], pairs.offsets[-1])  # of steps
    if classes.class_of_draw.shape[1] == 0:  # columns are the drawn classes
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
        of_step = slice(first_pairs[s], first_pairs[s + 1])
        drawn = classes.class_of_draw[s][order]
        first_column = s * len(order)
        starts[of_step] = first_column + np.searchsorted(drawn, pairs.classes[of_step], "left")
        stops[of_step] = first_column + np.searchsorted(drawn, pairs.classes[of_step], "right")
    return AccidentalHits(draws_by_class.ravel(), starts, stops)


@njit
def _fill_steps(
    classes: StepClasses,
    pairs: StepPairs,
    entries: InputEntries,
    batch_size: int,
    first_step: int,
    last_step: int,
    labels: IntArray,
    ids: IntArray,
    log_counts: FloatArray,
    num_features: int,
    index_plus_one: NDArray[np.int32],
    multiplicities: FloatArray,
) -> None:
    """Fill the arrays of steps [first_step, last_step).

    Workspace: `index_plus_one` (n,), zeros on entry and on return, is 1 + the index of a class in
    its step; `multiplicities` (m,) is the number of draws of each class.
    """
    adds_exponentials = classes.class_of_draw.shape[1] == 0
    weighs_draws = classes.weights.shape[1] > 0
    for s in range(first_step, last_step):
        begin = s * batch_size
        end = min(begin + batch_size, len(pairs.offsets) - 1)

        # distinct drawn classes, and the columns of the logits
        drawn = ids[s if len(ids) > 1 else 0]
        log_count = log_counts[s if len(log_counts) > 1 else 0]
        listed = classes.ids[s]
        num = 0
        for k in range(len(drawn)):
            if index_plus_one[drawn[k]] == 0:
                listed[num] = drawn[k]
                multiplicities[num] = 0.0
                if adds_exponentials:
                    classes.log_counts[s, num] = log_count[k]
                num += 1
                index_plus_one[drawn[k]] = num
            multiplicities[index_plus_one[drawn[k]] - 1] += 1.0
            if not adds_exponentials:
                classes.class_of_draw[s, k] = index_plus_one[drawn[k]] - 1
                classes.log_counts[s, k] = 0.0 if weighs_draws else log_count[k]
            if weighs_draws:
                classes.weights[s, k] = exp(-log_count[k])
        classes.num_drawn[s] = num
        if adds_exponentials:
            # t draws of one class: t exp(o - log count) = exp(o - (log count - log t))
            for k in range(num):
                classes.log_counts[s, k] -= log(multiplicities[k])

        # labels; those that are not drawn are appended to the classes
        low = pairs.offsets[begin]
        high = pairs.offsets[end]
        for p in range(low, high):
            if index_plus_one[labels[p]] == 0:
                listed[num] = labels[p]
                num += 1
                index_plus_one[labels[p]] = num
            pairs.classes[p] = index_plus_one[labels[p]] - 1
        classes.num_classes[s] = num
        _, _, order, _ = equal_runs(pairs.classes[low:high], num)
        for p in range(low, high):
            pairs.by_class[p] = low + order[p - low]
        for k in range(num):
            index_plus_one[listed[k]] = 0

        # entries of the inputs, sorted by feature
        low = entries.offsets[begin]
        high = entries.offsets[end]
        unique, _, order, starts = equal_runs(entries.features[low:high], num_features)
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
