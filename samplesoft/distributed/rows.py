"""Class vectors and a sampler that lie in shards, as a `SoftmaxLayer` looks at them."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._device.arrays import DistantRows
from samplesoft._random import mix64, uniform_block
from samplesoft._validation import FloatArray, IntArray
from samplesoft.distributed.transport import Shards
from samplesoft.distributed.worker import CLASS_VECTORS
from samplesoft.losses.base import Batch
from samplesoft.losses.full import LabelPositions
from samplesoft.samplers.base import NO_CLASS, Draw, Rows, Sampler


class ShardedRows(DistantRows):
    """Class vectors (n, d) that lie in shards.

    Parameters
    ----------
    shards : Shards
        Who keeps them.
    shape : tuple of int
        n and d.
    dtype : dtype
        float32 or float64.
    """

    def __init__(self, shards: Shards, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.shards, self.shape, self.dtype = shards, shape, dtype
        self.sent: Rows | None = None  # contexts that the shards have got with a question
        self._scored: tuple[Any, list[tuple[Any, Any]]] = None, []

    def shard_of(self, ids: IntArray) -> IntArray:
        """Return the shards of classes."""
        return np.searchsorted(self.shards.bounds[1:], ids, side="right")

    def take(self, ids: IntArray, axis: int = 0) -> Rows:
        """Return a copy of some rows (k, d)."""
        where, rows = self.shard_of(ids), np.empty((len(ids), self.shape[1]), self.dtype)
        offsets = self.shards.bounds
        asked = [(ids[where == s] - offsets[s],) for s in range(self.shards.num)]
        for s, some in enumerate(self.shards.ask("take", asked)):
            rows[where == s] = some
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Rows:
        """Return a copy of all rows, for a checkpoint."""
        return self.shards.joined(CLASS_VECTORS)

    def __setitem__(self, every: Any, rows: Rows) -> None:
        """Let all rows be others, those of a checkpoint."""
        self.shards.ask("write", [(rows[lo:hi],) for lo, hi in self.shards.ranges])

    def scores(self, batch: Batch, ids: IntArray) -> tuple[Rows, Rows]:
        """Return the scores of the labels (P,) and draws (B, m), each from its shard."""
        labels, where = batch.targets.labels, self.shard_of(ids)
        example_ids, of_labels = batch.targets.rows(np.arange(len(batch.z))), self.shard_of(labels)
        shared = len(ids) < len(batch.z)
        places: list[tuple[Any, Any]] = [
            (of_labels == s, (slice(None), where[0] == s) if shared else where == s)
            for s in range(self.shards.num)
        ]
        h, self.sent = None if self.sent is batch.contexts else batch.contexts, None
        asked = []
        for s, (lo, _) in enumerate(self.shards.ranges):
            pairs, here = of_labels == s, where == s
            asked.append(
                (h, labels[pairs] - lo, example_ids[pairs], here.sum(axis=1), ids[here] - lo)
            )
        own = np.empty(len(labels), self.dtype)
        drawn = np.empty((len(batch.z), ids.shape[1]), self.dtype)
        for (pairs, draws), answer in zip(places, self.shards.ask("scores", asked), strict=True):
            own[pairs], drawn[draws] = answer
        self._scored = batch, places
        return own, drawn

    def gradients(self, batch: Batch, d_own: Rows, d_drawn: Rows, weights: FloatArray) -> Rows:
        """Return the gradient (B, d) in the contexts; shards keep that in their rows."""
        scored, places = self._scored
        if batch is not scored:
            raise ValueError(
                "`cache` must be that of the last `forward`, for shards keep no other; call "
                "`backward` before the next one."
            )
        asked = [(d_own[pairs], d_drawn[draws], weights) for pairs, draws in places]
        first, *others = self.shards.ask("gradients", asked)
        total: Rows = sum(others, first)
        return total

    def exponentials(self, batch: Batch, excluded: LabelPositions) -> tuple[Rows, FloatArray]:
        """Return the largest score (B,) of classes not excluded, and the sum relative to it."""
        asked = [(batch.z, *excluded.in_block(slice(*each))[1:]) for each in self.shards.ranges]
        tops, totals = map(np.stack, zip(*self.shards.ask("exponentials", asked), strict=True))
        top = tops.max(axis=0)
        shift = np.where(top == -np.inf, 0.0, top)  # of an example whose label is the only class
        return top, (totals * np.exp(tops.astype(np.float64) - shift)).sum(axis=0)

    def best(
        self, z: Rows, k: int, *, leave_out: Any = None, **options: Any
    ) -> tuple[IntArray, Rows]:
        """Return the k best classes (B, k) from the lists of the shards, and their scores."""
        asked = [
            (z, k, {**options, "leave_out": None if leave_out is None else leave_out[:, lo:hi]})
            for lo, hi in self.shards.ranges
        ]
        lists = self.shards.ask("best", asked)
        offsets = self.shards.bounds
        ids = np.hstack([np.where(i < 0, i, i + offsets[s]) for s, (i, _) in enumerate(lists)])
        scores = np.hstack([scores for _, scores in lists])
        # stable: of equal scores those of the first shard are first, and so the first class
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1)


class ShardedSampler(Sampler):
    """Draws a shard by its mass, and a class within it: q is exact over all classes.

    Parameters
    ----------
    rows : ShardedRows
        The class vectors, whose shards have samplers.
    follows : bool
        Whether draws follow the contexts.
    """

    def __init__(self, rows: ShardedRows, follows: bool) -> None:
        n, d = rows.shape
        super().__init__(n, d if follows else None, rows.dtype if follows else None)
        self._rows, self._shards = rows, rows.shards

    def _log_shares(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the log-probabilities (R, S) of the shards for contexts, which they keep."""
        contexts = h if self.dim is not None else h[:, :0]
        within = [
            np.where((lo <= exclude) & (exclude < hi), exclude - lo, NO_CLASS)
            for lo, hi in self._shards.ranges
        ]
        asked = [(contexts, excluded) for excluded in within]
        self._rows.sent = contexts
        masses = np.stack(self._shards.ask("masses", asked), axis=1)
        log_shares: FloatArray = masses - np.logaddexp.reduce(masses, axis=1, keepdims=True)
        return log_shares

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        log_shares, num = self._log_shares(h, exclude), self._shards.num
        edges = np.cumsum(np.exp(log_shares), axis=1)
        edges /= edges[:, -1:]  # 1 from the last shard with a mass on, and uniforms are below
        u = uniform_block(np.uint64(mix64(key, np.uint64(num))), len(h), m)
        where = (u[:, :, None] >= edges[:, None, :-1]).sum(axis=2)
        # with one shard the draws are those of its sampler
        keys = [np.uint64(mix64(key, np.uint64(s))) for s in range(num)] if num > 1 else [key]
        asked = [((where == s).sum(axis=1), keys[s]) for s in range(num)]
        ids, log_q = np.empty((len(h), m), np.int64), np.take_along_axis(log_shares, where, 1)
        for s, (drawn, logs) in enumerate(self._shards.ask("draw", asked)):
            ids[where == s] = drawn + self._shards.bounds[s]
            log_q[where == s] += logs
        return Draw(ids, log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        log_shares, where = self._log_shares(h, exclude), self._rows.shard_of(ids)
        asked = [(np.clip(ids - lo, 0, hi - lo - 1),) for lo, hi in self._shards.ranges]
        log_q = np.take_along_axis(log_shares, where, 1)
        for s, logs in enumerate(self._shards.ask("log_probs", asked)):
            log_q[where == s] += logs[where == s]
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        every = np.broadcast_to(np.arange(self.num_classes), (len(h), self.num_classes))
        return np.exp(self._log_prob(h, every, exclude))
