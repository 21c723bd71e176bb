"""The exact bias of one example for draws with replacement.

`with_replacement_bias` is the complete computation, if all classes are in memory. `Integral`
computes the flows (B6) of an example from its atoms, whose classes may be in memory or in chunks.
The flow of class j is p_j times the difference of E[p'_j] / p_j from the value at the reference
ratio R. `bias_of_classes` computes the bias of classes from the flows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from samplesoft._jit import chunks, thread_for_each
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.quadrature import (
    RELATIVE_TOLERANCE,
    STEP,
    ExampleBias,
    change_by_half_of_nodes,
    combine_better,
    estimate_error,
    estimate_sum_error,
    halved_steps,
    relative_term_error,
)
from samplesoft.bias.with_replacement.atoms import Atoms, make_atoms
from samplesoft.bias.with_replacement.deviations import DEVIATION_ERROR, deviation
from samplesoft.bias.with_replacement.draws import CLASS_CHUNK, Draws, make_draws
from samplesoft.bias.with_replacement.jackknife import jackknife_weights
from samplesoft.bias.with_replacement.laplace import atom_integrals
from samplesoft.bias.with_replacement.node_weights import (
    NodeWeights,
    assemble,
    assemble_loss,
    make_node_weights,
    none_accepted_error,
)
from samplesoft.bias.with_replacement.nodes import Nodes, TiltedNodes, make_nodes
from samplesoft.bias.with_replacement.ratios import MAX_KAPPA_FOR_ARTANH, Ratios, make_ratios
from samplesoft.kernels import panels
from samplesoft.schemes import Scheme

_MAX_RELATIVE_ERROR = 1e-10  # warn if the estimated error exceeds this fraction of the bias (L1)
_MIN_ERROR = 1e-290  # up to it errors never warn, because they are close to subnormal numbers


def with_replacement_bias(
    logits: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme
) -> ExampleBias:
    """Return the exact bias of one example.

    The step of the quadrature is halved until the estimated errors are small, but only a few times.
    If they stay large, the bias and the loss bias with the smallest estimated errors are returned;
    the two may come from different steps.
    """
    draws = make_draws(logits, label, q, m, scheme)
    if (row := trivial_bias(draws)) is not None:
        return row
    ratios = make_ratios(draws)
    atoms = make_atoms(draws, ratios)
    flow_draws = draws
    flow_ratios = ratios
    pairs = None
    if scheme.label_is_a_draw:
        flow_draws, flow_ratios = pair_with_label(draws, ratios)
        pairs = Pairs(
            draws=flow_draws,
            ratios=flow_ratios,
            atoms=unscale_pairs(draws, make_atoms(flow_draws, flow_ratios)),
        )
    integral = Integral(draws, ratios, atoms, pairs)
    best = None

    # a result that is not finite gets the error inf, so that any other attempt is preferred
    with np.errstate(all="ignore"):
        for flows in integral.attempts():
            bias = bias_of_classes(flows, flow_draws, flow_ratios)
            row, is_enough = integral.result_with_errors(flows, bias, float(np.abs(bias).sum()))
            best = combine_better(best, row)
            if is_enough:
                break

    assert best is not None
    return best


def loses_digits(error: Any, size: Any) -> Any:
    """Return whether `error` is too large for a bias of L1 norm `size`, elementwise."""
    # negated, so that an error of NaN is too large
    return np.logical_not(error <= np.maximum(_MAX_RELATIVE_ERROR * size, _MIN_ERROR))


def trivial_bias(draws: Draws) -> ExampleBias | None:
    """Return the exact bias if all outcomes of the draws give the same p', else None."""
    # only the label can be drawn, and it is not accepted: S is the label alone, and the loss is 0
    if draws.scheme.divides_by_accepted and not draws.draws_any_class:
        bias = -draws.probs
        if draws.label is not None:
            bias[draws.label] = draws.other_mass
        unit = relative_term_error(draws.max_log_prob)
        return ExampleBias(bias, draws.probs, draws.log_label, 0.0, unit * abs(draws.log_label))
    if not draws.scheme.draws_label and draws.other_mass == 0.0:
        return ExampleBias(np.zeros_like(draws.probs), draws.probs, 0.0, 0.0, 0.0)
    return None


class Pairs(NamedTuple):
    """Draws, ratios and atoms of each class paired with the label, eq. (B12)."""

    draws: Draws
    ratios: Ratios
    atoms: Atoms


class Flows(NamedTuple):
    """The integrals over the nodes, from which the flows (B6) of all classes follow.

    Rounding errors are proportional to the fields `size` and `class_size`, which are sums of the
    magnitudes of terms.
    """

    atoms: Atoms
    values: FloatArray  # (A,) Phi of (B23) at each atom; the flow of a class is q kappa Phi
    total: float  # F of (B6): the sum of all flows
    # l of (B8), or -sigma of (B11); 0 if there is no base mass, or if the base mass is a draw
    label_flow: float
    # L1 norm of the changes of the flows and of the label's terms if every second node is left out
    coarse: float
    size: float  # magnitudes of the terms of the flows and of the label
    class_size: float  # magnitudes of the terms of the flows alone
    weights: NodeWeights  # the weights of the nodes in these integrals

    def with_total_of(self, flows: Flows, other_mass: float) -> Flows:
        """Return these flows, of pairs with the label, with the total F of the plain `flows`.

        In eq. (B12) the flow of a class is computed with the ratio r_j + r_t (t is the label), but
        F with the ratios r_j. `other_mass` is the softmax mass of all classes except the label.
        """
        return self._replace(
            total=flows.total,
            coarse=self.coarse + 2.0 * other_mass * flows.coarse,
            size=self.size + 2.0 * other_mass * flows.size,
        )


class Integral:
    """The integrals (B6) and (B7) of one example, for smaller and smaller steps.

    Each attribute that ends in ``_unit`` is a relative error of the terms of a sum.

    Parameters
    ----------
    draws, ratios, atoms
        The draws, the ratios of the classes around their centres, and the atoms of the ratios.
    pairs : Pairs, optional
        Draws, ratios and atoms of each class paired with the label, if the base mass is a draw.
    """

    def __init__(
        self, draws: Draws, ratios: Ratios, atoms: Atoms, pairs: Pairs | None = None
    ) -> None:
        self.draws = draws
        self.ratios = ratios
        self.atoms = atoms
        self.pairs = pairs

        # unit of (B25): the relative error of a ratio that is computed from its log. The sum
        # |log e| + |log q| there equals |log(e q)|, because both logs are negative.
        unit = relative_term_error(draws.max_log_product)
        sums = ratios.error_sums
        kappa_error = DEVIATION_ERROR * sums.near_probs + unit * sums.far_probs
        variance_error = (
            DEVIATION_ERROR**2 * sums.near_draw_probs + unit * unit * sums.far_draw_probs
        )
        spread = math.sqrt(max(float(atoms.points.q_zeta2.sum()), 0.0))

        # relative rounding error of the terms of the bias, which contain the base mass
        self.bias_unit = max(unit, relative_term_error(draws.max_abs_log_in_base))
        # relative rounding error of the terms of the loss bias, in which each ratio is weighted by
        # the softmax
        self.loss_unit = max(unit, relative_term_error(draws.max_log_prob))

        # relative error of the flows that is due to the errors of kappa, of near and of far classes
        self.kappa_unit = kappa_error / sums.abs_kappa_probs if sums.abs_kappa_probs > 0.0 else 0.0
        # relative error of the loss bias that is due to the errors of r - mean
        self.deviation_unit = math.sqrt(variance_error) / spread if spread > 0.0 else 0.0

    def attempts(self) -> Iterator[Flows]:
        """Yield the flows for smaller and smaller steps.

        For a jackknife, each step gives several results: different weights of the nodes give the
        same integral with different rounding errors.
        """
        draws = self.draws
        for step in halved_steps(0.5 * STEP if draws.scheme.jackknife else STEP):
            nodes = make_nodes(draws, self.ratios, self.atoms, step)
            weight_choices: Iterable[NodeWeights]
            if isinstance(nodes, TiltedNodes):
                weight_choices = jackknife_weights(draws, nodes, self.loss_unit)
            else:
                weight_choices = (make_node_weights(draws, nodes),)
            for weights in weight_choices:
                flows = _integrate_flows(draws, self.ratios, self.atoms, nodes, weights)
                if self.pairs is not None:
                    pairs = self.pairs
                    of_pairs = _integrate_flows(
                        pairs.draws, pairs.ratios, pairs.atoms, nodes, weights
                    )
                    flows = of_pairs.with_total_of(flows, draws.other_mass)
                yield flows

    def result_with_errors(self, flows: Flows, bias: Any, norm: float) -> tuple[ExampleBias, bool]:
        """Return the result with error estimates, and whether it is accurate enough to stop.

        `bias` is the bias that follows from `flows`, and `norm` is its L1 norm.
        """
        draws = self.draws
        weights = flows.weights
        terms = weights.loss_terms
        is_jackknife = draws.scheme.jackknife

        error = estimate_error(flows.coarse, flows.size, norm, self.bias_unit, is_jackknife)
        bias_is_enough = error <= (RELATIVE_TOLERANCE + 4.0 * self.bias_unit) * norm

        loss_bias, loss_size = assemble_loss(draws, weights)
        loss_error = estimate_sum_error(terms, loss_size, self.loss_unit, weights.loss_narrow)
        # the terms of a jackknife cancel: compare the error with their sum, not their magnitudes
        scale = abs(float(terms.sum())) if is_jackknife else loss_size
        limit = RELATIVE_TOLERANCE * scale + 4.0 * self.loss_unit * loss_size
        is_enough = bias_is_enough and loss_error <= limit

        # errors that a smaller step does not change
        error += self.kappa_unit * flows.class_size + none_accepted_error(draws)
        loss_error += self.deviation_unit * float(np.abs(terms).sum())
        row = ExampleBias(
            bias=bias,
            probs=draws.probs,
            loss_bias=loss_bias,
            error=math.inf if math.isnan(error) else error,
            loss_error=math.inf if math.isnan(loss_error) else loss_error,
        )

        return row, is_enough


def _integrate_flows(
    draws: Draws, ratios: Ratios, atoms: Atoms, nodes: Nodes, weights: NodeWeights
) -> Flows:
    """Return the flows that follow from one set of weights of the nodes."""
    points = atoms.points
    tilted = nodes.tilted if isinstance(nodes, TiltedNodes) else None
    over_nodes = atom_integrals(
        nodes.x, weights.coefficients, tilted, points, ratios.log_ref_above_r0
    )
    weight = np.abs(points.q_kappa)

    # sums instead of dot products: the last bits of BLAS depend on the number of threads
    coarse = float((weight * np.abs(over_nodes.full - over_nodes.half)).sum())
    size = class_size = float((weight * over_nodes.size).sum())

    # In (B8) the sum l of the label's terms adds l * other_mass to the bias of the label, and
    # subtracts as much from the other classes together: an L1 norm of 2 l * other_mass.
    coarse += 2.0 * draws.other_mass * change_by_half_of_nodes(weights.label_terms)
    size += 2.0 * draws.other_mass * float(weights.label_magnitudes.sum())
    return Flows(
        atoms=atoms,
        values=over_nodes.full,
        total=float((points.q_kappa * over_nodes.full).sum()),
        label_flow=float(weights.label_terms.sum()),
        coarse=coarse,
        size=size,
        class_size=class_size,
        weights=weights,
    )


def bias_of_classes(
    flows: Flows, draws: Draws, ratios: Ratios, others: float | None = None
) -> FloatArray:
    """Return the bias (n,) of all classes of an example, or of a chunk of them.

    `draws` and `ratios` are those of the classes. For a chunk, `others` must be the sum of the bias
    over all classes of the example except the label.
    """
    class_flows = flows_of_classes(flows.atoms, flows.values, draws, ratios)
    total = flows.total
    if others is None and not draws.scheme.label_is_a_draw:
        total = float(class_flows.sum())  # with this total the bias sums to 0 up to rounding

    return assemble(draws, class_flows, total, flows.label_flow, others)


def flows_of_classes(atoms: Atoms, values: FloatArray, draws: Draws, ratios: Ratios) -> FloatArray:
    """Return the flows (n,) of all classes of an example, or of a chunk of them.

    `values` (A,) are Phi of (B23) at the atoms; `draws` and `ratios` are those of the classes.
    """
    class_flows = draws.draw_probs * ratios.kappa
    if atoms.panel_ids is None:
        # each class that can be drawn is an atom; if draws of the label are masked, the last atom
        # stands for them
        active = draws.draw_probs > 0.0
        by_class = np.empty(len(atoms.order))
        by_class[atoms.order] = values
        class_flows[active] *= by_class[: active.sum()]
    elif len(atoms.panel_ids):
        panel, s = atoms.panel_positions(ratios)
        of_panels = atoms.by_panel(values)[:, None]
        coefficients = of_panels @ panels.coefficient_matrix()

        def work(part: slice) -> None:
            class_flows[part] *= panels.evaluate(panel[part], s[part], coefficients)[0]

        thread_for_each(work, chunks(len(class_flows), CLASS_CHUNK))
    return class_flows


def _log_pair_scale(log_r_label: float) -> float:
    """Return the log of the factor that keeps the draw probabilities of pairs from underflow."""
    return max(log_r_label, 0.0)


def unscale_pairs(draws: Draws, atoms: Atoms) -> Atoms:
    """Return atoms of pairs with their ratios divided by the factor exp(`_log_pair_scale`).

    Their draw probabilities contain this factor. After the division, draw probability times ratio
    is e_j again; see `pair_with_label`.
    """
    log_r = atoms.points.log_r - _log_pair_scale(draws.log_r_label)
    return replace(atoms, points=atoms.points._replace(log_r=log_r))


def pair_with_label(draws: Draws, ratios: Ratios) -> tuple[Draws, Ratios]:
    """Return the draws and ratios of each class paired with the label, eq. (B12).

    The base mass is r_t / m, where t is the label, so that
    E[p'_j] = e_j int m T**(m-1) exp(-v (r_j + r_t)) dv. So the flow of class j is computed with the
    ratio r_j + r_t and the draw probability e_j / (r_j + r_t), while T has the ratios r_j. The draw
    probabilities are returned times exp(`_log_pair_scale`).
    """
    log_r_label = draws.log_r_label
    o_ref, q_ref, log_ref = ratios.reference
    distance = log_r_label - log_ref
    above_label = deviation(distance, draws.totals.label_logit, o_ref, draws.totals.label_q, q_ref)
    ratio_label = math.exp(min(distance, LARGEST_EXPONENT))

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratio = np.exp(np.minimum(ratios.log_r - log_ref, LARGEST_EXPONENT))
        kappa = ratios.kappa
        # r / R - 1 cancels where r is near R: for |kappa| < 1/2 it is 2 kappa / (1 - kappa)
        above = np.where(np.abs(kappa) < 0.5, 2.0 * kappa / (1.0 - kappa), ratio - 1.0)
        # r_j + r_t - R cancels if the larger of r_j and r_t is near R: so the smaller one is added
        # to (larger one - R)
        rise = np.where(ratio < ratio_label, ratio + above_label, above + ratio_label)
        pair_kappa = rise / (ratio + ratio_label + 1.0)
        log_r = np.logaddexp(ratios.log_r, log_r_label)
        draw_probs = np.exp(draws.log_probs - (log_r - _log_pair_scale(log_r_label)))

    if draws.label is not None:
        draw_probs[draws.label] = 0.0
    low, high = np.logaddexp(ratios.log_ratio_range, distance).tolist()
    all_near = max(abs(low), abs(high)) < 2.0 * math.atanh(MAX_KAPPA_FOR_ARTANH)
    shifted = replace(
        ratios, log_r=log_r, kappa=pair_kappa, all_near=all_near, log_ratio_range=(low, high)
    )

    return replace(draws, draw_probs=draw_probs), shifted
