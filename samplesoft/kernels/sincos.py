"""Cosine and sine of an angle in turns, both at once, in loops that vectorise."""

from __future__ import annotations

from math import factorial, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit

Terms = tuple[np.floating[Any], ...]


def _taylor(first: int, count: int, dtype: type[np.floating[Any]]) -> Terms:
    """Return the coefficients in x**2 of cos(2 pi x) if `first` is 0, of sin(2 pi x) / x if 1."""
    powers = range(first, first + 2 * count, 2)
    signs = (1.0, -1.0) * count
    values = [(2.0 * pi) ** k / factorial(k) for k in powers]
    return tuple(dtype(s * v) for s, v in zip(signs, values, strict=False))


# enough terms for the rounding of each type at a quarter turn: the next would add < 6e-8, < 3e-17
TERMS: dict[np.dtype[Any], tuple[Terms, Terms]] = {
    np.dtype(np.float32): (_taylor(0, 7, np.float32), _taylor(1, 6, np.float32)),
    np.dtype(np.float64): (_taylor(0, 11, np.float64), _taylor(1, 11, np.float64)),
}


@njit
def cos_sin_rows(out: NDArray[Any], scale: float, cosine: Terms, sine: Terms) -> None:
    """Overwrite `out` (N, 2 D), whose left half holds turns, with scaled cosines, then sines.

    The turns are reduced exactly to within a quarter of the nearest half turn, whose parity is
    the sign of both results; `cosine` and `sine` are the entry of `TERMS` for the type of `out`.
    """
    number = out.dtype.type  # plain constants would turn the loop into float64
    half, two, scale = number(0.5), number(2.0), number(scale)
    num = out.shape[1] // 2
    for i in range(out.shape[0]):
        left = out[i, :num]
        right = out[i, num:]
        for j in range(num):
            turns = left[j] - np.rint(left[j])
            halves = np.rint(two * turns)  # -1, 0 or 1
            turns -= half * halves
            square = turns * turns
            c = cosine[-1]
            for k in range(len(cosine) - 2, -1, -1):
                c = c * square + cosine[k]
            s = sine[-1]
            for k in range(len(sine) - 2, -1, -1):
                s = s * square + sine[k]
            sign = scale - two * scale * abs(halves)
            left[j] = sign * c
            right[j] = sign * (s * turns)
