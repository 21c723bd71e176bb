"""The training loop `fit`: epochs of steps, and callbacks between the steps.

The classifier, the recommender, `samplesoft.training.train` and the language models of the figures
are all trained by this loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from samplesoft._validation import short_repr
from samplesoft.training.schedules import Schedule, make_schedule
from samplesoft.training.task import Task


@dataclass
class Progress:
    """How far training has come, with its losses, times and validation metrics.

    Attributes
    ----------
    epoch, index : int
        Number of completed epochs, and of completed steps in the current epoch.
    step : int
        Total number of completed steps, without steps that callbacks take.
    loss_sum : float
        Sum of the losses of the examples that the current epoch has processed.
    examples : int
        Number of these examples.
    epoch_seconds : float
        Time spent in steps of the current epoch.
    seconds : float
        Time spent in all steps, without validation and checkpoints.
    best_epoch : int or None
        Last epoch that improved the validation loss, counted from 1.
    best_loss : float or None
        The lowest validation loss.
    metrics : dict of str to float
        Validation metrics of the last epoch; training minimises ``loss``. A checkpoint stores
        neither these metrics nor `history` and `stop`.
    history : list of dict
        For each epoch, its mean training loss as ``train_loss``, and its validation metrics.
    stop : bool
        Whether a callback has asked to end training after the current epoch.
    """

    epoch: int = 0
    index: int = 0
    step: int = 0
    loss_sum: float = 0.0
    examples: int = 0
    epoch_seconds: float = 0.0
    seconds: float = 0.0
    best_epoch: int | None = None
    best_loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict, compare=False, repr=False)
    history: list[dict[str, float]] = field(default_factory=list, compare=False, repr=False)
    stop: bool = field(default=False, compare=False, repr=False)

    @property
    def mean_loss(self) -> float:
        """Mean loss of the examples that the current epoch has processed."""
        return self.loss_sum / self.examples

    def add(self, loss: float, examples: int, seconds: float) -> None:
        """Count one step, given the mean loss and the number of its examples, and its time."""
        self.index += 1
        self.step += 1
        self.loss_sum += loss * examples
        self.examples += examples
        self.epoch_seconds += seconds
        self.seconds += seconds

    def begin_epoch(self) -> None:
        """Reset the loss, the time and the metrics of the current epoch."""
        self.loss_sum = 0.0
        self.examples = 0
        self.epoch_seconds = 0.0
        self.metrics = {}

    def record_validation(self, metrics: dict[str, float], tolerance: float = 0.0) -> None:
        """Record the validation metrics of the current epoch, before `end_epoch` counts it.

        The epoch is an improvement if its loss is below the best loss by more than `tolerance`.
        """
        self.metrics = metrics
        loss = metrics["loss"]
        best = self.best_loss
        # of epochs with equal losses the first is best, so that early stopping ends a stalled run
        if best is None or loss < best - tolerance:
            self.best_epoch = self.epoch + 1
        self.best_loss = loss if best is None else min(loss, best)

    def end_epoch(self) -> None:
        """Count the current epoch as completed, and add it to the history."""
        self.history.append({"train_loss": self.mean_loss, **self.metrics})
        self.epoch += 1
        self.index = 0

    def stored(self) -> dict[str, Any]:
        """Return the fields that a checkpoint stores, by name."""
        values = asdict(self)
        for name in ("metrics", "history", "stop"):
            del values[name]
        return values


class Callback:
    """Base class of callbacks, which `fit` calls between steps and between epochs.

    A subclass overrides the methods that it needs; the others do nothing. A callback is also a
    context manager: `fit` enters it before the first epoch, and exits it at the end or after an
    error.

    Attributes
    ----------
    every : tuple of int
        Periods in steps, at whose multiples `after_steps` must be called. `fit` calls it after each
        step, or after a fused block: several steps in one compiled call. A fused block ends at the
        next multiple of a period, or earlier. Steps are counted from the beginning of the epoch.
    """

    every: tuple[int, ...] = ()

    def __enter__(self) -> Callback:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Act once before the first epoch of this call of `fit`, which may resume training."""

    def begin_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Act before the steps of an epoch; a resumed epoch has only its remaining steps."""

    def after_steps(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Act after one step, or after a fused block of steps."""

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Act after the last step of an epoch, before it is counted; for example, validate."""

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Act after an epoch has been counted; for example, write a checkpoint or stop early."""

    def end(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Act once after the last epoch; `fit` calls the callbacks in reverse order for this."""


def require_callbacks(callbacks: Any) -> None:
    """Raise TypeError unless `callbacks` is a sequence of callbacks."""
    if not isinstance(callbacks, Sequence):
        raise TypeError(
            f"`callbacks` must be a list of callbacks, got {type(callbacks).__name__}; pass a list."
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise TypeError(
                f"`callbacks` must hold samplesoft.training.Callback, got {short_repr(callback)}; "
                "derive its class from that."
            )


@contextmanager
def unchanged_on_error(estimator: Any) -> Iterator[None]:
    """Restore the attributes of an estimator if the body raises an error or is interrupted.

    Attributes are references: arrays that the body has changed in place stay changed.
    """
    attributes = dict(vars(estimator))
    try:
        yield
    except BaseException:
        # a single assignment, which another Ctrl-C cannot interrupt
        estimator.__dict__ = attributes
        raise


def fit(
    task: Task,
    optimizer: Any,
    *,
    epochs: int,
    schedule: str | Schedule | None = None,
    warmup_steps: int = 0,
    callbacks: Sequence[Callback] = (),
    progress: Progress | None = None,
    max_steps: float = math.inf,
    guard: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Progress:
    """Train the model of a task, and return the progress.

    Parameters
    ----------
    task : Task
        Model and data. The parameters are updated in place.
    optimizer : samplesoft.optimizers.Optimizer
        Optimizer, with its base learning rate.
    epochs : int
        Total number of passes over the data, including those completed before this call.
    schedule : str or callable, optional
        A key of `samplesoft.training.SCHEDULES`, or a function that returns the factor of the
        learning rate in a step, counted from 1. By default the learning rate is constant.
    warmup_steps : int
        Length of the linear warm-up of a named schedule, in steps.
    callbacks : sequence of Callback
        Callbacks, called between steps in this order.
    progress : Progress, optional
        Progress of a run to resume, updated in place; by default training begins with epoch 0.
    max_steps : int, optional
        Total number of steps after which training ends, even within an epoch.
    guard : callable
        Returns a context manager in which steps are taken, for example to extend error messages.

    Returns
    -------
    Progress
        Progress at the end.

    Raises
    ------
    FloatingPointError
        If training has diverged.

    Examples
    --------
    >>> from samplesoft.optimizers import SGD
    >>> class Parabola(Task):
    ...     def __init__(self):
    ...         self.parameters, self.num_steps, self.num_examples = {"x": np.ones(1)}, 10, 1
    ...     def step(self, epoch, index):
    ...         return float(self.parameters["x"][0] ** 2), {"x": 2.0 * self.parameters["x"]}
    >>> progress = fit(Parabola(), SGD(0.1), epochs=2)
    >>> progress.step, [round(epoch["train_loss"], 4) for epoch in progress.history]
    (20, [0.2746, 0.0032])
    """
    require_callbacks(callbacks)
    progress = Progress() if progress is None else progress
    previous_schedule = optimizer.schedule

    if isinstance(schedule, str):
        num_steps = min(epochs * task.num_steps, max_steps)
        schedule = make_schedule(schedule, int(num_steps), warmup_steps)
    if schedule is not None:
        optimizer.schedule = _shift_schedule(schedule, optimizer.steps - progress.step)

    try:
        with ExitStack() as stack:
            for callback in callbacks:
                stack.enter_context(callback)
            for callback in callbacks:
                callback.begin(task, optimizer, progress)
            while progress.epoch < epochs and progress.step < max_steps and not progress.stop:
                _run_epoch(task, optimizer, callbacks, progress, max_steps, guard)
            for callback in reversed(callbacks):
                callback.end(task, optimizer, progress)
    finally:
        optimizer.schedule = previous_schedule

    return progress


def _shift_schedule(schedule: Schedule, start: int) -> Schedule:
    """Return a schedule that is delayed by `start` steps.

    `start` is the number of steps that the optimizer had taken before this training began.
    """
    return lambda step: schedule(step - start)


def _run_epoch(
    task: Task,
    optimizer: Any,
    callbacks: Sequence[Callback],
    progress: Progress,
    max_steps: float,
    guard: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Take the remaining steps of the current epoch, at most until step `max_steps` of the run."""
    if progress.index == 0:
        progress.begin_epoch()
    task.begin_epoch(progress.epoch, progress.index)
    for callback in callbacks:
        callback.begin_epoch(task, optimizer, progress)

    periods = [every for callback in callbacks for every in callback.every]
    while progress.index < task.num_steps:
        if progress.step >= max_steps:
            return
        ends = [(progress.index // every + 1) * every for every in periods]
        end = min(ends, default=task.num_steps)
        with guard():
            max_end = int(min(end, progress.index + max_steps - progress.step))
            _run_steps(task, optimizer, progress, max_end)
        for callback in callbacks:
            callback.after_steps(task, optimizer, progress)

    for callback in callbacks:
        callback.end_epoch(task, optimizer, progress)
    progress.end_epoch()
    for callback in callbacks:
        callback.after_epoch(task, optimizer, progress)


def _run_steps(task: Task, optimizer: Any, progress: Progress, max_end: int) -> None:
    """Take and count one step, or several steps in one fused call, at most up to step `max_end`."""
    first_index = progress.index
    start_time = time.perf_counter()
    end = task.fused_block_end(optimizer, progress.epoch, first_index)
    if end is None:
        losses = [_run_step(task, optimizer, progress)]
    else:
        losses = task.run_fused_steps(optimizer, progress.epoch, first_index, min(end, max_end))

    seconds = (time.perf_counter() - start_time) / len(losses)
    for index, loss in enumerate(losses, start=first_index):
        progress.add(loss, task.num_examples_in(index), seconds)


def _run_step(task: Task, optimizer: Any, progress: Progress) -> float:
    """Take one step that is not fused, and return its mean loss."""
    loss, gradients = task.step(progress.epoch, progress.index)
    require_finite("loss", loss)

    try:
        optimizer.step(task.parameters, gradients)
    except ValueError as error:
        # if the optimizer has rejected gradients that are not finite, then training has diverged
        rows = (getattr(gradient, "rows", gradient) for gradient in gradients.values())
        if all(np.isfinite(array).all() for array in rows):
            raise
        raise FloatingPointError(str(error)) from error

    task.after_step(gradients)
    return loss


def require_finite(name: str, value: float) -> None:
    """Raise FloatingPointError if the value of a metric, such as the loss, is not finite."""
    if not math.isfinite(value):
        raise FloatingPointError(f"the {name} is {value}")
