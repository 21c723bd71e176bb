"""Many steps of a linear softmax model in one compiled call: scores, losses, updates.

The draws of a static sampler do not depend on what is learned, so those of many steps are made at
once, by any such sampler, and brought into order with the labels and the entries of the inputs
(`_arrange`). `_run` then takes the steps, with the kernels of the losses and of the optimizers.

Workers go through a step side by side and meet three times in it: when the vectors of its classes
have been gathered, when the derivatives of its examples are known, and when rows have been updated.
They share out blocks of classes, of `_EXAMPLES` examples and of `_FEATURES` features. A block does
the same whichever worker takes it, so that results do not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np

from samplesoft._jit import chunks, meet, njit, njit_bare, num_threads, thread_each, together
from samplesoft._limits import quiet
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.rows import (
    add_row,
    copy_row,
    divide_by_norms,
    prefetch_row,
    row_dot,
    unit_gradient,
    weighted_rows,
)
from samplesoft.kernels.sort_ids import equal_runs
from samplesoft.losses.base import Targets, check_targets
from samplesoft.losses.bilateral import BilateralSoftmaxLoss, bilateral_terms
from samplesoft.losses.candidates import check_draw
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.logistic import FullLogisticLoss, LogisticLoss, softplus
from samplesoft.losses.sampled import (
    SampledLoss,
    SampledSoftmaxLoss,
    merge_exponentials,
    softmax_terms,
)
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.models.optimizers import (
    SGD,
    Adagrad,
    Adam,
    Momentum,
    Optimizer,
    adagrad_rows,
    adam_rows,
    greatest,
    momentum_rows,
    sgd_rows,
)
from samplesoft.samplers.base import Rows, Sampler

_EXAMPLES = 32  # in a block
_FEATURES = 64
# Multiplications of a product: up to so many BLAS takes one thread and no copies, and is as quick
# as with any more. Threads of its own would wait for each other in products as small as these.
_PRODUCT = 1 << 18
_NUMBERS = 1 << 18  # draws and labels of the steps of a call
_FEW = 1 << 21  # multiplications of a step below which workers cost more than they save
_AHEAD = 4  # rows, so that a row is there when its turn comes
_SOFTMAX, _BILATERAL, _LOGISTIC = range(3)
_RULES = {SGD: 0, Momentum: 1, Adagrad: 2, Adam: 3}


class _Loss(NamedTuple):
    """What is to be computed of the scores of an example."""

    kind: int
    tau: float
    normalize: bool
    keeps_own: bool  # draws of the label itself have weight
    keeps_others: bool  # and those of another label of the example
    once: bool  # draws have weight for the first label of an example alone
    offset: float
    negative_weight: float


class _Table(NamedTuple):
    """Rows that are trained, and the state of their optimizer."""

    rows: Rows
    first: Rows  # states; of no rows, where the optimizer has none
    second: Rows


# Kernels take as few of these as they need: each array that is passed costs time to compile.
class _Draws(NamedTuple):
    """The classes of each step: those drawn, each once, and then the labels not among them."""

    classes: IntArray  # (S, K)
    num_drawn: IntArray  # (S,)
    num_classes: IntArray  # (S,)
    times: FloatArray  # (S, m): how often each was drawn
    logs: Rows  # (S, m): log expected counts


class _Pairs(NamedTuple):
    """Pairs of an example and a label, of one example after another."""

    firsts: IntArray  # (N + 1,): first pair of each example
    shares: FloatArray  # (P,): weights in the loss of their example
    logs: FloatArray  # (P,): log expected counts that their logits lose
    labels: IntArray  # (P,): places of the labels among the classes of the step
    by_place: IntArray  # (P,): the pairs of a step by these places, from its first pair on
    owners: IntArray  # (P,): examples, counted in the step
    slopes: FloatArray  # (P,): logits, and later derivatives in them


class _Entries(NamedTuple):
    """Entries of the inputs, by example, and again for each step by feature."""

    bounds: IntArray  # (N + 1,): first entry of each example
    columns: IntArray  # (E,)
    values: Rows  # (E,)
    features: IntArray  # (E,): those of a step stand from the place of its first entry on
    num_features: IntArray  # (S,)
    starts: IntArray  # (E + S,): where the entries of each begin
    owners: IntArray  # (E,): examples, counted in the step
    by_feature: Rows  # (E,): values


class _Room(NamedTuple):
    """What workers write in a step, for others to read."""

    contexts: Rows  # (B, d), of norm 1 where the loss normalises
    norms: FloatArray  # (B,)
    z: Rows  # (B, d): contexts times tau
    slopes: Rows  # (B, d): derivatives in embedded inputs
    block: Rows  # (K, d): vectors of the classes, of norm 1 too
    block_norms: FloatArray  # (K,)
    d_drawn: Rows  # (blocks of examples, blocks of classes, 32 * width)


class _Job(NamedTuple):
    """Some steps: their examples in order, what each step touches, and room for what it finds."""

    loss: _Loss
    size: int  # examples of a step, of which the last may have fewer
    width: int  # classes in a block
    factors: FloatArray  # (N,): weights of the losses of the examples
    draws: _Draws
    pairs: _Pairs
    entries: _Entries
    room: _Room
    losses: FloatArray  # (N,)
    trouble: IntArray  # (1,): whether a gradient has a number beyond the limit


class _Update(NamedTuple):
    """What is trained, and how."""

    inputs: _Table
    intercept: _Table
    row: IntArray  # (1,): that of the intercept, 0
    classes: _Table
    rule: int
    numbers: Rows  # (S, 5): what the optimizer's kernel takes, for each step
    limit: float  # of the numbers of a gradient


def is_compiled(model: LinearSoftmax, optimizer: Optimizer | None) -> bool:
    """Tell whether `take_steps` knows the loss, the sampler and the optimizer of a model."""
    loss, sampler = model.softmax.loss, model.softmax.sampler
    if model.settings.embedding_dim is None or loss.absolute:
        return False
    if type(optimizer) not in _RULES or _kind(loss) is None:
        return False
    if not isinstance(loss, SampledLoss):
        return True
    if sampler is None or sampler.dim is not None:
        return False
    if getattr(type(sampler), "observe", None) is not Sampler.observe:
        return False
    return model.softmax.shared and not loss.facts.divides_by_kept


def _kind(loss: Any) -> int | None:
    # not by isinstance: a subclass may have other terms
    if type(loss) in (SampledSoftmaxLoss, FullSoftmaxLoss):
        return _SOFTMAX
    if type(loss) is BilateralSoftmaxLoss:
        return _BILATERAL
    logistic = isinstance(loss, LogisticLoss) and loss.__module__ == LogisticLoss.__module__
    return _LOGISTIC if logistic or type(loss) is FullLogisticLoss else None


def steps_at_once(model: LinearSoftmax, batch_size: int) -> int:
    """Return for how many steps draws are made at a time."""
    drawn = model.softmax.num_sampled or model.num_classes
    return max(1, min(_NUMBERS // (drawn + batch_size), 512))


class DrawsOfSteps(NamedTuple):
    """Classes for each step, and what their scores lose; in one row all classes, for each step."""

    ids: IntArray  # (S, m) or (1, n)
    logs: FloatArray

    def of(self, steps: slice) -> DrawsOfSteps:
        """Return those of some steps."""
        return self if len(self.ids) == 1 else DrawsOfSteps(self.ids[steps], self.logs[steps])


def draws_of_steps(model: LinearSoftmax, num_steps: int, seed: int) -> DrawsOfSteps:
    """Draw for some steps at once: a set of classes for each."""
    loss, layer, n = model.softmax.loss, model.softmax, model.num_classes
    if not isinstance(loss, SampledLoss):
        # all classes, each once, stand for draws where there are none
        return DrawsOfSteps(np.arange(n)[None], np.zeros((1, n)))
    assert layer.sampler is not None
    each = np.zeros((num_steps, 1))  # a set for each step, of which no context is a part
    drawn = layer.sampler.sample(each, layer.num_sampled, rng=seed)
    ids, logs = check_draw(drawn, num_steps, n)
    return DrawsOfSteps(ids, logs * loss.facts.corrects_draws)


def take_steps(
    model: LinearSoftmax,
    optimizer: Optimizer,
    x: Any,
    labels: Any,
    weights: FloatArray,
    batch_size: int,
    seeds: Sequence[int],
    *,
    draws: DrawsOfSteps | None = None,
    first_entry: int = 0,
) -> FloatArray:
    """Take steps of `batch_size` examples on inputs (N, v), a CSR matrix.

    `seeds` are those of the draws and of dropout. `draws` are made already, or are made here;
    before the inputs may stand some others, of `first_entry` entries, which share the seed of
    dropout. Returns the mean loss of each step. A FloatingPointError says that training has
    diverged.
    """
    loss, layer = model.softmax.loss, model.softmax
    num_steps, n = -(-x.shape[0] // batch_size), model.num_classes
    draws = draws_of_steps(model, num_steps, seeds[0]) if draws is None else draws
    ids, logs = draws
    corrects = keeps_own = False
    if isinstance(loss, SampledLoss):
        corrects, keeps_own = loss.needs_label_count, loss.facts.draws_label
    x = model.thinned(model.check_inputs(x), np.uint64(seeds[1]), first_entry)
    targets = check_targets(labels, x.shape[0], n, loss.label_reduction)
    label_logs = np.zeros(1)
    if corrects and layer.sampler is not None:
        counts = layer.sampler.log_expected_count
        label_logs = counts(None, targets.labels[None], layer.num_sampled, shared=True)[0]
    keeps_others, once = not loss.mask_other_labels, loss.label_reduction == "ova"
    kind = _kind(loss)
    assert kind is not None
    rules = _Loss(
        kind,
        loss.tau,
        loss.normalize,
        keeps_own and (keeps_others or not once),
        keeps_others and (keeps_own or not once),
        once,
        getattr(loss, "offset", 0.0),
        getattr(loss, "negative_weight", 1.0),
    )
    sizes = np.minimum(batch_size, x.shape[0] - batch_size * np.arange(num_steps))
    factors = weights / np.repeat(sizes, sizes)
    job = _arranged(rules, x, targets, ids, logs, label_logs, factors, batch_size, model)
    update = _update_of(optimizer, model, num_steps)
    arrived, work = np.zeros(1, np.int64), batch_size * ids.shape[1] * job.room.z.shape[1]
    most = num_threads() if work > _FEW else 1
    scratches = [_scratch(job) for _ in range(most)]  # before they meet: there may be no memory
    with quiet():
        together(
            lambda worker, workers: _run(job, update, scratches[worker], arrived, worker, workers),
            most,
        )
    means = np.add.reduceat(job.losses * factors, batch_size * np.arange(num_steps))
    if job.trouble[0] or not np.isfinite(means).all():
        raise FloatingPointError(
            f"a loss or a gradient is not finite, or too large for {model.dtype}"
        )
    return means


def _update_of(optimizer: Optimizer, model: LinearSoftmax, num_steps: int) -> _Update:
    """Return parameters with their states, and what an optimizer does with them in each step."""
    model.own_parameters()
    states, tables = optimizer.with_states(model.parameters), []
    for name in ("embedding.weights", "embedding.intercept", "softmax.class_embeddings"):
        rows = [array.reshape(-1, array.shape[-1]) for array in states[name]]
        tables.append(_Table(*rows, *[np.empty((0, 0), model.dtype)] * (3 - len(rows))))
    numbers = np.zeros((num_steps, 5), model.dtype)
    for of_step in numbers:
        found = optimizer.next_numbers()
        of_step[: len(found)] = found
    limit = model.dtype.type(greatest(model.dtype, optimizer.squares))
    inputs, intercept, classes = tables
    row, rule = np.zeros(1, np.int64), _RULES[type(optimizer)]
    return _Update(inputs, intercept, row, classes, rule, numbers, limit)


def _arranged(
    loss: _Loss,
    x: Any,
    targets: Targets,
    ids: IntArray,
    logs: FloatArray,
    label_logs: FloatArray,
    factors: FloatArray,
    size: int,
    model: LinearSoftmax,
) -> _Job:
    """Bring the classes and the features of each step together, and make room."""
    pairs, m, entries, dtype = len(targets.labels), ids.shape[1], x.nnz, x.dtype
    steps, batch = -(-x.shape[0] // size), min(size, x.shape[0])
    dim = model.softmax.class_embeddings.shape[1]
    width = max(_PRODUCT // (_EXAMPLES * dim), 8)
    firsts = np.append(targets.firsts(), pairs)
    most = m + int(np.diff(np.append(firsts[:-1:size], pairs)).max())  # classes of a step
    blocks = -(-batch // _EXAMPLES), -(-most // width)
    contexts, z, slopes = np.empty((3, batch, dim), dtype)
    num_drawn, num_classes, num_features = np.empty((3, steps), np.int64)
    features, owners = np.empty((2, entries), np.int64)
    draws = _Draws(
        classes=np.empty((steps, most), np.int64),
        num_drawn=num_drawn,
        num_classes=num_classes,
        times=np.empty((steps, m)),
        logs=np.empty((steps, m), dtype),
    )
    of_pairs = _Pairs(
        firsts=firsts,
        shares=np.ones(pairs) if targets.shares is None else targets.shares,
        logs=np.broadcast_to(label_logs, pairs).copy(),
        labels=np.empty(pairs, np.int64),
        by_place=np.empty(pairs, np.int64),
        owners=np.repeat(np.arange(x.shape[0]) % size, np.diff(firsts)),
        slopes=np.empty(pairs),
    )
    of_entries = _Entries(
        bounds=x.indptr.astype(np.int64),
        columns=x.indices[:entries].astype(np.int64),
        values=x.data[:entries],
        features=features,
        num_features=num_features,
        starts=np.empty(entries + steps, np.int64),
        owners=owners,
        by_feature=np.empty(entries, dtype),
    )
    room = _Room(
        contexts=contexts,
        norms=np.empty(batch),
        z=z,
        slopes=slopes,
        block=np.empty((most, dim), dtype),
        block_norms=np.empty(most),
        d_drawn=np.empty((*blocks, _EXAMPLES * width), dtype),
    )
    losses, trouble = np.empty(x.shape[0]), np.zeros(1, np.int64)
    job = _Job(loss, size, width, factors, draws, of_pairs, of_entries, room, losses, trouble)
    is_merged = loss.kind != _LOGISTIC  # exponentials of equal logits are one of a greater logit
    thread_each(
        lambda part: _arrange(
            *(draws, of_pairs, of_entries, size, part.start, part.stop, targets.labels, ids, logs),
            *(is_merged, model.num_classes, x.shape[1]),
        ),
        chunks(steps, -(-steps // num_threads())),
    )
    return job


@njit
def _arrange(
    draws: _Draws,
    pairs: _Pairs,
    entries: _Entries,
    size: int,
    first: int,
    last: int,
    labels: IntArray,
    ids: IntArray,
    logs: FloatArray,
    is_merged: bool,
    n: int,
    v: int,
) -> None:
    """Fill in steps [first, last)."""
    mark = np.zeros(n, np.int32)  # one more than the place of a class of the step
    owner = np.empty(entries.bounds[-1], np.int64)
    for s in range(first, last):
        drawn, corrections = ids[s if len(ids) > 1 else 0], logs[s if len(logs) > 1 else 0]
        begin, end = s * size, min((s + 1) * size, len(pairs.firsts) - 1)
        classes, times, num = draws.classes[s], draws.times[s], 0
        for k in range(len(drawn)):
            place = mark[drawn[k]]
            if place > 0:
                times[place - 1] += 1.0
                continue
            classes[num], times[num], draws.logs[s, num] = drawn[k], 1.0, corrections[k]
            num += 1
            mark[drawn[k]] = num
        draws.num_drawn[s] = num
        if is_merged:
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
        for b in range(begin, end):
            for i in range(entries.bounds[b], entries.bounds[b + 1]):
                owner[i] = b - begin
        for i in range(low, high):
            entries.owners[i] = owner[low + order[i - low]]
            entries.by_feature[i] = entries.values[low + order[i - low]]


def _scratch(job: _Job) -> tuple[Rows, Rows, Rows, FloatArray, FloatArray]:
    """Make room for what no other worker reads: scores, gradients, a product, and rows."""
    (most, dim), dtype = job.room.block.shape, job.room.block.dtype
    wide = max(job.width, _EXAMPLES, _FEATURES)
    sizes = _EXAMPLES * most, wide * dim, max(wide * dim, _EXAMPLES * job.width)
    scores, gradients, product = (np.empty(size, dtype) for size in sizes)
    return scores, gradients, product, np.empty(2 + most), np.empty(2 + 3 * most)


@njit_bare
def _run(
    job: _Job,
    update: _Update,
    scratch: tuple[Rows, Rows, Rows, FloatArray, FloatArray],
    arrived: IntArray,
    worker: int,
    workers: int,
) -> None:
    """Take all the steps, as one of some workers that do so together."""
    loss, draws, pairs, entries, room = job.loss, job.draws, job.pairs, job.entries, job.room
    scores, gradients, product, row, halves = scratch
    dim, width, meetings, bad = room.z.shape[1], job.width, 0, 0
    for s in range(len(draws.num_drawn)):
        begin, end = s * job.size, min((s + 1) * job.size, len(job.factors))
        num, num_classes, numbers = draws.num_drawn[s], draws.num_classes[s], update.numbers[s]
        for first in range(worker * width, num_classes, workers * width):
            last = min(first + width, num_classes)
            ids, norms = draws.classes[s, first:last], room.block_norms[first:last]
            _gather(ids, update.classes.rows, loss.normalize, room.block[first:last], norms)
        meetings += 1
        meet(arrived, workers, meetings)
        for first in range(begin + worker * _EXAMPLES, end, workers * _EXAMPLES):
            last = min(first + _EXAMPLES, end)
            own = slice(first - begin, last - begin)
            z, slopes = room.z[own], room.slopes[own]
            contexts, norms = room.contexts[own], room.norms[own]
            bounds = entries.bounds[first : last + 1]
            weighted_rows(bounds, entries.columns, entries.values, update.inputs.rows, contexts)
            _embed(loss, update.intercept.rows[0], contexts, norms, z)
            _score(room.block, z, num, width, scores, product)
            _score_labels(loss, pairs, room.block, z, first)
            d_drawn = room.d_drawn[own.start // _EXAMPLES]
            for b in range(first, last):
                of_draws = scores[(b - first) * num : (b - first + 1) * num]
                job.losses[b] = _differentiate(
                    loss, draws.logs[s], draws.times[s], pairs, b, of_draws, row, halves
                )
                _spread(pairs, b, job.factors[b], of_draws, width, b - first, d_drawn)
            _go_back(d_drawn, room.block, num, width, slopes, product)
            _go_back_labels(loss, pairs, room.block, first, slopes)
            if loss.normalize:
                unit_gradient(slopes, contexts, norms)
        meetings += 1
        meet(arrived, workers, meetings)
        for first in range(worker * width, num_classes, workers * width):
            last = min(first + width, num_classes)
            gradient = gradients[: (last - first) * dim].reshape((last - first, dim))
            z, drawn = room.z[: end - begin], min(last, num) - first
            _of_draws(room.d_drawn, first // width, z, drawn, gradient, product)
            _of_labels(pairs, pairs.firsts[begin], pairs.firsts[end], first, z, gradient)
            if loss.normalize:
                unit_gradient(gradient, room.block[first:last], room.block_norms[first:last])
            ids = draws.classes[s, first:last]
            bad += _update(update.rule, ids, gradient, update.classes, numbers, update.limit)
        low = entries.bounds[begin]
        for first in range(worker * _FEATURES, entries.num_features[s], workers * _FEATURES):
            last = min(first + _FEATURES, entries.num_features[s])
            gradient = gradients[: (last - first) * dim].reshape((last - first, dim))
            starts = entries.starts[low + s + first : low + s + last + 1]
            weighted_rows(starts, entries.owners, entries.by_feature, room.slopes, gradient)
            ids = entries.features[low + first : low + last]
            bad += _update(update.rule, ids, gradient, update.inputs, numbers, update.limit)
        if worker == workers - 1:  # which has the fewest blocks
            gradient = gradients[:dim].reshape((1, dim))
            gradient[:] = 0.0
            for b in range(end - begin):
                add_row(gradient[0], 1.0, room.slopes[b])
            bad += _update(
                update.rule, update.row, gradient, update.intercept, numbers, update.limit
            )
        if bad > 0:  # all write the same
            job.trouble[0] = 1
        meetings += 1
        meet(arrived, workers, meetings)


@njit_bare
def _gather(ids: IntArray, rows: Rows, normalize: bool, block: Rows, norms: FloatArray) -> None:
    """Copy the vectors of a block of classes."""
    for k in range(len(ids)):
        if k + _AHEAD < len(ids):
            prefetch_row(rows, ids[k + _AHEAD])
        copy_row(block[k], rows[ids[k]])
    if normalize:
        divide_by_norms(block, norms)


@njit_bare
def _embed(loss: _Loss, intercept: Rows, contexts: Rows, norms: FloatArray, z: Rows) -> None:
    """Complete the contexts of a block of examples."""
    tau = z.dtype.type(loss.tau)
    for b in range(len(z)):
        add_row(contexts[b], 1.0, intercept)
    if loss.normalize:
        divide_by_norms(contexts, norms)
    for b in range(len(z)):
        for i in range(z.shape[1]):
            z[b, i] = tau * contexts[b, i]


@njit
def _score(block: Rows, z: Rows, num: int, width: int, scores: Rows, product: Rows) -> None:
    """Write the scores of a block of examples, of the draws of each one after another."""
    for start in range(0, num, width):
        stop = min(start + width, num)
        part = product[: len(z) * (stop - start)].reshape((len(z), stop - start))
        np.dot(z, block[start:stop].T, part)
        for b in range(len(z)):
            copy_row(scores[b * num + start :], part[b])


@njit_bare
def _score_labels(loss: _Loss, pairs: _Pairs, block: Rows, z: Rows, first: int) -> None:
    for b in range(len(z)):
        for p in range(pairs.firsts[first + b], pairs.firsts[first + b + 1]):
            own = row_dot(block, pairs.labels[p], z, b)
            pairs.slopes[p] = own + loss.offset - pairs.logs[p]


@njit_bare
def _differentiate(
    loss: _Loss,
    logs: Rows,
    times: FloatArray,
    pairs: _Pairs,
    example: int,
    draws: Rows,
    row: FloatArray,
    halves: FloatArray,
) -> float:
    """Turn scores of an example's draws, and of its labels, into derivatives; return its loss."""
    offset = draws.dtype.type(loss.offset)
    for k in range(len(draws)):
        draws[k] += offset - logs[k]
    if loss.kind != _LOGISTIC and not loss.keeps_own and not loss.keeps_others:
        return _of_merged(loss, pairs, example, draws, row)
    return _of_rows(loss, times, pairs, example, draws, row, halves)


@njit_bare
def _spread(
    pairs: _Pairs, example: int, factor: float, draws: Rows, width: int, b: int, d_drawn: Rows
) -> None:
    """Weigh the derivatives of an example, and put those of its draws where blocks find them."""
    for p in range(pairs.firsts[example], pairs.firsts[example + 1]):
        pairs.slopes[p] *= factor
    scale = draws.dtype.type(factor)
    for start in range(0, len(draws), width):
        wide = min(width, len(draws) - start)
        out = d_drawn[start // width]
        for k in range(wide):
            out[b * wide + k] = scale * draws[start + k]


@njit_bare
def _of_merged(loss: _Loss, pairs: _Pairs, example: int, draws: Rows, row: FloatArray) -> float:
    """Turn logits of labels and draws into derivatives, where no draw of a label has weight.

    One logit then stands for all draws.
    """
    first, last = pairs.firsts[example], pairs.firsts[example + 1]
    for p in range(first, last):
        if pairs.labels[p] < len(draws):
            draws[pairs.labels[p]] = -np.inf
    merge_exponentials(draws.reshape((1, len(draws))), row[:1])
    merged, slope, lost = row[0], 0.0, 0.0
    pair = row[1:3].reshape((1, 2))
    for p in range(first, last):
        pair[0, 0], pair[0, 1] = pairs.slopes[p], merged
        lost += pairs.shares[p] * _terms(loss, pair, row[:1])
        pairs.slopes[p] = pairs.shares[p] * pair[0, 0]
        slope += pairs.shares[p] * pair[0, 1]
    typed = draws.dtype.type(slope)
    for k in range(len(draws)):
        draws[k] *= typed
    return lost


@njit_bare
def _of_rows(
    loss: _Loss,
    times: FloatArray,
    pairs: _Pairs,
    example: int,
    draws: Rows,
    row: FloatArray,
    halves: FloatArray,
) -> float:
    """Do as `_of_merged` with a row of all draws for each label."""
    num, lost = len(draws), 0.0
    first, last = pairs.firsts[example], pairs.firsts[example + 1]
    logits = halves[2 + 2 * num : 2 + 3 * num]
    for k in range(num):
        logits[k], draws[k] = draws[k], 0.0
    logits_of_pair = row[1 : 2 + num]
    for p in range(first, last):
        logits_of_pair[0] = pairs.slopes[p]
        for k in range(num):
            later = loss.once and p > first
            logits_of_pair[1 + k] = -np.inf if later else logits[k]
        for other in range(first, last):
            kept = loss.keeps_own if other == p else loss.keeps_others
            if not kept and pairs.labels[other] < num:
                logits_of_pair[1 + pairs.labels[other]] = -np.inf
        if loss.kind == _LOGISTIC:
            value = _weighted_logistic(logits_of_pair, times, halves)
        else:
            value = _terms(loss, logits_of_pair.reshape((1, 1 + num)), row[:1])
        lost += pairs.shares[p] * value
        pairs.slopes[p] = pairs.shares[p] * logits_of_pair[0]
        for k in range(num):
            draws[k] += pairs.shares[p] * logits_of_pair[1 + k]
    return lost


@njit_bare
def _terms(loss: _Loss, logits: FloatArray, lost: FloatArray) -> float:
    if loss.kind == _BILATERAL:
        bilateral_terms(logits, lost, loss.negative_weight)
    else:
        softmax_terms(logits, lost)
    return float(lost[0])


@njit_bare
def _weighted_logistic(row: FloatArray, times: FloatArray, halves: FloatArray) -> float:
    """Compute as `logistic_terms` for logits (1 + m) of draws that count so many `times`."""
    size = len(row)
    small, large = halves[:size], halves[size : 2 * size]
    row[0] = -row[0]  # the label is the positive
    softplus(row, small, large)
    row[0] = -row[0]
    lost = small[0] + large[0]
    for k in range(1, size):
        lost += times[k - 1] * (small[k] + large[k])
        row[k] *= times[k - 1]
    return float(lost)


@njit
def _go_back(d_drawn: Rows, block: Rows, num: int, width: int, slopes: Rows, product: Rows) -> None:
    """Write what draws bring to the derivatives in a block of contexts times tau."""
    part = product[: slopes.size].reshape(slopes.shape)
    slopes[:] = 0.0
    for start in range(0, num, width):
        wide = min(width, num - start)
        d_scores = d_drawn[start // width][: len(slopes) * wide].reshape((len(slopes), wide))
        np.dot(d_scores, block[start : start + wide], part)
        for b in range(len(slopes)):
            add_row(slopes[b], 1.0, part[b])


@njit_bare
def _go_back_labels(loss: _Loss, pairs: _Pairs, block: Rows, first: int, slopes: Rows) -> None:
    """Add what labels bring, and go on to derivatives in contexts."""
    tau = slopes.dtype.type(loss.tau)
    for b in range(len(slopes)):
        for p in range(pairs.firsts[first + b], pairs.firsts[first + b + 1]):
            add_row(slopes[b], pairs.slopes[p], block[pairs.labels[p]])
        for i in range(slopes.shape[1]):
            slopes[b, i] *= tau


@njit
def _of_draws(d_drawn: Rows, j: int, z: Rows, num: int, gradient: Rows, product: Rows) -> None:
    """Write the gradient in the vectors of a block of classes, of which the first are drawn."""
    gradient[:] = 0.0
    if num > 0:
        part = product[: num * z.shape[1]].reshape((num, z.shape[1]))
        for start in range(0, len(z), _EXAMPLES):
            stop = min(start + _EXAMPLES, len(z))
            d_scores = d_drawn[start // _EXAMPLES, j][: (stop - start) * num]
            np.dot(d_scores.reshape((stop - start, num)).T, z[start:stop], part)
            for k in range(num):
                add_row(gradient[k], 1.0, part[k])


@njit_bare
def _of_labels(pairs: _Pairs, i: int, stop: int, first: int, z: Rows, gradient: Rows) -> None:
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


@njit_bare
def _update(
    rule: int, ids: IntArray, gradient: Rows, table: _Table, numbers: Rows, limit: float
) -> int:
    """Let an optimizer change rows; return how many numbers of the gradient it would refuse."""
    bad = 0
    for row in gradient:
        for i in range(len(row)):
            bad += 0 if abs(row[i]) <= limit else 1  # NaN too
    a, b, c, d, f = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    if bad > 0:
        return bad
    if rule == 0:
        sgd_rows(ids, gradient, table.rows, (), (a,))
    elif rule == 1:
        momentum_rows(ids, gradient, table.rows, (table.first,), (a, b, c))
    elif rule == 2:
        adagrad_rows(ids, gradient, table.rows, (table.first,), (a, b, c))
    else:
        adam_rows(ids, gradient, table.rows, (table.first, table.second), (a, b, c, d, f))
    return 0
