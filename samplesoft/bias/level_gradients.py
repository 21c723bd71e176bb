"""Second moments of the gradient in h in each level of the multilevel loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.classes import make_atoms, make_classes
from samplesoft.bias.draw_law import DrawLaw
from samplesoft.bias.levels import LevelMoments, no_moments
from samplesoft.bias.moments import numerator_moments
from samplesoft.bias.nested import NestedGrid, make_nested_grid
from samplesoft.bias.node_weights import compute_decay_rates
from samplesoft.bias.transform import evaluate_nodes

_LEFT = math.log(1e-9)  # x times the largest rate at the first node
_RIGHT = 60.0  # exp(-60) is left beyond the last


def gradient_levels(law: DrawLaw, vectors: FloatArray, last: int) -> LevelMoments:
    """Return the moments for class vectors (n, d), blocks of ``law.num_draws`` and a last level."""
    if law.is_certain:
        return no_moments(last)
    # around the heaviest class first: c - mean keeps its digits where one class has all the mass
    centred = vectors - vectors[np.argmax(law.probs)]
    centred -= law.probs @ centred
    with np.errstate(under="ignore", over="ignore"):
        return _climb(law, centred, _make_expectations(law, centred, last), last)


def _climb(law: DrawLaw, centred: FloatArray, of: _Expectations, last: int) -> LevelMoments:
    """Go through the levels, each from the moments of half as many draws."""
    m = float(law.num_draws)
    block = of.mean(m)
    below, size_below = block, of.product(m, m)
    block_variance = covariance = size_below - float(block @ block)
    with_numerator = of.with_numerator(m)
    squares, covariances = [], []
    for count in m * 2.0 ** np.arange(1, last + 1):
        mean, size = of.mean(count), of.product(count, count)
        halves = 0.5 * (size_below + float(below @ below))
        squares.append(size + halves - 2.0 * of.product(0.5 * count, count))
        with_block = of.product(m, count) - float(block @ mean)
        covariances.append(with_block - 0.5 * covariance)
        below, size_below, covariance = mean, size, with_block
    # the last difference is the numerator less the gradient, eq. (B67)
    count = m * 2.0**last
    squares.append(_scatter(law, centred) / count + size_below - 2.0 * of.with_numerator(count))
    covariances.append(with_numerator * m / count - covariance)
    squared_bias = float(block @ block)
    every = np.maximum(squares, 0.0), np.array(covariances)
    return LevelMoments(*every, block_variance, squared_bias)


def _scatter(law: DrawLaw, centred: FloatArray) -> float:
    """Return the variance of r c for one draw."""
    drawn = law.drawn > 0.0
    q, own = law.drawn[drawn], law.probs[law.label] * centred[law.label]
    root = np.sqrt(q)[:, None]  # under the square, for r**2 may overflow where q r**2 does not
    rows = law.probs[drawn, None] / root * centred[drawn] + root * own  # the mean is -own
    return float((rows**2).sum()) + law.weightless * float(own @ own)


@dataclass(frozen=True)
class _Expectations:
    """Means and products of F = sum_j p'_j c_j, for vectors c of mean 0 under the softmax."""

    grid: NestedGrid
    log_theta: FloatArray  # (K,)
    change: FloatArray  # (K, d) x A, times theta**half
    square: FloatArray  # (K,) of it
    scatter: FloatArray  # (K,) x**2 times what a draw adds with itself, times theta**(2 half)
    half: float

    def mean(self, count: float) -> FloatArray:
        """Return E[F] of `count` draws, (d,)."""
        found: FloatArray = count * (self._weigh(count - self.half) @ self.change)
        return found

    def product(self, fewer: float, count: float) -> float:
        """Return E[F . F'] of `count` draws and of `fewer` of them, eq. (B65)."""
        rest = count - fewer
        own = fewer * (fewer * self.square + self.scatter)
        if rest == 0.0:
            return float(self._weigh(fewer - 2.0 * self.half) @ own)
        before = self.grid.mean_before(np.exp(self.log_theta * rest))
        decay = np.exp(self.log_theta * (rest - self.half))
        others = self.grid.primitive(decay[:, None] * self.change)
        both = np.einsum("kd,kd->k", self.change, others)
        return float(
            self._weigh(fewer - 2.0 * self.half) @ (own * before)
            + fewer * rest * (self._weigh(fewer - self.half) @ both)
        )

    def with_numerator(self, count: float) -> float:
        """Return E[F . G] of `count` draws, G = S F."""
        total = count * self.square + self.scatter
        return float((self._weigh(count - 2.0 * self.half) * self.grid.over_x) @ total)

    def _weigh(self, power: float) -> FloatArray:
        found: FloatArray = self.grid.dx * np.exp(self.log_theta * power)
        return found


def _make_expectations(law: DrawLaw, centred: FloatArray, last: int) -> _Expectations:
    """Evaluate the integrands at nodes that do for all levels."""
    classes = make_classes(law)
    atoms = make_atoms(law, classes)
    most = math.log(law.num_draws) + last * math.log(2.0)
    largest = max(most, float(atoms.rows[0].max()))
    slowest = compute_decay_rates(law, classes)[1]
    grid = make_nested_grid(_LEFT - largest, math.log(_RIGHT) - slowest)
    nodes = evaluate_nodes(law, classes, atoms, grid.x, grid.dx)
    v_base = np.exp(np.minimum(nodes.x + law.log_base, LARGEST_EXPONENT))
    log_theta = nodes.log_transform - v_base
    half = 0.5 * law.num_draws  # with half of its least weight no factor overflows
    change, scatter = numerator_moments(law, classes, nodes, centred, half * log_theta)
    square = np.einsum("kd,kd->k", change, change)
    return _Expectations(grid, log_theta, change, square, scatter, half)
