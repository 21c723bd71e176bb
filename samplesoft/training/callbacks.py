"""Callbacks of `samplesoft.training.loop.fit` that need no files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from samplesoft._jit import chunks
from samplesoft._progress import progress_bar
from samplesoft.training.checkpoint import Arrays
from samplesoft.training.loop import Callback, Progress
from samplesoft.training.task import Task

_NUMBERS = 1 << 16  # at a time, which stay in the cache
_LATE = 3.0  # the t-th epoch has a weight about proportional to t to this power


class Refresh(Callback):
    """Rebuilds the sampler at the end of each epoch, for the class vectors have moved."""

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Rebuild it."""
        task.refresh()


class Average(Callback):
    """The average of the parameters over the epochs, late ones weighing more.

    It stands for the parameters while a model is validated, and in the end.

    Parameters
    ----------
    parameters : dict of str to ndarray
        Of the model.

    Attributes
    ----------
    parameters : dict of str to ndarray
        The averages.

    References
    ----------
    O. Shamir and T. Zhang, "Stochastic gradient descent for non-smooth optimization", ICML 2013,
    section 4: polynomial-decay averaging.
    """

    def __init__(self, parameters: Arrays) -> None:
        self.parameters = copied(parameters)
        self._epochs = 0

    def add(self, parameters: Arrays) -> None:
        """Let the parameters after another epoch count."""
        self._epochs += 1
        # section 4 of the paper with eta = 3: the first share is 1, so that the start has no weight
        share = (_LATE + 1.0) / (_LATE + self._epochs)
        for name, array in self.parameters.items():
            mean, new = array.reshape(-1), parameters[name].reshape(-1)
            # in place and in pieces, without an array of the size of the parameters between
            for part in chunks(len(mean), _NUMBERS):
                mean[part] += mean.dtype.type(share) * (new[part] - mean[part])

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Add the parameters."""
        self.add(task.parameters)

    def end(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Let the parameters be the averages for good."""
        write(self.parameters, task.parameters)
        task.refresh()  # class vectors have changed, and no step follows

    @contextmanager
    def in_place_of(self, parameters: Arrays) -> Iterator[None]:
        """Let the parameters of a model be the averages for a while."""
        before = copied(parameters)
        write(self.parameters, parameters)
        try:
            yield
        finally:
            write(before, parameters)


class Score(Callback):
    """Scores the model at the end of each epoch; the greater the score, the better.

    Parameters
    ----------
    score : callable
        Returns the score of the model as its parameters are.
    tolerance : float
        A rise by no more than this does not count as one.
    average : Average, optional
        What stands for the parameters meanwhile.

    Attributes
    ----------
    scores : list of float
        Those of the epochs.
    """

    def __init__(
        self,
        score: Callable[[], float],
        *,
        tolerance: float = 0.0,
        average: Average | None = None,
    ) -> None:
        self._score, self._tolerance, self._average = score, tolerance, average
        self.scores: list[float] = []

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Score the model."""
        with averaged(self._average, task.parameters):
            self.scores.append(self._score())
        progress.validated({"loss": -self.scores[-1]}, self._tolerance)


class KeepBest(Callback):
    """Goes back to the parameters of the best epoch in the end, the last one of several.

    Of few examples many epochs have the same score, and late ones have learned more.

    Parameters
    ----------
    average : Average, optional
        Whose averages are kept in place of the parameters.
    """

    def __init__(self, average: Average | None = None) -> None:
        self._average = average
        self._best: Arrays | None = None

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Keep the parameters as they are now, if no epoch so far was better."""
        if progress.metrics["loss"] == progress.best_loss:
            # copied, as the parameters go on to change
            self._best = copied(self._kept(task))

    def end(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Go back."""
        if self._best is not None:
            write(self._best, self._kept(task))
            if self._average is None:  # else it does so too
                task.refresh()

    def _kept(self, task: Task) -> Arrays:
        return task.parameters if self._average is None else self._average.parameters


class EarlyStop(Callback):
    """Stops after some epochs without a better validation loss.

    Parameters
    ----------
    patience : int
        How many.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience

    def begin(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Stop where training had come so far already."""
        self.after_epoch(task, optimizer, progress)

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Stop if no epoch has been better for long."""
        if progress.epoch - (progress.best_epoch or 0) >= self._patience:
            progress.stop = True


class EpochBar(Callback):
    """Shows progress on stderr, a bar or a line for each epoch.

    Parameters
    ----------
    epochs : int
        At most so many.
    score_name : str
        Name of the score.
    score : Score, optional
        Whose last score is shown.
    """

    def __init__(self, epochs: int, score_name: str, score: Score | None) -> None:
        self._epochs, self._name, self._score = epochs, score_name, score

    def __enter__(self) -> EpochBar:
        self._bar = progress_bar(True, each=True, total=self._epochs, unit="epoch", desc="fit")
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Show the loss and the score."""
        figures = {"loss": f"{progress.mean_loss:.4f}"}
        if self._score is not None:
            figures[self._name] = f"{self._score.scores[-1]:.4f}"
        self._bar.set_postfix(refresh=False, **figures)
        self._bar.update()


def averaged(average: Average | None, parameters: Arrays) -> AbstractContextManager[None]:
    """Return a context in which parameters are the averages, if there are some."""
    return nullcontext() if average is None else average.in_place_of(parameters)


def copied(parameters: Arrays) -> Arrays:
    """Return a copy of each array."""
    return {name: array.copy() for name, array in parameters.items()}


def write(values: Arrays, parameters: Arrays) -> None:
    """Write values into the arrays of the same names."""
    for name, array in parameters.items():
        array[...] = values[name]
