"""Losses with a variable for each example: u, an estimate of the logarithm of its sum over classes.

The softmax loss is the logarithm of a sum, and the logarithm of an unbiased estimate is biased.
`DoubleSumLoss` replaces it by a variable for each example.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, as_nonnegative, as_real_array
from samplesoft.losses.base import Batch, Cache, Gradients
from samplesoft.losses.sampled import LossKernel, SampledLoss, softmax_kernel
from samplesoft.samplers.base import Draw
from samplesoft.schemes import Scheme, select


class DoubleSumLoss(SampledLoss):
    r"""The softmax loss as a minimum over one more variable for each example: its log-sum u.

    Because :math:`\log x = \min_u (u + x e^{-u} - 1)`, the softmax loss of an example is

    .. math:: \min_u \; u + e^{-u} \Big(1 + \sum_{j \ne t} e^{o_j - o_t}\Big) - 1

    The objective is a sum over examples and classes, with one u for each example. Draws of j with
    weight :math:`1 / (m q_j)` estimate it without bias, as well as its gradient in contexts, class
    vectors and u, for every m, and for every q that is positive for all classes. At the optimal u,
    which is the softmax loss itself, the mean gradient is the gradient of the full softmax.

    With L the loss of `SampledSoftmaxLoss` on the same draws, the loss is
    :math:`u + e^{L - u} - 1`, and its gradient is the gradient of L times :math:`e^{L - u}`.
    Sampled softmax is this loss with u optimised for each draw, which causes the bias.

    Parameters
    ----------
    slack : float
        How far u may be below the lower bound that the draws give; at least 0. See U-max in Notes.
    **options
        Options of `samplesoft.losses.base.Loss`, with one label for each example; ``scheme`` is
        ``"masked"``: accidental hits are masked. Draws that exclude the label are accepted too.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    **U-max** [2]_. If u is far too low, the factor :math:`e^{-u}` makes gradients explode. The
    optimal u is at least :math:`\log(1 + e^{o_j - o_t})` for every j. If u is more than `slack`
    below this bound for the highest-scoring draw, `forward` raises it to the bound, which limits
    the gradient of a draw to :math:`e^{\text{slack}}` times its weight. Raised values are in
    ``cache.batch.log_sums``; value and gradients are computed at the raised values. Raising never
    overshoots the optimal u. It lowers the objective for any draws, and the next step continues
    from the raised value. But it depends on the draws, so that means over draws are unbiased only
    if no draw raises u. No draw does so if u is at most `slack` below the bound for the highest
    score of all classes. The optimal u is at least that bound.

    **Steps of u.** ``u -= rate * d`` is a step of gradient descent, with d the derivative of the
    example's loss, which is at most 1 but may be very negative. ``u += log1p(-rate * d)`` agrees
    with it to first order, and replaces :math:`e^u` by the mean of :math:`e^u` and :math:`e^L` with
    weights 1 - rate and rate. A rare draw with a large weight then does not displace u for long.

    **When to use it.** If examples recur often, so that u can track the vectors, and the bias of
    sampled softmax does not average out. A stale u multiplies the mean gradient of an example by
    :math:`e^{u^* - u}`, and does not change its direction. The variance equals that of an
    importance estimate, which grows with the largest :math:`e^{o_j} / q_j`; in sampled softmax the
    sum over the draws, as the denominator, limits the effect of such a draw. For few draws the
    variance is below that of `MultilevelLoss`; see ``figures/unbiased.py``.

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
    ...     batch = np.random.default_rng(step).permutation(6)[:3]
    ...     draw = sampler.sample(h[batch], 2, rng=step)
    ...     value, cache = loss.forward(h[batch], rows, labels[batch], draw, log_sums=u[batch])
    ...     gradients = loss.backward(cache)
    ...     rows[gradients.dW.ids] -= 0.3 * gradients.dW.rows
    ...     d = 3 * gradients.d_log_sums  # of the example's loss; the value is the mean of three
    ...     u[batch] = cache.batch.log_sums + np.log1p(-0.2 * d)
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
            The variable u of each example of the batch; required. ``log(n)`` is a good initial
            value if scores are nearly equal.

        Returns
        -------
        value : float or ndarray of float64, shape (B,)
            The loss.
        cache : Cache
            For `backward`, which also returns ``d_log_sums``. Its ``batch.log_sums`` are the values
            of u used, some of them raised.

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
        if sums is None:  # for example if called by a `SoftmaxLayer`, which does not pass them
            raise TypeError(
                "`log_sums` must be given to DoubleSumLoss.forward, a number for each example of "
                "the batch, got None; start from numpy.log(num_classes)."
            )

        losses, saved = super()._forward(batch, draw, label_log_count)
        assert draw is not None

        # The derivative of sampled softmax in a draw's score is, with its loss L,
        # exp(o_j - o_t) / (m q_j) / exp(L). Solve it for exp(o_j - o_t), relative to exp(L).
        with np.errstate(divide="ignore"):
            log_draw_ratios = np.log(np.abs(saved[2])) + draw.log_expected_count
        lower_bounds = np.logaddexp(0.0, losses + log_draw_ratios.max(axis=1))
        np.copyto(sums, lower_bounds, where=sums < lower_bounds - self.slack)

        gaps = losses - sums
        return sums + np.expm1(gaps), (saved, gaps)

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        saved_softmax, gaps = saved
        gradients = super()._backward(batch, saved_softmax, weights * np.exp(gaps))
        return replace(gradients, d_log_sums=-weights * np.expm1(gaps))

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        return LossKernel(softmax_kernel, shift_invariant=True)
