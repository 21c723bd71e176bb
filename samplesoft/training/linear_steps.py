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

    Parameters
    ----------
    num_inputs, num_classes : int
        Columns v of an input, and classes n.
    settings : LinearSoftmaxSettings
        The model.
    counts : array_like, shape (n,)
        How often each class occurs, for samplers that draw by that.
    seed : int
        Of parameters, order, dropout, draws and held-out examples; below ``2**64``.
    dtype : dtype
        float32 or float64.

    Attributes
    ----------
    model : LinearSoftmax
        With random parameters.

    Examples
    --------
    >>> settings = LinearSoftmaxSettings(sampler="uniform", num_sampled=2)
    >>> steps = LinearSteps(3, 4, settings, np.ones(4), seed=0)
    >>> steps.order(np.arange(5), epoch=0)
    array([1, 2, 0, 3, 4])
    >>> loss, gradients = steps.gradients(0, np.eye(3, dtype=np.float32), [0, 1, 3])
    >>> sorted(gradients)
    ['embedding.intercept', 'embedding.weights', 'softmax.class_embeddings']
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
        """Go forward and back over a batch, as `LinearSoftmax.step`, with the seed of a step.

        Parameters
        ----------
        step : int
            Steps taken before, which is all that the randomness of this one depends on.
        x : ndarray or scipy.sparse CSR matrix, shape (B, v)
            Inputs.
        labels : array_like of int, shape (B,), or scipy sparse matrix, shape (B, n)
            Labels.
        weights : array_like, shape (B,), optional
            Weights of the examples.

        Returns
        -------
        loss : float
            Mean over the examples, in nats.
        gradients : dict of str to ndarray or SparseRows
            By the names of the model's parameters.
        """
        return self.model.step(x, labels, weights=weights, rng=sub_seed(self._seed, _STEP, step))


def held_out_order(rows: IntArray, seed: int | np.uint64) -> IntArray:
    """Return examples (N,) in the order in which they are held out, for the seed of the steps."""
    return np.random.default_rng(sub_seed(seed, _SPLIT)).permutation(rows)
