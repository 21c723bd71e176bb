"""The descent of the kernel tree: draws of leaves, and the probabilities of reaching them.

The mass of a node is the inner product of the context's features with the node's sum of features.
It is clipped from below at a floor times the node's number of classes. At a node, a child is chosen
with a probability proportional to the clipped masses of the two children: see `branch_probs`. If
contexts exclude a class, there are four passes:

1. `compute_excluded_path_probs` goes down to the excluded class and stores the probabilities of
   both branches at each node above it.
2. `leaf.exclude_classes` goes back up and stores, for the same nodes, the probability of the left
   branch given that the class is not drawn.
3. `walk` moves draws down to leaves, and also computes the probabilities of reaching given leaves.
   One function does both, so that `log_prob` returns the log_q of the draw. At a node above the
   excluded class, draws use the probabilities of pass 2.
4. `leaf.draw_in_leaves` draws a class in each leaf that was reached.

Without exclusion there are passes 3 and 4 only. Before passes 1 and 3, `precompute_top_products`
computes the inner products of all contexts with the nodes of the upper levels.

All functions run on the CPU and on a GPU. On the CPU all paths of an example descend together, so
that the product with a node is computed once for all paths that visit it. On a GPU each path
descends separately.
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

# A product of branch probabilities that falls below this value is moved into a logarithm. A branch
# probability is at least about 1e-300, so the product does not underflow in float64 before that.
_MIN_FACTOR = 1e-100
_LARGEST_BELOW_ONE = 1.0 - 2.0**-53
# small enough that the sum and the ratio of two masses do not overflow
_MAX_MASS = 1e150


class TreeParameters(NamedTuple):
    """Parameters of the tree: its shape, and how the masses of nodes and classes are computed."""

    num_classes: int
    leaf_size: int  # classes in a leaf; the last leaf may hold fewer
    floor: float  # min mass of a node, divided by its number of classes
    weight_kind: int  # formula for class weights: KERNEL, SOFTMAX or QUADRATIC
    scale: float  # parameter of this formula


class Tree(NamedTuple):
    """The node sums of a tree with L leaves and F features, and the parameters of the tree."""

    nodes: Real  # (L, F): row 0 is the total, other rows are differences of siblings
    parameters: TreeParameters


class Contexts(NamedTuple):
    """Features of a batch of contexts, and for each context the effect of its excluded class.

    Levels count from the leaves: a node of level l has up to 2**l leaves.
    """

    phi: Real  # (B, F): features
    excluded: IntArray  # (B,): excluded class, or -1
    # (B, 2): log-probability that a draw is not the excluded class, first given that the draw is in
    # the leaf of this class, then without condition; 0 if no class is excluded
    log_remaining: FloatArray
    # (B, levels, 2): at the node of each level that contains the excluded class, the probability of
    # the branch towards this class, and of the other branch
    excluded_path_probs: FloatArray
    # (B, levels): at the same node, the probability of the left branch given that the excluded
    # class is not drawn
    conditional_left_probs: FloatArray


class TopProducts(NamedTuple):
    """Inner products of contexts with all nodes of the upper levels.

    There are R rows: one for each context, or on a GPU one for each path.
    """

    # (R, 2**num_upper_levels); column 0 is the product with the sum over all classes
    values: FloatArray
    level_below: int  # the highest level whose products are not in `values`


class Paths(NamedTuple):
    """The state of k paths for each of B examples, concatenated; all fields have shape (B k,).

    A path leads to a leaf that is drawn or given. The paths of an example are sorted: draws by
    their uniforms, given leaves by index. So all paths of an example that have reached the same
    node are adjacent. They form a run. Except for `uniforms` and given leaves, values are stored
    only at the first path of a run.
    """

    # given leaf; for a draw, first leaf of its current node, and in the end its leaf
    leaves: IntArray
    run_ends: IntArray  # index of the last path of the run, plus 1
    # uniform of each draw, rescaled to [0, 1) within its node, and in the end within its leaf
    uniforms: FloatArray
    # the probability of reaching the node is exp(log_reach) * factors: see `write_child`
    log_reach: FloatArray
    factors: FloatArray
    masses: FloatArray  # mass of the node, before clipping


@njit
def clip_mass(mass: float, lower: float) -> float:
    """Return the mass clipped to [lower, 1e150]; NaN becomes `lower`."""
    return min(mass, _MAX_MASS) if mass > lower else lower


@njit
def branch_probs(
    mass: float, difference: float, start: int, half: int, parameters: TreeParameters
) -> tuple[float, float]:
    """Return the probabilities of the left and the right half of a node, given the node.

    The left half has the leaves [start, start + half), and the right half the next leaves, at most
    `half`. `mass` is the mass of the node, and `difference` the mass of the left half minus that of
    the right half, both before clipping.
    """
    # the right half has the classes [middle, stop), perhaps fewer than the left half
    middle = (start + half) * parameters.leaf_size
    stop = min(parameters.num_classes, middle + half * parameters.leaf_size)

    # left + right = mass and left - right = difference
    left = clip_mass(0.5 * (mass + difference), parameters.floor * (half * parameters.leaf_size))
    right = clip_mass(0.5 * (mass - difference), parameters.floor * (stop - middle))

    # these probabilities add up to 1 for any features and any rounding
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

    If the row of a node is read for many examples in succession, it takes at most a third of the
    time per example. So precomputation of a level is faster if an example visits at least a third
    of the nodes on this level.
    """
    levels = 0
    while levels < root_level(num_leaves) and (4 << levels) <= num_paths * min(batch, 8):
        levels += 1
    return levels


@njit
def precompute_top_products(phi: Real, nodes: Real, products: TopProducts) -> None:
    """Write the inner products of `phi` (B, F) with the nodes of upper levels to `products.values`.

    Column 0 is the product with the sum over all classes. The outer loop is over nodes, so that
    each row of `nodes` is read once for all examples.
    """
    num_rows, num_nodes = products.values.shape
    rows_each = num_rows // len(phi)

    # the nodes of the upper levels are the rows whose index is a multiple of `step`: see `sums`
    step = 1 << products.level_below
    for i in range(min(num_nodes, -(-len(nodes) // step))):
        for r in range(worker(), num_rows, num_workers()):
            products.values[r, i] = row_dot(nodes, i * step, phi, r // rows_each)


@njit_inline
def node_product(
    nodes: Real, phi: Real, b: int, products: TopProducts, r: int, level: int, middle: int
) -> float:
    """Return the mass of the left half of a node minus the mass of its right half.

    This is the product of context `b` with the row of the node. The node is on `level`, and
    `middle` is the first leaf of its right half. On the CPU, products with nodes of the upper
    levels are read from row `r` of `products`.
    """
    if num_workers() == 1 and level > products.level_below:
        return float(products.values[r, middle >> products.level_below])
    return row_dot(nodes, middle, phi, b)


@njit_inline
def prefetch_node(nodes: Real, leaf: int, half: int) -> None:
    """Prefetch the row of the node that contains a leaf and has halves of `half` leaves.

    Nothing is done if all rows fit in the cache.
    """
    if nodes.size * nodes.itemsize > CACHE:
        prefetch_row(nodes, min((leaf & -(2 * half)) + half, len(nodes) - 1))


# the excluded class -------------------------------------------------------------------------------


@njit
def compute_excluded_path_probs(
    tree: Tree, contexts: Contexts, products: TopProducts, masses: FloatArray
) -> None:
    """Write the probabilities of both branches at the nodes above each excluded class.

    The probabilities are written to ``contexts.excluded_path_probs``. `masses` (B,) is workspace.
    """
    nodes, parameters = tree
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

            leaf = contexts.excluded[b] // parameters.leaf_size
            start = leaf & -(2 * half)
            middle = start + half
            if middle >= num_leaves:  # the node has no right half
                contexts.excluded_path_probs[b, level, 0] = 1.0
                contexts.excluded_path_probs[b, level, 1] = 0.0
                continue

            if level <= products.level_below:
                next_excluded = max(contexts.excluded[min(b + 1, batch - 1)], 0)
                prefetch_node(nodes, next_excluded // parameters.leaf_size, half)

            # read `masses` before `node_product`, which synchronises the lanes
            mass = masses[b]
            difference = node_product(nodes, contexts.phi, b, products, b, level, middle)
            left, right = branch_probs(mass, difference, start, half, parameters)

            if leaf < middle:
                masses[b] = 0.5 * (mass + difference)
                contexts.excluded_path_probs[b, level, 0] = left
                contexts.excluded_path_probs[b, level, 1] = right
            else:
                masses[b] = 0.5 * (mass - difference)
                contexts.excluded_path_probs[b, level, 0] = right
                contexts.excluded_path_probs[b, level, 1] = left


# draws, and paths to given leaves -----------------------------------------------------------------


@njit_inline
def run_end(paths: Paths, start: int) -> int:
    """Return the index after the last path of the run that begins at `start`.

    On a GPU each run has one path. Because this is known at compile time, loops over a run
    disappear, and registers are saved.
    """
    return paths.run_ends[start] if num_workers() == 1 else start + 1


@njit_inline
def write_child(
    paths: Paths, start: int, mass: float, log_reach: float, factor: float, branch_prob: float
) -> None:
    """Write the mass of a child, and the probability of reaching it, to the path `start`.

    `log_reach` and `factor` are the values of the child's parent. The probability of reaching the
    child is the parent's times `branch_prob`. It is stored as a product in ``paths.factors``, to
    avoid a logarithm on each level. A product that becomes small is moved into ``paths.log_reach``.
    """
    factor *= branch_prob
    if factor < _MIN_FACTOR:
        log_reach += math.log(factor)
        factor = 1.0
    paths.log_reach[start] = log_reach
    paths.factors[start] = factor
    paths.masses[start] = mass


@njit_inline
def split_run(
    paths: Paths, start: int, stop: int, is_drawn: bool, left_prob: float, middle: int
) -> int:
    """Return the index of the first path of [start, stop) that goes right, or `stop`.

    A draw goes left if its uniform is below `left_prob`; its uniform is then rescaled to the
    branch, in place, which keeps the order of uniforms. A path to a given leaf goes left if the
    leaf is before `middle`.
    """
    first_right = start

    if not is_drawn:
        while first_right < stop and paths.leaves[first_right] < middle:
            first_right += 1
        return first_right

    for k in range(start, stop):
        u = paths.uniforms[k]
        is_left = u < left_prob

        # given the branch, the rescaled value is again uniform on [0, 1)
        begin, width = (0.0, left_prob) if is_left else (left_prob, 1.0 - left_prob)
        sync_lanes()  # all lanes have read the uniform
        # a uniform that is rounded up to 1 could enter a branch of probability 0
        paths.uniforms[k] = min((u - begin) / width, _LARGEST_BELOW_ONE)
        first_right += is_left

    return first_right


@njit
def walk(
    tree: Tree, contexts: Contexts, products: TopProducts, is_drawn: bool, paths: Paths
) -> None:
    """Move all paths from the root to leaves; write the log-probabilities of reaching the leaves.

    If `is_drawn`, the leaves are drawn by ``paths.uniforms`` and written to ``paths.leaves``.
    Otherwise ``paths.leaves`` are the given leaves. At the end ``leaves`` and ``log_reach`` are
    valid for each path. Each row of `products` is one unit of work for a thread or a warp.
    """
    nodes, parameters = tree
    num_leaves = len(nodes)
    leaf_size = parameters.leaf_size
    num_rows = len(products.values)
    rows_each = num_rows // len(contexts.phi)
    paths_each = len(paths.leaves) // num_rows

    for r in range(worker(), num_rows, num_workers()):
        paths.run_ends[r * paths_each] = (r + 1) * paths_each
        write_child(paths, r * paths_each, products.values[r, 0], 0.0, 1.0, 1.0)

    # level by level, so that the rows of a level are in the cache for all examples
    for level in range(root_level(num_leaves), 0, -1):
        half = 1 << (level - 1)
        for r in range(worker(), num_rows, num_workers()):
            b = r // rows_each
            excluded = contexts.excluded[b]  # -1 if no class is excluded
            stop = r * paths_each
            while stop < (r + 1) * paths_each:
                start = stop
                stop = run_end(paths, start)
                first_leaf = paths.leaves[start] & -(2 * half)
                middle = first_leaf + half
                if middle >= num_leaves:  # the node has no right half
                    continue

                if level <= products.level_below:
                    prefetch_node(nodes, paths.leaves[min(stop, len(paths.leaves) - 1)], half)

                # read `paths` before `node_product`, which synchronises the lanes
                mass = paths.masses[start]
                log_reach = paths.log_reach[start]
                factor = paths.factors[start]
                difference = node_product(nodes, contexts.phi, b, products, r, level, middle)
                left, right = branch_probs(mass, difference, first_leaf, half, parameters)

                left_prob = left
                if is_drawn and first_leaf * leaf_size <= excluded < (middle + half) * leaf_size:
                    left_prob = contexts.conditional_left_probs[b, level]

                # two runs: the paths [start, first_right) go left, [first_right, stop) go right
                first_right = split_run(paths, start, stop, is_drawn, left_prob, middle)
                if first_right < stop:
                    paths.run_ends[first_right] = stop
                    write_child(
                        paths, first_right, 0.5 * (mass - difference), log_reach, factor, right
                    )
                    if is_drawn:
                        paths.leaves[first_right] = middle

                if start < first_right:
                    paths.run_ends[start] = first_right
                    write_child(paths, start, 0.5 * (mass + difference), log_reach, factor, left)

    # copy the values of the first path of each run to all paths of the run
    for r in range(worker(), num_rows, num_workers()):
        stop = r * paths_each
        while stop < (r + 1) * paths_each:
            start = stop
            stop = run_end(paths, start)
            leaf = paths.leaves[start]
            log_reach = paths.log_reach[start] + math.log(paths.factors[start])
            sync_lanes()  # all lanes have read the values
            for k in range(start, stop):
                paths.leaves[k] = leaf
                paths.log_reach[k] = log_reach
