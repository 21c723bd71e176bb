"""Scores of the label and of drawn classes of each example, and gradients of both kinds of vectors.

The classes that occur stand in a block of rows, so that norms, gradients and sums over duplicates
cost what the block costs, and never what n classes cost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from samplesoft._jit import chunks, num_threads, thread_each
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.arrays.sort_ids import add_runs, equal_runs
from samplesoft.kernels.losses.candidate_scores import (
    class_sums,
    context_sums,
    group_totals,
    label_sums,
    score_rows,
)
from samplesoft.losses.base import Batch
from samplesoft.losses.gradients import Gradients, SparseRows
from samplesoft.losses.vectors import unit_rows, unit_rows_backward
from samplesoft.samplers.base import Rows

_ONE_THREAD = 1 << 20  # multiplications below which a second thread does not pay


def candidate_scores(batch: Batch, ids: IntArray, normalize: bool) -> CandidateScores:
    """Score labels and drawn classes `ids`, (P, m) or one set (1, m) for all P pairs of a batch."""
    shared = len(ids) == 1 < len(batch.targets.labels)
    return (_SharedScores if shared else _OwnScores)(batch, ids, normalize)


class CandidateScores(ABC):
    """Scores (P, 1 + m), the label's in column 0, and what their gradients need.

    `scores` are not read again: a loss may write their derivatives in their place.
    """

    def __init__(self, batch: Batch, ids: IntArray, normalize: bool) -> None:
        self.z = batch.targets.rows(batch.z)
        self._owners = batch.targets
        candidates = self._places(batch.targets.labels, ids)
        self.classes, self.places, self.order, self.starts = equal_runs(
            candidates, len(batch.class_embeddings)
        )
        rows = self._rows(candidates)
        self.block, self.norms = batch.class_embeddings.take(rows, axis=0), None
        if normalize:
            self.block, self.norms = unit_rows("class_embeddings", self.block, rows)
        self.scores = np.empty((len(self.z), 1 + ids.shape[1]), self.z.dtype)
        self._score()
        self._has_biases = batch.biases is not None
        if batch.biases is not None:
            self.scores[:, 0] += batch.biases[batch.targets.labels]
            self.scores[:, 1:] += batch.biases[ids]

    def backward(self, d_scores: Rows, weights: FloatArray) -> Gradients:
        """Return the gradient of a weighted sum over the pairs, from derivatives in `scores`."""
        column = weights.astype(self.z.dtype)[:, None]
        dz, d_block = self._sums(d_scores, column * self.z)
        dz *= column
        if self.norms is not None:
            unit_rows_backward(d_block, self.block, self.norms)
        return Gradients(
            self._owners.per_example(dz),
            SparseRows(self.classes, self._merged(d_block)),
            SparseRows(self.classes, self._totals(d_scores, column)) if self._has_biases else None,
        )

    @abstractmethod
    def _places(self, labels: IntArray, ids: IntArray) -> IntArray:
        """Return the classes that are scored, in a flat array."""

    @abstractmethod
    def _rows(self, candidates: IntArray) -> IntArray:
        """Return the classes that stand in the block."""

    @abstractmethod
    def _score(self) -> None:
        """Fill `scores` from contexts and block."""

    @abstractmethod
    def _sums(self, d_scores: Rows, z: Rows) -> tuple[Rows, Rows]:
        """Return gradients in contexts (P, d) that weigh 1, and in the block for weighted `z`."""

    @abstractmethod
    def _merged(self, d_block: Rows) -> Rows:
        """Return the gradient (k, d) in the classes, from that in the block."""

    @abstractmethod
    def _totals(self, d_scores: Rows, weights: Rows) -> Rows:
        """Return the gradient in the biases (k,), for `weights` (P, 1)."""


class _OwnScores(CandidateScores):
    """Each pair has classes of its own."""

    def _places(self, labels: IntArray, ids: IntArray) -> IntArray:
        return np.concatenate([labels[:, None], ids], axis=1).ravel()

    def _rows(self, candidates: IntArray) -> IntArray:
        return self.classes

    def _score(self) -> None:
        places = self.places.reshape(self.scores.shape)

        def score(part: slice) -> None:
            score_rows(self.z[part], self.block, places[part], self.scores[part])

        thread_each(score, self._parts(len(self.z)))

    def _sums(self, d_scores: Rows, z: Rows) -> tuple[Rows, Rows]:
        places = self.places.reshape(d_scores.shape)
        dz, d_block = np.zeros_like(self.z), np.empty_like(self.block)

        def sum_contexts(part: slice) -> None:
            context_sums(d_scores[part], self.block, places[part], dz[part])

        def sum_classes(part: slice) -> None:
            out = d_block[part]
            class_sums(d_scores, z, self.order, self.starts, part.start, out)

        jobs: list[tuple[Callable[[slice], None], slice]] = [
            (sum_contexts, part) for part in self._parts(len(self.z))
        ]
        cuts = [len(self.order) * part.stop // len(self.z) for part in self._parts(len(self.z))]
        ends = [0, *np.searchsorted(self.starts[:-1], cuts)]
        jobs += [(sum_classes, slice(a, b)) for a, b in zip(ends, ends[1:], strict=False)]
        thread_each(lambda job: job[0](job[1]), jobs)
        return dz, d_block

    def _merged(self, d_block: Rows) -> Rows:
        return d_block

    def _totals(self, d_scores: Rows, weights: Rows) -> Rows:
        return group_totals(weights * d_scores, self.order, self.starts)

    def _parts(self, size: int) -> list[slice]:
        work = self.scores.size * self.z.shape[1]
        return chunks(size, size if work < _ONE_THREAD else -(-size // (4 * num_threads())))


class _SharedScores(CandidateScores):
    """One set of classes serves all pairs; the block holds the row of each label, then that set."""

    def _places(self, labels: IntArray, ids: IntArray) -> IntArray:
        return np.concatenate([labels, ids[0]])

    def _rows(self, candidates: IntArray) -> IntArray:
        return candidates

    def _score(self) -> None:
        num = len(self.z)
        score_rows(self.z, self.block, np.arange(num)[:, None], self.scores[:, :1])
        np.matmul(self.z, self.block[num:].T, out=self.scores[:, 1:])

    def _sums(self, d_scores: Rows, z: Rows) -> tuple[Rows, Rows]:
        num = len(z)
        dz, d_block = d_scores[:, 1:] @ self.block[num:], np.empty_like(self.block)
        label_sums(d_scores, z, self.block, dz, d_block)
        np.matmul(d_scores[:, 1:].T, z, out=d_block[num:])
        return dz, d_block

    def _merged(self, d_block: Rows) -> Rows:
        sums = np.empty((len(self.classes), d_block.shape[1]), d_block.dtype)
        add_runs(d_block, self.order, self.starts, 0, sums)
        return sums

    def _totals(self, d_scores: Rows, weights: Rows) -> Rows:
        column = np.concatenate([weights * d_scores[:, :1], d_scores[:, 1:].T @ weights])
        return group_totals(column, self.order, self.starts)
