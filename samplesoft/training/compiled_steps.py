"""Many steps of a linear softmax model in one compiled call: scores, losses, updates.

The draws of a static sampler do not depend on what is learned, so those of many steps are made at
once, by any such sampler, and brought into order with the labels and the entries of the inputs
(`_arrange`). Then the steps are taken by a runner, which is compiled for the kernel of a loss and
that of an optimizer when they first come together (`_runner`). So a new loss with a kernel, or a
new optimizer, needs nothing here. `why_step_by_step` says what such a call cannot do.

Workers go through a step side by side and meet three times in it: when the vectors of its classes
have been gathered, when the derivatives of its examples are known, and when rows have been updated.
They share out blocks of classes, of `_EXAMPLES` examples and of `_FEATURES` features. A block does
the same whichever worker takes it, so that results do not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import exp, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import (
    chunks,
    is_kernel,
    meet,
    njit,
    njit_bare,
    num_threads,
    thread_each,
    together,
)
from samplesoft._limits import quiet
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.rows import (
    add_row,
    copy_row,
    divide_by_norms,
    unit_gradient,
    weighted_rows,
)
from samplesoft.kernels.sort_ids import equal_runs
from samplesoft.losses.base import Loss, Targets, check_targets
from samplesoft.losses.candidates import check_draw, require_replacement
from samplesoft.losses.differentiate import by_merged, by_rows, named
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.logistic import FullLogisticLoss, logistic_terms, merge_softplus
from samplesoft.losses.multilevel import MultilevelLoss
from samplesoft.losses.sampled import (
    CHUNK_NUMBERS,
    SampledLoss,
    SampledSoftmaxLoss,
    Terms,
    merge_exponentials,
    softmax_terms,
)
from samplesoft.losses.step import (
    Pairs,
    add_labels,
    gains_of_kept,
    gather,
    gradient_of_draws,
    pull_of_draws,
    score_draws,
    score_labels,
    void_unsound,
)
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.optimizers.base import Optimizer
from samplesoft.optimizers.updates import LARGEST, largest_gradient
from samplesoft.samplers.base import Draw, Rows, Sampler

_EXAMPLES = 32  # in a block
_FEATURES = 64
# Multiplications of a product: up to so many BLAS takes one thread and no copies, and is as quick
# as with any more. Threads of its own would wait for each other in products as small as these.
_PRODUCT = 1 << 18
_NUMBERS = 1 << 18  # draws and labels of the steps of a call
_FEW = 1 << 21  # multiplications of a step below which workers cost more than they save
_LEFT = 1 << 62  # workers that have come to a meeting, where one will not come to any more
Kernel = Callable[..., Any]
# What steps here stand for; a loss or an optimizer that has a method of its own in place of one of
# these goes step by step. To losses over all classes, each class is a draw that is made once.
_OWN: dict[Any, tuple[str, ...]] = {
    Loss: ("forward", "forward_batch", "backward", "check_batch"),
    Optimizer: ("step", "with_states", "next_numbers"),
}
_SAMPLED: tuple[type[Loss], ...] = (SampledLoss, SampledSoftmaxLoss)
_FULL: dict[type[Loss], Terms] = {
    FullSoftmaxLoss: Terms(softmax_terms, merge=merge_exponentials, adds_exponentials=True),
    FullLogisticLoss: Terms(logistic_terms, (1.0,), merge=merge_softplus),
}


class _Loss(NamedTuple):
    """What is to be computed of the scores of an example, beside the terms of the loss."""

    tau: float
    normalize: bool
    absolute: bool
    keeps_own: bool  # draws of the label itself have weight
    keeps_others: bool  # and those of another label of the example
    once: bool  # draws have weight for the first label of an example alone


class _Table(NamedTuple):
    """Rows that are trained, and the state of their optimizer."""

    rows: Rows
    states: tuple[Rows, ...]


# Kernels take as few of these as they need: each array that is passed costs time to compile.
class _Draws(NamedTuple):
    """The classes of each step: those drawn, each once, and then the labels not among them."""

    classes: IntArray  # (S, K)
    num_drawn: IntArray  # (S,)
    num_classes: IntArray  # (S,)
    # Columns of the rows of logits: each class drawn, or each draw, where those of a class are not
    # one logit.
    columns: IntArray  # (S, m): the place of each draw among the classes; (S, 0) where not needed
    logs: Rows  # (S, m): log expected counts, which scores lose
    weights: FloatArray  # (S, m): 1 over expected counts; (S, 0) where the loss does not ask


class _Pairs(NamedTuple):
    """Pairs of an example and a label, of one example after another."""

    firsts: IntArray  # (N + 1,): first pair of each example
    shares: FloatArray  # (P,): weights in the loss of their example
    logs: FloatArray  # (P,): log expected counts that their logits lose
    labels: IntArray  # (P,): places of the labels among the classes of the step
    by_place: IntArray  # (P,): the pairs of a step by these places, from its first pair on
    owners: IntArray  # (P,): examples, counted in the step
    slopes: FloatArray  # (P,): logits, and later derivatives in the scores


class _Hits(NamedTuple):
    """Which draws are the label of a pair, and what its step makes of it."""

    # Columns of the rows of logits, of one class of a step after another: (S m,); or where each
    # class drawn is one, the same for all steps: (m,).
    columns: IntArray
    starts: IntArray  # (P,): where those of the label begin
    stops: IntArray  # (P,)
    scores: FloatArray  # (P,)
    losses: FloatArray  # (P,)


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
    numbers: tuple[Any, ...]  # that the kernel of the loss takes
    size: int  # examples of a step, of which the last may have fewer
    width: int  # classes in a block
    factors: FloatArray  # (N,): weights of the losses of the examples
    draws: _Draws
    pairs: _Pairs
    hits: _Hits
    entries: _Entries
    room: _Room
    losses: FloatArray  # (N,)
    # (2,): whether a gradient has a number beyond the limit, and whether a loss is not finite; the
    # second is written before a meeting and read after it, so that all workers end together
    trouble: IntArray


class _Update(NamedTuple):
    """What is trained, and how."""

    inputs: _Table
    intercept: _Table
    row: IntArray  # (1,): that of the intercept, 0
    classes: _Table
    numbers: Rows  # (S, k): what the optimizer's kernel takes, for each step
    limit: float  # of the numbers of a gradient


def why_step_by_step(model: LinearSoftmax, optimizer: Optimizer | None) -> str | None:
    """Return why `take_steps` cannot take the steps of a model, None where it can."""
    loss, sampler = model.softmax.loss, model.softmax.sampler
    if model.settings.embedding_dim is None:
        return "a model without embeddings has class vectors as long as its inputs"
    if _passes_of(loss) is None or _has_own(Loss, loss):
        return f"{type(loss).__name__} has a forward or a backward pass of its own"
    if loss.reduction != "sum":
        return f"reduction={loss.reduction!r} is not the sum of the examples' losses"
    if optimizer is None or _has_own(Optimizer, optimizer) or not is_kernel(optimizer._kernel):
        return f"{type(optimizer).__name__} has no kernel, or a step of its own"
    if not isinstance(loss, SampledLoss):
        return None
    if sampler is None or sampler.dim is not None:
        return "draws follow the contexts, which change in each step"
    if getattr(type(sampler), "observe", None) is not Sampler.observe:
        return f"{type(sampler).__name__} learns from the labels of each step"
    if not model.softmax.shared:
        return "each example has draws of its own"
    if type(loss).draw is MultilevelLoss.draw:
        return None
    if not _draws_as_asked(loss):
        return f"{type(loss).__name__} has draws of its own"
    few = np.zeros((1, model.softmax.num_sampled))
    terms = loss._terms_of(Draw(few.astype(np.int64), few), model.num_classes)
    if not is_kernel(terms.kernel) or not (terms.merge is None or is_kernel(terms.merge)):
        return f"the terms of {type(loss).__name__} have no kernel of samplesoft's njit"
    return None


def _passes_of(loss: Loss) -> type[Loss] | None:
    """Return the class whose forward and backward pass a loss has, if it is known here."""
    for known in (*_SAMPLED, *_FULL):
        one = type(loss)._forward, type(loss)._backward
        if one == (known._forward, known._backward):
            return known
    return None


def _has_own(base: Any, thing: Any) -> bool:
    return any(getattr(type(thing), name) is not getattr(base, name) for name in _OWN[base])


def _draws_as_asked(loss: SampledLoss) -> bool:
    return type(loss).draw is SampledLoss.draw


def steps_at_once(model: LinearSoftmax, batch_size: int) -> int:
    """Return for how many steps draws are made at a time."""
    loss = model.softmax.loss
    if isinstance(loss, SampledLoss) and not _draws_as_asked(loss):
        return 1  # it decides on their number in each step
    drawn = model.softmax.num_sampled or model.num_classes
    return max(1, min(_NUMBERS // (drawn + batch_size), 512))


class DrawsOfSteps(NamedTuple):
    """Classes for each step, and what their scores lose; in one row all classes, for each step."""

    ids: IntArray  # (S, m) or (1, n)
    log_counts: FloatArray
    terms: Terms  # of the loss, for these draws

    def of(self, steps: slice) -> DrawsOfSteps:
        """Return those of some steps."""
        if len(self.ids) == 1:
            return self
        return self._replace(ids=self.ids[steps], log_counts=self.log_counts[steps])


def draws_of_steps(
    model: LinearSoftmax, num_steps: int, seed: int, batch_size: int = 1
) -> DrawsOfSteps:
    """Draw for some steps at once: a set of classes for each."""
    layer, n = model.softmax, model.num_classes
    loss: Loss = layer.loss
    if not isinstance(loss, SampledLoss):
        # all classes, each once, stand for draws where there are none
        passes = _passes_of(loss)
        assert passes is not None
        return DrawsOfSteps(np.arange(n)[None], np.zeros((1, n)), _FULL[passes])
    sampler = layer.sampler
    assert sampler is not None
    each = np.zeros((num_steps, 1))  # a set for each step, of which no context is a part

    def sample(num: int, rng: Any) -> Draw:
        return sampler.sample(each, num, rng=rng)

    # labels of a batch are asked for by none that is compiled, but for their number
    targets = Targets(np.zeros(batch_size, np.int64))
    drawn = loss.draw(sample, layer.num_sampled, targets, n, seed)
    if loss.with_replacement:
        require_replacement(drawn, type(loss).__name__)
    ids, log_counts = check_draw(drawn, num_steps, n)
    terms = loss._terms_of(drawn, n)
    if terms.weighs_draws:  # each of which has a weight of its own
        terms = terms._replace(adds_exponentials=False, merge=None)
    return DrawsOfSteps(ids, log_counts, terms)


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
    loss = model.softmax.loss
    num_steps, n = -(-x.shape[0] // batch_size), model.num_classes
    if draws is None:
        draws = draws_of_steps(model, num_steps, seeds[0], batch_size)
    terms, keeps_own = draws.terms, False
    if isinstance(loss, SampledLoss):
        keeps_own = loss.facts.draws_label
        if not loss.facts.corrects_draws and not terms.weighs_draws:
            draws = draws._replace(log_counts=np.zeros_like(draws.log_counts))
    x = model.thinned(model.check_inputs(x), np.uint64(seeds[1]), first_entry)
    targets = check_targets(labels, x.shape[0], n, loss.label_reduction)
    label_logs = _label_logs(model, targets, draws.ids, batch_size)
    keeps_others, once = not loss.mask_other_labels, loss.label_reduction == "ova"
    rules = _Loss(
        tau=loss.tau,
        normalize=loss.normalize,
        absolute=loss.absolute,
        keeps_own=keeps_own and (keeps_others or not once),
        keeps_others=keeps_others and (keeps_own or not once),
        once=once,
    )
    # what is added to all scores, draws and labels do not lose
    offset = getattr(loss, "offset", 0.0)
    draws, label_logs = draws._replace(log_counts=draws.log_counts - offset), label_logs - offset
    sizes = np.minimum(batch_size, x.shape[0] - batch_size * np.arange(num_steps))
    factors = weights / np.repeat(sizes, sizes)
    job = _arranged(rules, x, targets, draws, label_logs, factors, batch_size, model)
    update = _update_of(optimizer, model, num_steps)
    if terms.merge is None:
        differentiate = by_rows(terms.kernel, terms.weighs_draws)
    else:
        differentiate = by_merged(terms.kernel, terms.merge, rules.keeps_own or rules.keeps_others)
    plain = terms.merge is not None and terms.adds_exponentials and not rules.absolute
    run = _runner(differentiate, _updater(optimizer._kernel), plain)
    arrived = np.zeros(1, np.int64)
    work = batch_size * draws.ids.shape[1] * job.room.z.shape[1]
    most = num_threads() if work > _FEW else 1
    # before they meet: there may be no memory
    scratches = [_scratch(job, terms) for _ in range(most)]

    def take_part(worker: int, workers: int) -> None:
        try:
            run(job, update, scratches[worker], arrived, worker, workers)
        except BaseException:  # of a kernel that raises: nobody waits for this worker any more
            arrived[0] = _LEFT
            raise

    with quiet():
        together(take_part, most)
    if isinstance(loss, SampledLoss):
        loss.require_draws(job.losses)
    means = np.add.reduceat(job.losses * factors, batch_size * np.arange(num_steps))
    if job.trouble.any() or not np.isfinite(means).all():
        raise FloatingPointError(
            f"a loss or a gradient is not finite, or too large for {model.dtype}"
        )
    return means


def _label_logs(
    model: LinearSoftmax, targets: Targets, ids: IntArray, batch_size: int
) -> FloatArray:
    """Return what the logits of the labels lose (P,), (1,) if that is nothing.

    `ids` (S, m) are the draws of each step of `batch_size` examples.
    """
    layer, labels = model.softmax, targets.labels
    loss: Loss = layer.loss
    if not isinstance(loss, SampledLoss) or not loss.needs_label_count or layer.sampler is None:
        return np.zeros(1)
    expected: FloatArray = layer.sampler.log_expected_count(
        None, labels[None], layer.num_sampled, shared=True
    )[0]
    if not loss.facts.divides_by_kept:
        return expected
    # draws of the label are left out, and the others divided by their number
    hits, m = np.empty(len(labels), np.int64), ids.shape[1]
    firsts = np.append(targets.firsts()[::batch_size], len(labels))
    for step, drawn in enumerate(np.sort(ids, axis=1)):
        some = slice(firsts[step], firsts[step + 1])
        ends = (np.searchsorted(drawn, labels[some], side) for side in ("left", "right"))
        hits[some] = np.subtract(*reversed(list(ends)))
    if loss.mask_other_labels:  # no draw of any label of the example is kept
        hits = targets.rows(targets.per_example(hits))
        expected = targets.rows(np.logaddexp.reduceat(expected, targets.firsts()))
    gains: FloatArray = gains_of_kept(m, hits, expected)
    return gains


def _update_of(optimizer: Optimizer, model: LinearSoftmax, num_steps: int) -> _Update:
    """Return parameters with their states, and what an optimizer does with them in each step."""
    model.own_parameters()
    states, tables = optimizer.with_states(model.parameters), []
    for name in ("embedding.weights", "embedding.intercept", "softmax.class_embeddings"):
        rows, *others = (array.reshape(-1, array.shape[-1]) for array in states[name])
        tables.append(_Table(rows, tuple(others)))
    before = optimizer.steps
    try:
        wide = np.array([optimizer.next_numbers() for _ in range(num_steps)], np.float64)
    except BaseException:  # of a schedule
        optimizer.steps = before
        raise
    if not (wide <= LARGEST[model.dtype]).all():  # NaN too
        optimizer.steps = before
        raise ValueError(
            f"`learning_rate` must be within the range of {model.dtype}, got "
            f"{optimizer.learning_rate}; lower it."
        )
    numbers = wide.astype(model.dtype)
    limit = largest_gradient(model.dtype, optimizer.squares)
    inputs, intercept, classes = tables
    return _Update(inputs, intercept, np.zeros(1, np.int64), classes, numbers, limit)


def _arranged(
    loss: _Loss,
    x: Any,
    targets: Targets,
    drawn: DrawsOfSteps,
    label_logs: FloatArray,
    factors: FloatArray,
    size: int,
    model: LinearSoftmax,
) -> _Job:
    """Bring the classes and the features of each step together, and make room."""
    ids, terms = drawn.ids, drawn.terms
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
        columns=np.empty((steps, 0 if terms.adds_exponentials else m), np.int64),
        logs=np.empty((steps, m), dtype),
        weights=np.empty((steps, m if terms.weighs_draws else 0)),
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
    return _Job(
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


def _hits(draws: _Draws, pairs: _Pairs, size: int) -> _Hits:
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
    return _Hits(columns, starts, stops, np.empty(num), np.empty(num))


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


class _Scratch(NamedTuple):
    """Room of a worker, for what no other one reads."""

    scores: Rows  # of a block of examples
    gradients: Rows  # of a block of rows
    product: Rows
    drawn: Rows  # scores of each draw of a block of examples, in the type of their logits
    d_drawn: Rows
    logits: FloatArray


def _scratch(job: _Job, terms: Terms) -> _Scratch:
    """Make room for a worker."""
    (most, dim), dtype = job.room.block.shape, job.room.block.dtype
    wide = max(job.width, _EXAMPLES, _FEATURES)
    # a loss that merges exponentials needs no more digits than scores have
    kind = dtype if terms.merge is not None and terms.adds_exponentials else np.float64
    num_logits = max(job.draws.logs.shape[1], most)
    return _Scratch(
        scores=np.empty(_EXAMPLES * most, dtype),
        gradients=np.empty(wide * dim, dtype),
        product=np.empty(max(wide * dim, _EXAMPLES * job.width), dtype),
        drawn=np.empty(_EXAMPLES * num_logits, kind),
        d_drawn=np.empty(_EXAMPLES * num_logits, kind),
        logits=np.empty(max(CHUNK_NUMBERS, 3 * (2 + num_logits))),
    )


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


@njit_bare
def _scores_of_draws(loss: _Loss, columns: IntArray, scores: Rows, num: int, drawn: Rows) -> None:
    """Write the scores of draws, from those of `num` classes of one example after another."""
    for b in range(len(drawn)):
        for k in range(drawn.shape[1]):
            drawn[b, k] = scores[b * num + (columns[k] if len(columns) > 0 else k)]
        if loss.absolute:
            for k in range(drawn.shape[1]):
                drawn[b, k] = abs(drawn[b, k])


@njit_bare
def _slopes_of_classes(
    loss: _Loss, columns: IntArray, d_drawn: Rows, num: int, scores: Rows
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


# the kernel of an optimizer, and the runner -------------------------------------------------------


@cache
def _updater(rows_kernel: Kernel) -> Kernel:
    """Return a kernel that changes rows, and returns how many numbers of a gradient are refused."""

    def update_rows(
        ids: IntArray, gradient: Rows, table: _Table, numbers: Rows, limit: float
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
def _runner(differentiate: Kernel, update_rows: Kernel, plain: bool) -> Kernel:
    """Return the kernel that takes steps by a loss and an optimizer; it is compiled when called.

    It is `plain` where the scores of the classes drawn are the logits of draws, but for what these
    lose.
    """

    def run(
        job: _Job,
        update: _Update,
        scratch: _Scratch,
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
            for first in range(begin + worker * _EXAMPLES, end, workers * _EXAMPLES):
                last = min(first + _EXAMPLES, end)
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
                blocks = room.d_drawn[here // _EXAMPLES]
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
                    room.d_drawn, first // width, _EXAMPLES, z, num_here, gradient, product
                )
                _of_labels(pairs, pairs.firsts[begin], pairs.firsts[end], first, z, gradient)
                if loss.normalize:
                    unit_gradient(gradient, room.block[first:last], room.block_norms[first:last])
                ids = draws.classes[s, first:last]
                bad += update_rows(ids, gradient, update.classes, numbers, update.limit)
            low = entries.bounds[begin]
            for first in range(worker * _FEATURES, entries.num_features[s], workers * _FEATURES):
                last = min(first + _FEATURES, entries.num_features[s])
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
