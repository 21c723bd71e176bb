"""Epochs of a linear softmax model in memory: an optimizer takes its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, IntArray
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.models.optimizers import Optimizer
from samplesoft.training.linear_steps import LinearSteps


class LinearEpochs(LinearSteps):
    """Steps of a linear softmax model, with the optimizer that takes them, and their number.

    The optimizer is None for a model that cannot be trained further.
    """

    def __init__(
        self,
        num_inputs: int,
        num_classes: int,
        settings: LinearSoftmaxSettings,
        counts: ArrayLike,
        seed: int | np.uint64,
        optimizer: Optimizer | None,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__(num_inputs, num_classes, settings, counts, seed, dtype)
        self.optimizer = optimizer
        self.num_steps = self.num_epochs = 0

    def step(self, x: Any, labels: Any, weights: FloatArray, learning_rate: float) -> float:
        """Take a step on a batch; return its mean loss."""
        assert self.optimizer is not None
        self.optimizer.learning_rate = learning_rate
        loss, gradients = self.gradients(self.num_steps, x, labels, weights)
        self.optimizer.step(self.model.parameters, gradients)
        self.after_step(gradients)
        self.num_steps += 1
        return loss

    def epoch(
        self,
        x: Any,
        labels: Any,
        weights: FloatArray,
        rows: IntArray,
        batch_size: int,
        learning_rate: float,
    ) -> float:
        """Go over some rows once; return the mean loss."""
        total = 0.0
        for batch in self.next_batches(rows, batch_size):
            loss = self.step(x[batch], labels[batch], weights[batch], learning_rate)
            total += loss * len(batch)
        self.model.softmax.refresh()  # classes have moved, and their sampler may be stale
        return total / len(rows)

    def next_batches(self, rows: IntArray, batch_size: int) -> list[IntArray]:
        """Return the rows of each step of the next epoch, which counts as begun."""
        self.num_epochs += 1
        return self.batches(rows, self.num_epochs - 1, batch_size)
