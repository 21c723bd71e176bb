"""A run of training: its steps, its epochs, and the checkpoints between them."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from samplesoft._names import prefixed
from samplesoft._progress import progress_bar, progress_phase
from samplesoft.models.clipping import clip_by_global_norm
from samplesoft.models.optimizers import make_optimizer
from samplesoft.models.schedules import make_schedule
from samplesoft.training.checkpoint import (
    Checkpoint,
    copy_arrays,
    part_of,
    read_checkpoint,
    rebuilding,
    require_config,
    write_checkpoint,
)
from samplesoft.training.log import Log
from samplesoft.training.settings import Progress, Settings
from samplesoft.training.task import Task

CHECKPOINT, BEST, LOG = "checkpoint.npz", "best.npz", "log.jsonl"


class Diverged(FloatingPointError):
    """Training is lost: a number is not finite any more."""


class Run:
    """A task with its optimizer and files, and how far they have come."""

    log: Log

    def __init__(self, task: Task, settings: Settings, folder: Path) -> None:
        self.task, self.settings, self.folder = task, settings, folder
        self.at = Progress()
        self.schedule = make_schedule(settings.schedule, **settings.schedule_options)
        self.optimizer = make_optimizer(
            settings.optimizer, settings.learning_rate, **settings.optimizer_options
        )

    def epoch(self, progress: bool | Callable[[dict[str, Any]], object]) -> None:
        """Do the rest of an epoch: steps, validation, a line of the log, checkpoints."""
        self.optimizer.learning_rate = self.settings.learning_rate * self.schedule(self.at.epoch)
        name = f"epoch {self.at.epoch + 1}"
        with progress_bar(
            bool(progress),
            desc=name,
            initial=self.at.index,
            total=self.task.num_steps,
            unit="step",
        ) as bar:
            for index in range(self.at.index, self.task.num_steps):
                self.step(index)
                bar.set_postfix(loss=f"{self.at.mean_loss:.3f}", refresh=False)
                bar.update()
                if self.at.index < self.task.num_steps:
                    if self.at.index % self.settings.log_every == 0:
                        self.write_line({})
                    if self.at.index % (self.settings.checkpoint_every or math.inf) == 0:
                        self.save()
        with progress_phase(bool(progress), f"{name}, validation"):
            line = self.end_epoch()
        if callable(progress):
            progress(line)

    def end_epoch(self) -> dict[str, Any]:
        """Validate, write the checkpoints, and return the line of the log."""
        with self.watched():
            figures = self.task.validate()
        for name, value in figures.items():
            self.require_finite(f"validation {name}", value)
        line = self.write_line({f"validation_{name}": value for name, value in figures.items()})
        is_best = self.at.end_epoch(figures["loss"])
        self.save(best=is_best)
        return line

    def step(self, index: int) -> None:
        """Do one step."""
        start = time.perf_counter()
        with self.watched():
            loss, norm = self.change_parameters(index)
        self.at.add(loss, norm, time.perf_counter() - start)

    def change_parameters(self, index: int) -> tuple[float, float]:
        """Change the parameters by a step; return its loss and the norm of its gradients."""
        loss, gradients = self.task.step(self.at.epoch, index)
        self.require_finite("loss", loss)
        try:
            _, norm = clip_by_global_norm(gradients, self.settings.clip or sys.float_info.max)
        except ValueError as error:
            raise self.diverged(str(error)) from error
        self.optimizer.step(self.task.parameters, gradients)
        self.task.after_step(gradients)
        return loss, norm

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Treat overflow as divergence, name the step in errors, and let Ctrl-C be Ctrl-C."""
        try:
            with np.errstate(over="raise", invalid="raise"):
                yield
        except Diverged:
            raise
        except FloatingPointError as error:
            raise self.diverged(str(error)) from error
        except ValueError as error:  # of a model or sampler that refuses its input
            self.require_finite_parameters()
            raise ValueError(f"{self.where}: {error}") from error
        except SystemError as error:  # as a compiled function may call what came meanwhile
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise

    @property
    def where(self) -> str:
        """How far the run has come, for messages."""
        return f"epoch {self.at.epoch + 1}, after {self.at.index} of {self.task.num_steps} steps"

    def require_finite(self, what: str, value: float) -> None:
        """Raise if training has diverged."""
        if not math.isfinite(value):
            raise self.diverged(f"the {what} is {value}")

    def require_finite_parameters(self) -> None:
        """Raise if training has diverged."""
        for name, array in self.task.parameters.items():
            if not np.isfinite(array).all():
                self.require_finite(f"parameter {name!r}", math.nan)

    def diverged(self, reason: str) -> Diverged:
        """Return the error for a training that is lost."""
        return Diverged(
            f"{self.where}: training has diverged: {reason.rstrip('.')}. Train anew in another "
            "folder with a lower learning rate."
        )

    def write_line(self, figures: dict[str, float]) -> dict[str, Any]:
        """Write a line of the log, and return it."""
        at = self.at
        line = {
            "epoch": at.epoch + 1,
            "step": at.step,
            "train_loss": at.mean_loss,
            "gradient_norm": at.norm_sum / at.index,
            "learning_rate": self.optimizer.learning_rate,
            "seconds": at.seconds,
            "examples_per_second": at.index * self.task.num_examples / at.epoch_seconds,
            **figures,
        }
        self.log.write(line)
        return line

    def save(self, *, best: bool = False) -> None:
        """Write the checkpoint, that of the best epoch before it."""
        self.require_finite_parameters()
        with self.watched():
            self.task.refresh()
            examples = self.task.examples()
        checkpoint = Checkpoint(
            {"task": self.task.config(), "training": self.settings.config()},
            asdict(self.at),
            prefixed(
                {
                    "parameters": self.task.parameters,
                    "optimizer": self.optimizer.state(),
                    "state": self.task.state(),
                    "examples": examples,
                },
                "/",
            ),
        )
        if best:
            write_checkpoint(self.folder / BEST, checkpoint)
        write_checkpoint(self.folder / CHECKPOINT, checkpoint)

    def load(self, path: Path) -> None:
        """Go back to a checkpoint, or raise and change nothing."""
        try:
            checkpoint = read_checkpoint(path)
        except ValueError as error:
            if not (self.folder / BEST).exists():
                raise
            raise ValueError(
                f"{error} Or copy {BEST} over it: the run then goes on from its best epoch."
            ) from None
        wanted = {"task": self.task.config(), "training": self.settings.config()}
        require_config(path, checkpoint.config, wanted)
        with rebuilding(path):
            at, steps = Progress(**checkpoint.values), self.task.num_steps
            if at.index >= steps or at.step != at.epoch * steps + at.index:
                raise ValueError(f"step {at.step} of {at.epoch} epochs of {steps} and {at.index}")
            self.optimizer.load_state(part_of(checkpoint, "optimizer"))
            self.task.load_state(part_of(checkpoint, "state"))
            copy_arrays(path, part_of(checkpoint, "parameters"), self.task.parameters)
            self.task.refresh()
        self.at = at
