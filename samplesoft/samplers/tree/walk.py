"""Descents of the kernel tree: draws, and the probability of what they can reach.

At a node the mass of each half is clipped from below by its number of classes times a floor, and
a branch is taken with probability proportional to the clipped masses. All functions here take
the same inner products in the same way, so that a probability computed later is that of the draw.
Read `half_shares` first, then `read_path` for one leaf, and `walk` for many draws at once.

`walk` is of the processor, and has the draws of an example meet; `descend` is of a GPU, where they
have no use for each other; all else serves both.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_inline
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.lanes import meet, num_workers, worker
from samplesoft.kernels.rows import CACHE, prefetch_row, row_dot

Real = NDArray[Any]  # float32 or float64

# a product of shares is turned into a logarithm below it: as a share is at least about 1e-300,
# float64 cannot underflow before that
_SMALL = 1e-100
# the greatest number below 1
_BELOW_ONE = 1.0 - 2.0**-53


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
    """Features of contexts, the class that each excludes, and how likely all the others are."""

    phi: Real  # (B, F)
    excluded: IntArray  # (B,), -1 for none
    # (B, 2), of the classes that are not excluded: in the leaf of that which is, and from the root.
    # Both are 0 where nothing is excluded
    log_remaining: FloatArray
    # (B, depth, 4): on the path to the class, shares of the half towards it and of the other one,
    # and the same two given that it is not drawn
    shares: FloatArray


class Draws(NamedTuple):
    """Draws on their way through the tree, those of one leaf side by side, (B, m)."""

    uniforms: FloatArray  # what is left of each in its leaf: its place between 0 and 1 there
    order: IntArray  # which draw of the example it is
    leaves: IntArray
    log_reach: FloatArray  # log-probability of reaching the leaf
    ids: IntArray  # what is drawn, in the order of the example
    log_q: FloatArray


@njit
def clip(mass: float, least: float) -> float:
    """Return a mass as it is used: at least `least`, also where it is NaN, and finite."""
    # the bound lets two masses be added, and divided by one another, without overflow
    return min(mass, 1e150) if mass > least else least


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
def excluding_share(
    left: float, towards: float, away: float, first: int, half: int, excluded_leaf: int
) -> float:
    """Return the probability of the left half of a node, given that a class is not drawn.

    `left` is that without exclusion, which holds at a node that does not lead to the class's
    leaf; `towards` and `away` are the shares on its path that `exclude_class` has written.
    """
    if first <= excluded_leaf < first + 2 * half:
        return towards if excluded_leaf < first + half else away
    return left


@njit
def times_share(log_reach: float, factor: float, share: float) -> tuple[float, float]:
    """Return a log-probability and a factor beside it, with one more share in their product.

    A logarithm is taken only where the factor becomes small, and at the end.
    """
    factor *= share
    if factor < _SMALL:
        return log_reach + math.log(factor), 1.0
    return log_reach, factor


@njit
def top(num_leaves: int) -> int:
    """Return the level of the root: it covers 2**level leaves or fewer."""
    level = 0
    while (1 << level) < num_leaves:
        level += 1
    return level


@njit_inline
def read_path(tree: Tree, phi: Real, b: int, leaf: int, shares: FloatArray, row: int) -> float:
    """Return the log-probability of reaching `leaf` for row b of `phi`.

    Writes to a row of `shares`, for each level of its path, the probability of the half towards
    the leaf and of the other one; where a node has one half, 1 and 0.
    """
    nodes = tree.nodes
    # row 0 holds the total, the mass of the root
    mass = row_dot(nodes, 0, phi, b)
    log_reach, factor = 0.0, 1.0
    first = 0
    for level in range(top(len(nodes)), 0, -1):
        half = 1 << (level - 1)
        # a node that the last leaf leaves with one half is passed for nothing
        towards, away = 1.0, 0.0
        if first + half < len(nodes):
            difference = row_dot(nodes, first + half, phi, b)
            towards, away = half_shares(mass, difference, first, half, tree.rules)
            if leaf >= first + half:
                towards, away = away, towards
                # right minus left, so that the sum below is that of the half towards the leaf
                difference = -difference
                first += half
            mass = 0.5 * (mass + difference)
        shares[row, level, 0], shares[row, level, 1] = towards, away
        log_reach, factor = times_share(log_reach, factor, towards)
    return log_reach + math.log(factor)


@njit
def exclude_classes(tree: Tree, contexts: Contexts) -> None:
    """Write the shares on the path to the class that each example excludes, given it is not drawn.

    Reads the first number of a row of ``log_remaining``, the probability of the other classes in
    the leaf, and writes the second, theirs from the root. That is built upwards from positive
    terms, so that nothing cancels when it is near 0.
    """
    phi, excluded, log_remaining, shares = contexts
    root = top(len(tree.nodes))
    for b in range(worker(), len(excluded), num_workers()):
        log_remaining[b, 1] = log_remaining[b, 0]
        if excluded[b] < 0 or root == 0:
            continue
        # with p_c the share towards the class and rho_c its probability below: 1 - rho_v is
        # (1 - p_c) + p_c (1 - rho_c), and the branch is taken with p_c (1 - rho_c) / (1 - rho_v)
        read_path(tree, phi, b, excluded[b] // tree.rules.leaf_size, shares, b)
        remaining = math.exp(log_remaining[b, 0])
        for level in range(1, root + 1):
            towards, away = shares[b, level, 0], shares[b, level, 1]
            # beside what they come from, which other lanes may still read; kept where nothing
            # remains
            shares[b, level, 2], shares[b, level, 3] = towards, away
            towards *= remaining
            remaining = towards + away
            if remaining > 0.0:
                shares[b, level, 2], shares[b, level, 3] = towards / remaining, away / remaining
        log_remaining[b, 1] = math.log(remaining)


@njit
def known_levels(num_leaves: int, batch: int, num_draws: int) -> int:
    """Return how many levels from the root are better multiplied whole than as they are visited.

    A row that many examples read in turn costs each of them a third or less of a row that it
    fetches for itself, so that a level pays even if an example visits but a third of it.
    """
    levels = 0
    while levels < top(num_leaves) and (4 << levels) <= num_draws * min(batch, 8):
        levels += 1
    return levels


@njit
def multiply_top(phi: Real, nodes: Real, levels: int, known: FloatArray) -> None:
    """Write the products (B, 2**levels) of all nodes in the upper levels and, first, of the total.

    One node after another, so that its row is read once for all examples.
    """
    # nodes of the upper levels stand in every step-th row: see `sums`
    step = 1 << (top(len(nodes)) - levels)
    for place in range(min(known.shape[1], -(-len(nodes) // step))):
        for b in range(len(phi)):
            known[b, place] = row_dot(nodes, place * step, phi, b)


@njit
def walk(tree: Tree, contexts: Contexts, known: FloatArray, draws: Draws) -> None:
    """Send the uniforms (B, m) of each example down the tree, level by level.

    Fills in `draws`, of which the uniforms are given; `known` is from `multiply_top`.
    """
    (nodes, rules), phi, shares = tree, contexts.phi, contexts.shares
    uniforms, order, leaves, log_reach = draws.uniforms, draws.order, draws.leaves, draws.log_reach
    num_leaves, (batch, m) = len(nodes), uniforms.shape
    root = top(num_leaves)
    below = root - top(known.shape[1])  # the levels whose products are not in `known`
    far = nodes.size * nodes.itemsize > CACHE
    # draws in one node are neighbours: the first of them has the node's leaf, the place where
    # they stop, the node's mass, its log-probability and the factor beside that
    stops, mass, factor = np.full((batch, m), m), np.empty((batch, m)), np.ones((batch, m))
    for b in range(batch):
        for k in range(m):
            order[b, k] = k
        leaves[b, 0], mass[b, 0], log_reach[b, 0] = 0, known[b, 0], 0.0
    # level by level, so that all draws of an example that pass a node share its inner product
    for level in range(root, 0, -1):
        half = 1 << (level - 1)
        for b in range(batch):
            excluded_leaf = contexts.excluded[b] // rules.leaf_size  # -1 where nothing is excluded
            towards, away = shares[b, level, 2], shares[b, level, 3]
            stop = 0
            while stop < m:
                start, stop = stop, stops[b, stop]
                first = leaves[b, start]
                if first + half >= num_leaves:
                    continue
                # rows of the upper levels have been multiplied for all examples at once
                if level > below:
                    difference = known[b, (first + half) >> below]
                else:
                    if far:  # the row of the next node comes while this one is multiplied
                        ahead = leaves[b, stop] if stop < m else leaves[min(b + 1, batch - 1), 0]
                        prefetch_row(nodes, min(ahead + half, num_leaves - 1))
                    difference = row_dot(nodes, first + half, phi, b)
                here, log_here, factor_here = mass[b, start], log_reach[b, start], factor[b, start]
                left, right = half_shares(here, difference, first, half, rules)
                chosen = excluding_share(left, towards, away, first, half, excluded_leaf)
                # draws [start, middle) go left and the others right: two nodes side by side, as
                # before
                middle = split(uniforms, order, b, start, stop, chosen)
                if middle < stop:
                    leaves[b, middle], stops[b, middle] = first + half, stop
                    mass[b, middle] = 0.5 * (here - difference)
                    log_reach[b, middle], factor[b, middle] = times_share(
                        log_here, factor_here, right
                    )
                if start < middle:
                    stops[b, start] = middle
                    mass[b, start] = 0.5 * (here + difference)
                    log_reach[b, start], factor[b, start] = times_share(log_here, factor_here, left)
    for b in range(batch):
        stop = 0
        while stop < m:
            start, stop = stop, stops[b, stop]
            # each draw now gets what only the first of its node has carried down
            leaves[b, start:stop] = leaves[b, start]
            log_reach[b, start:stop] = log_reach[b, start] + math.log(factor[b, start])


@njit
def stretch(u: float, left: float) -> tuple[bool, float]:
    """Return whether a uniform lies below `left`, and its place in that part or in the other.

    What rounds to 1 would enter a part without mass.
    """
    # what is left of the uniform is uniform again, and serves the next node
    is_left = u < left
    begin, width = (0.0, left) if is_left else (left, 1.0 - left)
    return is_left, min((u - begin) / width, _BELOW_ONE)


@njit
def split(uniforms: FloatArray, order: IntArray, b: int, start: int, stop: int, left: float) -> int:
    """Move uniforms of row b below `left` to the front, stretch all; return where parts meet."""
    middle = start
    for k in range(start, stop):
        is_left, u = stretch(uniforms[b, k], left)
        if is_left:
            uniforms[b, k], uniforms[b, middle] = uniforms[b, middle], u
            order[b, k], order[b, middle] = order[b, middle], order[b, k]
            middle += 1
        else:
            uniforms[b, k] = u
    return middle


@njit
def descend(tree: Tree, contexts: Contexts, draws: Draws) -> None:
    """Send each uniform down the tree by itself, as `walk` does with all of an example."""
    nodes, rules, phi, shares = tree.nodes, tree.rules, contexts.phi, contexts.shares
    m = draws.uniforms.shape[1]
    for i in range(worker(), draws.uniforms.size, num_workers()):
        b, k = i // m, i % m
        excluded_leaf = contexts.excluded[b] // rules.leaf_size  # -1 where nothing is excluded
        u, mass = draws.uniforms[b, k], row_dot(nodes, 0, phi, b)
        first, log_reach, factor = 0, 0.0, 1.0
        for level in range(top(len(nodes)), 0, -1):
            half = 1 << (level - 1)
            if first + half >= len(nodes):
                continue
            difference = row_dot(nodes, first + half, phi, b)
            left, right = half_shares(mass, difference, first, half, rules)
            towards, away = shares[b, level, 2], shares[b, level, 3]
            chosen = excluding_share(left, towards, away, first, half, excluded_leaf)
            is_left, u = stretch(u, chosen)
            # the arithmetic of `walk`: from the same masses come the same bits
            mass = 0.5 * (mass + difference) if is_left else 0.5 * (mass - difference)
            first = first if is_left else first + half
            log_reach, factor = times_share(log_reach, factor, left if is_left else right)
        meet()  # all have read the uniform
        draws.uniforms[b, k], draws.order[b, k], draws.leaves[b, k] = u, k, first
        draws.log_reach[b, k] = log_reach + math.log(factor)


@njit
def reach_leaves(
    tree: Tree, phi: Real, leaves: IntArray, shares: FloatArray, log_reach: FloatArray
) -> None:
    """Write the log-probabilities of reaching leaves (B, k); each worker has a row of `shares`."""
    num = leaves.shape[1]
    for i in range(worker(), leaves.size, num_workers()):
        b, k = i // num, i % num
        log_reach[b, k] = read_path(tree, phi, b, leaves[b, k], shares, worker())


@njit
def reach_all_leaves(tree: Tree, phi: Real, log_reach: FloatArray) -> None:
    """Write the log-probability of reaching every leaf, (B, L)."""
    nodes, rules = tree
    num_leaves = len(nodes)
    mass, factor = np.empty(num_leaves), np.empty(num_leaves)
    for b in range(len(phi)):
        # at the first leaf of a node stands what belongs to the node, until its halves replace it
        mass[0], log_reach[b, 0], factor[0] = row_dot(nodes, 0, phi, b), 0.0, 1.0
        for level in range(top(num_leaves), 0, -1):
            half = 1 << (level - 1)
            for first in range(0, num_leaves - half, 2 * half):
                here, log_here, factor_here = mass[first], log_reach[b, first], factor[first]
                difference, right_first = row_dot(nodes, first + half, phi, b), first + half
                left, right = half_shares(here, difference, first, half, rules)
                mass[first] = 0.5 * (here + difference)
                mass[right_first] = 0.5 * (here - difference)
                log_reach[b, right_first], factor[right_first] = times_share(
                    log_here, factor_here, right
                )
                log_reach[b, first], factor[first] = times_share(log_here, factor_here, left)
        for leaf in range(num_leaves):
            log_reach[b, leaf] += math.log(factor[leaf])
