"""Scores of the label and of drawn classes of each example, and gradients of both kinds of vectors.

The classes that occur stand in a block of rows, so that norms, gradients and sums over duplicates
cost what the block costs, and never what n classes cost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from samplesoft._jit import chunks, num_threads, thread_each
from samplesoft._limits import quiet
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.losses.candidate_scores import (
    class_sums,
    context_sums,
    group_totals,
    label_scores,
    label_sums,
    scaled_rows,
    score_rows,
)
from samplesoft.kernels.sort_ids import add_runs, equal_runs
from samplesoft.losses.base import Batch
from samplesoft.losses.gradients import Gradients, SparseRows
from samplesoft.losses.vectors import unit_rows, unit_rows_backward
from samplesoft.samplers.base import Rows

_ONE_THREAD = 1 << 20  # multiplications below which a second thread does not pay


def candidate_scores(batch: Batch, ids: IntArray, normalize: bool) -> CandidateScores:
    """Score labels and drawn classes `ids`, (B, m) or one set (1, m) for all examples."""
    shared = len(ids) == 1 < len(batch.z)
    return (_SharedScores if shared else _OwnScores)(batch, ids, normalize)


class CandidateScores(ABC):
    """Scores of the labels, `own` (P,), and of the draws of each example, `drawn` (B, m).

    Besides them what their gradients need. All pairs of an example have its draws.
    """

    def __init__(self, batch: Batch, ids: IntArray, normalize: bool) -> None:
        self.z, self.owners = batch.z, batch.targets.rows(np.arange(len(batch.z)))
        labels = batch.targets.labels
        candidates = np.concatenate([labels, ids.ravel()])
        self.classes, self.places, self.order, self.starts = equal_runs(
            candidates, len(batch.class_embeddings)
        )
        rows = self._rows(candidates)
        self.block, self.norms = batch.class_embeddings.take(rows, axis=0), None
        if normalize:
            self.block, self.norms = unit_rows("class_embeddings", self.block, rows)
        self.label_rows = self._label_rows(len(labels))
        self.own = np.empty(len(labels), self.z.dtype)
        label_scores(self.z, self.owners, self.block, self.label_rows, self.own)
        self.drawn = np.empty((len(self.z), ids.shape[1]), self.z.dtype)
        self._has_biases = batch.biases is not None
        with quiet():  # losses that are not finite are refused
            self._score()
            if batch.biases is not None:
                self.own += batch.biases[labels]
                self.drawn += batch.biases[ids]

    def backward(self, d_own: Rows, d_drawn: Rows, weights: FloatArray) -> Gradients:
        """Return the gradient of a weighted sum over the examples.

        From derivatives of what each loses in `own` and `drawn`, and its weight (B,).
        """
        column = weights.astype(self.z.dtype)[:, None]
        dz, d_block = self._sums(d_own, d_drawn, column * self.z)
        label_sums(d_own, self.z, self.block, self.label_rows, self.owners, dz)
        dz *= column
        if self.norms is not None:
            unit_rows_backward(d_block, self.block, self.norms)
        return Gradients(
            dz,
            SparseRows(self.classes, self._merged(d_block)),
            SparseRows(self.classes, self._totals(d_own, d_drawn, column))
            if self._has_biases
            else None,
        )

    @abstractmethod
    def _rows(self, candidates: IntArray) -> IntArray:
        """Return the classes that stand in the block."""

    @abstractmethod
    def _label_rows(self, pairs: int) -> IntArray:
        """Return the rows (P,) of the block where the labels stand."""

    @abstractmethod
    def _score(self) -> None:
        """Fill `drawn` from contexts and block."""

    @abstractmethod
    def _sums(self, d_own: Rows, d_drawn: Rows, z: Rows) -> tuple[Rows, Rows]:
        """Return gradients in contexts (B, d) by the draws, and in the block for weighted `z`."""

    @abstractmethod
    def _merged(self, d_block: Rows) -> Rows:
        """Return the gradient (k, d) in the classes, from that in the block."""

    @abstractmethod
    def _totals(self, d_own: Rows, d_drawn: Rows, weights: Rows) -> Rows:
        """Return the gradient in the biases (k,), for `weights` (B, 1)."""


class _OwnScores(CandidateScores):
    """Each example has classes of its own."""

    def _rows(self, candidates: IntArray) -> IntArray:
        return self.classes

    def _label_rows(self, pairs: int) -> IntArray:
        return self.places[:pairs]

    def _score(self) -> None:
        places = self._drawn_places()

        def score(part: slice) -> None:
            score_rows(self.z[part], self.block, places[part], self.drawn[part])

        thread_each(score, self._parts(len(self.z)))

    def _sums(self, d_own: Rows, d_drawn: Rows, z: Rows) -> tuple[Rows, Rows]:
        places = self._drawn_places()
        dz, d_block = np.zeros_like(self.z), np.empty_like(self.block)

        def sum_contexts(part: slice) -> None:
            context_sums(d_drawn[part], self.block, places[part], dz[part])

        def sum_classes(part: slice) -> None:
            runs = self.owners, self.order, self.starts, part.start
            class_sums(d_own, d_drawn, z, *runs, d_block[part])

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

    def _totals(self, d_own: Rows, d_drawn: Rows, weights: Rows) -> Rows:
        of_labels = weights[self.owners, 0] * d_own
        every = np.concatenate([of_labels, (weights * d_drawn).ravel()])
        return group_totals(every, self.order, self.starts)

    def _drawn_places(self) -> IntArray:
        """Return the rows (B, m) of the block where the draws stand."""
        return self.places[len(self.own) :].reshape(self.drawn.shape)

    def _parts(self, size: int) -> list[slice]:
        work = self.drawn.size * self.z.shape[1]
        return chunks(size, size if work < _ONE_THREAD else -(-size // (4 * num_threads())))


class _SharedScores(CandidateScores):
    """One set of classes serves all examples; the block has a row for each label, then that set."""

    def _rows(self, candidates: IntArray) -> IntArray:
        return candidates

    def _label_rows(self, pairs: int) -> IntArray:
        return np.arange(pairs)

    def _score(self) -> None:
        np.matmul(self.z, self.block[len(self.own) :].T, out=self.drawn)

    def _sums(self, d_own: Rows, d_drawn: Rows, z: Rows) -> tuple[Rows, Rows]:
        pairs, d_block = len(self.own), np.empty_like(self.block)
        scaled_rows(d_own, z, self.owners, d_block[:pairs])
        np.matmul(d_drawn.T, z, out=d_block[pairs:])
        return d_drawn @ self.block[pairs:], d_block

    def _merged(self, d_block: Rows) -> Rows:
        sums = np.empty((len(self.classes), d_block.shape[1]), d_block.dtype)
        add_runs(d_block, self.order, self.starts, 0, sums)
        return sums

    def _totals(self, d_own: Rows, d_drawn: Rows, weights: Rows) -> Rows:
        every = np.concatenate([weights[self.owners, 0] * d_own, (d_drawn.T @ weights)[:, 0]])
        return group_totals(every, self.order, self.starts)
