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
_WHOLE = np.zeros(1, np.int64)
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


class _Job(NamedTuple):
    """Some steps: their examples in order, what each step touches, and room for what it finds."""

    loss: _Loss
    size: int  # examples of a step, of which the last may have fewer
    width: int  # classes in a block
    factors: FloatArray  # (N,): weights of the losses of the examples
    firsts: IntArray  # (N + 1,): first pair, of an example and a label, of each example
    shares: FloatArray  # (P,): weights of the pairs in the loss of their example
    label_logs: FloatArray  # (P,): log expected counts that their logits lose
    # The classes of a step: those drawn, each once, and then the labels that are not among them.
    classes: IntArray  # (S, K)
    num_drawn: IntArray  # (S,)
    num_classes: IntArray  # (S,)
    times: FloatArray  # (S, m): how often each was drawn
    logs: Rows  # (S, m): log expected counts
    labels: IntArray  # (P,): places of the labels among them
    by_place: IntArray  # (P,): the pairs of a step by these places, from its first pair on
    pair_owners: IntArray  # (P,): examples, counted in the step
    # Entries of the inputs, by example, and again for each step by feature.
    bounds: IntArray  # (N + 1,): first entry of each example
    columns: IntArray  # (E,)
    values: Rows  # (E,)
    features: IntArray  # (E,): those of a step stand from the place of its first entry on
    num_features: IntArray  # (S,)
    starts: IntArray  # (E + S,): where the entries of each begin
    owners: IntArray  # (E,): examples, counted in the step
    by_feature: Rows  # (E,): values
    # What workers write, for others to read.
    contexts: Rows  # (B, d), of norm 1 where the loss normalises
    norms: FloatArray  # (B,)
    z: Rows  # (B, d): contexts times tau
    slopes: Rows  # (B, d): derivatives in embedded inputs
    block: Rows  # (K, d): vectors of the classes, of norm 1 too
    block_norms: FloatArray  # (K,)
    d_drawn: Rows  # (blocks of examples, blocks of classes, 32 * width)
    d_own: FloatArray  # (P,)
    losses: FloatArray  # (N,)
    trouble: IntArray  # (1,): whether a gradient has a number beyond the limit


class _Update(NamedTuple):
    """What is trained, and how."""

    inputs: _Table
    intercept: _Table
    classes: _Table
    rule: int
    numbers: Rows  # (S, 5): what the optimizer's kernel takes, for each step
    limit: float  # of the numbers of a gradient


def is_compiled(model: LinearSoftmax, optimizer: Optimizer | None, x: Any) -> bool:
    """Tell whether `take_steps` knows the loss, the sampler and the optimizer of a model."""
    loss, sampler = model.softmax.loss, model.softmax.sampler
    if model.settings.embedding_dim is None or isinstance(x, np.ndarray) or loss.absolute:
        return False
    if type(optimizer) not in _RULES or _kind(loss) is None:
        return False
    if not isinstance(loss, SampledLoss):
        return True
    if sampler is None or sampler.dim is not None or type(sampler).observe is not Sampler.observe:
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


def take_steps(
    model: LinearSoftmax,
    optimizer: Optimizer,
    x: Any,
    labels: Any,
    weights: FloatArray,
    batch_size: int,
    seeds: Sequence[int],
    steps: slice = slice(None),
) -> FloatArray:
    """Take some of the steps of `batch_size` examples on inputs (N, v), a CSR matrix.

    `seeds` are those of the draws and of dropout, of all the steps. Returns the mean loss of each.
    A FloatingPointError says that training has diverged.
    """
    loss, layer = model.softmax.loss, model.softmax
    num_steps, n = -(-x.shape[0] // batch_size), model.num_classes
    # all classes, each once, stand for draws where there are none
    ids, logs, corrects, keeps_own = np.arange(n)[None], np.zeros((1, n)), False, False
    if isinstance(loss, SampledLoss):
        assert layer.sampler is not None
        each = np.zeros((num_steps, 1))  # a set for each step, of which no context is a part
        drawn = layer.sampler.sample(each, layer.num_sampled, rng=seeds[0])
        ids, logs = check_draw(drawn, num_steps, n)
        ids, logs = ids[steps], logs[steps] * loss.facts.corrects_draws
        corrects, keeps_own = loss.needs_label_count, loss.facts.draws_label
    first, last, _ = steps.indices(num_steps)
    some, num_steps = slice(first * batch_size, last * batch_size), last - first
    x = model.thinned(model.check_inputs(x), np.uint64(seeds[1]))[some]
    labels, weights = labels[some], weights[some]
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
    arrived, work = np.zeros(1, np.int64), batch_size * ids.shape[1] * job.z.shape[1]
    with quiet():
        together(
            lambda worker, workers: _run(job, update, arrived, worker, workers),
            num_threads() if work > _FEW else 1,
        )
    means = np.add.reduceat(job.losses * factors, batch_size * np.arange(num_steps))
    if job.trouble[0] or not np.isfinite(means).all():
        raise FloatingPointError(
            f"a loss or a gradient is not finite, or too large for {model.dtype}"
        )
    return means


def _update_of(optimizer: Optimizer, model: LinearSoftmax, num_steps: int) -> _Update:
    """Return parameters with their states, and what an optimizer does with them in each step."""
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
    return _Update(inputs, intercept, classes, _RULES[type(optimizer)], numbers, limit)


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
    job = _Job(
        loss=loss,
        size=size,
        width=width,
        factors=factors,
        firsts=firsts,
        shares=np.ones(pairs) if targets.shares is None else targets.shares,
        label_logs=np.broadcast_to(label_logs, pairs).copy(),
        classes=np.empty((steps, most), np.int64),
        num_drawn=num_drawn,
        num_classes=num_classes,
        times=np.empty((steps, m)),
        logs=np.empty((steps, m), dtype),
        labels=np.empty(pairs, np.int64),
        by_place=np.empty(pairs, np.int64),
        pair_owners=np.repeat(np.arange(x.shape[0]) % size, np.diff(firsts)),
        bounds=x.indptr.astype(np.int64),
        columns=x.indices[:entries].astype(np.int64),
        values=x.data[:entries],
        features=features,
        num_features=num_features,
        starts=np.empty(entries + steps, np.int64),
        owners=owners,
        by_feature=np.empty(entries, dtype),
        contexts=contexts,
        norms=np.empty(batch),
        z=z,
        slopes=slopes,
        block=np.empty((most, dim), dtype),
        block_norms=np.empty(most),
        d_drawn=np.empty((*blocks, _EXAMPLES * width), dtype),
        d_own=np.empty(pairs),
        losses=np.empty(x.shape[0]),
        trouble=np.zeros(1, np.int64),
    )
    thread_each(
        lambda part: _arrange(
            job, part.start, part.stop, targets.labels, ids, logs, model.num_classes, x.shape[1]
        ),
        chunks(steps, -(-steps // num_threads())),
    )
    return job


@njit_bare
def _end(job: _Job, s: int) -> int:
    """Return how many examples a step has."""
    return min(job.size, len(job.factors) - s * job.size)


@njit
def _arrange(
    job: _Job,
    first: int,
    last: int,
    labels: IntArray,
    ids: IntArray,
    logs: FloatArray,
    n: int,
    v: int,
) -> None:
    """Fill in steps [first, last)."""
    mark = np.zeros(n, np.int32)  # one more than the place of a class of the step
    for s in range(first, last):
        draws, corrections = ids[s if len(ids) > 1 else 0], logs[s if len(logs) > 1 else 0]
        begin = s * job.size
        end = begin + _end(job, s)
        classes, times, num = job.classes[s], job.times[s], 0
        for k in range(len(draws)):
            place = mark[draws[k]]
            if place > 0:
                times[place - 1] += 1.0
                continue
            classes[num], times[num], job.logs[s, num] = draws[k], 1.0, corrections[k]
            num += 1
            mark[draws[k]] = num
        job.num_drawn[s] = num
        if job.loss.kind != _LOGISTIC:  # exponentials of equal logits are one of a greater logit
            for k in range(num):
                job.logs[s, k] -= log(times[k])
        for p in range(job.firsts[begin], job.firsts[end]):
            if mark[labels[p]] == 0:
                classes[num] = labels[p]
                num += 1
                mark[labels[p]] = num
            job.labels[p] = mark[labels[p]] - 1
        _, _, order, _ = equal_runs(job.labels[job.firsts[begin] : job.firsts[end]], num)
        job.by_place[job.firsts[begin] : job.firsts[end]] = job.firsts[begin] + order
        job.num_classes[s] = num
        for k in range(num):
            mark[classes[k]] = 0
        low, high = job.bounds[begin], job.bounds[end]
        unique, _, order, starts = equal_runs(job.columns[low:high], v)
        job.num_features[s] = len(unique)
        job.features[low : low + len(unique)] = unique
        job.starts[low + s : low + s + len(starts)] = low + starts
        owner = np.empty(high - low, np.int64)
        for b in range(begin, end):
            owner[job.bounds[b] - low : job.bounds[b + 1] - low] = b - begin
        for i in range(high - low):
            job.owners[low + i] = owner[order[i]]
            job.by_feature[low + i] = job.values[low + order[i]]


@njit
def _run(job: _Job, update: _Update, arrived: IntArray, worker: int, workers: int) -> None:
    """Take all the steps, as one of some workers that do so together."""
    dim, most = job.z.shape[1], job.block.shape[0]
    wide = max(job.width, _EXAMPLES, _FEATURES)
    scores, gradients = np.empty(_EXAMPLES * most, job.z.dtype), np.empty(wide * dim, job.z.dtype)
    product = np.empty(max(wide * dim, _EXAMPLES * job.width), job.z.dtype)
    row, halves = np.empty(2 + most), np.empty(2 + 3 * most)
    meetings, bad = 0, 0
    for s in range(len(job.num_drawn)):
        blocks = -(-job.num_classes[s] // job.width)
        for j in range(worker, blocks, workers):
            _gather(job, update.classes.rows, s, j)
        meetings += 1
        meet(arrived, workers, meetings)
        for e in range(worker, -(-_end(job, s) // _EXAMPLES), workers):
            _embed(job, update, s, e)
            _score(job, s, e, scores, product)
            _differentiate(job, s, e, scores, row, halves)
            _go_back(job, s, e, product)
        meetings += 1
        meet(arrived, workers, meetings)
        numbers = update.numbers[s]
        for j in range(worker, blocks, workers):
            ids, gradient = _of_classes(job, s, j, gradients, product)
            bad += _update(update.rule, ids, gradient, update.classes, numbers, update.limit)
        low = job.bounds[s * job.size]
        for first in range(worker * _FEATURES, job.num_features[s], workers * _FEATURES):
            last = min(first + _FEATURES, job.num_features[s])
            gradient = gradients[: (last - first) * dim].reshape((last - first, dim))
            starts = job.starts[low + s + first : low + s + last + 1]
            weighted_rows(starts, job.owners, job.by_feature, job.slopes, gradient)
            ids = job.features[low + first : low + last]
            bad += _update(update.rule, ids, gradient, update.inputs, numbers, update.limit)
        if worker == workers - 1:  # which has the fewest blocks
            gradient = gradients[:dim].reshape((1, dim))
            gradient[:] = 0.0
            for b in range(_end(job, s)):
                _add_to(gradient[0], 1.0, job.slopes[b])
            bad += _update(update.rule, _WHOLE, gradient, update.intercept, numbers, update.limit)
        if bad > 0:  # all write the same
            job.trouble[0] = 1
        meetings += 1
        meet(arrived, workers, meetings)


@njit_bare
def _copy(into: Rows, row: Rows) -> None:
    for i in range(len(into)):
        into[i] = row[i]


@njit_bare
def _add_to(total: Rows, factor: float, row: Rows) -> None:
    typed = total.dtype.type(factor)
    for i in range(len(total)):
        total[i] += typed * row[i]


@njit_bare
def _gather(job: _Job, rows: Rows, s: int, j: int) -> None:
    """Copy the vectors of a block of classes."""
    low, high = j * job.width, min((j + 1) * job.width, job.num_classes[s])
    for k in range(low, high):
        if k + _AHEAD < high:
            prefetch_row(rows, job.classes[s, k + _AHEAD])
        _copy(job.block[k], rows[job.classes[s, k]])
    if job.loss.normalize:
        divide_by_norms(job.block[low:high], job.block_norms[low:high])


@njit_bare
def _embed(job: _Job, update: _Update, s: int, e: int) -> None:
    """Write the contexts of a block of examples."""
    low, high = e * _EXAMPLES, min((e + 1) * _EXAMPLES, _end(job, s))
    tau = job.z.dtype.type(job.loss.tau)
    bounds = job.bounds[s * job.size + low : s * job.size + high + 1]
    weighted_rows(bounds, job.columns, job.values, update.inputs.rows, job.contexts[low:high])
    for b in range(low, high):
        _add_to(job.contexts[b], 1.0, update.intercept.rows[0])
    if job.loss.normalize:
        divide_by_norms(job.contexts[low:high], job.norms[low:high])
    for b in range(low, high):
        for i in range(job.z.shape[1]):
            job.z[b, i] = tau * job.contexts[b, i]


@njit
def _score(job: _Job, s: int, e: int, scores: Rows, product: Rows) -> None:
    """Write the scores of a block of examples, of the draws of each one after another."""
    low, high = e * _EXAMPLES, min((e + 1) * _EXAMPLES, _end(job, s))
    size, num = high - low, job.num_drawn[s]
    for start in range(0, num, job.width):
        stop = min(start + job.width, num)
        part = product[: size * (stop - start)].reshape((size, stop - start))
        np.dot(job.z[low:high], job.block[start:stop].T, part)
        for b in range(size):
            _copy(scores[b * num + start : b * num + stop], part[b])
    for b in range(low, high):
        for p in range(job.firsts[s * job.size + b], job.firsts[s * job.size + b + 1]):
            own = row_dot(job.block, job.labels[p], job.z, b)
            job.d_own[p] = own + job.loss.offset - job.label_logs[p]


@njit_bare
def _differentiate(
    job: _Job, s: int, e: int, scores: Rows, row: FloatArray, halves: FloatArray
) -> None:
    """Write the losses of a block of examples, and their derivatives in all scores."""
    low, high = e * _EXAMPLES, min((e + 1) * _EXAMPLES, _end(job, s))
    num, loss = job.num_drawn[s], job.loss
    offset = scores.dtype.type(loss.offset)
    merges = loss.kind != _LOGISTIC and not loss.keeps_own and not loss.keeps_others
    for b in range(low, high):
        example, draws = s * job.size + b, scores[(b - low) * num : (b - low + 1) * num]
        for k in range(num):
            draws[k] += offset - job.logs[s, k]
        if merges:
            _of_merged(job, example, draws, row)
        else:
            _of_rows(job, s, example, draws, row, halves)
        factor = job.factors[example]
        scale = scores.dtype.type(factor)
        for p in range(job.firsts[example], job.firsts[example + 1]):
            job.d_own[p] *= factor
        for start in range(0, num, job.width):
            wide = min(job.width, num - start)
            out = job.d_drawn[e, start // job.width]
            for k in range(wide):
                out[(b - low) * wide + k] = scale * draws[start + k]


@njit_bare
def _of_merged(job: _Job, example: int, draws: Rows, row: FloatArray) -> None:
    """Turn logits of labels and draws into derivatives, where no draw of a label has weight.

    One logit then stands for all draws.
    """
    first, last = job.firsts[example], job.firsts[example + 1]
    for p in range(first, last):
        if job.labels[p] < len(draws):
            draws[job.labels[p]] = -np.inf
    merge_exponentials(draws.reshape((1, len(draws))), row[:1])
    merged, slope, lost = row[0], 0.0, 0.0
    pair = row[1:3].reshape((1, 2))
    for p in range(first, last):
        pair[0, 0], pair[0, 1] = job.d_own[p], merged
        lost += job.shares[p] * _terms(job.loss, pair, row[:1])
        job.d_own[p] = job.shares[p] * pair[0, 0]
        slope += job.shares[p] * pair[0, 1]
    job.losses[example] = lost
    typed = draws.dtype.type(slope)
    for k in range(len(draws)):
        draws[k] *= typed


@njit_bare
def _of_rows(
    job: _Job, s: int, example: int, draws: Rows, row: FloatArray, halves: FloatArray
) -> None:
    """Do as `_of_merged` with a row of all draws for each label."""
    loss, num, lost = job.loss, len(draws), 0.0
    first, last = job.firsts[example], job.firsts[example + 1]
    logits = halves[2 + 2 * num : 2 + 3 * num]
    for k in range(num):
        logits[k], draws[k] = draws[k], 0.0
    logits_of_pair = row[1 : 2 + num]
    for p in range(first, last):
        logits_of_pair[0] = job.d_own[p]
        for k in range(num):
            later = loss.once and p > first
            logits_of_pair[1 + k] = -np.inf if later else logits[k]
        for other in range(first, last):
            kept = loss.keeps_own if other == p else loss.keeps_others
            if not kept and job.labels[other] < num:
                logits_of_pair[1 + job.labels[other]] = -np.inf
        if loss.kind == _LOGISTIC:
            value = _weighted_logistic(logits_of_pair, job.times[s], halves)
        else:
            value = _terms(loss, logits_of_pair.reshape((1, 1 + num)), row[:1])
        lost += job.shares[p] * value
        job.d_own[p] = job.shares[p] * logits_of_pair[0]
        for k in range(num):
            draws[k] += job.shares[p] * logits_of_pair[1 + k]
    job.losses[example] = lost


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
def _go_back(job: _Job, s: int, e: int, product: Rows) -> None:
    """Write the derivatives in the embedded inputs of a block of examples."""
    low, high = e * _EXAMPLES, min((e + 1) * _EXAMPLES, _end(job, s))
    size, num, slopes = high - low, job.num_drawn[s], job.slopes[low:high]
    part = product[: size * slopes.shape[1]].reshape(slopes.shape)
    tau = slopes.dtype.type(job.loss.tau)
    slopes[:] = 0.0
    for start in range(0, num, job.width):
        wide = min(job.width, num - start)
        d_scores = job.d_drawn[e, start // job.width][: size * wide].reshape((size, wide))
        np.dot(d_scores, job.block[start : start + wide], part)
        for b in range(size):
            _add_to(slopes[b], 1.0, part[b])
    for b in range(low, high):
        for p in range(job.firsts[s * job.size + b], job.firsts[s * job.size + b + 1]):
            _add_to(job.slopes[b], job.d_own[p], job.block[job.labels[p]])
        for i in range(slopes.shape[1]):
            job.slopes[b, i] *= tau
    if job.loss.normalize:
        unit_gradient(slopes, job.contexts[low:high], job.norms[low:high])


@njit
def _of_classes(job: _Job, s: int, j: int, gradients: Rows, product: Rows) -> tuple[IntArray, Rows]:
    """Return the classes of a block, and the gradient in their vectors."""
    low, high = j * job.width, min((j + 1) * job.width, job.num_classes[s])
    dim, wide = job.z.shape[1], max(min(high, job.num_drawn[s]) - low, 0)
    gradient = gradients[: (high - low) * dim].reshape((high - low, dim))
    gradient[:] = 0.0
    for start in range(0, _end(job, s) if wide else 0, _EXAMPLES):
        stop = min(start + _EXAMPLES, _end(job, s))
        d_scores = job.d_drawn[start // _EXAMPLES, j][: (stop - start) * wide]
        part = product[: wide * dim].reshape((wide, dim))
        np.dot(d_scores.reshape((stop - start, wide)).T, job.z[start:stop], part)
        for k in range(wide):
            _add_to(gradient[k], 1.0, part[k])
    pairs = job.by_place[job.firsts[s * job.size] : job.firsts[s * job.size + _end(job, s)]]
    i, stop = 0, len(pairs)
    while i < stop:  # a search for the first label of the block
        middle = (i + stop) // 2
        if job.labels[pairs[middle]] < low:
            i = middle + 1
        else:
            stop = middle
    while i < len(pairs) and job.labels[pairs[i]] < high:
        p = pairs[i]
        _add_to(gradient[job.labels[p] - low], job.d_own[p], job.z[job.pair_owners[p]])
        i += 1
    if job.loss.normalize:
        unit_gradient(gradient, job.block[low:high], job.block_norms[low:high])
    return job.classes[s, low:high], gradient


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
