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
    for_device,
    kernel,
    lane,
    thread_index,
    warp_index,
    warp_sum,
    warp_sync,
)
from samplesoft.kernels import weights as host_weights
from samplesoft.kernels.lanes_cuda import exp_weights, warp_dot
from samplesoft.kernels.tree import leaf as host
from samplesoft.kernels.tree.leaf import (
    classes_in,
    linear_weight,
    log_share_of_others,
    log_weight,
    place_in,
)
from samplesoft.kernels.tree.records import SOFTMAX, Exclusion, TreeRules

find = for_device(host_weights.find)
log_correction = for_device(host.log_correction)


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
def weigh_on_lanes(
    products: Any, size: int, excluded_place: int, rules: TreeRules, weights: Any
) -> tuple[float, float]:
    """Write weights up to a factor, 0 if excluded; return their sum and the factor's logarithm."""
    if rules.kind == SOFTMAX:
        for c in range(lane(), size, WARP_SIZE):
            weights[c] = log_weight(products[c], rules) if c != excluded_place else -math.inf
        total, greatest = exp_weights(weights, size)
        return total, greatest
    total = 0.0
    for c in range(lane(), size, WARP_SIZE):
        weights[c] = linear_weight(products[c], rules) if c != excluded_place else 0.0
        total += weights[c]
    total = warp_sum(total)
    warp_sync()
    return total, 0.0


@kernel
def remaining_in_leaf(products: Any, exclusion: Exclusion, rules: TreeRules, weights: Any) -> None:
    """Write the first column of ``log_remaining``, a warp for each example.

    `products` and `weights` are (B, 1, leaf_size), of the leaves of excluded classes.
    """
    b = warp_index()
    classes = exclusion.classes
    if b >= classes.shape[0] or classes[b] < 0:
        return
    size, place = classes_in(classes[b] // rules.leaf_size, rules), classes[b] % rules.leaf_size
    log_others = -math.inf
    if size > 1:
        total, shift = weigh_on_lanes(products[b, 0], size, place, rules, weights[b, 0])
        log_others = log_share_of_others(total, log_weight(products[b, 0, place], rules) - shift)
    if lane() == 0:
        exclusion.log_remaining[b, 0] = log_others


@kernel
def pick(
    products: Any,
    leaves: Any,
    uniforms: Any,
    exclusion: Exclusion,
    rules: TreeRules,
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
    size, place = classes_in(leaf, rules), place_in(leaf, exclusion.classes[b], rules)
    total, shift = weigh_on_lanes(products[b, k], size, place, rules, weights[b, k])
    c, _ = find(weights[b, k], size, uniforms[b, k] * total, 0, 0.0)
    if lane() == 0:
        ids[b, k] = leaf * rules.leaf_size + c
        log_in_leaf = log_weight(products[b, k, c], rules) - shift - math.log(total)
        correction = log_correction(exclusion.log_remaining[b], place)
        log_q[b, k] = log_q[b, k] + correction + log_in_leaf


@kernel
def add_log_in_leaf(
    products: Any, ids: Any, exclusion: Exclusion, rules: TreeRules, weights: Any, log_q: Any
) -> None:
    """Add the log-probability of each class in its leaf to that of reaching it, in `log_q` (B, k).

    What cannot be drawn gets -inf; a warp for each class.
    """
    num = ids.shape[1]
    b, k = warp_index() // num, warp_index() % num
    if b >= ids.shape[0]:
        return
    leaf = ids[b, k] // rules.leaf_size
    size, place = classes_in(leaf, rules), place_in(leaf, exclusion.classes[b], rules)
    total, shift = weigh_on_lanes(products[b, k], size, place, rules, weights[b, k])
    if lane() == 0 and ids[b, k] == exclusion.classes[b]:
        log_q[b, k] = -math.inf
    elif lane() == 0:
        log_own = log_weight(products[b, k, ids[b, k] % rules.leaf_size], rules)
        correction = log_correction(exclusion.log_remaining[b], place)
        log_q[b, k] = log_q[b, k] + correction + (log_own - shift - math.log(total))


@kernel
def probs_in_leaves(
    products: Any, log_reach: Any, exclusion: Exclusion, rules: TreeRules, weights: Any, probs: Any
) -> None:
    """Write probabilities (B, n) of the classes in all leaves, reached by `log_reach` (B, L).

    A warp for each leaf of each example.
    """
    num = log_reach.shape[1]
    b, leaf = warp_index() // num, warp_index() % num
    if b >= log_reach.shape[0]:
        return
    size, place = classes_in(leaf, rules), place_in(leaf, exclusion.classes[b], rules)
    total, shift = weigh_on_lanes(products[b, leaf], size, place, rules, weights[b, leaf])
    correction = log_correction(exclusion.log_remaining[b], place)
    for c in range(lane(), size, WARP_SIZE):
        q = 0.0
        if c != place:
            log_in_leaf = log_weight(products[b, leaf, c], rules) - shift - math.log(total)
            q = math.exp(log_reach[b, leaf] + correction + log_in_leaf)
        probs[b, leaf * rules.leaf_size + c] = q
