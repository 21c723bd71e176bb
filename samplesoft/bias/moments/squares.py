"""Integrals of squares over nodes, and their errors by the sizes of what they add up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from samplesoft._jit import chunks, thread_map
from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.quadrature import halving_change

_CHUNK_NUMBERS = 1 << 20  # nodes times classes at a time
LARGEST_LOG = 150.0 * np.log(10.0)  # of log y: its square is finite
LEAST_SQUARE = 1e-290  # of the squared class vectors: near the least numbers all have few digits


def square_with_error(mean: FloatArray, off: float) -> tuple[float, float]:
    """Return the squared norm of a vector (d,) that is `off` by so much, and its error."""
    squared = float(mean @ mean)
    return squared, off * (2.0 * squared**0.5 + off)


# What the integrals have in common


def centre(vectors: FloatArray, probs: FloatArray) -> FloatArray:
    """Return class vectors (n, d) less their mean under the softmax."""
    # around the heaviest class first: c - mean keeps its digits where one class has all the mass
    centred: FloatArray = vectors - vectors[np.argmax(probs)]
    centred -= probs @ centred
    return centred


def reach_of(centred: FloatArray, probs: FloatArray) -> FloatArray:
    """Return how large the numbers are that the centred vectors (n, d) come from, (n,)."""
    norms = np.sqrt(squared_norms(centred))
    return norms + float((probs * norms).sum())  # the mean that was taken off is rounded, too


def squared_norms(vectors: FloatArray) -> FloatArray:
    """Return the squared norms (k,) of vectors (k, d)."""
    squares: FloatArray = np.einsum("kd,kd->k", vectors, vectors)
    return squares


def square_and_error(
    change: FloatArray, size: FloatArray, units: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the squared norms of `change` (K, d), and bounds on their errors, both (K,).

    Terms of the size `size` (K,) add up to `change`; `units` (K,) are their relative errors.
    """
    square, moved = squared_norms(change), units * size
    return square, moved * (2.0 * np.sqrt(square) + moved) + units * square


def add_up_classes(
    class_terms: Callable[[slice], tuple[FloatArray, FloatArray, FloatArray]],
    num_nodes: int,
    centred: FloatArray,
    reach: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Add up what the classes give to a vector at each node, its size, and what to its square.

    Of the classes of a slice `class_terms` returns what their vectors c are multiplied by, the
    sizes of that, by which `reach` (n,) or (n, k) is, and what |c|**2 is multiplied by, all
    (K, classes). The sums are (K, d), (K,) or (K, k), and (K,).
    """
    squares, num = squared_norms(centred), (num_nodes,)
    sums = np.zeros(num + centred.shape[1:]), np.zeros(num + reach.shape[1:]), np.zeros(num)

    def work(part: slice) -> tuple[FloatArray, FloatArray, FloatArray]:
        rise, size, second = class_terms(part)
        return rise @ centred[part], size @ reach[part], second @ squares[part]

    parts = chunks(len(centred), max(1, _CHUNK_NUMBERS // num_nodes))
    for more in thread_map(work, parts):
        for total, some in zip(sums, more, strict=True):
            total += some
    return sums


def integrate(
    weights: FloatArray, terms: FloatArray, errors: FloatArray, margin: float = 1.0
) -> tuple[float, float]:
    """Return the sum of weighted terms (K,), and its error from theirs and of the quadrature."""
    total = float(weights @ terms)
    coarse = halving_change(weights * terms)  # half the step squares the relative error, (B25)
    quadrature = margin * coarse * min(coarse / max(abs(total), LEAST_SQUARE), 1.0) ** 0.5
    return total, float(weights @ errors) + quadrature
