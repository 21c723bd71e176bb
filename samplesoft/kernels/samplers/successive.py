"""Which of n exponential clocks ring first: successive sampling without replacement.

Class j rings at an exponential time of rate ``w_j``, and the first m to ring are the sample. The
number N(t) that have rung by time t has the generating function
``G(z) = prod_j (1 - p_j + p_j z)`` with ``p_j = 1 - exp(-w_j t)``. Its values on a circle around 0
near the saddle point give P(N <= m - 1), and a division by one factor leaves one clock out. The
product runs over atoms: ``counts[a]`` clocks of rate ``exp(log_rates[a])``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray

ComplexArray = NDArray[np.complex128]

POINTS = 56  # of a half circle; at most 54 matter, where the variance of N is 17
_LOG_TINY = -34.0  # smaller parts are left out
_STEP = 1.5  # of a panel in log t over the time in which the law changes: 16 nodes suffice
_FARTHEST = 300.0  # of a saddle point, in log |z|: squares neither underflow nor overflow


@njit
def _clock(log_rate: float, log_t: float) -> tuple[float, float, float]:
    """Return w t and the probabilities that a clock of rate w is still silent, and has rung."""
    age = math.exp(min(log_rate + log_t, LARGEST_EXPONENT))
    return age, math.exp(-age), -math.expm1(-age)


@njit
def _log_factor(silent: float, rung: float, z: complex) -> tuple[float, float]:
    """Return log modulus and argument of 1 - p + p z, to full precision where p is small."""
    real, imag = (z.real - 1.0) * rung, z.imag * rung
    if abs(real) < 0.5 and abs(imag) < 0.5:
        size = 0.5 * math.log1p(2.0 * real + real * real + imag * imag)
        return size, math.atan2(imag, 1.0 + real)
    real = silent + z.real * rung
    return math.log(math.hypot(real, imag)), math.atan2(imag, real)


@njit
def _pace(log_t: float, log_rates: FloatArray, counts: FloatArray) -> tuple[float, float]:
    """Return the mean of N(t), and how fast its law changes in log t."""
    mean = variance = slope = 0.0
    for a in range(len(counts)):
        age, silent, rung = _clock(log_rates[a], log_t)
        mean += counts[a] * rung
        variance += counts[a] * rung * silent
        slope += counts[a] * age * silent
    rate = 0.2 + 2.0 * min(slope, 1.0) + 0.2 * slope * slope / (variance + 1.0)
    return mean, math.sqrt(rate)


@njit
def _saddle(
    log_t: float, log_rates: FloatArray, counts: FloatArray, power: float
) -> tuple[float, float, float]:
    """Find the x where log G(exp(x)) - power x is least.

    The value there bounds the log of P(N <= power) or of P(N >= power), whichever is smaller. The
    third result is the variance of N in the law tilted by exp(x N).
    """
    low, high, x, variance = -_FARTHEST, _FARTHEST, 0.0, 0.0
    while high - low > 1e-6:
        mean = variance = 0.0
        tilt = math.exp(x)
        for a in range(len(counts)):
            _, silent, rung = _clock(log_rates[a], log_t)
            share = rung * tilt / (silent + rung * tilt)
            mean += counts[a] * share
            variance += counts[a] * share * (1.0 - share)
        if mean > power:
            high = x
        else:
            low = x
        gap = power - mean
        if abs(gap) < 1e-6 * variance:
            break
        # far out, where atoms no longer stand for their classes, a long step might get lost
        x += gap / variance if abs(gap) < 2.0 * variance else math.copysign(2.0, gap)
        if not low < x < high:
            x = 0.5 * (low + high)
    value, z = -power * x, complex(math.exp(x), 0.0)
    for a in range(len(counts)):
        _, silent, rung = _clock(log_rates[a], log_t)
        value += counts[a] * _log_factor(silent, rung, z)[0]
    return x, value, variance


@njit
def _tail_end(
    middle: float, end: float, log_rates: FloatArray, counts: FloatArray, m: int
) -> float:
    """Bisect from `middle`, where N is about m, towards `end` until a tail of N is nothing."""
    inside = middle
    while abs(inside - end) > 0.05:
        log_t = 0.5 * (inside + end)
        # integrals over late times count their length too
        tiny = _LOG_TINY - max(log_t - middle, 0.0)
        if _saddle(log_t, log_rates, counts, m)[1] < tiny:
            end = log_t
        else:
            inside = log_t
    return end


@njit
def time_panels(log_rates: FloatArray, counts: FloatArray, m: int) -> FloatArray:
    """Return edges in log t of panels on which polynomials follow the law of N(t).

    Before the first edge fewer than m of the clocks have rung, after the last one more than m.
    """
    first = -log_rates.max() - math.log(counts.sum()) + 3.0 * _LOG_TINY
    last = -log_rates.min() + 8.0
    low, high = first, last
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        if _pace(middle, log_rates, counts)[0] < m:
            low = middle
        else:
            high = middle
    last = _tail_end(low, last, log_rates, counts, m)
    edges = [_tail_end(low, first, log_rates, counts, m)]
    while edges[-1] < last:
        step = _STEP / _pace(edges[-1], log_rates, counts)[1]
        step = min(step, _STEP / _pace(edges[-1] + step, log_rates, counts)[1])
        edges.append(edges[-1] + step)
    return np.array(edges)


@njit
def contours(
    log_t: FloatArray,
    log_rates: FloatArray,
    counts: FloatArray,
    m: int,
    shift: int,
    z: ComplexArray,
    values: ComplexArray,
) -> None:
    """Lay a circle for each time and evaluate the generating function of P(N <= m - 1) on it.

    Times are `log_t` (K,), atoms `log_rates` and `counts` (A,). Besides the clock of `first_rings`,
    so many as `shift` will be left out that have rung. Written are points of the upper half
    circles, `z` (K, POINTS), of modulus below 1 where N is more likely above m than below, and
    their terms, `values` (K, POINTS), which are 0 from where they no longer matter.
    """
    for k in range(len(log_t)):
        # the half keeps the circle near the saddle point both with a clock and without it
        x, _, variance = _saddle(log_t[k], log_rates, counts, m + shift - 0.5)
        # the sum over N has a pole at 1: fewer points do at a distance, at the cost of one digit
        distance = max(abs(x), 2.4 / math.sqrt(variance + 2.0))
        z[k, 0] = math.exp(x)
        if x < 1.0 - _FARTHEST:  # the chance is nothing
            continue
        x = math.copysign(distance, x)
        points = int(8.0 * math.sqrt(variance) + 12.0 - _LOG_TINY / distance) | 1  # odd: never -1
        for i in range(min(points // 2 + 1, POINTS)):
            angle = 2.0 * math.pi * i / points
            z[k, i] = complex(math.exp(x) * math.cos(angle), math.exp(x) * math.sin(angle))
            size, phase = -(m - 1) * x, -(m - 1) * angle
            for a in range(len(counts)):
                _, silent, rung = _clock(log_rates[a], log_t[k])
                log_modulus, argument = _log_factor(silent, rung, z[k, i])
                size += counts[a] * log_modulus
                phase += counts[a] * argument
            size = math.exp(size) * (1.0 if i == 0 else 2.0) / points
            values[k, i] = complex(size * math.cos(phase), size * math.sin(phase)) / (1.0 - z[k, i])
            if abs(values[k, i]) < math.exp(_LOG_TINY) * abs(values[k, 0]):
                break


@njit
def _without(
    log_rate: float, log_t: float, z: ComplexArray, values: ComplexArray, out: ComplexArray
) -> int:
    """Leave out a clock: write its circle and terms into `out` (2, POINTS), return their number.

    `z` and `values` (S, POINTS) are those with no shift and, if any, with a shift of 1.
    """
    _, silent, rung = _clock(log_rate, log_t)
    # has it rung in the law tilted by the circle? where that is a toss-up, either circle serves,
    # but the first may have ended
    shift = 1 if 3.0 * rung * abs(z[0, 0]) > silent else 0
    for i in range(POINTS):
        out[0, i] = z[shift, i]
        if values[shift, i] == 0.0:
            return i
        out[1, i] = values[shift, i] / (silent + rung * z[shift, i])
    return POINTS


@njit
def first_rings(
    log_rates: FloatArray,
    excluded: float,
    start: float,
    log_t: FloatArray,
    weights: FloatArray,
    z: ComplexArray,
    values: ComplexArray,
    out: FloatArray,
) -> None:
    """Write the probability (I,) that a clock is among the first m of all but the excluded one.

    This is the integral of w exp(-w t) P(N without the two clocks <= m - 1) over t, where the
    probability is 1 before `start`, the first edge of `time_panels`. The clocks have `log_rates`
    (I,), the excluded one the log rate `excluded`, -inf for none; `log_t` and `weights` (K,) are
    the quadrature from `start` on; `z` and `values` (S, K, POINTS) are from `contours`, for each
    shift.
    """
    num = len(log_rates)
    terms = np.empty((2, POINTS), np.complex128)
    silent, rung, density, chance = np.empty(num), np.empty(num), np.empty(num), np.empty(num)
    for i in range(num):
        out[i] = _clock(log_rates[i], start)[2]
    for k in range(len(log_t)):
        used = _without(excluded, log_t[k], z[:, k], values[:, k], terms)
        late = abs(terms[0, 0]) < 1.0
        for i in range(num):
            age, silent[i], rung[i] = _clock(log_rates[i], log_t[k])
            density[i] = weights[k] * age * silent[i]
            chance[i] = 0.0 if late else 1.0
        for j in range(used):
            x, y = terms[0, j].real, terms[0, j].imag
            a, b = terms[1, j].real, terms[1, j].imag
            for i in range(num):  # the innermost loop, for it runs in vectors
                real, imag = silent[i] + rung[i] * x, rung[i] * y
                chance[i] += (a * real + b * imag) / (real * real + imag * imag)
        for i in range(num):
            out[i] += density[i] * chance[i]
    for i in range(num):
        out[i] = min(out[i], 1.0)
