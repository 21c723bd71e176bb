"""Random Fourier and positive features on the device."""

from __future__ import annotations

import math
from typing import Any

from samplesoft._cuda import WARP_SIZE, device_function, kernel, lane, warp_index, warp_sum
from samplesoft.kernels.sincos import cos_sin


@device_function
def write_fourier(out: Any, i: int, j: int, turns: Any, parameters: Any) -> None:
    """Write a cosine and, in the right half of the row, a sine."""
    scale, half, nearest, cosine, sine = parameters
    c, s = cos_sin(turns, scale, half, nearest, cosine, sine)
    out[i, j] = c
    out[i, out.shape[1] // 2 + j] = s


@device_function
def write_positive(out: Any, i: int, j: int, projection: Any, parameters: Any) -> None:
    """Write an exponential, shifted by a number of its row."""
    out[i, j] = math.exp(projection - parameters[0][i])


@kernel
def positive_shifts(rows: Any, factor: Any, constant: Any, shifts: Any) -> None:
    """Write ``factor * |x|**2 + constant`` for each row x of (N, d), a warp for each."""
    i = warp_index()
    if i >= rows.shape[0]:
        return
    square = rows.dtype.type(0)
    for k in range(lane(), rows.shape[1], WARP_SIZE):
        square += rows[i, k] * rows[i, k]
    square = warp_sum(square)
    if lane() == 0:
        shifts[i] = factor * square + constant
