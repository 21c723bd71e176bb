"""Bounds for classes in chunks: two more passes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.bounds.classes import (
    ClassBounds,
    EndTotals,
    negative_sums,
    sum_to_zero,
    trivial_ends,
)
from samplesoft.bias.bounds.gaps import RatioSpread, is_known, make_transform
from samplesoft.bias.chunks.passes import Pass, PassResults, check_chunk
from samplesoft.bias.negatives import NegativeSums


class SpreadSums(Pass):
    """The first pass for bounds, after those of `BiasSums`: the `RatioSpread`."""

    stage = "bounds"

    def __init__(self, results: PassResults) -> None:
        self.results, self.negatives = results, negative_sums(results.draws)
        self.spread = RatioSpread()

    @classmethod
    def after(cls, results: PassResults) -> Any:
        """Return this pass, or the bounds if they are trivial."""
        trivial = trivial_ends(negative_sums(results.draws), 1)
        return cls(results) if trivial is None else _TrivialBounds(*trivial)

    def empty(self) -> SpreadSums:
        """Return the same pass without any classes."""
        return SpreadSums(self.results)

    def add(self, start: int, logits: Any, q: Any) -> SpreadSums:
        """Add the classes from number `start` on."""
        if np.size(logits):
            self.spread.add(_columns_of_chunk(self.results, self.negatives, start, logits, q)[0])
        return self

    def merge(self, other: SpreadSums) -> SpreadSums:
        """Add what another has summed."""
        self.spread.merge(other.spread)
        return self

    def finish(self) -> EndSums:
        """Return the next pass."""
        return EndSums(self.results, self.spread.add(self.negatives.masked_column))


class EndSums(Pass):
    """The second pass for bounds: the totals over all classes that tighten each interval."""

    stage = "bounds"

    def __init__(self, results: PassResults, spread: RatioSpread) -> None:
        self.results, self.spread, self.ends = results, spread, EndTotals()
        self.negatives = negative_sums(results.draws)
        transform = None
        if is_known(results.draws, self.negatives):
            transform = make_transform(
                results.draws, results.ratios, results.atoms[0], self.negatives.rounding
            )
        self.bounds = ClassBounds(results.draws, self.negatives, spread, transform)

    def empty(self) -> EndSums:
        """Return the same pass without any classes."""
        return EndSums(self.results, self.spread)

    def add(self, start: int, logits: Any, q: Any) -> EndSums:
        """Add the classes from number `start` on."""
        if np.size(logits):
            lower, upper = self._bounds_of(start, logits, q)
            self.ends.add(lower, upper)
        return self

    def merge(self, other: EndSums) -> EndSums:
        """Add what another has summed."""
        self.ends.merge(other.ends)
        return self

    def finish(self) -> _ChunkBounds:
        """Return the bounds of chunks."""
        return _ChunkBounds(self)

    def cut(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return both bounds (2, k) of the classes from number `start` on."""
        lower, upper = self._bounds_of(start, logits, q)
        return np.stack(sum_to_zero(lower, upper, self.ends, self.negatives.num))

    def _bounds_of(self, start: int, logits: Any, q: Any) -> tuple[FloatArray, FloatArray]:
        columns, label = _columns_of_chunk(self.results, self.negatives, start, logits, q)
        return self.bounds.of(label, columns)


def _columns_of_chunk(
    results: PassResults, negatives: NegativeSums, start: int, logits: Any, q: Any
) -> tuple[FloatArray, int | None]:
    """Return the columns (4, k) of the negatives of a chunk, and the label's index there."""
    o, proposal = check_chunk(start, logits, q, results.totals)
    label = results.totals.label - start
    others = np.arange(len(o)) != label
    index = label if 0 <= label < len(o) else None
    return negatives.columns(o[others], proposal[others]), index


class _ChunkBounds(NamedTuple):
    """The bounds of all classes, evaluated chunk by chunk."""

    sums: EndSums

    def columns(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return both bounds (2, k) of the classes from number `start` on."""
        return self.sums.cut(start, logits, q)


def bounds_of_chunk(
    bounds: _ChunkBounds | _TrivialBounds, start: int, logits: Any, q: Any
) -> FloatArray:
    """Return both bounds (2, k) of the classes of a chunk."""
    return bounds.columns(start, logits, q)


class _TrivialBounds(NamedTuple):
    """The same bounds (1,) for all classes."""

    lower: FloatArray
    upper: FloatArray

    def columns(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return both bounds (2, k) of the classes from number `start` on."""
        return np.broadcast_to(np.stack([self.lower, self.upper]), (2, len(logits)))
