"""The bilateral softmax loss of recommendation: a weight for the negatives' log-sum-exp."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks, thread_each
from samplesoft._validation import FloatArray, as_positive
from samplesoft.kernels.losses.bilateral_terms import bilateral_terms, leave_out_labels
from samplesoft.losses.base import Batch
from samplesoft.losses.draws import check_draw
from samplesoft.losses.gradients import Gradients
from samplesoft.losses.sampled import SampledLoss
from samplesoft.losses.scores import candidate_scores
from samplesoft.samplers.base import Draw
from samplesoft.schemes import SCHEMES, Scheme

_CHUNK_NUMBERS = 1 << 16


class BilateralSoftmaxLoss(SampledLoss):
    r"""Minus the label's score, plus a weight times the log-sum-exp of the draws.

    With draws :math:`s_i` from q and a weight w it is

    .. math:: w \log \sum_{i:\, s_i \ne t} \exp(o_{s_i} - \log(m \, q_{s_i})) - o_t

    Labels are not in the sum, not those of other pairs of the example either, so that they are no
    one's negatives. With several labels the score is their mean by their weights, and a step costs
    (examples times draws), however many labels there are. The loss may be below 0, and is no
    estimate of the full softmax loss: it ranks, and its scores are no logits of probabilities.

    Parameters
    ----------
    negative_weight : float
        The weight w, greater than 0.
    **options
        ``tau``, ``normalize``, ``absolute`` and ``reduction`` of `samplesoft.losses.base.Loss`;
        ``scheme`` is ``"masked"``: draws of labels are left out. Where no other draw is left, the
        loss is 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **Where the weight comes from.** The loss of [1]_ has a log-mean-exp on both sides, of cosines f
    with a temperature for each: :math:`-\log \text{mean}_{+} e^{f / T_1} + \log \text{mean}_{-}
    e^{f / T_2}`. As :math:`T \log \text{mean}\, e^{f / T}` is the greatest mean of f under any
    distribution, less T times its divergence from that of the examples, a low :math:`T_2` makes
    hard negatives count, and a high :math:`T_1` lets some positives be noise. With one positive in
    a pair, as here, the first term is :math:`-f_t / T_1`. With scores :math:`o = f / T_2`, that is
    :math:`\tau = 1 / T_2`, the loss times :math:`T_1 / T_2` is :math:`-o_t + w \log
    \text{mean}_{-} e^o` for :math:`w = T_1 / T_2`. With w = 1 it is the softmax loss with the label
    out of the denominator. The logarithm of a sum differs from that of a mean by a constant.

    References
    ----------
    .. [1] J. Wu et al., "BSL: Understanding and Improving Softmax Loss for Recommendation", ICDE
       2024, arXiv 2312.12882.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> draw = UniformSampler(2).sample(np.ones((1, 1)), 4, rng=0)
    >>> loss = BilateralSoftmaxLoss(negative_weight=1.5)
    >>> value, cache = loss.forward([[1.0]], [[0.0], [3.0]], [1], draw)
    >>> loss.backward(cache).dW.rows.tolist()  # what the draws weigh, and the label
    [[1.5], [-1.0]]
    """

    schemes: ClassVar[dict[str, Scheme]] = {
        "masked": replace(SCHEMES["masked"], formula="sum of e_j / (m q_j), j != t", base="none")
    }

    def __init__(self, *, negative_weight: float = 1.2, **options: Any) -> None:
        super().__init__(**options)
        self.negative_weight = as_positive("negative_weight", negative_weight)

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        targets, size = batch.targets, len(batch.z)
        ids, log_counts = check_draw(draw, size, len(batch.class_embeddings))
        scores = candidate_scores(batch, ids, self.normalize)
        own, drawn = scores.own, scores.drawn
        signs = (np.sign(own), np.sign(drawn)) if self.absolute else None
        if self.absolute:
            own, drawn = np.abs(own), np.abs(drawn)
        shares = np.ones(len(own)) if targets.shares is None else targets.shares
        means = targets.per_example(own * shares)
        ends = np.append(targets.firsts(), len(own))
        losses, d_means, d_drawn = np.empty(size), np.empty(size), np.empty_like(drawn)

        def work(part: slice) -> None:
            logits: FloatArray = np.empty((part.stop - part.start, 1 + drawn.shape[1]))
            logits[:, 0] = means[part]
            shared = slice(None) if len(ids) == 1 else part
            np.subtract(drawn[part], log_counts[shared], out=logits[:, 1:])
            finite = np.isfinite(logits).all(axis=1)
            starts = ends[part.start : part.stop + 1]
            leave_out_labels(
                ids[shared], targets.labels, starts, len(batch.class_embeddings), logits
            )
            self._terms(logits, losses[part])
            losses[part][~finite] = np.nan
            d_means[part], d_drawn[part] = logits[:, 0], logits[:, 1:]

        thread_each(work, chunks(size, max(1, _CHUNK_NUMBERS // (1 + drawn.shape[1]))))
        d_own = (targets.rows(d_means) * shares).astype(own.dtype)
        if signs is not None:
            d_own *= signs[0]
            d_drawn *= signs[1]
        return losses, (scores, d_own, d_drawn)

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        scores, d_own, d_drawn = saved
        gradients: Gradients = scores.backward(d_own, d_drawn, weights)
        return gradients

    def _terms(self, logits: FloatArray, losses: FloatArray) -> None:
        bilateral_terms(logits, losses, self.negative_weight)
