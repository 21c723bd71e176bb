"""The leaves of the kernel tree: weights of classes, draws and probabilities.

The weight of a class is a function of its inner product with the query. The probability of a class
is the probability of reaching its leaf, times its fraction of the weight in the leaf. If a class is
excluded, both factors are divided by the probability of not drawing that class.

All functions run on both devices: see `samplesoft.kernels.lanes`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import njit, njit_inline
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.lanes import lane, num_lanes, num_workers, sum_of_lanes, sync_lanes, worker
from samplesoft.kernels.products import products as multiply
from samplesoft.kernels.rows import CACHE, prefetch_row
from samplesoft.kernels.weights import exp_weights, search_cumulative
from samplesoft.samplers.tree.walk import (
    Contexts,
    Paths,
    Real,
    Tree,
    TreeRules,
    clip,
    root_level,
)

# Weight of a class with the inner product x: max(x, scale), exp(scale x), or scale x**2 + 1.
KERNEL = 0
SOFTMAX = 1
QUADRATIC = 2
LEAF_WEIGHTS = {"kernel": KERNEL, "softmax": SOFTMAX, "quadratic": QUADRATIC}
# Overflowed logits are clipped to this magnitude, so that a difference of logits is never NaN.
_MAX_LOGIT = 1e300


class LeafRows(NamedTuple):
    """Queries and the rows they are multiplied by: class vectors, or features of classes."""

    queries: Real  # (B, d): contexts, or their features
    rows: Real  # (k, d), grouped by leaf
    offsets: IntArray  # (B, k), row of the first class of each visited leaf; -1: not in `rows`


class ClassLogProbs(NamedTuple):
    """Classes (B, k), drawn or given, and their log-probabilities."""

    ids: IntArray
    log_q: FloatArray
    order: IntArray  # for each sorted path, its column in `ids` and `log_q`


class Workspace(NamedTuple):
    """Products and weights of the classes of one leaf: a row (leaf_size,) for each worker."""

    products: FloatArray
    weights: FloatArray


@njit
def log_weight(product: float, rules: TreeRules) -> float:
    """Return the logarithm of the weight of a class from its inner product with the query."""
    if rules.weight_kind == SOFTMAX:
        logit = rules.scale * product
        # a comparison with NaN is false, so that NaN counts as the smallest logit
        return min(logit, _MAX_LOGIT) if logit > -_MAX_LOGIT else -_MAX_LOGIT
    return math.log(linear_weight(product, rules))


@njit
def linear_weight(product: float, rules: TreeRules) -> float:
    """Return the weight of a class, of a kind other than the exponential."""
    if rules.weight_kind == KERNEL:
        return clip(product, rules.scale)
    # at least 1 in exact arithmetic; `clip` handles overflow and NaN
    return clip(rules.scale * product * product + 1.0, 1.0)


@njit
def num_classes_in(leaf: int, rules: TreeRules) -> int:
    """Return the number of classes in a leaf."""
    return min(rules.leaf_size, rules.num_classes - leaf * rules.leaf_size)


@njit
def index_in_leaf(leaf: int, excluded: int, rules: TreeRules) -> int:
    """Return the index of the excluded class within a leaf, -1 if it is not there."""
    index = excluded - leaf * rules.leaf_size
    return index if 0 <= index < num_classes_in(leaf, rules) else -1


@njit_inline
def compute_leaf_weights(
    rules: TreeRules,
    visited: LeafRows,
    b: int,
    first_row: int,
    size: int,
    excluded_index: int,
    workspace: Workspace,
) -> tuple[float, float]:
    """Return the sum of the weights of a leaf's classes, and the log of the factor they lack.

    Inner products of query b with `size` rows from `first_row` on, and the weights, are written to
    the worker's row of the workspace. The class at index `excluded_index` has weight 0.
    """
    products, weights = workspace
    row = worker()
    multiply(visited.rows, first_row, first_row + size, visited.queries, b, -1, products, row)
    if rules.weight_kind == SOFTMAX:
        for c in range(lane(), size, num_lanes()):
            weights[row, c] = log_weight(products[row, c], rules)
        # relative to the largest weight, whose logit is the second result: nothing overflows
        return exp_weights(weights, weights, row, size, excluded_index)
    # other weights are positive and of moderate size, and need no scaling
    total = 0.0
    for c in range(lane(), size, num_lanes()):
        weight = linear_weight(products[row, c], rules) if c != excluded_index else 0.0
        weights[row, c] = weight
        total += weight
    sync_lanes()
    return sum_of_lanes(total), 0.0


@njit
def log_prob_not_excluded(total: float, log_excluded: float) -> float:
    """Return the log-probability of not drawing a class.

    `total` is the weight of the other classes, `log_excluded` the log-weight of the class.
    """
    others = math.log(total)
    # log(total + excluded), relative to the larger term: no exponential overflows, and the result
    # keeps all digits where the excluded class has nearly all the weight
    high = max(others, log_excluded)
    low = min(others, log_excluded)
    both = high if low == -np.inf else high + math.log1p(math.exp(low - high))
    return others - both


@njit
def log_correction(log_remaining: FloatArray, b: int, excluded_index: int) -> float:
    """Return the change of the log-probabilities in a leaf that excluding a class causes.

    In other leaves, divide by the probability of not drawing the class in the tree. In the leaf of
    the class, weights are already normalised without it, which is a division by the probability
    of not drawing it in the leaf; this is undone. `log_remaining` (B, 2) is a field of `Contexts`.
    """
    if excluded_index < 0:
        return -float(log_remaining[b, 1])
    return float(log_remaining[b, 0] - log_remaining[b, 1])


@njit
def exclude_classes(
    tree: Tree, contexts: Contexts, visited: LeafRows, workspace: Workspace
) -> None:
    """Write the probabilities of not drawing the excluded class, upwards from its leaf.

    Only positive terms are added, so that nothing cancels where a probability is near 0. Reads
    ``branches``, from `walk.descend_to_excluded`; writes ``log_remaining`` and ``left_probs``.
    """
    log_remaining = contexts.log_remaining
    rules = tree.rules
    root = root_level(len(tree.nodes))
    for b in range(worker(), len(contexts.excluded), num_workers()):
        excluded = contexts.excluded[b]
        first_row = visited.offsets[b, 0]
        if excluded < 0 or first_row < 0:
            continue
        leaf = excluded // rules.leaf_size
        index = excluded % rules.leaf_size
        size = num_classes_in(leaf, rules)
        # 0 if the class is alone in its leaf
        log_others = -np.inf
        if size > 1:
            total, shift = compute_leaf_weights(
                rules, visited, b, first_row, size, index, workspace
            )
            log_excluded = log_weight(workspace.products[worker(), index], rules) - shift
            log_others = log_prob_not_excluded(total, log_excluded)
        log_remaining[b, 0] = log_others
        log_remaining[b, 1] = log_others
        if root == 0:  # whose exponential may be 0
            continue
        # with p_c the share towards the class and rho_c its probability below: 1 - rho_v is
        # (1 - p_c) + p_c (1 - rho_c), and the branch is taken with p_c (1 - rho_c) / (1 - rho_v)
        remaining = math.exp(log_others)
        for level in range(1, root + 1):
            towards = contexts.branches[b, level, 0]
            away = contexts.branches[b, level, 1]
            is_left = (leaf >> (level - 1)) % 2 == 0
            # left as it is where no other class is below the node
            contexts.left_probs[b, level] = towards if is_left else away
            towards *= remaining
            remaining = towards + away
            if remaining > 0.0:
                contexts.left_probs[b, level] = (towards if is_left else away) / remaining
        log_remaining[b, 1] = math.log(remaining)


@njit
def draw_in_leaves(
    rules: TreeRules,
    contexts: Contexts,
    visited: LeafRows,
    visits: IntArray,
    is_drawn: bool,
    paths: Paths,
    classes: ClassLogProbs,
    workspace: Workspace,
) -> None:
    """Draw a class in each leaf that paths have reached, and write log-probabilities.

    If `is_drawn` is False the classes are given. A row of `visits` (V, 3) is a context and the
    first and last (exclusive) of its paths in one leaf, in the order of leaves: see
    `samplers.visits`. An excluded class gets -inf.
    """
    rows = visited.rows
    offsets = visited.offsets
    should_prefetch = rows.size * rows.itemsize > CACHE
    for v in range(worker(), len(visits), num_workers()):
        b = visits[v, 0]
        start = visits[v, 1]
        stop = visits[v, 2]
        first_row = offsets[b, start]
        if first_row < 0:
            continue
        if should_prefetch and v + 1 < len(visits):  # prefetch the rows of the next leaf
            next_row = offsets[visits[v + 1, 0], visits[v + 1, 1]]
            if next_row != first_row and next_row >= 0:
                for r in range(next_row, min(next_row + rules.leaf_size, len(rows))):
                    prefetch_row(rows, r)
        first_path = b * classes.ids.shape[1]
        leaf = paths.leaves[first_path + start]
        size = num_classes_in(leaf, rules)
        excluded_index = index_in_leaf(leaf, contexts.excluded[b], rules)
        total, shift = compute_leaf_weights(
            rules, visited, b, first_row, size, excluded_index, workspace
        )
        # the same for all paths of the visit
        log_total = math.log(total)
        correction = log_correction(contexts.log_remaining, b, excluded_index)
        for k in range(start, stop):
            # column of the path before sorting
            column = classes.order[b, k]
            if is_drawn:
                target = paths.uniforms[first_path + k] * total
                c, _ = search_cumulative(workspace.weights, worker(), size, target, 0, 0.0)
                classes.ids[b, column] = leaf * rules.leaf_size + c
            else:
                c = classes.ids[b, column] - leaf * rules.leaf_size
            # from the logarithm of the weight, because the weight itself may have underflowed
            log_in_leaf = log_weight(workspace.products[worker(), c], rules) - shift - log_total
            log_q = paths.log_reach[first_path + k] + correction + log_in_leaf
            classes.log_q[b, column] = log_q if c != excluded_index else -np.inf


@njit
def probs_in_leaves(
    rules: TreeRules,
    contexts: Contexts,
    visited: LeafRows,
    first_leaf: int,
    log_reach: FloatArray,
    workspace: Workspace,
    probs: FloatArray,
) -> None:
    """Write the probabilities (B, n) of the classes in consecutive leaves from `first_leaf` on.

    `log_reach` (B, L) are the log-probabilities of reaching leaves. The rows of these leaves are in
    `visited`, whose ``offsets`` are (1, k).
    """
    num = visited.offsets.shape[1]
    row = worker()
    for i in range(worker(), len(probs) * num, num_workers()):
        b = i // num
        leaf = first_leaf + i % num
        first = leaf * rules.leaf_size
        size = num_classes_in(leaf, rules)
        excluded_index = index_in_leaf(leaf, contexts.excluded[b], rules)
        if size == 1 and excluded_index == 0:  # the excluded class alone
            probs[b, first] = 0.0
            continue
        first_row = visited.offsets[0, leaf - first_leaf]
        total, shift = compute_leaf_weights(
            rules, visited, b, first_row, size, excluded_index, workspace
        )
        # the terms that the classes of the leaf share
        log_scale = log_reach[b, leaf] + log_correction(contexts.log_remaining, b, excluded_index)
        log_scale -= math.log(total)
        for c in range(lane(), size, num_lanes()):
            log_in_leaf = log_weight(workspace.products[row, c], rules) - shift
            probs[b, first + c] = math.exp(log_scale + log_in_leaf) if c != excluded_index else 0.0
