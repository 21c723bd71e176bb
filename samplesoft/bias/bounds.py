"""Bounds on the bias that hold for every number of draws, and how many draws a bias needs.

Section 14 of ``samplesoft/bias/README.md`` proves the bounds. Below the two public functions stand
the bounds of one example, the search for a number of draws, and what the bounds are made of: how
far the mean of 1/S lies above 1 over the mean of S.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks, njit_sum, thread_each
from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import LARGEST_COUNT, FloatArray, as_positive
from samplesoft.bias.chunks.dask import rows_of_dask
from samplesoft.bias.chunks.passes import BiasSums, Known, Pass, check_chunk
from samplesoft.bias.inputs import (
    Example,
    Inputs,
    check_inputs,
    check_jacobian,
    is_dask,
    ldexp_or_inf,
    require_only_chunks,
    scaled_to_avoid_overflow,
)
from samplesoft.bias.negatives import NegativeSums
from samplesoft.bias.numerics.quadrature import rounding_at
from samplesoft.bias.numerics.summation import EPS, LogSum, Sum
from samplesoft.bias.with_replacement.atoms import Atoms, make_atoms
from samplesoft.bias.with_replacement.draws import Draws, make_draws
from samplesoft.bias.with_replacement.integral import with_replacement_bias
from samplesoft.bias.with_replacement.nodes import evaluate_nodes
from samplesoft.bias.with_replacement.ratios import Ratios, make_ratios
from samplesoft.bias.without_replacement import successive
from samplesoft.bias.without_replacement.successive import set_bias
from samplesoft.kernels.exponential import exp64
from samplesoft.schemes import Scheme, as_scheme

TINY = float(np.finfo(np.float64).tiny)
_LARGEST = float(np.finfo(np.float64).max)
_WIDEN = 8.0  # how many rounded logs a bound multiplies, at most
_UNKNOWN = 1e-3  # logits that differ by 1e12 and more: their difference is not known
_DIGITS = 1e-9  # ratios that are known less well get the bounds of order 2 only

_SMALLEST_NORM = 1e-300

_STEP = 0.2  # of log v, in the trapezoid rule
_LEFT = -14.0  # of log (m v mean), the first node
_CHUNK = 1 << 14
_ROUNDING = 1e-12  # of the transform, sums and functions; panels hold each exp(-v r) to 2e-15 of 1
_LOST = 1e8  # nodes where that leaves few digits of the transform are not used
_FAR = 700.0  # of u times the base: beyond it exp(-700) stands for less
_SET_LEFT_OUT = 1e-16  # by nodes in u, and between scales of S
_SET_ROUNDING = 64.0 * EPS  # of an exponent, which is a sum over classes
_GONE = 745.0  # exp(-745) is 0


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
        jac, excess = scaled_to_avoid_overflow(check_jacobian(jacobian, self.lower.shape))
        lower, upper = np.atleast_2d(self.lower, self.upper)
        every = np.broadcast_to(jac, lower.shape[:1] + jac.shape[-2:])
        rows = [_project(*row) for row in zip(lower, upper, every, strict=True)]
        ends = ldexp_or_inf(np.array(rows).swapaxes(0, 1), excess)
        below, above = ends.reshape(2, *self.lower.shape[:-1], jac.shape[-1])
        return np.minimum(below, _LARGEST), np.maximum(above, -_LARGEST)


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
    scheme: str = "negatives",
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
      of it for every distribution of S, with the Laplace transform of r;
    - ``Var[S] / (E[S]^2 s)`` with s at the ends of the range of S, where that is closer;
    - all cut to ``0 <= bias_t <= 1 - p_t`` and ``-p_j <= bias_j <= 1 - p_j``, and to what the
      others leave, for the biases sum to 0.

    For draws without replacement, schemes such as ``distinct``, ``E[p']`` itself is bounded: the
    rule in u has the same error, that in the time t of the clocks a relative one which is proved
    for each set, and ends beyond which rings are rare. The widths add up to some 1e-9, and the cost
    is three times that of `samplesoft.exact_bias`.

    What is left is rounding. With 3, 25 and 75 draws for each unit of ``E[r^2] / Z^2`` the widths
    added up to at most 1e-8 of the L1 norm of the bias for 150 problems with long tails, and those
    of the gradient in h to 3e-8 of its norm. Logits that lie hundreds apart leave fewer digits, and
    from a spread of some 700 on bounds may say nothing, though they are true. For logits
    ``[-d, d, 0, 3]``, label 0 and uniform q the widths are 4e-9 of the norm with d = 300 and two
    draws, 0.02 of it with 700, and all of it with 1000, where with 100 draws they are 1e8 times the
    norm. `samplesoft.exact_bias` has the bias there.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o. Of a Dask array the bounds are Dask arrays, too.
    labels, q, h
        As for `samplesoft.exact_bias`.
    num_sampled : int
        Number of draws m, at least 1.
    scheme : str
        ``negatives``, ``masked``, or one of draws without replacement, ``distinct`` and those that
        begin so. For the others no bounds are known, and they are refused.

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
    Sections 14 and 22 of ``samplesoft/bias/README.md`` prove them, and a theorem in closed terms
    that is weaker: in units where Z is 1, with V the variance of r, ``xi = E[(r - Z_t)^3] / V`` and
    any d between 0 and 1,
    ``a V / (m + xi - V) <= bias_t <= a V / ((1 - d) (m + V / d)) + exp(-m d^2 / (2 rho))``.

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
    if is_dask(logits) or is_dask(q):
        require_only_chunks(h=h)
        as_scheme(scheme, require=require_bounds)

        def make(label: int) -> BiasSums:
            return BiasSums(num_sampled, label, scheme).then(SpreadSums.after)

        return FiniteSampleBounds(*rows_of_dask(logits, labels, q, make, _bounds_of_chunk)[0])
    return finite_sample_bounds_of(
        check_inputs(logits, labels, q, num_sampled, scheme, h, require=_require_set_or_bounds)
    )


def finite_sample_bounds_of(inputs: Inputs) -> FiniteSampleBounds:
    """Return `finite_sample_bounds` of arguments that are checked."""
    m, scheme = inputs.num_sampled, inputs.scheme
    if scheme.distinct:
        return FiniteSampleBounds(
            *inputs.columns(_set_bounds(row, inputs) for row in inputs.rows())
        )
    require_bounds(scheme)
    rows = [example_bounds(make_draws(*row, m, scheme)) for row in inputs.rows()]
    return FiniteSampleBounds(*inputs.columns(rows))


@dataclass(frozen=True)
class NumSampled:
    """Numbers of draws m that keep the L1 norm of the bias at or below a given number.

    Attributes
    ----------
    exact : int or ndarray of int, shape (B,)
        The least m, by `samplesoft.exact_bias`.
    guaranteed : int or ndarray of int, shape (B,)
        An m for which `samplesoft.finite_sample_bounds` prove it, the least that was found.
    """

    exact: Any
    guaranteed: Any


def num_sampled_for(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    bias: float,
    *,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
) -> NumSampled:
    """Return how many draws it takes for the bias to have an L1 norm of at most ``bias``.

    More draws than either number have a bias of at most ``bias``, too.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o.
    labels, q, h
        As for `samplesoft.exact_bias`.
    bias : float
        Wanted ``sum_i |E[p'_i] - p_i|``, in probability, greater than 0; it is never above 2.
    scheme : str
        ``negatives`` or ``masked``, those that have bounds.

    Returns
    -------
    NumSampled
        `exact` and `guaranteed`, for each example.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, the proposal misses a negative, the scheme has no bounds, or
        1e15 draws are too few.

    Notes
    -----
    The L1 norm of the bias does not rise with m: section 14 of ``samplesoft/bias/README.md`` has a
    proof. So a search that brackets the least m finds it; it takes some ten values of
    `samplesoft.exact_bias`, and as many of the bounds. Where two numbers of draws next to each
    other differ by less than the numerical error of the bias, either may come out.

    Examples
    --------
    >>> import samplesoft
    >>> found = samplesoft.num_sampled_for([0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], bias=0.001)
    >>> found.exact, found.guaranteed
    (325, 325)
    >>> logits, q = [0.0, 1.0, 2.0], [0.2, 0.4, 0.4]
    >>> [bool(abs(samplesoft.exact_bias(logits, 0, q, m).bias).sum() <= 0.001) for m in (324, 325)]
    [False, True]
    """
    # with two draws, which every scheme allows, so that a scheme is refused for what it is
    inputs = check_inputs(logits, labels, q, 2, scheme, h, require=require_bounds)
    wanted = as_positive("bias", bias)
    rows = [_search(row, inputs.scheme, wanted) for row in inputs.rows()]
    return NumSampled(*inputs.columns(rows))


def require_bounds(scheme: Scheme) -> None:
    """Raise ValueError for a scheme without bounds and limit."""
    if scheme.jackknife or not scheme.adds_mean:
        raise ValueError(
            "`scheme` must be one whose sum is e_t plus a mean over m draws, for bounds and limits "
            f"are known of no other, got {scheme.name!r}; take 'negatives' or 'masked', or "
            "samplesoft.exact_bias."
        )


def _require_set_or_bounds(scheme: Scheme) -> None:
    if not scheme.distinct:
        require_bounds(scheme)


def example_bounds(draws: Draws) -> tuple[FloatArray, FloatArray]:
    """Return (lower, upper), both (n,), for one example."""
    sums, others = negative_sums(draws), np.arange(len(draws.q)) != draws.label
    trivial = trivial_ends(sums, len(draws.q))
    if trivial is not None:
        return trivial
    columns = sums.columns(draws.logits[others], draws.q[others])
    spread = Spread().add(columns).add(sums.masked_column)
    transform = None
    if is_known(draws, sums):
        with np.errstate(all="ignore"):
            ratios = make_ratios(draws)
            transform = make_transform(draws, ratios, make_atoms(draws, ratios), sums.rounding)
    lower, upper = ClassBounds(draws, sums, spread, transform).of(draws.label, columns)
    return sum_to_zero(lower, upper, Ends().add(lower, upper), len(draws.q))


def _set_bounds(example: Example, inputs: Inputs) -> tuple[FloatArray, FloatArray]:
    """Return (lower, upper), both (n,), for one example of draws without replacement.

    E[p'] is known but for what the nodes in t leave out, a chance, and a relative error of all
    else. A divisor pi_k that is off by a part of itself moves the p' of the sets that hold k.
    """
    logits, label, _ = example
    race, which = successive.draws_of(example, inputs.num_sampled, inputs.scheme)
    if not isinstance(race, successive.ExponentialRace):  # nothing is random
        row = set_bias(example, inputs.num_sampled, inputs.scheme)
        return row.bias - row.error, row.bias + row.error
    rule, left_out = race.bound_times()
    inclusion, expected, gap = np.ones(len(logits)), np.zeros(len(logits)), np.zeros(len(logits))
    inclusion[which] = race.inclusion[0]
    gap[which] = np.abs(race.inclusion[0] - race.by_nodes) + left_out
    weights = successive.weigh(logits, label, inputs.scheme, inclusion)
    terms = weights.terms(which, race.inclusion[0])
    sums = successive.expect_terms([race], terms, successive.even_steps)
    expected[which] = sums.shares[0]
    expected[label] += sums.base[0]
    unit = _ROUNDING + _SET_ROUNDING * (race.exponent + inputs.num_sampled + _FAR)
    unit = 2.0 * (unit + rule) + rounding_at(terms.largest_log)
    off = gap / inclusion
    # sets with classes whose pi is not known count as left out
    unknown = off > 0.5
    lost = left_out + 2.0 * float((inclusion + gap)[unknown].sum()) + _SET_LEFT_OUT
    off[unknown] = 0.0
    half = 4.0 * (expected * (2.0 * unit + off) + float((expected * off).sum())) + lost
    half += unit * weights.probs + TINY
    bias = expected - weights.probs
    lower = np.maximum(bias - half, -weights.probs * (1.0 + unit))
    upper = np.minimum(bias + half, 1.0)
    return sum_to_zero(lower, upper, Ends().add(lower, upper), len(bias))


def trivial_ends(sums: NegativeSums, num: int) -> tuple[FloatArray, FloatArray] | None:
    """Return the bounds (num,) where the bias is 0, or where nothing is known; else None."""
    if sums.num - 1 + (sums.q_masked > 0.0) == 1:
        return np.zeros(num), np.zeros(num)
    return (np.full(num, -1.0), np.ones(num)) if sums.rounding > _UNKNOWN else None


class Spread:
    """How far the ratios of negatives spread: sums that merge."""

    def __init__(self) -> None:
        self.square = LogSum()  # of qn (r / Z_t - 1)**2
        self.ends = -math.inf, math.inf  # the largest and the least log (r / Z_t)

    def add(self, columns: FloatArray) -> Spread:
        """Add the columns (4, k) of some negatives."""
        _, log_qn, log_ratio, log_deviation = columns
        self.square.add_logs(log_qn + 2.0 * log_deviation)
        self.ends = (
            float(log_ratio.max(initial=self.ends[0])),
            float(log_ratio.min(initial=self.ends[1])),
        )
        return self

    def merge(self, other: Spread) -> Spread:
        """Add what another has summed."""
        self.square.merge(other.square)
        self.ends = max(self.ends[0], other.ends[0]), min(self.ends[1], other.ends[1])
        return self


class ClassBounds:
    """The bounds on the bias of any class of one example, before they are cut to sum to 0."""

    def __init__(
        self, draws: Draws, sums: NegativeSums, spread: Spread, transform: _Transform | None
    ) -> None:
        self._m, self._sums, self._slack = draws.num_draws, sums, _WIDEN * sums.rounding
        self._gaps = _Gaps(draws, sums, spread, self._slack, transform)
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            self._at_label = self._gaps.logs(self._m, np.array([sums.log_a]), np.zeros(1))

    def of(self, label: int | None, columns: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return bounds (k,) of negatives of `columns` (4, k), with the label's at its place."""
        m, slack, sums = self._m, self._slack, self._sums
        log_a, log_zt, log_m = sums.log_a, sums.log_zt, math.log(m)
        log_p, _, log_ratio, log_deviation = columns
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            # the label and one draw of class j
            log_own = np.logaddexp(log_a, log_zt + log_ratio - log_m)
            log_mu = np.logaddexp(log_own, log_zt + _log_part(m - 1, m))
            common = log_p + log_zt - log_m - log_mu
            first = -np.sign(log_ratio) * np.exp(common + log_deviation)
            size = np.exp(common + np.logaddexp(log_ratio, 0.0))
            at_others = self._gaps.logs(m - 1, log_own, log_mu)
            ends = []
            for sign, label_gap, gap in zip((-1.0, 1.0), self._at_label, at_others, strict=True):
                widen = 1.0 + sign * slack
                of_label = float(np.exp(log_a + label_gap[0])) * widen + sign * TINY
                second = np.exp(log_p + gap)
                end = first + sign * (slack * size + TINY) + second * widen
                ends.append((of_label, end))
            floor = np.append(-np.exp(log_p) * (1.0 + slack) - TINY, 0.0)
            of_label = float(np.exp(log_zt)) * (1.0 + slack) + TINY
            ceiling = np.append(slack - np.expm1(log_p), of_label)
        lower = np.maximum(np.append(ends[0][1], ends[0][0]), floor)
        upper = np.minimum(np.append(ends[1][1], ends[1][0]), ceiling)
        if label is None:
            return lower[:-1], upper[:-1]
        order = np.insert(np.arange(len(log_p)), label, len(log_p))
        return lower[order], upper[order]


class Ends:
    """What the bounds of all classes add up to: sums that merge."""

    def __init__(self) -> None:
        self.totals = Sum((3,))  # of lower ends, of upper ones, and of the larger size of either

    def add(self, lower: FloatArray, upper: FloatArray) -> Ends:
        """Add the bounds (k,) of some classes."""
        sizes = np.maximum(-lower, upper)
        self.totals.add(np.array([lower.sum(), upper.sum(), sizes.sum()]))
        return self

    def merge(self, other: Ends) -> Ends:
        """Add what another has summed."""
        self.totals.merge(other.totals)
        return self


def negative_sums(draws: Draws) -> NegativeSums:
    """Return what the sums over all classes say of the negatives."""
    totals, masked = draws.totals, not draws.scheme.excludes_label
    q_masked = totals.label_q if masked else 0.0
    mass = float(totals.q_others.value) + q_masked
    with np.errstate(all="ignore"):
        delta = float(np.clip(totals.label_logit - totals.top, -1e300, 1e300))
    reach = math.log(mass) + totals.top - totals.least_product
    return NegativeSums(totals.num, totals.top, totals.exps, mass, delta, q_masked, reach)


def sum_to_zero(
    lower: FloatArray, upper: FloatArray, every: Ends, n: int
) -> tuple[FloatArray, FloatArray]:
    """Cut each interval to what the others leave to it, for the biases sum to 0.

    `every` has the sums over all n classes.
    """
    low, high, size = every.totals.value.tolist()
    rounding = EPS * (n + 8) * size
    return np.maximum(lower, upper - high - rounding), np.minimum(upper, lower - low + rounding)


class SpreadSums(Pass):
    """The pass that bounds take after those of `BiasSums`: the `Spread` of the ratios."""

    stage = "bounds"

    def __init__(self, known: Known) -> None:
        self.known, self.negatives = known, negative_sums(known.draws)
        self.spread = Spread()

    @classmethod
    def after(cls, known: Known) -> Any:
        """Return the pass, or the bounds where they are trivial."""
        trivial = trivial_ends(negative_sums(known.draws), 1)
        return cls(known) if trivial is None else _TrivialBounds(*trivial)

    def empty(self) -> SpreadSums:
        """Return the same pass without any classes."""
        return SpreadSums(self.known)

    def add(self, start: int, logits: Any, q: Any) -> SpreadSums:
        """Add the classes from number `start` on."""
        if np.size(logits):
            self.spread.add(_columns_of_chunk(self.known, self.negatives, start, logits, q)[0])
        return self

    def merge(self, other: SpreadSums) -> SpreadSums:
        """Add what another has summed."""
        self.spread.merge(other.spread)
        return self

    def finish(self) -> EndSums:
        """Return the next pass."""
        return EndSums(self.known, self.spread.add(self.negatives.masked_column))


class EndSums(Pass):
    """The last pass for bounds: the sums over all classes by which each interval is cut."""

    stage = "bounds"

    def __init__(self, known: Known, spread: Spread) -> None:
        self.known, self.spread, self.ends = known, spread, Ends()
        self.negatives = negative_sums(known.draws)
        transform = None
        if is_known(known.draws, self.negatives):
            transform = make_transform(
                known.draws, known.ratios, known.atoms[0], self.negatives.rounding
            )
        self.bounds = ClassBounds(known.draws, self.negatives, spread, transform)

    def empty(self) -> EndSums:
        """Return the same pass without any classes."""
        return EndSums(self.known, self.spread)

    def add(self, start: int, logits: Any, q: Any) -> EndSums:
        """Add the classes from number `start` on."""
        if np.size(logits):
            lower, upper = self._bounds_of(start, logits, q)
            self.ends.add(lower, upper)
        return self

    def merge(self, other: EndSums) -> EndSums:
        """Add what another has summed."""
        self.ends.merge(other.ends)
        return self

    def finish(self) -> _ChunkBounds:
        """Return the bounds of chunks."""
        return _ChunkBounds(self)

    def cut(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return both bounds (2, k) of the classes from number `start` on."""
        lower, upper = self._bounds_of(start, logits, q)
        return np.stack(sum_to_zero(lower, upper, self.ends, self.negatives.num))

    def _bounds_of(self, start: int, logits: Any, q: Any) -> tuple[FloatArray, FloatArray]:
        columns, label = _columns_of_chunk(self.known, self.negatives, start, logits, q)
        return self.bounds.of(label, columns)


def _columns_of_chunk(
    known: Known, negatives: NegativeSums, start: int, logits: Any, q: Any
) -> tuple[FloatArray, int | None]:
    """Return the columns (4, k) of the negatives of a chunk, and the label's index there."""
    o, proposal = check_chunk(start, logits, q, known.totals)
    label = known.totals.label - start
    others = np.arange(len(o)) != label
    index = label if 0 <= label < len(o) else None
    return negatives.columns(o[others], proposal[others]), index


class _ChunkBounds(NamedTuple):
    """The bounds of any class."""

    sums: EndSums

    def columns(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return both bounds (2, k) of the classes from number `start` on."""
        return self.sums.cut(start, logits, q)


def _bounds_of_chunk(
    found: _ChunkBounds | _TrivialBounds, start: int, logits: Any, q: Any
) -> FloatArray:
    """Return both bounds (2, k) of the classes of a chunk."""
    return found.columns(start, logits, q)


class _TrivialBounds(NamedTuple):
    """The bounds (1,) that all classes have."""

    lower: FloatArray
    upper: FloatArray

    def columns(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return both bounds (2, k) of the classes from number `start` on."""
        return np.broadcast_to(np.stack([self.lower, self.upper]), (2, len(logits)))


def _search(example: Example, scheme: Scheme, wanted: float) -> tuple[int, int]:
    """Return both numbers of draws of one example."""

    def exact(m: int) -> float:
        return float(np.abs(with_replacement_bias(*example, m, scheme).bias).sum())

    def bound(m: int) -> float:
        lower, upper = example_bounds(make_draws(*example, m, scheme))
        # the biases sum to 0: twice the sum of either sign is their norm
        return 2.0 * float(min(np.maximum(upper, 0.0).sum(), np.maximum(-lower, 0.0).sum()))

    least = least_num_sampled(exact, 1, wanted)
    return least, least_num_sampled(bound, least, wanted)


def least_num_sampled(norm: Callable[[int], float], first: int, wanted: float) -> int:
    """Return the least m from `first` on with ``norm(m) <= wanted``, for a norm that falls.

    The norm is nearly a multiple of 1/m, so the search is for a root of its logarithm in log m, by
    the Illinois rule.
    """

    def excess(m: int) -> float:
        return math.log(max(norm(m), _SMALLEST_NORM)) - math.log(wanted)

    low, above = first, excess(first)
    if above <= 0.0:
        return first
    high, below = low, above
    while below > 0.0:
        low, above = high, below
        high = max(2 * low, math.ceil(low * math.exp(min(above, 50.0))))
        if high > LARGEST_COUNT:
            raise ValueError(
                f"`bias` must be one that {LARGEST_COUNT:.0e} draws can reach, got {wanted:g}; "
                "give a larger one."
            )
        below = excess(high)
    last = 0.0
    while high - low > 1:
        part = above / (above - below)
        middle = round(math.exp((1.0 - part) * math.log(low) + part * math.log(high)))
        middle = min(max(middle, low + 1), high - 1)
        now = excess(middle)
        if now > 0.0:
            low, above = middle, now
            below *= 0.5 if last > 0.0 else 1.0
        else:
            high, below = middle, now
            above *= 0.5 if last < 0.0 else 1.0
        last = 1.0 if now > 0.0 else -1.0
    return high


class _Gaps:
    """Bounds on ``E[1/S] - 1/E[S]`` of one example, for any number of draws and any base of S.

    ``S = mu + Y``, where Y is the centred sum of r / m over the draws. Two bounds are taken, and
    the closer one of them counts. `slack` bounds the relative error of any of their numbers.
    """

    def __init__(
        self,
        draws: Draws,
        sums: NegativeSums,
        spread: Spread,
        slack: float,
        transform: _Transform | None,
    ) -> None:
        self._slack = slack
        self._m = draws.num_draws
        # An error of `rounding` in every ratio moves the root of the divergence by at most
        # rounding * sqrt(sum_j qn_j (ratio_j + 1)^2), by the triangle inequality.
        with np.errstate(divide="ignore", over="ignore"):
            root = float(np.exp(0.5 * spread.square.log))
            moved = 2.0 * sums.rounding * math.hypot(root, 2.0)
            ends = np.log([max(root - moved, 0.0), root + moved])
        self._log_variance = 2.0 * (sums.log_zt + ends)  # (2,): not above, and not below V
        most, least = spread.ends
        self._log_ends = sums.log_zt + most + slack, sums.log_zt + least - slack
        self._transform = transform

    def logs(
        self, draws: int, log_base: FloatArray, log_mu: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the logs of bounds on the gap of sums of `draws` draws, both (k,).

        `log_base` (k,) is the log of what is in S besides the draws, `log_mu` (k,) of E[S].
        """
        # Var[S] / (E[S]^2 s), with s at either end of the range of S
        low, high = (
            v + _log_part(draws, self._m) - math.log(self._m) - 2.0 * log_mu
            - np.logaddexp(log_base, r + _log_part(draws, self._m))
            for v, r in zip(self._log_variance, self._log_ends, strict=True)
        )  # fmt: skip
        if self._transform is None or draws == 0:
            return low, high
        below, above = self._sums(self._transform, draws, np.exp(log_base))
        # not a number is no bound
        return np.fmax(low, np.log(below)), np.fmin(high, np.log(above))

    def _sums(
        self, transform: _Transform, draws: int, base: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return a lower and an upper bound on the gap for each base of S, (k,), eq. (B79).

        ``1/s`` is an integral of ``exp(-u s)``, and the trapezoid rule on log u gives the gap up to
        a factor near 1 that is known, whatever the distribution of S.
        """
        m, slack, step = self._m, self._slack, transform.step
        u = m * transform.v
        decay = draws * transform.v * transform.mean
        with np.errstate(all="ignore"):  # a bound that is not finite is none
            # E exp(-u X) - exp(-u E[X]) as a product, and as a difference
            product = [
                np.exp(draws * excess - decay + sign * 2.0 * slack * decay)
                * -np.expm1(-draws * excess)
                for sign, excess in ((-1.0, transform.excess_low), (1.0, transform.excess_high))
            ]
            less = np.exp(draws * transform.log_low) - np.exp(-(1.0 - 2.0 * slack) * decay)
            most = np.exp(draws * transform.log_high)
            low = step * u * np.maximum(np.fmax(product[0], less), 0.0)
            high = step * u * np.fmin(product[1], most)
            if most[-1] > 0.0:
                least = float(base.min(initial=np.inf)) * (1.0 - slack)
                least += math.exp(self._log_ends[1]) * draws / m
                high[-1] += step * most[-1] * _beyond(float(u[-1]), step, least)
            high = np.where(np.isnan(high), np.inf, high)
        kept = high > 0.0
        sums = np.empty((2, len(base)))

        def work(part: slice) -> None:
            _exponential_sums(base[part], u[kept], low[kept], high[kept], sums[:, part])

        thread_each(work, chunks(len(base), _CHUNK))
        variance = math.exp(min(self._log_variance[1], LARGEST_EXPONENT))
        sums[1] += _before(float(u[0]), step, variance * draws / m**2)
        widen = trapezoid_error(step) + 2.0 * _FAR * slack + _ROUNDING
        return sums[0] * (1.0 - widen), sums[1] * (1.0 + widen)


def _log_part(draws: int, m: int) -> float:
    return math.log(draws) - math.log(m) if draws else -math.inf


def _before(u: float, step: float, variance: float) -> float:
    """Bound what the nodes before the first, which is u, may add for a sum of this variance."""
    # there E exp(-u Y) - 1 is at most u^2 / 2 times the variance of Y
    return 0.5 * variance * u**3 * step / math.expm1(3.0 * step)


def _beyond(u: float, step: float, least: float) -> float:
    """Return the sum of ``w exp((u - w) least)`` over the nodes w beyond the last, which is u."""
    span = math.log(_GONE) - math.log(least) - math.log(u) if least > 0.0 else math.inf
    if span > _FAR:
        return math.inf
    later = u * np.exp(step * np.arange(1.0, max(span / step, 1.0) + 2.0))
    return float((later * np.exp((u - later) * least)).sum())


def trapezoid_error(step: float) -> float:
    """Return how much of any gap the trapezoid rule in log u of this `step` may miss, at most."""
    total = 0.0
    for n in range(1, 20):  # the sum of (B79), which falls like exp(-pi^2 n / step)
        y = 2.0 * math.pi * n / step
        gamma = math.sqrt(2.0 * math.pi * y / -math.expm1(-2.0 * math.pi * y))
        gamma *= math.exp(-0.5 * math.pi * y)
        total += 2.0 * gamma * (1.0 + 2.0 * y) * math.hypot(1.0, y)
    return total


@njit_sum
def _exponential_sums(
    base: FloatArray, u: FloatArray, low: FloatArray, high: FloatArray, out: FloatArray
) -> None:
    """Write the sums of `low` and of `high` (K,) times exp(-u base) into `out` (2, k).

    Where u times the base, (k,), is above 700 it is taken for 700, and `low` for 0.
    """
    for i in range(len(base)):
        below = above = 0.0
        for k in range(len(u)):
            y = u[k] * base[i]
            e = exp64(-y if y < _FAR else -_FAR)
            below += low[k] * (e if y < _FAR else 0.0)
            above += high[k] * e
        out[0, i] = below
        out[1, i] = above


class _Transform(NamedTuple):
    """Bounds on the transform of the ratio of one draw at nodes v, all (K,)."""

    v: FloatArray
    excess_low: FloatArray  # of log E[exp(-v (r - mean))]
    excess_high: FloatArray
    log_low: FloatArray  # of log E[exp(-v r)]
    log_high: FloatArray
    mean: float
    step: float  # of log v


def is_known(draws: Draws, sums: NegativeSums) -> bool:
    """Whether ratios are known well enough for their transform to be of use."""
    return sums.rounding < _DIGITS and draws.other_mass > 0.0


def make_transform(
    draws: Draws, ratios: Ratios, atoms: Atoms, rounding: float
) -> _Transform | None:
    """Compute the transform of one draw where a bound may need it, None if it has no digits."""
    log_mean = math.log(draws.mean)
    with np.errstate(all="ignore"):
        # until the least sum has decayed
        slowest = math.log(draws.num_draws) + float(np.logaddexp(draws.log_base, ratios.log_least))
        last = min(math.log(_GONE) - slowest, LARGEST_EXPONENT - math.log(draws.num_draws))
        x = np.arange(_LEFT - math.log(draws.num_draws) - log_mean, last, _STEP)
        nodes = evaluate_nodes(draws, ratios, atoms, x, np.zeros_like(x))
        lost = np.exp(-nodes.log_transform_least)
    good = np.isfinite(nodes.excess) & (lost < _LOST)
    if not good.any():
        return None
    v, excess = nodes.v[good], nodes.excess[good]
    relative = 4.0 * rounding + _ROUNDING
    moved = v * draws.mean
    error = relative * (excess + 2.0 * moved + lost[good] - 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.expm1(excess)  # of second order in v, and so is its error
        root = np.sqrt(2.0 * p * np.exp(moved))
        near = _ROUNDING * p + 2.0 * rounding * ((2.0 + moved) * p + 2.0 * moved * root)
    error = np.fmin(error, near)
    # an error in all ratios moves the log by v times the tilted mean, which is less than its size
    log = nodes.log_transform[good]
    off = 2.0 * rounding * np.abs(log) + _ROUNDING * lost[good]
    return _Transform(
        v=v,
        excess_low=np.maximum(excess - error, 0.0),
        excess_high=excess + error,
        log_low=log - off,
        log_high=np.minimum(log + off, 0.0),
        mean=draws.mean,
        step=_STEP,
    )
