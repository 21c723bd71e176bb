"""From the top cells to a class: draws, and probabilities of classes.

The classes lie in the order of their leaves, and the cells level by level, so that the children of
a cell are a range. The children of a leaf are classes, which are weighed by ``exp(tau h . c)``;
those of another cell are cells, weighed by their size times the exponential of the first two
cumulants of ``tau h . c`` over their classes. A class has the product of the shares that are used
on the way to it, whatever the cells are worth.

A batch goes down level by level: `step`. What a context draws in a cell is a visit, and visits are
made in the order of the cells: contexts that meet in a cell find its children in the cache. On a
GPU each path is a visit of its own.
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
    """Cells (N,) level by level: a row (2 d) for each, the logarithm of its size, its children.

    `levels` (T + 1,) tells where levels begin; the classes (n, d), in their order, are `rows`. The
    last range is that of the cells at the top: they are the children of cell -1, which has no row.
    """

    cells: Real
    rows: Real
    log_sizes: Real
    ranges: IntArray
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
    """Ways through the cells, (B, k): of uniforms that are drawn by, or to classes that are known.

    `at` are the cells that they have come to, at the end the places of classes; `log_q` are the
    shares on the way, added up.
    """

    uniforms: FloatArray  # what is left of each in its cell
    at: IntArray
    log_q: FloatArray


class Room(NamedTuple):
    """Where children of a cell are weighed, (rows, widest) each; widest is a multiple of 8.

    Each worker has a row, and on the processor one more, for two contexts that meet in a cell.
    """

    logits: Real
    weights: Real


@njit_inline
def score(
    tree: Cells, cell: int, queries: Real, b: int, other: int, room: Room, row: int
) -> tuple[int, int]:
    """Write the logits of the children of a cell for query b; return the first, and how many.

    Those for an `other` query that is not -1 go to the next row.
    """
    first, last = tree.ranges[cell, 0], tree.ranges[cell, 1]
    is_leaf = cell >= tree.levels[-2]  # whose children are classes
    multiply_children(tree, is_leaf, first, last, queries, b, other, room.logits, row)
    if not is_leaf:
        for r in range(row, row + 1 if other < 0 else row + 2):
            for i in range(lane(), last - first, num_lanes()):
                room.logits[r, i] += tree.log_sizes[first + i]
    return first, last - first


@njit_inline
def multiply_children(
    tree: Cells,
    is_leaf: bool,
    first: int,
    last: int,
    queries: Real,
    b: int,
    other: int,
    logits: Real,
    row: int,
) -> None:
    """Write the inner products of query b and children [first, last) to a row of `logits`."""
    if other >= 0 and is_leaf:
        pair_products(tree.rows, first, last, queries, b, other, logits)
    elif other >= 0:
        pair_products(tree.cells, first, last, queries, b, other, logits)
    elif is_leaf:
        products(tree.rows, first, last, queries, b, logits, row)
    else:
        products(tree.cells, first, last, queries, b, logits, row)


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
def exclude_classes(tree: Cells, contexts: Contexts, room: Room) -> None:
    """Write what remains of the cells on the paths to excluded classes, from the leaf upwards."""
    path, remaining, row = contexts.path, contexts.remaining, worker()
    depth = len(tree.levels) - 1
    for b in range(worker(), len(path), num_workers()):
        # the class itself keeps nothing
        change = -np.inf
        remaining[b, depth] = change
        if path[b, depth] < 0:
            continue
        for level in range(depth - 1, -1, -1):
            cell = path[b, level]
            first, num = score(tree, cell, contexts.queries, b, -1, room, row)
            # all of the cell, then without the class: the ratio is what it keeps
            before, top = weigh(room, row, num)
            place = path[b, level + 1] - first
            if place % num_lanes() == lane():
                room.logits[row, place] += change
            kept = -np.inf
            # a class alone takes its cell with it; else log(0 / 0) would be asked for
            if num > 1 or change > -np.inf:
                total, greatest = weigh(room, row, num)
                kept = greatest - top + math.log(total / before)
            remaining[b, level] = change = kept
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
    known: IntArray,
    paths: Paths,
    room: Room,
) -> None:
    """Take paths from the cells of a level, which are visited, to children.

    These are `known` (B, k), or drawn where that is empty; uniforms of a visit are sorted. The
    shares of the children are added to ``log_q``.
    """
    u, at, log_q = paths
    alone, v = num_workers() == 1, worker()
    while v < len(visits):
        b, other, end = visits[v, 0], -1, v + 1
        cell = at[b, visits[v, 1]]
        # two contexts at a time where they meet, for half of the reading
        if alone and end < len(visits) and at[visits[end, 0], visits[end, 1]] == cell:
            other, end = visits[end, 0], end + 1
        first, num = score(tree, cell, contexts.queries, b, other, room, worker())
        for i in range(v, end):
            b, row = visits[i, 0], worker() + i - v
            leave_out(contexts, b, level + 1, first, num, room, row)
            total, greatest = weigh(room, row, num)
            weights = room.weights[row]
            # uniforms rise, so the search goes on where the last one ended
            child, below = 0, 0.0
            for k in range(visits[i, 1], visits[i, 2]):
                left, log_here = u[b, k], log_q[b, k]
                if known.size:
                    child = known[b, k] - first
                else:
                    child, below, left = draw_child(weights, num, left, total, child, below)
                log_here += log_share(room.logits[row, child], weights[child], total, greatest)
                meet()  # all have read what is replaced now
                u[b, k], at[b, k], log_q[b, k] = left, first + child, log_here
        v = end if alone else len(visits)


@njit
def sum_up(
    children: Real,
    sizes: IntArray,
    ranges: IntArray,
    which: IntArray,
    cells: Real,
    sums: FloatArray,
) -> None:
    """Write the means and the variances of cells `which` (k,) over the children in their ranges.

    These are cells, each of which counts by its size and adds the variance within it, by the law of
    total variance; or classes (n, d), and `sizes` is empty. Each worker has two rows of `sums`.
    """
    dim, are_classes = cells.shape[1] // 2, len(sizes) == 0
    for i in range(worker(), len(which), num_workers()):
        cell, mean, square = which[i], sums[2 * worker()], sums[2 * worker() + 1]
        first, last = ranges[cell, 0], ranges[cell, 1]
        for f in range(lane(), dim, num_lanes()):
            mean[f] = square[f] = 0.0
        for j in range(first, last):
            share = 1.0 / (last - first) if are_classes else sizes[j] / sizes[cell]
            for f in range(lane(), dim, num_lanes()):
                mean[f] += share * children[j, f]
        for j in range(first, last):  # about the mean, so that nothing cancels
            share = 1.0 / (last - first) if are_classes else sizes[j] / sizes[cell]
            for f in range(lane(), dim, num_lanes()):
                difference = children[j, f] - mean[f]
                square[f] += difference * (share * difference)  # never above the greatest square
            if not are_classes:
                for f in range(lane(), dim, num_lanes()):
                    square[f] += share * children[j, dim + f]
        for f in range(lane(), dim, num_lanes()):
            cells[cell, f], cells[cell, dim + f] = mean[f], square[f]
