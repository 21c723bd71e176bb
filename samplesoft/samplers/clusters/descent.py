"""The descent from the top cells to a class: draws, and probabilities of given classes.

Classes are stored in the order of their leaves, and cells level by level, so that the children of a
cell are a range. The children of a leaf are classes, with the weight ``exp(tau h . c)``. The
children of another cell are cells, with the weight ``size * exp(k1 + k2 / 2)``, where k1 and k2 are
the first two cumulants of ``tau h . c`` over the classes of the child. The probability of a class
is the product of the probabilities of its ancestors among their siblings, whatever the estimates.

A batch goes down level by level: `step`. The draws of one context in one cell are a visit. Visits
are processed in the order of cells, so that the children of a cell are in the cache for all
contexts that visit it. On a GPU each path is a visit.
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
_MIN_PROB = 1e-60  # a product of five of them, for the deepest trees, does not underflow


class CellTree(NamedTuple):
    """All cells (N,), level by level, and all classes (n,), grouped by leaf.

    The cell -1 is the root. It has no moments, and its children are the cells at the top.
    """

    moments: Real  # (N, 2 d): means and variances of the class vectors of a cell
    rows: Real  # (n, d): class vectors
    log_sizes: Real  # (N,): log of the number of classes
    ranges: IntArray  # (N + 1, 2): children of a cell, at the end of the root
    levels: IntArray  # (T + 1,): first cell of each level


class Contexts(NamedTuple):
    """Queries of contexts, their excluded classes, and the masses left without these."""

    queries: Real  # (B, 2 d)
    # (B, T + 1), the cells above the excluded class, from the top, and the position of the class;
    # negative without exclusion
    excluded_path: IntArray
    # (B, T + 1), log of the fraction of the mass that the same cells keep; -inf for the class
    log_remaining: FloatArray


class Paths(NamedTuple):
    """Paths (B, k) of draws, or to given classes.

    The probability of reaching a cell is ``probs * exp(log_q)``.
    """

    uniforms: FloatArray  # rescaled to [0, 1) within the current cell
    cells: IntArray  # current cells; in the end positions of classes
    probs: FloatArray  # product of the probabilities that are not small
    log_q: FloatArray  # sum of the logarithms of the others


class Workspace(NamedTuple):
    """Rows (width,) to weigh the children of a cell; the width is a multiple of 8.

    Each worker has a row. On the CPU there is one more, to score two contexts at a time.
    """

    logits: Real
    weights: Real
    sums: FloatArray  # (rows, 2): sum of the weights, and the largest logit


@njit_inline
def compute_logits(
    children: Real,
    log_sizes: Real,
    is_leaf: bool,
    first: int,
    last: int,
    queries: Real,
    b: int,
    second: int,
    logits: Real,
    row: int,
) -> None:
    """Write the logits of children [first, last), classes or cells, for query b.

    The logits for the query `second`, unless that is -1, go to the next row.
    """
    products(children, first, last, queries, b, second, logits, row)
    if not is_leaf:
        sizes = log_sizes[first:last]
        for r in range(row, row + 1 if second < 0 else row + 2):
            for i in range(lane(), last - first, num_lanes()):
                logits[r, i] += sizes[i]


@njit_inline
def softmax_weights(logits: Real, weights: Real, row: int, num: int) -> tuple[float, float]:
    """Write ``exp(logit - max_logit)``; return the sum of these weights, and ``max_logit``.

    The number of weights is rounded up to a multiple of 8, so that loops have no remainder.
    """
    size = (num + 7) // 8 * 8
    # padding has weight 0; a loop of constant length, whatever `num` is
    for i in range(size - 8 + lane(), size, num_lanes()):
        logits[row, i] = logits[row, i] if i < num else -np.inf
    sync_lanes()
    return exp_weights(logits, weights, row, size, -1)


@njit_inline
def prefetch_leaf(rows: Real, ranges: IntArray, leaf: int) -> None:
    """Prefetch the vectors of the classes in a leaf, which are rarely in a cache."""
    for j in range(ranges[leaf, 0], ranges[leaf, 1] if leaf >= 0 else 0):
        prefetch_row(rows, j)


@njit_bare
def exclude_classes(tree: CellTree, contexts: Contexts, workspace: Workspace) -> None:
    """Write the mass fractions that cells keep without the excluded class, leaf first."""
    moments, rows, log_sizes, ranges, levels = tree
    queries, excluded_path, log_remaining = contexts
    logits, weights, _ = workspace
    row = worker()
    num_levels = len(levels) - 1
    for b in range(worker(), len(excluded_path), num_workers()):
        # the class itself
        log_fraction = -np.inf
        log_remaining[b, num_levels] = log_fraction
        if excluded_path[b, num_levels] < 0:
            continue
        if b + num_workers() < len(excluded_path):
            prefetch_leaf(rows, ranges, excluded_path[b + num_workers(), num_levels - 1])
        for level in range(num_levels - 1, -1, -1):
            first = ranges[excluded_path[b, level], 0]
            last = ranges[excluded_path[b, level], 1]
            is_leaf = level == num_levels - 1
            children = rows if is_leaf else moments
            compute_logits(children, log_sizes, is_leaf, first, last, queries, b, -1, logits, row)
            # the mass of the cell, then its mass without the class
            total_before, max_before = softmax_weights(logits, weights, row, last - first)
            index = excluded_path[b, level + 1] - first
            if index % num_lanes() == lane():
                logits[row, index] += log_fraction
            log_kept = -np.inf
            # if the class is alone in the cell, nothing is left; the ratio would be 0 / 0
            if last - first > 1 or log_fraction > -np.inf:
                total, max_logit = softmax_weights(logits, weights, row, last - first)
                log_kept = max_logit - max_before + math.log(total / total_before)
            log_remaining[b, level] = log_fraction = log_kept
            sync_lanes()  # all have read what the next cell overwrites


@njit
def walk(
    tree: CellTree, contexts: Contexts, targets: IntArray, paths: Paths, workspace: Workspace
) -> None:
    """Extend paths level by level from the root to classes.

    `targets` (T + 1, B, k) are the children to go to at each level; if it is empty they are drawn.
    """
    levels = tree.levels
    for level in range(-1, len(levels) - 1):
        first, last = (-1, 0) if level < 0 else (levels[level], levels[level + 1])
        # in the order of cells
        visits = group_runs_by_node(paths.cells, first, last - first)
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
    """Take paths from the cells of a level, grouped into `visits`, to children of these.

    If `targets` (B, k) is empty the children are drawn, by the sorted uniforms of each visit.
    """
    # unpacked here: in a loop, Numba would count references to each array of the tuple
    moments, rows, log_sizes, ranges, levels = tree
    queries, excluded_path, log_remaining = contexts
    uniforms, cells, probs, log_q = paths
    logits, weights, sums = workspace
    is_leaf = level == len(levels) - 2
    has_targets = targets.size > 0
    children = rows if is_leaf else moments
    # several visits at a time: the CPU computes one while it waits for the memory of another
    visits_per_block = len(logits) if num_workers() == 1 else 1
    for v in range(worker() * visits_per_block, len(visits), num_workers() * visits_per_block):
        block_end = min(v + visits_per_block, len(visits))
        for i in range(
            block_end, min(block_end + visits_per_block, len(visits)) if is_leaf else block_end
        ):
            cell = cells[visits[i, 0], visits[i, 1]]
            if cell != cells[visits[i - 1, 0], visits[i - 1, 1]]:
                prefetch_leaf(rows, ranges, cell)
        i = v
        while i < block_end:
            b = visits[i, 0]
            second = -1
            row = worker() + i - v
            cell = cells[b, visits[i, 1]]
            # two contexts in one cell at a time, which halves the memory traffic
            if i + 1 < block_end and cells[visits[i + 1, 0], visits[i + 1, 1]] == cell:
                second = visits[i + 1, 0]
            first = ranges[cell, 0]
            last = ranges[cell, 1]
            compute_logits(
                children, log_sizes, is_leaf, first, last, queries, b, second, logits, row
            )
            i += 1 if second < 0 else 2
        for i in range(v, block_end):
            b = visits[i, 0]
            row = worker() + i - v
            cell = cells[b, visits[i, 1]]
            first = ranges[cell, 0]
            num = ranges[cell, 1] - ranges[cell, 0]
            # the cell above the excluded class keeps a fraction of its mass
            index = excluded_path[b, level + 1] - first
            if 0 <= index < num and index % num_lanes() == lane():
                logits[row, index] += log_remaining[b, level + 1]
            sums[row, 0], sums[row, 1] = softmax_weights(logits, weights, row, num)
        for i in range(v, block_end):
            b = visits[i, 0]
            row = worker() + i - v
            cell = cells[b, visits[i, 1]]
            first = ranges[cell, 0]
            num = ranges[cell, 1] - ranges[cell, 0]
            total = sums[row, 0]
            max_logit = sums[row, 1]
            # uniforms increase, so the search continues where the last one ended
            child = 0
            cumulative = 0.0
            rescaled = 0.0
            for k in range(visits[i, 1], visits[i, 2]):
                if has_targets:
                    child = targets[b, k] - first
                else:
                    target = uniforms[b, k] * total
                    child, cumulative = search_cumulative(
                        weights, row, num, target, child, cumulative
                    )
                    if not is_leaf:  # rescaled to the child, for the next level
                        rescaled = min(
                            (target - cumulative) / weights[row, child], _LARGEST_BELOW_ONE
                        )
                # from the weight that was drawn from, not from the logit, so that log_q is exact
                prob = weights[row, child] / total if total > 0.0 else 0.0
                log_prob = 0.0
                if not prob > _MIN_PROB:
                    # the excluded class, if it is alone in its leaf
                    prob = 1.0
                    log_prob = -np.inf
                    if total > 0.0:
                        prob = 1.0 / total
                        log_prob = logits[row, child] - max_logit
                prob *= probs[b, k]
                sync_lanes()  # all have read what is replaced now
                uniforms[b, k] = rescaled
                cells[b, k] = first + child
                probs[b, k] = prob
                if log_prob != 0.0:
                    log_q[b, k] += log_prob


@njit_bare
def update_moments(
    tree: CellTree, children: Real, sizes: IntArray, cell_ids: IntArray, workspace: FloatArray
) -> None:
    """Write the means and variances of cells `cell_ids` (k,), from their children.

    If these are classes (n, d), `sizes` is empty. If they are cells, they are weighted by size, and
    the variances within them are added (law of total variance). Each worker has two rows of
    `workspace`.
    """
    moments = tree.moments
    ranges = tree.ranges
    dim = moments.shape[1] // 2
    are_classes = len(sizes) == 0
    for i in range(worker(), len(cell_ids), num_workers()):
        cell = cell_ids[i]
        mean = workspace[2 * worker()]
        variance = workspace[2 * worker() + 1]
        first = ranges[cell, 0]
        last = ranges[cell, 1]
        for f in range(lane(), dim, num_lanes()):
            mean[f] = variance[f] = 0.0
        for j in range(first, last):
            weight = 1.0 / (last - first) if are_classes else sizes[j] / sizes[cell]
            for f in range(lane(), dim, num_lanes()):
                mean[f] += weight * children[j, f]
        for j in range(first, last):  # around the mean, so that nothing cancels
            weight = 1.0 / (last - first) if are_classes else sizes[j] / sizes[cell]
            for f in range(lane(), dim, num_lanes()):
                difference = children[j, f] - mean[f]
                # at most the largest square: no overflow
                variance[f] += difference * (weight * difference)
            if not are_classes:
                for f in range(lane(), dim, num_lanes()):
                    variance[f] += weight * children[j, dim + f]
        for f in range(lane(), dim, num_lanes()):
            moments[cell, f] = mean[f]
            moments[cell, dim + f] = variance[f]
