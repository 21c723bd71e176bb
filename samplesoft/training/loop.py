"""The loop of training: epochs of steps, and callbacks between them.

The classifier, the recommender, `samplesoft.training.train` and the language models of the figures
train by `fit`.
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
    """How far training has come.

    Attributes
    ----------
    epoch, index : int
        Whole epochs done, and steps done in the one that is going on.
    step : int
        Steps done since training began, without those that callbacks take.
    loss_sum : float
        Sum of the losses of the examples of the last epoch, so far.
    examples : int
        Number of these examples.
    epoch_seconds : float
        Time of the steps of that epoch.
    seconds : float
        Time of all steps, without validation and checkpoints.
    best_epoch : int or None
        The last epoch that had a lower validation loss than all before, counted from 1.
    best_loss : float or None
        The lowest validation loss.
    metrics : dict of str to float
        What validation has found in the last epoch, the loss to be minimised as ``loss``. Not part
        of a checkpoint, as the next two.
    history : list of dict
        Of each epoch, its mean loss as ``train_loss``, and its metrics.
    stop : bool
        Whether a callback has asked `fit` to end.
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
        """Begin the sums of an epoch."""
        self.loss_sum, self.examples, self.epoch_seconds = 0.0, 0, 0.0
        self.metrics = {}

    def validated(self, metrics: dict[str, float], tolerance: float = 0.0) -> None:
        """Note the metrics of the epoch that ends.

        Its loss is better if it is below the best one by more than a tolerance.
        """
        self.metrics = metrics
        loss, best = metrics["loss"], self.best_loss
        # of equal losses the first, so that patience ends a run that stands still
        if best is None or loss < best - tolerance:
            self.best_epoch = self.epoch + 1
        self.best_loss = loss if best is None else min(loss, best)

    def end_epoch(self) -> None:
        """Count an epoch."""
        self.history.append({"train_loss": self.mean_loss, **self.metrics})
        self.epoch += 1
        self.index = 0

    def stored(self) -> dict[str, Any]:
        """Return what a checkpoint holds of it."""
        values = asdict(self)
        for name in ("metrics", "history", "stop"):
            del values[name]
        return values


class Callback:
    """Something to be done between the steps of `fit`.

    A callback overrides what it needs. It is entered before the first epoch and left after the
    last one, also after an error, as a context manager.

    Attributes
    ----------
    every : tuple of int
        Multiples of these are numbers of steps of an epoch after which `fit` must call
        `after_steps`. It also calls it at other times, after each step or after each call of
        several steps.
    """

    every: tuple[int, ...] = ()

    def __enter__(self) -> Callback:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Get ready; training may have come some way already."""

    def begin_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Do what is to be done before the steps of an epoch, or the rest of them."""

    def after_steps(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Do what is to be done after one step or several, all of one epoch."""

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Do what belongs to an epoch, such as its validation, before it counts as done."""

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Do what is to be done after an epoch, such as writing a checkpoint, or stopping."""

    def end(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Do what is to be done at the end; the last callback comes first."""


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
    """Undo what the body has set of an estimator, if it fails or is interrupted.

    Arrays are not copied: a model that was trained further stays so.
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        estimator.__dict__ = before  # at once: another Ctrl-C finds nothing half undone
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
    """Train.

    Parameters
    ----------
    task : Task
        Model and data; its parameters are changed.
    optimizer : samplesoft.optimizers.Optimizer
        What takes the steps, with its learning rate.
    epochs : int
        Passes over the data in all, those that are done counted.
    schedule : str or callable, optional
        How the learning rate changes: a key of `samplesoft.training.SCHEDULES`, or a function that
        returns the factor of a step, counted from 1. By default the learning rate stays as it is.
    warmup_steps : int
        Steps at the beginning in which it rises in a line, with a schedule that is named.
    callbacks : sequence of Callback
        What is to be done between steps, in this order.
    progress : Progress, optional
        How far training has come; by default it begins.
    max_steps : int, optional
        Steps in all, after which it ends in the midst of an epoch.
    guard : callable
        Returns a context manager in which steps are taken, to say more in an error.

    Returns
    -------
    Progress
        How far it came.

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
        optimizer.schedule = _from(schedule, optimizer.steps - progress.step)
    try:
        with ExitStack() as stack:
            for callback in callbacks:
                stack.enter_context(callback)
            for callback in callbacks:
                callback.begin(task, optimizer, progress)
            while progress.epoch < epochs and progress.step < max_steps and not progress.stop:
                _epoch(task, optimizer, callbacks, progress, max_steps, guard)
            for callback in reversed(callbacks):
                callback.end(task, optimizer, progress)
    finally:
        optimizer.schedule = before
    return progress


def _from(schedule: Schedule, start: int) -> Schedule:
    """Return a schedule for an optimizer that has taken some steps before training began."""
    return lambda step: schedule(step - start)


def _epoch(
    task: Task,
    optimizer: Any,
    callbacks: Sequence[Callback],
    progress: Progress,
    max_steps: float,
    guard: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Do an epoch, or the rest of it."""
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
            _steps(
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


def _steps(task: Task, optimizer: Any, progress: Progress, last: int) -> None:
    """Take a step, or several in one call of the task, none of them at `last` or later."""
    first, start = progress.index, time.perf_counter()
    end = task.end_of_call(optimizer, progress.epoch, first)
    if end is None:
        losses = [_step(task, optimizer, progress)]
    else:
        losses = task.take(optimizer, progress.epoch, first, min(end, last))
    seconds = (time.perf_counter() - start) / len(losses)
    for index, loss in enumerate(losses, start=first):
        progress.add(loss, task.examples_of(index), seconds)


def _step(task: Task, optimizer: Any, progress: Progress) -> float:
    """Take a step, and return its loss."""
    loss, gradients = task.step(progress.epoch, progress.index)
    require_finite("loss", loss)
    try:
        optimizer.step(task.parameters, gradients)
    except ValueError as error:
        # an optimizer refuses what is not finite, and also what no training can mend
        rows = (getattr(gradient, "rows", gradient) for gradient in gradients.values())
        if all(np.isfinite(array).all() for array in rows):
            raise
        raise FloatingPointError(str(error)) from error
    task.after_step(gradients)
    return loss


def require_finite(what: str, value: float) -> None:
    """Raise FloatingPointError for a loss, or another metric, of training that has diverged."""
    if not math.isfinite(value):
        raise FloatingPointError(f"the {what} is {value}")
