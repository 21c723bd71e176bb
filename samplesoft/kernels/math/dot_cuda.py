"""Inner products on the device, whose lanes read rows side by side."""

from __future__ import annotations

from typing import Any

from samplesoft._cuda import WARP_SIZE, device_function, lane, warp_sum


@device_function
def warp_dot(x: Any, y: Any) -> float:
    """Return the inner product of two vectors, summed in the type of the first."""
    total = x.dtype.type(0)
    for f in range(lane(), x.shape[0], WARP_SIZE):
        total += x[f] * y[f]
    return float(warp_sum(total))


@device_function
def warp_row_dot(matrix: Any, i: int, queries: Any, b: int) -> float:
    """Return `warp_dot` of row i of a matrix and row b of `queries`."""
    found: float = warp_dot(matrix[i], queries[b])
    return found
