"""The weights of the nodes in each scheme, and the bias from the integrals.

`make_node_weights` depends on the distribution of the number of draws, `assemble` on the base mass.
p' sums to 1, eq. (B5). `assemble` uses this, so that nothing is subtracted from E[p'].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from samplesoft._jit import njit
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.summation import EPS
from samplesoft.bias.with_replacement.draws import Draws
from samplesoft.bias.with_replacement.nodes import Nodes


@dataclass
class NodeWeights:
    """Weights of the K nodes in the integrals of the bias and of the loss bias."""

    # (K, 6) coefficients of D, v D' and v**2 D'' in `atom_integrals`, times dx / (T exp(v r0)), and
    # their sizes before cancellation; only the first is nonzero, except for the jackknife
    coefficients: FloatArray
    # (K,) terms of base * integral of E (1 - psi_R), eq. (B8); of -sigma of eq. (B11) for a
    # corrected label with masked hits; 0 if the base mass is a draw
    label_terms: FloatArray
    label_sizes: FloatArray  # (K,) sizes of `label_terms` before cancellation
    loss_terms: FloatArray  # (K,) terms of E[log S] - log E[S], eq. (B7)
    loss_sizes: FloatArray  # (K,) their sizes before cancellation, times 1 + |exponents|
    loss_narrow: bool = False  # whether `loss_terms` are analytic in a narrow strip only
    loss_offset: float = 0.0  # the loss bias minus the integral
    loss_offset_size: float = 0.0


def make_node_weights(draws: Draws, nodes: Nodes) -> NodeWeights:
    """Return the weights of the nodes for a scheme without jackknife."""
    scheme = draws.scheme
    v_base = np.exp(np.minimum(nodes.x + draws.log_base, LARGEST_EXPONENT))
    log_theta = nodes.log_transform - v_base  # (B3)
    # a base mass that acts as one more draw is part of the ratios of the classes, eq. (B12)
    log_draws = nodes.log_transform if scheme.label_is_a_draw else log_theta
    weight, loss_integrand = _draw_weights(draws, nodes, log_theta, log_draws)
    coefficients = np.zeros((len(weight), 6))
    coefficients[:, 0] = nodes.dx * weight
    terms = v_base * coefficients[:, 0]
    if scheme.label_is_a_draw:
        label_terms = np.zeros_like(terms)
    elif scheme.corrects_label:
        # 1 - m q_t psi_R cancels for m = 1 and q_t near 1: take (1 - psi_R) - (m q_t - 1) psi_R
        decay_ref = np.exp(nodes.log_psi_ref + nodes.log_transform_least)  # exp(-v (R - r0))
        beyond_one = (draws.num_draws - 1) * draws.label_draw - draws.other_draw  # m q_t - 1
        label_terms = terms * (nodes.above - beyond_one * decay_ref)
    else:
        label_terms = terms * nodes.above
    loss_terms = -nodes.dx * loss_integrand
    loss_sizes = exponent_sizes(np.abs(loss_terms), draws.num_draws * log_theta)
    weights = NodeWeights(
        coefficients=coefficients,
        label_terms=label_terms,
        label_sizes=np.abs(label_terms),
        loss_terms=loss_terms,
        loss_sizes=loss_sizes,
    )
    return _with_corrected_loss(draws, nodes, v_base, weights) if scheme.corrects_label else weights


def _with_corrected_loss(
    draws: Draws, nodes: Nodes, v_base: FloatArray, weights: NodeWeights
) -> NodeWeights:
    """Return the weights with the loss offset of a corrected label.

    The loss terms are those of (B7), or of (B74) if that has the smaller sizes.
    """
    shift, shift_size = _corrected_loss_offset(draws)
    shifted = replace(weights, loss_offset=shift, loss_offset_size=shift_size)
    if draws.scheme.label_is_a_draw:  # (B74) does not apply: the nodes end before exp(-m v B) does
        return shifted
    m, of_label = draws.num_draws, draws.log_label
    terms = -nodes.dx * np.exp(-m * v_base) * np.expm1(m * nodes.log_transform)
    sizes = exponent_sizes(terms, m * v_base)
    if sizes.sum() - of_label > shifted.loss_sizes.sum() + shift_size:
        return shifted
    return replace(
        weights,
        loss_terms=terms,
        loss_sizes=sizes,
        loss_offset=of_label,
        loss_offset_size=-of_label,
    )


def _corrected_loss_offset(draws: Draws) -> tuple[float, float]:
    """Return log E[S] - (corrected label logit) + (label logit), and its size before cancellation.

    It is log(1 + d). If the label is drawn, d is the expected number of its draws minus the mass of
    the other classes. Otherwise d is that mass times (the expected number of its draws minus 1).
    """
    p_label, other = math.exp(draws.log_label), draws.other_mass
    expected = draws.num_draws * draws.label_draw
    gain, loss_of_mass = (
        (expected, other) if draws.scheme.draws_label else (other * expected, other)
    )
    if gain - loss_of_mass > -0.5:
        shift = float(np.log1p(gain - loss_of_mass))
        return shift, float(abs(shift) + (gain + loss_of_mass) / (1.0 + gain - loss_of_mass))
    shift = float(np.log(p_label + gain))
    return shift, 1.0 + abs(shift)


@njit
def exponent_sizes(sizes: FloatArray, exponents: FloatArray) -> FloatArray:
    """Return ``sizes * (1 + |exponents|)``, (K,): rounding of x by e changes exp(x) by |x| e."""
    out = np.zeros(len(sizes))
    for k in range(len(sizes)):
        if sizes[k] > 0.0:
            out[k] = sizes[k] * (1.0 + abs(exponents[k]))
    return out


def log_first_draw(nodes: Nodes, log_theta: FloatArray) -> FloatArray:
    """Return log(theta / (T exp(v r0))): the factor of one draw without its psi."""
    return log_theta - nodes.log_transform - nodes.v_least


def _draw_weights(
    draws: Draws, nodes: Nodes, log_theta: FloatArray, log_draws: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return E / (T exp(v r0)), and theta**m - exp(-m v E[S]), both (K,).

    The second is at least 0, by Jensen's inequality. E is m theta**m. If the scheme divides by the
    number of accepted draws, both are means over that number, eq. (B10).
    """
    m = draws.num_draws
    if not draws.scheme.divides_by_kept:
        weight = m * np.exp(log_first_draw(nodes, log_draws) + (m - 1) * log_draws)
        limit = -m * nodes.v * draws.expected_sum
        return weight, difference_of_exp(m * log_theta, limit, m * nodes.excess)
    log_mix, limit = (
        log_accepted_transform(draws, log_theta),
        log_accepted_transform(draws, -nodes.v),
    )
    weight = m * draws.other_draw * np.exp(log_first_draw(nodes, log_draws) + (m - 1) * log_mix)
    growth = np.log(draws.other_draw) - nodes.v - limit
    ratio = np.log1p(np.exp(growth) * np.expm1(np.minimum(nodes.excess, 1.0)))
    ratio = np.where(nodes.excess < 1.0, ratio, np.inf)
    return weight, difference_of_exp(m * log_mix, m * limit, m * ratio)


def log_accepted_transform(draws: Draws, log_theta: FloatArray) -> FloatArray:
    """Return log E[theta**K] for one draw, with K = 1 if it is accepted and 0 if it is the label.

    log(q_t + (1 - q_t) theta) loses digits where theta is near 1: for log theta > -1/2 take
    log1p((1 - q_t) expm1(log theta)).
    """
    with np.errstate(divide="ignore"):
        far = np.logaddexp(np.log(draws.label_draw), np.log(draws.other_draw) + log_theta)
        return np.where(log_theta < -0.5, far, np.log1p(draws.other_draw * np.expm1(log_theta)))


@njit
def difference_of_exp(
    log_value: FloatArray, log_limit: FloatArray, log_ratio: FloatArray
) -> FloatArray:
    """Return exp(log_value) - exp(log_limit), given log_ratio = log_value - log_limit >= 0.

    The difference loses digits where the two are close: for log_ratio < 1 take
    exp(log_limit) expm1(log_ratio).
    """
    out = np.empty(len(log_ratio))
    for k in range(len(log_ratio)):
        limit = math.exp(log_limit[k])
        close = log_ratio[k] < 1.0
        out[k] = limit * math.expm1(log_ratio[k]) if close else math.exp(log_value[k]) - limit
    return out


def assemble_loss(draws: Draws, weights: NodeWeights) -> tuple[float, float]:
    """Return the loss bias E[L'] - L, and the sum of the magnitudes of its terms."""
    loss = float(weights.loss_terms.sum()) + weights.loss_offset
    loss_size = float(weights.loss_sizes.sum()) + weights.loss_offset_size
    if draws.scheme.divides_by_kept:
        log_probability = _log_prob_none_accepted(draws)
        # with no accepted draw p' = 1 on the label, and the loss is 0, (B10)
        loss_of_none = float(np.exp(log_probability)) * draws.log_label
        loss += loss_of_none
        loss_size += abs(loss_of_none) * (1.0 - log_probability) if loss_of_none else 0.0
    return loss, loss_size


def assemble(
    draws: Draws, flows: FloatArray, total: float, label_flow: float, others: float | None
) -> FloatArray:
    """Return the bias (n,) of the classes of a chunk.

    `flows` (n,) is e_j * integral of E (psi_j - psi_R), eq. (B6), `total` their sum over all
    classes (for the ratios of (B12), with the plain ratios), and `label_flow` the label's terms.
    `others` is the sum of the bias of all classes except the label; None if all classes are in the
    chunk.
    """
    scheme, t = draws.scheme, draws.label
    # (B9), which for all classes except the label is also (B8) to (B12)
    bias = flows - draws.probs * (total + label_flow)
    if t is not None and scheme.label_is_a_draw:
        bias[t] = 0.0
        bias[t] = -(bias.sum() if others is None else others)  # (B12)
    elif t is not None and scheme.label_in_sum:
        bias[t] = label_flow * draws.other_mass - draws.probs[t] * total  # (B8), (B11)
    if scheme.divides_by_kept:
        # with no accepted draw p' = 1 on the label, eq. (B10)
        none_accepted = float(np.exp(_log_prob_none_accepted(draws)))
        at_label = 0.0 if t is None else bias[t] + none_accepted * draws.other_mass
        bias -= none_accepted * draws.probs
        if t is not None:
            bias[t] = at_label
    elif t is not None and scheme.adds_mean and not scheme.jackknife:
        bias[t] = max(bias[t], 0.0)  # the exact value is >= 0, by Jensen's inequality
    return bias


def none_accepted_error(draws: Draws) -> float:
    """Return the L1 error of the term of `assemble` for the case of no accepted draw."""
    if not draws.scheme.divides_by_kept:
        return 0.0
    log_probability = _log_prob_none_accepted(draws)
    size = 2.0 * float(np.exp(log_probability)) * draws.other_mass
    return EPS * size * (1.0 - log_probability) if size else 0.0


def _log_prob_none_accepted(draws: Draws) -> float:
    """Return the log of the probability q_t**m that all draws are the label.

    log q_t loses digits where q_t is near 1: for q_t > 1/2 take log1p(-(1 - q_t)).
    """
    with np.errstate(divide="ignore"):
        if draws.label_draw > 0.5:
            return draws.num_draws * float(np.log1p(-draws.other_draw))
        return draws.num_draws * float(np.log(draws.label_draw))
