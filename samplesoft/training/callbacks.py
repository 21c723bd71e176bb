"""Rounds over data in memory: the average of the parameters of all of them, and the best one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from samplesoft._jit import chunks
from samplesoft._progress import progress_bar, progress_line
from samplesoft.training.checkpoint import Arrays
from samplesoft.training.linear_task import DENSE

_NUMBERS = 1 << 16  # at a time, which stay in the cache
_LATE = 3.0  # the t-th round has a weight about proportional to t to this power


def train_rounds(
    model: Any,
    train: Callable[[int], float],
    score: Callable[[int], float | None],
    after: Callable[[int], None] = lambda number: None,
    *,
    most: int,
    average: bool,
    patience: int | None,
    tolerance: float = 0.0,
    score_name: str,
    step_by_step: str | None = None,
    verbose: bool,
) -> tuple[list[float], list[float]]:
    """Train a `LinearSoftmax` for some rounds; return the loss and the score of each.

    `train` goes over the data once and returns the mean loss. With `average` the model is the
    average over the rounds, where `score` looks at it and in the end. `score` returns None where
    nothing is to be scored; `after` may train further. With `patience`, stop after so many
    rounds without a rise of the score by more than `tolerance`, and go back to the best. Rounds
    are counted from 1. `step_by_step` is the reason why steps are taken one by one, to be shown.
    """
    if step_by_step not in (None, DENSE):  # which costs time
        progress_line(verbose, f"steps one by one: {step_by_step}")
    model.own_parameters()
    parameters = model.parameters
    mean = Average(parameters) if average else None
    kept = parameters if mean is None else mean.parameters
    best, losses, scores = Best(kept), [], []
    with progress_bar(verbose, each=True, total=most, unit="round", desc="fit") as bar:
        for number in range(1, most + 1):
            losses.append(train(number))
            figures = {"loss": f"{losses[-1]:.4f}"}
            if mean is not None:
                mean.add(parameters)
            with mean.in_place_of(parameters) if mean is not None else nullcontext():
                value = score(number)
            after(number)
            if value is not None:
                scores.append(value)
                figures[score_name] = f"{value:.4f}"
                if patience is not None:
                    best.add(value, tolerance)
            bar.set_postfix(refresh=False, **figures)
            bar.update()
            if patience is not None and best.since >= patience:
                break
    best.restore()
    write(kept, parameters)
    if mean is not None or best.scores:  # class vectors have changed, and no step follows
        model.softmax.refresh()
    return losses, scores


class Average:
    """Averages over rounds of the parameters of a model, late rounds weighing more.

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
        self._rounds = 0

    def add(self, parameters: Arrays) -> None:
        """Let the parameters after another round count."""
        self._rounds += 1
        # section 4 of the paper with eta = 3: the first share is 1, so that the start has no weight
        share = (_LATE + 1.0) / (_LATE + self._rounds)
        for name, array in self.parameters.items():
            mean, new = array.reshape(-1), parameters[name].reshape(-1)
            # in place and in pieces, without an array of the size of the parameters between
            for part in chunks(len(mean), _NUMBERS):
                mean[part] += mean.dtype.type(share) * (new[part] - mean[part])

    @contextmanager
    def in_place_of(self, parameters: Arrays) -> Iterator[None]:
        """Let the parameters of a model be the averages for a while."""
        before = copied(parameters)
        write(self.parameters, parameters)
        try:
            yield
        finally:
            write(before, parameters)


class Best:
    """The parameters of the last round with the greatest score, and the rounds without a rise."""

    def __init__(self, parameters: Arrays) -> None:
        self.scores: list[float] = []
        self.since = 0
        self._parameters = self._kept = parameters

    def add(self, score: float, tolerance: float = 0.0) -> None:
        """Keep the parameters as they are now, if no score so far is greater.

        Of few examples many rounds have the same score, and late ones have learned more. A rise by
        less than the tolerance does not count as one.
        """
        greatest = max(self.scores, default=-np.inf)
        self.since = 0 if score > greatest + tolerance else self.since + 1
        # copied only when it may be needed, as the parameters go on to change
        if score >= greatest:
            self._kept = copied(self._parameters)
        self.scores.append(score)

    def restore(self) -> None:
        """Go back to the best, if there are scores."""
        write(self._kept, self._parameters)


def copied(parameters: Arrays) -> Arrays:
    """Return a copy of each array."""
    return {name: array.copy() for name, array in parameters.items()}


def write(values: Arrays, parameters: Arrays) -> None:
    """Write values into the arrays of the same names."""
    for name, array in parameters.items():
        array[...] = values[name]
