"""The exact bias where classes are included independently of each other (scheme ``poisson``).

What a class brings depends on its log w and on its inclusion probability pi. Most classes lie in
cells, panels of log w times one range of l = -log(1 - pi), and spread their weight over the
Chebyshev nodes of their cell; a function that is known there is evaluated at every class. The
rest are atoms of their own; section 8 of the README.

The atoms are sorted by log w. At a node u those with u w near 0 are known by their moments, and of
those with large u w nothing changes any more: only the atoms between are gone through, in blocks
that the compiler turns into vector code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, num_threads, thread_each, thread_map
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.numerics.quadrature import (
    ENOUGH,
    STEP,
    ExampleBias,
    better_of,
    estimate_error,
    halved_steps,
    halving_change,
    make_grid,
    rounding_unit,
    sum_error,
)
from samplesoft.bias.numerics.summation import log_softmax, weighted_median
from samplesoft.bias.with_replacement.atoms import class_moments
from samplesoft.bias.with_replacement.deviations import relative_ratios
from samplesoft.bias.with_replacement.draws import CLASS_CHUNK
from samplesoft.bias.with_replacement.laplace import (
    FLAT,
    GONE,
    add_far,
    far_sums,
    near_atoms,
    scaled,
)
from samplesoft.bias.with_replacement.node_weights import difference_of_exp, exponent_sizes
from samplesoft.kernels import panels
from samplesoft.kernels.exponential import (
    ARTANH,
    decay_ratio_series,
    exp64,
    horner,
    log_from_both,
    second_order_series,
)
from samplesoft.kernels.panels import DEGREE, WIDTH
from samplesoft.kernels.sort_ids import count_below

_ATOM_CHUNK = 2048
_LEAST_TERMS = 1 << 13  # at nodes and atoms, for which another thread is worth while
_LARGEST_DECAY = np.log(2.0)  # of classes in cells: one of pi above 1/2 is by itself
_LONE = 256  # one class in so many may be by itself to let the others have a smaller range
_FARTHEST_CELL = 1e6  # nats
_PRECISION = 1e-16
_SURE = 1.0 / 3.0  # of kappa: above it w / W - 1 is not needed
_CELL_CHUNK = 1 << 13
_BLOCK = 512
_SERIES = 0.5  # up to this y, 1 - exp(-y) is taken from its series
_CLOSE = 0.1  # and up to this one log f + pi y
_LIKELY = 40.0  # up to it the same sum of a class with pi above 1/2 is taken around exp(-y)


def poisson_bias(logits: FloatArray, label: int, q: FloatArray) -> ExampleBias:
    """Return the exact bias of one example with inclusion probabilities `q`.

    E[p'_j] = e_j int exp(-u (a + w_j)) prod_{k != j} (1 - q_k + q_k exp(-u w_k)) du with
    w = e / q, and a the mass of the label and of other classes with q = 1, eq. (B26).
    """
    draws = make_inclusion_draws(logits, label, q)
    probs, known, classes, unit = draws.probs, draws.known, draws.classes, draws.unit
    if draws.others == 0.0:
        return ExampleBias(np.zeros_like(probs), probs, 0.0, 0.0, 0.0)
    atoms = make_inclusion_atoms(classes)
    loss_unit = max(unit, rounding_unit(draws.log_probs))

    best = None
    with np.errstate(all="ignore"):  # a result that is not finite has no error that is, and goes
        for step in halved_steps(STEP):
            nodes = make_nodes(classes, atoms, draws.log_base, step)
            flows, total, size, coarse = _integrate_flows(classes, atoms, nodes.x, nodes.weights)
            base_flow = float(nodes.base_terms.sum())
            bias = flows - probs * (total + base_flow)  # (B9)
            # at the base without its own flow cancelling
            bias[known] = draws.shares * base_flow * draws.others - probs[known] * total
            coarse += halving_change(nodes.base_terms)
            size += float(np.abs(nodes.base_terms).sum())
            norm, loss_size = float(np.abs(bias).sum()), float(nodes.loss_sizes.sum())
            row = ExampleBias(
                bias=bias,
                probs=probs,
                loss_bias=float(nodes.loss_terms.sum()),
                error=estimate_error(coarse, size, norm, unit),
                loss_error=sum_error(nodes.loss_terms, loss_size, loss_unit),
            )
            best = better_of(best, row)
            is_enough = row.error <= (ENOUGH + 4.0 * unit) * norm
            if is_enough and row.loss_error <= (ENOUGH + 4.0 * loss_unit) * loss_size:
                break
    assert best is not None
    return best


class InclusionDraws(NamedTuple):
    """One example: the classes that are in or out by chance, and the base mass of all others."""

    log_probs: FloatArray  # (n,) of the softmax
    probs: FloatArray
    known: NDArray[np.bool_]  # (n,) which classes are in for certain
    classes: Included
    others: float  # the softmax mass of the classes that are not
    log_base: float  # of the mass of those that are
    shares: FloatArray  # (k,) of them in it
    unit: float  # relative error of a term


def make_inclusion_draws(logits: FloatArray, label: int, q: FloatArray) -> InclusionDraws:
    """Tell the classes that are in for certain from those that are in by chance."""
    pi = np.minimum(q, 1.0)
    known = pi == 1.0
    known[label] = True
    pi[known] = 0.0
    drawn, log_probs = pi > 0.0, log_softmax(logits)
    probs = np.exp(log_probs)
    classes = make_included(logits, probs, log_probs, pi)
    log_base = log_sum(log_probs[known])
    unit = rounding_unit(log_probs[drawn], np.log(pi[drawn]))
    unit = max(unit, rounding_unit(log_probs[known]))
    others, shares = float(probs[~known].sum()), np.exp(log_probs[known] - log_base)
    return InclusionDraws(log_probs, probs, known, classes, others, log_base, shares, unit)


class InclusionNodes(NamedTuple):
    """Nodes log u, and what stands there, all (K,)."""

    x: FloatArray
    weights: FloatArray  # E, and du / u
    base_terms: FloatArray  # of the base mass, whose psi is 1, times 1 - psi of the reference
    loss_terms: FloatArray  # of E[log S]
    loss_sizes: FloatArray


def make_nodes(
    classes: Included, atoms: InclusionAtoms, log_base: float, step: float
) -> InclusionNodes:
    """Evaluate the products of f on nodes that cover every scale of u at which they change."""
    # largest rate: of a class that is in, or of the limit exp(-u); least: of the base alone
    x, dx = make_grid(max(float(classes.log_w.max()), 0.0), log_base, step)
    products = _sum_logs(atoms, x)
    with np.errstate(over="ignore", under="ignore"):
        u_base = np.exp(np.minimum(x + log_base, LARGEST_EXPONENT))
        log_weights = products[:, 0] - u_base
        weights = dx * np.exp(log_weights)
        u = np.exp(np.minimum(x, LARGEST_EXPONENT))
        loss = -dx * difference_of_exp(log_weights, -u, products[:, 1])
        loss_sizes = exponent_sizes(np.abs(loss), log_weights)
        base_terms = weights * u_base * base_contrast(x, classes)
    return InclusionNodes(x, weights, base_terms, loss, loss_sizes)


def log_sum(log_masses: FloatArray) -> float:
    """Return the log of the sum of masses (k,), that of one mass as it is."""
    if len(log_masses) == 1:
        return float(log_masses[0])
    top = log_masses.max()
    return float(top + np.log(np.exp(log_masses - top).sum()))


def base_contrast(x: FloatArray, classes: Included) -> FloatArray:
    """Return 1 - psi of the reference at each node (K,)."""
    pi = classes.pi_ref
    y = np.exp(np.minimum(x + classes.log_w_ref, LARGEST_EXPONENT))
    factor = (1.0 - pi) + pi * np.exp(-y)
    return -(1.0 - pi) * np.expm1(-y) / factor


# --- classes, and the atoms that stand for them ------------------------------------------------


@dataclass(frozen=True)
class Included:
    """The classes, (n,), that are in or out by chance; ``pi`` is 0 for all others."""

    log_w: FloatArray
    pi: FloatArray
    decay: FloatArray  # -log (1 - pi)
    contrast: FloatArray  # kappa = (w - W) / (w + W)
    log_w_ref: float  # log W; -inf where the label is the reference
    pi_ref: float


@dataclass(frozen=True)
class _Cells:
    """The classes of cells."""

    included: Included
    slot: IntArray  # (n,) number of the cell, or -1 for a class in none
    count: int
    largest: float  # of l in cells, which start at 0
    degree: int  # in l

    def place(self, part: slice) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """Return which classes of a part are in cells (k,), in which, and where they are there.

        The place in log w is (k,), from -1 to 1, that in l by its polynomials, (degree, k).
        """
        places = self.slot[part], self.included.log_w[part], self.included.decay[part]
        ids, *rest = _place_in_cells(*places, self.largest, self.degree)
        return part.start + ids, *rest


@dataclass(frozen=True)
class InclusionAtoms:
    """Atoms (A,) in the order of log w; before they were sorted, `lone` classes, then nodes."""

    points: Points
    counts: FloatArray  # how many classes each stands for
    order: IntArray  # number of each before they were sorted
    lone: IntArray  # the classes that are their own atoms
    cells: _Cells


def make_included(
    logits: FloatArray, probs: FloatArray, log_probs: FloatArray, pi: FloatArray
) -> Included:
    """Find the weights w = e / pi and the reference; `pi` (n,) is 0 for classes in for certain.

    The reference is the softmax-weighted median of (1 - pi) w, which orders psi for small u; the
    psi of classes in for certain is 1, and they stand at 0. If it is one of those, W is 0.
    """
    drawn = pi > 0.0
    with np.errstate(divide="ignore"):
        log_w = np.where(drawn, log_probs - np.log(pi), -np.inf)
    decay = -np.log1p(-pi)
    order = np.where(drawn, log_w - decay, -np.inf)
    floor = float(np.min(order, where=drawn, initial=np.inf)) - 1.0
    reference = weighted_median(np.where(drawn, order, floor), probs)
    if not drawn[reference]:
        return Included(log_w, pi, decay, drawn.astype(float), -np.inf, 0.0)
    contrast = np.zeros(len(pi))
    at_reference = float(logits[reference]), float(pi[reference]), float(log_w[reference])

    def work(part: slice) -> None:
        of_part = pi[part]  # probability of a draw and, for sums that are not used, p
        relative_ratios(
            logits[part], log_w[part], of_part, of_part, of_part, at_reference, contrast[part]
        )

    thread_each(work, chunks(len(pi), CLASS_CHUNK))
    return Included(log_w, pi, decay, contrast, float(log_w[reference]), float(pi[reference]))


def make_inclusion_atoms(included: Included) -> InclusionAtoms:
    """Compress the classes to the nodes of cells, where that makes fewer of them, eq. (B43)."""
    drawn = np.flatnonzero(included.pi)
    largest = _range_of_cells(included.decay[drawn])
    # the poles of 1 / f in l are pi away from the real axis
    ratio = 2.0 * np.pi / largest
    degree = int(np.ceil(-np.log(_PRECISION) / np.log(ratio + np.hypot(ratio, 1.0))))
    slot = np.full(len(included.pi), -1)
    # classes far from all others are not crowded, and have no cell among those that are counted
    fit = drawn[
        (included.decay[drawn] <= largest) & (np.abs(included.log_w[drawn]) < _FARTHEST_CELL)
    ]
    places = np.floor(included.log_w[fit] / WIDTH).astype(np.int64)
    first = int(places.min(initial=0))
    crowded = np.bincount(places - first) > DEGREE * degree
    numbers = np.where(crowded, np.cumsum(crowded) - 1, -1)
    slot[fit] = numbers[places - first]
    cells = _Cells(included, slot, int(crowded.sum()), largest, degree)
    lone = drawn[slot[drawn] < 0]
    log_w, pi, counts = _nodes(cells, first + np.flatnonzero(crowded))
    # log W is -inf where the label is the reference, and kappa 1
    kappa = np.tanh(0.5 * (log_w - included.log_w_ref))
    of_lone = included.log_w[lone], included.pi[lone], included.contrast[lone], np.ones(len(lone))
    columns = np.concatenate([of_lone, (log_w, pi, kappa, counts)], axis=1)
    order = np.argsort(columns[0], kind="stable")
    log_w, pi, kappa, counts = columns.take(order, axis=1)
    deviation = np.where(kappa < _SURE, 2.0 * kappa / (1.0 - np.minimum(kappa, 0.5)), 2.0)
    return InclusionAtoms(Points(log_w, pi, kappa, deviation), counts, order, lone, cells)


def _range_of_cells(decay: FloatArray) -> float:
    """Return the largest l in cells: what few classes exceed, for a small range is cheap."""
    few = len(decay) // _LONE
    common = float(np.partition(decay, len(decay) - 1 - few)[len(decay) - 1 - few])
    return min(max(common, 1e-300), float(_LARGEST_DECAY))


def _nodes(cells: _Cells, places: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return log w, pi and the counts of the nodes of the cells at `places`, in one row each."""
    degree, shape = cells.degree, (cells.count, cells.degree, DEGREE)

    def weigh(part: slice) -> tuple[IntArray, FloatArray, FloatArray]:
        ids, slot, s, in_l = cells.place(part)
        return slot, s, cells.included.pi[ids] * in_l

    moments = class_moments(weigh, len(cells.slot) if cells.count else 0, shape[:2])
    # the transpose of interpolation in either direction
    weights = panels.to_coefficients(degree) @ moments @ panels.to_coefficients().T
    pi = -np.expm1(-cells.largest * panels.node_places(degree))[:, None]
    t = WIDTH * (places[:, None, None] + panels.node_places())
    log_w = np.broadcast_to(t, shape).ravel()
    return log_w, np.broadcast_to(pi, shape).ravel(), (weights / pi).ravel()


def _sum_logs(atoms: InclusionAtoms, x: FloatArray) -> FloatArray:
    """Return the logs of the products of f, and those plus u sum pi w, (K, 2) at log u, `x`."""
    sums = np.empty((len(x), 2))

    def work(part: slice) -> None:
        log_products(x[part], atoms.points.log_w, atoms.points.pi, atoms.counts, sums[part])

    # what is known of all atoms is made for each part
    least = max(32, _LEAST_TERMS // max(len(atoms.order), 1))
    thread_each(work, chunks(len(x), max(least, -(-len(x) // (4 * num_threads())))))
    return sums


def _integrate_flows(
    included: Included, atoms: InclusionAtoms, x: FloatArray, weights: FloatArray
) -> tuple[FloatArray, float, float, float]:
    """Return the flows (n,), their sum, the size of their parts and what half the nodes change."""
    integrals = np.empty((4, len(atoms.order)))

    def integrate(part: slice) -> None:
        of_part = np.zeros((4, part.stop - part.start))
        some = _take(atoms.points, part)
        atom_integrals(x, weights, some, included.log_w_ref, included.pi_ref, of_part)
        integrals[:, atoms.order[part]] = of_part

    thread_each(integrate, chunks(len(atoms.order), _ATOM_CHUNK))
    lone, cells = atoms.lone, atoms.cells
    flows = np.zeros(len(included.pi))

    def combine(ids: IntArray, values: FloatArray, changes: FloatArray) -> FloatArray:
        """Write the flows of some classes; return their sum, their parts' size, their change."""
        pi = included.pi[ids]
        scales = pi * np.stack([(1.0 - pi) * included.contrast[ids], included.pi_ref - pi])
        parts = scales * values
        flows[ids] = parts.sum(axis=0)
        return np.array([flows[ids].sum(), np.abs(parts).sum(), np.abs(scales * changes).sum()])

    at_lone = integrals[:, : len(lone)]
    sums = combine(lone, at_lone[:2], at_lone[:2] - at_lone[2:])
    values = integrals[:, len(lone) :].reshape(4, cells.count, cells.degree, DEGREE)
    coarse = np.abs(values[:2] - values[2:]).max(axis=(2, 3), initial=0.0)
    coefficients = panels.to_coefficients(cells.degree).T @ values[:2] @ panels.to_coefficients()
    coefficients = np.concatenate(list(coefficients), axis=1)  # those of A, then those of B

    def evaluate(part: slice) -> FloatArray:
        ids, slot, s, in_l = cells.place(part)
        of_powers = panels.evaluate(slot, s, coefficients).reshape(2, cells.degree, len(ids))
        return combine(ids, np.einsum("hlj,lj->hj", of_powers, in_l), coarse[:, slot])

    for some in thread_map(evaluate, chunks(len(flows) if cells.count else 0, _CELL_CHUNK)):
        sums += some
    return flows, float(sums[0]), float(sums[1]), float(sums[2])


# --- kernels: products over atoms at each node, and integrals at each atom ------------------------


class Points(NamedTuple):
    """What the kernels know of the atoms, all (A,), sorted by log w."""

    log_w: FloatArray
    pi: FloatArray  # between 0 and 1
    kappa: FloatArray  # (w - W) / (w + W)
    deviation: FloatArray  # w / W - 1, of which only those below 1 in size are used


@njit
def _take(points: Points, part: slice) -> Points:
    """Return some of the atoms."""
    deviation = points.deviation[part]
    return Points(points.log_w[part], points.pi[part], points.kappa[part], deviation)


@njit
def _place_in_cells(
    slot: IntArray, log_w: FloatArray, decay: FloatArray, largest: float, degree: int
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Return what `_Cells.place` does, of the classes of a part, numbered from 0."""
    ids = np.flatnonzero(slot >= 0)
    s, in_l = np.empty(len(ids)), np.ones((degree, len(ids)))
    for k, j in enumerate(ids):
        t = log_w[j] / WIDTH
        s[k] = 2.0 * (t - math.floor(t)) - 1.0
        x = min(2.0 * (decay[j] / largest) - 1.0, 1.0)
        for i in range(1, degree):
            in_l[i, k] = 2.0 * x * in_l[i - 1, k] - in_l[i - 2, k] if i > 1 else x
    return ids, slot[ids], s, in_l


@njit
def log_products(
    x: FloatArray, log_w: FloatArray, pi: FloatArray, counts: FloatArray, out: FloatArray
) -> None:
    """Write the sum of log f and that plus u sum pi w into `out` (K, 2), at each log u, `x` (K,).

    The atoms (A,) are sorted by `log_w`, with `pi` between 0 and 1; `counts` says how many classes
    each stands for.
    """
    rows, still = np.empty((4, len(log_w))), np.zeros(len(log_w))
    for i in range(len(pi)):
        rows[0, i] = counts[i] * pi[i]
        rows[1, i] = rows[0, i] * (1.0 - pi[i])
        rows[2, i] = counts[i] * np.log1p(-pi[i])
        rows[3, i] = counts[i] * math.exp(log_w[i] + np.log(pi[i]))
    # moments of all below, over their last, and sums of all above
    first, second = far_sums(rows, log_w, False)[0], far_sums(rows, 2.0 * log_w, False)[1]
    above = far_sums(rows, still, True)
    y, f, z = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    for k in range(len(x)):
        flat = count_below(log_w, FLAT - x[k])
        gone = count_below(log_w, GONE - x[k])
        total = above[2, gone]
        excess = total + math.exp(min(x[k], LARGEST_EXPONENT)) * above[3, gone]
        if flat > 0:
            last = math.exp(x[k] + log_w[flat - 1])
            total -= last * first[flat]
            excess += 0.5 * last * last * second[flat]
        for start in range(flat, gone, _BLOCK):
            part = slice(start, min(start + _BLOCK, gone))
            length = part.stop - part.start
            workspace = y[:length], f[:length], z[:length]
            _write_factors(x[k], log_w[part], pi[part], *workspace)
            logs, surplus = _add_logs(counts[part], pi[part], *workspace)
            total += logs
            excess += surplus
        out[k, 0] = total
        out[k, 1] = excess


@njit
def _write_factors(
    x: float, log_w: FloatArray, pi: FloatArray, y: FloatArray, f: FloatArray, z: FloatArray
) -> None:
    """Write y = u w, f of (B26), and z = f - 1 of a block of atoms."""
    for i in range(len(log_w)):
        y[i] = exp64(x + log_w[i])
    for i in range(len(log_w)):
        e = exp64(-y[i])
        t = y[i] if y[i] < _SERIES else _SERIES
        series = second_order_series(t) * t * t - t
        z[i] = pi[i] * (series if y[i] < _SERIES else e - 1.0)
        f[i] = (1.0 - pi[i]) + pi[i] * e


@njit
def _log_less_linear(z: float) -> float:
    """Return log(1 + z) - z for z from -1/10 to 1/10, by a series in q = z / (2 + z)."""
    q = z / (2.0 + z)
    s = q * q
    p = horner(ARTANH[8], ARTANH[9:], s)
    return 2.0 * q * (s * p) - z * q  # type: ignore[no-any-return]


@njit
def _excess_of_likely(rest: float, y: float) -> float:
    """Return log f + pi y of a class with pi = 1 - rest near 1.

    f is exp(-y) times 1 + rest (exp(y) - 1), and what it has beyond exp(-y) is small.
    """
    if y < _CLOSE:
        linear = _log_less_linear(rest * math.expm1(y))
        return linear + rest * (second_order_series(-y) * y * y)
    return math.log1p(rest * math.expm1(y)) - rest * y


@njit
def _add_logs(
    counts: FloatArray, pi: FloatArray, y: FloatArray, f: FloatArray, z: FloatArray
) -> tuple[float, float]:
    """Return the sums of log f and of log f + pi y over a block, times `counts`."""
    for i in range(len(counts)):
        f[i] = log_from_both(z[i], f[i])
    for i in range(len(counts)):
        t = y[i] if y[i] < _CLOSE else _CLOSE
        close = _log_less_linear(z[i]) + pi[i] * (second_order_series(t) * t * t)
        far = f[i] + pi[i] * y[i]
        z[i] = close if y[i] < _CLOSE else far
    for i in range(len(counts)):
        if pi[i] > 0.5 and y[i] < _LIKELY:
            z[i] = _excess_of_likely(1.0 - pi[i], y[i])
    total = excess = 0.0
    for i in range(len(counts)):
        total += counts[i] * f[i]
        excess += counts[i] * z[i]
    return total, excess


@njit
def atom_integrals(
    x: FloatArray,
    weights: FloatArray,
    points: Points,
    log_w_ref: float,
    pi_ref: float,
    out: FloatArray,
) -> None:
    """Add the integrals A and B of (B43) over the nodes log u, `x` (K,), to `out` (4, A).

    The last two rows are the same from every second node. W is exp(log_w_ref), and `log_w_ref`
    -inf where the label is the reference.
    """
    log_w, pi, kappa = points.log_w, points.pi, points.kappa
    num = len(x)
    y_workspace, decay = np.empty(_BLOCK), np.empty(_BLOCK)
    y_refs, weigh = np.empty(num), np.empty(num)
    # what a node brings where y is nearly 0, to A over y / kappa and to B over y; where exp(-y) is
    # 0, to A over y / (kappa (1 - pi))
    at_flat, at_gone = np.zeros((4, num)), np.zeros((4, num))
    for k in range(num):
        y_refs[k] = scaled(x[k], log_w_ref)
        weigh[k] = weights[k] / ((1.0 - pi_ref) + pi_ref * math.exp(-y_refs[k]))
        fall = weigh[k] * math.expm1(-y_refs[k]) if x[k] + log_w_ref >= FLAT else 0.0
        for h in range(0, 4, 2):
            scale = 1.0 if h == 0 else 2.0 if k % 2 == 0 else 0.0
            at_flat[h, k], at_flat[h + 1, k] = -scale * fall, scale * fall
            at_gone[h, k] = -scale * weigh[k] * math.exp(-y_refs[k])
    flat_scales, gone_scales = np.ones((4, len(log_w))), np.ones((4, len(log_w)))
    for h in range(0, 4, 2):
        flat_scales[h], gone_scales[h] = 1.0 / kappa, 1.0 / (kappa * (1.0 - pi))
    early, late = far_sums(at_flat, x, False), far_sums(at_gone, x, True)
    reference = np.array([log_w_ref])
    flat, gone = 0, len(log_w)
    for k in range(num):
        new_flat, new_gone = near_atoms(x[k], log_w, reference)
        add_far(x[max(k - 1, 0)], early, k, log_w, flat_scales, slice(new_flat, flat), out)
        add_far(x[k], late, k, log_w, gone_scales, slice(new_gone, gone), out)
        flat, gone = new_flat, new_gone
        half = 2.0 * weigh[k] if k % 2 == 0 else 0.0
        for start in range(flat, gone if weigh[k] > 0.0 else flat, _BLOCK):
            part = slice(start, min(start + _BLOCK, gone))
            here = _take(points, part)
            # each row by itself, for the compiler has no vector code for a block of several
            rows = out[0][part], out[1][part], out[2][part], out[3][part]
            _add_terms(x[k], weigh[k], half, y_refs[k], here, y_workspace, decay, rows)
    add_far(x[num - 1], early, num, log_w, flat_scales, slice(0, flat), out)


@njit
def _add_terms(
    x: float,
    scale: float,
    half: float,
    y_ref: float,
    points: Points,
    y: FloatArray,
    e: FloatArray,
    out: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
) -> None:
    """Add the terms of one node to the integrals of a block; `y` and `e` are workspace."""
    e_ref, drop_ref = math.exp(-y_ref), math.expm1(-y_ref)
    log_w, pi, kappa, deviation = points.log_w, points.pi, points.kappa, points.deviation
    full_a, full_b, half_a, half_b = out
    for i in range(len(log_w)):
        y[i] = exp64(x + log_w[i])
        e[i] = exp64(-y[i])
    for i in range(len(log_w)):
        away = y_ref * deviation[i] if abs(deviation[i]) < 1.0 else y[i] - y_ref
        near = -1.0 if away < -1.0 else away
        near = 1.0 if near > 1.0 else near
        close = -e_ref * (y[i] + y_ref) * decay_ratio_series(near)
        far = (e[i] - e_ref) / kappa[i]
        over_f = y[i] / ((1.0 - pi[i]) + pi[i] * e[i])
        first = over_f * (close if near == away else far)
        second = over_f * drop_ref * e[i]
        full_a[i] += scale * first
        full_b[i] += scale * second
        half_a[i] += half * first
        half_b[i] += half * second
