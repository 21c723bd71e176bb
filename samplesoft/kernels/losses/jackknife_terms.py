"""Delete-one jackknife of sampled softmax: losses and their derivatives, O(1) a draw."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.exponential import log1p_to
from samplesoft.kernels.losses.logit_rows import weigh
from samplesoft.kernels.losses.softmax_terms import log_ratio
from samplesoft.kernels.weights import greatest, total


@njit
def jackknife_terms(logits: FloatArray, losses: FloatArray) -> None:
    """Write the jackknife of the loss of each row (P, 1 + m), and turn rows into its gradient.

    That is ``log S - (m - 1) mean_i(log S_i - log S) - logits[0]``, of m >= 2 draws and the label
    in column 0. With W the sum of the weights of the draws, ``S = a + W``, and without draw i
    ``S_i = a + (W - w_i) m / (m - 1)``. Then ``S_i / S = 1 + x_i`` with
    ``x_i = (W - m w_i) / ((m - 1) S)`` from -1/2 to 1, in which nothing cancels, unless draw i
    carries more than half of S. There is at most one such draw: its S_i may be hundreds of orders
    below S, and is summed on its own.
    """
    m = logits.shape[1] - 1
    weights, rest = np.empty(1 + m), np.empty(1 + m)
    change, ratio = np.empty(m), np.empty(m)
    for b in range(len(logits)):
        row = logits[b]
        top = greatest(row)
        for k in range(1 + m):
            weights[k] = row[k] - top
        weigh(weights)
        own, drawn = weights[0], total(weights[1:])
        mass = own + drawn
        heavy = _heaviest(weights, 0.5 * mass)
        unit = 1.0 / ((m - 1) * mass)
        for k in range(m):
            change[k] = (drawn - m * weights[k + 1]) * unit
        if heavy > 0:
            change[heavy - 1] = 0.0
        for k in range(m):
            ratio[k] = change[k] / (1.0 + change[k])  # 1 - S / S_i
        log1p_to(change)
        lost, kept = total(change), 1.0 + total(ratio)
        loss = log_ratio(own, drawn, top - row[0])
        if heavy > 0:
            log_rest = _leave_out(row, heavy, m, rest)
            lost += log_rest - (top + np.log(mass))
        losses[b] = loss - (m - 1) / m * lost
        scale = 1.0 / mass
        for k in range(m):
            row[k + 1] = weights[k + 1] * scale * (kept - ratio[k])
        if heavy > 0:
            for k in range(1, 1 + m):
                if k != heavy:
                    row[k] += weights[k] * scale - rest[k] * (m - 1) / m
        row[0] = -total(row[1:])


@njit
def _heaviest(weights: FloatArray, bound: float) -> int:
    """Return the place of the draw whose weight is above `bound`, or 0."""
    for k in range(1, len(weights)):
        if weights[k] > bound:
            return k
    return 0


@njit
def _leave_out(row: FloatArray, heavy: int, m: int, shares: FloatArray) -> float:
    """Return the logarithm of the sum without draw `heavy`, and write each one's share of it."""
    gain = np.log(m / (m - 1))
    shares[0] = row[0]
    for k in range(1, len(row)):
        shares[k] = -np.inf if k == heavy else row[k] + gain
    top = greatest(shares)
    for k in range(len(row)):
        shares[k] -= top
    weigh(shares)
    mass = total(shares)
    for k in range(len(row)):
        shares[k] /= mass
    return float(top + np.log(mass))
