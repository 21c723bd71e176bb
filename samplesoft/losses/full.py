"""Cross entropy of the full softmax, in blocks of classes: never a matrix of all scores.

`score_blocks` and the functions after it are shared by all losses that sum over all classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._device.arrays import RemoteRows
from samplesoft._jit import chunks, njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.exponential import replace_by_exp
from samplesoft.kernels.products import product
from samplesoft.losses.base import Batch, Gradients, Loss, SparseRows, Targets
from samplesoft.losses.step import score_rows
from samplesoft.losses.vectors import require_finite_rows, unit_rows, unit_rows_backward
from samplesoft.samplers.base import Draw, Rows

# arrays of float32 or float64; all arguments of a call have the same dtype
Floats = NDArray[Any]

# largest number of scores in a block, so that the block stays in the cache between passes over it
_BLOCK_SCORES = 1 << 20
# minimum number of classes in a block; smaller matrix products are slow
_MIN_BLOCK_CLASSES = 64
# number of classes whose terms are summed in the dtype of the scores; these sums are then added in
# float64
_RUN_CLASSES = 32
# Passes over a block use one thread, because the BLAS threads of the last product are still busy.


class FullSoftmaxLoss(Loss):
    r"""Cross entropy of the softmax over all classes.

    The loss of an example is :math:`\log \sum_j \exp(o_j) - \sum_l s_l o_l`, where labels l have
    weights :math:`s_l` that sum to 1; `label_reduction` and `mask_other_labels` change it. Scores
    are computed in blocks of classes, once in each pass, so that memory is dominated by the vectors
    and their gradients. A loss near 0 keeps its digits, because the exponential of the best label
    is not added to those of the other classes.

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
    Scores and gradients are products of dense matrices, whose last bits may depend on the number of
    BLAS threads. For equal bits on any number of cores, run under
    ``with threadpoolctl.threadpool_limits(1, "blas"):``.

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
    ) -> tuple[FloatArray, _ForwardState]:
        targets = batch.targets
        label_scores, signs = label_scores_and_signs(self, batch, draw)
        label_weights = targets.label_weights
        if label_weights is None:
            label_weights = np.ones(len(label_scores))
        if self.mask_other_labels:
            return self._forward_masked(batch, label_scores, label_weights, signs)

        # Let o_best be the largest label score of the example. The loss of a pair with label l is
        # the sum of two terms: log(sum) - o_l = (log(sum) - o_best) + (o_best - o_l), which are
        # `to_best` and the pair's entry of `gaps`.
        pivots = _best_label_pairs(targets, label_scores)

        # The sum leaves out the best label: to_best = log(1 + sum of others / exp(o_best)) then
        # keeps its digits if the other classes are small.
        max_scores, total = self._max_and_exp_sum_of_others(batch, LabelPositions(targets, pivots))
        best = label_scores[pivots]
        weight_sums = targets.per_example(label_weights)

        with np.errstate(all="ignore"):  # `Loss.forward` raises if a loss is not finite
            to_best = np.logaddexp(0.0, max_scores - best + np.log(total))
            gaps = targets.rows(best) - label_scores
            losses = weight_sums * to_best + targets.per_example(label_weights * gaps)
            label_probabilities = np.exp(-gaps - targets.rows(to_best))
            d_labels = targets.rows(weight_sums) * label_probabilities - label_weights

            # for the best label, p - 1 is computed by expm1, which keeps its digits for p near 1
            d_labels[pivots] = weight_sums * np.expm1(-to_best) + (
                weight_sums - label_weights[pivots]
            )

            # the derivative in the score o of a class that is no label is scale * exp(o - max)
            max_scores = np.maximum(max_scores, best.astype(max_scores.dtype))
            scale = weight_sums * np.exp(max_scores - best - to_best)

        return losses, _ForwardState(max_scores, scale, d_labels * signs)

    def _forward_masked(
        self, batch: Batch, label_scores: FloatArray, label_weights: FloatArray, signs: Any
    ) -> tuple[FloatArray, _ForwardState]:
        """Return losses (B,) and state if labels compete only with classes that are not labels."""
        targets = batch.targets
        max_scores, total = self._max_and_exp_sum_of_others(batch, LabelPositions(targets))
        max_scores[total == 0.0] = 0.0  # was -inf, because all classes are labels

        with np.errstate(all="ignore"):
            gaps = targets.rows(max_scores + np.log(total)) - label_scores
            pair_losses = np.logaddexp(0.0, gaps)
            # label weight times 1 - p, for the label's probability p among label and negatives
            label_shortfall = label_weights * np.exp(gaps - pair_losses)
            label_shortfall[gaps == -np.inf] = 0.0
            scale = np.where(total > 0.0, targets.per_example(label_shortfall) / total, 0.0)

        return targets.per_example(label_weights * pair_losses), _ForwardState(
            max_scores, scale, -label_shortfall * signs
        )

    def _max_and_exp_sum_of_others(
        self, batch: Batch, excluded: LabelPositions
    ) -> tuple[Rows, FloatArray]:
        """Return the maximum score (B,), and the sum (B,) of ``exp(score - maximum)``.

        Both are over all classes of an example, except its `excluded` labels.
        """
        rows: Any = batch.class_embeddings
        if isinstance(rows, RemoteRows):
            return rows.exponentials(batch, excluded)
        max_scores = np.full(len(batch.z), -np.inf, batch.z.dtype)
        total = np.zeros(len(batch.z))
        for scores in masked_score_blocks(self, batch, excluded):
            add_exponentials(scores, max_scores, total)
        return max_scores, total

    def _backward(self, batch: Batch, saved: _ForwardState, weights: FloatArray) -> Gradients:
        factor = (weights * saved.scale).astype(batch.z.dtype)
        d_labels = saved.d_labels * batch.targets.rows(weights)
        return gradients_by_blocks(
            self, batch, d_labels, logsumexp_derivatives, saved.max_scores, factor
        )


class _ForwardState(NamedTuple):
    """Arrays of the forward pass from which the backward pass computes derivatives in all scores.

    The derivative in the score o of a class that is not a label is ``scale * exp(o - max_scores)``.
    """

    max_scores: Rows  # (B,)
    scale: FloatArray  # (B,)
    d_labels: FloatArray  # (P,): derivatives in the label scores


def _best_label_pairs(targets: Targets, scores: FloatArray) -> IntArray:
    """Return, for each example, the index (B,) of the pair with the largest label score."""
    if targets.example_ids is None:
        return np.arange(len(scores))
    order = np.lexsort((-scores, targets.example_ids))  # by example, then by descending score
    best: IntArray = order[targets.offsets()]
    return best


class LabelPositions:
    """Finds which labels of `pairs` (k,), by default of all pairs, are in a block of classes."""

    def __init__(self, targets: Targets, pairs: IntArray | None = None) -> None:
        pairs = np.arange(len(targets.labels)) if pairs is None else pairs
        # sorted by class, so that the labels of a block are one slice
        self._pairs = pairs[np.argsort(targets.labels[pairs], kind="stable")]
        self._labels = targets.labels[self._pairs]
        self._example_ids = self._pairs
        if targets.example_ids is not None:
            self._example_ids = targets.example_ids[self._pairs]

    def in_block(self, classes: slice) -> tuple[IntArray, IntArray, IntArray]:
        """Return three arrays (k,) for the k pairs whose label is in the slice `classes`.

        The arrays hold the index of each pair, the position of its label in the slice, and its
        example.
        """
        entries = slice(*np.searchsorted(self._labels, [classes.start, classes.stop]))
        return (
            self._pairs[entries],
            self._labels[entries] - classes.start,
            self._example_ids[entries],
        )


class Block(NamedTuple):
    """Scores of a range of classes. The next block overwrites the array of scores."""

    classes: slice  # r classes
    rows: Rows  # (r, d): their vectors, of norm 1 if normalised
    norms: FloatArray | None  # (r,): norms before the division; None if not normalised
    scores: Rows  # (r, B)


def score_blocks(batch: Batch, normalize: bool) -> Iterator[Block]:
    """Yield the scores of all classes for all contexts, in blocks of consecutive classes.

    The first axis of a block is the class axis, which makes the matrix product fastest. Raises if a
    class vector is not finite, or, with `normalize`, if its norm is not.
    """
    z = batch.z
    n = len(batch.class_embeddings)
    block_size = min(n, max(_MIN_BLOCK_CLASSES, _BLOCK_SCORES // len(z)))
    buffer = np.empty((block_size, len(z)), z.dtype)

    for classes in chunks(n, block_size):
        rows = batch.class_embeddings[classes]
        norms = None
        if normalize:
            ids = np.arange(classes.start, classes.stop)
            rows, norms = unit_rows("class_embeddings", rows.copy(), ids)
        else:
            require_finite_rows(rows, classes.start)

        # no warnings, because callers check that their results are finite
        with np.errstate(over="ignore", invalid="ignore"):
            scores = product(rows, z.T, buffer[: len(rows)])
            if batch.biases is not None:
                scores += batch.biases[classes, None]

        yield Block(classes, rows, norms, scores)


def masked_score_blocks(loss: Loss, batch: Batch, excluded: LabelPositions) -> Iterator[Rows]:
    """Yield the scores (r, B) of each block of r classes, with -inf for `excluded` labels.

    For an absolute loss, they are the absolute scores.
    """
    for block in score_blocks(batch, loss.normalize):
        if loss.absolute:
            np.abs(block.scores, out=block.scores)
        _, columns, examples = excluded.in_block(block.classes)
        block.scores[columns, examples] = -np.inf
        yield block.scores


def gradients_by_blocks(
    loss: Loss, batch: Batch, d_labels: FloatArray, derivatives: Callable[..., None], *extra: Rows
) -> Gradients:
    """Return the gradients of a loss from its derivatives in all scores, block by block.

    ``derivatives(scores, *extra)`` overwrites the scores (r, B) of a block by the derivatives of
    the loss in these scores, as if no class were a label; for an absolute loss it gets the absolute
    scores. The derivatives in the label scores are then replaced by `d_labels` (P,).
    """
    z = batch.z
    n = len(batch.class_embeddings)
    labels = LabelPositions(batch.targets)

    # dz is a sum over all blocks, in float64; the rows of dW need only the block of their classes
    dz = np.zeros(z.shape)
    dW = np.empty((n, z.shape[1]), z.dtype)
    db = np.empty(n, z.dtype)

    for block in score_blocks(batch, loss.normalize):
        classes = block.classes
        scores = block.scores
        if loss.absolute:  # the derivative of |o| is the sign of o
            # one byte per sign, because signs as floats would double the memory of a block
            signs = (scores > 0.0).view(np.int8) - (scores < 0.0).view(np.int8)
            derivatives(np.abs(scores, out=scores), *extra)
            scores *= signs
        else:
            derivatives(scores, *extra)

        pairs, label_rows, examples = labels.in_block(classes)
        scores[label_rows, examples] = d_labels[pairs]
        dz += product(scores.T, block.rows)
        product(scores, z, dW[classes])
        if batch.biases is not None:
            np.sum(scores, axis=1, out=db[classes])

        if block.norms is not None:
            unit_rows_backward(dW[classes], block.rows, block.norms)

    ids = np.arange(n)
    biases = None if batch.biases is None else SparseRows(ids, db)
    return Gradients(dz.astype(z.dtype), SparseRows(ids, dW), biases)


def label_scores_and_signs(loss: Loss, batch: Batch, draw: Draw | None) -> tuple[FloatArray, Any]:
    """Return the label scores (P,), and the factor of the derivatives in them.

    The factor is 1. For an absolute loss, returns the absolute label scores, and their signs (P,)
    as the factor. Raises if a draw is given, because the loss sums over all classes.
    """
    if draw is not None:
        raise TypeError(
            f"`draw` must be None for {type(loss).__name__}, which sums over all classes, got "
            f"{type(draw).__name__}; omit it, or use a sampled loss."
        )

    labels = batch.targets.labels
    rows = batch.class_embeddings.take(labels, axis=0)
    indices = np.arange(len(labels))
    if loss.normalize:
        rows, _ = unit_rows("class_embeddings", rows, labels)

    example_ids = batch.targets.rows(np.arange(len(batch.z)))
    scores = np.empty(len(labels), batch.z.dtype)
    score_rows(batch.z, example_ids, rows, indices[:, None], scores[:, None])
    if batch.biases is not None:
        scores += batch.biases[labels]

    values = scores.astype(np.float64)
    if loss.absolute:
        return np.abs(values), np.sign(values)
    return values, 1.0


@njit
def add_exponentials(scores: Floats, max_scores: Floats, total: FloatArray) -> None:
    """Add a block of scores (r, B) to running sums of ``exp(score - max_score)``.

    Updates the running maxima `max_scores` (B,), which are -inf before the first block, and the
    sums `total` (B,). Overwrites the scores.
    """
    batch_size = len(max_scores)

    # Running maximum and sum (Milakov and Gimelshein, 2018, algorithm 3), block by block: if the
    # maximum rises, the sum so far is multiplied by exp(old maximum - new maximum).
    shift = max_scores.copy()
    for j in range(len(scores)):
        row = scores[j]
        for b in range(batch_size):
            max_scores[b] = max(max_scores[b], row[b])

    for b in range(batch_size):
        old_shift = np.float64(shift[b])
        # if all classes so far are excluded, the maximum is -inf: subtract 0 instead
        shift[b] = max_scores[b] if max_scores[b] != -np.inf else 0.0
        total[b] *= np.exp(old_shift - shift[b])

    partial_sums = np.empty_like(max_scores)
    for start in range(0, len(scores), _RUN_CLASSES):
        partial_sums[:] = 0.0
        for j in range(start, min(start + _RUN_CLASSES, len(scores))):
            row = scores[j]
            for b in range(batch_size):
                row[b] -= shift[b]
            replace_by_exp(row, batch_size)
            for b in range(batch_size):
                partial_sums[b] += row[b]
        for b in range(batch_size):
            total[b] += partial_sums[b]


@njit
def logsumexp_derivatives(scores: Floats, max_scores: Floats, factors: Floats) -> None:
    """Replace scores (r, B) by ``factor * exp(score - max_score)``, the derivatives of logsumexp.

    `factors` (B,) are the weights of the examples, divided by their sums of exponentials.
    """
    batch_size = len(max_scores)
    for j in range(len(scores)):
        row = scores[j]
        for b in range(batch_size):
            row[b] -= max_scores[b]
        replace_by_exp(row, batch_size)
        for b in range(batch_size):
            row[b] *= factors[b]
