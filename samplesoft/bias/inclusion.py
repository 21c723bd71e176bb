"""Independent inclusion: classes by their log w and pi, and the atoms that stand for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samplesoft._jit import chunks, thread_each, thread_map
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.sums import CLASS_CHUNK, moment_chunks, node_chunks
from samplesoft.kernels.bias import cells, panels, ratios
from samplesoft.kernels.bias import poisson as kernels
from samplesoft.kernels.bias.cells import CellClasses

_ATOM_CHUNK = 2048
_LARGEST_DECAY = np.log(2.0)  # of classes in cells: one of pi above 1/2 is by itself
_LONE = 256  # one class in so many may be by itself to let the others have a smaller range
_PRECISION = 1e-16
_SURE = 1.0 / 3.0  # of kappa: above it w / W - 1 is not needed


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
class InclusionAtoms:
    """Atoms (A,) in the order of log w: first `lone` classes, then nodes of cells, then sorted."""

    log_w: FloatArray
    pi: FloatArray
    contrast: FloatArray
    counts: FloatArray  # how many classes each stands for
    order: IntArray  # number of each before they were sorted
    lone: IntArray  # the classes that are their own atoms
    classes: CellClasses
    shape: tuple[int, int]  # cells, degree in l


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
    reference = ratios.weighted_median(np.where(drawn, order, floor), probs)
    if not drawn[reference]:
        return Included(log_w, pi, decay, drawn.astype(float), -np.inf, 0.0)
    contrast = np.zeros(len(pi))

    def work(part: slice) -> None:
        ratios.relative_ratios(logits, log_w, pi, pi, reference, contrast, part.start, part.stop)

    thread_each(work, chunks(len(pi), CLASS_CHUNK))
    return Included(log_w, pi, decay, contrast, float(log_w[reference]), float(pi[reference]))


def make_atoms(own: Included) -> InclusionAtoms:
    """Compress the classes to the nodes of cells, where that makes fewer of them, eq. (B43)."""
    drawn = np.flatnonzero(own.pi)
    largest = _range_of_cells(own.decay[drawn])
    # the poles of 1 / f in l are pi away from the real axis
    ratio = 2.0 * np.pi / largest
    degree = int(np.ceil(-np.log(_PRECISION) / np.log(ratio + np.hypot(ratio, 1.0))))
    slot = np.full(len(own.pi), -1)
    fit = drawn[own.decay[drawn] <= largest]
    places = np.floor(own.log_w[fit] / panels.WIDTH).astype(np.int64)
    first = int(places.min(initial=0))
    crowded = np.bincount(places - first) > panels.DEGREE * degree
    numbers = np.where(crowded, np.cumsum(crowded) - 1, -1)
    slot[fit] = numbers[places - first]
    classes = CellClasses(own.log_w, own.pi, own.decay, own.contrast, slot, largest)
    lone = drawn[slot[drawn] < 0]
    log_w, pi, counts = _nodes(classes, first + np.flatnonzero(crowded), degree)
    contrast = np.ones(len(log_w))
    if own.log_w_ref > -np.inf:
        contrast = np.tanh(0.5 * (log_w - own.log_w_ref))
    every = np.append(own.log_w[lone], log_w)
    order = np.argsort(every, kind="stable")
    return InclusionAtoms(
        every[order],
        np.append(own.pi[lone], pi)[order],
        np.append(own.contrast[lone], contrast)[order],
        np.append(np.ones(len(lone)), counts)[order],
        order,
        lone,
        classes,
        (int(crowded.sum()), degree),
    )


def _range_of_cells(decay: FloatArray) -> float:
    """Return the largest l in cells: what few classes exceed, for a small range is cheap."""
    few = len(decay) // _LONE
    common = float(np.partition(decay, len(decay) - 1 - few)[len(decay) - 1 - few])
    return min(max(common, 1e-300), float(_LARGEST_DECAY))


def _nodes(
    classes: CellClasses, places: IntArray, degree: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return log w, pi and the counts of the nodes of the cells at `places`, in one row each."""
    shape = len(places), degree, panels.DEGREE

    def work(part: slice) -> FloatArray:
        moments = np.zeros(shape)
        cells.add_moments(classes, part.start, part.stop, moments)
        return moments

    moments = np.zeros(shape)
    num_classes = len(classes.pi) if len(places) else 0
    for some in thread_map(work, moment_chunks(num_classes, moments.size)):
        moments += some
    # the transpose of interpolation in either direction
    weights = panels.to_coefficients(degree) @ moments @ panels.to_coefficients().T
    pi = -np.expm1(-classes.largest * panels.node_places(degree))[:, None]
    t = panels.WIDTH * (places[:, None, None] + panels.node_places())
    log_w = np.broadcast_to(t, shape).ravel()
    return log_w, np.broadcast_to(pi, shape).ravel(), (weights / pi).ravel()


def sum_logs(atoms: InclusionAtoms, x: FloatArray) -> FloatArray:
    """Return the logs of the products of f, and those plus u sum pi w, (K, 2) at log u, `x`."""
    sums = np.empty((len(x), 2))

    def work(part: slice) -> None:
        kernels.log_products(x[part], atoms.log_w, atoms.pi, atoms.counts, sums[part])

    thread_each(work, node_chunks(len(x)))
    return sums


def integrate_flows(
    own: Included, atoms: InclusionAtoms, x: FloatArray, weights: FloatArray
) -> tuple[FloatArray, float, float, float]:
    """Return the flows (n,), their sum, the size of their parts and what half the nodes change."""
    kappa = atoms.contrast
    deviation = np.where(kappa < _SURE, 2.0 * kappa / (1.0 - np.minimum(kappa, 0.5)), 2.0)
    found = np.empty((4, len(kappa)))

    def integrate(part: slice) -> None:
        some = atoms.log_w[part], atoms.pi[part], kappa[part], deviation[part]
        integrals = np.empty((4, len(some[0])))
        kernels.atom_integrals(x, weights, *some, own.log_w_ref, own.pi_ref, integrals)
        found[:, atoms.order[part]] = integrals

    thread_each(integrate, chunks(len(kappa), _ATOM_CHUNK))
    lone = atoms.lone
    flows = np.zeros(len(own.pi))
    scales = np.stack([(1.0 - own.pi[lone]) * own.contrast[lone], own.pi_ref - own.pi[lone]])
    parts = own.pi[lone] * scales * found[:2, : len(lone)]
    flows[lone] = parts.sum(axis=0)
    total, size = float(flows[lone].sum()), float(np.abs(parts).sum())
    away = np.abs(own.pi[lone] * scales * (found[:2] - found[2:])[:, : len(lone)])
    sums = np.array([total, size, float(away.sum())])
    count, degree = atoms.shape
    values = found[:, len(lone) :].reshape(4, count, degree, panels.DEGREE)
    coarse = np.abs(values[:2] - values[2:]).max(axis=(2, 3))
    coefficients = panels.to_coefficients(degree).T @ values[:2] @ panels.to_coefficients()

    def evaluate(part: slice) -> tuple[float, float, float]:
        span = part.start, part.stop
        return cells.evaluate(atoms.classes, *span, own.pi_ref, coefficients, coarse, flows)

    for some in thread_map(evaluate, chunks(len(flows) if count else 0, CLASS_CHUNK)):
        sums += some
    return flows, float(sums[0]), float(sums[1]), float(sums[2])
