r"""The exact means of a loss and of its gradient in the logits.

Let S be the random sum of a loss. Class j is drawn N_j times, and each of its draws adds w_j to S.
The gradient of log S in the logit of class j is ``w_j N_j / S``, the fraction of S that its draws
have. The means of log S and of these fractions are integrals over the Laplace transform
``L(u) = E exp(-u S)``:

    E log S = int (exp(-u) - L(u)) du / u,
    E (w_j N_j / S) = -int dL / d log w_j du / u.

For independent draws `samplesoft.bias.plain` computes L(u), as a mixture of products; for sets of
classes `samplesoft.bias.without_replacement.sets` computes it. As functions of log u the integrands
are smooth and decay at least exponentially on both sides, so that sums over equal steps of log u
are exact to all digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom

from samplesoft._jit import thread_map
from samplesoft._validation import FloatArray
from samplesoft.bias.plain import mixture
from samplesoft.checking.estimators import OWN_WEIGHTS, SampledSum, Weighting
from samplesoft.checking.problems import Problem


class IntegrationGrid(NamedTuple):
    """The nodes in log u of an integral, which determine its error.

    `step` is the distance of the nodes. The first node is `left_margin` below the log u at which
    L(u) begins to fall. The relative error is about ``exp(-2 pi 1.4 / step) + exp(-left_margin)``.
    With `uses_expm1`, ``L(u) - 1`` is computed without a loss of digits for small u.
    """

    step: float
    left_margin: float
    uses_expm1: bool = False


FULL_ACCURACY = IntegrationGrid(step=0.2, left_margin=45.0, uses_expm1=True)  # error below 1e-19
_HIGH_ACCURACY = IntegrationGrid(step=0.3, left_margin=30.0)  # error of about 1e-12
_SET_ACCURACY = IntegrationGrid(step=0.5, left_margin=18.0)  # error of about 1e-7
MOMENT_ACCURACY = IntegrationGrid(step=0.4, left_margin=36.0)  # for moments of losses with sets
# The last node is this far above the log u at which L(u) has fallen; the rest of the integral is
# below 1e-19.
_RIGHT_MARGIN = 4.5
# largest number of values in an array over u and classes, so that it fits into a cache
_MAX_CHUNK_VALUES = 1 << 16
# largest number of classes with FULL_ACCURACY; with more, _HIGH_ACCURACY saves time
_MAX_CLASSES_FULL_ACCURACY = 64
# Larger logits, which only draws of very rare classes have, are lowered to this: u exp(logit) would
# overflow.
_MAX_LOGIT = 600.0
_MIN_PROBABILITY = 1e-19  # components of a mixture with a smaller probability are dropped
# replaces -inf in the log of a divisor, because -inf - (-inf) would be NaN
_MIN_LOG = -1e300


class Means(NamedTuple):
    """The mean losses (E,) over random draws, and the mean gradients in the logits (E, n)."""

    losses: FloatArray
    d_logits: FloatArray

    def observed_means(
        self, problem: Problem, num_gradients: int, weighting: Weighting = OWN_WEIGHTS
    ) -> FloatArray:
        """Return the means (K,) of the values that an `Observer` records: losses, then gradients.

        `num_gradients` says how many of the gradients in h, class vectors and biases the loss
        returns. `weighting` says which weights the loss multiplies by; losses and gradients in h
        are then divided by the weights of their examples, as in `Observer`.
        """
        example_weights = problem.weights
        weights_by_rule = {
            "own": example_weights,
            "first": np.full_like(example_weights, example_weights[0]),
            "none": np.ones_like(example_weights),
        }
        loss_weights = weights_by_rule[weighting.losses]
        h_weights = weights_by_rule[weighting.in_h]
        class_weights = weights_by_rule[weighting.in_classes]

        d_logits = self.d_logits * (h_weights / example_weights)[:, None]
        dh = problem.tau * d_logits @ problem.class_embeddings

        d_logits = self.d_logits * class_weights[:, None]

        rows = np.arange(len(d_logits))
        d_logits[rows, problem.labels] += (1.0 - weighting.label_fraction) * class_weights
        d_vectors = problem.tau * d_logits.T @ problem.h

        # if the loss divides vectors by their norms, gradients are orthogonal to the vectors
        if problem.has_unit_vectors:
            dh = dh - (dh * problem.h).sum(axis=1, keepdims=True) * problem.h
            vectors = problem.class_embeddings
            d_vectors = d_vectors - (d_vectors * vectors).sum(axis=1, keepdims=True) * vectors

        views = problem.view_directions / len(d_logits)
        values = [
            self.losses * loss_weights / example_weights,
            dh,
            views.T @ d_vectors,
            (d_logits @ views).sum(axis=0),
        ]

        return np.concatenate([value.ravel() for value in values[: 1 + num_gradients]])


def expectation(sums: Sequence[SampledSum]) -> Means:
    """Return the exact means of a loss whose random sum S is one of `sums`, at random.

    The means are averaged with the `probability` of each sum.
    """
    means = [_expectation_of_sum(sampled_sum) for sampled_sum in sums]
    losses = np.sum(
        [
            sampled_sum.probability * mean.losses
            for sampled_sum, mean in zip(sums, means, strict=True)
        ],
        axis=0,
    )

    weights = [np.reshape(sampled_sum.probability, (-1, 1)) for sampled_sum in sums]
    d_logits = np.sum(
        [weight * mean.d_logits for weight, mean in zip(weights, means, strict=True)], axis=0
    )

    return Means(losses, d_logits)


def _expectation_of_sum(sampled_sum: SampledSum) -> Means:
    """Return the exact means of the loss whose random sum is `sampled_sum`."""
    rows = np.arange(len(sampled_sum.labels))
    labels = sampled_sum.labels
    if sampled_sum.reduction == "logistic":
        # the loss is a sum: log(1 + exp(x)) for each draw, and log(1 + exp(-x)) for the label
        x = sampled_sum.logits
        counts = sampled_sum.num_draws * sampled_sum.probs
        losses = (np.logaddexp(0.0, x) * counts).sum(axis=1) + np.logaddexp(
            0.0, -sampled_sum.label_logit
        )
        d_logits = counts * np.exp(-np.logaddexp(0.0, -x))
        d_logits[rows, labels] -= sampled_sum.label_derivative * np.exp(
            -np.logaddexp(0.0, sampled_sum.label_logit)
        )
        return Means(sampled_sum.loss_factor * losses, sampled_sum.gradient_factor * d_logits)

    log_mass = sampled_sum.log_fixed_mass
    losses = log_mass - sampled_sum.label_logit
    included_fractions = np.ones(len(rows))
    d_logits = np.zeros_like(sampled_sum.logits)
    if sampled_sum.num_draws:
        # with few classes, starting threads takes longer than computing the integrals
        has_few_classes = d_logits.shape[1] <= _MAX_CLASSES_FULL_ACCURACY
        if sampled_sum.set_distributions:
            grid = _SET_ACCURACY
        elif has_few_classes:
            grid = FULL_ACCURACY
        else:
            grid = _HIGH_ACCURACY

        map_examples: Any = map if has_few_classes else thread_map
        example_terms = map_examples(
            lambda example: integral_terms(sampled_sum, int(example), 0.0, grid), rows
        )
        for example, terms in enumerate(example_terms):
            losses[example] = terms.log_sum_terms.sum()
            included_fractions[example] = terms.base_fraction
            d_logits[example] = terms.draw_fractions

    if sampled_sum.detaches_draws:
        d_logits[:] = 0.0

    # the gradient of log S - label_logit is the fraction of each class in S, minus 1 at the label
    if sampled_sum.has_constant_hits:
        d_logits[rows, labels] = 0.0
    if sampled_sum.always_included_logits is not None:
        d_logits += included_fractions[:, None] * np.exp(
            sampled_sum.always_included_logits - log_mass[:, None]
        )

    label_terms = (
        included_fractions * np.exp(sampled_sum.log_label_mass - np.maximum(log_mass, _MIN_LOG))
        - 1.0
    )
    d_logits[rows, labels] += sampled_sum.label_derivative * label_terms

    return Means(sampled_sum.loss_factor * losses, sampled_sum.gradient_factor * d_logits)


def label_smoothing_terms(
    sampled_sum: SampledSum, counts: FloatArray, logits: FloatArray, hits_follow_label: bool
) -> Means:
    """Return the means that label smoothing adds to a loss and its gradient in the logits.

    They are for a smoothing fraction of 1, which spreads the target evenly over the label and the
    draws, and are proportional to this fraction. `counts` (E, n) are the expected numbers of draws
    of each class, and `logits` (E, n) the logits of these draws. With `hits_follow_label` the
    logits of accidental hits change with the label's logit; otherwise they are constants.
    """
    rows = np.arange(len(logits))
    num_candidates = 1.0 + counts.sum(axis=1)

    # the smoothed target puts the same weight on each candidate
    mean_logits = (sampled_sum.label_logit + (counts * logits).sum(axis=1)) / num_candidates
    d_logits = -counts / num_candidates[:, None]
    if not hits_follow_label:
        d_logits[rows, sampled_sum.labels] = 0.0
    d_logits[rows, sampled_sum.labels] += 1.0 - 1.0 / num_candidates
    return Means(sampled_sum.label_logit - mean_logits, d_logits)


# the integral ------------------------------------------------------------------------------------

MixtureComponent = tuple[float, list[tuple[FloatArray, FloatArray, int]]]


class IntegralTerms(NamedTuple):
    """The terms of an integral for E log S, where S is the random sum of one example.

    S is divided by ``exp(label_logit + centre)``, so that log S is the loss minus `centre`. `log_u`
    (K,) are the nodes, and `log_sum_terms` (K,) the terms of E log S at the nodes. `base_fraction`
    is the mean fraction of S from the terms that are always included, and `draw_fractions` (n,) are
    the mean fractions of S from draws of each class.
    """

    log_u: FloatArray
    log_sum_terms: FloatArray
    base_fraction: float
    draw_fractions: FloatArray


def integral_terms(
    sampled_sum: SampledSum, example: int, centre: float, grid: IntegrationGrid
) -> IntegralTerms:
    """Compute the terms of E log S, and mean fractions of S, for one example.

    `example` is its index in the sum's arrays. `centre` is subtracted from its loss; see
    `IntegralTerms`.
    """
    sets = None if sampled_sum.set_distributions is None else sampled_sum.set_distributions[example]
    shift = sampled_sum.label_logit[example] + centre
    weights = np.exp(np.minimum(sampled_sum.logits[example] - shift, _MAX_LOGIT))
    base = float(np.exp(sampled_sum.log_fixed_mass[example] - shift))
    max_sum = base + (sampled_sum.num_draws * weights.max() if sets is None else weights.sum())
    if base > 0.0:
        min_sum = base
    else:
        min_sum = weights[(sampled_sum.probs[example] > 0.0) & (weights > 0.0)].min()

    # L(u) falls from 1 to 0 where u S is about 1: between 1 / (largest S) and 1 / (smallest S)
    start = -np.log(max(max_sum, 1.0)) - grid.left_margin
    log_u = np.arange(start, -np.log(min(min_sum, 1.0)) + _RIGHT_MARGIN, grid.step)
    u = np.exp(log_u)

    if sets is not None:
        means, draw_means = sets.means(np.exp(np.outer(-u, weights)))
        remaining = np.exp(-u * base)
        log_sum_terms = grid.step * (np.exp(-u) - remaining * means.real)
        measure = grid.step * u * remaining
        base_fraction = float(measure @ means.real) * base
        return IntegralTerms(
            log_u, log_sum_terms, base_fraction, weights * (measure @ draw_means.real)
        )

    products = _mixture_components(sampled_sum, example, weights)
    minus_1 = np.expm1 if grid.uses_expm1 else _fast_expm1
    terms: list[FloatArray] = []
    base_fraction = 0.0
    draw_fractions = np.zeros_like(weights)

    for chunk in np.array_split(u, 1 + len(u) * len(weights) // _MAX_CHUNK_VALUES):
        chunk_terms = mixture(products, base, chunk, grid.step, minus_1)  # type: ignore[no-untyped-call]
        terms.append(chunk_terms[0])
        base_fraction += chunk_terms[1]
        draw_fractions += chunk_terms[2]

    return IntegralTerms(log_u, np.concatenate(terms), base_fraction, draw_fractions)


def _fast_expm1(x: FloatArray) -> FloatArray:
    """Return exp(x) - 1, faster than expm1 but with fewer digits for small x."""
    value: FloatArray = np.exp(x) - 1.0
    return value


def _mixture_components(
    sampled_sum: SampledSum, example: int, weights: FloatArray
) -> list[MixtureComponent]:
    """Return the Laplace transform of S for one example, as the components of a mixture.

    A component is (weight, factors), as `samplesoft.bias.plain.mixture` expects it. A factor stands
    for independent draws: it contains their probabilities (n,), the term (n,) that a draw of each
    class adds to S, and the number of draws.
    """
    probs = sampled_sum.probs[example]
    m = sampled_sum.num_draws
    label = sampled_sum.labels[example]
    if sampled_sum.reduction == "twice":
        return [(1.0, [(probs, 2.0 * weights, 1), (probs, weights, m - 1)])]

    # the jackknife: m times the loss of all draws, minus m - 1 times the loss of all but one
    if sampled_sum.reduction == "jackknife":
        all_but_one = (probs, weights * m / (m - 1), m - 1)
        return [(m, [(probs, weights, m)]), (1.0 - m, [all_but_one])]

    if sampled_sum.reduction == "kept":  # a component for each number of accepted draws
        accept_prob = probs[weights > 0.0].sum()
        accepted_probs = np.where(weights > 0.0, probs, 0.0) / accept_prob
        return [
            (p, [(accepted_probs, weights / (k or 1), k)])
            for k, p in _likely_success_counts(m, accept_prob)
        ]
    if sampled_sum.reduction == "one hit less":  # a component for each number of hits
        is_label = np.zeros_like(probs)
        is_label[label] = 1.0
        other_probs = probs * (1.0 - is_label) / (1.0 - probs[label])
        return [
            (p, [(other_probs, weights, m - k), (is_label, abs(k - 1) * weights, min(k, 1))])
            for k, p in _likely_success_counts(m, probs[label])
        ]

    return [(1.0, [(probs, weights, m)])]


def _likely_success_counts(m: int, probability: float) -> list[tuple[int, float]]:
    """Return the binomial distribution of the successes in m trials, without negligible counts.

    An entry is (number of successes, its probability); `probability` is that of one success.
    """
    probs = binom.pmf(np.arange(m + 1), m, probability)
    return [(k, p) for k, p in enumerate(probs) if p > _MIN_PROBABILITY]
