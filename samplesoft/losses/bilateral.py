"""Losses whose sum has only draws, and no term for the label: importance sampling, bilateral."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, as_positive
from samplesoft.kernels.weights import row_max, total
from samplesoft.losses.sampled import LossKernel, SampledLoss, exp_in_place, merge_exponentials
from samplesoft.samplers.base import Draw
from samplesoft.schemes import SCHEMES, Scheme, select


class ImportanceSoftmaxLoss(SampledLoss):
    r"""Softmax loss whose sum over all classes is estimated by importance sampling alone.

    With draws :math:`s_i` from q, which may equal the label, the loss is

    .. math:: \log \sum_i \exp(o_{s_i} - \log(m \, q_{s_i})) - o_t

    In the gradient each draw has its normalised weight. The gradient therefore does not depend on
    the normalisation of q, and an unnormalised q suffices.

    Parameters
    ----------
    scheme : {"importance"}
        A draw of the label counts like a draw of any other class.
    **options
        Options of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed. In `forward` also if `mask_other_labels` excludes all draws of
        an example: the sum is then empty, and its logarithm -inf.

    Notes
    -----
    The loss tends to the full softmax loss as m grows. `SampledSoftmaxLoss` does so too, and has
    less bias because its term of the label is exact: with ten normal logits, q uniform and m = 5,
    the L1 norm of the gradient bias is 0.17 in place of 0.20. Use this loss to reproduce [1]_, or
    for draws with an unnormalised q, such as draws of `samplesoft.samplers.LazyGumbel`.

    References
    ----------
    .. [1] Y. Bengio and J.-S. Senécal, "Adaptive importance sampling to accelerate training of a
       neural probabilistic language model", IEEE Transactions on Neural Networks, 2008.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> draw = UniformSampler(2).sample(np.ones((1, 1)), 4, rng=0)
    >>> value, cache = ImportanceSoftmaxLoss().forward([[1.0]], [[0.0], [3.0]], [1], draw)
    >>> bool(np.isclose(value, np.log(2 * np.exp(3.0 * draw.ids).mean()) - 3.0))
    True
    """

    schemes: ClassVar[dict[str, Scheme]] = select("importance")
    is_softmax = True

    def require_usable_draws(self, losses: FloatArray) -> None:
        """Raise if all draws of an example are masked, which makes its loss (B,) -inf."""
        if (losses == -np.inf).any():
            raise ValueError(
                f"`draw` must hold for each label of example {int(np.argmin(losses))} the label "
                "itself or a class that is none of its labels, got other labels alone, which "
                "`mask_other_labels` leaves out; draw more, or take mask_other_labels=False."
            )

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        return LossKernel(
            bilateral_kernel,
            (1.0, -np.inf),
            merge=merge_exponentials,
            adds_exponentials=True,
        )


class BilateralSoftmaxLoss(SampledLoss):
    r"""Minus the label's score, plus a weight times the log-sum-exp of the draws.

    With draws :math:`s_i` from q and a weight w, the loss is

    .. math:: w \log \sum_{i:\, s_i \ne t} \exp(o_{s_i} - \log(m \, q_{s_i})) - o_t

    The label is not in the sum. With `mask_other_labels`, as in `LinearSoftmaxSettings`, the other
    labels of its example are excluded too. The loss may be negative. It does not estimate the full
    softmax loss: it is for ranking, and its scores are not logits of probabilities.

    Parameters
    ----------
    negative_weight : float
        The weight w, greater than 0.
    **options
        Options of `samplesoft.losses.base.Loss`; ``scheme`` is ``"masked"``: accidental hits are
        masked. If no other draw remains, the loss is 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **Origin of the weight.** The loss of [1]_ has a log-mean-exp on both sides, of cosines f with
    two temperatures: :math:`-\log \text{mean}_{+} e^{f / T_1} + \log \text{mean}_{-}
    e^{f / T_2}`. Here :math:`T \log \text{mean}\, e^{f / T}` is the maximum, over distributions,
    of the mean of f less T times the divergence from the distribution of the examples. A low
    :math:`T_2` therefore emphasises hard negatives, and a high :math:`T_1` tolerates noisy
    positives. This loss has one positive in a pair: the first term is :math:`-f_t / T_1`. With
    scores :math:`o = f / T_2`, so that :math:`\tau = 1 / T_2`, the loss times :math:`T_1 / T_2` is
    :math:`-o_t + w \log \text{mean}_{-} e^o` for :math:`w = T_1 / T_2`. For w = 1 it is the
    softmax loss with the label removed from the denominator. The logarithms of a sum and of a mean
    differ by a constant.

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
    >>> loss.backward(cache).dW.rows.tolist()  # of the drawn class, and of the label
    [[1.5], [-1.0]]
    """

    schemes: ClassVar[dict[str, Scheme]] = {
        "masked": replace(SCHEMES["masked"], formula="sum of e_j / (m q_j), j != t", base="none")
    }

    def __init__(self, *, negative_weight: float = 1.2, **options: Any) -> None:
        super().__init__(**options)
        self.negative_weight = as_positive("negative_weight", negative_weight)

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        return LossKernel(
            bilateral_kernel,
            (self.negative_weight, 0.0),
            merge=merge_exponentials,
            adds_exponentials=True,
        )


@njit
def bilateral_kernel(
    logits: FloatArray, losses: FloatArray, weight: float, loss_without_draws: float = 0.0
) -> None:
    """Write ``weight * logsumexp(logits[1:]) - logits[0]``; overwrite rows by its gradient.

    If all draws in a row of logits (P, 1 + m) are -inf, the loss is `loss_without_draws`, and the
    gradient is 0.
    """
    for b in range(len(logits)):
        row = logits[b]
        # The label is not in the sum, so the derivative in its logit is -1. If all draws are
        # masked, logsumexp is -inf, and all derivatives are set to 0.
        max_logit = row_max(row[1:])
        losses[b] = loss_without_draws if max_logit == -np.inf else weight * max_logit - row[0]
        row[0] = 0.0 if max_logit == -np.inf else -1.0
        for k in range(1, len(row)):
            row[k] = row[k] if max_logit == -np.inf else row[k] - max_logit

    for b in range(len(logits)):
        row = logits[b, 1:]
        exp_in_place(row)  # logits relative to their maximum, which `losses` already includes
        mass = total(row)
        if mass > 0.0:
            losses[b] += weight * np.log(mass)
            for k in range(len(row)):
                row[k] *= weight / mass
