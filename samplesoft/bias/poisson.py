"""The exact bias where classes are included independently of each other."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import chunks, thread_each
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.draw_law import log_softmax
from samplesoft.bias.quadrature import estimate_error, halving_change, make_grid, rounding_unit
from samplesoft.bias.with_replacement import Row
from samplesoft.kernels.bias import poisson as inclusion
from samplesoft.kernels.bias import ratios

_NODE_CHUNK = 8
_CLASS_CHUNK = 1 << 12


def poisson_bias(logits: FloatArray, label: int, q: FloatArray) -> Row:
    """Return the exact bias of one example with inclusion probabilities `q`.

    E[p'_j] = e_j int exp(-u (e_t + w_j)) prod_{k != j} (1 - q_k + q_k exp(-u w_k)) du with
    w = e / q, eq. (B26).
    """
    log_probs = log_softmax(logits)
    probs = np.exp(log_probs)
    pi = np.minimum(q, 1.0)
    pi[label] = 0.0
    others = float(np.delete(probs, label).sum())
    if others == 0.0:
        return Row(np.zeros_like(probs), probs, 0.0, 0.0)
    drawn = pi > 0.0
    with np.errstate(divide="ignore"):
        log_w = np.where(drawn, log_probs - np.log(pi), -np.inf)
    reference, deviation = _reference(logits, probs, log_w, pi, label)

    # largest rate: of a class that is in, or of the limit exp(-u); least: of the label alone
    x, step = make_grid(max(float(log_w.max()), 0.0), float(log_probs[label]))
    products = np.empty((len(x), 2))

    def multiply(part: slice) -> None:
        inclusion.log_products(x[part], log_w, pi, products[part])

    thread_each(multiply, chunks(len(x), _NODE_CHUNK))
    with np.errstate(over="ignore", under="ignore"):
        u_label = np.exp(np.minimum(x + log_probs[label], LARGEST_EXPONENT))
        log_weights = products[:, 0] - u_label
        weights = step * np.exp(log_weights)
        u = np.exp(np.minimum(x, LARGEST_EXPONENT))
        small = products[:, 1] < 1.0
        excess = np.exp(-u) * np.expm1(np.where(small, products[:, 1], 0.0))
        loss = -float(step @ np.where(small, excess, np.exp(log_weights) - np.exp(-u)))

    integrals = np.empty((3, len(pi)))

    def integrate(part: slice) -> None:
        some = log_w[part], pi[part], log_w[reference], pi[reference], deviation[part]
        inclusion.class_integrals(x, weights, *some, integrals[:, part])

    thread_each(integrate, chunks(len(pi), _CLASS_CHUNK))
    label_terms = weights * u_label * _label_contrast(x, log_w[reference], pi[reference])
    flows = integrals[0]
    flows[label] = float(label_terms.sum())  # psi = 1: the label is a class that is always in
    total = float(flows.sum())
    bias = flows - probs * total  # (B9); at the label without its own flow cancelling
    bias[label] = flows[label] * others - probs[label] * float(np.delete(flows, label).sum())
    coarse = float(np.abs(integrals[0] - integrals[1])[drawn].sum())
    coarse += halving_change(label_terms)
    size = float(integrals[2].sum() + np.abs(label_terms).sum())
    norm = float(np.abs(bias).sum())
    unit = rounding_unit(log_w[drawn], float(log_probs[label]))
    return Row(bias, probs, loss, estimate_error(coarse, size, norm, unit))


def _reference(
    logits: FloatArray, probs: FloatArray, log_w: FloatArray, pi: FloatArray, label: int
) -> tuple[int, FloatArray]:
    """Return the class to measure differences from, and w_j / w_ref - 1 (n,).

    It is the softmax-weighted median of (1 - pi) w, which orders psi for small u; the label,
    whose psi is 1, stands at 0.
    """
    with np.errstate(divide="ignore"):
        order = log_w + np.log1p(-pi)
    order[label] = -np.inf
    finite = np.isfinite(order)
    floor = float(order[finite].min()) - 1.0 if finite.any() else 0.0
    reference = ratios.weighted_median(np.where(finite, order, floor), probs)
    if pi[reference] in (0.0, 1.0):  # included with certainty, as the label is
        return label, np.zeros_like(pi)
    deviation = np.zeros_like(pi)
    for j in np.flatnonzero(pi):
        deviation[j] = ratios.deviation(
            log_w[j] - log_w[reference], logits[j], logits[reference], pi[j], pi[reference]
        )
    return reference, deviation


def _label_contrast(x: FloatArray, log_w: float, pi: float) -> FloatArray:
    """Return 1 - psi_ref at each node (K,)."""
    if pi == 0.0:
        return np.zeros_like(x)
    y = np.exp(np.minimum(x + log_w, LARGEST_EXPONENT))
    decay = np.exp(-y)
    factor = (1.0 - pi) + pi * decay
    return -(1.0 - pi) * np.expm1(-y) / np.where(factor > 0.0, factor, 1.0)
