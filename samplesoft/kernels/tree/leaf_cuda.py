"""Inside a leaf of the kernel tree on the device: the twins of `kernels.tree.leaf`.

Inner products come first, of all classes of a leaf, (B, k, leaf_size); then weights, and what is
asked of them. Class vectors lie in buckets (L, d, leaf_size), so that lanes, one for each class,
read side by side.
"""

from __future__ import annotations

import math
from typing import Any

from samplesoft._cuda import (
    WARP_SIZE,
    device_function,
    kernel,
    lane,
    thread_index,
    twin,
    warp_index,
    warp_max,
    warp_sum,
    warp_sync,
)
from samplesoft.kernels.math.weights import LEAST
from samplesoft.kernels.math.weights import find as find_weight
from samplesoft.kernels.tree import leaf as tree_leaf
from samplesoft.kernels.tree.leaf import (
    SOFTMAX,
    linear_weight,
    log_others,
    log_weight,
    place_of,
    size_of,
)
from samplesoft.kernels.tree.walk_cuda import warp_dot

find = twin(find_weight)
gain_of = twin(tree_leaf.gain_of)


@kernel
def leaf_of(ids: Any, leaf_size: int, leaves: Any) -> None:
    """Write the leaves of classes (N,), of -1 the first, a thread for each."""
    i = thread_index()
    if i < ids.shape[0]:
        leaves[i] = max(ids[i], 0) // leaf_size


@kernel
def bucket_products(queries: Any, buckets: Any, leaves: Any, products: Any) -> None:
    """Write the products of each query with all class vectors of its leaves (B, k)."""
    num = leaves.shape[1]
    b, k = warp_index() // num, warp_index() % num
    if b >= leaves.shape[0]:
        return
    leaf = leaves[b, k]
    for c in range(lane(), products.shape[2], WARP_SIZE):
        total = buckets.dtype.type(0)
        for i in range(queries.shape[1]):
            total += buckets[leaf, i, c] * queries[b, i]
        products[b, k, c] = float(total)


@kernel
def feature_products(phi: Any, features: Any, first: int, products: Any) -> None:
    """Write products of features (N, F) with those of their example, a warp for each row.

    Row i is that of class ``i % leaf_size`` in number ``first + i // leaf_size`` of the leaves
    (B, k), one after another; ones of `products` are (B, k, leaf_size).
    """
    i, (_, num, size) = warp_index(), products.shape
    if i >= features.shape[0]:
        return
    visit = first + i // size
    product = warp_dot(features[i], phi[visit // num])
    if lane() == 0:
        products[visit // num, visit % num, i % size] = product


@kernel
def gather(buckets: Any, leaves: Any, num_classes: int, rows: Any) -> None:
    """Write the class vectors of leaves (k,) into `rows`, at most k * leaf_size, a thread a number.

    What would lie beyond the last class is its vector.
    """
    place, width = thread_index(), rows.shape[1]
    i, f = place // width, place % width
    if i < rows.shape[0]:
        size = buckets.shape[2]
        c = min(leaves[i // size] * size + i % size, num_classes - 1)
        rows[i, f] = buckets[c // size, f, c % size]


@kernel
def gather_classes(ids: Any, buckets: Any, rows: Any) -> None:
    """Write the vectors of classes (k,) into `rows` (k, d), a thread for each number."""
    place, width = thread_index(), rows.shape[1]
    i, f = place // width, place % width
    if i < rows.shape[0]:
        c, size = ids[i], buckets.shape[2]
        rows[i, f] = buckets[c // size, f, c % size]


@kernel
def scatter(ids: Any, rows: Any, buckets: Any) -> None:
    """Write class vectors `rows` (k, d) into their buckets, a thread for each number."""
    place, width = thread_index(), rows.shape[1]
    i, f = place // width, place % width
    if i < rows.shape[0]:
        c, size = ids[i], buckets.shape[2]
        buckets[c // size, f, c % size] = rows[i, f]


@device_function
def weigh(
    products: Any, size: int, skip: int, kind: int, scale: float, weights: Any
) -> tuple[float, float]:
    """Write weights up to a factor, 0 for `skip`; return their sum and the factor's logarithm."""
    shift = 0.0
    if kind == SOFTMAX:
        shift = -math.inf
        for c in range(lane(), size, WARP_SIZE):
            if c != skip:
                shift = max(shift, log_weight(products[c], kind, scale))
        shift = warp_max(shift)
    total = 0.0
    for c in range(lane(), size, WARP_SIZE):
        weight = 0.0
        if c != skip and kind == SOFTMAX:
            weight = math.exp(log_weight(products[c], kind, scale) - shift)
            weight = weight if weight > LEAST else 0.0
        elif c != skip:
            weight = linear_weight(products[c], kind, scale)
        weights[c] = weight
        total += weight
    total = warp_sum(total)
    warp_sync()
    return total, shift


@device_function
def visit(
    products: Any,
    leaf: int,
    excluded: int,
    num_classes: int,
    leaf_size: int,
    kind: int,
    scale: float,
    weights: Any,
) -> tuple[int, int, float, float]:
    """Weigh the classes of a leaf; return their number, the place left out, and as `weigh`."""
    size = size_of(leaf, num_classes, leaf_size)
    skip = place_of(excluded, leaf, size, leaf_size)
    total, shift = weigh(products, size, skip, kind, scale, weights)
    return size, skip, total, shift


@kernel
def log_rest(
    products: Any,
    exclude: Any,
    num_classes: int,
    leaf_size: int,
    kind: int,
    scale: float,
    weights: Any,
    rest: Any,
) -> None:
    """Write to ``rest[:, 0]`` the log-probability, in the excluded class's leaf, of the others.

    `products` and `weights` are (B, 1, leaf_size); a warp for each example.
    """
    b = warp_index()
    if b >= exclude.shape[0] or exclude[b] < 0:
        return
    size = size_of(exclude[b] // leaf_size, num_classes, leaf_size)
    skip, others = exclude[b] % leaf_size, -math.inf
    if size > 1:
        total, shift = weigh(products[b, 0], size, skip, kind, scale, weights[b, 0])
        others = log_others(total, log_weight(products[b, 0, skip], kind, scale) - shift)
    if lane() == 0:
        rest[b, 0] = others


@kernel
def pick(
    products: Any,
    leaves: Any,
    exclude: Any,
    rest: Any,
    uniforms: Any,
    num_classes: int,
    leaf_size: int,
    kind: int,
    scale: float,
    weights: Any,
    ids: Any,
    log_q: Any,
) -> None:
    """Write the class that each uniform (B, m) draws in its leaf, and complete `log_q`.

    `log_q` holds the log-probability of reaching the leaf; a warp for each draw.
    """
    num = leaves.shape[1]
    b, k = warp_index() // num, warp_index() % num
    if b >= leaves.shape[0]:
        return
    leaf = leaves[b, k]
    size, skip, total, shift = visit(
        products[b, k], leaf, exclude[b], num_classes, leaf_size, kind, scale, weights[b, k]
    )
    c, _ = find(weights[b, k], size, uniforms[b, k] * total, 0, 0.0)
    if lane() == 0:
        inside = log_weight(products[b, k, c], kind, scale) - shift - math.log(total)
        ids[b, k] = leaf * leaf_size + c
        log_q[b, k] = log_q[b, k] + gain_of(rest[b], skip) + inside


@kernel
def log_inside(
    products: Any,
    ids: Any,
    exclude: Any,
    rest: Any,
    num_classes: int,
    leaf_size: int,
    kind: int,
    scale: float,
    weights: Any,
    log_q: Any,
) -> None:
    """Add to `log_q` (B, k), the reach of its leaf, the log-probability of each class in it."""
    num = ids.shape[1]
    b, k = warp_index() // num, warp_index() % num
    if b >= ids.shape[0]:
        return
    leaf = ids[b, k] // leaf_size
    size, skip, total, shift = visit(
        products[b, k], leaf, exclude[b], num_classes, leaf_size, kind, scale, weights[b, k]
    )
    if lane() == 0 and ids[b, k] == exclude[b]:
        log_q[b, k] = -math.inf
    elif lane() == 0:
        product = products[b, k, ids[b, k] % leaf_size]
        inside = log_weight(product, kind, scale) - shift - math.log(total)
        log_q[b, k] = log_q[b, k] + gain_of(rest[b], skip) + inside


@kernel
def probs_inside(
    products: Any,
    log_p: Any,
    exclude: Any,
    rest: Any,
    num_classes: int,
    leaf_size: int,
    kind: int,
    scale: float,
    weights: Any,
    probs: Any,
) -> None:
    """Write probabilities (B, n) of the classes in all leaves, reached with `log_p` (B, L)."""
    num = log_p.shape[1]
    b, leaf = warp_index() // num, warp_index() % num
    if b >= log_p.shape[0]:
        return
    size, skip, total, shift = visit(
        products[b, leaf], leaf, exclude[b], num_classes, leaf_size, kind, scale, weights[b, leaf]
    )
    for c in range(lane(), size, WARP_SIZE):
        q = 0.0
        if c != skip:
            inside = log_weight(products[b, leaf, c], kind, scale) - shift - math.log(total)
            q = math.exp(log_p[b, leaf] + gain_of(rest[b], skip) + inside)
        probs[b, leaf * leaf_size + c] = q
