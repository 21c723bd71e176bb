"""The Laplace transform of one draw, on a quadrature in v that no range of ratios outruns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samplesoft._jit import chunks, thread_map
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.draw_law import Draws
from samplesoft.bias.quadrature import make_grid
from samplesoft.bias.sums import CLASS_CHUNK, HOST, HostSums, Spread
from samplesoft.kernels.bias import laplace, panels, ratios


@dataclass(frozen=True)
class Classes:
    """The ratios of the classes: log r (n,), (r - R) / (r + R) (n,), and their centres."""

    log_r: FloatArray
    contrast: FloatArray
    reference: int
    log_ref: float
    mean_deviation: float
    log_mean: float
    log_least: float

    @property
    def kappa_mean(self) -> float:
        """(mean - R) / (mean + R)."""
        return self.mean_deviation / (2.0 + self.mean_deviation)

    @property
    def log_above_least(self) -> FloatArray:
        """Log (R - r0) and log (mean - r0)."""
        upper = np.array([self.log_ref, self.log_mean])
        with np.errstate(divide="ignore"):
            above: FloatArray = upper + np.log(-np.expm1(np.minimum(self.log_least - upper, 0.0)))
        return above


@dataclass(frozen=True)
class Atoms:
    """The measure of log r on few points: `weights` (3, A) and `rows` (8, A) for the kernels.

    `slot` numbers the occupied Chebyshev panels; it is None where each class is its own atom.
    """

    width: float
    first: int
    slot: IntArray | None
    weights: FloatArray
    rows: FloatArray


@dataclass(frozen=True)
class Nodes:
    """The transform at the quadrature nodes, all arrays (K,).

    Attributes
    ----------
    x, step : ndarray
        log v and the weight of dv / v.
    v, v_least : ndarray
        v itself, and v r0.
    log_phi : ndarray
        log sum q exp(-v r).
    excess : ndarray
        log phi + v mean, at least 0.
    gap : ndarray
        log phi + v rho, at most 0; rho the mean of r tilted by exp(-v r).
    balance : ndarray
        2 gap + variance, of third order in v.
    mean, variance, skew : ndarray
        v rho, and v**2 and v**3 times the second and third cumulants of the tilted r.
    above_least : ndarray
        v (rho - r0).
    above : ndarray
        sum q (exp(-v (r - r0)) - exp(-v (R - r0))).
    lead : ndarray
        v (R - rho).
    log_psi_ref : ndarray
        log of exp(-v R) / phi.
    log_phi_least : ndarray
        log sum q exp(-v (r - r0)).
    """

    x: FloatArray
    step: FloatArray
    v: FloatArray
    v_least: FloatArray
    log_phi: FloatArray
    excess: FloatArray
    gap: FloatArray
    balance: FloatArray
    mean: FloatArray
    variance: FloatArray
    skew: FloatArray
    above_least: FloatArray
    above: FloatArray
    lead: FloatArray
    log_psi_ref: FloatArray
    log_phi_least: FloatArray

    @property
    def tilted(self) -> FloatArray:
        """V (rho - r0), v (R - rho) and the variance, (K, 3), as `atom_integrals` takes them."""
        return np.stack([self.above_least, self.lead, self.variance], axis=1)


def read_classes(draws: Draws) -> Classes:
    """Find the ratios and the reference class, the softmax-weighted median of the ratios.

    Every bias is a sum of flows e_j e_k (psi_j - psi_k). Measured from the median, the sizes of
    the terms add up to no more than the flows themselves, so nothing cancels in the L1 norm.
    """
    active = draws.drawn > 0.0
    with np.errstate(divide="ignore"):
        log_r = draws.log_probs - np.log(draws.drawn)
    masses = np.where(active, draws.probs, 0.0)
    if not masses.any():  # every drawn class underflows: rank them by their logs
        shift = draws.log_probs[active].max()
        masses[active] = np.exp(draws.log_probs[active] - shift)
    reference = ratios.weighted_median(log_r, masses)
    contrast = np.zeros(len(log_r))

    def work(part: slice) -> float:
        return ratios.relative_ratios(
            draws.logits, log_r, draws.q, draws.drawn, reference, contrast, part.start, part.stop
        )

    mean_deviation = sum(thread_map(work, chunks(len(log_r), CLASS_CHUNK)))
    log_ref = float(log_r[reference])
    mean_deviation = float(mean_deviation) - draws.phantom
    if mean_deviation > -0.5:
        log_mean = log_ref + float(np.log1p(mean_deviation))
    else:
        log_mean = float(np.log(draws.mean))
    least = -np.inf
    if not draws.phantom:  # r0 is a panel's edge: no Chebyshev atom lies below it
        steps = np.floor((float(log_r[active].min()) - log_ref) / panels.WIDTH)
        least = log_ref + panels.WIDTH * float(steps)
    return Classes(log_r, contrast, reference, log_ref, mean_deviation, log_mean, least)


def make_atoms(draws: Draws, classes: Classes, sums: HostSums = HOST) -> Atoms:
    """Compress the classes to Chebyshev atoms where that makes fewer of them."""
    active = draws.drawn > 0.0
    t_min = float(np.min(classes.log_r, where=active, initial=np.inf)) - classes.log_ref
    t_max = float(np.max(classes.log_r, where=active, initial=-np.inf)) - classes.log_ref
    width = min(panels.WIDTH, 1.0000001 * max(-t_min, t_max, 1e-300))
    first = int(np.floor(t_min / width))
    count = int(np.floor(t_max / width)) - first + 1
    t_mean = classes.log_mean - classes.log_ref
    slot = None
    if count * panels.DEGREE > len(classes.log_r):
        t = classes.log_r[active] - classes.log_ref
        kappa = classes.contrast[active]
        parts = panels.class_weights(t, draws.drawn[active], kappa, t_mean, classes.kappa_mean)
        weights, zeta = parts[:3], parts[3]
    else:
        span = (classes.log_r, draws.drawn, classes.log_ref, width, first, count)
        occupied = panels.mark(*span) > 0.0
        slot = np.cumsum(occupied) - 1
        moments = sums.class_moments(spread_of(draws, classes, width, first, slot))
        weights = np.moveaxis(moments @ panels.forward().T, 1, 0).reshape(3, -1)
        places = first + np.flatnonzero(occupied)[:, None] + panels.node_places()
        t = (places * width).ravel()
        kappa = np.tanh(0.5 * t)
        zeta = np.tanh(0.5 * (t - t_mean))
    if draws.phantom:
        t = np.append(t, -np.inf)
        kappa, zeta = np.append(kappa, -1.0), np.append(zeta, -1.0)
        phantom = draws.phantom * np.array([[1.0], [-1.0], [1.0]])
        weights = np.concatenate([weights, phantom], axis=1)
    return Atoms(width, first, slot, weights, _rows(t, kappa, zeta, classes))


def spread_of(draws: Draws, classes: Classes, width: float, first: int, slot: IntArray) -> Spread:
    """Return the classes on Chebyshev panels of a width, from number `first` on."""
    t_mean = classes.log_mean - classes.log_ref
    centres = classes.log_ref, t_mean, classes.kappa_mean
    return Spread(classes.log_r, draws.drawn, classes.contrast, *centres, width, first, slot)


def _rows(t: FloatArray, kappa: FloatArray, zeta: FloatArray, classes: Classes) -> FloatArray:
    with np.errstate(divide="ignore"):
        from_least = t
        if classes.log_least > -np.inf:
            below = np.minimum(classes.log_least - classes.log_ref - t, 0.0)
            from_least = t + np.log(-np.expm1(below))
        sum_ref = np.logaddexp(t, 0.0)
        sum_mean = np.logaddexp(t, classes.log_mean - classes.log_ref)
        rows = np.stack(
            [
                t,
                from_least,
                kappa,
                sum_ref + np.log(np.abs(kappa)),
                sum_ref,
                zeta,
                sum_mean + np.log(np.abs(zeta)),
                sum_mean,
            ]
        )
    rows[[0, 1, 3, 4, 6, 7]] += classes.log_ref
    return rows


def make_nodes(
    classes: Classes,
    atoms: Atoms,
    log_largest: float,
    log_smallest: float,
    step: float,
    sums: HostSums = HOST,
) -> Nodes:
    """Evaluate the transform on nodes that cover every scale of v at which it changes.

    `log_largest` and `log_smallest` are the logs of the typical and of the least decay rate of
    E(v); `step` is that of the trapezoid rule.
    """
    largest = max(log_largest, float(atoms.rows[0].max()))
    x, weights = make_grid(largest, log_smallest, step)
    reference = classes.log_above_least
    found = sums.node_sums(x, atoms.weights, atoms.rows, reference)
    return _read_sums(classes, x, weights, found, reference)


def _read_sums(
    classes: Classes,
    x: FloatArray,
    step: FloatArray,
    sums: FloatArray,
    reference: FloatArray,
) -> Nodes:
    phi, f, d1, d2, d3, above, p, h, t, y2, y3 = sums.T
    phi, p = np.maximum(phi, 1e-30), np.maximum(p, 0.0)  # rounding, where no weight is left
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        v_least = np.exp(x + classes.log_least)
        v_ref = np.exp(x + reference[0])
        v_mean = np.exp(np.minimum(x + reference[1], 700.0))
        log_phi = np.where(f > -0.5, np.log1p(np.maximum(f, -0.5)), np.log(phi))
    centred = v_mean < laplace.CENTRED_LIMIT
    # cumulants from the centre that the tilted mean is nearer to: the mean of r, or r0
    near = centred & ((p + h) / (1.0 + p) <= d1 * np.exp(-log_phi))
    total = np.where(near, 1.0 + p, np.exp(log_phi))
    first = np.where(near, -(p + h), d1) / total
    second = np.where(near, y2, d2) / total
    third = np.where(near, y3, d3) / total
    variance = np.maximum(second - first**2, 0.0)
    rest = laplace.excess_decay(np.log1p(p))  # log (1 + p) - p / (1 + p)
    gap = np.where(near, rest - h / (1.0 + p), log_phi + first)
    from_mean = np.where(near, -first, v_mean - first)  # v (mean - rho)
    v_all = np.exp(np.minimum(x + classes.log_mean, 700.0))
    return Nodes(
        x=x,
        step=step,
        v=np.exp(np.minimum(x, 700.0)),
        v_least=v_least,
        log_phi=log_phi - v_least,
        excess=np.where(centred, np.log1p(p), log_phi + v_mean),
        gap=gap,
        balance=np.where(near, 2.0 * rest + t / (1.0 + p) - first**2, 2.0 * gap + variance),
        mean=np.where(near, v_all + first, v_least + first),
        above_least=np.where(near, v_mean + first, first),
        variance=variance,
        skew=third - 3.0 * first * second + 2.0 * first**3,
        above=above,
        lead=-classes.mean_deviation * np.exp(np.minimum(x + classes.log_ref, 700.0)) + from_mean,
        log_psi_ref=-v_ref - log_phi,
        log_phi_least=log_phi,
    )
