"""Losses with a variable for each example: u, an estimate of the logarithm of its sum over classes.

The softmax loss is the logarithm of a sum, and the logarithm of an unbiased estimate is biased.
`DoubleSumLoss` and `SafeKLLoss` replace it by a variable for each example, which is trained.
`MovingAverageLoss` replaces it by a running estimate for each example.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import njit, njit_bare
from samplesoft._moving_average import as_log_sums, as_moving_average
from samplesoft._validation import FloatArray, as_nonnegative, as_positive, as_real_array
from samplesoft.losses.base import Batch, Cache, Gradients, Targets
from samplesoft.losses.differentiate import name_after_kernels
from samplesoft.losses.sampled import SOFTMAX, Kernel, LossKernel, SampledLoss
from samplesoft.losses.step import Floats, Pairs
from samplesoft.samplers.base import Draw, Rows
from samplesoft.schemes import Scheme, select


class LogSumLoss(SampledLoss):
    r"""Base class of losses that keep a log-sum u for each example of the training data.

    With L the loss of `samplesoft.losses.SampledSoftmaxLoss` on the same draws, the loss is
    :math:`u + e^{L - u} - 1`, and its gradient is the gradient of L times :math:`e^{L - u}`. A
    subclass says which u is used, in `_next_log_sums`. A loss with another formula overrides
    `_forward` and `_backward`.
    """

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
            The number u of each example of the batch, which is not changed in place. ``log(n)`` is
            a good initial value of a variable that is trained. For a `MovingAverageLoss`, -inf
            stands for an example that is new, and by default all examples are new.

        Returns
        -------
        value : float or ndarray of float64, shape (B,)
            The loss.
        cache : Cache
            For `backward`. Its ``batch.log_sums`` are the values of u that were used, which are to
            be kept for the next visit of the examples.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or the loss is not finite.
        """
        batch = self.check_batch(h, class_embeddings, labels, biases)
        batch = self.with_log_sums(batch, log_sums)
        return self.forward_batch(batch, draw, label_log_count=label_log_count, weights=weights)

    def checked_log_sums(self, log_sums: ArrayLike | None, targets: Targets) -> FloatArray:
        """Return a checked copy of `log_sums` (B,) for examples that must have one label each."""
        if targets.example_ids is not None:
            raise TypeError(
                f"`labels` must hold one label an example for {type(self).__name__}, got a matrix; "
                "make an example, with a number in `log_sums`, of each pair of example and label."
            )

        sums = self._as_log_sums(log_sums).copy()
        if sums.shape != targets.labels.shape:
            raise ValueError(
                f"`log_sums` must have shape {targets.labels.shape}, a number for each example of "
                f"the batch, got {sums.shape}."
            )
        return sums

    def _as_log_sums(self, log_sums: ArrayLike | None) -> FloatArray:
        if log_sums is None:
            raise self._no_log_sums_error()
        return as_real_array("log_sums", log_sums, (1,))

    def _no_log_sums_error(self) -> TypeError:
        return TypeError(
            f"`log_sums` must be given to {type(self).__name__}.forward, a number for each "
            "example of the batch, got None; start from numpy.log(num_classes)."
        )

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        log_sums = self._log_sums_of(batch)
        losses, saved = super()._forward(batch, draw, label_log_count)
        assert draw is not None
        log_sums[:] = self._next_log_sums(log_sums, losses, saved[2], draw)
        gaps = losses - log_sums
        return log_sums + np.expm1(gaps), (saved, gaps)

    def _log_sums_of(self, batch: Batch) -> FloatArray:
        """Return the log-sums (B,) of a batch; raise if the caller did not call `with_log_sums`."""
        if batch.log_sums is None:
            raise self._no_log_sums_error()
        return batch.log_sums

    def _next_log_sums(
        self, log_sums: FloatArray, losses: FloatArray, d_sampled: Rows, draw: Draw
    ) -> FloatArray:
        """Return the u (B,) to compute with, given u of the last visit and the losses L (B,).

        `d_sampled` (B, m) are the derivatives of L in the scores of the draws.
        """
        raise NotImplementedError

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        saved_softmax, gaps = saved
        return super()._backward(batch, saved_softmax, weights * np.exp(gaps))

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        return SOFTMAX


class DoubleSumLoss(LogSumLoss):
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

    def _next_log_sums(
        self, log_sums: FloatArray, losses: FloatArray, d_sampled: Rows, draw: Draw
    ) -> FloatArray:
        highest = _log_draw_ratios(losses, d_sampled, draw).max(axis=1)
        lower_bounds = np.logaddexp(0.0, highest)
        return np.where(log_sums < lower_bounds - self.slack, lower_bounds, log_sums)

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        gradients = super()._backward(batch, saved, weights)
        _, gaps = saved
        return replace(gradients, d_log_sums=-weights * np.expm1(gaps))


class MovingAverageLoss(LogSumLoss):
    r"""The softmax loss with a running estimate for each example in place of its sum over classes.

    The state of an example is u, the logarithm of an estimate U of :math:`\sum_j e^{o_j - o_t}`,
    with t the label. A visit draws classes, whose sampled softmax has the loss L, and moves U

    .. math:: U \leftarrow (1 - \gamma) \, U + \gamma \, e^L

    The gradient is the gradient of L times :math:`e^{L - u}` with the new u: the sum over the draws
    is divided by the running estimate. With gamma = 1 it is sampled softmax, to the bit. The value
    is :math:`u + e^{L - u} - 1`, whose gradient at a held u it is.

    Parameters
    ----------
    gamma : float, optional
        Weight of the new draws, in (0, 1], as in SogCLR [1]_ and SOX [2]_; by default 0.5, unless
        `alpha` is given.
    alpha : float, optional
        Step size of SCENT [3]_, positive, in place of `gamma`: each visit takes
        :math:`\gamma = \alpha U / (1 + \alpha U)` with the old U. In [3]_, U is a mean over
        classes, so that their alpha is n times ours.
    **options
        Options of `samplesoft.losses.base.Loss`, with one label for each example; ``scheme`` is
        ``"masked"``: accidental hits are masked. Draws that exclude the label are accepted too.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or both `gamma` and `alpha` are given.

    Notes
    -----
    **State.** Pass the u of the batch as ``log_sums``, and keep ``cache.batch.log_sums``. A new
    example has u = -inf; its first visit sets u = L. A `samplesoft.models.SoftmaxLayer` takes
    `log_sums` too. An example must not occur twice in a batch.

    **Bias.** `samplesoft.bias.moving_average_bias` returns the exact bias, given u or in the long
    run at fixed logits. The draws of a visit are in numerator and denominator, so that the bias
    is not 0, but it falls in proportion to gamma / m.

    **Drift.** While logits change between two visits of an example, U lags behind. A U that is too
    high shortens the steps of its example. docs/learn/which.md says when the loss is worth it, and
    docs/theory/moving-average.md has the theorems.

    References
    ----------
    .. [1] Z. Yuan et al., "Provable stochastic optimization for global contrastive learning: small
       batch does not harm performance", ICML 2022, arXiv 2202.12387: SogCLR.
    .. [2] B. Wang and T. Yang, "Finite-sum coupled compositional stochastic optimization", ICML
       2022, arXiv 2202.12396: SOX.
    .. [3] X. Wei et al., "A geometry-aware efficient algorithm for compositional entropic risk
       minimization", arXiv 2602.02877, 2026: SCENT.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> h, rows, labels = np.eye(3), np.zeros((100, 3)), np.array([1, 2, 3])
    >>> loss, sampler, u = MovingAverageLoss(gamma=0.1), UniformSampler(100), np.full(3, -np.inf)
    >>> for step in range(2):
    ...     draw = sampler.sample(h, 5, rng=step)
    ...     value, cache = loss.forward(h, rows, labels, draw, log_sums=u)
    ...     u = cache.batch.log_sums
    >>> u.round(2)  # log(100) = 4.61
    array([4.62, 4.62, 4.62])
    """

    schemes: ClassVar[dict[str, Scheme]] = select("masked")
    why_no_bias = "its bias depends on its state: see samplesoft.bias.moving_average_bias"

    def __init__(
        self, *, gamma: float | None = None, alpha: float | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.gamma, self.alpha = as_moving_average(gamma, alpha)

    def checked_log_sums(self, log_sums: ArrayLike | None, targets: Targets) -> FloatArray:
        """Return a checked copy of `log_sums` (B,), or -inf (B,) if it is None."""
        if log_sums is None:
            log_sums = np.full(len(targets.labels), -np.inf)
        return super().checked_log_sums(log_sums, targets)

    def _as_log_sums(self, log_sums: ArrayLike | None) -> FloatArray:
        assert log_sums is not None
        return as_log_sums("log_sums", log_sums)

    def _next_log_sums(
        self, log_sums: FloatArray, losses: FloatArray, d_sampled: Rows, draw: Draw
    ) -> FloatArray:
        return moved_log_sums(log_sums, losses, self.gamma, self.alpha)


class SafeKLLoss(LogSumLoss):
    r"""The double sum with a softer exponential: gradients of draws are at most weight / rho.

    With one more variable u for each example, the loss is

    .. math:: u - 1 + \sum_j w_j \, \tfrac{1}{\rho} \log(1 + \rho \, e^{o_j - o_t - u})

    The sum is over the label, of weight 1, and the draws, of weight :math:`1 / (m q_j)`. It is an
    estimate without bias of the same sum over all classes, for every m. As rho tends to 0 it tends
    to `DoubleSumLoss`. For larger rho it is another objective, whose minimum over u is below the
    softmax loss. For rho up to 1 the difference is at most rho times the sum of the squared
    probabilities of all classes, and for small rho about half of that.

    Parameters
    ----------
    rho : float
        Positive; how far the exponential is softened.
    **options
        Options of `samplesoft.losses.base.Loss`, with one label for each example; ``scheme`` is
        ``"masked"``: accidental hits are masked. Draws that exclude the label are accepted too.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Notes
    -----
    Take steps of u as for `DoubleSumLoss`, by ``d_log_sums`` of `backward`.

    References
    ----------
    .. [1] E. Gladin et al., "Improved stochastic optimization of LogSumExp", arXiv 2509.24894,
       2025: the safe KL divergence.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.samplers import UniformSampler
    >>> h, rows, labels, u = np.ones((1, 1)), np.zeros((4, 1)), np.array([0]), np.log([4.0])
    >>> draw = UniformSampler(4).sample(h, 8, exclude=labels, rng=0)
    >>> loss = SafeKLLoss(rho=1e-3)
    >>> value, cache = loss.forward(h, rows, labels, draw, log_sums=u)
    >>> round(value, 3), round(float(u[0]), 3)
    (1.386, 1.386)
    """

    schemes: ClassVar[dict[str, Scheme]] = select("masked")
    why_no_bias = "it has no bias for a softened double sum, and does not estimate the softmax loss"

    def __init__(self, *, rho: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.rho = as_positive("rho", rho)

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        u = self._log_sums_of(batch)
        losses, (scores, _, d_sampled) = SampledLoss._forward(self, batch, draw, label_log_count)
        assert draw is not None

        # the double sum has the terms w_j exp(x_j) with x_j = o_j - o_t - u, each softened here
        log_rho = np.log(self.rho)
        log_ratios = _log_draw_ratios(losses, d_sampled, draw) - u[:, None]
        weights = np.exp(-draw.log_expected_count)
        softened = np.logaddexp(0.0, log_rho + log_ratios) / self.rho
        of_label = np.logaddexp(0.0, log_rho - u) / self.rho
        values = u - 1.0 + of_label + (weights * softened).sum(axis=1)

        # derivatives w_j / (exp(-x_j) + rho), which are at most w_j / rho
        d_draws = weights / (np.exp(-log_ratios) + self.rho)
        d_total = d_draws.sum(axis=1)
        d_u = 1.0 - d_total - 1.0 / (np.exp(u) + self.rho)
        dtype = d_sampled.dtype
        return values, (scores, -d_total.astype(dtype), d_draws.astype(dtype), d_u)

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        *saved_softmax, d_u = saved
        gradients = SampledLoss._backward(self, batch, tuple(saved_softmax), weights)
        return replace(gradients, d_log_sums=weights * d_u)


def moved_log_sums(
    log_sums: FloatArray, losses: FloatArray, gamma: float | None, alpha: float | None
) -> FloatArray:
    """Return the logs (B,) of running estimates after a visit whose draws have the losses L (B,).

    A log-sum of -inf becomes L.
    """
    return _moved_log_sums(log_sums, losses, gamma or 0.0, alpha or 0.0)


@njit
def _moved_log_sums(
    log_sums: FloatArray, losses: FloatArray, gamma: float, alpha: float
) -> FloatArray:
    moved = np.empty(len(losses))
    for b in range(len(losses)):
        moved[b] = _moved_log_sum(log_sums[b], losses[b], gamma, alpha)
    return moved


@njit
def _moved_log_sum(log_sum: float, loss: float, gamma: float, alpha: float) -> float:
    """Return what `moved_log_sums` returns for one example; `gamma` or `alpha` is 0 for None."""
    if log_sum == -np.inf or gamma == 1.0:
        return loss
    if gamma > 0.0:
        moved = np.logaddexp(math.log1p(-gamma) + log_sum, math.log(gamma) + loss)
    else:
        # U (1 + alpha exp(L)) / (1 + alpha U), without the overflow of alpha U
        log_alpha = math.log(alpha)
        moved = np.logaddexp(-log_alpha, loss) - np.logaddexp(0.0, -log_alpha - log_sum)
    return float(moved)


@cache
def make_averaging_differentiator(differentiate: Kernel) -> Kernel:
    """Return a differentiator of a `MovingAverageLoss`, for fused training.

    `differentiate` is a differentiator of sampled softmax; see `samplesoft.losses.differentiate`.
    Its loss L and its derivatives are replaced by the value and the derivatives of the moving
    average. The `parameters` are the log-sums (P,) of the examples, which have one label each, and
    gamma and alpha, one of which is 0. The log-sums of the pairs [start, stop) are overwritten by
    the new ones.
    """

    def differentiate_averages(
        pairs: Pairs,
        start: int,
        stop: int,
        parameters: Any,
        weights: FloatArray,
        logits: Floats,
        losses: FloatArray,
        d_labels: Floats,
        d_sampled: Floats,
    ) -> None:
        log_sums, gamma, alpha = parameters
        differentiate(pairs, start, stop, (), weights, logits, losses, d_labels, d_sampled)

        for p in range(start, stop):
            log_sum = _moved_log_sum(log_sums[p], losses[p], gamma, alpha)
            log_sums[p] = log_sum
            gap = losses[p] - log_sum
            losses[p] = log_sum + math.expm1(gap)

            factor = math.exp(gap)
            d_labels[p] *= factor
            row = d_sampled[pairs.example_ids[p] - pairs.first_example]
            scale = row.dtype.type(factor)
            for k in range(len(row)):
                row[k] *= scale

    return njit_bare(name_after_kernels(differentiate_averages, differentiate))


def _log_draw_ratios(losses: FloatArray, d_sampled: Rows, draw: Draw) -> FloatArray:
    """Return o_j - o_t (B, m) for each draw j and the label t, and -inf for masked draws.

    The derivative of sampled softmax in a draw's score is, with its loss L,
    exp(o_j - o_t) / (m q_j) / exp(L), which is solved for o_j - o_t.
    """
    with np.errstate(divide="ignore"):
        log_fractions: FloatArray = np.log(np.abs(d_sampled))
    return log_fractions + draw.log_expected_count + losses[:, None]
