r"""The exact means of a loss and of its gradient in the logits.

With S the random sum of a loss, E log S and the mean parts of classes in S are one integral over
``L(u) = E exp(-u S)``, that of `samplesoft.bias.plain` for mixtures of products,

    E log S = int (exp(-u) - L(u)) du / u,
    E (w_j N_j / S) = -int dL / d log w_j du / u,

where class j is drawn N_j times, each with the mass w_j: its part in S is the gradient of log S in
its logit. For sets of classes L(u) is that of `samplesoft.bias.without_replacement.sets`. In
x = log u all integrands are smooth and decay exponentially, or faster, to both sides, so that sums
over equal steps have all digits.
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
    """The nodes of an integral over log u, and with them how many digits it has.

    The error of a `step` is about exp(-2 pi 1.4 / step), and of a sum that goes to `left_margin` before
    the transform falls exp(-left). With `uses_expm1` ``L(u) - 1`` has them where u is small too.
    """

    step: float
    left_margin: float
    uses_expm1: bool = False


FULL_ACCURACY = IntegrationGrid(step=0.2, left_margin=45.0, uses_expm1=True)  # errors below 1e-19
_HIGH_ACCURACY = IntegrationGrid(step=0.3, left_margin=30.0)  # 1e-12
_SET_ACCURACY = IntegrationGrid(step=0.5, left_margin=18.0)  # 1e-7
MOMENT_ACCURACY = IntegrationGrid(step=0.4, left_margin=36.0)  # of sets: higher moments need more
_RIGHT = 4.5  # where what is left is below 1e-19
_BLOCK = 1 << 16  # numbers in an array of some u and all classes, which a cache holds
_FEW_CLASSES = 64  # whose means have all digits, for little time; of others they have 12
_MAX_LOGIT = 600.0  # of classes that are hardly ever drawn: u w is finite
_NO_PROBABILITY = 1e-19
_LOWEST = -1e300


class Means(NamedTuple):
    """Means over the draws: of the losses (E,), and of their gradients in the logits (E, n)."""

    losses: FloatArray
    d_logits: FloatArray

    def observed_means(
        self, problem: Problem, num_gradients: int, weighting: Weighting = OWN_WEIGHTS
    ) -> FloatArray:
        """Return the means (K,) of the losses, and of those gradients that an `Observer` sees.

        Losses and gradients in h are divided by the weights of their examples.
        """
        own = problem.weights
        known = {"own": own, "first": np.full_like(own, own[0]), "none": np.ones_like(own)}
        of_loss = known[weighting.losses]
        of_h = known[weighting.in_h]
        of_classes = known[weighting.in_classes]
        d_logits = self.d_logits * (of_h / own)[:, None]
        dh = problem.tau * d_logits @ problem.class_embeddings
        d_logits = self.d_logits * of_classes[:, None]
        rows = np.arange(len(d_logits))
        d_logits[rows, problem.labels] += (1.0 - weighting.label_fraction) * of_classes
        of_rows = problem.tau * d_logits.T @ problem.h
        if (
            problem.has_unit_vectors
        ):  # the part along a vector that is divided by its norm changes nothing
            dh = dh - (dh * problem.h).sum(axis=1, keepdims=True) * problem.h
            rows_of = problem.class_embeddings
            of_rows = of_rows - (of_rows * rows_of).sum(axis=1, keepdims=True) * rows_of
        views = problem.view_directions / len(d_logits)
        parts = [self.losses * of_loss / own, dh, views.T @ of_rows, (d_logits @ views).sum(axis=0)]
        return np.concatenate([part.ravel() for part in parts[: 1 + num_gradients]])


def expectation(sums: Sequence[SampledSum]) -> Means:
    """Return the exact means of a loss whose sum is one of `sums`, by their weights."""
    found = [_expectation_of_sum(one) for one in sums]
    losses = np.sum(
        [one.probability * x.losses for one, x in zip(sums, found, strict=True)], axis=0
    )
    weights = [np.reshape(one.probability, (-1, 1)) for one in sums]
    d_logits = np.sum([w * x.d_logits for w, x in zip(weights, found, strict=True)], axis=0)
    return Means(losses, d_logits)


def _expectation_of_sum(one: SampledSum) -> Means:
    rows, labels = np.arange(len(one.labels)), one.labels
    if one.reduction == "logistic":
        # each draw adds log(1 + exp(x)), the label log(1 + exp(-x)): the mean is a plain sum
        x, counts = one.logits, one.num_draws * one.probs
        losses = (np.logaddexp(0.0, x) * counts).sum(axis=1) + np.logaddexp(0.0, -one.label_logit)
        d_logits = counts * np.exp(-np.logaddexp(0.0, -x))
        d_logits[rows, labels] -= one.label_derivative * np.exp(-np.logaddexp(0.0, one.label_logit))
        return Means(one.loss_factor * losses, one.gradient_factor * d_logits)
    mass = one.log_fixed_mass
    losses, of_certain = mass - one.label_logit, np.ones(len(rows))
    d_logits = np.zeros_like(one.logits)
    if one.num_draws:
        few = d_logits.shape[1] <= _FEW_CLASSES  # for which threads are not worth their start
        grid = _SET_ACCURACY if one.set_distributions else FULL_ACCURACY if few else _HIGH_ACCURACY
        over: Any = map if few else thread_map
        found = over(lambda e: integral_terms(one, int(e), 0.0, grid), rows)
        for e, terms in enumerate(found):
            losses[e] = terms.log_sum_terms.sum()
            of_certain[e] = terms.base_fraction
            d_logits[e] = terms.draw_fractions
    if one.detaches_draws:
        d_logits[:] = 0.0
    # d(log S - own) / do: parts of S, less 1 at the label
    if one.has_constant_hits:  # a constant has no gradient, however much of S it is
        d_logits[rows, labels] = 0.0
    if one.always_included_logits is not None:
        d_logits += of_certain[:, None] * np.exp(one.always_included_logits - mass[:, None])
    of_label = of_certain * np.exp(one.log_label_mass - np.maximum(mass, _LOWEST)) - 1.0
    d_logits[rows, labels] += one.label_derivative * of_label
    return Means(one.loss_factor * losses, one.gradient_factor * d_logits)


def label_smoothing_terms(one: SampledSum, times: FloatArray, x: FloatArray, follow: bool) -> Means:
    """Return the terms of label smoothing with the whole target spread over label and draws.

    `x` (E, n) are the logits of classes that occur `times` (E, n) in addition to the label. Logits
    of draws of the label `follow` the label's logit, or are constants.
    """
    rows, num = np.arange(len(x)), 1.0 + times.sum(axis=1)
    # the smoothed target puts the same weight on each candidate
    candidates = (one.label_logit + (times * x).sum(axis=1)) / num
    d_logits = -times / num[:, None]
    if not follow:
        d_logits[rows, one.labels] = 0.0
    d_logits[rows, one.labels] += 1.0 - 1.0 / num
    return Means(one.label_logit - candidates, d_logits)


# the integral ------------------------------------------------------------------------------------

MixtureComponent = tuple[float, list[tuple[FloatArray, FloatArray, int]]]


class IntegralTerms(NamedTuple):
    """The integral of one example, of S divided by exp(own + centre).

    `log_u` (K,) are the nodes, and `log_sum_terms` (K,) the terms of E log S there; `base_fraction` is the mean
    part of the base in S, and `draw_fractions` (n,) are those of classes by their draws.
    """

    log_u: FloatArray
    log_sum_terms: FloatArray
    base_fraction: float
    draw_fractions: FloatArray


def integral_terms(one: SampledSum, e: int, centre: float, grid: IntegrationGrid) -> IntegralTerms:
    """Return the terms of the integral for example e."""
    sets = None if one.set_distributions is None else one.set_distributions[e]
    shift = one.label_logit[e] + centre
    weights = np.exp(np.minimum(one.logits[e] - shift, _MAX_LOGIT))
    base = float(np.exp(one.log_fixed_mass[e] - shift))
    largest = base + (one.num_draws * weights.max() if sets is None else weights.sum())
    least = base if base > 0.0 else weights[(one.probs[e] > 0.0) & (weights > 0.0)].min()
    # the transform falls between the largest and the least S that can come
    start = -np.log(max(largest, 1.0)) - grid.left_margin
    log_u = np.arange(start, -np.log(min(least, 1.0)) + _RIGHT, grid.step)
    u = np.exp(log_u)
    if sets is not None:
        means, parts = sets.means(np.exp(np.outer(-u, weights)))
        remaining = np.exp(-u * base)
        log_sum_terms = grid.step * (np.exp(-u) - remaining * means.real)
        measure = grid.step * u * remaining
        base_fraction = float(measure @ means.real) * base
        return IntegralTerms(log_u, log_sum_terms, base_fraction, weights * (measure @ parts.real))
    products = _mixture_components(one, e, weights)
    minus_1 = np.expm1 if grid.uses_expm1 else _fast_expm1
    terms: list[FloatArray] = []
    base_fraction, draw_fractions = 0.0, np.zeros_like(weights)
    for part in np.array_split(u, 1 + len(u) * len(weights) // _BLOCK):
        found = mixture(products, base, part, grid.step, minus_1)  # type: ignore[no-untyped-call]
        terms.append(found[0])
        base_fraction += found[1]
        draw_fractions += found[2]
    return IntegralTerms(log_u, np.concatenate(terms), base_fraction, draw_fractions)


def _fast_expm1(x: FloatArray) -> FloatArray:
    """Return exp(x) - 1: faster than expm1, but without the last digits for small x."""
    value: FloatArray = np.exp(x) - 1.0
    return value


def _mixture_components(one: SampledSum, e: int, weights: FloatArray) -> list[MixtureComponent]:
    """Return the mixture of products that is the transform of example e.

    Each component is a probability and factors: the distribution (n,) of draws, the masses (n,)
    that draws add, and the number of draws. See `samplesoft.bias.plain.mixture`.
    """
    probs, m, label = one.probs[e], one.num_draws, one.labels[e]
    if one.reduction == "twice":
        return [(1.0, [(probs, 2.0 * weights, 1), (probs, weights, m - 1)])]
    if one.reduction == "jackknife":  # m losses of all draws, less m - 1 of all but one
        all_but_one = (probs, weights * m / (m - 1), m - 1)
        return [(m, [(probs, weights, m)]), (1.0 - m, [all_but_one])]
    if one.reduction == "kept":  # over the number of draws with weight, by which they are divided
        kept = probs[weights > 0.0].sum()
        of_kept = np.where(weights > 0.0, probs, 0.0) / kept
        return [(p, [(of_kept, weights / (k or 1), k)]) for k, p in _likely_success_counts(m, kept)]
    if one.reduction == "one hit less":  # over the number of hits, all but one of which count
        hit = np.zeros_like(probs)
        hit[label] = 1.0
        others = probs * (1.0 - hit) / (1.0 - probs[label])
        return [
            (p, [(others, weights, m - k), (hit, abs(k - 1) * weights, min(k, 1))])
            for k, p in _likely_success_counts(m, probs[label])
        ]
    return [(1.0, [(probs, weights, m)])]


def _likely_success_counts(m: int, probability: float) -> list[tuple[int, float]]:
    """Return the probable numbers of successes in m trials, with their probabilities."""
    found = binom.pmf(np.arange(m + 1), m, probability)
    return [(k, p) for k, p in enumerate(found) if p > _NO_PROBABILITY]
