"""Sampled softmax with most of its bias removed by the delete-one jackknife, in O(m) time."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.exponential import replace_by_log1p
from samplesoft.kernels.weights import row_max, total
from samplesoft.losses.sampled import LossKernel, SampledLoss, exp_in_place, loss_from_masses
from samplesoft.samplers.base import Draw
from samplesoft.schemes import SCHEMES, Scheme


class JackknifeLoss(SampledLoss):
    r"""Delete-one jackknife of sampled softmax.

    With :math:`L` the loss of `samplesoft.losses.sampled.SampledSoftmaxLoss` on m draws, and
    :math:`L_{-i}` the loss without draw i, whose remaining weights are multiplied by m / (m - 1),
    it is :math:`m L - (m - 1) \, \text{mean}_i L_{-i}`. The bias of loss and gradient is of order
    1 / m\ :sup:`2`, against 1 / m for sampled softmax, at the same cost O(m). Because the logarithm
    is concave, the loss is at least L.

    Parameters
    ----------
    scheme : {"negatives", "masked"}
        As for `samplesoft.losses.sampled.SampledSoftmaxLoss`. Its other schemes are not supported,
        because leaving out a draw changes their weights of draws or of the label.
    **options
        Options of `samplesoft.losses.base.Loss`.

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

    def _kernel_for_draw(self, draw: Draw, num_classes: int) -> LossKernel:
        if draw.ids.shape[1] < self.properties.min_draws:
            raise ValueError(
                f"`draw` must hold at least {self.properties.min_draws} draws for the jackknife, "
                f"which leaves out one, got {draw.ids.shape[1]}; raise num_sampled."
            )
        return LossKernel(jackknife_kernel)


@njit
def jackknife_kernel(logits: FloatArray, losses: FloatArray) -> None:
    """Write the jackknife loss of each row (P, 1 + m), and overwrite rows by its gradient.

    The loss is ``log S - (m - 1) mean_i(log S_i - log S) - logits[0]``, for m >= 2 draws and the
    label in column 0. Let a be the label's mass and W the sum of the draws' weights w_i. Then
    ``S = a + W``, and without draw i ``S_i = a + (W - w_i) m / (m - 1)``.

    Naively, ``log S_i - log S`` subtracts nearly equal numbers. Instead, ``S_i / S = 1 + x_i`` with
    ``x_i = (W - m w_i) / ((m - 1) S)``, and log1p. x_i is in [-1/2, 1], unless draw i has more than
    half of the mass S. There is at most one such draw, called heavy. Its S_i may be hundreds of
    orders of magnitude below S, and is therefore summed separately.
    """
    m = logits.shape[1] - 1
    weights = np.empty(1 + m)
    fractions = np.empty(1 + m)
    changes = np.empty(m)
    ratios = np.empty(m)

    for b in range(len(logits)):
        row = logits[b]
        max_logit = row_max(row)

        # masses relative to the largest, so that no exponential overflows
        for k in range(1 + m):
            weights[k] = row[k] - max_logit
        exp_in_place(weights)
        label_mass = weights[0]
        sampled_mass = total(weights[1:])
        total_mass = label_mass + sampled_mass

        # column of the draw with more than half of the mass; 0 if there is none
        heavy = 0
        for k in range(1, 1 + m):
            if weights[k] > 0.5 * total_mass:
                heavy = k

        # changes[i] is x_i, computed from W - m w_i, because S_i and S are nearly equal
        unit = 1.0 / ((m - 1) * total_mass)
        for k in range(m):
            changes[k] = (sampled_mass - m * weights[k + 1]) * unit

        if heavy > 0:
            changes[heavy - 1] = 0.0  # replaced by `_log_sum_without_heavy` below
        for k in range(m):
            ratios[k] = changes[k] / (1.0 + changes[k])  # 1 - S / S_i
        replace_by_log1p(changes)

        # The derivative in the logit of draw k is w_k / S times (m - sum of S / S_i over i != k),
        # because S_k does not depend on draw k, and all other S_i have w_k with a factor
        # m / (m - 1).
        sum_log_ratios = total(changes)
        factor = 1.0 + total(ratios)

        loss = loss_from_masses(label_mass, sampled_mass, max_logit - row[0])

        if heavy > 0:
            log_sum_without_heavy = _log_sum_without_heavy(row, heavy, m, fractions)
            sum_log_ratios += log_sum_without_heavy - (max_logit + np.log(total_mass))

        losses[b] = loss - (m - 1) / m * sum_log_ratios

        scale = 1.0 / total_mass
        for k in range(m):
            row[k + 1] = weights[k + 1] * scale * (factor - ratios[k])
        if heavy > 0:
            for k in range(1, 1 + m):
                if k != heavy:
                    row[k] += weights[k] * scale - fractions[k] * (m - 1) / m

        # adding a constant to all logits leaves the loss unchanged, so the derivatives sum to 0
        row[0] = -total(row[1:])


@njit
def _log_sum_without_heavy(row: FloatArray, heavy: int, m: int, fractions: FloatArray) -> float:
    """Return log S_i, the log of the sum of label and draws without draw i, in column `heavy`.

    Writes the fraction (1 + m,) of the sum that each term has to `fractions`.
    """
    gain = np.log(m / (m - 1))  # added to the logits of the m - 1 remaining draws
    fractions[0] = row[0]
    for k in range(1, len(row)):
        fractions[k] = -np.inf if k == heavy else row[k] + gain

    max_logit = row_max(fractions)
    for k in range(len(row)):
        fractions[k] -= max_logit
    exp_in_place(fractions)

    total_mass = total(fractions)
    for k in range(len(row)):
        fractions[k] /= total_mass
    return float(max_logit + np.log(total_mass))
