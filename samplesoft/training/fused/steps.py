"""Fused training: validate a block of examples, lay out its arrays, and run the compiled steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from samplesoft._jit import num_threads, run_in_lockstep
from samplesoft._limits import ignore_overflow
from samplesoft._validation import FloatArray
from samplesoft.losses.base import Loss, checked_targets
from samplesoft.losses.differentiate import make_merged_differentiator, make_row_differentiator
from samplesoft.losses.log_sums import MovingAverageLoss, make_averaging_differentiator
from samplesoft.losses.sampled import LossKernel, SampledLoss
from samplesoft.models.linear_softmax import LinearSoftmax
from samplesoft.optimizers.base import Optimizer
from samplesoft.optimizers.updates import MAX_FLOAT, largest_gradient
from samplesoft.training.fused.draws import StepDraws, draw_steps, label_log_counts
from samplesoft.training.fused.layout import LossSettings, StepBlock, make_step_block
from samplesoft.training.fused.runner import (
    TrainedParameters,
    TrainedRows,
    make_row_updater,
    make_step_runner,
    make_worker_workspace,
)

# largest number of multiplications of a step on one thread; larger steps run on all threads
_MIN_PARALLEL_MULTIPLICATIONS = 1 << 21
_RELEASED_BARRIER = 1 << 62  # count of arrivals so large that no worker waits at a barrier


def take_steps(
    model: LinearSoftmax,
    optimizer: Optimizer,
    x: Any,
    labels: Any,
    weights: FloatArray,
    batch_size: int,
    seeds: Sequence[int],
    *,
    draws: StepDraws | None = None,
    first_entry: int = 0,
    log_sums: FloatArray | None = None,
) -> FloatArray:
    """Train a model on examples in one compiled call, and return the loss of each step.

    Parameters
    ----------
    model : LinearSoftmax
        The model, trained in place. `why_step_by_step` must return None for it.
    optimizer : Optimizer
        Optimizer of the model. Its states and its number of steps are updated.
    x : scipy.sparse CSR matrix, shape (N, v)
        Inputs, in the order of training.
    labels : array_like of int, shape (N,), or scipy.sparse CSR matrix, shape (N, n)
        Labels of the examples.
    weights : ndarray of float64, shape (N,)
        Weights of the examples in the mean loss of their step.
    batch_size : int
        Examples B of a step; the last step may have fewer.
    seeds : sequence of two ints
        Seeds of the draws and of dropout.
    draws : StepDraws, optional
        Drawn classes of each step; by default drawn with the first seed.
    first_entry : int
        Number of input entries of earlier steps for which dropout has used the same seed.
    log_sums : ndarray of float64, shape (N,), optional
        For a `MovingAverageLoss`: the number of each example, overwritten by the new one unless an
        error is raised. An example must not occur twice. By default all examples are new.

    Returns
    -------
    ndarray of float64, shape (S,)
        The weighted mean loss of each step.

    Raises
    ------
    FloatingPointError
        If a loss or a gradient is not finite: training has diverged.
    TypeError, ValueError
        If inputs, labels or the learning rate are malformed, or the loss needs a draw that is not
        an accidental hit, and an example has none.
    """
    loss = model.softmax.loss
    num_steps = -(-x.shape[0] // batch_size)
    if draws is None:
        draws = draw_steps(model, num_steps, seeds[0], batch_size)

    loss_kernel = draws.loss_kernel
    corrects_draws = not isinstance(loss, SampledLoss) or loss.properties.corrects_draws
    if not corrects_draws and not loss_kernel.weighs_draws:
        draws = draws._replace(log_counts=np.zeros_like(draws.log_counts))

    x = model.with_dropout(model.check_inputs(x), np.uint64(seeds[1]), first_entry)
    targets = checked_targets(labels, x.shape[0], model.num_classes, loss.label_reduction)
    label_counts = label_log_counts(model, targets, draws.ids, batch_size)

    # subtract the offset of the loss from all corrections; that adds it to all scores
    offset = getattr(loss, "offset", 0.0)
    draws = draws._replace(log_counts=draws.log_counts - offset)

    sums = loss.checked_log_sums(log_sums, targets)
    if isinstance(loss, MovingAverageLoss):
        # arguments of the differentiator below
        of_loss = (sums, loss.gamma or 0.0, loss.alpha or 0.0)
        draws = draws._replace(loss_kernel=loss_kernel._replace(parameters=of_loss))

    step_sizes = np.minimum(batch_size, x.shape[0] - batch_size * np.arange(num_steps))
    example_weights = weights / np.repeat(step_sizes, step_sizes)

    settings = _loss_settings(loss)
    steps = make_step_block(
        settings, x, targets, draws, label_counts - offset, example_weights, batch_size, model
    )
    parameters = _prepare_parameters(optimizer, model, num_steps)

    if loss_kernel.merge is None:
        differentiate = make_row_differentiator(loss_kernel.kernel, loss_kernel.weighs_draws)
    else:
        keeps_hits = settings.keeps_label_hits or settings.keeps_other_hits
        differentiate = make_merged_differentiator(
            loss_kernel.kernel, loss_kernel.merge, keeps_hits
        )
    if isinstance(loss, MovingAverageLoss):
        differentiate = make_averaging_differentiator(differentiate)
    merges = loss_kernel.merge is not None and loss_kernel.adds_exponentials
    run = make_step_runner(
        differentiate, make_row_updater(optimizer._kernel), merges and not settings.absolute
    )
    _run_on_threads(run, steps, parameters, loss_kernel, draws.ids.shape[1])

    if isinstance(loss, SampledLoss):
        loss.require_usable_draws(steps.losses)

    first_examples = batch_size * np.arange(num_steps)
    means: FloatArray = np.add.reduceat(steps.losses * example_weights, first_examples)
    if steps.diverged.any() or not np.isfinite(means).all():
        raise FloatingPointError(
            f"a loss or a gradient is not finite, or too large for {model.dtype}"
        )

    if log_sums is not None:
        log_sums[:] = sums
    return means


def _loss_settings(loss: Loss) -> LossSettings:
    """Return the settings of a loss: how it scores vectors, and which accidental hits it keeps."""
    draws_label = isinstance(loss, SampledLoss) and loss.properties.draws_label
    keeps_other_hits = not loss.mask_other_labels
    # one versus all counts a draw once for an example, so that draws of any of the example's labels
    # are treated alike
    counts_draws_once_per_example = loss.label_reduction == "ova"

    return LossSettings(
        tau=loss.tau,
        normalize=loss.normalize,
        absolute=loss.absolute,
        keeps_label_hits=draws_label and (keeps_other_hits or not counts_draws_once_per_example),
        keeps_other_hits=keeps_other_hits and (draws_label or not counts_draws_once_per_example),
        counts_draws_once_per_example=counts_draws_once_per_example,
    )


def _run_on_threads(
    run: Any,
    steps: StepBlock,
    parameters: TrainedParameters,
    loss_kernel: LossKernel,
    num_draws: int,
) -> None:
    """Call the kernel `run` on one thread, or on all threads if the steps are large enough."""
    arrived = np.zeros(1, np.int64)
    num_multiplications = steps.batch_size * num_draws * steps.workspace.z.shape[1]
    max_workers = num_threads() if num_multiplications > _MIN_PARALLEL_MULTIPLICATIONS else 1

    # allocate before any worker waits at a barrier, because allocation may fail
    workspaces = [make_worker_workspace(steps, loss_kernel) for _ in range(max_workers)]

    def run_worker(worker: int, num_workers: int) -> None:
        try:
            run(steps, parameters, workspaces[worker], arrived, worker, num_workers)
        except BaseException:
            # release the other workers, which would otherwise wait at a barrier forever
            arrived[0] = _RELEASED_BARRIER
            raise

    with ignore_overflow():
        run_in_lockstep(run_worker, max_workers)


def _prepare_parameters(
    optimizer: Optimizer, model: LinearSoftmax, num_steps: int
) -> TrainedParameters:
    """Return the parameters, the optimizer's states, and its hyper-parameters for each step.

    The function adds the steps to `optimizer.steps`, because the hyper-parameters depend on the
    step. If it raises an error, `optimizer.steps` is unchanged.
    """
    model.copy_read_only_parameters()
    rows_and_states = optimizer.parameters_with_states(model.parameters)

    def rows_and_states_of(name: str) -> TrainedRows:
        rows, *states = (array.reshape(-1, array.shape[-1]) for array in rows_and_states[name])
        return TrainedRows(rows, tuple(states))

    steps_before = optimizer.steps
    try:
        hyper_parameters = np.array([optimizer.advance() for _ in range(num_steps)], np.float64)
    except BaseException:  # a schedule may raise any error
        optimizer.steps = steps_before
        raise

    if not (hyper_parameters <= MAX_FLOAT[model.dtype]).all():  # also if one is NaN
        optimizer.steps = steps_before
        raise ValueError(
            f"`learning_rate` must be within the range of {model.dtype}, got "
            f"{optimizer.learning_rate}; lower it."
        )

    return TrainedParameters(
        inputs=rows_and_states_of("embedding.weights"),
        intercept=rows_and_states_of("embedding.intercept"),
        intercept_id=np.zeros(1, np.int64),
        classes=rows_and_states_of("softmax.class_embeddings"),
        hyper_parameters=hyper_parameters.astype(model.dtype),
        largest_gradient=largest_gradient(model.dtype, optimizer.squares),
    )
