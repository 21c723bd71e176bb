"""From the top cells to a class: draws, and probabilities of classes.

The classes lie in the order of their leaves, and the cells level by level, so that the children of
a cell are a range. The children of a leaf are classes, which are weighed by ``exp(tau h . c)``;
those of another cell are cells, weighed by their size times the exponential of the first two
cumulants of ``tau h . c`` over their classes. A class has the product of the shares that are used
on the way to it, whatever the cells are worth.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_sum
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.math.weights import exp_weights, find

Real = NDArray[Any]  # float32 or float64
_BELOW_ONE = 1.0 - 2.0**-53


class Cells(NamedTuple):
    """Cells (N,) level by level: a row (2 d) for each, its size, its children and its parent.

    `levels` (T + 1,) tells where levels begin; the classes (n, d), in their order, are `rows`.
    """

    cells: Real
    rows: Real
    log_sizes: FloatArray
    ranges: IntArray
    parents: IntArray
    levels: IntArray


@njit_sum
def products(matrix: Real, first: int, last: int, query: Real, out: FloatArray) -> None:
    """Write the inner products of rows [first, last) with as much of a query as they are long."""
    for i in range(first, last):
        total = matrix.dtype.type(0)
        for f in range(matrix.shape[1]):
            total += matrix[i, f] * query[f]
        out[i - first] = total


@njit
def weigh_children(tree: Cells, cell: int, query: Real, logits: FloatArray) -> int:
    """Write the logits of the children of a cell for a query (2 d), and return their number."""
    first, last = tree.ranges[cell]
    if cell >= tree.levels[-2]:
        products(tree.rows, first, last, query, logits)
    else:
        products(tree.cells, first, last, query, logits)
        for i in range(first, last):
            logits[i - first] += tree.log_sizes[i]
    return int(last - first)


@njit
def log_sum(logits: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Write exp(logit) divided by the greatest, and return their sum and the log of the whole."""
    weights[: len(logits)] = logits
    total, greatest = exp_weights(weights[: len(logits)], -1)
    return total, greatest + math.log(total)


@njit
def exclude_class(
    tree: Cells,
    place: int,
    leaf: int,
    query: Real,
    path: IntArray,
    remaining: FloatArray,
    room: FloatArray,
) -> None:
    """Write the cells over a class (T,), and the log of what each keeps of its mass without it.

    `place` is that of the class; below 0 there is none, and -1 is written for all cells.
    """
    depth = len(path)
    path[:] = -1
    if place < 0:
        return
    logits, weights = room
    cell, child, change = leaf, place, -np.inf
    for level in range(depth - 1, -1, -1):
        num = weigh_children(tree, cell, query, logits)
        _, before = log_sum(logits[:num], weights)
        logits[child - tree.ranges[cell, 0]] += change
        alone = num == 1 and change == -np.inf
        change = -np.inf if alone else log_sum(logits[:num], weights)[1] - before
        path[level], remaining[level] = cell, change
        child, cell = cell, tree.parents[cell]


@njit
def children_without(
    tree: Cells,
    cell: int,
    query: Real,
    path: IntArray,
    remaining: FloatArray,
    place: int,
    logits: FloatArray,
) -> int:
    """Do as `weigh_children`, with the excluded class left out of their masses."""
    num = weigh_children(tree, cell, query, logits)
    first, last = tree.ranges[cell]
    if cell >= tree.levels[-2]:
        if first <= place < last:
            logits[place - first] = -np.inf
    else:
        for level in range(len(path)):
            if first <= path[level] < last and path[level] >= 0:
                logits[path[level] - first] += remaining[level]
    return num


@njit
def tops_without(
    tops: FloatArray, path: IntArray, remaining: FloatArray, logits: FloatArray
) -> int:
    """Do as `children_without` for the top cells, whose logits (K,) are known."""
    logits[: len(tops)] = tops
    if path[0] >= 0:
        logits[path[0]] += remaining[0]
    return len(tops)


@njit
def split(
    logits: FloatArray,
    weights: FloatArray,
    first: int,
    u: FloatArray,
    at: IntArray,
    log_q: FloatArray,
) -> None:
    """Take each of the sorted uniforms (k,) to a child, and its place within that child.

    `at` gets the children, which are numbered from `first`; their shares are added to `log_q`.
    """
    total, log_total = log_sum(logits, weights)
    child, below = 0, 0.0
    for k in range(len(u)):
        target = u[k] * total
        child, below = find(weights, len(logits), target, child, below)
        u[k] = min((target - below) / weights[child], _BELOW_ONE)
        at[k] = first + child
        log_q[k] += logits[child] - log_total


@njit
def same_until(cells: IntArray, first: int) -> int:
    """Return where the run of equal numbers that begins at `first` ends."""
    last = first + 1
    while last < len(cells) and cells[last] == cells[first]:
        last += 1
    return last


@njit
def draw(
    tree: Cells,
    queries: Real,
    tops: FloatArray,
    exclude: IntArray,
    uniforms: FloatArray,
    order: IntArray,
    places: IntArray,
    log_q: FloatArray,
) -> None:
    """Draw the place of a class (B, m) for each uniform; `order` (B, m) sorts those of each row.

    `tops` (B, K) are the logits of the top cells, `exclude` (B, 2) the place and the leaf of the
    class that is left out, or below 0.
    """
    depth, widest = len(tree.levels) - 1, _widest(tree)
    num = uniforms.shape[1]
    path, remaining = np.empty(depth, np.int64), np.empty(depth)
    room = np.empty((2, widest))
    logits, weights = room
    at, u, sums = np.empty(num, np.int64), np.empty(num), np.empty(num)
    for b in range(len(queries)):
        place, leaf = exclude[b]
        exclude_class(tree, place, leaf, queries[b], path, remaining, room)
        for k in range(num):
            u[k] = uniforms[b, order[b, k]]
        sums[:] = 0.0
        wide = tops_without(tops[b], path, remaining, logits)
        split(logits[:wide], weights, 0, u, at, sums)
        for _ in range(depth):
            k = 0
            while k < num:
                end, cell = same_until(at, k), at[k]
                wide = children_without(tree, cell, queries[b], path, remaining, place, logits)
                split(
                    logits[:wide], weights, tree.ranges[cell, 0], u[k:end], at[k:end], sums[k:end]
                )
                k = end
        for k in range(num):
            places[b, order[b, k]] = at[k]
            log_q[b, order[b, k]] = sums[k]


@njit
def log_prob(
    tree: Cells,
    queries: Real,
    tops: FloatArray,
    exclude: IntArray,
    places: IntArray,
    leaves: IntArray,
    order: IntArray,
    log_q: FloatArray,
) -> None:
    """Write the log-probability (B, k) of the classes at `places`, which are in `leaves` (B, k).

    `order` (B, k) sorts the places of each row; the rest is as in `draw`.
    """
    depth, widest = len(tree.levels) - 1, _widest(tree)
    num = places.shape[1]
    path, remaining = np.empty(depth, np.int64), np.empty(depth)
    room = np.empty((2, widest))
    logits, weights = room
    cells, children, sums = np.empty(num, np.int64), np.empty(num, np.int64), np.empty(num)
    for b in range(len(queries)):
        place, leaf = exclude[b]
        exclude_class(tree, place, leaf, queries[b], path, remaining, room)
        for k in range(num):
            children[k], cells[k] = places[b, order[b, k]], leaves[b, order[b, k]]
        sums[:] = 0.0
        for _ in range(depth):
            k = 0
            while k < num:
                end, cell = same_until(cells, k), cells[k]
                wide = children_without(tree, cell, queries[b], path, remaining, place, logits)
                _, log_total = log_sum(logits[:wide], weights)
                for i in range(k, end):
                    sums[i] += logits[children[i] - tree.ranges[cell, 0]] - log_total
                    children[i], cells[i] = cell, tree.parents[cell]
                k = end
        wide = tops_without(tops[b], path, remaining, logits)
        _, log_total = log_sum(logits[:wide], weights)
        for k in range(num):
            own = places[b, order[b, k]]
            found = sums[k] + logits[children[k]] - log_total
            log_q[b, order[b, k]] = -np.inf if own == place else found


@njit
def _widest(tree: Cells) -> int:
    """Return the greatest number of children, the top cells among them."""
    widest = tree.levels[1]
    for first, last in tree.ranges:
        widest = max(widest, last - first)
    return int(widest)
