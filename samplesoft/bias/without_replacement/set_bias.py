"""The exact bias of one example whose draws are a set, or sets of several strata."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.inputs import Example
from samplesoft.bias.numerics.quadrature import ExampleBias, estimate_error, rounding_at
from samplesoft.bias.numerics.summation import EPS, softmax_apart
from samplesoft.bias.without_replacement.expectations import (
    DrawAll,
    Draws,
    StratumDistribution,
    expect_terms,
)
from samplesoft.bias.without_replacement.race import ExponentialRace
from samplesoft.bias.without_replacement.terms import Terms, weigh
from samplesoft.schemes import Scheme

_MIN_PROB_WITH_ALL_DIGITS = 1e-290  # smaller values are near the subnormal numbers

Strata = tuple[Sequence[int], IntArray]


def set_bias(
    example: Example, num_sampled: int, scheme: Scheme, correction: FloatArray | None = None
) -> ExampleBias:
    """Return the exact bias of one example whose draws are a set of distinct classes.

    `correction` (n,) are divisors of draws in place of the inclusion probabilities.
    """
    return strata_bias(example, _one_stratum(example, num_sampled), scheme, correction)


def draws_of(
    example: Example, num_sampled: int, scheme: Scheme
) -> tuple[StratumDistribution, IntArray]:
    """Return the distribution of the drawn set of one example, and the indices of its classes."""
    ((group, which),) = _strata_draws(example, _one_stratum(example, num_sampled), scheme)
    return group, which


def _one_stratum(example: Example, num_sampled: int) -> Strata:
    return (num_sampled,), np.zeros(len(example[2]), np.int64)


def strata_bias(
    example: Example, strata: Strata, scheme: Scheme, correction: FloatArray | None
) -> ExampleBias:
    """Return the exact bias for draws from `strata`: draws in each, and stratum of each class (n,).

    With replacement a draw is divided by the expected number of draws of its class.
    """
    logits, label, _ = example
    return set_row(logits, label, scheme, _strata_draws(example, strata, scheme), correction)


def _strata_draws(
    example: Example, strata: Strata, scheme: Scheme
) -> list[tuple[StratumDistribution, IntArray]]:
    """Return the distribution of the draws of each stratum, and the indices of its classes."""
    _, label, q = example
    drawn = q > 0.0
    if scheme.excludes_label:
        drawn[label] = False
    counts, stratum = strata
    drawing: list[tuple[StratumDistribution, IntArray]] = []
    for g, count in enumerate(counts):
        which = np.flatnonzero(drawn & (stratum == g))
        if count and len(which):
            drawing.append((_make_distribution(q[which], count, scheme), which))
    return drawing


def set_row(
    logits: FloatArray,
    label: int,
    scheme: Scheme,
    drawing: list[tuple[StratumDistribution, IntArray]],
    correction: FloatArray | None,
) -> ExampleBias:
    """Return the exact bias of one example, given a distribution and class indices per stratum."""
    inclusion = np.zeros((2, len(logits)))
    for group, which in drawing:
        inclusion[:, which] = group.inclusion
    divisors = inclusion[0] if correction is None else correction
    every = np.concatenate([*(which for _, which in drawing), np.empty(0, np.int64)])
    if all(isinstance(group, DrawAll) for group, _ in drawing):
        return _bias_if_all_drawn(logits, label, scheme, every, divisors)._replace(
            inclusion=inclusion[0]
        )
    weights = weigh(logits, label, scheme, divisors)
    terms, probs = weights.terms(every, inclusion[0, every]), weights.probs
    sums = expect_terms([group for group, _ in drawing], terms)
    expected = np.zeros((3, len(probs)))
    expected[:, every] = sums.shares
    expected[:, label] += sums.base
    # normalise: all entries share the relative error by which the sum differs from 1
    total = expected.sum(axis=1, keepdims=True)
    expected /= total
    bias = expected[0] - probs
    unit, norm = rounding_at(terms.largest_log), float(np.abs(bias).sum())
    error = unit * (1.0 + norm) + 2.0 * abs(float(total[0, 0]) - 1.0)
    # log S is relative to the largest logit in S
    shift = float(weights.log_probs[np.append(every, label)[terms.top]])
    if scheme.corrects_label:
        shift += weights.shift
    loss_error = unit * (1.0 + sums.log_size) + sums.log_noise + EPS * abs(shift)
    changes = [np.abs(expected[i] - expected[0]).sum() for i in (1, 2)]
    if correction is None:
        moved = np.abs(inclusion[1, every] / inclusion[0, every] - 1.0)
        changes.append((probs[every] * moved).sum())
    for change in changes:
        error += estimate_error(float(change), 0.0, 1.0, 0.0)
    for coarse in sums.log_sum[1:]:
        loss_error += estimate_error(abs(float(coarse - sums.log_sum[0])), 0.0, 1.0, 0.0)
    # an error in the probability of a rare set without the largest term is multiplied by its loss
    # difference, at most the range in nats
    loss_error += min(error, 2.0) * _range(logits, terms)
    loss_bias = float(sums.log_sum[0]) + shift
    # the L1 distance of two distributions is at most 2
    return ExampleBias(bias, probs, loss_bias, min(error, 2.0), float(loss_error), inclusion[0])


def _range(logits: FloatArray, terms: Terms) -> float:
    """Return the largest logit minus the smallest logit in S; inf if that overflows."""
    least = float(terms.logits[terms.log_divisors < np.inf].min())
    return float(logits.max()) - least


def _bias_if_all_drawn(
    logits: FloatArray, label: int, scheme: Scheme, every: IntArray, divisors: FloatArray
) -> ExampleBias:
    """Return the exact bias of one example where all classes in `every` are always drawn.

    p' is the softmax of the logits ``o_j - log c_j`` with the `divisors` c (n,), over the classes
    in S.
    """
    log_probs, probs, _ = softmax_apart(logits, label)
    there = np.zeros(len(probs), np.bool_)
    there[every] = True
    there[label] = scheme.label_in_sum or (there[label] and scheme.draws_label)
    own, of_loss = divisors.copy(), float(divisors[label]) if scheme.corrects_label else 1.0
    if not scheme.corrects_label and scheme.label_in_sum:
        own[label] = 1.0
    elif scheme.label_is_a_draw and label in every:
        own[label] *= 0.5  # it is in S twice
    # p' - p cancels where all divisors are nearly equal. Take the most probable class h in S,
    # d_j = (c_h - c_j) / c_j and its mean D under p: the bias is p_j (d_j - D) / (1 + D). For
    # |D| >= 1/2 the plain difference p' - p is accurate.
    h = int(np.where(there, logits, -np.inf).argmax())
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        apart = np.where(there, (own[h] - own) / own, -1.0)
        parts = probs * apart
        # tiny probabilities have few digits, but a tiny divisor may make the product large
        tiny = (probs < _MIN_PROB_WITH_ALL_DIGITS) & np.isfinite(apart)
        parts[tiny] = np.sign(apart[tiny]) * np.exp(log_probs[tiny] + np.log(np.abs(apart[tiny])))
        gain = float(parts.sum())
    log_own = np.where(there, np.log(np.where(there, own, 1.0)), np.inf)
    terms = Terms(logits, log_own, np.ones(len(logits)))
    unit = rounding_at(terms.largest_log)
    if abs(gain) < 0.5:
        sizes = np.abs(parts)
        # rounding of p, of the quotients, and of their mean
        off = 2.0 * (rounding_at(0.0) * sizes + EPS * sizes * np.abs(np.maximum(log_probs, -1e4)))
        rounding = 2.0 * float(off.sum()) / (1.0 + gain)
        bias = np.where(tiny, parts - probs * gain, probs * (apart - gain)) / (1.0 + gain)
        log_sum = math.log1p(gain)
        error = loss_error = rounding
    else:
        logs = terms.above(h)
        largest = float(logs.max())
        masses = np.exp(logs - largest)
        total = float(masses.sum())
        bias = masses / total - probs
        log_sum = float(log_probs[h]) + largest + math.log(total)
        error = unit * float(np.abs(bias).sum() + 1.0)
        loss_error = unit + EPS * (abs(float(log_probs[h])) + abs(largest))
    # log S - log c_t, or log S
    ratio = (of_loss - own[h]) / own[h]
    near = abs(ratio) < 0.5
    log_ratio = math.log1p(ratio) if near else math.log(of_loss) - math.log(own[h])
    loss_error += 2.0 * EPS * (abs(log_ratio) + abs(log_sum))
    if not near:
        loss_error += EPS * (abs(math.log(of_loss)) + abs(math.log(own[h])))
    if math.isinf(_range(logits, terms)):
        loss_error = math.inf
    return ExampleBias(bias, probs, log_sum + log_ratio, min(error, 2.0), loss_error)


def _make_distribution(q: FloatArray, count: int, scheme: Scheme) -> StratumDistribution:
    if not scheme.distinct:
        return Draws(q, count)
    return ExponentialRace(q, count) if count < len(q) else DrawAll(q)
