"""Integrals of squares over nodes, and their errors from the magnitudes of their terms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from samplesoft._jit import chunks, thread_map
from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.quadrature import halving_change

_TERMS_PER_CHUNK = 1 << 20  # nodes times classes
LARGEST_LOG = 150.0 * np.log(10.0)  # exp(2 * LARGEST_LOG) is finite
MIN_SQUARE = 1e-290  # smaller squares are near the subnormal numbers, and lack digits


def square_with_error(mean: FloatArray, off: float) -> tuple[float, float]:
    """Return the squared norm of a vector (d,), and its error if the vector's error is `off`."""
    squared = float(mean @ mean)
    return squared, off * (2.0 * squared**0.5 + off)


# What the integrals have in common


def centre(vectors: FloatArray, probs: FloatArray) -> FloatArray:
    """Return class vectors (n, d) minus their mean under the softmax."""
    # first relative to the most probable class: c - mean would cancel if it has nearly all mass
    centred: FloatArray = vectors - vectors[np.argmax(probs)]
    centred -= probs @ centred
    return centred


def reach_of(centred: FloatArray, probs: FloatArray) -> FloatArray:
    """Return the magnitude (n,) of the values from which `centred` (n, d) was computed."""
    norms = np.sqrt(squared_norms(centred))
    return norms + float((probs * norms).sum())  # the subtracted mean is rounded, too


def squared_norms(vectors: FloatArray) -> FloatArray:
    """Return the squared norms (k,) of vectors (k, d)."""
    squares: FloatArray = np.einsum("kd,kd->k", vectors, vectors)
    return squares


def square_and_error(
    change: FloatArray, size: FloatArray, units: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the squared norms of `change` (K, d), and bounds on their errors, both (K,).

    `size` (K,) is the sum of the magnitudes of the terms of `change`, and `units` (K,) their
    relative errors.
    """
    square, moved = squared_norms(change), units * size
    return square, moved * (2.0 * np.sqrt(square) + moved) + units * square


def add_up_classes(
    class_terms: Callable[[slice], tuple[FloatArray, FloatArray, FloatArray]],
    num_nodes: int,
    centred: FloatArray,
    reach: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the sums over classes of ``a * c``, ``|a| * reach`` and ``b * |c|**2`` at each node.

    ``class_terms(slice)`` returns the coefficients a, their sizes |a| and the coefficients b of a
    slice of classes, all (K, classes). `centred` (n, d) are the class vectors c, and `reach` is
    (n,) or (n, k). The sums are (K, d), (K,) or (K, k), and (K,).
    """
    squares, num = squared_norms(centred), (num_nodes,)
    sums = np.zeros(num + centred.shape[1:]), np.zeros(num + reach.shape[1:]), np.zeros(num)

    def work(part: slice) -> tuple[FloatArray, FloatArray, FloatArray]:
        rise, size, second = class_terms(part)
        return rise @ centred[part], size @ reach[part], second @ squares[part]

    parts = chunks(len(centred), max(1, _TERMS_PER_CHUNK // num_nodes))
    for chunk_sums in thread_map(work, parts):
        for total, chunk_sum in zip(sums, chunk_sums, strict=True):
            total += chunk_sum
    return sums


def integrate(
    weights: FloatArray, terms: FloatArray, errors: FloatArray, margin: float = 1.0
) -> tuple[float, float]:
    """Return the sum of weighted terms (K,), and its error: of the terms, and of the quadrature."""
    total = float(weights @ terms)
    coarse = halving_change(weights * terms)  # halving the step squares the relative error, (B25)
    quadrature = margin * coarse * min(coarse / max(abs(total), MIN_SQUARE), 1.0) ** 0.5
    return total, float(weights @ errors) + quadrature
