r"""Distributions over sets of classes, and the bias with the correction by the number of tries.

`check_loss` uses these distributions: the set of classes drawn without replacement, and the set of
different classes among draws with replacement.

Give class j an exponential clock of rate q_j. At a fixed time t each clock has rung with
probability 1 - exp(-q_j t), independently of the other clocks. The first m different classes are
the clocks that have rung by the m-th ring. The different classes among m draws with replacement are
the classes of a Poisson process, given that it has m points. In both cases the expectation of a
product over the set is a coefficient of a power series, written [z^m]. If class j in the set
contributes the factor v_j, the expectations are

    int dt exp(-t) [z^m] sum_l z q_l v_l prod_{j != l} (1 + z (exp(q_j t) - 1) v_j)    and
    m! [x^m] prod_j (1 + (exp(q_j x) - 1) v_j).

Given that N tries (draws with replacement) were needed for m different classes, the expectation is
(N - 1)! [x^(N - 1)] [z^m] of the sum over l, with x in place of t, divided by the same coefficient
for v = 1. Coefficients are computed as means over circles in z and x, whose radii are chosen such
that no digits cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, gammaln

from samplesoft._jit import njit, njit_sum
from samplesoft._validation import FloatArray
from samplesoft.bias.exact import ExactBias
from samplesoft.bias.inputs import Inputs, check_inputs
from samplesoft.bias.numerics.quadrature import ExampleBias
from samplesoft.bias.numerics.summation import softmax_and_other_mass
from samplesoft.bias.without_replacement.set_bias import bias_of_distributions
from samplesoft.schemes import Scheme

ComplexArray = NDArray[np.complex128]

_MIN_POINT_WEIGHT = 1e-10  # points with a smaller weight, relative to the largest, are left out
_MIN_FACTOR_SQUARE = 1e-290  # factors with a smaller squared magnitude count as 0
_TAIL_PROB = 1e-9  # large numbers of tries are left out, up to this total probability
_MAX_TRIES = 1 << 9  # if more tries matter, no distribution is computed

# expectations are computed for 12 numbers of tries, and interpolated for the other numbers
_NUM_TRIES_NODES = 12

# the bias is computed from 48 numbers of tries; its difference from that with 24 is the error
_NUM_TRIES_NODES_OF_BIAS = 24, 48

# largest number of classes times complex points for one number of tries, in `by_tries` and in
# `tries_bias`; beyond it there is no result
_MAX_FACTORS = 1 << 18
_MAX_FACTORS_OF_BIAS = 1 << 23


@dataclass(frozen=True, eq=False)
class Sets:
    """A distribution over sets of the n classes, as a weighted sum over N complex points.

    At each point each class has a factor, which depends only on whether the class is in the set.
    The product of the factors over the classes, times the weight of the point, is summed over the
    points. The real part of this sum is the probability of the set.

    Attributes
    ----------
    absent, present, last : ndarray of complex, shape (n, N)
        Factors at each point of a class that is not in the set, of a class that is in it, and of
        the class that was the last to come into it.
    weights : ndarray of complex, shape (N,)
        Weights of the points. Of each pair of conjugate points, only one is stored.
    has_last : bool
        Whether exactly one class of a set has the factor `last`; the products are then summed over
        the choices of this class. If False, no class has it, and `last` is 0.
    """

    absent: ComplexArray
    present: ComplexArray
    last: ComplexArray
    weights: ComplexArray
    has_last: bool

    @property
    def is_independent(self) -> bool:
        """Whether each class is in the set independently of all other classes."""
        return len(self.weights) == 1

    def means(self, values: NDArray[Any]) -> tuple[ComplexArray, ComplexArray]:
        """Return, for each row of `values` (U, n), the mean of its product over the set, (U,).

        Also return (U, n) the part of this mean from sets that contain class k, for each class k.

        Only one point of each conjugate pair is stored. So for real values, use the real parts of
        the results. For complex values x, average the result for x and the conjugate of the result
        for conj(x).
        """
        values = np.ascontiguousarray(values, np.complex128)
        means = np.empty(len(values), np.complex128)
        contributions = np.empty_like(values)
        factors = self.absent, self.present, self.last, self.weights, self.has_last
        _write_set_means(*factors, values, means, contributions)
        return means, contributions

    @property
    def inclusion(self) -> FloatArray:
        """Probabilities (n,) that the set contains each class."""
        contributions = self.means(np.ones((1, len(self.absent))))[1]
        probabilities: FloatArray = np.clip(contributions[0].real, 0.0, 1.0)
        return probabilities

    def given(self, label: int, held: bool) -> tuple[float, Sets]:
        """Return P(class `label` is in the set), and the distribution of the set given this event.

        With `held` False, the event is that the class is not in the set.
        """
        factors = {name: getattr(self, name).copy() for name in ("absent", "present", "last")}
        for name in ("absent",) if held else ("present", "last"):
            factors[name][label] = 0.0
        conditioned = replace(self, **factors)
        total = float(conditioned.means(np.ones((1, len(self.absent))))[0][0].real)
        return total, replace(conditioned, weights=conditioned.weights / total)


@njit
def _write_set_means(
    absent: ComplexArray,
    present: ComplexArray,
    last: ComplexArray,
    weights: ComplexArray,
    has_last: bool,
    values: ComplexArray,
    means: ComplexArray,
    contributions: ComplexArray,
) -> None:
    """Write the results of `Sets.means` to `means` (U,) and `contributions` (U, n)."""
    n, num_points = absent.shape
    inverse = np.empty_like(absent)
    terms = np.empty_like(weights)

    for u in range(len(values)):
        products = weights.copy()
        totals = np.full(num_points, 0.0j if has_last else 1.0 + 0.0j)

        for j in range(n):
            value = values[u, j]
            for i in range(num_points):
                factor = absent[j, i] + present[j, i] * value
                products[i] *= factor
                square = factor.real**2 + factor.imag**2
                inverse_square = 1.0 / square if square > _MIN_FACTOR_SQUARE else 0.0
                inverse[j, i] = value * np.conj(factor) * inverse_square
                totals[i] += last[j, i] * inverse[j, i]

        for i in range(num_points):
            terms[i] = products[i] * totals[i]
        means[u] = _sum_terms(terms)

        for j in range(n):
            for i in range(num_points):
                others = totals[i] - last[j, i] * inverse[j, i]
                shares = (last[j, i] + others * present[j, i]) * inverse[j, i]
                terms[i] = products[i] * shares
            contributions[u, j] = _sum_terms(terms)


@njit_sum
def _sum_terms(terms: ComplexArray) -> complex:
    """Return the sum of `terms` (N,)."""
    total = 0.0j
    for i in range(len(terms)):
        total += terms[i]
    return total


# Distributions over sets. The probabilities `q` (n,) are passed as bytes, so that a cache can use
# them as keys.


@lru_cache(maxsize=32)
def distinct_of_iid_draws(q: bytes, m: int) -> Sets:
    """Return the distribution of the set of different classes among m draws with replacement."""
    x = m * _half_circle_points(m)
    log_weights = gammaln(m + 1.0) + m - m * np.log(x) - np.log(len(x))
    return _make_sets(np.frombuffer(q), x, np.ones_like(x), log_weights, False)[1]


@lru_cache(maxsize=32)
def independent(q: bytes, m: int) -> Sets:
    """Return the distribution of a set that contains each class independently of the others.

    It contains a class with the probability that the class is among m draws with replacement.
    """
    absent = np.exp(m * np.log1p(-np.frombuffer(q)))[:, None] + 0.0j
    return Sets(absent, 1.0 - absent, np.zeros_like(absent), np.ones(1, np.complex128), False)


@lru_cache(maxsize=32)
def first_different(q: bytes, m: int) -> Sets:
    """Return the distribution of the set of m classes drawn without replacement."""
    probs = np.frombuffer(q)

    # logs of two times: before the first, the chance that m clocks have rung is negligible; by the
    # second, the clocks of the m most probable classes have almost surely rung
    start = (gammaln(m + 1.0) - 40.0) / m
    end = np.log((45.0 + np.log(m)) / np.sort(probs)[-m])
    step = min(0.35, 0.7 / np.sqrt(m))
    times = np.exp(np.arange(start, end, step))

    log_z, probabilities = _tilted_probabilities(probs, times, m)
    half = _half_circle_points((probabilities * (1.0 - probabilities)).sum(axis=1).max())
    t = np.repeat(times, len(half))
    z = np.outer(np.exp(log_z), half).ravel()
    return _make_sets(probs, t + 0.0j, z, np.log(t * step / len(half)) - m * np.log(z), True)[1]


class _NumTriesDistribution(NamedTuple):
    """The distribution of the number of tries until m different classes have been drawn."""

    min_tries: int  # m, the smallest number of tries
    probabilities: list[float]  # of m, m + 1, ... tries
    # maps a number of tries to (its probability, distribution of the set given this number)
    sets_given: Callable[[int], tuple[float, Sets]]

    def interpolation_nodes(self, max_nodes: int) -> tuple[tuple[int, float, Sets], ...]:
        """Return tuples (number of tries, weight, distribution of the set given this number).

        An expectation over all numbers of tries is the weighted sum over these tuples, of which
        there are at most 1 + `max_nodes`. The first is m tries. The others are nodes of a Lagrange
        interpolation: an expectation given the number of tries is smooth in the log of the number.
        """
        m = self.min_tries
        probabilities = self.probabilities
        sets_given = self.sets_given

        # with m tries no draw is repeated. Some losses then use another correction, so that
        # interpolation must not include this number.
        first = m, probabilities[0], sets_given(m)[1]

        tail_probabilities = np.array(probabilities[1:])
        numbers = m + 1 + np.arange(len(probabilities) - 1)
        if not len(tail_probabilities):
            return (first,)

        # Chebyshev points in the log, rounded to whole numbers
        angles = np.pi * (np.arange(max_nodes) + 0.5) / max_nodes
        ends = np.log(numbers[[0, -1]])
        logs = ends.mean() + 0.5 * np.ptp(ends) * np.cos(angles)
        nodes = np.unique(np.rint(np.exp(logs)).astype(int))
        nodes = numbers if len(numbers) <= max_nodes else nodes

        # for each number of tries, the product of the ratios of a node is the value of the node's
        # Lagrange polynomial in the log
        ratios = np.log(numbers)[:, None] - np.log(nodes)
        ratios = ratios[:, None, :] / (np.log(nodes)[:, None] - np.log(nodes) + np.eye(len(nodes)))
        ratios[:, np.arange(len(nodes)), np.arange(len(nodes))] = 1.0
        weights = tail_probabilities @ ratios.prod(axis=2)

        others = ((int(k), float(w), sets_given(k)[1]) for k, w in zip(nodes, weights, strict=True))
        return (first, *others)


@lru_cache(maxsize=32)
def by_tries(q: bytes, m: int) -> tuple[tuple[int, float, Sets], ...]:
    """Return tuples (number of tries until m different classes, weight, distribution of the set).

    An expectation is the weighted sum over these tuples. The result is empty if m different classes
    may need too many tries, or if there are too many classes.
    """
    tries = _distribution_of_tries(np.frombuffer(q), m, _MAX_FACTORS)
    return () if tries is None else tries.interpolation_nodes(_NUM_TRIES_NODES)


def _distribution_of_tries(
    probs: FloatArray, m: int, max_factors: int
) -> _NumTriesDistribution | None:
    """Return the distribution of the number of tries until m different classes have been drawn.

    Return None if more than `_MAX_TRIES` tries matter, or if a distribution over sets has more than
    `max_factors` factors.
    """
    # the slowest case: the m - 1 most probable classes have been drawn, and the last new class must
    # be one of the others
    slowest_prob = np.sort(probs)[: len(probs) - m + 1].sum()
    if np.log(_TAIL_PROB) / np.log1p(-slowest_prob + _TAIL_PROB) > _MAX_TRIES:
        return None

    # For each number of tries, the radius of the circle in x is the time by which that many tries
    # are expected. A class that is drawn lam times on average by then is drawn
    # lam / (1 - exp(-lam)) times on average given that it is drawn at all.
    times = np.exp(np.linspace(np.log(0.01 * m), np.log(8.0 * _MAX_TRIES), 512))
    log_z, probabilities = _tilted_probabilities(probs, times, max(m - 1.0, 0.3))

    mean_rings = np.outer(times, probs)
    expected_draws = (
        probabilities * mean_rings / np.where(mean_rings > 0.0, -np.expm1(-mean_rings), 1.0)
    )
    mean_draws = expected_draws.sum(axis=1)
    draw_variances = (expected_draws * (1.0 + mean_rings - expected_draws)).sum(axis=1)
    set_size_variances = (probabilities * (1.0 - probabilities)).sum(axis=1)

    def sets_given(tries: int) -> tuple[float, Sets]:
        index = int(np.abs(mean_draws - (tries - 1.0)).argmin())
        half = _half_circle_points(set_size_variances[index])
        arc = _half_circle_points(draw_variances[index])
        circle = np.exp(log_z[index]) * np.concatenate([half, half.conj()])
        x = np.repeat(times[index] * arc, len(circle))
        z = np.tile(circle, len(arc))
        log_weights = gammaln(tries) + times[index] - (tries - 1.0) * np.log(x) - m * np.log(z)
        return _make_sets(probs, x, z, log_weights - np.log(len(x)), True)

    tries_probabilities: list[float] = []
    while sum(tries_probabilities) < 1.0 - _TAIL_PROB:
        probability, sets = sets_given(m + len(tries_probabilities))
        if m + len(tries_probabilities) > _MAX_TRIES or sets.absent.size > max_factors:
            return None
        tries_probabilities.append(probability)

    return _NumTriesDistribution(m, tries_probabilities, sets_given)


def _half_circle_points(variance: float) -> ComplexArray:
    """Return K points of the upper half of the unit circle, for a coefficient of a power series.

    `variance` is that of the degree of a term, if the terms on the circle are taken as
    probabilities.
    """
    # with 2 K points on the full circle, coefficients whose degrees differ by 2 K are added to each
    # other; 2 K is six standard deviations or more, where they are negligible
    num_points = int(3.0 * np.sqrt(variance)) + 6
    half: ComplexArray = np.exp(1j * np.pi * (np.arange(num_points) + 0.5) / num_points)
    return half


def _tilted_probabilities(
    probs: FloatArray, times: FloatArray, count: float
) -> tuple[FloatArray, FloatArray]:
    """Return, for each of the T `times`, the log z at which the mean size of the set is `count`.

    Also return the probabilities (T, n) that each class is in the set for these z.
    """
    x = np.outer(times, probs)
    with np.errstate(divide="ignore"):
        log_odds = np.log(-np.expm1(-x)) + x

    # bisect log z
    is_possible = log_odds > -np.inf
    low = -log_odds.max(axis=1) - 40.0
    high = 40.0 - log_odds.min(axis=1, initial=0.0, where=is_possible)

    for _ in range(60):
        log_z = 0.5 * (low + high)
        is_low = expit(log_z[:, None] + log_odds).sum(axis=1) < count
        low = np.where(is_low, log_z, low)
        high = np.where(is_low, high, log_z)

    return log_z, expit(log_z[:, None] + log_odds)


def _make_sets(
    probs: FloatArray, x: ComplexArray, z: ComplexArray, log_weights: ComplexArray, has_last: bool
) -> tuple[float, Sets]:
    """Return the total weight of all sets, and their distribution, normalised by this total.

    `x` (N,) are the complex times at the points, and `z` (N,) the values of z in the power series
    at the head of this module. `log_weights` (N,) are the logs of the weights before normalisation.
    """
    radius = np.abs(x)[:, None]
    in_right_half = x.real[:, None] >= 0.0
    absent_factor = np.exp(-radius * probs)
    sign = np.where(in_right_half, 1.0, -1.0)

    # the factors `absent` and `present` of a class are divided by their sum at |x| and |z|, so that
    # their magnitudes are at most 1
    factor_sum = absent_factor - np.abs(z)[:, None] * np.expm1(-radius * probs)

    # (exp(q x) - 1) exp(-q |x|), without overflow: the exponent of expm1 has no positive real part
    present_factor = np.exp(probs * (np.where(in_right_half, x[:, None], 0.0) - radius))
    present_factor = -sign * present_factor * np.expm1(-sign * probs * x[:, None])

    weights = np.exp(log_weights + np.log(factor_sum).sum(axis=1))
    last = np.zeros_like(present_factor)
    magnitudes = np.abs(weights)
    if has_last:
        last = z[:, None] * probs * absent_factor / factor_sum
        magnitudes = magnitudes * np.abs(last).sum(axis=1)

    is_kept = magnitudes > _MIN_POINT_WEIGHT * magnitudes.max()
    absent = absent_factor / factor_sum
    present = z[:, None] * present_factor / factor_sum
    absent, present, last = (
        np.ascontiguousarray(f[is_kept].T) + 0.0j for f in (absent, present, last)
    )
    sets = Sets(absent, present, last, weights[is_kept], has_last)
    total = float(sets.means(np.ones((1, len(probs))))[0][0].real)

    return total, replace(sets, weights=sets.weights / total)


# The bias with the correction by the number of tries ----------------------------------------------


class _StratumOfSets:
    """Adapter of `Sets` to the protocol `StratumDistribution`, for `expected_probs_and_log_sum`."""

    def __init__(self, sets: Sets) -> None:
        self._sets = sets
        self.inclusion = np.stack([sets.inclusion] * 2)
        self.relative_error = _MIN_POINT_WEIGHT

    def expect_exponentials(
        self, decay: FloatArray, saddles: list[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return ``E[exp(-D)]`` (2,) and ``E[exp(-D) 1{k in set}]`` (2, n) for each class k.

        D is the sum of `decay` (n,) over the set.
        """
        mean, contributions = self._sets.means(np.exp(-decay)[None])
        return np.full(2, mean[0].real), np.stack([contributions[0].real] * 2)


def tries_bias(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    *,
    scheme: str = "distinct_candidate_masked",
) -> ExactBias:
    """Compute the exact bias of draws without replacement, corrected by the number of tries.

    TensorFlow draws with replacement until there are m different classes. N is the random number of
    these draws, repeated ones included. TensorFlow divides a draw of class j by
    ``1 - (1 - q_j)**N``, or by ``m q_j`` if no draw was repeated (N = m).

    Parameters
    ----------
    logits, labels, num_sampled
        As for `samplesoft.exact_bias`.
    q : array_like, shape (n,) or (B, n)
        Proposal. With more than about a hundred classes, the computation takes minutes.
    scheme : str
        ``distinct``, ``distinct_masked``, ``distinct_candidate``, ``distinct_candidate_masked`` or
        ``distinct_importance``, see `samplesoft.exact_bias`. The default is the scheme of
        ``tf.nn.sampled_softmax_loss``.

    Returns
    -------
    ExactBias
        The bias and the loss bias, with error estimates of at least 1e-8.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the number of tries or of classes is too large.

    Notes
    -----
    Given N, an expectation is a mean over two circles on which the classes are independent: one in
    complex time, and one in the variable whose powers count the classes. Expectations given N are
    smooth in log N, and are interpolated from 48 values of N. The estimated error is the difference
    from the result with 24 values.

    References
    ----------
    TensorFlow, "Introduction to Candidate Sampling": the expected count of unique draws.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.bias import tries_bias
    >>> logits, q = np.arange(6.0), np.array([0.4, 0.2, 0.2, 0.1, 0.05, 0.05])
    >>> tries_bias(logits, 1, q, 3).bias.round(3)
    array([ 0.019,  0.087,  0.207,  0.176, -0.053, -0.436])
    """
    inputs = check_inputs(logits, labels, q, num_sampled, scheme, require=_require_distinct)
    return ExactBias(*inputs.columns(_tries_bias_of_example(*row, inputs) for row in inputs.rows()))


def _require_distinct(scheme: Scheme) -> None:
    """Raise ValueError for a scheme that draws with replacement."""
    if not scheme.distinct:
        raise ValueError(
            f"`scheme` must be one of draws without replacement, got {scheme.name!r}; take "
            "'distinct' or one of its kind."
        )


def _tries_bias_of_example(
    logits: FloatArray, label: int, q: FloatArray, inputs: Inputs
) -> ExampleBias:
    """Return the result of `tries_bias` for one example."""
    scheme = inputs.scheme
    m = inputs.num_sampled
    kept = np.flatnonzero(~(scheme.excludes_label & (np.arange(len(q)) == label)))
    probs = q[kept] / q[kept].sum()

    tries = _distribution_of_tries(probs, m, _MAX_FACTORS_OF_BIAS)
    if tries is None:
        raise ValueError(
            f"`num_sampled` and `q` must not need over {_MAX_TRIES} tries, nor have very many "
            f"classes, got {m} of {len(probs)} classes; take exact_bias with what is near, "
            "correction=1 - (1 - q)**N, N the mean number of tries."
        )

    def result_given(num_tries: int, sets: Sets) -> FloatArray:
        correction = np.ones(len(q))
        if num_tries == m:
            correction[kept] = m * probs
        else:
            correction[kept] = -np.expm1(num_tries * np.log1p(-probs))
        row = bias_of_distributions(
            logits, label, scheme, [(_StratumOfSets(sets), kept)], correction
        )
        return np.array([row.bias, row.inclusion, np.full(len(q), row.loss_bias)])

    coarse, fine = (
        np.sum([p * result_given(k, sets) for k, p, sets in tries.interpolation_nodes(num)], axis=0)
        for num in _NUM_TRIES_NODES_OF_BIAS
    )
    bias, inclusion, loss_biases = fine
    change = np.abs(fine - coarse)
    error, loss_error = (10.0 * _TAIL_PROB + float(x) for x in (change[0].sum(), change[2, 0]))

    probs = softmax_and_other_mass(logits, label)[1]
    return ExampleBias(bias, probs, float(loss_biases[0]), error, loss_error, inclusion)
