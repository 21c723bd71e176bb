"""Descents of the kernel tree: draws, and the probability of what they can reach.

At a node the mass of each half is clipped from below by its number of classes times a floor, and
a branch is taken with probability proportional to the clipped masses: see `half_shares`. Where each
context excludes a class, the passes are, in this order:

1. `descend_to_excluded` goes down to that class and writes the probabilities of both branches at
   each node above it.
2. `leaf.exclude_classes` goes back up and writes, for the same nodes, the probability of the left
   branch given that the class is not drawn.
3. `walk` sends draws, and classes whose probability is asked for, down to their leaves. One
   function does both, so that a probability computed later is that of the draw. A draw at a node
   above the excluded class takes the probability of pass 2.
4. `leaf.draw_in_leaves` chooses a class in each leaf that was reached.

Where nothing is excluded, passes 1 and 2 are left out. Before 1 and before 3, the products with the
nodes of the upper levels are computed for all contexts: `precompute_top_products`.

All functions serve both devices. On the processor the paths of an example go down together, and a
node that many pass is multiplied once; on a GPU each goes by itself.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numpy.typing import NDArray

from samplesoft._jit import njit, njit_inline
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.lanes import meet, num_workers, worker
from samplesoft.kernels.rows import CACHE, prefetch_row, row_dot

Real = NDArray[Any]  # float32 or float64

# A product of shares is turned into a logarithm below it: as a share is at least about 1e-300,
# float64 cannot underflow before that.
_LEAST_FACTOR = 1e-100
_LARGEST_BELOW_ONE = 1.0 - 2.0**-53
_LARGEST_MASS = 1e150  # so that two masses are added, and divided by one another, without overflow


class TreeRules(NamedTuple):
    """The numbers by which a tree is descended and a class is drawn in its leaf."""

    num_classes: int
    leaf_size: int  # classes that share a leaf; the last leaf may hold fewer
    floor: float  # least mass of a class on the way down
    kind: int  # how classes are weighed in their leaf: see `leaf`
    scale: float


class Tree(NamedTuple):
    """Sums of features (L, F) in the nodes of a tree, as `sums` has them, and its rules."""

    nodes: Real
    rules: TreeRules


class Contexts(NamedTuple):
    """Features of contexts, the class that each excludes, and the probabilities of all the others.

    A level counts from the leaves: a node of level l has up to 2**l leaves.
    """

    phi: Real  # (B, F)
    excluded: IntArray  # (B,), -1 for none
    # (B, 2), of the classes that are not excluded: in the leaf of the excluded class, and from the
    # root. Both are 0 where nothing is excluded
    log_remaining: FloatArray
    # (B, levels, 2): at the node of a level above the excluded class, the probabilities of the half
    # with the class and of the other half
    branches: FloatArray
    # (B, levels): at the same node, the probability of the left half given that the class is not
    # drawn
    left_shares: FloatArray


class TopProducts(NamedTuple):
    """Inner products of contexts with the nodes of the upper levels, computed for all at once."""

    values: FloatArray  # (R, 2**levels); the first of a row is that of the total
    above: int  # the level that all these levels are above


class Paths(NamedTuple):
    """Paths of draws, or to known classes, (B k,); of an example sorted by uniforms or by leaves.

    Paths that have come to one node are neighbours, a run. The first path of a run holds what the
    node has; only `uniforms` are of each path.
    """

    leaves: IntArray  # to which paths go; of draws, the first leaf of the node, at last the leaf
    run_ends: IntArray
    uniforms: FloatArray  # rescaled: the position of a draw, from 0 to 1, in its node or leaf
    # the probability of reaching the node is exp(log_reach) * factor: see `push_child`
    log_reach: FloatArray
    factors: FloatArray
    masses: FloatArray  # of the node, before it is clipped


@njit
def clip(mass: float, least: float) -> float:
    """Return a mass as it is used: at least `least`, also where it is NaN, and finite."""
    return min(mass, _LARGEST_MASS) if mass > least else least


@njit
def half_shares(
    mass: float, difference: float, first: int, half: int, rules: TreeRules
) -> tuple[float, float]:
    """Return the probabilities of the halves of the node over leaves [first, first + 2 half)."""
    # in classes: the last leaf of all, and so the right half, may hold fewer than its share
    middle = (first + half) * rules.leaf_size
    last = min(rules.num_classes, middle + half * rules.leaf_size)
    # a child is half of its parent plus or minus the difference: see `sums`
    left = clip(0.5 * (mass + difference), rules.floor * (half * rules.leaf_size))
    right = clip(0.5 * (mass - difference), rules.floor * (last - middle))
    # shares of the clipped masses: they add up to 1 whatever features and rounding have done
    return left / (left + right), right / (left + right)


@njit
def top(num_leaves: int) -> int:
    """Return the level of the root: it covers 2**level leaves or fewer."""
    level = 0
    while (1 << level) < num_leaves:
        level += 1
    return level


# products with nodes ------------------------------------------------------------------------------


@njit
def num_precomputed_levels(num_leaves: int, batch: int, num_paths: int) -> int:
    """Return how many levels from the root are better multiplied whole than as they are visited.

    A row that many examples read in turn costs each of them a third or less of a row that it
    fetches for itself, so that a level pays even if an example visits but a third of it.
    """
    levels = 0
    while levels < top(num_leaves) and (4 << levels) <= num_paths * min(batch, 8):
        levels += 1
    return levels


@njit
def precompute_top_products(phi: Real, nodes: Real, products: TopProducts) -> None:
    """Write the products with all nodes in the upper levels and, first, with the total.

    One node after another, so that its row is read once for all examples.
    """
    num_rows, num_nodes = products.values.shape
    rows_each = num_rows // len(phi)
    # nodes of the upper levels stand in every step-th row: see `sums`
    step = 1 << products.above
    for i in range(min(num_nodes, -(-len(nodes) // step))):
        for r in range(worker(), num_rows, num_workers()):
            products.values[r, i] = row_dot(nodes, i * step, phi, r // rows_each)


@njit_inline
def node_product(
    nodes: Real, phi: Real, b: int, products: TopProducts, r: int, level: int, middle: int
) -> float:
    """Return the product of context b with the node of a level whose right half starts at `middle`.

    On the processor those of the upper levels are in row r of `products`.
    """
    if num_workers() == 1 and level > products.above:
        return float(products.values[r, middle >> products.above])
    return row_dot(nodes, middle, phi, b)


@njit_inline
def prefetch_node(nodes: Real, leaf: int, half: int) -> None:
    """Prefetch the node above a leaf, with halves of `half` leaves, while another is multiplied."""
    if nodes.size * nodes.itemsize > CACHE:
        prefetch_row(nodes, min((leaf & -(2 * half)) + half, len(nodes) - 1))


# the excluded class -------------------------------------------------------------------------------


@njit
def descend_to_excluded(
    tree: Tree, contexts: Contexts, products: TopProducts, masses: FloatArray
) -> None:
    """Write the probabilities of both branches at the nodes above the class each context excludes.

    They go to ``contexts.branches``. `masses` (B,) is a workspace.
    """
    nodes, rules = tree
    num_leaves = len(nodes)
    batch = len(contexts.excluded)
    for b in range(worker(), batch, num_workers()):
        masses[b] = products.values[b, 0]
    # level by level, so that the rows of a level are in the cache for all examples
    for level in range(top(num_leaves), 0, -1):
        half = 1 << (level - 1)
        for b in range(worker(), batch, num_workers()):
            if contexts.excluded[b] < 0:
                continue
            leaf = contexts.excluded[b] // rules.leaf_size
            first = leaf & -(2 * half)
            middle = first + half
            if middle >= num_leaves:  # a node with one half is passed for nothing
                contexts.branches[b, level, 0] = 1.0
                contexts.branches[b, level, 1] = 0.0
                continue
            if level <= products.above:
                following = max(contexts.excluded[min(b + 1, batch - 1)], 0)
                prefetch_node(nodes, following // rules.leaf_size, half)
            mass = masses[b]  # before the product, by which all lanes have read it
            difference = node_product(nodes, contexts.phi, b, products, b, level, middle)
            left, right = half_shares(mass, difference, first, half, rules)
            if leaf < middle:
                masses[b] = 0.5 * (mass + difference)
                contexts.branches[b, level, 0] = left
                contexts.branches[b, level, 1] = right
            else:
                masses[b] = 0.5 * (mass - difference)
                contexts.branches[b, level, 0] = right
                contexts.branches[b, level, 1] = left


# draws, and classes that are known ----------------------------------------------------------------


@njit_inline
def run_end(paths: Paths, start: int) -> int:
    """Return the end of the run of paths that begins at `start`.

    On a GPU each path goes by itself: no loop, and fewer registers.
    """
    return paths.run_ends[start] if num_workers() == 1 else start + 1


@njit_inline
def push_child(
    paths: Paths, start: int, mass: float, log_reach: float, factor: float, share: float
) -> None:
    """Write mass and probability of a child, which has a share of what its parent has.

    A probability is a product, turned into a logarithm where it becomes small, and at the end.
    """
    factor *= share
    if factor < _LEAST_FACTOR:
        log_reach += math.log(factor)
        factor = 1.0
    paths.log_reach[start] = log_reach
    paths.factors[start] = factor
    paths.masses[start] = mass


@njit_inline
def partition(
    paths: Paths, start: int, stop: int, is_drawn: bool, left_share: float, middle: int
) -> int:
    """Return the first path that goes right, of those from `start` to `stop`.

    Draws go by the share of the left half: their uniforms are stretched, which keeps their order.
    Paths to known leaves go by the first leaf of the right half.
    """
    first = start
    if not is_drawn:
        while first < stop and paths.leaves[first] < middle:
            first += 1
        return first
    for k in range(start, stop):
        u = paths.uniforms[k]
        is_left = u < left_share
        # the rest of the uniform is uniform again, and serves the next node
        begin, width = (0.0, left_share) if is_left else (left_share, 1.0 - left_share)
        meet()  # all have read the uniform
        # a uniform that rounds to 1 would enter a part without mass
        paths.uniforms[k] = min((u - begin) / width, _LARGEST_BELOW_ONE)
        first += is_left
    return first


@njit
def walk(
    tree: Tree, contexts: Contexts, products: TopProducts, is_drawn: bool, paths: Paths
) -> None:
    """Send paths (B k,) down the tree, in as many rows as `products` has.

    Uniforms find their leaves, if `is_drawn`; all paths get the log-probability of reaching theirs.
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
    for level in range(top(num_leaves), 0, -1):
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
                if middle >= num_leaves:  # a node with one half is passed for nothing
                    continue
                if level <= products.above:
                    prefetch_node(nodes, paths.leaves[min(stop, len(paths.leaves) - 1)], half)
                # before the product, by which all lanes have read them
                mass = paths.masses[start]
                log_reach = paths.log_reach[start]
                factor = paths.factors[start]
                difference = node_product(nodes, contexts.phi, b, products, r, level, middle)
                left, right = half_shares(mass, difference, first, half, rules)
                left_share = left
                if is_drawn and first * size <= excluded < (middle + half) * size:
                    left_share = contexts.left_shares[b, level]
                # [start, turn) go left and the others right: two runs side by side, as before
                turn = partition(paths, start, stop, is_drawn, left_share, middle)
                if turn < stop:
                    paths.run_ends[turn] = stop
                    push_child(paths, turn, 0.5 * (mass - difference), log_reach, factor, right)
                    if is_drawn:
                        paths.leaves[turn] = middle
                if start < turn:
                    paths.run_ends[start] = turn
                    push_child(paths, start, 0.5 * (mass + difference), log_reach, factor, left)
    for r in range(worker(), num_rows, num_workers()):
        stop = r * paths_each
        while stop < (r + 1) * paths_each:
            start = stop
            stop = run_end(paths, start)
            # each path now gets what only the first in its leaf has carried down
            leaf = paths.leaves[start]
            log_reach = paths.log_reach[start] + math.log(paths.factors[start])
            meet()  # all have read them
            for k in range(start, stop):
                paths.leaves[k] = leaf
                paths.log_reach[k] = log_reach
