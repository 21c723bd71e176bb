"""Theorem 2 of Rawat et al. (2019) and its corollary, corrected, with explicit constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, IntArray, as_count, as_positive
from samplesoft.bias.draw_law import log_softmax
from samplesoft.bias.theorem2 import check_cosine


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
    cosine : array_like, shape (n,)
        ``h.c_i`` for unit vectors h and c_i.
    labels : int
        The true class of the one example.
    tau : float
        Inverse temperature of the softmax, greater than 0.
    nu : float
        Inverse squared width of the Gaussian kernel, greater than 0.
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
        If an argument is malformed or out of its range, or a cosine exceeds 1.

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
    cosines, classes = check_cosine(cosine, labels)
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
