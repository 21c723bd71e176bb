"""Steps of a linear softmax model over examples: their order, seeds, gradients and sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks
from samplesoft._validation import IntArray
from samplesoft.models.direct_softmax import make_linear_softmax
from samplesoft.models.linear_softmax import LinearSoftmaxSettings
from samplesoft.training.task import Gradient, sub_seed

_MODEL, _ORDER, _STEP, _SPLIT, _LABELS = range(5)  # streams of the seed
_FIRST_REFRESH = 64  # steps after which, and whenever they have doubled, the sampler is made anew


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
        self._seed, self._step = seed, 0
        self.model = make_linear_softmax(
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

    def batches(self, rows: IntArray, epoch: int, batch_size: int) -> list[IntArray]:
        """Return the examples of each step of an epoch."""
        order = self.order(rows, epoch)
        return [order[part] for part in chunks(len(order), batch_size)]

    def gradients(
        self, step: int, x: Any, labels: Any, weights: ArrayLike | None = None
    ) -> tuple[float, dict[str, Gradient]]:
        """Go forward and back over a batch, as `LinearSoftmax.step`, with the seed of a step."""
        self._step = step
        return self.model.step(x, labels, weights=weights, rng=sub_seed(self._seed, _STEP, step))

    def after_step(self, gradients: Mapping[str, Gradient]) -> None:
        """Let the sampler follow the class vectors that an optimizer has just changed.

        It is made anew at times, for vectors that began at random leave the cells they were in.
        """
        self.model.after_step(gradients)
        done = self._step + 1
        if done >= _FIRST_REFRESH and done & (done - 1) == 0:
            self.model.softmax.refresh()

    def tune_inputs(self, x: Any, labels: Any) -> dict[str, Any]:
        """Return arguments of `samplesoft.tune` for inputs (N, v) and their labels.

        Labels are (N,) or, where examples have several, a CSR matrix (N, n) without empty rows; of
        each the first is taken of a random order of the classes.
        """
        model = self.model
        if not isinstance(labels, np.ndarray):
            places = np.random.default_rng(sub_seed(self._seed, _LABELS)).random(labels.nnz)
            order = np.lexsort((places, np.repeat(np.arange(x.shape[0]), np.diff(labels.indptr))))
            labels = labels.indices[order[labels.indptr[:-1]]]
        return {
            "class_embeddings": model.class_vectors(),
            "h": model.embed(x),
            "labels": labels,
            "tau": model.settings.tau,
        }


def held_out_order(rows: IntArray, seed: int | np.uint64) -> IntArray:
    """Return examples (N,) in the order in which they are held out, for the seed of the steps."""
    return np.random.default_rng(sub_seed(seed, _SPLIT)).permutation(rows)
