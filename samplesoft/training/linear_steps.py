"""Steps of a linear softmax model over examples: their order, their seeds and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import IntArray
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.training.task import Gradient, sub_seed

_MODEL, _ORDER, _STEP, _SPLIT = range(4)  # streams of the seed


class LinearSteps:
    """A linear softmax model, and what each of its steps takes from one seed.

    The seed, below ``2**64``, is that of parameters, order, dropout, draws and held-out examples.
    """

    def __init__(
        self,
        num_inputs: int,
        num_classes: int,
        settings: LinearSoftmaxSettings,
        counts: ArrayLike,
        seed: int | np.uint64,
        dtype: Any = np.float32,
    ) -> None:
        self._seed = seed
        self.model = LinearSoftmax(
            num_inputs,
            num_classes,
            settings,
            counts=counts,
            dtype=dtype,
            rng=sub_seed(seed, _MODEL),
        )

    def order(self, rows: IntArray, epoch: int) -> IntArray:
        """Return examples (N,) in the order in which an epoch takes them."""
        return np.random.default_rng(sub_seed(self._seed, _ORDER, epoch)).permutation(rows)

    def gradients(
        self, step: int, x: Any, labels: Any, weights: ArrayLike | None = None
    ) -> tuple[float, dict[str, Gradient]]:
        """Go forward and back over a batch, as `LinearSoftmax.step`, with the seed of a step."""
        return self.model.step(x, labels, weights=weights, rng=sub_seed(self._seed, _STEP, step))


def held_out_order(rows: IntArray, seed: int | np.uint64) -> IntArray:
    """Return examples (N,) in the order in which they are held out, for the seed of the steps."""
    return np.random.default_rng(sub_seed(seed, _SPLIT)).permutation(rows)
