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

from samplesoft._jit import njit, njit_sum
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.math.weights import exp_weights, find

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


@njit_sum
def products(matrix: Real, first: int, last: int, queries: Real, b: int, out: Real) -> None:
    """Write the inner products of rows [first, last) with as much of query b as they are long.

    Four rows at a time, for which the query is read once.
    """
    dim = matrix.shape[1]
    zero = matrix.dtype.type(0)
    whole = first + (last - first) // 4 * 4
    for i in range(first, whole, 4):
        t0 = t1 = t2 = t3 = zero
        for f in range(dim):
            x = queries[b, f]
            t0 += matrix[i, f] * x
            t1 += matrix[i + 1, f] * x
            t2 += matrix[i + 2, f] * x
            t3 += matrix[i + 3, f] * x
        out[i - first] = t0
        out[i - first + 1] = t1
        out[i - first + 2] = t2
        out[i - first + 3] = t3
    for i in range(whole, last):
        t0 = zero
        for f in range(dim):
            t0 += matrix[i, f] * queries[b, f]
        out[i - first] = t0


@njit
def weigh_children(tree: Cells, cell: int, queries: Real, b: int, logits: Real) -> int:
    """Write the logits of the children of a cell for query b, and return their number."""
    first, last = tree.ranges[cell, 0], tree.ranges[cell, 1]
    if cell >= tree.levels[-2]:
        products(tree.rows, first, last, queries, b, logits)
    else:
        products(tree.cells, first, last, queries, b, logits)
        for i in range(first, last):
            logits[i - first] += tree.log_sizes[i]
    return int(last - first)


@njit
def weigh(logits: Real, num: int, weights: Real) -> tuple[float, float]:
    """Write exp(logit) divided by the greatest; return the sum of that, and the greatest logit."""
    for i in range(num):
        weights[i] = logits[i]
    return exp_weights(weights[:num], -1)


@njit
def log_share(logits: Real, weights: Real, child: int, total: float, greatest: float) -> float:
    """Return the log of the share of a child, as it is drawn, or would be if it had any weight."""
    if weights[child] > 0.0:
        return math.log(weights[child] / total)
    if total == 0.0:  # of the excluded class, alone in its leaf
        return -np.inf
    return float(logits[child]) - greatest - math.log(total)


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
            before, top = weigh(logits, num, weights)
            change = remaining[b, level + 1]
            logits[child - tree.ranges[cell, 0]] += change
            path[b, level], remaining[b, level] = cell, -np.inf
            if num > 1 or change > -np.inf:
                total, greatest = weigh(logits, num, weights)
                remaining[b, level] = greatest - top + math.log(total / before)
            child, cell = cell, tree.parents[cell]


@njit
def leave_out(contexts: Contexts, b: int, level: int, first: int, num: int, logits: Real) -> None:
    """Take the excluded class out of the logits of cells [first, first + num) of a level."""
    place = contexts.path[b, level] - first
    if 0 <= place < num:
        logits[place] += contexts.remaining[b, level]


@njit
def split(
    logits: Real,
    weights: Real,
    num: int,
    first: int,
    visit: tuple[int, int, int],
    u: FloatArray,
    at: IntArray,
    log_q: FloatArray,
) -> None:
    """Take each sorted uniform of a visit to a child, and to its place within that child.

    A visit is a context, and where its uniforms in a row of `u` (B, m) begin and end. `at` gets the
    children, which are numbered from `first`; their shares are added to `log_q`.
    """
    b, begin, end = visit
    total, greatest = weigh(logits, num, weights)
    child, below = 0, 0.0
    for k in range(begin, end):
        target = u[b, k] * total
        child, below = find(weights, num, target, child, below)
        u[b, k] = min((target - below) / weights[child], _BELOW_ONE)
        at[b, k] = first + child
        log_q[b, k] += log_share(logits, weights, child, total, greatest)


@njit
def find_visits(at: IntArray, first: int, num: int, visits: IntArray) -> int:
    """Write a row for each run of equal cells in a row of `at` (B, k), and return their number.

    A row of `visits` (B k, 3) is the context, and where the run begins and ends. Rows come in the
    order of the cells, which are `num` from `first` on.
    """
    starts = np.zeros(num + 1, np.int64)
    for b in range(len(at)):
        for k in range(at.shape[1]):
            if k == 0 or at[b, k] != at[b, k - 1]:
                starts[at[b, k] - first + 1] += 1
    for cell in range(num):
        starts[cell + 1] += starts[cell]
    for b in range(len(at)):
        begin = 0
        for k in range(1, at.shape[1] + 1):
            if k == at.shape[1] or at[b, k] != at[b, k - 1]:
                cell = at[b, begin] - first
                row = starts[cell]
                visits[row, 0], visits[row, 1], visits[row, 2] = b, begin, k
                starts[cell] += 1
                begin = k
    return int(starts[num])


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
    """Take the uniforms of visits to cells of a level on to their children, as `split` does."""
    logits, weights = rooms(tree)
    for v in range(len(visits)):
        b, begin, end = visits[v, 0], visits[v, 1], visits[v, 2]
        cell = at[b, begin]
        first, num = tree.ranges[cell, 0], weigh_children(tree, cell, contexts.queries, b, logits)
        leave_out(contexts, b, level + 1, first, num, logits)
        split(logits, weights, num, first, (b, begin, end), u, at, log_q)


@njit
def ascend(
    tree: Cells,
    contexts: Contexts,
    level: int,
    visits: IntArray,
    children: IntArray,
    cells: IntArray,
    log_q: FloatArray,
) -> None:
    """Add to `log_q` (B, k) the shares of `children` in their `cells` of a level, and go up.

    The children become the cells, and the cells those above.
    """
    logits, weights = rooms(tree)
    for v in range(len(visits)):
        b, begin, end = visits[v, 0], visits[v, 1], visits[v, 2]
        cell = cells[b, begin]
        first, num = tree.ranges[cell, 0], weigh_children(tree, cell, contexts.queries, b, logits)
        leave_out(contexts, b, level + 1, first, num, logits)
        total, greatest = weigh(logits, num, weights)
        for k in range(begin, end):
            child = children[b, k] - first
            log_q[b, k] += log_share(logits, weights, child, total, greatest)
            children[b, k], cells[b, k] = cell, tree.parents[cell]


@njit
def rooms(tree: Cells) -> tuple[Real, Real]:
    """Return room for the logits and the weights of children."""
    return np.empty(tree.widest[0], tree.rows.dtype), np.empty(tree.widest[0], tree.rows.dtype)
