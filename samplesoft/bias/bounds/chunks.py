"""Bounds on the bias for classes in chunks: two more passes over the classes.

A pass adds up sums over all classes, chunk by chunk. The three passes of
`samplesoft.bias.chunks.passes` come before these two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.bounds.classes import (
    ClassBounds,
    EndTotals,
    negative_sums,
    tighten_by_zero_sum,
    trivial_bounds,
)
from samplesoft.bias.bounds.gaps import RatioRange, has_accurate_ratios, make_transform_bounds
from samplesoft.bias.chunks.passes import Pass, PassResults, check_chunk
from samplesoft.bias.negatives import NegativeSums


class SpreadSums(Pass):
    """The fourth pass, after the three of `BiasSums`: variance and range of the ratios r."""

    stage = "bounds"

    def __init__(self, results: PassResults) -> None:
        self.results = results
        self.negatives = negative_sums(results.draws)
        self.spread = RatioRange()

    @classmethod
    def after(cls, results: PassResults) -> Any:
        """Return this pass; or, if all classes have the same trivial bounds, these bounds.

        `results` are the results of the first three passes. See `trivial_bounds`.
        """
        trivial = trivial_bounds(negative_sums(results.draws), 1)
        return cls(results) if trivial is None else _TrivialBounds(*trivial)

    def empty(self) -> SpreadSums:
        """Return a copy of this pass without any classes."""
        return SpreadSums(self.results)

    def add(self, start: int, logits: Any, q: Any) -> SpreadSums:
        """Add a chunk of classes, the first of which has the index `start`; return self."""
        if np.size(logits):
            self.spread.add(_logs_of_chunk(self.results, self.negatives, start, logits, q)[0])
        return self

    def merge(self, other: SpreadSums) -> SpreadSums:
        """Add the sums of `other`, a copy of the same pass, and return self."""
        self.spread.merge(other.spread)
        return self

    def finish(self) -> BoundSums:
        """Return the fifth pass, which adds up the bounds."""
        return BoundSums(self.results, self.spread.add(self.negatives.masked_hit_logs))


class BoundSums(Pass):
    """The fifth pass: sums of the bounds over all classes.

    The sums tighten the bounds of each class, by the constraint that the bias sums to 0.
    """

    stage = "bounds"

    def __init__(self, results: PassResults, spread: RatioRange) -> None:
        self.results = results
        self.spread = spread
        self.ends = EndTotals()
        self.negatives = negative_sums(results.draws)

        transform = None
        if has_accurate_ratios(results.draws, self.negatives):
            transform = make_transform_bounds(
                results.draws, results.ratios, results.atoms[0], self.negatives.log_error_bound
            )

        self.bounds = ClassBounds(results.draws, self.negatives, spread, transform)

    def empty(self) -> BoundSums:
        """Return a copy of this pass without any classes."""
        return BoundSums(self.results, self.spread)

    def add(self, start: int, logits: Any, q: Any) -> BoundSums:
        """Add a chunk of classes, the first of which has the index `start`; return self."""
        if np.size(logits):
            lower, upper = self._loose_bounds(start, logits, q)
            self.ends.add(lower, upper)
        return self

    def merge(self, other: BoundSums) -> BoundSums:
        """Add the sums of `other`, a copy of the same pass, and return self."""
        self.ends.merge(other.ends)
        return self

    def finish(self) -> _ChunkBounds:
        """Return the result: an object that evaluates the bounds of each chunk."""
        return _ChunkBounds(self)

    def tightened_bounds(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return tightened lower and upper bounds (2, k) on the bias of the classes of a chunk."""
        lower, upper = self._loose_bounds(start, logits, q)
        return np.stack(tighten_by_zero_sum(lower, upper, self.ends, self.negatives.num_classes))

    def _loose_bounds(self, start: int, logits: Any, q: Any) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper bounds on the bias of k classes, both (k,), not yet tightened."""
        columns, label = _logs_of_chunk(self.results, self.negatives, start, logits, q)
        return self.bounds.bounds_of_classes(label, columns)


def _logs_of_chunk(
    results: PassResults, negatives: NegativeSums, start: int, logits: Any, q: Any
) -> tuple[FloatArray, int | None]:
    """Return the logs (4, k) of `NegativeSums.compute_logs` for the negatives of a chunk.

    Also return the label's index in the chunk, or None if the label is in another chunk.
    """
    o, proposal = check_chunk(start, logits, q, results.totals)
    label = results.totals.label - start
    is_negative = np.arange(len(o)) != label
    index = label if 0 <= label < len(o) else None
    return negatives.compute_logs(o[is_negative], proposal[is_negative]), index


class _ChunkBounds(NamedTuple):
    """The result of the last pass: bounds on the bias, which are evaluated chunk by chunk."""

    bound_sums: BoundSums

    def evaluate(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return lower and upper bounds (2, k) on the bias of the classes of one chunk."""
        return self.bound_sums.tightened_bounds(start, logits, q)


def bounds_of_chunk(
    bounds: _ChunkBounds | _TrivialBounds, start: int, logits: Any, q: Any
) -> FloatArray:
    """Return lower and upper bounds (2, k) on the bias of the k classes from index `start` on."""
    return bounds.evaluate(start, logits, q)


class _TrivialBounds(NamedTuple):
    """Bounds (1,) on the bias that are the same for all classes."""

    lower: FloatArray
    upper: FloatArray

    def evaluate(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return lower and upper bounds (2, k) on the bias of the classes of one chunk."""
        return np.broadcast_to(np.stack([self.lower, self.upper]), (2, len(logits)))
