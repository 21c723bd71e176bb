"""From nodes to the bias: the weights of the nodes in each scheme, and the bias by the integrals.

`make_node_weights` depends on the distribution of the number of draws, `assemble` on the base mass.
The masses of p' add up to 1, eq. (B5), and `assemble` uses it: nothing is subtracted from E[p'].
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
    """Weights of functions at the K nodes, which are then summed."""

    # (K, 6) of D, v D' and v**2 D'' in `atom_integrals`, each times dx / (T exp(v r0)), and the
    # sizes of what the three are made of; only the jackknife has more than the first
    coefficients: FloatArray
    # (K,) terms of base * integral of E (1 - psi_R), eq. (B8); for a corrected label whose draws
    # are masked, of -sigma of eq. (B11); 0 where the base mass is a draw
    label_terms: FloatArray
    label_sizes: FloatArray  # (K,) the sizes of what `label_terms` are made of
    loss_terms: FloatArray  # (K,) of E[log S] - log E[S], eq. (B7)
    loss_sizes: FloatArray  # (K,) of what they are made of, times 1 + the exponents in them
    loss_narrow: bool = False  # whether `loss_terms` are analytic in a narrow strip only
    loss_rest: float = 0.0  # what the loss bias has beside the integral
    loss_rest_size: float = 0.0


def make_node_weights(draws: Draws, nodes: Nodes) -> NodeWeights:
    """Weigh the nodes for a scheme that is not the jackknife."""
    scheme = draws.scheme
    v_base = np.exp(np.minimum(nodes.x + draws.log_base, LARGEST_EXPONENT))
    log_theta = nodes.log_transform - v_base  # (B3)
    # a base mass that is one more draw is carried by the ratios of the classes, eq. (B12)
    log_free = nodes.log_transform if scheme.label_is_a_draw else log_theta
    weight, beyond_limit = _weigh_draws(draws, nodes, log_theta, log_free)
    coefficients = np.zeros((len(weight), 6))
    coefficients[:, 0] = nodes.dx * weight
    terms = v_base * coefficients[:, 0]
    if scheme.label_is_a_draw:
        label_terms = np.zeros_like(terms)
    elif scheme.corrects_label:
        # 1 - m q_t psi_R, whose two parts are nearly equal for m = 1 and q_t near 1
        decay_ref = np.exp(nodes.log_psi_ref + nodes.log_transform_least)  # exp(-v (R - r0))
        beyond_one = (draws.num_draws - 1) * draws.label_draw - draws.other_draw  # m q_t - 1
        label_terms = terms * (nodes.above - beyond_one * decay_ref)
    else:
        label_terms = terms * nodes.above
    loss_terms = -nodes.dx * beyond_limit
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
    """Return the same with what the loss bias has beside (B7), or with (B74) if that is smaller."""
    shift, shift_size = _log_sum_shift(draws)
    shifted = replace(weights, loss_rest=shift, loss_rest_size=shift_size)
    if draws.scheme.label_is_a_draw:  # the nodes end before exp(-m v B) has decayed
        return shifted
    m, of_label = draws.num_draws, draws.log_label
    terms = -nodes.dx * np.exp(-m * v_base) * np.expm1(m * nodes.log_transform)
    sizes = exponent_sizes(terms, m * v_base)
    if sizes.sum() - of_label > shifted.loss_sizes.sum() + shift_size:
        return shifted
    return replace(
        weights, loss_terms=terms, loss_sizes=sizes, loss_rest=of_label, loss_rest_size=-of_label
    )


def _log_sum_shift(draws: Draws) -> tuple[float, float]:
    """Return log E[S] minus the label's corrected logit, plus its logit, and the size of that.

    It is log (1 + d), d being the expected label draws less the mass of the other classes, or that
    mass times the expected label draws less 1.
    """
    p_label, other = math.exp(draws.log_label), draws.other_mass
    expected = draws.num_draws * draws.label_draw
    gain, less = (expected, other) if draws.scheme.draws_label else (other * expected, other)
    if gain - less > -0.5:
        shift = float(np.log1p(gain - less))
        return shift, float(abs(shift) + (gain + less) / (1.0 + gain - less))
    shift = float(np.log(p_label + gain))
    return shift, 1.0 + abs(shift)


@njit
def exponent_sizes(sizes: FloatArray, exponents: FloatArray) -> FloatArray:
    """Return `sizes` (K,) of terms times 1 + the exponents in them, whose rounding they take."""
    out = np.zeros(len(sizes))
    for k in range(len(sizes)):
        if sizes[k] > 0.0:
            out[k] = sizes[k] * (1.0 + abs(exponents[k]))
    return out


def log_first_draw(nodes: Nodes, log_theta: FloatArray) -> FloatArray:
    """Return log of theta / (T exp(v r0)): one draw's factor, its psi to be filled in."""
    return log_theta - nodes.log_transform - nodes.v_least


def _weigh_draws(
    draws: Draws, nodes: Nodes, log_theta: FloatArray, log_free: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return E over T exp(v r0), and theta**m - exp(-m v E[S]), at least 0 by Jensen's inequality.

    E is m theta**m. Where the scheme divides by the number of draws that are kept, both are means
    over that number, eq. (B10).
    """
    m = draws.num_draws
    if not draws.scheme.divides_by_kept:
        weight = m * np.exp(log_first_draw(nodes, log_free) + (m - 1) * log_free)
        limit = -m * nodes.v * draws.expected_sum
        return weight, difference_of_exp(m * log_theta, limit, m * nodes.excess)
    log_mix, limit = log_kept(draws, log_theta), log_kept(draws, -nodes.v)
    weight = m * draws.other_draw * np.exp(log_first_draw(nodes, log_free) + (m - 1) * log_mix)
    growth = np.log(draws.other_draw) - nodes.v - limit
    ratio = np.log1p(np.exp(growth) * np.expm1(np.minimum(nodes.excess, 1.0)))
    ratio = np.where(nodes.excess < 1.0, ratio, np.inf)
    return weight, difference_of_exp(m * log_mix, m * limit, m * ratio)


def log_kept(draws: Draws, log_theta: FloatArray) -> FloatArray:
    """Return log E[theta**K] for one draw, K = 1 if it is kept and 0 if it is the label."""
    with np.errstate(divide="ignore"):
        far = np.logaddexp(np.log(draws.label_draw), np.log(draws.other_draw) + log_theta)
        return np.where(log_theta < -0.5, far, np.log1p(draws.other_draw * np.expm1(log_theta)))


@njit
def difference_of_exp(
    log_value: FloatArray, log_limit: FloatArray, log_ratio: FloatArray
) -> FloatArray:
    """Return exp(log_value) - exp(log_limit), from their log ratio where they are close."""
    out = np.empty(len(log_ratio))
    for k in range(len(log_ratio)):
        limit = math.exp(log_limit[k])
        close = log_ratio[k] < 1.0
        out[k] = limit * math.expm1(log_ratio[k]) if close else math.exp(log_value[k]) - limit
    return out


def assemble_loss(draws: Draws, weights: NodeWeights) -> tuple[float, float]:
    """Return the loss bias E[L'] - L, and the sum of the magnitudes of its terms."""
    loss = float(weights.loss_terms.sum()) + weights.loss_rest
    loss_size = float(weights.loss_sizes.sum()) + weights.loss_rest_size
    if draws.scheme.divides_by_kept:
        log_probability = _log_none_kept(draws)
        loss_of_none = float(np.exp(log_probability)) * draws.log_label  # then p' = 1 on it, (B10)
        loss += loss_of_none
        loss_size += abs(loss_of_none) * (1.0 - log_probability) if loss_of_none else 0.0
    return loss, loss_size


def assemble(
    draws: Draws, flows: FloatArray, total: float, label_flow: float, others: float | None
) -> FloatArray:
    """Return the bias (n,) of the classes of a chunk.

    `flows` (n,) holds e_j * integral of E (psi_j - psi_R), eq. (B6), `total` their sum over all
    classes, with the ratios of (B12) that of the classes alone, and `label_flow` the label's terms.
    `others` is the sum of the bias of the other classes, None where they are all here.
    """
    scheme, t = draws.scheme, draws.label
    # (B9), and of the other classes (B8) to (B12)
    bias = flows - draws.probs * (total + label_flow)
    if t is not None and scheme.label_is_a_draw:
        bias[t] = 0.0
        bias[t] = -(bias.sum() if others is None else others)  # (B12)
    elif t is not None and scheme.label_in_sum:
        bias[t] = label_flow * draws.other_mass - draws.probs[t] * total  # (B8), (B11)
    if scheme.divides_by_kept:
        none_kept = float(np.exp(_log_none_kept(draws)))  # then p' = 1 on the label, eq. (B10)
        at_label = 0.0 if t is None else bias[t] + none_kept * draws.other_mass
        bias -= none_kept * draws.probs
        if t is not None:
            bias[t] = at_label
    elif t is not None and scheme.adds_mean and not scheme.jackknife:
        bias[t] = max(bias[t], 0.0)  # it is, by Jensen's inequality
    return bias


def none_kept_error(draws: Draws) -> float:
    """Return the L1 error of what `assemble` adds for draws that are all of the label."""
    if not draws.scheme.divides_by_kept:
        return 0.0
    log_probability = _log_none_kept(draws)
    size = 2.0 * float(np.exp(log_probability)) * draws.other_mass
    return EPS * size * (1.0 - log_probability) if size else 0.0


def _log_none_kept(draws: Draws) -> float:
    """Return the log of the probability that all draws are of the label."""
    with np.errstate(divide="ignore"):
        if draws.label_draw > 0.5:  # whose logarithm has lost its digits near 1
            return draws.num_draws * float(np.log1p(-draws.other_draw))
        return draws.num_draws * float(np.log(draws.label_draw))
