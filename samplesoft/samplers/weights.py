"""Weights of classes from their ranks or their counts."""

from __future__ import annotations

import numpy as np

from samplesoft._validation import FloatArray


def log_uniform_weights(num_classes: int) -> FloatArray:
    """Return Zipf's law (n,), ``log((k + 2) / (k + 1))`` for class k, of sum ``log(n + 1)``."""
    return np.log1p(1.0 / np.arange(1.0, num_classes + 1.0))


def unigram_weights(counts: FloatArray, power: float) -> FloatArray:
    """Return the counts (n,) to a power, divided by the greatest.

    A class that never occurs counts as half of the rarest that does, so that it can be drawn.
    """
    counts = np.where(counts > 0.0, counts, 0.5 * counts[counts > 0.0].min())
    weights: FloatArray = np.exp(power * (np.log(counts) - np.log(counts.max())))
    return weights
