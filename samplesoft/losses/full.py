"""Cross entropy of the full softmax, in blocks of classes: never a matrix of all scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.losses.full_softmax import add_exponentials, finish, probabilities
from samplesoft.losses.base import Batch, Loss
from samplesoft.losses.class_blocks import (
    Block,
    LabelPlaces,
    class_blocks,
    gradients_by_blocks,
    label_scores_of,
)
from samplesoft.losses.gradients import Gradients
from samplesoft.losses.targets import Targets
from samplesoft.samplers.base import Draw, Rows


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
        if draw is not None:
            raise TypeError(
                f"`draw` must be None for {type(self).__name__}, which sums over all classes, got "
                f"{type(draw).__name__}; leave it out, or take a sampled loss."
            )
        targets = batch.targets
        own = label_scores_of(batch, self.normalize).astype(np.float64)
        signs = np.sign(own) if self.absolute else 1.0
        if self.absolute:
            own = np.abs(own)
        shares = np.ones(len(own)) if targets.shares is None else targets.shares
        if self.mask_other_labels:
            return self._without_labels(batch, own, shares, signs)
        pivots = _best_pairs(targets, own)
        top, total = self._other_classes(batch, LabelPlaces(targets, pivots))
        best, sums = own[pivots], targets.per_example(shares)
        with np.errstate(all="ignore"):  # what is not finite here, `Loss.forward` explains
            to_best = np.logaddexp(0.0, top - best + np.log(total))
            behind = targets.rows(best) - own
            losses = sums * to_best + targets.per_example(shares * behind)
            d_labels = targets.rows(sums) * np.exp(-behind - targets.rows(to_best)) - shares
            d_labels[pivots] = sums * np.expm1(-to_best) + (sums - shares[pivots])
            top = np.maximum(top, best.astype(top.dtype))
            scale = sums * np.exp(top - best - to_best)
        return losses, _Saved(top, scale, d_labels * signs)

    def _without_labels(
        self, batch: Batch, own: FloatArray, shares: FloatArray, signs: Any
    ) -> tuple[FloatArray, _Saved]:
        """Compute as `_forward` the softmax of each label and of the classes that are no label."""
        targets = batch.targets
        top, total = self._other_classes(batch, LabelPlaces(targets))
        top[total == 0.0] = 0.0  # where all classes are labels
        with np.errstate(all="ignore"):
            behind = targets.rows(top + np.log(total)) - own
            lost = np.logaddexp(0.0, behind)
            missed = shares * np.exp(
                behind - lost
            )  # by how much the label's probability is below 1
            missed[behind == -np.inf] = 0.0
            scale = np.where(total > 0.0, targets.per_example(missed) / total, 0.0)
        return targets.per_example(shares * lost), _Saved(top, scale, -missed * signs)

    def _other_classes(self, batch: Batch, excluded: LabelPlaces) -> tuple[Rows, FloatArray]:
        """Return the greatest score (B,) of the other classes, and their sum relative to it."""
        top = np.full(len(batch.z), -np.inf, batch.z.dtype)
        total = np.zeros(len(batch.z))
        for block in class_blocks(batch.z, batch.class_embeddings, batch.biases, self.normalize):
            finish(block.scores, block.offsets, self.absolute)
            add_exponentials(block.scores, *excluded.of(block.part)[1:], top, total)
        return top, total

    def _backward(self, batch: Batch, saved: _Saved, weights: FloatArray) -> Gradients:
        factor = (weights * saved.scale).astype(batch.z.dtype)

        def derivatives(block: Block) -> None:
            probabilities(block.scores, block.offsets, self.absolute, saved.top, factor)

        d_labels = saved.d_labels * batch.targets.rows(weights)
        return gradients_by_blocks(batch, self.normalize, derivatives, d_labels)


class _Saved(NamedTuple):
    top: Rows  # (B,): greatest score
    scale: FloatArray  # (B,): derivative of the loss in it, if it is no label's
    d_labels: FloatArray  # (P,): derivative of the loss in the score of each label


def _best_pairs(targets: Targets, scores: FloatArray) -> IntArray:
    """Return the pair (B,) of each example whose label has the greatest score."""
    if targets.owners is None:
        return np.arange(len(scores))
    order = np.lexsort((-scores, targets.owners))
    best: IntArray = order[targets.firsts()]
    return best
