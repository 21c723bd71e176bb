"""From the top cells to a class: draws, and probabilities of classes.

The classes lie in the order of their leaves, and the cells level by level, so that the children of
a cell are a range. The children of a leaf are classes, which are weighed by ``exp(tau h . c)``;
those of another cell are cells, weighed by their size times the exponential of the first two
cumulants of ``tau h . c`` over their classes. A class has the product of the shares that are used
on the way to it, whatever the cells are worth.

A batch goes down level by level, or up for classes that are known: `step`. What a context draws in
a cell is a visit, and visits are made in the order of the cells: contexts that meet in a cell find
its children in the cache. On a GPU a warp follows one draw all the way: `follow`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_inline
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.lanes import lane, meet, num_lanes, num_workers, worker
from samplesoft.kernels.rows import pair_products, products
from samplesoft.kernels.weights import exp_weights, find

Real = NDArray[Any]  # float32 or float64
_BELOW_ONE = 1.0 - 2.0**-53


class Cells(NamedTuple):
    """Cells (N,) level by level: a row (2 d) for each, its size, its children and its parent.

    `levels` (T + 1,) tells where levels begin; the classes (n, d), in their order, are `rows`. The
    last range is that of the cells at the top: they are the children of cell -1, which has no row,
    and is the parent of each.
    """

    cells: Real
    rows: Real
    log_sizes: Real
    ranges: IntArray
    parents: IntArray
    levels: IntArray


class Contexts(NamedTuple):
    """Queries (B, 2 d) of contexts, and what is left out for each.

    `path` (B, T + 1) are the cells over the excluded class of each context, and at the end its
    place; all are below 0 where nothing is excluded. Of its mass a cell keeps what `remaining`
    says, a logarithm; the class keeps nothing.
    """

    queries: Real
    path: IntArray
    remaining: FloatArray


class Paths(NamedTuple):
    """Ways through the cells, (B, k): of uniforms that are drawn by, or of classes that are known.

    Going down, `at` are the cells that they have come to, at the end the places of classes. Going
    up, these are places of classes at first, and `cells` those above. `log_q` are the shares on the
    way, added up.
    """

    uniforms: FloatArray  # what is left of each in its cell
    at: IntArray
    cells: IntArray
    log_q: FloatArray


class Room(NamedTuple):
    """Where children of a cell are weighed, (rows, widest) each; widest is a multiple of 8.

    Each worker has a row; `step` has two, for two contexts.
    """

    logits: Real
    weights: Real


@njit_inline
def score(tree: Cells, cell: int, queries: Real, b: int, room: Room, row: int) -> tuple[int, int]:
    """Write the logits of the children of a cell for query b; return the first, and how many."""
    first, last = tree.ranges[cell, 0], tree.ranges[cell, 1]
    is_leaf = cell >= tree.levels[-2]  # whose children are classes
    multiply_children(tree, is_leaf, first, last, queries, b, room.logits, row)
    if not is_leaf:
        for i in range(lane(), last - first, num_lanes()):
            room.logits[row, i] += tree.log_sizes[first + i]
    return first, last - first


@njit_inline
def multiply_children(
    tree: Cells,
    is_leaf: bool,
    first: int,
    last: int,
    queries: Real,
    b: int,
    logits: Real,
    row: int,
) -> None:
    """Write the inner products of query b and children [first, last) to a row of `logits`."""
    if is_leaf:
        products(tree.rows, first, last, queries, b, logits, row)
    else:
        products(tree.cells, first, last, queries, b, logits, row)


@njit_inline
def score_pair(
    tree: Cells, cell: int, queries: Real, b: int, c: int, room: Room
) -> tuple[int, int]:
    """Do as `score` for queries b and c, in rows 0 and 1."""
    first, last = tree.ranges[cell, 0], tree.ranges[cell, 1]
    if cell >= tree.levels[-2]:
        pair_products(tree.rows, first, last, queries, b, c, room.logits)
        return first, last - first
    pair_products(tree.cells, first, last, queries, b, c, room.logits)
    for row in range(2):
        for i in range(last - first):
            room.logits[row, i] += tree.log_sizes[first + i]
    return first, last - first


@njit_inline
def weigh(room: Room, row: int, num: int) -> tuple[float, float]:
    """Write exp(logit) divided by the greatest; return the sum of that, and the greatest logit.

    Weights are computed up to a whole vector of eight, so that no loop has a rest.
    """
    size = (num + 7) // 8 * 8
    for i in range(lane(), num, num_lanes()):
        room.weights[row, i] = room.logits[row, i]
    # what weighs nothing may be drawn by nobody
    for i in range(num + lane(), size, num_lanes()):
        room.weights[row, i] = -np.inf
    meet()
    return exp_weights(room.weights[row], size, -1)


@njit_inline
def leave_out(
    contexts: Contexts, b: int, level: int, first: int, num: int, room: Room, row: int
) -> None:
    """Take the excluded class of context b out of the logits of `num` cells of a level."""
    # a logarithm of what is kept is added, so that a cell without its class keeps the rest
    place = contexts.path[b, level] - first
    if 0 <= place < num and place % num_lanes() == lane():
        room.logits[row, place] += contexts.remaining[b, level]


@njit
def log_share(logit: float, weight: float, total: float, greatest: float) -> float:
    """Return the log of the share of a child, as it is drawn, or would be if it had any weight."""
    # by the weight that was drawn from, not the logit: q is what happened, to the last bit
    if weight > 0.0:
        return math.log(weight / total)
    if total == 0.0:  # of the excluded class, alone in its leaf
        return -np.inf
    return logit - greatest - math.log(total)


@njit
def exclude_classes(tree: Cells, leaves: IntArray, contexts: Contexts, room: Room) -> None:
    """Write the paths of excluded classes, whose places are in the last column, and what remains.

    Where nothing is excluded all of the path is -1 before.
    """
    path, remaining, row = contexts.path, contexts.remaining, worker()
    depth = len(tree.levels) - 1
    for b in range(worker(), len(leaves), num_workers()):
        cell, child, change = leaves[b], path[b, depth], -np.inf
        # the class itself keeps nothing
        remaining[b, depth] = change
        if child < 0:
            continue
        for level in range(depth - 1, -1, -1):
            first, num = score(tree, cell, contexts.queries, b, room, row)
            # all of the cell, then without the class: the ratio is what it keeps
            before, top = weigh(room, row, num)
            place = child - first
            if place % num_lanes() == lane():
                room.logits[row, place] += change
            kept = -np.inf
            # a class alone takes its cell with it; else log(0 / 0) would be asked for
            if num > 1 or change > -np.inf:
                total, greatest = weigh(room, row, num)
                kept = greatest - top + math.log(total / before)
            path[b, level], remaining[b, level] = cell, kept
            change, child, cell = kept, cell, tree.parents[cell]
            meet()  # all have read what the next cell overwrites


@njit
def draw_child(
    weights: Real, num: int, u: float, total: float, start: int, below: float
) -> tuple[int, float, float]:
    """Return the child that a uniform draws, from `start` on, and the weight `below` it.

    Also returns what is left of the uniform: stretched over the child, it serves the next cell.
    """
    target = u * total
    child, below = find(weights, num, target, start, below)
    return child, below, min((target - below) / weights[child], _BELOW_ONE)


@njit
def step(
    tree: Cells,
    contexts: Contexts,
    level: int,
    visits: IntArray,
    down: bool,
    paths: Paths,
    widest: int,
) -> None:
    """Take paths from the cells of a level, which are visited, to children, or to those above.

    Uniforms of a visit are sorted. The shares of the children are added to ``log_q``. No cell has
    more than `widest` children, a multiple of 8.
    """
    u, at, cells, log_q = paths
    # for two contexts that meet in a cell
    logits = np.empty((2, widest), tree.rows.dtype)
    room = Room(logits, np.empty_like(logits))
    v = 0
    # two contexts at a time where they meet, for half of the reading
    while v < len(visits):
        cell, end = meeting(visits, v, cells)
        first, num = score_visits(tree, cell, contexts, visits, v, end, room)
        for i in range(v, end):
            b, row = visits[i, 0], i - v
            leave_out(contexts, b, level + 1, first, num, room, row)
            total, greatest = weigh(room, row, num)
            weights = room.weights[row]
            # uniforms rise, so the search goes on where the last one ended
            child, below = 0, 0.0
            for k in range(visits[i, 1], visits[i, 2]):
                if down:
                    child, below, u[b, k] = draw_child(weights, num, u[b, k], total, child, below)
                    at[b, k] = first + child
                else:
                    child = at[b, k] - first
                    at[b, k], cells[b, k] = cell, tree.parents[cell]
                logit = room.logits[row, child]
                log_q[b, k] += log_share(logit, weights[child], total, greatest)
        v = end


@njit
def meeting(visits: IntArray, v: int, cells: IntArray) -> tuple[int, int]:
    """Return the cell of visit v, and where visits go on: a next one to that cell goes with it."""
    cell, end = cells[visits[v, 0], visits[v, 1]], v + 1
    if end < len(visits) and cells[visits[end, 0], visits[end, 1]] == cell:
        end += 1
    return cell, end


@njit_inline
def score_visits(
    tree: Cells, cell: int, contexts: Contexts, visits: IntArray, v: int, end: int, room: Room
) -> tuple[int, int]:
    """Do as `score` for a visit in row 0, and for the next in row 1 where they meet in the cell."""
    if end == v + 1:
        return score(tree, cell, contexts.queries, visits[v, 0], room, 0)
    b, c = visits[v, 0], visits[v + 1, 0]
    return score_pair(tree, cell, contexts.queries, b, c, room)


@njit
def follow(tree: Cells, contexts: Contexts, down: bool, paths: Paths, room: Room) -> None:
    """Take each path all the way, as `step` does with many.

    Going down, a uniform comes to the place of a class. Otherwise the places are known, and `cells`
    are their leaves; shares are added up from the top too, so that both have the same bits.
    """
    u, at, cells, log_q = paths
    width, depth, row = at.shape[1], len(tree.levels) - 1, worker()
    for i in range(worker(), at.size, num_workers()):
        b, k = i // width, i % width
        cell, left, log_here = -1, u[b, k], 0.0
        for level in range(-1, depth):
            first, num = score(tree, cell, contexts.queries, b, room, row)
            leave_out(contexts, b, level + 1, first, num, room, row)
            total, greatest = weigh(room, row, num)
            if down:
                child, _, left = draw_child(room.weights[row], num, left, total, 0, 0.0)
            else:
                child = above(tree, at[b, k], cells[b, k], depth - 1 - level) - first
            logit, weight = room.logits[row, child], room.weights[row, child]
            log_here += log_share(logit, weight, total, greatest)
            cell = first + child
            meet()  # all have read what the next cell overwrites
        # what was added up on the way to an excluded class is of no use
        log_q[b, k] = log_here if cell != contexts.path[b, depth] else -np.inf
        at[b, k] = cell


@njit
def above(tree: Cells, place: int, leaf: int, levels: int) -> int:
    """Return the cell so many levels over the place of a class, or the place itself."""
    for _ in range(levels):
        place, leaf = leaf, tree.parents[leaf]
    return place


@njit
def sum_up_leaves(
    rows: Real, ranges: IntArray, which: IntArray, cells: Real, sums: FloatArray
) -> None:
    """Write the means and the variances of leaves `which` (k,) over the rows of their ranges.

    Each worker has two rows of `sums` for room.
    """
    dim = rows.shape[1]
    for i in range(worker(), len(which), num_workers()):
        cell, mean, square = which[i], sums[2 * worker()], sums[2 * worker() + 1]
        first, last = ranges[cell, 0], ranges[cell, 1]
        for f in range(lane(), dim, num_lanes()):
            mean[f] = square[f] = 0.0
        for j in range(first, last):
            for f in range(lane(), dim, num_lanes()):
                mean[f] += rows[j, f]
        for f in range(lane(), dim, num_lanes()):
            mean[f] /= last - first
        share = 1.0 / (last - first)
        for j in range(first, last):  # about the mean, so that nothing cancels
            for f in range(lane(), dim, num_lanes()):
                difference = rows[j, f] - mean[f]
                square[f] += difference * (share * difference)  # never above the greatest square
        for f in range(lane(), dim, num_lanes()):
            cells[cell, f], cells[cell, dim + f] = mean[f], square[f]


@njit
def sum_up_cells(
    cells: Real, sizes: IntArray, ranges: IntArray, which: IntArray, sums: FloatArray
) -> None:
    """Write the means and the variances of cells `which` (k,) over the cells of their ranges.

    The variance is that within those, and that of their means: the law of total variance.
    """
    dim = cells.shape[1] // 2
    for i in range(worker(), len(which), num_workers()):
        cell, mean, square = which[i], sums[2 * worker()], sums[2 * worker() + 1]
        first, last = ranges[cell, 0], ranges[cell, 1]
        for f in range(lane(), dim, num_lanes()):
            mean[f] = square[f] = 0.0
        for j in range(first, last):
            # a cell counts by its classes
            share = sizes[j] / sizes[cell]
            for f in range(lane(), dim, num_lanes()):
                mean[f] += share * cells[j, f]
        for j in range(first, last):
            share = sizes[j] / sizes[cell]
            for f in range(lane(), dim, num_lanes()):
                difference = cells[j, f] - mean[f]
                square[f] += share * (cells[j, dim + f] + difference * difference)
        for f in range(lane(), dim, num_lanes()):
            cells[cell, f], cells[cell, dim + f] = mean[f], square[f]
