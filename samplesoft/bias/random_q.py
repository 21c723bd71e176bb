"""The bias of a proposal that is itself random, to second order in its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf

from samplesoft._validation import FloatArray, as_real_array
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.with_replacement import with_replacement_bias

_STEP = 0.1  # of log v
_LEFT, _RIGHT = 20.0, 5.0  # beyond the fastest and the slowest change
_LEAST = 1e-300  # of S, which may underflow
_FAR = 1e4  # an exponent that is as good as infinite
_ASYMMETRY = 1e-9  # of the largest covariance


@dataclass(frozen=True)
class RandomQBias:
    """The bias of sampled softmax over a random proposal, to second order in its errors.

    Attributes
    ----------
    kernel_bias : ndarray, shape (n,)
        The exact bias where q is in proportion to the kernel: what ever more features tend to.
    correction : ndarray, shape (n,)
        What the errors of the estimates add to its mean, to second order; for D independent
        features it falls like 1/D.
    deviation : ndarray, shape (n,)
        Standard deviation of the bias of each class from one q to another, to first order; it
        falls like ``D**-0.5``. Below 1e-5 largest_error / m it is rounding.
    largest_error : float
        The largest standard deviation of an estimate, of a class that is drawn, divided by its
        kernel. The expansion is one in these errors, and says little where they are not small.
    """

    kernel_bias: FloatArray
    correction: FloatArray
    deviation: FloatArray
    largest_error: float

    @property
    def mean_bias(self) -> FloatArray:
        """Mean bias (n,) of q drawn anew for each gradient; it sums to 0."""
        return self.kernel_bias + self.correction

    @property
    def mean_norm(self) -> float:
        """Mean L1 norm of the bias of one q, with errors taken for Gaussian."""
        mean, spread = self.mean_bias, np.maximum(self.deviation, np.finfo(np.float64).tiny)
        with np.errstate(under="ignore", over="ignore"):
            z = mean / (2.0**0.5 * spread)
            near = spread * (2.0 / np.pi) ** 0.5 * np.exp(-(z**2))
        return float((near + mean * erf(z)).sum())


def random_q_bias(
    logits: ArrayLike, labels: Any, kernel: ArrayLike, covariance: ArrayLike, num_sampled: int
) -> RandomQBias:
    r"""Return how random errors of a proposal move the bias, to second order.

    The proposal is in proportion to estimates of a kernel, such as inner products of random
    features, whose errors have mean 0 and a known covariance. One draw of the features has one q
    and one bias, which `samplesoft.exact_bias` computes; here are mean and deviation over all of
    them, without drawing any. Scheme ``negatives``.

    Parameters
    ----------
    logits : array_like, shape (n,)
        Finite logits o of one example.
    labels : int
        Its true class t.
    kernel : array_like, shape (n,)
        Mean estimate of each class, greater than 0, in any scale: ``phi.kernel(h, classes)[0]``.
    covariance : array_like, shape (n, n)
        Covariance of the estimates, in the square of that scale: ``phi.covariance(h, classes)``.
        Those of the label have no effect.
    num_sampled : int
        Number m of draws.

    Returns
    -------
    RandomQBias
        The bias of the kernel, its correction and its deviation.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or errors are too large for a float64.

    Notes
    -----
    Eqs. (B55) to (B57) of ``samplesoft/bias/README.md``. If the kernel is the softmax itself, then
    its bias is 0, that of one q is of order ``D**-0.5``, and their mean of order 1/D: then
    features that are drawn anew for each step have much less bias than those that are kept.

    How small errors must be depends on the kernel. Random Fourier features have, for unit
    vectors at right angles, a relative variance of ``(cosh(2 nu) - 1) / D``: 1,490 / D for
    nu = 4. With errors of up to 0.2, `mean_norm` was within 4% of means over draws, with up to
    0.5 within 20%. Where estimates are clipped, or rarely large, the mean of
    `samplesoft.sampled_q_bias` is another; `samplesoft.positive_features_bias` has no expansion.

    The cost is O(n^2) for each of some hundred nodes, and O(n^3) once: 0.1 s for 1,000 classes.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.feature_maps import RandomFourierFeatures
    >>> h, classes = np.array([1.0, 0.0]), np.array([[0.6, 0.8], [0.0, 1.0], [-0.6, 0.8]])
    >>> phi = RandomFourierFeatures(2, 100, nu=1.0)
    >>> args = phi.kernel(h, classes)[0], phi.covariance(h, classes)
    >>> found = random_q_bias(classes @ h, 0, *args, num_sampled=5)
    >>> [float(np.abs(x).sum().round(5)) for x in (found.kernel_bias, found.correction)]
    [0.0, 0.00112]
    >>> print(f"{found.mean_norm:.5f}, for errors of up to {found.largest_error:.2f}")
    0.00376, for errors of up to 0.34
    """
    o = as_real_array("logits", logits, (1,))
    kappa, spread = _check_estimates(kernel, covariance, len(o))
    scaled = kappa / kappa.max()
    inputs = check_inputs(o, labels, scaled / scaled.sum(), num_sampled)
    m, facts = inputs.num_sampled, inputs.scheme
    (row,) = inputs.rows()
    exact = with_replacement_bias(*row, m, facts)
    drawn = np.delete(np.arange(len(o)), row[1])
    with np.errstate(all="ignore"):
        relative = (spread[np.ix_(drawn, drawn)] / kappa[drawn]) / kappa[drawn, None]
    if not np.isfinite(relative).all():
        raise ValueError(
            "`covariance` divided by the squares of `kernel` must be within the range of float64, "
            "got more; the expansion says nothing of such errors, take samplesoft.sampled_q_bias."
        )
    correction, deviation = np.zeros_like(o), np.zeros_like(o)
    if len(drawn):
        e, q = exact.probs[drawn], scaled[drawn] / scaled[drawn].sum()
        with np.errstate(all="ignore"):
            terms = _expand(e, float(exact.probs[row[1]]), q, relative, m)
        correction[drawn], deviation[drawn] = terms[0], terms[1]
        correction[row[1]], deviation[row[1]] = -terms[0].sum(), terms[2]
    if not (np.isfinite(correction).all() and np.isfinite(deviation).all()):
        raise ValueError(
            "`logits` must not be so far from `kernel`: the expansion is beyond float64; take "
            "samplesoft.sampled_q_bias."
        )
    largest = float(np.sqrt(np.max(np.diag(relative), initial=0.0)))
    return RandomQBias(exact.bias, correction, deviation, largest)


def _check_estimates(
    kernel: ArrayLike, covariance: ArrayLike, n: int
) -> tuple[FloatArray, FloatArray]:
    """Return the kernel (n,) and the covariance (n, n)."""
    kappa = as_real_array("kernel", kernel, (1,))
    spread = as_real_array("covariance", covariance, (2,))
    if kappa.shape != (n,) or spread.shape != (n, n):
        raise ValueError(
            f"`kernel` of shape {kappa.shape} and `covariance` of shape {spread.shape} do not "
            f"match `logits` of shape {(n,)}; give shapes {(n,)} and {(n, n)}."
        )
    if kappa.min() <= 0.0:
        raise ValueError(
            f"`kernel` must be greater than 0, got {kappa.min():g} at class {kappa.argmin()}."
        )
    if np.diag(spread).min() < 0.0 or np.any(
        np.abs(spread - spread.T) > _ASYMMETRY * np.abs(spread).max()
    ):
        raise ValueError(
            "`covariance` must be symmetric and of no negative variance; phi.covariance(h, "
            "class_embeddings) of a feature map gives one."
        )
    return kappa, spread


def _expand(
    e: FloatArray, a: float, q: FloatArray, relative: FloatArray, m: int
) -> tuple[FloatArray, FloatArray, float]:
    """Return the correction and the deviation (n - 1,) of the negatives, and that of the label.

    `e` and `q` are of the negatives, with sums 1 - a and 1; eqs. (B55) and (B57).
    """
    mean = relative @ q
    total = float(q @ mean)
    drift = total - mean
    spread = relative - mean[:, None] - mean + total  # of eps: the errors of q, not of estimates
    own = np.diag(spread)
    r = e / q
    first = -np.log(m * min(max(float(r.max()), a), 1.0 / _LEAST)) - _LEFT
    last = -np.log(m * max(a + float(r.min()), _LEAST)) + _RIGHT
    v = np.exp(np.arange(first, last, _STEP))[:, None]
    x = np.minimum(v * r, _FAR)
    log_t = _log_mean(x, q)
    psi = np.exp(-x - log_t)
    slope = q * (np.expm1(-x - log_t) + x * psi)  # of log T in eps
    slope -= q * slope.sum(axis=1, keepdims=True)  # no effect, as q . eps = 0, but on rounding
    weight = _STEP * m * v * np.exp(m * (log_t - v * a)) * psi * e  # of a node in E[p'_j]
    along = slope @ spread
    square = (along * slope).sum(axis=1, keepdims=True)
    bent = (x**2 * psi) @ (q * own)
    both = (m - 1) * (slope @ drift + 0.5 * bent)[:, None] + 0.5 * (m - 1) * (m - 2) * square
    second = both + x * (drift + (m - 1) * along + (0.5 * x - 1.0) * own)
    correction = (weight * second).sum(axis=0)
    jacobian = (m - 1) * weight.T @ slope  # of b in eps
    jacobian[np.diag_indices(len(e))] += (weight * x).sum(axis=0)
    variance = ((jacobian @ spread) * jacobian).sum(axis=1)
    label = jacobian.sum(axis=0)
    return (
        correction,
        np.sqrt(np.maximum(variance, 0.0)),
        max(float(label @ spread @ label), 0.0) ** 0.5,
    )


def _log_mean(x: FloatArray, q: FloatArray) -> FloatArray:
    """Return ``log sum_j q_j exp(-x_j)`` (k, 1) for exponents (k, n), with all its digits."""
    least = x.min(axis=1, keepdims=True)
    small = np.expm1(least - x) @ q
    with np.errstate(divide="ignore"):
        far = np.log(np.exp(least - x) @ q)
    found = np.where(small > -0.5, np.log1p(np.maximum(small, -0.5)), far)
    return np.asarray(found[:, None] - least)
