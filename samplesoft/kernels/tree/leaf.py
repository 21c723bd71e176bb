"""Inside a leaf of the kernel tree: the weight of each class, draws and probabilities.

The weight of class c is a function of its inner product with the query alone. Arrays named
`starts` tell at which of the `rows` the classes of a leaf begin.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.math.dot import dot
from samplesoft.kernels.math.prefetch import CACHE, prefetch_row
from samplesoft.kernels.math.weights import exp_weights, find
from samplesoft.kernels.tree.walk import clip

Real = NDArray[Any]  # float32 or float64

_LARGEST = 1e300  # of a logit: what has overflowed is as likely as this, and no difference is NaN
KERNEL, SOFTMAX, QUADRATIC = 0, 1, 2  # max(x, scale), exp(scale x), scale x^2 + 1


@njit
def log_weight(product: float, kind: int, scale: float) -> float:
    """Return the logarithm of the weight of a class from its inner product with the query."""
    if kind == SOFTMAX:
        x = scale * product
        return min(x, _LARGEST) if x > -_LARGEST else -_LARGEST
    return math.log(linear_weight(product, kind, scale))


@njit
def linear_weight(product: float, kind: int, scale: float) -> float:
    """Return the weight of a class by one of the kinds that are no exponentials."""
    if kind == KERNEL:
        return clip(product, scale)
    return clip(scale * product * product + 1.0, 1.0)


@njit
def weigh(
    rows: Real,
    start: int,
    query: Real,
    skip: int,
    kind: int,
    scale: float,
    products: FloatArray,
    weights: FloatArray,
) -> tuple[float, float]:
    """Write inner products of rows from `start` on, and weights up to a factor; 0 for `skip`.

    Returns the sum of the weights and the logarithm of the factor that makes them true.
    """
    size = len(products)
    for c in range(size):
        products[c] = dot(rows[start + c], query)
    if kind == SOFTMAX:
        for c in range(size):
            weights[c] = log_weight(products[c], kind, scale)
        return exp_weights(weights, skip)
    total = 0.0
    for c in range(size):
        weights[c] = linear_weight(products[c], kind, scale) if c != skip else 0.0
        total += weights[c]
    return total, 0.0


@njit
def log_others(total: float, barred: float) -> float:
    """Return the log-probability of classes of weight `total` beside one of log-weight `barred`."""
    others = math.log(total)
    high, low = max(others, barred), min(others, barred)
    every = high if low == -np.inf else high + math.log1p(math.exp(low - high))
    return others - every


@njit
def size_of(leaf: int, num_classes: int, leaf_size: int) -> int:
    """Return how many classes a leaf holds."""
    return min(leaf_size, num_classes - leaf * leaf_size)


@njit
def place_of(excluded: int, leaf: int, size: int, leaf_size: int) -> int:
    """Return the place of the excluded class in a leaf, or -1."""
    place = excluded - leaf * leaf_size
    return place if 0 <= place < size else -1


@njit
def gain_of(rest: FloatArray, skip: int) -> float:
    """Return what excluding a class adds to the log-probabilities of a leaf, its own or another.

    `rest` (2,) is a row of what `log_rest` and `lift_rest` write.
    """
    gain: float = rest[0] - rest[1] if skip >= 0 else -rest[1]
    return gain


@njit
def log_rest(
    queries: Real,
    rows: Real,
    starts: IntArray,
    exclude: IntArray,
    num_classes: int,
    leaf_size: int,
    kind: int,
    scale: float,
    rest: FloatArray,
) -> None:
    """Write to ``rest[:, 0]`` the log-probability, in the excluded class's leaf, of the others."""
    products, weights = np.empty(leaf_size), np.empty(leaf_size)
    for b in range(len(queries)):
        if exclude[b] < 0 or starts[b] < 0:
            continue
        size = size_of(exclude[b] // leaf_size, num_classes, leaf_size)
        skip = exclude[b] % leaf_size
        rest[b, 0] = -np.inf
        if size > 1:
            total, shift = weigh(
                rows, starts[b], queries[b], skip, kind, scale, products[:size], weights[:size]
            )
            barred = log_weight(products[skip], kind, scale) - shift
            rest[b, 0] = log_others(total, barred)


@njit
def pick(
    queries: Real,
    rows: Real,
    starts: IntArray,
    leaves: IntArray,
    exclude: IntArray,
    rest: FloatArray,
    uniforms: FloatArray,
    order: IntArray,
    log_p: FloatArray,
    num_classes: int,
    leaf_size: int,
    kind: int,
    scale: float,
    ids: IntArray,
    log_q: FloatArray,
) -> None:
    """Draw a class in each leaf that was reached; all arrays of draws are (B, m)."""
    products, weights = np.empty(leaf_size), np.empty(leaf_size)
    m = leaves.shape[1]
    far = rows.size * rows.itemsize > CACHE
    for b in range(len(queries)):
        stop = 0
        while stop < m:
            start, leaf = stop, leaves[b, stop]
            while stop < m and leaves[b, stop] == leaf:
                stop += 1
            if starts[b, start] < 0:
                continue
            if far:
                ahead = starts[b, stop] if stop < m else starts[min(b + 1, len(queries) - 1), 0]
                for row in range(ahead, min(ahead + leaf_size, len(rows))):
                    prefetch_row(rows, row)
            size = size_of(leaf, num_classes, leaf_size)
            skip = place_of(exclude[b], leaf, size, leaf_size)
            total, shift = weigh(
                rows,
                starts[b, start],
                queries[b],
                skip,
                kind,
                scale,
                products[:size],
                weights[:size],
            )
            log_total = math.log(total)
            gain = gain_of(rest[b], skip)
            for k in range(start, stop):
                c, _ = find(weights, size, uniforms[b, k] * total, 0, 0.0)
                place = order[b, k]
                ids[b, place] = leaf * leaf_size + c
                inside = log_weight(products[c], kind, scale) - shift - log_total
                log_q[b, place] = log_p[b, k] + gain + inside


@njit
def log_inside(
    queries: Real,
    rows: Real,
    starts: IntArray,
    ids: IntArray,
    exclude: IntArray,
    rest: FloatArray,
    num_classes: int,
    leaf_size: int,
    kind: int,
    scale: float,
    log_q: FloatArray,
) -> None:
    """Add to `log_q` (B, k), the reach of its leaf, the log-probability of each class in it."""
    products, weights = np.empty(leaf_size), np.empty(leaf_size)
    for b in range(len(queries)):
        for k in range(ids.shape[1]):
            leaf = ids[b, k] // leaf_size
            size = size_of(leaf, num_classes, leaf_size)
            skip = place_of(exclude[b], leaf, size, leaf_size)
            if starts[b, k] < 0:
                continue
            if ids[b, k] == exclude[b]:
                log_q[b, k] = -np.inf
                continue
            total, shift = weigh(
                rows, starts[b, k], queries[b], skip, kind, scale, products[:size], weights[:size]
            )
            gain = gain_of(rest[b], skip)
            inside = log_weight(products[ids[b, k] % leaf_size], kind, scale)
            log_q[b, k] = log_q[b, k] + gain + (inside - shift - math.log(total))


@njit
def probs_inside(
    queries: Real,
    rows: Real,
    starts: IntArray,
    leaves: IntArray,
    log_p: FloatArray,
    exclude: IntArray,
    rest: FloatArray,
    num_classes: int,
    leaf_size: int,
    kind: int,
    scale: float,
    probs: FloatArray,
) -> None:
    """Write probabilities (B, n) of the classes in `leaves` (k,), reached with `log_p` (B, L)."""
    products, weights = np.empty(leaf_size), np.empty(leaf_size)
    for b in range(len(queries)):
        for start, leaf in zip(starts, leaves):  # noqa: B905, Numba has no strict
            size = size_of(leaf, num_classes, leaf_size)
            skip = place_of(exclude[b], leaf, size, leaf_size)
            total, shift = weigh(
                rows, start, queries[b], skip, kind, scale, products[:size], weights[:size]
            )
            gain = gain_of(rest[b], skip)
            if size == 1 and skip == 0:
                probs[b, leaf * leaf_size] = 0.0
                continue
            reached = log_p[b, leaf] + gain - math.log(total)
            for c in range(size):
                inside = log_weight(products[c], kind, scale) - shift
                place = leaf * leaf_size + c
                probs[b, place] = math.exp(reached + inside) if c != skip else 0.0
