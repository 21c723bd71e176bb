"""Theorem 2 of Rawat et al. (2019), as it is printed and corrected.

Eq. 20 lacks a normaliser. Section 17 of ``samplesoft/bias/README.md`` proves what is true in its
place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_count,
    as_labels,
    as_positive,
    as_real_array,
)
from samplesoft.bias.draw_law import log_softmax
from samplesoft.bias.negatives import log_sum_exp

COSINE_TOLERANCE = 1e-4  # float32 embeddings are normalised about this well


@dataclass(frozen=True)
class Theorem2Ratio:
    """Eq. 20 for each negative class: the ratio, its two centers, and the smallest gamma.

    Attributes
    ----------
    classes : ndarray of int, shape (n - 1,)
        Class indices of the negatives, the order of the arrays below.
    ratio : ndarray, shape (n - 1,)
        ``|e^{o_i} / q_i| / Z_t``, which is 1 where q is the softmax of the negatives; infinite
        where an estimate is 0.
    printed_center : ndarray, shape (n - 1,)
        ``e^{(tau - nu) h.c_i}``, as printed in eq. 20.
    corrected_center : ndarray, shape (n - 1,)
        The same times `normalizer`: what the ratio tends to with ever more features.
    normalizer : float
        ``Z_nu / Z_tau``, with ``Z_x = sum_j e^{x h.c_j}`` over the negatives; 1 if nu = tau.
    printed_gamma, corrected_gamma : float
        The smallest gamma with ``1 - 2 gamma <= ratio / center <= 1 + 4 gamma`` for every
        negative. From 1/2 on, the lower side says nothing.
    num_negative : int
        How many estimates are below 0, where q is no probability.
    """

    classes: IntArray
    ratio: FloatArray
    printed_center: FloatArray
    corrected_center: FloatArray
    normalizer: float
    printed_gamma: float
    corrected_gamma: float
    num_negative: int


def theorem2_ratio(
    cosine: ArrayLike, labels: int, estimates: ArrayLike, *, tau: float, nu: float
) -> Theorem2Ratio:
    """Return the ratio of eq. 20 for given random-feature estimates of the kernel.

    Logits are ``o_i = tau h.c_i`` and ``q_i = phi(c_i).phi(h) / C``, with the normalising
    constant C and Z_t both summed over the negatives. Eq. 20 as printed lacks a normaliser: with
    ever more features the estimates tend to ``e^{nu h.c_i}`` up to a factor, and so the ratio to
    ``e^{(tau - nu) h.c_i} Z_nu / Z_tau``, which is the printed center only if nu = tau.
    `theorem2_corrected` says how likely a gamma is before frequencies are drawn.

    Parameters
    ----------
    cosine : array_like, shape (n,)
        ``h.c_i`` for unit vectors h and c_i.
    labels : int
        The true class of the one example; it takes no part.
    estimates : array_like, shape (n,)
        ``phi(c_i).phi(h)``, in any scale common to all classes; some may be negative.
    tau : float
        Inverse temperature of the softmax, greater than 0.
    nu : float
        Inverse squared width of the Gaussian kernel that the features estimate, greater than 0.

    Returns
    -------
    Theorem2Ratio
        The ratio, both centers, and the smallest gamma for each; infinite beyond the range of
        float64.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, a cosine exceeds 1, or the estimates of the negatives do not
        have a positive sum.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       Theorem 2, eq. 20.

    Examples
    --------
    The exact kernel, in place of features, needs gamma = 0 once the normaliser is there:

    >>> import numpy as np
    >>> cosine = np.array([0.9, 0.5, 0.0, -0.5])
    >>> result = theorem2_ratio(cosine, 0, np.exp(2.0 * cosine), tau=8.0, nu=2.0)
    >>> print(f"{result.normalizer:.3f} {result.printed_gamma:.3f} {result.corrected_gamma:.3f}")
    0.073 0.463 0.000
    """
    cosines, classes = _check_cosine(cosine, labels)
    features = as_real_array("estimates", estimates, (1,))
    tau, nu = as_positive("tau", tau), as_positive("nu", nu)
    if features.shape != cosines.shape:
        raise ValueError(
            f"`estimates` of shape {features.shape} does not match `cosine` of shape "
            f"{cosines.shape}; give one value for each class in both."
        )
    cosines, features = cosines[classes], features[classes]
    features = features / max(float(np.abs(features).max()), np.finfo(np.float64).tiny)
    constant = float(features.sum())
    if constant <= 0.0:
        raise ValueError(
            "`estimates` of the negatives must have a positive sum, got one "
            f"{'of 0' if constant == 0.0 else 'below 0'}: they define no proposal; "
            "use more features, a smaller nu, or clip them."
        )
    log_z_tau, log_z_nu = log_sum_exp(tau * cosines), log_sum_exp(nu * cosines)
    log_center = (tau - nu) * cosines
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        log_ratio = tau * cosines - log_z_tau - np.log(np.abs(features)) + math.log(constant)
        log_normalizer = log_z_nu - log_z_tau
        return Theorem2Ratio(
            classes=classes,
            ratio=np.exp(log_ratio),
            printed_center=np.exp(log_center),
            corrected_center=np.exp(log_center + log_normalizer),
            normalizer=float(np.exp(log_normalizer)),
            printed_gamma=_smallest_gamma(log_ratio - log_center),
            corrected_gamma=_smallest_gamma(log_ratio - log_center - log_normalizer),
            num_negative=int((features < 0.0).sum()),
        )


def _smallest_gamma(log_x: FloatArray) -> float:
    """Return the least gamma >= 0 with ``1 - 2 gamma <= x <= 1 + 4 gamma`` for all x."""
    excess = np.expm1(log_x)
    return float(max(-excess.min() / 2.0, excess.max() / 4.0, 0.0))


def _check_cosine(cosine: ArrayLike, labels: int) -> tuple[FloatArray, IntArray]:
    """Return the cosines (n,) of one example, and which classes are negatives, (n - 1,)."""
    cosines = as_real_array("cosine", cosine, (1,))
    n = cosines.size
    t = as_labels("labels", labels, n, ()).item()
    if n == 1:
        raise ValueError("`cosine` must cover at least 2 classes, got 1: there is no negative.")
    largest = float(np.abs(cosines).max())
    if largest > 1.0 + COSINE_TOLERANCE:
        raise ValueError(
            f"`cosine` must lie in [-1, 1], got a size of {largest:.6g}; "
            "divide h and the class vectors by their norms."
        )
    return cosines, np.delete(np.arange(n, dtype=np.int64), t)


@dataclass(frozen=True)
class Theorem2Corrected:
    """What random Fourier features are sure to do, but for a small chance.

    Attributes
    ----------
    classes : ndarray of int, shape (n - 1,)
        Class indices of the negatives, the order of the arrays below.
    lower, upper : ndarray, shape (n - 1,)
        Bounds on ``(e^{o_i} / q_i) / Z_t``, which is 1 where q is the softmax of the negatives.
    failure : float
        A bound on the probability, over the frequencies, that a ratio of any negative is outside,
        or an estimate not positive; at most 1.
    bias : float
        Where none is outside, the bias of each coordinate of the gradient is at most
        ``bias * M / m`` for every number m of draws, M being a bound on the derivatives of the
        logits; ``(1 - p_t)^2 gamma / (1 - gamma)`` where nu is tau.
    """

    classes: IntArray
    lower: FloatArray
    upper: FloatArray
    failure: float
    bias: float


def theorem2_corrected(
    cosine: ArrayLike, labels: int, *, tau: float, nu: float, num_features: int, gamma: float
) -> Theorem2Corrected:
    """Return what holds in place of eq. 20 and Corollary 1, without drawing any frequency.

    Logits are ``o_i = tau h.c_i`` and ``q_i`` is in proportion to ``phi(c_i).phi(h)`` of random
    Fourier features of the Gaussian kernel ``K_i = e^{-nu (1 - h.c_i)}``. Except with the
    probability `failure`, every estimate is within ``gamma K_i`` of ``K_i``, and then

        ``k^-1 <= (e^{o_i} / q_i) / Z_t / (e^{(tau - nu) h.c_i} Z_nu / Z_tau) <= k``

    for ``k = (1 + gamma) / (1 - gamma)``, with ``Z_x = sum_j e^{x h.c_j}`` over the negatives. The
    printed ``1 - 2 gamma`` and ``1 + 4 gamma`` are farther out as long as gamma is at most 1/2,
    and the printed center lacks ``Z_nu / Z_tau``.

    Parameters
    ----------
    cosine, labels, tau, nu
        As for `theorem2_ratio`.
    num_features : int
        Number of independent frequencies D, each with a cosine and a sine.
    gamma : float
        Relative error of an estimate, between 0 and 1.

    Returns
    -------
    Theorem2Corrected
        The bounds on the ratio, the chance that they fail, and what they make of the bias.

    Raises
    ------
    TypeError, ValueError
        As `theorem2_ratio`, or if gamma is not below 1.

    Notes
    -----
    ``failure`` is a sum of Bernstein's bounds, at most ``2 n exp(-3 D gamma^2 e^{-4 nu} / 4)``:
    section 17 of ``samplesoft/bias/README.md``, eqs. (B53) and (B54). Orthogonal and structured
    frequencies are not independent, and a tree that clips estimates draws from another q.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       Theorem 2 and Corollary 1, in another form.

    Examples
    --------
    >>> import numpy as np
    >>> cosine = np.array([0.9, 0.5, 0.0, -0.5])
    >>> for num_features in (10_000, 100_000):
    ...     holds = theorem2_corrected(
    ...         cosine, 0, tau=2.0, nu=2.0, num_features=num_features, gamma=0.1
    ...     )
    ...     print(f"{holds.upper.max():.3f} {holds.failure:.1e} {holds.bias:.4f}")
    1.222 1.0e+00 0.0181
    1.222 1.7e-01 0.0181
    """
    cosines, classes = _check_cosine(cosine, labels)
    tau, nu = as_positive("tau", tau), as_positive("nu", nu)
    num = as_count("num_features", num_features)
    gamma = as_positive("gamma", gamma)
    if gamma >= 1.0:
        raise ValueError(
            f"`gamma` must be less than 1, got {gamma:.6g}; from 1 on an estimate may be 0, "
            "and the ratio has no bound."
        )
    x = np.minimum(cosines[classes], 1.0)
    kappa = (1.0 + gamma) / (1.0 - gamma)
    with np.errstate(over="ignore", under="ignore"):
        log_kernel = nu * (x - 1.0)
        kernel = np.exp(log_kernel)
        twice_variance = np.expm1(2.0 * log_kernel) ** 2  # (1 - K^2)^2 of a cosine
        spread = twice_variance + 2.0 / 3.0 * (1.0 + kernel) * gamma * kernel
        chances = 2.0 * np.exp(-num * (gamma * kernel) ** 2 / spread)
        log_center = log_softmax(tau * x) - log_softmax(nu * x)
        center = np.exp(log_center)
        logits = tau * np.append(x, cosines[labels])
        log_p = log_softmax(logits)[:-1]
        probs, joint = np.exp(log_p), np.exp(log_p + log_center)
        rest = float(probs.sum())  # 1 - p_t
        # the mean excess of r over Z_t, in units of Z_t: both hold
        at_once = np.maximum(kappa * joint - probs, 0.0).sum()
        apart = np.maximum(joint - probs, 0.0).sum()
        apart += rest * center.max() ** 2 * 0.5 * gamma / (1.0 - gamma)
    return Theorem2Corrected(
        classes=classes,
        lower=center / kappa,
        upper=center * kappa,
        failure=float(min(chances.sum(), 1.0)),
        bias=2.0 * rest * float(min(at_once, apart)),
    )
