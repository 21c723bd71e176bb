"""Draws from a softmax whose classes lie in blocks of known mass.

The probability of a class is that of its block times its own inside the block, both as they are
used here, so that probabilities are those of the draws whatever the rounding of the masses. A
block holds its classes as columns (d, size), so that a loop over classes runs along memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.weights import exp_weights, find

Real = NDArray[Any]  # float32 or float64


@njit
def visit(
    bucket: Real, query: Real, size: int, excluded: int, logits: Real, weights: FloatArray
) -> tuple[float, float]:
    """Write the logits of a block, and for all but `excluded` exp(logit) divided by the greatest.

    Returns the sum of what is written last, and the greatest logit, which they are divided by.
    """
    logits[:size] = 0
    for i in range(len(query)):
        for c in range(size):
            logits[c] += bucket[i, c] * query[i]
    for c in range(size):
        weights[c] = float(logits[c])
    return exp_weights(weights, size, excluded)


@njit
def share(masses: FloatArray, shares: FloatArray) -> tuple[float, float]:
    """Write exp(mass) of each block divided by the greatest.

    Returns the sum of what is written, and the greatest mass.
    """
    greatest = -np.inf
    for mass in masses:
        greatest = max(greatest, mass)
    total = 0.0
    for block in range(len(masses)):
        shares[block] = math.exp(masses[block] - greatest)
        total += shares[block]
    return total, greatest


@njit
def draw(
    queries: Real,
    buckets: Real,
    masses: FloatArray,
    exclude: IntArray,
    uniforms: FloatArray,
    order: IntArray,
    num_classes: int,
    ids: IntArray,
    log_q: FloatArray,
) -> None:
    """Draw a class (B, m) for each uniform; `order` (B, m) sorts the uniforms of each row.

    `masses` (B, L) holds the logarithm of each block's sum of exp(logit) without the excluded
    class.
    """
    num_blocks, _, width = buckets.shape
    shares, weights = np.empty(num_blocks), np.empty(width)
    logits = np.empty(width, buckets.dtype)
    for b in range(len(queries)):
        total, heaviest = share(masses[b], shares)
        block, below, here, within, greatest = 0, 0.0, -1, 0.0, 0.0
        for k in order[b]:
            target = uniforms[b, k] * total
            block, below = find(shares, num_blocks, target, block, below)
            first = block * width
            size = min(width, num_classes - first)
            if block != here:
                within, greatest = visit(
                    buckets[block], queries[b], size, exclude[b] - first, logits, weights
                )
                here = block
            c, _ = find(weights, size, within * (target - below) / shares[block], 0, 0.0)
            ids[b, k] = first + c
            log_share = masses[b, block] - heaviest - math.log(total)
            log_q[b, k] = log_share + (float(logits[c]) - greatest - math.log(within))


@njit
def log_prob(
    queries: Real,
    buckets: Real,
    masses: FloatArray,
    exclude: IntArray,
    ids: IntArray,
    order: IntArray,
    num_classes: int,
    log_q: FloatArray,
) -> None:
    """Write the log-probability of each class (B, k); `order` (B, k) sorts the ids of each row."""
    num_blocks, _, width = buckets.shape
    shares, weights = np.empty(num_blocks), np.empty(width)
    logits = np.empty(width, buckets.dtype)
    for b in range(len(queries)):
        total, heaviest = share(masses[b], shares)
        here, within, greatest = -1, 0.0, 0.0
        for k in order[b]:
            if ids[b, k] == exclude[b]:
                log_q[b, k] = -np.inf
                continue
            block = ids[b, k] // width
            first = block * width
            if block != here:
                size = min(width, num_classes - first)
                within, greatest = visit(
                    buckets[block], queries[b], size, exclude[b] - first, logits, weights
                )
                here = block
            log_share = masses[b, block] - heaviest - math.log(total)
            own = float(logits[ids[b, k] - first]) - greatest
            log_q[b, k] = log_share + (own - math.log(within))
