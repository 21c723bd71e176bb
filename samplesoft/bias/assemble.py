"""From the flows between classes to the bias: one short function for each kind of base mass.

Each makes use of the masses of p' adding up to 1, eq. (B5), so that no E[p'] is subtracted from.
"""

from __future__ import annotations

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.node_weights import NodeWeights


def assemble(
    law: DrawLaw, flows: FloatArray, total: float, weights: NodeWeights
) -> tuple[FloatArray, float, float]:
    """Return the bias (n,), the loss bias E[L'] - L, and the size of what that is made of.

    `flows` (n,) holds e_j * integral of E (psi_j - psi_R), eq. (B6), and `total` their sum, with
    the ratios of (B12) that of the classes alone.
    """
    scheme = law.scheme
    loss = float(weights.loss_terms.sum()) + weights.loss_rest
    loss_size = float(weights.loss_sizes.sum()) + weights.loss_rest_size
    if not scheme.label_in_sum:
        return flows - law.probs * total, loss, loss_size  # (B9)
    label_flow = float(weights.label_terms.sum())
    if scheme.corrects_label:
        if scheme.label_is_a_draw:
            return _base_is_a_draw(law, flows, total), loss, loss_size
        return _corrected_base(law, flows, total, label_flow), loss, loss_size
    bias = _plain_base(law, flows, total, label_flow)
    if scheme.divides_by_kept:
        part, size = _add_none_kept(law, bias)
        return bias, loss + part, loss_size + size
    if not scheme.jackknife:
        bias[law.label] = max(bias[law.label], 0.0)  # it is, by Jensen's inequality
    return bias, loss, loss_size


def _plain_base(law: DrawLaw, flows: FloatArray, total: float, label_flow: float) -> FloatArray:
    """Return the bias where the label has its own mass e_t in S, eq. (B8)."""
    bias = flows - law.probs * (total + label_flow)
    bias[law.label] = label_flow * law.other_mass - law.probs[law.label] * total
    return bias


def _add_none_kept(law: DrawLaw, bias: FloatArray) -> tuple[float, float]:
    """Add the outcome that all draws are of the label to `bias`; return its loss, and the size."""
    t = law.label
    with np.errstate(divide="ignore"):
        if law.label_draw > 0.5:  # whose logarithm has lost its digits near 1
            log_chance = law.num_draws * float(np.log1p(-law.other_draw))
        else:
            log_chance = law.num_draws * float(np.log(law.label_draw))
    none_kept = float(np.exp(log_chance))  # then p' = 1 on the label, eq. (B10)
    at_label = bias[t] + none_kept * law.other_mass
    bias -= none_kept * law.probs
    bias[t] = at_label
    loss = float(none_kept * law.log_probs[t])
    return loss, abs(loss) * (1.0 - log_chance) if loss else 0.0


def _corrected_base(law: DrawLaw, flows: FloatArray, total: float, surplus: float) -> FloatArray:
    """Return the bias for the base mass e_t / (m q_t), draws of the label masked, eq. (B11)."""
    bias = flows - law.probs * (total - surplus)
    bias[law.label] = -law.other_mass * surplus - law.probs[law.label] * total
    return bias


def _base_is_a_draw(law: DrawLaw, flows: FloatArray, total: float) -> FloatArray:
    """Return the bias where the base mass is one more draw of the label, eq. (B12)."""
    bias = flows - law.probs * total
    bias[law.label] = 0.0
    bias[law.label] = -bias.sum()
    return bias
