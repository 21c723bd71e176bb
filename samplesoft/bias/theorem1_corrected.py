"""Theorem 1 of Rawat et al. (2019), corrected: true for every number of draws and every sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, as_count, require_plain
from samplesoft.bias.inputs import Inputs, check_inputs
from samplesoft.bias.jacobian import check_jacobian, contract, times_power, with_room
from samplesoft.bias.negatives import EPS, Negatives, make_negatives
from samplesoft.bias.theorem1 import Scalar, check_grad_bound

TINY = float(np.finfo(np.float64).tiny)
_UNKNOWN = 1e-3  # logits so large that no digit of a ratio is left after rounding


class CorrectedTerms(NamedTuple):
    """What the corrected theorem needs of the logits and the proposal, in units where Z is 1.

    All but `variance` and `negative_probs` are moved up by a bound on their rounding, and that of
    g. Scalars are (B,) for a batch.
    """

    negative_probs: FloatArray  # (n,) or (B, n): p_j, 0 at the label
    variance: Scalar  # V, the variance of r: what multiplies g
    variance_above: Scalar
    label_part: Scalar  # p_t V
    root: Scalar  # sqrt(V sum_j p_j^2 / q_j)
    max_gap: Scalar  # the largest r less the smallest
    spread: Scalar  # sum_j p_j |r_j - Z_t| over the negatives
    shifted: Scalar  # sum_j p_j |r_j - Z_t - V|

    def reaches(self, grad_bound: Scalar, num_sampled: int) -> tuple[Scalar, Scalar, Scalar]:
        """Return how far the bias can be from 0, from ``V g / m`` and from ``-V g / m``.

        They are scalars, or (B,), for M = `grad_bound`; not a number where they have overflowed,
        but for the first, which is at most 2M.
        """
        m, bound = as_count("num_sampled", num_sampled), np.asarray(grad_bound)
        with np.errstate(all="ignore"):
            most, gap = self.variance_above, self.max_gap / m
            rest = most * np.hypot(np.sqrt(3.0 * most / m), gap) + self.root * gap
            rest += self.label_part
            along, against = self.spread + rest, self.shifted + most
            free = np.fmin(self.spread + most, self.shifted + rest)
            # 2M holds because p and p' sum to 1
            return np.fmin(free * bound / m, 2.0 * bound), along * bound / m, against * bound / m

    def bounds(
        self, g: ArrayLike, grad_bound: Scalar, num_sampled: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return (lower, upper), each (P,) or (B, P), eqs. (B51) and (B52), of any P parameters.

        `g` is ``sum_j p_j d o_j`` over the negatives (`negative_probs` where the parameters are
        the logits), `grad_bound` is M, at least as large as every coordinate of every ``d o_i``.
        """
        require_plain("g", g)
        weights = np.asarray(g, dtype=np.float64)
        bound = np.broadcast_to(grad_bound, np.shape(self.variance))
        unit = int(np.frexp(max(np.abs(weights).max(), bound.max()))[1])  # so that no term is inf
        weights, bound = np.ldexp(weights, -unit), np.ldexp(bound, -unit)
        free, along, against = (x[..., None] for x in self.reaches(bound, num_sampled))
        signs = np.array([-1.0, 1.0]).reshape(2, *(1,) * weights.ndim)
        with np.errstate(all="ignore"):
            signed = signs * np.expand_dims(self.variance, -1) * weights / num_sampled
            reach = np.fmin(free, np.fmin(along + signed, against - signed))
            lower, upper = np.nextafter(times_power(signs * reach, unit), signs * np.inf)
        return lower, upper


@dataclass(frozen=True)
class Theorem1Corrected:
    """Bounds on the bias of a gradient in the terms of Theorem 1, for every number of draws.

    Attributes
    ----------
    lower, upper : ndarray, shape (P,) or (B, P)
        ``lower <= E[gradient of the sampled loss] - gradient of the full loss <= upper``, in units
        of the gradient.
    g : ndarray, shape (P,) or (B, P)
        ``sum_j p_j d o_j`` over the negatives: the printed g divided by Z.
    grad_bound : float or ndarray (B,)
        M.
    """

    lower: FloatArray
    upper: FloatArray
    g: FloatArray
    grad_bound: Scalar


def corrected_terms(
    logits: ArrayLike, labels: Any, q: Any, *, h: ArrayLike | None = None
) -> CorrectedTerms:
    """Return the parts of the corrected theorem that depend on logits and proposal only.

    The arguments are those of `theorem1_corrected`: scalars for one example, arrays (B,) for a
    batch.
    """
    return corrected_terms_of(check_inputs(logits, labels, q, 1, h=h))


def corrected_terms_of(inputs: Inputs) -> CorrectedTerms:
    """Return `corrected_terms` of arguments that are checked, at any number of draws."""
    return CorrectedTerms(*inputs.columns(_terms(make_negatives(*row)) for row in inputs.rows()))


def _terms(negatives: Negatives) -> CorrectedTerms:
    """Return the terms of one example."""
    log_zt, log_ratio, log_p = negatives.log_zt, negatives.log_ratio, negatives.log_p
    unit = negatives.rounding
    with np.errstate(all="ignore"):
        probs = np.exp(log_p)
        filled = negatives.fill(0.0, probs)
        if len(log_p) == 1:  # all draws are alike
            return CorrectedTerms(filled, *np.zeros(7))
        if unit > _UNKNOWN:
            return CorrectedTerms(filled, *np.full(7, np.inf))
        grow = 1.0 + 16.0 * unit
        rms = np.exp(log_zt + 0.5 * np.logaddexp(0.0, negatives.log_chi2)) * grow
        deviation = np.exp(log_zt + 0.5 * negatives.log_chi2)
        # rounding moves each r by a part of r, and their deviation by that part of their size
        above = (deviation + np.expm1(4.0 * unit) * rms) * grow
        variance, most = deviation * deviation, above * above
        centred = np.exp(log_p + log_zt + negatives.log_deviation) * np.sign(log_ratio)
        high, low = log_ratio.max(), log_ratio.min()
        gap = np.exp(log_zt + high) * (-np.expm1(low - high) + 16.0 * unit)
        of_g = most - variance + most * (4.0 * unit + EPS * (len(log_p) + 16.0))
        slack = 32.0 * unit * (rms * rms + most) + of_g + len(log_p) * TINY
        return CorrectedTerms(
            negative_probs=filled,
            variance=variance,
            variance_above=most,
            label_part=np.exp(negatives.log_a) * most * grow,
            root=rms * above,
            max_gap=gap * grow,
            spread=np.abs(centred).sum() + slack,
            shifted=np.abs(centred - probs * variance).sum() + slack,
        )


def theorem1_corrected(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    jacobian: ArrayLike,
    grad_bound: float | None = None,
    *,
    h: ArrayLike | None = None,
) -> Theorem1Corrected:
    """Bound the bias of a gradient in the terms of Theorem 1, where the printed bounds fail.

    They hold for every number m of draws, whatever the signs of g. In the printed notation, with
    ``V = sum_j e^{2 o_j} / q_j - Z_t^2`` and ``c_j = e^{o_j} / q_j - Z_t``, the simplest is

        ``|bias| <= 2 M / (m Z^2) sum_j e^{o_j} max(c_j, 0) <= 2 |LB|``

    without a term o(1/m), and 2 is the least factor. For ever more draws the bounds with g are
    closer: for every number L

        ``|m Z^2 bias - (V / Z - L) g| <= M (sum_j e^{o_j} |c_j - L| + p_t V + R_m)``

    where ``R_m = (V sqrt(3 V / m + G^2 / m^2) + sqrt(V sum_j e^{2 o_j} / q_j) G / m) / Z`` is the
    o(1/m) and G the largest ``|c_j - c_k|``, the second quantity of eq. 12. L is 0 (as printed, in
    both directions) or V / Z, whichever is closer in each coordinate.

    Parameters
    ----------
    logits, labels, q, num_sampled, jacobian, grad_bound, h
        As for `theorem1_bounds`. The bias is that of ``jacobian`` less any constant of a column,
        so centring its columns makes M smaller.

    Returns
    -------
    Theorem1Corrected
        `lower`, `upper`, `g` (P,) or (B, P), and `grad_bound`. A bound beyond the range of float64
        is infinite.

    Raises
    ------
    TypeError, ValueError
        As `theorem1_bounds`.

    Notes
    -----
    Section 17 of ``samplesoft/bias/README.md`` proves them, eqs. (B50) to (B52), and compares them
    with the exact bias. They hold in floating point: each is moved outwards by a bound on its
    rounding. They know only M and g of a gradient, and are for theorems; `FiniteSampleBounds`
    have a method `gradient`, which is closer.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       Theorem 1, eqs. 9 to 12. These bounds are not in the paper.

    Examples
    --------
    The example of `theorem1_bounds`, where 1000 times the bias is 69.00 and the printed upper bound
    40.88:

    >>> import numpy as np
    >>> logits, q, jacobian = [0.0, 0.0, 0.0], [0.0, 0.999, 0.001], np.array([[1.0], [1.0], [0.0]])
    >>> true = theorem1_corrected(logits, 0, q, num_sampled=1000, jacobian=jacobian)
    >>> print(f"{1000 * true.lower[0]:.2f} {1000 * true.upper[0]:.2f}")
    -221.71 184.85
    """
    as_count("num_sampled", num_sampled)
    terms = corrected_terms(logits, labels, q, h=h)
    jac = check_jacobian(jacobian, terms.negative_probs.shape)
    bound = check_grad_bound(grad_bound, jac, np.shape(terms.variance))
    small, excess = with_room(jac)
    g = times_power(contract(terms.negative_probs, small), excess)
    return Theorem1Corrected(*terms.bounds(g, bound, num_sampled), g, bound)
