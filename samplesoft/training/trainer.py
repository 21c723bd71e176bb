"""Training in a folder: begin or resume, and load what was trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from samplesoft._progress import progress_phase
from samplesoft.training.checkpoint import (
    copy_arrays,
    part_of,
    read_checkpoint,
    rebuilding,
    require_config,
)
from samplesoft.training.lock import locked
from samplesoft.training.log import Log
from samplesoft.training.run import BEST, CHECKPOINT, LOG, Run
from samplesoft.training.settings import Progress, Settings
from samplesoft.training.task import Task

__all__ = ["BEST", "CHECKPOINT", "LOG", "load_parameters", "require_free", "require_run", "train"]


def train(
    task: Task,
    settings: Settings,
    folder: str | Path,
    *,
    resume: bool = False,
    progress: bool | Callable[[dict[str, Any]], object] = False,
) -> Progress:
    """Train, or resume a run that was interrupted, with the same result to the last bit.

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
        If a file cannot be written; the last checkpoint stands.
    ValueError
        If `folder` already holds a run and `resume` is false, or the run there is another, or
        another process trains there, or model or sampler refuse their input. After a first step
        that failed, the folder is free.

    Notes
    -----
    The same bits need the same machine and the same number of BLAS threads. While it trains, the
    folder has a file ``.lock``; one that a killed process has left does not matter. On network file
    systems the lock keeps other machines out where the system has locks that reach them.

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
    if resume:
        require_run(folder)
    with locked(folder):
        if not resume:
            require_free(folder)
        return train_locked(task, settings, folder, resume=resume, progress=progress)


def train_locked(
    task: Task,
    settings: Settings,
    folder: str | Path,
    *,
    resume: bool,
    progress: bool | Callable[[dict[str, Any]], object],
) -> Progress:
    """Do what `train` does, in a folder that the caller has locked and looked into."""
    path = Path(folder, CHECKPOINT)
    run = Run(task, settings, Path(folder))
    with progress_phase(bool(progress), "checkpoint"):
        if resume:
            run.load(path)
        else:
            run.save()
    try:
        run.log = Log(Path(folder, LOG), run.at.step)
        while not run.at.is_over(settings):
            run.epoch(progress)
    except Exception:
        if run.at.step == 0 and not resume:  # files would only be in the way of the next try
            path.unlink()
            Path(folder, LOG).unlink(missing_ok=True)
        raise
    return run.at


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
    checkpoint = read_checkpoint(path)
    with rebuilding(path):
        require_config(path, checkpoint.config.get("task", {}), task.config())
        copy_arrays(path, part_of(checkpoint, "parameters"), task.parameters)
