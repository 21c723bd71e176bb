"""Inner products and weights on the device, shared out among the lanes of a warp."""

from __future__ import annotations

import math
from typing import Any

from samplesoft._cuda import WARP_SIZE, device_function, lane, warp_max, warp_sum, warp_sync
from samplesoft.kernels.weights import LEAST


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


@device_function
def exp_weights(weights: Any, size: int) -> tuple[float, float]:
    """Do as `weights.exp_weights` for `size` logits, of which each lane has written its own.

    What is left out has a logit of -inf. When this returns, all lanes see all weights.
    """
    greatest = -math.inf
    for c in range(lane(), size, WARP_SIZE):
        greatest = max(greatest, weights[c])
    greatest = warp_max(greatest)
    total = 0.0
    for c in range(lane(), size, WARP_SIZE):
        weight = math.exp(weights[c] - greatest)
        weights[c] = weight if weight > LEAST else 0.0
        total += weights[c]
    total = warp_sum(total)
    warp_sync()
    return total, greatest
