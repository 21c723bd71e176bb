"""Second moments of the multilevel loss in each of its levels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.classes import Atoms, Classes, make_atoms, make_classes
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.levels import LevelMoments, no_moments
from samplesoft.bias.node_weights import compute_decay_rates, jensen_excess
from samplesoft.bias.quadrature import STEP
from samplesoft.bias.transform import Nodes, evaluate_nodes, make_nodes

_MOST_NODES = 1000


def loss_levels(law: DrawLaw, last: int) -> LevelMoments:
    """Return the moments for blocks of ``law.num_draws`` and a last level.

    They are nan where nodes are too many to take all pairs of them.
    """
    if law.is_certain:
        return no_moments(last)
    classes = make_classes(law)
    atoms = make_atoms(law, classes)
    typical, slowest = compute_decay_rates(law, classes)
    with np.errstate(under="ignore", over="ignore"):
        nodes = make_nodes(law, classes, atoms, typical + last * math.log(2.0), slowest, STEP)
        if len(nodes.x) > _MOST_NODES:
            unknown = np.full(last + 1, np.nan)
            return LevelMoments(unknown, unknown, np.nan, np.nan)
        of = _make_covariances(law, classes, atoms, nodes)
        return _climb(of, float(law.num_draws), last)


def _climb(of: _Covariances, m: float, last: int) -> LevelMoments:
    """Go through the levels, each from the moments of half as many draws."""
    bias = below = of.bias(m)
    block_variance = variance_below = covariance = of.draws(m, m)
    squares, covariances = [], []
    for count in m * 2.0 ** np.arange(1, last + 1):
        mean, variance, with_block = of.bias(count), of.draws(count, count), of.draws(m, count)
        difference = variance + 0.5 * variance_below - 2.0 * of.draws(0.5 * count, count)
        squares.append(difference + (mean - below) ** 2)
        covariances.append(with_block - 0.5 * covariance)
        below, variance_below, covariance = mean, variance, with_block
    count = m * 2.0**last
    difference = variance_below + of.variance_of_ratio / count - 2.0 * of.with_sum(count)
    squares.append(difference + below**2)
    covariances.append(of.with_sum(m) * m / count - covariance)
    return LevelMoments(np.maximum(squares, 0.0), np.array(covariances), block_variance, bias**2)


@dataclass(frozen=True)
class _Covariances:
    """Means and covariances of log S of some draws, for Z = 1."""

    law: DrawLaw
    nodes: Nodes
    log_theta: FloatArray  # (K,)
    log_theta_both: FloatArray  # (K, K) at sums of two nodes
    rise: FloatArray  # (K, K) of log theta at a sum above the sum of both, at least 0
    variance_of_ratio: float

    def bias(self, count: float) -> float:
        """Return E log S of `count` draws, eq. (B7)."""
        return -float(self.nodes.dx @ jensen_excess(self.law, self.nodes, count, self.log_theta))

    def draws(self, fewer: float, count: float) -> float:
        """Return the covariance for `count` draws and for `fewer` of them, eq. (B68)."""
        apart = fewer * self.log_theta[:, None] + count * self.log_theta
        together = fewer * self.log_theta_both + (count - fewer) * self.log_theta
        power = fewer * self.rise
        near = np.exp(apart) * np.expm1(np.minimum(power, 1.0))
        change = np.where(power < 1.0, near, np.exp(together) - np.exp(apart))
        inner: FloatArray = change @ self.nodes.dx
        return float(self.nodes.dx @ inner)

    def with_sum(self, count: float) -> float:
        """Return the covariance of log S and S of `count` draws."""
        nodes = self.nodes
        v_base = np.exp(np.minimum(nodes.x + self.law.log_base, LARGEST_EXPONENT))
        weight = np.exp(count * self.log_theta + np.minimum(-nodes.x, LARGEST_EXPONENT))
        return float((nodes.dx * weight) @ (nodes.excess * (count * (v_base + nodes.mean) + 1.0)))


def _make_covariances(law: DrawLaw, classes: Classes, atoms: Atoms, nodes: Nodes) -> _Covariances:
    """Evaluate the transform at sums of two nodes."""
    one, other = np.tril_indices(len(nodes.x))
    x = np.logaddexp(nodes.x[one], nodes.x[other])
    both = evaluate_nodes(law, classes, atoms, x, np.ones_like(x))

    def square(values: FloatArray) -> FloatArray:
        found = np.empty((len(nodes.x), len(nodes.x)))
        found[one, other] = found[other, one] = values
        return found

    log_theta, log_theta_both = (
        at.log_transform - np.exp(np.minimum(at.x + law.log_base, LARGEST_EXPONENT))
        for at in (nodes, both)
    )
    rise = square(both.excess) - nodes.excess[:, None] - nodes.excess
    drawn = law.drawn > 0.0
    root = np.sqrt(law.drawn[drawn])  # under the square: r**2 may overflow where q r**2 does not
    spread = law.probs[drawn] / root - root * law.mean
    variance = float(spread @ spread) + law.weightless * law.mean**2
    return _Covariances(law, nodes, log_theta, square(log_theta_both), rise, variance)
