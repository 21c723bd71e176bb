"""Exponentials and logarithms that the compiler vectorises.

``math.exp`` is called for one number after another. These functions are polynomials, which become
vector instructions: several times as fast, and as accurate as the type.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import FloatArray

Real = NDArray[Any]  # float32 or float64

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693147180369123816490  # with trailing zeros, so that its multiples are exact
_LN2_LOW = 1.90821492927058770002e-10
_LOWEST = -745.0  # exp(_LOWEST) is the smallest positive float64
_HIGHEST = 709.0

_LOG2_E_32 = np.float32(1.44269504)
_LN2_HIGH_32 = np.float32(0.693359375)  # with trailing zeros, so that its multiples are exact
_LN2_LOW_32 = np.float32(-2.12194440e-4)
_LOWEST_32 = np.float32(-87.0)  # results below it are 0, and never slow denormal numbers
_ZERO = np.float32(0.0)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)

_LN2 = 0.6931471805599453
_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
_FRACTION = 0x000FFFFFFFFFFFFF
_NEAR = -0.25

# coefficients of series from the highest power down, to the last bit
_EXP = tuple(1.0 / math.factorial(i) for i in range(13, 1, -1))  # the next term is below 1e-17
_EXP_32 = tuple(np.float32(1.0 / math.factorial(i)) for i in range(7, 1, -1))
_THIRD_ORDER = tuple(1.0 / math.factorial(i) for i in range(21, 2, -1))  # below 1e-21
ARTANH = tuple(1.0 / i for i in range(31, 2, -2))  # of artanh(z) / z**3, in z**2


@njit
def horner(first: Any, others: tuple[Any, ...], x: Any) -> Any:
    """Return the polynomial in x with the coefficients `first`, of the highest power, and `others`.

    The compiler unrolls a loop over about ten coefficients, and then vectorises over x. Longer
    polynomials are therefore evaluated in two calls.
    """
    value = first
    for coefficient in others:
        value = value * x + coefficient
    return value


@njit
def exp_to(x: Real, size: int) -> None:
    """Replace the first `size` entries of `x`, at most about 0, by their exponentials."""
    if x.itemsize == 4:
        exp32_to(x, size)
    else:
        exp64_to(x, size)


@njit
def exp64(x: float) -> float:
    """Return the exponential of x, clipped to the range of float64; never 0."""
    v = _LOWEST if x < _LOWEST else x
    v = _HIGHEST if v > _HIGHEST else v
    # exp(v) = 2**k exp(r) with |r| at most log(2) / 2; log(2) is subtracted in two parts for
    # accuracy
    k = np.floor(v * _LOG2_E + 0.5)
    r = (v - k * _LN2_HIGH) - k * _LN2_LOW
    p = 1.0 + (r + r * r * horner(_EXP[0], _EXP[1:], r))
    half = np.int64(k) >> 1  # two factors, because 2**k itself may underflow
    first = np.int64((half + 1023) << 52).view(np.float64)
    second = np.int64((np.int64(k) - half + 1023) << 52).view(np.float64)
    return p * first * second  # type: ignore[no-any-return]


@njit
def third_order_series(x: float) -> float:
    """Return (1 - x + x**2 / 2 - exp(-x)) / x**3, x from -1 to 1, by its series."""
    # the terms alternate and decrease
    high = horner(_THIRD_ORDER[0], _THIRD_ORDER[1:10], -x)
    return horner(high, _THIRD_ORDER[10:], -x)  # type: ignore[no-any-return]


@njit
def second_order_series(x: float) -> float:
    """Return (exp(-x) - 1 + x) / x**2, x from -1 to 1."""
    return 0.5 - x * third_order_series(x)


@njit
def decay_ratio_series(x: float) -> float:
    """Return (1 - exp(-x)) / x, x from -1 to 1."""
    return 1.0 - x * (0.5 - x * third_order_series(x))


@njit
def exp64_to(x: FloatArray, size: int) -> None:
    """Replace entries of `x`, float64 and at most 0, by their exponentials, which are never 0."""
    for i in range(size):
        x[i] = exp64(x[i])


@njit
def exp32(x: Any) -> Any:
    """Return the exponential of x, float32 and at most about 0, in float32."""
    # as `exp64`, but entirely in float32, so that eight fill a vector register
    v = max(x, _LOWEST_32)
    k = np.floor(v * _LOG2_E_32 + _HALF)
    r = (v - k * _LN2_HIGH_32) - k * _LN2_LOW_32
    p = _ONE + (r + r * r * horner(_EXP_32[0], _EXP_32[1:], r))
    two_to_k = np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
    return _ZERO if x < _LOWEST_32 else p * two_to_k


@njit
def exp32_to(x: Real, size: int) -> None:
    """Replace entries of `x`, float32 and at most about 0, by their exponentials."""
    for i in range(size):
        x[i] = exp32(x[i])


@njit
def log_from_both(z: float, f: float) -> float:
    """Return log f for f = 1 + z, given both, with z in [-1, 0] and f a normal number.

    For small z the series in z is accurate; otherwise f is a power of 2 times a number near 1.
    """
    # f = 2**power * (1 + rest) with 1 + rest between sqrt(1/2) and sqrt(2)
    bits = np.float64(f).view(np.int64) - np.int64(_ROOT_HALF)
    power = np.float64(bits >> 52)
    rest = np.int64((bits & _FRACTION) + _ROOT_HALF).view(np.float64) - 1.0
    d = z if z > _NEAR else rest
    k = 0.0 if z > _NEAR else power
    # log(1 + d) = 2 artanh(d / (2 + d)), whose series has odd powers only
    q = d / (2.0 + d)
    s = q * q
    p = horner(horner(ARTANH[3], ARTANH[4:10], s), ARTANH[10:], s)
    return k * _LN2 + (2.0 * q + 2.0 * q * (s * p))  # type: ignore[no-any-return]


@njit
def log1p_to(x: FloatArray) -> None:
    """Replace entries of `x`, from -1/2 to 1, by ``log(1 + x)``.

    This is ``2 artanh z`` with ``z = x / (2 + x)``, at most 1/3 in size, by its series, which is
    accurate for small results.
    """
    for i in range(len(x)):
        z = x[i] / (2.0 + x[i])
        s = z * z
        p = horner(horner(ARTANH[0], ARTANH[1:8], s), ARTANH[8:], s)
        x[i] = 2.0 * z + 2.0 * z * (s * p)
