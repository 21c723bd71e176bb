"""Callbacks for `samplesoft.training.loop.fit`; those that write files are in `run_folder`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from samplesoft._jit import chunks
from samplesoft._progress import progress_bar
from samplesoft.training.checkpoint import Arrays
from samplesoft.training.loop import Callback, Progress
from samplesoft.training.task import Task

# values that are averaged at a time, few enough for the processor's cache
_CHUNK_VALUES = 1 << 16
# In an average, the weight of epoch t is about proportional to t**3.
_DECAY_EXPONENT = 3.0


class Refresh(Callback):
    """Rebuilds the sampler at the end of each epoch, from the current class vectors."""

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Rebuild the sampler."""
        task.refresh()


class Average(Callback):
    """Averages the parameters over the epochs, with larger weights for later epochs.

    The average replaces the parameters at the end of training, and within `in_place_of`.

    Parameters
    ----------
    parameters : dict of str to ndarray
        Parameters of the model before training.

    Attributes
    ----------
    parameters : dict of str to ndarray
        The average of each parameter.

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
        # Section 4 of the paper with eta = 3. The weight of the first epoch is 1, so that its
        # parameters replace the initial values.
        weight = (_DECAY_EXPONENT + 1.0) / (_DECAY_EXPONENT + self._epochs)
        for name, array in self.parameters.items():
            averages = array.reshape(-1)
            epoch_values = parameters[name].reshape(-1)
            # in chunks, because a temporary array as large as the parameter takes too much memory
            for chunk in chunks(len(averages), _CHUNK_VALUES):
                averages[chunk] += averages.dtype.type(weight) * (
                    epoch_values[chunk] - averages[chunk]
                )

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Add the parameters of the epoch to the average."""
        self.add(task.parameters)

    def end(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Replace the parameters of the task by their averages."""
        copy_values(self.parameters, task.parameters)
        task.refresh()  # rebuild the sampler for the averaged class vectors

    @contextmanager
    def in_place_of(self, parameters: Arrays) -> Iterator[None]:
        """Return a context in which `parameters` hold the averages; it restores them at its end."""
        original = copied(parameters)
        copy_values(self.parameters, parameters)
        try:
            yield
        finally:
            copy_values(original, parameters)


class Score(Callback):
    """Scores the model at the end of each epoch, and records minus the score as validation loss.

    Parameters
    ----------
    score : callable
        Returns the score of the model with its current parameters; higher is better.
    tolerance : float
        An epoch is an improvement if its score exceeds the best one by more than this.
    average : Average, optional
        Averages that replace the parameters while the model is scored.

    Attributes
    ----------
    scores : list of float
        Score of each epoch.
    """

    def __init__(
        self,
        score: Callable[[], float],
        *,
        tolerance: float = 0.0,
        average: Average | None = None,
    ) -> None:
        self._score = score
        self._tolerance = tolerance
        self._average = average
        self.scores: list[float] = []

    def end_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Score the model, and record minus the score as validation loss."""
        with with_averages(self._average, task.parameters):
            self.scores.append(self._score())
        progress.record_validation({"loss": -self.scores[-1]}, self._tolerance)


class KeepBest(Callback):
    """Restores the parameters of the best epoch at the end of training.

    Of epochs with equal losses it keeps the last, which was trained longest. With few validation
    examples, equal losses are frequent.

    Parameters
    ----------
    average : Average, optional
        If given, its averages are kept and restored, not the parameters.
    """

    def __init__(self, average: Average | None = None) -> None:
        self._average = average
        self._best: Arrays | None = None

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Keep a copy of the parameters, or of their averages, if no epoch so far was better."""
        if progress.metrics["loss"] == progress.best_loss:
            # a copy, because training continues to update the parameters in place
            self._best = copied(self._tracked_parameters(task))

    def end(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Restore the parameters, or their averages, of the best epoch."""
        if self._best is not None:
            copy_values(self._best, self._tracked_parameters(task))
            if self._average is None:  # with an average, `Average.end` rebuilds the sampler
                task.refresh()

    def _tracked_parameters(self, task: Task) -> Arrays:
        """Return the arrays to keep: the averages if `average` was given, else the parameters."""
        return task.parameters if self._average is None else self._average.parameters


class EarlyStop(Callback):
    """Ends training after a number of epochs without an improvement of the validation loss.

    Parameters
    ----------
    patience : int
        The number of epochs.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience

    def begin(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """End at once if a resumed run has already had `patience` epochs without improvement."""
        self.after_epoch(task, optimizer, progress)

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """End training if the last `patience` epochs brought no improvement."""
        if progress.epoch - (progress.best_epoch or 0) >= self._patience:
            progress.stop = True


class EpochBar(Callback):
    """Shows the completed epochs on stderr, as a bar or as a line for each epoch.

    Parameters
    ----------
    epochs : int or None
        Largest number of epochs; None if it is not known.
    score_name : str
        Name under which the score is shown.
    score : Score or None
        Callback whose last score is shown; None shows the loss only.
    description : str
        Name of the training.
    held_out_losses : list of float, optional
        Losses on held-out examples, of which the last is shown; another callback adds to them.
    """

    def __init__(
        self,
        epochs: int | None,
        score_name: str,
        score: Score | None,
        *,
        description: str = "fit",
        held_out_losses: list[float] | None = None,
    ) -> None:
        self._held_out_losses = held_out_losses
        self._epochs = epochs
        self._name = score_name
        self._score = score
        self._description = description

    def __enter__(self) -> EpochBar:
        self._bar = progress_bar(
            True, each=True, total=self._epochs, unit="epoch", desc=self._description
        )
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def after_epoch(self, task: Task, optimizer: Any, progress: Progress) -> None:
        """Show the mean training loss and the score of the epoch."""
        figures = {"loss": f"{progress.mean_loss:.4f}"}
        if self._held_out_losses and len(self._held_out_losses) == progress.epoch:
            figures["held_out_loss"] = f"{self._held_out_losses[-1]:.4f}"
        if self._score is not None:
            figures[self._name] = f"{self._score.scores[-1]:.4f}"
        self._bar.set_postfix(refresh=False, **figures)
        self._bar.update()


def with_averages(average: Average | None, parameters: Arrays) -> AbstractContextManager[None]:
    """Return a context in which the averages replace the parameters, if there is an `average`."""
    return nullcontext() if average is None else average.in_place_of(parameters)


def copied(parameters: Arrays) -> Arrays:
    """Return a copy of each array."""
    return {name: array.copy() for name, array in parameters.items()}


def copy_values(values: Arrays, parameters: Arrays) -> None:
    """Copy each array in `values` into the array of the same name in `parameters`."""
    for name, array in parameters.items():
        array[...] = values[name]
