"""Other forms of the softmax loss: sums over the classes, of which a sum over draws has no bias.

The softmax loss is the logarithm of a sum, and the logarithm of an unbiased estimate is biased.
Here the logarithm goes first: one loss bounds it, the other brings in a number for each example.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, as_nonnegative, as_real_array
from samplesoft.kernels.weights import total
from samplesoft.losses.base import Batch, Cache, Gradients
from samplesoft.losses.logistic import softplus
from samplesoft.losses.sampled import SampledLoss, Terms, softmax_terms
from samplesoft.samplers.base import Draw
from samplesoft.schemes import SCHEMES, Scheme, select


class OneVsEachLoss(SampledLoss):
    r"""A bound of the softmax loss by pairs of the label and one other class.

    The bound is :math:`\sum_{j \ne t} \log(1 + e^{o_j - o_t})`. It is at least the softmax loss,
    for :math:`\prod_j (1 + x_j) \ge 1 + \sum_j x_j`. With m draws :math:`s_i` from q the loss is

    .. math:: \sum_{i:\, s_i \ne t} \frac{\log(1 + e^{o_{s_i} - o_t})}{m \, q_{s_i}}

    whose mean, and that of its gradient, are the bound's for every m, and every q that reaches all
    classes.

    Parameters
    ----------
    scheme : {"masked"}
        Draws of the label are left out; draws that exclude it may be given as well.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **When to take it.** With few draws from a proposal far from the softmax, where the bias of
    sampled softmax hurts: no draw pulls harder than its weight :math:`1 / (m q_j)`, however far
    above the label it scores. In ``figures/unbiased_training.py``, 20 uniform draws of 2,000
    classes lead to a softmax loss of 3.26, and with sampled softmax to 5.31. With many draws, or
    good ones, sampled softmax leads further, for this is another loss. Where scores are free, as
    those of a table of contexts and classes, the minimum of the bound has logarithms of
    probabilities too: each pair is a logistic regression, and all of them agree. Products of short
    vectors are not free, and all n classes pull at them, not only those that compete with the
    label.

    At equal scores the loss is :math:`(n - 1) \log 2`, not :math:`\log n`: gradients are longer
    than those of a softmax, and learning rates smaller, there by 10 / n. The best q for the
    gradient in h is in proportion to :math:`|c_j - c_t| / (1 + e^{o_t - o_j})`, flatter than the
    softmax.

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

    def _terms_of(self, draw: Draw, num_classes: int) -> Terms:
        return Terms(one_vs_each_terms, weighs_draws=True)


class DoubleSumLoss(SampledLoss):
    r"""The softmax loss with a number u for each example, over which it is to be minimised too.

    As :math:`\log x = \min_u (u + x e^{-u} - 1)`, the softmax loss of an example is

    .. math:: \min_u \; u + e^{-u} \Big(1 + \sum_{j \ne t} e^{o_j - o_t}\Big) - 1

    and a sum over examples and classes is left to be minimised, with as many numbers u as there are
    examples. Draws of j that weigh :math:`1 / (m q_j)` estimate it, and its gradient in contexts,
    class vectors and u, without bias, for every m, and every q that reaches all classes. At the
    best u, which is the softmax loss itself, the mean gradient is that of the full softmax.

    With L the loss of `SampledSoftmaxLoss` on the same draws, the loss is
    :math:`u + e^{L - u} - 1`, and its gradient that of L times :math:`e^{L - u}`: sampled softmax
    is what is left if each draw chooses the best u for itself, and there its bias comes from.

    Parameters
    ----------
    slack : float
        How far u may stay below a bound that the draws set it, at least 0; see Notes.
    **options
        Those of `samplesoft.losses.base.Loss`, with one label for each example; ``scheme`` is
        ``"masked"``: draws of the label are left out. Draws that exclude it may be given as well.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **U-max** [2]_. Where u is far too low, :math:`e^{-u}` makes gradients explode. But the best u
    is at least :math:`\log(1 + e^{o_j - o_t})` for every j. Where u is lower by more than `slack`
    than this bound for the draw that scores highest, `forward` raises it to the bound, so that no
    draw pulls harder than :math:`e^{\text{slack}}` times its weight. The raised u are
    ``cache.batch.log_sums``; value and gradients are those at them. A raise goes towards the best
    u, and not beyond it: it lowers what is minimised, whatever was drawn, and the step after it
    descends the same sum, from there. But as the draws decide on it, a mean over draws is free of
    bias only where none of them raises u: once it is within `slack` of the bound for the highest
    score of all, as the best u is.

    **Steps of u.** ``u -= rate * d`` is a step of gradient descent, d being the derivative of the
    example's own loss, which is at most 1, but may be very low. ``u += log1p(-rate * d)`` begins
    like it, and takes the mean of :math:`e^u` and :math:`e^L` with weights 1 - rate and rate: a
    rare draw that weighs a lot does not throw u off for good.

    **When to take it.** Where examples come back often, so that u can follow the vectors, and
    sampled softmax has a bias that does not average out. A stale u makes the mean gradient of an
    example too long or too short by :math:`e^{u^* - u}`, and turns it nowhere. The variance is that
    of a plain importance estimate, which grows with the largest :math:`e^{o_j} / q_j`, where
    sampled softmax has its draws' own sum to keep it in bounds. It is below that of
    `MultilevelLoss` for few draws; see ``figures/unbiased.py``.

    References
    ----------
    .. [1] P. Raman et al., "Scaling multinomial logistic regression via hybrid parallelism", KDD
       2019, arXiv 1604.04706: DS-MLR.
    .. [2] F. Fagan and G. Iyengar, "Unbiased scalable softmax optimization", arXiv 1803.08577: the
       form with the label taken off, and U-max.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.losses import FullSoftmaxLoss
    >>> from samplesoft.samplers import UniformSampler
    >>> h, rows, labels = np.eye(6), np.zeros((6, 6)), np.array([1, 2, 3, 4, 5, 0])
    >>> loss, sampler, u = DoubleSumLoss(), UniformSampler(6), np.full(6, np.log(6))
    >>> for step in range(600):
    ...     some = np.random.default_rng(step).permutation(6)[:3]
    ...     draw = sampler.sample(h[some], 2, rng=step)
    ...     value, cache = loss.forward(h[some], rows, labels[some], draw, log_sums=u[some])
    ...     gradients = loss.backward(cache)
    ...     rows[gradients.dW.ids] -= 0.3 * gradients.dW.rows
    ...     own = 3 * gradients.d_log_sums  # of each example; the loss is the mean of three
    ...     u[some] = cache.batch.log_sums + np.log1p(-0.2 * own)
    >>> FullSoftmaxLoss().forward(h, rows, labels)[0] < 0.1
    True
    """

    schemes: ClassVar[dict[str, Scheme]] = select("masked")

    def __init__(self, *, slack: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.slack = as_nonnegative("slack", slack)

    def forward(
        self,
        h: ArrayLike,
        class_embeddings: ArrayLike,
        labels: Any,
        draw: Draw | None = None,
        *,
        log_sums: ArrayLike | None = None,
        label_log_count: ArrayLike | None = None,
        biases: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> tuple[Any, Cache]:
        """Compute the loss.

        Parameters
        ----------
        h, class_embeddings, draw, label_log_count, biases, weights
            As for `samplesoft.losses.base.Loss.forward`.
        labels : array_like of int, shape (B,)
            One label for each example.
        log_sums : array_like, shape (B,)
            The number u of each example of the batch; it must be given. To begin with, ``log(n)``
            suits scores that are nearly equal.

        Returns
        -------
        value : float or ndarray of float64, shape (B,)
            The loss.
        cache : Cache
            For `backward`, which returns ``d_log_sums`` too. Its ``batch.log_sums`` are the u that
            were computed with, some of them raised.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or the loss is not finite.
        """
        batch = self.check_batch(h, class_embeddings, labels, biases)
        if batch.targets.example_ids is not None:
            raise TypeError(
                "`labels` must hold one label an example for DoubleSumLoss, got a matrix; make an "
                "example, with a number in `log_sums`, of each pair of example and label."
            )
        if log_sums is not None:
            sums = as_real_array("log_sums", log_sums, (1,)).copy()
            if sums.shape != batch.targets.labels.shape:
                raise ValueError(
                    f"`log_sums` must have shape {batch.targets.labels.shape}, a number for each "
                    f"example of the batch, got {sums.shape}."
                )
            batch = replace(batch, log_sums=sums)
        return self.forward_batch(batch, draw, label_log_count=label_log_count, weights=weights)

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        sums = batch.log_sums
        if sums is None:  # as in a layer
            raise TypeError(
                "`log_sums` must be given to DoubleSumLoss.forward, a number for each example of "
                "the batch, got None; start from numpy.log(num_classes)."
            )
        losses, saved = super()._forward(batch, draw, label_log_count)
        assert draw is not None
        # a draw's derivative is its share of the estimated sum: exp(o_j - o_t) / (m q_j) of
        # exp(losses)
        with np.errstate(divide="ignore"):
            shares = np.log(np.abs(saved[2])) + draw.log_expected_count
        least = np.logaddexp(0.0, losses + shares.max(axis=1))
        np.copyto(sums, least, where=sums < least - self.slack)
        gaps = losses - sums
        return sums + np.expm1(gaps), (saved, gaps)

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        of_softmax, gaps = saved
        found = super()._backward(batch, of_softmax, weights * np.exp(gaps))
        return replace(found, d_log_sums=-weights * np.expm1(gaps))

    def _terms_of(self, draw: Draw, num_classes: int) -> Terms:
        return Terms(softmax_terms, of_differences=True)


@njit
def one_vs_each_terms(logits: FloatArray, losses: FloatArray, weights: FloatArray) -> None:
    """Write sums of weights (P, m) times ``log(1 + exp(logit - label's))``, and their gradients.

    Logits (P, 1 + m) have the label's in column 0, and become the gradients; losses are (P,).
    """
    width = logits.shape[1]
    for b in range(len(logits)):
        own = logits[b, 0]
        for k in range(width):
            logits[b, k] -= own
    small, large = np.empty(logits.size), np.empty(logits.size)
    softplus(logits.reshape(-1), small, large)
    for b in range(len(logits)):
        losses[b] = 0.0
        for k in range(1, width):
            weight, place = weights[b, k - 1], b * width + k
            losses[b] += weight * (large[place] + small[place])
            logits[b, k] *= weight
        logits[b, 0] = -total(logits[b, 1:])
