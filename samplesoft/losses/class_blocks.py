"""Scores of all classes in blocks, for losses that sum over them: never a matrix of all scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from samplesoft._jit import chunks
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.losses.candidate_scores import label_scores
from samplesoft.losses.base import Batch
from samplesoft.losses.gradients import Gradients, SparseRows
from samplesoft.losses.targets import Targets
from samplesoft.losses.vectors import require_finite_rows, unit_rows, unit_rows_backward
from samplesoft.samplers.base import Rows

_BLOCK_NUMBERS = 1 << 20  # scores of a block: they stay in the cache between the passes
_LEAST_CLASSES = 64  # of a block, for a product of matrices to pay


class LabelPlaces:
    """Where labels of pairs, all by default, stand in the scores of a block of classes."""

    def __init__(self, targets: Targets, pairs: IntArray | None = None) -> None:
        pairs = np.arange(len(targets.labels)) if pairs is None else pairs
        self._pairs = pairs[np.argsort(targets.labels[pairs], kind="stable")]
        self._labels = targets.labels[self._pairs]
        self._owners = self._pairs if targets.owners is None else targets.owners[self._pairs]

    def of(self, part: slice) -> tuple[IntArray, IntArray, IntArray]:
        """Return the pairs whose label is in the block, its place there, and its example."""
        here = slice(*np.searchsorted(self._labels, [part.start, part.stop]))
        return self._pairs[here], self._labels[here] - part.start, self._owners[here]


@dataclass(frozen=True, eq=False)
class Block:
    """Scores of a range of classes; valid until the next block is made."""

    part: slice  # the r classes
    rows: Rows  # (r, d): their vectors, of norm 1 where the loss normalises
    norms: FloatArray | None  # (r,): the norms that they had
    offsets: Rows  # (r,) or (0,): their biases, which are not in the scores yet
    scores: Rows  # (r, B): products of rows and contexts


def class_blocks(
    z: Rows, class_embeddings: Rows, biases: Rows | None, normalize: bool
) -> Iterator[Block]:
    """Yield the scores of all n classes for contexts `z` (B, d), block by block, in their order.

    Classes come first in a block, for the product of matrices is fastest so. A class vector that is
    not finite, or has a norm of 0 and is to be normalised, is an error.
    """
    n = len(class_embeddings)
    size = min(n, max(_LEAST_CLASSES, _BLOCK_NUMBERS // len(z)))
    buffer = np.empty((size, len(z)), z.dtype)
    for part in chunks(n, size):
        rows, norms = class_embeddings[part], None
        if normalize:
            ids = np.arange(part.start, part.stop)
            rows, norms = unit_rows("class_embeddings", rows.copy(), ids)
        else:
            require_finite_rows(rows, part.start)
        offsets = np.empty(0, z.dtype) if biases is None else biases[part]
        with np.errstate(over="ignore", invalid="ignore"):  # callers look at the result
            scores = np.matmul(rows, z.T, out=buffer[: len(rows)])
        yield Block(part, rows, norms, offsets, scores)


def gradients_by_blocks(
    batch: Batch, normalize: bool, derivatives: Callable[[Block], None], d_labels: FloatArray
) -> Gradients:
    """Return gradients from the derivatives of a loss in all scores.

    `derivatives` writes them over the scores of a block, where they are right but for pairs of
    example and label, whose derivatives are `d_labels` (P,).
    """
    z, n = batch.z, len(batch.class_embeddings)
    labels = LabelPlaces(batch.targets)
    dz, dW, db = np.zeros(z.shape), np.empty((n, z.shape[1]), z.dtype), np.empty(n, z.dtype)
    for block in class_blocks(z, batch.class_embeddings, batch.biases, normalize):
        part, scores = block.part, block.scores
        derivatives(block)
        pairs, classes, examples = labels.of(part)
        scores[classes, examples] = d_labels[pairs]
        dz += scores.T @ block.rows
        np.matmul(scores, z, out=dW[part])
        if batch.biases is not None:
            np.sum(scores, axis=1, out=db[part])
        if block.norms is not None:
            unit_rows_backward(dW[part], block.rows, block.norms)
    ids = np.arange(n)
    biases = None if batch.biases is None else SparseRows(ids, db)
    return Gradients(dz.astype(z.dtype), SparseRows(ids, dW), biases)


def label_scores_of(batch: Batch, normalize: bool) -> Rows:
    """Return the score (P,) of each pair of example and label."""
    labels = batch.targets.labels
    rows, places = batch.class_embeddings, labels
    if normalize:
        rows, _ = unit_rows("class_embeddings", rows[labels], labels)
        places = np.arange(len(labels))
    owners = batch.targets.rows(np.arange(len(batch.z)))
    scores = np.empty(len(labels), batch.z.dtype)
    label_scores(batch.z, owners, rows, places, scores)
    if batch.biases is not None:
        scores += batch.biases[labels]
    return scores
