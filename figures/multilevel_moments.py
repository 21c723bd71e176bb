"""Exact variance of the gradient of the multilevel loss, which has no bias, and its cost.

Section 19 of ``samplesoft/bias/README.md`` has the equations. Top to bottom: the public function;
the levels, each from the moments of half as many draws; means and products of sums of draws; and
the nested integrals that these are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import ArrayLike

from samplesoft._limits import LARGEST_EXPONENT
from samplesoft._validation import FloatArray
from samplesoft.bias.bounds.finite import require_bounds
from samplesoft.bias.inputs import check_inputs
from samplesoft.bias.moments.draws import numerator_moments
from samplesoft.bias.moments.gradient import check_class_vectors
from samplesoft.bias.moments.squares import center_vectors
from samplesoft.bias.with_replacement.atoms import make_atoms
from samplesoft.bias.with_replacement.draws import Draws, make_draws
from samplesoft.bias.with_replacement.nodes import compute_decay_rates, evaluate_nodes
from samplesoft.bias.with_replacement.ratios import make_ratios
from samplesoft.schemes import DECAY, last_level

_LEFT = math.log(1e-9)  # x times the largest rate at the first node
_RIGHT = 60.0  # exp(-60) is left beyond the last
_DEGREE = 16  # Gauss-Legendre nodes on a panel of log x
_WIDTH = 0.75  # of a panel; an error of 10^-14 for functions that change on a scale of 1


@dataclass(frozen=True)
class MultilevelMoments:
    """The gradient of the multilevel loss in h, whose mean is that of the full softmax.

    Attributes
    ----------
    variance : float or ndarray, shape (B,)
        ``E|gradient - full gradient|**2``, in the units of the squared gradient in h.
    num_draws : float
        Expected number of classes that are looked at for an example, its label aside: draws, and on
        the last level all others.
    """

    variance: Any
    num_draws: float


def multilevel_moments(
    logits: ArrayLike,
    labels: Any,
    q: Any,
    num_sampled: int,
    class_embeddings: ArrayLike,
    *,
    tau: float = 1.0,
    scheme: str = "negatives",
    h: ArrayLike | None = None,
) -> MultilevelMoments:
    """Compute the exact variance of the gradient of a `MultilevelLoss` in h, and its cost.

    The loss, in `samplesoft.losses.multilevel`, takes a random number of draws, at least two
    blocks of m = `num_sampled`, and has no bias whatever q is.

    Parameters
    ----------
    logits : array_like, shape (n,) or (B, n)
        Finite logits o = tau * h . c.
    labels, q, h
        As for `samplesoft.exact_bias`.
    num_sampled : int
        Number m of draws of a block, at least 1. All draws are 4.4 m in the mean for large n.
    class_embeddings : array_like, shape (n, d)
        Class vectors c.
    tau : float
        Inverse temperature.
    scheme : str
        ``negatives`` or ``masked``; the others are refused.

    Returns
    -------
    MultilevelMoments
        The variance, a float or (B,), and the expected number of draws.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the scheme is another.

    Notes
    -----
    Section 19 of ``samplesoft/bias/README.md`` has the integrals. The variance is finite for every
    q, but grows with the largest ``e^{o_j} / q_j`` where that of plain sampled softmax has a bound.

    References
    ----------
    J. H. Blanchet and P. W. Glynn, "Unbiased Monte Carlo for optimization and functions of
    expectations via multi-level randomization", Winter Simulation Conference, 2015; the second
    moments follow from ``1/(S S') = int int exp(-u S - v S') du dv``.

    Examples
    --------
    >>> import numpy as np
    >>> import samplesoft
    >>> example = np.linspace(-1.0, 1.0, 100), 0, np.full(100, 0.01)
    >>> vectors = np.random.default_rng(0).normal(size=(100, 2))
    >>> moments = multilevel_moments(*example, 5, vectors)
    >>> round(moments.variance, 3), round(moments.num_draws, 1)
    (0.217, 19.4)
    >>> round(samplesoft.exact_gradient_moments(*example, 19, vectors).mse, 3)
    0.126
    """
    inputs = check_inputs(logits, labels, q, num_sampled, scheme, h)
    require_bounds(inputs.scheme)
    m, n = inputs.num_sampled, inputs.logits.shape[1]
    vectors, scale = check_class_vectors(class_embeddings, n, tau)
    last = last_level(m, n)
    laws = (make_draws(*row, m, inputs.scheme) for row in inputs.rows())
    rows = ((scale * gradient_levels(law, vectors, last).variance(),) for law in laws)
    (variance,) = inputs.columns(rows)
    others = n - inputs.scheme.excludes_label
    return MultilevelMoments(variance, expected_draws(m, last, others))


class LevelMoments(NamedTuple):
    """Second moments of the gradient for tau = 1 in the levels up to the last."""

    squares: FloatArray  # (L,) E|D_k|**2 of the differences D_k
    covariances: FloatArray  # (L,) of what a block says with D_k
    block_variance: float
    block_squared_bias: float

    def variance(self, decay: float = DECAY) -> float:
        """Return the variance for levels whose chances fall by a factor of `decay`, eq. (B66)."""
        last = len(self.squares) - 1
        chances = _chances(last, decay)
        means = float(chances @ (1.0 / _blocks(last))) * self.block_variance
        changes = float((self.squares / chances).sum()) + 2.0 * float(self.covariances.sum())
        return max(means - self.block_squared_bias + changes, 0.0)


def expected_draws(m: int, last: int, others: int, decay: float = DECAY) -> float:
    """Return how many classes are looked at in the mean, if the last level adds `others`."""
    chances, blocks = _chances(last, decay), _blocks(last)
    return float(m * (chances @ blocks) + chances[-1] * others)


def _chances(last: int, decay: float) -> FloatArray:
    """Return the probabilities of the levels up to the last one, which has all that is left."""
    chances: FloatArray = decay ** np.arange(last + 1.0)
    chances[:-1] *= 1.0 - decay
    return chances


def _blocks(last: int) -> FloatArray:
    """Return how many blocks of draws each level has: the last as many as that before it."""
    blocks: FloatArray = 2.0 ** np.minimum(np.arange(1.0, last + 2.0), last)
    return blocks


def gradient_levels(law: Draws, vectors: FloatArray, last: int) -> LevelMoments:
    """Return the moments for class vectors (n, d), blocks of ``law.num_draws`` and a last level."""
    kinds = np.count_nonzero(law.draw_probs) + (law.weightless > 0.0)  # of draws
    if law.other_mass == 0.0 or kinds == 1:  # draws are all alike
        return LevelMoments(np.zeros(last + 1), np.zeros(last + 1), 0.0, 0.0)
    centred = center_vectors(vectors, law.probs)
    with np.errstate(under="ignore", over="ignore"):
        return _climb(law, centred, _make_expectations(law, centred, last), last)


def _climb(law: Draws, centred: FloatArray, of: _Expectations, last: int) -> LevelMoments:
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


def _scatter(law: Draws, centred: FloatArray) -> float:
    """Return the variance of r c for one draw."""
    drawn = law.draw_probs > 0.0
    q, own = law.draw_probs[drawn], law.probs[law.label] * centred[law.label]
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
        mean: FloatArray = count * (self._weigh(count - self.half) @ self.change)
        return mean

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
        weights: FloatArray = self.grid.dx * np.exp(self.log_theta * power)
        return weights


def _make_expectations(law: Draws, centred: FloatArray, last: int) -> _Expectations:
    """Evaluate the integrands at nodes that do for all levels."""
    ratios = make_ratios(law)
    atoms = make_atoms(law, ratios)
    most = math.log(law.num_draws) + last * math.log(2.0)
    largest = max(most, float(atoms.points.log_r.max()))
    slowest = compute_decay_rates(law, ratios)[1]
    grid = make_nested_grid(_LEFT - largest, math.log(_RIGHT) - slowest)
    nodes = evaluate_nodes(law, ratios, atoms, grid.x, grid.dx)
    v_base = np.exp(np.minimum(nodes.x + law.log_base, LARGEST_EXPONENT))
    log_theta = nodes.log_transform - v_base
    half = 0.5 * law.num_draws  # with half of its least weight no factor overflows
    change, scatter = numerator_moments(law, ratios, nodes, centred, half * log_theta)[:2]
    square = np.einsum("kd,kd->k", change, change)
    return _Expectations(grid, log_theta, change, square, scatter, half)


@dataclass(frozen=True)
class NestedGrid:
    """Nodes of log x on panels next to each other."""

    x: FloatArray  # (K,) the nodes, log x
    dx: FloatArray  # (K,) weights of dx / x

    @property
    def over_x(self) -> FloatArray:
        """1/x, (K,), with what makes the integral of 1/x times a function like x**2 start at 0."""
        found: FloatArray = np.exp(np.minimum(-self.x, LARGEST_EXPONENT))
        found[0] *= 1.0 + np.exp(-_PLACES[0]) / self.dx[0]
        return found

    def primitive(self, values: FloatArray) -> FloatArray:
        """Return the integrals of `values` dy / y, both (K, d), from the start to each node."""
        panels = values.reshape(-1, _DEGREE, values.shape[1])
        whole = np.cumsum(_WHOLE @ panels, axis=0)
        found: FloatArray = _PART @ panels
        found[1:] += whole[:-1, None]
        return found.reshape(values.shape)

    def mean_before(self, values: FloatArray) -> FloatArray:
        """Return 1/x times the integrals of `values` dy, both (K,), from 0, where they are 1."""
        panels = values.reshape(-1, _DEGREE)
        found = panels @ (_PART * np.exp(_PLACES - _PLACES[:, None])).T
        whole = panels @ (_WHOLE * np.exp(_PLACES - _WIDTH))  # over x at the end of the panel
        before = 1.0  # of all up to the panel, over x at its start
        for panel, own in zip(found, whole, strict=True):
            panel += before * np.exp(-_PLACES)
            before = before * math.exp(-_WIDTH) + own
        return found.ravel()


def make_nested_grid(start: float, stop: float) -> NestedGrid:
    """Return the nodes from log x = `start` to at least `stop`."""
    count = math.ceil((stop - start) / _WIDTH)
    x = start + _WIDTH * np.arange(count)[:, None] + _PLACES
    return NestedGrid(x.ravel(), np.tile(_WHOLE, count))


def _partial_weights(nodes: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the integrals from -1 to each node of the polynomials that are 1 at one node."""
    values = legendre.legvander(nodes, len(nodes))
    integrals = np.empty((len(nodes), len(nodes)))
    integrals[:, 0] = 1.0 + nodes
    degrees = np.arange(1, len(nodes))
    integrals[:, 1:] = (values[:, 2:] - values[:, :-2]) / (2.0 * degrees + 1.0)
    coefficients = (np.arange(len(nodes)) + 0.5)[:, None] * (values[:, :-1].T * weights)
    found: FloatArray = integrals @ coefficients
    return found


_NODES, _WEIGHTS = legendre.leggauss(_DEGREE)
_PLACES = 0.5 * _WIDTH * (1.0 + _NODES)  # of the nodes in a panel
_WHOLE = 0.5 * _WIDTH * _WEIGHTS  # weights of the integral over the panel
_PART = 0.5 * _WIDTH * _partial_weights(_NODES, _WEIGHTS)  # and of those up to each node
