"""The limit of m times the bias: what the first order in 1/m says, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.classes import make_classes
from samplesoft.bias.draw_law import DrawLaw, make_draw_law
from samplesoft.bias.inputs import Inputs, check_inputs
from samplesoft.schemes import Scheme


def asymptotic_bias(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    *,
    scheme: str | Scheme = "negatives",
    h: ArrayLike | None = None,
) -> FloatArray:
    """Return the limit of ``m * bias`` of sampled softmax as the number m of draws grows.

    For scheme ``negatives``, the sampled softmax of [1]_, eq. 5, write ``a = e^{o_t}``, Z for the
    partition function, Z_t for the negatives' part of it, ``r_j = e^{o_j} / q_j`` with q given
    "not the label", and V for the variance of r under it. The limit is ``a V / Z^3`` at the label
    and ``e^{o_j} (V / Z^3 - (r_j - Z_t) / Z^2)`` at a negative j. Those of the other schemes are
    eq. (B31) of ``samplesoft/bias/README.md``.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels, q, h
        As for `samplesoft.exact_bias`.
    scheme : str or samplesoft.schemes.Scheme
        ``negatives``, ``masked``, ``reject``, ``candidate`` or ``importance``. With the others the
        bias does not fall like 1/m, and they are refused.

    Returns
    -------
    ndarray, shape (n,) or (B, n)
        The limit of ``m * bias``, in probability; each row sums to 0. The bias of any gradient
        of the loss has the limit ``jacobian.T @ asymptotic_bias(...)``.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, the proposal misses a class that is drawn, or the scheme has no
        such limit.

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
    return asymptotic_bias_of(check_inputs(logits, labels, q, _MANY, scheme, h))


def asymptotic_bias_of(inputs: Inputs) -> FloatArray:
    """Return `asymptotic_bias` of arguments that are checked, at any number of draws."""
    facts = inputs.scheme
    if _why_no_limit(facts):
        raise ValueError(
            f"`scheme` must be one whose bias falls like 1/m, got {facts.name!r}, "
            f"{_why_no_limit(facts)}; take samplesoft.exact_bias at the m that you have."
        )
    limit: FloatArray = inputs.columns((example_limit(*row, facts),) for row in inputs.rows())[0]
    return limit


_MANY = 2  # any number of draws that every scheme allows


def _why_no_limit(scheme: Scheme) -> str:
    if scheme.independent:
        return "which has no number of draws"
    if scheme.jackknife:
        return "whose bias falls like 1/m**2"
    if scheme.corrects_label and not scheme.draws_label:
        return "which tends to the softmax without the label"
    return ""


def example_limit(logits: FloatArray, label: int, q: FloatArray, scheme: Scheme) -> FloatArray:
    """Return the limit (n,) for one example, eq. (B31).

    In units where Z = 1 it is e_j (mean - r_j) for a class that is drawn, and 0 for a label that
    is not, each less its average under the softmax, where such a label counts with the mean of r.
    """
    law = make_draw_law(logits, label, q, 1, scheme)
    if not law.drawn.any():
        raise ValueError(
            f"`q` must leave mass on a class other than the label {label}, got none: with scheme "
            f"{scheme.name!r} the bias is then the same at every m."
        )
    if law.other_mass == 0.0 and not scheme.draws_label:
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
        if scheme.draws_label:
            limit: FloatArray = law.probs * float(flows.sum()) - flows
            return limit + _of_base(law) if scheme.corrects_label else limit
        flows[label] = 0.0
        total = float(flows.sum())
        mean = classes.mean_deviation * float(reference)
        limit = law.probs * (total + law.probs[label] * mean) - flows
        limit[label] = max(law.probs[label] * (total - law.other_mass * mean), 0.0)
    # of m draws other_draw m are kept
    return limit / law.other_draw if scheme.divides_by_kept else limit


def _of_base(law: DrawLaw) -> FloatArray:
    """Return what a base mass of r_t / m adds: r_t (1 - e_t) at the label, -r_t e_j elsewhere."""
    ratio = np.exp(min(law.log_probs[law.label] - np.log(law.label_draw), LARGEST_EXPONENT))
    added: FloatArray = -ratio * law.probs
    added[law.label] = ratio * law.other_mass
    return added
