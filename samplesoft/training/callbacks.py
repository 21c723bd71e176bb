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

_CHUNK_VALUES = 1 << 16  # values in a chunk, which fits into the cache
_DECAY_EXPONENT = 3.0  # the weight of epoch t is about proportional to t to this power


class Refresh(Callback):
    """Rebuilds the sampler at the end of each epoch, from the current class vectors."""

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Rebuild the sampler."""
        task.refresh()


class Average(Callback):
    """The weighted average of the parameters over the epochs, with larger weights for late ones.

    It replaces the parameters during validation, and at the end of training.

    Parameters
    ----------
    parameters : dict of str to ndarray
        Parameters of the model.

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
        """Add the parameters of another epoch to the average."""
        self._epochs += 1
        # section 4 of the paper with eta = 3: the first weight is 1, so that the start has none
        weight = (_DECAY_EXPONENT + 1.0) / (_DECAY_EXPONENT + self._epochs)
        for name, array in self.parameters.items():
            mean, new = array.reshape(-1), parameters[name].reshape(-1)
            # in place and in chunks, without a temporary array of the parameter's size
            for chunk in chunks(len(mean), _CHUNK_VALUES):
                mean[chunk] += mean.dtype.type(weight) * (new[chunk] - mean[chunk])

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Add the parameters."""
        self.add(task.parameters)

    def end(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Replace the parameters by the averages."""
        write(self.parameters, task.parameters)
        task.refresh()  # class vectors have changed, and no step follows

    @contextmanager
    def in_place_of(self, parameters: Arrays) -> Iterator[None]:
        """Replace the parameters of a model by the averages within the context."""
        before = copied(parameters)
        write(self.parameters, parameters)
        try:
            yield
        finally:
            write(before, parameters)


class Score(Callback):
    """Scores the model at the end of each epoch; higher scores are better.

    Parameters
    ----------
    score : callable
        Returns the score of the model with its current parameters.
    tolerance : float
        Smallest increase that counts as an improvement.
    average : Average, optional
        Averages that replace the parameters while scoring.

    Attributes
    ----------
    scores : list of float
        Scores of the epochs.
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
    """Restores the parameters of the best epoch at the end; of equal epochs, the last.

    With few validation examples many epochs have equal scores, and late ones are trained longer.

    Parameters
    ----------
    average : Average, optional
        Averages to keep in place of the parameters.
    """

    def __init__(self, average: Average | None = None) -> None:
        self._average = average
        self._best: Arrays | None = None

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Keep a copy of the parameters if no epoch so far was better."""
        if progress.metrics["loss"] == progress.best_loss:
            # copied, because training continues to update the parameters
            self._best = copied(self._tracked_parameters(task))

    def end(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Restore the best parameters."""
        if self._best is not None:
            write(self._best, self._tracked_parameters(task))
            if self._average is None:  # `Average.end` refreshes too
                task.refresh()

    def _tracked_parameters(self, task: Task) -> Arrays:
        return task.parameters if self._average is None else self._average.parameters


class EarlyStop(Callback):
    """Stops after some epochs without a better validation loss.

    Parameters
    ----------
    patience : int
        Number of epochs without improvement.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience

    def begin(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Stop if a resumed run has exhausted its patience."""
        self.after_epoch(task, optimizer, progress)

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Stop if the last `patience` epochs brought no improvement."""
        if progress.epoch - (progress.best_epoch or 0) >= self._patience:
            progress.stop = True


class EpochBar(Callback):
    """Shows progress on stderr, as a bar or one line for each epoch.

    Parameters
    ----------
    epochs : int
        Largest number of epochs.
    score_name : str
        Name of the score.
    score : Score, optional
        Source of the score to show.
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
    """Return a context in which averages, if given, replace the parameters."""
    return nullcontext() if average is None else average.in_place_of(parameters)


def copied(parameters: Arrays) -> Arrays:
    """Return a copy of each array."""
    return {name: array.copy() for name, array in parameters.items()}


def write(values: Arrays, parameters: Arrays) -> None:
    """Copy values into the parameter arrays of the same names."""
    for name, array in parameters.items():
        array[...] = values[name]
