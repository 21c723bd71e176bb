"""Inside a leaf of the kernel tree: the weight of each class, draws and probabilities.

The weight of a class is a function of its inner product with the query alone. A probability in
the whole tree is that of reaching the leaf times that of the class among its neighbours there;
where a class is excluded, both are divided by the probability of what remains.

All functions serve both devices: see `samplesoft.kernels.lanes`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from samplesoft._jit import njit, njit_inline
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.lanes import lane, meet, num_lanes, num_workers, sum_of_lanes, worker
from samplesoft.kernels.products import products as multiply
from samplesoft.kernels.rows import CACHE, prefetch_row
from samplesoft.kernels.weights import exp_weights, find
from samplesoft.samplers.tree.walk import (
    Contexts,
    Paths,
    Real,
    Tree,
    TreeRules,
    clip,
    top,
)

# A class is weighed by its inner product x with the query: by max(x, scale), by exp(scale x), or
# by scale x**2 + 1.
KERNEL = 0
SOFTMAX = 1
QUADRATIC = 2
LEAVES = {"kernel": KERNEL, "softmax": SOFTMAX, "quadratic": QUADRATIC}
# A logit that has overflowed counts as this one, so that no difference of logits is NaN.
_LARGEST_LOGIT = 1e300


class LeafRows(NamedTuple):
    """What is multiplied inside leaves: class vectors, or features of classes."""

    queries: Real  # (B, d): contexts, or their features
    rows: Real  # (k, d): the same of classes, those of a leaf one after another
    starts: IntArray  # (B, k), row of the first class of a leaf visited; -1 where it is not here


class Classes(NamedTuple):
    """Classes (B, k) that are drawn, or known, and their log-probabilities."""

    ids: IntArray
    log_q: FloatArray
    order: IntArray  # the places here of paths, which are sorted


class Workspace(NamedTuple):
    """Arrays in which classes of a leaf are weighed, with a row (leaf_size,) for each worker."""

    products: FloatArray
    weights: FloatArray


@njit
def log_weight(product: float, rules: TreeRules) -> float:
    """Return the logarithm of the weight of a class from its inner product with the query."""
    if rules.kind == SOFTMAX:
        logit = rules.scale * product
        # a comparison with NaN is false: such a logit is the least there is
        return min(logit, _LARGEST_LOGIT) if logit > -_LARGEST_LOGIT else -_LARGEST_LOGIT
    return math.log(linear_weight(product, rules))


@njit
def linear_weight(product: float, rules: TreeRules) -> float:
    """Return the weight of a class by one of the kinds that are no exponentials."""
    if rules.kind == KERNEL:
        return clip(product, rules.scale)
    # at least 1 by itself; `clip` is for what overflows or is NaN
    return clip(rules.scale * product * product + 1.0, 1.0)


@njit
def num_classes_in(leaf: int, rules: TreeRules) -> int:
    """Return how many classes a leaf holds."""
    return min(rules.leaf_size, rules.num_classes - leaf * rules.leaf_size)


@njit
def index_in_leaf(leaf: int, excluded: int, rules: TreeRules) -> int:
    """Return the place of the excluded class in a leaf, or -1 where it is in another or none."""
    place = excluded - leaf * rules.leaf_size
    return place if 0 <= place < num_classes_in(leaf, rules) else -1


@njit_inline
def weigh_leaf(
    rules: TreeRules,
    visited: LeafRows,
    b: int,
    start: int,
    size: int,
    without: int,
    workspace: Workspace,
) -> tuple[float, float]:
    """Write inner products of query b and `size` rows from `start` on, and weights up to a factor.

    They go to the worker's row of the workspace; the class at index `without` weighs 0. The result
    is the sum of the weights, and the logarithm of the factor that makes them true.
    """
    products, weights = workspace
    row = worker()
    multiply(visited.rows, start, start + size, visited.queries, b, -1, products, row)
    if rules.kind == SOFTMAX:
        for c in range(lane(), size, num_lanes()):
            weights[row, c] = log_weight(products[row, c], rules)
        # divided by the greatest, whose logit is returned: nothing overflows
        return exp_weights(weights, weights, row, size, without)
    # other kinds are sums of positive numbers of moderate size, and need no shift
    total = 0.0
    for c in range(lane(), size, num_lanes()):
        weight = linear_weight(products[row, c], rules) if c != without else 0.0
        weights[row, c] = weight
        total += weight
    meet()
    return sum_of_lanes(total), 0.0


@njit
def log_prob_not_excluded(total: float, log_excluded: float) -> float:
    """Return the log-probability of all classes but one, from their weight and its log-weight."""
    others = math.log(total)
    # log(total + excluded) by its greater part, so that no exponential overflows, and a class that
    # is nearly everything leaves the others all their digits
    high = max(others, log_excluded)
    low = min(others, log_excluded)
    both = high if low == -np.inf else high + math.log1p(math.exp(low - high))
    return others - both


@njit
def log_correction(log_remaining: FloatArray, b: int, excluded_place: int) -> float:
    """Return what excluding a class adds to the log-probabilities of a leaf's other classes.

    Reached without exclusion, a leaf must be divided by what remains from the root; inside the
    leaf of the excluded class the others have been divided by what remains there already, which
    the path to the leaf must make up for. `log_remaining` (B, 2) is that of `Contexts`.
    """
    # elsewhere: reached without a thought of the excluded class, so divide by what remains
    if excluded_place < 0:
        return -float(log_remaining[b, 1])
    return float(log_remaining[b, 0] - log_remaining[b, 1])


@njit
def exclude_classes(
    tree: Tree, contexts: Contexts, visited: LeafRows, workspace: Workspace
) -> None:
    """Write the probabilities of all classes but the one that each example excludes.

    They are built upwards, from the leaf of the class, of positive terms, so that nothing cancels
    when one is near 0. ``branches``, from `walk.descend_to_excluded`, are read; ``log_remaining``
    and ``left_shares`` are written.
    """
    log_remaining = contexts.log_remaining
    rules = tree.rules
    root = top(len(tree.nodes))
    for b in range(worker(), len(contexts.excluded), num_workers()):
        excluded = contexts.excluded[b]
        start = visited.starts[b, 0]
        if excluded < 0 or start < 0:
            continue
        leaf = excluded // rules.leaf_size
        place = excluded % rules.leaf_size
        size = num_classes_in(leaf, rules)
        # where the class is alone in its leaf nothing remains there
        log_others = -np.inf
        if size > 1:
            total, shift = weigh_leaf(rules, visited, b, start, size, place, workspace)
            log_excluded = log_weight(workspace.products[worker(), place], rules) - shift
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
            # kept where nothing remains
            contexts.left_shares[b, level] = towards if is_left else away
            towards *= remaining
            remaining = towards + away
            if remaining > 0.0:
                contexts.left_shares[b, level] = (towards if is_left else away) / remaining
        log_remaining[b, 1] = math.log(remaining)


@njit
def draw_in_leaves(
    rules: TreeRules,
    contexts: Contexts,
    visited: LeafRows,
    visits: IntArray,
    is_drawn: bool,
    paths: Paths,
    classes: Classes,
    workspace: Workspace,
) -> None:
    """Draw a class in each leaf that was reached, or take a known one; write its log-probability.

    `visits` (V, 3) to the leaves are in their order, from `samplers.visits`: a context, and the
    first and the last of its paths that have reached the leaf. What is excluded gets -inf.
    """
    rows = visited.rows
    starts = visited.starts
    far = rows.size * rows.itemsize > CACHE
    for v in range(worker(), len(visits), num_workers()):
        b = visits[v, 0]
        start = visits[v, 1]
        stop = visits[v, 2]
        here = starts[b, start]
        if here < 0:
            continue
        if far and v + 1 < len(visits):  # rows of the next leaf come while these are multiplied
            ahead = starts[visits[v + 1, 0], visits[v + 1, 1]]
            if ahead != here and ahead >= 0:
                for row in range(ahead, min(ahead + rules.leaf_size, len(rows))):
                    prefetch_row(rows, row)
        row = b * classes.ids.shape[1]
        leaf = paths.leaves[row + start]
        size = num_classes_in(leaf, rules)
        place = index_in_leaf(leaf, contexts.excluded[b], rules)
        total, shift = weigh_leaf(rules, visited, b, here, size, place, workspace)
        # once for all paths of the visit
        log_total = math.log(total)
        correction = log_correction(contexts.log_remaining, b, place)
        for k in range(start, stop):
            # paths were sorted; each goes back to its place
            i = classes.order[b, k]
            if is_drawn:
                target = paths.uniforms[row + k] * total
                c, _ = find(workspace.weights, worker(), size, target, 0, 0.0)
                classes.ids[b, i] = leaf * rules.leaf_size + c
            else:
                c = classes.ids[b, i] - leaf * rules.leaf_size
            # from the logarithm of the weight, for the weight itself may have underflowed
            log_in_leaf = log_weight(workspace.products[worker(), c], rules) - shift - log_total
            log_q = paths.log_reach[row + k] + correction + log_in_leaf
            classes.log_q[b, i] = log_q if c != place else -np.inf


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
    """Write probabilities (B, n) of the classes in leaves, reached by `log_reach` (B, L).

    The leaves from `first_leaf` on have their rows where the ``starts`` (1, k) of `visited` say.
    """
    num = visited.starts.shape[1]
    row = worker()
    for i in range(worker(), len(probs) * num, num_workers()):
        b = i // num
        leaf = first_leaf + i % num
        first = leaf * rules.leaf_size
        size = num_classes_in(leaf, rules)
        place = index_in_leaf(leaf, contexts.excluded[b], rules)
        if size == 1 and place == 0:  # the excluded class alone
            probs[b, first] = 0.0
            continue
        start = visited.starts[0, leaf - first_leaf]
        total, shift = weigh_leaf(rules, visited, b, start, size, place, workspace)
        # what the classes of the leaf have in common
        log_scale = log_reach[b, leaf] + log_correction(contexts.log_remaining, b, place)
        log_scale -= math.log(total)
        for c in range(lane(), size, num_lanes()):
            log_own = log_weight(workspace.products[row, c], rules) - shift
            probs[b, first + c] = math.exp(log_scale + log_own) if c != place else 0.0
