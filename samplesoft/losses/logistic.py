"""Logistic regression of the label against drawn classes, or against all other classes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, as_finite
from samplesoft.kernels.exponential import replace_by_exp64, replace_by_log1p
from samplesoft.kernels.weights import total
from samplesoft.losses.base import Batch, Gradients, Loss
from samplesoft.losses.full import (
    Floats,
    LabelPositions,
    gradients_by_blocks,
    label_scores_and_signs,
    masked_score_blocks,
)
from samplesoft.losses.sampled import LossKernel, SampledLoss, exp_in_place
from samplesoft.samplers.base import Draw
from samplesoft.schemes import Scheme, select

# largest number of logits that `logistic_kernel` computes at a time, except for one longer row
_BUFFER_LOGITS = 1 << 10


class LogisticLoss(SampledLoss):
    """Logistic loss of label and draws: ``softplus(-label_logit) + sum(softplus(draw_logits))``.

    Parameters
    ----------
    scheme : str, optional
        A key of `schemes`; by default the first.
    offset : float
        Added to all scores. A softmax does not depend on an offset. But scores of this loss learn
        logarithms of probabilities, which ``tau h . c`` may be unable to reach without an offset.
    **options
        Options of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    """

    is_binary = True

    def __init__(self, *, scheme: str | None = None, offset: float = 0.0, **options: Any) -> None:
        super().__init__(scheme=scheme, **options)
        self.offset = as_finite("offset", offset)

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        return LossKernel(logistic_kernel, (1.0,), merge=merge_softplus)


class NCELoss(LogisticLoss):
    r"""Noise-contrastive estimation: logistic regression of the label against the draws.

    Let k(j) be the expected count of class j, m q(j) with replacement. The logit of a class is
    :math:`l_j = o_j - \log k(j)`. The loss is :math:`\text{softplus}(-l_t) + \sum_i
    \text{softplus}(l_{s_i})` for the label t and draws :math:`s_i`. At its minimum, scores are
    log-probabilities, without a sum over all classes. If scores are log-probabilities, its gradient
    tends to the gradient of the full softmax as m grows.

    Parameters
    ----------
    scheme : {"candidate", "candidate_masked"}
        Whether a draw of the label counts as a negative, as in the theory, or is masked.
    offset : float
        Added to all scores. Scores learn log-probabilities, about -4 on average for 50 classes,
        which dot products of vectors of norm 1 cannot reach; ``-log(n)`` is a good offset for them.
    **options
        Options of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] M. Gutmann and A. Hyvärinen, "Noise-contrastive estimation: a new estimation principle
       for unnormalized statistical models", AISTATS 2010, section 2.
    .. [2] A. Mnih and Y. W. Teh, "A fast and simple algorithm for training neural probabilistic
       language models", ICML 2012, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> sampler, h, labels = UniformSampler(3), np.ones((1, 1)), np.array([2])
    >>> scores = np.log([[0.2], [0.3], [0.5]])  # log-probabilities
    >>> draw = sampler.sample(h, 100_000, rng=0)
    >>> count = sampler.log_expected_count(h, labels[:, None], 100_000)[:, 0]
    >>> loss = NCELoss()
    >>> value, cache = loss.forward(h, scores, labels, draw, label_log_count=count)
    >>> loss.backward(cache).dW.rows[:, 0].round(2)
    array([ 0.2,  0.3, -0.5])
    """

    schemes: ClassVar[dict[str, Scheme]] = select("candidate", "candidate_masked")


class NegativeSamplingLoss(LogisticLoss):
    r"""Logistic regression of the label against the draws, on uncorrected scores.

    The loss is :math:`\text{softplus}(-o_t) + \sum_i \text{softplus}(o_{s_i})`. Scores are not
    corrected for the proposal: the loss learns vectors, not probabilities. At the minimum,
    :math:`o_j = \log(p_j / (m q_j))` if draws may contain the label.

    Parameters
    ----------
    scheme : {"negatives", "masked", "kept"}
        Treatment of accidental hits: ``"negatives"``: `forward` raises if there are any;
        ``"masked"``: they are masked; ``"kept"``: they count as negatives.
    offset : float
        Added to all scores; with ``-log(m)``, a class with a score of 0 at the minimum has p = q.
    **options
        Options of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] T. Mikolov et al., "Distributed representations of words and phrases and their
       compositionality", NeurIPS 2013, eq. 4.
    .. [2] O. Levy and Y. Goldberg, "Neural word embedding as implicit matrix factorization",
       NeurIPS 2014, section 3.1: the minimum.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> h, labels = np.ones((1, 1)), np.array([1])
    >>> draw = UniformSampler(2).sample(h, 3, exclude=labels, rng=0)
    >>> value, cache = NegativeSamplingLoss().forward(h, [[0.0], [0.0]], labels, draw)
    >>> round(value / float(np.log(2.0)), 6)  # the label and three negatives, at even odds
    4.0
    """

    schemes: ClassVar[dict[str, Scheme]] = {
        name: scheme.without_correction()
        for name, scheme in select("negatives", "masked", "kept").items()
    }


class FullLogisticLoss(Loss):
    r"""A logistic regression for each class, of whether an example has the class as a label.

    The loss of an example is :math:`\sum_{l} \log(1 + e^{-o_l}) + \sum_{j} \log(1 + e^{o_j})`, over
    its labels l and all other classes j: negative sampling with every class as a negative.
    `label_reduction` is ``"ova"``, and ``1 / (1 + exp(-o))`` estimates the probability that an
    example has a label, independently of its other labels.

    Parameters
    ----------
    label_reduction : {"ova"}
        One versus all.
    **options
        ``tau``, ``normalize``, ``absolute`` and ``reduction`` of `samplesoft.losses.base.Loss`.
        Labels of an example are never negatives of this loss, whatever `mask_other_labels` is.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    As in `FullSoftmaxLoss`, scores are computed in blocks of classes, and last bits may depend on
    the number of BLAS threads.

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
                f"{label_reduction!r}; use FullSoftmaxLoss for other values."
            )

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, FloatArray]:
        label_scores, signs = label_scores_and_signs(self, batch, draw)
        losses = np.zeros(len(batch.z))
        for scores in masked_score_blocks(self, batch, LabelPositions(batch.targets)):
            add_softplus(scores, losses)

        # no warnings, because `Loss.forward` raises if a loss is not finite
        with np.errstate(over="ignore", invalid="ignore"):
            # add the labels, which `masked_score_blocks` excluded from the negatives
            losses += batch.targets.per_example(np.logaddexp(0.0, -label_scores))
            # 1 / (1 + exp(score)) without overflow
            d_label_logits = np.exp(-np.logaddexp(0.0, label_scores))

        return losses, -d_label_logits * signs  # the derivatives in the label scores

    def _backward(self, batch: Batch, saved: FloatArray, weights: FloatArray) -> Gradients:
        d_labels = saved * batch.targets.rows(weights)
        return gradients_by_blocks(self, batch, d_labels, softplus_derivatives, weights)


@njit
def logistic_kernel(logits: FloatArray, losses: FloatArray, weight: float = 1.0) -> None:
    """Write ``weight * softplus(-logits[0]) + sum(softplus(logits[1:]))`` of each row.

    Overwrites logits (P, 1 + m), with the label's in column 0, by the gradient.
    """
    # several rows at a time, because vector instructions are slow on single short rows
    width = logits.shape[1]
    max_rows = max(1, _BUFFER_LOGITS // width)
    small = np.empty(max_rows * width)
    large = np.empty(max_rows * width)

    for start in range(0, len(logits), max_rows):
        rows = logits[start : start + max_rows]
        rows[:, 0] = -rows[:, 0]  # the loss of the label is softplus of minus its logit
        softplus(rows.reshape(-1), small, large)
        for b in range(len(rows)):
            label_index = b * width
            draws = slice(b * width + 1, (b + 1) * width)
            draw_losses = total(large[draws]) + total(small[draws])
            losses[start + b] = weight * (large[label_index] + small[label_index]) + draw_losses
            rows[b, 0] *= -weight


@njit
def softplus(x: FloatArray, small: FloatArray, large: FloatArray) -> None:
    """Write two terms whose sum is ``log(1 + exp(x))``; overwrite x by ``1 / (1 + exp(-x))``.

    The naive formula overflows for large x. The terms are `small`, ``log(1 + exp(-|x|))``, and
    `large`, ``max(x, 0)``. Callers sum them separately, so that small terms keep their digits.
    """
    length = len(x)
    for k in range(length):
        small[k] = -abs(x[k])
        large[k] = max(x[k], 0.0)
    exp_in_place(small[:length])
    # the derivative 1 / (1 + exp(-x)) is computed from the exponential exp(-|x|)
    for k in range(length):
        x[k] = (1.0 if x[k] >= 0.0 else small[k]) / (1.0 + small[k])
    replace_by_log1p(small[:length])


@njit
def merge_softplus(logits: FloatArray, merged: FloatArray) -> None:
    """Write, for each row of logits (B, m), the logit whose softplus is the row's sum of softplus.

    The merged logits (B,) are -inf for rows in which all logits are -inf. Overwrites the rows by
    the derivatives of the merged logits.
    """
    small = np.empty(logits.shape[1])
    large = np.empty(logits.shape[1])

    for b in range(len(logits)):
        row = logits[b]
        softplus(row, small, large)
        loss = total(large) + total(small)
        derivative = -np.expm1(-loss)  # the derivative of softplus at the merged logit
        # the inverse of softplus, log(exp(loss) - 1), without the exponential of a large loss
        merged[b] = loss + np.log(derivative) if loss > 0.0 else -np.inf
        for k in range(len(row)):
            row[k] = row[k] / derivative if loss > 0.0 else 0.0


@njit
def add_softplus(scores: Floats, total: FloatArray) -> None:
    """Add ``log(1 + exp(score))`` for a block of scores (r, B) to the sums `total` (B,)."""
    batch_size = len(total)
    small = np.empty(batch_size)

    for j in range(len(scores)):
        row = scores[j]
        for b in range(batch_size):
            small[b] = -abs(row[b])
            total[b] += 0.0 if row[b] <= 0.0 else row[b]  # max(row[b], 0), or NaN for NaN
        replace_by_exp64(small, batch_size)
        replace_by_log1p(small)
        for b in range(batch_size):
            total[b] += small[b]


@njit
def softplus_derivatives(scores: Floats, factors: FloatArray) -> None:
    """Replace scores (r, B) by ``factor / (1 + exp(-score))``, for factors (B,)."""
    batch_size = len(factors)
    small = np.empty(batch_size)
    for j in range(len(scores)):
        row = scores[j]
        for b in range(batch_size):
            small[b] = -abs(row[b])
        replace_by_exp64(small, batch_size)
        for b in range(batch_size):
            row[b] = factors[b] * (1.0 if row[b] >= 0.0 else small[b]) / (1.0 + small[b])
