"""Sharded class vectors and their sampler, with the interfaces that a `SoftmaxLayer` uses."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._device.arrays import RemoteRows
from samplesoft._random import mix64, uniform_block
from samplesoft._validation import FloatArray, IntArray
from samplesoft.distributed.transport import Shards
from samplesoft.distributed.worker import CLASS_VECTORS
from samplesoft.losses.base import Batch
from samplesoft.losses.full import LabelPositions
from samplesoft.samplers.base import NO_CLASS, Draw, Rows, Sampler


class ShardedRows(RemoteRows):
    """A matrix of class vectors (n, d) whose rows are held by shards.

    Parameters
    ----------
    shards : Shards
        The shards that hold the rows.
    shape : tuple of int
        n and d.
    dtype : dtype
        float32 or float64.
    """

    def __init__(self, shards: Shards, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.shards = shards
        self.shape = shape
        self.dtype = dtype
        # contexts that the sampler has already sent to the shards, or None
        self.contexts_on_shards: Rows | None = None
        # the last batch that was scored, and for each shard the indices of its labels and draws
        self._last_scored: tuple[Any, list[tuple[Any, Any]]] = None, []

    def shard_index(self, ids: IntArray) -> IntArray:
        """Return the index of the shard that holds each class of `ids`, in the same shape."""
        return np.searchsorted(self.shards.bounds[1:], ids, side="right")

    def take(self, ids: IntArray, axis: int = 0) -> Rows:
        """Return a copy of the rows with the indices `ids` (k,), shape (k, d)."""
        shard_ids = self.shard_index(ids)
        rows = np.empty((len(ids), self.shape[1]), self.dtype)
        offsets = self.shards.bounds
        arguments = [(ids[shard_ids == s] - offsets[s],) for s in range(self.shards.num)]
        for s, shard_rows in enumerate(self.shards.call_all("take", arguments)):
            rows[shard_ids == s] = shard_rows
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Rows:
        """Return a copy of all rows (n, d), for a checkpoint."""
        return self.shards.concatenated_array(CLASS_VECTORS)

    def __setitem__(self, all_rows: Any, rows: Rows) -> None:
        """Replace all rows on the shards by `rows` (n, d), for example from a checkpoint.

        The index `all_rows` must select all rows, which is not checked.
        """
        arguments = [(rows[start:stop],) for start, stop in self.shards.ranges]
        self.shards.call_all("write_rows", arguments)

    def scores(self, batch: Batch, ids: IntArray) -> tuple[Rows, Rows]:
        """Return the scores of labels (P,) and of draws (B, m), computed by the shards.

        `ids` are the drawn classes: (B, m) for each example, or (1, m) if the examples share them.
        """
        labels = batch.targets.labels
        example_ids = batch.targets.rows(np.arange(len(batch.z)))
        draw_shards = self.shard_index(ids)
        label_shards = self.shard_index(labels)

        # do not send contexts again that the sampler has already sent
        h = None if self.contexts_on_shards is batch.contexts else batch.contexts
        self.contexts_on_shards = None

        arguments = []
        positions: list[tuple[Any, Any]] = []
        is_shared = len(ids) < len(batch.z)
        for s, (start, _) in enumerate(self.shards.ranges):
            pairs = label_shards == s
            in_shard = draw_shards == s
            positions.append((pairs, (slice(None), in_shard[0]) if is_shared else in_shard))
            draws_per_example = in_shard.sum(axis=1)
            shard_labels = labels[pairs] - start
            shard_draws = ids[in_shard] - start
            arguments.append((h, shard_labels, example_ids[pairs], draws_per_example, shard_draws))

        label_scores = np.empty(len(labels), self.dtype)
        sampled_scores = np.empty((len(batch.z), ids.shape[1]), self.dtype)

        answers = self.shards.call_all("scores", arguments)
        for (pairs, draws), answer in zip(positions, answers, strict=True):
            label_scores[pairs], sampled_scores[draws] = answer

        self._last_scored = batch, positions
        return label_scores, sampled_scores

    def gradients(self, batch: Batch, d_labels: Rows, d_sampled: Rows, weights: FloatArray) -> Rows:
        """Return the gradient (B, d) with respect to ``tau * h``, for contexts h of the last batch.

        `d_labels` (P,) and `d_sampled` (B, m) are derivatives with respect to the results of
        `scores`, and `weights` (B,) are the weights of the examples. Shards keep the gradients with
        respect to their rows, for the next optimizer step.
        """
        last_batch, positions = self._last_scored
        if batch is not last_batch:
            raise ValueError(
                "`cache` must be that of the last `forward`, because shards keep no other; call "
                "`backward` before the next one."
            )

        arguments = [(d_labels[pairs], d_sampled[draws], weights) for pairs, draws in positions]
        first_gradient, *other_gradients = self.shards.call_all("gradients", arguments)
        total: Rows = sum(other_gradients, first_gradient)
        return total

    def exponentials(self, batch: Batch, excluded: LabelPositions) -> tuple[Rows, FloatArray]:
        """Return the max scores (B,) over the classes, and the sums (B,) of ``exp(score - max)``.

        The labels of each example are left out of both; `excluded` says which classes they are.
        """
        arguments = [
            (batch.z, *excluded.in_block(slice(start, stop))[1:])
            for start, stop in self.shards.ranges
        ]
        answers = self.shards.call_all("exponentials", arguments)
        shard_max, shard_sums = map(np.stack, zip(*answers, strict=True))

        max_scores = shard_max.max(axis=0)
        # the max score is -inf if all classes are excluded
        shift = np.where(max_scores == -np.inf, 0.0, max_scores)
        return max_scores, (shard_sums * np.exp(shard_max.astype(np.float64) - shift)).sum(axis=0)

    def best(
        self, z: Rows, k: int, *, leave_out: Any = None, **options: Any
    ) -> tuple[IntArray, Rows]:
        """Return the k classes with the largest scores, (B, k), and their scores, for contexts `z`.

        Each shard returns its k best classes, which are merged. `leave_out` and `options` are as in
        `samplesoft.search.best_classes`.
        """
        arguments = []
        for start, stop in self.shards.ranges:
            shard_leave_out = None if leave_out is None else leave_out[:, start:stop]
            arguments.append((z, k, {**options, "leave_out": shard_leave_out}))

        lists = self.shards.call_all("best", arguments)
        offsets = self.shards.bounds
        ids = np.hstack([np.where(i < 0, i, i + offsets[s]) for s, (i, _) in enumerate(lists)])
        scores = np.hstack([scores for _, scores in lists])

        # a stable sort, so that among equal scores the smallest class is first
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)


class ShardedSampler(Sampler):
    """A sampler that draws a shard, and then a class with the sampler of the shard.

    A shard is drawn in proportion to the sum of the proposal weights of its classes. The proposal q
    of a class is the product of the two probabilities, and is exact.

    Parameters
    ----------
    rows : ShardedRows
        The class vectors, whose shards have samplers.
    follows : bool
        Whether draws depend on the contexts.
    """

    def __init__(self, rows: ShardedRows, follows: bool) -> None:
        n, d = rows.shape
        super().__init__(n, d if follows else None, rows.dtype if follows else None)
        self._rows = rows
        self._shards = rows.shards

    def _shard_log_probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the log-probabilities (R, S) of S shards for contexts `h` (R, d).

        `exclude` (R,) is for each context a class that is not drawn, or `NO_CLASS`. The shards keep
        the contexts for later calls.
        """
        contexts = h if self.dim is not None else h[:, :0]
        excluded_by_shard = [
            np.where((start <= exclude) & (exclude < stop), exclude - start, NO_CLASS)
            for start, stop in self._shards.ranges
        ]

        arguments = [(contexts, excluded) for excluded in excluded_by_shard]
        self._rows.contexts_on_shards = contexts
        masses = np.stack(self._shards.call_all("log_masses", arguments), axis=1)
        shard_log_probs: FloatArray = masses - np.logaddexp.reduce(masses, axis=1, keepdims=True)
        return shard_log_probs

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        shard_log_probs = self._shard_log_probs(h, exclude)
        num_shards = self._shards.num
        cdf = np.cumsum(np.exp(shard_log_probs), axis=1)
        cdf /= cdf[:, -1:]  # the last value becomes exactly 1, and all uniform values are below it
        u = uniform_block(np.uint64(mix64(key, np.uint64(num_shards))), len(h), m)
        shard_ids = (u[:, :, None] >= cdf[:, None, :-1]).sum(axis=2)

        # a single shard uses `key` itself, so that it draws the classes of an unsharded sampler
        keys = [key]
        if num_shards > 1:
            keys = [np.uint64(mix64(key, np.uint64(s))) for s in range(num_shards)]
        arguments = [((shard_ids == s).sum(axis=1), keys[s]) for s in range(num_shards)]

        ids = np.empty((len(h), m), np.int64)
        log_q = np.take_along_axis(shard_log_probs, shard_ids, 1)
        for s, (drawn, logs) in enumerate(self._shards.call_all("draw", arguments)):
            ids[shard_ids == s] = drawn + self._shards.bounds[s]
            log_q[shard_ids == s] += logs

        return Draw(ids, log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        shard_log_probs = self._shard_log_probs(h, exclude)
        shard_ids = self._rows.shard_index(ids)
        # Each shard gets all ids; a class of another shard is replaced by a valid class, whose
        # result is ignored.
        arguments = [
            (np.clip(ids - start, 0, stop - start - 1),) for start, stop in self._shards.ranges
        ]

        log_q = np.take_along_axis(shard_log_probs, shard_ids, 1)
        for s, logs in enumerate(self._shards.call_all("log_probs", arguments)):
            log_q[shard_ids == s] += logs[shard_ids == s]
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        all_classes = np.broadcast_to(np.arange(self.num_classes), (len(h), self.num_classes))
        return np.exp(self._log_prob(h, all_classes, exclude))
