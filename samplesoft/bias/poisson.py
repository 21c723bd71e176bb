"""The exact bias where classes are included independently of each other."""

from __future__ import annotations

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.draw_law import log_softmax
from samplesoft.bias.inclusion import (
    Included,
    integrate_flows,
    make_atoms,
    make_included,
    sum_logs,
)
from samplesoft.bias.quadrature import estimate_error, halving_change, make_grid, rounding_unit
from samplesoft.bias.with_replacement import Row


def poisson_bias(logits: FloatArray, label: int, q: FloatArray) -> Row:
    """Return the exact bias of one example with inclusion probabilities `q`.

    E[p'_j] = e_j int exp(-u (a + w_j)) prod_{k != j} (1 - q_k + q_k exp(-u w_k)) du with
    w = e / q, and a the mass of the label and of other classes with q = 1, eq. (B26).
    """
    log_probs = log_softmax(logits)
    probs = np.exp(log_probs)
    pi = np.minimum(q, 1.0)
    known = pi == 1.0
    known[label] = True
    pi[known] = 0.0
    others = float(probs[~known].sum())
    if others == 0.0:
        return Row(np.zeros_like(probs), probs, 0.0, 0.0)
    log_base = _log_sum(log_probs[known])
    classes = make_included(logits, probs, log_probs, pi)
    atoms = make_atoms(classes)

    # largest rate: of a class that is in, or of the limit exp(-u); least: of the base alone
    x, step = make_grid(max(float(classes.log_w.max()), 0.0), log_base)
    products = sum_logs(atoms, x)
    with np.errstate(over="ignore", under="ignore"):
        u_base = np.exp(np.minimum(x + log_base, LARGEST_EXPONENT))
        log_weights = products[:, 0] - u_base
        weights = step * np.exp(log_weights)
        u = np.exp(np.minimum(x, LARGEST_EXPONENT))
        small = products[:, 1] < 1.0
        excess = np.exp(-u) * np.expm1(np.where(small, products[:, 1], 0.0))
        loss = -float(step @ np.where(small, excess, np.exp(log_weights) - np.exp(-u)))
        base_terms = weights * u_base * _base_contrast(x, classes)  # psi = 1

    flows, total, size, coarse = integrate_flows(classes, atoms, x, weights)
    base_flow = float(base_terms.sum())
    bias = flows - probs * (total + base_flow)  # (B9); at the base without its own flow cancelling
    share = np.exp(log_probs[known] - log_base)
    bias[known] = share * base_flow * others - probs[known] * total
    coarse += halving_change(base_terms)
    size += float(np.abs(base_terms).sum())
    norm = float(np.abs(bias).sum())
    unit = rounding_unit(classes.log_w[pi > 0.0], log_base)
    return Row(bias, probs, loss, estimate_error(coarse, size, norm, unit))


def _log_sum(log_masses: FloatArray) -> float:
    if len(log_masses) == 1:
        return float(log_masses[0])
    top = log_masses.max()
    return float(top + np.log(np.exp(log_masses - top).sum()))


def _base_contrast(x: FloatArray, classes: Included) -> FloatArray:
    """Return 1 - psi of the reference at each node (K,)."""
    pi = classes.pi_ref
    y = np.exp(np.minimum(x + classes.log_w_ref, LARGEST_EXPONENT))
    factor = (1.0 - pi) + pi * np.exp(-y)
    return -(1.0 - pi) * np.expm1(-y) / factor
