"""The Laplace transform of a draw, and its cumulants, at the nodes of the quadrature."""

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
# noise of panels: a class whose noise matters at v still had most of its weight at exp(-3) v; if T
# has fallen by more than exp(-12) since then, the noise may matter
_LOG_STEP_BACK = 3.0
_MAX_NOISELESS_WIDTH = 1e-3  # on narrower panels all ratios decay equally, without noise
_LOG_NOISE_MARGIN = 3.0  # noise of panels with a weight exp(-3) below T does not matter
_MAX_LOG_DROP = -12.0


@dataclass
class Nodes:
    """The transform T and related values at the quadrature nodes, all arrays (K,)."""

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
    """Nodes with cumulants, which only the jackknife needs, all arrays (K,).

    The tilted distribution of r has probabilities q exp(-v r) / T; README, section 4.
    """

    mean: FloatArray  # v times the tilted mean
    variance: FloatArray  # v**2 times the second tilted cumulant
    skew: FloatArray  # v**3 times the third
    above_least: FloatArray  # v (tilted mean - r0)
    lead: FloatArray  # v (R - tilted mean)
    variance_size: FloatArray  # sizes of `variance`, `skew` and `lead` before cancellation
    skew_size: FloatArray
    lead_size: FloatArray
    gap: FloatArray  # log T + v times the tilted mean, at most 0, eq. (B21)
    balance: FloatArray  # 2 gap + variance, of third order in v

    @property
    def tilted(self) -> FloatArray:
        """`above_least`, `lead`, `variance`, and the sizes of the last two, (K, 5)."""
        columns = self.above_least, self.lead, self.variance, self.lead_size, self.variance_size
        return np.stack(columns, axis=1)


def compute_decay_rates(draws: Draws, ratios: Ratios) -> tuple[float, float]:
    """Return the logs of the typical and of the smallest rate at which E(v) decays."""
    # psi replaces one draw; with a random number of accepted draws, as few as one may be left
    least_count = 1 if draws.scheme.divides_by_kept else max(draws.num_draws - 1, 1)
    base = -np.inf if draws.scheme.label_is_a_draw else draws.log_base
    typical = math.log(draws.num_draws) + float(np.log(draws.expected_sum))
    return typical, math.log(least_count) + float(np.logaddexp(base, ratios.log_least))


def make_nodes(draws: Draws, ratios: Ratios, atoms: Atoms, step: float) -> Nodes:
    """Evaluate the transform at nodes that cover every scale of v at which it changes.

    `step` is the step of the trapezoid rule, in log v.
    """
    typical, least = compute_decay_rates(draws, ratios)
    largest = max(typical, float(atoms.points.log_r.max()))
    x, dx = make_grid(largest, least, step)
    return evaluate_nodes(draws, ratios, atoms, x, dx)


def evaluate_nodes(
    draws: Draws, ratios: Ratios, atoms: Atoms, x: FloatArray, dx: FloatArray
) -> Nodes:
    """Evaluate the transform at nodes `x` = log v (K,) with weights `dx` (K,).

    Returns `TiltedNodes` if the scheme is a jackknife.
    """
    tilted = draws.scheme.jackknife
    sums = node_sums(x, atoms.points, ratios.log_above_least, tilted)
    # for classes in chunks only the bias is computed, which does not need this
    on_panels = atoms.panels is not None and atoms.width > _MAX_NOISELESS_WIDTH
    if len(ratios.log_r) > 0 and on_panels and len(x) > 0:
        _replace_noise(draws, ratios, atoms, x, sums)
    columns = sums.transform, sums.drop, sums.excess
    centres = ratios.log_least, *ratios.log_above_least
    v, v_least, log_t, log_t_least, log_psi_ref, excess, d_mean = _transform_logs(
        x, columns, centres
    )
    nodes = Nodes(
        x=x,
        dx=dx,
        v=v,
        v_least=v_least,
        log_transform=log_t,
        log_transform_least=log_t_least,
        log_psi_ref=log_psi_ref,
        above=sums.above,
        excess=excess,
    )
    return _with_cumulants(ratios, nodes, sums, d_mean) if tilted else nodes


def _replace_noise(
    draws: Draws, ratios: Ratios, atoms: Atoms, x: FloatArray, sums: NodeSums
) -> None:
    """Replace sums by panels that have lost all digits by sums over classes; README, section 5.

    The weights of Chebyshev atoms have both signs. Where exp(-v r) has decayed within a panel, they
    leave noise of 1e-14 of the panel's weight. It is negligible compared with 1, but T may be
    smaller, and with few draws the integrand is divided by T.
    """
    with np.errstate(all="ignore"):
        v_least = np.exp(x + ratios.log_least)
        log_transform = np.log(np.maximum(sums.transform, 1e-307)) - v_least
    noisy = noisy_nodes(x, log_transform)
    if len(noisy):
        points = _atoms_with_low_classes(draws, ratios, atoms, float(x[noisy].min()))
        exact = node_sums(x[noisy], points, ratios.log_above_least, draws.scheme.jackknife)
        for column, values in zip(sums, exact, strict=True):
            column[noisy] = values


def noisy_nodes(x: FloatArray, log_transform: FloatArray) -> IntArray:
    """Return the indices of the nodes `x` = log v (K,) at which log T by panels has no digits."""
    order = np.argsort(x)
    before = np.interp(x - _LOG_STEP_BACK, x[order], log_transform[order], left=0.0)
    return np.flatnonzero(log_transform < before + _MAX_LOG_DROP)


def _atoms_with_low_classes(draws: Draws, ratios: Ratios, atoms: Atoms, x: float) -> Points:
    """Return the atoms, with classes in place of panels whose noise matters at nodes >= `x`.

    The noise is 1e-14 of the panel's weight times exp(-v r) at its left end. T is at least the term
    of the class with the smallest ratio.
    """
    assert atoms.panels is not None
    log_margin = math.log(_LOG_NOISE_MARGIN - math.log(ratios.drawn_at_min)) - x - ratios.log_ref
    last = min(float(np.logaddexp(ratios.span[0], log_margin)), ratios.span[1])
    first_high = math.floor(last / atoms.width) + 1
    low = (draws.drawn > 0.0) & (np.floor(ratios.log_distances / atoms.width) < first_high)
    classes_below = class_points(draws, ratios, low)[0]
    of_panel = atoms.order // panels.DEGREE  # the atom of draws without weight is in no panel
    in_panel = of_panel < len(atoms.panels)
    above = in_panel & (atoms.panels[np.where(in_panel, of_panel, 0)] >= first_high)
    pairs = zip(classes_below, atoms.points, strict=True)  # both are sorted
    return Points(*(np.concatenate([low, high[above]]) for low, high in pairs))


@njit
def _exp(x: float) -> float:
    """Return exp(x), and inf on overflow, where math.exp would raise."""
    return np.inf if x > _LARGEST_LOG else math.exp(x)


@njit
def _transform_logs(x: FloatArray, columns: Rows, centres: Floats) -> FloatArray:
    """Return the fields `v` to `log_psi_ref` of `Nodes`, `excess`, and v (mean - r0), (7, K).

    `columns` are the sums `transform`, `drop` and `excess`; `centres` are the logs of r0, R - r0
    and mean - r0.
    """
    transform, drop, excess = columns
    rows = np.empty((7, len(x)))
    for k in range(len(x)):
        # v times a ratio, and d = v times its distance from the least ratio r0
        v_least, d_ref = _exp(x[k] + centres[0]), _exp(x[k] + centres[1])
        d_mean = scaled(x[k], centres[2])
        # rounding may make T negative where nothing is left. log T loses digits where T is near 1:
        # take log1p(T - 1) for T > 1/2
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
    ratios: Ratios, nodes: Nodes, sums: NodeSums, d_mean: FloatArray
) -> TiltedNodes:
    """Return the nodes with the cumulants of the tilted r; `d_mean` is v (mean - r0) (K,)."""
    x, log_t_least, p = nodes.x, nodes.log_transform_least, np.maximum(sums.excess, 0.0)
    with np.errstate(over="ignore", under="ignore"):
        v_ref = np.exp(np.minimum(x + ratios.log_ref, LARGEST_EXPONENT))
        v_mean = np.exp(np.minimum(x + ratios.log_mean, LARGEST_EXPONENT))
    # cumulants cancel if the centre is far from the tilted mean: take the nearer of E[r] and r0
    h = sums.tangent
    near = (d_mean < CENTRED_LIMIT) & ((p + h) / (1.0 + p) <= sums.first * np.exp(-log_t_least))
    total = np.where(near, 1.0 + p, np.exp(log_t_least))
    first = np.where(near, -(p + h), sums.first) / total
    second = np.where(near, sums.square, sums.second) / total
    third = np.where(near, sums.cube, sums.third) / total
    variance = np.maximum(second - first**2, 0.0)
    rest = excess_decay(np.log1p(p))  # log(1 + p) - p / (1 + p), without cancellation
    gap = np.where(near, rest - h / (1.0 + p), log_t_least + first)
    from_mean = np.where(near, -first, d_mean - first)  # v (mean - tilted mean)
    return TiltedNodes(
        **vars(nodes),
        mean=np.where(near, v_mean + first, nodes.v_least + first),
        variance=variance,
        skew=third - 3.0 * first * second + 2.0 * first**3,
        above_least=np.where(near, d_mean + first, first),
        # both R - mean and mean - tilted mean are known without cancellation
        lead=-ratios.mean_deviation * v_ref + from_mean,
        variance_size=second + first**2,
        skew_size=np.abs(third) + np.abs(first) * (3.0 * second + 2.0 * first**2),
        lead_size=abs(ratios.mean_deviation) * v_ref + np.where(near, 0.0, d_mean) + np.abs(first),
        gap=gap,
        balance=np.where(near, 2.0 * rest + sums.bend / (1.0 + p) - first**2, 2.0 * gap + variance),
    )
