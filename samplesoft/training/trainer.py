"""The loop over epochs and steps: validation, early stopping, checkpoints, and exact resumption."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from samplesoft._progress import progress_bar
from samplesoft.models.clipping import clip_by_global_norm
from samplesoft.models.optimizers import make_optimizer
from samplesoft.models.schedules import make_schedule
from samplesoft.training.checkpoint import (
    Arrays,
    Checkpoint,
    copy_arrays,
    part_of,
    read_checkpoint,
    require_config,
    write_checkpoint,
)
from samplesoft.training.log import Log
from samplesoft.training.settings import Progress, Settings
from samplesoft.training.task import Task

CHECKPOINT, BEST, LOG = "checkpoint.npz", "best.npz", "log.jsonl"


def train(
    task: Task,
    settings: Settings,
    folder: str | Path,
    *,
    resume: bool = False,
    progress: bool = False,
) -> Progress:
    """Train, or go on where an earlier run was interrupted, with the same bits as without.

    The folder gets ``checkpoint.npz``, ``best.npz`` of the epoch with the lowest validation loss,
    and ``log.jsonl``. A run may be killed at any time; what it did after its last checkpoint is
    done again on resuming.

    Parameters
    ----------
    task : Task
        Model and data; its parameters are changed.
    settings : Settings
        How to train.
    folder : str or Path
        Where the files go; made where there is none.
    resume : bool
        Go on from the checkpoint in `folder`, with the settings that it was written with.
    progress : bool
        Show a progress bar on stderr, if that is a terminal.

    Returns
    -------
    Progress
        How far it came, with the best epoch; the parameters are those of the last.

    Raises
    ------
    FloatingPointError
        If a loss, a gradient or a parameter is not finite; the last checkpoint stands.
    FileNotFoundError
        If there is nothing to resume.
    ValueError
        If `folder` already holds a run and `resume` is false, or the run there is another.

    Notes
    -----
    The same bits need the same machine and the same number of BLAS threads. One process at a time
    may train in a folder.

    Examples
    --------
    >>> import tempfile
    >>> from samplesoft.training.toy import ToySettings, ToyTask
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = train(ToyTask(ToySettings()), Settings(epochs=1, learning_rate=0.01), folder)
    ...     more = Settings(epochs=3, learning_rate=0.01)
    ...     at = train(ToyTask(ToySettings()), more, folder, resume=True)
    >>> at.epoch, at.step
    (3, 30)
    """
    path = Path(folder, CHECKPOINT)
    there = [name for name in (CHECKPOINT, BEST, LOG) if Path(folder, name).exists()]
    if there and not resume:
        raise ValueError(
            f"{str(folder)!r} already holds {', '.join(there)} of a run; resume it, or choose "
            "another folder."
        )
    if resume and not path.exists():
        raise FileNotFoundError(
            f"nothing to resume: no {CHECKPOINT} in {str(folder)!r}; correct the folder, or "
            "train without resuming."
        )
    Path(folder).mkdir(parents=True, exist_ok=True)
    run = _Run(task, settings, Path(folder))
    if resume:
        run.load(path)
    else:
        run.save()
    run.log = Log(Path(folder, LOG), run.at.step)
    while not run.at.is_over(settings):
        run.epoch(progress)
    return run.at


class _Run:
    """A task with its optimizer and files."""

    log: Log

    def __init__(self, task: Task, settings: Settings, folder: Path) -> None:
        self.task, self.settings, self.folder = task, settings, folder
        self.at = Progress()
        self.schedule = make_schedule(settings.schedule, **settings.schedule_options)
        self.optimizer = make_optimizer(
            settings.optimizer, settings.learning_rate, **settings.optimizer_options
        )

    def epoch(self, progress: bool) -> None:
        """Do the rest of an epoch: steps, validation, a line of the log, checkpoints."""
        self.optimizer.learning_rate = self.settings.learning_rate * self.schedule(self.at.epoch)
        with progress_bar(
            progress,
            desc=f"epoch {self.at.epoch + 1}",
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
        figures = self.task.validate()
        for name, value in figures.items():
            self.require_finite(f"validation {name}", value)
        self.write_line({f"validation_{name}": value for name, value in figures.items()})
        is_best = self.at.end_epoch(figures["loss"])
        self.save(best=is_best)

    def step(self, index: int) -> None:
        """Do one step."""
        start = time.perf_counter()
        try:
            loss, norm = self.change_parameters(index)
        except ValueError as error:  # of a model or sampler that refuses its input
            raise ValueError(f"{self.where}: {error}") from error
        self.at.add(loss, norm, time.perf_counter() - start)

    def change_parameters(self, index: int) -> tuple[float, float]:
        """Return the loss of a step and the norm of its gradients, which have been followed."""
        loss, gradients = self.task.step(self.at.epoch, index)
        self.require_finite("loss", loss)
        try:
            _, norm = clip_by_global_norm(gradients, self.settings.clip or sys.float_info.max)
        except ValueError as error:
            raise FloatingPointError(f"{self.where}: training has diverged: {error}") from error
        self.optimizer.step(self.task.parameters, gradients)
        self.task.after_step(gradients)
        return loss, norm

    @property
    def where(self) -> str:
        """How far the run has come, for messages."""
        return f"epoch {self.at.epoch + 1}, after {self.at.index} of {self.task.num_steps} steps"

    def require_finite(self, what: str, value: float) -> None:
        """Raise if training has diverged."""
        if not math.isfinite(value):
            raise FloatingPointError(
                f"{self.where}: the {what} is {value}; training has diverged. Lower the learning "
                "rate, or clip the gradients at a lower norm. The last checkpoint stands."
            )

    def write_line(self, figures: dict[str, float]) -> None:
        """Write a line of the log."""
        at = self.at
        self.log.write(
            {
                "epoch": at.epoch + 1,
                "step": at.step,
                "train_loss": at.mean_loss,
                "gradient_norm": at.norm_sum / at.index,
                "learning_rate": self.optimizer.learning_rate,
                "seconds": at.seconds,
                "examples_per_second": at.index * self.task.num_examples / at.epoch_seconds,
                **figures,
            }
        )

    def save(self, *, best: bool = False) -> None:
        """Write the checkpoint, that of the best epoch before it."""
        for name, array in self.task.parameters.items():
            if not np.isfinite(array).all():
                self.require_finite(f"parameter {name!r}", math.nan)
        self.task.refresh()
        checkpoint = Checkpoint(
            {"task": self.task.config(), "training": self.settings.config()},
            asdict(self.at),
            _join(
                parameters=self.task.parameters,
                optimizer=self.optimizer.state(),
                state=self.task.state(),
                examples=self.task.examples(),
            ),
        )
        if best:
            write_checkpoint(self.folder / BEST, checkpoint)
        write_checkpoint(self.folder / CHECKPOINT, checkpoint)

    def load(self, path: Path) -> None:
        """Go back to a checkpoint, or raise and change nothing."""
        checkpoint = read_checkpoint(path)
        wanted = {"task": self.task.config(), "training": self.settings.config()}
        require_config(path, checkpoint.config, wanted)
        copy_arrays(path, part_of(checkpoint, "parameters"), self.task.parameters)
        self.optimizer.load_state(part_of(checkpoint, "optimizer"))
        self.task.load_state(part_of(checkpoint, "state"))
        self.task.refresh()
        self.at = Progress(**checkpoint.values)


def load_parameters(path: str | Path, task: Task) -> None:
    """Take over the parameters of a checkpoint, such as those of the best epoch.

    Parameters
    ----------
    path : str or Path
        A checkpoint of `train`.
    task : Task
        The task that was trained.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged or of another task; nothing has changed then.
    """
    checkpoint = read_checkpoint(path)
    require_config(path, checkpoint.config.get("task", {}), task.config())
    copy_arrays(path, part_of(checkpoint, "parameters"), task.parameters)


def _join(**parts: Arrays) -> Arrays:
    return {f"{part}/{name}": a for part, arrays in parts.items() for name, a in arrays.items()}
