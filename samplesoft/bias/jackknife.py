"""The node weights of the jackknife, whose bias is of order 1/m**2, in one integral."""

from __future__ import annotations

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.by_parts import Kernel, smooth_step
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.jackknife_loss import LossTerms
from samplesoft.bias.node_weights import NodeWeights, log_first_draw
from samplesoft.bias.transform import Nodes


def make_jackknife_weights(
    law: DrawLaw, nodes: Nodes, kernel: Kernel, log_cut: float, loss: LossTerms
) -> NodeWeights:
    """Weigh the nodes by parts below v = exp(log_cut), and as the plain difference above.

    In s = -log theta, b_m is the integral of m exp(-m s) H(s) with H = D dv/ds and H(0) = 0. Two
    integrations by parts turn the kernel of the combination, g'', into g of H'', eq. (B14). H may
    rise steeply once s stops growing with v, so H is split by a smooth step.
    """
    s = kernel.s
    # the kernel's exponential has one draw more than what the psi of a class leaves
    survive = nodes.dx * np.exp(log_first_draw(nodes, -s) - (law.num_draws - 2) * s)
    step = smooth_step(nodes.x, log_cut)
    v_base = np.exp(np.minimum(nodes.x + law.log_base, LARGEST_EXPONENT))
    with np.errstate(all="ignore"):  # what is not finite here is cut off
        slope = v_base + nodes.mean  # v ds/dv
        # (B15): H'' in D, v D' and v**2 D''
        c2 = kernel.values[0] / slope / slope
        c1 = 3.0 * c2 * (nodes.variance / slope)
        c0 = c1 * (nodes.variance / slope) - c2 * (nodes.skew / slope)
        s2 = kernel.sizes[0] / slope / slope  # sizes
        s1 = 3.0 * s2 * (nodes.variance_size / slope)
        s0 = s1 * (nodes.variance / slope) + s2 * (nodes.skew_size / slope)
        # the product rule for D times the step
        values = (
            c0 * step.value + c1 * step.first + c2 * step.second,
            c1 * step.value + 2.0 * c2 * step.first,
            c2 * step.value,
        )
        up_1, up_2 = np.abs(step.first), np.abs(step.second)
        sizes = (
            s0 * step.value + s1 * up_1 + s2 * up_2,
            s1 * step.value + 2.0 * s2 * up_1,
            s2 * step.value,
        )
        below = np.stack([*values, *sizes], axis=1)
    below[(step.value < 1e-290) | (s < np.finfo(np.float64).tiny)] = 0.0
    below[:, 0] += kernel.values[2] * (1.0 - step.value)
    below[:, 3] += kernel.sizes[2] * (1.0 - step.value)
    coefficients = survive[:, None] * below
    label_terms, label_sizes = _bend_label(coefficients, nodes, v_base)
    return NodeWeights(coefficients, label_terms, label_sizes, *loss)


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
