"""One worker's range of classes: what it keeps, and the questions that it answers."""

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
# those whose masses say how often each shard is drawn from
_TREES = "rff", "rff:orthogonal", "rff:structured", "rff+softmax-leaf", "positive", "quadratic"
SHARDED = "uniform", "unigram", "clusters", *_TREES


class Shard(SoftmaxLayer):
    """A range of classes, with their optimizer and sampler, and what these are asked.

    Parameters
    ----------
    rows : ndarray, shape (k, d)
        Class vectors, copied.
    state : dict of str to ndarray or None
        Of the optimizer.
    weights : ndarray of float64, shape (k,), or None
        What the classes are drawn by, for a sampler that looks at counts.
    loss : SampledLoss
        Of the layer.
    sampler : str
        One of `SHARDED`.
    options : dict
        Fields of `SamplerInputs` for it.
    optimizer : Optimizer
        Copied.
    update_every : int
        Updates from one of the sampler to the next.
    threads : int or None
        That kernels may use; None for all that there are.
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
        made: Sampler = UniformSampler(len(rows))
        if weights is not None:
            made = WeightedSampler(weights)
        elif SAMPLERS[sampler].follows_vectors:
            self._use_threads()
            seen = unit_rows(CLASS_VECTORS, rows.copy())[0] if loss.normalize else rows
            made = make_sampler(sampler, SamplerInputs(seen, tau=loss.tau, **options))
        super().__init__(rows, loss, made, loss.properties.least_draws, update_every=update_every)

    def answer(self, question: str, *arguments: Any) -> Any:
        """Return what a method returns."""
        self._use_threads()
        return getattr(self, question)(*arguments)

    def _use_threads(self) -> None:
        if self._threads is not None:  # a setting of the thread, and any may call
            use_threads(self._threads)

    def masses(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the log masses (R,) of the proposals for contexts, which are kept."""
        if self.sampler.dim is not None:
            h = self.sampler._check_contexts(h)
        self._h, self._exclude = h, exclude
        return self.sampler._log_mass(h, exclude)

    def draw(self, counts: IntArray, key: np.uint64) -> tuple[IntArray, FloatArray]:
        """Return so many draws (R,) for the contexts, one after another, and their log q here."""
        slots = np.arange(counts.max()) < counts[:, None]
        ids, log_q = np.zeros(slots.shape, np.int64), np.zeros(slots.shape)
        octaves = np.frexp(counts - 1)[1]  # 1, 2, 3 to 4, 5 to 8 draws
        # contexts with about as many draws together, so that few are made which nobody has asked
        # for; in streams of their own, the first of which is that of an unsharded sampler
        for turn, octave in enumerate(np.unique(octaves[counts > 0])):
            some = np.flatnonzero((octaves == octave) & (counts > 0))
            stream = key if turn == 0 else np.uint64(mix64(key, np.uint64(turn)))
            m = int(counts[some].max())
            drawn = self.sampler._sample(self._h[some], m, self._exclude[some], stream)
            ids[some, :m], log_q[some, :m] = drawn.ids, drawn.log_q
        return ids[slots], log_q[slots]

    def log_probs(self, ids: IntArray) -> FloatArray:
        """Return the log q (R, k) here of classes for the contexts."""
        return self.sampler._log_prob(self._h, ids, self._exclude)

    def scores(
        self,
        h: Rows | None,
        labels: IntArray,
        example_ids: IntArray,
        counts: IntArray,
        ids: IntArray,
    ) -> tuple[Rows, Rows]:
        """Return the scores of labels of some examples, and of so many draws of each, or of all."""
        h = self._h if h is None else h
        z = h if self.loss.tau == 1.0 else times_tau(h, self.loss.tau)
        self._batch = Batch(h, None, z, self.class_embeddings, Targets(labels, example_ids), None)
        self._slots = np.arange(counts.max()) < counts[:, None]
        drawn = np.full(self._slots.shape, ids[0] if len(ids) else 0)  # any of them fills up
        drawn[self._slots] = ids
        none = np.zeros(drawn.shape)  # the whole draw has been checked
        found = self._scores = score_candidates(self._batch, drawn, none, self.loss.normalize)
        return found.label_scores, found.sampled_scores if found.shared else found.sampled_scores[
            self._slots
        ]

    def gradients(self, d_own: Rows, d_drawn: Rows, weights: FloatArray) -> Rows:
        """Keep the gradient of the rows, and return that (B, d) of the contexts times tau."""
        if not self._scores.shared:
            flat, d_drawn = d_drawn, np.zeros(self._slots.shape, d_drawn.dtype)
            d_drawn[self._slots] = flat
        d_drawn = np.ascontiguousarray(d_drawn)
        found = score_gradients(self._batch, self._scores, d_own, d_drawn, weights)
        self._gradient = found.dW
        return found.dh

    def step(self, learning_rate: float, steps: int) -> bool:
        """Take a step by the gradient that is kept, and let the sampler follow.

        Returns False if it has taken other steps before than the layer, and so is another shard.
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
        """Return the largest score (B,), and the sum relative to it, without some labels."""
        loss = FullSoftmaxLoss(normalize=self.loss.normalize, absolute=self.loss.absolute)
        targets = Targets(labels, example_ids)
        batch = Batch(z, None, z, self.class_embeddings, targets, None)
        return loss._max_and_sum_of_others(batch, LabelPositions(targets))

    def best(self, z: Rows, k: int, options: dict[str, Any]) -> tuple[IntArray, Rows]:
        """Return the k best classes (B, k), or all that there are, and their scores."""
        rows = self.class_embeddings
        return best_classes(z, rows, min(k, len(rows)), **options)

    def array(self, name: str) -> NDArray[Any]:
        """Return the rows, or one of the arrays of the state of the optimizer."""
        return self.class_embeddings if name == CLASS_VECTORS else self._optimizer.state()[name]

    def write(self, rows: Rows) -> None:
        """Let the rows be others; the sampler follows in `refresh`."""
        self.class_embeddings[...] = rows

    def load_optimizer(self, state: dict[str, NDArray[Any]]) -> None:
        """Let the optimizer go on from a state of this range of classes."""
        self._optimizer.load_state(state)

    def saved(self) -> dict[str, NDArray[Any]]:
        """Return the rows and, after ``"optimizer/"``, the state of the optimizer."""
        return {
            CLASS_VECTORS: self.class_embeddings,
            **prefixed({"optimizer": self._optimizer.state()}, "/"),
        }
