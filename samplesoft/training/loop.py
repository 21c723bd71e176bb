"""The training loop: epochs of steps, with callbacks between them.

The classifier, the recommender, `samplesoft.training.train` and the language models of the figures
all train with `fit`.
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
    """Progress of training.

    Attributes
    ----------
    epoch, index : int
        Completed epochs, and completed steps of the current epoch.
    step : int
        Completed steps in all, without steps that callbacks take.
    loss_sum : float
        Sum of the losses of the examples in the current epoch, so far.
    examples : int
        Number of these examples.
    epoch_seconds : float
        Time of the steps of the current epoch.
    seconds : float
        Time of all steps, without validation and checkpoints.
    best_epoch : int or None
        Last epoch that improved the validation loss, counted from 1.
    best_loss : float or None
        The lowest validation loss.
    metrics : dict of str to float
        Validation metrics of the last epoch; ``loss`` is the one to be minimised. This and the
        next two are not part of a checkpoint.
    history : list of dict
        For each epoch, its mean loss as ``train_loss``, and its metrics.
    stop : bool
        Set by a callback to end training.
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
        """Mean loss of the examples of the epoch."""
        return self.loss_sum / self.examples

    def add(self, loss: float, examples: int, seconds: float) -> None:
        """Count a step with the mean loss of its examples."""
        self.index += 1
        self.step += 1
        self.loss_sum += loss * examples
        self.examples += examples
        self.epoch_seconds += seconds
        self.seconds += seconds

    def begin_epoch(self) -> None:
        """Reset the sums of the epoch."""
        self.loss_sum, self.examples, self.epoch_seconds = 0.0, 0, 0.0
        self.metrics = {}

    def validated(self, metrics: dict[str, float], tolerance: float = 0.0) -> None:
        """Record the metrics of the epoch that ends.

        Its loss is an improvement if it is below the best one by more than `tolerance`.
        """
        self.metrics = metrics
        loss, best = metrics["loss"], self.best_loss
        # of equal losses the first, so that patience ends a run without improvement
        if best is None or loss < best - tolerance:
            self.best_epoch = self.epoch + 1
        self.best_loss = loss if best is None else min(loss, best)

    def end_epoch(self) -> None:
        """Count an epoch."""
        self.history.append({"train_loss": self.mean_loss, **self.metrics})
        self.epoch += 1
        self.index = 0

    def stored(self) -> dict[str, Any]:
        """Return the fields that a checkpoint stores."""
        values = asdict(self)
        for name in ("metrics", "history", "stop"):
            del values[name]
        return values


class Callback:
    """Base class of actions between the steps of `fit`.

    A callback overrides the methods that it needs. As a context manager, it is entered before the
    first epoch, and exited after the last one or after an error.

    Attributes
    ----------
    every : tuple of int
        Periods in steps: `fit` calls `after_steps` at least after each multiple of these in an
        epoch. It also calls it after each other step or fused block of steps.
    """

    every: tuple[int, ...] = ()

    def __enter__(self) -> Callback:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Prepare for training, which may be resumed."""

    def begin_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Act before the steps of an epoch, or before the rest of them on resuming."""

    def after_steps(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Act after one or several steps of one epoch."""

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Act at the end of an epoch, before it is counted; for example, validate."""

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Act after an epoch; for example, write a checkpoint, or stop."""

    def end(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Act at the end of training; callbacks end in reverse order."""


def require_callbacks(callbacks: Any) -> None:
    """Raise TypeError unless `callbacks` is a sequence of callbacks."""
    if not isinstance(callbacks, Sequence):
        raise TypeError(
            f"`callbacks` must be a list of callbacks, got {type(callbacks).__name__}; put it into "
            "one."
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise TypeError(
                f"`callbacks` must hold samplesoft.training.Callback, got {short_repr(callback)}; "
                "derive its class from that."
            )


@contextmanager
def unchanged_on_error(estimator: Any) -> Iterator[None]:
    """Restore the attributes of an estimator if the body fails or is interrupted.

    Arrays are not copied: a model that was trained further stays so.
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        estimator.__dict__ = before  # one assignment: another Ctrl-C cannot leave it half restored
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
    """Train a task.

    Parameters
    ----------
    task : Task
        Model and data; its parameters are updated.
    optimizer : samplesoft.optimizers.Optimizer
        Takes the steps, with its learning rate.
    epochs : int
        Total passes over the data, including completed ones.
    schedule : str or callable, optional
        A key of `samplesoft.training.SCHEDULES`, or a function that returns the factor of the
        learning rate in a step, counted from 1. By default the learning rate is constant.
    warmup_steps : int
        Length of the linear warm-up of a named schedule, in steps.
    callbacks : sequence of Callback
        Called between steps, in this order.
    progress : Progress, optional
        Progress of a resumed training; by default none.
    max_steps : int, optional
        Total steps after which training ends, possibly within an epoch.
    guard : callable
        Returns a context manager around the steps, for example to extend error messages.

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
    before = optimizer.schedule
    if isinstance(schedule, str):
        num_steps = min(epochs * task.num_steps, max_steps)
        schedule = make_schedule(schedule, int(num_steps), warmup_steps)
    if schedule is not None:
        optimizer.schedule = _shifted(schedule, optimizer.steps - progress.step)
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
        optimizer.schedule = before
    return progress


def _shifted(schedule: Schedule, start: int) -> Schedule:
    """Return the schedule for an optimizer that has taken `start` steps before training."""
    return lambda step: schedule(step - start)


def _run_epoch(
    task: Task,
    optimizer: Any,
    callbacks: Sequence[Callback],
    progress: Progress,
    max_steps: float,
    guard: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Run an epoch, or the rest of it."""
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
        last = min(ends, default=task.num_steps)
        with guard():
            _run_steps(
                task,
                optimizer,
                progress,
                int(min(last, progress.index + max_steps - progress.step)),
            )
        for callback in callbacks:
            callback.after_steps(task, optimizer, progress)
    for callback in callbacks:
        callback.end_epoch(task, optimizer, progress)
    progress.end_epoch()
    for callback in callbacks:
        callback.after_epoch(task, optimizer, progress)


def _run_steps(task: Task, optimizer: Any, progress: Progress, last: int) -> None:
    """Take a step, or a fused block of steps that ends at `last` at the latest."""
    first, start = progress.index, time.perf_counter()
    end = task.fused_block_end(optimizer, progress.epoch, first)
    if end is None:
        losses = [_run_step(task, optimizer, progress)]
    else:
        losses = task.run_fused_steps(optimizer, progress.epoch, first, min(end, last))
    seconds = (time.perf_counter() - start) / len(losses)
    for index, loss in enumerate(losses, start=first):
        progress.add(loss, task.num_examples_in(index), seconds)


def _run_step(task: Task, optimizer: Any, progress: Progress) -> float:
    """Take one step, and return its loss."""
    loss, gradients = task.step(progress.epoch, progress.index)
    require_finite("loss", loss)
    try:
        optimizer.step(task.parameters, gradients)
    except ValueError as error:
        # an optimizer rejects gradients that are not finite, which is divergence, and other errors
        rows = (getattr(gradient, "rows", gradient) for gradient in gradients.values())
        if all(np.isfinite(array).all() for array in rows):
            raise
        raise FloatingPointError(str(error)) from error
    task.after_step(gradients)
    return loss


def require_finite(name: str, value: float) -> None:
    """Raise FloatingPointError if a loss or another metric is not finite."""
    if not math.isfinite(value):
        raise FloatingPointError(f"the {name} is {value}")
