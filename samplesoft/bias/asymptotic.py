"""The limit of m times the bias: what the first order in 1/m says, exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray
from samplesoft.bias.inputs import read_inputs
from samplesoft.bias.negatives import Negatives, read_negatives


def asymptotic_bias(logits: ArrayLike, label: Any, q: ArrayLike) -> FloatArray:
    """Return the limit of ``m * bias`` of sampled softmax as the number m of draws grows.

    The bias is ``E[p'] - p`` of the sampled softmax of [1]_, eq. 5: m negatives are drawn with
    replacement from q given "not the label". With ``a = e^{o_t}``, Z the partition function,
    Z_t the negatives' part of it, ``r_j = e^{o_j} / q_j`` with that conditioned q, and V the
    variance of r under it, the limit is ``a V / Z^3`` at the label and
    ``e^{o_j} (V / Z^3 - (r_j - Z_t) / Z^2)`` at a negative j.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    label : int or array_like of int, shape () or (B,)
        The true class of each example.
    q : array_like, shape (n,) or (B, n)
        Proposal over all n classes, positive on every negative.

    Returns
    -------
    ndarray, shape (n,) or (B, n)
        The limit of ``m * bias``, in probability; each row sums to 0. The bias of any gradient
        of the loss has the limit ``jacobian.T @ asymptotic_bias(...)``.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the proposal misses a negative.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       eqs. 5 and 8. The limit is the delta method applied to eq. 8.

    Examples
    --------
    >>> import numpy as np
    >>> asymptotic_bias([0.0, 0.0, 0.0], 0, [0.2, 0.6, 0.2]).round(4)
    array([ 0.0494,  0.1235, -0.1728])

    The proposal that is proportional to the softmax has no bias:

    >>> asymptotic_bias([0.0, 1.0, 1.0], 0, [0.0, 0.5, 0.5])
    array([0., 0., 0.])
    """
    inputs = read_inputs(logits, label, q, 1)
    limit = np.stack([_limit(read_negatives(*row)) for row in inputs.rows()])
    return limit if inputs.batched else limit[0]


def _limit(negatives: Negatives) -> FloatArray:
    """Return the limit (n,) for one example."""
    if negatives.log_chi2 == -np.inf:
        return np.zeros(negatives.keep.shape)
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        at_label = float(np.exp(negatives.log_a + 2.0 * negatives.log_zt + negatives.log_chi2))
        # p_j Z_t (Z_t chi2 - (r_j / Z_t - 1)), both terms over the larger of the two.
        variance = negatives.log_zt + negatives.log_chi2
        scale = np.maximum(variance, negatives.log_deviation)
        inner = np.exp(variance - scale)
        inner -= np.sign(negatives.log_ratio) * np.exp(negatives.log_deviation - scale)
        size = np.exp(negatives.log_p + negatives.log_zt + scale + np.log(np.abs(inner)))
        limit = negatives.spread(at_label, np.sign(inner) * size)
    # Where one negative has most of their mass, q may follow it closely and its two terms nearly
    # cancel; the entries sum to 0, so the others have its digits.
    top = int(np.argmax(negatives.spread(-np.inf, negatives.log_p)))
    rest = np.delete(limit, top)
    share = float(negatives.log_p.max()) - negatives.log_zt
    if share > -math.log(2.0) and np.isfinite(rest).all():
        limit[top] = -rest.sum()
    return limit
