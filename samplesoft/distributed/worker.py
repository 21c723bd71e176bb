"""The shard of one worker: a range of classes, and the methods that the layer calls."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._files import prefixed
from samplesoft._jit import use_threads
from samplesoft._random import mix64
from samplesoft._temperature import times_tau
from samplesoft._validation import FloatArray, IntArray
from samplesoft.losses.base import Batch, SparseRows, Targets
from samplesoft.losses.candidates import score_candidates, score_gradients
from samplesoft.losses.full import FullSoftmaxLoss, LabelPositions
from samplesoft.losses.sampled import SampledLoss
from samplesoft.losses.vectors import unit_rows
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.optimizers.base import Optimizer
from samplesoft.samplers.base import Rows, Sampler
from samplesoft.samplers.registry import SAMPLERS, SamplerInputs, make_sampler
from samplesoft.samplers.static import UniformSampler, WeightedSampler
from samplesoft.search import best_classes

CLASS_VECTORS = "class_embeddings"  # the parameter that is sharded
# samplers with a tree, whose root has the mass of the shard
_TREES = "rff", "rff:orthogonal", "rff:structured", "rff+softmax-leaf", "positive", "quadratic"
SHARDED = "uniform", "unigram", "clusters", *_TREES


class Shard(SoftmaxLayer):
    """A range of classes, with its optimizer and sampler.

    Parameters
    ----------
    rows : ndarray, shape (k, d)
        Class vectors, copied.
    state : dict of str to ndarray or None
        State of the optimizer.
    weights : ndarray of float64, shape (k,), or None
        Weights of the classes, for a sampler that uses counts.
    loss : SampledLoss
        Loss of the layer.
    sampler : str
        One of `SHARDED`.
    options : dict
        Fields of `SamplerInputs` for it.
    optimizer : Optimizer
        Copied.
    update_every : int
        Number of updates between updates of the sampler.
    threads : int or None
        Number of threads for kernels; None for all.
    """

    sampler: Sampler

    def __init__(
        self,
        rows: Rows,
        state: dict[str, NDArray[Any]] | None,
        weights: FloatArray | None,
        loss: SampledLoss,
        sampler: str,
        options: dict[str, Any],
        optimizer: Optimizer,
        update_every: int,
        threads: int | None = None,
    ) -> None:
        self._threads, self._optimizer = threads, deepcopy(optimizer)
        if state is not None:
            self._optimizer.load_state(state)
        self._gradient: SparseRows | None = None
        shard_sampler: Sampler = UniformSampler(len(rows))
        if weights is not None:
            shard_sampler = WeightedSampler(weights)
        elif SAMPLERS[sampler].follows_vectors:
            self._use_threads()
            sampler_rows = unit_rows(CLASS_VECTORS, rows.copy())[0] if loss.normalize else rows
            shard_sampler = make_sampler(
                sampler, SamplerInputs(sampler_rows, tau=loss.tau, **options)
            )
        super().__init__(
            rows, loss, shard_sampler, loss.properties.least_draws, update_every=update_every
        )

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method by name, and return its result."""
        self._use_threads()
        return getattr(self, method)(*arguments)

    def _use_threads(self) -> None:
        # set in each call, because it is a setting of the calling thread
        if self._threads is not None:
            use_threads(self._threads)

    def masses(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the log masses (R,) of the proposals, and keep the contexts for later calls."""
        if self.sampler.dim is not None:
            h = self.sampler._check_contexts(h)
        self._h, self._exclude = h, exclude
        return self.sampler._log_mass(h, exclude)

    def draw(self, counts: IntArray, key: np.uint64) -> tuple[IntArray, FloatArray]:
        """Return `counts` (R,) draws for the contexts, concatenated, and their log q here."""
        slots = np.arange(counts.max()) < counts[:, None]
        ids, log_q = np.zeros(slots.shape, np.int64), np.zeros(slots.shape)
        octaves = np.frexp(counts - 1)[1]  # 1, 2, 3 to 4, 5 to 8 draws
        # group contexts by similar counts, so that few draws are discarded; each group has its own
        # random stream, the first of which is that of an unsharded sampler
        for stream_index, octave in enumerate(np.unique(octaves[counts > 0])):
            contexts = np.flatnonzero((octaves == octave) & (counts > 0))
            stream = key if stream_index == 0 else np.uint64(mix64(key, np.uint64(stream_index)))
            m = int(counts[contexts].max())
            drawn = self.sampler._sample(self._h[contexts], m, self._exclude[contexts], stream)
            ids[contexts, :m], log_q[contexts, :m] = drawn.ids, drawn.log_q
        return ids[slots], log_q[slots]

    def log_probs(self, ids: IntArray) -> FloatArray:
        """Return the log q (R, k) of classes in this shard for the contexts."""
        return self.sampler._log_prob(self._h, ids, self._exclude)

    def scores(
        self,
        h: Rows | None,
        labels: IntArray,
        example_ids: IntArray,
        counts: IntArray,
        ids: IntArray,
    ) -> tuple[Rows, Rows]:
        """Return the scores of labels, and of `counts` draws of each example, or shared draws."""
        h = self._h if h is None else h
        z = h if self.loss.tau == 1.0 else times_tau(h, self.loss.tau)
        self._batch = Batch(h, None, z, self.class_embeddings, Targets(labels, example_ids), None)
        self._slots = np.arange(counts.max()) < counts[:, None]
        # padding with any valid class
        padded_ids = np.full(self._slots.shape, ids[0] if len(ids) else 0)
        padded_ids[self._slots] = ids
        no_counts = np.zeros(padded_ids.shape)  # not used: the layer has validated the draw
        scores = self._scores = score_candidates(
            self._batch, padded_ids, no_counts, self.loss.normalize
        )
        return (
            scores.label_scores,
            scores.sampled_scores if scores.shared else scores.sampled_scores[self._slots],
        )

    def gradients(self, d_labels: Rows, d_sampled: Rows, weights: FloatArray) -> Rows:
        """Keep the gradient in the rows; return the gradient (B, d) in the contexts times tau."""
        if not self._scores.shared:
            flat, d_sampled = d_sampled, np.zeros(self._slots.shape, d_sampled.dtype)
            d_sampled[self._slots] = flat
        d_sampled = np.ascontiguousarray(d_sampled)
        gradients = score_gradients(self._batch, self._scores, d_labels, d_sampled, weights)
        self._gradient = gradients.dW
        return gradients.dh

    def step(self, learning_rate: float, steps: int) -> bool:
        """Take an optimizer step with the stored gradient, and update the sampler.

        Returns False if its number of steps differs from the layer's, as after a restart.
        """
        if self._optimizer.steps != steps:
            return False
        gradient, self._gradient = self._gradient, None
        if gradient is None:
            raise ValueError("`update` must follow `backward`, which has not been called; call it.")
        self._optimizer.learning_rate = learning_rate
        self._optimizer.step(self.parameters, {CLASS_VECTORS: gradient})
        self.update(gradient.ids)
        return True

    def take(self, ids: IntArray) -> Rows:
        """Return rows (k, d)."""
        return self.class_embeddings.take(ids, axis=0)

    def exponentials(
        self, z: Rows, labels: IntArray, example_ids: IntArray
    ) -> tuple[Rows, FloatArray]:
        """Return max scores (B,) without the labels, and sums of exp(score - max)."""
        loss = FullSoftmaxLoss(normalize=self.loss.normalize, absolute=self.loss.absolute)
        targets = Targets(labels, example_ids)
        batch = Batch(z, None, z, self.class_embeddings, targets, None)
        return loss._max_and_sum_of_others(batch, LabelPositions(targets))

    def best(self, z: Rows, k: int, options: dict[str, Any]) -> tuple[IntArray, Rows]:
        """Return the top k classes (B, k), or all if there are fewer, and their scores."""
        rows = self.class_embeddings
        return best_classes(z, rows, min(k, len(rows)), **options)

    def array(self, name: str) -> NDArray[Any]:
        """Return the class vectors, or an array of the optimizer's state."""
        return self.class_embeddings if name == CLASS_VECTORS else self._optimizer.state()[name]

    def write(self, rows: Rows) -> None:
        """Replace the rows in place; `refresh` then updates the sampler."""
        self.class_embeddings[...] = rows

    def load_optimizer(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore the state of the optimizer for this range of classes."""
        self._optimizer.load_state(state)

    def saved(self) -> dict[str, NDArray[Any]]:
        """Return the rows, and the optimizer's state with the prefix ``"optimizer/"``."""
        return {
            CLASS_VECTORS: self.class_embeddings,
            **prefixed({"optimizer": self._optimizer.state()}, "/"),
        }
