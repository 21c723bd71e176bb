"""The exact bias where classes are included independently of each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.draw_law import log_softmax
from samplesoft.bias.inclusion import (
    Included,
    InclusionAtoms,
    integrate_flows,
    make_atoms,
    make_included,
    sum_logs,
)
from samplesoft.bias.node_weights import exponent_sizes
from samplesoft.bias.quadrature import (
    STEP,
    estimate_error,
    halving_change,
    make_grid,
    rounding_unit,
)
from samplesoft.bias.with_replacement import ENOUGH, LEAST_STEP, Row, better_of


def poisson_bias(logits: FloatArray, label: int, q: FloatArray) -> Row:
    """Return the exact bias of one example with inclusion probabilities `q`.

    E[p'_j] = e_j int exp(-u (a + w_j)) prod_{k != j} (1 - q_k + q_k exp(-u w_k)) du with
    w = e / q, and a the mass of the label and of other classes with q = 1, eq. (B26).
    """
    log_probs, pi, known = inclusion_law(logits, label, q)
    probs = np.exp(log_probs)
    others = float(probs[~known].sum())
    if others == 0.0:
        return Row(np.zeros_like(probs), probs, 0.0, 0.0, 0.0)
    log_base = log_sum(log_probs[known])
    classes = make_included(logits, probs, log_probs, pi)
    atoms = make_atoms(classes)

    unit = rounding_unit(classes.log_w[pi > 0.0], log_base)
    loss_unit = max(unit, rounding_unit(log_probs, 0.0))
    share = np.exp(log_probs[known] - log_base)
    best: Row | None = None
    step = STEP
    while best is None or step > LEAST_STEP:
        nodes = make_nodes(classes, atoms, log_base, step)
        flows, total, size, coarse = integrate_flows(classes, atoms, nodes.x, nodes.weights)
        base_flow = float(nodes.base_terms.sum())
        bias = flows - probs * (total + base_flow)  # (B9)
        # at the base without its own flow cancelling
        bias[known] = share * base_flow * others - probs[known] * total
        coarse += halving_change(nodes.base_terms)
        size += float(np.abs(nodes.base_terms).sum())
        norm, loss = float(np.abs(bias).sum()), float(nodes.loss_terms.sum())
        error = estimate_error(coarse, size, norm, unit)
        loss_size, change = float(nodes.loss_sizes.sum()), halving_change(nodes.loss_terms)
        loss_error = estimate_error(change, loss_size, abs(loss), loss_unit)
        found = Row(bias, probs, loss, error, loss_error)
        best = found if best is None else better_of(best, found)
        loss_enough = (ENOUGH + 4.0 * loss_unit) * loss_size
        if error <= (ENOUGH + 4.0 * unit) * norm and loss_error <= loss_enough:
            break
        step *= 0.5
    return best


def inclusion_law(
    logits: FloatArray, label: int, q: FloatArray
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Return log e, pi, which is 0 for classes that are in for certain, and which these are."""
    pi = np.minimum(q, 1.0)
    known = pi == 1.0
    known[label] = True
    pi[known] = 0.0
    return log_softmax(logits), pi, known


class InclusionNodes(NamedTuple):
    """Nodes log u, and what stands there, all (K,)."""

    x: FloatArray
    weights: FloatArray  # E, and du / u
    base_terms: FloatArray  # of the base mass, whose psi is 1, times 1 - psi of the reference
    loss_terms: FloatArray  # of E[log S]
    loss_sizes: FloatArray


def make_nodes(
    classes: Included, atoms: InclusionAtoms, log_base: float, step: float
) -> InclusionNodes:
    """Evaluate the products of f on nodes that cover every scale of u at which they change."""
    # largest rate: of a class that is in, or of the limit exp(-u); least: of the base alone
    x, dx = make_grid(max(float(classes.log_w.max()), 0.0), log_base, step)
    products = sum_logs(atoms, x)
    with np.errstate(over="ignore", under="ignore"):
        u_base = np.exp(np.minimum(x + log_base, LARGEST_EXPONENT))
        log_weights = products[:, 0] - u_base
        weights = dx * np.exp(log_weights)
        u = np.exp(np.minimum(x, LARGEST_EXPONENT))
        small = products[:, 1] < 1.0
        excess = np.exp(-u) * np.expm1(np.where(small, products[:, 1], 0.0))
        loss = -dx * np.where(small, excess, np.exp(log_weights) - np.exp(-u))
        loss_sizes = exponent_sizes(np.abs(loss), log_weights)
        base_terms = weights * u_base * base_contrast(x, classes)
    return InclusionNodes(x, weights, base_terms, loss, loss_sizes)


def log_sum(log_masses: FloatArray) -> float:
    """Return the log of the sum of masses (k,), that of one mass as it is."""
    if len(log_masses) == 1:
        return float(log_masses[0])
    top = log_masses.max()
    return float(top + np.log(np.exp(log_masses - top).sum()))


def base_contrast(x: FloatArray, classes: Included) -> FloatArray:
    """Return 1 - psi of the reference at each node (K,)."""
    pi = classes.pi_ref
    y = np.exp(np.minimum(x + classes.log_w_ref, LARGEST_EXPONENT))
    factor = (1.0 - pi) + pi * np.exp(-y)
    return -(1.0 - pi) * np.expm1(-y) / factor
