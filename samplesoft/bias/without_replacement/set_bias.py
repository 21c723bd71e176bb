"""The exact bias of one example, for draws without replacement or from several strata."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.inputs import Example
from samplesoft.bias.numerics.quadrature import ExampleBias, estimate_error, relative_term_error
from samplesoft.bias.numerics.summation import EPS, softmax_and_other_mass
from samplesoft.bias.without_replacement.expectations import (
    AllClassesDrawn,
    ReplacementDraws,
    StratumDistribution,
    expected_probs_and_log_sum,
)
from samplesoft.bias.without_replacement.race import ExponentialRace
from samplesoft.bias.without_replacement.terms import SumTerms, make_weights
from samplesoft.schemes import Scheme

# probabilities below it are near the subnormal numbers, which have fewer digits
_MIN_PROB_WITH_ALL_DIGITS = 1e-290

# (number of draws from each stratum, index (n,) of the stratum that each class belongs to)
Strata = tuple[Sequence[int], IntArray]


def set_bias(
    example: Example, num_sampled: int, scheme: Scheme, correction: FloatArray | None = None
) -> ExampleBias:
    """Return the exact bias of one example for draws without replacement.

    A draw is divided by the `correction` (n,) of its class; by default, by the probability that the
    class is drawn.
    """
    return strata_bias(example, _one_stratum(example, num_sampled), scheme, correction)


def set_distribution(
    example: Example, num_sampled: int, scheme: Scheme
) -> tuple[StratumDistribution, IntArray]:
    """Return the distribution of the drawn set of one example, and the N classes it may contain."""
    ((group, ids),) = _strata_distributions(example, _one_stratum(example, num_sampled), scheme)
    return group, ids


def _one_stratum(example: Example, num_sampled: int) -> Strata:
    """Return a single stratum that contains all classes."""
    return (num_sampled,), np.zeros(len(example[2]), np.int64)


def strata_bias(
    example: Example, strata: Strata, scheme: Scheme, correction: FloatArray | None
) -> ExampleBias:
    """Return the exact bias of one example for separate draws from each stratum of classes.

    A draw is divided by the `correction` (n,) of its class; by default, by the expected number of
    draws of the class, which without replacement is the probability that it is drawn.
    """
    logits, label, _ = example
    return bias_of_distributions(
        logits, label, scheme, _strata_distributions(example, strata, scheme), correction
    )


def _strata_distributions(
    example: Example, strata: Strata, scheme: Scheme
) -> list[tuple[StratumDistribution, IntArray]]:
    """Return (distribution of its draws, indices of its classes) for each stratum with draws."""
    _, label, q = example
    can_be_drawn = q > 0.0
    if scheme.excludes_label:
        can_be_drawn[label] = False

    counts, stratum = strata
    draws: list[tuple[StratumDistribution, IntArray]] = []
    for g, count in enumerate(counts):
        ids = np.flatnonzero(can_be_drawn & (stratum == g))
        if count and len(ids):
            draws.append((_make_distribution(q[ids], count, scheme), ids))

    return draws


def bias_of_distributions(
    logits: FloatArray,
    label: int,
    scheme: Scheme,
    draws: list[tuple[StratumDistribution, IntArray]],
    correction: FloatArray | None,
) -> ExampleBias:
    """Return the exact bias of one example, given the distribution of the draws of each stratum.

    `draws` has a pair (distribution, indices of its N classes) for each stratum. For `correction`,
    see `strata_bias`.
    """
    inclusion = np.zeros((2, len(logits)))
    for group, ids in draws:
        inclusion[:, ids] = group.inclusion

    divisors = inclusion[0] if correction is None else correction
    all_ids = np.concatenate([*(ids for _, ids in draws), np.empty(0, np.int64)])
    if all(isinstance(group, AllClassesDrawn) for group, _ in draws):
        return _bias_if_all_drawn(logits, label, scheme, all_ids, divisors)._replace(
            inclusion=inclusion[0]
        )

    weights = make_weights(logits, label, scheme, divisors)
    terms = weights.terms(all_ids, inclusion[0, all_ids])
    probs = weights.probs
    sums = expected_probs_and_log_sum([group for group, _ in draws], terms)

    expected = np.zeros((3, len(probs)))
    expected[:, all_ids] = sums.expected_probs
    expected[:, label] += sums.expected_base_prob

    # p' sums to 1, and its entries share a relative error: dividing by their sum removes it
    total = expected.sum(axis=1, keepdims=True)
    expected /= total
    bias = expected[0] - probs
    relative_error = relative_term_error(terms.max_log_magnitude)
    norm = float(np.abs(bias).sum())
    error = relative_error * (1.0 + norm) + 2.0 * abs(float(total[0, 0]) - 1.0)

    # `expected_log_sum` is relative to the logit at `reference_index`
    shift = float(weights.log_probs[np.append(all_ids, label)[terms.reference_index]])
    if scheme.corrects_label:
        shift += weights.label_log_divisor
    loss_error = (
        relative_error * (1.0 + sums.log_sum_magnitude) + sums.log_sum_rounding + EPS * abs(shift)
    )

    # quadrature errors, from the changes of the results with half of the nodes in u, and in t
    changes = [np.abs(expected[i] - expected[0]).sum() for i in (1, 2)]
    if correction is None:
        inclusion_change = np.abs(inclusion[1, all_ids] / inclusion[0, all_ids] - 1.0)
        changes.append((probs[all_ids] * inclusion_change).sum())
    for change in changes:
        error += estimate_error(float(change), 0.0, 1.0, 0.0)
    for coarse in sums.expected_log_sum[1:]:
        loss_error += estimate_error(abs(float(coarse - sums.expected_log_sum[0])), 0.0, 1.0, 0.0)

    # A rare set without the largest term may have a far smaller log S. An error in the probability
    # of this set changes the loss by the error times the difference in log S, which is at most the
    # range of the logits.
    loss_error += min(error, 2.0) * _logit_range(logits, terms)
    loss_bias = float(sums.expected_log_sum[0]) + shift

    # the L1 distance of two distributions is at most 2
    return ExampleBias(bias, probs, loss_bias, min(error, 2.0), float(loss_error), inclusion[0])


def _logit_range(logits: FloatArray, terms: SumTerms) -> float:
    """Return the largest logit minus the smallest logit of a term in S; inf on overflow."""
    min_logit = float(terms.logits[terms.log_divisors < np.inf].min())
    return float(logits.max()) - min_logit


def _bias_if_all_drawn(
    logits: FloatArray, label: int, scheme: Scheme, all_ids: IntArray, divisors: FloatArray
) -> ExampleBias:
    """Return the exact bias of one example if all classes in `all_ids` (k,) are always drawn.

    p' is then the softmax of ``o_j - log c_j`` over the classes in S, with the `divisors` c (n,).
    """
    log_probs, probs, _ = softmax_and_other_mass(logits, label)
    is_in_sum = np.zeros(len(probs), np.bool_)
    is_in_sum[all_ids] = True
    is_in_sum[label] = scheme.label_in_sum or (is_in_sum[label] and scheme.draws_label)

    draw_divisors = divisors.copy()
    loss_divisor = float(divisors[label]) if scheme.corrects_label else 1.0
    if not scheme.corrects_label and scheme.label_in_sum:
        draw_divisors[label] = 1.0
    elif scheme.label_is_a_draw and label in all_ids:
        # the label is in S twice, as a draw and as the fixed term
        draw_divisors[label] *= 0.5

    # p' - p cancels if all divisors c are nearly equal. With h the most probable class in S, the
    # gaps are d_j = (c_h - c_j) / c_j, and D is their mean under p. For |D| < 1/2 the bias is
    # computed as p_j (d_j - D) / (1 + D). For larger |D| the difference p' - p is accurate.
    heaviest = int(np.where(is_in_sum, logits, -np.inf).argmax())

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        gaps = np.where(is_in_sum, (draw_divisors[heaviest] - draw_divisors) / draw_divisors, -1.0)
        gap_terms = probs * gaps

        # A tiny probability has few digits. They matter where a tiny divisor makes the product of
        # probability and gap large, so this product is computed from logs.
        is_tiny = (probs < _MIN_PROB_WITH_ALL_DIGITS) & np.isfinite(gaps)
        gap_terms[is_tiny] = np.sign(gaps[is_tiny]) * np.exp(
            log_probs[is_tiny] + np.log(np.abs(gaps[is_tiny]))
        )

        mean_gap = float(gap_terms.sum())

    log_divisors = np.where(is_in_sum, np.log(np.where(is_in_sum, draw_divisors, 1.0)), np.inf)
    terms = SumTerms(logits, log_divisors, np.ones(len(logits)))
    relative_error = relative_term_error(terms.max_log_magnitude)

    if abs(mean_gap) < 0.5:
        magnitudes = np.abs(gap_terms)

        # rounding errors of p, of the gaps, and of their mean
        term_errors = 2.0 * (
            relative_term_error(0.0) * magnitudes
            + EPS * magnitudes * np.abs(np.maximum(log_probs, -1e4))
        )
        rounding = 2.0 * float(term_errors.sum()) / (1.0 + mean_gap)

        scaled_bias = np.where(is_tiny, gap_terms - probs * mean_gap, probs * (gaps - mean_gap))
        bias = scaled_bias / (1.0 + mean_gap)
        log_sum = math.log1p(mean_gap)
        error = loss_error = rounding
    else:
        logs = terms.log_ratios_to(heaviest)
        largest = float(logs.max())
        masses = np.exp(logs - largest)
        total = float(masses.sum())

        bias = masses / total - probs
        log_sum = float(log_probs[heaviest]) + largest + math.log(total)
        error = relative_error * float(np.abs(bias).sum() + 1.0)
        loss_error = relative_error + EPS * (abs(float(log_probs[heaviest])) + abs(largest))

    # `log_sum` is log(S c_h). The loss needs log(S c_t), t being the label; if the label is not
    # corrected, log S.
    divisor = draw_divisors[heaviest]
    relative_gap = (loss_divisor - divisor) / divisor
    if abs(relative_gap) < 0.5:
        log_ratio = math.log1p(relative_gap)
        loss_error += 2.0 * EPS * (abs(log_ratio) + abs(log_sum))
    else:
        log_ratio = math.log(loss_divisor) - math.log(divisor)
        loss_error += 2.0 * EPS * (abs(log_ratio) + abs(log_sum))
        loss_error += EPS * (abs(math.log(loss_divisor)) + abs(math.log(divisor)))

    if math.isinf(_logit_range(logits, terms)):
        loss_error = math.inf

    return ExampleBias(bias, probs, log_sum + log_ratio, min(error, 2.0), loss_error)


def _make_distribution(q: FloatArray, count: int, scheme: Scheme) -> StratumDistribution:
    """Return the distribution of `count` draws from N classes, in proportion to `q` (N,)."""
    if not scheme.distinct:
        return ReplacementDraws(q, count)
    return ExponentialRace(q, count) if count < len(q) else AllClassesDrawn(q)
