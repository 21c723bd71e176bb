"""Blocks of atoms at a node, in loops that the compiler turns into vector code.

The atoms come sorted by r. At a node v, those with v (r - r0) near 0 are known by their moments,
and of those with large v (r - r0) nothing changes any more: only the atoms between are gone
through.
"""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.kernels.exponential import decay_ratio_series, exp64

FLAT = -38.0  # below this log of d = v (r - r0), exp(-d) is 1 - d to the last bit
GONE = 7.3  # above it exp(-d) is 0, and so is exp(-y) for y = d - v (mean - r0)
BLOCK = 256
LEAST = 708.0  # exp(-d) beyond it is taken for 0, and never a slow denormal number


@njit
def scaled(x: float, log_distance: float) -> float:
    """Return v times a distance that is known by its log."""
    return math.exp(min(x + log_distance, LARGEST_EXPONENT))


@njit
def edges(x: float, log_d: FloatArray, reference: FloatArray) -> tuple[int, int]:
    """Return the numbers of the first atom that is not flat, and of the first that is gone."""
    edge = FLAT - x
    for log_distance in reference:
        if x + log_distance >= FLAT:  # else it is flat too
            edge = min(edge, edge if x + log_distance > 0.0 else FLAT + log_distance)
    return int(np.searchsorted(log_d, edge)), int(np.searchsorted(log_d, GONE - x))


@njit
def plain(logs: FloatArray) -> tuple[FloatArray, float]:
    """Return exp(logs) and the largest size of a log, which says where v times them is finite."""
    reach = 0.0
    for value in logs:
        if value > -np.inf:
            reach = max(reach, abs(value))
    return np.exp(np.minimum(logs, LARGEST_EXPONENT)), reach


@njit
def times(
    x: float, logs: FloatArray, plain: tuple[FloatArray, float], part: slice, out: FloatArray
) -> None:
    """Write v exp(logs) of a block into `out`, as products where none can leave float64."""
    if abs(x) + plain[1] < LEAST:
        v, own = math.exp(x), plain[0][part]
        for i in range(len(own)):
            out[i] = v * own[i]
    else:
        those = logs[part]
        for i in range(len(those)):
            out[i] = exp64(x + those[i])


@njit
def decays(room: FloatArray, size: int) -> None:
    """Write exp(-d) of a block, whose d = v (r - r0) are the first row of `room`, as the second."""
    d, decay = room[0], room[1]
    for i in range(size):
        e = exp64(-d[i] if d[i] < LEAST else -LEAST)
        decay[i] = e if d[i] < LEAST else 0.0


@njit
def contrasts(decay_ref: float, kappa: FloatArray, room: FloatArray) -> None:
    """Write (exp(-v (r - r0)) - exp(-v (R - r0))) / kappa of a block, eq. (B19), as the third.

    It replaces v (r + R).
    """
    decay, out = room[1], room[2]
    for i in range(len(kappa)):
        total = out[i]
        away = kappa[i] * total  # v (r - R)
        near = -1.0 if away < -1.0 else away
        near = 1.0 if near > 1.0 else near
        close = -decay_ref * total * decay_ratio_series(near)
        far = (decay[i] - decay_ref) / kappa[i]
        out[i] = close if near == away else far
