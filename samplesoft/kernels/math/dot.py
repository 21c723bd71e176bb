"""The inner product that kernels take of two rows."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from samplesoft._jit import njit_sum


@njit_sum
def dot(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Return the inner product of two vectors, summed in the type of the first."""
    total = x.dtype.type(0)
    for i in range(len(y)):
        total += x[i] * y[i]
    return float(total)
