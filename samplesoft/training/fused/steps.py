"""A block of steps from arguments to parameters: checked, arranged, and run on all threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from samplesoft._jit import num_threads, run_in_lockstep
from samplesoft._limits import ignore_overflow
from samplesoft._validation import FloatArray
from samplesoft.losses.base import Loss, check_targets
from samplesoft.losses.differentiate import make_merged_differentiator, make_row_differentiator
from samplesoft.losses.sampled import SampledLoss, Terms
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.optimizers.base import Optimizer
from samplesoft.optimizers.updates import LARGEST, largest_gradient
from samplesoft.training.fused.draws import DrawsOfSteps, draws_of_steps, label_log_counts
from samplesoft.training.fused.layout import LossSettings, StepBlock, arrange
from samplesoft.training.fused.runner import (
    TrainedRows,
    Updates,
    make_runner,
    make_updater,
    worker_workspace,
)

_ONE_WORKER = 1 << 21  # multiplications of a step below which workers cost more than they save
_NOBODY_COMES = 1 << 62  # workers that have come to a barrier, where one will come to no more


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
    """Take steps of `batch_size` examples, the last one maybe of fewer.

    Parameters
    ----------
    model : LinearSoftmax
        Trained in place; one for which `why_step_by_step` returns None.
    optimizer : Optimizer
        Of the same model; it counts the steps.
    x : scipy.sparse CSR matrix, shape (N, v)
        Inputs.
    labels : array_like of int, shape (N,), or scipy.sparse CSR matrix, shape (N, n)
        Labels of the examples.
    weights : ndarray of float64, shape (N,)
        Weights of the examples in the mean loss of their step.
    batch_size : int
        Examples B of a step.
    seeds : sequence of two ints
        Those of the draws and of dropout.
    draws : DrawsOfSteps, optional
        Draws made already; by default they are made here.
    first_entry : int
        Number of entries of other inputs before these, which share the seed of dropout.

    Returns
    -------
    ndarray of float64, shape (S,)
        The weighted mean loss of each step.

    Raises
    ------
    FloatingPointError
        If a loss or a gradient is not finite: training has diverged.
    TypeError, ValueError
        If inputs, labels or the learning rate are malformed, or the loss needs draws that no label
        of an example leaves.
    """
    loss = model.softmax.loss
    num_steps = -(-x.shape[0] // batch_size)
    if draws is None:
        draws = draws_of_steps(model, num_steps, seeds[0], batch_size)
    terms = draws.terms
    corrects_draws = not isinstance(loss, SampledLoss) or loss.properties.corrects_draws
    if not corrects_draws and not terms.weighs_draws:
        draws = draws._replace(log_counts=np.zeros_like(draws.log_counts))
    x = model.thinned(model.check_inputs(x), np.uint64(seeds[1]), first_entry)
    targets = check_targets(labels, x.shape[0], model.num_classes, loss.label_reduction)
    label_counts = label_log_counts(model, targets, draws.ids, batch_size)
    # an offset is added to all scores, of which draws and labels lose so much less
    offset = getattr(loss, "offset", 0.0)
    draws = draws._replace(log_counts=draws.log_counts - offset)
    sizes = np.minimum(batch_size, x.shape[0] - batch_size * np.arange(num_steps))
    example_weights = weights / np.repeat(sizes, sizes)
    settings = _settings_of(loss)
    steps = arrange(
        settings, x, targets, draws, label_counts - offset, example_weights, batch_size, model
    )
    updates = _updates_of(optimizer, model, num_steps)
    if terms.merge is None:
        differentiate = make_row_differentiator(terms.kernel, terms.weighs_draws)
    else:
        keeps_hits = settings.keeps_label_hits or settings.keeps_other_hits
        differentiate = make_merged_differentiator(terms.kernel, terms.merge, keeps_hits)
    merges = terms.merge is not None and terms.adds_exponentials
    run = make_runner(
        differentiate, make_updater(optimizer._kernel), merges and not settings.absolute
    )
    _run_on_threads(run, steps, updates, terms, draws.ids.shape[1])
    if isinstance(loss, SampledLoss):
        loss.require_usable_draws(steps.losses)
    first_examples = batch_size * np.arange(num_steps)
    means: FloatArray = np.add.reduceat(steps.losses * example_weights, first_examples)
    if steps.diverged.any() or not np.isfinite(means).all():
        raise FloatingPointError(
            f"a loss or a gradient is not finite, or too large for {model.dtype}"
        )
    return means


def _settings_of(loss: Loss) -> LossSettings:
    """Return how scores are made, and which draws have weight for which labels."""
    draws_label = isinstance(loss, SampledLoss) and loss.properties.draws_label
    keeps_other_hits = not loss.mask_other_labels
    # each label alone against the draws, which then have weight once: all hits are kept, or none
    counts_draws_once = loss.label_reduction == "ova"
    return LossSettings(
        tau=loss.tau,
        normalize=loss.normalize,
        absolute=loss.absolute,
        keeps_label_hits=draws_label and (keeps_other_hits or not counts_draws_once),
        keeps_other_hits=keeps_other_hits and (draws_label or not counts_draws_once),
        counts_draws_once=counts_draws_once,
    )


def _run_on_threads(
    run: Any, steps: StepBlock, updates: Updates, terms: Terms, num_draws: int
) -> None:
    """Take the steps on as many threads as their work is worth."""
    arrived = np.zeros(1, np.int64)
    work = steps.batch_size * num_draws * steps.workspace.z.shape[1]
    most = num_threads() if work > _ONE_WORKER else 1
    # before any worker waits for another: there may be no memory
    workspaces = [worker_workspace(steps, terms) for _ in range(most)]

    def take_part(worker: int, workers: int) -> None:
        try:
            run(steps, updates, workspaces[worker], arrived, worker, workers)
        except BaseException:  # of a kernel that raises: nobody waits for this worker any more
            arrived[0] = _NOBODY_COMES
            raise

    with ignore_overflow():
        run_in_lockstep(take_part, most)


def _updates_of(optimizer: Optimizer, model: LinearSoftmax, num_steps: int) -> Updates:
    """Return parameters with their states, and the optimizer's hyper-parameters of each step."""
    model.own_parameters()
    of_names = optimizer.with_states(model.parameters)

    def trained(name: str) -> TrainedRows:
        rows, *states = (array.reshape(-1, array.shape[-1]) for array in of_names[name])
        return TrainedRows(rows, tuple(states))

    steps_before = optimizer.steps
    try:
        of_steps = np.array([optimizer.next_numbers() for _ in range(num_steps)], np.float64)
    except BaseException:  # of a schedule
        optimizer.steps = steps_before
        raise
    if not (of_steps <= LARGEST[model.dtype]).all():  # NaN too
        optimizer.steps = steps_before
        raise ValueError(
            f"`learning_rate` must be within the range of {model.dtype}, got "
            f"{optimizer.learning_rate}; lower it."
        )
    return Updates(
        inputs=trained("embedding.weights"),
        intercept=trained("embedding.intercept"),
        intercept_id=np.zeros(1, np.int64),
        classes=trained("softmax.class_embeddings"),
        hyper_parameters=of_steps.astype(model.dtype),
        largest_gradient=largest_gradient(model.dtype, optimizer.squares),
    )
