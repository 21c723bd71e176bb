"""Vectorised cosines and sines of angles in turns (1 turn = 2 pi), computed together."""

from __future__ import annotations

from math import factorial, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit

Terms = tuple[np.floating[Any], ...]


def _taylor_coefficients(lowest_power: int, num_terms: int, dtype: type[np.floating[Any]]) -> Terms:
    """Return the first `num_terms` Taylor coefficients, in powers of x**2, of a function.

    The function is ``cos(2 pi x)`` if `lowest_power` is 0, and ``sin(2 pi x) / x`` if it is 1.
    """
    powers = range(lowest_power, lowest_power + 2 * num_terms, 2)
    signs = (1.0, -1.0) * num_terms
    values = [(2.0 * pi) ** k / factorial(k) for k in powers]
    return tuple(dtype(s * v) for s, v in zip(signs, values, strict=False))


# For each dtype the last four arguments of `cos_sin`: the constant 0.5; a constant 1.5 * 2**bits,
# near which all floats are integers, so that adding and subtracting it rounds; and the coefficients
# of cosine and sine. At a quarter turn, the omitted terms are below 6e-8 (float32) and 3e-17.
TERMS: dict[np.dtype[Any], tuple[Any, Any, Terms, Terms]] = {
    np.dtype(kind): (
        kind(0.5),
        kind(1.5 * 2.0**bits),
        _taylor_coefficients(0, cos, kind),
        _taylor_coefficients(1, sin, kind),
    )
    for kind, bits, cos, sin in ((np.float32, 23, 7, 6), (np.float64, 52, 11, 11))
}


@njit
def cos_sin(
    turns: Any, scale: Any, half: Any, nearest: Any, cosine: Terms, sine: Terms
) -> tuple[Any, Any]:
    """Return ``scale * cos(angle)`` and ``scale * sin(angle)`` for an angle in turns.

    All arguments have one dtype, and the last four are the entry of `TERMS` for this dtype. The
    magnitude of the angle must be at most 2**22 turns, above which float32 cannot represent quarter
    turns. The nearest multiple of a half turn is subtracted, which is exact and leaves at most a
    quarter turn; if the multiple is odd, both results change their sign.
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
    """Write scaled cosines of angles to the left half of `out` (N, 2 D), and sines to the right.

    The angles (N, D), in turns, are the values in the left half, which are replaced.
    """
    scale = out.dtype.type(scale)
    num_angles = out.shape[1] // 2
    for i in range(out.shape[0]):
        left = out[i, :num_angles]
        right = out[i, num_angles:]
        for j in range(num_angles):
            left[j], right[j] = cos_sin(left[j], scale, half, nearest, cosine, sine)
