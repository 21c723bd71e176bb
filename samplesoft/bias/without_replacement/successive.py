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
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, njit_sum, thread_each
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.inputs import Example
from samplesoft.bias.numerics.quadrature import ExampleBias, estimate_error, rounding_at
from samplesoft.bias.numerics.summation import EPS, LARGEST_FLOAT, softmax_apart
from samplesoft.samplers.without_replacement import SuccessiveInclusion
from samplesoft.schemes import Scheme

_LIGHT = 0.15  # odds, below which a class is light
_POWERS = 27  # of odds up to 0.2: the next one is 1e-19 of them
_FARTHEST = 0.28  # from log r to where the odds were summed, and they are 0.2 at most
_TINY = -44.0  # log of what is left out
_PROBABLE = -12.0  # and of what decides the step
_STEP = 0.2  # in log u: the error falls as exp(-pi**2 / step)
_TIME_STEP = 0.17  # in log t, at most
_LEFT = -3.6  # log u = z - exp(-z) has fallen by 40 here
_BEFORE = 1.5  # from z = 0 to where the largest sums begin to count
_GROWN = 30.0  # q t: above it exp(q t) is not formed
_SMALL = 0.03  # q t: below it exp(q t) - 1 is a series
_TILE = 256
_CLASS_CHUNK = 1 << 14
_TIME_CHUNK = 4
_HEAVY_CHUNK = 256
_POINTS = 40  # of a half circle; at most 32 matter, where the variance of the number is 22
_NOTHING = 1e-20
_MOST_GUESSES = 1000
_LONGEST = 0.5
_LARGEST = 690.0  # of an exponent
_FLAT = -42.0  # log of u w: below it exp(-u w) is 1
_GONE = 6.7  # and above it 0
_SETTLED = 40.0  # from where nodes stand at equal distances, and have the same weights
_APART = 60.0  # nats, beyond which of two terms one does not matter
_COUNTED = 1e14  # nats: of a longer stretch nodes are not counted
_SEEN = 1e-9  # inclusion probabilities below it are taken from `SuccessiveInclusion`

Strata = tuple[Sequence[int], IntArray]


def set_bias(
    example: Example, num_sampled: int, scheme: Scheme, correction: FloatArray | None = None
) -> ExampleBias:
    """Return the exact bias of one example whose draws are a set of distinct classes.

    `correction` (n,) takes the place of the inclusion probabilities.
    """
    return strata_bias(example, _one_stratum(example, num_sampled), scheme, correction)


def draws_of(
    example: Example, num_sampled: int, scheme: Scheme
) -> tuple[StratumDistribution, IntArray]:
    """Return what draws the set of one example, and the classes that it draws from."""
    ((group, which),) = _drawing(example, _one_stratum(example, num_sampled), scheme)
    return group, which


def _one_stratum(example: Example, num_sampled: int) -> Strata:
    return (num_sampled,), np.zeros(len(example[2]), np.int64)


def strata_bias(
    example: Example, strata: Strata, scheme: Scheme, correction: FloatArray | None
) -> ExampleBias:
    """Return the same for draws from strata: how many in each, and the stratum of each class (n,).

    With replacement a class is divided by how often it is drawn, as the mean.
    """
    logits, label, _ = example
    return set_row(logits, label, scheme, _drawing(example, strata, scheme), correction)


def _drawing(
    example: Example, strata: Strata, scheme: Scheme
) -> list[tuple[StratumDistribution, IntArray]]:
    """Return the group that draws in each stratum, and the classes that it draws from."""
    _, label, q = example
    drawn = q > 0.0
    if scheme.excludes_label:
        drawn[label] = False
    counts, stratum = strata
    drawing: list[tuple[StratumDistribution, IntArray]] = []
    for g, count in enumerate(counts):
        which = np.flatnonzero(drawn & (stratum == g))
        if count and len(which):
            drawing.append((_group(q[which], count, scheme), which))
    return drawing


_FEW_DIGITS = 1e-290  # a probability below may have fewer digits than floats have
_RARE = 1e-22  # how often a term is in the sum, from where on it moves no digit of a distribution


class Terms(NamedTuple):
    """The terms exp(logit) / divisor of a sum: near each other, or apart by any number of nats."""

    logits: FloatArray  # (k,)
    log_divisors: FloatArray  # (k,) infinite where there is no term
    often: FloatArray  # (k,) how often each is in the sum, as the mean

    def above(self, origin: int) -> FloatArray:
        """Return the logs of the terms over the one of number `origin`, (k,).

        Logits are subtracted as they were given: a log of either term would have lost the digits of
        their difference where both are far below another term.
        """
        divisors = self.log_divisors
        # nothing to draw there: the infinity may be in both
        apart = np.where(divisors < np.inf, divisors - divisors[origin], np.inf)
        with np.errstate(over="ignore"):
            away = np.clip(self.logits - self.logits[origin], -LARGEST_FLOAT, LARGEST_FLOAT)
        logs: FloatArray = away - apart
        return logs

    @property
    def top(self) -> int:
        """The number of the term that logs are measured from: the largest logit that is not rare.

        From one that is hardly ever in the sum, all others could be at the same distance.
        """
        there = self.log_divisors < np.inf
        seen = there & (self.often > _RARE)
        return int(np.where(seen if seen.any() else there, self.logits, -np.inf).argmax())

    @property
    def logs(self) -> FloatArray:
        """The logs of the terms over exp of the logit on top, (k,); -inf where there is none."""
        with np.errstate(over="ignore"):
            away = np.clip(self.logits - self.logits[self.top], -LARGEST_FLOAT, LARGEST_FLOAT)
        logs: FloatArray = away - self.log_divisors
        return logs

    @property
    def largest_log(self) -> float:
        """The largest size of the numbers that a log is the sum of, of terms near each other.

        Two terms that are not near have shares in no sum that the error of their distance moves.
        """
        kept = np.flatnonzero(self.log_divisors < np.inf)
        logits, divisors = self.logits[kept], np.abs(self.log_divisors[kept])
        order = np.argsort(self.logs[kept])
        logits, logs = logits[order], self.logs[kept][order]
        starts = np.flatnonzero(np.append(True, np.diff(logs) > _APART))
        with np.errstate(over="ignore"):
            spans = np.maximum.reduceat(logits, starts) - np.minimum.reduceat(logits, starts)
        return float(spans.max() + divisors.max())


class Weights(NamedTuple):
    """What S is made of where each class is divided by a number of its own."""

    log_probs: FloatArray  # (n,)
    probs: FloatArray  # (n,)
    logits: FloatArray  # (n,) as given
    log_divisors: FloatArray  # (n,) of a draw, infinite where it has no weight
    label: int
    shift: float  # log of what the label is divided by, drawn or not; infinite where it is not in S

    def terms(self, which: IntArray, often: FloatArray) -> Terms:
        """Return the terms of draws of some classes (k,), and behind them that of the label.

        The classes are drawn as `often` (k,), as the mean.
        """
        every, divisors = np.append(which, self.label), self.log_divisors[which]
        return Terms(self.logits[every], np.append(divisors, self.shift), np.append(often, 1.0))


def weigh(logits: FloatArray, label: int, scheme: Scheme, divisors: FloatArray) -> Weights:
    """Return the weights of draws of each class, divided by `divisors` (n,), and of the label."""
    log_probs, probs, _ = softmax_apart(logits, label)
    with np.errstate(divide="ignore"):
        log_divisors = np.log(divisors)
    shift = float(log_divisors[label]) if scheme.corrects_label else 0.0
    if not scheme.label_in_sum:
        shift = np.inf
    if not scheme.draws_label:
        log_divisors[label] = np.inf
    return Weights(log_probs, probs, logits, log_divisors, label, shift)


def set_row(
    logits: FloatArray,
    label: int,
    scheme: Scheme,
    drawing: list[tuple[StratumDistribution, IntArray]],
    correction: FloatArray | None,
) -> ExampleBias:
    """Return the exact bias of one example where groups draw, each from the classes beside it."""
    inclusion = np.zeros((2, len(logits)))
    for group, which in drawing:
        inclusion[:, which] = group.inclusion
    divisors = inclusion[0] if correction is None else correction
    every = np.concatenate([*(which for _, which in drawing), np.empty(0, np.int64)])
    if all(isinstance(group, DrawAll) for group, _ in drawing):
        return _certain_row(logits, label, scheme, every, divisors)._replace(inclusion=inclusion[0])
    weights = weigh(logits, label, scheme, divisors)
    terms, probs = weights.terms(every, inclusion[0, every]), weights.probs
    sums = expect_terms([group for group, _ in drawing], terms)
    expected = np.zeros((3, len(probs)))
    expected[:, every] = sums.shares
    expected[:, label] += sums.base
    # all have the error by which they do not add up to 1
    total = expected.sum(axis=1, keepdims=True)
    expected /= total
    bias = expected[0] - probs
    unit, norm = rounding_at(terms.largest_log), float(np.abs(bias).sum())
    error = unit * (1.0 + norm) + 2.0 * abs(float(total[0, 0]) - 1.0)
    # log S is measured from the largest logit in S
    shift = float(weights.log_probs[np.append(every, label)[terms.top]])
    if scheme.corrects_label:
        shift += weights.shift
    loss_error = unit * (1.0 + sums.log_size) + sums.log_noise + EPS * abs(shift)
    changes = [np.abs(expected[i] - expected[0]).sum() for i in (1, 2)]
    if correction is None:
        moved = np.abs(inclusion[1, every] / inclusion[0, every] - 1.0)
        changes.append((probs[every] * moved).sum())
    for change in changes:
        error += estimate_error(float(change), 0.0, 1.0, 0.0)
    for coarse in sums.log_sum[1:]:
        loss_error += estimate_error(abs(float(coarse - sums.log_sum[0])), 0.0, 1.0, 0.0)
    # what sets without the largest term are off by in their probability, however rare they are,
    # their loss has as often as it is nats away
    loss_error += min(error, 2.0) * _range(logits, terms)
    loss_bias = float(sums.log_sum[0]) + shift
    # nor can two distributions be further apart
    return ExampleBias(bias, probs, loss_bias, min(error, 2.0), float(loss_error), inclusion[0])


def _range(logits: FloatArray, terms: Terms) -> float:
    """Return how far the least term lies below the largest of all logits; inf beyond floats."""
    least = float(terms.logits[terms.log_divisors < np.inf].min())
    return float(logits.max()) - least


def _certain_row(
    logits: FloatArray, label: int, scheme: Scheme, every: IntArray, divisors: FloatArray
) -> ExampleBias:
    """Return the exact bias of one example where all classes of `every` are drawn for certain.

    p' is the softmax of other logits, ``o_j - log c_j`` with the number c_j of `divisors` (n,), and
    without the classes that are not drawn.
    """
    log_probs, probs, _ = softmax_apart(logits, label)
    there = np.zeros(len(probs), np.bool_)
    there[every] = True
    there[label] = scheme.label_in_sum or (there[label] and scheme.draws_label)
    own, of_loss = divisors.copy(), float(divisors[label]) if scheme.corrects_label else 1.0
    if not scheme.corrects_label and scheme.label_in_sum:
        own[label] = 1.0
    elif scheme.label_is_a_draw and label in every:
        own[label] *= 0.5  # it is in S twice
    # Measured from the likeliest class h of S, whose own bias would be a difference of equal
    # numbers: with d_j = c_h / c_j - 1, as a quotient of a difference, and D its mean under p, the
    # bias is p_j (d_j - D) / (1 + D). Where D is far from 0 nothing cancels in p' - p.
    h = int(np.where(there, logits, -np.inf).argmax())
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        apart = np.where(there, (own[h] - own) / own, -1.0)
        parts = probs * apart
        # the least floats have few digits, and a tiny divisor may leave much of them
        tiny = (probs < _FEW_DIGITS) & np.isfinite(apart)
        parts[tiny] = np.sign(apart[tiny]) * np.exp(log_probs[tiny] + np.log(np.abs(apart[tiny])))
        gain = float(parts.sum())
    log_own = np.where(there, np.log(np.where(there, own, 1.0)), np.inf)
    terms = Terms(logits, log_own, np.ones(len(logits)))
    unit = rounding_at(terms.largest_log)
    if abs(gain) < 0.5:
        sizes = np.abs(parts)
        # of p, of the quotients, and of their mean
        off = 2.0 * (rounding_at(0.0) * sizes + EPS * sizes * np.abs(np.maximum(log_probs, -1e4)))
        rounding = 2.0 * float(off.sum()) / (1.0 + gain)
        bias = np.where(tiny, parts - probs * gain, probs * (apart - gain)) / (1.0 + gain)
        log_sum = math.log1p(gain)
        error = loss_error = rounding
    else:
        logs = terms.above(h)
        largest = float(logs.max())
        masses = np.exp(logs - largest)
        total = float(masses.sum())
        bias = masses / total - probs
        log_sum = float(log_probs[h]) + largest + math.log(total)
        error = unit * float(np.abs(bias).sum() + 1.0)
        loss_error = unit + EPS * (abs(float(log_probs[h])) + abs(largest))
    # log S - log c_t, or log S
    ratio = (of_loss - own[h]) / own[h]
    near = abs(ratio) < 0.5
    log_ratio = math.log1p(ratio) if near else math.log(of_loss) - math.log(own[h])
    loss_error += 2.0 * EPS * (abs(log_ratio) + abs(log_sum))
    if not near:
        loss_error += EPS * (abs(math.log(of_loss)) + abs(math.log(own[h])))
    if math.isinf(_range(logits, terms)):
        loss_error = math.inf
    return ExampleBias(bias, probs, log_sum + log_ratio, min(error, 2.0), loss_error)


def _group(q: FloatArray, count: int, scheme: Scheme) -> StratumDistribution:
    if not scheme.distinct:
        return Draws(q, count)
    return ExponentialRace(q, count) if count < len(q) else DrawAll(q)


class Sums(NamedTuple):
    """Expectations over the sets: first by all nodes, then by half of those in u, and in t."""

    shares: FloatArray  # (3, N) E[w_k I_k / S]
    base: FloatArray  # (3,) E[base / S]
    log_sum: FloatArray  # (3,) E[log S], S measured from the largest logit of its terms
    log_noise: float  # rounding error of that
    log_size: float  # and the size of what it is made of


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
        self._always = int(np.searchsorted(-self.q, -_GROWN / self.t[-1]))
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
            _light_rings(*here, orders, circles.series, scale, rings[:, part])

        def ring_heavy(part: slice) -> None:
            here = powers.few[0][part], powers.few[1][part], t, circles.log_r
            _heavy_rings(*here, circles.values, scale, own[:, part])

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
        if level <= _LARGEST:
            weights = np.exp(np.minimum(level - decay, _LARGEST))
            powers = self._powers(weights, decay - level, log_r)
            for _ in range(_MOST_GUESSES):
                if np.abs(powers.shift).max() <= _FARTHEST:
                    break
                powers = self._powers(weights, decay - level, powers.log_r + powers.shift)
            # terms of the circle at each time, and the sums of them that light classes need
            values = np.zeros((len(t), 6, _POINTS))
            series, density = np.zeros((2, len(t), _POWERS + 1)), np.empty(len(t))

            def integrate(part: slice) -> None:
                at = t[part], powers.log_r[part], powers.shift[part], powers.sums[:, part]
                to = values[part], series[:, part]
                density[part] = _circles(*powers.few, m, level, len(q), *at, *to)

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
        r = np.exp(np.clip(log_r, -_LARGEST, _LARGEST))
        heavy = np.zeros(len(q), np.bool_)
        heavy[: self._always] = True
        orders = np.zeros(-(-len(q) // _TILE), np.int64)
        parts = list(chunks(len(q), _CLASS_CHUNK))
        sums = np.zeros((len(parts), 2, len(t), _POWERS + 1))

        def add(number: int) -> None:
            part = parts[number]
            here = q[part], weights[part], t, r
            _add_light(*here, heavy[part], orders[_tiles(part)], sums[number])

        thread_each(add, range(len(parts)))
        total, few, shift = sums.sum(axis=0), (q[heavy], decay[heavy]), np.empty(len(t))

        def centre(part: slice) -> None:
            at = t[part], log_r[part], total[:, part]
            _recentre(*few, self._m, *at, shift[part])

        thread_each(centre, chunks(len(t), _TIME_CHUNK))
        return _Powers(log_r, r, shift, total, heavy, orders, few)


class Circles(NamedTuple):
    """Circles through the saddle points at times t, (T,), and what stands on their points."""

    weights: FloatArray  # (N,) exp(-decay)
    decay: FloatArray  # (N,) less that of the m-th class to decay
    log_r: FloatArray  # (T,)
    values: FloatArray  # (T, 6, points) see `_circles`
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
    return slice(part.start // _TILE, -(-part.stop // _TILE))


class Draws:
    """The same for m draws with replacement by `q` (N,)."""

    def __init__(self, q: FloatArray, m: int) -> None:
        self._q, self._m = q / q.sum(), m
        self.inclusion = np.stack([m * self._q] * 2)  # how often they are drawn, as the mean
        self.noise = (8.0 + m) * EPS

    def at(self, decay: FloatArray, past: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return what `ExponentialRace.at` does; a class counts as often as it is drawn."""
        one = self._q * np.exp(-decay)
        total = float(one.sum())
        return np.full(2, total**self._m), np.stack([self._m * one * total ** (self._m - 1)] * 2)


class DrawAll:
    """The same where all N classes are drawn."""

    def __init__(self, q: FloatArray) -> None:
        self.inclusion, self.noise = np.ones((2, len(q))), 8.0 * EPS

    def at(self, decay: FloatArray, past: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return what `ExponentialRace.at` does."""
        every = math.exp(-float(decay.sum()))
        return np.full(2, every), np.full((2, len(decay)), every)


class StratumDistribution(Protocol):
    """A distribution over the draws of a stratum; see `ExponentialRace`."""

    inclusion: FloatArray
    noise: float

    def at(self, decay: FloatArray, past: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return what `ExponentialRace.at` does."""


def expect(
    groups: Sequence[StratumDistribution],
    log_w: list[FloatArray],
    log_base: float,
    rule: Rule | None = None,
) -> Sums:
    """Return expectations where S is a base and the weights of what independent groups draw.

    `log_w` (N,) are those of the classes of each group; `rule` is `steps`, or `even_steps`. Of the
    logs of S these are the ones.
    """
    logs = np.concatenate([*log_w, [log_base]])
    there = logs > -np.inf
    often = np.append(np.concatenate([group.inclusion[0] for group in groups]), 1.0)
    terms = Terms(np.where(there, logs, 0.0), np.where(there, 0.0, np.inf), often)
    sums = expect_terms(groups, terms, rule)
    return sums._replace(log_sum=sums.log_sum + float(terms.logits[terms.top]))


def expect_terms(
    groups: Sequence[StratumDistribution], terms: Terms, rule: Rule | None = None
) -> Sums:
    """Return the same for the `terms` of the classes of all groups, and that of the base."""
    edges = np.cumsum([0, *(len(group.inclusion[0]) for group in groups)])
    parts = [slice(*pair) for pair in zip(edges[:-1], edges[1:], strict=True)]
    reference, log_scale = scales_of_sum(terms)
    shares, base, log_sum = np.zeros((3, edges[-1])), np.zeros(3), np.full(3, reference)
    log_noise, noise = abs(reference) * EPS, sum(group.noise for group in groups)
    log_size = abs(reference)
    past: list[list[FloatArray]] = [[] for _ in groups]
    survival, left = np.ones(2), 2
    for node in nodes_of(terms, reference, log_scale, rule or steps):
        rings, of_base, (weight, even, _) = np.zeros((2, edges[-1])), np.zeros(2), node.weights
        if changes(node.log_decay):
            decay = np.exp(np.minimum(node.log_decay, _LARGEST))
            pairs = zip(groups, parts, past, strict=True)
            found = [group.at(decay[part], before) for group, part, before in pairs]
            survival = np.full(2, math.exp(-decay[-1]))
            for one, _ in found:
                survival = survival * one
            for g, part in enumerate(parts):
                rest = np.full(2, math.exp(-decay[-1]))
                for h, (one, _) in enumerate(found):
                    rest *= one if h != g else 1.0
                rings[:, part] = found[g][1] * rest[:, None]
            rings *= decay[:-1]
            of_base = decay[-1] * survival
        fall = math.exp(-math.exp(min(node.log_mean, _LARGEST))) - survival
        log_noise += weight * noise * survival[0]
        log_size += weight * abs(float(fall[0]))
        for total, one in (shares, rings), (base, of_base), (log_sum, fall):
            total[0] += weight * one[0]
            total[1] += even * one[0]
            total[2] += weight * one[1]
        # one node more than the last, for half of the nodes
        left = left - 1 if survival[0] < _NOTHING and node.log_mean > 4.0 else 2
        if not left:
            break
    return Sums(shares, base, log_sum, log_noise, log_size)


def scales_of_sum(terms: Terms) -> tuple[float, float]:
    """Return log E[S], and where the nodes in log u begin, less `_LEFT`."""
    logs = terms.logs
    some = (terms.often > _RARE) & (logs > -np.inf)
    top = float(logs[some].max())
    reference = top + math.log(float((terms.often[some] * np.exp(logs[some] - top)).sum()))
    return reference, max(top, reference) + _BEFORE


class Node(NamedTuple):
    """A node in log u, or a stretch of them on which nothing changes."""

    log_decay: FloatArray  # (k,) log of u times each term
    log_mean: float  # and of u times the mean of S
    weights: FloatArray  # (3,) of all nodes, of half of them, and of all


Rule = Callable[[int], tuple[float, FloatArray]]


def steps(number: int) -> tuple[float, FloatArray]:
    """Return log u of a node (B24) of that number, less where they begin, and weights (3,)."""
    z = _LEFT + number * _STEP
    early = math.exp(-z)
    weight = _STEP * (1.0 + early)
    even = 2.0 * weight if number % 2 == 0 else 0.0
    return z - early, np.array([weight, even, weight])


def even_steps(number: int) -> tuple[float, FloatArray]:
    """Return the same at equal distances, whose error (B79) is proved."""
    return number * _STEP + _TINY, np.array([_STEP, 0.0, _STEP])


def nodes_of(terms: Terms, reference: float, log_scale: float, rule: Rule) -> Iterator[Node]:
    """Yield nodes in log u without end, for a sum of `terms` and a mean of log `reference`.

    Terms of scales that are far apart change exp(-u S) one after the other. Between them it is
    constant, and all nodes there are one of their weights added up: time does not grow with the
    distance. Behind them distances are measured from the next term, for log u has no digits left.
    """
    logs = terms.logs
    near_mean = int(np.abs(logs - reference).argmin())
    above_that = reference - float(logs[near_mean])
    logs, start, number = logs - log_scale, 0.0, 0
    while True:
        x, weights = rule(number)
        log_decay = logs + (x - start)
        log_mean = float(log_decay[near_mean]) + above_that
        yield Node(log_decay, log_mean, weights)
        number += 1
        ahead, mean_is_ahead = log_decay <= _FLAT, log_mean <= _FLAT
        ahead &= log_decay > -np.inf
        if x < _SETTLED or changes(np.append(log_decay, log_mean)) or not ahead.any():
            continue
        next_log = max(float(log_decay[ahead].max()), log_mean if mean_is_ahead else -np.inf)
        distance = min(_FLAT - next_log, LARGEST_FLOAT)
        if distance <= 2.0 * _STEP:
            continue
        skipped = distance
        if distance < _COUNTED:  # as many pairs of nodes as there are
            skipped = 2.0 * _STEP * math.floor(0.5 * distance / _STEP)
        both = weights + rule(number)[1]
        yield Node(log_decay, log_mean, both * (0.5 / _STEP) * skipped)
        logs, start = _from_next(terms, log_decay, ahead), x
        next_log = float(logs[ahead].max())
        if mean_is_ahead:
            next_log = max(next_log, float(logs[near_mean]) + above_that)
        logs += _FLAT - (distance - skipped) - next_log


def _from_next(terms: Terms, log_decay: FloatArray, ahead: NDArray[np.bool_]) -> FloatArray:
    """Return the logs of all terms over the largest of those `ahead`."""
    origin = int(np.where(ahead, log_decay, -np.inf).argmax())
    logs = terms.above(origin)
    # of logits so far away that their distances are the same number there may be a larger one
    better = int(np.where(ahead, logs, -np.inf).argmax())
    return logs if better == origin else terms.above(better)


def changes(log_decay: FloatArray) -> bool:
    """Whether exp(-u S) changes with u; between scales of S that are far apart it does not."""
    return bool(((log_decay > _FLAT) & (log_decay < _GONE)).any())


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
            while nodes[k][1] > _TINY:
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
def log_growth(age: float) -> float:
    """Return log (exp(age) - 1), the log odds that a clock has rung at that age."""
    if age < _GROWN:
        return math.log(math.expm1(age))
    return age + math.log1p(-math.exp(-age))


@njit
def probabilities_of(log_odds: float) -> tuple[float, float]:
    """Return the probabilities, by its log odds, that a clock has rung, and that it has not."""
    rung = 1.0 / (1.0 + math.exp(-log_odds))
    return rung, math.exp(-log_odds) * rung if log_odds > 0.0 else 1.0 - rung


@njit
def _saddle(q: FloatArray, t: float, m: float, log_r: float) -> tuple[float, float, float]:
    """Return log r of the circle at `t`, a bound of the log density of the next ring, and a step.

    The step in log t follows the distribution of the number of rings. `log_r` is a guess.
    """
    low, high, variance, hazard, slope, free = -1e300, 1e300, 0.0, 0.0, 0.0, 0.0
    value = 0.0
    for _ in range(200):
        r = math.exp(min(log_r, _LARGEST))
        mean = variance = hazard = slope = free = 0.0
        value = -m * log_r
        for j in range(len(q)):
            age = q[j] * t
            silent = math.exp(-age)
            if age < _GROWN:
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


# --- one u: classes and circles ----------------------------------------------------------------


@njit
def _odds(
    q: FloatArray, weights: FloatArray, start: int, size: int, t: float, r: float, out: FloatArray
) -> None:
    """Write the odds r (exp(q t) - 1) w of a tile, whose first class has the largest q."""
    if q[start] * t < _SMALL:
        for i in range(size):
            x = q[start + i] * t
            tail = 1.0 / 24.0 + x * (1.0 / 120.0 + x * (1.0 / 720.0 + x / 5040.0))
            growth = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * tail)))
            out[i] = r * growth * weights[start + i]
    else:
        for i in range(size):
            age = min(q[start + i] * t, 2.0 * _GROWN)  # of those above no use is made
            out[i] = r * math.expm1(age) * weights[start + i]


@njit
def _powers_of(largest: float) -> int:
    """Return how many powers of odds up to `largest` matter."""
    if largest <= 0.0:
        return 1
    return min(_POWERS, 1 + int(_TINY / math.log(largest)))


@njit
def _add_light(
    q: FloatArray,
    weights: FloatArray,
    t: FloatArray,
    r: FloatArray,
    heavy: NDArray[np.bool_],
    orders: IntArray,
    sums: FloatArray,
) -> None:
    """Add the powers of the odds of light classes to `sums` (2, T, powers), plain and times q.

    The others are marked as heavy.
    """
    odds, highest = np.empty((len(t), _TILE)), np.empty(_TILE)
    power, times_q = np.empty(_TILE), np.empty(_TILE)
    for start in range(0, len(q), _TILE):
        size = min(_TILE, len(q) - start)
        highest[:size] = 0.0
        for k in range(len(t)):
            _odds(q, weights, start, size, t[k], r[k], odds[k])
            for i in range(size):
                highest[i] = max(highest[i], odds[k, i])
        largest = 0.0
        for i in range(size):
            if heavy[start + i] or not highest[i] <= _LIGHT:
                heavy[start + i] = True
                times_q[i] = 0.0
                for k in range(len(t)):
                    odds[k, i] = 0.0
            else:
                times_q[i] = q[start + i]
                largest = max(largest, highest[i])
        orders[start // _TILE] = top = _powers_of(largest)
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
    """Return the sum of the first `size` of `values`, and of them times `weights`."""
    total = weighted = 0.0
    for i in range(size):
        total += values[i]
        weighted += values[i] * weights[i]
    return total, weighted


@njit
def _recentre(
    q: FloatArray,
    decay: FloatArray,
    m: int,
    t: FloatArray,
    log_r: FloatArray,
    sums: FloatArray,
    shift: FloatArray,
) -> None:
    """Write how far the saddle points (T,) are from `log_r`.

    `q` and `decay` are those of heavy classes.
    """
    log_odds = np.empty(len(q))
    for k in range(len(t)):
        for j in range(len(q)):
            log_odds[j] = log_r[k] + log_growth(q[j] * t[k]) - decay[j]
        x, low, high = 0.0, -np.inf, np.inf
        for _ in range(100):
            mean = variance = 0.0
            rho, power = math.exp(x), 1.0
            for i in range(1, _POWERS + 1):
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
            if abs(x) > 2.0 * _FARTHEST:  # beyond what the powers are good for
                break
            if not low < x < high:
                x = 0.5 * (low + high)
        shift[k] = x


@njit
def _circles(
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
        for i in range(1, _POWERS + 1):
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
        if height < -_LARGEST:
            continue
        full = min(num_classes + 1, int(10.0 * math.sqrt(variance) + 14.0)) | 1
        step = 2.0 * math.pi / full
        points = 1
        while points <= full // 2 and variance * (1.0 - math.cos(points * step)) < -_TINY:
            points += 1
        x, y, real, imag, rate, rate_y = values[k]
        for s in range(points):
            x[s], y[s] = math.cos(s * step), math.sin(s * step)
            # the light classes: log of the product, and the hazard
            a = b = c = d = 0.0
            for i in range(_POWERS, 0, -1):
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
            for i in range(1, _POWERS + 1):
                u, v = u * x[s] - v * y[s], u * y[s] + v * x[s]
                a, b = a * x[s] - b * y[s], a * y[s] + b * x[s]
                scale *= rho
                sign = scale if i % 2 else -scale
                series[0, k, i] += sign * a
                series[1, k, i] += sign * i * u
    return density


@njit
def _light_rings(
    q: FloatArray,
    weights: FloatArray,
    t: FloatArray,
    r: FloatArray,
    heavy: NDArray[np.bool_],
    orders: IntArray,
    series: FloatArray,
    scale: FloatArray,
    rings: FloatArray,
) -> None:
    """Write what light classes in the set have, `rings` (2, n), by the weights `scale` (2, T)."""
    odds, value = np.empty(_TILE), np.empty(_TILE)
    for start in range(0, len(q), _TILE):
        size = min(_TILE, len(q) - start)
        for k in range(len(t)):
            _odds(q, weights, start, size, t[k], r[k], odds)
            for i in range(size):
                odds[i] = 0.0 if heavy[start + i] else odds[i]
                value[i] = 0.0
            for j in range(orders[start // _TILE], 0, -1):
                c, d = series[0, k, j], series[1, k, j]
                for i in range(size):
                    value[i] = (value[i] + c - d * q[start + i]) * odds[i]
            for i in range(size):
                rings[0, start + i] += scale[0, k] * value[i]
                rings[1, start + i] += scale[1, k] * value[i]


@njit
def _heavy_rings(
    q: FloatArray,
    decay: FloatArray,
    t: FloatArray,
    log_r: FloatArray,
    values: FloatArray,
    scale: FloatArray,
    rings: FloatArray,
) -> None:
    """Write what heavy classes in the set have, `rings` (2, n), by the weights `scale` (2, T)."""
    for k in range(len(t)):
        x, y, real, imag, rate, rate_y = values[k]
        points = 0
        while points < _POINTS and x[points] * x[points] + y[points] * y[points] > 0.5:
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
            rings[0, j] += scale[0, k] * total
            rings[1, j] += scale[1, k] * total
