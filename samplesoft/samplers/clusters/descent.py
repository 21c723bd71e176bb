"""The descent from the top cells to a class: draws, and probabilities of given classes.

Classes are stored in the order of their leaves, and cells level by level, so that the children of a
cell have consecutive indices. The children of a leaf are classes, and their weights are
``exp(tau h . c)``. The children of any other cell are cells. The weight of a cell with `size`
classes is ``size * exp(k1 + k2 / 2)``, where k1 and k2 are the mean and the variance of
``tau h . c`` over its classes. The probability of a child given its parent is the weight of the
child divided by the sum of the weights of all children of the parent. The probability of a class is
the product of these probabilities on its path, exactly, however good the weights of cells are.

`step` moves all paths of a batch down by one level. All draws of one context that are in the same
cell form one visit. Visits are processed in the order of cells, so that the children of a cell stay
in the cache for all contexts that visit the cell. On a GPU each path is a separate visit.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit, njit_bare, njit_inline
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.lanes import lane, num_lanes, num_workers, sync_lanes, worker
from samplesoft.kernels.products import products
from samplesoft.kernels.rows import prefetch_row
from samplesoft.kernels.weights import exp_weights, search_cumulative
from samplesoft.samplers.visits import group_runs_by_node

Real = NDArray[Any]  # float32 or float64
_LARGEST_BELOW_ONE = 1.0 - 2.0**-53
# A branch probability up to this value is stored as a logarithm. A path has few branches, and the
# product of five larger probabilities does not underflow.
_MIN_PROB = 1e-60


class CellTree(NamedTuple):
    """N cells on T levels, stored level by level, and n classes, grouped by leaf.

    Cell -1 is the root. It has no moments, and its children are the cells of the top level.
    """

    # (N, 2 d): for each cell, the mean of its class vectors, then the variance of each entry
    moments: Real
    rows: Real  # (n, d): class vectors
    log_sizes: Real  # (N,): log of the number of classes in a cell
    # (N + 1, 2): the children of a cell are [start, stop); the last row is for the root
    child_ranges: IntArray
    level_offsets: IntArray  # (T + 1,): first cell of each level, and N


class Contexts(NamedTuple):
    """Queries of a batch of contexts, and the effect of the class that each context excludes."""

    queries: Real  # (B, 2 d): factors of the means of a cell, then of its variances
    # (B, T + 1): the cells that contain the excluded class, from the top, and then the position of
    # the class in leaf order; negative if no class is excluded
    excluded_path: IntArray
    # (B, T + 1): for each entry of `excluded_path`, the log of the fraction of its mass that
    # remains without the excluded class; -inf for the class itself
    log_remaining: FloatArray


class Paths(NamedTuple):
    """The state of k paths for each of B contexts; all fields have shape (B, k).

    A path leads to a class that is drawn or given. The probability of reaching its current cell is
    ``probs * exp(log_q)``.
    """

    uniforms: FloatArray  # uniform of a draw, rescaled to [0, 1) within its current cell
    # current cell; after the last level, position of the class in leaf order
    cells: IntArray
    probs: FloatArray  # product of the branch probabilities above `_MIN_PROB`
    log_q: FloatArray  # sum of the logarithms of the smaller branch probabilities


class Workspace(NamedTuple):
    """Buffers for the logits and weights of the children of a cell, one row for each visit.

    The row length is the largest number of children, rounded up to a multiple of 8.
    """

    logits: Real  # (rows, row length)
    weights: Real  # (rows, row length)
    sums: FloatArray  # (rows, 2): sum of the weights, and largest logit


@njit_inline
def compute_logits(
    children: Real,
    log_sizes: Real,
    is_leaf: bool,
    start: int,
    stop: int,
    queries: Real,
    b: int,
    second: int,
    logits: Real,
    row: int,
) -> None:
    """Write the logits of the children [start, stop) for query `b` to ``logits[row]``.

    The children are classes if `is_leaf`, otherwise cells. If `second` is not -1, also write the
    logits for query `second` to ``logits[row + 1]``.
    """
    products(children, start, stop, queries, b, second, logits, row)
    if not is_leaf:
        sizes = log_sizes[start:stop]
        for r in range(row, row + 1 if second < 0 else row + 2):
            for i in range(lane(), stop - start, num_lanes()):
                logits[r, i] += sizes[i]


@njit_inline
def softmax_weights(logits: Real, weights: Real, row: int, num_logits: int) -> tuple[float, float]:
    """Write the weights ``exp(logit - max_logit)``; return their sum, and the largest logit.

    The first `num_logits` entries of ``logits[row]`` are the logits. They are padded in place with
    -inf to a multiple of 8, so that loops have no remainder.
    """
    padded_size = (num_logits + 7) // 8 * 8

    # the logit -inf has weight 0; the loop always runs over the last 8 entries, so that its length
    # is constant
    for i in range(padded_size - 8 + lane(), padded_size, num_lanes()):
        logits[row, i] = logits[row, i] if i < num_logits else -np.inf
    sync_lanes()
    return exp_weights(logits, weights, row, padded_size, -1)


@njit_inline
def prefetch_leaf(rows: Real, child_ranges: IntArray, leaf: int) -> None:
    """Prefetch the vectors of the classes in `leaf`, which are rarely in a cache.

    Nothing is done if `leaf` is negative.
    """
    for j in range(child_ranges[leaf, 0], child_ranges[leaf, 1] if leaf >= 0 else 0):
        prefetch_row(rows, j)


@njit_bare
def exclude_classes(tree: CellTree, contexts: Contexts, workspace: Workspace) -> None:
    """Write ``contexts.log_remaining``, for contexts that exclude a class.

    For each cell that contains the excluded class, the value written is the log of the fraction of
    the cell's mass that remains without the class. Cells are processed from the leaf up.
    """
    moments, rows, log_sizes, child_ranges, level_offsets = tree
    queries, excluded_path, log_remaining = contexts
    logits, weights, _ = workspace
    row = worker()
    num_levels = len(level_offsets) - 1

    for b in range(worker(), len(excluded_path), num_workers()):
        # the excluded class itself keeps no mass
        log_fraction = -np.inf
        log_remaining[b, num_levels] = log_fraction
        if excluded_path[b, num_levels] < 0:
            continue
        if b + num_workers() < len(excluded_path):
            prefetch_leaf(rows, child_ranges, excluded_path[b + num_workers(), num_levels - 1])

        for level in range(num_levels - 1, -1, -1):
            start = child_ranges[excluded_path[b, level], 0]
            stop = child_ranges[excluded_path[b, level], 1]
            is_leaf = level == num_levels - 1
            children = rows if is_leaf else moments
            compute_logits(children, log_sizes, is_leaf, start, stop, queries, b, -1, logits, row)

            # the mass of the cell, including the excluded class
            total_before, max_before = softmax_weights(logits, weights, row, stop - start)

            # the mass of the cell without the excluded class
            index = excluded_path[b, level + 1] - start
            if index % num_lanes() == lane():
                logits[row, index] += log_fraction

            # skipped if the class is alone in the cell: the ratio below would be 0 / 0
            log_kept = -np.inf
            if stop - start > 1 or log_fraction > -np.inf:
                total, max_logit = softmax_weights(logits, weights, row, stop - start)
                log_kept = max_logit - max_before + math.log(total / total_before)
            log_remaining[b, level] = log_fraction = log_kept
            sync_lanes()  # all lanes have read the logits, which the next level overwrites


@njit
def walk(
    tree: CellTree, contexts: Contexts, targets: IntArray, paths: Paths, workspace: Workspace
) -> None:
    """Move all `paths`, in place, level by level from the root to classes.

    `targets` (T + 1, B, k) holds the child that each path takes at each level. If `targets` is
    empty, the children are drawn.
    """
    level_offsets = tree.level_offsets
    for level in range(-1, len(level_offsets) - 1):
        start, stop = (-1, 0) if level < 0 else (level_offsets[level], level_offsets[level + 1])
        # the visits are sorted by cell
        visits = group_runs_by_node(paths.cells, start, stop - start)
        step(tree, contexts, level, visits, targets[level + 1], paths, workspace)


@njit_bare
def step(
    tree: CellTree,
    contexts: Contexts,
    level: int,
    visits: IntArray,
    targets: IntArray,
    paths: Paths,
    workspace: Workspace,
) -> None:
    """Move all `paths`, in place, from the cells of `level` to children of these cells.

    A row of `visits` (V, 3) holds a context, and the start and the stop of the range of its paths
    in one cell. `targets` (B, k) holds the child that each path takes. If `targets` is empty, the
    children are drawn by the uniforms of the paths, which increase within a visit.
    """
    # unpacked here, because Numba would count references to the arrays of a tuple within loops
    moments, rows, log_sizes, child_ranges, level_offsets = tree
    queries, excluded_path, log_remaining = contexts
    uniforms, cells, probs, log_q = paths
    logits, weights, sums = workspace
    is_leaf = level == len(level_offsets) - 2
    has_targets = targets.size > 0
    children = rows if is_leaf else moments

    # process several visits at a time, so that the CPU computes one visit while it waits for the
    # memory of another
    visits_per_block = len(logits) if num_workers() == 1 else 1
    for v in range(worker() * visits_per_block, len(visits), num_workers() * visits_per_block):
        block_end = min(v + visits_per_block, len(visits))

        # prefetch the leaves of the next block
        for i in range(
            block_end, min(block_end + visits_per_block, len(visits)) if is_leaf else block_end
        ):
            cell = cells[visits[i, 0], visits[i, 1]]
            if cell != cells[visits[i - 1, 0], visits[i - 1, 1]]:
                prefetch_leaf(rows, child_ranges, cell)

        # the logits of the children of each visited cell
        i = v
        while i < block_end:
            b = visits[i, 0]
            second = -1
            row = worker() + i - v
            cell = cells[b, visits[i, 1]]

            # score two contexts in one cell together, which halves the memory traffic
            if i + 1 < block_end and cells[visits[i + 1, 0], visits[i + 1, 1]] == cell:
                second = visits[i + 1, 0]
            start = child_ranges[cell, 0]
            stop = child_ranges[cell, 1]
            compute_logits(
                children, log_sizes, is_leaf, start, stop, queries, b, second, logits, row
            )
            i += 1 if second < 0 else 2

        # the weights of the children
        for i in range(v, block_end):
            b = visits[i, 0]
            row = worker() + i - v
            cell = cells[b, visits[i, 1]]
            start = child_ranges[cell, 0]
            num_children = child_ranges[cell, 1] - child_ranges[cell, 0]

            # a child that contains the excluded class loses the mass of this class; a child that
            # is the excluded class loses all its mass
            index = excluded_path[b, level + 1] - start
            if 0 <= index < num_children and index % num_lanes() == lane():
                logits[row, index] += log_remaining[b, level + 1]
            sums[row, 0], sums[row, 1] = softmax_weights(logits, weights, row, num_children)

        # the child that each path takes, and its probability
        for i in range(v, block_end):
            b = visits[i, 0]
            row = worker() + i - v
            cell = cells[b, visits[i, 1]]
            start = child_ranges[cell, 0]
            num_children = child_ranges[cell, 1] - child_ranges[cell, 0]
            total = sums[row, 0]
            max_logit = sums[row, 1]

            # uniforms increase within a visit, so each search continues where the last one ended
            child = 0
            cumulative = 0.0
            rescaled = 0.0
            for k in range(visits[i, 1], visits[i, 2]):
                if has_targets:
                    child = targets[b, k] - start
                else:
                    target = uniforms[b, k] * total
                    child, cumulative = search_cumulative(
                        weights, row, num_children, target, child, cumulative
                    )
                    # rescale the uniform to the child, for the next level
                    if not is_leaf:
                        rescaled = min(
                            (target - cumulative) / weights[row, child], _LARGEST_BELOW_ONE
                        )

                # computed from the weight that the search used, not from the logit, so that log_q
                # is exactly the log-probability of the draw
                prob = weights[row, child] / total if total > 0.0 else 0.0
                log_prob = 0.0
                if not prob > _MIN_PROB:
                    # if the total is 0, the child is the excluded class, alone in its leaf
                    prob = 1.0
                    log_prob = -np.inf
                    if total > 0.0:
                        prob = 1.0 / total
                        log_prob = logits[row, child] - max_logit

                prob *= probs[b, k]

                sync_lanes()  # all lanes have read the values that are replaced below
                uniforms[b, k] = rescaled
                cells[b, k] = start + child
                probs[b, k] = prob
                if log_prob != 0.0:
                    log_q[b, k] += log_prob


@njit_bare
def update_moments(
    tree: CellTree, children: Real, sizes: IntArray, cell_ids: IntArray, workspace: FloatArray
) -> None:
    """Write the moments of the cells `cell_ids` (k,), computed from their children.

    For leaves, `children` are the class vectors (n, d), and `sizes` is empty. For other cells,
    `children` are the moments (N, 2 d) of all cells, and `sizes` (N,) their numbers of classes,
    which are the weights of the children. By the law of total variance, the variance of a cell is
    the variance of its children's means plus the mean of its children's variances. `workspace` has
    two rows (d,) for each worker.
    """
    moments = tree.moments
    child_ranges = tree.child_ranges
    dim = moments.shape[1] // 2
    are_classes = len(sizes) == 0

    for i in range(worker(), len(cell_ids), num_workers()):
        cell = cell_ids[i]
        mean = workspace[2 * worker()]
        variance = workspace[2 * worker() + 1]
        start = child_ranges[cell, 0]
        stop = child_ranges[cell, 1]

        for f in range(lane(), dim, num_lanes()):
            mean[f] = variance[f] = 0.0

        for j in range(start, stop):
            weight = 1.0 / (stop - start) if are_classes else sizes[j] / sizes[cell]
            for f in range(lane(), dim, num_lanes()):
                mean[f] += weight * children[j, f]

        # the mean is subtracted before squaring, because E[x^2] - E[x]^2 would cancel
        for j in range(start, stop):
            weight = 1.0 / (stop - start) if are_classes else sizes[j] / sizes[cell]
            for f in range(lane(), dim, num_lanes()):
                difference = children[j, f] - mean[f]
                # each square is weighted first, so that the sum never exceeds the largest square
                variance[f] += difference * (weight * difference)
            if not are_classes:
                for f in range(lane(), dim, num_lanes()):
                    variance[f] += weight * children[j, dim + f]

        for f in range(lane(), dim, num_lanes()):
            moments[cell, f] = mean[f]
            moments[cell, dim + f] = variance[f]
