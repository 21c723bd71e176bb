"""A logistic loss of each class: one versus all, over all classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray
from samplesoft.kernels.losses.full_logistic import add_softplus, sigmoids
from samplesoft.kernels.losses.full_softmax import finish
from samplesoft.losses.base import Batch, Loss
from samplesoft.losses.class_blocks import (
    Block,
    LabelPlaces,
    class_blocks,
    gradients_by_blocks,
    label_scores_of,
)
from samplesoft.losses.gradients import Gradients
from samplesoft.samplers.base import Draw


class FullLogisticLoss(Loss):
    r"""A logistic regression of each class against all examples that do not have it.

    The loss of an example is :math:`\sum_{l} \log(1 + e^{-o_l}) + \sum_{j} \log(1 + e^{o_j})`, over
    its labels l and all classes j that are none. It is what negative sampling would be with
    every class as a negative: `label_reduction` is ``"ova"``, and ``1 / (1 + exp(-o))`` estimates
    the probability that an example has a label, whatever others it has.

    Parameters
    ----------
    label_reduction : {"ova"}
        One versus all.
    **options
        ``tau``, ``normalize``, ``absolute`` and ``reduction`` of `samplesoft.losses.base.Loss`.
        Labels are never negatives here, whether masked or not.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    As with `FullSoftmaxLoss`, scores are computed in blocks of classes, and last bits may change
    with the threads of BLAS.

    References
    ----------
    .. [1] A. K. Menon et al., "Multilabel reductions: what is my loss optimising?", NeurIPS 2019,
       section 3: one versus all.

    Examples
    --------
    >>> import numpy as np
    >>> loss = FullLogisticLoss()
    >>> value, cache = loss.forward([[1.0, 2.0]], np.eye(2), [1])
    >>> round(value, 6)  # log(1 + exp(1)) + log(1 + exp(-2))
    1.44019
    >>> loss.backward(cache).dh.round(6)
    array([[ 0.731059, -0.119203]])
    """

    is_binary = True

    def __init__(self, *, label_reduction: str = "ova", **options: Any) -> None:
        super().__init__(label_reduction=label_reduction, **options)
        if label_reduction != "ova":
            raise ValueError(
                f"`label_reduction` must be 'ova' for {type(self).__name__}, got "
                f"{label_reduction!r}; take FullSoftmaxLoss for the others."
            )

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, _Saved]:
        if draw is not None:
            raise TypeError(
                f"`draw` must be None for {type(self).__name__}, which sums over all classes, got "
                f"{type(draw).__name__}; leave it out, or take a sampled loss."
            )
        targets, places = batch.targets, LabelPlaces(batch.targets)
        own = label_scores_of(batch, self.normalize).astype(np.float64)
        signs = np.sign(own) if self.absolute else 1.0
        if self.absolute:
            own = np.abs(own)
        total = np.zeros(len(batch.z))
        for block in class_blocks(batch.z, batch.class_embeddings, batch.biases, self.normalize):
            finish(block.scores, block.offsets, self.absolute)
            add_softplus(block.scores, *places.of(block.part)[1:], total)
        with np.errstate(over="ignore", invalid="ignore"):  # `Loss.forward` explains them
            total += targets.per_example(np.logaddexp(0.0, -own))
            missed = np.exp(-np.logaddexp(0.0, own))
        return total, _Saved(-missed * signs)

    def _backward(self, batch: Batch, saved: _Saved, weights: FloatArray) -> Gradients:
        def derivatives(block: Block) -> None:
            scores = block.scores
            finish(scores, block.offsets, False)
            if not self.absolute:
                sigmoids(scores, weights)
                return
            signs = np.sign(scores)
            np.abs(scores, out=scores)
            sigmoids(scores, weights)
            scores *= signs

        d_labels = saved.d_labels * batch.targets.rows(weights)
        return gradients_by_blocks(batch, self.normalize, derivatives, d_labels)


class _Saved(NamedTuple):
    d_labels: FloatArray  # (P,): derivative of the loss in the score of each label
