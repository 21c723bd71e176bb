"""The exact bias if classes are included independently of each other (scheme ``poisson``).

A class j with softmax probability e is included with probability pi. It then adds the weight
w = e / pi to the sum S, so that E exp(-u S) is a product of factors f = 1 - pi + pi exp(-u w). The
bias follows from *flows*, eq. (B6): the flow of a class is e times the integral of E exp(-u S)
(psi - psi_R) du, with psi = exp(-u w) / f, and psi_R the same for a reference class R. Flows keep
their digits where E[p'] - p would cancel. See section 8 of ``samplesoft/bias/README.md``.

Not every class is evaluated by itself. An *atom* is a pair (log w, pi) that represents a number of
classes. Most classes lie in *cells*, rectangles in the plane of log w and l = -log(1 - pi): the
interval of log w is called panel, and the interval of l is the same for all cells. The Chebyshev
nodes of a cell are atoms. Each class of the cell is spread over them, and integrals at the nodes
are interpolated at the class. A class that is in no cell is a separate atom.

The atoms are sorted by log w. At a node u, the atoms with u w near 0 enter through their moments,
and the terms of atoms with large u w are constant. Only the atoms in between are evaluated one by
one, in blocks that the compiler vectorises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, num_threads, thread_for_each, thread_map
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.numerics.quadrature import (
    RELATIVE_TOLERANCE,
    STEP,
    ExampleBias,
    change_by_half_of_nodes,
    combine_better,
    estimate_error,
    estimate_sum_error,
    halved_steps,
    make_grid,
    relative_term_error_of_logs,
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
from samplesoft.bias.with_replacement.node_weights import difference_of_exp, exponent_magnitudes
from samplesoft.kernels import panels
from samplesoft.kernels.exponential import (
    ARTANH,
    decay_ratio_series,
    exp64,
    horner,
    log_of_one_plus,
    second_order_series,
)
from samplesoft.kernels.panels import DEGREE, WIDTH
from samplesoft.kernels.sort_ids import count_below

_CLASSES_PER_CHUNK = 1 << 13
_ATOMS_PER_CHUNK = 2048
_ATOMS_PER_BLOCK = 512
_MIN_TERMS_PER_THREAD = 1 << 13  # a term is one atom at one node

# limits of the cells; classes beyond them are separate atoms
_MAX_CELL_DECAY = np.log(2.0)  # largest l, which is that of pi = 1/2
_MAX_CELL_LOG_W = 1e6  # largest |log w|, in nats
_CLASSES_PER_LONE_ATOM = 256  # one class in 256 may have an l beyond the cells, to make them small
_INTERPOLATION_ERROR = 1e-16  # relative error of the interpolation in l

# largest kappa for which the kernels use w / W - 1, which is then at most 1
_MAX_KAPPA_OF_DEVIATION = 1.0 / 3.0

# values of y = u w below which a formula without cancellation replaces:
_MAX_Y_OF_SERIES = 0.5  # 1 - exp(-y)
_MAX_Y_OF_EXCESS_SERIES = 0.1  # log f + pi y
_MAX_Y_OF_LIKELY = 40.0  # log f + pi y for pi > 1/2


def poisson_bias(logits: FloatArray, label: int, q: FloatArray) -> ExampleBias:
    """Return the exact bias of one example with inclusion probabilities `q` (n,).

    The bias is E[p'] minus the softmax e. For a class j with q < 1, the expectation is, eq. (B26),
    ``E[p'_j] = e_j int exp(-u (a + w_j)) prod_{k != j} (1 - q_k + q_k exp(-u w_k)) du``, where
    w = e / q, and a is the softmax mass of the label and of all classes with q = 1.
    """
    draws = make_inclusion_draws(logits, label, q)
    probs = draws.probs
    always_in = draws.always_in
    classes = draws.classes
    unit = draws.term_rounding

    if draws.random_mass == 0.0:
        return ExampleBias(np.zeros_like(probs), probs, 0.0, 0.0, 0.0)

    atoms = make_inclusion_atoms(classes)
    loss_unit = max(unit, relative_term_error_of_logs(draws.log_probs))

    # a later attempt with a bias that is not finite never replaces the best one
    best = None
    with np.errstate(all="ignore"):
        for step in halved_steps(STEP):
            nodes = make_inclusion_nodes(classes, atoms, draws.log_base, step)
            flows, flow_sum, magnitude, change = _integrate_flows(
                classes, atoms, nodes.x, nodes.weights
            )
            base_flow = float(nodes.base_terms.sum())
            bias = flows - probs * (flow_sum + base_flow)  # (B9)

            # (B9) would cancel for the always-included classes, so their bias has another formula
            bias[always_in] = (
                draws.fractions * base_flow * draws.random_mass - probs[always_in] * flow_sum
            )

            change += change_by_half_of_nodes(nodes.base_terms)
            magnitude += float(np.abs(nodes.base_terms).sum())
            bias_norm = float(np.abs(bias).sum())
            loss_magnitude = float(nodes.loss_magnitudes.sum())

            row = ExampleBias(
                bias=bias,
                probs=probs,
                loss_bias=float(nodes.loss_terms.sum()),
                error=estimate_error(change, magnitude, bias_norm, unit),
                loss_error=estimate_sum_error(nodes.loss_terms, loss_magnitude, loss_unit),
            )
            best = combine_better(best, row)

            max_error = (RELATIVE_TOLERANCE + 4.0 * unit) * bias_norm
            max_loss_error = (RELATIVE_TOLERANCE + 4.0 * loss_unit) * loss_magnitude
            if row.error <= max_error and row.loss_error <= max_loss_error:
                break

    assert best is not None
    return best


class InclusionDraws(NamedTuple):
    """The classes of one example, divided into randomly included and always-included ones.

    The label is always included. The softmax mass of the k always-included classes is the base mass
    of S.
    """

    log_probs: FloatArray  # (n,) log-softmax
    probs: FloatArray  # (n,) softmax
    always_in: NDArray[np.bool_]  # (n,) whether a class is always included
    classes: IncludedClasses
    random_mass: float  # softmax mass of the classes that are not always included
    log_base: float  # log of the base mass
    fractions: FloatArray  # (k,) share of each always-included class in the base mass
    term_rounding: float  # relative rounding error of a term of the integrals


def make_inclusion_draws(logits: FloatArray, label: int, q: FloatArray) -> InclusionDraws:
    """Return the classes of one example, given inclusion probabilities `q` (n,).

    A probability above 1 counts as 1.
    """
    pi = np.minimum(q, 1.0)
    always_in = pi == 1.0
    always_in[label] = True
    pi[always_in] = 0.0
    drawn = pi > 0.0

    log_probs = log_softmax(logits)
    probs = np.exp(log_probs)
    classes = make_included_classes(logits, probs, log_probs, pi)
    log_base = log_total_mass(log_probs[always_in])

    unit = relative_term_error_of_logs(log_probs[drawn], np.log(pi[drawn]))
    unit = max(unit, relative_term_error_of_logs(log_probs[always_in]))

    random_mass = float(probs[~always_in].sum())
    fractions = np.exp(log_probs[always_in] - log_base)

    return InclusionDraws(
        log_probs, probs, always_in, classes, random_mass, log_base, fractions, unit
    )


class InclusionNodes(NamedTuple):
    """K nodes in log u, their weights, and the terms of the integrals, all (K,)."""

    x: FloatArray  # log u
    weights: FloatArray  # E exp(-u S) times the quadrature weight of du / u
    base_terms: FloatArray  # terms of the flow (B6) of the base mass: multiples of 1 - psi_R
    loss_terms: FloatArray  # terms of E[log S]
    loss_magnitudes: FloatArray  # sums of the magnitudes from which `loss_terms` are computed


def make_inclusion_nodes(
    classes: IncludedClasses, atoms: InclusionAtoms, log_base: float, step: float
) -> InclusionNodes:
    """Return the nodes in log u with the given `step`, and the terms of the integrals at the nodes.

    The nodes cover all u at which the product of the factors f changes. `log_base` is the log of
    the base mass.
    """
    # the integrand changes at rates up to the largest w, or 1 because of exp(-u), and decays at
    # least at the rate of the base mass
    x, dx = make_grid(max(float(classes.log_w.max()), 0.0), log_base, step)

    products = _log_products_at_nodes(atoms, x)
    with np.errstate(over="ignore", under="ignore"):
        u_base = np.exp(np.minimum(x + log_base, LARGEST_EXPONENT))
        log_weights = products[:, 0] - u_base
        weights = dx * np.exp(log_weights)

        u = np.exp(np.minimum(x, LARGEST_EXPONENT))
        loss = -dx * difference_of_exp(log_weights, -u, products[:, 1])
        loss_magnitudes = exponent_magnitudes(np.abs(loss), log_weights)
        base_terms = weights * u_base * base_contrast(x, classes)

    return InclusionNodes(x, weights, base_terms, loss, loss_magnitudes)


def log_total_mass(log_masses: FloatArray) -> float:
    """Return ``log(sum(exp(log_masses)))`` for `log_masses` (k,); a single entry is unchanged."""
    if len(log_masses) == 1:
        return float(log_masses[0])
    largest = log_masses.max()
    return float(largest + np.log(np.exp(log_masses - largest).sum()))


def base_contrast(x: FloatArray, classes: IncludedClasses) -> FloatArray:
    """Return 1 - psi_R (K,) at the nodes `x` = log u, with psi_R = exp(-u W) / f_R.

    R is the reference class, with the weight W and the factor f_R.
    """
    pi = classes.pi_ref
    y = np.exp(np.minimum(x + classes.log_w_ref, LARGEST_EXPONENT))
    factor = (1.0 - pi) + pi * np.exp(-y)
    return -(1.0 - pi) * np.expm1(-y) / factor


# --- classes, and the atoms that represent them ------------------------------------------------


@dataclass(frozen=True)
class IncludedClasses:
    """The classes that are included at random, and a reference class with which they are compared.

    `kappa` compares the w of each class with W, the w of the reference class. Arrays are (n,);
    ``pi`` is 0 for a class that is never or always included.
    """

    log_w: FloatArray  # log of w = softmax probability / pi
    pi: FloatArray  # inclusion probability
    decay: FloatArray  # l = -log(1 - pi)
    kappa: FloatArray  # kappa = (w - W) / (w + W)
    log_w_ref: float  # log W; -inf if the reference class is the label
    pi_ref: float  # pi of the reference class; 0 if it is the label


@dataclass(frozen=True)
class _ClassesInCells:
    """The cell of each class; a cell is a rectangle, a panel of log w times the range of l."""

    classes: IncludedClasses
    cell_ids: IntArray  # (n,) index of the cell of each class; -1 for none
    num_cells: int
    max_decay: float  # upper end of l in cells; the lower end is 0
    degree: int  # number of Chebyshev polynomials in l

    def locate(self, chunk: slice) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        """Return the classes of a slice that lie in cells, and their coordinates in the cells.

        Returns four arrays: the indices (k,) of the classes; the indices (k,) of their cells; their
        positions (k,) in the panels of log w, scaled to [-1, 1]; and the values (degree, k) of the
        Chebyshev polynomials at their positions in the range of l.
        """
        coordinates = self.cell_ids[chunk], self.classes.log_w[chunk], self.classes.decay[chunk]
        ids, *coordinates_in_cells = _locate_in_cells(*coordinates, self.max_decay, self.degree)
        return chunk.start + ids, *coordinates_in_cells


@dataclass(frozen=True)
class InclusionAtoms:
    """The A atoms that represent all randomly included classes, sorted by log w.

    Before sorting, the classes that are in no cell came first, followed by the nodes of the cells.
    """

    points: InclusionPoints
    counts: FloatArray  # (A,) number of classes that each atom represents; may be fractional
    unsorted_index: IntArray  # (A,) index of each atom before sorting
    lone_classes: IntArray  # the classes that are in no cell, and are separate atoms
    cells: _ClassesInCells


def make_included_classes(
    logits: FloatArray, probs: FloatArray, log_probs: FloatArray, pi: FloatArray
) -> IncludedClasses:
    """Return the randomly included classes, with their weights w = e / pi and the reference class.

    `pi` (n,) must be 0 for the always-included classes. The reference class is the softmax-weighted
    median of (1 - pi) w, because psi is ordered by this value at small u. The always-included
    classes have psi = 1 and the value 0; if the median is one of them, W is 0.
    """
    drawn = pi > 0.0
    with np.errstate(divide="ignore"):
        log_w = np.where(drawn, log_probs - np.log(pi), -np.inf)
    decay = -np.log1p(-pi)

    log_key = np.where(drawn, log_w - decay, -np.inf)
    floor = float(np.min(log_key, where=drawn, initial=np.inf)) - 1.0
    reference = weighted_median(np.where(drawn, log_key, floor), probs)
    if not drawn[reference]:
        return IncludedClasses(log_w, pi, decay, drawn.astype(float), -np.inf, 0.0)

    kappa = np.zeros(len(pi))
    at_reference = float(logits[reference]), float(pi[reference]), float(log_w[reference])

    def write_kappas(chunk: slice) -> None:
        # the sums that `relative_ratios` returns are not used, so pi replaces `drawn` and `probs`
        pi_chunk = pi[chunk]
        relative_ratios(
            logits[chunk], log_w[chunk], pi_chunk, pi_chunk, pi_chunk, at_reference, kappa[chunk]
        )

    thread_for_each(write_kappas, chunks(len(pi), CLASS_CHUNK))
    return IncludedClasses(log_w, pi, decay, kappa, float(log_w[reference]), float(pi[reference]))


def make_inclusion_atoms(included: IncludedClasses) -> InclusionAtoms:
    """Return atoms that represent the classes, eq. (B43).

    A panel of log w becomes a cell if it holds more classes than the cell has nodes. Classes in
    other panels become separate atoms.
    """
    drawn = np.flatnonzero(included.pi)
    max_decay = _max_decay_in_cells(included.decay[drawn])

    # As a function of l, 1 / f has poles at distance pi = 3.14 from the real axis. The larger the
    # range of l relative to this distance, the higher the degree that interpolation needs.
    ratio = 2.0 * np.pi / max_decay
    degree = int(np.ceil(-np.log(_INTERPOLATION_ERROR) / np.log(ratio + np.hypot(ratio, 1.0))))

    # exclude classes far from all others before counting: they would need a huge range of panels
    near_classes = drawn[
        (included.decay[drawn] <= max_decay) & (np.abs(included.log_w[drawn]) < _MAX_CELL_LOG_W)
    ]
    panel_ids = np.floor(included.log_w[near_classes] / WIDTH).astype(np.int64)
    first_panel = int(panel_ids.min(initial=0))
    is_crowded = np.bincount(panel_ids - first_panel) > DEGREE * degree

    panel_cells = np.where(is_crowded, np.cumsum(is_crowded) - 1, -1)
    cell_ids = np.full(len(included.pi), -1)
    cell_ids[near_classes] = panel_cells[panel_ids - first_panel]

    cells = _ClassesInCells(included, cell_ids, int(is_crowded.sum()), max_decay, degree)
    lone = drawn[cell_ids[drawn] < 0]
    log_w, pi, counts = _classes_at_cell_nodes(cells, first_panel + np.flatnonzero(is_crowded))

    # if the label is the reference, log W is -inf and kappa is 1
    kappa = np.tanh(0.5 * (log_w - included.log_w_ref))
    lone_columns = included.log_w[lone], included.pi[lone], included.kappa[lone], np.ones(len(lone))
    columns = np.concatenate([lone_columns, (log_w, pi, kappa, counts)], axis=1)

    order = np.argsort(columns[0], kind="stable")
    log_w, pi, kappa, counts = columns.take(order, axis=1)
    deviation = np.where(
        kappa < _MAX_KAPPA_OF_DEVIATION, 2.0 * kappa / (1.0 - np.minimum(kappa, 0.5)), 2.0
    )

    return InclusionAtoms(InclusionPoints(log_w, pi, kappa, deviation), counts, order, lone, cells)


def _max_decay_in_cells(decay: FloatArray) -> float:
    """Return the upper end of l in cells: a high quantile of `decay` (k,), at most log 2.

    A smaller range of l needs fewer nodes. The few classes with a larger l become separate atoms.
    """
    num_excluded = len(decay) // _CLASSES_PER_LONE_ATOM
    index = len(decay) - 1 - num_excluded
    quantile = float(np.partition(decay, index)[index])
    return min(max(quantile, 1e-300), float(_MAX_CELL_DECAY))


def _classes_at_cell_nodes(
    cells: _ClassesInCells, panel_ids: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return log w, pi and the number of classes of each node of all cells, three arrays (k,).

    `panel_ids` are the indices of the panels of the cells.
    """
    degree = cells.degree
    shape = (cells.num_cells, cells.degree, DEGREE)

    def weighted_classes(chunk: slice) -> tuple[IntArray, FloatArray, FloatArray]:
        ids, cell_ids, positions, polynomials = cells.locate(chunk)
        return cell_ids, positions, cells.classes.pi[ids] * polynomials

    num_classes = len(cells.cell_ids) if cells.num_cells else 0
    moments = class_moments(weighted_classes, num_classes, shape[:2])

    # spread classes over nodes: multiply by the transposed matrices of the interpolation in l and
    # in log w
    weights = panels.coefficient_matrix(degree) @ moments @ panels.coefficient_matrix().T

    pi = -np.expm1(-cells.max_decay * panels.node_positions(degree))[:, None]
    log_w_in_cells = WIDTH * (panel_ids[:, None, None] + panels.node_positions())
    log_w = np.broadcast_to(log_w_in_cells, shape).ravel()
    return log_w, np.broadcast_to(pi, shape).ravel(), (weights / pi).ravel()


def _log_products_at_nodes(atoms: InclusionAtoms, x: FloatArray) -> FloatArray:
    """Return ``sum log f`` and ``sum (log f + pi u w)`` over the classes, (K, 2), at K nodes.

    `x` (K,) is log u of the nodes.
    """
    sums = np.empty((len(x), 2))

    def write_products(chunk: slice) -> None:
        log_products(x[chunk], atoms.points.log_w, atoms.points.pi, atoms.counts, sums[chunk])

    # each call of `log_products` first sums over all atoms, so a chunk must have enough nodes
    min_nodes = max(32, _MIN_TERMS_PER_THREAD // max(len(atoms.unsorted_index), 1))
    num_nodes = max(min_nodes, -(-len(x) // (4 * num_threads())))
    thread_for_each(write_products, chunks(len(x), num_nodes))
    return sums


def _integrate_flows(
    included: IncludedClasses, atoms: InclusionAtoms, x: FloatArray, weights: FloatArray
) -> tuple[FloatArray, float, float, float]:
    """Return the flows (B6) of all classes (n,), their sum, and two scalars for error estimates.

    The scalars are the sum of the magnitudes of all terms, and the sum over the classes of the
    change of the flow if only every second node is used.
    """
    integrals = np.empty((4, len(atoms.unsorted_index)))

    def integrate_slice(chunk: slice) -> None:
        chunk_integrals = np.zeros((4, chunk.stop - chunk.start))
        points = _slice_points(atoms.points, chunk)
        atom_integrals(x, weights, points, included.log_w_ref, included.pi_ref, chunk_integrals)
        integrals[:, atoms.unsorted_index[chunk]] = chunk_integrals

    thread_for_each(integrate_slice, chunks(len(atoms.unsorted_index), _ATOMS_PER_CHUNK))

    lone = atoms.lone_classes
    cells = atoms.cells
    flows = np.zeros(len(included.pi))

    def write_flows(ids: IntArray, values: FloatArray, changes: FloatArray) -> FloatArray:
        """Write the flows of classes `ids`; return sums of flows, of magnitudes, of changes."""
        pi = included.pi[ids]
        scales = pi * np.stack([(1.0 - pi) * included.kappa[ids], included.pi_ref - pi])
        terms = scales * values
        flows[ids] = terms.sum(axis=0)
        return np.array([flows[ids].sum(), np.abs(terms).sum(), np.abs(scales * changes).sum()])

    lone_integrals = integrals[:, : len(lone)]
    sums = write_flows(lone, lone_integrals[:2], lone_integrals[:2] - lone_integrals[2:])

    values = integrals[:, len(lone) :].reshape(4, cells.num_cells, cells.degree, DEGREE)
    cell_changes = np.abs(values[:2] - values[2:]).max(axis=(2, 3), initial=0.0)

    # coefficients of the polynomials that interpolate the integrals A, and then B, of (B43)
    coefficients = (
        panels.coefficient_matrix(cells.degree).T @ values[:2] @ panels.coefficient_matrix()
    )
    coefficients = np.concatenate(list(coefficients), axis=1)

    def interpolate_flows(chunk: slice) -> FloatArray:
        ids, cell_ids, positions, polynomials = cells.locate(chunk)
        by_degree = panels.evaluate(cell_ids, positions, coefficients)
        by_degree = by_degree.reshape(2, cells.degree, len(ids))
        interpolated = np.einsum("hlj,lj->hj", by_degree, polynomials)
        return write_flows(ids, interpolated, cell_changes[:, cell_ids])

    num_classes = len(flows) if cells.num_cells else 0
    for chunk_sums in thread_map(interpolate_flows, chunks(num_classes, _CLASSES_PER_CHUNK)):
        sums += chunk_sums

    return flows, float(sums[0]), float(sums[1]), float(sums[2])


# --- kernels: products over atoms at each node, and integrals at each atom ------------------------


class InclusionPoints(NamedTuple):
    """The A atoms as arrays (A,) for the kernels, sorted by log w.

    W is the w of the reference class.
    """

    log_w: FloatArray
    pi: FloatArray  # between 0 and 1
    kappa: FloatArray  # (w - W) / (w + W)
    deviation: FloatArray  # w / W - 1; only values from -1 to 1 are used


@njit
def _slice_points(points: InclusionPoints, chunk: slice) -> InclusionPoints:
    """Return the atoms of a slice."""
    deviation = points.deviation[chunk]
    return InclusionPoints(points.log_w[chunk], points.pi[chunk], points.kappa[chunk], deviation)


@njit
def _locate_in_cells(
    cell_ids: IntArray, log_w: FloatArray, decay: FloatArray, max_decay: float, degree: int
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Return the four arrays of `_ClassesInCells.locate`, with class indices relative to the slice.

    `cell_ids`, `log_w` and `decay` are the index of the cell, log w and l of each class of the
    slice. `max_decay` is the upper end of l in cells, and `degree` the number of Chebyshev
    polynomials in l.
    """
    ids = np.flatnonzero(cell_ids >= 0)
    positions = np.empty(len(ids))
    polynomials = np.ones((degree, len(ids)))

    for k, j in enumerate(ids):
        t = log_w[j] / WIDTH
        positions[k] = 2.0 * (t - math.floor(t)) - 1.0

        x = min(2.0 * (decay[j] / max_decay) - 1.0, 1.0)
        for i in range(1, degree):
            polynomials[i, k] = (
                2.0 * x * polynomials[i - 1, k] - polynomials[i - 2, k] if i > 1 else x
            )

    return ids, cell_ids[ids], positions, polynomials


@njit
def log_products(
    x: FloatArray, log_w: FloatArray, pi: FloatArray, counts: FloatArray, out: FloatArray
) -> None:
    """Write ``sum log f`` and ``sum (log f + pi u w)`` to `out` (K, 2), at K nodes `x` = log u.

    The sums are over atoms (A,), sorted by `log_w`, with `pi` between 0 and 1 and the number of
    classes `counts`.

    For small u, log f is about -pi u w, so that log f + pi u w would lose all digits. So each term
    of the second sum is computed without cancellation: from second moments if u w is tiny, by a
    series up to u w = 0.1, and as it is written for larger u w.
    """
    rows = np.empty((4, len(log_w)))
    zeros = np.zeros(len(log_w))
    for i in range(len(pi)):
        rows[0, i] = counts[i] * pi[i]
        rows[1, i] = rows[0, i] * (1.0 - pi[i])
        rows[2, i] = counts[i] * np.log1p(-pi[i])
        rows[3, i] = counts[i] * math.exp(log_w[i] + np.log(pi[i]))

    # for each atom: moments of all atoms with smaller log w, and sums over all atoms with larger
    # log w
    first_moments = far_sums(rows, log_w, False)[0]
    second_moments = far_sums(rows, 2.0 * log_w, False)[1]
    gone_sums = far_sums(rows, zeros, True)

    y = np.empty(_ATOMS_PER_BLOCK)
    f = np.empty(_ATOMS_PER_BLOCK)
    z = np.empty(_ATOMS_PER_BLOCK)
    for k in range(len(x)):
        flat_stop = count_below(log_w, FLAT - x[k])
        gone_start = count_below(log_w, GONE - x[k])

        total = gone_sums[2, gone_start]
        excess = total + math.exp(min(x[k], LARGEST_EXPONENT)) * gone_sums[3, gone_start]
        if flat_stop > 0:
            last_y = math.exp(x[k] + log_w[flat_stop - 1])
            total -= last_y * first_moments[flat_stop]
            excess += 0.5 * last_y * last_y * second_moments[flat_stop]

        for start in range(flat_stop, gone_start, _ATOMS_PER_BLOCK):
            block = slice(start, min(start + _ATOMS_PER_BLOCK, gone_start))
            length = block.stop - block.start
            workspace = y[:length], f[:length], z[:length]

            _write_factors(x[k], log_w[block], pi[block], *workspace)
            logs, surplus = _sum_logs_and_excess(counts[block], pi[block], *workspace)
            total += logs
            excess += surplus

        out[k, 0] = total
        out[k, 1] = excess


@njit
def _write_factors(
    x: float, log_w: FloatArray, pi: FloatArray, y: FloatArray, f: FloatArray, z: FloatArray
) -> None:
    """Write y = u w, the factor f of (B26), and z = f - 1 for a block of atoms, at `x` = log u.

    exp(-y) - 1 loses digits for small y. So for y up to 1/2 this uses the series of expm1(-y).
    """
    for i in range(len(log_w)):
        y[i] = exp64(x + log_w[i])

    for i in range(len(log_w)):
        e = exp64(-y[i])
        t = y[i] if y[i] < _MAX_Y_OF_SERIES else _MAX_Y_OF_SERIES
        series = second_order_series(t) * t * t - t
        z[i] = pi[i] * (series if y[i] < _MAX_Y_OF_SERIES else e - 1.0)
        f[i] = (1.0 - pi[i]) + pi[i] * e


@njit
def _log1p_minus_linear(z: float) -> float:
    """Return ``log(1 + z) - z`` for z from -1/10 to 1/10.

    The difference loses digits as z tends to 0. With q = z / (2 + z), log(1 + z) is
    2 artanh(q) = 2 (q + q^3 / 3 + ...), and z - 2 q = z q. So the result is
    2 (q^3 / 3 + ...) - z q, in which nothing cancels.
    """
    q = z / (2.0 + z)
    s = q * q
    p = horner(ARTANH[8], ARTANH[9:], s)
    return 2.0 * q * (s * p) - z * q  # type: ignore[no-any-return]


@njit
def _excess_of_likely_class(miss_prob: float, y: float) -> float:
    """Return ``log f + pi y`` for pi = 1 - `miss_prob` above 1/2 and y up to 40.

    log f is near -y, so that the sum would cancel. With s = `miss_prob`, f is
    exp(-y) (1 + s (exp(y) - 1)), and the sum is log(1 + s (exp(y) - 1)) - s y.
    """
    if y < _MAX_Y_OF_EXCESS_SERIES:
        log_minus_linear = _log1p_minus_linear(miss_prob * math.expm1(y))
        return log_minus_linear + miss_prob * (second_order_series(-y) * y * y)
    return math.log1p(miss_prob * math.expm1(y)) - miss_prob * y


@njit
def _sum_logs_and_excess(
    counts: FloatArray, pi: FloatArray, y: FloatArray, f: FloatArray, z: FloatArray
) -> tuple[float, float]:
    """Return the sums of ``log f`` and of ``log f + pi y`` over a block, weighted by `counts`.

    `y`, `f` and `z` are the results of `_write_factors`; `f` and `z` are overwritten.
    """
    for i in range(len(counts)):
        f[i] = log_of_one_plus(z[i], f[i])

    for i in range(len(counts)):
        t = y[i] if y[i] < _MAX_Y_OF_EXCESS_SERIES else _MAX_Y_OF_EXCESS_SERIES
        value_near_zero = _log1p_minus_linear(z[i]) + pi[i] * (second_order_series(t) * t * t)
        value = f[i] + pi[i] * y[i]
        z[i] = value_near_zero if y[i] < _MAX_Y_OF_EXCESS_SERIES else value

    for i in range(len(counts)):
        if pi[i] > 0.5 and y[i] < _MAX_Y_OF_LIKELY:
            z[i] = _excess_of_likely_class(1.0 - pi[i], y[i])

    total = excess = 0.0
    for i in range(len(counts)):
        total += counts[i] * f[i]
        excess += counts[i] * z[i]

    return total, excess


@njit
def atom_integrals(
    x: FloatArray,
    weights: FloatArray,
    points: InclusionPoints,
    log_w_ref: float,
    pi_ref: float,
    out: FloatArray,
) -> None:
    """Add the integrals A and B of (B43) for each of k atoms to `out` (4, k).

    A and B by all nodes `x` = log u (K,) with their `weights` are the first two rows; A and B by
    every second node are the last two. `log_w_ref` is log W, or -inf if the label is the reference
    class.
    """
    log_w = points.log_w
    pi = points.pi
    kappa = points.kappa

    num_nodes = len(x)
    y_workspace = np.empty(_ATOMS_PER_BLOCK)
    decay = np.empty(_ATOMS_PER_BLOCK)
    y_refs = np.empty(num_nodes)
    scales = np.empty(num_nodes)

    # Terms of each node in the two limits of y. If y is nearly 0, the atom is called flat: the term
    # of A is a multiple of y / kappa, and the term of B a multiple of y. If exp(-y) is 0, the atom
    # is called gone: the term of A is a multiple of y / (kappa (1 - pi)), and the term of B is 0.
    at_flat = np.zeros((4, num_nodes))
    at_gone = np.zeros((4, num_nodes))

    for k in range(num_nodes):
        y_refs[k] = scaled(x[k], log_w_ref)
        scales[k] = weights[k] / ((1.0 - pi_ref) + pi_ref * math.exp(-y_refs[k]))
        flat_term = scales[k] * math.expm1(-y_refs[k]) if x[k] + log_w_ref >= FLAT else 0.0

        for h in range(0, 4, 2):
            scale = 2.0 if k % 2 == 0 else 0.0
            if h == 0:
                scale = 1.0
            at_flat[h, k] = -scale * flat_term
            at_flat[h + 1, k] = scale * flat_term
            at_gone[h, k] = -scale * scales[k] * math.exp(-y_refs[k])

    flat_scales = np.ones((4, len(log_w)))
    gone_scales = np.ones((4, len(log_w)))
    for h in range(0, 4, 2):
        flat_scales[h] = 1.0 / kappa
        gone_scales[h] = 1.0 / (kappa * (1.0 - pi))

    early = far_sums(at_flat, x, False)
    late = far_sums(at_gone, x, True)

    reference = np.array([log_w_ref])
    flat_stop = 0
    gone_start = len(log_w)
    for k in range(num_nodes):
        # An atom that stops being flat at this node gets the terms of all earlier nodes at once. An
        # atom that is gone from this node on gets the terms of this node and of all later nodes.
        new_flat_stop, new_gone_start = near_atoms(x[k], log_w, reference)
        no_longer_flat = slice(new_flat_stop, flat_stop)
        newly_gone = slice(new_gone_start, gone_start)
        add_far(x[max(k - 1, 0)], early, k, log_w, flat_scales, no_longer_flat, out)
        add_far(x[k], late, k, log_w, gone_scales, newly_gone, out)
        flat_stop = new_flat_stop
        gone_start = new_gone_start

        half_scale = 2.0 * scales[k] if k % 2 == 0 else 0.0
        stop = gone_start if scales[k] > 0.0 else flat_stop
        for start in range(flat_stop, stop, _ATOMS_PER_BLOCK):
            block = slice(start, min(start + _ATOMS_PER_BLOCK, gone_start))
            block_points = _slice_points(points, block)

            # pass each row as an array: the compiler does not vectorise over rows of a 2-d array
            rows = out[0][block], out[1][block], out[2][block], out[3][block]
            _add_node_terms(
                x[k], scales[k], half_scale, y_refs[k], block_points, y_workspace, decay, rows
            )

    add_far(x[num_nodes - 1], early, num_nodes, log_w, flat_scales, slice(0, flat_stop), out)


@njit
def _add_node_terms(
    x: float,
    scale: float,
    half_scale: float,
    y_ref: float,
    points: InclusionPoints,
    y: FloatArray,
    e: FloatArray,
    out: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
) -> None:
    """Add the terms of one node `x` = log u to the four integrals `out` of a block of atoms.

    `scale` is the weight of the node in the rule by all nodes, and `half_scale` its weight in the
    rule by every second node. `y` and `e` are workspace.

    (exp(-y) - exp(-y_ref)) / kappa loses digits if w is near W. With d = y - y_ref, which equals
    kappa (y + y_ref), it is -exp(-y_ref) (y + y_ref) (1 - exp(-d)) / d. This is used for |d| <= 1.
    """
    e_ref = math.exp(-y_ref)
    drop_ref = math.expm1(-y_ref)
    log_w = points.log_w
    pi = points.pi
    kappa = points.kappa
    deviation = points.deviation
    full_a, full_b, half_a, half_b = out

    for i in range(len(log_w)):
        y[i] = exp64(x + log_w[i])
        e[i] = exp64(-y[i])

    for i in range(len(log_w)):
        y_difference = y_ref * deviation[i] if abs(deviation[i]) < 1.0 else y[i] - y_ref
        clipped = -1.0 if y_difference < -1.0 else y_difference
        clipped = 1.0 if clipped > 1.0 else clipped
        difference_near_reference = -e_ref * (y[i] + y_ref) * decay_ratio_series(clipped)
        difference = (e[i] - e_ref) / kappa[i]

        y_over_f = y[i] / ((1.0 - pi[i]) + pi[i] * e[i])
        term_a = y_over_f * (difference_near_reference if clipped == y_difference else difference)
        term_b = y_over_f * drop_ref * e[i]

        full_a[i] += scale * term_a
        full_b[i] += scale * term_b
        half_a[i] += half_scale * term_a
        half_b[i] += half_scale * term_b
