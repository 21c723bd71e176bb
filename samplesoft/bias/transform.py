"""From the ratios of a draw to its Laplace transform on the nodes of a quadrature.

`Atoms` are the classes, or fewer points that stand for them; `Nodes` is the transform, and what
follows from it, at each node; and below stands the trapezoid rule on log v that every exact
expectation is integrated with, with the estimate of its error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, thread_map
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.draw_law import (
    CLASS_CHUNK,
    LARGEST_FLOAT,
    Centres,
    Classes,
    DrawLaw,
    Floats,
    Sum,
)
from samplesoft.bias.laplace import (
    CENTRED_LIMIT,
    NodeSums,
    Points,
    Rows,
    excess_decay,
    node_sums,
    scaled,
)
from samplesoft.bias.negatives import EPS
from samplesoft.kernels import panels

STEP = 0.2  # the trapezoid error falls as exp(-pi**2 / STEP), below rounding here
LEAST_STEP = 0.02
ENOUGH = 1e-12  # relative L1 error at which the step is not halved again
ROUNDING = 2e-15
_LEFT = -4.2  # v = exp(z - exp(-z)) has reached exp(-70) of its scale here
_RIGHT = 60.0  # at the last node the slowest factor of the integrand has fallen to exp(-60)
_WIDEST = 1e5
_LARGEST_LOG = math.log(LARGEST_FLOAT)
_MOMENT_CHUNK = 2048
_BACK = 3.0  # log of v over that at which a class of noise 1e-14 still has most of its weight
_NARROW = 1e-3  # panels on which all ratios decay as one, without noise
_UNSEEN = 3.0  # log of how far below T a panel's weight is beside which its noise is none
_LOST = -12.0  # log of how far T has fallen since, below which that noise may be seen


@dataclass
class Atoms:
    """The measure of log r on few points, for the kernels.

    `panels` (P,) are the Chebyshev panels that hold classes, counted from R, each of `width` in
    log r; it is None where each class is its own atom.
    """

    width: float  # of the panels
    panels: IntArray | None
    points: Points  # (A,) sorted by r
    order: IntArray  # (A,) the number of each before: by panel and node, or by class

    def places(self, classes: Classes) -> tuple[IntArray, FloatArray]:
        """Return for each class (n,) the number of its panel in `panels`, and its place there."""
        assert self.panels is not None
        first, count = int(self.panels[0]), int(self.panels[-1] - self.panels[0]) + 1
        panel, s = panels.place(classes.log_distances, self.width, first, count)
        number = np.zeros(count, np.int64)
        number[self.panels - first] = np.arange(len(self.panels))
        return number[panel], s

    def by_panel(self, values: FloatArray) -> FloatArray:
        """Return what atoms (A,) have at the nodes of each panel, (P, DEGREE)."""
        assert self.panels is not None
        out = np.empty(len(self.order))
        out[self.order] = values
        return out[: len(self.panels) * panels.DEGREE].reshape(-1, panels.DEGREE)


def panel_grid(centres: Centres) -> tuple[float, int, int]:
    """Return the width of panels that hold all ratios, the first, and their number."""
    low, high = centres.span
    # ratios that all lie close to R get narrow panels: one on either side of it
    width = min(panels.WIDTH, 1.0000001 * max(-low, high, 1e-300))
    first = math.floor(low / width)
    return width, first, math.floor(high / width) - first + 1


class Moments:
    """The third sums over classes: the Chebyshev moments of what they weigh, eq. (B22)."""

    def __init__(self, centres: Centres) -> None:
        _require_width(centres.span[1] - centres.span[0])
        self.width, self.first, self.count = panel_grid(centres)
        self.numbers = np.empty(0, np.int64)  # of the panels that hold classes, (P,)
        self.sums = Sum((0, 3, panels.DEGREE))

    def add(self, law: DrawLaw, classes: Classes) -> Moments:
        """Add the classes of a chunk."""
        numbers, s = panels.place(classes.log_distances, self.width, self.first, self.count)
        occupied = np.bincount(numbers, law.drawn, self.count) > 0.0
        panel = (np.cumsum(occupied) - 1)[numbers]

        def weigh(part: slice) -> tuple[IntArray, FloatArray, FloatArray]:
            return panel[part], s[part], _class_weights(law, classes, part)[0]

        moments = class_moments(weigh, len(s), (int(occupied.sum()), 3))
        self._take(np.flatnonzero(occupied), Sum.of(moments))
        return self

    def merge(self, other: Moments) -> Moments:
        """Add what another has summed."""
        self._take(other.numbers, other.sums)
        return self

    def _take(self, numbers: IntArray, sums: Sum) -> None:
        if not len(self.numbers):
            self.numbers, self.sums = numbers, sums.times(1.0)
            return
        union = np.union1d(self.numbers, numbers)
        own, more = (np.searchsorted(union, some) for some in (self.numbers, numbers))
        self.numbers, self.sums = union, self.sums.spread(own, len(union))
        self.sums.merge(sums.spread(more, len(union)))

    def finish(self, law: DrawLaw, centres: Centres) -> Atoms:
        """Return the nodes of the panels as atoms; `law` may hold any of the classes."""
        # the transpose of interpolation: what a class weighs goes to the nodes of its panel
        at_nodes = self.sums.value @ panels.to_coefficients().T
        weights = np.moveaxis(at_nodes, 1, 0).reshape(3, -1)
        places = self.first + self.numbers[:, None] + panels.node_places()
        t = (places * self.width).ravel()
        rows = np.tanh(0.5 * t), np.tanh(0.5 * (t - centres.log_mean_distance))
        points = _sort_points(law, centres, weights, t, *rows)
        return Atoms(self.width, self.numbers + self.first, *points)


def make_atoms(law: DrawLaw, classes: Classes) -> Atoms:
    """Compress all classes to Chebyshev atoms where that makes fewer of them, eq. (B22)."""
    width, _, count = panel_grid(classes)
    if count * panels.DEGREE > len(law.drawn):
        return Atoms(width, None, *_class_points(law, classes, law.drawn > 0.0))
    return Moments(classes).add(law, classes).finish(law, classes)


def _class_weights(law: DrawLaw, classes: Classes, part: Any) -> tuple[FloatArray, FloatArray]:
    """Return the weights (3, k) of some classes, and their zeta (k,)."""
    of_classes = classes.log_distances[part], law.drawn[part], classes.contrast[part]
    return panels.class_weights(*of_classes, classes.log_mean_distance, classes.kappa_mean)


def _class_points(
    law: DrawLaw, classes: Classes, some: NDArray[np.bool_]
) -> tuple[Points, IntArray]:
    """Return each of some classes that are drawn as an atom."""
    t, kappa = classes.log_distances[some], classes.contrast[some]
    weights, zeta = _class_weights(law, classes, some)
    return _sort_points(law, classes, weights, t, kappa, zeta)


def class_moments(
    weigh: Callable[[slice], tuple[IntArray, FloatArray, FloatArray]],
    num_classes: int,
    shape: tuple[int, int],
) -> FloatArray:
    """Return Chebyshev moments (panels, k, DEGREE), with `shape` (panels, k), on all threads.

    `weigh` returns the panels, places in them and weights (k, ...) of a slice of the classes.
    """
    total = np.zeros((*shape, panels.DEGREE))

    def work(part: slice) -> FloatArray:
        moments = np.zeros_like(total)
        panels.add_moments(*weigh(part), moments)
        return moments

    # Equal terms that are added one after another err in one direction, the further the more: so
    # parts are no longer than it costs to add their moments up.
    parts = chunks(num_classes, max(_MOMENT_CHUNK, total.size))
    for moments in (thread_map if num_classes > CLASS_CHUNK else map)(work, parts):
        total += moments
    return total


def _sort_points(
    law: DrawLaw,
    classes: Centres,
    weights: FloatArray,
    t: FloatArray,
    kappa: FloatArray,
    zeta: FloatArray,
) -> tuple[Points, IntArray]:
    """Return atoms at r = R exp(t), (A,), whose `weights` are (3, A), and the number of each."""
    if law.weightless:  # an atom at r = 0, where kappa = zeta = -1
        t = np.append(t, -np.inf)
        kappa, zeta = np.append(kappa, -1.0), np.append(zeta, -1.0)
        masked = law.weightless * np.array([[1.0], [-1.0], [1.0]])
        weights = np.concatenate([weights, masked], axis=1)
    centres = classes.log_ref, classes.log_mean - classes.log_ref, classes.log_least
    rows = _write_points(weights, (t, kappa, zeta), centres)
    order = rows[4].argsort(kind="stable")
    return Points(*rows.take(order, axis=1)), order


@njit
def _write_points(weights: FloatArray, columns: Rows, centres: Floats) -> FloatArray:
    """Return the rows of `Points`, (10, A), from t, kappa and zeta, log R, t_mean and log r0."""
    (t, kappa, zeta), (log_ref, t_mean, log_least) = columns, centres
    rows = np.empty((10, len(t)))
    for i in range(len(t)):
        rows[0, i], rows[1, i], rows[2, i] = weights[0, i], weights[1, i], weights[2, i]
        rows[5, i], rows[7, i] = kappa[i], zeta[i]
        log_sum_mean = max(t[i], t_mean) + math.log1p(math.exp(-abs(t[i] - t_mean))) + log_ref
        rows[3, i] = rows[4, i] = t[i] + log_ref
        if log_least > -np.inf:
            share = -math.expm1(min(log_least - log_ref - t[i], 0.0))
            rows[4, i] += math.log(share) if share > 0.0 else -np.inf
        rows[6, i] = max(t[i], 0.0) + math.log1p(math.exp(-abs(t[i]))) + log_ref
        rows[8, i] = log_sum_mean + (math.log(abs(zeta[i])) if zeta[i] != 0.0 else -np.inf)
        rows[9, i] = log_sum_mean
    return rows


@dataclass
class Nodes:
    """The transform T and what follows from it at the quadrature nodes, all arrays (K,)."""

    x: FloatArray  # log v
    dx: FloatArray  # weight of dv / v
    v: FloatArray
    v_least: FloatArray  # v r0
    log_transform: FloatArray  # log T, T = sum q exp(-v r)
    log_transform_least: FloatArray  # log sum q exp(-v (r - r0)), eq. (B18)
    log_psi_ref: FloatArray  # log of psi_R = exp(-v R) / T
    above: FloatArray  # T exp(v r0) (1 - psi_R) = sum q (exp(-v (r - r0)) - exp(-v (R - r0)))
    excess: FloatArray  # log T + v times the mean of r, at least 0, eq. (B20)


@dataclass
class TiltedNodes(Nodes):
    """Nodes with what the jackknife alone asks for, all arrays (K,).

    "Tilted" is the law of r whose probabilities are q exp(-v r) / T; see section 4 of the README.
    """

    mean: FloatArray  # v times the tilted mean
    variance: FloatArray  # v**2 times the second tilted cumulant
    skew: FloatArray  # v**3 times the third
    above_least: FloatArray  # v (tilted mean - r0)
    lead: FloatArray  # v (R - tilted mean)
    variance_size: FloatArray  # the sums of the sizes of what these three are made of
    skew_size: FloatArray
    lead_size: FloatArray
    gap: FloatArray  # log T + v times the tilted mean, at most 0, eq. (B21)
    balance: FloatArray  # 2 gap + variance, of third order in v

    @property
    def tilted(self) -> FloatArray:
        """`above_least`, `lead`, `variance`, and the sizes of the last two, (K, 5)."""
        columns = self.above_least, self.lead, self.variance, self.lead_size, self.variance_size
        return np.stack(columns, axis=1)


def compute_decay_rates(law: DrawLaw, classes: Centres) -> tuple[float, float]:
    """Return the logs of the typical and of the least rate at which E(v) decays."""
    # a factor psi may take one draw away; of the draws that are kept, one may be left
    least_count = 1 if law.scheme.divides_by_kept else max(law.num_draws - 1, 1)
    base = -np.inf if law.scheme.label_is_a_draw else law.log_base
    typical = math.log(law.num_draws) + float(np.log(law.expected_sum))
    return typical, math.log(least_count) + float(np.logaddexp(base, classes.log_least))


def make_nodes(law: DrawLaw, classes: Centres, atoms: Atoms, step: float) -> Nodes:
    """Evaluate the transform on nodes that cover every scale of v at which it changes.

    `step` is that of the trapezoid rule.
    """
    typical, least = compute_decay_rates(law, classes)
    largest = max(typical, float(atoms.points.log_r.max()))
    return evaluate_nodes(law, classes, atoms, *make_grid(largest, least, step))


def evaluate_nodes(
    law: DrawLaw, classes: Centres, atoms: Atoms, x: FloatArray, dx: FloatArray
) -> Nodes:
    """Evaluate the transform at given nodes log v, `x` (K,), of weights `dx` (K,).

    They are `TiltedNodes` where the scheme is a jackknife.
    """
    tilted = law.scheme.jackknife
    sums = node_sums(x, atoms.points, classes.log_above_least, tilted)
    # of classes in chunks only the bias is asked for, which does without
    on_panels = atoms.panels is not None and atoms.width > _NARROW
    if isinstance(classes, Classes) and on_panels and len(x) > 0:
        _replace_noise(law, classes, atoms, x, sums)
    columns = sums.transform, sums.drop, sums.excess
    logs = _transform_logs(x, columns, (classes.log_least, *classes.log_above_least))
    v, v_least, log_t, log_t_least, log_psi_ref, excess, d_mean = logs
    nodes = Nodes(x, dx, v, v_least, log_t, log_t_least, log_psi_ref, sums.above, excess)
    return _with_cumulants(classes, nodes, sums, d_mean) if tilted else nodes


def _replace_noise(
    law: DrawLaw, classes: Classes, atoms: Atoms, x: FloatArray, sums: NodeSums
) -> None:
    """Put sums over classes in place of a transform that panels leave no digits; README, section 5.

    Weights of their atoms have both signs. Next to what has decayed they leave noise, which is
    nothing beside 1, but may be more than T, and is divided by where draws are few.
    """
    with np.errstate(all="ignore"):
        v_least = np.exp(x + classes.log_least)
        log_transform = np.log(np.maximum(sums.transform, 1e-307)) - v_least
    lost = lost_nodes(x, log_transform)
    if len(lost):
        points = _low_classes_as_atoms(law, classes, atoms, float(x[lost].min()))
        exact = node_sums(x[lost], points, classes.log_above_least, law.scheme.jackknife)
        for column, values in zip(sums, exact, strict=True):
            column[lost] = values


def lost_nodes(x: FloatArray, log_transform: FloatArray) -> IntArray:
    """Return the nodes log v, of `x` (K,), at which panels leave log T no digits."""
    order = np.argsort(x)
    before = np.interp(x - _BACK, x[order], log_transform[order], left=0.0)
    return np.flatnonzero(log_transform < before + _LOST)


def _low_classes_as_atoms(law: DrawLaw, classes: Classes, atoms: Atoms, x: float) -> Points:
    """Return the atoms, but the classes themselves in panels whose noise may be seen from log v, x.

    That noise is 1e-14 of the panel's weight times exp(-v r) at its left end, and T is no less
    than what the least ratio brings.
    """
    assert atoms.panels is not None
    room = math.log(_UNSEEN - math.log(classes.least_drawn)) - x - classes.log_ref
    last = min(float(np.logaddexp(classes.span[0], room)), classes.span[1])
    first_high = math.floor(last / atoms.width) + 1
    low = (law.drawn > 0.0) & (np.floor(classes.log_distances / atoms.width) < first_high)
    classes_below = _class_points(law, classes, low)[0]
    of_panel = atoms.order // panels.DEGREE  # beyond the last one stands what has no weight
    known = of_panel < len(atoms.panels)
    above = known & (atoms.panels[np.where(known, of_panel, 0)] >= first_high)
    pairs = zip(classes_below, atoms.points, strict=True)  # both are sorted
    return Points(*(np.concatenate([low, high[above]]) for low, high in pairs))


@njit
def _exp(x: float) -> float:
    """Return exp(x), infinite where it is too large, as NumPy does: math.exp would raise."""
    return np.inf if x > _LARGEST_LOG else math.exp(x)


@njit
def _transform_logs(x: FloatArray, columns: Rows, centres: Floats) -> FloatArray:
    """Return v to `log_psi_ref` of `Nodes`, `excess`, and v (mean - r0), (7, K).

    `columns` are three sums; `centres` the logs of r0, R - r0 and mean - r0.
    """
    transform, drop, excess = columns
    rows = np.empty((7, len(x)))
    for k in range(len(x)):
        # v times a ratio, and d = v times its distance from the least ratio r0
        v_least, d_ref = _exp(x[k] + centres[0]), _exp(x[k] + centres[1])
        d_mean = scaled(x[k], centres[2])
        # at least these, which rounding may miss where no weight is left
        log_t_least = math.log(1e-307 if transform[k] < 1e-307 else transform[k])
        if drop[k] > -0.5:
            log_t_least = math.log1p(drop[k])
        near = math.log1p(0.0 if excess[k] < 0.0 else excess[k])
        rows[0, k], rows[1, k], rows[3, k] = scaled(x[k], 0.0), v_least, log_t_least
        rows[2, k] = log_t_least - v_least
        rows[4, k] = -d_ref - log_t_least
        rows[5, k] = near if d_mean < CENTRED_LIMIT else log_t_least + d_mean
        rows[6, k] = d_mean
    return rows


def _with_cumulants(
    classes: Centres, nodes: Nodes, sums: NodeSums, d_mean: FloatArray
) -> TiltedNodes:
    """Return the nodes with the cumulants of r tilted; `d_mean` is v (mean - r0)."""
    x, log_t_least, p = nodes.x, nodes.log_transform_least, np.maximum(sums.excess, 0.0)
    with np.errstate(over="ignore", under="ignore"):
        v_ref = np.exp(np.minimum(x + classes.log_ref, LARGEST_EXPONENT))
        v_mean = np.exp(np.minimum(x + classes.log_mean, LARGEST_EXPONENT))
    # cumulants from the centre that the tilted mean is nearer to: the mean of r, or r0
    h = sums.tangent
    near = (d_mean < CENTRED_LIMIT) & ((p + h) / (1.0 + p) <= sums.first * np.exp(-log_t_least))
    total = np.where(near, 1.0 + p, np.exp(log_t_least))
    first = np.where(near, -(p + h), sums.first) / total
    second = np.where(near, sums.square, sums.second) / total
    third = np.where(near, sums.cube, sums.third) / total
    variance = np.maximum(second - first**2, 0.0)
    rest = excess_decay(np.log1p(p))  # log (1 + p) - p / (1 + p)
    gap = np.where(near, rest - h / (1.0 + p), log_t_least + first)
    from_mean = np.where(near, -first, d_mean - first)  # v (mean - tilted mean)
    return TiltedNodes(
        **vars(nodes),
        mean=np.where(near, v_mean + first, nodes.v_least + first),
        variance=variance,
        skew=third - 3.0 * first * second + 2.0 * first**3,
        above_least=np.where(near, d_mean + first, first),
        # R - mean is known without cancellation, and so is the distance of the tilted mean
        lead=-classes.mean_deviation * v_ref + from_mean,
        variance_size=second + first**2,
        skew_size=np.abs(third) + np.abs(first) * (3.0 * second + 2.0 * first**2),
        lead_size=abs(classes.mean_deviation) * v_ref + np.where(near, 0.0, d_mean) + np.abs(first),
        gap=gap,
        balance=np.where(near, 2.0 * rest + sums.bend / (1.0 + p) - first**2, 2.0 * gap + variance),
    )


# --- the quadrature ----------------------------------------------------------------------------


def make_grid(
    log_largest: float, log_smallest: float, step: float = STEP
) -> tuple[FloatArray, FloatArray]:
    """Return log v and the weights of dv / v, both (K,).

    `log_largest` is the log of the largest rate at which the integrand changes with v,
    `log_smallest` that of the least rate at which it decays; eq. (B24).
    """
    span = math.log(_RIGHT) - log_smallest + log_largest - _LEFT
    _require_width(span)
    # z - exp(-z) cuts the left end off double exponentially, as v does the right end
    z = np.arange(_LEFT, _LEFT + span + step, step)
    early = np.exp(-z)
    return z - early - log_largest, step * (1.0 + early)


def _require_width(span: float) -> None:
    """Raise ValueError where sums or ratios lie so far apart that nodes would be too many."""
    if span > _WIDEST:
        raise ValueError(
            f"`logits` and `q` must give sums within a factor exp({_WIDEST:.0f}) of each other, "
            f"got exp({span:.3g}); rescale or clip the logits."
        )


def halving_change(terms: FloatArray) -> float:
    """Return by how much the sum of `terms` (K,) differs from that of every second node."""
    return abs(float(terms[::2].sum()) - float(terms[1::2].sum()))


def rounding_unit(*logs: FloatArray) -> float:
    """Return the relative error of a term: rounding, and that of numbers known by sums of `logs`.

    A ratio e / q may be near 1 where log e and log q are far from 0, and has their rounding.
    """
    first, *others = map(np.abs, logs)
    return rounding_at(float(sum(others, first).max(initial=0.0)))


def rounding_at(largest: float) -> float:
    """Return the relative error of a term, of the largest magnitude of the logs in it."""
    return 2.0 * (ROUNDING + EPS * largest)


def estimate_error(
    coarse: float, size: float, norm: float, unit: float, narrow: bool = False
) -> float:
    """Return an L1 error from the change under half the nodes and the size of all terms.

    `unit` is the relative error of a term; `narrow` says that the integrand is analytic in a narrow
    strip only, so that no more is taken for granted than that half the step does no harm.

    Halving the step squares the relative error of the trapezoid rule where the integrand is
    analytic in a wide strip; the power 3/2 leaves room for a narrow one. Eq. (B25).
    """
    relative = 1.0 if narrow else min(coarse / max(norm, 1e-300), 1.0)
    return unit * (size + norm) + coarse * math.sqrt(relative)


def sum_error(terms: FloatArray, size: float, unit: float, narrow: bool = False) -> float:
    """Return the error of the sum of `terms` (K,) that are made of what adds up to `size`."""
    return estimate_error(halving_change(terms), size, abs(float(terms.sum())), unit, narrow)


class Row(NamedTuple):
    """The exact bias of one example."""

    bias: FloatArray  # (n,)
    probs: FloatArray  # (n,) the softmax
    loss_bias: float
    error: float  # estimated, of the bias in the L1 norm
    loss_error: float  # estimated, of the loss bias
    inclusion: FloatArray | None = None  # (n,) chances that a set of distinct draws holds a class


def refine(attempts: Callable[[float], Iterable[tuple[Row, bool]]], step: float) -> Row:
    """Return the least errors of `attempts`, with the step halved until one of them is enough.

    `attempts` makes rows out of a step, and says of each whether it is good enough.
    """
    best: Row | None = None
    with np.errstate(all="ignore"):  # a result that is not finite has no error that is, and goes
        while best is None or step > LEAST_STEP:
            for row, is_enough in attempts(step):
                best = row if best is None else _better_of(best, row)
                if is_enough:
                    return best
            step *= 0.5
    return best


def _better_of(one: Row, other: Row) -> Row:
    """Return the bias and the loss bias of the smaller errors."""
    bias = other if other.error < one.error else one
    loss = other if other.loss_error < one.loss_error else one
    return bias._replace(loss_bias=loss.loss_bias, loss_error=loss.loss_error)
