"""Theorem 2 of Rawat et al. (2019): how closely random features follow the softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, IntArray, as_labels, as_positive, as_real_array
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
    cosines, classes = check_cosine(cosine, labels)
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


def check_cosine(cosine: ArrayLike, labels: int) -> tuple[FloatArray, IntArray]:
    """Return the cosines (n,) of one example, and which classes are negatives, (n - 1,).

    TypeError or ValueError if an argument is malformed, a cosine exceeds 1, or n is 1.
    """
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
