"""Training runs in a folder: start or resume, log, checkpoints."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from samplesoft._files import (
    FileInUse,
    discard_draft,
    move_into_place,
    prefixed,
    read_json,
    retry_while_in_use,
    write_text,
)
from samplesoft._progress import progress_bar, progress_phase
from samplesoft._validation import short_repr
from samplesoft.data.files import file_not_found
from samplesoft.optimizers.registry import make_optimizer
from samplesoft.training.callbacks import EarlyStop
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
from samplesoft.training.loop import Callback, Progress, fit, require_finite
from samplesoft.training.schedules import Schedule
from samplesoft.training.settings import Settings
from samplesoft.training.task import Task

CHECKPOINT, BEST, LOG = "checkpoint.npz", "best.npz", "log.jsonl"


def train(
    task: Task,
    settings: Settings,
    folder: str | Path,
    *,
    resume: bool = False,
    schedule: Schedule | None = None,
    progress: bool | Callable[[dict[str, Any]], object] = False,
) -> Progress:
    """Train, or resume an interrupted run, with the same parameters to the last bit.

    Writes ``checkpoint.npz``, ``best.npz`` of the epoch with the lowest validation loss, and
    ``log.jsonl``. A run may be killed at any time; resuming repeats the steps after its last
    checkpoint.

    Parameters
    ----------
    task : Task
        Model and data; its parameters are updated.
    settings : Settings
        Settings of the run.
    folder : str or Path
        Folder of the files; made if need be.
    resume : bool
        Continue from the checkpoint in `folder`; the settings must be equal.
    schedule : callable, optional
        Returns the factor of the learning rate in each step, counted from 1, in place of the
        schedule in `settings`. Pass it again on resuming.
    progress : bool or callable
        Show progress on stderr: a bar if that is a terminal, else lines. A callable, such as
        ``print``, is also called with the last line of the log of each epoch, as a dict, after the
        checkpoint is written.

    Returns
    -------
    Progress
        Progress at the end, with the best epoch. The parameters are those of the last epoch.

    Raises
    ------
    FloatingPointError
        If a loss, a gradient or a parameter is not finite; the last checkpoint remains.
    FileNotFoundError
        If there is nothing to resume.
    KeyboardInterrupt
        At Ctrl-C; the last checkpoint remains. If it arrives while a file is closed, Python may
        raise another error with it as ``__context__``.
    MemoryError
        If the arrays of the checkpoint would not fit.
    OSError
        If a file cannot be written; the last checkpoint remains. If another program holds a file,
        such as a virus scanner on Windows, training continues with a RuntimeWarning, and tries
        again at the next checkpoint. If the file is still held at the end, the message names the
        draft of it.
    ValueError
        If `folder` already holds a run and `resume` is false, or holds a different run, or another
        process trains there, or the model or the sampler reject their input. If the first step
        fails, the files of the run are removed.

    Notes
    -----
    Equal bits require the same machine and the same number of BLAS threads. During training a file
    ``.lock`` locks the folder. The file remains afterwards, and is harmless. On network file
    systems the lock excludes other machines only if the system supports that.

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
    # before the lock, which would make a missing folder
    if resume:
        require_run(folder)
    with locked(folder):
        if not resume:
            require_free(folder)
        return train_in(Path(folder), task, settings, schedule, resume, progress)


def train_in(
    folder: Path,
    task: Task,
    settings: Settings,
    schedule: Schedule | None,
    resume: bool,
    show: bool | Callable[[dict[str, Any]], object],
) -> Progress:
    """Train as `train` does, in a folder that the caller has locked and checked."""
    options = settings.optimizer_options
    new_optimizer = make_optimizer(settings.optimizer, settings.learning_rate, **options)
    optimizer = task.start(new_optimizer)
    config = {"task": task.config(), "training": settings.config()}
    if schedule is not None:  # must be passed again on resuming
        config["training"]["schedule"] = "a function"
    error_context = ErrorContext(task, Progress())
    files = RunFiles(
        folder,
        config,
        settings.checkpoint_every,
        settings.log_every,
        error_context,
    )
    with progress_phase(bool(show), "checkpoint"):
        if resume:
            error_context.progress = files.load(task, optimizer)
        else:
            # an initial checkpoint, so that a run killed in its first epoch can be resumed
            files.save(task, optimizer, error_context.progress)
            files.require_saved()
    callbacks: list[Callback] = [Validate(error_context, bool(show)), files]
    if show:
        callbacks.insert(0, StepBars())
    if settings.patience is not None:
        callbacks.append(EarlyStop(settings.patience))
    if callable(show):
        callbacks.append(Report(show, files))
    progress = error_context.progress
    try:
        cut_log(files.log, progress.step)
        fit(
            task,
            optimizer,
            epochs=settings.epochs,
            schedule=settings.schedule if schedule is None else schedule,
            warmup_steps=settings.warmup_steps,
            callbacks=callbacks,
            progress=progress,
            guard=error_context,
        )
    except Exception:
        files.forget(all_of_it=progress.step == 0 and not resume)
        raise
    files.require_saved()
    return progress


def require_free(folder: str | Path) -> None:
    """Raise ValueError if a folder holds files of a run.

    Parameters
    ----------
    folder : str or Path
        Folder of a new run.

    Raises
    ------
    ValueError
        If it holds files of a run.
    """
    existing = [name for name in (CHECKPOINT, BEST, LOG) if Path(folder, name).exists()]
    if existing:
        raise ValueError(
            f"{str(folder)!r} already holds {', '.join(existing)} of a run; resume it, choose "
            "another folder, or delete them."
        )


def require_run(folder: str | Path) -> None:
    """Raise FileNotFoundError if a folder holds no run to resume.

    Parameters
    ----------
    folder : str or Path
        Folder of the run.

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
        If it is damaged or of another task. Nothing has changed then.
    """
    with reading(path) as (config, _, arrays):
        require_config(path, config.get("task", {}), task.config())
        copy_arrays(path, part_of("parameters", arrays), task.parameters)


class RunFiles(Callback):
    """The files of a run: its checkpoints, the best of them, and its log.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    config : dict
        Settings that must be equal on resuming.
    checkpoint_every : int or None
        Steps between checkpoints within an epoch; there is always one at its end.
    log_every : int
        Steps between lines of the log within an epoch.
    error_context : callable
        Returns a context that extends error messages while a model is read.
    """

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        checkpoint_every: int | None,
        log_every: int,
        error_context: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.folder, self.log = folder, folder / LOG
        self.config, self.error_context = config, error_context
        self.checkpoint_every, self.log_every = checkpoint_every, log_every
        self.every = (log_every, checkpoint_every or log_every)
        # drafts by name, and lines of the log, that could not be written because a file was held
        self.drafts: dict[str, Path] = {}
        self.lines: list[dict[str, Any]] = []
        self.last_line: dict[str, Any] = {}

    def after_steps(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Write a line of the log, and a checkpoint, if due."""
        if progress.index == task.num_steps:  # `end_epoch` writes it, with the validation
            return
        if progress.index % self.log_every == 0:
            self.write_line(optimizer, progress)
        if self.checkpoint_every is not None and progress.index % self.checkpoint_every == 0:
            self.save(task, optimizer, progress)

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Write the last line of an epoch.

        It is written before the checkpoint. If the process dies in between, resuming removes the
        line.
        """
        self.write_line(optimizer, progress)

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Write the checkpoint; if this epoch is the best so far, first the best one."""
        self.save(task, optimizer, progress, best=progress.best_epoch == progress.epoch)

    def write_line(self, optimizer: Any, progress: Progress) -> None:
        """Write a line of the log."""
        line = {
            "epoch": progress.epoch + 1,
            "step": progress.step,
            "train_loss": progress.mean_loss,
            "learning_rate": optimizer.learning_rate,
            "seconds": progress.seconds,
            "examples_per_second": progress.examples / progress.epoch_seconds,
            **{f"validation_{name}": value for name, value in progress.metrics.items()},
        }
        self.last_line = line
        self.lines.append(line)
        try:
            self.put_lines()
        except PermissionError as error:
            _warn(error, "the next line brings this one with it")

    def put_lines(self) -> None:
        """Append the pending lines to the log."""
        while self.lines:
            append_line(self.log, self.lines[0])
            del self.lines[0]

    def save(self, task: Task, optimizer: Any, progress: Progress, *, best: bool = False) -> None:
        """Write the checkpoint; with `best`, first the best one."""
        with self.error_context():
            # copies class vectors from workers once
            parameters = {name: np.asarray(array) for name, array in task.parameters.items()}
            # never write NaN: the previous checkpoint is needed for recovery
            reason = not_finite(parameters)
            if reason is not None:
                raise FloatingPointError(reason)
            # updated sums of a sampler drift in their last bits; rebuilding them on both writing
            # and reading a checkpoint makes them independent of interruptions
            task.refresh()
            examples = task.examples()
        parts = {
            "parameters": parameters,
            "optimizer": optimizer.state(),
            "state": task.state(),
            "examples": examples,
        }
        checkpoint = Checkpoint(self.config, progress.stored(), prefixed(parts, "/"))
        error = None
        for name in (BEST, CHECKPOINT) if best else (CHECKPOINT,):
            self.discard([name])  # a pending draft is out of date now
            self.drafts[name] = write_draft(self.folder / name, checkpoint)
            error = self.put_drafts()
        if error is not None:
            _warn(error, "training goes on, and the next checkpoint tries again")

    def discard(self, names: Iterable[str]) -> None:
        """Remove pending drafts."""
        for name in names:
            if name in self.drafts:
                discard_draft(self.drafts.pop(name))

    def put_drafts(self) -> FileInUse | None:
        """Rename drafts to their final names; return the error if a file is held."""
        # the best one first, and the other only after it: if the process dies in between, the run
        # repeats the epoch and finds the same best
        for name in (BEST, CHECKPOINT):
            if name in self.drafts:
                try:
                    with writing(self.folder / name):
                        move_into_place(self.drafts[name], self.folder / name)
                except FileInUse as error:
                    return error
                del self.drafts[name]
        return None

    def require_saved(self) -> None:
        """Write pending drafts and lines; raise OSError if a file is still held."""
        error = self.put_drafts()
        if error is not None:
            remaining = ", ".join(
                f"{str(draft)!r} to {name!r}" for name, draft in self.drafts.items()
            )
            raise PermissionError(
                f"{str(error.path)!r} cannot be replaced: {error.reason}; end the program that "
                f"holds it, and rename {remaining}, which hold what this run has come to."
            ) from error
        self.put_lines()

    def load(self, task: Task, optimizer: Any) -> Progress:
        """Restore the checkpoint, or raise and change nothing."""
        path = self.folder / CHECKPOINT
        with reading(path) as (config, values, arrays):
            require_config(path, config, self.config)
            progress = _progress(values, task)
            optimizer.load_state(part_of("optimizer", arrays))
            task.load_state(part_of("state", arrays))
            copy_arrays(path, part_of("parameters", arrays), task.parameters)
            task.refresh()
        return progress

    def forget(self, *, all_of_it: bool) -> None:
        """Remove drafts after an error, and with `all_of_it` all files of the run."""
        self.discard([*self.drafts])  # the last checkpoint remains
        if all_of_it:  # they would block the next attempt
            for left in (self.folder / CHECKPOINT, self.log):
                with suppress(OSError):  # the first error matters
                    retry_while_in_use(partial(left.unlink, missing_ok=True))


class Validate(Callback):
    """Validates at the end of each epoch.

    Parameters
    ----------
    error_context : callable
        Returns the context of the validation.
    progress : bool
        Whether to show progress on stderr.
    """

    def __init__(
        self, error_context: Callable[[], AbstractContextManager[None]], progress: bool
    ) -> None:
        self._error_context, self._progress = error_context, progress

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Validate."""
        shown_phase = progress_phase(self._progress, f"epoch {progress.epoch + 1}, validation")
        with shown_phase, self._error_context():
            metrics = task.validate()
            for name, value in metrics.items():
                require_finite(f"validation {name}", value)
        progress.validated(metrics)


class StepBars(Callback):
    """Shows the steps of each epoch on stderr."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def begin_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Show a new bar."""
        name, total = f"epoch {progress.epoch + 1}", task.num_steps
        bar = progress_bar(True, desc=name, initial=progress.index, total=total, unit="step")
        self._bar, self._shown = self._stack.enter_context(bar), progress.index

    def after_steps(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Update the number of steps and the loss."""
        self._bar.update(progress.index - self._shown)
        self._bar.set_postfix(loss=f"{progress.mean_loss:.3f}", refresh=False)
        self._shown = progress.index

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Remove the bar."""
        self._stack.close()


class Report(Callback):
    """Calls a function with the last log line of each epoch, after its checkpoint."""

    def __init__(self, function: Callable[[dict[str, Any]], object], files: RunFiles) -> None:
        self._function, self._files = function, files

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Call the function."""
        self._function(self._files.last_line)


class ErrorContext:
    """Makes contexts that name the step in errors, and treat overflow as divergence."""

    def __init__(self, task: Task, progress: Progress) -> None:
        self.task, self.progress = task, progress

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Return a context; in it, Ctrl-C within a compiled function raises KeyboardInterrupt."""
        epoch, index = self.progress.epoch + 1, self.progress.index
        where = f"epoch {epoch}, after {index} of {self.task.num_steps} steps"
        try:
            with np.errstate(over="raise", invalid="raise"):
                yield
        except (FloatingPointError, ValueError) as error:
            # a model or a sampler may reject its input because training has diverged
            diverged = isinstance(error, FloatingPointError)
            reason = str(error) if diverged else not_finite(self.task.parameters)
            if reason is None:
                raise ValueError(f"{where}: {error}") from error
            raise FloatingPointError(
                f"{where}: training has diverged: {reason.rstrip('.')}. Train anew in another "
                "folder with a lower learning rate."
            ) from error
        except SystemError as error:  # a compiled function may convert KeyboardInterrupt to it
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise


def not_finite(parameters: Arrays) -> str | None:
    """Return a message naming the first parameter with NaN or infinity, or None."""
    for name, array in parameters.items():
        if not np.isfinite(array).all():
            return f"the parameter {name!r} is nan"
    return None


def _progress(values: dict[str, Any], task: Task) -> Progress:
    """Return the progress stored in a checkpoint."""
    if "examples" not in values:  # written by a version that summed the losses of steps
        examples = task.num_examples
        values = {
            **values,
            "loss_sum": values["loss_sum"] * examples,
            "examples": values["index"] * examples,
        }
    return Progress(**values)


def _warn(error: OSError, consequence: str) -> None:
    warnings.warn(f"{str(error).rstrip('.')}; {consequence}.", RuntimeWarning, stacklevel=2)


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
        # text after the last newline is an incomplete line
        *lines, _ = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        raise file_not_found(path) from None
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = read_json(line)
            # only numbers, for readers of the log
            is_valid = all(isinstance(value, (int, float)) for value in record.values())
            is_valid &= isinstance(record["step"], int)
        except (AttributeError, KeyError, ValueError):
            is_valid = False
        if not is_valid:
            raise ValueError(
                f"{str(path)!r}, line {number}: expected a JSON object of numbers with a step, got "
                f"{short_repr(line)}; repair the line, or move the file away."
            )
        records.append(record)
    return records


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append a record to a log; it persists even if the process is killed afterwards."""
    # another program may hold the log for a moment
    with (
        writing(path),
        retry_while_in_use(lambda: open(path, "a", encoding="utf-8", newline="\n")) as stream,
    ):
        stream.write(json.dumps(record, allow_nan=False) + "\n")


def cut_log(path: Path, step: int) -> None:
    """Remove the lines after a step from a log, which is made if need be."""
    # these steps are repeated, and would have two lines each
    kept_lines = [
        line for line in (read_log(path) if path.exists() else []) if line["step"] <= step
    ]
    with writing(path):
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept_lines))
