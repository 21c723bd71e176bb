"""Sums over classes of smooth functions of log r, by interpolation on Chebyshev panels.

The range of log r is divided into intervals of equal width, the panels, each with `DEGREE`
Chebyshev nodes. The weight of each class is distributed over the nodes of its panel. So a sum
``sum_j weight_j f(log r_j)`` over n classes becomes a sum over a few nodes with weights, the atoms.
Conversely, a function whose values at the atoms are known is interpolated at every class. Both
directions cost O(n). Equations such as (B22) are in ``samplesoft/bias/README.md``.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray

DEGREE = 16  # number of nodes of a panel; polynomials have degrees 0 to 15
WIDTH = 0.75  # width of a panel in log r, at which interpolation errors are below 1e-14


@njit
def place(
    t: FloatArray, width: float, first_panel: int, num_panels: int
) -> tuple[NDArray[np.int32], FloatArray]:
    """Return the panel of each value of `t` (n,), and its position in the panel, both (n,).

    Panel i, from 0 to ``num_panels - 1``, is the interval from ``(first_panel + i) * width`` to
    ``(first_panel + i + 1) * width``. Positions are in [-1, 1]. Values outside all panels are moved
    to the nearest end.
    """
    panel = np.empty(len(t), np.int32)
    s = np.empty(len(t))

    for j in range(len(t)):
        index = np.floor(t[j] / width) - first_panel
        # conditional expressions, because `min` and `max` branch to check for NaN
        index = 0.0 if index < 0.0 else index
        index = num_panels - 1.0 if index > num_panels - 1.0 else index
        panel[j] = np.int32(index)  # LLVM would not vectorise a conversion to int64

        position = 2.0 * (t[j] / width - (first_panel + index)) - 1.0
        position = -1.0 if position < -1.0 else position
        s[j] = 1.0 if position > 1.0 else position

    return panel, s


@njit
def _write_chebyshev_polynomials(s: float, out: FloatArray) -> None:
    """Write the first `DEGREE` Chebyshev polynomials at s to `out`.

    Even and odd degrees have separate recurrences, which run in parallel.
    """
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
    """Add the Chebyshev moments of n weighted classes to `moments` (panels, k, DEGREE), eq. (B22).

    Moment i of a panel is a sum over the classes in the panel: the weight of the class times
    polynomial i at the position of the class. `panel` and `s` (n,) are the results of `place`.
    `weights` (k, n) has one row for each of k sums.
    """
    values = np.empty(DEGREE)
    for j in range(len(s)):
        _write_chebyshev_polynomials(s[j], values)
        panel_moments = moments[panel[j]]
        for k in range(len(weights)):
            weight = weights[k, j]
            for i in range(DEGREE):
                panel_moments[k, i] += weight * values[i]


@njit
def evaluate(panel: IntArray, s: FloatArray, coefficients: FloatArray) -> FloatArray:
    """Return the values (k, n) of k interpolated functions at n classes, eq. (B23).

    `panel` and `s` (n,) are the results of `place`. `coefficients` (panels, k, DEGREE) are the
    coefficients of each function in Chebyshev polynomials, for each panel.
    """
    values = np.empty(DEGREE)
    out = np.empty((coefficients.shape[1], len(s)))
    for j in range(len(s)):
        _write_chebyshev_polynomials(s[j], values)
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
    """Return three weights of each class, q, q kappa and q zeta**2, as (3, n), and zeta (n,).

    Each class has a ratio r and a probability `q` (n,). With any positive number R, `t` (n,) is
    ``log(r / R)`` and `kappa` (n,) is ``(r - R) / (r + R)``. With the mean ratio r_mean, zeta is
    ``(r - r_mean) / (r + r_mean)``, and `t_mean` and `kappa_mean` are t and kappa at r = r_mean.
    """
    weights = np.empty((3, len(t)))
    zeta = np.empty(len(t))

    # zeta is tanh((t - t_mean) / 2), and kappa is tanh(t / 2). The addition theorem of tanh keeps
    # the digits of kappa - kappa_mean. If its denominator, 1 - product, would lose digits, the next
    # loop computes zeta from t. This loop has no branch, so that LLVM vectorises it.
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
def node_positions(degree: int = DEGREE) -> FloatArray:
    """Return the Chebyshev nodes (degree,), in (0, 1) and decreasing."""
    positions: FloatArray = 0.5 * (1.0 + np.cos((np.arange(degree) + 0.5) * (np.pi / degree)))
    return positions


@cache
def coefficient_matrix(degree: int = DEGREE) -> FloatArray:
    """Return the matrix (degree, degree) that maps values at the nodes to Chebyshev coefficients.

    For a row vector of values, ``values @ matrix`` are the coefficients of the polynomial that has
    these values at the nodes.
    """
    angles = (np.arange(degree) + 0.5) * (np.pi / degree)
    matrix: FloatArray = np.cos(np.outer(angles, np.arange(degree))) * (2.0 / degree)
    matrix[:, 0] *= 0.5
    return matrix
