"""Bounds of classes in chunks: two more passes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.bias.bounds.classes import (
    ClassBounds,
    Ends,
    negative_sums,
    sum_to_zero,
    trivial_ends,
)
from samplesoft.bias.bounds.gaps import Spread, is_known, make_transform
from samplesoft.bias.chunks.passes import Known, Pass, check_chunk
from samplesoft.bias.negatives import NegativeSums


class SpreadSums(Pass):
    """The pass that bounds take after those of `BiasSums`: the `Spread` of the ratios."""

    stage = "bounds"

    def __init__(self, known: Known) -> None:
        self.known, self.negatives = known, negative_sums(known.draws)
        self.spread = Spread()

    @classmethod
    def after(cls, known: Known) -> Any:
        """Return the pass, or the bounds where they are trivial."""
        trivial = trivial_ends(negative_sums(known.draws), 1)
        return cls(known) if trivial is None else _TrivialBounds(*trivial)

    def empty(self) -> SpreadSums:
        """Return the same pass without any classes."""
        return SpreadSums(self.known)

    def add(self, start: int, logits: Any, q: Any) -> SpreadSums:
        """Add the classes from number `start` on."""
        if np.size(logits):
            self.spread.add(_columns_of_chunk(self.known, self.negatives, start, logits, q)[0])
        return self

    def merge(self, other: SpreadSums) -> SpreadSums:
        """Add what another has summed."""
        self.spread.merge(other.spread)
        return self

    def finish(self) -> EndSums:
        """Return the next pass."""
        return EndSums(self.known, self.spread.add(self.negatives.masked_column))


class EndSums(Pass):
    """The last pass for bounds: the sums over all classes by which each interval is cut."""

    stage = "bounds"

    def __init__(self, known: Known, spread: Spread) -> None:
        self.known, self.spread, self.ends = known, spread, Ends()
        self.negatives = negative_sums(known.draws)
        transform = None
        if is_known(known.draws, self.negatives):
            transform = make_transform(
                known.draws, known.ratios, known.atoms[0], self.negatives.rounding
            )
        self.bounds = ClassBounds(known.draws, self.negatives, spread, transform)

    def empty(self) -> EndSums:
        """Return the same pass without any classes."""
        return EndSums(self.known, self.spread)

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
        columns, label = _columns_of_chunk(self.known, self.negatives, start, logits, q)
        return self.bounds.of(label, columns)


def _columns_of_chunk(
    known: Known, negatives: NegativeSums, start: int, logits: Any, q: Any
) -> tuple[FloatArray, int | None]:
    """Return the columns (4, k) of the negatives of a chunk, and the label's index there."""
    o, proposal = check_chunk(start, logits, q, known.totals)
    label = known.totals.label - start
    others = np.arange(len(o)) != label
    index = label if 0 <= label < len(o) else None
    return negatives.columns(o[others], proposal[others]), index


class _ChunkBounds(NamedTuple):
    """The bounds of any class."""

    sums: EndSums

    def columns(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return both bounds (2, k) of the classes from number `start` on."""
        return self.sums.cut(start, logits, q)


def bounds_of_chunk(
    found: _ChunkBounds | _TrivialBounds, start: int, logits: Any, q: Any
) -> FloatArray:
    """Return both bounds (2, k) of the classes of a chunk."""
    return found.columns(start, logits, q)


class _TrivialBounds(NamedTuple):
    """The bounds (1,) that all classes have."""

    lower: FloatArray
    upper: FloatArray

    def columns(self, start: int, logits: Any, q: Any) -> FloatArray:
        """Return both bounds (2, k) of the classes from number `start` on."""
        return np.broadcast_to(np.stack([self.lower, self.upper]), (2, len(logits)))
