"""Parameters of all rounds in one average, and the best of these averages."""

from __future__ import annotations

import numpy as np

from samplesoft.losses.vectors import unit_rows
from samplesoft.models.linear import Linear
from samplesoft.samplers.base import Rows
from samplesoft.training.checkpoint import Arrays

_LATE = 3.0  # the t-th round has a weight about proportional to t to this power
_CLASSES, _EMBEDDING = "softmax.class_embeddings", "embedding."


class Average:
    """Averages over rounds of the parameters of a linear softmax model, late rounds weighing more.

    Attributes
    ----------
    parameters : dict of str to ndarray
        The averages.
    embedding : Linear
        The embedding of histories, with the averages as its parameters.

    References
    ----------
    O. Shamir and T. Zhang, "Stochastic gradient descent for non-smooth optimization", ICML 2013,
    section 4: polynomial-decay averaging.
    """

    def __init__(self, parameters: Arrays) -> None:
        self.parameters = {name: array.copy() for name, array in parameters.items()}
        self.embedding = Linear(*parameters[_CLASSES].shape)
        for name, array in self.embedding.parameters.items():
            array[...] = parameters[_EMBEDDING + name]
            self.parameters[_EMBEDDING + name] = array
        self._rounds = 0

    def add(self, parameters: Arrays) -> None:
        """Let the parameters after another round count."""
        self._rounds += 1
        share = np.float32((_LATE + 1.0) / (_LATE + self._rounds))
        for name, array in self.parameters.items():
            array += share * (parameters[name] - array)

    def class_vectors(self) -> Rows:
        """Return class vectors (n, d) of norm 1."""
        return unit_rows("class_embeddings", self.parameters[_CLASSES].copy())[0]


class Best:
    """The average of the round with the greatest score, and the rounds since then."""

    def __init__(self, average: Average) -> None:
        self.scores: list[float] = []
        self.since = 0
        self._parameters = self._kept = average.parameters

    def add(self, score: float) -> None:
        """Keep the average as it is now, if the score is the greatest so far."""
        self.since = 0 if score > max(self.scores, default=-np.inf) else self.since + 1
        self.scores.append(score)
        if self.since == 0:
            self._kept = {name: array.copy() for name, array in self._parameters.items()}

    def restore(self) -> None:
        """Go back to the best, if there are scores."""
        for name, array in self._parameters.items():
            array[...] = self._kept[name]
