"""`Shard`, the range of classes on one worker, with the methods that the sharded layer calls."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._files import with_prefixes
from samplesoft._jit import set_num_threads
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

CLASS_VECTORS = "class_embeddings"  # name of the parameter that is sharded
# samplers with a tree, whose root holds the sum of the proposal weights of the shard
_TREES = "rff", "rff:orthogonal", "rff:structured", "rff+softmax-leaf", "positive", "quadratic"
SHARDED = "uniform", "unigram", "clusters", *_TREES


class Shard(SoftmaxLayer):
    """A layer for a range of k classes, with an optimizer and a sampler.

    Parameters
    ----------
    rows : ndarray, shape (k, d)
        Class vectors, which are copied.
    state : dict of str to ndarray or None
        State of the optimizer, or None for a new one.
    weights : ndarray of float64, shape (k,), or None
        Weights of the classes, for a sampler that uses counts.
    loss : SampledLoss
        Loss of the sharded layer.
    sampler : str
        One of `SHARDED`.
    options : dict
        Fields of `SamplerInputs` for the sampler.
    optimizer : Optimizer
        The optimizer, which is copied.
    update_every : int
        Number of optimizer steps between updates of the sampler.
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
        self._threads = threads
        self._optimizer = deepcopy(optimizer)
        if state is not None:
            self._optimizer.load_state(state)
        self._gradient: SparseRows | None = None

        shard_sampler: Sampler = UniformSampler(len(rows))
        if weights is not None:
            shard_sampler = WeightedSampler(weights)
        elif SAMPLERS[sampler].follows_vectors:
            self._use_threads()
            sampler_rows = unit_rows(CLASS_VECTORS, rows.copy())[0] if loss.normalize else rows
            inputs = SamplerInputs(sampler_rows, tau=loss.tau, **options)
            shard_sampler = make_sampler(sampler, inputs)

        super().__init__(
            rows, loss, shard_sampler, loss.properties.min_draws, update_every=update_every
        )

    def call_method(self, method: str, *arguments: Any) -> Any:
        """Return the result of the method with the name `method`, run on this shard's threads."""
        self._use_threads()
        return getattr(self, method)(*arguments)

    def _use_threads(self) -> None:
        """Set the number of threads for kernels, which is a setting of the calling thread."""
        if self._threads is not None:
            set_num_threads(self._threads)

    def log_masses(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the logs (R,) of the sums of proposal weights over the classes of this shard.

        `h` (R, d) are contexts, and `exclude` (R,) is for each context a class to leave out, or -1.
        Both arrays are kept for later calls of `draw`, `log_probs` and `scores`.
        """
        if self.sampler.dim is not None:
            h = self.sampler._checked_contexts(h)
        self._contexts = h
        self._excluded = exclude
        return self.sampler._log_total_weight(h, exclude)

    def draw(self, counts: IntArray, key: np.uint64) -> tuple[IntArray, FloatArray]:
        """Return draws for R contexts, concatenated, and their log-probabilities.

        Context r gets ``counts[r]`` draws. The probabilities are conditional on this shard. The
        contexts are `h` of the last call of `log_masses`.
        """
        is_draw = np.arange(counts.max()) < counts[:, None]
        ids = np.zeros(is_draw.shape, np.int64)
        log_q = np.zeros(is_draw.shape)

        # All contexts of a group get the largest count of the group, and additional draws are
        # discarded. The groups are 1 draw, 2 draws, 3 to 4, 5 to 8, and so on. Each group has a
        # separate random stream; the first group has the stream with the key `key` itself, which an
        # unsharded sampler uses.
        octaves = np.frexp(counts - 1)[1]

        for stream_index, octave in enumerate(np.unique(octaves[counts > 0])):
            contexts = np.flatnonzero((octaves == octave) & (counts > 0))
            stream = key if stream_index == 0 else np.uint64(mix64(key, np.uint64(stream_index)))
            m = int(counts[contexts].max())
            drawn = self.sampler._sample(
                self._contexts[contexts], m, self._excluded[contexts], stream
            )
            ids[contexts, :m] = drawn.ids
            log_q[contexts, :m] = drawn.log_q

        return ids[is_draw], log_q[is_draw]

    def log_probs(self, ids: IntArray) -> FloatArray:
        """Return the log-probabilities (R, k) of classes `ids` (R, k), conditional on this shard.

        The contexts are `h` of the last call of `log_masses`.
        """
        return self.sampler._log_prob(self._contexts, ids, self._excluded)

    def scores(
        self,
        h: Rows | None,
        labels: IntArray,
        example_ids: IntArray,
        counts: IntArray,
        ids: IntArray,
    ) -> tuple[Rows, Rows]:
        """Return the scores of the labels and of the draws that are in this shard.

        `h` (B, d) are the contexts, or None for `h` of the last call of `log_masses`. Example
        ``example_ids[k]`` has the label ``labels[k]``. `counts` are the numbers of draws of each
        example, (B,), or (1,) if the examples share the draws, and `ids` are the draws,
        concatenated. The scores of shared draws are a matrix (B, m), and the scores of other draws
        are concatenated.
        """
        h = self._contexts if h is None else h
        z = h if self.loss.tau == 1.0 else times_tau(h, self.loss.tau)
        self._last_batch = Batch(
            h, None, z, self.class_embeddings, Targets(labels, example_ids), None
        )

        self._is_draw = np.arange(counts.max()) < counts[:, None]
        # rows of draws have different lengths: pad them with any valid class
        padded_ids = np.full(self._is_draw.shape, ids[0] if len(ids) else 0)
        padded_ids[self._is_draw] = ids

        # `score_candidates` only validates log counts; the layer has validated those of the draw
        no_counts = np.zeros(padded_ids.shape)
        scores = self._last_scores = score_candidates(
            self._last_batch, padded_ids, no_counts, self.loss.normalize
        )

        if scores.shared:
            return scores.label_scores, scores.sampled_scores
        return scores.label_scores, scores.sampled_scores[self._is_draw]

    def gradients(self, d_labels: Rows, d_sampled: Rows, weights: FloatArray) -> Rows:
        """Return the gradient (B, d) with respect to ``tau * h``, for the batch of `scores`.

        `d_labels` and `d_sampled` are derivatives with respect to the results of `scores`, and
        `weights` (B,) are the weights of the examples. The gradient with respect to the class
        vectors is kept for `step`.
        """
        if not self._last_scores.shared:
            matrix = np.zeros(self._is_draw.shape, d_sampled.dtype)
            matrix[self._is_draw] = d_sampled
            d_sampled = matrix
        d_sampled = np.ascontiguousarray(d_sampled)
        gradients = score_gradients(
            self._last_batch, self._last_scores, d_labels, d_sampled, weights
        )

        self._gradient = gradients.dW
        return gradients.dh

    def step(self, learning_rate: float, steps: int) -> bool:
        """Take an optimizer step with the gradient of the last call of `gradients`.

        The sampler is updated too, every `update_every` steps. `steps` is the number of steps that
        the layer has taken. If this shard has taken a different number, for example because its
        worker was restarted, the result is False and no step is taken. Otherwise it is True.
        """
        if self._optimizer.steps != steps:
            return False

        gradient = self._gradient
        self._gradient = None
        if gradient is None:
            raise ValueError("`update` must follow `backward`, which has not been called; call it.")

        self._optimizer.learning_rate = learning_rate
        self._optimizer.step(self.parameters, {CLASS_VECTORS: gradient})
        self.update(gradient.ids)
        return True

    def take(self, ids: IntArray) -> Rows:
        """Return the class vectors (k, d) of the classes `ids` (k,) of this shard."""
        return self.class_embeddings.take(ids, axis=0)

    def exponentials(
        self, z: Rows, labels: IntArray, example_ids: IntArray
    ) -> tuple[Rows, FloatArray]:
        """Return the max scores (B,) over the shard's classes, and sums of ``exp(score - max)``.

        `z` (B, d) are contexts times tau. Example ``example_ids[k]`` has the label ``labels[k]``;
        labels are left out of both results.
        """
        loss = FullSoftmaxLoss(normalize=self.loss.normalize, absolute=self.loss.absolute)
        targets = Targets(labels, example_ids)
        batch = Batch(z, None, z, self.class_embeddings, targets, None)
        return loss._max_and_exp_sum_of_others(batch, LabelPositions(targets))

    def best(self, z: Rows, k: int, options: dict[str, Any]) -> tuple[IntArray, Rows]:
        """Return the k classes of this shard with the largest scores, (B, k), and their scores.

        If the shard has fewer than k classes, all are returned. `z` (B, d) are contexts times tau,
        and `options` are arguments of `best_classes`.
        """
        rows = self.class_embeddings
        return best_classes(z, rows, min(k, len(rows)), **options)

    def named_array(self, name: str) -> NDArray[Any]:
        """Return the class vectors, or the array `name` of the optimizer's state."""
        return self.class_embeddings if name == CLASS_VECTORS else self._optimizer.state()[name]

    def write_rows(self, rows: Rows) -> None:
        """Replace all class vectors in place; call `refresh` afterwards to update the sampler."""
        self.class_embeddings[...] = rows

    def load_optimizer_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore the optimizer's state, whose arrays have the rows of this shard only."""
        self._optimizer.load_state(state)

    def saved(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for a checkpoint by name: class vectors, and the optimizer's state.

        The names of the optimizer's arrays begin with ``"optimizer/"``.
        """
        return {
            CLASS_VECTORS: self.class_embeddings,
            **with_prefixes({"optimizer": self._optimizer.state()}, "/"),
        }
