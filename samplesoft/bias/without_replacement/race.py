"""Draws without replacement: m distinct classes in turn, each by its q among those that are left.

Give class j an exponential clock of rate q_j. The clocks ring in the order of such draws, and the
set is what has rung when the next one does. At a given time the clocks are independent. So with
``1/S = int exp(-u S) du`` an expectation over the sets is an integral over u, one over the time t,
and one around a circle that picks the products of m classes: (B82), in section 22 of ``README.md``
beside this file.

Nothing cancels on a circle through the saddle point. Most classes are *light*: on it the odds that
they have rung are small, and sums of powers of the odds are all that is needed of them, real
numbers that serve every point of the circle. Only *heavy* classes are gone through point by point.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, njit_sum, thread_each
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.numerics.summation import EPS
from samplesoft.bias.without_replacement.race_kernels import (
    FARTHEST,
    GROWN,
    LARGEST,
    POINTS,
    POWERS,
    TILE,
    TINY,
    add_light,
    heavy_rings,
    integrate_circles,
    light_rings,
    recentre,
)
from samplesoft.samplers.without_replacement import SuccessiveInclusion

_PROBABLE = -12.0  # and of what decides the step
_TIME_STEP = 0.17  # in log t, at most
_CLASS_CHUNK = 1 << 14
_TIME_CHUNK = 4
_HEAVY_CHUNK = 256
_MOST_GUESSES = 1000
_LONGEST = 0.5
_SEEN = 1e-9  # inclusion probabilities below it are taken from `SuccessiveInclusion`


class ExponentialRace:
    """Clocks of rates `q` (N,), above 0, of which the first m < N to ring are the set."""

    def __init__(self, q: FloatArray, m: int) -> None:
        self.order = np.argsort(-q, kind="stable")
        self.q, self._m = q[self.order] / q.sum(), m
        try:
            self.t, self._log_r, step = _time_grid(self.q, m)
        except OverflowError:  # the last rings come at times near 1 / q
            raise ValueError(
                f"`q` must be at least 1e-300 of the sum of what is drawn beside it, got "
                f"{self.q[-1]:.2g}; mix the proposal with a little of the uniform distribution."
            ) from None
        # (2, T) weights of all nodes, and of half of them
        self.scale = np.stack([np.full(len(self.t), step), np.zeros(len(self.t))])
        self.scale[1, ::2] = 2.0 * step
        # what has rung for certain is never light
        self._always = int(np.searchsorted(-self.q, -GROWN / self.t[-1]))
        self._chance, self.exponent = np.ones(2), 0.0  # the largest that a term has had
        self._chance, rings = self.at(np.zeros(len(q)), [])
        # of a probability, which should be 1
        self.noise = 8.0 * EPS + 2.0 * abs(float(self._chance[0]) - 1.0)
        self.by_nodes = rings[0].copy()
        rare = rings[0] < _SEEN  # to which t beyond the nodes may add as much
        if rare.any():
            ids = np.flatnonzero(rare)[None]
            rings[:, rare] = SuccessiveInclusion(np.log(q), m).of_classes(ids, np.array([-1]))
        self.inclusion = rings  # (2, N), by all nodes in t, and by half of them

    def at(self, decay: FloatArray, past: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return E[exp(-sum of `decay` (N,) over the set)], and its parts by the classes in it.

        They are (2,) and (2, N), by all nodes in t and by half of them. `past` is a list to begin
        with, in which saddle points are kept for calls that follow at equal distances.
        """
        circles = self.circles(decay[self.order], past)
        if circles is None:
            return np.zeros(2), np.zeros((2, len(decay)))
        q, t, powers, scale = self.q, self.t, circles.powers, self.scale
        heavy, rings = powers.heavy, np.zeros((2, len(q)))
        own = np.zeros((2, len(powers.few[0])))

        def ring(part: slice) -> None:
            here = q[part], circles.weights[part], t, powers.r, heavy[part]
            orders = powers.orders[_tiles(part)]
            light_rings(*here, orders, circles.series, scale, rings[:, part])

        def ring_heavy(part: slice) -> None:
            here = powers.few[0][part], powers.few[1][part], t, circles.log_r
            heavy_rings(*here, circles.values, scale, own[:, part])

        thread_each(ring, chunks(len(q), _CLASS_CHUNK))
        thread_each(ring_heavy, chunks(len(own[0]), _HEAVY_CHUNK))
        rings[:, heavy] = own
        rings[:, self.order] = rings / self._chance[:, None]
        return scale @ circles.density / self._chance, rings

    def circles(self, decay: FloatArray, past: list[FloatArray]) -> Circles | None:
        """Return the circles for a `decay` (N,) of the classes in `order`, or None if all is gone.

        The decay of the m-th class to decay is left out of log r: without it, r changes little.
        """
        log_r = _extrapolate(past) if past else self._log_r
        q, m, t = self.q, self._m, self.t
        level = float(np.partition(decay, m - 1)[m - 1])
        circles = None
        if level <= LARGEST:
            weights = np.exp(np.minimum(level - decay, LARGEST))
            powers = self._powers(weights, decay - level, log_r)
            for _ in range(_MOST_GUESSES):
                if np.abs(powers.shift).max() <= FARTHEST:
                    break
                powers = self._powers(weights, decay - level, powers.log_r + powers.shift)
            # terms of the circle at each time, and the sums of them that light classes need
            values = np.zeros((len(t), 6, POINTS))
            series, density = np.zeros((2, len(t), POWERS + 1)), np.empty(len(t))

            def integrate(part: slice) -> None:
                at = t[part], powers.log_r[part], powers.shift[part], powers.sums[:, part]
                to = values[part], series[:, part]
                density[part] = integrate_circles(*powers.few, m, level, len(q), *at, *to)

            thread_each(integrate, chunks(len(t), _TIME_CHUNK))
            log_r = powers.log_r + powers.shift
            largest = np.abs(log_r + level)[density > 0.0].max(initial=0.0)
            self.exponent = max(self.exponent, m * float(largest))
            circles = Circles(weights, decay - level, log_r, values, series, density, powers)
        past[:] = [*past[-2:], log_r]
        return circles

    def bound_times(self) -> tuple[float, float]:
        """Bound the relative error of the nodes in t for any one set, and what they leave out.

        The first is (B86); the second bounds the probability of rings beyond the ends (Chernoff).
        """
        step, sides = float(self.scale[0, 0]), self._m + 1
        angle = math.atan(2.0 * math.pi / (step * sides))  # where (B86) is least
        turn = 2.0 * math.pi * angle / step
        rule = 2.0 * math.exp(-turn - sides * math.log(math.cos(angle))) / -math.expm1(-turn)
        left_out = 0.0
        # more than m rings by the first of them, and at most m by the last
        for k, number, sign in (0, sides, 1.0), (-1, self._m, -1.0):
            t = self.t[k]
            log_r = max(sign * _saddle(self.q, t, number - 0.5, self._log_r[k])[0], 0.0) * sign
            with np.errstate(divide="ignore"):
                log_rung = np.log(-np.expm1(-self.q * t))
            log_factors = np.logaddexp(-self.q * t, log_r + log_rung)
            left_out += math.exp(min(float(log_factors.sum()) - number * log_r, 0.0))
        return rule, (1.0 + step * (sides + 1)) * left_out

    def _powers(self, weights: FloatArray, decay: FloatArray, log_r: FloatArray) -> _Powers:
        """Tell light classes from heavy ones on circles of radius exp(log_r), (T,), and sum."""
        q, t = self.q, self.t
        r = np.exp(np.clip(log_r, -LARGEST, LARGEST))
        heavy = np.zeros(len(q), np.bool_)
        heavy[: self._always] = True
        orders = np.zeros(-(-len(q) // TILE), np.int64)
        parts = list(chunks(len(q), _CLASS_CHUNK))
        sums = np.zeros((len(parts), 2, len(t), POWERS + 1))

        def add(number: int) -> None:
            part = parts[number]
            here = q[part], weights[part], t, r
            add_light(*here, heavy[part], orders[_tiles(part)], sums[number])

        thread_each(add, range(len(parts)))
        total, few, shift = sums.sum(axis=0), (q[heavy], decay[heavy]), np.empty(len(t))

        def centre(part: slice) -> None:
            at = t[part], log_r[part], total[:, part]
            recentre(*few, self._m, *at, shift[part])

        thread_each(centre, chunks(len(t), _TIME_CHUNK))
        return _Powers(log_r, r, shift, total, heavy, orders, few)


class Circles(NamedTuple):
    """Circles through the saddle points at times t, (T,), and what stands on their points."""

    weights: FloatArray  # (N,) exp(-decay)
    decay: FloatArray  # (N,) less that of the m-th class to decay
    log_r: FloatArray  # (T,)
    values: FloatArray  # (T, 6, points) see `integrate_circles`
    series: FloatArray  # (2, T, powers)
    density: FloatArray  # (T,) of the next ring in log t, with the weights of the set
    powers: _Powers


class _Powers(NamedTuple):
    """Circles at times t, (T,), and what light classes add to their terms."""

    log_r: FloatArray  # (T,) at which the odds are taken
    r: FloatArray  # (T,)
    shift: FloatArray  # (T,) from there to the saddle points
    sums: FloatArray  # (2, T, powers) of powers of the odds, plain and times q
    heavy: NDArray[np.bool_]  # (N,)
    orders: IntArray  # (tiles,) how many powers matter
    few: tuple[FloatArray, FloatArray]  # q and decay of the heavy classes


def _tiles(part: slice) -> slice:
    return slice(part.start // TILE, -(-part.stop // TILE))


def _extrapolate(past: list[FloatArray]) -> FloatArray:
    """Return what follows the last three of `past`, which stand at equal distances.

    Where few classes can be in the set, saddle points are flat, and any radius is as good: a step
    is no longer than `_LONGEST`, or extrapolation would run away.
    """
    if len(past) < 3:
        return past[-1]
    step = 2.0 * past[-1] - 3.0 * past[-2] + past[-3]
    return past[-1] + np.clip(step, -_LONGEST, _LONGEST)


# --- the nodes in t ------------------------------------------------------------------------------


def _time_grid(q: FloatArray, m: int) -> tuple[FloatArray, FloatArray, float]:
    """Return t and log r (T,) as far as the next ring after m is to be expected, and the step."""
    low, high = -math.log(len(q)) - 40.0, math.log(60.0) - math.log(q[-1])
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        if _mean_rung(q, math.exp(middle)) < m + 0.5:
            low = middle
        else:
            high = middle
    step = _TIME_STEP
    while True:
        nodes = {0: _saddle(q, math.exp(low), m, 0.0)}
        for side in -1, 1:
            k = 0
            while nodes[k][1] > TINY:
                ahead = nodes[k][0]
                if k:
                    ahead += min(max(ahead - nodes[k - side][0], -3.0), 3.0)
                k += side
                nodes[k] = _saddle(q, math.exp(low + k * step), m, ahead)
        shortest = min(node[2] for node in nodes.values() if node[1] > _PROBABLE)
        if shortest >= 0.75 * step:
            break
        step = shortest
    places = sorted(nodes)
    t = np.exp(low + step * np.array(places))
    return t, np.array([nodes[k][0] for k in places]), step


@njit_sum
def _mean_rung(q: FloatArray, t: float) -> float:
    """Return how many clocks are expected to have rung by `t`."""
    total = 0.0
    for j in range(len(q)):
        total -= math.expm1(-q[j] * t)
    return total


@njit
def _saddle(q: FloatArray, t: float, m: float, log_r: float) -> tuple[float, float, float]:
    """Return log r of the circle at `t`, a bound of the log density of the next ring, and a step.

    The step in log t follows the distribution of the number of rings. `log_r` is a guess.
    """
    low, high, variance, hazard, slope, free = -1e300, 1e300, 0.0, 0.0, 0.0, 0.0
    value = 0.0
    for _ in range(200):
        r = math.exp(min(log_r, LARGEST))
        mean = variance = hazard = slope = free = 0.0
        value = -m * log_r
        for j in range(len(q)):
            age = q[j] * t
            silent = math.exp(-age)
            if age < GROWN:
                odds = r * math.expm1(age)
                value += math.log1p(odds) - age
                share = odds / (1.0 + odds)
            else:
                log_odds = log_r + age
                share = 1.0 / (1.0 + math.exp(-log_odds))
                # log (silent + r rung)
                value += log_r + math.log1p(math.exp(-log_odds)) if log_odds > 0.0 else -age
            mean += share
            variance += share * (1.0 - share)
            hazard += age * (1.0 - share)
            slope += age * silent
            free += silent * (1.0 - silent)
        if mean > m:
            high = log_r
        else:
            low = log_r
        gap = m - mean
        if abs(gap) < 1e-2 * math.sqrt(variance) or high - low < 1e-9 * (1.0 + abs(low)):
            break
        log_r += gap / variance if abs(gap) < 2.0 * variance else math.copysign(2.0, gap)
        if not low < log_r < high:
            log_r = 0.5 * (low + high)
    density = value + (math.log(hazard) if hazard > 0.0 else -1e300)
    return log_r, density, 1.0 / math.sqrt(35.0 + 6.0 * slope * slope / (free + 1.0))
