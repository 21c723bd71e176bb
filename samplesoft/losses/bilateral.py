"""Losses whose sum is of the draws alone, without the label: importance sampling, and bilateral."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, as_positive
from samplesoft.kernels.weights import greatest, total
from samplesoft.losses.sampled import SampledLoss, Terms, merge_exponentials, weigh
from samplesoft.samplers.base import Draw
from samplesoft.schemes import SCHEMES, Scheme, select


class ImportanceSoftmaxLoss(SampledLoss):
    r"""Softmax loss with the partition function by importance sampling: no term for the label.

    With draws :math:`s_i` from q, which may be the label, it is

    .. math:: \log \sum_i \exp(o_{s_i} - \log(m \, q_{s_i})) - o_t

    and in its gradient each draw has its normalised weight. The gradient depends on q up to a
    factor alone, so that a q that is known but for its normalisation will do.

    Parameters
    ----------
    scheme : {"importance"}
        A draw of the label counts as one of any other class does.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `forward` also if an example has no draw left, where
        `mask_other_labels` leaves out draws of its other labels: the sum is then empty, and its
        logarithm -inf.

    Notes
    -----
    It tends to the full softmax loss as m grows, as `SampledSoftmaxLoss` does, which has the exact
    term of the label besides and so less bias: with ten normal logits, q uniform and m = 5 an L1
    norm of 0.17 in place of 0.20. Take it to rerun [1]_, or for draws whose q is known up to a
    factor, such as those of `samplesoft.samplers.LazyGumbel`.

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

    def require_draws(self, losses: FloatArray) -> None:
        """Raise for an example that no draw is left for, whose loss is -inf."""
        if (losses == -np.inf).any():
            raise ValueError(
                f"`draw` must hold for each label of example {int(np.argmin(losses))} the label "
                "itself or a class that is none of its labels, got other labels alone, which "
                "`mask_other_labels` leaves out; draw more, or take mask_other_labels=False."
            )

    def _terms_of(self, draw: Draw, num_classes: int) -> Terms:
        return Terms(
            bilateral_terms,
            (1.0, -np.inf),
            merge=merge_exponentials,
            adds_exponentials=True,
        )


class BilateralSoftmaxLoss(SampledLoss):
    r"""Minus the label's score, plus a weight times the log-sum-exp of the draws.

    With draws :math:`s_i` from q and a weight w it is

    .. math:: w \log \sum_{i:\, s_i \ne t} \exp(o_{s_i} - \log(m \, q_{s_i})) - o_t

    The label is not in the sum; with `mask_other_labels`, as in `LinearSoftmaxSettings`, neither
    are the other labels of its example, which are then no one's negatives. The loss may be below 0,
    and is no estimate of the full softmax loss: it ranks, and its scores are no logits of
    probabilities.

    Parameters
    ----------
    negative_weight : float
        The weight w, greater than 0.
    **options
        Those of `samplesoft.losses.base.Loss`; ``scheme`` is ``"masked"``: draws of labels are left
        out. Where no other draw is left, the loss is 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **Where the weight comes from.** The loss of [1]_ has a log-mean-exp on both sides, of cosines f
    with a temperature for each: :math:`-\log \text{mean}_{+} e^{f / T_1} + \log \text{mean}_{-}
    e^{f / T_2}`. As :math:`T \log \text{mean}\, e^{f / T}` is the largest mean of f under any
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

    def _terms_of(self, draw: Draw, num_classes: int) -> Terms:
        return Terms(
            bilateral_terms,
            (self.negative_weight, 0.0),
            merge=merge_exponentials,
            adds_exponentials=True,
        )


@njit
def bilateral_terms(
    logits: FloatArray, losses: FloatArray, weight: float, empty: float = 0.0
) -> None:
    """Write ``weight * logsumexp(logits[1:]) - logits[0]`` of each row; it becomes its gradient.

    A row of logits (P, 1 + m) without any draw of weight, all -inf, has the loss `empty` and
    gradient 0.
    """
    for b in range(len(logits)):
        row = logits[b]
        # The label is not in the sum: its derivative is -1, whatever the draws are. With no draw of
        # weight the log-sum-exp is -inf, and the example pulls at nothing.
        top = greatest(row[1:])
        losses[b] = empty if top == -np.inf else weight * top - row[0]
        row[0] = 0.0 if top == -np.inf else -1.0
        for k in range(1, len(row)):
            row[k] = row[k] if top == -np.inf else row[k] - top
    for b in range(len(logits)):
        row = logits[b, 1:]
        weigh(row)  # relative to the largest draw, in `losses` already
        mass = total(row)
        if mass > 0.0:
            losses[b] += weight * np.log(mass)
            for k in range(len(row)):
                row[k] *= weight / mass
