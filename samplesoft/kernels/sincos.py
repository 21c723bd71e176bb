"""Vectorised cosine and sine of angles in turns (1 turn = 2 pi), computed together."""

from __future__ import annotations

from math import factorial, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit

Terms = tuple[np.floating[Any], ...]


def _taylor(first: int, count: int, dtype: type[np.floating[Any]]) -> Terms:
    """Return the coefficients in x**2 of cos(2 pi x) for `first` = 0, or sin(2 pi x) / x for 1."""
    powers = range(first, first + 2 * count, 2)
    signs = (1.0, -1.0) * count
    values = [(2.0 * pi) ** k / factorial(k) for k in powers]
    return tuple(dtype(s * v) for s, v in zip(signs, values, strict=False))


# One half; the power of 2 (times 1.5) at which floats are integers, so that adding and subtracting
# it rounds; and enough terms for each dtype at a quarter turn: the next would add < 6e-8, < 3e-17.
TERMS: dict[np.dtype[Any], tuple[Any, Any, Terms, Terms]] = {
    np.dtype(kind): (kind(0.5), kind(1.5 * 2.0**bits), _taylor(0, cos, kind), _taylor(1, sin, kind))
    for kind, bits, cos, sin in ((np.float32, 23, 7, 6), (np.float64, 52, 11, 11))
}


@njit
def cos_sin(
    turns: Any, scale: Any, half: Any, nearest: Any, cosine: Terms, sine: Terms
) -> tuple[Any, Any]:
    """Return the cosine and the sine of an angle in turns, times `scale`; all of one dtype.

    The angle is at most 2**22 turns, above which float32 has no quarter turns. It is reduced
    exactly to within a quarter turn of the nearest half turn, whose parity is the sign of both
    results. The last four arguments are the entry of `TERMS` for the dtype.
    """
    turns -= (turns + nearest) - nearest
    halves = (turns + turns + nearest) - nearest  # -1, 0 or 1
    turns -= half * halves
    square = turns * turns
    c = cosine[-1]
    for k in range(len(cosine) - 2, -1, -1):
        c = c * square + cosine[k]
    s = sine[-1]
    for k in range(len(sine) - 2, -1, -1):
        s = s * square + sine[k]
    sign = scale - (scale + scale) * abs(halves)
    return sign * c, sign * (s * turns)


@njit
def cos_sin_rows(
    out: NDArray[Any], scale: float, half: Any, nearest: Any, cosine: Terms, sine: Terms
) -> None:
    """Replace turns in the left half of `out` (N, 2 D) by scaled cosines, followed by sines."""
    scale = out.dtype.type(scale)
    num = out.shape[1] // 2
    for i in range(out.shape[0]):
        left = out[i, :num]
        right = out[i, num:]
        for j in range(num):
            left[j], right[j] = cos_sin(left[j], scale, half, nearest, cosine, sine)
