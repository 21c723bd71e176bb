"""Compiled loops of `ExponentialRace`: light and heavy classes, circles, for one u and all t."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_sum
from samplesoft._validation import FloatArray, IntArray

_MAX_LIGHT_ODDS = 0.15  # of a class that is light
NUM_POWERS = 27  # of odds up to 0.2: the next one is 1e-19 of them
MAX_LOG_R_SHIFT = 0.28  # from where the odds were summed: they are 0.2 at most there
LOG_LEFT_OUT = -44.0  # log of what is left out
MAX_EXP_AGE = 30.0  # q t, the age of a clock, above which exp(q t) is not formed
_MAX_SERIES_AGE = 0.03  # below it exp(q t) - 1 is a series
TILE_CLASSES = 256  # that have one number of powers
HALF_CIRCLE_POINTS = 40  # at most 32 matter, where the variance of the number of rings is 22
MAX_EXPONENT = 690.0  # exp of it is finite


@njit
def log_growth(age: float) -> float:
    """Return log(exp(age) - 1), the log odds that a clock of this age has rung.

    expm1 overflows for large ages: from 30 on take age + log1p(-exp(-age)).
    """
    if age < MAX_EXP_AGE:
        return math.log(math.expm1(age))
    return age + math.log1p(-math.exp(-age))


@njit
def probabilities_of(log_odds: float) -> tuple[float, float]:
    """Return the probabilities that a clock has rung, and that it has not, from the log odds."""
    rung = 1.0 / (1.0 + math.exp(-log_odds))
    return rung, math.exp(-log_odds) * rung if log_odds > 0.0 else 1.0 - rung


@njit
def _odds(
    q: FloatArray, weights: FloatArray, start: int, size: int, t: float, r: float, out: FloatArray
) -> None:
    """Write the odds r (exp(q t) - 1) w of a tile, whose first class has the largest q."""
    if q[start] * t < _MAX_SERIES_AGE:
        for i in range(size):
            x = q[start + i] * t
            tail = 1.0 / 24.0 + x * (1.0 / 120.0 + x * (1.0 / 720.0 + x / 5040.0))
            growth = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * tail)))
            out[i] = r * growth * weights[start + i]
    else:
        for i in range(size):
            age = min(q[start + i] * t, 2.0 * MAX_EXP_AGE)  # of those above no use is made
            out[i] = r * math.expm1(age) * weights[start + i]


@njit
def _powers_of(largest: float) -> int:
    """Return the number of powers that matter for odds up to `largest`."""
    if largest <= 0.0:
        return 1
    return min(NUM_POWERS, 1 + int(LOG_LEFT_OUT / math.log(largest)))


@njit
def add_light_powers(
    q: FloatArray,
    weights: FloatArray,
    t: FloatArray,
    r: FloatArray,
    heavy: NDArray[np.bool_],
    orders: IntArray,
    sums: FloatArray,
) -> None:
    """Add powers of the odds of light classes to `sums` (2, T, powers), plain and times q.

    All other classes are marked in `heavy`.
    """
    odds, highest = np.empty((len(t), TILE_CLASSES)), np.empty(TILE_CLASSES)
    power, times_q = np.empty(TILE_CLASSES), np.empty(TILE_CLASSES)
    for start in range(0, len(q), TILE_CLASSES):
        size = min(TILE_CLASSES, len(q) - start)
        highest[:size] = 0.0
        for k in range(len(t)):
            _odds(q, weights, start, size, t[k], r[k], odds[k])
            for i in range(size):
                highest[i] = max(highest[i], odds[k, i])
        largest = 0.0
        for i in range(size):
            if heavy[start + i] or not highest[i] <= _MAX_LIGHT_ODDS:
                heavy[start + i] = True
                times_q[i] = 0.0
                for k in range(len(t)):
                    odds[k, i] = 0.0
            else:
                times_q[i] = q[start + i]
                largest = max(largest, highest[i])
        orders[start // TILE_CLASSES] = top = _powers_of(largest)
        for k in range(len(t)):
            for i in range(size):
                power[i] = 1.0
            sums[1, k, 0] += _sums_of(power, times_q, size)[1]
            for j in range(1, top + 1):
                for i in range(size):
                    power[i] *= odds[k, i]
                # in loops of their own, which write nothing: see `njit_sum`
                total, of_q = _sums_of(power, times_q, size)
                sums[0, k, j] += total
                sums[1, k, j] += of_q


@njit_sum
def _sums_of(values: FloatArray, weights: FloatArray, size: int) -> tuple[float, float]:
    """Return the sums of ``values[:size]`` and of ``values[:size] * weights[:size]``."""
    total = weighted = 0.0
    for i in range(size):
        total += values[i]
        weighted += values[i] * weights[i]
    return total, weighted


@njit
def find_saddles(
    q: FloatArray,
    decay: FloatArray,
    m: int,
    t: FloatArray,
    log_r: FloatArray,
    sums: FloatArray,
    shift: FloatArray,
) -> None:
    """Write log r of the saddle points minus `log_r`, (T,).

    `q` and `decay` are those of the heavy classes.
    """
    log_odds = np.empty(len(q))
    for k in range(len(t)):
        for j in range(len(q)):
            log_odds[j] = log_r[k] + log_growth(q[j] * t[k]) - decay[j]
        x, low, high = 0.0, -np.inf, np.inf
        for _ in range(100):
            mean = variance = 0.0
            rho, power = math.exp(x), 1.0
            for i in range(1, NUM_POWERS + 1):
                power *= -rho
                mean -= power * sums[0, k, i]
                variance -= i * power * sums[0, k, i]
            for j in range(len(q)):
                share = 1.0 / (1.0 + math.exp(-log_odds[j] - x))
                mean += share
                variance += share * (1.0 - share)
            gap = m - mean
            if abs(gap) <= 0.1 * math.sqrt(max(variance, 0.0)):
                break
            if gap > 0.0:
                low = x
            else:
                high = x
            x += gap / variance if abs(gap) < variance else math.copysign(1.0, gap)
            if abs(x) > 2.0 * MAX_LOG_R_SHIFT:  # beyond what the powers are good for
                break
            if not low < x < high:
                x = 0.5 * (low + high)
        shift[k] = x


@njit
def integrate_circles(
    q: FloatArray,
    decay: FloatArray,
    m: int,
    level: float,
    num_classes: int,
    t: FloatArray,
    log_r: FloatArray,
    shift: FloatArray,
    sums: FloatArray,
    values: FloatArray,
    series: FloatArray,
) -> FloatArray:
    """Return the density of the next ring in log t, with the weights of the set, at times (T,).

    Written are the points z / r, the terms of the product at them and their hazards, `values`
    (T, 6, points), each in two rows; and `series` (2, T, powers), sums of the terms times powers of
    z / r0, with the hazard and without it, where r0 is that of the light odds.
    """
    density = np.zeros(len(t))
    share, silent = np.empty(len(q)), np.empty(len(q))
    for k in range(len(t)):
        centre, rho = log_r[k] + shift[k], math.exp(shift[k])
        # the height of the saddle point, and the variance of the number of rings there
        height = -m * (centre + level) - t[k] * sums[1, k, 0]
        variance, power = 0.0, 1.0
        for i in range(1, NUM_POWERS + 1):
            power *= -rho
            variance -= i * power * sums[0, k, i]
            height -= power * sums[0, k, i] / i
        for j in range(len(q)):
            age = q[j] * t[k]
            log_odds = centre + log_growth(age) - decay[j]
            share[j], silent[j] = probabilities_of(log_odds)
            variance += share[j] * silent[j]
            if log_odds > 0.0:  # log (silent + r rung), silent = exp(-age)
                height += centre + math.log(-math.expm1(-age)) - decay[j]
                height += math.log1p(math.exp(-log_odds))
            else:
                height += math.log1p(math.exp(log_odds)) - age
        if height < -MAX_EXPONENT:
            continue
        full = min(num_classes + 1, int(10.0 * math.sqrt(variance) + 14.0)) | 1
        step = 2.0 * math.pi / full
        points = 1
        while points <= full // 2 and variance * (1.0 - math.cos(points * step)) < -LOG_LEFT_OUT:
            points += 1
        x, y, real, imag, rate, rate_y = values[k]
        for s in range(points):
            x[s], y[s] = math.cos(s * step), math.sin(s * step)
            # the light classes: log of the product, and the hazard
            a = b = c = d = 0.0
            for i in range(NUM_POWERS, 0, -1):
                sign = rho**i if i % 2 else -(rho**i)
                a, b = a + sign * sums[0, k, i] / i, b
                a, b = a * x[s] - b * y[s], a * y[s] + b * x[s]
                c -= sign * sums[1, k, i]
                c, d = c * x[s] - d * y[s], c * y[s] + d * x[s]
            if s == 0:
                first = a
            # z**-m, the angle by whole numbers
            turn = b - step * ((m * s) % full)
            size = math.exp(height + a - first) * (1.0 if s == 0 else 2.0) / full * t[k]
            real[s], imag[s] = size * math.cos(turn), size * math.sin(turn)
            rate[s], rate_y[s] = c + sums[1, k, 0], d
        for j in range(len(q)):
            for s in range(points):
                u, v = silent[j] + share[j] * x[s], share[j] * y[s]
                real[s], imag[s] = real[s] * u - imag[s] * v, real[s] * v + imag[s] * u
                inverse = q[j] * silent[j] / (u * u + v * v)
                rate[s] += u * inverse
                rate_y[s] -= v * inverse
        for s in range(points):
            u, v = real[s], imag[s]
            a, b = u * rate[s] - v * rate_y[s], u * rate_y[s] + v * rate[s]
            density[k] += a
            scale = 1.0
            for i in range(1, NUM_POWERS + 1):
                u, v = u * x[s] - v * y[s], u * y[s] + v * x[s]
                a, b = a * x[s] - b * y[s], a * y[s] + b * x[s]
                scale *= rho
                sign = scale if i % 2 else -scale
                series[0, k, i] += sign * a
                series[1, k, i] += sign * i * u
    return density


@njit
def add_light_members(
    q: FloatArray,
    weights: FloatArray,
    t: FloatArray,
    r: FloatArray,
    heavy: NDArray[np.bool_],
    orders: IntArray,
    series: FloatArray,
    scale: FloatArray,
    members: FloatArray,
) -> None:
    """Add E[exp(-D); k in set] of each light class k to `members` (2, n), by `scale` (2, T)."""
    odds, value = np.empty(TILE_CLASSES), np.empty(TILE_CLASSES)
    for start in range(0, len(q), TILE_CLASSES):
        size = min(TILE_CLASSES, len(q) - start)
        for k in range(len(t)):
            _odds(q, weights, start, size, t[k], r[k], odds)
            for i in range(size):
                odds[i] = 0.0 if heavy[start + i] else odds[i]
                value[i] = 0.0
            for j in range(orders[start // TILE_CLASSES], 0, -1):
                c, d = series[0, k, j], series[1, k, j]
                for i in range(size):
                    value[i] = (value[i] + c - d * q[start + i]) * odds[i]
            for i in range(size):
                members[0, start + i] += scale[0, k] * value[i]
                members[1, start + i] += scale[1, k] * value[i]


@njit
def add_heavy_members(
    q: FloatArray,
    decay: FloatArray,
    t: FloatArray,
    log_r: FloatArray,
    values: FloatArray,
    scale: FloatArray,
    members: FloatArray,
) -> None:
    """Add E[exp(-D); k in set] of each heavy class k to `members` (2, n), by `scale` (2, T)."""
    for k in range(len(t)):
        x, y, real, imag, rate, rate_y = values[k]
        points = 0
        while points < HALF_CIRCLE_POINTS and x[points] * x[points] + y[points] * y[points] > 0.5:
            points += 1
        for j in range(len(q)):
            p, silent = probabilities_of(log_r[k] + log_growth(q[j] * t[k]) - decay[j])
            total = 0.0
            for s in range(points):
                u, v = silent + p * x[s], p * y[s]
                inverse = 1.0 / (u * u + v * v)
                # p z / (1 - p + p z), and the hazard of the others
                a, b = p * (x[s] * u + y[s] * v) * inverse, p * (y[s] * u - x[s] * v) * inverse
                c, d = (
                    rate[s] - q[j] * silent * u * inverse,
                    rate_y[s] + q[j] * silent * v * inverse,
                )
                c, d = a * c - b * d, a * d + b * c
                total += real[s] * c - imag[s] * d
            members[0, j] += scale[0, k] * total
            members[1, j] += scale[1, k] * total
