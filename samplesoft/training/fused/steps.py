"""A block of steps from arguments to parameters: checked, arranged, and run on all threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from samplesoft._jit import num_threads, together
from samplesoft._limits import quiet
from samplesoft._validation import FloatArray
from samplesoft.losses.base import check_targets
from samplesoft.losses.differentiate import by_merged, by_rows
from samplesoft.losses.sampled import SampledLoss
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.optimizers.base import Optimizer
from samplesoft.optimizers.updates import LARGEST, largest_gradient
from samplesoft.training.fused.draws import DrawsOfSteps, draws_of_steps, label_logs_of
from samplesoft.training.fused.layout import LossRules, arranged
from samplesoft.training.fused.runner import (
    TrainedRows,
    Update,
    make_runner,
    make_updater,
    scratch_of,
)

_FEW = 1 << 21  # multiplications of a step below which workers cost more than they save
_LEFT = 1 << 62  # workers that have come to a meeting, where one will not come to any more


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
    label_logs = label_logs_of(model, targets, draws.ids, batch_size)
    keeps_others, once = not loss.mask_other_labels, loss.label_reduction == "ova"
    rules = LossRules(
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
    job = arranged(rules, x, targets, draws, label_logs, factors, batch_size, model)
    update = _update_of(optimizer, model, num_steps)
    if terms.merge is None:
        differentiate = by_rows(terms.kernel, terms.weighs_draws)
    else:
        differentiate = by_merged(terms.kernel, terms.merge, rules.keeps_own or rules.keeps_others)
    plain = terms.merge is not None and terms.adds_exponentials and not rules.absolute
    run = make_runner(differentiate, make_updater(optimizer._kernel), plain)
    arrived = np.zeros(1, np.int64)
    work = batch_size * draws.ids.shape[1] * job.room.z.shape[1]
    most = num_threads() if work > _FEW else 1
    # before they meet: there may be no memory
    scratches = [scratch_of(job, terms) for _ in range(most)]

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


def _update_of(optimizer: Optimizer, model: LinearSoftmax, num_steps: int) -> Update:
    """Return parameters with their states, and what an optimizer does with them in each step."""
    model.own_parameters()
    states, tables = optimizer.with_states(model.parameters), []
    for name in ("embedding.weights", "embedding.intercept", "softmax.class_embeddings"):
        rows, *others = (array.reshape(-1, array.shape[-1]) for array in states[name])
        tables.append(TrainedRows(rows, tuple(others)))
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
    return Update(inputs, intercept, np.zeros(1, np.int64), classes, numbers, limit)
