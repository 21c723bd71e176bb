"""Training in a folder: begin or resume, steps and epochs, log, checkpoints."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from samplesoft._files import FileInUse, discard, prefixed, put, read_json, tried, write_text
from samplesoft._progress import progress_bar, progress_phase
from samplesoft._validation import shown
from samplesoft.data.files import missing
from samplesoft.models.optimizers import make_optimizer
from samplesoft.training.checkpoint import (
    Arrays,
    Checkpoint,
    copy_arrays,
    part_of,
    reading,
    require_config,
    write_draft,
    writing,
)
from samplesoft.training.lock import locked
from samplesoft.training.settings import Progress, Settings
from samplesoft.training.task import Task

CHECKPOINT, BEST, LOG = "checkpoint.npz", "best.npz", "log.jsonl"


def train(
    task: Task,
    settings: Settings,
    folder: str | Path,
    *,
    resume: bool = False,
    progress: bool | Callable[[dict[str, Any]], object] = False,
) -> Progress:
    """Train, or resume a run that was interrupted, with the same parameters to the last bit.

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
    progress : bool or callable
        Show progress on stderr: a bar if that is a terminal, else lines. A callable, such as
        ``print``, gets the last line of the log of each epoch too, as a dict, once the epoch is in
        the checkpoint.

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
    KeyboardInterrupt
        At Ctrl-C; the last checkpoint stands. Where it comes while a file is closed, Python may
        make another error of it, whose ``__context__`` it is.
    MemoryError
        If the arrays of the checkpoint would not fit.
    OSError
        If a file cannot be written; the last checkpoint stands. A file that another program holds,
        as scanners do on Windows, is no error before the end: training goes on, with a
        RuntimeWarning, and tries again at the next checkpoint. If it is held at the end too, the
        message says where the draft of it is.
    ValueError
        If `folder` already holds a run and `resume` is false, or the run there is another, or
        another process trains there, or model or sampler refuse their input. After a first step
        that failed, the folder is free.

    Notes
    -----
    The same bits need the same machine and the same number of BLAS threads. While it trains, the
    folder is locked by a file ``.lock``, which stays and does not matter. On network file
    systems the lock keeps other machines out where the system has locks that reach them.

    Examples
    --------
    >>> import tempfile
    >>> from scipy.sparse import csr_array
    >>> from samplesoft.training import RetrievalSettings, RetrievalTask
    >>> X = csr_array(np.eye(4, dtype=np.float32))
    >>> model = RetrievalSettings(num_sampled=2, validation=0.0, batch_size=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = train(RetrievalTask(X, X, model), Settings(epochs=1), folder)
    ...     at = train(RetrievalTask(X, X, model), Settings(epochs=3), folder, resume=True)
    >>> at.epoch, at.step
    (3, 6)
    """
    # before the lock, which would make a folder that is not there
    if resume:
        require_run(folder)
    with locked(folder):
        if not resume:
            require_free(folder)
        return Run(task, settings, Path(folder)).train(resume, progress)


def require_free(folder: str | Path) -> None:
    """Raise ValueError where a folder holds files of a run.

    Parameters
    ----------
    folder : str or Path
        Where a new run is to go.

    Raises
    ------
    ValueError
        If one of them is there.
    """
    there = [name for name in (CHECKPOINT, BEST, LOG) if Path(folder, name).exists()]
    if there:
        raise ValueError(
            f"{str(folder)!r} already holds {', '.join(there)} of a run; resume it, choose "
            "another folder, or delete them."
        )


def require_run(folder: str | Path) -> None:
    """Raise FileNotFoundError where a folder holds no run that can be resumed.

    Parameters
    ----------
    folder : str or Path
        Of the run.

    Raises
    ------
    FileNotFoundError
        If it has no checkpoint.
    """
    if not Path(folder, CHECKPOINT).exists():
        raise FileNotFoundError(
            f"nothing to resume: no {CHECKPOINT} in {str(folder)!r}; correct the folder, or "
            "train without resuming."
        )


def load_parameters(path: str | Path, task: Task) -> None:
    """Load the parameters of a checkpoint, such as those of the best epoch.

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
    MemoryError
        If its arrays would not fit.
    ValueError
        If it is damaged or of another task; nothing has changed then.
    """
    with reading(path) as (config, _, arrays):
        require_config(path, config.get("task", {}), task.config())
        copy_arrays(path, part_of("parameters", arrays), task.parameters)


class Run:
    """A task with its optimizer and files, and how far they have come."""

    def __init__(self, task: Task, settings: Settings, folder: Path) -> None:
        self.task, self.settings, self.folder = task, settings, folder
        self.log = folder / LOG
        self.at = Progress()
        # what another program has kept from its place: drafts by name, and lines of the log
        self.drafts: dict[str, Path] = {}
        self.lines: list[dict[str, Any]] = []
        options = settings.optimizer_options
        optimizer = make_optimizer(settings.optimizer, settings.learning_rate, **options)
        self.optimizer = task.start(optimizer)

    def train(self, resume: bool, progress: bool | Callable[[dict[str, Any]], object]) -> Progress:
        """Do what `train` does, in a folder that the caller has locked and looked into."""
        path = self.folder / CHECKPOINT
        with progress_phase(bool(progress), "checkpoint"):
            if resume:
                self.load(path)
            else:
                # the start is a checkpoint too: a run that is killed in its first epoch resumes
                self.save()
                self.require_saved()
        try:
            cut_log(self.log, self.at.step)
            # a run that is resumed may be over already, for instance by its patience
            while not self.at.is_over(self.settings):
                self.epoch(progress)
        except Exception:
            self.discard([*self.drafts])  # the last checkpoint stands
            if self.at.step == 0 and not resume:  # files would only be in the way of the next try
                for left in (path, self.log):
                    with suppress(OSError):  # the first error counts
                        tried(partial(left.unlink, missing_ok=True))
            raise
        self.require_saved()
        return self.at

    def epoch(self, progress: bool | Callable[[dict[str, Any]], object]) -> None:
        """Do the rest of an epoch: steps, validation, a line of the log, checkpoints."""
        factor = self.task.rate_factor(self.at.epoch)
        self.optimizer.learning_rate = self.settings.learning_rate * factor
        name = f"epoch {self.at.epoch + 1}"
        with progress_bar(
            bool(progress), desc=name, initial=self.at.index, total=self.task.num_steps, unit="step"
        ) as bar:
            while self.at.index < self.task.num_steps:
                bar.update(self.steps())
                bar.set_postfix(loss=f"{self.at.mean_loss:.3f}", refresh=False)
                # the last step of an epoch is written with its validation, in `end_epoch`
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
                require_finite(f"validation {name}", value)
        # before the checkpoint: a run that dies between the two cuts the line off when it resumes
        line = self.write_line({f"validation_{name}": value for name, value in figures.items()})
        is_best = self.at.end_epoch(figures["loss"])
        self.save(best=is_best)
        return line

    def steps(self) -> int:
        """Do one step, or several in a call up to the next line of the log; return how many."""
        task, at, start = self.task, self.at, time.perf_counter()
        first = at.index
        with self.watched():
            last = task.last_of_call(self.optimizer, at.epoch, first)
            if last is None:
                losses = [self.step(first)]
            else:
                for every in (self.settings.log_every, self.settings.checkpoint_every or last):
                    last = min(last, (first // every + 1) * every)
                losses = task.take(self.optimizer, at.epoch, first, last)
        for loss in losses:
            at.add(loss, (time.perf_counter() - start) / len(losses))
        return len(losses)

    def step(self, index: int) -> float:
        """Do one step, and return its loss."""
        loss, gradients = self.task.step(self.at.epoch, index)
        require_finite("loss", loss)
        try:
            self.optimizer.step(self.task.parameters, gradients)
        except ValueError as error:
            # an optimizer refuses what is not finite, and also what no training can mend
            rows = (getattr(gradient, "rows", gradient) for gradient in gradients.values())
            if all(np.isfinite(array).all() for array in rows):
                raise
            raise FloatingPointError(str(error)) from error
        self.task.after_step(gradients)
        return loss

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Treat overflow as divergence, name the step in errors, and let Ctrl-C be Ctrl-C."""
        where = f"epoch {self.at.epoch + 1}, after {self.at.index} of {self.task.num_steps} steps"
        try:
            with np.errstate(over="raise", invalid="raise"):
                yield
        except (FloatingPointError, ValueError) as error:
            # a model or a sampler may refuse its input for what training has come to
            reason = str(error) if isinstance(error, FloatingPointError) else self.not_finite()
            if reason is None:
                raise ValueError(f"{where}: {error}") from error
            raise FloatingPointError(
                f"{where}: training has diverged: {reason.rstrip('.')}. Train anew in another "
                "folder with a lower learning rate."
            ) from error
        except SystemError as error:  # as a compiled function may call what came meanwhile
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise

    def not_finite(self, parameters: Arrays | None = None) -> str | None:
        """Say which parameter holds NaN or infinity, if any does."""
        for name, array in (parameters or self.task.parameters).items():
            if not np.isfinite(array).all():
                return f"the parameter {name!r} is nan"
        return None

    def write_line(self, figures: dict[str, float]) -> dict[str, Any]:
        """Write a line of the log, and return it."""
        at = self.at
        line = {
            "epoch": at.epoch + 1,
            "step": at.step,
            "train_loss": at.mean_loss,
            "learning_rate": self.optimizer.learning_rate,
            "seconds": at.seconds,
            "examples_per_second": at.index * self.task.num_examples / at.epoch_seconds,
            **figures,
        }
        self.lines.append(line)
        try:
            self.put_lines()
        except PermissionError as error:
            _warn(error, "the next line brings this one with it")
        return line

    def put_lines(self) -> None:
        """Append the lines that are not in the log yet."""
        while self.lines:
            append_line(self.log, self.lines[0])
            del self.lines[0]

    def save(self, *, best: bool = False) -> None:
        """Write the checkpoint, that of the best epoch before it."""
        with self.watched():
            # class vectors that lie on workers come here once
            parameters = {name: np.asarray(a) for name, a in self.task.parameters.items()}
            # never a checkpoint with NaN: the one before is the way back
            reason = self.not_finite(parameters)
            if reason is not None:
                raise FloatingPointError(reason)
            # sums that a sampler updates drift in their last bits; made anew when a checkpoint is
            # written and when it is read, they do not depend on interruptions
            self.task.refresh()
            examples = self.task.examples()
        parts = {
            "parameters": parameters,
            "optimizer": self.optimizer.state(),
            "state": self.task.state(),
            "examples": examples,
        }
        checkpoint = Checkpoint(self.config(), asdict(self.at), prefixed(parts, "/"))
        refused = None
        for name in (BEST, CHECKPOINT) if best else (CHECKPOINT,):
            self.discard([name])  # what has been kept from its place is old now
            self.drafts[name] = write_draft(self.folder / name, checkpoint)
            refused = self.put_drafts()
        if refused is not None:
            _warn(refused, "training goes on, and the next checkpoint tries again")

    def discard(self, names: Iterable[str]) -> None:
        """Remove drafts that have been kept from their places."""
        for name in names:
            if name in self.drafts:
                discard(self.drafts.pop(name))

    def put_drafts(self) -> FileInUse | None:
        """Let drafts take their names, or return the refusal."""
        # the best first, and no other without it: if the process dies between the two, the run
        # repeats the epoch, and finds the same best
        for name in (BEST, CHECKPOINT):
            if name in self.drafts:
                try:
                    with writing(self.folder / name):
                        put(self.drafts[name], self.folder / name)
                except FileInUse as error:
                    return error
                del self.drafts[name]
        return None

    def require_saved(self) -> None:
        """Raise an OSError if what has been refused before is refused once more."""
        refused = self.put_drafts()
        if refused is not None:
            left = ", ".join(f"{str(draft)!r} to {name!r}" for name, draft in self.drafts.items())
            raise PermissionError(
                f"{str(refused.path)!r} cannot be replaced: {refused.reason}; end the program that "
                f"holds it, and rename {left}, which hold what this run has come to."
            ) from refused
        self.put_lines()

    def load(self, path: Path) -> None:
        """Go back to a checkpoint, or raise and change nothing."""
        with reading(path) as (config, values, arrays):
            require_config(path, config, self.config())
            at = Progress(**values)
            self.optimizer.load_state(part_of("optimizer", arrays))
            self.task.load_state(part_of("state", arrays))
            copy_arrays(path, part_of("parameters", arrays), self.task.parameters)
            self.task.refresh()
        self.at = at

    def config(self) -> dict[str, Any]:
        """Return what must be the same on resuming."""
        return {"task": self.task.config(), "training": self.settings.config()}


def _warn(error: OSError, what_then: str) -> None:
    warnings.warn(f"{str(error).rstrip('.')}; {what_then}.", RuntimeWarning, stacklevel=2)


def require_finite(what: str, value: float) -> None:
    """Raise FloatingPointError for a loss, or another figure, of training that has diverged."""
    if not math.isfinite(value):
        raise FloatingPointError(f"the {what} is {value}")


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Return the records of a log.

    Parameters
    ----------
    path : str or Path
        ``log.jsonl`` of a run.

    Returns
    -------
    list of dict
        One for each complete line. ``epoch`` is counted from 1. ``step`` counts the steps since
        the run began, and ``seconds`` is their time. ``train_loss`` is the mean
        over the epoch so far, and so is ``examples_per_second``. ``learning_rate`` is that of the
        optimizer. The last line of an epoch also has ``validation_...``.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a line is damaged, with its number.
    """
    try:
        # what stands after the last end of a line was cut off while it was written
        *lines, _ = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        raise missing(path) from None
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = read_json(line)
            # numbers alone, so that whoever reads the log can compute with them
            sound = all(isinstance(value, (int, float)) for value in record.values())
            sound &= isinstance(record["step"], int)
        except (AttributeError, KeyError, ValueError):
            sound = False
        if not sound:
            raise ValueError(
                f"{str(path)!r}, line {number}: expected a JSON object of numbers with a step, got "
                f"{shown(line)}; repair the line, or move the file away."
            )
        records.append(record)
    return records


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append a record to a log; it is in the file even if the process is killed then."""
    # a log that somebody looks at may be held for a moment
    with (
        writing(path),
        tried(lambda: open(path, "a", encoding="utf-8", newline="\n")) as stream,
    ):
        stream.write(json.dumps(record, allow_nan=False) + "\n")


def cut_log(path: Path, step: int) -> None:
    """Remove the lines after a step from a log, which is made where there is none."""
    # they are done again, and would have two lines each
    kept = [line for line in (read_log(path) if path.exists() else []) if line["step"] <= step]
    with writing(path):
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
