"""Logarithms that a loop over an array computes several at a time."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray

_LN2 = 0.6931471805599453
_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
_FRACTION = 0x000FFFFFFFFFFFFF
_NEAR = -0.25


@njit
def log_from_both(z: float, f: float) -> float:
    """Return log f where f is 1 + z, each known by itself: z from -1 to 0, and f a normal number.

    Small z keep their digits; else f is a power of 2 times a number near 1.
    """
    bits = np.float64(f).view(np.int64) - np.int64(_ROOT_HALF)
    power = np.float64(bits >> 52)
    rest = np.int64((bits & _FRACTION) + _ROOT_HALF).view(np.float64) - 1.0
    d = z if z > _NEAR else rest
    k = 0.0 if z > _NEAR else power
    q = d / (2.0 + d)
    s = q * q
    p = 1.0 / 25.0
    p = p * s + 1.0 / 23.0
    p = p * s + 1.0 / 21.0
    p = p * s + 1.0 / 19.0
    p = p * s + 1.0 / 17.0
    p = p * s + 1.0 / 15.0
    p = p * s + 1.0 / 13.0
    p = p * s + 1.0 / 11.0
    p = p * s + 1.0 / 9.0
    p = p * s + 1.0 / 7.0
    p = p * s + 1.0 / 5.0
    p = p * s + 1.0 / 3.0
    return k * _LN2 + (2.0 * q + 2.0 * q * (s * p))


@njit
def log1p_to(x: FloatArray) -> None:
    """Replace each of `x`, from -1/2 to 1, by ``log(1 + x)``.

    That is ``2 artanh z`` at ``z = x / (2 + x)``, at most 1/3 in size, by its series; small
    results keep their digits.
    """
    for i in range(len(x)):
        z = x[i] / (2.0 + x[i])
        s = z * z
        p = 1.0 / 31.0
        p = p * s + 1.0 / 29.0
        p = p * s + 1.0 / 27.0
        p = p * s + 1.0 / 25.0
        p = p * s + 1.0 / 23.0
        p = p * s + 1.0 / 21.0
        p = p * s + 1.0 / 19.0
        p = p * s + 1.0 / 17.0
        p = p * s + 1.0 / 15.0
        p = p * s + 1.0 / 13.0
        p = p * s + 1.0 / 11.0
        p = p * s + 1.0 / 9.0
        p = p * s + 1.0 / 7.0
        p = p * s + 1.0 / 5.0
        p = p * s + 1.0 / 3.0
        x[i] = 2.0 * z + 2.0 * z * (s * p)
