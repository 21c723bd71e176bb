"""Sums over classes of smooth functions of log r, by interpolation on Chebyshev panels.

A sum ``sum_j weight_j f(log r_j)`` over n classes becomes a sum over a few atoms. Each panel of
log r has `DEGREE` Chebyshev nodes, and the weight of a class is distributed over the nodes of its
panel. Conversely, a function known at the atoms is interpolated at every class. Both cost O(n).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray

DEGREE = 16  # number of polynomials, and of nodes, of a panel: up to power 15
WIDTH = 0.75  # width of a panel in log r, for an error below 1e-14 with this degree


@njit
def place(
    t: FloatArray, width: float, first: int, count: int
) -> tuple[NDArray[np.int32], FloatArray]:
    """Return the panel, from 0 to `count` - 1, and the position in it, -1 to 1, of each t (n,).

    Panel i is ``[first + i, first + i + 1) * width``; values beyond the ends are clipped.
    """
    panel = np.empty(len(t), np.int32)
    s = np.empty(len(t))
    for j in range(len(t)):
        index = np.floor(t[j] / width) - first
        # branch-free, unlike min and max, which check for NaN
        index = 0.0 if index < 0.0 else index
        index = count - 1.0 if index > count - 1.0 else index
        panel[j] = np.int32(index)  # int64 would not be vectorised
        position = 2.0 * (t[j] / width - (first + index)) - 1.0
        position = -1.0 if position < -1.0 else position
        s[j] = 1.0 if position > 1.0 else position
    return panel, s


@njit
def _write_polynomials(s: float, out: FloatArray) -> None:
    """Write the Chebyshev polynomials of s; even and odd ones in separate recurrences."""
    out[0] = 1.0
    out[1] = s
    square = 2.0 * s * s - 1.0
    out[2] = square
    out[3] = s * (2.0 * square - 1.0)
    for i in range(4, DEGREE, 2):
        out[i] = 2.0 * square * out[i - 2] - out[i - 4]
        out[i + 1] = 2.0 * square * out[i - 1] - out[i - 3]


@njit
def add_moments(panel: IntArray, s: FloatArray, weights: FloatArray, moments: FloatArray) -> None:
    """Add the Chebyshev moments of `weights` (k, n) to `moments` (panels, k, DEGREE), eq. (B22)."""
    values = np.empty(DEGREE)
    for j in range(len(s)):
        _write_polynomials(s[j], values)
        of_panel = moments[panel[j]]
        for k in range(len(weights)):
            weight = weights[k, j]
            for i in range(DEGREE):
                of_panel[k, i] += weight * values[i]


@njit
def evaluate(panel: IntArray, s: FloatArray, coefficients: FloatArray) -> FloatArray:
    """Return functions (k, n) at classes, from `coefficients` (panels, k, DEGREE), eq. (B23)."""
    values = np.empty(DEGREE)
    out = np.empty((coefficients.shape[1], len(s)))
    for j in range(len(s)):
        _write_polynomials(s[j], values)
        for k in range(len(out)):
            c = coefficients[panel[j], k]
            even = odd = 0.0  # two independent sums run in parallel
            for i in range(0, DEGREE, 2):
                even += c[i] * values[i]
                odd += c[i + 1] * values[i + 1]
            out[k, j] = even + odd
    return out


@njit
def class_weights(
    t: FloatArray, q: FloatArray, kappa: FloatArray, t_mean: float, kappa_mean: float
) -> tuple[FloatArray, FloatArray]:
    """Return the weights q, q kappa and q zeta**2, (3, n), and zeta = (r - mean) / (r + mean)."""
    weights = np.empty((3, len(t)))
    zeta = np.empty(len(t))
    # the addition theorem of tanh keeps the digits of kappa - kappa_mean; branch-free
    for i in range(len(t)):
        product = kappa[i] * kappa_mean
        zeta[i] = (kappa[i] - kappa_mean) / (1.0 - product if product < 0.9 else 1.0)
    for i in range(len(t)):
        if kappa[i] * kappa_mean >= 0.9:
            zeta[i] = math.tanh(0.5 * (t[i] - t_mean))
    for i in range(len(t)):
        weights[0, i] = q[i]
        weights[1, i] = q[i] * kappa[i]
        weights[2, i] = q[i] * zeta[i] * zeta[i]
    return weights, zeta


@cache
def node_places(degree: int = DEGREE) -> FloatArray:
    """Return the Chebyshev nodes (degree,) in (0, 1)."""
    places: FloatArray = 0.5 * (1.0 + np.cos((np.arange(degree) + 0.5) * (np.pi / degree)))
    return places


@cache
def to_coefficients(degree: int = DEGREE) -> FloatArray:
    """Return the matrix (degree, degree) from values at the nodes to Chebyshev coefficients."""
    angles = (np.arange(degree) + 0.5) * (np.pi / degree)
    matrix: FloatArray = np.cos(np.outer(angles, np.arange(degree))) * (2.0 / degree)
    matrix[:, 0] *= 0.5
    return matrix
