"""From the top cells to a class: draws, and probabilities of classes.

The classes lie in the order of their leaves, and the cells level by level, so that the children of
a cell are a range. The children of a leaf are classes, which are weighed by ``exp(tau h . c)``;
those of another cell are cells, weighed by their size times the exponential of the first two
cumulants of ``tau h . c`` over their classes. A class has the product of the shares that are used
on the way to it, whatever the cells are worth.

A batch goes down level by level. What a context draws in a cell is a visit, and visits are made in
the order of the cells: contexts that meet in a cell find its children in the cache. On a GPU a warp
follows one draw all the way: `descend`, `log_prob_alone`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_inline
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.lanes import lane, meet, num_lanes
from samplesoft.kernels.rows import pair_products, products
from samplesoft.kernels.weights import exp_weights, find

Real = NDArray[Any]  # float32 or float64
_BELOW_ONE = 1.0 - 2.0**-53


class Cells(NamedTuple):
    """Cells (N,) level by level: a row (2 d) for each, its size, its children and its parent.

    `levels` (T + 1,) tells where levels begin; the classes (n, d), in their order, are `rows`. No
    cell has more children than `widest` (1,) tells. The last range is that of the cells at the top:
    they are the children of cell -1, which has no row, and is the parent of each.
    """

    cells: Real
    rows: Real
    log_sizes: Real
    ranges: IntArray
    parents: IntArray
    levels: IntArray
    widest: IntArray


class Contexts(NamedTuple):
    """Queries (B, 2 d) of contexts, and what is left out for each.

    `path` (B, T + 1) are the cells over the excluded class of each context, and at the end its
    place; all are below 0 where nothing is excluded. Of its mass a cell keeps what `remaining`
    says, a logarithm; the class keeps nothing.
    """

    queries: Real
    path: IntArray
    remaining: FloatArray


class Room(NamedTuple):
    """Where the children of a cell are weighed, (rows, widest) each; widest is a multiple of 8."""

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
def meeting(visits: IntArray, v: int, at: IntArray) -> tuple[int, int]:
    """Return the cell of visit v, and where visits go on: a next one to that cell goes with it."""
    cell, end = at[visits[v, 0], visits[v, 1]], v + 1
    if end < len(visits) and at[visits[end, 0], visits[end, 1]] == cell:
        end += 1
    return cell, end


@njit
def exclude_class(
    b: int, _: int, row: int, tree: Cells, leaves: IntArray, contexts: Contexts, room: Room
) -> None:
    """Write the path of an excluded class, whose place is in its last column, and what remains.

    Where nothing is excluded all of the path is -1 before.
    """
    path, remaining = contexts.path, contexts.remaining
    depth = len(tree.levels) - 1
    cell, child, change = leaves[b], path[b, depth], -np.inf
    # the class itself keeps nothing
    remaining[b, depth] = change
    if child < 0:
        return
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
def exclude_classes(tree: Cells, leaves: IntArray, contexts: Contexts) -> None:
    """Call `exclude_class` for all contexts."""
    room = make_room(tree)
    for b in range(len(leaves)):
        exclude_class(b, 0, 0, tree, leaves, contexts, room)


@njit
def descend(
    b: int,
    k: int,
    row: int,
    tree: Cells,
    contexts: Contexts,
    u: FloatArray,
    at: IntArray,
    log_q: FloatArray,
    room: Room,
) -> None:
    """Take one uniform from the top to the place of a class, as `draw_children` does with many."""
    cell, left, log_here = -1, u[b, k], 0.0
    for level in range(-1, len(tree.levels) - 1):
        first, num = score(tree, cell, contexts.queries, b, room, row)
        leave_out(contexts, b, level + 1, first, num, room, row)
        total, greatest = weigh(room, row, num)
        target = left * total
        child, below = find(room.weights[row], num, target, 0, 0.0)
        weight = room.weights[row, child]
        # what is left of the uniform, stretched over the child, serves the next cell
        left = min((target - below) / weight, _BELOW_ONE)
        log_here += log_share(room.logits[row, child], weight, total, greatest)
        cell = first + child
        meet()  # all have read what the next cell overwrites
    at[b, k], log_q[b, k] = cell, log_here


@njit
def draw_children(
    tree: Cells,
    contexts: Contexts,
    level: int,
    visits: IntArray,
    u: FloatArray,
    at: IntArray,
    log_q: FloatArray,
) -> None:
    """Take the sorted uniforms of visits to cells of a level to children, and to places in these.

    `at` gets the children, and their shares are added to `log_q`.
    """
    room = make_room(tree)
    v = 0
    # two contexts at a time where they meet, for half of the reading
    while v < len(visits):
        cell, end = meeting(visits, v, at)
        first, num = score_visits(tree, cell, contexts, visits, v, end, room)
        for i in range(v, end):
            b, row = visits[i, 0], i - v
            leave_out(contexts, b, level + 1, first, num, room, row)
            total, greatest = weigh(room, row, num)
            weights = room.weights[row]
            # uniforms rise, so the search goes on where the last one ended
            child, below = 0, 0.0
            for k in range(visits[i, 1], visits[i, 2]):
                target = u[b, k] * total
                child, below = find(weights, num, target, child, below)
                u[b, k] = min((target - below) / weights[child], _BELOW_ONE)
                at[b, k] = first + child
                logit = room.logits[row, child]
                log_q[b, k] += log_share(logit, weights[child], total, greatest)
        v = end


@njit
def log_prob_alone(
    b: int,
    k: int,
    row: int,
    tree: Cells,
    contexts: Contexts,
    places: IntArray,
    leaves: IntArray,
    log_q: FloatArray,
    room: Room,
) -> None:
    """Write the log-probability of a class at one of the places (B, k).

    Shares are added up from the top, as in `descend`, so that both have the same bits.
    """
    depth = len(tree.levels) - 1
    log_here = 0.0
    for level in range(-1, depth):
        child, cell = places[b, k], leaves[b, k]
        for _ in range(depth - 1 - level):
            child, cell = cell, tree.parents[cell]
        first, num = score(tree, cell, contexts.queries, b, room, row)
        leave_out(contexts, b, level + 1, first, num, room, row)
        total, greatest = weigh(room, row, num)
        logit, weight = room.logits[row, child - first], room.weights[row, child - first]
        log_here += log_share(logit, weight, total, greatest)
        meet()  # all have read what the next cell overwrites
    log_q[b, k] = log_here if places[b, k] != contexts.path[b, depth] else -np.inf


@njit
def ascend(
    tree: Cells,
    contexts: Contexts,
    level: int,
    visits: IntArray,
    children: IntArray,
    at: IntArray,
    log_q: FloatArray,
) -> None:
    """Add to `log_q` (B, k) the shares of `children` in the cells `at` of a level, and go up.

    The children become the cells, and the cells those above.
    """
    room = make_room(tree)
    v = 0
    while v < len(visits):
        cell, end = meeting(visits, v, at)
        first, num = score_visits(tree, cell, contexts, visits, v, end, room)
        for i in range(v, end):
            b, row = visits[i, 0], i - v
            leave_out(contexts, b, level + 1, first, num, room, row)
            total, greatest = weigh(room, row, num)
            for k in range(visits[i, 1], visits[i, 2]):
                place = children[b, k] - first
                logit, weight = room.logits[row, place], room.weights[row, place]
                log_q[b, k] += log_share(logit, weight, total, greatest)
                children[b, k], at[b, k] = cell, tree.parents[cell]
        v = end


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
def make_room(tree: Cells) -> Room:
    """Return room for the children of a cell in two contexts."""
    # whole vectors of eight: see `weigh`
    shape = 2, (tree.widest[0] + 7) // 8 * 8
    return Room(np.empty(shape, tree.rows.dtype), np.empty(shape, tree.rows.dtype))


@njit_inline
def sum_up_leaf(
    i: int,
    _: int,
    row: int,
    rows: Real,
    ranges: IntArray,
    which: IntArray,
    cells: Real,
    sums: FloatArray,
) -> None:
    """Write the mean and the variance of a leaf, ``which[i]``, over the rows of its range.

    `sums` has two rows of room for each.
    """
    cell, dim = which[i], rows.shape[1]
    first, last = ranges[cell, 0], ranges[cell, 1]
    mean, square = sums[2 * row], sums[2 * row + 1]
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
def sum_up_leaves(rows: Real, ranges: IntArray, which: IntArray, cells: Real) -> None:
    """Call `sum_up_leaf` for all cells `which` (k,)."""
    sums = np.empty((2, rows.shape[1]))
    for i in range(len(which)):
        sum_up_leaf(i, 0, 0, rows, ranges, which, cells, sums)


@njit_inline
def sum_up_cell(
    i: int,
    _: int,
    row: int,
    cells: Real,
    sizes: IntArray,
    ranges: IntArray,
    which: IntArray,
    sums: FloatArray,
) -> None:
    """Write the mean and the variance of a cell, ``which[i]``, over the cells of its range.

    The variance is that within those, and that of their means: the law of total variance.
    """
    cell, dim = which[i], cells.shape[1] // 2
    first, last = ranges[cell, 0], ranges[cell, 1]
    mean, square = sums[2 * row], sums[2 * row + 1]
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


@njit
def sum_up_children(cells: Real, sizes: IntArray, ranges: IntArray, which: IntArray) -> None:
    """Call `sum_up_cell` for all cells `which` (k,)."""
    sums = np.empty((2, cells.shape[1] // 2))
    for i in range(len(which)):
        sum_up_cell(i, 0, 0, cells, sizes, ranges, which, sums)
