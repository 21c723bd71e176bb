"""Ratios e_j / q_j relative to a reference class, with no digit lost where they nearly agree."""

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
_BINS = 4096


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
    s, s_low = _multiply(s, s_low, r, low)
    s, s_low = _add(s, s_low, 0.041666666666666664, 2.3129646346357427e-18)
    s, s_low = _multiply(s, s_low, r, low)
    s, s_low = _add(s, s_low, 0.16666666666666666, 9.25185853854297e-18)
    s, s_low = _multiply(s, s_low, r, low)
    s, s_low = _add(s, s_low, 0.5, 0.0)
    s, s_low = _multiply(s, s_low, r, low)
    s, s_low = _add(s, s_low, 1.0, 0.0)
    s, s_low = _multiply(s, s_low, r, low)
    s, s_low = _add(s, s_low, 1.0, 0.0)
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
def relative_ratios(
    logits: FloatArray,
    log_r: FloatArray,
    q: FloatArray,
    drawn: FloatArray,
    reference: int,
    contrast: FloatArray,
    start: int,
    stop: int,
) -> float:
    """Write (r_j - R) / (r_j + R) into `contrast` (n,) and return sum_j drawn_j (r_j / R - 1).

    R is r of the class `reference`; of the classes from `start` to `stop`, those with
    ``drawn == 0`` are passed over.
    """
    o_ref = logits[reference]
    q_ref = q[reference]
    log_ref = log_r[reference]
    mean = 0.0
    for j in range(start, stop):
        if drawn[j] == 0.0:
            continue
        t = log_r[j] - log_ref
        d = deviation(t, logits[j], o_ref, q[j], q_ref)
        contrast[j] = d / (2.0 + d) if t < LARGEST_EXPONENT else 1.0
        mean += (
            drawn[j] * d if t < LARGEST_EXPONENT else math.exp(min(math.log(drawn[j]) + t, 709.0))
        )
    return mean


@njit
def weighted_median(values: FloatArray, weights: FloatArray) -> int:
    """Return the index of a weighted median of `values`, entries of weight 0 left out.

    Histograms narrow the range until it holds one value; of equal values the heaviest wins.
    """
    low, high, total = np.inf, -np.inf, 0.0
    for j in range(len(values)):
        if weights[j] > 0.0:
            low = min(low, values[j])
            high = max(high, values[j])
            total += weights[j]
    below = 0.0
    while low < high:
        mass = np.zeros(_BINS)
        least = np.full(_BINS, np.inf)
        largest = np.full(_BINS, -np.inf)
        for j in range(len(values)):
            value = values[j]
            if weights[j] > 0.0 and low <= value <= high:
                b = int((value - low) / (high - low) * (_BINS - 1))
                mass[b] += weights[j]
                least[b] = min(least[b], value)
                largest[b] = max(largest[b], value)
        b, chosen = 0, 0
        for b in range(_BINS):
            if mass[b] > 0.0:
                chosen = b
                if below + mass[b] >= 0.5 * total:
                    break
                below += mass[b]
        low, high = least[chosen], largest[chosen]
    best = -1
    for j in range(len(values)):
        if values[j] == low and weights[j] > 0.0 and (best < 0 or weights[j] > weights[best]):
            best = j
    return best
