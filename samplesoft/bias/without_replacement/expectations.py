"""Expectations of 1/S and of log S for draws from independent strata: integrals over log u."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.numerics.summation import EPS
from samplesoft.bias.without_replacement.terms import (
    Rule,
    Terms,
    changes,
    nodes_of,
    scales_of_sum,
    steps,
)

_LARGEST_LOG_DECAY = 690.0  # log of u w: exp of it is finite, and exp(-u w) is 0
_LEAST_SURVIVAL = 1e-20  # E exp(-u S), below which no node in u follows


class Sums(NamedTuple):
    """Expectations over the sets: by all nodes, by half of those in u, by half of those in t."""

    shares: FloatArray  # (3, N) E[w_k I_k / S]
    base: FloatArray  # (3,) E[base / S]
    log_sum: FloatArray  # (3,) E[log S], S measured from the logit of `Terms.top`
    log_noise: float  # rounding error of that
    log_size: float  # and the size of what it is made of


class StratumDistribution(Protocol):
    """A distribution over the draws of a stratum; see `ExponentialRace`."""

    inclusion: FloatArray
    noise: float

    def expect(self, decay: FloatArray, saddles: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return what `ExponentialRace.expect` does."""


class Draws:
    """The distribution of m draws with replacement, in proportion to `q` (N,)."""

    def __init__(self, q: FloatArray, m: int) -> None:
        self._q, self._m = q / q.sum(), m
        self.inclusion = np.stack([m * self._q] * 2)  # how often they are drawn, as the mean
        self.noise = (8.0 + m) * EPS

    def expect(self, decay: FloatArray, saddles: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return what `ExponentialRace.expect` does; a class counts as often as it is drawn."""
        one = self._q * np.exp(-decay)
        total = float(one.sum())
        return np.full(2, total**self._m), np.stack([self._m * one * total ** (self._m - 1)] * 2)


class DrawAll:
    """The distribution of a stratum from which all N classes are drawn."""

    def __init__(self, q: FloatArray) -> None:
        self.inclusion, self.noise = np.ones((2, len(q))), 8.0 * EPS

    def expect(self, decay: FloatArray, saddles: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return what `ExponentialRace.expect` does."""
        every = math.exp(-float(decay.sum()))
        return np.full(2, every), np.full((2, len(decay)), every)


def expect_terms(
    groups: Sequence[StratumDistribution], terms: Terms, rule: Rule | None = None
) -> Sums:
    """Return expectations where S is a base plus the draws of independent strata.

    `terms` are the terms of the classes of all strata, and last the base. `rule` is `steps` (the
    default) or `even_steps`.
    """
    edges = np.cumsum([0, *(len(group.inclusion[0]) for group in groups)])
    parts = [slice(*pair) for pair in zip(edges[:-1], edges[1:], strict=True)]
    reference, log_scale = scales_of_sum(terms)
    shares, base, log_sum = np.zeros((3, edges[-1])), np.zeros(3), np.full(3, reference)
    log_noise, noise = abs(reference) * EPS, sum(group.noise for group in groups)
    log_size = abs(reference)
    saddles: list[list[FloatArray]] = [[] for _ in groups]
    survival, left = np.ones(2), 2
    for node in nodes_of(terms, reference, log_scale, rule or steps):
        members, of_base = np.zeros((2, edges[-1])), np.zeros(2)
        weight, even, _ = node.weights
        if changes(node.log_decay):
            decay = np.exp(np.minimum(node.log_decay, _LARGEST_LOG_DECAY))
            found = [
                group.expect(decay[part], before)
                for group, part, before in zip(groups, parts, saddles, strict=True)
            ]
            survival = np.full(2, math.exp(-decay[-1]))
            for one, _ in found:
                survival = survival * one
            for g, part in enumerate(parts):
                rest = np.full(2, math.exp(-decay[-1]))
                for h, (one, _) in enumerate(found):
                    rest *= one if h != g else 1.0
                members[:, part] = found[g][1] * rest[:, None]
            members *= decay[:-1]
            of_base = decay[-1] * survival
        fall = math.exp(-math.exp(min(node.log_mean, _LARGEST_LOG_DECAY))) - survival
        log_noise += weight * noise * survival[0]
        log_size += weight * abs(float(fall[0]))
        for total, one in (shares, members), (base, of_base), (log_sum, fall):
            total[0] += weight * one[0]
            total[1] += even * one[0]
            total[2] += weight * one[1]
        # one node more than the last, for half of the nodes
        left = left - 1 if survival[0] < _LEAST_SURVIVAL and node.log_mean > 4.0 else 2
        if not left:
            break
    return Sums(shares, base, log_sum, log_noise, log_size)
