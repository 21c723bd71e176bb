"""Logistic regression of the label against other classes: drawn ones, or all."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, as_finite
from samplesoft.kernels.exponential import exp64_to, log1p_to
from samplesoft.kernels.weights import total
from samplesoft.losses.base import Batch, Gradients, Loss
from samplesoft.losses.full import (
    Floats,
    LabelPlaces,
    gradients_by_blocks,
    other_scores,
    own_scores,
)
from samplesoft.losses.sampled import SampledLoss, Terms, weigh
from samplesoft.samplers.base import Draw
from samplesoft.schemes import Scheme, select

_BUFFER = 1 << 10  # logits that `logistic_terms` computes at a time


class LogisticLoss(SampledLoss):
    """The sum of softplus of the logit of each draw, and of that of minus the label's.

    Parameters
    ----------
    scheme : str, optional
        A key of `schemes`; the first of them by default.
    offset : float
        Added to all scores. Nothing brings scores to a level here, as the sum over the classes does
        in a softmax: they learn logarithms of probabilities, which ``tau h . c`` may not reach.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    """

    is_binary = True

    def __init__(self, *, scheme: str | None = None, offset: float = 0.0, **options: Any) -> None:
        super().__init__(scheme=scheme, **options)
        self.offset = as_finite("offset", offset)

    def _terms_of(self, draw: Draw, num_classes: int) -> Terms:
        return Terms(logistic_terms, (1.0,), merge=merge_softplus)


class NCELoss(LogisticLoss):
    r"""Logistic regression of the label against the draws, whose scores learn log-probabilities.

    With k(j) the expected number of draws of class j, which is m q(j) with replacement, the logit
    of a class is :math:`o_j - \log k(j)`, and the loss is the sum of softplus of that of each draw
    and of minus that of the label. No sum over the classes is needed: where the scores are
    log-probabilities, the gradient tends to that of the full softmax as m grows.

    Parameters
    ----------
    scheme : {"candidate", "candidate_masked"}
        Whether a draw of the label counts as a negative, as the theory has it, or is left out.
    offset : float
        Added to all scores, which learn log-probabilities: about -4 on average with 50 classes.
        Dot products of vectors of norm 1 do not reach that; ``-log(n)`` brings them there.
    **options
        Those of `samplesoft.losses.base.Loss`.

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
    r"""Logistic regression of the label against the draws, on scores as they are.

    The loss is :math:`\text{softplus}(-o_t) + \sum_i \text{softplus}(o_{s_i})`. Nothing corrects
    for how classes were drawn: it learns vectors, and no probabilities. At its minimum
    :math:`o_j` is :math:`\log(p_j / (m q_j))` for draws that may repeat the label.

    Parameters
    ----------
    scheme : {"negatives", "masked", "kept"}
        What is done with draws of the label: there are none, as `forward` checks; they are left
        out; or they count as negatives.
    offset : float
        Added to all scores; with ``-log(m)`` a score of 0 says that p and q are equal.
    **options
        Those of `samplesoft.losses.base.Loss`.

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
    ) -> tuple[FloatArray, FloatArray]:
        own, signs = own_scores(self, batch, draw)
        lost = np.zeros(len(batch.z))
        for scores in other_scores(self, batch, LabelPlaces(batch.targets)):
            add_softplus(scores, lost)
        with np.errstate(over="ignore", invalid="ignore"):  # `Loss.forward` explains them
            # labels are positives, and were left out of the negatives
            lost += batch.targets.per_example(np.logaddexp(0.0, -own))
            missed = np.exp(-np.logaddexp(0.0, own))  # 1 / (1 + exp(own)), at any size
        return lost, -missed * signs  # derivatives in the scores of the labels

    def _backward(self, batch: Batch, saved: FloatArray, weights: FloatArray) -> Gradients:
        d_labels = saved * batch.targets.rows(weights)
        return gradients_by_blocks(self, batch, d_labels, sigmoids, weights)


@njit
def logistic_terms(logits: FloatArray, losses: FloatArray, weight: float = 1.0) -> None:
    """Write ``weight * softplus(-logits[0]) + sum(softplus(logits[1:]))``; rows become gradients.

    Logits (P, 1 + m) have the label's in column 0; losses (P,) are written.
    """
    width = logits.shape[1]
    step = max(1, _BUFFER // width)  # rows at a time, for vector instructions on short ones too
    small, large = np.empty(step * width), np.empty(step * width)
    for first in range(0, len(logits), step):
        rows = logits[first : first + step]
        rows[:, 0] = -rows[:, 0]  # the label is the positive: softplus of minus its logit
        softplus(rows.reshape(-1), small, large)
        for b in range(len(rows)):
            own, draws = b * width, slice(b * width + 1, (b + 1) * width)
            of_draws = total(large[draws]) + total(small[draws])
            losses[first + b] = weight * (large[own] + small[own]) + of_draws
            rows[b, 0] *= -weight


@njit
def softplus(x: FloatArray, small: FloatArray, large: FloatArray) -> None:
    """Write two terms of ``log(1 + exp(x))``, which becomes its derivative ``1 / (1 + exp(-x))``.

    They are ``log(1 + exp(-|x|))`` and ``max(x, 0)``: no sum overflows, nor loses small ones.
    """
    size = len(x)
    for k in range(size):
        small[k] = -abs(x[k])
        large[k] = max(x[k], 0.0)
    weigh(small[:size])
    # the derivative comes from the exponential that is there already
    for k in range(size):
        x[k] = (1.0 if x[k] >= 0.0 else small[k]) / (1.0 + small[k])
    log1p_to(small[:size])


@njit
def merge_softplus(logits: FloatArray, merged: FloatArray) -> None:
    """Write the logit (B,) whose softplus is that of all of a row, which becomes its derivatives.

    `logits` are (B, m). A row of -inf merges to -inf.
    """
    small, large = np.empty(logits.shape[1]), np.empty(logits.shape[1])
    for b in range(len(logits)):
        row = logits[b]
        softplus(row, small, large)
        lost = total(large) + total(small)
        share = -np.expm1(-lost)  # the derivative of softplus at the merged logit
        # the inverse of softplus, log(exp(lost) - 1), without the exponential of a large loss
        merged[b] = lost + np.log(share) if lost > 0.0 else -np.inf
        for k in range(len(row)):
            row[k] = row[k] / share if lost > 0.0 else 0.0


@njit
def add_softplus(scores: Floats, total: FloatArray) -> None:
    """Add ``log(1 + exp(score))`` of a block of classes, scores (r, B), to sums `total` (B,)."""
    size = len(total)
    small = np.empty(size)
    for j in range(len(scores)):
        row = scores[j]
        for b in range(size):
            small[b] = -abs(row[b])
            total[b] += 0.0 if row[b] <= 0.0 else row[b]  # NaN too, so that it is seen
        exp64_to(small, size)
        log1p_to(small)
        for b in range(size):
            total[b] += small[b]


@njit
def sigmoids(scores: Floats, factor: FloatArray) -> None:
    """Replace scores (r, B) by ``factor / (1 + exp(-score))``, for factors (B,)."""
    size = len(factor)
    small = np.empty(size)
    for j in range(len(scores)):
        row = scores[j]
        for b in range(size):
            small[b] = -abs(row[b])
        exp64_to(small, size)
        for b in range(size):
            row[b] = factor[b] * (1.0 if row[b] >= 0.0 else small[b]) / (1.0 + small[b])
