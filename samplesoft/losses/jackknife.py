"""Sampled softmax with most of its bias taken off: the delete-one jackknife, O(1) a draw."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.exponential import log1p_to
from samplesoft.kernels.weights import greatest, total
from samplesoft.losses.sampled import SampledLoss, Terms, log_ratio, weigh
from samplesoft.samplers.base import Draw
from samplesoft.schemes import SCHEMES, Scheme


class JackknifeLoss(SampledLoss):
    r"""Delete-one jackknife of sampled softmax.

    With :math:`L` the loss of `samplesoft.losses.sampled.SampledSoftmaxLoss` on m draws, and
    :math:`L_{-i}` that without draw i, in which the others weigh m / (m - 1) times as much, it is
    :math:`m L - (m - 1) \, \text{mean}_i L_{-i}`. Its bias is of order 1 / m\ :sup:`2`, in the
    loss and in the gradient, against 1 / m for sampled softmax. It costs O(m) like that. By the
    concavity of the logarithm it is at least L.

    Parameters
    ----------
    scheme : {"negatives", "masked"}
        As for `samplesoft.losses.sampled.SampledSoftmaxLoss`. The others weigh draws, or the
        label, in a way that changes with the number of draws.
    **options
        Those of `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `forward` if there are fewer than 2 draws, or they are
        without replacement.

    References
    ----------
    .. [1] M. H. Quenouille, "Notes on bias in estimation", Biometrika 43, 1956: the jackknife.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft import exact_bias
    >>> from samplesoft.samplers.base import Draw
    >>> scores, q, m = np.array([0.0, 1.0, 3.0]), np.array([0.5, 0.5]), 4
    >>> ids = 1 + np.array(np.meshgrid(*[[0, 1]] * m)).reshape(m, -1).T  # all 16 draws
    >>> draw = Draw(ids, np.log(q)[ids - 1])
    >>> value, cache = JackknifeLoss().forward(
    ...     np.ones((16, 1)), scores[:, None], np.zeros(16, int), draw
    ... )
    >>> full = np.log(np.exp(scores).sum()) - scores[0]
    >>> exact = exact_bias(scores, 0, [1 / 3] * 3, m, scheme="jackknife").loss_bias
    >>> bool(abs(value - full - exact) < 1e-12)
    True
    """

    schemes: ClassVar[dict[str, Scheme]] = {
        "negatives": SCHEMES["jackknife"],
        "masked": SCHEMES["jackknife_masked"],
    }
    is_softmax = True
    with_replacement = True

    def _terms_of(self, draw: Draw, num_classes: int) -> Terms:
        if draw.ids.shape[1] < self.properties.least_draws:
            raise ValueError(
                f"`draw` must hold at least {self.properties.least_draws} draws for the jackknife, "
                f"which leaves out one, got {draw.ids.shape[1]}; raise num_sampled."
            )
        return Terms(jackknife_terms)


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
        # in the unit of the largest, label or draw, so that none overflows
        for k in range(1 + m):
            weights[k] = row[k] - top
        weigh(weights)
        own, drawn = weights[0], total(weights[1:])
        mass = own + drawn
        heavy = 0  # or the draw that carries more than half
        for k in range(1, 1 + m):
            if weights[k] > 0.5 * mass:
                heavy = k
        # x_i = S_i / S - 1 from W - m w_i, and not from S_i and S, which are nearly equal
        unit = 1.0 / ((m - 1) * mass)
        for k in range(m):
            change[k] = (drawn - m * weights[k + 1]) * unit
        if heavy > 0:
            change[heavy - 1] = 0.0  # its logarithm comes from `_leave_out`
        for k in range(m):
            ratio[k] = change[k] / (1.0 + change[k])  # 1 - S / S_i
        log1p_to(change)
        # The derivative of a draw is w / S times m - sum of S / S_i over the other draws i, for S_i
        # does not change with draw i, and by m / (m - 1) with the others. That is kept - its own
        # ratio.
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
        # a shift of all logits leaves the loss as it is: its derivatives add up to 0
        row[0] = -total(row[1:])


@njit
def _leave_out(row: FloatArray, heavy: int, m: int, shares: FloatArray) -> float:
    """Return the logarithm of the sum without draw `heavy`, and write each one's share of it."""
    gain = np.log(m / (m - 1))  # the other draws weigh as much more
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
