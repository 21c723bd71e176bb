"""Compiled loops of `ExponentialRace`, for one node in u and all nodes in t.

The module `race` explains light and heavy classes, and the circles in z.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_sum
from samplesoft._validation import FloatArray, IntArray

_MAX_LIGHT_ODDS = 0.15  # a class with larger odds is heavy
# number of powers that are summed; the odds are at most 0.2, so the next power is 1e-19 of them
NUM_POWERS = 27

# largest change of log r for which sums of powers of the odds stay valid: it lets odds of 0.15
# grow to 0.2; after a larger change the powers are summed again
MAX_LOG_RADIUS_SHIFT = 0.28

LOG_TRUNCATION = -44.0  # terms and densities below exp(-44), relative to the total, are left out

# The age of a clock is q t. For larger ages, exp(q t) is not computed, because it could overflow.
MAX_EXP_AGE = 30.0

_MAX_SERIES_AGE = 0.03  # for ages below it, a series computes exp(q t) - 1

# a tile is a run of consecutive classes for which the same number of powers is summed
CLASSES_PER_TILE = 256

# array length for the points on half a circle; at most 32 matter, if the variance of the number
# of clocks that have rung is 22
MAX_HALF_CIRCLE_POINTS = 40

MAX_EXPONENT = 690.0  # exp(690) is finite


@njit
def log_ring_odds(age: float) -> float:
    """Return ``log(exp(age) - 1)``, the log odds that a clock of age q t has rung.

    Ages from 30 on use ``age + log1p(-exp(-age))``, because expm1 overflows for large ages.
    """
    if age < MAX_EXP_AGE:
        return math.log(math.expm1(age))
    return age + math.log1p(-math.exp(-age))


@njit
def ring_probabilities(log_odds: float) -> tuple[float, float]:
    """Return the probabilities that a clock with these log odds has rung, and that it has not."""
    rung = 1.0 / (1.0 + math.exp(-log_odds))
    return rung, math.exp(-log_odds) * rung if log_odds > 0.0 else 1.0 - rung


@njit
def _write_odds(
    q: FloatArray,
    weights: FloatArray,
    start: int,
    size: int,
    t: float,
    radius: float,
    out: FloatArray,
) -> None:
    """Write to `out` the odds ``r (exp(q t) - 1) w`` of the `size` classes from index `start` on.

    r is the `radius`, and w are the `weights`. The classes are sorted by decreasing q.
    """
    if q[start] * t < _MAX_SERIES_AGE:
        for i in range(size):
            x = q[start + i] * t
            tail = 1.0 / 24.0 + x * (1.0 / 120.0 + x * (1.0 / 720.0 + x / 5040.0))
            growth = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * tail)))
            out[i] = radius * growth * weights[start + i]
    else:
        for i in range(size):
            # the clip avoids overflow, and changes no light class: such old clocks are heavy
            age = min(q[start + i] * t, 2.0 * MAX_EXP_AGE)
            out[i] = radius * math.expm1(age) * weights[start + i]


@njit
def _num_powers_needed(largest: float) -> int:
    """Return how many powers of odds up to `largest` affect a sum in float64."""
    if largest <= 0.0:
        return 1
    return min(NUM_POWERS, 1 + int(LOG_TRUNCATION / math.log(largest)))


@njit
def add_light_powers(
    q: FloatArray,
    weights: FloatArray,
    t: FloatArray,
    radius: FloatArray,
    is_heavy: NDArray[np.bool_],
    num_powers: IntArray,
    sums: FloatArray,
) -> None:
    """Add sums over the light classes of the powers of their odds to `sums` (2, T, powers).

    For each of the T times, row 0 gets the plain sums, from power 1 on, and row 1 the sums weighted
    by q, from power 0 on. A class is left out if it is marked in `is_heavy`. A class whose odds are
    too large at one or more of the times is marked there first. `num_powers` (tiles,) gets the
    number of powers that matter in each tile of `CLASSES_PER_TILE` classes.
    """
    odds = np.empty((len(t), CLASSES_PER_TILE))
    highest = np.empty(CLASSES_PER_TILE)
    power = np.empty(CLASSES_PER_TILE)
    times_q = np.empty(CLASSES_PER_TILE)

    for start in range(0, len(q), CLASSES_PER_TILE):
        size = min(CLASSES_PER_TILE, len(q) - start)
        highest[:size] = 0.0

        for k in range(len(t)):
            _write_odds(q, weights, start, size, t[k], radius[k], odds[k])
            for i in range(size):
                highest[i] = max(highest[i], odds[k, i])

        largest = 0.0
        for i in range(size):
            if is_heavy[start + i] or not highest[i] <= _MAX_LIGHT_ODDS:
                is_heavy[start + i] = True
                times_q[i] = 0.0
                for k in range(len(t)):
                    odds[k, i] = 0.0
            else:
                times_q[i] = q[start + i]
                largest = max(largest, highest[i])

        num_tile_powers = _num_powers_needed(largest)
        num_powers[start // CLASSES_PER_TILE] = num_tile_powers

        for k in range(len(t)):
            for i in range(size):
                power[i] = 1.0

            sums[1, k, 0] += _plain_and_weighted_sum(power, times_q, size)[1]
            for j in range(1, num_tile_powers + 1):
                for i in range(size):
                    power[i] *= odds[k, i]
                # the sum is in a separate function without writes, which the compiler vectorises
                total, weighted = _plain_and_weighted_sum(power, times_q, size)
                sums[0, k, j] += total
                sums[1, k, j] += weighted


@njit_sum
def _plain_and_weighted_sum(
    values: FloatArray, weights: FloatArray, size: int
) -> tuple[float, float]:
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
    log_radius: FloatArray,
    sums: FloatArray,
    shift: FloatArray,
) -> None:
    """Find the saddle points at the T times, and write their log r minus `log_radius` to `shift`.

    `q` and `decay` (H,) belong to the heavy classes. The light classes enter through `sums`
    (2, T, powers), the sums of powers of their odds at radius exp(`log_radius`).
    """
    log_odds = np.empty(len(q))
    for k in range(len(t)):
        for j in range(len(q)):
            log_odds[j] = log_radius[k] + log_ring_odds(q[j] * t[k]) - decay[j]

        x = 0.0
        low = -np.inf
        high = np.inf
        for _ in range(100):
            mean = variance = 0.0
            rho = math.exp(x)
            power = 1.0

            for i in range(1, NUM_POWERS + 1):
                power *= -rho
                mean -= power * sums[0, k, i]
                variance -= i * power * sums[0, k, i]

            for j in range(len(q)):
                hit_prob = 1.0 / (1.0 + math.exp(-log_odds[j] - x))
                mean += hit_prob
                variance += hit_prob * (1.0 - hit_prob)

            gap = m - mean
            if abs(gap) <= 0.1 * math.sqrt(max(variance, 0.0)):
                break

            if gap > 0.0:
                low = x
            else:
                high = x

            x += gap / variance if abs(gap) < variance else math.copysign(1.0, gap)
            # so large a shift would need more powers: the caller sums them anew at the new radius
            if abs(x) > 2.0 * MAX_LOG_RADIUS_SHIFT:
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
    log_radius: FloatArray,
    shift: FloatArray,
    sums: FloatArray,
    values: FloatArray,
    series: FloatArray,
) -> FloatArray:
    """Return the integrand (T,) of E[exp(-D)] over log t, by integrals over circles in z.

    It is the density, in log t, of the time at which the (m + 1)-th clock rings, times the mean of
    exp(-D) over the set of the m clocks that have rung before.

    Also writes `values` (T, 6, points), with the real and the imaginary part of three quantities at
    the points of each half circle: of z / r, of the product over the classes, and of the hazard,
    which is the rate at which the next clock rings.

    Also writes `series` (2, T, powers), from which `add_light_members` evaluates the light classes.
    For power i, row 0 is a sum over the points: the product times the hazard times
    -(-z / exp(log_radius))**i. Row 1 has the factor i instead of the hazard.

    `q` and `decay` (H,) belong to the heavy classes. `shift` (T,) is log r of the saddle points
    minus `log_radius`. `level` is the m-th smallest decay, which was subtracted from all decays.
    """
    density = np.zeros(len(t))
    hit_prob = np.empty(len(q))
    miss_prob = np.empty(len(q))
    for k in range(len(t)):
        log_saddle = log_radius[k] + shift[k]
        rho = math.exp(shift[k])

        # at the saddle point: the log of the product over the classes, and the variance of the
        # number of clocks that have rung
        log_product = -m * (log_saddle + level) - t[k] * sums[1, k, 0]
        variance = 0.0
        power = 1.0
        for i in range(1, NUM_POWERS + 1):
            power *= -rho
            variance -= i * power * sums[0, k, i]
            log_product -= power * sums[0, k, i] / i

        for j in range(len(q)):
            age = q[j] * t[k]
            log_odds = log_saddle + log_ring_odds(age) - decay[j]
            hit_prob[j], miss_prob[j] = ring_probabilities(log_odds)
            variance += hit_prob[j] * miss_prob[j]

            # the log of P(not rung) + r P(rung), where P(not rung) = exp(-age)
            if log_odds > 0.0:
                log_product += log_saddle + math.log(-math.expm1(-age)) - decay[j]
                log_product += math.log1p(math.exp(-log_odds))
            else:
                log_product += math.log1p(math.exp(log_odds)) - age

        if log_product < -MAX_EXPONENT:
            continue

        num_circle_points = min(num_classes + 1, int(10.0 * math.sqrt(variance) + 14.0)) | 1
        step = 2.0 * math.pi / num_circle_points
        num_points = 1
        while (
            num_points <= num_circle_points // 2
            and variance * (1.0 - math.cos(num_points * step)) < -LOG_TRUNCATION
        ):
            num_points += 1

        x, y, real, imag, rate, rate_y = values[k]
        for s in range(num_points):
            x[s], y[s] = math.cos(s * step), math.sin(s * step)

            # the light classes add a + b i to the log of the product, and c + d i to the hazard
            a = b = c = d = 0.0
            for i in range(NUM_POWERS, 0, -1):
                sign = rho**i if i % 2 else -(rho**i)
                a += sign * sums[0, k, i] / i
                a, b = a * x[s] - b * y[s], a * y[s] + b * x[s]
                c -= sign * sums[1, k, i]
                c, d = c * x[s] - d * y[s], c * y[s] + d * x[s]

            if s == 0:
                log_first = a

            # the angle of z**-m, reduced in integers to keep its digits
            turn = b - step * ((m * s) % num_circle_points)
            weight = 1.0 if s == 0 else 2.0
            magnitude = math.exp(log_product + a - log_first) * weight / num_circle_points * t[k]

            real[s] = magnitude * math.cos(turn)
            imag[s] = magnitude * math.sin(turn)
            rate[s] = c + sums[1, k, 0]
            rate_y[s] = d

        for j in range(len(q)):
            for s in range(num_points):
                u = miss_prob[j] + hit_prob[j] * x[s]
                v = hit_prob[j] * y[s]
                real[s], imag[s] = real[s] * u - imag[s] * v, real[s] * v + imag[s] * u
                inverse = q[j] * miss_prob[j] / (u * u + v * v)
                rate[s] += u * inverse
                rate_y[s] -= v * inverse

        for s in range(num_points):
            u = real[s]
            v = imag[s]
            a = u * rate[s] - v * rate_y[s]
            b = u * rate_y[s] + v * rate[s]
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
    radius: FloatArray,
    is_heavy: NDArray[np.bool_],
    num_powers: IntArray,
    series: FloatArray,
    t_weights: FloatArray,
    members: FloatArray,
) -> None:
    """Add E[exp(-D) 1{k in set}] of each light class k to `members` (2, n).

    Each row is computed by one of two quadrature rules in t, with the weights `t_weights` (2, T).
    """
    odds = np.empty(CLASSES_PER_TILE)
    value = np.empty(CLASSES_PER_TILE)

    for start in range(0, len(q), CLASSES_PER_TILE):
        size = min(CLASSES_PER_TILE, len(q) - start)

        for k in range(len(t)):
            _write_odds(q, weights, start, size, t[k], radius[k], odds)

            for i in range(size):
                odds[i] = 0.0 if is_heavy[start + i] else odds[i]
                value[i] = 0.0

            for j in range(num_powers[start // CLASSES_PER_TILE], 0, -1):
                c = series[0, k, j]
                d = series[1, k, j]
                for i in range(size):
                    value[i] = (value[i] + c - d * q[start + i]) * odds[i]

            for i in range(size):
                members[0, start + i] += t_weights[0, k] * value[i]
                members[1, start + i] += t_weights[1, k] * value[i]


@njit
def add_heavy_members(
    q: FloatArray,
    decay: FloatArray,
    t: FloatArray,
    log_radius: FloatArray,
    values: FloatArray,
    t_weights: FloatArray,
    members: FloatArray,
) -> None:
    """Add E[exp(-D) 1{k in set}] of each heavy class k to `members` (2, n).

    Each row is computed by one of two quadrature rules in t, with the weights `t_weights` (2, T).
    """
    for k in range(len(t)):
        x, y, real, imag, rate, rate_y = values[k]
        num_points = 0
        while (
            num_points < MAX_HALF_CIRCLE_POINTS
            and x[num_points] * x[num_points] + y[num_points] * y[num_points] > 0.5
        ):
            num_points += 1

        for j in range(len(q)):
            log_odds = log_radius[k] + log_ring_odds(q[j] * t[k]) - decay[j]
            hit_prob, miss_prob = ring_probabilities(log_odds)

            total = 0.0
            for s in range(num_points):
                u = miss_prob + hit_prob * x[s]
                v = hit_prob * y[s]
                inverse = 1.0 / (u * u + v * v)

                # With p = `hit_prob` and z on the unit circle, a + b i is p z / (1 - p + p z).
                # c + d i is the hazard of all other classes.
                a = hit_prob * (x[s] * u + y[s] * v) * inverse
                b = hit_prob * (y[s] * u - x[s] * v) * inverse
                c = rate[s] - q[j] * miss_prob * u * inverse
                d = rate_y[s] + q[j] * miss_prob * v * inverse

                c, d = a * c - b * d, a * d + b * c
                total += real[s] * c - imag[s] * d

            members[0, j] += t_weights[0, k] * total
            members[1, j] += t_weights[1, k] * total
