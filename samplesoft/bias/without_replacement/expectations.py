"""Expectations of p' and of log S for draws from independent strata, as integrals over log u."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.summation import EPS
from samplesoft.bias.without_replacement.terms import (
    NodeRule,
    SumTerms,
    double_exponential_node,
    integrand_changes,
    log_mean_and_scale,
    quadrature_nodes,
)

# log(u w) is clipped at this value, where u w is finite and exp(-u w) is already 0
_LARGEST_LOG_DECAY = 690.0
_MIN_SURVIVAL = 1e-20  # the nodes in u end when E exp(-u S) is smaller


class SetExpectations(NamedTuple):
    """Expectations over the drawn sets, for N classes with weights w_k.

    The three rows are computed by all nodes, by every second node in u, and by every second node
    in t; their differences estimate the errors of the quadrature.
    """

    # (3, N) E[w_k / S 1{k drawn}], the expectation of p' from the draws
    expected_probs: FloatArray
    # (3,) E[label's fixed term / S], the expectation of p' from this term
    expected_base_prob: FloatArray
    # (3,) E[log S], with S in units of exp(logit) of the term at `SumTerms.reference_index`
    expected_log_sum: FloatArray
    # absolute error of `expected_log_sum` that comes from errors of E[exp(-u S)] at the nodes
    log_sum_rounding: float
    # sum of the magnitudes of the terms of `expected_log_sum`, for its rounding error
    log_sum_magnitude: float


class StratumDistribution(Protocol):
    """Protocol of a distribution over the draws from a stratum of N classes.

    The main implementation is `ExponentialRace`, for draws without replacement. Arrays with a first
    axis of length 2 hold results by two quadrature rules in t; the rows are equal if no t is used.
    """

    # (2, N) expected number of draws of each class; without replacement, its inclusion probability
    inclusion: FloatArray
    relative_error: float  # relative error of the expectations

    def expect_exponentials(
        self, decay: FloatArray, saddles: list[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return ``E[exp(-D)]`` (2,) and ``E[exp(-D) 1{k in set}]`` (2, N) for each class k.

        D is the sum of `decay` (N,) over the set, see `ExponentialRace.expect_exponentials`.
        """


class ReplacementDraws:
    """The distribution of m independent draws with replacement, in proportion to `q` (N,)."""

    def __init__(self, q: FloatArray, m: int) -> None:
        self._q = q / q.sum()
        self._m = m
        self.inclusion = np.stack([m * self._q] * 2)  # expected numbers of draws
        self.relative_error = (8.0 + m) * EPS

    def expect_exponentials(
        self, decay: FloatArray, saddles: list[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return ``E[exp(-D)]`` (2,) and, for each class k, ``E[exp(-D) N_k]`` (2, N).

        N_k is the number of draws of class k, and D the sum of `decay` (N,) over all draws.
        """
        terms = self._q * np.exp(-decay)
        total = float(terms.sum())
        return np.full(2, total**self._m), np.stack([self._m * terms * total ** (self._m - 1)] * 2)


class AllClassesDrawn:
    """The distribution of a stratum from which all N classes are drawn."""

    def __init__(self, q: FloatArray) -> None:
        self.inclusion = np.ones((2, len(q)))
        self.relative_error = 8.0 * EPS

    def expect_exponentials(
        self, decay: FloatArray, saddles: list[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return exp(-D) (2,) and its copies (2, N), D the sum of `decay`: nothing is random."""
        exponential = math.exp(-float(decay.sum()))
        return np.full(2, exponential), np.full((2, len(decay)), exponential)


def expected_probs_and_log_sum(
    groups: Sequence[StratumDistribution], terms: SumTerms, rule: NodeRule | None = None
) -> SetExpectations:
    """Return expectations of p' and log S; S is the label's fixed term plus all strata's draws.

    `groups` are the distributions of the draws from each stratum; strata are independent. `terms`
    are the terms of S: of the classes of all strata in this order, and at last the label's fixed
    term.
    `rule` chooses the nodes in log u: `double_exponential_node` (the default) or
    `equidistant_node`.
    """
    edges = np.cumsum([0, *(len(group.inclusion[0]) for group in groups)])
    slices = [slice(*pair) for pair in zip(edges[:-1], edges[1:], strict=True)]
    reference, log_scale = log_mean_and_scale(terms)

    expected_probs = np.zeros((3, edges[-1]))
    expected_base_prob = np.zeros(3)
    expected_log_sum = np.full(3, reference)

    log_sum_rounding = abs(reference) * EPS
    relative_error = sum(group.relative_error for group in groups)
    log_sum_magnitude = abs(reference)

    saddles: list[list[FloatArray]] = [[] for _ in groups]
    survival = np.ones(2)
    nodes_left = 2

    for node in quadrature_nodes(terms, reference, log_scale, rule or double_exponential_node):
        members = np.zeros((2, edges[-1]))
        base_term = np.zeros(2)
        weight, even_weight, _ = node.weights

        if integrand_changes(node.log_decay):
            decay = np.exp(np.minimum(node.log_decay, _LARGEST_LOG_DECAY))
            expectations = [
                group.expect_exponentials(decay[classes], previous_saddles)
                for group, classes, previous_saddles in zip(groups, slices, saddles, strict=True)
            ]

            survival = np.full(2, math.exp(-decay[-1]))
            for factor, _ in expectations:
                survival = survival * factor

            for g, classes in enumerate(slices):
                other_factor = np.full(2, math.exp(-decay[-1]))
                for h, (factor, _) in enumerate(expectations):
                    other_factor *= factor if h != g else 1.0
                members[:, classes] = expectations[g][1] * other_factor[:, None]

            members *= decay[:-1]
            base_term = decay[-1] * survival

        log_sum_term = math.exp(-math.exp(min(node.log_mean, _LARGEST_LOG_DECAY))) - survival
        log_sum_rounding += weight * relative_error * survival[0]
        log_sum_magnitude += weight * abs(float(log_sum_term[0]))

        for total, term in (
            (expected_probs, members),
            (expected_base_prob, base_term),
            (expected_log_sum, log_sum_term),
        ):
            total[0] += weight * term[0]
            total[1] += even_weight * term[0]
            total[2] += weight * term[1]

        # stop one node later than needed: the rule with every second node may not have this one
        nodes_left = nodes_left - 1 if survival[0] < _MIN_SURVIVAL and node.log_mean > 4.0 else 2
        if not nodes_left:
            break

    return SetExpectations(
        expected_probs, expected_base_prob, expected_log_sum, log_sum_rounding, log_sum_magnitude
    )
