"""The terms of the sum S over a set of draws, and the nodes in log u of the integral (B2) for 1/S.

The logs of the terms may differ by any amount, so each term is stored as the log of its ratio to a
reference. Where u is far from 1 / w for all terms w, exp(-u S) does not change with u. A single
node then represents the whole range of log u up to the 1 / w of the next term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.numerics.summation import LARGEST_FLOAT, softmax_and_other_mass
from samplesoft.schemes import Scheme

_LOG_U_STEP = 0.2  # the error of the trapezoid rule is about exp(-pi**2 / step)
_FIRST_Z = -3.6  # z of the first node of (B24), where x = z - exp(-z) is -40
_FIRST_EVEN_LOG_U = -44.0  # x (log u plus the log scale of S) of the first equidistant node
_LOG_U_TO_LARGEST_TERM = 1.5  # at x = 0, u is exp(-1.5) / max(largest term, E[S])
_LOG_DECAY_OF_ONE = -42.0  # where log(u w) is at most this, exp(-u w) counts as 1
_LOG_DECAY_OF_ZERO = 6.7  # where log(u w) is at least this, exp(-u w) counts as 0
_EVEN_FROM_LOG_U = 40.0  # from this x on, both rules have equidistant nodes of equal weights

# if the logs of two terms differ by more than this, the smaller term is negligible in their sum
_NEGLIGIBLE_NATS = 60.0

# largest range of log u of which a whole number of pairs of nodes is skipped; a longer one is
# skipped as it is, because x has no digits left for single nodes
_MAX_COUNTED_NATS = 1e14

# a term with a smaller expected count in S affects no digit of p'
_RARE_COUNT = 1e-22


class SumTerms(NamedTuple):
    """The k terms exp(logit) / divisor that may occur in the sum S; they may differ by any factor.

    The last term is the label's fixed term in S, which is not drawn.
    """

    logits: FloatArray  # (k,)
    log_divisors: FloatArray  # (k,) infinite for a term that is never in S
    counts: FloatArray  # (k,) expected number of times that each term is in S

    def log_ratios_to(self, origin: int) -> FloatArray:
        """Return ``log(term / term[origin])`` (k,) for each term.

        Differences of `log_terms` would lose digits for terms far below the reference term. So the
        original logits are subtracted.
        """
        divisors = self.log_divisors

        # a term that is never in S has an infinite log divisor; infinity - infinity would be NaN
        divisor_logs = np.where(divisors < np.inf, divisors - divisors[origin], np.inf)

        with np.errstate(over="ignore"):
            logit_differences = np.clip(
                self.logits - self.logits[origin], -LARGEST_FLOAT, LARGEST_FLOAT
            )
        logs: FloatArray = logit_differences - divisor_logs
        return logs

    @property
    def reference_index(self) -> int:
        """Index of the term whose logit is subtracted in `log_terms`.

        It is the term with the largest logit among those that are not rare. A rare term may be so
        much larger that, relative to it, the differences between the others would be rounded away.
        """
        is_possible = self.log_divisors < np.inf
        is_frequent = is_possible & (self.counts > _RARE_COUNT)
        is_candidate = is_frequent if is_frequent.any() else is_possible
        return int(np.where(is_candidate, self.logits, -np.inf).argmax())

    @property
    def log_terms(self) -> FloatArray:
        """Logs (k,) of the terms minus the logit at `reference_index`; -inf if never in S."""
        with np.errstate(over="ignore"):
            logit_differences = np.clip(
                self.logits - self.logits[self.reference_index], -LARGEST_FLOAT, LARGEST_FLOAT
            )
        logs: FloatArray = logit_differences - self.log_divisors
        return logs

    @property
    def max_log_magnitude(self) -> float:
        """Bound on the magnitude of a log of a term, from which its rounding error is estimated.

        It is the largest range of logits in a group, plus the largest log divisor. A group ends
        where the log of the next term differs by more than `_NEGLIGIBLE_NATS`: an error in the
        distance between two groups affects no sum, because the smaller group is negligible.
        """
        kept = np.flatnonzero(self.log_divisors < np.inf)
        logits = self.logits[kept]
        divisors = np.abs(self.log_divisors[kept])

        order = np.argsort(self.log_terms[kept])
        logits = logits[order]
        logs = self.log_terms[kept][order]

        starts = np.flatnonzero(np.append(True, np.diff(logs) > _NEGLIGIBLE_NATS))
        with np.errstate(over="ignore"):
            spans = np.maximum.reduceat(logits, starts) - np.minimum.reduceat(logits, starts)
        return float(spans.max() + divisors.max())


class ClassWeights(NamedTuple):
    """The weights in S of a draw of each class, and of the label's fixed term."""

    log_probs: FloatArray  # (n,) log-softmax
    probs: FloatArray  # (n,) softmax
    logits: FloatArray  # (n,) as the caller gave them
    log_divisors: FloatArray  # (n,) log of what a draw is divided by; infinite if its weight is 0
    label: int
    # log divisor of the label's fixed term, which is in S without being drawn; infinite if S has no
    # such term
    label_log_divisor: float

    def terms(self, drawn: IntArray, counts: FloatArray) -> SumTerms:
        """Return the terms of the classes `drawn` (k,), followed by the label's fixed term in S.

        `counts` (k,) are the expected numbers of draws of the classes.
        """
        ids = np.append(drawn, self.label)
        divisors = self.log_divisors[drawn]
        return SumTerms(
            self.logits[ids], np.append(divisors, self.label_log_divisor), np.append(counts, 1.0)
        )


def make_weights(
    logits: FloatArray, label: int, scheme: Scheme, divisors: FloatArray
) -> ClassWeights:
    """Return the weights of one example, whose draws are exp(`logits`) / `divisors` (n,) in S."""
    log_probs, probs, _ = softmax_and_other_mass(logits, label)
    with np.errstate(divide="ignore"):
        log_divisors = np.log(divisors)

    label_log_divisor = float(log_divisors[label]) if scheme.corrects_label else 0.0
    if not scheme.label_in_sum:
        label_log_divisor = np.inf
    if not scheme.draws_label:
        log_divisors[label] = np.inf

    return ClassWeights(log_probs, probs, logits, log_divisors, label, label_log_divisor)


# --- nodes in log u ------------------------------------------------------------------------------


def log_mean_and_scale(terms: SumTerms) -> tuple[float, float]:
    """Return log E[S], and the log of the scale of S.

    The log scale places the nodes: a `NodeRule` returns x, and log u is x minus the log scale. Both
    results are relative to the logit at `SumTerms.reference_index`.
    """
    logs = terms.log_terms
    is_frequent = (terms.counts > _RARE_COUNT) & (logs > -np.inf)
    largest = float(logs[is_frequent].max())
    log_mean = largest + math.log(
        float((terms.counts[is_frequent] * np.exp(logs[is_frequent] - largest)).sum())
    )
    return log_mean, max(largest, log_mean) + _LOG_U_TO_LARGEST_TERM


class QuadratureNode(NamedTuple):
    """A node in log u, or a range of nodes on which the integrand is constant."""

    log_decay: FloatArray  # (k,) log of u times each term
    log_mean: float  # log of u times E[S]
    # (3,) weight of the node in three sums: over all nodes in u, over every second one, and again
    # over all (for the results by every second node in t)
    weights: FloatArray


# A rule for nodes maps the index of a node to x (log u plus the log scale of S) and to the
# `QuadratureNode.weights`.
NodeRule = Callable[[int], tuple[float, FloatArray]]


def double_exponential_node(index: int) -> tuple[float, FloatArray]:
    """Return x and the weights (3,) of a node of the double exponential rule (B24)."""
    z = _FIRST_Z + index * _LOG_U_STEP
    left_tail = math.exp(-z)
    weight = _LOG_U_STEP * (1.0 + left_tail)
    even_weight = 2.0 * weight if index % 2 == 0 else 0.0
    return z - left_tail, np.array([weight, even_weight, weight])


def equidistant_node(index: int) -> tuple[float, FloatArray]:
    """Return x and the weights (3,) of a node of the equidistant rule, whose error bound is (B79).

    There is no sum over every second node: its weight is 0.
    """
    return index * _LOG_U_STEP + _FIRST_EVEN_LOG_U, np.array([_LOG_U_STEP, 0.0, _LOG_U_STEP])


def quadrature_nodes(
    terms: SumTerms, reference: float, log_scale: float, rule: NodeRule
) -> Iterator[QuadratureNode]:
    """Yield nodes in increasing log u, without end; the caller stops when E[exp(-u S)] is 0.

    `reference` and `log_scale` are the results of `log_mean_and_scale`. If a term w is many orders
    of magnitude larger than the next smaller one w', exp(-u S) does not change for u between 1 / w
    and 1 / w'. All nodes in this range are yielded as one node with the sum of their weights, so
    that the time does not grow with the range. After such a range log u has lost its digits, so
    that distances are measured from the next term instead.
    """
    logs = terms.log_terms
    near_mean = int(np.abs(logs - reference).argmin())
    mean_offset = reference - float(logs[near_mean])

    logs = logs - log_scale
    origin = 0.0
    index = 0
    while True:
        x, weights = rule(index)
        log_decay = logs + (x - origin)
        log_mean = float(log_decay[near_mean]) + mean_offset
        yield QuadratureNode(log_decay, log_mean, weights)
        index += 1

        # the terms w with exp(-u w) = 1 at this node, which matter at larger u
        is_ahead = log_decay <= _LOG_DECAY_OF_ONE
        mean_is_ahead = log_mean <= _LOG_DECAY_OF_ONE
        is_ahead &= log_decay > -np.inf
        if (
            x < _EVEN_FROM_LOG_U
            or integrand_changes(np.append(log_decay, log_mean))
            or not is_ahead.any()
        ):
            continue

        next_log = max(float(log_decay[is_ahead].max()), log_mean if mean_is_ahead else -np.inf)
        distance = min(_LOG_DECAY_OF_ONE - next_log, LARGEST_FLOAT)
        if distance <= 2.0 * _LOG_U_STEP:
            continue

        # skip whole pairs of nodes, so that nodes with an even index keep one
        skipped = distance
        if distance < _MAX_COUNTED_NATS:
            skipped = 2.0 * _LOG_U_STEP * math.floor(0.5 * distance / _LOG_U_STEP)

        pair_weights = weights + rule(index)[1]
        yield QuadratureNode(log_decay, log_mean, pair_weights * (0.5 / _LOG_U_STEP) * skipped)

        logs = _logs_relative_to_largest(terms, log_decay, is_ahead)
        origin = x
        next_log = float(logs[is_ahead].max())
        if mean_is_ahead:
            next_log = max(next_log, float(logs[near_mean]) + mean_offset)
        logs += _LOG_DECAY_OF_ONE - (distance - skipped) - next_log


def _logs_relative_to_largest(
    terms: SumTerms, log_decay: FloatArray, is_ahead: NDArray[np.bool_]
) -> FloatArray:
    """Return the logs (k,) of all terms, relative to the largest term marked in `is_ahead`."""
    origin = int(np.where(is_ahead, log_decay, -np.inf).argmax())
    logs = terms.log_ratios_to(origin)

    # `log_decay` may have rounded away small differences, so that another term is the largest
    largest = int(np.where(is_ahead, logs, -np.inf).argmax())
    return logs if largest == origin else terms.log_ratios_to(largest)


def integrand_changes(log_decay: FloatArray) -> bool:
    """Return whether exp(-u S) changes with u at a node, given `log_decay` (k,) of its terms.

    It does not if exp(-u w) is 1 or 0, to within rounding, for each term w.
    """
    return bool(((log_decay > _LOG_DECAY_OF_ONE) & (log_decay < _LOG_DECAY_OF_ZERO)).any())
