"""The descent of the kernel tree: draws of leaves, and the probabilities of reaching them.

The mass of a child is clipped from below at its number of classes times a floor. A branch is taken
with a probability proportional to the clipped masses: see `branch_probs`. If contexts exclude a
class, there are four passes:

1. `descend_to_excluded` goes down to the excluded class and stores the probabilities of both
   branches at each node above it.
2. `leaf.exclude_classes` goes back up and stores, for the same nodes, the probability of the left
   branch given that the class is not drawn.
3. `walk` takes draws, and classes whose probability is wanted, down to their leaves. One function
   does both, so that `log_prob` returns the log_q of the draw. At a node above the excluded class
   a draw uses the probabilities of pass 2.
4. `leaf.draw_in_leaves` draws a class in each leaf that was reached.

Without exclusion there are passes 3 and 4 only. Before passes 1 and 3 `precompute_top_products`
multiplies all contexts with the nodes of the upper levels.

All functions run on both devices. On the CPU the paths of an example go down together, so that a
node is multiplied once for all paths that visit it. On a GPU each path goes down alone.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numpy.typing import NDArray

from samplesoft._jit import njit, njit_inline
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.lanes import num_workers, sync_lanes, worker
from samplesoft.kernels.rows import CACHE, prefetch_row, row_dot

Real = NDArray[Any]  # float32 or float64

# Products of branch probabilities below this value move into a logarithm. A branch probability is
# at least about 1e-300, so that float64 does not underflow before.
_MIN_FACTOR = 1e-100
_LARGEST_BELOW_ONE = 1.0 - 2.0**-53
_MAX_MASS = 1e150  # the sum and the ratio of two masses do not overflow


class TreeRules(NamedTuple):
    """Parameters of the descent and of the draw inside a leaf."""

    num_classes: int
    leaf_size: int  # classes in a leaf; the last leaf may hold fewer
    floor: float  # minimum mass of a class during the descent
    weight_kind: int  # formula for the weight of a class in its leaf: see `leaf`
    scale: float  # parameter of that formula


class Tree(NamedTuple):
    """Node sums (L, F), stored as in `sums`, and the parameters of the tree."""

    nodes: Real
    rules: TreeRules


class Contexts(NamedTuple):
    """Features of contexts, their excluded classes, and the probabilities that exclusion needs.

    Levels count from the leaves: a node of level l has up to 2**l leaves.
    """

    phi: Real  # (B, F)
    excluded: IntArray  # (B,), -1 for none
    # (B, 2), log-probability that a draw is not the excluded class: of a draw in the leaf of that
    # class, and of a draw in the tree. Both are 0 without exclusion
    log_remaining: FloatArray
    # (B, levels, 2), at the node of a level above the excluded class: the probability of the branch
    # towards the class, and of the other branch
    branches: FloatArray
    # (B, levels), at the same node: probability of the left branch given that the class is not
    # drawn
    left_probs: FloatArray


class TopProducts(NamedTuple):
    """Inner products of contexts with all nodes of the upper levels."""

    values: FloatArray  # (R, 2**levels); column 0 holds the product with the total
    level_below: int  # the highest level that is not precomputed


class Paths(NamedTuple):
    """Paths (B k,) of draws, or to given leaves; those of an example are sorted.

    Draws are sorted by their uniforms, given leaves by index. Paths that have reached the same node
    are adjacent and form a run. The first path of a run holds the values of the node. Only
    `uniforms` has a value for each path.
    """

    leaves: IntArray  # target; of a draw, the first leaf of its node, and in the end its leaf
    run_ends: IntArray
    uniforms: FloatArray  # rescaled to [0, 1) within the current node, in the end within the leaf
    # the probability of reaching the node is exp(log_reach) * factor: see `push_child`
    log_reach: FloatArray
    factors: FloatArray
    masses: FloatArray  # of the node, before clipping


@njit
def clip(mass: float, lower: float) -> float:
    """Return the mass clipped to [lower, 1e150]; NaN becomes `lower`."""
    return min(mass, _MAX_MASS) if mass > lower else lower


@njit
def branch_probs(
    mass: float, difference: float, first: int, half: int, rules: TreeRules
) -> tuple[float, float]:
    """Return the probabilities of the left and right half of the node over [first, first + 2 half).

    The node has the given mass, and `difference` is the left half's mass minus the right half's.
    """
    # in classes: the last leaf, and so the right half, may be smaller
    middle = (first + half) * rules.leaf_size
    last = min(rules.num_classes, middle + half * rules.leaf_size)
    # the mass of a child is half of the sum or the difference: see `sums`
    left = clip(0.5 * (mass + difference), rules.floor * (half * rules.leaf_size))
    right = clip(0.5 * (mass - difference), rules.floor * (last - middle))
    # after clipping the two add up to 1, whatever the features and the rounding
    return left / (left + right), right / (left + right)


@njit
def root_level(num_leaves: int) -> int:
    """Return the level of the root, the smallest with ``2**level >= num_leaves``."""
    level = 0
    while (1 << level) < num_leaves:
        level += 1
    return level


# products with nodes ------------------------------------------------------------------------------


@njit
def num_precomputed_levels(num_leaves: int, batch: int, num_paths: int) -> int:
    """Return the number of top levels whose products are computed for all nodes in advance.

    A row that many examples read in turn costs each of them a third or less of a row that it
    reads alone. A level therefore pays off if an example visits a third of its nodes.
    """
    levels = 0
    while levels < root_level(num_leaves) and (4 << levels) <= num_paths * min(batch, 8):
        levels += 1
    return levels


@njit
def precompute_top_products(phi: Real, nodes: Real, products: TopProducts) -> None:
    """Write the products with the total, and with all nodes of the upper levels, to ``values``.

    Nodes are in the outer loop, so that a row is read once for all examples.
    """
    num_rows, num_nodes = products.values.shape
    rows_each = num_rows // len(phi)
    # nodes of the upper levels are in every step-th row: see `sums`
    step = 1 << products.level_below
    for i in range(min(num_nodes, -(-len(nodes) // step))):
        for r in range(worker(), num_rows, num_workers()):
            products.values[r, i] = row_dot(nodes, i * step, phi, r // rows_each)


@njit_inline
def node_product(
    nodes: Real, phi: Real, b: int, products: TopProducts, r: int, level: int, middle: int
) -> float:
    """Return the product of context b with the node of `level` whose right half starts at `middle`.

    On the CPU the products of upper levels are read from row r of `products`.
    """
    if num_workers() == 1 and level > products.level_below:
        return float(products.values[r, middle >> products.level_below])
    return row_dot(nodes, middle, phi, b)


@njit_inline
def prefetch_node(nodes: Real, leaf: int, half: int) -> None:
    """Prefetch the node with halves of `half` leaves above a leaf."""
    if nodes.size * nodes.itemsize > CACHE:
        prefetch_row(nodes, min((leaf & -(2 * half)) + half, len(nodes) - 1))


# the excluded class -------------------------------------------------------------------------------


@njit
def descend_to_excluded(
    tree: Tree, contexts: Contexts, products: TopProducts, masses: FloatArray
) -> None:
    """Write the branch probabilities of the nodes above each excluded class.

    The result is ``contexts.branches``. `masses` (B,) is a workspace.
    """
    nodes, rules = tree
    num_leaves = len(nodes)
    batch = len(contexts.excluded)
    for b in range(worker(), batch, num_workers()):
        masses[b] = products.values[b, 0]
    # level by level, so that the rows of a level are in the cache for all examples
    for level in range(root_level(num_leaves), 0, -1):
        half = 1 << (level - 1)
        for b in range(worker(), batch, num_workers()):
            if contexts.excluded[b] < 0:
                continue
            leaf = contexts.excluded[b] // rules.leaf_size
            first = leaf & -(2 * half)
            middle = first + half
            if middle >= num_leaves:  # only a left half
                contexts.branches[b, level, 0] = 1.0
                contexts.branches[b, level, 1] = 0.0
                continue
            if level <= products.level_below:
                next_excluded = max(contexts.excluded[min(b + 1, batch - 1)], 0)
                prefetch_node(nodes, next_excluded // rules.leaf_size, half)
            mass = masses[b]  # read here: `node_product` synchronises the lanes
            difference = node_product(nodes, contexts.phi, b, products, b, level, middle)
            left, right = branch_probs(mass, difference, first, half, rules)
            if leaf < middle:
                masses[b] = 0.5 * (mass + difference)
                contexts.branches[b, level, 0] = left
                contexts.branches[b, level, 1] = right
            else:
                masses[b] = 0.5 * (mass - difference)
                contexts.branches[b, level, 0] = right
                contexts.branches[b, level, 1] = left


# draws, and paths to given leaves -----------------------------------------------------------------


@njit_inline
def run_end(paths: Paths, start: int) -> int:
    """Return the end of the run of paths that begins at `start`.

    On a GPU a run has one path: no loop, and fewer registers.
    """
    return paths.run_ends[start] if num_workers() == 1 else start + 1


@njit_inline
def push_child(
    paths: Paths, start: int, mass: float, log_reach: float, factor: float, branch_prob: float
) -> None:
    """Write the mass of a child and the probability of reaching it.

    The probability is that of the parent times `branch_prob`. It is kept as a product in
    `factors`, which moves into `log_reach` once it is small, and at the end.
    """
    factor *= branch_prob
    if factor < _MIN_FACTOR:
        log_reach += math.log(factor)
        factor = 1.0
    paths.log_reach[start] = log_reach
    paths.factors[start] = factor
    paths.masses[start] = mass


@njit_inline
def partition(
    paths: Paths, start: int, stop: int, is_drawn: bool, left_prob: float, middle: int
) -> int:
    """Return the index of the first of the paths [start, stop) that goes right.

    Draws go left if their uniform is below `left_prob`. Uniforms are rescaled to the branch, which
    keeps their order. Paths to given leaves go left if their leaf is before `middle`.
    """
    first = start
    if not is_drawn:
        while first < stop and paths.leaves[first] < middle:
            first += 1
        return first
    for k in range(start, stop):
        u = paths.uniforms[k]
        is_left = u < left_prob
        # given the branch, the rescaled uniform is uniform again
        begin, width = (0.0, left_prob) if is_left else (left_prob, 1.0 - left_prob)
        sync_lanes()  # all have read the uniform
        # a uniform that rounds to 1 would enter a branch without mass
        paths.uniforms[k] = min((u - begin) / width, _LARGEST_BELOW_ONE)
        first += is_left
    return first


@njit
def walk(
    tree: Tree, contexts: Contexts, products: TopProducts, is_drawn: bool, paths: Paths
) -> None:
    """Take paths (B k,) down to their leaves, and write the log-probabilities of reaching these.

    Draws (`is_drawn`) find their leaves by `uniforms`, other paths go to the leaves that they
    hold. Work is divided into the rows of `products`.
    """
    nodes, rules = tree
    num_leaves = len(nodes)
    size = rules.leaf_size
    num_rows = len(products.values)
    rows_each = num_rows // len(contexts.phi)
    paths_each = len(paths.leaves) // num_rows
    for r in range(worker(), num_rows, num_workers()):
        paths.run_ends[r * paths_each] = (r + 1) * paths_each
        push_child(paths, r * paths_each, products.values[r, 0], 0.0, 1.0, 1.0)
    # level by level, so that the rows of a level are in the cache for all examples
    for level in range(root_level(num_leaves), 0, -1):
        half = 1 << (level - 1)
        for r in range(worker(), num_rows, num_workers()):
            b = r // rows_each
            excluded = contexts.excluded[b]  # -1 where nothing is
            stop = r * paths_each
            while stop < (r + 1) * paths_each:
                start = stop
                stop = run_end(paths, start)
                first = paths.leaves[start] & -(2 * half)
                middle = first + half
                if middle >= num_leaves:  # only a left half
                    continue
                if level <= products.level_below:
                    prefetch_node(nodes, paths.leaves[min(stop, len(paths.leaves) - 1)], half)
                # read here: `node_product` synchronises the lanes
                mass = paths.masses[start]
                log_reach = paths.log_reach[start]
                factor = paths.factors[start]
                difference = node_product(nodes, contexts.phi, b, products, r, level, middle)
                left, right = branch_probs(mass, difference, first, half, rules)
                left_prob = left
                if is_drawn and first * size <= excluded < (middle + half) * size:
                    left_prob = contexts.left_probs[b, level]
                # [start, first_right) go left, [first_right, stop) go right: two runs
                first_right = partition(paths, start, stop, is_drawn, left_prob, middle)
                if first_right < stop:
                    paths.run_ends[first_right] = stop
                    push_child(
                        paths, first_right, 0.5 * (mass - difference), log_reach, factor, right
                    )
                    if is_drawn:
                        paths.leaves[first_right] = middle
                if start < first_right:
                    paths.run_ends[start] = first_right
                    push_child(paths, start, 0.5 * (mass + difference), log_reach, factor, left)
    for r in range(worker(), num_rows, num_workers()):
        stop = r * paths_each
        while stop < (r + 1) * paths_each:
            start = stop
            stop = run_end(paths, start)
            # copy the values of the first path of the run to all its paths
            leaf = paths.leaves[start]
            log_reach = paths.log_reach[start] + math.log(paths.factors[start])
            sync_lanes()  # all have read them
            for k in range(start, stop):
                paths.leaves[k] = leaf
                paths.log_reach[k] = log_reach
