"""Expectations over draws without replacement, as a race of exponential clocks.

Each draw takes a class with probability proportional to q among the classes that remain. Give
class j a clock that rings once, after an exponential time of rate q_j. The clocks ring in the order
of such draws: the drawn set is the set of the first m clocks to ring. At a fixed time t the clocks
are independent. With ``1/S = int exp(-u S) du``, an expectation over the sets is therefore an
integral over u, over t, and around a circle of complex z that selects the products of m classes:
(B82), in section 22 of ``samplesoft/bias/README.md``.

No terms cancel on a circle through the saddle point. Most classes are *light*: on this circle the
odds that their clocks have rung are small. The light classes enter through sums of powers of their
odds, which are real and are the same at all points of the circle. Only the other classes, called
*heavy*, are evaluated point by point.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, njit_sum, thread_for_each
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.numerics.summation import EPS
from samplesoft.bias.without_replacement.race_kernels import (
    CLASSES_PER_TILE,
    LOG_TRUNCATION,
    MAX_EXP_AGE,
    MAX_EXPONENT,
    MAX_HALF_CIRCLE_POINTS,
    MAX_LOG_R_SHIFT,
    NUM_POWERS,
    add_heavy_members,
    add_light_members,
    add_light_powers,
    find_saddles,
    integrate_circles,
)
from samplesoft.samplers.without_replacement import SuccessiveInclusion

# only nodes in t with a larger log density determine the step in log t
_MIN_LOG_DENSITY_OF_STEP = -12.0
_MAX_LOG_T_STEP = 0.17
_CLASSES_PER_CHUNK = 1 << 14
_TIMES_PER_CHUNK = 4
_HEAVY_CLASSES_PER_CHUNK = 256
_MAX_CIRCLE_UPDATES = 1000
_MAX_LOG_R_STEP = 0.5  # largest change of log r by extrapolation
# smaller inclusion probabilities are computed by `SuccessiveInclusion`, not from the nodes in t
_MIN_PROB_BY_NODES = 1e-9


class ExponentialRace:
    """Distribution of a set of m < N classes, drawn without replacement by weights `q` (N,) > 0.

    The set consists of the first m of N exponential clocks to ring, which have the rates `q`.
    """

    def __init__(self, q: FloatArray, m: int) -> None:
        self.order = np.argsort(-q, kind="stable")
        self.q = q[self.order] / q.sum()
        self._m = m
        try:
            self.t, self._log_r, step = _time_grid(self.q, m)
        except OverflowError:  # the last rings come at times near 1 / q
            raise ValueError(
                f"`q` must be at least 1e-300 of the sum of what is drawn beside it, got "
                f"{self.q[-1]:.2g}; mix the proposal with a little of the uniform distribution."
            ) from None

        # (2, T) quadrature weights in log t: of all nodes, and of the rule with every second node
        self.t_weights = np.stack([np.full(len(self.t), step), np.zeros(len(self.t))])
        self.t_weights[1, ::2] = 2.0 * step

        # the first classes, whose clocks have almost surely rung by the last node, are never light
        self._num_always_heavy = int(np.searchsorted(-self.q, -MAX_EXP_AGE / self.t[-1]))
        self.max_exponent = 0.0  # largest exponent in any term computed so far
        self._total_prob = np.ones(2)

        # the total probability of all sets, by both rules in t; its exact value is 1
        self._total_prob, members = self.expect_exponentials(np.zeros(len(q)), [])
        self.relative_error = 8.0 * EPS + 2.0 * abs(float(self._total_prob[0]) - 1.0)
        self.inclusion_by_nodes = members[0].copy()
        rare = members[0] < _MIN_PROB_BY_NODES  # times beyond the last node may matter for them
        if rare.any():
            ids = np.flatnonzero(rare)[None]
            members[:, rare] = SuccessiveInclusion(np.log(q), m).of_classes(ids, np.array([-1]))

        # (2, N) inclusion probabilities: by all nodes in t, and by every second node
        self.inclusion = members

    def expect_exponentials(
        self, decay: FloatArray, saddles: list[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return ``E[exp(-D)]`` (2,) and ``E[exp(-D) 1{k in set}]`` (2, N) for each class k.

        D is the sum of `decay` (N,), which is u times the weights of the classes, over the drawn
        set. The first row is computed by all nodes in t, the second by every second node.

        `saddles` is changed in place: it stores the saddle points of the last three calls, from
        which those of the next call are extrapolated. It must be an empty list at the first call;
        the calls that share it must be at equal distances in log u.
        """
        circles = self.make_circles(decay[self.order], saddles)
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
                classes.num_powers[_tiles_of_slice(part)],
                circles.series,
                self.t_weights,
                members[:, part],
            )

        def add_heavy(part: slice) -> None:
            add_heavy_members(
                classes.heavy_q[part],
                classes.heavy_decay[part],
                self.t,
                circles.log_r,
                circles.point_values,
                self.t_weights,
                heavy_members[:, part],
            )

        thread_for_each(add_light, chunks(len(self.q), _CLASSES_PER_CHUNK))
        thread_for_each(add_heavy, chunks(len(classes.heavy_q), _HEAVY_CLASSES_PER_CHUNK))

        members[:, classes.heavy] = heavy_members
        members[:, self.order] = members / self._total_prob[:, None]
        return self.t_weights @ circles.density / self._total_prob, members

    def make_circles(self, decay: FloatArray, saddles: list[FloatArray]) -> Circles | None:
        """Return the circles in z at all times t, or None if ``E[exp(-D)]`` underflows.

        `decay` (N,) is u times the weights of the classes, which are sorted by `order`. Its m-th
        smallest value is subtracted from all, so that log r changes little between calls. `saddles`
        is read and changed in place, see `expect_exponentials`.
        """
        log_r = _extrapolate_saddles(saddles) if saddles else self._log_r
        m = self._m
        num_times = len(self.t)

        level = float(np.partition(decay, m - 1)[m - 1])
        circles = None
        if level <= MAX_EXPONENT:
            weights = np.exp(np.minimum(level - decay, MAX_EXPONENT))
            classes = self._separate_light_and_heavy(weights, decay - level, log_r)
            for _ in range(_MAX_CIRCLE_UPDATES):
                if np.abs(classes.log_r_shift).max() <= MAX_LOG_R_SHIFT:
                    break
                log_r = classes.log_r + classes.log_r_shift
                classes = self._separate_light_and_heavy(weights, decay - level, log_r)

            # values at the points of each circle, and power sums for the terms of light classes
            values = np.zeros((num_times, 6, MAX_HALF_CIRCLE_POINTS))
            series = np.zeros((2, num_times, NUM_POWERS + 1))
            density = np.empty(num_times)

            def integrate_times(part: slice) -> None:
                density[part] = integrate_circles(
                    classes.heavy_q,
                    classes.heavy_decay,
                    m,
                    level,
                    len(self.q),
                    self.t[part],
                    classes.log_r[part],
                    classes.log_r_shift[part],
                    classes.odds_power_sums[:, part],
                    values[part],
                    series[:, part],
                )

            thread_for_each(integrate_times, chunks(num_times, _TIMES_PER_CHUNK))
            log_r = classes.log_r + classes.log_r_shift
            largest = np.abs(log_r + level)[density > 0.0].max(initial=0.0)
            self.max_exponent = max(self.max_exponent, m * float(largest))

            circles = Circles(
                weights=weights,
                decay=decay - level,
                log_r=log_r,
                point_values=values,
                series=series,
                density=density,
                classes=classes,
            )

        saddles[:] = [*saddles[-2:], log_r]
        return circles

    def time_quadrature_errors(self) -> tuple[float, float]:
        """Return bounds on the two errors of the nodes in t: of the rule, and of the truncation.

        The first is the relative error (B86) of the trapezoid rule in log t for any set. The second
        is an absolute error in probability, from Chernoff's bounds on the probability that ring
        m + 1 is before the first node or after the last.
        """
        step = float(self.t_weights[0, 0])
        sides = self._m + 1

        angle = math.atan(2.0 * math.pi / (step * sides))  # minimises the bound (B86)
        turn = 2.0 * math.pi * angle / step
        rule = 2.0 * math.exp(-turn - sides * math.log(math.cos(angle))) / -math.expm1(-turn)

        left_out = 0.0

        # P(more than m rings before the first node) and P(at most m rings by the last)
        for k, number, sign in (0, sides, 1.0), (-1, self._m, -1.0):
            t = self.t[k]
            log_r = max(sign * _find_saddle(self.q, t, number - 0.5, self._log_r[k])[0], 0.0) * sign

            with np.errstate(divide="ignore"):
                log_rung = np.log(-np.expm1(-self.q * t))
            log_factors = np.logaddexp(-self.q * t, log_r + log_rung)
            left_out += math.exp(min(float(log_factors.sum()) - number * log_r, 0.0))

        return rule, (1.0 + step * (sides + 1)) * left_out

    def _separate_light_and_heavy(
        self, weights: FloatArray, decay: FloatArray, log_r: FloatArray
    ) -> _LightAndHeavy:
        """Separate light from heavy classes, and sum the powers of the odds of the light ones.

        The odds are those on circles of radius exp(log_r), with `log_r` (T,). `weights` (N,) are
        exp(-decay) up to the limits of the exponent.
        """
        q = self.q
        t = self.t
        r = np.exp(np.clip(log_r, -MAX_EXPONENT, MAX_EXPONENT))

        heavy = np.zeros(len(q), np.bool_)
        heavy[: self._num_always_heavy] = True
        orders = np.zeros(-(-len(q) // CLASSES_PER_TILE), np.int64)

        parts = list(chunks(len(q), _CLASSES_PER_CHUNK))
        sums = np.zeros((len(parts), 2, len(t), NUM_POWERS + 1))

        def add(number: int) -> None:
            part = parts[number]
            tiles = orders[_tiles_of_slice(part)]
            add_light_powers(q[part], weights[part], t, r, heavy[part], tiles, sums[number])

        thread_for_each(add, range(len(parts)))
        total = sums.sum(axis=0)
        shift = np.empty(len(t))
        heavy_q = q[heavy]
        heavy_decay = decay[heavy]

        def find_saddles_at_times(part: slice) -> None:
            find_saddles(
                heavy_q, heavy_decay, self._m, t[part], log_r[part], total[:, part], shift[part]
            )

        thread_for_each(find_saddles_at_times, chunks(len(t), _TIMES_PER_CHUNK))

        return _LightAndHeavy(
            log_r=log_r,
            r=r,
            log_r_shift=shift,
            odds_power_sums=total,
            heavy=heavy,
            num_powers=orders,
            heavy_q=heavy_q,
            heavy_decay=heavy_decay,
        )


class Circles(NamedTuple):
    """Circles in z through the saddle points at the T times t, and values at their points."""

    weights: FloatArray  # (N,) exp(-decay)
    # (N,) u times each class's weight, minus the m-th smallest of these
    decay: FloatArray
    log_r: FloatArray  # (T,) log of the radius
    point_values: FloatArray  # (T, 6, points) see `integrate_circles`
    series: FloatArray  # (2, T, powers) see `integrate_circles`
    # (T,) density of ring m + 1 in log t, times exp(-D) of the set
    density: FloatArray
    classes: _LightAndHeavy


class _LightAndHeavy(NamedTuple):
    """The light classes at the T times t, as sums of powers of their odds, and the heavy classes.

    A tile is a run of `CLASSES_PER_TILE` consecutive classes.
    """

    log_r: FloatArray  # (T,) log of the radius for which the odds were computed
    r: FloatArray  # (T,) this radius
    log_r_shift: FloatArray  # (T,) log r of the saddle point minus `log_r`
    # (2, T, powers) sums over the light classes of the powers of their odds, and of q times these
    odds_power_sums: FloatArray
    heavy: NDArray[np.bool_]  # (N,) whether a class is heavy
    num_powers: IntArray  # (tiles,) number of powers that matter for each tile
    heavy_q: FloatArray  # (H,) q of the heavy classes
    heavy_decay: FloatArray  # (H,) `Circles.decay` of the heavy classes


def _tiles_of_slice(part: slice) -> slice:
    """Return the slice of tiles that covers a slice of classes."""
    return slice(part.start // CLASSES_PER_TILE, -(-part.stop // CLASSES_PER_TILE))


def _extrapolate_saddles(saddles: list[FloatArray]) -> FloatArray:
    """Return log r of the saddle points (T,) at the next u, extrapolated from previous `saddles`.

    The last three entries of `saddles`, at equal distances in log u, are extrapolated by a
    parabola. If few classes can be in the set, the saddle is flat and the extrapolation unstable.
    So the step is limited to `_MAX_LOG_R_STEP`.
    """
    if len(saddles) < 3:
        return saddles[-1]
    step = 2.0 * saddles[-1] - 3.0 * saddles[-2] + saddles[-3]
    return saddles[-1] + np.clip(step, -_MAX_LOG_R_STEP, _MAX_LOG_R_STEP)


# --- the nodes in t ------------------------------------------------------------------------------


def _time_grid(q: FloatArray, m: int) -> tuple[FloatArray, FloatArray, float]:
    """Return nodes t (T,), log r of their saddle points (T,), and the step in log t.

    The nodes cover all times at which ring m + 1 has a density that matters.
    """
    low, high = -math.log(len(q)) - 40.0, math.log(60.0) - math.log(q[-1])
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        if _expected_rings(q, math.exp(middle)) < m + 0.5:
            low = middle
        else:
            high = middle

    step = _MAX_LOG_T_STEP
    while True:
        nodes = {0: _find_saddle(q, math.exp(low), m, 0.0)}

        for side in -1, 1:
            k = 0
            while nodes[k][1] > LOG_TRUNCATION:
                ahead = nodes[k][0]
                if k:
                    ahead += min(max(ahead - nodes[k - side][0], -3.0), 3.0)
                k += side
                nodes[k] = _find_saddle(q, math.exp(low + k * step), m, ahead)

        shortest = min(node[2] for node in nodes.values() if node[1] > _MIN_LOG_DENSITY_OF_STEP)
        if shortest >= 0.75 * step:
            break

        step = shortest

    indices = sorted(nodes)
    t = np.exp(low + step * np.array(indices))
    return t, np.array([nodes[k][0] for k in indices]), step


@njit_sum
def _expected_rings(q: FloatArray, t: float) -> float:
    """Return the expected number of clocks that have rung by `t`."""
    total = 0.0
    for j in range(len(q)):
        total -= math.expm1(-q[j] * t)
    return total


@njit
def _find_saddle(q: FloatArray, t: float, m: float, log_r: float) -> tuple[float, float, float]:
    """Return log r of the saddle point at time `t`, a bound on a log density, and a step in log t.

    The density is that of ring m + 1 in log t. The step is small enough to resolve the number of
    rings as a function of log t. `log_r` is the initial guess of Newton's method.
    """
    low, high = -1e300, 1e300
    variance = hazard = 0.0

    # of the number of rings at r = 1: derivative of its mean in log t, and its variance
    mean_rate = untilted_variance = 0.0
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
                # the log of P(not rung) + r P(rung)
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
