"""Draws without replacement: m distinct classes in turn, by q among the remaining classes.

Give class j an exponential clock of rate q_j. The clocks ring in the order of such draws, and the
set consists of the clocks that have rung before the next one does. At a given time the clocks are
independent. So with ``1/S = int exp(-u S) du`` an expectation over the sets is an integral over u,
over the time t, and around a circle that selects the products of m classes: (B82), in section 22
of the README of `bias`.

Nothing cancels on a circle through the saddle point. Most classes are *light*: the odds that they
have rung are small there. Light classes enter through sums of powers of their odds, which are real
and the same for all points of the circle. Only *heavy* classes are evaluated point by point.
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
    HALF_CIRCLE_POINTS,
    LOG_LEFT_OUT,
    MAX_EXP_AGE,
    MAX_EXPONENT,
    MAX_LOG_R_SHIFT,
    NUM_POWERS,
    TILE_CLASSES,
    add_heavy_members,
    add_light_members,
    add_light_powers,
    find_saddles,
    integrate_circles,
)
from samplesoft.samplers.without_replacement import SuccessiveInclusion

_MIN_LOG_DENSITY_OF_STEP = -12.0  # of a time that decides the step
_MAX_LOG_T_STEP = 0.17
_CHUNK_CLASSES = 1 << 14
_CHUNK_TIMES = 4
_CHUNK_HEAVY_CLASSES = 256
_MAX_GUESSES_OF_CIRCLES = 1000
_MAX_LOG_R_STEP = 0.5  # of an extrapolation
_MIN_PROB_BY_NODES = 1e-9  # rarer classes have theirs from `SuccessiveInclusion`


class ExponentialRace:
    """The set of the first m < N exponential clocks to ring, with rates `q` (N,) above 0."""

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
        # clocks that have rung almost surely are never light
        self._always = int(np.searchsorted(-self.q, -MAX_EXP_AGE / self.t[-1]))
        self.exponent = 0.0  # the largest exponent of a term so far
        self._total = np.ones(2)
        # the total probability of all sets, whose exact value is 1
        self._total, members = self.expect(np.zeros(len(q)), [])
        self.noise = 8.0 * EPS + 2.0 * abs(float(self._total[0]) - 1.0)
        self.by_nodes = members[0].copy()
        rare = members[0] < _MIN_PROB_BY_NODES  # times beyond the nodes may matter for these
        if rare.any():
            ids = np.flatnonzero(rare)[None]
            members[:, rare] = SuccessiveInclusion(np.log(q), m).of_classes(ids, np.array([-1]))
        self.inclusion = members  # (2, N), by all nodes in t, and by half of them

    def expect(self, decay: FloatArray, saddles: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return E[exp(-D)], D the sum of `decay` (N,) over the set, and E[exp(-D); k in set].

        They are (2,) and (2, N), by all nodes in t and by half of them. `saddles` must be an empty
        list at first: it stores saddle points for the following calls, which must be at equal
        distances in log u.
        """
        circles = self.circles(decay[self.order], saddles)
        if circles is None:
            return np.zeros(2), np.zeros((2, len(decay)))
        classes = circles.classes
        members = np.zeros((2, len(self.q)))
        heavy_members = np.zeros((2, len(classes.heavy_q)))

        def add_light(part: slice) -> None:
            add_light_members(
                self.q[part],
                circles.weights[part],
                self.t,
                classes.r,
                classes.heavy[part],
                classes.orders[_tiles(part)],
                circles.series,
                self.scale,
                members[:, part],
            )

        def add_heavy(part: slice) -> None:
            add_heavy_members(
                classes.heavy_q[part],
                classes.heavy_decay[part],
                self.t,
                circles.log_r,
                circles.values,
                self.scale,
                heavy_members[:, part],
            )

        thread_each(add_light, chunks(len(self.q), _CHUNK_CLASSES))
        thread_each(add_heavy, chunks(len(classes.heavy_q), _CHUNK_HEAVY_CLASSES))
        members[:, classes.heavy] = heavy_members
        members[:, self.order] = members / self._total[:, None]
        return self.scale @ circles.density / self._total, members

    def circles(self, decay: FloatArray, saddles: list[FloatArray]) -> Circles | None:
        """Return the circles for a `decay` (N,) of the classes in `order`; None on underflow.

        The m-th smallest decay is subtracted from all, so that log r changes little between calls.
        """
        log_r = _extrapolate(saddles) if saddles else self._log_r
        m, num_times = self._m, len(self.t)
        level = float(np.partition(decay, m - 1)[m - 1])
        circles = None
        if level <= MAX_EXPONENT:
            weights = np.exp(np.minimum(level - decay, MAX_EXPONENT))
            classes = self._light_and_heavy(weights, decay - level, log_r)
            for _ in range(_MAX_GUESSES_OF_CIRCLES):
                if np.abs(classes.shift).max() <= MAX_LOG_R_SHIFT:
                    break
                log_r = classes.log_r + classes.shift
                classes = self._light_and_heavy(weights, decay - level, log_r)
            # the terms on the circle at each time, and their sums for the light classes
            values = np.zeros((num_times, 6, HALF_CIRCLE_POINTS))
            series = np.zeros((2, num_times, NUM_POWERS + 1))
            density = np.empty(num_times)

            def integrate(part: slice) -> None:
                density[part] = integrate_circles(
                    classes.heavy_q,
                    classes.heavy_decay,
                    m,
                    level,
                    len(self.q),
                    self.t[part],
                    classes.log_r[part],
                    classes.shift[part],
                    classes.sums[:, part],
                    values[part],
                    series[:, part],
                )

            thread_each(integrate, chunks(num_times, _CHUNK_TIMES))
            log_r = classes.log_r + classes.shift
            largest = np.abs(log_r + level)[density > 0.0].max(initial=0.0)
            self.exponent = max(self.exponent, m * float(largest))
            circles = Circles(
                weights=weights,
                decay=decay - level,
                log_r=log_r,
                values=values,
                series=series,
                density=density,
                classes=classes,
            )
        saddles[:] = [*saddles[-2:], log_r]
        return circles

    def bound_times(self) -> tuple[float, float]:
        """Return bounds on the relative error of the nodes in t for any set, and on the truncation.

        The first is (B86); the second bounds the probability of rings beyond the ends (Chernoff).
        """
        step, sides = float(self.scale[0, 0]), self._m + 1
        angle = math.atan(2.0 * math.pi / (step * sides))  # where (B86) is least
        turn = 2.0 * math.pi * angle / step
        rule = 2.0 * math.exp(-turn - sides * math.log(math.cos(angle))) / -math.expm1(-turn)
        left_out = 0.0
        # P(more than m rings before the first node) and P(at most m rings by the last)
        for k, number, sign in (0, sides, 1.0), (-1, self._m, -1.0):
            t = self.t[k]
            log_r = max(sign * _saddle(self.q, t, number - 0.5, self._log_r[k])[0], 0.0) * sign
            with np.errstate(divide="ignore"):
                log_rung = np.log(-np.expm1(-self.q * t))
            log_factors = np.logaddexp(-self.q * t, log_r + log_rung)
            left_out += math.exp(min(float(log_factors.sum()) - number * log_r, 0.0))
        return rule, (1.0 + step * (sides + 1)) * left_out

    def _light_and_heavy(
        self, weights: FloatArray, decay: FloatArray, log_r: FloatArray
    ) -> _Classes:
        """Separate light and heavy classes on circles of radius exp(log_r), (T,); sum powers."""
        q, t = self.q, self.t
        r = np.exp(np.clip(log_r, -MAX_EXPONENT, MAX_EXPONENT))
        heavy = np.zeros(len(q), np.bool_)
        heavy[: self._always] = True
        orders = np.zeros(-(-len(q) // TILE_CLASSES), np.int64)
        parts = list(chunks(len(q), _CHUNK_CLASSES))
        sums = np.zeros((len(parts), 2, len(t), NUM_POWERS + 1))

        def add(number: int) -> None:
            part = parts[number]
            tiles = orders[_tiles(part)]
            add_light_powers(q[part], weights[part], t, r, heavy[part], tiles, sums[number])

        thread_each(add, range(len(parts)))
        total, shift = sums.sum(axis=0), np.empty(len(t))
        heavy_q, heavy_decay = q[heavy], decay[heavy]

        def find(part: slice) -> None:
            find_saddles(
                heavy_q, heavy_decay, self._m, t[part], log_r[part], total[:, part], shift[part]
            )

        thread_each(find, chunks(len(t), _CHUNK_TIMES))
        return _Classes(
            log_r=log_r,
            r=r,
            shift=shift,
            sums=total,
            heavy=heavy,
            orders=orders,
            heavy_q=heavy_q,
            heavy_decay=heavy_decay,
        )


class Circles(NamedTuple):
    """Circles through the saddle points at times t, (T,), and the values at their points."""

    weights: FloatArray  # (N,) exp(-decay)
    decay: FloatArray  # (N,) minus the m-th smallest decay
    log_r: FloatArray  # (T,)
    values: FloatArray  # (T, 6, points) see `integrate_circles`
    series: FloatArray  # (2, T, powers)
    density: FloatArray  # (T,) of the next ring in log t, with the weights of the set
    classes: _Classes


class _Classes(NamedTuple):
    """Light classes, as sums of powers of their odds at times t, (T,), and the heavy ones."""

    log_r: FloatArray  # (T,) radius for which the odds are computed
    r: FloatArray  # (T,)
    shift: FloatArray  # (T,) log r of the saddle point minus `log_r`
    sums: FloatArray  # (2, T, powers) sums of powers of the odds, plain and times q
    heavy: NDArray[np.bool_]  # (N,)
    orders: IntArray  # (tiles,) number of powers that matter
    heavy_q: FloatArray  # (H,)
    heavy_decay: FloatArray  # (H,)


def _tiles(part: slice) -> slice:
    return slice(part.start // TILE_CLASSES, -(-part.stop // TILE_CLASSES))


def _extrapolate(saddles: list[FloatArray]) -> FloatArray:
    """Return the quadratic extrapolation of the last three `saddles`, at equal distances in log u.

    Where few classes can be in the set, the saddle is flat, and extrapolation is unstable: the step
    is limited to `_MAX_LOG_R_STEP`.
    """
    if len(saddles) < 3:
        return saddles[-1]
    step = 2.0 * saddles[-1] - 3.0 * saddles[-2] + saddles[-3]
    return saddles[-1] + np.clip(step, -_MAX_LOG_R_STEP, _MAX_LOG_R_STEP)


# --- the nodes in t ------------------------------------------------------------------------------


def _time_grid(q: FloatArray, m: int) -> tuple[FloatArray, FloatArray, float]:
    """Return nodes t and log r (T,) that cover the time of ring m + 1, and the step in log t."""
    low, high = -math.log(len(q)) - 40.0, math.log(60.0) - math.log(q[-1])
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        if _mean_rung(q, math.exp(middle)) < m + 0.5:
            low = middle
        else:
            high = middle
    step = _MAX_LOG_T_STEP
    while True:
        nodes = {0: _saddle(q, math.exp(low), m, 0.0)}
        for side in -1, 1:
            k = 0
            while nodes[k][1] > LOG_LEFT_OUT:
                ahead = nodes[k][0]
                if k:
                    ahead += min(max(ahead - nodes[k - side][0], -3.0), 3.0)
                k += side
                nodes[k] = _saddle(q, math.exp(low + k * step), m, ahead)
        shortest = min(node[2] for node in nodes.values() if node[1] > _MIN_LOG_DENSITY_OF_STEP)
        if shortest >= 0.75 * step:
            break
        step = shortest
    indices = sorted(nodes)
    t = np.exp(low + step * np.array(indices))
    return t, np.array([nodes[k][0] for k in indices]), step


@njit_sum
def _mean_rung(q: FloatArray, t: float) -> float:
    """Return the expected number of clocks that have rung by `t`."""
    total = 0.0
    for j in range(len(q)):
        total -= math.expm1(-q[j] * t)
    return total


@njit
def _saddle(q: FloatArray, t: float, m: float, log_r: float) -> tuple[float, float, float]:
    """Return log r of the saddle at `t`, a bound on the log density of the next ring, and a step.

    `log_r` is an initial guess. The step in log t resolves the number of rings as a function of t.
    """
    low, high = -1e300, 1e300
    variance = hazard = 0.0
    mean_rate = untilted_variance = 0.0  # of the number of rings, its mean in log t
    value = 0.0
    for _ in range(200):
        r = math.exp(min(log_r, MAX_EXPONENT))
        mean = variance = hazard = mean_rate = untilted_variance = 0.0
        value = -m * log_r
        for j in range(len(q)):
            age = q[j] * t
            silent = math.exp(-age)
            if age < MAX_EXP_AGE:
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
            mean_rate += age * silent
            untilted_variance += silent * (1.0 - silent)
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
    rate = 6.0 * mean_rate * mean_rate / (untilted_variance + 1.0)
    return log_r, density, 1.0 / math.sqrt(35.0 + rate)
