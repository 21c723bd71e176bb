"""From the top cells to a class: draws, and probabilities of classes.

The classes lie in the order of their leaves, and the cells level by level, so that the children of
a cell are a range. The children of a leaf are classes, which are weighed by ``exp(tau h . c)``;
those of another cell are cells, weighed by their size times the exponential of the first two
cumulants of ``tau h . c`` over their classes. A class has the product of the shares that are used
on the way to it, whatever the cells are worth.

A batch goes down level by level. What a context draws in a cell is a visit, and visits are made in
the order of the cells: contexts that meet in a cell find its children in the cache.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
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


@njit
def weigh_children(tree: Cells, cell: int, queries: Real, b: int, logits: Real) -> int:
    """Write the logits of the children of a cell for query b, and return their number."""
    first, last = tree.ranges[cell, 0], tree.ranges[cell, 1]
    is_leaf = cell >= tree.levels[-2]
    score(tree.cells, tree.rows, tree.log_sizes, is_leaf, first, last, queries, b, b, logits)
    return int(last - first)


@njit
def score(
    cells: Real,
    rows: Real,
    log_sizes: Real,
    is_leaf: bool,
    first: int,
    last: int,
    queries: Real,
    b: int,
    c: int,
    logits: Real,
) -> None:
    """Write the logits of children [first, last) for query b, and in row 1 for c if it is not b."""
    if is_leaf:
        if b == c:
            products(rows, first, last, queries, b, logits)
        else:
            pair_products(rows, first, last, queries, b, c, logits)
        return
    if b == c:
        products(cells, first, last, queries, b, logits)
    else:
        pair_products(cells, first, last, queries, b, c, logits)
    for row in range(1 if b == c else 2):
        for i in range(first, last):
            logits[row, i - first] += log_sizes[i]


@njit
def weigh(logits: Real, row: int, num: int, weights: Real) -> tuple[float, float]:
    """Write exp(logit) divided by the greatest; return the sum of that, and the greatest logit.

    The logits are `num` of a row of theirs. `weights` have room for whole vectors of eight beyond
    `num`, so that no loop has a rest.
    """
    room = (num + 7) // 8 * 8
    for i in range(num):
        weights[i] = logits[row, i]
    for i in range(num, room):
        weights[i] = -np.inf
    return exp_weights(weights, room, -1)


@njit
def log_share(logit: float, weight: float, total: float, greatest: float) -> float:
    """Return the log of the share of a child, as it is drawn, or would be if it had any weight."""
    if weight > 0.0:
        return math.log(weight / total)
    if total == 0.0:  # of the excluded class, alone in its leaf
        return -np.inf
    return logit - greatest - math.log(total)


@njit
def exclude_classes(
    tree: Cells, leaves: IntArray, queries: Real, path: IntArray, remaining: FloatArray
) -> None:
    """Write the path of excluded classes, whose places are in its last column, and what remains."""
    logits, weights = rooms(tree)
    depth = len(tree.levels) - 1
    for b in range(len(leaves)):
        remaining[b, depth] = -np.inf
        cell, child = leaves[b], path[b, depth]
        for level in range(depth - 1, -1, -1):
            if child < 0:
                path[b, level] = -1
                continue
            num = weigh_children(tree, cell, queries, b, logits)
            before, top = weigh(logits, 0, num, weights)
            change = remaining[b, level + 1]
            logits[0, child - tree.ranges[cell, 0]] += change
            path[b, level], remaining[b, level] = cell, -np.inf
            if num > 1 or change > -np.inf:
                total, greatest = weigh(logits, 0, num, weights)
                remaining[b, level] = greatest - top + math.log(total / before)
            child, cell = cell, tree.parents[cell]


@njit
def meeting(visits: IntArray, v: int, at: IntArray) -> tuple[int, int]:
    """Return the cell of visit v, and where visits go on: a next one to that cell goes with it."""
    cell, end = at[visits[v, 0], visits[v, 1]], v + 1
    if end < len(visits) and at[visits[end, 0], visits[end, 1]] == cell:
        end += 1
    return cell, end


@njit
def leave_out(
    path: IntArray,
    remaining: FloatArray,
    b: int,
    level: int,
    first: int,
    last: int,
    logits: Real,
    row: int,
) -> None:
    """Take the excluded class of context b out of the logits of cells [first, last) of a level."""
    if first <= path[b, level] < last:
        logits[row, path[b, level] - first] += remaining[b, level]


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
    cells, rows, log_sizes, ranges = tree.cells, tree.rows, tree.log_sizes, tree.ranges
    queries, path, remaining = contexts.queries, contexts.path, contexts.remaining
    is_leaf = level == len(tree.levels) - 2
    logits, weights = rooms(tree)
    v = 0
    while v < len(visits):
        cell, end = meeting(visits, v, at)
        first, last = ranges[cell, 0], ranges[cell, 1]
        b, c = visits[v, 0], visits[end - 1, 0]
        score(cells, rows, log_sizes, is_leaf, first, last, queries, b, c, logits)
        for i in range(v, end):
            b = visits[i, 0]
            leave_out(path, remaining, b, level + 1, first, last, logits, i - v)
            total, greatest = weigh(logits, i - v, last - first, weights)
            child, below = 0, 0.0
            for k in range(visits[i, 1], visits[i, 2]):
                target = u[b, k] * total
                child, below = find(weights, last - first, target, child, below)
                u[b, k] = min((target - below) / weights[child], _BELOW_ONE)
                at[b, k] = first + child
                log_q[b, k] += log_share(logits[i - v, child], weights[child], total, greatest)
        v = end


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
    cells, rows, log_sizes, ranges = tree.cells, tree.rows, tree.log_sizes, tree.ranges
    queries, path, remaining = contexts.queries, contexts.path, contexts.remaining
    is_leaf = level == len(tree.levels) - 2
    logits, weights = rooms(tree)
    v = 0
    while v < len(visits):
        cell, end = meeting(visits, v, at)
        first, last = ranges[cell, 0], ranges[cell, 1]
        b, c = visits[v, 0], visits[end - 1, 0]
        score(cells, rows, log_sizes, is_leaf, first, last, queries, b, c, logits)
        for i in range(v, end):
            b = visits[i, 0]
            leave_out(path, remaining, b, level + 1, first, last, logits, i - v)
            total, greatest = weigh(logits, i - v, last - first, weights)
            for k in range(visits[i, 1], visits[i, 2]):
                child = children[b, k] - first
                log_q[b, k] += log_share(logits[i - v, child], weights[child], total, greatest)
                children[b, k], at[b, k] = cell, tree.parents[cell]
        v = end


@njit
def rooms(tree: Cells) -> tuple[Real, Real]:
    """Return room for the logits (2, room) and the weights (room,) of children."""
    room = (tree.widest[0] + 7) // 8 * 8
    return np.empty((2, room), tree.rows.dtype), np.empty(room, tree.rows.dtype)
