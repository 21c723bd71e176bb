"""The exact bias of the schemes that draw with replacement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.assemble import assemble
from samplesoft.bias.by_parts import choose_cuts, make_kernel, negative_log_theta
from samplesoft.bias.classes import Atoms, Classes, make_atoms, make_classes, make_panel_classes
from samplesoft.bias.draw_law import DrawLaw, make_draw_law
from samplesoft.bias.jackknife import make_jackknife_weights
from samplesoft.bias.jackknife_loss import make_loss_terms
from samplesoft.bias.node_weights import NodeWeights, compute_decay_rates, make_node_weights
from samplesoft.bias.quadrature import STEP, estimate_error, halving_change, rounding_unit
from samplesoft.bias.sums import atom_integrals, class_flows
from samplesoft.bias.transform import Nodes, make_nodes
from samplesoft.kernels.bias import panels
from samplesoft.schemes import Scheme

ENOUGH = 1e-12  # relative L1 error at which the step is not halved again
LEAST_STEP = 0.02


class Row(NamedTuple):
    """Bias (n,), softmax (n,), loss bias, and estimated errors, of one example.

    They are that of the bias in the L1 norm, and that of the loss bias.
    """

    bias: FloatArray
    probs: FloatArray
    loss_bias: float
    error: float
    loss_error: float


class _Flows(NamedTuple):
    """e_j * integral of E (psi_j - psi_R) per class (n,), and what `estimate_error` needs."""

    flows: FloatArray
    total: float
    coarse: float
    size: float


def with_replacement_bias(
    logits: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme
) -> Row:
    """Return the exact bias of one example; the step is halved until the error is small."""
    law = make_draw_law(logits, label, q, m, scheme)
    if scheme.divides_by_kept and not law.drawn.any():  # the label alone is left: loss 0
        bias = -law.probs
        bias[label] = law.other_mass
        loss = float(law.log_probs[label])
        return Row(bias, law.probs, loss, 0.0, rounding_unit(law.log_probs, 0.0) * abs(loss))
    if not scheme.draws_label and law.other_mass == 0.0:
        return Row(np.zeros_like(law.probs), law.probs, 0.0, 0.0, 0.0)
    classes = make_classes(law)
    atoms = make_atoms(law, classes)
    rates = compute_decay_rates(law, classes)
    best: Row | None = None
    unit = rounding_unit(classes.log_r[law.drawn > 0.0], law.log_base)
    loss_unit = max(unit, rounding_unit(law.log_probs, 0.0))  # it is a mean over the softmax
    step = STEP if not scheme.jackknife else 0.5 * STEP
    with np.errstate(all="ignore"):  # a result that is not finite has no error that is, and goes
        while best is None or step > LEAST_STEP:
            nodes = make_nodes(law, classes, atoms, *rates, step)
            for weights in _node_weights(law, nodes, loss_unit):
                flows = _class_flows(law, classes, atoms, nodes, weights)
                if scheme.label_is_a_draw:
                    flows = _with_label_drawn(law, classes, nodes, weights, flows)
                bias, loss_bias, size = assemble(law, flows.flows, flows.total, weights)
                norm = float(np.abs(bias).sum())
                narrow = scheme.jackknife
                error = estimate_error(flows.coarse, flows.size, norm, unit, narrow)
                loss_error, is_enough = _estimate_loss_error(weights, size, loss_unit, scheme)
                errors = (np.inf if np.isnan(e) else e for e in (error, loss_error))
                found = Row(bias, law.probs, loss_bias, *errors)
                best = found if best is None else better_of(best, found)
                if error <= (ENOUGH + 4.0 * unit) * norm and is_enough:
                    return best
            step *= 0.5
    return best


def better_of(one: Row, other: Row) -> Row:
    """Return the bias and the loss bias of the smaller errors."""
    bias = other if other.error < one.error else one
    loss = other if other.loss_error < one.loss_error else one
    return bias._replace(loss_bias=loss.loss_bias, loss_error=loss.loss_error)


def _estimate_loss_error(
    weights: NodeWeights, size: float, unit: float, scheme: Scheme
) -> tuple[float, bool]:
    """Return an error of the loss bias, and whether a smaller step would not make it smaller."""
    terms = weights.loss_terms
    coarse = halving_change(terms)
    norm = abs(float(terms.sum()))
    error = estimate_error(coarse, size, norm, unit, weights.loss_narrow)
    # the jackknife's terms cancel, and their size says little
    enough = ENOUGH * (norm if scheme.jackknife else size)
    return error, error <= enough + 4.0 * unit * size


def _node_weights(law: DrawLaw, nodes: Nodes, unit: float) -> Iterator[NodeWeights]:
    """Yield the node weights to try, those first that most often suffice."""
    if not law.scheme.jackknife:
        yield make_node_weights(law, nodes)
        return
    kernel = make_kernel(law, negative_log_theta(law, nodes))
    loss = make_loss_terms(law, nodes, kernel, unit)
    for cut in choose_cuts(law, nodes, kernel.s):
        yield make_jackknife_weights(law, nodes, kernel, cut, loss)


def _class_flows(
    law: DrawLaw, classes: Classes, atoms: Atoms, nodes: Nodes, weights: NodeWeights
) -> _Flows:
    integrals = atom_integrals(
        nodes.x, weights.coefficients, nodes.tilted, atoms.rows, float(classes.log_above_least[0])
    )
    weight = np.abs(atoms.weights[1])
    coarse = float(weight @ np.abs(integrals[0] - integrals[1]))
    size = float(weight @ integrals[2])
    # the label's terms reach the bias times the mass of the other classes: at the label, and
    # once more spread over the others
    coarse += 2.0 * law.other_mass * halving_change(weights.label_terms)
    size += 2.0 * law.other_mass * float(weights.label_sizes.sum())
    slot = atoms.slot
    if slot is None:  # each class is an atom; behind them may stand that of weightless draws
        flows, active = np.zeros(len(law.probs)), law.drawn > 0.0
        flows[active] = (atoms.weights[1] * integrals[0])[: active.sum()]
        return _Flows(flows, float(flows.sum()), coarse, size)
    on_panels = make_panel_classes(law, classes, atoms.width, atoms.first, slot)
    values = integrals[0, : on_panels.num_panels * panels.DEGREE].reshape(-1, panels.DEGREE)
    flows, total = class_flows(on_panels, values @ panels.to_coefficients())  # (B23)
    return _Flows(flows, total, coarse, size)


def _with_label_drawn(
    law: DrawLaw,
    classes: Classes,
    nodes: Nodes,
    weights: NodeWeights,
    flows: _Flows,
) -> _Flows:
    """Return the flows where each class is drawn together with the label, eq. (B12).

    With the base mass r_t / m, E[p'_j] = e_j int m T**(m-1) exp(-v (r_j + r_t)) dv: the ratio
    of class j is r_j + r_t, while the total that it is compared with keeps r_j.
    """
    t = law.label
    if law.other_mass == 0.0:
        return _Flows(np.zeros_like(flows.flows), 0.0, 0.0, 0.0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratio = np.exp(np.minimum(classes.log_r - classes.log_ref, LARGEST_EXPONENT))
        kappa = classes.contrast
        # r / R - 1; from kappa it keeps its digits where r is near R
        above = np.where(np.abs(kappa) < 0.5, 2.0 * kappa / (1.0 - kappa), ratio - 1.0)
        # r_j + r_t - R, the smaller ratio added to what the larger has above R
        rise = np.where(ratio < ratio[t], ratio + above[t], above + ratio[t])
        contrast = rise / (ratio + ratio[t] + 1.0)
        log_r = np.logaddexp(classes.log_r, classes.log_r[t])
        # drawn times ratio is e_j again; both are off by a factor that keeps `drawn` from
        # underflowing where r_t is large
        excess = max(float(classes.log_r[t]), 0.0)
        drawn = np.exp(law.log_probs - (log_r - excess))
    drawn[t] = 0.0
    shifted = replace(classes, log_r=log_r, contrast=contrast)
    joined = replace(law, drawn=drawn)
    atoms = make_atoms(joined, shifted)
    atoms.rows[0] -= excess
    parts = _class_flows(joined, shifted, atoms, nodes, weights)
    return parts._replace(
        total=flows.total,
        coarse=parts.coarse + 2.0 * law.other_mass * flows.coarse,
        size=parts.size + 2.0 * law.other_mass * flows.size,
    )
