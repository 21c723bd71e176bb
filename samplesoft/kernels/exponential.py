"""Exponentials and logarithms that the compiler vectorises.

``math.exp`` computes one value after another. The functions of this module evaluate polynomials,
which LLVM turns into vector instructions. They are several times as fast, and accurate to about the
last bit of the dtype.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import FloatArray

Real = NDArray[Any]  # float32 or float64

# constants of float64; log(2) is the sum of a high and a low part
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693147180369123816490  # ends with zero bits, so that integer multiples are exact
_LN2_LOW = 1.90821492927058770002e-10
_MIN_EXPONENT = -745.0  # its exponential is the smallest positive float64
_MAX_EXPONENT = 709.0  # largest integer with a finite exponential

# constants of float32
_LOG2_E_32 = np.float32(1.44269504)
_LN2_HIGH_32 = np.float32(0.693359375)  # ends with zero bits, for the same reason as in float64
_LN2_LOW_32 = np.float32(-2.12194440e-4)
_MIN_EXPONENT_32 = np.float32(-87.0)  # for x below it, exp32 is 0: denormal numbers are slow
_ZERO = np.float32(0.0)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)

_LN2 = 0.6931471805599453
_BITS_OF_ROOT_HALF = 0x3FE6A09E667F3BCD  # sqrt(1/2) as the bits of a float64
_MANTISSA_MASK = 0x000FFFFFFFFFFFFF
_MIN_SERIES_Z = -0.25  # for z above this, `log_of_one_plus` sums a series of log(1 + z)

# Coefficients of Taylor series, from the highest power down: of (exp(r) - 1 - r) / r**2, in float64
# and float32, and of the function of `third_order_series` in powers of -x. The first omitted term
# is below 1e-17 for exp in float64, and below 1e-21 for the third-order series.
_EXP_SERIES = tuple(1.0 / math.factorial(i) for i in range(13, 1, -1))
_EXP_SERIES_32 = tuple(np.float32(1.0 / math.factorial(i)) for i in range(7, 1, -1))
_THIRD_ORDER_SERIES = tuple(1.0 / math.factorial(i) for i in range(21, 2, -1))
# coefficients of (artanh(z) - z) / z**3, in powers of z**2
ARTANH = tuple(1.0 / i for i in range(31, 2, -2))


@njit
def horner(first: Any, others: tuple[Any, ...], x: Any) -> Any:
    """Return the value of a polynomial at x, by Horner's rule.

    `first` is the coefficient of the highest power, and `others` are the other coefficients, by
    decreasing power. LLVM unrolls the loop if there are at most about ten coefficients, and can
    then vectorise the caller's loop over x. For a longer polynomial, callers therefore call this
    twice.
    """
    value = first
    for coefficient in others:
        value = value * x + coefficient
    return value


@njit
def replace_by_exp(x: Real, size: int) -> None:
    """Replace the first `size` entries of `x`, float32 or float64, by their exponentials, in place.

    Entries must be at most about 0.
    """
    if x.itemsize == 4:
        replace_by_exp32(x, size)
    else:
        replace_by_exp64(x, size)


@njit
def exp64(x: float) -> float:
    """Return ``exp(x)``, after x is clipped to [-745, 709]; the result is never 0."""
    v = _MIN_EXPONENT if x < _MIN_EXPONENT else x
    v = _MAX_EXPONENT if v > _MAX_EXPONENT else v

    # exp(v) = 2**k exp(r) with |r| at most log(2) / 2. The naive r = v - k * log(2) rounds
    # k * log(2); so subtract k times the high part, which is exact, and then k times the low part.
    k = np.floor(v * _LOG2_E + 0.5)
    r = (v - k * _LN2_HIGH) - k * _LN2_LOW
    p = 1.0 + (r + r * r * horner(_EXP_SERIES[0], _EXP_SERIES[1:], r))

    # multiply by two powers of 2, because 2**k itself may underflow
    half = np.int64(k) >> 1
    first_power = np.int64((half + 1023) << 52).view(np.float64)
    second_power = np.int64((np.int64(k) - half + 1023) << 52).view(np.float64)
    return p * first_power * second_power  # type: ignore[no-any-return]


@njit
def third_order_series(x: float) -> float:
    """Return ``(1 - x + x**2 / 2 - exp(-x)) / x**3`` for x in [-1, 1].

    The terms of the formula cancel near x = 0, so its Taylor series is summed instead.
    """
    high = horner(_THIRD_ORDER_SERIES[0], _THIRD_ORDER_SERIES[1:10], -x)
    return horner(high, _THIRD_ORDER_SERIES[10:], -x)  # type: ignore[no-any-return]


@njit
def second_order_series(x: float) -> float:
    """Return ``(exp(-x) - 1 + x) / x**2`` for x in [-1, 1], without cancellation near 0."""
    return 0.5 - x * third_order_series(x)


@njit
def decay_ratio_series(x: float) -> float:
    """Return ``(1 - exp(-x)) / x`` for x in [-1, 1], without cancellation near 0."""
    return 1.0 - x * (0.5 - x * third_order_series(x))


@njit
def replace_by_exp64(x: FloatArray, size: int) -> None:
    """Replace the first `size` entries of `x` by their exponentials, in place; none becomes 0.

    Entries are float64 and at most 0.
    """
    for i in range(size):
        x[i] = exp64(x[i])


@njit
def exp32(x: Any) -> Any:
    """Return ``exp(x)`` in float32 for a float32 x, at most about 0; 0 if x is below -87."""
    # computed as in `exp64`, but entirely in float32, so that a register holds eight values
    v = max(x, _MIN_EXPONENT_32)
    k = np.floor(v * _LOG2_E_32 + _HALF)
    r = (v - k * _LN2_HIGH_32) - k * _LN2_LOW_32
    p = _ONE + (r + r * r * horner(_EXP_SERIES_32[0], _EXP_SERIES_32[1:], r))

    two_to_k = np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
    return _ZERO if x < _MIN_EXPONENT_32 else p * two_to_k


@njit
def replace_by_exp32(x: Real, size: int) -> None:
    """Replace the first `size` entries of `x` by their exponentials, in place.

    Entries are float32 and at most about 0.
    """
    for i in range(size):
        x[i] = exp32(x[i])


@njit
def log_of_one_plus(z: float, f: float) -> float:
    """Return ``log(f)`` for ``f = 1 + z``, computed from both f and z to be accurate for all f.

    z must be in [-1, 0], and f a normal number. If f is near 1, rounding of f would lose digits of
    its log; if z is near -1, rounding of z would. For z > -0.25, the result is a series of
    log(1 + z). Otherwise f is written as a power of 2 times a value near 1, and the result is the
    sum of their logs.
    """
    # f = 2**power * (1 + fraction) with 1 + fraction in [sqrt(1/2), sqrt(2))
    bits = np.float64(f).view(np.int64) - np.int64(_BITS_OF_ROOT_HALF)
    power = np.float64(bits >> 52)
    fraction = np.int64((bits & _MANTISSA_MASK) + _BITS_OF_ROOT_HALF).view(np.float64) - 1.0
    d = z if z > _MIN_SERIES_Z else fraction
    k = 0.0 if z > _MIN_SERIES_Z else power

    # log(1 + d) = 2 artanh(d / (2 + d)), and the series of artanh has only odd powers
    q = d / (2.0 + d)
    s = q * q
    p = horner(horner(ARTANH[3], ARTANH[4:10], s), ARTANH[10:], s)
    return k * _LN2 + (2.0 * q + 2.0 * q * (s * p))  # type: ignore[no-any-return]


@njit
def replace_by_log1p(x: FloatArray) -> None:
    """Replace the entries of `x` (n,) by ``log(1 + x)``, in place; they must be from -1/2 to 1.

    The naive formula loses digits for small x. The function sums a series of ``2 artanh(z)`` with
    ``z = x / (2 + x)``, for which |z| is at most 1/3.
    """
    for i in range(len(x)):
        z = x[i] / (2.0 + x[i])
        s = z * z
        p = horner(horner(ARTANH[0], ARTANH[1:8], s), ARTANH[8:], s)
        x[i] = 2.0 * z + 2.0 * z * (s * p)
