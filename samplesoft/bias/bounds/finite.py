"""Bounds on the bias for any number of draws: the public function, and one example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray
from samplesoft.bias.bounds.chunks import SpreadSums, bounds_of_chunk
from samplesoft.bias.bounds.classes import (
    TINY,
    ClassBounds,
    EndTotals,
    negative_sums,
    tighten_by_zero_sum,
    trivial_bounds,
)
from samplesoft.bias.bounds.gaps import (
    FARTHEST_EXPONENT,
    TRANSFORM_ROUNDING,
    RatioRange,
    has_accurate_ratios,
    make_transform_bounds,
)
from samplesoft.bias.chunks.dask import run_passes_on_dask
from samplesoft.bias.chunks.passes import BiasSums
from samplesoft.bias.inputs import (
    Example,
    Inputs,
    check_inputs,
    check_jacobian,
    is_dask,
    ldexp_or_inf,
    require_none_with_dask,
    scaled_to_avoid_overflow,
)
from samplesoft.bias.numerics.quadrature import relative_term_error
from samplesoft.bias.numerics.summation import EPS
from samplesoft.bias.with_replacement.atoms import make_atoms
from samplesoft.bias.with_replacement.draws import Draws, make_draws
from samplesoft.bias.with_replacement.ratios import make_ratios
from samplesoft.bias.without_replacement.expectations import expected_probs_and_log_sum
from samplesoft.bias.without_replacement.race import ExponentialRace
from samplesoft.bias.without_replacement.set_bias import set_bias, set_distribution
from samplesoft.bias.without_replacement.terms import equidistant_node, make_weights
from samplesoft.schemes import Scheme, as_scheme

_LARGEST_FLOAT = float(np.finfo(np.float64).max)
_SET_TRUNCATION = 1e-16  # absolute error of E[p'] from the terms beyond the last node in u
_SET_EXPONENT_ROUNDING = 64.0 * EPS  # relative rounding error of an exponent summed over classes


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

        Because the bias sums to 0 over the classes, subtracting a constant from all d o_i does not
        change the result. A weighted mean of the d o_i is subtracted where that gives closer
        bounds.

        Parameters
        ----------
        jacobian : array_like, shape (n, P) or (B, n, P)
            Derivatives of the logits with respect to P parameters; (n, P) is used for all examples.

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
        jac, excess = scaled_to_avoid_overflow(check_jacobian(jacobian, self.lower.shape))
        lower, upper = np.atleast_2d(self.lower, self.upper)
        jacobians = np.broadcast_to(jac, lower.shape[:1] + jac.shape[-2:])

        rows = [_bound_gradient(*row) for row in zip(lower, upper, jacobians, strict=True)]
        ends = ldexp_or_inf(np.array(rows).swapaxes(0, 1), excess)

        below, above = ends.reshape(2, *self.lower.shape[:-1], jac.shape[-1])
        return np.minimum(below, _LARGEST_FLOAT), np.maximum(above, -_LARGEST_FLOAT)


def _bound_gradient(
    lower: FloatArray, upper: FloatArray, jacobian: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds (P,) on the bias of the gradient of one example."""
    middle = 0.5 * (lower + upper)
    half_width = 0.5 * (upper - lower)
    mean = half_width @ jacobian / (float(half_width.sum()) or 1.0)

    # the rounding error of a sum of n products is at most n / 2 eps of the sum of their magnitudes
    units = EPS * (len(lower) + 16) * np.maximum(-lower, upper)
    rounding = units @ np.abs(jacobian)
    ends = []

    for shift in (np.zeros_like(mean), mean):
        centred = jacobian - shift
        product = middle @ centred
        half_range = half_width @ np.abs(centred) + rounding + float(units.sum()) * np.abs(shift)
        ends.append((product - half_range, product + half_range))

    return np.maximum(ends[0][0], ends[1][0]), np.minimum(ends[0][1], ends[1][1])


def finite_sample_bounds(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    *,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
) -> FiniteSampleBounds:
    """Bound the bias of sampled softmax for any number of draws, and any signs of the derivatives.

    For scheme ``negatives`` the draws are from q given "not the label", with replacement, as in
    [1]_, eq. 5. For ``masked`` they are from q, and a draw of the label counts as a class with
    r = 0. Write ``a = e^{o_t}``, Z for the partition function, ``Z_t = Z - a``,
    ``r_j = e^{o_j} / q_j`` with the conditioned q, and S for the sampled sum. Then
    ``bias_t = a (E[1/S] - 1/Z)`` and ``bias_j = e^{o_j} (E[1/S_j] - 1/Z)``, where one of the draws
    in S_j is fixed to j. The bounds follow from bounds on ``E[1/S] - 1/E[S]``:

    - the trapezoid rule for ``1/S = int exp(-u S) du``, with the Laplace transform of r. Its error
      is proved to be less than 1e-16 of the integral for every distribution of S;
    - ``Var[S] / (E[S]^2 s)`` with s at the ends of the range of S, where that is closer;
    - the constraints ``0 <= bias_t <= 1 - p_t`` and ``-p_j <= bias_j <= 1 - p_j``, and that the
      bias sums to 0.

    For draws without replacement, schemes such as ``distinct``, ``E[p']`` itself is bounded. The
    trapezoid rule in u has the same error. The probability of a set is an integral over the time t
    of a race of exponential clocks. The rule in t has a proved relative error for each set, and
    leaves out times at which clocks rarely ring. The widths add up to about 1e-9, and the cost is
    three times that of `samplesoft.exact_bias`.

    The widths of the intervals come from rounding errors. For 150 problems with long tails, and 3,
    25 and 75 draws for each unit of ``E[r^2] / Z^2``, the widths added up to at most 1e-8 of the L1
    norm of the bias; for the gradient in h, to 3e-8 of its norm. If logits differ by hundreds, the
    bounds have fewer digits. If they differ by over 700, the bounds hold, but may be trivial.
    For logits ``[-d, d, 0, 3]``, label 0, uniform q and two draws, the widths are 4e-9 of the norm
    for d = 300, 0.02 of the norm for d = 700, and the whole norm for d = 1000. For d = 1000 and 100
    draws they are 1e8 times the norm. `samplesoft.exact_bias` is accurate in these cases.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o. For a Dask array the bounds are Dask arrays, too.
    labels, q, h
        As for `samplesoft.exact_bias`.
    num_sampled : int
        Number of draws m, at least 1.
    scheme : str
        ``negatives``, ``masked``, or a scheme without replacement: ``distinct`` and the names that
        begin with it. No bounds are known for other schemes, which raise ValueError.

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
    Sections 14 and 22 of ``samplesoft/bias/README.md`` prove the bounds, and a weaker theorem in
    closed form: in units where Z is 1, with V the variance of r, ``xi = E[(r - Z_t)^3] / V`` and
    any d between 0 and 1,
    ``a V / (m + xi - V) <= bias_t <= a V / ((1 - d) (m + V / d)) + exp(-m d^2 / (2 rho))``.

    The bounds hold in floating point: each is moved outwards by a relative
    ``8 eps (64 + 4 log2(n) + 2 L)`` of the magnitudes of its terms, where L is the largest
    magnitude of a logarithm in it (1e-13 to 1e-11 in total), and by the smallest normal number. The
    errors of the sum of exponentials have bounds of their own. With a single negative the bias and
    both bounds are exactly 0.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       eqs. 5 and 8. These bounds are not in the paper; the printed ones are `theorem1_bounds`.

    Examples
    --------
    >>> bounds = finite_sample_bounds([0.0, 0.0, 0.0], 0, [0.2, 0.6, 0.2], num_sampled=10)
    >>> bounds.lower.round(4)
    array([ 0.0049,  0.0123, -0.0172])
    >>> bool((bounds.upper - bounds.lower).max() < 1e-10)
    True
    """
    if is_dask(logits) or is_dask(q):
        require_none_with_dask(h=h)
        as_scheme(scheme, require=require_bounds)

        def make_first_pass(label: int) -> BiasSums:
            return BiasSums(num_sampled, label, scheme).then(SpreadSums.after)

        return FiniteSampleBounds(
            *run_passes_on_dask(logits, labels, q, make_first_pass, bounds_of_chunk)[0]
        )

    return finite_sample_bounds_of(
        check_inputs(logits, labels, q, num_sampled, scheme, h, require=_require_set_or_bounds)
    )


def finite_sample_bounds_of(inputs: Inputs) -> FiniteSampleBounds:
    """Return `finite_sample_bounds` of checked inputs."""
    m = inputs.num_sampled
    scheme = inputs.scheme
    if scheme.distinct:
        return FiniteSampleBounds(
            *inputs.columns(_bounds_without_replacement(row, inputs) for row in inputs.rows())
        )

    require_bounds(scheme)
    rows = [example_bounds(make_draws(*row, m, scheme)) for row in inputs.rows()]
    return FiniteSampleBounds(*inputs.columns(rows))


def require_bounds(scheme: Scheme) -> None:
    """Raise ValueError for a scheme for which no bounds and no asymptotic limit are known."""
    if scheme.jackknife or not scheme.sum_is_label_plus_mean:
        raise ValueError(
            "`scheme` must be one whose sum is e_t plus a mean over m draws, for bounds and limits "
            f"are known of no other, got {scheme.name!r}; take 'negatives' or 'masked', or "
            "samplesoft.exact_bias."
        )


def _require_set_or_bounds(scheme: Scheme) -> None:
    """Raise ValueError for a scheme without bounds; schemes without replacement have bounds."""
    if not scheme.distinct:
        require_bounds(scheme)


def example_bounds(draws: Draws) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds (n,) on the bias of one example, for draws with replacement."""
    sums = negative_sums(draws)
    trivial = trivial_bounds(sums, len(draws.q))
    if trivial is not None:
        return trivial

    is_negative = np.arange(len(draws.q)) != draws.label
    columns = sums.compute_logs(draws.logits[is_negative], draws.q[is_negative])
    spread = RatioRange().add(columns).add(sums.masked_hit_logs)

    transform = None
    if has_accurate_ratios(draws, sums):
        with np.errstate(all="ignore"):
            ratios = make_ratios(draws)
            transform = make_transform_bounds(
                draws, ratios, make_atoms(draws, ratios), sums.log_error_bound
            )

    bounds = ClassBounds(draws, sums, spread, transform)
    lower, upper = bounds.bounds_of_classes(draws.label, columns)
    return tighten_by_zero_sum(lower, upper, EndTotals().add(lower, upper), len(draws.q))


def _bounds_without_replacement(example: Example, inputs: Inputs) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds (n,) on the bias of one example, for draws without replacement.

    They are E[p'] - p, minus and plus the error of E[p']. The error has three sources: the
    probability of the times t beyond the nodes; the relative error of all terms; and the relative
    error of each divisor, an inclusion probability pi_k, which changes p' for all sets that
    contain k.
    """
    logits, label, _ = example
    race, drawn = set_distribution(example, inputs.num_sampled, inputs.scheme)
    if not isinstance(race, ExponentialRace):  # all classes are drawn
        row = set_bias(example, inputs.num_sampled, inputs.scheme)
        return row.bias - row.error, row.bias + row.error

    rule_error, truncation = race.time_quadrature_errors()

    inclusion = np.ones(len(logits))
    expected = np.zeros(len(logits))
    inclusion_error = np.zeros(len(logits))
    inclusion[drawn] = race.inclusion[0]
    inclusion_error[drawn] = np.abs(race.inclusion[0] - race.inclusion_by_nodes) + truncation

    weights = make_weights(logits, label, inputs.scheme, inclusion)
    terms = weights.terms(drawn, race.inclusion[0])
    sums = expected_probs_and_log_sum([race], terms, equidistant_node)
    expected[drawn] = sums.expected_probs[0]
    expected[label] += sums.expected_base_prob[0]

    exponent_error = _SET_EXPONENT_ROUNDING * (
        race.max_exponent + inputs.num_sampled + FARTHEST_EXPONENT
    )
    term_error = relative_term_error(terms.max_log_magnitude)
    relative_error = 2.0 * (TRANSFORM_ROUNDING + exponent_error + rule_error) + term_error

    # if pi_k has no correct digits, the sets that contain k count as left out
    divisor_error = inclusion_error / inclusion
    is_unknown = divisor_error > 0.5
    unknown_prob = float((inclusion + inclusion_error)[is_unknown].sum())
    absolute_error = truncation + 2.0 * unknown_prob + _SET_TRUNCATION
    divisor_error[is_unknown] = 0.0

    sum_error = float((expected * divisor_error).sum())
    half_width = (
        4.0 * (expected * (2.0 * relative_error + divisor_error) + sum_error) + absolute_error
    )
    half_width += relative_error * weights.probs + TINY

    bias = expected - weights.probs
    lower = np.maximum(bias - half_width, -weights.probs * (1.0 + relative_error))
    upper = np.minimum(bias + half_width, 1.0)
    return tighten_by_zero_sum(lower, upper, EndTotals().add(lower, upper), len(bias))
