"""How large the features in a kernel tree are, and how large they have been."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from samplesoft._validation import IntArray

_LEAST = np.finfo(np.float64).minexp - np.finfo(np.float64).nmant  # exponents of numbers above 0


class FeatureSizes:
    """Counts of classes by the binary exponent of their largest feature, now and at most so far.

    Sums are rounded in proportion to the largest numbers that they have held, and keep those
    errors when such numbers leave again. Counts of exponents are exact, whatever comes and goes.
    """

    def __init__(self, dtype: DTypeLike, sizes: NDArray[Any]) -> None:
        self._bits = np.finfo(dtype).nmant // 2
        self._counts = _count(sizes)
        self._peak = self._largest()

    def moved(self, new: NDArray[Any], old: NDArray[Any]) -> FeatureSizes:
        """Return what follows when classes with features as large as `old` (k,) get `new` (k,)."""
        after = object.__new__(FeatureSizes)
        counts = _count(new)
        after._bits, after._counts = self._bits, self._counts + counts - _count(old)
        after._peak = max(self._peak, int(counts.nonzero()[0].max(initial=0)))
        return after

    @property
    def outgrown(self) -> bool:
        """Whether the largest features so far have cost those of now half their digits."""
        return self._peak - self._largest() > self._bits

    def _largest(self) -> int:
        return int(self._counts.nonzero()[0].max(initial=0))


def _count(sizes: NDArray[Any]) -> IntArray:
    """Return how many numbers have each exponent; 0 stands below them all."""
    exponents = np.frexp(sizes)[1].astype(np.int64) - _LEAST + 1
    num = np.finfo(np.float64).maxexp - _LEAST + 2
    return np.bincount(np.where(sizes > 0.0, exponents, 0), minlength=num)
