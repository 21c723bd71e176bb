"""Two-sided bounds on the bias that hold for every number of draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray
from samplesoft.bias.draw_law import DrawLaw, make_draw_law
from samplesoft.bias.inputs import Inputs, check_inputs
from samplesoft.bias.jacobian import check_jacobian, times_power, with_room
from samplesoft.bias.jensen_gap import Gaps, log_part
from samplesoft.bias.negatives import EPS, make_negatives
from samplesoft.schemes import Scheme

TINY = float(np.finfo(np.float64).tiny)
LARGEST = float(np.finfo(np.float64).max)
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

        The bias sums to 0, so a constant may be taken off all d o_i: a mean of them is, wherever
        that makes the bounds closer.

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
        >>> lower.round(4), upper.round(4)
        (array([0.0221]), array([0.0221]))
        """
        jac, excess = with_room(check_jacobian(jacobian, self.lower.shape))
        lower, upper = np.atleast_2d(self.lower, self.upper)
        every = np.broadcast_to(jac, lower.shape[:1] + jac.shape[-2:])
        rows = [_project(*row) for row in zip(lower, upper, every, strict=True)]
        below, above = (np.array(side) for side in zip(*rows, strict=True))
        shape = self.lower.shape[:-1] + jac.shape[-1:]
        below, above = (times_power(side.reshape(shape), excess) for side in (below, above))
        return np.minimum(below, LARGEST), np.maximum(above, -LARGEST)


def _project(
    lower: FloatArray, upper: FloatArray, jacobian: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return bounds (P,) on the gradient's bias of one example."""
    middle, radius = 0.5 * (lower + upper), 0.5 * (upper - lower)
    mean = radius @ jacobian / (float(radius.sum()) or 1.0)
    # A sum of n products is off by at most n half-ulps of the sum of their sizes.
    units = EPS * (len(lower) + 16) * np.maximum(-lower, upper)
    rounding = units @ np.abs(jacobian)
    ends = []
    for shift in (np.zeros_like(mean), mean):
        slopes = jacobian - shift
        center = middle @ slopes
        reach = radius @ np.abs(slopes) + rounding + float(units.sum()) * np.abs(shift)
        ends.append((center - reach, center + reach))
    return np.maximum(ends[0][0], ends[1][0]), np.minimum(ends[0][1], ends[1][1])


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
    ``r_j = e^{o_j} / q_j`` with the conditioned q, and S for the sampled sum. Then
    ``bias_t = a (E[1/S] - 1/Z)`` and ``bias_j = e^{o_j} (E[1/S_j] - 1/Z)``, where one of the draws
    in S_j is j. The bounds are on ``E[1/S] - 1/E[S]``:

    - the trapezoid rule for ``1/S = int exp(-u S) du``, whose error is proved to be less than 1e-16
      of it for every law of S, with the Laplace transform of r;
    - ``Var[S] / (E[S]^2 s)`` with s at the ends of the range of S, where that is closer;
    - all cut to ``0 <= bias_t <= 1 - p_t`` and ``-p_j <= bias_j <= 1 - p_j``, and to what the
      others leave, for the biases sum to 0.

    What is left is rounding. With 3, 25 and 75 draws for each unit of ``E[r^2] / Z^2`` the widths
    added up to at most 1e-8 of the L1 norm of the bias for 150 problems with long tails, and those
    of the gradient in h to 3e-8 of its norm. Logits that lie hundreds apart leave fewer digits.

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
    Section 14 of ``samplesoft/bias/README.md`` proves them, and a theorem in closed terms that is
    weaker: in units where Z is 1, with V the variance of r, ``g = E[(r - Z_t)^3] / V`` and any d
    between 0 and 1,
    ``a V / (m + g - V) <= bias_t <= a V / ((1 - d) (m + V / d)) + exp(-m d^2 / (2 rho))``.

    The bounds hold in floating point: each is moved outwards by a relative
    ``8 eps (64 + 4 log2(n) + 2 L)`` of the sizes of its terms, L being the largest size of a
    logarithm that entered (1e-13 to 1e-11 in all), and by the smallest normal number; the sum of
    exponentials carries bounds on its own errors. With a single negative the bias is exactly 0, and
    so are both bounds.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       eqs. 5 and 8. These bounds are not in the paper; its own are `theorem1_bounds`.

    Examples
    --------
    >>> bounds = finite_sample_bounds([0.0, 0.0, 0.0], 0, [0.2, 0.6, 0.2], num_sampled=10)
    >>> bounds.lower.round(4)
    array([ 0.0049,  0.0123, -0.0172])
    >>> bool((bounds.upper - bounds.lower).max() < 1e-10)
    True
    """
    return finite_sample_bounds_of(check_inputs(logits, labels, q, num_sampled, scheme, h))


def finite_sample_bounds_of(inputs: Inputs) -> FiniteSampleBounds:
    """Return `finite_sample_bounds` of arguments that are checked."""
    m, scheme = inputs.num_sampled, inputs.scheme
    require_bounds(scheme)
    rows = [example_bounds(make_draw_law(*row, m, scheme)) for row in inputs.rows()]
    return FiniteSampleBounds(*inputs.columns(rows))


def require_bounds(scheme: Scheme) -> None:
    """Raise ValueError for a scheme without bounds."""
    if scheme.jackknife or not scheme.adds_mean:
        raise ValueError(
            "`scheme` must be one whose sum is e_t plus a mean over m draws, got "
            f"{scheme.name!r}, for which no bounds are known; take samplesoft.exact_bias."
        )


def example_bounds(law: DrawLaw) -> tuple[FloatArray, FloatArray]:
    """Return (lower, upper), both (n,), for one example."""
    n, m = len(law.q), law.num_draws
    negatives = make_negatives(law.logits, law.label, law.q, not law.scheme.excludes_label)
    if negatives.log_p.size == 1:
        return np.zeros(n), np.zeros(n)
    rounding = negatives.rounding
    if rounding > 1e-3:  # logits that differ by 1e12 and more: their difference is not known
        return np.full(n, -1.0), np.ones(n)
    slack = WIDEN * rounding
    log_a, log_zt, log_p = negatives.log_a, negatives.log_zt, negatives.log_p
    log_m = math.log(m)
    log_r = log_zt + negatives.log_ratio
    gaps = Gaps(law, negatives, slack)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        log_own = np.logaddexp(log_a, log_r - log_m)  # the label and one draw of class j
        log_mu = np.logaddexp(log_own, log_zt + log_part(m - 1, m))
        common = log_p + log_zt - log_m - log_mu
        first = -np.sign(negatives.log_ratio) * np.exp(common + negatives.log_deviation)
        size = np.exp(common + np.logaddexp(negatives.log_ratio, 0.0))
        at_label = gaps.logs(m, np.array([log_a]), np.zeros(1))
        at_others = gaps.logs(m - 1, log_own, log_mu)
        ends = []
        for sign, label_gap, gap in zip((-1.0, 1.0), at_label, at_others, strict=True):
            widen = 1.0 + sign * slack
            label_end = np.exp(log_a + label_gap[0]) * widen + sign * TINY
            second = np.exp(log_p + gap)
            end = first + sign * (slack * size + TINY) + second * widen
            ends.append(negatives.fill(float(label_end), end))
        floor = negatives.fill(0.0, -np.exp(log_p) * (1.0 + slack) - TINY)
        ceiling = negatives.fill(
            float(np.exp(log_zt)) * (1.0 + slack) + TINY, slack - np.expm1(log_p)
        )
    return _sum_to_zero(np.maximum(ends[0], floor), np.minimum(ends[1], ceiling))


def _sum_to_zero(lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Cut each interval to what the others leave to it, for the biases sum to 0."""
    rounding = EPS * (len(lower) + 8) * float(np.maximum(-lower, upper).sum())
    least = upper - float(upper.sum()) - rounding
    most = lower - float(lower.sum()) + rounding
    return np.maximum(lower, least), np.minimum(upper, most)
