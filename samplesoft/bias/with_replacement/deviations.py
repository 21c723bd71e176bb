"""Relative deviations of the ratios from the reference ratio R, accurate also where they are tiny.

`relative_ratios` computes kappa = (r - R) / (r + R) of eq. (B19) for each class of a slice, by
`deviation`, which uses double-double arithmetic where r and R are close.
"""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray

# ln 2 as a sum of three floats, the first two short enough that a product with |k| < 2**11 is exact
_LN2_1 = 0.6931471803691238
_LN2_2 = 1.9082149288430703e-10
_LN2_3 = 4.275175589747649e-20
_VELTKAMP_FACTOR = 134217729.0  # 2**27 + 1: splits a float into two halves of its digits
_MAX_REFINED_LOG_RATIO = 2.0**-6  # below this |log(r / R)|, r / R - 1 is computed in double-double
# Absolute error of r / R - 1 by double-double arithmetic: twice the largest error in 6,000 random
# cases. So a deviation r / R - 1 of 1e-16 has about eleven correct digits.
DEVIATION_ERROR = 1e-27
MAX_REFINED_KAPPA = 0.5 * _MAX_REFINED_LOG_RATIO  # |kappa| below it come from double-double
# The coefficients 1/4!, 1/3!, 1/2, 1 and 1 of the series of exp, as double-double numbers: each
# with its rounding error.
_QUARTIC = (0.041666666666666664, 2.3129646346357427e-18)
_CUBIC = (1.0 / 6.0, 9.25185853854297e-18)
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
    kappas: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Write kappa_j = (r_j - R) / (r_j + R) into `kappas` (n,), and return sums and extremes.

    `drawn` are the draw probabilities, and `probs` the softmax probabilities. `reference` is the
    logit, q and log r of the class with ratio R. Classes with ``drawn == 0`` are skipped. A near
    class is one with 0 < |kappa| < MAX_REFINED_KAPPA, and a far class one with a larger |kappa|.
    The sums (6,) over the classes of the slice are of:

    - 0: ``drawn * (r / R - 1)``
    - 1 and 2: ``probs`` of the near classes, and ``(1 - kappa**2) * probs`` of the far classes
    - 3 and 4: ``drawn`` of the near classes, and ``(1 - kappa**2)**2 * drawn`` of the far classes
    - 5: ``|kappa| * probs``

    The sums 1 to 5 are for the error estimate. The extremes (5,) are the minimum and maximum of
    log r, the minimum and maximum of kappa, and the `drawn` of the class with the smallest ratio.
    """
    o_ref, q_ref, log_ref = reference
    sums = np.zeros(6)
    ends = np.array([np.inf, -np.inf, np.inf, -np.inf, np.nan])
    for j in range(len(logits)):
        if drawn[j] == 0.0:
            continue
        t = log_r[j] - log_ref
        d = deviation(t, logits[j], o_ref, q[j], q_ref)
        overflows = t >= LARGEST_EXPONENT
        kappa = 1.0 if overflows else d / (2.0 + d)
        kappas[j] = kappa
        sums[0] += math.exp(min(math.log(drawn[j]) + t, 709.0)) if overflows else drawn[j] * d
        # for the error estimate: kappa of a near class has the error `DEVIATION_ERROR`; kappa of a
        # far class has the error of log r, times d kappa / d log r = (1 - kappa**2) / 2
        size = abs(kappa)
        if size >= MAX_REFINED_KAPPA:
            part = 1.0 - kappa * kappa
            sums[2] += part * probs[j]
            sums[4] += part * part * drawn[j]
        elif size > 0.0:
            sums[1] += probs[j]
            sums[3] += drawn[j]
        sums[5] += size * probs[j]
        if log_r[j] < ends[0]:
            ends[0] = log_r[j]
            ends[4] = drawn[j]
        ends[1] = max(ends[1], log_r[j])
        ends[2], ends[3] = min(ends[2], kappa), max(ends[3], kappa)

    return sums, ends


@njit
def deviation(log_ratio: float, o: float, o_ref: float, q: float, q_ref: float) -> float:
    """Return r_j / r_ref - 1, given log(r_j / r_ref) to working precision.

    The logits of the two classes are `o` and `o_ref`. expm1(log_ratio) has the absolute error of
    log_ratio, which is several ulps of the logits, so it loses digits where log_ratio is small. For
    |log_ratio| < 1/64 the deviation is computed from the logits and q instead, in double-double.
    """
    if abs(log_ratio) < _MAX_REFINED_LOG_RATIO:
        return _accurate_deviation(o, o_ref, q, q_ref)
    return math.expm1(min(log_ratio, 709.0))


@njit
def _two_sum(a: float, b: float) -> tuple[float, float]:
    """Return a + b rounded, and the exact rounding error (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@njit
def _two_product(a: float, b: float) -> tuple[float, float]:
    """Return a * b rounded, and the exact rounding error (Dekker)."""
    p = a * b
    t = _VELTKAMP_FACTOR * a
    a_high = t - (t - a)
    a_low = a - a_high
    t = _VELTKAMP_FACTOR * b
    b_high = t - (t - b)
    b_low = b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


@njit
def _multiply(a: float, a_low: float, b: float, b_low: float) -> tuple[float, float]:
    """Return the product of the double-double numbers a + a_low and b + b_low."""
    p, e = _two_product(a, b)
    e += a * b_low + a_low * b
    s = p + e
    return s, e - (s - p)


@njit
def _add(a: float, a_low: float, b: float, b_low: float) -> tuple[float, float]:
    """Return the sum of the double-double numbers a + a_low and b + b_low."""
    s, e = _two_sum(a, b)
    e += a_low + b_low
    t = s + e
    return t, e - (t - s)


@njit
def _exp(x: float, x_low: float) -> tuple[float, float, int]:
    """Return high, low and k with exp(x + x_low) = (high + low) * 2**k, for |x| < 1400."""
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r, e = _two_sum(x, -k * _LN2_1)
    r, e2 = _two_sum(r, -k * _LN2_2)
    r, low = _two_sum(r, e + e2 - k * _LN2_3 + x_low)

    # exp(r) is exp(r / 16) squared four times. In the series of exp(r / 16), only the leading terms
    # need double-double; the others are the `tail`.
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
    """Return exp(o - o_ref) * q_ref / q - 1, with the product computed to about 28 digits."""
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
