"""How far a ratio lies from that of the reference, in double-double where the two nearly agree.

`relative_ratios` measures all classes of a slice, eq. (B19).
"""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray

# ln 2 in three parts, the first two short enough that a product with |k| < 2**11 is exact
_LN2_1 = 0.6931471803691238
_LN2_2 = 1.9082149288430703e-10
_LN2_3 = 4.275175589747649e-20
_SPLIT = 134217729.0
_REFINE_BELOW = 2.0**-6
# Where ratios nearly agree, each is known to this before R is subtracted from it (twice the largest
# error of 6,000 at random): in the rounding of a softmax, 1e-16, that leaves some eleven digits.
DEVIATION_ERROR = 1e-27
NEAR_REFERENCE = 0.5 * _REFINE_BELOW  # of kappa
# 1/4!, 1/3!, 1/2, 1 and 1, each with what it is off by
_QUARTIC, _CUBIC = (0.041666666666666664, 2.3129646346357427e-18), (1.0 / 6.0, 9.25185853854297e-18)
Floats = tuple[float, float, float]
_EXP_TERMS = _QUARTIC, _CUBIC, (0.5, 0.0), (1.0, 0.0), (1.0, 0.0)


@njit
def relative_ratios(
    logits: FloatArray,
    log_r: FloatArray,
    q: FloatArray,
    drawn: FloatArray,
    probs: FloatArray,
    reference: Floats,
    contrast: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Write kappa_j = (r_j - R) / (r_j + R) into `contrast` (n,), and return sums and extremes.

    `reference` are o, q and log r of the class whose ratio is R; classes with ``drawn == 0`` are
    passed over. The sums (6,) are sum_j drawn_j (r_j / R - 1), and for the errors of kappa: those
    of p and of 1 - kappa**2 times p, of classes near R and of others; the same of `drawn` with
    squares; and of kappa's size times p. The extremes (5,) are those of log r and of kappa, and
    what the class of the least ratio is drawn with.
    """
    o_ref, q_ref, log_ref = reference
    sums = np.zeros(6)
    ends = np.array([np.inf, -np.inf, np.inf, -np.inf, np.nan])
    for j in range(len(logits)):
        if drawn[j] == 0.0:
            continue
        t = log_r[j] - log_ref
        d = deviation(t, logits[j], o_ref, q[j], q_ref)
        far = t >= LARGEST_EXPONENT
        kappa = 1.0 if far else d / (2.0 + d)
        contrast[j] = kappa
        sums[0] += math.exp(min(math.log(drawn[j]) + t, 709.0)) if far else drawn[j] * d
        # ratios near R that are not R itself are known by `DEVIATION_ERROR`, all others by their
        # logs, of which kappa has a part of (1 - kappa**2) / 2 from each
        size = abs(kappa)
        if size >= NEAR_REFERENCE:
            part = 1.0 - kappa * kappa
            sums[2] += part * probs[j]
            sums[4] += part * part * drawn[j]
        elif size > 0.0:
            sums[1] += probs[j]
            sums[3] += drawn[j]
        sums[5] += size * probs[j]
        if log_r[j] < ends[0]:
            ends[0], ends[4] = log_r[j], drawn[j]
        ends[1] = max(ends[1], log_r[j])
        ends[2], ends[3] = min(ends[2], kappa), max(ends[3], kappa)
    return sums, ends


@njit
def deviation(log_ratio: float, o: float, o_ref: float, q: float, q_ref: float) -> float:
    """Return r_j / r_ref - 1, given log(r_j / r_ref) to working precision.

    Where the two nearly agree, log r carries an absolute error of many ulps of the logits;
    there the deviation is computed again in double-double.
    """
    if abs(log_ratio) < _REFINE_BELOW:  # else the deviation has most of the digits of log r
        return _accurate_deviation(o, o_ref, q, q_ref)
    return math.expm1(min(log_ratio, 709.0))


@njit
def _two_sum(a: float, b: float) -> tuple[float, float]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@njit
def _two_product(a: float, b: float) -> tuple[float, float]:
    p = a * b
    t = _SPLIT * a
    a_high = t - (t - a)
    a_low = a - a_high
    t = _SPLIT * b
    b_high = t - (t - b)
    b_low = b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


@njit
def _multiply(a: float, a_low: float, b: float, b_low: float) -> tuple[float, float]:
    p, e = _two_product(a, b)
    e += a * b_low + a_low * b
    s = p + e
    return s, e - (s - p)


@njit
def _add(a: float, a_low: float, b: float, b_low: float) -> tuple[float, float]:
    s, e = _two_sum(a, b)
    e += a_low + b_low
    t = s + e
    return t, e - (t - s)


@njit
def _exp(x: float, x_low: float) -> tuple[float, float, int]:
    """Return exp(x + x_low) = (high + low) * 2**k in double-double, |x| < 1400."""
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r, e = _two_sum(x, -k * _LN2_1)
    r, e2 = _two_sum(r, -k * _LN2_2)
    r, low = _two_sum(r, e + e2 - k * _LN2_3 + x_low)
    # exp of a 16th by its series, of which only the first terms need two numbers; then squared
    r *= 0.0625
    low *= 0.0625
    tail = 1.0 / 39916800.0 + r / 479001600.0
    for c in (1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0):
        tail = c + r * tail
    s, s_low = _two_sum(0.008333333333333333, r * tail)
    s_low += 1.1564823173178714e-19
    for c, c_low in _EXP_TERMS:
        s, s_low = _multiply(s, s_low, r, low)
        s, s_low = _add(s, s_low, c, c_low)
    for _ in range(4):
        s, s_low = _multiply(s, s_low, s, s_low)
    return s, s_low, k


@njit
def _accurate_deviation(o: float, o_ref: float, q: float, q_ref: float) -> float:
    """Return exp(o - o_ref) * q_ref / q - 1 to about 28 digits before the final subtraction."""
    x, x_low = _two_sum(o, -o_ref)
    high, low, k = _exp(x, x_low)
    f_ref, k_ref = math.frexp(q_ref)
    f, k_q = math.frexp(q)
    ratio = f_ref / f
    p, e = _two_product(ratio, f)
    ratio_low = ((f_ref - p) - e) / f
    high, low = _multiply(high, low, ratio, ratio_low)
    shift = int(k) + k_ref - k_q
    return (math.ldexp(high, shift) - 1.0) + math.ldexp(low, shift)
