"""Sums over classes of a smooth function of two numbers, through cells of Chebyshev nodes.

What a class brings to scheme ``poisson`` depends on its log w and on its inclusion probability
pi. Panels of log w times one range of ``l = -log(1 - pi)`` are cells; as with `panels`, a class
spreads its weight over the nodes of its cell, and a function that is known there is evaluated at
every class.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.bias.panels import DEGREE, WIDTH, _polynomials


class CellClasses(NamedTuple):
    """Classes of cells, all (n,)."""

    log_w: FloatArray
    pi: FloatArray
    decay: FloatArray  # l = -log(1 - pi)
    contrast: FloatArray  # kappa = (w - W) / (w + W), W that of the reference
    slot: IntArray  # number of the cell, or -1 for a class in none
    largest: float  # of l in cells, which start at 0


@njit
def _place(classes: CellClasses, j: int, t_values: FloatArray, l_values: FloatArray) -> None:
    """Write the Chebyshev polynomials in log w and in l of class j."""
    t = classes.log_w[j] / WIDTH
    _polynomials(min(max(2.0 * (t - math.floor(t)) - 1.0, -1.0), 1.0), t_values)
    s = min(2.0 * (classes.decay[j] / classes.largest) - 1.0, 1.0)
    l_values[0] = 1.0
    l_values[1] = s
    for i in range(2, len(l_values)):
        l_values[i] = 2.0 * s * l_values[i - 1] - l_values[i - 2]


@njit
def add_moments(classes: CellClasses, start: int, stop: int, moments: FloatArray) -> None:
    """Add the moments of the weights pi to `moments` (cells, degree in l, DEGREE)."""
    t_values, l_values = np.empty(DEGREE), np.empty(moments.shape[1])
    for j in range(start, stop):
        cell = classes.slot[j]
        if cell < 0:
            continue
        _place(classes, j, t_values, l_values)
        for k in range(len(l_values)):
            scale = classes.pi[j] * l_values[k]
            for i in range(DEGREE):
                moments[cell, k, i] += scale * t_values[i]


@njit
def evaluate(
    classes: CellClasses,
    start: int,
    stop: int,
    pi_ref: float,
    coefficients: FloatArray,
    coarse: FloatArray,
    out: FloatArray,
) -> tuple[float, float, float]:
    """Write the flows pi ((1 - pi) kappa A + (pi_ref - pi) B) into `out` (n,), eq. (B43).

    `coefficients` (2, cells, degree in l, DEGREE) are those of A and B, `coarse` (2, cells) what
    half the nodes change in them. Returns the sum of the flows, the size of their parts, and by how
    much half the nodes change them.
    """
    t_values, l_values = np.empty(DEGREE), np.empty(coefficients.shape[2])
    total = size = change = 0.0
    for j in range(start, stop):
        cell = classes.slot[j]
        if cell < 0:
            continue
        _place(classes, j, t_values, l_values)
        first = second = 0.0
        for k in range(len(l_values)):
            a, b = coefficients[0, cell, k], coefficients[1, cell, k]
            part_a = part_b = odd_a = odd_b = 0.0  # chains of additions that run side by side
            for i in range(0, DEGREE, 2):
                part_a += a[i] * t_values[i]
                part_b += b[i] * t_values[i]
                odd_a += a[i + 1] * t_values[i + 1]
                odd_b += b[i + 1] * t_values[i + 1]
            first += l_values[k] * (part_a + odd_a)
            second += l_values[k] * (part_b + odd_b)
        pi = classes.pi[j]
        scale_a = pi * (1.0 - pi) * classes.contrast[j]
        scale_b = pi * (pi_ref - pi)
        out[j] = scale_a * first + scale_b * second
        total += out[j]
        size += abs(scale_a * first) + abs(scale_b * second)
        change += abs(scale_a) * coarse[0, cell] + abs(scale_b) * coarse[1, cell]
    return total, size, change
