"""A block of steps in arrays: examples in order, and what each step touches."""

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
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.samplers.base import Rows
from samplesoft.training.fused.draws import DrawsOfSteps

BLOCK_EXAMPLES = 32  # in a block
# Multiplications of a product: up to so many BLAS takes one thread and no copies, and is as quick
# as with any more. Threads of its own would wait for each other in products as small as these.
_PRODUCT = 1 << 18


class LossRules(NamedTuple):
    """What is to be computed of the scores of an example, beside the terms of the loss."""

    tau: float
    normalize: bool
    absolute: bool
    keeps_own: bool  # draws of the label itself have weight
    keeps_others: bool  # and those of another label of the example
    once: bool  # draws have weight for the first label of an example alone


# Kernels take as few of these as they need: each array that is passed costs time to compile.
class StepClasses(NamedTuple):
    """The classes of each step: those drawn, each once, and then the labels not among them."""

    classes: IntArray  # (S, K)
    num_drawn: IntArray  # (S,)
    num_classes: IntArray  # (S,)
    # Columns of the rows of logits: each class drawn, or each draw, where those of a class are not
    # one logit.
    columns: IntArray  # (S, m): the place of each draw among the classes; (S, 0) where not needed
    logs: Rows  # (S, m): log expected counts, which scores lose
    weights: FloatArray  # (S, m): 1 over expected counts; (S, 0) where the loss does not ask


class StepPairs(NamedTuple):
    """Pairs of an example and a label, of one example after another."""

    firsts: IntArray  # (N + 1,): first pair of each example
    shares: FloatArray  # (P,): weights in the loss of their example
    logs: FloatArray  # (P,): log expected counts that their logits lose
    labels: IntArray  # (P,): places of the labels among the classes of the step
    by_place: IntArray  # (P,): the pairs of a step by these places, from its first pair on
    owners: IntArray  # (P,): examples, counted in the step
    slopes: FloatArray  # (P,): logits, and later derivatives in the scores


class Hits(NamedTuple):
    """Which draws are the label of a pair, and what its step makes of it."""

    # Columns of the rows of logits, of one class of a step after another: (S m,); or where each
    # class drawn is one, the same for all steps: (m,).
    columns: IntArray
    starts: IntArray  # (P,): where those of the label begin
    stops: IntArray  # (P,)
    scores: FloatArray  # (P,)
    losses: FloatArray  # (P,)


class Entries(NamedTuple):
    """Entries of the inputs, by example, and again for each step by feature."""

    bounds: IntArray  # (N + 1,): first entry of each example
    columns: IntArray  # (E,)
    values: Rows  # (E,)
    features: IntArray  # (E,): those of a step stand from the place of its first entry on
    num_features: IntArray  # (S,)
    starts: IntArray  # (E + S,): where the entries of each begin
    owners: IntArray  # (E,): examples, counted in the step
    by_feature: Rows  # (E,): values


class Workspace(NamedTuple):
    """What workers write in a step, for others to read."""

    contexts: Rows  # (B, d), of norm 1 where the loss normalises
    norms: FloatArray  # (B,)
    z: Rows  # (B, d): contexts times tau
    slopes: Rows  # (B, d): derivatives in embedded inputs
    block: Rows  # (K, d): vectors of the classes, of norm 1 too
    block_norms: FloatArray  # (K,)
    d_drawn: Rows  # (blocks of examples, blocks of classes, 32 * width)


class Job(NamedTuple):
    """Some steps: their examples in order, what each step touches, and room for what it finds."""

    loss: LossRules
    numbers: tuple[Any, ...]  # that the kernel of the loss takes
    size: int  # examples of a step, of which the last may have fewer
    width: int  # classes in a block
    factors: FloatArray  # (N,): weights of the losses of the examples
    draws: StepClasses
    pairs: StepPairs
    hits: Hits
    entries: Entries
    room: Workspace
    losses: FloatArray  # (N,)
    # (2,): whether a gradient has a number beyond the limit, and whether a loss is not finite; the
    # second is written before a meeting and read after it, so that all workers end together
    trouble: IntArray


def arranged(
    loss: LossRules,
    x: Any,
    targets: Targets,
    drawn: DrawsOfSteps,
    label_logs: FloatArray,
    factors: FloatArray,
    size: int,
    model: LinearSoftmax,
) -> Job:
    """Bring the classes and the features of each step together, and make room."""
    ids, terms = drawn.ids, drawn.terms
    pairs, m, entries, dtype = len(targets.labels), ids.shape[1], x.nnz, x.dtype
    steps, batch = -(-x.shape[0] // size), min(size, x.shape[0])
    dim = model.softmax.class_embeddings.shape[1]
    width = max(_PRODUCT // (BLOCK_EXAMPLES * dim), 8)
    firsts = np.append(targets.firsts(), pairs)
    most = m + int(np.diff(np.append(firsts[:-1:size], pairs)).max())  # classes of a step
    blocks = -(-batch // BLOCK_EXAMPLES), -(-most // width)
    contexts, z, slopes = np.empty((3, batch, dim), dtype)
    num_drawn, num_classes, num_features = np.empty((3, steps), np.int64)
    features, owners = np.empty((2, entries), np.int64)
    draws = StepClasses(
        classes=np.empty((steps, most), np.int64),
        num_drawn=num_drawn,
        num_classes=num_classes,
        columns=np.empty((steps, 0 if terms.adds_exponentials else m), np.int64),
        logs=np.empty((steps, m), dtype),
        weights=np.empty((steps, m if terms.weighs_draws else 0)),
    )
    of_pairs = StepPairs(
        firsts=firsts,
        shares=np.ones(pairs) if targets.shares is None else targets.shares,
        logs=np.broadcast_to(label_logs, pairs).copy(),
        labels=np.empty(pairs, np.int64),
        by_place=np.empty(pairs, np.int64),
        owners=np.repeat(np.arange(x.shape[0]) % size, np.diff(firsts)),
        slopes=np.empty(pairs),
    )
    of_entries = Entries(
        bounds=x.indptr.astype(np.int64),
        columns=x.indices[:entries].astype(np.int64),
        values=x.data[:entries],
        features=features,
        num_features=num_features,
        starts=np.empty(entries + steps, np.int64),
        owners=owners,
        by_feature=np.empty(entries, dtype),
    )
    room = Workspace(
        contexts=contexts,
        norms=np.empty(batch),
        z=z,
        slopes=slopes,
        block=np.empty((most, dim), dtype),
        block_norms=np.empty(most),
        d_drawn=np.empty((*blocks, BLOCK_EXAMPLES * width), dtype),
    )

    def arrange(part: slice) -> None:
        _arrange(
            draws,
            of_pairs,
            of_entries,
            size,
            part.start,
            part.stop,
            targets.labels,
            ids,
            drawn.log_counts,
            x.shape[1],
            np.zeros(model.num_classes, np.int32),
            np.empty(m),
        )

    thread_each(arrange, chunks(steps, -(-steps // num_threads())))
    return Job(
        loss=loss,
        numbers=terms.numbers,
        size=size,
        width=width,
        factors=factors,
        draws=draws,
        pairs=of_pairs,
        hits=_hits(draws, of_pairs, size),
        entries=of_entries,
        room=room,
        losses=np.zeros(x.shape[0]),
        trouble=np.zeros(2, np.int64),
    )


def _hits(draws: StepClasses, pairs: StepPairs, size: int) -> Hits:
    """Return which draws are the labels of pairs, of steps of so many examples."""
    if draws.columns.shape[1] == 0:  # a class drawn is one column
        columns = np.arange(draws.logs.shape[1])
        ends = np.append(pairs.firsts[:-1:size], pairs.firsts[-1])
        starts = pairs.labels
        stops = starts + (starts < np.repeat(draws.num_drawn, np.diff(ends)))
    else:
        orders = np.argsort(draws.columns, axis=1, kind="stable")
        columns = orders.ravel()
        starts, stops = np.empty_like(pairs.labels), np.empty_like(pairs.labels)
        for s, order in enumerate(orders):
            begin, end = s * size, min((s + 1) * size, len(pairs.firsts) - 1)
            some = slice(pairs.firsts[begin], pairs.firsts[end])
            classes = draws.columns[s][order]
            before = s * len(order)
            starts[some] = before + np.searchsorted(classes, pairs.labels[some], "left")
            stops[some] = before + np.searchsorted(classes, pairs.labels[some], "right")
    num = len(starts)
    return Hits(columns, starts, stops, np.empty(num), np.empty(num))


@njit
def _arrange(
    draws: StepClasses,
    pairs: StepPairs,
    entries: Entries,
    size: int,
    first: int,
    last: int,
    labels: IntArray,
    ids: IntArray,
    log_counts: FloatArray,
    v: int,
    mark: NDArray[np.int32],
    times: FloatArray,
) -> None:
    """Fill in steps [first, last).

    `mark` (n,), zeros before and after, has one more than the place of each class of a step, and
    `times` (m,) how often a class is drawn.
    """
    adds_exponentials, weighs_draws = draws.columns.shape[1] == 0, draws.weights.shape[1] > 0
    for s in range(first, last):
        drawn, counts = ids[s if len(ids) > 1 else 0], log_counts[s if len(log_counts) > 1 else 0]
        begin, end = s * size, min((s + 1) * size, len(pairs.firsts) - 1)
        classes, num = draws.classes[s], 0
        for k in range(len(drawn)):
            if mark[drawn[k]] == 0:
                classes[num], times[num] = drawn[k], 0.0
                if adds_exponentials:
                    draws.logs[s, num] = counts[k]
                num += 1
                mark[drawn[k]] = num
            times[mark[drawn[k]] - 1] += 1.0
            if not adds_exponentials:
                draws.columns[s, k] = mark[drawn[k]] - 1
                draws.logs[s, k] = 0.0 if weighs_draws else counts[k]
            if weighs_draws:
                draws.weights[s, k] = exp(-counts[k])
        draws.num_drawn[s] = num
        if adds_exponentials:
            for k in range(num):
                draws.logs[s, k] -= log(times[k])
        low, high = pairs.firsts[begin], pairs.firsts[end]
        for p in range(low, high):
            if mark[labels[p]] == 0:
                classes[num] = labels[p]
                num += 1
                mark[labels[p]] = num
            pairs.labels[p] = mark[labels[p]] - 1
        draws.num_classes[s] = num
        _, _, order, _ = equal_runs(pairs.labels[low:high], draws.num_classes[s])
        for p in range(low, high):
            pairs.by_place[p] = low + order[p - low]
        for k in range(num):
            mark[classes[k]] = 0
        low, high = entries.bounds[begin], entries.bounds[end]
        unique, _, order, starts = equal_runs(entries.columns[low:high], v)
        entries.num_features[s] = len(unique)
        copy_row(entries.features[low:], unique)
        for k in range(len(starts)):
            entries.starts[low + s + k] = low + starts[k]
        examples = np.empty(high - low, np.int64)
        for b in range(begin, end):
            for i in range(entries.bounds[b], entries.bounds[b + 1]):
                examples[i - low] = b - begin
        for i in range(low, high):
            entries.owners[i] = examples[order[i - low]]
            entries.by_feature[i] = entries.values[low + order[i - low]]
