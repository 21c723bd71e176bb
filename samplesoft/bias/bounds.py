"""Two-sided bounds on the bias that hold for every number of draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.jacobian import check_jacobian, contract, times_power, with_room
from samplesoft.bias.negatives import EPS, Negatives, make_negatives
from samplesoft.schemes import Scheme

TINY = float(np.finfo(np.float64).tiny)
WIDEN = 8.0  # how many rounded logs a bound multiplies, at most


@dataclass(frozen=True)
class FiniteSampleBounds:
    """Bounds on the bias ``E[p'] - p`` of each class.

    Attributes
    ----------
    lower, upper : ndarray, shape (n,) or (B, n)
        ``lower <= bias <= upper``, in probability.
    """

    lower: FloatArray
    upper: FloatArray

    def gradient(self, jacobian: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Bound the bias of a gradient, ``sum_i bias_i * d o_i``, by interval arithmetic.

        Parameters
        ----------
        jacobian : array_like, shape (n, P) or (B, n, P)
            Derivatives of the logits in P parameters; (n, P) serves all examples.

        Returns
        -------
        lower, upper : ndarray, shape (P,) or (B, P)
            Bounds on ``E[gradient of the sampled loss] - gradient of the full loss``; infinite
            beyond the range of float64.

        Raises
        ------
        TypeError, ValueError
            If `jacobian` is not finite or does not match the classes.

        Examples
        --------
        >>> bounds = finite_sample_bounds([0.0, 0.0, 0.0], 0, [0.2, 0.6, 0.2], num_sampled=10)
        >>> lower, upper = bounds.gradient([[1.0], [0.0], [-1.0]])
        >>> bool(lower[0] <= 0.0237 <= upper[0])
        True
        """
        jac, excess = with_room(check_jacobian(jacobian, self.lower.shape))
        size = np.abs(jac)
        middle, radius = 0.5 * (self.lower + self.upper), 0.5 * (self.upper - self.lower)
        # A sum of n products is off by at most n half-ulps of the sum of their sizes.
        radius = radius + EPS * (self.lower.shape[-1] + 8) * np.maximum(-self.lower, self.upper)
        center, reach = contract(middle, jac), contract(radius, size)
        return times_power(center - reach, excess), times_power(center + reach, excess)


def finite_sample_bounds(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    *,
    scheme: str | Scheme = "negatives",
    h: ArrayLike | None = None,
) -> FiniteSampleBounds:
    """Bound the bias of sampled softmax for any number of draws, with no sign assumption.

    For scheme ``negatives`` they are drawn with replacement from q given "not the label", as in
    [1]_, eq. 5; for ``masked`` from q, and a draw of the label is one of a class with r = 0. Write
    ``a = e^{o_t}``, Z for the partition function, Z_t for the negatives' part of it,
    ``r_j = e^{o_j} / q_j`` with the conditioned q, V for the variance of r under it, and
    ``mu_j = a + r_j / m + (m - 1) Z_t / m``. Then ``bias_t`` lies between the two values of
    ``a V / (m Z^2 (a + r))`` at the largest and the smallest r, and ``bias_j`` between those of
    ``e^{o_j} ((Z_t - r_j) / (m mu_j Z) + (m - 1) V / (m^2 mu_j^2 s))`` with
    ``s = a + r_j / m + (m - 1) r / m``. Both follow from
    ``1/S = 1/mu - (S - mu)/mu^2 + (S - mu)^2/(S mu^2)`` and the range of S. They are cut to
    ``0 <= bias_t <= 1 - p_t`` and ``-p_j <= bias_j <= 1 - p_j``, which always hold.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels, q, h
        As for `samplesoft.exact_bias`.
    num_sampled : int
        Number of draws m, at least 1.
    scheme : str or samplesoft.schemes.Scheme
        ``negatives`` or ``masked``. For the others no bounds are known, and they are refused.

    Returns
    -------
    FiniteSampleBounds
        `lower`, `upper` (n,) or (B, n), and the method `gradient`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, the proposal misses a negative, or the scheme has no bounds.

    Notes
    -----
    The bounds hold in floating point: each is moved outwards by a relative
    ``8 eps (64 + 4 log2(n) + 2 L)`` of the sizes of its terms, L being the largest size of a
    logarithm that entered (1e-13 to 1e-11 in all), and by the smallest normal number. With a
    single negative the bias is exactly 0, and so are both bounds.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       eqs. 5 and 8. These bounds are not in the paper; its own are `theorem1_bounds`.

    Examples
    --------
    >>> bounds = finite_sample_bounds([0.0, 0.0, 0.0], 0, [0.2, 0.6, 0.2], num_sampled=10)
    >>> bounds.lower.round(4)
    array([ 0.003 ,  0.0105, -0.0185])
    >>> bounds.upper.round(4)
    array([ 0.0063,  0.0136, -0.0163])
    """
    inputs = check_inputs(logits, labels, q, num_sampled, scheme, h)
    facts = inputs.scheme
    if facts.jackknife or not facts.adds_mean:
        raise ValueError(
            "`scheme` must be one whose sum is e_t plus a mean over m draws, got "
            f"{facts.name!r}, for which no bounds are known; take samplesoft.exact_bias."
        )
    masked = not facts.excludes_label
    rows = [_bounds(make_negatives(*row, masked), inputs.num_sampled) for row in inputs.rows()]
    return FiniteSampleBounds(*inputs.columns(rows))


def _bounds(negatives: Negatives, m: int) -> tuple[FloatArray, FloatArray]:
    """Return (lower, upper), both (n,), for one example."""
    n = negatives.keep.size
    if negatives.log_p.size == 1:
        return np.zeros(n), np.zeros(n)
    rounding = negatives.rounding
    if rounding > 1e-3:  # logits that differ by 1e12 and more: their difference is not known
        return np.full(n, -1.0), np.ones(n)
    slack = WIDEN * rounding
    log_a, log_zt, log_p = negatives.log_a, negatives.log_zt, negatives.log_p
    log_m = math.log(m)
    log_rest = math.log(m - 1) - log_m if m > 1 else -math.inf
    log_r = log_zt + negatives.log_ratio
    r_ends = (float(log_r.max()) + slack, float(log_r.min()) - slack)
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        # An error of `rounding` in every ratio moves the root of the divergence by at most
        # rounding * sqrt(sum_j qn_j (ratio_j + 1)^2), by the triangle inequality.
        root = float(np.exp(0.5 * negatives.log_chi2))
        moved = 2.0 * rounding * math.hypot(root, 2.0)
        log_v = 2.0 * (log_zt + np.log([max(root - moved, 0.0), root + moved]))

        log_own = np.logaddexp(log_a, log_r - log_m)  # the label and one draw of class j
        log_mu = np.logaddexp(log_own, log_zt + log_rest)
        common = log_p + log_zt - log_m - log_mu
        first = -np.sign(negatives.log_ratio) * np.exp(common + negatives.log_deviation)
        size = np.exp(common + np.logaddexp(negatives.log_ratio, 0.0))
        ends = []
        for sign, v, r in zip((-1.0, 1.0), log_v, r_ends, strict=True):
            widen = 1.0 + sign * slack
            label_end = np.exp(v - log_m - np.logaddexp(0.0, r - log_a)) * widen + sign * TINY
            log_s = np.logaddexp(log_own, r + log_rest)
            second = np.exp(log_p + v + (log_rest - log_m) - 2.0 * log_mu - log_s)
            end = first + sign * (slack * size + TINY) + second * widen
            ends.append(negatives.fill(float(label_end), end))
        floor = negatives.fill(0.0, -np.exp(log_p) * (1.0 + slack) - TINY)
        ceiling = negatives.fill(
            float(np.exp(log_zt)) * (1.0 + slack) + TINY, slack - np.expm1(log_p)
        )
    return np.maximum(ends[0], floor), np.minimum(ends[1], ceiling)
