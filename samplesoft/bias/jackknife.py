"""The node weights of the jackknife: m b_m - (m - 1) b_(m-1), of order 1/m**2, in one integral."""

from __future__ import annotations

import math

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.node_weights import NodeWeights, exponent_sizes, jensen_excess, log_first_draw
from samplesoft.bias.quadrature import ROUNDING, estimate_error, halving_change
from samplesoft.bias.transform import Nodes

# of the smooth step, in log v: wide beside the nodes, narrow beside the integrand
_STEP_WIDTH = 0.3
_OF_CUBES = 8.0  # errors of a cube, each of some units


def choose_cuts(law: DrawLaw, nodes: Nodes) -> list[float]:
    """Return three places for `log_cut`: after the law of large numbers, nowhere, everywhere.

    At the first, exp(-m s) m**2 is about exp(-10): the plain difference is harmless beyond it.
    """
    m = law.num_draws
    s = np.exp(np.minimum(nodes.x + law.log_base, LARGEST_EXPONENT)) - nodes.log_transform
    return [float(np.interp((10.0 + 2.0 * np.log(m)) / m, s, nodes.x)), np.inf, -np.inf]


def make_jackknife_weights(law: DrawLaw, nodes: Nodes, log_cut: float) -> NodeWeights:
    """Weigh the nodes by parts below v = exp(log_cut), and as the plain difference above.

    In s = -log theta, b_m is the integral of m exp(-m s) H(s) with H = D dv/ds and H(0) = 0. Two
    integrations by parts turn the combination into that of -exp(-m s) (exp(s) - 1) H''(s), eq.
    (B14). H may rise steeply once s stops growing with v, so H is split by a smooth step.
    """
    m = law.num_draws
    v_base = np.exp(np.minimum(nodes.x + law.log_base, LARGEST_EXPONENT))
    log_theta = nodes.log_transform - v_base
    s = -log_theta
    survive = nodes.dx * np.exp(log_first_draw(nodes, log_theta) + (m - 2) * log_theta)
    plain = m * m * np.expm1(log_theta) + (2.0 * m - 1.0)  # m**2 theta - (m - 1)**2
    step, step_1, step_2 = _smooth_step(nodes.x, log_cut)
    with np.errstate(all="ignore"):  # what is not finite here is cut off
        slope = v_base + nodes.mean  # v ds/dv
        # (B15): H'' in D, v D' and v**2 D''
        c2 = np.expm1(-s) / slope / slope
        c1 = 3.0 * c2 * (nodes.variance / slope)
        c0 = c1 * (nodes.variance / slope) - c2 * (nodes.skew / slope)
        s1 = -3.0 * c2 * (nodes.variance_size / slope)  # sizes
        s0 = s1 * (nodes.variance / slope) - c2 * (nodes.skew_size / slope)
        # the product rule for D times the step
        values = c0 * step + c1 * step_1 + c2 * step_2, c1 * step + 2.0 * c2 * step_1, c2 * step
        up_1, up_2 = np.abs(step_1), np.abs(step_2)
        sizes = s0 * step + s1 * up_1 - c2 * up_2, s1 * step - 2.0 * c2 * up_1, -c2 * step
        below = np.stack([*values, *sizes], axis=1)
        # (B17); slope = s + gap, so that the first two orders in v have dropped out
        tilt = nodes.gap / s
        gap_part = (3.0 + tilt) * tilt * (nodes.gap / slope)
        curve = nodes.balance / slope + gap_part
        scale = -np.expm1(-s) * np.exp(nodes.log_transform_least) / slope
        # the balance is of third order, with parts of both signs: at least variance**1.5 in all
        cubes = (nodes.skew_size + nodes.variance_size**1.5) / slope
        loss_size = _OF_CUBES * cubes + np.abs(curve) + np.abs(gap_part)
        terms = survive * scale * curve
        by_parts = terms, np.where(terms == 0.0, 0.0, np.abs(survive * scale) * loss_size)
    below[(step < 1e-290) | (s < np.finfo(np.float64).tiny)] = 0.0
    below[:, 0] += plain * (1.0 - step)
    below[:, 3] += (2.0 * m - 1.0 - m * m * np.expm1(log_theta)) * (1.0 - step)
    coefficients = survive[:, None] * below
    label_terms, label_sizes = _bend_label(coefficients, nodes, v_base)
    loss_terms, loss_sizes = min(by_parts, _plain_loss(law, nodes, log_theta), key=_doubt)
    return NodeWeights(coefficients, label_terms, label_sizes, loss_terms, loss_sizes)


def _plain_loss(law: DrawLaw, nodes: Nodes, log_theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the loss terms (K,) as the plain difference, and the sizes of its parts."""
    m = law.num_draws
    less = nodes.dx * (m - 1) * jensen_excess(law, nodes, m - 1, log_theta)
    now = nodes.dx * m * jensen_excess(law, nodes, m, log_theta)
    return less - now, exponent_sizes(np.abs(less) + np.abs(now), m * log_theta)


def _bend_label(
    coefficients: FloatArray, nodes: Nodes, v_base: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return `coefficients` (K, 6) applied to D = 1 - psi_R, eq. (B16), and the sizes of that."""
    psi_ref = np.exp(nodes.log_psi_ref + nodes.log_transform_least)  # exp(-v (R - r0))
    lead = np.where(psi_ref > 0.0, nodes.lead, 0.0)
    with np.errstate(all="ignore"):
        bend = np.stack([nodes.above, psi_ref * lead, psi_ref * (nodes.variance - lead**2)])
        square_size = nodes.variance_size + np.abs(lead) * nodes.lead_size
        sizes = [np.abs(nodes.above), psi_ref * nodes.lead_size, psi_ref * square_size]
        parts = np.where(coefficients == 0.0, 0.0, coefficients * np.stack([*bend, *sizes]).T)
        parts = np.where(v_base[:, None] > 0.0, v_base[:, None] * parts, 0.0)
        return parts[:, :3].sum(axis=1), parts[:, 3:].sum(axis=1)


def _doubt(loss: tuple[FloatArray, FloatArray]) -> float:
    """Return the error to expect in the sum of loss terms, given with their sizes."""
    terms, sizes = loss
    if not (np.isfinite(terms).all() and np.isfinite(sizes).all()):
        return np.inf
    return estimate_error(halving_change(terms), float(sizes.sum()), 0.0, ROUNDING)


def _smooth_step(x: FloatArray, cut: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return a step from 1 to 0 at `cut`, v times its derivative, and v**2 times its second."""
    if np.isinf(cut):
        return np.full_like(x, float(cut > 0.0)), np.zeros_like(x), np.zeros_like(x)
    t = (x - cut) / _STEP_WIDTH
    step = 0.5 * np.array([math.erfc(value) for value in t])
    first = -np.exp(-(t**2)) / (_STEP_WIDTH * math.sqrt(math.pi))
    return step, first, -first * (2.0 * t / _STEP_WIDTH + 1.0)
