"""The Laplace transform T of one draw at the nodes of the quadrature, and its cumulants.

The nodes are values of the variable v of the integral for 1/S. Only the jackknives need cumulants.
Section 4 of the README of `bias` has the equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from samplesoft._jit import njit
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.numerics.quadrature import make_grid
from samplesoft.bias.numerics.summation import LARGEST_FLOAT
from samplesoft.bias.with_replacement.atoms import Atoms, class_points
from samplesoft.bias.with_replacement.deviations import Floats
from samplesoft.bias.with_replacement.draws import Draws
from samplesoft.bias.with_replacement.laplace import (
    CENTRED_LIMIT,
    NodeSums,
    Points,
    Rows,
    excess_decay,
    node_sums,
    scaled,
)
from samplesoft.bias.with_replacement.ratios import Ratios
from samplesoft.kernels import panels

_LARGEST_LOG = math.log(LARGEST_FLOAT)
# At a node v, a sum over Chebyshev atoms may be noise if T at v is below exp(-12) times T at
# exp(-3) v: classes whose exp(-v r) has decayed within their panel then made up most of T at
# exp(-3) v.
_LOG_STEP_BACK = 3.0
_MAX_LOG_DROP = -12.0
# on panels up to this width in log r, all ratios decay nearly equally, so that there is no noise
_MAX_NOISELESS_WIDTH = 1e-3
# a panel is kept if exp(-v r) at its left end is below exp(-3) T, so that its noise does not matter
_LOG_NOISE_MARGIN = 3.0


@dataclass
class Nodes:
    """The Laplace transform T of one draw and related values at the K nodes, all (K,)."""

    x: FloatArray  # log v
    dx: FloatArray  # weight of each node in an integral over dv / v
    v: FloatArray
    v_r0: FloatArray  # v r0
    log_transform: FloatArray  # log T, with T = sum q exp(-v r)
    log_scaled_transform: FloatArray  # log of T exp(v r0) = sum q exp(-v (r - r0)), eq. (B18)
    log_psi_ref: FloatArray  # log psi_R, with psi_R = exp(-v R) / T
    # T exp(v r0) (1 - psi_R), computed as sum q (exp(-v (r - r0)) - exp(-v (R - r0)))
    above: FloatArray
    excess: FloatArray  # log T + v (mean ratio), at least 0, eq. (B20)


@dataclass
class TiltedNodes(Nodes):
    """Nodes with the cumulants that only the jackknife needs, of the tilted distribution of r.

    The tilted distribution has probabilities q exp(-v r) / T. A field such as `variance_size` is
    the sum of the magnitudes of the terms that `variance` adds up; the rounding error of `variance`
    is proportional to it. All arrays are (K,).
    """

    mean: FloatArray  # v times the tilted mean
    variance: FloatArray  # v**2 times the tilted variance
    skew: FloatArray  # v**3 times the third tilted cumulant
    mean_above_r0: FloatArray  # v (tilted mean - r0)
    lead: FloatArray  # v (R - tilted mean)
    variance_size: FloatArray
    skew_size: FloatArray
    lead_size: FloatArray
    gap: FloatArray  # log T + v (tilted mean), at most 0, eq. (B21)
    balance: FloatArray  # 2 gap + variance, which is of third order in v

    @property
    def tilted(self) -> FloatArray:
        """The fields that `atom_integrals` needs, as columns (K, 5).

        They are `mean_above_r0`, `lead`, `variance`, `lead_size` and `variance_size`.
        """
        columns = self.mean_above_r0, self.lead, self.variance, self.lead_size, self.variance_size
        return np.stack(columns, axis=1)


def compute_decay_rates(draws: Draws, ratios: Ratios) -> tuple[float, float]:
    """Return the log of the typical and of the smallest rate of decay, in v, of E psi in (B4)."""
    # psi replaces the factor of one draw, so that the factors of m - 1 draws are left. If the
    # number of accepted draws is random, only the factor of one draw may be left.
    least_count = 1 if draws.scheme.divides_by_accepted else max(draws.num_draws - 1, 1)
    base = -np.inf if draws.scheme.label_is_a_draw else draws.log_base
    typical = math.log(draws.num_draws) + float(np.log(draws.expected_sum))
    return typical, math.log(least_count) + float(np.logaddexp(base, ratios.log_r0))


def make_nodes(draws: Draws, ratios: Ratios, atoms: Atoms, step: float) -> Nodes:
    """Return the nodes on a grid that covers every scale of v on which the integrand varies.

    `step` is the step of the trapezoid rule in the variable z of eq. (B24).
    """
    typical, least = compute_decay_rates(draws, ratios)
    largest = max(typical, float(atoms.points.log_r.max()))
    x, dx = make_grid(largest, least, step)
    return evaluate_nodes(draws, ratios, atoms, x, dx)


def evaluate_nodes(
    draws: Draws, ratios: Ratios, atoms: Atoms, x: FloatArray, dx: FloatArray
) -> Nodes:
    """Return the nodes at `x` = log v (K,), with the weights `dx` (K,) of dv / v.

    The result is a `TiltedNodes` if the scheme is a jackknife.
    """
    tilted = draws.scheme.jackknife
    log_ref_above_r0 = ratios.log_ref_above_r0
    log_mean_above_r0 = ratios.log_mean_above_r0
    sums = node_sums(x, atoms.points, log_ref_above_r0, log_mean_above_r0, tilted)

    # if the classes are in chunks, they are not in memory, and `log_r` is empty; only the bias is
    # computed then, and it tolerates the noise
    on_panels = atoms.panel_ids is not None and atoms.width > _MAX_NOISELESS_WIDTH
    if len(ratios.log_r) > 0 and on_panels and len(x) > 0:
        _replace_noise(draws, ratios, atoms, x, sums)
    columns = sums.transform, sums.transform_minus_1, sums.centred_transform_minus_1
    centres = ratios.log_r0, log_ref_above_r0, log_mean_above_r0
    v, v_r0, log_t, log_scaled_t, log_psi_ref, excess, d_mean = _transform_logs(x, columns, centres)
    nodes = Nodes(
        x=x,
        dx=dx,
        v=v,
        v_r0=v_r0,
        log_transform=log_t,
        log_scaled_transform=log_scaled_t,
        log_psi_ref=log_psi_ref,
        above=sums.above,
        excess=excess,
    )

    return _with_cumulants(ratios, nodes, sums, d_mean) if tilted else nodes


def _replace_noise(
    draws: Draws, ratios: Ratios, atoms: Atoms, x: FloatArray, sums: NodeSums
) -> None:
    """Recompute `sums` in place, from the classes, at the nodes where atoms leave only noise.

    Chebyshev atoms have weights of both signs. Where exp(-v r) decays strongly within a panel, they
    leave a noise of 1e-14 of the panel's weight. Compared with 1 the noise is negligible, but not
    compared with a small T, and the integrand is divided by T if there are few draws.
    """
    with np.errstate(all="ignore"):
        v_r0 = np.exp(x + ratios.log_r0)
        log_transform = np.log(np.maximum(sums.transform, 1e-307)) - v_r0

    noisy = noisy_nodes(x, log_transform)
    if len(noisy):
        points = _atoms_with_low_classes(draws, ratios, atoms, float(x[noisy].min()))
        exact = node_sums(
            x[noisy],
            points,
            ratios.log_ref_above_r0,
            ratios.log_mean_above_r0,
            draws.scheme.jackknife,
        )
        for column, values in zip(sums, exact, strict=True):
            column[noisy] = values


def noisy_nodes(x: FloatArray, log_transform: FloatArray) -> IntArray:
    """Return the indices of the nodes at which `log_transform` from Chebyshev atoms may be noise.

    `x` = log v and `log_transform` are (K,).
    """
    order = np.argsort(x)
    before = np.interp(x - _LOG_STEP_BACK, x[order], log_transform[order], left=0.0)
    return np.flatnonzero(log_transform < before + _MAX_LOG_DROP)


def _atoms_with_low_classes(draws: Draws, ratios: Ratios, atoms: Atoms, x: float) -> Points:
    """Return atoms in which classes replace the low panels, those whose noise matters.

    `x` is the log of the smallest v at which the atoms are used. The noise of a panel is 1e-14 of
    its weight, times exp(-v r) at its left end. T is at least q exp(-v r) of the class with the
    smallest ratio. A panel whose noise is far below this term keeps its atoms.
    """
    assert atoms.panel_ids is not None
    log_margin = (
        math.log(_LOG_NOISE_MARGIN - math.log(ratios.min_ratio_draw_prob)) - x - ratios.log_ref
    )
    last = min(
        float(np.logaddexp(ratios.log_ratio_range[0], log_margin)), ratios.log_ratio_range[1]
    )
    first_high = math.floor(last / atoms.width) + 1
    low = (draws.draw_probs > 0.0) & (np.floor(ratios.log_distances / atoms.width) < first_high)
    classes_below = class_points(draws, ratios, low)[0]
    of_panel = atoms.order // panels.DEGREE  # the atom of weightless draws is in no panel
    in_panel = of_panel < len(atoms.panel_ids)
    above = in_panel & (atoms.panel_ids[np.where(in_panel, of_panel, 0)] >= first_high)
    # both are sorted, and all low classes lie below the atoms that remain
    pairs = zip(classes_below, atoms.points, strict=True)

    return Points(*(np.concatenate([low, high[above]]) for low, high in pairs))


@njit
def _exp(x: float) -> float:
    """Return exp(x), and inf on overflow, where math.exp would raise."""
    return np.inf if x > _LARGEST_LOG else math.exp(x)


@njit
def _transform_logs(x: FloatArray, columns: Rows, centres: Floats) -> FloatArray:
    """Return six fields of `Nodes`, and v (mean - r0), as rows (7, K).

    The fields are `v`, `v_r0`, `log_transform`, `log_scaled_transform`, `log_psi_ref` and `excess`.
    `columns` are T exp(v r0), T exp(v r0) - 1 and P of (B20), for each node. `centres` are the logs
    of r0, of R - r0 and of mean - r0.
    """
    transform, drop, excess = columns
    rows = np.empty((7, len(x)))
    for k in range(len(x)):
        # v r0, v (R - r0) and v (mean - r0)
        v_r0 = _exp(x[k] + centres[0])
        d_ref = _exp(x[k] + centres[1])
        d_mean = scaled(x[k], centres[2])
        # Where T exp(v r0) is tiny, rounding may make it negative. Where it is near 1, its log
        # loses digits: above 1/2 the log is log1p(T exp(v r0) - 1).
        log_scaled_t = math.log(1e-307 if transform[k] < 1e-307 else transform[k])
        if drop[k] > -0.5:
            log_scaled_t = math.log1p(drop[k])
        near = math.log1p(0.0 if excess[k] < 0.0 else excess[k])
        rows[0, k] = scaled(x[k], 0.0)
        rows[1, k] = v_r0
        rows[3, k] = log_scaled_t
        rows[2, k] = log_scaled_t - v_r0
        rows[4, k] = -d_ref - log_scaled_t
        rows[5, k] = near if d_mean < CENTRED_LIMIT else log_scaled_t + d_mean
        rows[6, k] = d_mean

    return rows


def _with_cumulants(
    ratios: Ratios, nodes: Nodes, sums: NodeSums, d_mean: FloatArray
) -> TiltedNodes:
    """Return the nodes with the cumulants of the tilted distribution (of `TiltedNodes`).

    `d_mean` (K,) is v (mean - r0).
    """
    x = nodes.x
    log_scaled_t = nodes.log_scaled_transform
    p = np.maximum(sums.centred_transform_minus_1, 0.0)
    with np.errstate(over="ignore", under="ignore"):
        v_ref = np.exp(np.minimum(x + ratios.log_ref, LARGEST_EXPONENT))
        v_mean = np.exp(np.minimum(x + ratios.log_mean, LARGEST_EXPONENT))

    # Cumulants lose digits if r is measured from a point far from the tilted mean. So r is measured
    # from the mean ratio (`near`) or from r0, whichever is closer to the tilted mean.
    h = sums.tangent
    near = (d_mean < CENTRED_LIMIT) & ((p + h) / (1.0 + p) <= sums.first * np.exp(-log_scaled_t))
    total = np.where(near, 1.0 + p, np.exp(log_scaled_t))
    first = np.where(near, -(p + h), sums.first) / total
    second = np.where(near, sums.square, sums.second) / total
    third = np.where(near, sums.cube, sums.third) / total
    variance = np.maximum(second - first**2, 0.0)
    rest = excess_decay(np.log1p(p))  # log(1 + p) - p / (1 + p), without cancellation
    gap = np.where(near, rest - h / (1.0 + p), log_scaled_t + first)
    from_mean = np.where(near, -first, d_mean - first)  # v (mean - tilted mean)

    return TiltedNodes(
        **vars(nodes),
        mean=np.where(near, v_mean + first, nodes.v_r0 + first),
        variance=variance,
        skew=third - 3.0 * first * second + 2.0 * first**3,
        mean_above_r0=np.where(near, d_mean + first, first),
        # R - mean and mean - tilted mean are known, so their sum needs no subtraction of ratios
        lead=-ratios.mean_deviation * v_ref + from_mean,
        variance_size=second + first**2,
        skew_size=np.abs(third) + np.abs(first) * (3.0 * second + 2.0 * first**2),
        lead_size=abs(ratios.mean_deviation) * v_ref + np.where(near, 0.0, d_mean) + np.abs(first),
        gap=gap,
        balance=np.where(near, 2.0 * rest + sums.bend / (1.0 + p) - first**2, 2.0 * gap + variance),
    )
