"""One-vs-each: a bound of the softmax loss that is a sum over classes, estimated without bias."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.weights import total
from samplesoft.losses.logistic import softplus
from samplesoft.losses.sampled import LossKernel, SampledLoss
from samplesoft.samplers.base import Draw
from samplesoft.schemes import SCHEMES, Scheme


class OneVsEachLoss(SampledLoss):
    r"""Upper bound of the softmax loss: a sum over pairs of the label and one other class.

    The bound is :math:`\sum_{j \ne t} \log(1 + e^{o_j - o_t})`. It is at least the softmax loss,
    because :math:`\prod_j (1 + x_j) \ge 1 + \sum_j x_j`. With m draws :math:`s_i` from q it is

    .. math:: \sum_{i:\, s_i \ne t} \frac{\log(1 + e^{o_{s_i} - o_t})}{m \, q_{s_i}}

    Its mean equals the bound, and the mean of its gradient equals the gradient of the bound, for
    every m, and for every q that is positive for all classes.

    Parameters
    ----------
    scheme : {"masked"}
        Accidental hits are masked; draws that exclude the label are accepted too.
    **options
        Options of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **When to use it.** If the draws are few and the proposal is far from the softmax, so that the
    bias of sampled softmax is harmful. The gradient in a draw's score is at most the draw's weight
    :math:`1 / (m q_j)`, however far the score is above the label's. In
    ``figures/unbiased_training.py``, training with 20 uniform draws of 2,000 classes reaches a
    softmax loss of 3.26 with this loss, and of 5.31 with sampled softmax.
    With many draws, or with a better proposal, sampled softmax reaches a lower loss, because this
    bound is a different objective. For unconstrained scores, such as a table of contexts and
    classes, the minimum of the bound also has log-probabilities as scores: all its logistic
    regressions of pairs are consistent. Scores that are products of short vectors are constrained,
    and are affected by all n classes, also by classes that do not compete with the label.

    At equal scores the loss is :math:`(n - 1) \log 2`, not :math:`\log n`. Gradients are therefore
    larger than for a softmax, and learning rates should be smaller: in that figure, by a factor
    of 10 / n.
    The optimal q for the gradient in h is proportional to
    :math:`|c_j - c_t| / (1 + e^{o_t - o_j})`, flatter than the softmax.

    References
    ----------
    .. [1] M. K. Titsias, "One-vs-each approximation to softmax for scalable estimation of
       probabilities", NeurIPS 2016, sections 2 and 3.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> rows, h, labels = np.array([[0.0], [1.0], [3.0]]), np.ones((9999, 1)), np.zeros(9999, int)
    >>> draw = UniformSampler(3).sample(h, 2, rng=0)
    >>> value, _ = OneVsEachLoss().forward(h, rows, labels, draw)
    >>> bound = np.logaddexp(0.0, [1.0, 3.0]).sum()
    >>> round(value, 1), round(float(bound), 1)
    (4.4, 4.4)
    """

    schemes: ClassVar[dict[str, Scheme]] = {
        "masked": replace(SCHEMES["masked"], formula="sum of log(1 + e_j / e_t) / (m q_j), j != t")
    }
    why_no_bias = "it has no bias for a bound of the full softmax loss, and does not estimate that"

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        return LossKernel(one_vs_each_kernel, weighs_draws=True)


@njit
def one_vs_each_kernel(logits: FloatArray, losses: FloatArray, weights: FloatArray) -> None:
    """Write the losses (P,): sums over draws of weight times ``log(1 + exp(logit - label_logit))``.

    `weights` are (P, m). Overwrites the logits (P, 1 + m), with the label's in column 0, by the
    gradients.
    """
    width = logits.shape[1]
    for b in range(len(logits)):
        label_logit = logits[b, 0]
        for k in range(width):
            logits[b, k] -= label_logit

    small = np.empty(logits.size)
    large = np.empty(logits.size)
    softplus(logits.reshape(-1), small, large)

    for b in range(len(logits)):
        losses[b] = 0.0
        for k in range(1, width):
            weight = weights[b, k - 1]
            index = b * width + k
            losses[b] += weight * (large[index] + small[index])
            logits[b, k] *= weight
        logits[b, 0] = -total(logits[b, 1:])
