"""A block of steps in arrays: its examples in order, and the classes and features of each step.

Everything that is known before the first step is found here, once: which classes a step needs, and
in which of its rows a label, a draw or an entry of the inputs has its class or its feature. A step
then reads and writes rows by these indices, and each row that it changes it changes once.
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
from samplesoft.training.fused.draws import DrawsOfSteps

BLOCK_EXAMPLES = 32
_LEAST_BLOCK_CLASSES = 8
# Multiplications of a product: up to so many BLAS takes one thread and no copies, and is as quick
# as with any more. Threads of its own would wait for each other in products as small as these.
_BLOCK_PRODUCTS = 1 << 18

# N examples of all S steps, at most B in a step; P pairs of an example and a label; E entries of
# the inputs; m draws and at most K classes in a step; vectors of d numbers.
# Kernels take as few of these records as they need: each array passed costs time to compile.


class LossSettings(NamedTuple):
    """How scores come from vectors, and which draws have weight, as in `losses.step.Pairs`."""

    tau: float
    normalize: bool
    absolute: bool
    keeps_label_hits: bool
    keeps_other_hits: bool
    counts_draws_once: bool


class StepClasses(NamedTuple):
    """The classes of each step: those drawn, each once, and then the labels not among them."""

    ids: IntArray  # (S, K)
    num_drawn: IntArray  # (S,)
    num_classes: IntArray  # (S,)
    # Columns of the logits are the classes drawn; or the draws, where a loss does not add up their
    # exponentials, so that two draws of a class are not one logit.
    class_of_draw: IntArray  # (S, m): index of each draw's class in `ids`; (S, 0) for the former
    log_counts: Rows  # (S, m): log expected counts of the columns, which scores lose
    weights: FloatArray  # (S, m): 1 over expected counts; (S, 0) where the loss does not ask


class StepPairs(NamedTuple):
    """Pairs of an example and a label, of one example after another."""

    offsets: IntArray  # (N + 1,): first pair of each example
    weights: FloatArray  # (P,): in the loss of their example
    log_counts: FloatArray  # (P,): log expected counts that the labels' scores lose
    classes: IntArray  # (P,): index of the label in the `ids` of the step
    by_class: IntArray  # (P,): pairs of a step in the order of these, from its first pair on
    example_ids: IntArray  # (P,): counted in the step


class AccidentalHits(NamedTuple):
    """The columns of the logits that are the label of a pair: ``columns[starts[p]:stops[p]]``."""

    columns: IntArray  # (S m,), of one step after another; (m,) where they are classes
    starts: IntArray  # (P,)
    stops: IntArray  # (P,)


class InputEntries(NamedTuple):
    """Entries of the inputs, by example, and again for each step by feature."""

    offsets: IntArray  # (N + 1,): first entry of each example
    features: IntArray  # (E,)
    values: Rows  # (E,)
    # of a step from the index of its first entry on
    unique_features: IntArray  # (E,)
    num_unique: IntArray  # (S,)
    feature_offsets: IntArray  # (E + S,): first entry of each unique feature
    example_ids: IntArray  # (E,): by feature, counted in the step
    values_by_feature: Rows  # (E,)


class Workspace(NamedTuple):
    """What workers write in a step, for others to read."""

    contexts: Rows  # (B, d), of norm 1 where the loss normalises
    context_norms: FloatArray  # (B,)
    z: Rows  # (B, d): contexts times tau
    d_embedded: Rows  # (B, d): gradients in embedded inputs
    class_vectors: Rows  # (K, d), of norm 1 too
    class_norms: FloatArray  # (K,)
    d_drawn: Rows  # (blocks of examples, blocks of classes, 32 * width): in scores of classes drawn
    label_scores: FloatArray  # (P,)
    d_labels: FloatArray  # (P,): logits of the labels, and later derivatives in their scores
    pair_losses: FloatArray  # (P,)


class StepBlock(NamedTuple):
    """Some steps: their examples in order, what each step touches, and a workspace."""

    loss: LossSettings
    loss_parameters: tuple[Any, ...]  # of its kernel
    batch_size: int  # examples of a step, of which the last may have fewer
    width: int  # classes in a block
    example_weights: FloatArray  # (N,)
    classes: StepClasses
    pairs: StepPairs
    hits: AccidentalHits
    entries: InputEntries
    workspace: Workspace
    losses: FloatArray  # (N,)
    # (2,): whether a gradient has a number beyond the limit, and whether a loss is not finite; the
    # second is written before a barrier and read after it, so that all workers end together
    diverged: IntArray


def arrange(
    loss: LossSettings,
    x: Any,
    targets: Targets,
    draws: DrawsOfSteps,
    label_log_counts: FloatArray,
    example_weights: FloatArray,
    batch_size: int,
    model: LinearSoftmax,
) -> StepBlock:
    """Bring the classes and the features of each step together, and make a workspace."""
    num_examples, dim = x.shape[0], model.softmax.class_embeddings.shape[1]
    num_steps = -(-num_examples // batch_size)
    num_pairs, num_draws = len(targets.labels), draws.ids.shape[1]
    pairs = _empty_pairs(targets, label_log_counts, num_examples, batch_size)
    pairs_of_steps = np.diff(np.append(pairs.offsets[:-1:batch_size], num_pairs))
    most_classes = num_draws + int(pairs_of_steps.max())  # of a step
    classes = _empty_classes(draws.terms, num_steps, num_draws, most_classes, x.dtype)
    entries = _empty_entries(x, num_steps)

    def arrange_part(part: slice) -> None:
        _arrange_steps(
            classes,
            pairs,
            entries,
            batch_size,
            part.start,
            part.stop,
            targets.labels,
            draws.ids,
            draws.log_counts,
            x.shape[1],
            np.zeros(model.num_classes, np.int32),
            np.empty(num_draws),
        )

    thread_each(arrange_part, chunks(num_steps, -(-num_steps // num_threads())))
    width = max(_BLOCK_PRODUCTS // (BLOCK_EXAMPLES * dim), _LEAST_BLOCK_CLASSES)
    batch = min(batch_size, num_examples)
    return StepBlock(
        loss=loss,
        loss_parameters=draws.terms.parameters,
        batch_size=batch_size,
        width=width,
        example_weights=example_weights,
        classes=classes,
        pairs=pairs,
        hits=_find_hits(classes, pairs, batch_size),
        entries=entries,
        workspace=_workspace(batch, most_classes, num_pairs, dim, width, x.dtype),
        losses=np.zeros(num_examples),
        diverged=np.zeros(2, np.int64),
    )


def _empty_classes(
    terms: Terms, num_steps: int, num_draws: int, most_classes: int, dtype: Any
) -> StepClasses:
    return StepClasses(
        ids=np.empty((num_steps, most_classes), np.int64),
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
    batch: int, most_classes: int, num_pairs: int, dim: int, width: int, dtype: Any
) -> Workspace:
    blocks = -(-batch // BLOCK_EXAMPLES), -(-most_classes // width)
    contexts, z, d_embedded = np.empty((3, batch, dim), dtype)
    return Workspace(
        contexts=contexts,
        context_norms=np.empty(batch),
        z=z,
        d_embedded=d_embedded,
        class_vectors=np.empty((most_classes, dim), dtype),
        class_norms=np.empty(most_classes),
        d_drawn=np.empty((*blocks, BLOCK_EXAMPLES * width), dtype),
        label_scores=np.empty(num_pairs),
        d_labels=np.empty(num_pairs),
        pair_losses=np.empty(num_pairs),
    )


def _find_hits(classes: StepClasses, pairs: StepPairs, batch_size: int) -> AccidentalHits:
    """Return which columns of the logits of each step are the labels of its pairs."""
    first_pairs = np.append(pairs.offsets[:-1:batch_size], pairs.offsets[-1])  # of steps
    if classes.class_of_draw.shape[1] == 0:  # a class drawn is one column
        num_drawn = np.repeat(classes.num_drawn, np.diff(first_pairs))
        return AccidentalHits(
            columns=np.arange(classes.log_counts.shape[1]),
            starts=pairs.classes,
            stops=pairs.classes + (pairs.classes < num_drawn),
        )
    by_class = np.argsort(classes.class_of_draw, axis=1, kind="stable")
    starts = np.empty_like(pairs.classes)
    stops = np.empty_like(pairs.classes)
    for s, order in enumerate(by_class):
        of_step = slice(first_pairs[s], first_pairs[s + 1])
        drawn = classes.class_of_draw[s][order]
        before = s * len(order)
        starts[of_step] = before + np.searchsorted(drawn, pairs.classes[of_step], "left")
        stops[of_step] = before + np.searchsorted(drawn, pairs.classes[of_step], "right")
    return AccidentalHits(by_class.ravel(), starts, stops)


@njit
def _arrange_steps(
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
    mark: NDArray[np.int32],
    times: FloatArray,
) -> None:
    """Fill in steps [first_step, last_step).

    `mark` (n,), zeros before and after, is 1 + the index of each class of a step, and `times` (m,)
    how often a class is drawn.
    """
    adds_exponentials = classes.class_of_draw.shape[1] == 0
    weighs_draws = classes.weights.shape[1] > 0
    for s in range(first_step, last_step):
        begin = s * batch_size
        end = min(begin + batch_size, len(pairs.offsets) - 1)

        # classes drawn, each once, with the columns of the logits
        drawn = ids[s if len(ids) > 1 else 0]
        log_count = log_counts[s if len(log_counts) > 1 else 0]
        listed = classes.ids[s]
        num = 0
        for k in range(len(drawn)):
            if mark[drawn[k]] == 0:
                listed[num] = drawn[k]
                times[num] = 0.0
                if adds_exponentials:
                    classes.log_counts[s, num] = log_count[k]
                num += 1
                mark[drawn[k]] = num
            times[mark[drawn[k]] - 1] += 1.0
            if not adds_exponentials:
                classes.class_of_draw[s, k] = mark[drawn[k]] - 1
                classes.log_counts[s, k] = 0.0 if weighs_draws else log_count[k]
            if weighs_draws:
                classes.weights[s, k] = exp(-log_count[k])
        classes.num_drawn[s] = num
        if adds_exponentials:
            # t draws of one class: t exp(o - log count) = exp(o - (log count - log t))
            for k in range(num):
                classes.log_counts[s, k] -= log(times[k])

        # labels, those that are not drawn as further classes
        low = pairs.offsets[begin]
        high = pairs.offsets[end]
        for p in range(low, high):
            if mark[labels[p]] == 0:
                listed[num] = labels[p]
                num += 1
                mark[labels[p]] = num
            pairs.classes[p] = mark[labels[p]] - 1
        classes.num_classes[s] = num
        _, _, order, _ = equal_runs(pairs.classes[low:high], num)
        for p in range(low, high):
            pairs.by_class[p] = low + order[p - low]
        for k in range(num):
            mark[listed[k]] = 0

        # entries of the inputs by feature
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
