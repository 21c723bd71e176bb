"""Inside a leaf of the kernel tree: the weight of each class, draws and probabilities.

The weight of a class is a function of its inner product with the query alone. A probability in
the whole tree is that of reaching the leaf times that of the class among its neighbours there;
where a class is excluded, both are divided by the probability of what remains.
"""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.rows import CACHE, prefetch_row
from samplesoft.kernels.rows import products as multiply
from samplesoft.kernels.tree.records import (
    KERNEL,
    SOFTMAX,
    Draws,
    Exclusion,
    LeafRows,
    Real,
    TreeRules,
)
from samplesoft.kernels.tree.walk import clip
from samplesoft.kernels.weights import exp_weights, find

_LARGEST = 1e300  # of a logit: what has overflowed is as likely as this, and no difference is NaN


@njit
def log_weight(product: float, rules: TreeRules) -> float:
    """Return the logarithm of the weight of a class from its inner product with the query."""
    if rules.kind == SOFTMAX:
        logit = rules.scale * product
        return min(logit, _LARGEST) if logit > -_LARGEST else -_LARGEST
    return math.log(linear_weight(product, rules))


@njit
def linear_weight(product: float, rules: TreeRules) -> float:
    """Return the weight of a class by one of the kinds that are no exponentials."""
    if rules.kind == KERNEL:
        return clip(product, rules.scale)
    return clip(rules.scale * product * product + 1.0, 1.0)


@njit
def classes_in(leaf: int, rules: TreeRules) -> int:
    """Return how many classes a leaf holds."""
    return min(rules.leaf_size, rules.num_classes - leaf * rules.leaf_size)


@njit
def place_in(leaf: int, excluded: int, rules: TreeRules) -> int:
    """Return the place of the excluded class in a leaf, or -1 where it is in another or none."""
    place = excluded - leaf * rules.leaf_size
    return place if 0 <= place < classes_in(leaf, rules) else -1


@njit
def weigh_leaf(
    queries: Real,
    b: int,
    rows: Real,
    start: int,
    size: int,
    excluded_place: int,
    rules: TreeRules,
    products: FloatArray,
    weights: FloatArray,
) -> tuple[float, float]:
    """Write inner products of query b and `size` rows from `start` on, and weights up to a factor.

    `products` (1, leaf_size) and `weights` (leaf_size,) have room for a whole leaf; the excluded
    class weighs 0. Returns the sum of the weights and the logarithm of the factor that makes them
    true.
    """
    multiply(rows, start, start + size, queries, b, products)
    if rules.kind == SOFTMAX:
        for c in range(size):
            weights[c] = log_weight(products[0, c], rules)
        return exp_weights(weights, size, excluded_place)
    total = 0.0
    for c in range(size):
        weights[c] = linear_weight(products[0, c], rules) if c != excluded_place else 0.0
        total += weights[c]
    return total, 0.0


@njit
def log_share_of_others(total: float, log_excluded: float) -> float:
    """Return the log-probability of all classes but one, from their weight and its log-weight."""
    others = math.log(total)
    high, low = max(others, log_excluded), min(others, log_excluded)
    every = high if low == -np.inf else high + math.log1p(math.exp(low - high))
    return others - every


@njit
def log_correction(log_remaining: FloatArray, excluded_place: int) -> float:
    """Return what excluding a class adds to the log-probabilities of a leaf's other classes.

    Reached without exclusion, a leaf must be divided by what remains from the root; inside the
    leaf of the excluded class the others have been divided by what remains there already, which
    the way to the leaf must make up for. `log_remaining` (2,) is a row of `Exclusion`.
    """
    if excluded_place < 0:
        other: float = -log_remaining[1]
        return other
    own: float = log_remaining[0] - log_remaining[1]
    return own


@njit
def remaining_in_leaf(visited: LeafRows, exclusion: Exclusion, rules: TreeRules) -> None:
    """Write the first column of ``log_remaining``, for leaves of excluded classes (B,)."""
    queries, rows, starts = visited
    classes, log_remaining = exclusion
    products, weights = np.empty((1, rules.leaf_size)), np.empty(rules.leaf_size)
    for b in range(len(queries)):
        if classes[b] < 0 or starts[b] < 0:
            continue
        size, place = classes_in(classes[b] // rules.leaf_size, rules), classes[b] % rules.leaf_size
        log_remaining[b, 0] = -np.inf
        if size > 1:
            total, shift = weigh_leaf(
                queries, b, rows, starts[b], size, place, rules, products, weights
            )
            log_excluded = log_weight(products[0, place], rules) - shift
            log_remaining[b, 0] = log_share_of_others(total, log_excluded)


@njit
def pick(
    visited: LeafRows,
    visits: IntArray,
    draws: Draws,
    exclusion: Exclusion,
    rules: TreeRules,
    ids: IntArray,
    log_q: FloatArray,
) -> None:
    """Draw a class in each leaf that was reached, and write its log-probability, (B, m).

    `visits` (V, 3) to the leaves are in their order, from `samplers.visits`.
    """
    queries, rows, starts = visited
    uniforms, order, leaves, log_reach = draws
    products, weights = np.empty((1, rules.leaf_size)), np.empty(rules.leaf_size)
    far = rows.size * rows.itemsize > CACHE
    for v in range(len(visits)):
        b, start, stop = visits[v, 0], visits[v, 1], visits[v, 2]
        leaf, here = leaves[b, start], starts[b, start]
        if here < 0:
            continue
        if far and v + 1 < len(visits):  # rows of the next leaf come while these are multiplied
            ahead = starts[visits[v + 1, 0], visits[v + 1, 1]]
            if ahead != here and ahead >= 0:
                for row in range(ahead, min(ahead + rules.leaf_size, len(rows))):
                    prefetch_row(rows, row)
        size, place = classes_in(leaf, rules), place_in(leaf, exclusion.classes[b], rules)
        total, shift = weigh_leaf(queries, b, rows, here, size, place, rules, products, weights)
        log_total = math.log(total)
        correction = log_correction(exclusion.log_remaining[b], place)
        for k in range(start, stop):
            c, _ = find(weights, size, uniforms[b, k] * total, 0, 0.0)
            own = order[b, k]
            ids[b, own] = leaf * rules.leaf_size + c
            log_in_leaf = log_weight(products[0, c], rules) - shift - log_total
            log_q[b, own] = log_reach[b, k] + correction + log_in_leaf


@njit
def add_log_in_leaf(
    visited: LeafRows, ids: IntArray, exclusion: Exclusion, rules: TreeRules, log_q: FloatArray
) -> None:
    """Add the log-probability of each class in its leaf to that of reaching it, in `log_q` (B, k).

    What cannot be drawn gets -inf.
    """
    queries, rows, starts = visited
    products, weights = np.empty((1, rules.leaf_size)), np.empty(rules.leaf_size)
    for b in range(len(queries)):
        for k in range(ids.shape[1]):
            if starts[b, k] < 0:
                continue
            if ids[b, k] == exclusion.classes[b]:
                log_q[b, k] = -np.inf
                continue
            leaf = ids[b, k] // rules.leaf_size
            size, place = classes_in(leaf, rules), place_in(leaf, exclusion.classes[b], rules)
            total, shift = weigh_leaf(
                queries, b, rows, starts[b, k], size, place, rules, products, weights
            )
            correction = log_correction(exclusion.log_remaining[b], place)
            log_own = log_weight(products[0, ids[b, k] % rules.leaf_size], rules)
            log_q[b, k] = log_q[b, k] + correction + (log_own - shift - math.log(total))


@njit
def probs_in_leaves(
    visited: LeafRows,
    leaves: IntArray,
    log_reach: FloatArray,
    exclusion: Exclusion,
    rules: TreeRules,
    probs: FloatArray,
) -> None:
    """Write probabilities (B, n) of the classes in `leaves` (k,), reached by `log_reach` (B, L)."""
    queries, rows, starts = visited
    products, weights = np.empty((1, rules.leaf_size)), np.empty(rules.leaf_size)
    for b in range(len(queries)):
        for start, leaf in zip(starts, leaves):  # noqa: B905, Numba has no strict
            first, size = leaf * rules.leaf_size, classes_in(leaf, rules)
            place = place_in(leaf, exclusion.classes[b], rules)
            if size == 1 and place == 0:  # the excluded class alone
                probs[b, first] = 0.0
                continue
            total, shift = weigh_leaf(
                queries, b, rows, start, size, place, rules, products, weights
            )
            correction = log_correction(exclusion.log_remaining[b], place)
            log_scale = log_reach[b, leaf] + correction - math.log(total)
            for c in range(size):
                log_own = log_weight(products[0, c], rules) - shift
                probs[b, first + c] = math.exp(log_scale + log_own) if c != place else 0.0
