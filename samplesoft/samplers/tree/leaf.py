"""The leaves of the kernel tree: weights of classes, draws and probabilities.

The weight of a class is a function of its inner product with the query. The probability of a class
is the probability of reaching its leaf, times the weight of the class divided by the sum of the
weights in the leaf. If a class is excluded, all probabilities are divided by the probability of not
drawing that class: see `log_exclusion_correction`.

All functions run on the CPU and on a GPU: see `samplesoft.kernels.lanes`.
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
    TreeParameters,
    clip_mass,
    root_level,
)

# The weight of a class, from its inner product x with the query, is max(x, scale) for KERNEL,
# exp(scale x) for SOFTMAX, and scale x**2 + 1 for QUADRATIC.
KERNEL = 0
SOFTMAX = 1
QUADRATIC = 2
LEAF_WEIGHTS = {"kernel": KERNEL, "softmax": SOFTMAX, "quadratic": QUADRATIC}
# Logits are clipped to this magnitude, because a difference of two infinite logits would be NaN.
_MAX_LOGIT = 1e300


class LeafRows(NamedTuple):
    """Queries, and the rows whose inner products with the queries give the weights of classes.

    Rows and queries are class vectors and contexts, or the features of both.
    """

    queries: Real  # (B, d): contexts, or their features
    rows: Real  # (num_rows, d): class vectors, or their features, grouped by leaf
    # (B, k): index in `rows` of the first class of each visited leaf, or -1 if `rows` lacks it
    offsets: IntArray


class ClassLogProbs(NamedTuple):
    """Classes that are drawn or given, and their log-probabilities; fields have shape (B, k)."""

    ids: IntArray
    log_q: FloatArray
    order: IntArray  # for each path, in sorted order: its column in `ids` and `log_q`


class Workspace(NamedTuple):
    """Buffers for the classes of one leaf, with one row for each worker.

    The row length is the leaf size, rounded up to a multiple of 8.
    """

    products: FloatArray  # (num_workers, row length): inner products with the query
    weights: FloatArray  # (num_workers, row length)


@njit
def log_weight(product: float, parameters: TreeParameters) -> float:
    """Return the log of a class's weight, from its inner product with the query."""
    if parameters.weight_kind == SOFTMAX:
        logit = parameters.scale * product
        # comparisons with NaN are false, so NaN becomes the smallest logit
        return min(logit, _MAX_LOGIT) if logit > -_MAX_LOGIT else -_MAX_LOGIT
    return math.log(kernel_or_quadratic_weight(product, parameters))


@njit
def kernel_or_quadratic_weight(product: float, parameters: TreeParameters) -> float:
    """Return a class's weight for KERNEL or QUADRATIC, from its inner product with the query."""
    if parameters.weight_kind == KERNEL:
        return clip_mass(product, parameters.scale)
    # the formula gives at least 1; `clip_mass` handles overflow and NaN
    return clip_mass(parameters.scale * product * product + 1.0, 1.0)


@njit
def num_classes_in_leaf(leaf: int, parameters: TreeParameters) -> int:
    """Return the number of classes in a leaf; the last leaf may have fewer than the others."""
    return min(parameters.leaf_size, parameters.num_classes - leaf * parameters.leaf_size)


@njit
def excluded_index_in_leaf(leaf: int, excluded: int, parameters: TreeParameters) -> int:
    """Return the index of the excluded class within a leaf, or -1 if it is not in this leaf."""
    index = excluded - leaf * parameters.leaf_size
    return index if 0 <= index < num_classes_in_leaf(leaf, parameters) else -1


@njit_inline
def compute_leaf_weights(
    parameters: TreeParameters,
    leaf_rows: LeafRows,
    b: int,
    first_row: int,
    size: int,
    excluded_index: int,
    workspace: Workspace,
) -> tuple[float, float]:
    """Write the weights of the classes of a leaf; return their sum, and the log of a common factor.

    The leaf has the rows [first_row, first_row + size) of `leaf_rows`. The inner products of query
    `b` with these rows, and the weights, are written to the worker's row of `workspace`. The class
    with index `excluded_index` in the leaf gets weight 0. For SOFTMAX, all weights are divided by
    the largest one, and the common factor is the largest weight; otherwise it is 1.
    """
    products, weights = workspace
    row = worker()
    multiply(leaf_rows.rows, first_row, first_row + size, leaf_rows.queries, b, -1, products, row)

    if parameters.weight_kind == SOFTMAX:
        for c in range(lane(), size, num_lanes()):
            weights[row, c] = log_weight(products[row, c], parameters)
        # weights are relative to the largest one, so that none overflows
        return exp_weights(weights, weights, row, size, excluded_index)

    # other weights lie within the range of `clip_mass`, and need no scaling
    total = 0.0
    for c in range(lane(), size, num_lanes()):
        weight = (
            kernel_or_quadratic_weight(products[row, c], parameters) if c != excluded_index else 0.0
        )
        weights[row, c] = weight
        total += weight

    sync_lanes()
    return sum_of_lanes(total), 0.0


@njit
def log_prob_not_excluded(total: float, log_excluded: float) -> float:
    """Return the log-probability that a draw in the excluded class's leaf is another class.

    `total` is the sum of the weights of the other classes in the leaf, and `log_excluded` the
    log-weight of the excluded class.
    """
    log_others = math.log(total)

    # log(total + excluded), computed relative to the larger term: no exponential overflows, and no
    # digits are lost if the excluded class has nearly all the weight
    high = max(log_others, log_excluded)
    low = min(log_others, log_excluded)
    log_total = high if low == -np.inf else high + math.log1p(math.exp(low - high))
    return log_others - log_total


@njit
def log_exclusion_correction(log_remaining: FloatArray, b: int, excluded_index: int) -> float:
    """Return the correction of log-probabilities in a leaf for the excluded class of context `b`.

    All probabilities are divided by the probability R that a draw from the tree is not the excluded
    class. In the leaf of this class (`excluded_index` >= 0), weights have already been normalised
    without the class, which divides by the probability r that a draw in the leaf is not the class.
    So the correction is log(r) - log(R) in this leaf, and -log(R) in other leaves. A row of
    `log_remaining` (B, 2) is (log(r), log(R)).
    """
    if excluded_index < 0:
        return -float(log_remaining[b, 1])
    return float(log_remaining[b, 0] - log_remaining[b, 1])


@njit
def exclude_classes(
    tree: Tree, contexts: Contexts, leaf_rows: LeafRows, workspace: Workspace
) -> None:
    """Write the probabilities that a draw is not the excluded class of its context.

    The probabilities are written to ``contexts.log_remaining`` and
    ``contexts.conditional_left_probs``. They are computed upwards from the leaf of the excluded
    class, after `walk.compute_excluded_path_probs` has been called. Only positive terms are added,
    so that nothing cancels if a probability is near 0.
    """
    log_remaining = contexts.log_remaining
    parameters = tree.parameters
    root = root_level(len(tree.nodes))

    for b in range(worker(), len(contexts.excluded), num_workers()):
        excluded = contexts.excluded[b]
        first_row = leaf_rows.offsets[b, 0]
        if excluded < 0 or first_row < 0:
            continue
        leaf = excluded // parameters.leaf_size
        index = excluded % parameters.leaf_size
        size = num_classes_in_leaf(leaf, parameters)

        # if the class is alone in its leaf, the probability of not drawing it there is 0
        log_others = -np.inf
        if size > 1:
            total, shift = compute_leaf_weights(
                parameters, leaf_rows, b, first_row, size, index, workspace
            )
            log_excluded = log_weight(workspace.products[worker(), index], parameters) - shift
            log_others = log_prob_not_excluded(total, log_excluded)

        log_remaining[b, 0] = log_others
        log_remaining[b, 1] = log_others
        if root == 0:  # a single leaf: keep `log_others`, whose exponential may underflow
            continue

        # Let rho_v be the probability of drawing the class from node v, c the child of v that
        # contains the class, and p_c the probability of the branch to c. Then `remaining` is
        # 1 - rho_v = (1 - p_c) + p_c (1 - rho_c). Given that the class is not drawn, the branch to
        # c has probability p_c (1 - rho_c) / (1 - rho_v).
        remaining = math.exp(log_others)
        for level in range(1, root + 1):
            towards_prob = contexts.excluded_path_probs[b, level, 0]
            away_prob = contexts.excluded_path_probs[b, level, 1]
            is_left = (leaf >> (level - 1)) % 2 == 0

            # this value remains if the node contains no other class
            contexts.conditional_left_probs[b, level] = towards_prob if is_left else away_prob
            towards_prob *= remaining
            remaining = towards_prob + away_prob
            if remaining > 0.0:
                contexts.conditional_left_probs[b, level] = (
                    towards_prob if is_left else away_prob
                ) / remaining

        log_remaining[b, 1] = math.log(remaining)


@njit
def draw_in_leaves(
    parameters: TreeParameters,
    contexts: Contexts,
    leaf_rows: LeafRows,
    visits: IntArray,
    is_drawn: bool,
    paths: Paths,
    classes: ClassLogProbs,
    workspace: Workspace,
) -> None:
    """Write the log-probabilities of drawn or given classes to ``classes.log_q``.

    Each path has reached its leaf. If `is_drawn`, a class of the leaf is drawn, and written to
    ``classes.ids``; otherwise ``classes.ids`` holds the given class.

    A row of `visits` (V, 3) holds a context, and the start and the stop of the range of its paths
    in one leaf. Rows are sorted by leaf: see `samplers.visits`. The log-probability of an excluded
    class is -inf.
    """
    rows = leaf_rows.rows
    offsets = leaf_rows.offsets
    should_prefetch = rows.size * rows.itemsize > CACHE

    for v in range(worker(), len(visits), num_workers()):
        b = visits[v, 0]
        start = visits[v, 1]
        stop = visits[v, 2]
        first_row = offsets[b, start]
        if first_row < 0:
            continue

        # prefetch the rows of the next leaf
        if should_prefetch and v + 1 < len(visits):
            next_row = offsets[visits[v + 1, 0], visits[v + 1, 1]]
            if next_row != first_row and next_row >= 0:
                for r in range(next_row, min(next_row + parameters.leaf_size, len(rows))):
                    prefetch_row(rows, r)

        first_path = b * classes.ids.shape[1]
        leaf = paths.leaves[first_path + start]
        size = num_classes_in_leaf(leaf, parameters)
        excluded_index = excluded_index_in_leaf(leaf, contexts.excluded[b], parameters)
        total, shift = compute_leaf_weights(
            parameters, leaf_rows, b, first_row, size, excluded_index, workspace
        )

        # these terms are the same for all paths of the visit
        log_total = math.log(total)
        correction = log_exclusion_correction(contexts.log_remaining, b, excluded_index)

        for k in range(start, stop):
            column = classes.order[b, k]
            if is_drawn:
                target = paths.uniforms[first_path + k] * total
                c, _ = search_cumulative(workspace.weights, worker(), size, target, 0, 0.0)
                classes.ids[b, column] = leaf * parameters.leaf_size + c
            else:
                c = classes.ids[b, column] - leaf * parameters.leaf_size

            # computed from the log-weight, because the weight may have underflowed
            log_in_leaf = (
                log_weight(workspace.products[worker(), c], parameters) - shift - log_total
            )
            log_q = paths.log_reach[first_path + k] + correction + log_in_leaf
            classes.log_q[b, column] = log_q if c != excluded_index else -np.inf


@njit
def probs_in_leaves(
    parameters: TreeParameters,
    contexts: Contexts,
    leaf_rows: LeafRows,
    first_leaf: int,
    log_reach: FloatArray,
    workspace: Workspace,
    probs: FloatArray,
) -> None:
    """Write to `probs` (B, n) the probabilities of the classes in k leaves from `first_leaf` on.

    `log_reach` (B, L) holds the log-probabilities of reaching all L leaves. ``leaf_rows.offsets``
    (1, k) is the same for all contexts.
    """
    num_leaves = leaf_rows.offsets.shape[1]
    row = worker()

    for i in range(worker(), len(probs) * num_leaves, num_workers()):
        b = i // num_leaves
        leaf = first_leaf + i % num_leaves
        first_class = leaf * parameters.leaf_size
        size = num_classes_in_leaf(leaf, parameters)
        excluded_index = excluded_index_in_leaf(leaf, contexts.excluded[b], parameters)
        if size == 1 and excluded_index == 0:  # the leaf has only the excluded class
            probs[b, first_class] = 0.0
            continue

        first_row = leaf_rows.offsets[0, leaf - first_leaf]
        total, shift = compute_leaf_weights(
            parameters, leaf_rows, b, first_row, size, excluded_index, workspace
        )

        # the terms that are the same for all classes of the leaf
        log_scale = log_reach[b, leaf] + log_exclusion_correction(
            contexts.log_remaining, b, excluded_index
        )
        log_scale -= math.log(total)

        for c in range(lane(), size, num_lanes()):
            log_in_leaf = log_weight(workspace.products[row, c], parameters) - shift
            probs[b, first_class + c] = (
                math.exp(log_scale + log_in_leaf) if c != excluded_index else 0.0
            )
