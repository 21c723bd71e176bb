"""Training in a folder: begin or resume, steps and epochs, log, checkpoints."""

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
    schedule : callable, optional
        The factor of the learning rate in each step, counted from 1, in place of the schedule that
        `settings` name. To resume the run it must be given again.
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
        return train_in(Path(folder), task, settings, schedule, resume, progress)


def train_in(
    folder: Path,
    task: Task,
    settings: Settings,
    schedule: Schedule | None,
    resume: bool,
    show: bool | Callable[[dict[str, Any]], object],
) -> Progress:
    """Do what `train` does, in a folder that the caller has locked and looked into."""
    options = settings.optimizer_options
    made = make_optimizer(settings.optimizer, settings.learning_rate, **options)
    optimizer = task.start(made)
    config = {"task": task.config(), "training": settings.config()}
    if schedule is not None:  # which must be given again on resuming
        config["training"]["schedule"] = "a function"
    watched = Watch(task, Progress())
    files = RunFiles(
        folder,
        config,
        settings.checkpoint_every,
        settings.log_every,
        watched,
    )
    with progress_phase(bool(show), "checkpoint"):
        if resume:
            watched.progress = files.load(task, optimizer)
        else:
            # the start is a checkpoint too: a run that is killed in its first epoch resumes
            files.save(task, optimizer, watched.progress)
            files.require_saved()
    callbacks: list[Callback] = [Validate(watched, bool(show)), files]
    if show:
        callbacks.insert(0, StepBars())
    if settings.patience is not None:
        callbacks.append(EarlyStop(settings.patience))
    if callable(show):
        callbacks.append(Report(show, files))
    progress = watched.progress
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
            guard=watched,
        )
    except Exception:
        files.forget(all_of_it=progress.step == 0 and not resume)
        raise
    files.require_saved()
    return progress


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


class RunFiles(Callback):
    """The files of a run: its checkpoints, the best of them, and its log.

    Parameters
    ----------
    folder : Path
        Of the run.
    config : dict
        What must be the same on resuming.
    checkpoint_every : int or None
        Steps of an epoch from one checkpoint to the next; there is one at its end too.
    log_every : int
        Steps of an epoch from one line of the log to the next.
    watched : callable
        Returns the context in which a model is read, to say more in an error.
    """

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        checkpoint_every: int | None,
        log_every: int,
        watched: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.folder, self.log = folder, folder / LOG
        self.config, self.watched = config, watched
        self.checkpoint_every, self.log_every = checkpoint_every, log_every
        self.every = (log_every, checkpoint_every or log_every)
        # what another program has kept from its place: drafts by name, and lines of the log
        self.drafts: dict[str, Path] = {}
        self.lines: list[dict[str, Any]] = []
        self.last_line: dict[str, Any] = {}

    def after_steps(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Write a line of the log, and a checkpoint, where it is time for them."""
        if progress.index == task.num_steps:  # written with the validation, at the end of the epoch
            return
        if progress.index % self.log_every == 0:
            self.write_line(optimizer, progress)
        if self.checkpoint_every is not None and progress.index % self.checkpoint_every == 0:
            self.save(task, optimizer, progress)

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Write the last line of an epoch.

        It is written before the checkpoint: a run that dies between the two cuts the line off when
        it resumes.
        """
        self.write_line(optimizer, progress)

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Write the checkpoint, that of the best epoch before it."""
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
        """Append the lines that are not in the log yet."""
        while self.lines:
            append_line(self.log, self.lines[0])
            del self.lines[0]

    def save(self, task: Task, optimizer: Any, progress: Progress, *, best: bool = False) -> None:
        """Write the checkpoint, that of the best epoch before it."""
        with self.watched():
            # class vectors that lie on workers come here once
            parameters = {name: np.asarray(array) for name, array in task.parameters.items()}
            # never a checkpoint with NaN: the one before is the way back
            reason = not_finite(parameters)
            if reason is not None:
                raise FloatingPointError(reason)
            # sums that a sampler updates drift in their last bits; rebuilt when a checkpoint is
            # written and when it is read, they do not depend on interruptions
            task.refresh()
            examples = task.examples()
        parts = {
            "parameters": parameters,
            "optimizer": optimizer.state(),
            "state": task.state(),
            "examples": examples,
        }
        checkpoint = Checkpoint(self.config, progress.stored(), prefixed(parts, "/"))
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
                discard_draft(self.drafts.pop(name))

    def put_drafts(self) -> FileInUse | None:
        """Let drafts take their names, or return the refusal."""
        # the best first, and no other without it: if the process dies between the two, the run
        # repeats the epoch, and finds the same best
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
        """Raise an OSError if what has been refused before is refused once more."""
        refused = self.put_drafts()
        if refused is not None:
            left = ", ".join(f"{str(draft)!r} to {name!r}" for name, draft in self.drafts.items())
            raise PermissionError(
                f"{str(refused.path)!r} cannot be replaced: {refused.reason}; end the program that "
                f"holds it, and rename {left}, which hold what this run has come to."
            ) from refused
        self.put_lines()

    def load(self, task: Task, optimizer: Any) -> Progress:
        """Go back to the checkpoint, or raise and change nothing."""
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
        """Remove drafts after an error, and all files of a run that has done nothing."""
        self.discard([*self.drafts])  # the last checkpoint stands
        if all_of_it:  # they would only be in the way of the next try
            for left in (self.folder / CHECKPOINT, self.log):
                with suppress(OSError):  # the first error counts
                    retry_while_in_use(partial(left.unlink, missing_ok=True))


class Validate(Callback):
    """Validates at the end of each epoch.

    Parameters
    ----------
    watched : callable
        Returns the context in which it is done.
    progress : bool
        Whether to show that on stderr.
    """

    def __init__(self, watched: Callable[[], AbstractContextManager[None]], progress: bool) -> None:
        self._watched, self._progress = watched, progress

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Validate."""
        shown_phase = progress_phase(self._progress, f"epoch {progress.epoch + 1}, validation")
        with shown_phase, self._watched():
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
        """Begin a bar."""
        name, total = f"epoch {progress.epoch + 1}", task.num_steps
        bar = progress_bar(True, desc=name, initial=progress.index, total=total, unit="step")
        self._bar, self._shown = self._stack.enter_context(bar), progress.index

    def after_steps(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Show how many steps have been taken, and the loss."""
        self._bar.update(progress.index - self._shown)
        self._bar.set_postfix(loss=f"{progress.mean_loss:.3f}", refresh=False)
        self._shown = progress.index

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Remove the bar."""
        self._stack.close()


class Report(Callback):
    """Gives the last line of each epoch to a function, once it is in the checkpoint."""

    def __init__(self, function: Callable[[dict[str, Any]], object], files: RunFiles) -> None:
        self._function, self._files = function, files

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Call it."""
        self._function(self._files.last_line)


class Watch:
    """Contexts that name the step in errors, and treat overflow as divergence."""

    def __init__(self, task: Task, progress: Progress) -> None:
        self.task, self.progress = task, progress

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Return one; in it Ctrl-C is Ctrl-C, also within a compiled function."""
        epoch, index = self.progress.epoch + 1, self.progress.index
        where = f"epoch {epoch}, after {index} of {self.task.num_steps} steps"
        try:
            with np.errstate(over="raise", invalid="raise"):
                yield
        except (FloatingPointError, ValueError) as error:
            # a model or a sampler may refuse its input for what training has come to
            diverged = isinstance(error, FloatingPointError)
            reason = str(error) if diverged else not_finite(self.task.parameters)
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


def not_finite(parameters: Arrays) -> str | None:
    """Say which parameter holds NaN or infinity, if any does."""
    for name, array in parameters.items():
        if not np.isfinite(array).all():
            return f"the parameter {name!r} is nan"
    return None


def _progress(values: dict[str, Any], task: Task) -> Progress:
    """Return the progress that a checkpoint holds."""
    if "examples" not in values:  # of a version that summed the losses of steps
        examples = task.num_examples
        values = {
            **values,
            "loss_sum": values["loss_sum"] * examples,
            "examples": values["index"] * examples,
        }
    return Progress(**values)


def _warn(error: OSError, what_then: str) -> None:
    warnings.warn(f"{str(error).rstrip('.')}; {what_then}.", RuntimeWarning, stacklevel=2)


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
        raise file_not_found(path) from None
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
                f"{short_repr(line)}; repair the line, or move the file away."
            )
        records.append(record)
    return records


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append a record to a log; it is in the file even if the process is killed then."""
    # a log that somebody looks at may be held for a moment
    with (
        writing(path),
        retry_while_in_use(lambda: open(path, "a", encoding="utf-8", newline="\n")) as stream,
    ):
        stream.write(json.dumps(record, allow_nan=False) + "\n")


def cut_log(path: Path, step: int) -> None:
    """Remove the lines after a step from a log, which is made where there is none."""
    # they are done again, and would have two lines each
    kept = [line for line in (read_log(path) if path.exists() else []) if line["step"] <= step]
    with writing(path):
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
