"""The weights of the nodes for a scheme, and the bias from the flows.

`make_node_weights` computes the factor of each node in the integrals (B6) to (B8), and `assemble`
computes the bias from the flows f_j, by (B8) to (B12). Since p' sums to 1, eq. (B5), `assemble`
never has to subtract p from E[p'].
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
    """Weights of the K nodes in the integrals of the bias and of the loss bias.

    A field that ends in ``_magnitudes`` has the magnitudes from which rounding errors follow: the
    sum of |x| over the numbers x that add up to a term.
    """

    # (K, 6): the coefficients c0, c1 and c2 of `atom_integrals`, which contain dx / (T exp(v r0)),
    # and then the sums of magnitudes of which each was computed. Only a jackknife has more than c0:
    # otherwise columns 1 to 5 are 0, and the magnitudes are those of the terms themselves.
    coefficients: FloatArray
    # (K,) the terms whose sum is l of (B8); or -sigma of (B11), if the label is corrected and draws
    # of it are masked; 0 if the base mass is a draw
    label_terms: FloatArray
    label_magnitudes: FloatArray  # (K,) of `label_terms`
    # (K,) the terms whose sum is E[log S] - log E[S], eq. (B7), or the integral of (B74)
    loss_terms: FloatArray
    loss_magnitudes: FloatArray  # (K,) including the factor 1 + |exponent| of `exponent_magnitudes`
    loss_narrow: bool = False  # whether the strip in which the loss integrand is analytic is narrow
    loss_offset: float = 0.0  # to be added to the sum of `loss_terms` to get the loss bias
    loss_offset_magnitude: float = 0.0


def make_node_weights(draws: Draws, nodes: Nodes) -> NodeWeights:
    """Return the weights of the nodes, for every scheme except the jackknives."""
    scheme = draws.scheme
    v_base = np.exp(np.minimum(nodes.x + draws.log_base, LARGEST_EXPONENT))
    log_theta = nodes.log_transform - v_base  # (B3)

    # if the base mass is a draw, eq. (B12) adds it to the ratios of the classes, not to the weight
    log_draws = nodes.log_transform if scheme.label_is_a_draw else log_theta
    weight, loss_integrand = _draw_weights(draws, nodes, log_theta, log_draws)
    coefficients = np.zeros((len(weight), 6))
    coefficients[:, 0] = nodes.dx * weight
    base_terms = v_base * coefficients[:, 0]  # with base mass B: v B dx E / (T exp(v r0))
    if scheme.label_is_a_draw:
        label_terms = np.zeros_like(base_terms)
    elif scheme.corrects_label:
        # 1 - m q_t psi_R, which cancels for m = 1 and q_t near 1, is computed as
        # (1 - psi_R) - (m q_t - 1) psi_R, times T exp(v r0)
        decay_ref = np.exp(nodes.log_psi_ref + nodes.log_scaled_transform)  # exp(-v (R - r0))
        beyond_one = (
            draws.num_draws - 1
        ) * draws.label_draw_prob - draws.other_draw_prob  # m q_t - 1
        label_terms = base_terms * (nodes.above - beyond_one * decay_ref)
    else:
        label_terms = base_terms * nodes.above
    loss_terms = -nodes.dx * loss_integrand
    loss_magnitudes = exponent_magnitudes(np.abs(loss_terms), draws.num_draws * log_theta)
    weights = NodeWeights(
        coefficients=coefficients,
        label_terms=label_terms,
        label_magnitudes=np.abs(label_terms),
        loss_terms=loss_terms,
        loss_magnitudes=loss_magnitudes,
    )

    return _with_corrected_loss(draws, nodes, v_base, weights) if scheme.corrects_label else weights


def _with_corrected_loss(
    draws: Draws, nodes: Nodes, v_base: FloatArray, weights: NodeWeights
) -> NodeWeights:
    """Return `weights` with the loss terms and the loss offset for a corrected label.

    The loss terms are those of (B7), or of (B74) if the magnitudes of (B74) have the smaller sum.
    """
    shift, shift_size = _corrected_loss_offset(draws)
    shifted = replace(weights, loss_offset=shift, loss_offset_magnitude=shift_size)
    # (B74) is of no use if the base mass B is a draw: exp(-m v B) is not small at the last node
    if draws.scheme.label_is_a_draw:
        return shifted
    m = draws.num_draws
    of_label = draws.log_label
    terms = -nodes.dx * np.exp(-m * v_base) * np.expm1(m * nodes.log_transform)
    sizes = exponent_magnitudes(terms, m * v_base)
    if sizes.sum() - of_label > shifted.loss_magnitudes.sum() + shift_size:
        return shifted

    return replace(
        weights,
        loss_terms=terms,
        loss_magnitudes=sizes,
        loss_offset=of_label,
        loss_offset_magnitude=-of_label,
    )


def _corrected_loss_offset(draws: Draws) -> tuple[float, float]:
    """Return the loss bias minus (B7), and the magnitude to which its rounding is proportional.

    The first result is log E[S] - (corrected label logit) + (label logit), which equals log(1 + d).
    Let k be the expected number of draws of the label, and o the softmax mass of the other classes.
    Then d = k - o if the scheme draws the label, and d = o (k - 1) otherwise.
    """
    p_label = math.exp(draws.log_label)
    other = draws.other_mass
    expected = draws.num_draws * draws.label_draw_prob
    gain, loss_of_mass = (
        (expected, other) if draws.scheme.draws_label else (other * expected, other)
    )
    if gain - loss_of_mass > -0.5:
        shift = float(np.log1p(gain - loss_of_mass))
        return shift, float(abs(shift) + (gain + loss_of_mass) / (1.0 + gain - loss_of_mass))
    shift = float(np.log(p_label + gain))
    return shift, 1.0 + abs(shift)


@njit
def exponent_magnitudes(sizes: FloatArray, exponents: FloatArray) -> FloatArray:
    """Return ``sizes * (1 + |exponents|)``, (K,).

    Rounding errors of terms of these `sizes`, computed by exp(`exponents`), are proportional to it:
    a relative error e of x is a relative error |x| e of exp(x), and exp itself rounds once.
    """
    out = np.zeros(len(sizes))
    for k in range(len(sizes)):
        if sizes[k] > 0.0:
            out[k] = sizes[k] * (1.0 + abs(exponents[k]))
    return out


def log_first_draw(nodes: Nodes, log_theta: FloatArray) -> FloatArray:
    """Return log(theta / (T exp(v r0))), (K,), for the weights of the nodes.

    theta is one of the m factors in the curly E of (B4). The weights are divided by T exp(v r0),
    because `atom_integrals` computes with differences of exp(-v (r - r0)), which are T exp(v r0)
    times differences of psi.
    """
    return log_theta - nodes.log_transform - nodes.v_r0


def _draw_weights(
    draws: Draws, nodes: Nodes, log_theta: FloatArray, log_draws: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the weight of each node without dx, and the integrand of (B7), both (K,).

    The weights are the curly E of (B4), m theta**m, divided by T exp(v r0). The integrand is
    theta**m - exp(-m v mean(S)). If the scheme divides by the number of accepted draws, weights and
    integrand are expectations over this number, eq. (B10).
    """
    m = draws.num_draws
    if not draws.scheme.divides_by_accepted:
        weight = m * np.exp(log_first_draw(nodes, log_draws) + (m - 1) * log_draws)
        limit = -m * nodes.v * draws.expected_sum
        return weight, difference_of_exp(m * log_theta, limit, m * nodes.excess)
    log_mix = log_accepted_transform(draws, log_theta)
    limit = log_accepted_transform(draws, -nodes.v)
    weight = (
        m * draws.other_draw_prob * np.exp(log_first_draw(nodes, log_draws) + (m - 1) * log_mix)
    )
    growth = np.log(draws.other_draw_prob) - nodes.v - limit
    ratio = np.log1p(np.exp(growth) * np.expm1(np.minimum(nodes.excess, 1.0)))
    ratio = np.where(nodes.excess < 1.0, ratio, np.inf)

    return weight, difference_of_exp(m * log_mix, m * limit, m * ratio)


def log_accepted_transform(draws: Draws, log_theta: FloatArray) -> FloatArray:
    """Return log E[theta**K] for one draw, with K = 0 if it is the label t, and else K = 1.

    The naive log(q_t + (1 - q_t) theta) loses digits where theta is near 1. For log theta of -1/2
    or more, log1p((1 - q_t) expm1(log theta)) is computed instead.
    """
    with np.errstate(divide="ignore"):
        far = np.logaddexp(_log_label_draw_prob(draws), np.log(draws.other_draw_prob) + log_theta)
        return np.where(
            log_theta < -0.5, far, np.log1p(draws.other_draw_prob * np.expm1(log_theta))
        )


@njit
def difference_of_exp(
    log_value: FloatArray, log_limit: FloatArray, log_ratio: FloatArray
) -> FloatArray:
    """Return exp(log_value) - exp(log_limit), given log_ratio = log_value - log_limit >= 0.

    The difference loses digits where the two exponentials are close. For log_ratio < 1 it is
    computed as exp(log_limit) expm1(log_ratio).
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
    loss_size = float(weights.loss_magnitudes.sum()) + weights.loss_offset_magnitude
    if draws.scheme.divides_by_accepted:
        log_probability = _log_prob_none_accepted(draws)
        # if no draw is accepted, p' is 1 at the label, and the loss is 0, (B10)
        loss_of_none = float(np.exp(log_probability)) * draws.log_label
        loss += loss_of_none
        loss_size += abs(loss_of_none) * (1.0 - log_probability) if loss_of_none else 0.0
    return loss, loss_size


def assemble(
    draws: Draws, flows: FloatArray, total: float, label_flow: float, others: float | None
) -> FloatArray:
    """Return the bias (n,) of the classes of a chunk, given their flows.

    Parameters
    ----------
    draws
        The draws, with the arrays of the chunk.
    flows
        (n,) the flows f_j of eq. (B6).
    total
        The sum F of the flows over all classes of the example; for (B12), of the flows by the
        ratios r_j without the label's.
    label_flow
        The sum of `NodeWeights.label_terms`.
    others
        The sum of the bias of all classes except the label; None if the chunk has all classes.
    """
    scheme = draws.scheme
    t = draws.label
    # (B9); (B8), (B11) and (B12) differ from it only at the label t
    bias = flows - draws.probs * (total + label_flow)
    if t is not None and scheme.label_is_a_draw:
        bias[t] = 0.0
        bias[t] = -(bias.sum() if others is None else others)  # (B12)
    elif t is not None and scheme.label_in_sum:
        bias[t] = label_flow * draws.other_mass - draws.probs[t] * total  # (B8), (B11)
    if scheme.divides_by_accepted:
        # if no draw is accepted, p' is 1 at the label, eq. (B10)
        none_accepted = float(np.exp(_log_prob_none_accepted(draws)))
        at_label = 0.0 if t is None else bias[t] + none_accepted * draws.other_mass
        bias -= none_accepted * draws.probs
        if t is not None:
            bias[t] = at_label
    elif t is not None and scheme.sum_is_label_plus_mean and not scheme.jackknife:
        bias[t] = max(bias[t], 0.0)  # the exact value is >= 0, by Jensen's inequality

    return bias


def none_accepted_error(draws: Draws) -> float:
    """Return the L1 rounding error of what `assemble` adds for the case of no accepted draw."""
    if not draws.scheme.divides_by_accepted:
        return 0.0
    log_probability = _log_prob_none_accepted(draws)
    size = 2.0 * float(np.exp(log_probability)) * draws.other_mass
    return EPS * size * (1.0 - log_probability) if size else 0.0


def _log_prob_none_accepted(draws: Draws) -> float:
    """Return the log of q_t**m, the probability that all draws are the label."""
    return draws.num_draws * _log_label_draw_prob(draws)


def _log_label_draw_prob(draws: Draws) -> float:
    """Return log q_t, the log of the probability that one draw is the label.

    The naive log q_t loses the digits of 1 - q_t where q_t is near 1, and m draws multiply the
    loss. For q_t > 1/2 it is log1p(-(1 - q_t)), where 1 - q_t is a sum without the label.
    """
    with np.errstate(divide="ignore"):
        if draws.label_draw_prob > 0.5:
            return float(np.log1p(-draws.other_draw_prob))
        return float(np.log(draws.label_draw_prob))
