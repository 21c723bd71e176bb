"""The exact bias of the schemes that draw with replacement."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.draw_law import Draws, make_draws
from samplesoft.bias.node_weights import Times, decay_rates, jackknife_cuts, make_times
from samplesoft.bias.quadrature import STEP, estimate_error, halving_change
from samplesoft.bias.sums import HOST, HostSums
from samplesoft.bias.transform import (
    Atoms,
    Classes,
    Nodes,
    make_atoms,
    make_nodes,
    read_classes,
    spread_of,
)
from samplesoft.kernels.bias import panels

_ENOUGH = 1e-12  # relative L1 error at which the step is not halved again
_LEAST_STEP = 0.02


class Row(NamedTuple):
    """Bias (n,), softmax (n,), loss bias, and estimated L1 error of the bias of one example."""

    bias: FloatArray
    probs: FloatArray
    loss_bias: float
    error: float


class _Flows(NamedTuple):
    """e_j * integral of E (psi_j - psi_R) per class (n,), and what `estimate_error` needs."""

    flows: FloatArray
    total: float
    coarse: float
    size: float


def mixture_bias(
    logits: FloatArray,
    label: int,
    q: FloatArray,
    m: int,
    scheme: str,
    sums: HostSums = HOST,
) -> Row:
    """Return the exact bias of one example; the step is halved until the error is small."""
    draws = make_draws(logits, label, q, m, scheme)
    if scheme == "reject" and not draws.drawn.any():  # the label alone is left: loss 0
        bias = -draws.probs
        bias[label] = draws.other_mass
        return Row(bias, draws.probs, float(draws.log_probs[label]), 0.0)
    if scheme not in ("importance", "candidate") and draws.other_mass == 0.0:
        return Row(np.zeros_like(draws.probs), draws.probs, 0.0, 0.0)
    classes = read_classes(draws)
    atoms = make_atoms(draws, classes, sums)
    best: Row | None = None
    step = STEP if scheme != "jackknife" else 0.5 * STEP
    with np.errstate(all="ignore"):  # what is not finite is told by its error, and not taken
        while best is None or step > _LEAST_STEP:
            rates = decay_rates(draws, classes, m, scheme)
            nodes = make_nodes(classes, atoms, *rates, step, sums)
            cuts = jackknife_cuts(nodes, draws.log_base, m) if scheme == "jackknife" else [np.inf]
            for cut in cuts:
                times = make_times(draws, nodes, m, scheme, cut)
                flows = _class_flows(draws, classes, atoms, nodes, times, sums)
                if scheme == "candidate":
                    flows = _with_label_drawn(draws, classes, nodes, times, flows, sums)
                bias, loss_bias = _assemble(draws, flows, times, m, scheme)
                norm = float(np.abs(bias).sum())
                error = estimate_error(flows.coarse, flows.size, norm)
                error = np.inf if np.isnan(error) else error
                if best is None or not error >= best.error:
                    best = Row(bias, draws.probs, loss_bias, error)
                if error <= _ENOUGH * norm:
                    return best
            step *= 0.5
    return best


def _class_flows(
    draws: Draws, classes: Classes, atoms: Atoms, nodes: Nodes, times: Times, sums: HostSums
) -> _Flows:
    integrals = sums.atom_integrals(
        nodes.x,
        times.coefficients,
        nodes.tilted,
        atoms.rows,
        float(classes.log_above_least[0]),
    )
    weight = np.abs(atoms.weights[1])
    coarse = float(weight @ np.abs(integrals[0] - integrals[1]))
    size = float(weight @ integrals[2])
    # the label's terms reach the bias times the mass of the other classes
    terms = times.label
    if draws.phantom:
        terms = draws.expected_label_draws * times.label - times.base
    coarse += 2.0 * draws.other_mass * halving_change(terms)
    size += 2.0 * draws.other_mass * float(np.abs(terms).sum())
    slot = atoms.slot
    if slot is None:
        flows, active = np.zeros(len(draws.probs)), draws.drawn > 0.0
        flows[active] = (atoms.weights[1] * integrals[0])[: active.sum()]
        return _Flows(flows, float(flows.sum()), coarse, size)
    spread = spread_of(draws, classes, atoms.width, atoms.first, slot)
    values = integrals[0, : spread.count * panels.DEGREE].reshape(-1, panels.DEGREE)
    flows, total = sums.class_flows(spread, values @ panels.forward())
    return _Flows(flows, total, coarse, size)


def _with_label_drawn(
    draws: Draws, classes: Classes, nodes: Nodes, times: Times, flows: _Flows, sums: HostSums
) -> _Flows:
    """Return the flows of scheme ``candidate``: each class is drawn together with the label.

    With its base mass r_t / m, E[p'_j] = e_j int m phi**(m-1) exp(-v (r_j + r_t)) dv: the ratio
    of class j is r_j + r_t, while the total that it is compared with keeps r_j.
    """
    t = draws.label
    if draws.other_mass == 0.0:
        return flows
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratio = np.exp(np.minimum(classes.log_r - classes.log_ref, 700.0))
        kappa = classes.contrast
        above = np.where(np.abs(kappa) < 0.5, 2.0 * kappa / (1.0 - kappa), ratio - 1.0)
        # r_j + r_t - R, the smaller ratio added to what the larger has above R
        rise = np.where(ratio < ratio[t], ratio + above[t], above + ratio[t])
        contrast = rise / (ratio + ratio[t] + 1.0)
        log_r = np.logaddexp(classes.log_r, classes.log_r[t])
        drawn = np.exp(draws.log_probs - log_r)
    drawn[t] = 0.0
    shifted = replace(classes, log_r=log_r, contrast=contrast)
    joined = replace(draws, drawn=drawn)
    atoms = make_atoms(joined, shifted, sums)
    parts = _class_flows(joined, shifted, atoms, nodes, times, sums)
    return parts._replace(
        total=flows.total,
        coarse=parts.coarse + 2.0 * draws.other_mass * flows.coarse,
        size=parts.size + 2.0 * draws.other_mass * flows.size,
    )


def _assemble(
    draws: Draws, parts: _Flows, times: Times, m: int, scheme: str
) -> tuple[FloatArray, float]:
    """Return the bias (n,) and the loss bias from the flows between classes."""
    t, flows, total = draws.label, parts.flows, parts.total
    label_flow, base = float(times.label.sum()), float(times.base.sum())
    loss = float(times.loss.sum())
    if scheme in ("negatives", "jackknife", "reject"):
        bias = flows - draws.probs * (total + label_flow)
        bias[t] = label_flow * draws.other_mass - draws.probs[t] * total
        if scheme == "negatives":
            bias[t] = max(bias[t], 0.0)  # it is, by Jensen's inequality
        if scheme == "reject":
            none_kept = draws.label_draw**m
            at_label = bias[t] + none_kept * draws.other_mass
            bias -= none_kept * draws.probs
            bias[t] = at_label
            loss += float(none_kept * draws.log_probs[t])
        return bias, loss
    if scheme == "importance":
        return flows - draws.probs * total, loss
    expected = draws.expected_label_draws
    if scheme == "candidate":
        loss += float(np.log(draws.probs[t] + expected))
        bias = flows - draws.probs * total
        bias[t] = 0.0
        bias[t] = -bias.sum()
        return bias, loss
    if draws.other_mass < 0.5:
        loss += float(np.log1p(draws.other_mass * (expected - 1.0)))
    else:
        loss += float(np.log(draws.probs[t] + draws.other_mass * expected))
    surplus = expected * label_flow - base
    bias = flows - draws.probs * (total - surplus)
    bias[t] = -draws.other_mass * surplus - draws.probs[t] * total
    return bias, loss
