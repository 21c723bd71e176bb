"""The bias to first order in 1/m: the limit of m times the bias, and classical bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.bounds.finite import require_bounds
from samplesoft.bias.inputs import Inputs, check_inputs
from samplesoft.bias.negatives import Negatives, make_negatives
from samplesoft.bias.with_replacement.draws import make_draws
from samplesoft.bias.with_replacement.ratios import make_ratios
from samplesoft.schemes import Scheme

Scalar = Any  # a float for one example, an ndarray (B,) for a batch


def asymptotic_bias(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    *,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
) -> FloatArray:
    """Return the limit of ``m * bias`` of sampled softmax as the number m of draws grows.

    For scheme ``negatives``, the sampled softmax of [1]_, eq. 5, write ``a = e^{o_t}``, Z for the
    partition function, ``Z_t = Z - a``, ``r_j = e^{o_j} / q_j`` with q given "not the label", and V
    for the variance of r under this q. The limit is ``a V / Z^3`` at the label and
    ``e^{o_j} (V / Z^3 - (r_j - Z_t) / Z^2)`` at a negative j. For ``masked``, q is not conditioned,
    and a draw of the label counts as a class with r = 0.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels, q, h
        As for `samplesoft.exact_bias`.
    scheme : str
        ``negatives`` or ``masked``; others raise ValueError. For large m, `samplesoft.exact_bias`
        is approximately this limit divided by m.

    Returns
    -------
    ndarray, shape (n,) or (B, n)
        The limit of ``m * bias``, in probability; each row sums to 0. The bias of any gradient
        of the loss has the limit ``jacobian.T @ asymptotic_bias(...)``.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, the proposal misses a negative, or the scheme is not one of
        the two.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       eqs. 5 and 8. The limit is the delta method applied to eq. 8.

    Examples
    --------
    >>> import numpy as np
    >>> asymptotic_bias([0.0, 0.0, 0.0], 0, [0.2, 0.6, 0.2]).round(4)
    array([ 0.0494,  0.1235, -0.1728])

    A proposal that is proportional to the softmax has no bias:

    >>> asymptotic_bias([0.0, 1.0, 1.0], 0, [0.0, 0.5, 0.5])
    array([0., 0., 0.])
    """
    # the number of draws is not used; 2 is valid for every scheme
    return asymptotic_bias_of(check_inputs(logits, labels, q, 2, scheme, h, require=require_bounds))


def asymptotic_bias_of(inputs: Inputs) -> FloatArray:
    """Return `asymptotic_bias` for checked `inputs`, ignoring their number of draws."""
    require_bounds(inputs.scheme)
    rows = ((_example_limit(*row, inputs.scheme),) for row in inputs.rows())
    limit: FloatArray = inputs.columns(rows)[0]
    return limit


def _example_limit(logits: FloatArray, label: int, q: FloatArray, scheme: Scheme) -> FloatArray:
    """Return the limit (n,) of m times the bias for one example, eq. (B31).

    Differences of the ratios r cancel if all ratios are similar. So only r - R is used, the
    difference from the ratio R of a reference class.
    """
    draws = make_draws(logits, label, q, 1, scheme)
    if draws.other_mass == 0.0:
        return np.zeros_like(draws.probs)

    ratios = make_ratios(draws)
    reference = float(np.exp(min(ratios.log_ref, LARGEST_EXPONENT)))
    probs = draws.probs

    with np.errstate(all="ignore"):
        # r - R loses digits if r is near R. So for |kappa| < 1/2 it is computed as
        # 2 kappa R / (1 - kappa), with kappa = (r - R) / (r + R).
        kappa = ratios.kappa
        is_near = np.abs(kappa) < 0.5
        difference_near_reference = 2.0 * kappa / np.where(is_near, 1.0 - kappa, 1.0) * reference
        difference = np.exp(np.minimum(ratios.log_r, LARGEST_EXPONENT)) - reference

        flows = probs * np.where(is_near, difference_near_reference, difference)
        flows[label] = 0.0
        flow_sum = float(flows.sum())
        mean_difference = ratios.mean_deviation * reference

        limit: FloatArray = probs * (flow_sum + probs[label] * mean_difference) - flows
        label_limit = probs[label] * (flow_sum - draws.other_mass * mean_difference)
        limit[label] = max(label_limit, 0.0)

    return limit


@dataclass(frozen=True)
class SelfNormalizedTerms:
    """Leading bias, bounds and effective sample size, by self-normalised importance sampling.

    Attributes
    ----------
    leading_bias : ndarray, shape (n,) or (B, n)
        The term of order 1/m of the bias ``E[p'] - p`` of each class, in probability.
    agapiou_bound : float or ndarray (B,)
        ``12 rho / m``, a bound on the L1 norm of the bias; infinite if it overflows.
    cauchy_schwarz_bound : float or ndarray (B,)
        Another bound on the L1 norm of the bias, at most ``2 rho / m``; 0 up to rounding if r is
        constant.
    effective_sample_size : float or ndarray (B,)
        ``m / rho`` in draws, from 0 to m.
    """

    leading_bias: FloatArray
    agapiou_bound: Scalar
    cauchy_schwarz_bound: Scalar
    effective_sample_size: Scalar


def self_normalized_terms(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    *,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
) -> SelfNormalizedTerms:
    """Return leading bias, bounds and effective sample size, by importance-sampling theory.

    Plain self-normalised importance sampling (scheme ``importance``) draws all classes, and divides
    a mean of ``w phi(s)`` by a mean of w. Sampled softmax always includes the label: its sum is
    ``S = a + mean of r`` with ``a = e^{o_t}`` and ``r_j = e^{o_j} / q_j``, where r = 0 for a masked
    draw of the label. So S is the mean of ``w = a + r``. The expectation of a function phi under p'
    is the mean of ``w g`` divided by the mean of w, with ``g = (a phi_t + r phi(s)) / w`` between
    the smallest and the largest phi. So this is the plain estimator, with the weight w in place of
    r and the function g in place of phi. Results for bounded functions carry over, with
    ``rho = E[w^2] / E[w]^2 = 1 + Var[r] / Z^2``:

    - the leading term of the bias, ``-E[w^2 (g - E p')] / (m Z^2)`` to first order, as in [2]_,
      equals `asymptotic_bias` over m;
    - ``|bias of phi| <= 12 rho / m`` for ``|phi| <= 1`` [3]_, which is a bound on the L1 norm;
    - the effective sample size ``m / rho`` [1]_.

    The usual interpretation of ``m / rho`` as an equivalent number of draws from the softmax does
    not carry over: it replaces g by phi, and ignores that g depends on w. In tests the variance of
    the gradient in h was 0.015 to 10 times the value that this interpretation predicts.

    The bound ``12 rho / m`` always holds, and is at least 6 times the norm, because ``2 rho / m``
    holds, too; 2 is the smallest possible constant. The leading term is close where m is far above
    the largest ``r / Z``. It is no bound: with a rare class it can exceed the bias by any factor.
    Section 16 of ``samplesoft/bias/README.md`` has proofs, and plots for real proposals.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels, q, h
        As for `samplesoft.exact_bias`.
    num_sampled : int
        Number of draws m, at least 1.
    scheme : str
        ``negatives`` or ``masked``; others raise ValueError.

    Returns
    -------
    SelfNormalizedTerms
        `leading_bias`, `agapiou_bound`, `cauchy_schwarz_bound`, `effective_sample_size`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, the proposal misses a negative, or the scheme is not one of
        the two.

    References
    ----------
    .. [1] A. Kong, "A note on importance sampling using standardized weights", University of
       Chicago, Technical Report 348, 1992.
    .. [2] T. Hesterberg, "Weighted average importance sampling and defensive mixture
       distributions", Technometrics 37(2), 1995.
    .. [3] S. Agapiou, O. Papaspiliopoulos, D. Sanz-Alonso and A. M. Stuart, "Importance Sampling:
       Intrinsic Dimension and Computational Cost", Statistical Science 32(3), 2017, Theorem 2.1.

    Examples
    --------
    >>> terms = self_normalized_terms([0.0, 0.0, 0.0], 0, [0.2, 0.6, 0.2], num_sampled=10)
    >>> terms.leading_bias.round(5)
    array([ 0.00494,  0.01235, -0.01728])
    >>> print(f"{terms.agapiou_bound:.3f}, {terms.effective_sample_size:.2f} draws")
    1.378, 8.71 draws
    """
    return self_normalized_terms_of(
        check_inputs(logits, labels, q, num_sampled, scheme, h, require=require_bounds)
    )


def self_normalized_terms_of(inputs: Inputs) -> SelfNormalizedTerms:
    """Return `self_normalized_terms` for checked `inputs`."""
    scheme = inputs.scheme
    m = float(inputs.num_sampled)
    rows = []
    require_bounds(scheme)

    for row in inputs.rows():
        leading_bias = _example_limit(*row, scheme) / m
        rho, norm_bound = _rho_and_l1_bound(make_negatives(*row, masked=not scheme.excludes_label))
        with np.errstate(over="ignore"):  # an infinite bound is valid
            bound = 12.0 * rho / m
        rows.append((leading_bias, bound, norm_bound / m, m / rho))

    return SelfNormalizedTerms(*inputs.columns(rows))


def _rho_and_l1_bound(negatives: Negatives) -> tuple[np.float64, np.float64]:
    """Return ``rho = E[w^2] / E[w]^2``, and a bound on m times the L1 norm of the bias.

    The bound divided by m is `SelfNormalizedTerms.cauchy_schwarz_bound`, and is rounded up.
    """
    if negatives.log_p.size == 1:  # all draws are the same class
        return np.float64(1.0), np.float64(0.0)
    with np.errstate(over="ignore", under="ignore"):
        log_variance = negatives.log_chi2 + 2.0 * negatives.log_zt
        rms = np.exp(0.5 * np.logaddexp(log_variance, 2.0 * negatives.log_zt))
        # a relative error e of every r changes the standard deviation of r by at most e times rms
        deviation = np.exp(0.5 * log_variance) + np.expm1(negatives.log_error_bound) * rms
        bound = deviation * (deviation + rms) * np.exp(2.0 * negatives.log_error_bound)
        return 1.0 + np.exp(log_variance), bound
