"""Second moments for classes in chunks: two more passes, over the classes and their vectors.

A pass adds up sums over all classes, chunk by chunk. The three passes of
`samplesoft.bias.chunks.passes` come before these two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from samplesoft._temperature import require_squarable
from samplesoft._validation import FloatArray, as_positive, as_real_array
from samplesoft.bias.chunks.dask import run_passes_on_dask
from samplesoft.bias.chunks.passes import BiasSums, ChunkBias, Pass, PassResults, check_chunk
from samplesoft.bias.moments.draws import (
    add_label_terms,
    class_coefficients,
    count_moments_at_nodes,
    mean_square_terms,
    require_no_jackknife,
    term_rounding,
)
from samplesoft.bias.moments.squares import (
    integral_with_error,
    squared_norm_with_error,
    squared_norms,
    sum_over_classes,
)
from samplesoft.bias.numerics.quadrature import STEP
from samplesoft.bias.numerics.summation import EPS, Sum
from samplesoft.bias.with_replacement.draws import Draws, draws_of_chunk
from samplesoft.bias.with_replacement.nodes import Nodes, make_nodes, noisy_nodes
from samplesoft.bias.with_replacement.ratios import ratios_of_chunk

# smallest log weight of a node, relative to the largest one, that can affect a result in float64
_MIN_LOG_WEIGHT = -45.0


def moments_of_dask(
    logits: Any,
    labels: Any,
    q: Any,
    num_sampled: int,
    class_embeddings: Any,
    tau: float,
    scheme: str,
) -> Iterable[Any]:
    """Return the fields of `GradientMoments` for Dask arrays, each a float or an array (B,)."""
    da: Any = import_module("dask.array")
    vectors = da.asarray(class_embeddings, dtype=float)
    scale = as_positive("tau", tau)
    require_squarable(np.ones(1), scale)
    if vectors.ndim != 2 or len(vectors) != logits.shape[-1]:
        raise ValueError(
            f"`class_embeddings` must have one row for each of the {logits.shape[-1]} classes of "
            f"`logits`, got shape {vectors.shape}."
        )

    def make_first_pass(label: int) -> BiasSums:
        sums = BiasSums(num_sampled, label, scheme)
        require_no_jackknife(sums.scheme)
        return sums.then(_VectorMeans)

    _, rows = run_passes_on_dask(logits, labels, q, make_first_pass, ChunkBias.both, vectors)
    columns = [scale * scale * np.array(column) for column in zip(*rows, strict=True)]
    if logits.ndim == 1:
        return [float(column[0]) for column in columns]
    return columns


class _VectorMeans(Pass):
    """The fourth pass: sums of the class vectors, weighted by p and by the bias."""

    takes_vectors = True
    stage = "means"

    def __init__(self, results: PassResults) -> None:
        self.results = results
        self.bias = ChunkBias(results)

        # log p of the most probable class so far, and its vector (d,), which is subtracted from all
        # vectors as their origin
        self.max_log_prob = -math.inf
        self.origin = np.zeros(0)
        self.label_vector = np.zeros(0)
        self.max_distance = 0.0  # largest distance of a vector from the origin

        # (3,) sums over the classes: of p, of the bias, and of the magnitude of the bias
        self.mass_sums = Sum((3,))

        # (2, d) sums of the vectors, weighted by p and by the bias
        self.vector_sums = Sum()

    def empty(self) -> _VectorMeans:
        """Return a copy of this pass without any classes."""
        return _VectorMeans(self.results)

    def add(self, start: int, logits: Any, q: Any, vectors: Any) -> _VectorMeans:
        """Add a chunk of classes, the first of which has the index `start`; return self."""
        if np.size(logits):
            totals = self.results.totals
            o, proposal = check_chunk(start, logits, q, totals)
            draws = draws_of_chunk(totals, start, o, proposal)

            bias = self.bias.bias_of_draws(draws)
            class_vectors = as_real_array("class_embeddings", vectors, (2,))

            other = self.empty()
            heaviest = int(draws.probs.argmax())
            other.max_log_prob = float(draws.log_probs[heaviest])
            other.origin = class_vectors[heaviest]

            offsets = class_vectors - other.origin
            rows = np.stack([draws.probs, bias])
            other.vector_sums = Sum.of(rows @ offsets)
            other.mass_sums = Sum.of(np.append(rows.sum(axis=1), np.abs(bias).sum()))
            other.max_distance = float(np.sqrt(squared_norms(offsets).max()))
            if draws.label is not None:
                other.label_vector = class_vectors[draws.label]

            self.merge(other)

        return self

    def merge(self, other: _VectorMeans) -> _VectorMeans:
        """Add the sums of `other` and return self.

        Both sums are first moved to the same origin: of their two origins, the vector of the more
        probable class.
        """
        if not len(other.origin):
            return self
        if not len(self.origin):
            vars(self).update(vars(other))
            return self

        heavier = max(self, other, key=lambda means: means.max_log_prob)
        vector_sums = Sum(self.vector_sums.value.shape)
        max_distance = 0.0
        for means in (self, other):
            shift = means.origin - heavier.origin
            vector_sums.merge(means.vector_sums)
            vector_sums.add(np.outer(means.mass_sums.value[:2], shift))
            max_distance = max(max_distance, means.max_distance + float(np.sqrt(shift @ shift)))

        self.mass_sums = self.mass_sums.times(1.0)
        self.mass_sums.merge(other.mass_sums)
        self.label_vector = self.label_vector if len(self.label_vector) else other.label_vector
        self.vector_sums = vector_sums
        self.max_distance = max_distance
        self.origin = heavier.origin
        self.max_log_prob = heavier.max_log_prob

        return self

    def finish(self) -> Any:
        """Return the next pass, or the moments if p' is the same in every outcome."""
        totals = self.results.totals
        scheme = self.results.totals.scheme
        num_outcomes = totals.num - (not scheme.draws_label)
        num_outcomes += bool(scheme.has_random_count and totals.label_q > 0.0)
        if self.results.ratios is None or num_outcomes <= 1:
            return self.compute_moments(0.0, 0.0)
        return _NodeSums(self)

    def compute_moments(self, mse: float, rounding: float) -> tuple[float, float, float, float]:
        """Return (squared bias, variance, mean squared error, error estimate) for tau = 1.

        `mse` is ``E|sum_i p'_i c_i|**2`` for centred class vectors c, and `rounding` its error.
        """
        magnitude = float(self.mass_sums.value[2])
        rounding_of_sum = EPS * (self.results.totals.num + 8) * magnitude
        bias_error = (self.bias.error + rounding_of_sum) * self.max_distance
        squared_bias, error = squared_norm_with_error(self.vector_sums.value[1], bias_error)
        mse = max(mse, squared_bias)
        return squared_bias, mse - squared_bias, mse, error + rounding + 4.0 * EPS * mse


class _NodeSums(Pass):
    """The fifth pass: sums over classes for the integrand of the mean square, at each node."""

    takes_vectors = True
    stage = "nodes"

    def __init__(self, means: _VectorMeans) -> None:
        self.means = means
        self.draws = means.results.draws
        with np.errstate(under="ignore", over="ignore"):
            self.nodes = make_nodes(self.draws, means.results.ratios, means.results.atoms[0], STEP)

        self.log_first_moment, self.count_ratio = count_moments_at_nodes(self.draws, self.nodes)
        _require_digits(self.draws, self.nodes, self.log_first_moment)
        num_nodes = len(self.nodes.x)

        # (K, d) sums of vectors over the classes, at each of K nodes
        self.numerator_sums = Sum((num_nodes, 1))

        # (3, K) sums over the classes, with a and b of `sum_over_classes`: of |a| times the norm of
        # the vector, of |a| alone, and of b times the squared norm
        self.scalar_sums = Sum((3, num_nodes))

        # mean norm of the vectors, sum_j p_j |c_j|
        self.mean_norm = Sum()

    def empty(self) -> _NodeSums:
        """Return a copy of this pass without any classes."""
        return _NodeSums(self.means)

    def centred(self, vectors: FloatArray) -> FloatArray:
        """Return `vectors` (k, d) minus the mean of all class vectors under the softmax."""
        centred: FloatArray = vectors - self.means.origin - self.means.vector_sums.value[0]
        return centred

    def add(self, start: int, logits: Any, q: Any, vectors: Any) -> _NodeSums:
        """Add a chunk of classes, the first of which has the index `start`; return self."""
        if np.size(logits):
            totals = self.draws.totals
            o, proposal = check_chunk(start, logits, q, totals)
            draws = draws_of_chunk(totals, start, o, proposal)
            ratios = ratios_of_chunk(draws, self.means.results.ratios)

            centred = self.centred(np.asarray(vectors, float))
            norms = np.sqrt(squared_norms(centred))

            half = 0.5 * self.log_first_moment[:, None]
            scales = np.column_stack([norms, np.ones(len(norms))])
            with np.errstate(under="ignore", over="ignore"):
                terms = partial(class_coefficients, draws, ratios, self.nodes, half)
                change, magnitudes, square = sum_over_classes(terms, len(half), centred, scales)

            self.numerator_sums.add(change)
            self.scalar_sums.add(np.stack([*magnitudes.T, square]))
            self.mean_norm.add(float((draws.probs * norms).sum()))

        return self

    def merge(self, other: _NodeSums) -> _NodeSums:
        """Add the sums of `other`, a copy of the same pass, and return self."""
        self.numerator_sums.merge(other.numerator_sums)
        self.scalar_sums.merge(other.scalar_sums)
        self.mean_norm.merge(other.mean_norm)
        return self

    def finish(self) -> tuple[float, float, float, float]:
        """Return (squared bias, variance, mean squared error, error estimate) for tau = 1."""
        draws = self.draws
        label_vector = self.centred(self.means.label_vector[None])[0]
        norm = float(self.mean_norm.value)

        magnitudes, weights, square = self.scalar_sums.value
        sums = self.numerator_sums.value, magnitudes + norm * weights, square
        label_norm = float(np.sqrt(label_vector @ label_vector))

        with np.errstate(under="ignore", over="ignore"):
            half = 0.5 * self.log_first_moment
            numerator = add_label_terms(
                draws, self.nodes, half, label_vector, label_norm + norm, sums
            )
            terms = mean_square_terms(
                term_rounding(draws), self.log_first_moment, self.count_ratio, numerator
            )
            mse, error = integral_with_error(self.nodes.dx, *terms)

        no_draw_term = 0.0
        if draws.scheme.divides_by_accepted:
            no_draw_term = draws.label_draw_prob**draws.num_draws * label_norm**2
        return self.means.compute_moments(mse + no_draw_term, error + 4.0 * EPS * no_draw_term)


def _require_digits(draws: Draws, nodes: Nodes, log_first_moment: FloatArray) -> None:
    """Raise ValueError if the Laplace transform T has no correct digits at a node that matters.

    T is computed from moments of panels of classes, because the classes are not in memory.
    """
    is_noisy = noisy_nodes(nodes.x, nodes.log_transform)

    # the error is divided by T, or by T**2 if the number of accepted draws is random
    power = 1.0 + draws.scheme.divides_by_accepted
    weights = (log_first_moment - power * nodes.log_transform)[is_noisy] - log_first_moment.max()
    if (weights > _MIN_LOG_WEIGHT).any():
        raise ValueError(
            f"`num_sampled` must be larger for classes in chunks, as a rule at least 10, got "
            f"{draws.num_draws} with scheme={draws.scheme.name!r}; compute the arrays first if "
            "they fit into memory."
        )
