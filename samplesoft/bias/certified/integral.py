"""The means of 1 / S and log S in balls, by a trapezoid rule whose error is known beforehand.

For all numbers s, c > 0 and the nodes v_k = exp(h k), for all integers k, (B87) says

    h sum_k v_k exp(-v_k s) = (1 + eps) / s,                  |eps| <= 2 sum_l |Gamma(1 + i y_l)|,
    h sum_k (exp(-v_k c) - exp(-v_k s)) = log(s / c) + eps',  |eps'| <= 4 sum_l |Gamma(i y_l)|,

with y_l = 2 pi l / h and l = 1, 2, ...: section 24 of ``samplesoft/bias/README.md``. These bounds
do not depend on s. So they hold for the mean over any distribution of S > 0, and the mean of
exp(-v S) is a product over independent draws, (B3). What is left is a sum of exponentials, of which
all but finitely many terms are bounded:

- Left of the first node, each function G of v is replaced by its power series. G is a mean of
  exponentials exp(-v s) with weights and rates s of at least 0. So the error of the first J terms
  of the series lies between 0 and the term of v^J.
- Right of the last node V, G(v) <= G(V) exp(-(v - V) s_low) if S is never below s_low. So the sum
  there is at most a geometric series.

With N draws, S is the base mass plus the mean of N ratios, and v stands for u / N: the sum N S has
the rate v. N may be random.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain
from typing import Any

from samplesoft._executors import run_tasks
from samplesoft._jit import chunks
from samplesoft._memory import require_bytes
from samplesoft.bias.certified.balls import (
    NUM_TERMS,
    Ball,
    BallOrSeries,
    working_precision,
)

_MAX_SECONDS = 3600.0  # longest estimated time on one core
_SECONDS_PER_DECAY = 1.5e-6  # for one exponential and its sums, at some hundred bits
_SECONDS_PER_NODE = 20e-6
_BYTES_PER_NODE = 1200
_BITS_OF_DOUBLE_TIME = 512  # bits at which that takes twice as long
_GROUPS_PER_TASK = 256
_LOG_2 = math.log(2.0)


@dataclass(frozen=True)
class Group:
    """Classes with the same logit and the same probability, which have the same bias.

    Attributes
    ----------
    size : int
        Number of these classes.
    mass : Ball
        Softmax probability e_j of each of them.
    prob : Ball
        Probability that a draw is one given class of them; with Poisson sampling, the probability
        that it is included.
    ratio : Ball
        ``mass / prob``, the r_j of (B1).
    """

    size: int
    mass: Ball
    prob: Ball
    ratio: Ball

    def decay(self, v: BallOrSeries) -> BallOrSeries:
        """Return ``exp(-v ratio)``."""
        return (v * -self.ratio).exp()


@dataclass(frozen=True)
class Replacement:
    """N independent draws: S is `base` plus the mean ratio of the draws, and v = u / N.

    N is `num_draws`; or, if only the fraction `accepted` of the draws counts, their random number.
    All means are over the outcomes with N >= 1. The variable of the functions is v, or the power
    series of v. Their values are at v, or power series in v.
    """

    base: Ball
    num_draws: int
    weightless: Ball  # probability of a draw that adds nothing to S
    accepted: Ball | None = None

    @property
    def min_count(self) -> int:
        """Smallest N."""
        return self.num_draws if self.accepted is None else 1

    def total_of(self, groups: list[Group], v: BallOrSeries) -> BallOrSeries:
        """Return the part of some groups in the Laplace transform T(v) of a draw."""
        return sum(group.decay(v) * (group.prob * group.size) for group in groups)

    def join(self, totals: Iterable[BallOrSeries]) -> BallOrSeries:
        """Return T(v), given the parts of all groups."""
        return sum(totals, start=self.weightless)

    def transform(self, v: BallOrSeries, total: BallOrSeries) -> BallOrSeries:
        """Return the mean of ``exp(-v N S)``, (B3) and (B10)."""
        return self._mean_power((v * -self.base).exp() * total)

    def reference(self, v: BallOrSeries, scale: Ball) -> BallOrSeries:
        """Return the mean of ``exp(-v N scale)``; log (S / scale) is log (N S) - log (N scale)."""
        return self._mean_power((v * -scale).exp())

    def _mean_power(self, theta: BallOrSeries) -> BallOrSeries:
        """Return the mean of ``theta^N``."""
        if self.accepted is None:
            return theta**self.num_draws
        rejected = 1 - self.accepted
        power = (theta * self.accepted + rejected) ** self.num_draws
        return power - rejected**self.num_draws

    def weight(self, v: BallOrSeries, total: BallOrSeries) -> BallOrSeries:
        """Return what the functions of all classes have in common: the E of (B4) over theta / B."""
        decay = (v * -self.base).exp()
        factor = decay * total
        if self.accepted is None:
            return decay * factor ** (self.num_draws - 1) * self.num_draws
        factor = factor * self.accepted + (1 - self.accepted)
        return decay * factor ** (self.num_draws - 1) * (self.accepted * self.num_draws)

    def of_base(self, weight: BallOrSeries, total: BallOrSeries) -> BallOrSeries:
        """Return the function whose integral is the mean of 1 / S."""
        return weight * total

    def of_class(self, group: Group, weight: BallOrSeries, decay: BallOrSeries) -> BallOrSeries:
        """Return the function whose integral is the mean of 1 / S, given a draw of the class."""
        return weight * decay


@dataclass(frozen=True)
class Poisson:
    """Each class is in S or not, independently: S is `base` plus the ratios of those in it."""

    base: Ball
    weightless = 1  # S may be the base alone
    min_count = 1

    def total_of(self, groups: list[Group], v: BallOrSeries) -> BallOrSeries:
        """Return the factors of some groups in the mean of ``exp(-v (S - base))``, (B26)."""
        return math.prod(_included_or_not(group, group.decay(v)) ** group.size for group in groups)

    def join(self, totals: Iterable[BallOrSeries]) -> BallOrSeries:
        """Return the mean of ``exp(-v (S - base))``, given the factors of all groups."""
        return math.prod(totals)

    def transform(self, v: BallOrSeries, total: BallOrSeries) -> BallOrSeries:
        """Return the mean of ``exp(-v S)``."""
        return (v * -self.base).exp() * total

    def reference(self, v: BallOrSeries, scale: Ball) -> BallOrSeries:
        """Return ``exp(-v scale)``; log (S / scale) is log S - log scale."""
        return (v * -scale).exp()

    def weight(self, v: BallOrSeries, total: BallOrSeries) -> BallOrSeries:
        """Return what the functions of all classes have in common."""
        return self.transform(v, total)

    def of_base(self, weight: BallOrSeries, total: BallOrSeries) -> BallOrSeries:
        """Return the function whose integral is the mean of 1 / S."""
        return weight

    def of_class(self, group: Group, weight: BallOrSeries, decay: BallOrSeries) -> BallOrSeries:
        """Return the function whose integral is the mean of 1 / S, given that it has the class."""
        return weight * decay / _included_or_not(group, decay)


def _included_or_not(group: Group, decay: BallOrSeries) -> BallOrSeries:
    """Return the factor of one class in the product of (B26)."""
    return decay * group.prob + (1 - group.prob)


Draws = Replacement | Poisson


@dataclass(frozen=True)
class Grid:
    """The nodes of the trapezoid rule between two ends, and what bounds the sums beyond them."""

    step: float  # h, in log v
    nodes: list[Ball]
    left_sums: list[Ball]  # entry i: h times the sum of v^i over all nodes before the first one
    right_sum: Ball  # the sum over all nodes after the last one, divided by the last term
    kappa: Ball  # bound on |eps| of the rule, in the docstring of this module
    log_kappa: Ball  # bound on |eps'|

    def mean_inverse(self, series: list[Ball], values: Iterable[Ball]) -> Ball:
        """Return the mean of 1 / S, given a function by its power series and its values (K,)."""
        terms = [v * value for v, value in zip(self.nodes, values, strict=True)]
        rule = (sum(terms) + terms[-1] * self.right_sum) * self.step + self._left_of(series, 1)
        return rule / (1 + self.kappa.union(-self.kappa))

    def log_part(self, series: list[Ball], values: list[Ball]) -> Ball:
        """Return ``h sum_k f(v_k)``, less f(0), of a transform f in the mean of log S."""
        constant = 0 * series[0]
        rest = self._left_of([constant, *series[1:]], 0)
        return (sum(values) + values[-1] * self.right_sum) * self.step + rest

    def _left_of(self, series: list[Ball], shift: int) -> Ball:
        """Return ``h sum_k v_k^shift f(v_k)`` over the nodes before the first one."""
        terms = [a * c for a, c in zip(series, self.left_sums[shift:], strict=False)]
        remainder = terms[NUM_TERMS]
        return sum(terms[:NUM_TERMS]) + remainder.union(0 * remainder)


@dataclass(frozen=True)
class Means:
    """Means over all draws, in balls."""

    inverse_given: list[Ball]  # of 1 / S given one class of a group in the draws, for each group
    inverse: Ball  # of 1 / S
    log: Ball  # of log S


def means_over_draws(
    draws: Draws, groups: list[Group], bits: int, precision: int, executor: Executor | None
) -> Means:
    """Return the means over all draws of the classes of `groups`.

    The rule has a relative error of about 2^-bits, and `precision` bits are computed with.
    """
    parts = [groups[part] for part in chunks(len(groups), _GROUPS_PER_TASK)]

    with working_precision(precision) as flint:
        v = flint.arb_series([0, 1])
        scale = _lower_end(draws, groups)
        total = draws.join([draws.total_of(groups, v)])
        weight = draws.weight(v, total)
        series = {
            "base": draws.of_base(weight, total),
            "transform": draws.transform(v, total),
            "reference": draws.reference(v, scale),
        }
        grid = _make_grid(draws, groups, v, weight, series, scale, bits)

    tasks = [(draws, part, grid.nodes, precision) for part in parts]
    totals = list(run_tasks(_totals, tasks, executor))

    with working_precision(precision):
        joined = [draws.join(column) for column in zip(*totals, strict=True)]
        pairs = list(zip(grid.nodes, joined, strict=True))
        weights = [draws.weight(v, total) for v, total in pairs]
        of_base = [draws.of_base(w, total) for w, total in zip(weights, joined, strict=True)]
        inverse = grid.mean_inverse(_coefficients(series["base"]), of_base)
        reference = grid.log_part(
            _coefficients(series["reference"]), [draws.reference(v, scale) for v in grid.nodes]
        )
        transform = grid.log_part(
            _coefficients(series["transform"]), [draws.transform(v, total) for v, total in pairs]
        )
        some_draw = draws.reference(0 * scale, scale)  # P(N >= 1)
        log = some_draw * scale.log() + reference - transform
        log += grid.log_kappa.union(-grid.log_kappa)

    coefficients = _coefficients(weight)
    class_tasks = [(draws, part, grid, coefficients, weights, precision) for part in parts]
    inverse_given = list(chain.from_iterable(run_tasks(_inverse_given, class_tasks, executor)))
    return Means(inverse_given=inverse_given, inverse=inverse, log=log)


def _totals(task: tuple[Draws, list[Group], list[Ball], int]) -> list[Ball]:
    """Return `Draws.total_of` at each node, for the groups of a task."""
    draws, groups, nodes, precision = task
    with working_precision(precision):
        return [draws.total_of(groups, v) for v in nodes]


def _inverse_given(
    task: tuple[Draws, list[Group], Grid, list[Ball], list[Ball], int],
) -> list[Ball]:
    """Return the mean of 1 / S given one class of the group, for each group of a task."""
    draws, groups, grid, coefficients, weights, precision = task
    pairs = list(zip(grid.nodes, weights, strict=True))
    means = []
    with working_precision(precision) as flint:
        v_series = flint.arb_series([0, 1])
        weight_series = flint.arb_series(coefficients)
        for group in groups:
            series = draws.of_class(group, weight_series, group.decay(v_series))
            values = [draws.of_class(group, weight, group.decay(v)) for v, weight in pairs]
            means.append(grid.mean_inverse(_coefficients(series), values))
    return means


def _make_grid(
    draws: Draws,
    groups: list[Group],
    v: Any,
    weight: Any,
    series: dict[str, Any],
    scale: Ball,
    bits: int,
) -> Grid:
    """Return the nodes from which the rule has an error of some 2^-bits, and bounds on the rest."""
    # |Gamma(1 + i y)| is sqrt(pi y / sinh(pi y)), about exp(-pi^2 / h) at the first y
    step = math.pi**2 / (bits * _LOG_2 + 8.0)
    needed = bits * _LOG_2

    # left end: where the term of v^J is 2^-bits of a sum; the largest ratio has the largest one
    widest = max(groups, key=lambda group: _log(group.ratio))
    worst = _coefficients(draws.of_class(widest, weight, widest.decay(v)))
    log_mean = _log(worst[1]) - _log(
        worst[0]
    )  # of the mean exponent s; the sum is at least g_0 / s
    left = (_log(worst[0]) - log_mean - needed - _log(worst[NUM_TERMS])) / (NUM_TERMS + 1)
    for name in ("transform", "reference"):
        left = min(left, (-needed - _log(_coefficients(series[name])[NUM_TERMS])) / NUM_TERMS)

    # right end: where exp(-v s_low) is 2^-bits
    s_low = scale * draws.min_count
    log_s_low = _log(s_low)
    right = math.log(needed + max(log_mean - log_s_low, 0.0) + 5.0) - log_s_low

    first = math.floor(left / step)
    last = math.ceil(right / step)
    _require_time(len(groups), last - first + 1, bits)
    return grid_between(step, first, last, s_low)


def grid_between(step: float, first: int, last: int, s_low: Ball) -> Grid:
    """Return the grid of the nodes ``exp(step k)`` from k = `first` to `last`, for S >= `s_low`."""
    arb = type(s_low)
    nodes = [(arb(step) * k).exp() for k in range(first, last + 1)]

    powers = range(NUM_TERMS + 2)
    left_sums = [nodes[0] ** i * step / ((arb(step) * i).expm1()) for i in powers[1:]]
    fall = ((1 - nodes[-1] * s_low) * step).exp()  # of a term from one node to the next
    pi_y = arb.pi() * (2 * arb.pi() / step)
    gamma = (pi_y / pi_y.sinh()).sqrt()  # |Gamma(1 + i y)| at the first y
    kappa = 4 * gamma  # the sum over l is at most twice its first term
    return Grid(
        step=step,
        nodes=nodes,
        left_sums=[arb(0), *left_sums],
        right_sum=(fall / (1 - fall)).union(arb(0)) if fall < 1 else arb.nan(),
        kappa=kappa,
        log_kappa=8 * gamma * step / (2 * arb.pi()),
    )


def _lower_end(draws: Draws, groups: list[Group]) -> Ball:
    """Return the smallest value of S, if all draws are of the lowest ratio."""
    if draws.weightless != 0:
        return draws.base
    lowest = groups[0].ratio
    for group in groups[1:]:
        lowest = lowest.min(group.ratio)
    return draws.base + lowest


def _require_time(num_groups: int, num_nodes: int, bits: int) -> None:
    """Raise ValueError if the sums over classes and nodes would take more than an hour."""
    per_node = 2.0 * num_groups * _SECONDS_PER_DECAY + _SECONDS_PER_NODE
    seconds = num_nodes * per_node * (1.0 + bits / _BITS_OF_DOUBLE_TIME)
    if seconds > _MAX_SECONDS:
        raise ValueError(
            f"`logits` must allow a certificate within an hour, got {num_groups:,} different "
            f"classes with {num_nodes:.3g} nodes at {bits} bits: about {seconds / 3600.0:.3g} "
            "hours on one core; take fewer classes or digits, or exact_bias."
        )
    require_bytes(
        f"{num_nodes:,} nodes", num_nodes * _BYTES_PER_NODE, "take fewer digits, or exact_bias"
    )


def _coefficients(series: Any) -> list[Ball]:
    """Return the coefficients of 1, v, ..., v^J of a power series.

    Those that python-flint leaves out are 0. It would cut the series itself if another thread
    changed its global number of terms.
    """
    if series.prec <= NUM_TERMS:
        raise RuntimeError(
            "python-flint's ctx.cap was changed during a certified computation; call it again when "
            "no other thread changes it."
        )
    coefficients = list(series.coeffs())
    zero = 0 * coefficients[0]
    return coefficients + [zero] * (NUM_TERMS + 1 - len(coefficients))


def _log(ball: Ball) -> float:
    """Return the log of a positive ball, or of its size, about; only for choices."""
    return float(abs(ball.mid()).log())
