"""Ranking losses of the label against drawn classes; scores are not log-probabilities."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.special import digamma

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.weights import total
from samplesoft.losses.logistic import softplus
from samplesoft.losses.sampled import LossKernel, SampledLoss
from samplesoft.samplers.base import Draw
from samplesoft.schemes import SCHEMES, Scheme

_MASKED = {"masked": SCHEMES["masked"].without_correction()}


class BPRLoss(SampledLoss):
    r"""Bayesian personalised ranking: a logistic loss of the label's score minus each draw's score.

    With K draws that are not the label the loss is

    .. math:: \frac{1}{K} \sum_{i:\, s_i \ne t} \log\big(1 + \exp(o_{s_i} - o_t)\big)

    Parameters
    ----------
    scheme : {"masked"}
        Accidental hits are masked; with `mask_other_labels` also draws of the example's other
        labels. The loss is 0 if no draw remains.
    **options
        Options of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    [1]_ draws one class, uniformly, for each pair of example and label. The mean over more draws
    has the same expectation and less variance. With uniform draws it is a smooth bound of the
    label's mean rank, and weighs all ranks equally. Use it to compare with published results. For
    top-k lists, sampled softmax with the same number of draws is better and faster; see the section
    "Losses and draws of the recommender" of docs/benchmarks.md. Each pair of label and draw needs a
    logarithm, so that time grows with the number of labels of an example.

    References
    ----------
    .. [1] S. Rendle, C. Freudenthaler, Z. Gantner and L. Schmidt-Thieme, "BPR: Bayesian
       personalized ranking from implicit feedback", UAI 2009, section 4.1.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> h, labels = np.ones((1, 1)), np.array([1])
    >>> draw = UniformSampler(2).sample(h, 3, exclude=labels, rng=0)
    >>> value, cache = BPRLoss().forward(h, [[0.0], [0.0]], labels, draw)
    >>> round(value, 6), BPRLoss().backward(cache).dW.rows[:, 0].tolist()
    (0.693147, [0.5, -0.5])
    """

    schemes: ClassVar[dict[str, Scheme]] = _MASKED

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        return LossKernel(bpr_kernel)


class WARPLoss(SampledLoss):
    r"""Weighted approximate-rank pairwise loss: a hinge on the first draw within the margin.

    Let the N-th of the draws :math:`s_1, s_2, \dots` that are not the label be the first with
    :math:`1 + o_{s_N} - o_t > 0`. The estimated rank of the label is
    :math:`r = \lfloor (n - 1) / N \rfloor`, and the loss is

    .. math:: \Phi(r) \, (1 + o_{s_N} - o_t), \qquad \Phi(r) = \sum_{i = 1}^{r} \frac{1}{i}

    or 0 if none of the m draws is within the margin. The gradient treats :math:`\Phi` as constant.

    Parameters
    ----------
    scheme : {"masked"}
        Accidental hits are masked, and not counted; with `mask_other_labels` also draws of the
        example's other labels.
    **options
        Options of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `forward` also for draws without replacement.

    Notes
    -----
    N estimates the rank only if draws are uniform. `tau` is the inverse of the margin: the label
    should lead by 1 / tau in scores before multiplication by tau. A label that leads all m draws
    has no gradient, so that m limits the ranks that the loss can improve. Only one of m draws has a
    gradient, so that steps are noisy, even more if a batch shares its draws, because all examples
    try them in the same order. Use it to compare with published results.

    References
    ----------
    .. [1] J. Weston, S. Bengio and N. Usunier, "WSABIE: Scaling up to large vocabulary image
       annotation", IJCAI 2011, algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> h, labels = np.ones((1, 1)), np.array([3])
    >>> draw = UniformSampler(4).sample(h, 9, exclude=labels, rng=0)
    >>> value, cache = WARPLoss().forward(h, [[0.0], [0.0], [0.0], [0.5]], labels, draw)
    >>> round(value, 6)  # the first draw is too near: (1 + 1/2 + 1/3) (1 + 0 - 0.5)
    0.916667
    """

    schemes: ClassVar[dict[str, Scheme]] = _MASKED
    with_replacement = True  # N estimates the rank only if draws are independent

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        ranks = (num_classes - 1) // np.arange(1, 1 + draw.ids.shape[1])
        harmonic = digamma(ranks + 1.0) + np.euler_gamma
        return LossKernel(warp_kernel, (harmonic,))


@njit
def bpr_kernel(logits: FloatArray, losses: FloatArray) -> None:
    """Write the mean of ``softplus(logits[1:] - logits[0])`` over the draws that are not masked.

    Overwrites rows of logits (P, 1 + m) by the gradient. Masked draws have the logit -inf.
    """
    small = np.empty(logits.shape[1] - 1)
    large = np.empty(logits.shape[1] - 1)

    for b in range(len(logits)):
        label = logits[b, 0]
        draws = logits[b, 1:]
        num_weighted = 0
        for k in range(len(draws)):
            num_weighted += draws[k] > -np.inf
            draws[k] -= label

        softplus(draws, small, large)
        weight = 1.0 / max(num_weighted, 1)
        losses[b] = weight * (total(large) + total(small))
        for k in range(len(draws)):
            draws[k] *= weight
        logits[b, 0] = -total(draws)


@njit
def warp_kernel(logits: FloatArray, losses: FloatArray, harmonic: FloatArray) -> None:
    """Write the WARP loss (P,) of each row of logits (P, 1 + m), and overwrite rows by gradients.

    The margin of draw k is ``1 + logits[k] - logits[0]``. If the first draw with a positive margin
    is the N-th of the draws that are not masked, the loss is ``harmonic[N - 1]`` times its margin;
    without such a draw, it is 0. Masked draws have the logit -inf.
    """
    for b in range(len(logits)):
        label = logits[b, 0]
        draws = logits[b, 1:]
        num_tried = 0
        derivative = 0.0
        losses[b] = 0.0

        for k in range(len(draws)):
            margin = 1.0 + (draws[k] - label)
            num_tried += draws[k] > -np.inf
            draws[k] = 0.0
            if derivative == 0.0 and margin > 0.0:
                # harmonic[N - 1] is 0 if N >= n, because the estimated rank is then 0
                derivative = harmonic[num_tried - 1]
                losses[b] = derivative * margin
                draws[k] = derivative

        logits[b, 0] = -derivative
