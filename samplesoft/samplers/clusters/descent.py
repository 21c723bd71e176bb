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

from samplesoft._jit import njit, njit_bare, njit_inline
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.lanes import lane, meet, num_lanes, num_workers, worker
from samplesoft.kernels.products import products
from samplesoft.kernels.rows import prefetch_row
from samplesoft.kernels.weights import exp_weights, find
from samplesoft.samplers.visits import visits_of

Real = NDArray[Any]  # float32 or float64
_LARGEST_BELOW_ONE = 1.0 - 2.0**-53
_LEAST_PRODUCT = 1e-60  # a product of five shares, as of the deepest cells, stays within float64


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

    `at` are the cells that they have come to, at the end the places of classes. The product of
    `shares` on the way, and in `log_q` the logarithm of those too small for it, are their q.
    """

    uniforms: FloatArray  # what is left of each in its cell
    at: IntArray
    shares: FloatArray
    log_q: FloatArray


class Room(NamedTuple):
    """Where children of a cell are weighed, (rows, widest) each; widest is a multiple of 8.

    Each worker has a row, and on the processor one more, for two contexts that meet in a cell.
    """

    logits: Real
    weights: Real
    sums: FloatArray  # (rows, 2): of the weights of a row, and the greatest logit


@njit_inline
def score(
    children: Real,
    log_sizes: Real,
    is_leaf: bool,
    first: int,
    last: int,
    queries: Real,
    b: int,
    other: int,
    logits: Real,
    row: int,
) -> None:
    """Write the logits of children [first, last), which are classes or cells, for query b.

    Those for an `other` query that is not -1 go to the next row.
    """
    products(children, first, last, queries, b, other, logits, row)
    if not is_leaf:
        sizes = log_sizes[first:last]
        for r in range(row, row + 1 if other < 0 else row + 2):
            for i in range(lane(), last - first, num_lanes()):
                logits[r, i] += sizes[i]


@njit_inline
def weigh(logits: Real, weights: Real, row: int, num: int) -> tuple[float, float]:
    """Write exp(logit) divided by the greatest; return the sum of that, and the greatest logit.

    Weights are computed up to a whole vector of eight, so that no loop has a rest.
    """
    size = (num + 7) // 8 * 8
    # what weighs nothing may be drawn by nobody; a loop of one length, whatever the number
    for i in range(size - 8 + lane(), size, num_lanes()):
        logits[row, i] = logits[row, i] if i < num else -np.inf
    meet()
    return exp_weights(logits, weights, row, size, -1)


@njit_inline
def ask_for(rows: Real, ranges: IntArray, leaf: int) -> None:
    """Ask for the vectors of the classes in a leaf, which are rarely in a cache."""
    for j in range(ranges[leaf, 0], ranges[leaf, 1] if leaf >= 0 else 0):
        prefetch_row(rows, j)


@njit_bare
def exclude_classes(tree: Cells, contexts: Contexts, room: Room) -> None:
    """Write what remains of the cells on the paths to excluded classes, from the leaf upwards."""
    cells, rows, log_sizes, ranges, levels = tree
    queries, path, remaining = contexts
    logits, weights, _ = room
    row = worker()
    depth = len(levels) - 1
    for b in range(worker(), len(path), num_workers()):
        # the class itself keeps nothing
        change = -np.inf
        remaining[b, depth] = change
        if path[b, depth] < 0:
            continue
        if b + num_workers() < len(path):
            ask_for(rows, ranges, path[b + num_workers(), depth - 1])
        for level in range(depth - 1, -1, -1):
            first = ranges[path[b, level], 0]
            last = ranges[path[b, level], 1]
            is_leaf = level == depth - 1
            children = rows if is_leaf else cells
            score(children, log_sizes, is_leaf, first, last, queries, b, -1, logits, row)
            # all of the cell, then without the class: the ratio is what it keeps
            before, top = weigh(logits, weights, row, last - first)
            place = path[b, level + 1] - first
            if place % num_lanes() == lane():
                logits[row, place] += change
            kept = -np.inf
            # a class alone takes its cell with it; else log(0 / 0) would be asked for
            if last - first > 1 or change > -np.inf:
                total, greatest = weigh(logits, weights, row, last - first)
                kept = greatest - top + math.log(total / before)
            remaining[b, level] = change = kept
            meet()  # all have read what the next cell overwrites


@njit
def walk(tree: Cells, contexts: Contexts, known: IntArray, paths: Paths, room: Room) -> None:
    """Take paths from the top to classes, which are drawn, or `known` (T + 1, B, k)."""
    levels = tree.levels
    for level in range(-1, len(levels) - 1):
        first, last = (-1, 0) if level < 0 else (levels[level], levels[level + 1])
        # contexts that meet in a cell come one after another
        visits = visits_of(paths.at, first, last - first)
        step(tree, contexts, level, visits, known[level + 1], paths, room)


@njit_bare
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

    These are `known` (B, k), or drawn where that is empty; uniforms of a visit are sorted.
    """
    # taken apart here: in a loop, each array of a tuple would have its references counted
    cells, rows, log_sizes, ranges, levels = tree
    queries, path, remaining = contexts
    u, at, shares, log_q = paths
    logits, weights, sums = room
    is_leaf = level == len(levels) - 2
    are_known = known.size > 0
    children = rows if is_leaf else cells
    # several visits at a time: the processor works on the next while one waits for its numbers
    together = len(logits) if num_workers() == 1 else 1
    for v in range(worker() * together, len(visits), num_workers() * together):
        end = min(v + together, len(visits))
        for i in range(end, min(end + together, len(visits)) if is_leaf else end):
            cell = at[visits[i, 0], visits[i, 1]]
            if cell != at[visits[i - 1, 0], visits[i - 1, 1]]:
                ask_for(rows, ranges, cell)
        i = v
        while i < end:
            b = visits[i, 0]
            other = -1
            row = worker() + i - v
            cell = at[b, visits[i, 1]]
            # two contexts at a time where they meet, for half of the reading
            if i + 1 < end and at[visits[i + 1, 0], visits[i + 1, 1]] == cell:
                other = visits[i + 1, 0]
            first = ranges[cell, 0]
            last = ranges[cell, 1]
            score(children, log_sizes, is_leaf, first, last, queries, b, other, logits, row)
            i += 1 if other < 0 else 2
        for i in range(v, end):
            b = visits[i, 0]
            row = worker() + i - v
            cell = at[b, visits[i, 1]]
            first = ranges[cell, 0]
            num = ranges[cell, 1] - ranges[cell, 0]
            # a logarithm of what is kept is added: without its class a cell keeps the rest
            place = path[b, level + 1] - first
            if 0 <= place < num and place % num_lanes() == lane():
                logits[row, place] += remaining[b, level + 1]
            sums[row, 0], sums[row, 1] = weigh(logits, weights, row, num)
        for i in range(v, end):
            b = visits[i, 0]
            row = worker() + i - v
            cell = at[b, visits[i, 1]]
            first = ranges[cell, 0]
            num = ranges[cell, 1] - ranges[cell, 0]
            total = sums[row, 0]
            greatest = sums[row, 1]
            # uniforms rise, so the search goes on where the last one ended
            child = 0
            below = 0.0
            left = 0.0
            for k in range(visits[i, 1], visits[i, 2]):
                if are_known:
                    child = known[b, k] - first
                else:
                    target = u[b, k] * total
                    child, below = find(weights, row, num, target, child, below)
                    if not is_leaf:  # stretched over the child, what is left serves the next cell
                        left = min((target - below) / weights[row, child], _LARGEST_BELOW_ONE)
                # by the weight that was drawn from, not the logit: q is what happened
                share = weights[row, child] / total if total > 0.0 else 0.0
                log_share = 0.0
                if not share > _LEAST_PRODUCT:
                    # of the excluded class, alone in its leaf
                    share = 1.0
                    log_share = -np.inf
                    if total > 0.0:
                        share = 1.0 / total
                        log_share = logits[row, child] - greatest
                share *= shares[b, k]
                meet()  # all have read what is replaced now
                u[b, k] = left
                at[b, k] = first + child
                shares[b, k] = share
                if log_share != 0.0:
                    log_q[b, k] += log_share


@njit_bare
def sum_up(tree: Cells, children: Real, sizes: IntArray, which: IntArray, sums: FloatArray) -> None:
    """Write the means and the variances of cells `which` (k,) over the children in their ranges.

    These are cells, each of which counts by its size and adds the variance within it, by the law of
    total variance; or classes (n, d), and `sizes` is empty. Each worker has two rows of `sums`.
    """
    cells = tree.cells
    ranges = tree.ranges
    dim = cells.shape[1] // 2
    are_classes = len(sizes) == 0
    for i in range(worker(), len(which), num_workers()):
        cell = which[i]
        mean = sums[2 * worker()]
        square = sums[2 * worker() + 1]
        first = ranges[cell, 0]
        last = ranges[cell, 1]
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
            cells[cell, f] = mean[f]
            cells[cell, dim + f] = square[f]
