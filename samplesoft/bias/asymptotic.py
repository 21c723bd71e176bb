"""The limit of m times the bias: what the first order in 1/m says, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.classes import make_classes
from samplesoft.bias.draw_law import make_draw_law
from samplesoft.bias.inputs import check_inputs
from samplesoft.schemes import SCHEMES


def asymptotic_bias(
    logits: ArrayLike, labels: Any, q: Any, *, h: ArrayLike | None = None
) -> FloatArray:
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
    labels, h
        As for `samplesoft.exact_bias`.
    q : array_like, shape (n,) or (B, n), or sampler
        Proposal over all n classes, positive on every negative; or an object with a method
        ``probs(h)``.

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
    inputs = check_inputs(logits, labels, q, 1, h=h)
    limit: FloatArray = inputs.columns((_limit(*row),) for row in inputs.rows())[0]
    return limit


def _limit(logits: FloatArray, label: int, q: FloatArray) -> FloatArray:
    """Return the limit (n,) for one example, eq. (B31).

    In units where Z = 1 it is e_j (mean - r_j) for a negative and 0 for the label, each less
    its average under the softmax, where the label counts with the mean of r.
    """
    law = make_draw_law(logits, label, q, 1, SCHEMES["negatives"])
    if law.other_mass == 0.0:
        return np.zeros_like(law.probs)
    classes = make_classes(law)
    reference = np.exp(min(classes.log_ref, LARGEST_EXPONENT))
    with np.errstate(all="ignore"):
        kappa = classes.contrast
        near = np.abs(kappa) < 0.5
        ratio = 2.0 * kappa / np.where(near, 1.0 - kappa, 1.0) * reference
        flows = law.probs * np.where(
            near, ratio, np.exp(np.minimum(classes.log_r, LARGEST_EXPONENT)) - reference
        )
        flows[label] = 0.0
        total = float(flows.sum())
        mean = classes.mean_deviation * float(reference)
        limit: FloatArray = law.probs * (total + law.probs[label] * mean) - flows
        limit[label] = max(law.probs[label] * (total - law.other_mass * mean), 0.0)
    return limit
