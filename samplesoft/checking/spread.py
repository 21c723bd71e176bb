r"""Standard deviation and skewness of single losses and gradients, as a candidate predicts them.

`linearised_spread` computes them to first order in the contributions of single draws, for losses
and gradients. `loss_moments` computes exact moments of the loss: its moment generating function
``E exp(-s log S)`` is the integral of `samplesoft.checking.exact` times a power of u.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial
from typing import NamedTuple

import numpy as np
from scipy.linalg import toeplitz

from samplesoft._validation import FloatArray
from samplesoft.bias.without_replacement.sets import Sets
from samplesoft.checking.estimators import SampledSum
from samplesoft.checking.exact import FULL_ACCURACY, MOMENT_ACCURACY, integral_terms
from samplesoft.checking.problems import Problem


class Spread(NamedTuple):
    """Standard deviations and skewness (K,) of the K values of a loss for one set of draws."""

    deviations: FloatArray
    skewness: FloatArray


_MIN_REST = 1e-3  # smallest fraction of S without one draw, and smallest total variance
_NEARLY_ONE = 1.0 - 2.0**-53  # the largest float64 below 1


def linearised_spread(
    sums: Sequence[SampledSum], losses: FloatArray, problem: Problem, num_gradients: int
) -> Spread:
    """Return the approximate spread of losses and gradients, given the mean `losses` (E,).

    The change of log S by a draw is linearised about the mean of the rest of S. Of several `sums`
    the most probable one is used.
    """
    sampled_sum = max(sums, key=lambda each: float(np.mean(each.probability)))
    rows, labels, x = np.arange(len(sampled_sum.probs)), sampled_sum.labels, sampled_sum.logits
    probs, m = sampled_sum.probs, sampled_sum.num_draws * np.ones((len(sampled_sum.probs), 1))
    if sampled_sum.reduction == "kept":  # treat rejected draws as if they had not been made
        probs = np.where(x > -np.inf, probs, 0.0)
        kept = probs.sum(axis=1, keepdims=True)
        probs = probs / kept
        m = m * kept
        x = x - np.log(m)
    if sampled_sum.reduction == "one hit less":  # of k draws of the label, k - 1 are in S
        hits = probs[rows, labels]
        probs = probs.copy()
        probs[rows, labels] = hits + np.expm1(m[:, 0] * np.log1p(-hits)) / m[:, 0]
    # log of the rest of S without one draw; for a logistic loss log(1 + exp(x)) the rest is 1
    log_rest = np.zeros(len(x))
    if sampled_sum.reduction != "logistic":
        log_sum = losses / sampled_sum.loss_factor + sampled_sum.label_logit
        with np.errstate(divide="ignore", invalid="ignore"):
            # mean weight of one draw; the inclusion probabilities of a set sum to its size
            log_size = np.log(probs.sum(axis=1))
            log_all = np.logaddexp.reduce(np.log(probs) + x, axis=1)
            log_drawn = np.where(log_size > -np.inf, log_all - log_size, -np.inf)
        rest = 1.0 - np.exp(np.minimum(log_drawn - log_sum, 0.0))
        log_rest = log_sum + np.log(np.maximum(rest, _MIN_REST))
        log_rest = np.maximum(log_rest, sampled_sum.log_fixed_mass)
    # change of log S if one draw is added to the rest of S, for each class
    parts = [sampled_sum.loss_factor * np.logaddexp(0.0, x - log_rest[:, None])[:, :, None]]
    if num_gradients:
        of_sum = np.exp(-np.logaddexp(0.0, log_rest[:, None] - x))[:, :, None]
        factor = problem.tau * sampled_sum.gradient_factor
        of_classes = (problem.class_embeddings, problem.view_directions)[:num_gradients]
        parts += [factor * of_sum * (c - c[labels][:, None]) for c in of_classes]
    probs = probs[:, None]
    of_squares = of_cubes = m[:, None] * probs
    middle, times, rest_of_squares = probs, np.ones_like(probs), np.zeros(len(x))
    if sampled_sum.set_distributions is not None:  # the number of draws of a class is 0 or 1
        of_squares = probs * (1.0 - probs)
        of_cubes = of_squares * (1.0 - 2.0 * probs)
        total = np.maximum(of_squares.sum(axis=2, keepdims=True), _MIN_REST)
        # for sets of fixed size, subtract a weighted mean (Hajek's approximation)
        middle = of_squares / total
        if sampled_sum.set_distributions[0].is_independent:
            middle = np.zeros_like(probs)
        elif not sampled_sum.set_distributions[0].has_last:
            middle, times, rest_of_squares = _regression_on_counts(probs)
    spreads = []
    for part in parts:
        mean = middle @ part
        away = part - np.swapaxes(times, 1, 2) * mean
        square = away * away
        variance = (of_squares @ square)[:, 0] + rest_of_squares[:, None] * mean[:, 0] ** 2
        spreads.append((variance, np.abs(of_cubes @ (square * away))[:, 0]))
    if num_gradients > 1:  # means over examples, which are treated as independent
        variance, third = spreads.pop()
        for times in (problem.h, np.ones((len(x), 1)) / problem.tau)[: num_gradients - 1]:
            scale = (problem.weights[:, None] * np.abs(times) / len(x))[:, None]
            powers = (v[:, :, None] * scale**k for v, k in ((variance, 2), (third, 3)))
            spreads.append(tuple(power.sum(axis=0) for power in powers))
    variances, thirds = (
        np.concatenate([v.ravel() for v in vs]) for vs in zip(*spreads, strict=True)
    )
    return Spread(np.sqrt(variances), thirds / np.where(variances > 0.0, variances, 1.0) ** 1.5)


def _regression_on_counts(probs: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the regression of ``sum_j a_j I_j`` on the total number of draws, which is fixed.

    I_j is 1 if class j is drawn at least once, with probability p_j, and `probs` (E, 1, n) holds
    the p_j. If the counts N_j of draws were independent Poisson variables with the rates
    -log(1 - p_j), the covariance of I_j and N_j would be rate_j (1 - p_j). Fixing the total removes
    from the sum its regression ``b * sum_j N_j`` on the total.

    Returns `middle` (E, 1, n) with ``b = middle @ a``; `times` (E, 1, n), so that class j
    contributes ``a_j - b * times_j``; and the factor (E,) of ``b**2`` in the remaining variance.
    """
    rates = -np.log1p(-np.minimum(probs, _NEARLY_ONE))
    covariance = rates * (1.0 - probs)
    variance = probs * (1.0 - probs)
    middle = covariance / rates.sum(axis=2, keepdims=True)
    times = np.divide(covariance, variance, out=np.ones_like(probs), where=variance > 0.0)
    return middle, times, (rates - times * covariance).sum(axis=2)[:, 0]


# exact moments of single losses ------------------------------------------------------------------

_MAX_TERMS = 1 << 14  # with more terms of L(u) at one u, moments are not computed
_DIGITS = 1e-6  # relative error of the variance of squares, in which fourth moments cancel
# for smaller mean squares the sixth moment has no digits: independent draws, and sets of draws
_MIN_VARIANCE = 3e-4
_MIN_VARIANCE_OF_SETS = 3e-3
# points on the unit circle, symmetric about the real axis
_CIRCLE = np.exp(2j * np.pi * (np.arange(32) + 0.5) / 32)
_FACTORIALS = np.array([factorial(k) for k in range(7)], float)
# 1 / Gamma(1 + s) as a series in s: Abramowitz and Stegun, 6.1.34
_INVERSE_GAMMA = np.array(
    [
        1.0,
        0.5772156649015329,
        -0.6558780715202538,
        -0.0420026350340952,
        0.1665386113822915,
        -0.0421977345555443,
    ]
)


def moments_of_squared_losses(
    sums: Sequence[SampledSum], centre: FloatArray
) -> tuple[FloatArray, Spread] | None:
    """Return the means (E,) of ``(loss - centre)**2``, and the spread of these squares.

    The spread is that for one set of draws. Returns None if there is no closed form, or if it has
    too few digits.
    """
    powers = _moments_of_mixture(sums, centre)
    if powers is None:
        return None
    second, fourth, sixth = powers[:, [2, 4, 6]].T
    if second.min() < (
        _MIN_VARIANCE if sums[0].set_distributions is None else _MIN_VARIANCE_OF_SETS
    ):
        return None
    # variance and third central moment of X^2, from E X^2, E X^4 and E X^6
    variance = np.maximum(fourth - second**2, 0.0)
    third = np.abs(sixth - 3.0 * fourth * second + 2.0 * second**3)
    skewness = third / np.maximum(variance, _DIGITS * second**2) ** 1.5
    return second, Spread(np.sqrt(variance), skewness)


def with_exact_loss_spread(
    width: Spread | None, sums: Sequence[SampledSum], centre: FloatArray
) -> Spread | None:
    """Raise the spread of the losses to their exact standard deviation and skewness.

    The linearised spread does not contain the event that all draws are hits, in which the loss of a
    label far behind is very different. Returns a new `Spread`; or `width` itself if it is None, or
    if the exact moments are unknown.
    """
    powers = None if width is None else _moments_of_mixture(sums, centre)
    if width is None or powers is None:
        return width
    mean, second, third = powers[:, 1:4].T
    variance = second - mean**2
    has_digits = variance > _MIN_VARIANCE * np.maximum(second, 1.0)
    variance = np.where(has_digits, variance, 1.0)
    skewness = np.abs(third - 3.0 * mean * second + 2.0 * mean**3) / variance**1.5
    deviations, skewnesses = width.deviations.copy(), width.skewness.copy()
    for whole, exact in ((deviations, np.sqrt(variance)), (skewnesses, skewness)):
        part = whole[: len(centre)]
        np.maximum(part, exact, out=part, where=has_digits)
    return Spread(deviations, skewnesses)


def _moments_of_mixture(sums: Sequence[SampledSum], centre: FloatArray) -> FloatArray | None:
    """Return the moments (E, 7) of a loss whose random sum is one of `sums`; None if unknown.

    The moments are those of `loss_moments`, averaged with the probabilities of the sums.
    """
    first = sums[0]
    terms = first.probs.size * (first.num_draws if first.reduction == "kept" else 1)
    is_known = first.reduction in ("sum", "kept", "logistic") and first.loss_factor == 1.0
    if not is_known or terms > _MAX_TERMS:
        return None
    rows = []
    for example, c in enumerate(centre):
        powers = [loss_moments(sampled_sum, example, float(c)) for sampled_sum in sums]
        weights = [
            np.broadcast_to(sampled_sum.probability, len(centre))[example] for sampled_sum in sums
        ]
        rows.append(np.dot(weights, powers))
    return np.array(rows)


def loss_moments(sampled_sum: SampledSum, example: int, centre: float) -> FloatArray:
    """Return the moments ``E (loss - centre)**k`` (7,) of one example, for k = 0 to 6.

    The reduction of the sum must be "sum", "kept" or "logistic".
    """
    if sampled_sum.reduction == "logistic":
        # E exp(t loss) as a series in t: the series of one draw to the power m, times the label's
        of_draw = np.logaddexp(0.0, sampled_sum.logits[example])
        of_label = np.logaddexp(0.0, -sampled_sum.label_logit[example]) - centre
        if sampled_sum.set_distributions is not None:
            return _moments_of_set_sums(sampled_sum.set_distributions[example], of_draw, of_label)
        mean = sampled_sum.probs[example] @ of_draw
        away = [sampled_sum.probs[example] @ (of_draw - mean) ** k for k in range(7)]
        shift = sampled_sum.num_draws * mean + of_label
        # products of series, truncated after t^6, are products of triangular Toeplitz matrices
        draw, label = (
            toeplitz(s / _FACTORIALS, np.zeros(7)) for s in (away, shift ** np.arange(7))
        )
        whole = np.linalg.matrix_power(draw, sampled_sum.num_draws) @ label
        powers: FloatArray = whole[:, 0] * _FACTORIALS
        return powers
    # E S^-s = int u^(s-1) E exp(-u S) du / Gamma(s); its series in s has the moments of log S
    terms = integral_terms(
        sampled_sum,
        example,
        centre,
        FULL_ACCURACY if sampled_sum.set_distributions is None else MOMENT_ACCURACY,
    )
    inner = [(terms.log_sum_terms * terms.log_u**k).sum() / _FACTORIALS[k] for k in range(6)]
    series = toeplitz(_INVERSE_GAMMA, np.zeros(6)) @ inner
    signs = (-1.0) ** np.arange(6)
    return np.append(1.0, signs * _FACTORIALS[1:] * series)


def _moments_of_set_sums(sets: Sets, terms: FloatArray, constant: float) -> FloatArray:
    """Return the moments ``E X**k`` for k = 0 to 6, with X a constant plus a sum over a random set.

    The sum is over `terms` (n,) of the classes in the set.
    """
    inclusion = sets.inclusion
    mean = constant + inclusion @ terms
    size = np.sqrt(mean**2 + inclusion @ terms**2)
    # values of E exp(t X) on a circle about 0 give the coefficients of its series in t
    t = _CIRCLE / size
    half = sets.means(np.exp(np.outer(t, terms)))[0] * np.exp(t * constant)
    values = 0.5 * (half + half[::-1].conj())  # values at conj(t) are conjugates: average both
    powers: FloatArray = np.array([(values * t**-k).mean().real for k in range(7)]) * _FACTORIALS
    return powers
