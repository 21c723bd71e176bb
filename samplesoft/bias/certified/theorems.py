"""Theorems about the bias in balls: claims that are proved or refuted for given numbers.

Each function compares an exact value with the two bounds that a theorem claims for it. All three
are computed in balls, with more bits until no comparison is open, or the limit is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from samplesoft._validation import FloatArray, as_labels, short_repr
from samplesoft.bias.bounds.finite import finite_sample_bounds
from samplesoft.bias.certified.balls import (
    Ball,
    as_rational,
    as_rationals,
    ball_of,
    floats_above,
    floats_below,
    import_flint,
    working_precision,
)
from samplesoft.bias.certified.bias import (
    Problem,
    as_problems,
    bias_balls,
    rising_bits,
    softmax_balls,
)

_FIRST_BITS = 113


class Intervals(NamedTuple):
    """Numbers that are known to lie between two float64, (P,) each."""

    lower: FloatArray
    upper: FloatArray


@dataclass(frozen=True)
class CertifiedClaim:
    """The claim ``lower_bound <= value <= upper_bound`` for P numbers, and what is proved of it.

    Attributes
    ----------
    value, lower_bound, upper_bound : Intervals
        The two sides of the claim, each as a pair of arrays (P,) that were rounded outwards.
    holds : tuple of bool or None, length P
        True if the claim is proved for these numbers, False if it is refuted, None if the intervals
        overlap at the highest precision.
    bits : int
        Precision of the last computation.
    """

    value: Intervals
    lower_bound: Intervals
    upper_bound: Intervals
    holds: tuple[bool | None, ...]
    bits: int


class _Sides(NamedTuple):
    """The numbers of a claim in balls, (P,) each."""

    value: list[Ball]
    lower_bound: list[Ball]
    upper_bound: list[Ball]


def certified_theorem1(
    logits: Any,
    labels: int,
    q: Any,
    num_sampled: int,
    jacobian: Any = None,
    *,
    corrected: bool = False,
    limit: bool = False,
) -> CertifiedClaim:
    """Decide for given numbers whether Theorem 1 of [1]_ holds, as printed or corrected.

    Parameters
    ----------
    logits, q : sequence of numbers, shape (n,)
        As for `certified_bias`, taken as exact.
    labels : int
        The true class.
    num_sampled : int
        Number m of draws, scheme ``negatives``.
    jacobian : n sequences of P numbers, or array_like, shape (n, P), optional
        Derivatives of the logits by P parameters, taken as exact; by default the parameters are
        the n logits.
    corrected : bool
        Take the bounds of `theorem1_corrected` in place of eqs. 10 and 11 without o(1/m).
    limit : bool
        Take the limit of m times both sides for m to infinity, which the terms o(1/m) of the
        printed theorem do not change. Only with ``corrected=False``.

    Returns
    -------
    CertifiedClaim
        One entry for each parameter.

    Raises
    ------
    ImportError, TypeError, ValueError
        As `certified_bias`.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019.

    Examples
    --------
    The upper bound fails although g is positive, for one number of draws and in the limit:

    >>> example = [0, 0, 0], 0, ["0", "0.999", "0.001"], 1000, [[1], [1], [0]]
    >>> certified_theorem1(*example).holds, certified_theorem1(*example, limit=True).holds
    ((False,), (False,))
    >>> certified_theorem1(*example, corrected=True).holds
    (True,)
    """
    problem = _one_problem(logits, labels, q, num_sampled)
    columns = None if jacobian is None else _columns(jacobian, len(problem.logits))
    if corrected and limit:
        raise ValueError(
            "`limit` must be False where `corrected` is True, got True: the corrected theorem has "
            "no limit."
        )
    m = 1 if limit else problem.num_sampled

    def sides(bits: int) -> _Sides:
        bias = [] if limit else bias_balls(problem, bits).bias
        with working_precision(_precision(bits, problem)):
            negatives = _negatives_of(problem)
            if limit:
                bias = negatives.limit_of_bias()
            bounds_of = negatives.corrected_bounds if corrected else negatives.printed_bounds
            one = 0 * negatives.a + 1
            if columns is None:
                parameters = [
                    (value, mass, one) for value, mass in zip(bias, negatives.g, strict=True)
                ]
            else:
                parameters = []
                largest = ball_of(max(abs(value) for column in columns for value in column))
                for column in columns:
                    derivatives = [ball_of(value) for value in column]
                    g = _dot(negatives.g, derivatives)
                    parameters.append((_dot(bias, derivatives), g, largest))

            bounds = [bounds_of(g, largest, m) for _, g, largest in parameters]
            return _Sides(
                value=[value for value, _, _ in parameters],
                lower_bound=[lower for lower, _ in bounds],
                upper_bound=[upper for _, upper in bounds],
            )

    return _decide(sides)


def _columns(jacobian: Any, num_classes: int) -> list[tuple[Fraction, ...]]:
    """Return the exact columns of a Jacobian; raise ValueError if it is not (n, P)."""
    rows = [as_rationals(f"jacobian[{i}]", row) for i, row in enumerate(jacobian)]
    lengths = {len(row) for row in rows}
    if len(rows) != num_classes or len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"`jacobian` must have P numbers for each of {num_classes} classes, got {len(rows)} "
            f"rows of {', '.join(map(str, sorted(lengths)))}; give one column for each parameter."
        )
    return list(zip(*rows, strict=True))


def certified_label_bounds(
    logits: Any, labels: int, q: Any, num_sampled: int, deviation: Any
) -> CertifiedClaim:
    """Decide for given numbers whether the closed bounds (B41) on the label's bias hold.

    They are ``a V / (m + xi - V)``, and ``a V / ((1 - d) (m + V / d)) + exp(-m d^2 / (2 rho))``,
    whose last term is Bernstein's bound: section 14 of ``samplesoft/bias/README.md``. Here a is the
    softmax of the label, V the variance of the ratio r of one draw, ``xi V`` its third central
    moment, and rho the mean of r^2.

    Parameters
    ----------
    logits, labels, q, num_sampled
        As for `certified_theorem1`.
    deviation : number
        d, between 0 and 1, taken as exact.

    Returns
    -------
    CertifiedClaim
        One entry, for the label.

    Raises
    ------
    ImportError, TypeError, ValueError
        As `certified_bias`, or if the deviation is not between 0 and 1.

    Examples
    --------
    >>> certified_label_bounds([0, 1, 2], 0, ["0.2", "0.4", "0.4"], 50, "0.3").holds
    (True,)
    """
    problem = _one_problem(logits, labels, q, num_sampled)
    d = as_rational("deviation", deviation)
    if not 0 < d < 1:
        raise ValueError(f"`deviation` must be between 0 and 1, got {float(d):.6g}.")

    def sides(bits: int) -> _Sides:
        bias = bias_balls(problem, bits).bias[problem.label]
        with working_precision(_precision(bits, problem)):
            negatives = _negatives_of(problem)
            m = problem.num_sampled
            scaled = negatives.a * negatives.variance
            skewness = negatives.third_moment / negatives.variance  # xi
            lower = scaled / (m + skewness - negatives.variance)
            distance = ball_of(d)
            upper = scaled / ((1 - distance) * (m + negatives.variance / distance))
            upper += (-m * distance**2 / (2 * negatives.second_moment)).exp()
            return _Sides([bias], [lower], [upper])

    return _decide(sides)


def certified_finite_sample_bounds(
    logits: Any, labels: int, q: Any, num_sampled: int, *, scheme: str = "negatives"
) -> CertifiedClaim:
    """Decide whether the bias of each class lies within the float64 of `finite_sample_bounds`.

    Parameters
    ----------
    logits, q : array_like, shape (n,)
        Logits and proposal, which are rounded to float64 first.
    labels, num_sampled, scheme
        As for `samplesoft.finite_sample_bounds`.

    Returns
    -------
    CertifiedClaim
        One entry for each class.

    Raises
    ------
    ImportError, TypeError, ValueError
        As `samplesoft.finite_sample_bounds` and `certified_bias`.

    Examples
    --------
    >>> certified_finite_sample_bounds([0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], 5).holds
    (True, True, True)
    """
    import_flint()
    rounded_logits = np.asarray(logits, np.float64)
    rounded_q = np.asarray(q, np.float64)
    bounds = finite_sample_bounds(rounded_logits, labels, rounded_q, num_sampled, scheme=scheme)
    problem = _one_problem(rounded_logits, labels, rounded_q, num_sampled, scheme)

    def sides(bits: int) -> _Sides:
        bias = bias_balls(problem, bits).bias
        arb = type(bias[0])
        return _Sides(bias, [arb(x) for x in bounds.lower], [arb(x) for x in bounds.upper])

    return _decide(sides)


def certified_theorem2(
    cosine: Any,
    labels: int,
    *,
    tau: Any,
    nu: Any,
    gamma: Any,
    estimates: Any = None,
    corrected: bool = False,
) -> CertifiedClaim:
    """Decide for given numbers whether eq. 20 of Theorem 2 of [1]_ holds, as printed or corrected.

    The value is ``(e^{o_i} / |q_i|) / Z_t`` of each negative. Eq. 20 claims that it lies between
    ``1 - 2 gamma`` and ``1 + 4 gamma`` times ``e^{(tau - nu) h.c_i}``. The corrected bounds are
    this times ``Z_nu / Z_tau``, divided or multiplied by ``(1 + gamma) / (1 - gamma)``: see
    `theorem2_corrected`.

    Parameters
    ----------
    cosine : sequence of numbers, shape (n,)
        ``h.c_i``, taken as exact.
    labels : int
        The true class, which is excluded.
    tau, nu, gamma : number
        As for `theorem2_corrected`, taken as exact.
    estimates : sequence of numbers, shape (n,), optional
        ``phi(c_i).phi(h)`` up to a factor, not 0; by default the kernel itself, to which they tend
        with the number of features.
    corrected : bool
        Take the corrected bounds. The corrected theorem is about estimates within ``gamma`` of the
        kernel; where a bound does not hold, the estimates are not.

    Returns
    -------
    CertifiedClaim
        One entry for each negative, in the order of the classes.

    Raises
    ------
    ImportError, TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019.

    Examples
    --------
    >>> example = dict(cosine=["0.9", "0.5", "0", "-0.5"], labels=0, tau=8, nu=2, gamma="0.3")
    >>> certified_theorem2(**example).holds
    (False, False, False)
    >>> certified_theorem2(**example, corrected=True).holds
    (True, True, True)
    """
    import_flint()
    cosines = as_rationals("cosine", cosine)
    target = as_labels("labels", labels, len(cosines), ()).item()
    negatives = [j for j in range(len(cosines)) if j != target]
    if not negatives or max(abs(x) for x in cosines) > 1:
        raise ValueError(
            f"`cosine` must hold at least 2 numbers in [-1, 1], got {short_repr(cosine)}."
        )
    scales = {"tau": as_rational("tau", tau), "nu": as_rational("nu", nu)}
    g = as_rational("gamma", gamma)
    if min(scales.values()) <= 0 or not 0 < g < 1:
        raise ValueError(
            "`tau` and `nu` must be greater than 0 and `gamma` between 0 and 1, got "
            f"{tau}, {nu} and {gamma}."
        )
    given = None if estimates is None else as_rationals("estimates", estimates)
    if given is not None and (len(given) != len(cosines) or not all(given[j] for j in negatives)):
        raise ValueError(
            f"`estimates` must hold {len(cosines)} numbers other than 0, got "
            f"{short_repr(estimates)}; an estimate of 0 is a class that is never drawn."
        )

    if given is not None and sum(given[j] for j in negatives) == 0:
        raise ValueError("`estimates` of the negatives must not sum to 0: they define no proposal.")

    def sides(bits: int) -> _Sides:
        with working_precision(bits):
            x = [ball_of(cosines[j]) for j in negatives]
            exps = [(ball_of(scales["tau"]) * value).exp() for value in x]
            kernel = [(ball_of(scales["nu"]) * value).exp() for value in x]
            shares = kernel if given is None else [ball_of(given[j]) for j in negatives]
            z_tau = sum(exps)
            z_nu = sum(kernel)
            constant = sum(shares)
            ratios = [
                abs(e * constant / share) / z_tau for e, share in zip(exps, shares, strict=True)
            ]
            center = [e / k for e, k in zip(exps, kernel, strict=True)]
            if corrected:
                kappa = ball_of((1 + g) / (1 - g))
                center = [value * z_nu / z_tau for value in center]
                return _Sides(ratios, [c / kappa for c in center], [c * kappa for c in center])
            low, high = ball_of(1 - 2 * g), ball_of(1 + 4 * g)
            return _Sides(ratios, [c * low for c in center], [c * high for c in center])

    return _decide(sides)


# --- what the claims consist of -----------------------------------------------------------------


@dataclass(frozen=True)
class _Negatives:
    """The quantities of Theorem 1 in balls, for logits with Z = 1, over the classes of draws."""

    label: int
    classes: list[int]
    a: Ball  # softmax of the label
    e: list[Ball]  # softmax of the classes
    centred: list[Ball]  # their ratios less the mean ratio Z_t
    ratio_range: Ball  # largest ratio less the smallest
    variance: Ball  # V of the ratio of one draw
    second_moment: Ball  # mean of its square, sum of e r
    third_moment: Ball  # mean of the centred ratio to the power 3

    def limit_of_bias(self) -> list[Ball]:
        """Return the limit of m times the bias of each class, (B31)."""
        limit = [0 * self.a] * (len(self.classes) + 1)
        limit[self.label] = self.a * self.variance
        for j, e, c in zip(self.classes, self.e, self.centred, strict=True):
            limit[j] = e * (self.variance - c)
        return limit

    @property
    def g(self) -> list[Ball]:
        """The g of each logit, (n,): its softmax probability, and 0 at the label."""
        values = [0 * self.a] * (len(self.classes) + 1)
        for j, mass in zip(self.classes, self.e, strict=True):
            values[j] = mass
        return values

    def printed_bounds(self, g: Ball, bound: Ball, m: int) -> tuple[Ball, Ball]:
        """Return the bounds of eqs. 10 and 11 of the paper, without their terms o(1/m).

        `bound` is M, the largest magnitude of a derivative.
        """
        z_t = 1 - self.a
        lower = -bound * self._spread(0 * self.a) / m
        upper = self.variance * g / m
        upper += 2 * bound * z_t * self.ratio_range / (m * (1 + self.second_moment))
        return lower, upper

    def corrected_bounds(self, g: Ball, bound: Ball, m: int) -> tuple[Ball, Ball]:
        """Return the closest of (B51) and (B52) at lambda = 0 and lambda = V, and of 2 M."""
        v = self.variance
        spread = self._spread(0 * v)
        shifted = self._spread(v)
        deviation = 3 * v / m + self.ratio_range * self.ratio_range / m**2
        remainder = v * deviation.nonnegative_part().sqrt()
        remainder += (self.second_moment * v).nonnegative_part().sqrt() * self.ratio_range / m
        remainder += self.a * v
        from_zero = bound * (spread + v).min(shifted + remainder).min(0 * v + 2 * m)
        from_leading = bound * (spread + remainder)
        from_minus_leading = bound * (shifted + v)
        lower = (-from_zero).max(v * g - from_leading).max(-v * g - from_minus_leading)
        upper = from_zero.min(v * g + from_leading).min(from_minus_leading - v * g)
        return lower / m, upper / m

    def _spread(self, center: Ball) -> Ball:
        """Return the sum of e |c - center|."""
        return _dot(self.e, [abs(c - center) for c in self.centred])


def _negatives_of(problem: Problem) -> _Negatives:
    """Return the quantities of Theorem 1, at the working precision."""
    probs = softmax_balls(problem.logits)
    classes = [j for j in range(len(probs)) if j != problem.label]
    e = [probs[j] for j in classes]
    z_t = sum(e)
    q = [ball_of(problem.q[j]) for j in classes]
    q_total = sum(q)
    draw_probs = [prob / q_total for prob in q]
    ratios = [mass / prob for mass, prob in zip(e, draw_probs, strict=True)]
    centred = [r - z_t for r in ratios]
    squares = [c * c for c in centred]  # python-flint's c**2 is NaN if the midpoint of c is 0
    largest = smallest = ratios[0]
    for r in ratios[1:]:
        largest = largest.max(r)
        smallest = smallest.min(r)
    return _Negatives(
        label=problem.label,
        classes=classes,
        a=probs[problem.label],
        e=e,
        centred=centred,
        ratio_range=largest - smallest,
        variance=_dot(draw_probs, squares),
        second_moment=_dot(e, ratios),
        third_moment=_dot(draw_probs, [c * s for c, s in zip(centred, squares, strict=True)]),
    )


def _dot(left: list[Ball], right: list[Ball]) -> Ball:
    """Return the sum of products."""
    return sum(x * y for x, y in zip(left, right, strict=True))


def _one_problem(
    logits: Any, labels: int, q: Any, num_sampled: int, scheme: str = "negatives"
) -> Problem:
    """Return one example with exact inputs; raise ValueError for a batch."""
    import_flint()
    problems, is_batch = as_problems(logits, labels, q, num_sampled, scheme)
    if is_batch:
        raise ValueError(
            f"`logits` must be of one example, got {len(problems)} rows; call it for each row."
        )
    return problems[0]


def _precision(bits: int, problem: Problem) -> int:
    """Return the working precision, which allows for the digits that V loses among equal ratios."""
    return 2 * bits + problem.num_sampled.bit_length()


def _decide(sides: Callable[[int], _Sides]) -> CertifiedClaim:
    """Return what is proved of a claim, with as many bits as it takes."""
    for bits in rising_bits(_FIRST_BITS):
        balls = sides(bits)
        holds = tuple(map(_holds, *balls))
        if None not in holds:
            break
    return CertifiedClaim(
        value=_rounded(balls.value),
        lower_bound=_rounded(balls.lower_bound),
        upper_bound=_rounded(balls.upper_bound),
        holds=holds,
        bits=bits,
    )


def _rounded(balls: list[Ball]) -> Intervals:
    """Return balls as intervals with float64 ends."""
    return Intervals(lower=floats_below(balls), upper=floats_above(balls))


def _holds(value: Ball, lower: Ball, upper: Ball) -> bool | None:
    """Return whether ``lower <= value <= upper`` for all numbers in the balls, or for none."""
    if lower <= value and value <= upper:
        return True
    if value < lower or value > upper:
        return False
    return None
