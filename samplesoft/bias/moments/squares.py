"""Integrals of squares over nodes, with error bounds from the magnitudes of their terms.

Where a sum cancels, its rounding error is that of its terms. So the sum of the *magnitudes* of the
terms is computed alongside each sum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from samplesoft._jit import chunks, thread_map
from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.quadrature import change_by_half_of_nodes

_TERMS_PER_CHUNK = 1 << 20  # number of nodes times the number of classes of a chunk
LARGEST_LOG = 150.0 * np.log(10.0)  # exp(2 * LARGEST_LOG) is finite
MIN_SQUARE = 1e-290  # smaller squares are near the subnormal numbers, which lack digits


def squared_norm_with_error(mean: FloatArray, error_norm: float) -> tuple[float, float]:
    """Return the squared norm of `mean` (d,), and a bound on its error.

    `error_norm` bounds the norm of the error of `mean`.
    """
    squared = float(mean @ mean)
    return squared, error_norm * (2.0 * squared**0.5 + error_norm)


def center_vectors(vectors: FloatArray, probs: FloatArray) -> FloatArray:
    """Return the class vectors (n, d) minus their mean under the softmax `probs` (n,)."""
    # c - mean cancels if one class has nearly all of the mass: subtract its vector first
    centred: FloatArray = vectors - vectors[np.argmax(probs)]
    centred -= probs @ centred
    return centred


def rounding_scales(centred: FloatArray, probs: FloatArray) -> FloatArray:
    """Return scales (n,) of the rounding errors of the class vectors `centred` (n, d).

    The scale is the norm of the vector plus the mean norm of all vectors, because the mean vector
    was subtracted.
    """
    norms = np.sqrt(squared_norms(centred))
    return norms + float((probs * norms).sum())


def squared_norms(vectors: FloatArray) -> FloatArray:
    """Return the squared norms (k,) of vectors (k, d)."""
    squares: FloatArray = np.einsum("kd,kd->k", vectors, vectors)
    return squares


def squared_norms_with_errors(
    change: FloatArray, magnitude: FloatArray, units: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the squared norms (K,) of K vectors `change` (K, d), and bounds (K,) on their errors.

    Each vector is a sum of terms. `magnitude` (K,) is the sum of the magnitudes of the terms, and
    `units` (K,) are bounds on their relative errors.
    """
    square = squared_norms(change)
    error_norms = units * magnitude
    return square, error_norms * (2.0 * np.sqrt(square) + error_norms) + units * square


def sum_over_classes(
    class_terms: Callable[[slice], tuple[FloatArray, FloatArray, FloatArray]],
    num_nodes: int,
    centred: FloatArray,
    scales: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the sums over classes of ``a * c``, ``|a| * scales`` and ``b * |c|**2`` at each node.

    ``class_terms(slice)`` returns the coefficients a, their magnitudes |a| and the coefficients b
    of a slice of classes, all (K, classes) at K nodes. `centred` (n, d) are the class vectors c.
    `scales` are one scale (n,) or k scales (n, k) of the error of each vector.

    The three results have the shapes (K, d), (K,) or (K, k), and (K,).
    """
    squares = squared_norms(centred)
    node_shape = (num_nodes,)
    sums = (
        np.zeros(node_shape + centred.shape[1:]),
        np.zeros(node_shape + scales.shape[1:]),
        np.zeros(node_shape),
    )

    def sum_slice(chunk: slice) -> tuple[FloatArray, FloatArray, FloatArray]:
        coefficients, magnitude, square_coefficients = class_terms(chunk)
        return (
            coefficients @ centred[chunk],
            magnitude @ scales[chunk],
            square_coefficients @ squares[chunk],
        )

    slices = chunks(len(centred), max(1, _TERMS_PER_CHUNK // num_nodes))
    for chunk_sums in thread_map(sum_slice, slices):
        for total, chunk_sum in zip(sums, chunk_sums, strict=True):
            total += chunk_sum

    return sums


def integral_with_error(
    weights: FloatArray, terms: FloatArray, errors: FloatArray, margin: float = 1.0
) -> tuple[float, float]:
    """Return the integral ``weights @ terms``, and an estimate of its error.

    The error is the weighted sum of the `errors` (K,) of the terms, plus `margin` times an estimate
    of the error of the quadrature.
    """
    total = float(weights @ terms)

    # halving the step squares the relative error, (B25)
    change = change_by_half_of_nodes(weights * terms)
    quadrature_error = margin * change * min(change / max(abs(total), MIN_SQUARE), 1.0) ** 0.5
    return total, float(weights @ errors) + quadrature_error
