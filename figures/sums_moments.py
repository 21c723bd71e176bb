"""Exact mean and variance of the gradients of `DoubleSumLoss` and `OneVsEachLoss`; not a script.

Both gradients are means over independent draws of terms of one draw, whose first two moments are
sums over the classes. U-max makes a factor of the double-sum depend on the draw that scores
highest: with classes by their scores, at most the i-th of them is drawn with the chance F_i**m, and
what the factor of each multiplies is a difference of two neighbours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

FloatArray = NDArray[np.float64]


def double_sum_moments(
    logits: FloatArray,
    label: int,
    q: FloatArray,
    num_sampled: int,
    vectors: FloatArray,
    log_sum: float,
    slack: float = 1.0,
) -> tuple[FloatArray, float]:
    """Return the mean (d,) and the variance of the gradient in h, for tau = 1 and u = `log_sum`.

    Draws are from q (n,), those of the label left out; class vectors are (n, d).
    """
    m, margins = num_sampled, logits - logits[label]
    # the label weighs nothing, and comes first: it raises no u
    order = np.argsort(np.where(np.arange(len(q)) == label, -np.inf, margins), kind="stable")
    order = order[(q[order] > 0.0) | (order == label)]
    chances, others = q[order], order != label
    least = np.logaddexp(0.0, margins[order])
    sums = np.where(others & (log_sum < least - slack), least, log_sum)
    ratios = np.where(others, np.exp(margins[order]), 0.0)
    rows = vectors[order] - vectors[label]
    below = np.cumsum(chances) / chances.sum()
    first = np.cumsum(ratios[:, None] * rows, axis=0)  # of one draw up to a class
    squares = ratios**2 * np.einsum("jd,jd->j", rows, rows)
    second = np.cumsum(np.where(others, squares / np.where(others, chances, 1.0), 0.0))
    pairs = np.einsum("jd,jd->j", first, first)
    power = below ** (m - 1.0)
    two = below ** (m - 2.0) if m > 1 else np.zeros(len(below))
    both = (power * second + (m - 1.0) * two * pairs) / m
    factors = np.exp(-sums)
    mean = factors @ np.diff(power[:, None] * first, axis=0, prepend=0.0)
    square = factors**2 @ np.diff(both, prepend=0.0)
    return mean, float(square - mean @ mean)


def one_vs_each_moments(
    logits: FloatArray, label: int, q: FloatArray, num_sampled: int, vectors: FloatArray
) -> tuple[FloatArray, float]:
    """Return the mean (d,) and the variance of the gradient in h, for tau = 1."""
    slopes = np.where(np.arange(len(q)) == label, 0.0, expit(logits - logits[label]))
    rows, drawn = vectors - vectors[label], q > 0.0
    mean = slopes @ rows
    square = slopes[drawn] ** 2 / q[drawn] @ np.einsum("jd,jd->j", rows, rows)[drawn]
    return mean, float(square - mean @ mean) / num_sampled
