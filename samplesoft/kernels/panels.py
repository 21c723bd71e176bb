"""Sums over classes of a smooth function of log r, through Chebyshev panels.

A sum ``sum_j weight_j f(log r_j)`` over n classes becomes one over a few atoms: each panel of
log r holds `DEGREE` Chebyshev nodes, and a class spreads its weight over those of its panel.
The other way, a function known at the atoms is evaluated at every class. Both cost O(n).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray

DEGREE = 16  # polynomials, and nodes, of a panel: up to power 15
WIDTH = 0.75  # of a panel in log r: with this degree its error is below 1e-14


class PanelClasses(NamedTuple):
    """Classes on Chebyshev panels, (n,): their log (r / R), probability in a draw, and kappa."""

    t: FloatArray
    drawn: FloatArray
    contrast: FloatArray  # kappa = (r - R) / (r + R)
    t_mean: float  # log of the mean ratio over R
    kappa_mean: float
    width: float  # of a panel
    first: int  # number of the first panel
    slot: IntArray  # (panels,) numbers the occupied panels

    @property
    def num_panels(self) -> int:
        """Number of occupied panels."""
        return int(self.slot[-1]) + 1


@njit
def _panel(t: float, width: float, first: int, count: int) -> int:
    return min(max(int(math.floor(t / width)) - first, 0), count - 1)


@njit
def write_polynomials(s: float, out: FloatArray) -> None:
    """Write the Chebyshev polynomials of s into `out`; even and odd ones in separate chains."""
    out[0] = 1.0
    out[1] = s
    square = 2.0 * s * s - 1.0
    out[2] = square
    out[3] = s * (2.0 * square - 1.0)
    for i in range(4, DEGREE, 2):
        out[i] = 2.0 * square * out[i - 2] - out[i - 4]
        out[i + 1] = 2.0 * square * out[i - 1] - out[i - 3]


@njit
def mark(t: FloatArray, drawn: FloatArray, width: float, first: int, count: int) -> FloatArray:
    """Return (count,) the sum of `drawn` in each panel [first + i, first + i + 1) * width."""
    mass = np.zeros(count)
    for j in range(len(t)):
        if drawn[j] > 0.0:
            mass[_panel(t[j], width, first, count)] += drawn[j]
    return mass


@njit
def centred(t: float, kappa: float, t_mean: float, kappa_mean: float) -> float:
    """Return (r - mean) / (r + mean) from t = log(r / R) and kappa = (r - R) / (r + R)."""
    product = kappa * kappa_mean
    if product < 0.9:  # the addition theorem of tanh; keeps the digits of kappa - kappa_mean
        return (kappa - kappa_mean) / (1.0 - product)
    return math.tanh(0.5 * (t - t_mean))


@njit
def class_weights(
    t: FloatArray, q: FloatArray, kappa: FloatArray, t_mean: float, kappa_mean: float
) -> FloatArray:
    """Return (4, A) the weights q, q kappa, q zeta**2 and zeta itself."""
    out = np.empty((4, len(t)))
    for i in range(len(t)):
        zeta = centred(t[i], kappa[i], t_mean, kappa_mean)
        out[0, i] = q[i]
        out[1, i] = q[i] * kappa[i]
        out[2, i] = q[i] * zeta * zeta
        out[3, i] = zeta
    return out


@njit
def add_moments(
    classes: PanelClasses, start: int, stop: int, moments: FloatArray, values: FloatArray
) -> None:
    """Add the Chebyshev moments of three class weights to `moments` (panels, 3, DEGREE), (B22).

    The weights are q_j, q_j kappa_j and q_j zeta_j**2 with zeta = (r - mean) / (r + mean), of the
    classes from `start` to `stop`; `values` (DEGREE,) is room to work in.
    """
    width, first, count = classes.width, classes.first, len(classes.slot)
    for j in range(start, stop):
        w, kappa = classes.drawn[j], classes.contrast[j]
        if w == 0.0:
            continue
        t = classes.t[j]
        panel = _panel(t, width, first, count)
        s = min(max(2.0 * (t / width - (first + panel)) - 1.0, -1.0), 1.0)
        w_kappa = w * kappa
        zeta = centred(t, kappa, classes.t_mean, classes.kappa_mean)
        w_zeta = w * zeta * zeta
        write_polynomials(s, values)
        m = moments[classes.slot[panel]]
        for i in range(DEGREE):
            m[0, i] += w * values[i]
            m[1, i] += w_kappa * values[i]
            m[2, i] += w_zeta * values[i]


@njit
def evaluate(
    classes: PanelClasses,
    start: int,
    stop: int,
    coefficients: FloatArray,
    out: FloatArray,
    values: FloatArray,
) -> float:
    """Write q_j kappa_j f(log r_j) into `out` (n,) from `start` to `stop`, and return the sum.

    `coefficients` (panels, DEGREE) are those of f in Chebyshev polynomials, eq. (B23); `values`
    (DEGREE,) is room to work in.
    """
    width, first, count = classes.width, classes.first, len(classes.slot)
    total = 0.0
    for j in range(start, stop):
        if classes.drawn[j] == 0.0:
            out[j] = 0.0
            continue
        t = classes.t[j]
        panel = _panel(t, width, first, count)
        s = min(max(2.0 * (t / width - (first + panel)) - 1.0, -1.0), 1.0)
        write_polynomials(s, values)
        c = coefficients[classes.slot[panel]]
        even = odd = 0.0  # two chains of additions run side by side
        for i in range(0, DEGREE, 2):
            even += c[i] * values[i]
            odd += c[i + 1] * values[i + 1]
        out[j] = classes.drawn[j] * classes.contrast[j] * (even + odd)
        total += out[j]
    return total


def node_places(degree: int = DEGREE) -> FloatArray:
    """Return the Chebyshev nodes (degree,) in (0, 1)."""
    places: FloatArray = 0.5 * (1.0 + np.cos((np.arange(degree) + 0.5) * (np.pi / degree)))
    return places


def to_coefficients(degree: int = DEGREE) -> FloatArray:
    """Return the matrix (degree, degree) from values at the nodes to Chebyshev coefficients."""
    angles = (np.arange(degree) + 0.5) * (np.pi / degree)
    matrix: FloatArray = np.cos(np.outer(angles, np.arange(degree))) * (2.0 / degree)
    matrix[:, 0] *= 0.5
    return matrix
