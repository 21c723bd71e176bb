"""Descents of the kernel tree: draws, and the probability of what they can reach.

At a node the mass of each half is clipped from below by its number of classes times a floor, and
a branch is taken with probability proportional to the clipped masses. Draws, and classes whose
probability is asked for, go down by one function, `walk`, so that a probability computed later is
that of the draw. Read `half_shares` first.

All functions serve both devices. On the processor the ways of an example go down together, and a
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

# a product of shares is turned into a logarithm below it: as a share is at least about 1e-300,
# float64 cannot underflow before that
_SMALL = 1e-100
# the greatest number below 1
_BELOW_ONE = 1.0 - 2.0**-53
# what ways go by: their uniforms; their leaves, which are known; or these, for what is excluded
DRAWN, KNOWN, EXCLUDED = 0, 1, 2


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


class Ways(NamedTuple):
    """Ways of draws, or to known classes, (B k,); of an example sorted by uniforms or classes.

    Ways that have come to one node are neighbours, and the first of them has what the node has.
    """

    # to which they go; of uniforms, the first in the node, at the end the leaf
    leaves: IntArray
    stops: IntArray  # where the ways through the next node begin
    numbers: FloatArray  # (B k, 4), in these columns:


# what is left of a uniform, its place between 0 and 1 in its node or leaf; the log-probability of
# reaching that, and of nodes a factor beside it, see `enter`; and the node's mass
UNIFORM, LOG_REACH, FACTOR, MASS = 0, 1, 2, 3


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


@njit_inline
def enter(
    numbers: FloatArray, k: int, mass: float, log_reach: float, factor: float, share: float
) -> None:
    """Write mass and probability of a node, which has a share of what its parent has.

    A probability is a product, turned into a logarithm where it becomes small, and at the end.
    """
    factor *= share
    if factor < _SMALL:
        log_reach, factor = log_reach + math.log(factor), 1.0
    numbers[k, LOG_REACH], numbers[k, FACTOR], numbers[k, MASS] = log_reach, factor, mass


@njit
def top(num_leaves: int) -> int:
    """Return the level of the root: it covers 2**level leaves or fewer."""
    level = 0
    while (1 << level) < num_leaves:
        level += 1
    return level


@njit_inline
def split(ways: Ways, start: int, stop: int, mode: int, left: float, middle: int) -> int:
    """Return which is the first way that goes right, of those from `start` to `stop`.

    Uniforms go by the share of the left half, and are stretched, which keeps their order; what goes
    to a known leaf, by the first leaf of the right half.
    """
    first = start
    if mode != DRAWN:
        while first < stop and ways.leaves[first] < middle:
            first += 1
        return first
    for k in range(start, stop):
        u = ways.numbers[k, UNIFORM]
        is_left = u < left
        # what is left of the uniform is uniform again, and serves the next node
        begin, width = (0.0, left) if is_left else (left, 1.0 - left)
        meet()  # all have read the uniform
        # what rounds to 1 would enter a part without mass
        ways.numbers[k, UNIFORM] = min((u - begin) / width, _BELOW_ONE)
        first += is_left
    return first


@njit
def known_levels(num_leaves: int, batch: int, num_ways: int) -> int:
    """Return how many levels from the root are better multiplied whole than as they are visited.

    A row that many examples read in turn costs each of them a third or less of a row that it
    fetches for itself, so that a level pays even if an example visits but a third of it.
    """
    levels = 0
    while levels < top(num_leaves) and (4 << levels) <= num_ways * min(batch, 8):
        levels += 1
    return levels


@njit
def multiply_top(phi: Real, nodes: Real, known: FloatArray) -> None:
    """Write the products (R, 2**levels) of all nodes in the upper levels and, first, of the total.

    One node after another, so that its row is read once for all examples.
    """
    rows_each = len(known) // len(phi)
    # nodes of the upper levels stand in every step-th row: see `sums`
    step = (1 << top(len(nodes))) // known.shape[1]
    for place in range(min(known.shape[1], -(-len(nodes) // step))):
        for r in range(worker(), len(known), num_workers()):
            known[r, place] = row_dot(nodes, place * step, phi, r // rows_each)


@njit
def walk(tree: Tree, contexts: Contexts, known: FloatArray, mode: int, ways: Ways) -> None:
    """Send ways (B k,) down the tree, level by level, in as many rows as `known` has.

    Uniforms find their leaves. All find how likely they are to be reached; what is excluded, also
    the shares on its way. `known` (R, 2**levels) is from `multiply_top`.
    """
    (nodes, rules), phi, shares = tree, contexts.phi, contexts.shares
    leaves, stops, numbers = ways
    num_leaves, num_rows, size = len(nodes), len(known), rules.leaf_size
    num, rows_each = len(leaves) // num_rows, num_rows // len(phi)
    root = top(num_leaves)
    below = root - top(known.shape[1])  # the levels whose products are not in `known`
    alone = num_workers() == 1
    far = alone and nodes.size * nodes.itemsize > CACHE
    for r in range(worker(), num_rows, num_workers()):
        start = r * num
        stops[start] = start + num
        numbers[start, LOG_REACH], numbers[start, FACTOR] = 0.0, 1.0
        numbers[start, MASS] = known[r, 0]
    # level by level, so that the rows of a level are in the cache for all examples
    for level in range(root, 0, -1):
        half = 1 << (level - 1)
        for r in range(worker(), num_rows, num_workers()):
            b, stop, end = r // rows_each, r * num, (r + 1) * num
            excluded = contexts.excluded[b]  # -1 where nothing is
            while stop < end:
                # on a device each way goes by itself: no loop, and fewer registers
                start, stop = stop, stops[stop] if alone else stop + 1
                first = leaves[start] & -(2 * half)
                middle = first + half
                if middle >= num_leaves:  # a node with one half is passed for nothing
                    if mode == EXCLUDED:
                        shares[b, level, 0], shares[b, level, 1] = 1.0, 0.0
                    continue
                log_reach, factor = numbers[start, LOG_REACH], numbers[start, FACTOR]
                mass = numbers[start, MASS]
                # rows of the upper levels have been multiplied for all examples at once
                if alone and level > below:
                    difference = known[r, middle >> below]
                else:
                    if far:  # the row of the next node comes while this one is multiplied
                        ahead = leaves[min(stop, len(leaves) - 1)] & -(2 * half)
                        prefetch_row(nodes, min(ahead + half, num_leaves - 1))
                    difference = row_dot(nodes, middle, phi, b)
                left, right = half_shares(mass, difference, first, half, rules)
                chosen = left
                # above an excluded class, the share of the left half given that it is not drawn
                if mode == DRAWN and first * size <= excluded < (middle + half) * size:
                    chosen = shares[b, level, 2 if excluded < middle * size else 3]
                # ways [start, turn) go left and the others right: two nodes side by side, as before
                turn = split(ways, start, stop, mode, chosen, middle)
                if mode == EXCLUDED:
                    shares[b, level, 0] = left if start < turn else right
                    shares[b, level, 1] = right if start < turn else left
                if turn < stop:
                    stops[turn] = stop
                    enter(numbers, turn, 0.5 * (mass - difference), log_reach, factor, right)
                    if mode == DRAWN:
                        leaves[turn] = middle
                if start < turn:
                    stops[start] = turn
                    enter(numbers, start, 0.5 * (mass + difference), log_reach, factor, left)
    for r in range(worker(), num_rows, num_workers()):
        stop = r * num
        while stop < (r + 1) * num:
            start, stop = stop, stops[stop]
            # each way now gets what only the first in its leaf has carried down
            leaf, log_reach = leaves[start], numbers[start, LOG_REACH]
            log_reach += math.log(numbers[start, FACTOR])
            meet()  # all have read them
            for k in range(start, stop):
                leaves[k], numbers[k, LOG_REACH] = leaf, log_reach
