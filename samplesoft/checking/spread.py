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


# floor, against division by zero, of the fraction of S that is left without one draw, and of a sum
# of variances
_MIN_REST_FRACTION = 1e-3
_MAX_BELOW_ONE = 1.0 - 2.0**-53  # the largest float64 below 1


def linearised_spread(
    sums: Sequence[SampledSum], losses: FloatArray, problem: Problem, num_gradients: int
) -> Spread:
    """Return the approximate spread of losses and gradients, given the mean `losses` (E,).

    The change of log S by one draw is linearised about the mean of S without this draw. If there
    are several `sums`, only the most probable one is used.
    """
    sampled_sum = max(sums, key=lambda candidate_sum: float(np.mean(candidate_sum.probability)))
    rows = np.arange(len(sampled_sum.probs))
    labels = sampled_sum.labels
    x = sampled_sum.logits
    probs = sampled_sum.probs
    m = sampled_sum.num_draws * np.ones((len(sampled_sum.probs), 1))

    # treat rejected draws as if they had not been made
    if sampled_sum.reduction == "kept":
        probs = np.where(x > -np.inf, probs, 0.0)
        accept_prob = probs.sum(axis=1, keepdims=True)
        probs = probs / accept_prob
        m = m * accept_prob
        x = x - np.log(m)

    # of k draws of the label, k - 1 are in S
    if sampled_sum.reduction == "one hit less":
        hit_probs = probs[rows, labels]
        probs = probs.copy()
        probs[rows, labels] = hit_probs + np.expm1(m[:, 0] * np.log1p(-hit_probs)) / m[:, 0]

    # log of S without one draw, `log_rest`; for a logistic loss log(1 + exp(x)) it is log 1
    log_rest = np.zeros(len(x))
    if sampled_sum.reduction != "logistic":
        log_sum = losses / sampled_sum.loss_factor + sampled_sum.label_logit
        with np.errstate(divide="ignore", invalid="ignore"):
            # log of the mean weight of one draw; inclusion probabilities sum to the set's size
            log_set_size = np.log(probs.sum(axis=1))
            log_all = np.logaddexp.reduce(np.log(probs) + x, axis=1)
            log_drawn = np.where(log_set_size > -np.inf, log_all - log_set_size, -np.inf)

        rest_fraction = 1.0 - np.exp(np.minimum(log_drawn - log_sum, 0.0))
        log_rest = log_sum + np.log(np.maximum(rest_fraction, _MIN_REST_FRACTION))
        log_rest = np.maximum(log_rest, sampled_sum.log_fixed_mass)

    # change of log S if one draw is added, for each class
    changes = [sampled_sum.loss_factor * np.logaddexp(0.0, x - log_rest[:, None])[:, :, None]]
    if num_gradients:
        sum_fractions = np.exp(-np.logaddexp(0.0, log_rest[:, None] - x))[:, :, None]
        gradient_scale = problem.tau * sampled_sum.gradient_factor
        vectors = (problem.class_embeddings, problem.view_directions)[:num_gradients]
        changes += [
            gradient_scale * sum_fractions * (vector - vector[labels][:, None])
            for vector in vectors
        ]

    probs = probs[:, None]
    square_weights = cube_weights = m[:, None] * probs
    mean_weights = probs
    slopes = np.ones_like(probs)
    residual_variances = np.zeros(len(x))

    # in a set, the number of draws of a class is 0 or 1
    if sampled_sum.set_distributions is not None:
        square_weights = probs * (1.0 - probs)
        cube_weights = square_weights * (1.0 - 2.0 * probs)
        total_variance = np.maximum(square_weights.sum(axis=2, keepdims=True), _MIN_REST_FRACTION)

        # for sets of fixed size, subtract a weighted mean, which is Hajek's approximation
        mean_weights = square_weights / total_variance
        if sampled_sum.set_distributions[0].is_independent:
            mean_weights = np.zeros_like(probs)
        elif not sampled_sum.set_distributions[0].has_last:
            mean_weights, slopes, residual_variances = _regression_on_counts(probs)

    spreads = []
    for change in changes:
        mean = mean_weights @ change
        deviation = change - np.swapaxes(slopes, 1, 2) * mean
        squares = deviation * deviation
        variance = (square_weights @ squares)[:, 0] + residual_variances[:, None] * mean[:, 0] ** 2
        spreads.append((variance, np.abs(cube_weights @ (squares * deviation))[:, 0]))

    # gradients in class vectors and biases are means over examples, treated as independent
    if num_gradients > 1:
        variance, third_moment = spreads.pop()
        for factors in (problem.h, np.ones((len(x), 1)) / problem.tau)[: num_gradients - 1]:
            scale = (problem.weights[:, None] * np.abs(factors) / len(x))[:, None]
            moments = ((variance, 2), (third_moment, 3))
            scaled = (moment[:, :, None] * scale**power for moment, power in moments)
            spreads.append(tuple(moment.sum(axis=0) for moment in scaled))

    variances, third_moments = (
        np.concatenate([values.ravel() for values in moments])
        for moments in zip(*spreads, strict=True)
    )
    skewness = third_moments / np.where(variances > 0.0, variances, 1.0) ** 1.5

    return Spread(np.sqrt(variances), skewness)


def _regression_on_counts(probs: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the regression of ``sum_j a_j I_j`` on the total number of draws, which is fixed.

    I_j is 1 if class j is drawn at least once, with probability p_j, and `probs` (E, 1, n) holds
    the p_j. If the counts N_j of draws were independent Poisson variables with the rates
    -log(1 - p_j), the covariance of I_j and N_j would be rate_j (1 - p_j). Fixing the total removes
    from the sum its regression ``b * sum_j N_j`` on the total.

    Returns `mean_weights` (E, 1, n) with ``b = mean_weights @ a``; `slopes` (E, 1, n), so that
    class j contributes ``a_j - b * slopes_j``; and the factor (E,) of ``b**2`` in the remaining
    variance.
    """
    rates = -np.log1p(-np.minimum(probs, _MAX_BELOW_ONE))
    covariance = rates * (1.0 - probs)
    variance = probs * (1.0 - probs)
    mean_weights = covariance / rates.sum(axis=2, keepdims=True)
    slopes = np.divide(covariance, variance, out=np.ones_like(probs), where=variance > 0.0)
    return mean_weights, slopes, (rates - slopes * covariance).sum(axis=2)[:, 0]


# exact moments of single losses ------------------------------------------------------------------

# number of terms of L(u) at one u; with more terms, moments are not computed
_MAX_TERMS = 1 << 14
_RELATIVE_ERROR_OF_VARIANCE = 1e-6  # fourth moments cancel in the variance of squares
# for smaller mean squares the sixth moment has no correct digits
_MIN_VARIANCE = 3e-4
_MIN_VARIANCE_OF_SETS = 3e-3
# points on the unit circle, symmetric about the real axis
_UNIT_CIRCLE = np.exp(2j * np.pi * (np.arange(32) + 0.5) / 32)
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

    The spread is for one set of draws. Returns None if there is no closed form, or if it has too
    few digits.
    """
    moments = _moments_of_mixture(sums, centre)
    if moments is None:
        return None

    has_sets = sums[0].set_distributions is not None
    second, fourth, sixth = moments[:, [2, 4, 6]].T
    if second.min() < (_MIN_VARIANCE_OF_SETS if has_sets else _MIN_VARIANCE):
        return None

    # variance and third central moment of X^2, from E X^2, E X^4 and E X^6
    variance = np.maximum(fourth - second**2, 0.0)
    third = np.abs(sixth - 3.0 * fourth * second + 2.0 * second**3)
    skewness = third / np.maximum(variance, _RELATIVE_ERROR_OF_VARIANCE * second**2) ** 1.5

    return second, Spread(np.sqrt(variance), skewness)


def with_at_least_exact_loss_spread(
    spread: Spread | None, sums: Sequence[SampledSum], centre: FloatArray
) -> Spread | None:
    """Return `spread` with the standard deviation and skewness of the losses at least exact.

    Values below the exact ones are raised, because linearisation misses the rare event that all
    draws are hits: if the label has a very small probability, its loss is then very different.
    Returns `spread` itself if it is None, or if the exact moments are unknown.
    """
    moments = None if spread is None else _moments_of_mixture(sums, centre)
    if spread is None or moments is None:
        return spread

    mean, second, third = moments[:, 1:4].T
    variance = second - mean**2
    has_digits = variance > _MIN_VARIANCE * np.maximum(second, 1.0)
    variance = np.where(has_digits, variance, 1.0)
    skewness = np.abs(third - 3.0 * mean * second + 2.0 * mean**3) / variance**1.5

    deviations = spread.deviations.copy()
    skewnesses = spread.skewness.copy()
    for values, exact in ((deviations, np.sqrt(variance)), (skewnesses, skewness)):
        loss_values = values[: len(centre)]
        np.maximum(loss_values, exact, out=loss_values, where=has_digits)

    return Spread(deviations, skewnesses)


def _moments_of_mixture(sums: Sequence[SampledSum], centre: FloatArray) -> FloatArray | None:
    """Return the moments (E, 7) of a loss whose random sum is one of `sums`; None if unknown.

    The moments are those of `loss_moments`, averaged with the probabilities of the sums.
    """
    first_sum = sums[0]
    num_terms = first_sum.probs.size * (first_sum.num_draws if first_sum.reduction == "kept" else 1)
    is_known = first_sum.reduction in ("sum", "kept", "logistic") and first_sum.loss_factor == 1.0
    if not is_known or num_terms > _MAX_TERMS:
        return None

    moments_of_examples = []
    for example, example_centre in enumerate(centre):
        moments_of_sums = [
            loss_moments(sampled_sum, example, float(example_centre)) for sampled_sum in sums
        ]
        weights = [
            np.broadcast_to(sampled_sum.probability, len(centre))[example] for sampled_sum in sums
        ]
        moments_of_examples.append(np.dot(weights, moments_of_sums))

    return np.array(moments_of_examples)


def loss_moments(sampled_sum: SampledSum, example: int, centre: float) -> FloatArray:
    """Return the moments ``E (loss - centre)**k`` (7,) of one example, for k = 0 to 6.

    The reduction of the sum must be "sum", "kept" or "logistic".
    """
    if sampled_sum.reduction == "logistic":
        # E exp(t loss) is a series in t: the series of one draw to the power m, times the label's
        draw_losses = np.logaddexp(0.0, sampled_sum.logits[example])
        label_loss = np.logaddexp(0.0, -sampled_sum.label_logit[example]) - centre
        if sampled_sum.set_distributions is not None:
            return _moments_of_set_sums(
                sampled_sum.set_distributions[example], draw_losses, label_loss
            )

        mean = sampled_sum.probs[example] @ draw_losses
        central_moments = [sampled_sum.probs[example] @ (draw_losses - mean) ** k for k in range(7)]
        shift = sampled_sum.num_draws * mean + label_loss

        # products of series, truncated after t^6, are products of triangular Toeplitz matrices
        draw_matrix, label_matrix = (
            toeplitz(moments / _FACTORIALS, np.zeros(7))
            for moments in (central_moments, shift ** np.arange(7))
        )
        product = np.linalg.matrix_power(draw_matrix, sampled_sum.num_draws) @ label_matrix
        powers: FloatArray = product[:, 0] * _FACTORIALS
        return powers

    # E S^-s = int u^(s-1) E exp(-u S) du / Gamma(s). Its series in s contains the moments of log S.
    grid = FULL_ACCURACY if sampled_sum.set_distributions is None else MOMENT_ACCURACY
    terms = integral_terms(sampled_sum, example, centre, grid)
    log_moments = [(terms.log_sum_terms * terms.log_u**k).sum() / _FACTORIALS[k] for k in range(6)]
    series = toeplitz(_INVERSE_GAMMA, np.zeros(6)) @ log_moments
    signs = (-1.0) ** np.arange(6)

    return np.append(1.0, signs * _FACTORIALS[1:] * series)


def _moments_of_set_sums(sets: Sets, terms: FloatArray, constant: float) -> FloatArray:
    """Return the moments ``E X**k`` for k = 0 to 6, with X a constant plus a sum over a random set.

    The sum is over `terms` (n,) of the classes in the set.
    """
    inclusion = sets.inclusion
    mean = constant + inclusion @ terms
    radius_unit = np.sqrt(mean**2 + inclusion @ terms**2)

    # values of E exp(t X) on a circle about 0 give the coefficients of its series in t
    t = _UNIT_CIRCLE / radius_unit
    values_on_circle = sets.means(np.exp(np.outer(t, terms)))[0] * np.exp(t * constant)

    # values at conj(t) are the conjugates: average both
    mean_values = 0.5 * (values_on_circle + values_on_circle[::-1].conj())
    powers: FloatArray = (
        np.array([(mean_values * t**-k).mean().real for k in range(7)]) * _FACTORIALS
    )
    return powers
