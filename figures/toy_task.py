"""The toy task of CNTK's tutorial 207: recover a class from a random projection of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from samplesoft._files import with_prefixes
from samplesoft._memory import require_memory
from samplesoft._random import stream_key
from samplesoft._validation import FloatArray, IntArray, as_choice, as_count, require_instance
from samplesoft.losses.registry import LOSSES, make_loss
from samplesoft.models.linear import uniform_weights
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.samplers.static import WeightedSampler
from samplesoft.training.checkpoint import Arrays, plain
from samplesoft.training.task import NUM_EXAMPLES, Gradient, Task, derive_seed
from samplesoft.training.trained import softmax_config

LEARNING_RATE = 0.03  # for the sum of the losses of a batch
MOMENTUM = 0.8187307530779818  # exp(-1 / 5)
WEIGHTS: dict[str, Callable[[int], FloatArray]] = {
    "uniform": lambda n: np.ones(n),
    "zipf": lambda n: 1.0 / np.arange(5, n + 5, dtype=np.float64),
}
TOY_LOSSES = tuple(
    name
    for name, spec in LOSSES.items()
    if not spec.absolute
    and not spec.on_tree
    and not spec.has_log_sums
    and (not spec.draws or (spec.shares_draws and spec.distinct))
)
_PROJECTION, _SOFTMAX, _TEST, _STEP = range(4)  # streams of the seed


@dataclass(frozen=True)
class ToySettings:
    """The toy task; the defaults are the tutorial's.

    Parameters
    ----------
    num_classes, embedding_dim : int
        Classes n and length d of their projections.
    data, proposal : {"uniform", "zipf"}
        Distribution of the data, and of the draws; zipf is in proportion to 1 / (i + 5).
    loss : str
        Of `TOY_LOSSES`: those that can share a set of distinct classes. The tutorial adjusts the
        label's score too, and keeps draws of it.
    num_sampled : int or None
        Distinct classes drawn for a batch, at most all; None for the full loss.
    batch_size, num_steps, test_size : int
        Examples in a step, steps between validations, examples in a validation.
    seed : int
        Of projection, parameters, data and draws.

    Raises
    ------
    TypeError, ValueError
        If a setting is malformed.
    """

    num_classes: int = 50
    embedding_dim: int = 10
    data: str = "uniform"
    proposal: str = "uniform"
    loss: str = "sampled-candidate"
    num_sampled: int | None = 10
    batch_size: int = 100
    num_steps: int = 10
    test_size: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        n = as_count("num_classes", self.num_classes, 2)
        for name in ("embedding_dim", "batch_size", "num_steps", "test_size"):
            as_count(name, getattr(self, name))
        as_count("seed", self.seed, 0)
        as_choice("data", self.data, WEIGHTS)
        as_choice("proposal", self.proposal, WEIGHTS)
        if not LOSSES[as_choice("loss", self.loss, TOY_LOSSES)].draws:
            if self.num_sampled is not None:
                raise ValueError(
                    f"`num_sampled` must be None for loss={self.loss!r}, which draws nothing, got "
                    f"{self.num_sampled}."
                )
        elif as_count("num_sampled", self.num_sampled) > n:
            raise ValueError(
                f"`num_sampled` must be at most {n}, the number of classes, got "
                f"{self.num_sampled}; draws are distinct."
            )


class ToyTask(Task):
    """Recognise classes by a fixed random projection of their one-hot vectors.

    Parameters
    ----------
    settings : ToySettings
        The task.

    Raises
    ------
    TypeError
        If `settings` are of another class.
    MemoryError
        If so many classes would not fit.

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
        require_instance("settings", settings, ToySettings)
        self.settings = settings
        self._key = stream_key(settings.seed)
        n, d = settings.num_classes, settings.embedding_dim
        require_memory("num_classes", n, 8.0 * n * (3 * d + 4))
        generator = np.random.default_rng(derive_seed(self._key, _PROJECTION))
        self.projection = (generator.standard_normal((n, d)) / np.sqrt(d)).astype(np.float32)
        data = WEIGHTS[settings.data](n)
        self._data = np.cumsum(data) / data.sum()
        self.test = self._labels(settings.test_size, derive_seed(self._key, _TEST))
        self.softmax = self._make_softmax()
        self.parameters = with_prefixes({"softmax": self.softmax.parameters})
        self.num_steps, self.num_examples = settings.num_steps, settings.batch_size

    def config(self) -> dict[str, Any]:
        """Return the settings."""
        return {
            "model": "toy",
            **plain(asdict(self.settings)),
            "softmax": softmax_config(self.softmax),
        }

    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Gradient]]:
        """Draw a batch, and go forward and back."""
        key = derive_seed(self._key, _STEP, epoch * self.num_steps + index)
        data_seed, draw_seed = (derive_seed(key, k) for k in range(2))
        labels = self._labels(self.settings.batch_size, data_seed)
        loss, cache = self.softmax.forward(self.projection[labels], labels, rng=draw_seed)
        _, gradients = self.softmax.backward(cache)
        return loss / len(labels), with_prefixes({"softmax": gradients})

    def validate(self) -> dict[str, float]:
        """Return mean loss of the full softmax in nats, and perplexity, on new data."""
        found = self.softmax.evaluate(self.projection[self.test], self.test)
        return {"loss": found.loss, "perplexity": found.perplexity}

    def examples(self) -> Arrays:
        """Return some of the validation data."""
        labels = self.test[:NUM_EXAMPLES]
        return {"h": self.projection[labels], "labels": labels}

    def _labels(self, size: int, seed: int) -> IntArray:
        uniforms: FloatArray = np.random.default_rng(seed).random(size)
        return np.searchsorted(self._data, uniforms, side="right").astype(np.int64)

    def _make_softmax(self) -> SoftmaxLayer:
        settings = self.settings
        n, d = self.projection.shape
        glorot = float(np.sqrt(6.0 / (n + d)))
        seed = np.uint64(derive_seed(self._key, _SOFTMAX))
        rows = uniform_weights((n, d), glorot, self.projection.dtype, seed)
        sampled = LOSSES[settings.loss].draws
        loss = make_loss(settings.loss, reduction="sum")
        weights = WEIGHTS[settings.proposal](n)
        return SoftmaxLayer(
            rows,
            loss,
            WeightedSampler(weights, replace=False) if sampled else None,
            settings.num_sampled,
            biases=np.zeros(n),
        )
