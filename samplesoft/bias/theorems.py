"""The bounds of Theorems 1 and 2 of Rawat et al. (2019), as printed and corrected.

Neither theorem holds as printed. Theorem 1 is of leading order in 1/m only, and can fail even to
that order. Eq. 20 of Theorem 2 lacks a normaliser. Section 17 of ``samplesoft/bias/README.md``
proves the corrected versions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_count,
    as_labels,
    as_positive,
    as_real_array,
    require_host_array,
)
from samplesoft.bias.inputs import (
    Inputs,
    check_inputs,
    check_jacobian,
    ldexp_or_inf,
    scaled_to_avoid_overflow,
    weighted_row_sum,
)
from samplesoft.bias.negatives import Negatives, log_sum_exp, make_negatives
from samplesoft.bias.numerics.summation import EPS, log_softmax

COSINE_TOLERANCE = 1e-4  # largest excess of a cosine over 1: norms in float32 are inexact
TINY = float(np.finfo(np.float64).tiny)

# A value counts as outside a bound only if it exceeds the bound by this fraction of the bound,
# which is far above rounding errors, and far below relevant violations.
_RELATIVE_TOLERANCE = 1e-9

# largest error of the log ratios for which bounds are computed; beyond it (for very large logits),
# the bounds are infinite
_MAX_LOG_ROUNDING = 1e-3

Scalar = Any  # a float for one example, an ndarray (B,) for a batch


# Theorem 1: as printed, and corrected for every number of draws and every sign of g


class Theorem1Terms(NamedTuple):
    """The terms of Theorem 1 that depend on the logits and the proposal, not on the parameters.

    If a constant is added to the logits, the bounds do not change, but the quantities of eq. 12 do.
    The fields are for logits shifted so that the partition function Z is 1: ``e^{o_j}`` is the
    probability p_j, and Z_t is 1 - p_t. In the units of the paper, multiply `second_moment` by Z^2,
    and `max_gap`, `deviation` and `negative_probs` by Z. q is the proposal given "not the label",
    and ``r_j = p_j / q_j``. Scalars are arrays (B,) for a batch.

    The last seven fields are for the corrected theorem, eqs. (B51) and (B52). All of them except
    `variance` are rounded up, by bounds on the rounding errors of the field and of g.
    """

    # the three quantities of eq. 12, over the negatives
    second_moment: Scalar  # sum_j p_j^2 / q_j
    max_gap: Scalar  # max_{j, j'} |r_j - r_j'|
    deviation: FloatArray  # (n,) or (B, n): |Z_t - r_k|; 0 at the label

    # m UB_1 of eq. 11: the variance second_moment - Z_t^2, computed without this subtraction
    ub1: Scalar
    ub2: Scalar  # UB_2 of eq. 11: max_gap Z_t / (1 + second_moment)
    lb_sum: Scalar  # sum_k p_k |Z_t - r_k|, which eq. 10 multiplies by -M / m

    # (n,) or (B, n): p_j, and 0 at the label. It is g if the parameters are the logits.
    negative_probs: FloatArray

    # for the corrected theorem
    variance: Scalar  # V, the variance of r under q; the leading term is V g / m
    variance_above: Scalar  # V, rounded up
    label_part: Scalar  # p_t V
    root: Scalar  # sqrt(V sum_j p_j^2 / q_j)
    gap_above: Scalar  # the largest r minus the smallest r
    spread: Scalar  # sum_j p_j |r_j - Z_t| over the negatives
    shifted: Scalar  # sum_j p_j |r_j - Z_t - V| over the negatives

    def bounds(
        self, g: ArrayLike, grad_bound: Scalar, num_sampled: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return the bounds LB and UB, as printed in the paper, on a gradient's bias.

        Both are (P,) or (B, P) for P parameters. `g` is ``sum_j p_j d o_j`` over the negatives; it
        is `negative_probs` if the parameters are the logits. `grad_bound` is M, at least as large
        as the magnitude of every coordinate of every ``d o_i``.
        """
        m = as_count("num_sampled", num_sampled)
        weights, bound, unit = _divide_by_power_of_two(g, grad_bound, np.shape(self.ub1))

        scalars = self.ub1, self.ub2, self.lb_sum
        ub1, ub2, lb_sum = (np.expand_dims(x, -1) / m for x in scalars)
        with np.errstate(over="ignore", invalid="ignore"):
            # UB_1 g is 0 for g = 0, even if UB_1 overflowed
            leading_term = np.where(weights == 0.0, 0.0, ub1 * weights)
            upper = leading_term + 2.0 * bound[..., None] * ub2

            # eq. 10; 0 - x, because -x would give -0 for x = 0
            lower = np.broadcast_to(0.0 - bound[..., None] * lb_sum, upper.shape)

        return ldexp_or_inf(lower, unit), ldexp_or_inf(upper, unit)

    def distance_bounds(
        self, grad_bound: Scalar, num_sampled: int
    ) -> tuple[Scalar, Scalar, Scalar]:
        """Return bounds on ``|bias|``, ``|bias - V g / m|`` and ``|bias + V g / m|``.

        Each bound is a scalar or (B,), and holds for every coordinate of the gradient's bias, with
        M = `grad_bound`. The first bound is at most 2 M. The other two are NaN if they overflow.
        """
        m = as_count("num_sampled", num_sampled)
        bound = np.asarray(grad_bound)

        with np.errstate(all="ignore"):
            variance_above = self.variance_above
            gap = self.gap_above / m
            deviation = np.hypot(np.sqrt(3.0 * variance_above / m), gap)
            remainder = variance_above * deviation + self.root * gap
            remainder += self.label_part

            from_leading = self.spread + remainder
            from_minus_leading = self.shifted + variance_above
            from_zero = np.fmin(self.spread + variance_above, self.shifted + remainder)

            # the bound 2 M holds because p and p' sum to 1
            return (
                np.fmin(from_zero * bound / m, 2.0 * bound),
                from_leading * bound / m,
                from_minus_leading * bound / m,
            )

    def corrected_bounds(
        self, g: ArrayLike, grad_bound: Scalar, num_sampled: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return the corrected bounds on a gradient's bias, eqs. (B51) and (B52).

        They are a lower and an upper bound, each (P,) or (B, P). The arguments are those of
        `bounds`.
        """
        weights, bound, unit = _divide_by_power_of_two(g, grad_bound, np.shape(self.variance))
        from_zero, from_leading, from_minus_leading = (
            x[..., None] for x in self.distance_bounds(bound, num_sampled)
        )

        with np.errstate(all="ignore"):
            leading_term = np.expand_dims(self.variance, -1) * weights / num_sampled
            lower_by_g = np.fmin(from_leading - leading_term, from_minus_leading + leading_term)
            upper_by_g = np.fmin(from_leading + leading_term, from_minus_leading - leading_term)
            minus_lower = _next_above(ldexp_or_inf(np.fmin(from_zero, lower_by_g), unit))
            upper = _next_above(ldexp_or_inf(np.fmin(from_zero, upper_by_g), unit))
            return -minus_lower, upper


@dataclass(frozen=True)
class Theorem1Bounds:
    """Bounds of Theorem 1 on the bias of a gradient, as printed in the paper or corrected.

    Attributes
    ----------
    lower, upper : ndarray, shape (P,) or (B, P)
        Bounds on ``E[gradient of the sampled loss] - gradient of the full loss``, in units of the
        gradient. The printed ones are LB of eq. 10 and UB of eq. 11 without their o(1/m) terms.
    g : ndarray, shape (P,) or (B, P)
        ``sum_j p_j d o_j`` over the negatives: the printed g divided by Z.
    grad_bound : float or ndarray (B,)
        M, the largest magnitude of a derivative of a logit.
    terms : Theorem1Terms
        The terms that do not depend on the parameters: the three quantities of eq. 12 and the
        scalars of both bounds, printed and corrected.
    """

    lower: FloatArray
    upper: FloatArray
    g: FloatArray
    grad_bound: Scalar
    terms: Theorem1Terms

    @property
    def sign_holds(self) -> NDArray[np.bool_]:
        """Whether g >= 0 for each coordinate, (P,) or (B, P).

        The paper derives UB for this case, but UB can fail even then.
        """
        return self.g >= 0.0

    @property
    def sign_condition(self) -> Any:
        """Whether g >= 0 in every coordinate, a bool or (B,)."""
        condition = self.sign_holds.all(axis=-1)
        return condition if condition.ndim else bool(condition)

    def outside(self, values: ArrayLike, slack: Any = 0.0) -> NDArray[np.bool_]:
        """Return whether each coordinate of a bias lies outside the bounds.

        `values` (P,) or (B, P) are the bias, or its limit divided by the number of draws. A value
        is outside if it exceeds the bound by more than 1e-9 of the bound plus `slack`, a float or
        (B, 1) for the numerical error of the values.

        Examples
        --------
        In this example, all coordinates outside the bounds have g < 0:

        >>> import numpy as np
        >>> import samplesoft
        >>> vectors, q = np.random.default_rng(1).normal(size=(100, 20)), np.full(100, 0.01)
        >>> logits = 2.5 * vectors[:, 0]
        >>> printed = theorem1_bounds(logits, 0, q, 100, jacobian=vectors)
        >>> outside = printed.outside(samplesoft.exact_bias(logits, 0, q, 100).bias @ vectors)
        >>> int(outside.sum()), int((outside & printed.sign_holds).sum())
        (6, 0)
        """
        low, high = widen_bounds(self, slack)
        is_outside: NDArray[np.bool_] = (np.asarray(values) < low) | (np.asarray(values) > high)
        return is_outside


def widen_bounds(bounds: Theorem1Bounds, slack: Any) -> tuple[FloatArray, FloatArray]:
    """Return the lower and upper bounds, moved outwards by `slack` and the relative tolerance.

    `Theorem1Bounds.outside` compares a bias with them.
    """
    low = bounds.lower - slack
    high = bounds.upper + slack
    low = low - _RELATIVE_TOLERANCE * np.abs(bounds.lower)
    high = high + _RELATIVE_TOLERANCE * np.abs(bounds.upper)
    return low, high


def theorem1_terms(
    logits: ArrayLike, labels: Any, q: Any, *, h: ArrayLike | None = None
) -> Theorem1Terms:
    """Return the terms of Theorem 1 (eqs. 10 to 12) that depend only on logits and proposal.

    For the arguments, see `theorem1_bounds`. The terms are scalars for one example, and arrays (B,)
    for a batch.
    """
    return theorem1_terms_of(check_inputs(logits, labels, q, 1, h=h))


def theorem1_terms_of(inputs: Inputs) -> Theorem1Terms:
    """Return `theorem1_terms` for checked `inputs`, ignoring their number of draws."""
    return Theorem1Terms(
        *inputs.columns(_terms_of_negatives(make_negatives(*row)) for row in inputs.rows())
    )


def _terms_of_negatives(negatives: Negatives) -> Theorem1Terms:
    """Return the terms of Theorem 1 of one example, both as printed and corrected."""
    log_zt = negatives.log_zt
    log_ratio = negatives.log_ratio
    log_p = negatives.log_p
    log_deviation = negatives.log_deviation

    # sum_j q_j r_j^2 = Z_t^2 (1 + chi2), because the mean of r under q is Z_t
    log_second = 2.0 * log_zt + float(np.logaddexp(0.0, negatives.log_chi2))

    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        low = log_ratio.min()
        high = log_ratio.max()
        log_gap = log_zt + high + np.log(-np.expm1(low - high))
        log_ub2 = log_gap + log_zt - np.logaddexp(0.0, log_second)

        return Theorem1Terms(
            second_moment=float(np.exp(log_second)),
            max_gap=float(np.exp(log_gap)),
            deviation=negatives.fill_classes(0.0, np.exp(log_zt + log_deviation)),
            ub1=float(np.exp(2.0 * log_zt + negatives.log_chi2)),
            ub2=float(np.exp(log_ub2)),
            lb_sum=float(np.exp(log_zt + log_sum_exp(log_p + log_deviation))),
            negative_probs=negatives.fill_classes(0.0, np.exp(log_p)),
            **_corrected_terms(negatives),
        )


def _corrected_terms(negatives: Negatives) -> dict[str, Scalar]:
    """Return the last seven fields of `Theorem1Terms`, for the corrected theorem, by name."""
    log_zt = negatives.log_zt
    log_ratio = negatives.log_ratio
    log_p = negatives.log_p
    unit = negatives.log_error_bound

    with np.errstate(all="ignore"):
        probs = np.exp(log_p)

        # the bounds are 0 if only one class can be drawn, and infinite if the ratios are inaccurate
        if len(log_p) == 1 or unit > _MAX_LOG_ROUNDING:
            bound = 0.0 if len(log_p) == 1 else np.inf
            return dict.fromkeys(Theorem1Terms._fields[-7:], np.float64(bound))

        round_up = 1.0 + 16.0 * unit
        rms = np.exp(log_zt + 0.5 * np.logaddexp(0.0, negatives.log_chi2)) * round_up
        deviation = np.exp(log_zt + 0.5 * negatives.log_chi2)

        # a relative error e of every r changes the standard deviation of r by at most e times rms
        deviation_above = (deviation + np.expm1(4.0 * unit) * rms) * round_up
        variance = deviation * deviation
        variance_above = deviation_above * deviation_above

        centred = np.exp(log_p + log_zt + negatives.log_deviation) * np.sign(log_ratio)
        high = log_ratio.max()
        low = log_ratio.min()
        gap = np.exp(log_zt + high) * (-np.expm1(low - high) + 16.0 * unit)

        rounding_of_g = (
            variance_above - variance + variance_above * (4.0 * unit + EPS * (len(log_p) + 16.0))
        )
        slack = 32.0 * unit * (rms * rms + variance_above) + rounding_of_g + len(log_p) * TINY

        return dict(
            variance=variance,
            variance_above=variance_above,
            label_part=np.exp(negatives.log_a) * variance_above * round_up,
            root=rms * deviation_above,
            gap_above=gap * round_up,
            spread=np.abs(centred).sum() + slack,
            shifted=np.abs(centred - probs * variance).sum() + slack,
        )


def theorem1_bounds(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    jacobian: ArrayLike,
    *,
    h: ArrayLike | None = None,
) -> Theorem1Bounds:
    """Return the bounds of Theorem 1 on the bias of a gradient, as printed in the paper.

    The o(1/m) terms of eqs. 10 and 11 are unknown, and are left out. So the bounds are of leading
    order only. They are for comparison, and are not guaranteed: the bias can lie outside them, even
    in the limit of many draws, if g has negative coordinates, and sometimes if g has none.
    `theorem1_corrected` and `finite_sample_bounds` always hold.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels, q, h
        As for `samplesoft.exact_bias`; q is conditioned on not being the label.
    num_sampled : int
        Number of draws m, at least 1.
    jacobian : array_like, shape (n, P) or (B, n, P)
        Derivatives of the logits with respect to P parameters; (n, P) is used for all examples. M
        is the largest ``|jacobian|`` entry of each example. For another M, or very many parameters,
        use `theorem1_terms` and its method `bounds`.

    Returns
    -------
    Theorem1Bounds
        `lower`, `upper`, `g` (P,) or (B, P), `sign_condition`, `sign_holds` (the condition for each
        coordinate), the method `outside`, and the quantities of eq. 12 in `terms`. A bound beyond
        the range of float64 is infinite.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the proposal misses a negative.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       Theorem 1, eqs. 9 to 12.

    Examples
    --------
    The theorem fails for this example, although g >= 0: m times the bias tends to 73.96, above the
    printed bound.

    >>> import numpy as np
    >>> from samplesoft import asymptotic_bias
    >>> logits, q, jacobian = [0.0, 0.0, 0.0], [0.0, 0.999, 0.001], np.array([[1.0], [1.0], [0.0]])
    >>> printed = theorem1_bounds(logits, 0, q, num_sampled=1000, jacobian=jacobian)
    >>> print(f"{1000 * printed.upper[0]:.2f}", printed.sign_condition)
    40.88 True
    >>> print(f"{(asymptotic_bias(logits, 0, q) @ jacobian)[0]:.2f}")
    73.96
    """
    inputs = check_inputs(logits, labels, q, num_sampled, h=h)
    return _gradient_bounds(inputs, jacobian)


def _gradient_bounds(
    inputs: Inputs, jacobian: ArrayLike, corrected: bool = False
) -> Theorem1Bounds:
    """Return the bounds on the bias of a gradient, by Theorem 1 as printed or as corrected."""
    terms = theorem1_terms_of(inputs)
    jac = check_jacobian(jacobian, terms.negative_probs.shape)
    largest = np.max(np.abs(jac), axis=(-2, -1))
    bound = np.broadcast_to(largest, terms.negative_probs.shape[:-1]).copy()[()]

    small, excess = scaled_to_avoid_overflow(jac)
    g = ldexp_or_inf(weighted_row_sum(terms.negative_probs, small), excess)

    bounds = terms.corrected_bounds if corrected else terms.bounds
    lower, upper = bounds(g, bound, inputs.num_sampled)
    return Theorem1Bounds(lower, upper, g, bound, terms)


def _divide_by_power_of_two(
    g: ArrayLike, grad_bound: Scalar, shape: tuple[int, ...]
) -> tuple[FloatArray, FloatArray, int]:
    """Check g and M; return them divided by 2**k, and k, so that their products do not overflow.

    k is chosen such that afterwards the larger one of M and the largest magnitude in g is between
    1/2 and 1. `shape` is the shape of the result for M, () or (B,).
    """
    require_host_array("g", g)
    weights = np.asarray(g, dtype=np.float64)
    bound = np.broadcast_to(grad_bound, shape)
    magnitudes = np.abs(weights).max(), bound.max()
    for name, magnitude in zip(("g", "grad_bound"), magnitudes, strict=True):
        if np.isnan(magnitude):
            raise ValueError(f"`{name}` must hold numbers, got NaN.")

    if bound.min() < 0.0:
        raise ValueError(f"`grad_bound` must be at least 0, got {bound.min()}; it bounds |J|.")

    unit = int(np.frexp(max(magnitudes))[1])
    return ldexp_or_inf(weights, -unit), ldexp_or_inf(bound, -unit), unit


def _next_above(x: FloatArray) -> FloatArray:
    """Return ``np.nextafter(x, inf)``, the next larger floats.

    If all entries are positive and finite, a faster method is used: the bits of a positive float
    are read as an integer, and 1 is added.
    """
    if x.ndim and x.min() > 0.0 and x.max() < np.inf:
        next_floats: FloatArray = (np.ascontiguousarray(x).view(np.int64) + 1).view(np.float64)
        return next_floats
    return np.nextafter(x, np.inf)


def theorem1_corrected(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    jacobian: ArrayLike,
    *,
    h: ArrayLike | None = None,
) -> Theorem1Bounds:
    """Bound the bias of a gradient by a corrected Theorem 1; the bounds in the paper can fail.

    The corrected bounds hold for every number m of draws and all signs of g. In the notation of the
    paper, with ``V = sum_j e^{2 o_j} / q_j - Z_t^2`` and ``c_j = e^{o_j} / q_j - Z_t``, the
    simplest bound is

        ``|bias| <= 2 M / (m Z^2) sum_j e^{o_j} max(c_j, 0) <= 2 |LB|``

    without a term o(1/m). The factor 2 is the smallest possible one. For large m, bounds that use g
    are closer: for every real lambda

        ``|m Z^2 bias - (V / Z - lambda) g| <= M (sum_j e^{o_j} |c_j - lambda| + p_t V + R_m)``

    where R_m, the o(1/m), is

        ``R_m = (V sqrt(3 V / m + Delta^2 / m^2) + sqrt(V sum_j e^{2 o_j} / q_j) Delta / m) / Z``

    and Delta is the largest ``|c_j - c_k|``, the second quantity of eq. 12. For each coordinate,
    lambda is 0 or V / Z, whichever gives the closer bound; 0 gives the form of the printed bounds.

    Parameters
    ----------
    logits, labels, q, num_sampled, jacobian, h
        As for `theorem1_bounds`. Subtracting a constant from a column of ``jacobian`` does not
        change the bias. So centre the columns, which makes M smaller and the bounds closer.

    Returns
    -------
    Theorem1Bounds
        `lower`, `upper`, `g` (P,) or (B, P), `grad_bound` and `terms`. A bound beyond the
        range of float64 is infinite.

    Raises
    ------
    TypeError, ValueError
        As `theorem1_bounds`.

    Notes
    -----
    Section 17 of ``samplesoft/bias/README.md`` proves the bounds, eqs. (B50) to (B52), and compares
    them with the exact bias. They hold in floating point: each is moved outwards by a bound on its
    rounding error. They depend on the gradient only through M and g, which is useful in proofs. In
    computations, `FiniteSampleBounds.gradient` is closer.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       Theorem 1, eqs. 9 to 12. These bounds are not in the paper.

    Examples
    --------
    The example of `theorem1_bounds`, multiplied by m = 1000: the bias is 69.00, and the printed
    upper bound 40.88.

    >>> import numpy as np
    >>> logits, q, jacobian = [0.0, 0.0, 0.0], [0.0, 0.999, 0.001], np.array([[1.0], [1.0], [0.0]])
    >>> true = theorem1_corrected(logits, 0, q, num_sampled=1000, jacobian=jacobian)
    >>> print(f"{1000 * true.lower[0]:.2f} {1000 * true.upper[0]:.2f}")
    -221.71 184.85
    """
    inputs = check_inputs(logits, labels, q, num_sampled, h=h)
    return _gradient_bounds(inputs, jacobian, corrected=True)


# Theorem 2


@dataclass(frozen=True)
class Theorem2Ratio:
    """The ratio that eq. 20 of Theorem 2 bounds, the centers of the bounds, and the smallest gamma.

    Eq. 20 states bounds ``1 - 2 gamma`` and ``1 + 4 gamma`` on the ratio, in units of its center.

    Attributes
    ----------
    classes : ndarray of int, shape (n - 1,)
        Class indices of the negatives, in the order of the arrays below.
    ratio : ndarray, shape (n - 1,)
        ``|e^{o_i} / q_i| / Z_t``, which is 1 if q is the softmax of the negatives; infinite if an
        estimate is 0.
    printed_center : ndarray, shape (n - 1,)
        ``e^{(tau - nu) h.c_i}``, as printed in eq. 20.
    corrected_center : ndarray, shape (n - 1,)
        `printed_center` times `normalizer`: the limit of the ratio for many features.
    normalizer : float
        ``Z_nu / Z_tau``, with ``Z_x = sum_j e^{x h.c_j}`` over the negatives; 1 if nu = tau.
    printed_gamma, corrected_gamma : float
        The smallest gamma with ``1 - 2 gamma <= ratio / center <= 1 + 4 gamma`` for every
        negative. The lower bound is trivial for gamma >= 1/2.
    num_negative : int
        Number of estimates below 0, for which q is not a probability.
    """

    classes: IntArray
    ratio: FloatArray
    printed_center: FloatArray
    corrected_center: FloatArray
    normalizer: float
    printed_gamma: float
    corrected_gamma: float
    num_negative: int


def theorem2_ratio(
    cosine: ArrayLike, labels: int, estimates: ArrayLike, *, tau: float, nu: float
) -> Theorem2Ratio:
    """Return the ratios of softmax to proposal in eq. 20 of [1]_, given estimates of the kernel.

    The logits are ``o_i = tau h.c_i``, and the proposal is ``q_i = phi(c_i).phi(h) / C``. The
    normalising constant C and Z_t are sums over the negatives. Eq. 20 as printed lacks a
    normaliser: for many features the estimates tend to ``e^{nu h.c_i}`` up to a factor, and the
    ratio tends to ``e^{(tau - nu) h.c_i} Z_nu / Z_tau``. This is the printed center only if
    nu = tau. `theorem2_corrected` bounds the probability that a given gamma is exceeded, before
    frequencies are drawn.

    Parameters
    ----------
    cosine : array_like, shape (n,)
        ``h.c_i`` for unit vectors h and c_i.
    labels : int
        The true class of the example, which is excluded.
    estimates : array_like, shape (n,)
        ``phi(c_i).phi(h)``, up to a common positive factor; estimates may be negative.
    tau : float
        Inverse temperature of the softmax, greater than 0.
    nu : float
        Inverse squared width of the Gaussian kernel that the features estimate, greater than 0.

    Returns
    -------
    Theorem2Ratio
        The ratio, both centers, and the smallest gamma for each; infinite beyond the range of
        float64.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, a cosine exceeds 1, or the estimates of the negatives do not
        have a positive sum.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       Theorem 2, eq. 20.

    Examples
    --------
    With the exact kernel in place of features, gamma = 0 suffices for the corrected center:

    >>> import numpy as np
    >>> cosine = np.array([0.9, 0.5, 0.0, -0.5])
    >>> result = theorem2_ratio(cosine, 0, np.exp(2.0 * cosine), tau=8.0, nu=2.0)
    >>> print(f"{result.normalizer:.3f} {result.printed_gamma:.3f} {result.corrected_gamma:.3f}")
    0.073 0.463 0.000
    """
    cosines, classes = _check_cosine(cosine, labels)
    kernel_estimates = as_real_array("estimates", estimates, (1,))
    tau = as_positive("tau", tau)
    nu = as_positive("nu", nu)
    if kernel_estimates.shape != cosines.shape:
        raise ValueError(
            f"`estimates` of shape {kernel_estimates.shape} does not match `cosine` of shape "
            f"{cosines.shape}; give one value for each class in both."
        )

    cosines = cosines[classes]
    kernel_estimates = kernel_estimates[classes]
    kernel_estimates = kernel_estimates / max(float(np.abs(kernel_estimates).max()), TINY)
    constant = float(kernel_estimates.sum())
    if constant <= 0.0:
        raise ValueError(
            "`estimates` of the negatives must have a positive sum, got one "
            f"{'of 0' if constant == 0.0 else 'below 0'}: they define no proposal; "
            "use more features, a smaller nu, or clip them."
        )

    log_z_tau = log_sum_exp(tau * cosines)
    log_z_nu = log_sum_exp(nu * cosines)
    log_center = (tau - nu) * cosines
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        log_estimates = np.log(np.abs(kernel_estimates))
        log_ratio = tau * cosines - log_z_tau - log_estimates + math.log(constant)
        log_normalizer = log_z_nu - log_z_tau

        return Theorem2Ratio(
            classes=classes,
            ratio=np.exp(log_ratio),
            printed_center=np.exp(log_center),
            corrected_center=np.exp(log_center + log_normalizer),
            normalizer=float(np.exp(log_normalizer)),
            printed_gamma=_smallest_gamma(log_ratio - log_center),
            corrected_gamma=_smallest_gamma(log_ratio - log_center - log_normalizer),
            num_negative=int((kernel_estimates < 0.0).sum()),
        )


def _smallest_gamma(log_x: FloatArray) -> float:
    """Return the smallest gamma >= 0 with ``1 - 2 gamma <= x <= 1 + 4 gamma`` for all x.

    `log_x` (k,) are the logs of the x.
    """
    excess = np.expm1(log_x)
    return float(max(-excess.min() / 2.0, excess.max() / 4.0, 0.0))


def _check_cosine(cosine: ArrayLike, labels: int) -> tuple[FloatArray, IntArray]:
    """Check the cosines and the label of one example.

    Returns the cosines (n,) in float64, and the indices (n - 1,) of the negatives.
    """
    cosines = as_real_array("cosine", cosine, (1,))
    n = cosines.size
    t = as_labels("labels", labels, n, ()).item()
    if n == 1:
        raise ValueError("`cosine` must cover at least 2 classes, got 1: there is no negative.")

    largest = float(np.abs(cosines).max())
    if largest > 1.0 + COSINE_TOLERANCE:
        raise ValueError(
            f"`cosine` must lie in [-1, 1], got a size of {largest:.6g}; "
            "divide h and the class vectors by their norms."
        )

    return cosines, np.delete(np.arange(n, dtype=np.int64), t)


@dataclass(frozen=True)
class Theorem2Corrected:
    """Bounds on ratios and bias for random Fourier features, and the probability that they fail.

    Attributes
    ----------
    classes : ndarray of int, shape (n - 1,)
        Class indices of the negatives, in the order of the arrays below.
    lower, upper : ndarray, shape (n - 1,)
        Bounds on ``(e^{o_i} / q_i) / Z_t``, which is 1 if q is the softmax of the negatives.
    failure : float
        A bound on the probability, over the frequencies, that any ratio is outside its bounds or
        any estimate is not positive; at most 1.
    bias : float
        If all ratios are within their bounds, the bias of each coordinate of the gradient is at
        most ``bias * M / m`` for every number m of draws, where M bounds the derivatives of the
        logits. For nu = tau it is ``(1 - p_t)^2 gamma / (1 - gamma)``.
    """

    classes: IntArray
    lower: FloatArray
    upper: FloatArray
    failure: float
    bias: float


def theorem2_corrected(
    cosine: ArrayLike, labels: int, *, tau: float, nu: float, num_features: int, gamma: float
) -> Theorem2Corrected:
    """Return the corrected bounds of eq. 20 and Corollary 1 of [1]_, without drawing frequencies.

    The logits are ``o_i = tau h.c_i``, and ``q_i`` is proportional to ``phi(c_i).phi(h)``, with
    random Fourier features phi of the Gaussian kernel ``K_i = e^{-nu (1 - h.c_i)}``. Except with
    the probability `failure`, every estimate ``phi(c_i).phi(h)`` is within ``gamma K_i`` of
    ``K_i``, and then

        ``k^-1 <= (e^{o_i} / q_i) / Z_t / (e^{(tau - nu) h.c_i} Z_nu / Z_tau) <= k``

    for ``k = (1 + gamma) / (1 - gamma)``, with ``Z_x = sum_j e^{x h.c_j}`` over the negatives. The
    printed bounds ``1 - 2 gamma`` and ``1 + 4 gamma`` are wider for gamma up to 1/2, and the
    printed center lacks the factor ``Z_nu / Z_tau``.

    Parameters
    ----------
    cosine, labels, tau, nu
        As for `theorem2_ratio`.
    num_features : int
        Number of independent frequencies D, each with a cosine and a sine.
    gamma : float
        Relative error of an estimate, between 0 and 1.

    Returns
    -------
    Theorem2Corrected
        The bounds on the ratio, their failure probability, and the resulting bound on the bias.

    Raises
    ------
    TypeError, ValueError
        As for `theorem2_ratio`, or if gamma is not below 1.

    Notes
    -----
    ``failure`` is a sum of Bernstein's bounds over the classes, and at most
    ``2 n exp(-3 D gamma^2 e^{-4 nu} / 4)``: section 17 of ``samplesoft/bias/README.md``, eqs. (B53)
    and (B54). It holds neither for orthogonal and structured frequencies, which are not
    independent, nor for a tree that clips estimates.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       Theorem 2 and Corollary 1, in another form.

    Examples
    --------
    >>> import numpy as np
    >>> cosine = np.array([0.9, 0.5, 0.0, -0.5])
    >>> for num_features in (10_000, 100_000):
    ...     holds = theorem2_corrected(
    ...         cosine, 0, tau=2.0, nu=2.0, num_features=num_features, gamma=0.1
    ...     )
    ...     print(f"{holds.upper.max():.3f} {holds.failure:.1e} {holds.bias:.4f}")
    1.222 1.0e+00 0.0181
    1.222 1.7e-01 0.0181
    """
    cosines, classes = _check_cosine(cosine, labels)
    tau = as_positive("tau", tau)
    nu = as_positive("nu", nu)
    num_frequencies = as_count("num_features", num_features)
    gamma = as_positive("gamma", gamma)
    if gamma >= 1.0:
        raise ValueError(
            f"`gamma` must be less than 1, got {gamma:.6g}; from 1 on an estimate may be 0, "
            "and the ratio has no bound."
        )

    x = np.minimum(cosines[classes], 1.0)
    kappa = (1.0 + gamma) / (1.0 - gamma)
    with np.errstate(over="ignore", under="ignore"):
        log_kernel = nu * (x - 1.0)
        kernel = np.exp(log_kernel)

        # the variance of the cosine at one random frequency is (1 - K^2)^2 / 2
        twice_variance = np.expm1(2.0 * log_kernel) ** 2
        spread = twice_variance + 2.0 / 3.0 * (1.0 + kernel) * gamma * kernel
        probabilities = 2.0 * np.exp(-num_frequencies * (gamma * kernel) ** 2 / spread)

        log_center = log_softmax(tau * x) - log_softmax(nu * x)
        center = np.exp(log_center)
        logits = tau * np.append(x, cosines[labels])
        log_p = log_softmax(logits)[:-1]

        probs = np.exp(log_p)
        joint = np.exp(log_p + log_center)
        other_mass = float(probs.sum())  # 1 - p_t

        # two upper bounds on the mean of max(r - Z_t, 0) / Z_t, of which the smaller one is used
        joint_bound = np.maximum(kappa * joint - probs, 0.0).sum()
        split_bound = np.maximum(joint - probs, 0.0).sum()
        split_bound += other_mass * center.max() ** 2 * 0.5 * gamma / (1.0 - gamma)

    return Theorem2Corrected(
        classes=classes,
        lower=center / kappa,
        upper=center * kappa,
        failure=float(min(probabilities.sum(), 1.0)),
        bias=2.0 * other_mass * float(min(joint_bound, split_bound)),
    )
