r"""Standard deviation and skewness of single losses and gradients, as a candidate predicts them.

`linearised_spread` approximates them for losses and gradients, to first order in the contributions
of single draws. `loss_moments` computes exact moments of the loss. They follow from the moment
generating function ``E exp(-s log S)``, which is an integral like that of
`samplesoft.checking.exact`, with a power of u as additional factor.
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
    """Standard deviations and skewness of the K values of a loss, for one set of draws.

    Both are (K,). The K values are the losses and gradients that an `Observer` records.
    """

    deviations: FloatArray
    skewness: FloatArray


# smallest value, so that 0 does not occur in a logarithm or a divisor, for the fraction of S that
# is left if one draw is taken away, and for a sum of variances
_MIN_REST_FRACTION = 1e-3
_MAX_BELOW_ONE = 1.0 - 2.0**-53  # the largest float64 below 1


def linearised_spread(
    sums: Sequence[SampledSum], losses: FloatArray, problem: Problem, num_gradients: int
) -> Spread:
    """Return the approximate spread of losses and gradients, given the mean `losses` (E,).

    One draw is added to the mean of the sum of the other draws; the resulting changes of the loss
    are treated as independent terms. If there are several `sums`, one of which is S at random, only
    the most probable one is used.
    """
    sampled_sum = max(sums, key=lambda candidate_sum: float(np.mean(candidate_sum.probability)))
    rows = np.arange(len(sampled_sum.probs))
    labels = sampled_sum.labels
    x = sampled_sum.logits
    probs = sampled_sum.probs
    m = sampled_sum.num_draws * np.ones((len(sampled_sum.probs), 1))

    # reduce m to the mean number of accepted draws, as if rejected draws had not been made
    if sampled_sum.reduction == "kept":
        probs = np.where(x > -np.inf, probs, 0.0)
        accept_prob = probs.sum(axis=1, keepdims=True)
        probs = probs / accept_prob
        m = m * accept_prob
        x = x - np.log(m)

    # the mistake that of k > 0 draws of the label k - 1 are in S
    if sampled_sum.reduction == "one hit less":
        hit_probs = probs[rows, labels]
        probs = probs.copy()
        probs[rows, labels] = hit_probs + np.expm1(m[:, 0] * np.log1p(-hit_probs)) / m[:, 0]

    # `log_rest` is the log of the mean of S without one draw. A logistic loss log(1 + exp(x)) is
    # treated as the log of a sum in which 1 is the rest.
    log_rest = np.zeros(len(x))
    if sampled_sum.reduction != "logistic":
        log_sum = losses / sampled_sum.loss_factor + sampled_sum.label_logit
        with np.errstate(divide="ignore", invalid="ignore"):
            # log of the mean weight of one draw: for a set, `probs` sum to the size of the set
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

    # in a set, the number of draws of a class is 0 or 1, with the moments of a Bernoulli variable
    if sampled_sum.set_distributions is not None:
        square_weights = probs * (1.0 - probs)
        cube_weights = square_weights * (1.0 - 2.0 * probs)
        total_variance = np.maximum(square_weights.sum(axis=2, keepdims=True), _MIN_REST_FRACTION)

        # For sets of fixed size, subtract from the changes their mean, weighted by the variances:
        # this is Hajek's approximation. For independent inclusion, subtract nothing.
        mean_weights = square_weights / total_variance
        if sampled_sum.set_distributions[0].is_independent:
            mean_weights = np.zeros_like(probs)
        elif not sampled_sum.set_distributions[0].has_last:
            mean_weights, slopes, residual_variances = _regression_on_num_draws(probs)

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


def _regression_on_num_draws(probs: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the regression on the number of draws, which is fixed, of ``sum_j a_j I_j``.

    I_j is 1 if class j is drawn at least once; its probability is p_j in `probs` (E, 1, n). Suppose
    first that the numbers N_j of draws of the classes are independent Poisson variables, with the
    rates ``-log(1 - p_j)``. Then I_j and N_j have the covariance ``rate_j (1 - p_j)``, and the
    regression of the sum on the number of all draws is ``b * sum_j N_j``. Because this number is in
    fact fixed, the regression adds no variance, and is subtracted.

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

# largest number of terms of L(u) at one u; with more terms, moments are not computed
_MAX_TERMS = 1 << 14
# error of the variance of squares, relative to the square of their mean, by cancellation
_RELATIVE_ERROR_OF_VARIANCE = 1e-6
# Smallest mean square of (loss - centre) for which the sixth moment has correct digits, with
# independent draws; for smaller mean squares, squares are not tested.
_MIN_VARIANCE = 3e-4
_MIN_VARIANCE_OF_SETS = 3e-3  # the same limit with sets of draws, whose moments have fewer digits
# 32 points on the unit circle, in conjugate pairs
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

    The spread is for one set of draws. Returns None if the moments have no closed form, or if the
    closed form loses too many digits.
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
    """Return `spread`, with values of the losses below the exact ones raised to the exact ones.

    The values are standard deviations and skewness. Their linear approximation misses the rare
    event that all draws are hits: if the label has a very small probability, its loss is then very
    different. Returns `spread` itself if it is None, or if the exact moments are unknown.
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

    They are the moments by `loss_moments` of each sum, averaged with the probabilities of the sums.
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
        # The loss is a sum over independent draws plus the label's term, so that E exp(t loss) is
        # the series in t of one draw, to the power m, times the series of the label's term.
        draw_losses = np.logaddexp(0.0, sampled_sum.logits[example])
        label_loss = np.logaddexp(0.0, -sampled_sum.label_logit[example]) - centre
        if sampled_sum.set_distributions is not None:
            return _moments_of_set_sums(
                sampled_sum.set_distributions[example], draw_losses, label_loss
            )

        mean = sampled_sum.probs[example] @ draw_losses
        central_moments = [sampled_sum.probs[example] @ (draw_losses - mean) ** k for k in range(7)]
        shift = sampled_sum.num_draws * mean + label_loss

        # multiply series, truncated after t**6, as triangular Toeplitz matrices
        draw_matrix, label_matrix = (
            toeplitz(moments / _FACTORIALS, np.zeros(7))
            for moments in (central_moments, shift ** np.arange(7))
        )
        product = np.linalg.matrix_power(draw_matrix, sampled_sum.num_draws) @ label_matrix
        powers: FloatArray = product[:, 0] * _FACTORIALS
        return powers

    # E S**-s = int u**(s - 1) E exp(-u S) du / Gamma(s). The coefficients of its series in s are,
    # up to signs and factorials, the moments of log S.
    grid = FULL_ACCURACY if sampled_sum.set_distributions is None else MOMENT_ACCURACY
    terms = integral_terms(sampled_sum, example, centre, grid)
    log_moments = [(terms.log_sum_terms * terms.log_u**k).sum() / _FACTORIALS[k] for k in range(6)]
    series = toeplitz(_INVERSE_GAMMA, np.zeros(6)) @ log_moments
    signs = (-1.0) ** np.arange(6)

    return np.append(1.0, signs * _FACTORIALS[1:] * series)


def _moments_of_set_sums(sets: Sets, terms: FloatArray, constant: float) -> FloatArray:
    """Return the moments ``E X**k`` (7,), k = 0 to 6, of a constant plus a sum over a random set.

    X is `constant` plus the sum of the `terms` (n,) of the classes in the set.
    """
    inclusion = sets.inclusion
    mean = constant + inclusion @ terms
    radius_unit = np.sqrt(mean**2 + inclusion @ terms**2)

    # compute the coefficients of the series of E exp(t X) in t from its values on a circle about 0
    t = _UNIT_CIRCLE / radius_unit
    values_on_circle = sets.means(np.exp(np.outer(t, terms)))[0] * np.exp(t * constant)

    # values at conj(t) are the conjugates of those at t: average both estimates
    mean_values = 0.5 * (values_on_circle + values_on_circle[::-1].conj())
    powers: FloatArray = (
        np.array([(mean_values * t**-k).mean().real for k in range(7)]) * _FACTORIALS
    )
    return powers
