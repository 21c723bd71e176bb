"""Weights of classes from their ranks or their counts."""

from __future__ import annotations

import numpy as np

from samplesoft._validation import FloatArray


def log_uniform_weights(num_classes: int) -> FloatArray:
    """Return ``log((k + 2) / (k + 1))`` for each class k, shape (n,).

    Zipf's law for classes numbered by falling frequency. The sum is ``log(n + 1)``.

    Parameters
    ----------
    num_classes : int
        Number of classes n.

    Returns
    -------
    ndarray of float64, shape (n,)
        Weights, all positive.

    References
    ----------
    TensorFlow, ``log_uniform_candidate_sampler``.

    Examples
    --------
    >>> (log_uniform_weights(3) / np.log(4.0)).round(3)
    array([0.5  , 0.292, 0.208])
    """
    weights: FloatArray = np.log1p(1.0 / np.arange(1.0, num_classes + 1.0))
    return weights


def unigram_weights(counts: FloatArray, power: float) -> FloatArray:
    """Return the counts to the power `power`, divided by the greatest, shape (n,).

    A class that never occurs counts as half of the rarest that does, so that it can be drawn.

    Parameters
    ----------
    counts : ndarray of float64, shape (n,)
        How often each class occurs, in any unit: at least 0, not all 0.
    power : float
        1 for the counts as they are, near 0 for equal weights.

    Returns
    -------
    ndarray of float64, shape (n,)
        Weights, the greatest 1.

    References
    ----------
    Mikolov et al. (2013), "Distributed representations of words and phrases and their
    compositionality", section 2.2: the power 0.75.

    Examples
    --------
    >>> unigram_weights(np.array([81.0, 16.0, 0.0]), 0.75).round(3)
    array([1.   , 0.296, 0.176])
    """
    counts = np.where(counts > 0.0, counts, 0.5 * counts[counts > 0.0].min())
    weights: FloatArray = np.exp(power * (np.log(counts) - np.log(counts.max())))
    return weights
