"""Expectations over draws without replacement, as a race of exponential clocks.

Each draw takes a class with probability proportional to q among the classes that remain. Give
class j a clock that rings once, after an exponential time of rate q_j. The clocks ring in the order
of such draws: the drawn set is the set of the first m clocks to ring. At a fixed time t the clocks
are independent. With ``1/S = int exp(-u S) du``, an expectation over the sets is therefore an
integral over u, over t, and over a circle of complex z, which selects the terms with m classes from
a power series in z: (B82), in section 22 of ``samplesoft/bias/README.md``.

No terms cancel on a circle through the saddle point of the integrand on the positive axis. Most
classes are *light*: on this circle the odds that their clocks have rung are small. The light
classes enter through sums of powers of their odds, which are real and are the same at all points of
the circle. Only the other classes, called *heavy*, are evaluated point by point.
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
    MAX_LOG_RADIUS_SHIFT,
    NUM_POWERS,
    add_heavy_members,
    add_light_members,
    add_light_powers,
    find_saddles,
    integrate_circles,
)
from samplesoft.samplers.without_replacement import SuccessiveInclusion

# nodes in t with a smaller log density do not matter for the choice of the step in log t
_MIN_LOG_DENSITY_OF_STEP = -12.0

_MAX_LOG_T_STEP = 0.17
_CLASSES_PER_CHUNK = 1 << 14
_TIMES_PER_CHUNK = 4
_HEAVY_CLASSES_PER_CHUNK = 256
_MAX_CIRCLE_UPDATES = 1000  # of the radii, until they are near the saddle points
_MAX_LOG_RADIUS_STEP = 0.5  # extrapolated changes of a log radius are clipped to this size

# smaller inclusion probabilities are computed by `SuccessiveInclusion`, not from the nodes in t
_MIN_PROB_BY_NODES = 1e-9


class ExponentialRace:
    """Distribution of the set of m < N classes that are drawn without replacement.

    Draws are in proportion to `q` (N,), all above 0. Each class has an exponential clock with its q
    as the rate, and the set consists of the classes whose clocks are the first m to ring.
    """

    def __init__(self, q: FloatArray, m: int) -> None:
        self.order = np.argsort(-q, kind="stable")
        self.q = q[self.order] / q.sum()
        self._m = m
        try:
            self.t, self._log_radius, step = _time_grid(self.q, m)
        except OverflowError:  # the slowest clocks ring at times near 1 / q, which overflow
            raise ValueError(
                f"`q` must be at least 1e-300 of the sum of what is drawn beside it, got "
                f"{self.q[-1]:.2g}; mix the proposal with a little of the uniform distribution."
            ) from None

        # (2, T) quadrature weights in log t: of all nodes, and of the rule with every second node
        self.t_weights = np.stack([np.full(len(self.t), step), np.zeros(len(self.t))])
        self.t_weights[1, ::2] = 2.0 * step

        # number of the first classes that count as heavy at once: those with the largest q, whose
        # clocks have almost surely rung by the last node in t
        self._num_always_heavy = int(np.searchsorted(-self.q, -MAX_EXP_AGE / self.t[-1]))
        self.max_exponent = 0.0  # largest |m log r| computed so far, for rounding errors
        self._total_prob = np.ones(2)

        # the total probability of all sets, by both rules in t; its exact value is 1
        self._total_prob, members = self.expect_exponentials(np.zeros(len(q)), [])
        self.relative_error = 8.0 * EPS + 2.0 * abs(float(self._total_prob[0]) - 1.0)
        self.inclusion_by_nodes = members[0].copy()
        # rare classes may be drawn at times beyond the last node
        is_rare = members[0] < _MIN_PROB_BY_NODES
        if is_rare.any():
            ids = np.flatnonzero(is_rare)[None]
            members[:, is_rare] = SuccessiveInclusion(np.log(q), m).of_classes(ids, np.array([-1]))

        # (2, N) probability that each class is in the set: by all nodes in t, by every second node
        self.inclusion = members

    def expect_exponentials(
        self, decay: FloatArray, saddles: list[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return ``E[exp(-D)]`` (2,) and ``E[exp(-D) 1{k in set}]`` (2, N) for each class k.

        D is the sum, over the drawn set, of `decay` (N,): u times the weight of each class. The
        first row is computed by all nodes in t, the second by every second node.

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

        def add_light(chunk: slice) -> None:
            add_light_members(
                self.q[chunk],
                circles.weights[chunk],
                self.t,
                classes.radius,
                classes.is_heavy[chunk],
                classes.num_powers[_tiles_of_slice(chunk)],
                circles.series,
                self.t_weights,
                members[:, chunk],
            )

        def add_heavy(chunk: slice) -> None:
            add_heavy_members(
                classes.heavy_q[chunk],
                classes.heavy_decay[chunk],
                self.t,
                circles.log_radius,
                circles.point_values,
                self.t_weights,
                heavy_members[:, chunk],
            )

        thread_for_each(add_light, chunks(len(self.q), _CLASSES_PER_CHUNK))
        thread_for_each(add_heavy, chunks(len(classes.heavy_q), _HEAVY_CLASSES_PER_CHUNK))

        members[:, classes.is_heavy] = heavy_members
        members[:, self.order] = members / self._total_prob[:, None]
        return self.t_weights @ circles.density / self._total_prob, members

    def make_circles(self, decay: FloatArray, saddles: list[FloatArray]) -> Circles | None:
        """Return the circle in z over which to integrate at each time t.

        Returns None if ``E[exp(-D)]`` underflows, with D as in `expect_exponentials`. `decay` (N,)
        is u times the weight of each class, for the classes in the order `self.order`. The m-th
        smallest decay is subtracted from all decays, so that the log radii change little between
        calls. `saddles` is read and changed in place, see `expect_exponentials`.
        """
        log_radius = _extrapolate_saddles(saddles) if saddles else self._log_radius
        m = self._m
        num_times = len(self.t)

        level = float(np.partition(decay, m - 1)[m - 1])
        circles = None
        if level <= MAX_EXPONENT:
            weights = np.exp(np.minimum(level - decay, MAX_EXPONENT))
            classes = self._separate_light_and_heavy(weights, decay - level, log_radius)
            for _ in range(_MAX_CIRCLE_UPDATES):
                if np.abs(classes.log_radius_shift).max() <= MAX_LOG_RADIUS_SHIFT:
                    break
                log_radius = classes.log_radius + classes.log_radius_shift
                classes = self._separate_light_and_heavy(weights, decay - level, log_radius)

            # values at the points of each circle, and power sums for the terms of light classes
            values = np.zeros((num_times, 6, MAX_HALF_CIRCLE_POINTS))
            series = np.zeros((2, num_times, NUM_POWERS + 1))
            density = np.empty(num_times)

            def integrate_times(times: slice) -> None:
                density[times] = integrate_circles(
                    classes.heavy_q,
                    classes.heavy_decay,
                    m,
                    level,
                    len(self.q),
                    self.t[times],
                    classes.log_radius[times],
                    classes.log_radius_shift[times],
                    classes.odds_power_sums[:, times],
                    values[times],
                    series[:, times],
                )

            thread_for_each(integrate_times, chunks(num_times, _TIMES_PER_CHUNK))
            log_radius = classes.log_radius + classes.log_radius_shift
            max_log_radius = np.abs(log_radius + level)[density > 0.0].max(initial=0.0)
            self.max_exponent = max(self.max_exponent, m * float(max_log_radius))

            circles = Circles(
                weights=weights,
                decay=decay - level,
                log_radius=log_radius,
                point_values=values,
                series=series,
                density=density,
                classes=classes,
            )

        saddles[:] = [*saddles[-2:], log_radius]
        return circles

    def time_quadrature_errors(self) -> tuple[float, float]:
        """Return bounds on two errors of the integral over t: of the step, and of the truncation.

        The step between the nodes causes a relative error, which is bounded for any set (B86). The
        truncation causes an absolute error: the probability, by Chernoff's bounds, that clock m + 1
        (the (m + 1)-th to ring) rings before the first node or after the last.
        """
        step = float(self.t_weights[0, 0])
        num_rings = self._m + 1

        angle = math.atan(2.0 * math.pi / (step * num_rings))  # minimises the bound (B86)
        turn = 2.0 * math.pi * angle / step
        rule_error = (
            2.0 * math.exp(-turn - num_rings * math.log(math.cos(angle))) / -math.expm1(-turn)
        )

        # P(more than m clocks ring before the first node) + P(at most m clocks ring by the last)
        truncation = 0.0
        for k, number, sign in (0, num_rings, 1.0), (-1, self._m, -1.0):
            t = self.t[k]
            log_saddle = _find_saddle(self.q, t, number - 0.5, self._log_radius[k])[0]
            log_radius = max(sign * log_saddle, 0.0) * sign

            with np.errstate(divide="ignore"):
                log_rung = np.log(-np.expm1(-self.q * t))
            log_factors = np.logaddexp(-self.q * t, log_radius + log_rung)
            truncation += math.exp(min(float(log_factors.sum()) - number * log_radius, 0.0))

        return rule_error, (1.0 + step * (num_rings + 1)) * truncation

    def _separate_light_and_heavy(
        self, weights: FloatArray, decay: FloatArray, log_radius: FloatArray
    ) -> _LightAndHeavy:
        """Separate light from heavy classes, and sum the powers of the odds of the light ones.

        The odds are those on the circles of radius exp(`log_radius`), one for each of the T times.
        `weights` (N,) are exp(-`decay`), with the exponent clipped so that they are finite.
        """
        q = self.q
        t = self.t
        radius = np.exp(np.clip(log_radius, -MAX_EXPONENT, MAX_EXPONENT))

        is_heavy = np.zeros(len(q), np.bool_)
        is_heavy[: self._num_always_heavy] = True
        num_powers = np.zeros(-(-len(q) // CLASSES_PER_TILE), np.int64)

        slices = list(chunks(len(q), _CLASSES_PER_CHUNK))
        sums = np.zeros((len(slices), 2, len(t), NUM_POWERS + 1))

        def add_chunk(index: int) -> None:
            chunk = slices[index]
            tiles = num_powers[_tiles_of_slice(chunk)]
            add_light_powers(
                q[chunk], weights[chunk], t, radius, is_heavy[chunk], tiles, sums[index]
            )

        thread_for_each(add_chunk, range(len(slices)))

        power_sums = sums.sum(axis=0)
        log_radius_shift = np.empty(len(t))
        heavy_q = q[is_heavy]
        heavy_decay = decay[is_heavy]

        def find_saddles_at_times(times: slice) -> None:
            find_saddles(
                heavy_q,
                heavy_decay,
                self._m,
                t[times],
                log_radius[times],
                power_sums[:, times],
                log_radius_shift[times],
            )

        thread_for_each(find_saddles_at_times, chunks(len(t), _TIMES_PER_CHUNK))

        return _LightAndHeavy(
            log_radius=log_radius,
            radius=radius,
            log_radius_shift=log_radius_shift,
            odds_power_sums=power_sums,
            is_heavy=is_heavy,
            num_powers=num_powers,
            heavy_q=heavy_q,
            heavy_decay=heavy_decay,
        )


class Circles(NamedTuple):
    """The circles in z through the saddle points at the T times t, and the integrand on them."""

    weights: FloatArray  # (N,) exp(-decay)
    decay: FloatArray  # (N,) u times the weight of each class, minus the m-th smallest product
    log_radius: FloatArray  # (T,)
    point_values: FloatArray  # (T, 6, points) see `integrate_circles`
    series: FloatArray  # (2, T, powers) see `integrate_circles`
    density: FloatArray  # (T,) the integrand over log t, see `integrate_circles`
    classes: _LightAndHeavy


class _LightAndHeavy(NamedTuple):
    """The light classes at the T times t, as sums of powers of their odds, and the heavy classes.

    A tile is a run of `CLASSES_PER_TILE` consecutive classes.
    """

    log_radius: FloatArray  # (T,) of the circles for which the odds were computed
    radius: FloatArray  # (T,) exp(log_radius), clipped
    log_radius_shift: FloatArray  # (T,) log radius of the saddle point minus `log_radius`
    # (2, T, powers) sums, over the light classes, of the powers of their odds: row 0 plain, row 1
    # times q
    odds_power_sums: FloatArray
    is_heavy: NDArray[np.bool_]  # (N,) whether a class is heavy
    num_powers: IntArray  # (tiles,) number of powers of the odds that matter in each tile
    heavy_q: FloatArray  # (H,) q of the heavy classes
    heavy_decay: FloatArray  # (H,) `Circles.decay` of the heavy classes


def _tiles_of_slice(classes: slice) -> slice:
    """Return the slice of tiles that covers a slice of classes."""
    return slice(classes.start // CLASSES_PER_TILE, -(-classes.stop // CLASSES_PER_TILE))


def _extrapolate_saddles(saddles: list[FloatArray]) -> FloatArray:
    """Return the log radii (T,) of the saddle points at the next u, extrapolated from `saddles`.

    The parabola through the last three entries, which are at equal distances in log u, is
    extrapolated. If few classes can be in the set, the integrand is flat at its saddle point, and
    the extrapolation unstable. So the step is limited to `_MAX_LOG_RADIUS_STEP`.
    """
    if len(saddles) < 3:
        return saddles[-1]
    step = 2.0 * saddles[-1] - 3.0 * saddles[-2] + saddles[-3]
    return saddles[-1] + np.clip(step, -_MAX_LOG_RADIUS_STEP, _MAX_LOG_RADIUS_STEP)


# --- the nodes in t ------------------------------------------------------------------------------


def _time_grid(q: FloatArray, m: int) -> tuple[FloatArray, FloatArray, float]:
    """Return nodes t (T,), the log radii (T,) of their saddle points, and the step in log t.

    The nodes cover all times at which clock m + 1 (the (m + 1)-th to ring) may ring, but for those
    of negligible density.
    """
    # bisect for the log t at which m + 1/2 clocks are expected to have rung
    log_low = -math.log(len(q)) - 40.0
    log_high = math.log(60.0) - math.log(q[-1])
    while log_high - log_low > 1e-3:
        middle = 0.5 * (log_low + log_high)
        if _expected_rings(q, math.exp(middle)) < m + 0.5:
            log_low = middle
        else:
            log_high = middle

    step = _MAX_LOG_T_STEP
    while True:
        nodes = {0: _find_saddle(q, math.exp(log_low), m, 0.0)}

        for side in -1, 1:
            k = 0
            while nodes[k][1] > LOG_TRUNCATION:
                log_radius = nodes[k][0]
                if k:
                    log_radius += min(max(log_radius - nodes[k - side][0], -3.0), 3.0)
                k += side
                nodes[k] = _find_saddle(q, math.exp(log_low + k * step), m, log_radius)

        smallest_step = min(
            node[2] for node in nodes.values() if node[1] > _MIN_LOG_DENSITY_OF_STEP
        )
        if smallest_step >= 0.75 * step:
            break
        step = smallest_step

    indices = sorted(nodes)
    t = np.exp(log_low + step * np.array(indices))
    return t, np.array([nodes[k][0] for k in indices]), step


@njit_sum
def _expected_rings(q: FloatArray, t: float) -> float:
    """Return the expected number of clocks that have rung by `t`."""
    total = 0.0
    for j in range(len(q)):
        total -= math.expm1(-q[j] * t)
    return total


@njit
def _find_saddle(
    q: FloatArray, t: float, m: float, log_radius: float
) -> tuple[float, float, float]:
    """Return the log radius of the saddle point at time `t`, a log density, and a step in log t.

    The log density is an upper bound on the log of the density, in log t, of the time at which
    clock m + 1 (the (m + 1)-th to ring) rings. The step is small enough to resolve how the number
    of clocks that have rung grows. `log_radius` is the initial guess of Newton's method.
    """
    low, high = -1e300, 1e300
    value = variance = hazard = 0.0

    # for the number of clocks that have rung, at radius 1 (without tilt): the derivative of its
    # mean in log t, and its variance
    mean_rate = untilted_variance = 0.0

    for _ in range(200):
        radius = math.exp(min(log_radius, MAX_EXPONENT))
        mean = variance = hazard = mean_rate = untilted_variance = 0.0
        value = -m * log_radius

        for j in range(len(q)):
            age = q[j] * t
            unrung_prob = math.exp(-age)
            if age < MAX_EXP_AGE:
                odds = radius * math.expm1(age)
                value += math.log1p(odds) - age
                hit_prob = odds / (1.0 + odds)
            else:
                log_odds = log_radius + age
                hit_prob = 1.0 / (1.0 + math.exp(-log_odds))
                # the log of P(not rung) + r P(rung)
                value += log_radius + math.log1p(math.exp(-log_odds)) if log_odds > 0.0 else -age

            mean += hit_prob
            variance += hit_prob * (1.0 - hit_prob)
            hazard += age * (1.0 - hit_prob)
            mean_rate += age * unrung_prob
            untilted_variance += unrung_prob * (1.0 - unrung_prob)

        if mean > m:
            high = log_radius
        else:
            low = log_radius

        gap = m - mean
        if abs(gap) < 1e-2 * math.sqrt(variance) or high - low < 1e-9 * (1.0 + abs(low)):
            break

        log_radius += gap / variance if abs(gap) < 2.0 * variance else math.copysign(2.0, gap)
        if not low < log_radius < high:
            log_radius = 0.5 * (low + high)

    density = value + (math.log(hazard) if hazard > 0.0 else -1e300)
    rate = 6.0 * mean_rate * mean_rate / (untilted_variance + 1.0)
    return log_radius, density, 1.0 / math.sqrt(35.0 + rate)
