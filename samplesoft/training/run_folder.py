"""Training runs in a folder: `train` starts or resumes one, and writes its checkpoints and log."""

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
    read_json,
    retry_while_in_use,
    with_prefixes,
    write_text,
)
from samplesoft._progress import progress_bar, progress_phase
from samplesoft._validation import short_repr
from samplesoft.data.files import file_not_found_error
from samplesoft.optimizers.registry import make_optimizer
from samplesoft.training.callbacks import EarlyStop
from samplesoft.training.checkpoint import (
    Arrays,
    Checkpoint,
    array_group,
    copy_arrays,
    explain_write_errors,
    open_checkpoint,
    require_config,
    write_draft,
)
from samplesoft.training.lock import locked
from samplesoft.training.loop import Callback, Progress, fit, require_finite
from samplesoft.training.schedules import Schedule
from samplesoft.training.settings import Settings
from samplesoft.training.task import Task

CHECKPOINT = "checkpoint.npz"
BEST = "best.npz"
LOG = "log.jsonl"


def train(
    task: Task,
    settings: Settings,
    folder: str | Path,
    *,
    resume: bool = False,
    schedule: Schedule | None = None,
    progress: bool | Callable[[dict[str, Any]], object] = False,
) -> Progress:
    """Train the model of a task in a folder, or resume such a run after an interruption.

    Writes ``checkpoint.npz``, ``best.npz`` for the epoch with the lowest validation loss, and
    ``log.jsonl``. The process may be killed at any time. Resuming repeats the steps after the last
    checkpoint, and ends with the same parameters to the last bit as an uninterrupted run.

    Parameters
    ----------
    task : Task
        Model and data. The parameters are updated in place.
    settings : Settings
        Settings of the run.
    folder : str or Path
        Folder of the files; made if it does not exist.
    resume : bool
        Continue from the checkpoint in `folder`, which must be of a run with equal settings.
    schedule : callable, optional
        Returns the factor of the learning rate in a step, counted from 1. It replaces the schedule
        in `settings`, and must be passed again when the run is resumed.
    progress : bool or callable
        Whether to show progress on stderr: as a bar if stderr is a terminal, otherwise as lines. A
        callable, such as ``print``, implies True. It is called after each epoch, when the
        checkpoint has been written, with the epoch's last line of the log as a dict.

    Returns
    -------
    Progress
        Progress at the end, including the best epoch. The task has the parameters of the last
        epoch.

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
        If a file cannot be written; the last checkpoint remains. If another program has opened a
        file so that it cannot be replaced, such as a virus scanner on Windows, training continues
        with a RuntimeWarning, and the next checkpoint tries again. If this fails at the end too,
        the error names the files that hold the results.
    ValueError
        If `folder` already holds a run and `resume` is false, or holds a different run, or another
        process trains there, or the model or the sampler reject their input. If the first step
        fails, the files of the run are removed.

    Notes
    -----
    Equal bits require the same machine and the same number of BLAS threads. During training a file
    ``.lock`` locks the folder against other processes. The file remains afterwards, and is
    harmless. On network file systems the lock excludes other machines only if the file system
    supports that.

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
    # check this before locking, because `locked` makes a missing folder
    if resume:
        require_run(folder)
    with locked(folder):
        if not resume:
            require_free(folder)
        return train_in_locked_folder(Path(folder), task, settings, schedule, resume, progress)


def train_in_locked_folder(
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
    # a run with a function as its schedule can be resumed only with a function
    if schedule is not None:
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
            # write an initial checkpoint, so that a run killed in its first epoch can be resumed
            files.save(task, optimizer, error_context.progress)
            files.write_pending_files()

    callbacks: list[Callback] = [Validate(error_context, bool(show)), files]
    if show:
        callbacks.insert(0, StepProgressBars())
    if settings.patience is not None:
        callbacks.append(EarlyStop(settings.patience))
    if callable(show):
        callbacks.append(ReportEpochs(show, files))

    progress = error_context.progress
    try:
        remove_lines_after_step(files.log, progress.step)
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
        files.remove_files_after_error(remove_run=progress.step == 0 and not resume)
        raise

    files.write_pending_files()
    return progress


def require_free(folder: str | Path) -> None:
    """Raise ValueError if a folder already holds files of a run.

    Parameters
    ----------
    folder : str or Path
        Folder for a new run.

    Raises
    ------
    ValueError
        If the folder holds a checkpoint or a log.
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
        If the folder has no checkpoint.
    """
    if not Path(folder, CHECKPOINT).exists():
        raise FileNotFoundError(
            f"nothing to resume: no {CHECKPOINT} in {str(folder)!r}; correct the folder, or "
            "train without resuming."
        )


def load_parameters(path: str | Path, task: Task) -> None:
    """Copy the parameters of a checkpoint, such as those of the best epoch, into a task.

    Parameters
    ----------
    path : str or Path
        A checkpoint of `train`.
    task : Task
        A task with the same settings and data as the trained one. Its parameters are overwritten.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If its arrays would not fit.
    ValueError
        If the file is damaged, or is of another task. The parameters are then unchanged.
    """
    with open_checkpoint(path) as (config, _, arrays):
        require_config(path, config.get("task", {}), task.config())
        copy_arrays(path, array_group("parameters", arrays), task.parameters)


class RunFiles(Callback):
    """Writes the files of a run: the last checkpoint, the best checkpoint, and the log.

    A file that another program has opened may not be replaceable. Its new content is then pending,
    and is written with the next checkpoint or line.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    config : dict
        Settings that must be equal when the run is resumed.
    checkpoint_every : int or None
        Steps between checkpoints within an epoch. There is always one at the end of an epoch.
    log_every : int
        Steps between lines of the log within an epoch.
    error_context : callable
        Returns a context that adds the step to error messages, used while a checkpoint is made.
    """

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        checkpoint_every: int | None,
        log_every: int,
        error_context: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.folder = folder
        self.log = folder / LOG
        self.config = config
        self.error_context = error_context
        self.checkpoint_every = checkpoint_every
        self.log_every = log_every

        self.every = (log_every, checkpoint_every or log_every)
        # paths of finished checkpoints that still have temporary names, by their final names
        self.pending_drafts: dict[str, Path] = {}
        self.pending_lines: list[dict[str, Any]] = []  # lines that are not yet in the log
        self.last_line: dict[str, Any] = {}

    def after_steps(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Write a line of the log and a checkpoint, each if its period has passed."""
        # `end_epoch` writes the last line of an epoch, with the validation metrics
        if progress.index == task.num_steps:
            return

        if progress.index % self.log_every == 0:
            self.write_line(optimizer, progress)
        if self.checkpoint_every is not None and progress.index % self.checkpoint_every == 0:
            self.save(task, optimizer, progress)

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Write the last line of an epoch to the log, before the checkpoint of the epoch.

        If the process dies before the checkpoint, resuming removes all lines after the last
        checkpoint, and repeats their steps.
        """
        self.write_line(optimizer, progress)

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Write the checkpoint; if this epoch is the best so far, also write it as ``best.npz``."""
        self.save(task, optimizer, progress, best=progress.best_epoch == progress.epoch)

    def write_line(self, optimizer: Any, progress: Progress) -> None:
        """Write a line with the loss, the metrics and the times to the log."""
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
        self.pending_lines.append(line)
        try:
            self.append_pending_lines()
        except PermissionError as error:
            _warn_file_in_use(error, "the next line brings this one with it")

    def append_pending_lines(self) -> None:
        """Append the pending lines to the log; a line that cannot be written remains pending."""
        while self.pending_lines:
            append_line(self.log, self.pending_lines[0])
            del self.pending_lines[0]

    def save(self, task: Task, optimizer: Any, progress: Progress, *, best: bool = False) -> None:
        """Write a checkpoint; if `best`, write it to ``best.npz`` first."""
        with self.error_context():
            # for a sharded layer, this copies the class vectors from the workers, once
            parameters = {name: np.asarray(array) for name, array in task.parameters.items()}
            # never write NaN: the previous checkpoint is needed to recover from divergence
            reason = describe_non_finite(parameters)
            if reason is not None:
                raise FloatingPointError(reason)

            # Sums of a sampler that are updated in each step drift in their last bits. They are
            # rebuilt when a checkpoint is written and when it is read, so that a resumed run
            # continues with the same bits.
            task.refresh()
            examples = task.examples()

        groups = {
            "parameters": parameters,
            "optimizer": optimizer.state(),
            "state": task.state(),
            "examples": examples,
        }
        checkpoint = Checkpoint(self.config, progress.stored(), with_prefixes(groups, "/"))

        error = None
        for name in (BEST, CHECKPOINT) if best else (CHECKPOINT,):
            self.discard_drafts([name])  # a pending one is older than this checkpoint
            self.pending_drafts[name] = write_draft(self.folder / name, checkpoint)
            error = self.move_drafts_into_place()

        if error is not None:
            _warn_file_in_use(error, "training goes on, and the next checkpoint tries again")

    def discard_drafts(self, names: Iterable[str]) -> None:
        """Remove the pending checkpoints that would replace the files `names`."""
        for name in names:
            if name in self.pending_drafts:
                discard_draft(self.pending_drafts.pop(name))

    def move_drafts_into_place(self) -> FileInUse | None:
        """Rename pending checkpoints from their temporary names to their final names.

        If another program holds a file, its error is returned, and the remaining checkpoints stay
        pending.
        """
        # The best checkpoint is renamed first. If the process dies before the other is renamed, the
        # resumed run repeats the epoch, and writes the same best checkpoint again.
        for name in (BEST, CHECKPOINT):
            if name in self.pending_drafts:
                try:
                    with explain_write_errors(self.folder / name):
                        move_into_place(self.pending_drafts[name], self.folder / name)
                except FileInUse as error:
                    return error
                del self.pending_drafts[name]
        return None

    def write_pending_files(self) -> None:
        """Write the pending checkpoints and lines of the log.

        Raises OSError if another program still holds a file.
        """
        error = self.move_drafts_into_place()
        if error is not None:
            remaining = ", ".join(
                f"{str(draft)!r} to {name!r}" for name, draft in self.pending_drafts.items()
            )
            raise PermissionError(
                f"{str(error.path)!r} cannot be replaced: {error.reason}; end the program that "
                f"holds it, and rename {remaining}, which hold what this run has come to."
            ) from error
        self.append_pending_lines()

    def load(self, task: Task, optimizer: Any) -> Progress:
        """Restore task and optimizer from the checkpoint, and return its progress.

        If the checkpoint is of another run or damaged, this raises an error before it changes the
        parameters.
        """
        path = self.folder / CHECKPOINT
        with open_checkpoint(path) as (config, values, arrays):
            require_config(path, config, self.config)
            progress = _progress_from_checkpoint(values, task)
            optimizer.load_state(array_group("optimizer", arrays))
            task.load_state(array_group("state", arrays))
            copy_arrays(path, array_group("parameters", arrays), task.parameters)
            task.refresh()
        return progress

    def remove_files_after_error(self, *, remove_run: bool) -> None:
        """Remove the pending checkpoints after an error.

        If `remove_run`, the file ``checkpoint.npz`` and the log are removed too.
        """
        self.discard_drafts([*self.pending_drafts])  # the last checkpoint remains
        if remove_run:  # `require_free` would reject the folder in the next attempt
            for file in (self.folder / CHECKPOINT, self.log):
                with suppress(OSError):  # the caller raises the first error
                    retry_while_in_use(partial(file.unlink, missing_ok=True))


class Validate(Callback):
    """Computes the validation metrics of a task at the end of each epoch.

    Parameters
    ----------
    error_context : callable
        Returns a context that adds the step to error messages.
    progress : bool
        Whether to show on stderr that validation is running.
    """

    def __init__(
        self, error_context: Callable[[], AbstractContextManager[None]], progress: bool
    ) -> None:
        self._error_context = error_context
        self._progress = progress

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Compute and record the metrics; raise FloatingPointError if one is not finite."""
        shown_phase = progress_phase(self._progress, f"epoch {progress.epoch + 1}, validation")
        with shown_phase, self._error_context():
            metrics = task.validate()
            for name, value in metrics.items():
                require_finite(f"validation {name}", value)
        progress.record_validation(metrics)


class StepProgressBars(Callback):
    """Shows a progress bar of the steps of each epoch on stderr."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def begin_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Show a new bar for the epoch."""
        bar = progress_bar(
            True,
            desc=f"epoch {progress.epoch + 1}",
            initial=progress.index,
            total=task.num_steps,
            unit="step",
        )
        self._bar = self._stack.enter_context(bar)
        self._shown = progress.index

    def after_steps(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Update the number of steps and the mean loss in the bar."""
        self._bar.update(progress.index - self._shown)
        self._bar.set_postfix(loss=f"{progress.mean_loss:.3f}", refresh=False)
        self._shown = progress.index

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Remove the bar."""
        self._stack.close()


class ReportEpochs(Callback):
    """Calls a function with the last log line of each epoch, after its checkpoint."""

    def __init__(self, function: Callable[[dict[str, Any]], object], files: RunFiles) -> None:
        self._function = function
        self._files = files

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Call the function with the last log line of the epoch."""
        self._function(self._files.last_line)


class ErrorContext:
    """Makes contexts in which errors name the epoch and the step, and overflow raises an error."""

    def __init__(self, task: Task, progress: Progress) -> None:
        self.task = task
        self.progress = progress

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Return a context that converts the errors of its body.

        FloatingPointError, and ValueError if a parameter is not finite, become a FloatingPointError
        that says that training has diverged. Any other ValueError gets the epoch and the step in
        its message. A SystemError that a compiled function raises at Ctrl-C becomes
        KeyboardInterrupt.
        """
        epoch = self.progress.epoch + 1
        index = self.progress.index
        where = f"epoch {epoch}, after {index} of {self.task.num_steps} steps"

        try:
            with np.errstate(over="raise", invalid="raise"):
                yield
        except (FloatingPointError, ValueError) as error:
            # a model or a sampler may reject its input because training has diverged
            diverged = isinstance(error, FloatingPointError)
            reason = str(error) if diverged else describe_non_finite(self.task.parameters)
            if reason is None:
                raise ValueError(f"{where}: {error}") from error
            raise FloatingPointError(
                f"{where}: training has diverged: {reason.rstrip('.')}. Train anew in another "
                "folder with a lower learning rate."
            ) from error
        except SystemError as error:  # a compiled function may raise this at Ctrl-C
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise


def describe_non_finite(parameters: Arrays) -> str | None:
    """Return a message that names the first parameter with NaN or infinity, or None."""
    for name, array in parameters.items():
        if not np.isfinite(array).all():
            return f"the parameter {name!r} is nan"
    return None


def _progress_from_checkpoint(values: dict[str, Any], task: Task) -> Progress:
    """Return the progress from `values` of a checkpoint; older versions stored other fields."""
    if "examples" not in values:  # older versions stored a sum of mean losses of steps
        examples = task.num_examples
        values = {
            **values,
            "loss_sum": values["loss_sum"] * examples,
            "examples": values["index"] * examples,
        }
    return Progress(**values)


def _warn_file_in_use(error: OSError, consequence: str) -> None:
    """Issue a RuntimeWarning that states an error in writing a file, and its consequence."""
    warnings.warn(f"{str(error).rstrip('.')}; {consequence}.", RuntimeWarning, stacklevel=2)


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Read the log of a run.

    Parameters
    ----------
    path : str or Path
        File ``log.jsonl`` of a run.

    Returns
    -------
    list of dict
        A record for each complete line. ``epoch`` is counted from 1; ``step`` is the number of
        steps since the run began, and ``seconds`` the time spent in them. ``train_loss`` and
        ``examples_per_second`` are means over the current epoch so far. ``learning_rate`` is the
        rate of the last step. The last record of an epoch also has the validation metrics, under
        names that begin with ``validation_``.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a line is damaged; the error has its number.
    """
    try:
        # text after the last newline is an incomplete line
        *lines, _ = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        raise file_not_found_error(path) from None

    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = read_json(line)
            # programs that read the log expect numbers only
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
    """Append a record to a log as a line of JSON.

    The line is in the file when this returns, even if the process is killed afterwards.
    """
    # retry, because another program may hold the log for a moment
    with (
        explain_write_errors(path),
        retry_while_in_use(lambda: open(path, "a", encoding="utf-8", newline="\n")) as stream,
    ):
        stream.write(json.dumps(record, allow_nan=False) + "\n")


def remove_lines_after_step(path: Path, step: int) -> None:
    """Remove all lines of steps after `step` from a log; make an empty log if there is none."""
    # a resumed run repeats these steps, and writes their lines again
    lines = read_log(path) if path.exists() else []
    kept_lines = [line for line in lines if line["step"] <= step]
    with explain_write_errors(path):
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept_lines))
