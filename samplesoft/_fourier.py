"""Dense probabilities of the kernel tree on random Fourier features."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import chunks
from samplesoft._validation import FloatArray

_BLOCK = 1 << 20  # numbers held at a time beside the result: features of classes, nodes of trees
_LEAST = 1e-300  # stands in for exp(-2 nu) where that underflows


def fourier_kernel(
    h: FloatArray, class_embeddings: FloatArray, nu: float, num_features: int, seed: int
) -> FloatArray:
    r"""Estimate the Gaussian kernel between each context and each class.

    .. math:: \phi(u) = D^{-1/2} [\cos(w_1 u), ..., \cos(w_D u), \sin(w_1 u), ..., \sin(w_D u)]

    with ``w ~ N(0, nu I)``, so that the mean of ``phi(x) . phi(y)`` is
    ``exp(-nu |x - y|^2 / 2)``. The paper prints ``N(0, I / nu)``, which gives another kernel.

    Parameters
    ----------
    h : ndarray of float64, shape (B, d)
        Contexts.
    class_embeddings : ndarray of float64, shape (n, d)
        Classes.
    nu : float
        Sharpness of the kernel.
    num_features : int
        Number of frequencies D; each gives a cosine and a sine.
    seed : int
        Seed of the frequencies; the first of many are those of a smaller `num_features`.

    Returns
    -------
    ndarray of float64, shape (B, n)
        ``phi(h) . phi(c)``, in [-1, 1]. Beside it, memory does not grow with n.

    References
    ----------
    Rawat et al. (2019), "Sampled softmax with random Fourier features", eqs. 16-18.
    """
    frequencies = np.random.default_rng(seed).standard_normal((num_features, h.shape[1]))
    frequencies *= np.sqrt(nu)
    angles = h @ frequencies.T
    context_cos, context_sin = np.cos(angles), np.sin(angles)
    kernel = np.empty((len(h), len(class_embeddings)))
    for part in chunks(len(class_embeddings), max(1, _BLOCK // num_features)):
        angles = class_embeddings[part] @ frequencies.T
        kernel[:, part] = context_cos @ np.cos(angles).T
        kernel[:, part] += context_sin @ np.sin(angles).T
    kernel /= num_features
    return kernel


def tree_probabilities(estimates: FloatArray, least: float) -> FloatArray:
    """Return the probability of each leaf under descent by clipped node masses.

    The mass of a node is the sum of the estimates below it, clipped from below by `least` times
    the number of classes below it; a branch is taken with probability proportional to its mass,
    and a leaf has the product of the branch probabilities on its path. Estimates may be negative:
    the probabilities are exact for the descent as it is done, and sum to 1.

    Parameters
    ----------
    estimates : ndarray of float64, shape (B, n)
        Kernel estimates, in the order of the classes; n is padded to a power of two by leaves
        that have no mass and are never entered.
    least : float
        Least mass of a class, greater than 0.

    Returns
    -------
    ndarray of float64, shape (B, n)
        Leaf probabilities.

    References
    ----------
    Blanc and Rendle (2018), "Adaptive sampled softmax with kernel based sampling", section 3.2.

    Examples
    --------
    >>> tree_probabilities(np.array([[3.0, 1.0, 2.0]]), least=0.5)
    array([[0.5       , 0.16666667, 0.33333333]])
    """
    num, n = estimates.shape
    depth = (n - 1).bit_length()
    leaves = 1 << depth
    least = max(least, _LEAST)
    result = np.empty((num, n))
    for rows in chunks(num, max(1, _BLOCK // leaves)):
        sums = np.zeros((len(estimates[rows]), leaves))
        sums[:, :n] = estimates[rows]
        levels = [_clip(sums, n, 1, least)]
        for level in range(1, depth):
            sums = sums[:, 0::2] + sums[:, 1::2]
            levels.append(_clip(sums, n, 1 << level, least))
        probability = np.ones((len(sums), 1))
        for mass in reversed(levels):
            if mass.shape[1] > 1:
                total = mass[:, 0::2] + mass[:, 1::2]
                branch = np.repeat(probability / np.where(total > 0.0, total, 1.0), 2, axis=1)
                probability = branch * mass
        result[rows] = probability[:, :n]
    return result


def _clip(sums: FloatArray, num_classes: int, width: int, least: float) -> FloatArray:
    """Return node masses: sums clipped by `least` for each class below, 0 above padding alone."""
    below = np.clip(num_classes - width * np.arange(sums.shape[1]), 0, width)
    mass: FloatArray = np.where(below > 0, np.maximum(sums, least * below), 0.0)
    return mass
