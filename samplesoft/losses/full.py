"""Cross entropy of the full softmax, in blocks of classes: never a matrix of all scores.

`class_blocks` and what follows it serve every loss that sums over all classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device.arrays import DistantRows
from samplesoft._jit import chunks, njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.exponential import exp_to
from samplesoft.kernels.products import product
from samplesoft.losses.base import Batch, Gradients, Loss, SparseRows, Targets
from samplesoft.losses.step import score_rows
from samplesoft.losses.vectors import require_finite_rows, unit_rows, unit_rows_backward
from samplesoft.samplers.base import Draw, Rows

Floats = NDArray[Any]  # float32 or float64, the same for all arguments of a call

_BLOCK_NUMBERS = 1 << 20  # scores of a block: they stay in the cache between the passes
_LEAST_CLASSES = 64  # of a block, for a product of matrices to pay
# Threads do not pay in the passes over a block: those of the product of matrices before are still
# at their posts, and would be in the way.
_RUN = 32  # classes that are added up in the type of the scores before they go to float64


class FullSoftmaxLoss(Loss):
    r"""Cross entropy of the softmax over all classes.

    The loss of an example is :math:`\log \sum_j \exp(o_j) - \sum_l s_l o_l`, where labels l have
    shares :math:`s_l` that sum to 1, or what `label_reduction` and `mask_other_labels` make of it.
    Scores are computed in blocks of classes, once in each pass,
    so that memory is that of the vectors and their gradients. A loss near 0 keeps its digits: the
    best label stays out of the running sum.

    Parameters
    ----------
    tau, normalize, absolute, reduction, label_reduction, mask_other_labels
        As for every loss; see `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    Scores and gradients are products of dense matrices, whose last bits may change with the number
    of threads that BLAS uses. Where a run must be the same to the bit on any number of cores, put
    it under ``with threadpoolctl.threadpool_limits(1, "blas"):``.

    References
    ----------
    .. [1] M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018,
       algorithm 3: a running maximum and sum.

    Examples
    --------
    >>> import numpy as np
    >>> loss = FullSoftmaxLoss()
    >>> value, cache = loss.forward([[1.0, 2.0]], np.eye(2), [1])
    >>> round(value, 6)  # log(1 + exp(-1))
    0.313262
    >>> loss.backward(cache).dh.round(6)
    array([[ 0.268941, -0.268941]])
    """

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, _Saved]:
        targets = batch.targets
        own, signs = own_scores(self, batch, draw)
        label_weights = (
            np.ones(len(own)) if targets.label_weights is None else targets.label_weights
        )
        if self.mask_other_labels:
            return self._without_labels(batch, own, label_weights, signs)
        # Pair l loses log(sum) - o_l = to_best + behind_l, where the best label stands between.
        pivots = _best_pairs(targets, own)
        # The best label stays out of the sum, so that log(1 + rest / best) keeps its digits
        # where the rest is small.
        top, total = self._other_classes(batch, LabelPlaces(targets, pivots))
        best, sums = own[pivots], targets.per_example(label_weights)
        with np.errstate(all="ignore"):  # what is not finite here, `Loss.forward` explains
            to_best = np.logaddexp(0.0, top - best + np.log(total))
            behind = targets.rows(best) - own
            losses = sums * to_best + targets.per_example(label_weights * behind)
            d_labels = targets.rows(sums) * np.exp(-behind - targets.rows(to_best)) - label_weights
            # of the best label p - 1, for p near 1 too
            d_labels[pivots] = sums * np.expm1(-to_best) + (sums - label_weights[pivots])
            # of other classes exp(o - top) times the scale; top is at least each of them
            top = np.maximum(top, best.astype(top.dtype))
            scale = sums * np.exp(top - best - to_best)
        return losses, _Saved(top, scale, d_labels * signs)

    def _without_labels(
        self, batch: Batch, own: FloatArray, label_weights: FloatArray, signs: Any
    ) -> tuple[FloatArray, _Saved]:
        """Compute as `_forward` the softmax of each label and of the classes that are no label."""
        targets = batch.targets
        top, total = self._other_classes(batch, LabelPlaces(targets))
        top[total == 0.0] = 0.0  # where all classes are labels
        with np.errstate(all="ignore"):
            behind = targets.rows(top + np.log(total)) - own
            lost = np.logaddexp(0.0, behind)
            # how far the label's probability is below 1
            missed = label_weights * np.exp(behind - lost)
            missed[behind == -np.inf] = 0.0
            scale = np.where(total > 0.0, targets.per_example(missed) / total, 0.0)
        return targets.per_example(label_weights * lost), _Saved(top, scale, -missed * signs)

    def _other_classes(self, batch: Batch, excluded: LabelPlaces) -> tuple[Rows, FloatArray]:
        """Return the largest score (B,) of the other classes, and their sum relative to it."""
        distant: Any = batch.class_embeddings
        if isinstance(distant, DistantRows):
            return distant.exponentials(batch, excluded)
        top = np.full(len(batch.z), -np.inf, batch.z.dtype)
        total = np.zeros(len(batch.z))
        for scores in other_scores(self, batch, excluded):
            add_exponentials(scores, top, total)
        return top, total

    def _backward(self, batch: Batch, saved: _Saved, weights: FloatArray) -> Gradients:
        factor = (weights * saved.scale).astype(batch.z.dtype)
        d_labels = saved.d_labels * batch.targets.rows(weights)
        return gradients_by_blocks(self, batch, d_labels, probabilities, saved.top, factor)


class _Saved(NamedTuple):
    top: Rows  # (B,): largest score
    scale: FloatArray  # (B,): derivative of the loss in it, if it is no label's
    d_labels: FloatArray  # (P,): derivative of the loss in the score of each label


def _best_pairs(targets: Targets, scores: FloatArray) -> IntArray:
    """Return the pair (B,) of each example whose label has the largest score."""
    if targets.example_ids is None:
        return np.arange(len(scores))
    order = np.lexsort((-scores, targets.example_ids))  # by example, the largest score first
    best: IntArray = order[targets.offsets()]
    return best


class LabelPlaces:
    """Where labels of pairs, all by default, stand in the scores of a block of classes."""

    def __init__(self, targets: Targets, pairs: IntArray | None = None) -> None:
        pairs = np.arange(len(targets.labels)) if pairs is None else pairs
        # by class, so that the labels of a block are one slice
        self._pairs = pairs[np.argsort(targets.labels[pairs], kind="stable")]
        self._labels = targets.labels[self._pairs]
        self._example_ids = (
            self._pairs if targets.example_ids is None else targets.example_ids[self._pairs]
        )

    def of(self, part: slice) -> tuple[IntArray, IntArray, IntArray]:
        """Return the pairs whose label is in the block, its place there, and its example."""
        here = slice(*np.searchsorted(self._labels, [part.start, part.stop]))
        return self._pairs[here], self._labels[here] - part.start, self._example_ids[here]


class Block(NamedTuple):
    """Scores of a range of classes; valid until the next block is made."""

    part: slice  # the r classes
    rows: Rows  # (r, d): their vectors, of norm 1 where the loss normalises
    norms: FloatArray | None  # (r,): the norms that they had
    scores: Rows  # (r, B)


def class_blocks(batch: Batch, normalize: bool) -> Iterator[Block]:
    """Yield the scores of all n classes for all contexts, block by block, in their order.

    Classes come first in a block, for the product of matrices is fastest so. A class vector that is
    not finite, or has no finite norm and is to be normalised, is an error.
    """
    z, n = batch.z, len(batch.class_embeddings)
    size = min(n, max(_LEAST_CLASSES, _BLOCK_NUMBERS // len(z)))
    buffer = np.empty((size, len(z)), z.dtype)
    for part in chunks(n, size):
        rows, norms = batch.class_embeddings[part], None
        if normalize:
            ids = np.arange(part.start, part.stop)
            rows, norms = unit_rows("class_embeddings", rows.copy(), ids)
        else:
            require_finite_rows(rows, part.start)
        with np.errstate(over="ignore", invalid="ignore"):  # callers look at the result
            scores = product(rows, z.T, buffer[: len(rows)])
            if batch.biases is not None:
                scores += batch.biases[part, None]
        yield Block(part, rows, norms, scores)


def other_scores(loss: Loss, batch: Batch, excluded: LabelPlaces) -> Iterator[Rows]:
    """Yield scores (r, B) of each block as the loss takes them, -inf where labels are excluded."""
    for block in class_blocks(batch, loss.normalize):
        if loss.absolute:
            np.abs(block.scores, out=block.scores)
        _, classes, examples = excluded.of(block.part)
        block.scores[classes, examples] = -np.inf
        yield block.scores


def gradients_by_blocks(
    loss: Loss, batch: Batch, d_labels: FloatArray, derivatives: Callable[..., None], *more: Rows
) -> Gradients:
    """Return gradients from the derivatives of a loss in all scores.

    `derivatives` writes them over scores (r, B) of a block, or their absolute values, where they
    are right but for pairs of example and label, whose derivatives are `d_labels` (P,). It takes
    `more` after the scores.
    """
    z, n = batch.z, len(batch.class_embeddings)
    labels = LabelPlaces(batch.targets)
    # dz adds up over the blocks, in float64; a row of dW is done with its block
    dz, dW, db = np.zeros(z.shape), np.empty((n, z.shape[1]), z.dtype), np.empty(n, z.dtype)
    for block in class_blocks(batch, loss.normalize):
        part, scores = block.part, block.scores
        if loss.absolute:  # with |o| for o, a derivative has the sign of its score
            # of one byte each, for a block of floats would be a block more of memory
            signs = (scores > 0.0).view(np.int8) - (scores < 0.0).view(np.int8)
            derivatives(np.abs(scores, out=scores), *more)
            scores *= signs
        else:
            derivatives(scores, *more)
        pairs, classes, examples = labels.of(part)
        scores[classes, examples] = d_labels[pairs]  # labels have more than a share of the sum
        dz += product(scores.T, block.rows)
        product(scores, z, dW[part])
        if batch.biases is not None:
            np.sum(scores, axis=1, out=db[part])
        if block.norms is not None:
            unit_rows_backward(dW[part], block.rows, block.norms)
    ids = np.arange(n)
    biases = None if batch.biases is None else SparseRows(ids, db)
    return Gradients(dz.astype(z.dtype), SparseRows(ids, dW), biases)


def own_scores(loss: Loss, batch: Batch, draw: Draw | None) -> tuple[FloatArray, Any]:
    """Return the scores (P,) of the pairs, and the factors of derivatives in them.

    A loss that sums over all classes takes no draw.
    """
    if draw is not None:
        raise TypeError(
            f"`draw` must be None for {type(loss).__name__}, which sums over all classes, got "
            f"{type(draw).__name__}; leave it out, or take a sampled loss."
        )
    labels = batch.targets.labels
    rows, places = batch.class_embeddings.take(labels, axis=0), np.arange(len(labels))
    if loss.normalize:
        rows, _ = unit_rows("class_embeddings", rows, labels)
    example_ids = batch.targets.rows(np.arange(len(batch.z)))
    scores = np.empty(len(labels), batch.z.dtype)
    score_rows(batch.z, example_ids, rows, places[:, None], scores[:, None])
    if batch.biases is not None:
        scores += batch.biases[labels]
    own = scores.astype(np.float64)
    return (np.abs(own), np.sign(own)) if loss.absolute else (own, 1.0)


@njit
def add_exponentials(scores: Floats, top: Floats, total: FloatArray) -> None:
    """Add a block of classes to running sums of ``exp(score - top)``.

    Scores (r, B) are overwritten. The largest scores `top` (B,), -inf before the first block, and
    the sums `total` (B,) are updated.
    """
    batch = len(top)
    # A running maximum and sum (Milakov and Gimelshein, 2018, algorithm 3), block by block: the
    # sum so far shrinks where a greater score comes.
    shift = top.copy()
    for j in range(len(scores)):
        row = scores[j]
        for b in range(batch):
            top[b] = max(top[b], row[b])
    for b in range(batch):
        before = np.float64(shift[b])
        shift[b] = top[b] if top[b] != -np.inf else 0.0  # no class yet but excluded ones
        total[b] *= np.exp(before - shift[b])
    run = np.empty_like(top)
    for begin in range(0, len(scores), _RUN):
        run[:] = 0.0
        for j in range(begin, min(begin + _RUN, len(scores))):
            row = scores[j]
            for b in range(batch):
                row[b] -= shift[b]
            exp_to(row, batch)
            for b in range(batch):
                run[b] += row[b]
        for b in range(batch):
            total[b] += run[b]


@njit
def probabilities(scores: Floats, top: Floats, factor: Floats) -> None:
    """Replace scores (r, B) by ``factor * exp(score - top)``, the derivatives of a log of a sum.

    `top` (B,) are largest scores, `factor` (B,) weights divided by the sums of exponentials.
    """
    batch = len(top)
    for j in range(len(scores)):
        row = scores[j]
        for b in range(batch):
            row[b] -= top[b]
        exp_to(row, batch)
        for b in range(batch):
            row[b] *= factor[b]
