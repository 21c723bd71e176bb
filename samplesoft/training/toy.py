"""The toy task of CNTK's tutorial 207: recover a class from a random projection of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from samplesoft._random import as_key, mix64
from samplesoft._validation import FloatArray, IntArray, as_choice, as_count
from samplesoft.losses.registry import make_loss
from samplesoft.models.module import uniform_weights
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.samplers.static import WeightedSampler
from samplesoft.training.checkpoint import Arrays
from samplesoft.training.examples import softmax_config
from samplesoft.training.task import Gradient

LEARNING_RATE = 0.03  # for the sum of the losses of a batch
MOMENTUM = 0.8187307530779818  # exp(-1 / 5)
WEIGHTS: dict[str, Callable[[int], FloatArray]] = {
    "uniform": lambda n: np.ones(n),
    "zipf": lambda n: 1.0 / np.arange(5, n + 5, dtype=np.float64),
}
_EXAMPLES = 300  # contexts in a checkpoint
_PROJECTION, _SOFTMAX, _TEST, _STEP = map(np.uint64, range(4))  # streams of the seed


@dataclass(frozen=True)
class ToySettings:
    """The toy task; the defaults are the tutorial's.

    Parameters
    ----------
    num_classes, dim : int
        Classes n and length d of their projections.
    data, proposal : {"uniform", "zipf"}
        Distribution of the data, and of the draws; zipf is in proportion to 1 / (i + 5).
    loss : str
        A key of `samplesoft.losses.LOSSES`. The tutorial adjusts the label's score too, and keeps
        draws of it.
    num_sampled : int or None
        Distinct classes drawn for a batch; None for the full loss.
    batch_size, num_steps, test_size : int
        Examples in a step, steps between validations, examples in a validation.
    seed : int
        Of projection, parameters, data and draws.
    """

    num_classes: int = 50
    dim: int = 10
    data: str = "uniform"
    proposal: str = "uniform"
    loss: str = "sampled-candidate"
    num_sampled: int | None = 10
    batch_size: int = 100
    num_steps: int = 10
    test_size: int = 1000
    seed: int = 0


class ToyTask:
    """Tell classes apart by a fixed random projection of their one-hot vectors.

    Parameters
    ----------
    settings : ToySettings
        The task.

    Raises
    ------
    TypeError, ValueError
        If a setting is malformed.

    Notes
    -----
    CNTK's momentum has unit gain, and its learning rate of 0.03 is for one sample: it is that of
    the sum over a batch times ``1 - MOMENTUM`` for `Momentum`, whose sums have no such factor.

    References
    ----------
    .. [1] Microsoft Cognitive Toolkit, tutorial 207, "Sampled Softmax".

    Examples
    --------
    >>> loss, gradients = ToyTask(ToySettings()).step(0, 0)
    >>> sorted(gradients)
    ['softmax.biases', 'softmax.class_embeddings']
    """

    def __init__(self, settings: ToySettings) -> None:
        self.settings = settings
        self._key = as_key(as_count("seed", settings.seed, 0))
        n, d = as_count("num_classes", settings.num_classes, 2), as_count("dim", settings.dim)
        for name in ("batch_size", "num_steps", "test_size"):
            as_count(name, getattr(settings, name))
        generator = np.random.default_rng(self._seed(_PROJECTION))
        self.projection = (generator.standard_normal((n, d)) / np.sqrt(d)).astype(np.float32)
        data = WEIGHTS[as_choice("data", settings.data, WEIGHTS)](n)
        self._data = np.cumsum(data) / data.sum()
        self.test = self._labels(settings.test_size, self._seed(_TEST))
        self.softmax = self._make_softmax()
        self.parameters: Arrays = {
            f"softmax.{name}": array for name, array in self.softmax.parameters.items()
        }

    @property
    def num_steps(self) -> int:
        """Steps from one validation to the next."""
        return self.settings.num_steps

    @property
    def num_examples(self) -> int:
        """Examples in a batch."""
        return self.settings.batch_size

    def config(self) -> dict[str, Any]:
        """Return the settings."""
        return {
            "model": "toy",
            **asdict(self.settings),
            "softmax": softmax_config(self.softmax),
        }

    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Gradient]]:
        """Draw a batch, and go forward and back."""
        key = mix64(np.uint64(self._seed(_STEP)), np.uint64(epoch * self.num_steps + index))
        data_seed, draw_seed = (int(mix64(np.uint64(key), np.uint64(k))) for k in range(2))
        labels = self._labels(self.settings.batch_size, data_seed)
        loss, cache = self.softmax.forward(self.projection[labels], labels, rng=draw_seed)
        _, gradients = self.softmax.backward(cache)
        return loss / len(labels), {f"softmax.{name}": g for name, g in gradients.items()}

    def after_step(self, gradients: dict[str, Gradient]) -> None:
        """Do nothing: the sampler does not look at class vectors."""

    def refresh(self) -> None:
        """Do nothing, for the same reason."""

    def validate(self) -> dict[str, float]:
        """Return mean loss of the full softmax in nats, and perplexity, on new data."""
        found = self.softmax.evaluate(self.projection[self.test], self.test)
        return {"loss": found.loss, "perplexity": found.perplexity}

    def examples(self) -> Arrays:
        """Return some of the validation data."""
        labels = self.test[:_EXAMPLES]
        return {"h": self.projection[labels], "labels": labels}

    def state(self) -> Arrays:
        """Return nothing: batches follow from the seed and the step."""
        return {}

    def load_state(self, state: Arrays) -> None:
        """Do nothing."""

    def _seed(self, stream: np.uint64) -> int:
        return int(mix64(self._key, stream))

    def _labels(self, size: int, seed: int) -> IntArray:
        uniforms: FloatArray = np.random.default_rng(seed).random(size)
        return np.searchsorted(self._data, uniforms, side="right").astype(np.int64)

    def _make_softmax(self) -> SoftmaxLayer:
        settings = self.settings
        n, d = self.projection.shape
        glorot = float(np.sqrt(6.0 / (n + d)))
        rows = uniform_weights(
            (n, d), glorot, self.projection.dtype, np.uint64(self._seed(_SOFTMAX))
        )
        sampled = settings.loss != "full"
        loss = make_loss(settings.loss, reduction="sum")
        weights = WEIGHTS[as_choice("proposal", settings.proposal, WEIGHTS)](n)
        return SoftmaxLayer(
            rows,
            loss,
            WeightedSampler(weights, replace=False) if sampled else None,
            settings.num_sampled,
            biases=np.zeros(n),
            shared=sampled,
        )
