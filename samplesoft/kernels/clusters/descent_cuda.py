"""From the top cells to a class on the device: the twin of `kernels.clusters.descent`.

Where classes and cells lie is told by paths (T + 1, N): the cell over a class on each of the T
levels, and in the last row its own place; -1 where there is no class. A warp works on a cell at a
time, whose children it weighs one after another; its lanes share out the products, and each keeps
the logits of every 32nd child.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from samplesoft._cuda import (
    WARP_SIZE,
    device_function,
    for_device,
    kernel,
    lane,
    thread_index,
    warp_index,
    warp_sum,
    warp_sync,
)
from samplesoft.kernels import weights as host_weights
from samplesoft.kernels.arrays.search_cuda import first_above
from samplesoft.kernels.clusters.descent import Cells
from samplesoft.kernels.lanes_cuda import exp_weights, warp_dot

find = for_device(host_weights.find)
_BELOW_ONE = 1.0 - 2.0**-53


class Exclusion(NamedTuple):
    """The paths (T + 1, B) to excluded classes, and the log of what is left there without them."""

    paths: Any
    log_kept: Any


class Room(NamedTuple):
    """Where a warp writes the logits of the children of a cell, and their weights, (N, widest)."""

    logits: Any
    weights: Any


@kernel
def find_paths(tree: Cells, places: Any, ids: Any, paths: Any) -> None:
    """Write the paths of classes (N,), of which -1 is none; a thread for each."""
    i, depth = thread_index(), paths.shape[0] - 1
    if i >= ids.shape[0]:
        return
    place, cell = -1, -1
    if ids[i] >= 0:
        place, leaves = places[ids[i]], tree.levels[depth - 1]
        cell = leaves + first_above(tree.ranges[leaves:, 0], place, False) - 1
    paths[depth, i] = place
    for level in range(depth - 1, -1, -1):
        paths[level, i] = cell
        cell = tree.parents[cell] if cell >= 0 else -1


@kernel
def write_queries(h: Any, tau: float, largest: float, queries: Any, bounds: Any) -> None:
    """Write what contexts (B, d) multiply means and variances by, (B, 2 d); a warp for each.

    `bounds` (B,) gets what no logit exceeds, of classes whose numbers are at most `largest`.
    """
    b, dim = warp_index(), h.shape[1]
    if b >= h.shape[0]:
        return
    bound = 0.0
    for f in range(lane(), dim, WARP_SIZE):
        scaled = tau * float(h[b, f])
        queries[b, f] = scaled
        queries[b, dim + f] = 0.5 * scaled * scaled
        most = abs(scaled) * largest
        bound += most + 0.5 * most * most
    bound = warp_sum(bound)
    if lane() == 0:
        bounds[b] = bound


@device_function
def write_top(out: Any, i: int, j: int, product: Any, parameters: Any) -> None:
    """Write the logit of a top cell, to whose size the product adds."""
    out[i, j] = float(product) + parameters[0][j]


@device_function
def weigh_children(tree: Cells, cell: int, query: Any, logits: Any) -> tuple[int, int]:
    """Write the logits of the children of a cell; return the first of those, and how many."""
    first, last = tree.ranges[cell, 0], tree.ranges[cell, 1]
    is_leaf = cell >= tree.levels[tree.levels.shape[0] - 2]
    vectors = tree.rows if is_leaf else tree.cells
    for i in range(first, last):
        logit = warp_dot(vectors[i], query)
        if not is_leaf:
            logit += tree.log_sizes[i]
        if (i - first) % WARP_SIZE == lane():
            logits[i - first] = logit
    return first, last - first


@device_function
def add_change(logits: Any, size: int, place: int, change: float) -> None:
    """Add to a logit, if `place` is one of those there are."""
    if 0 <= place < size and place % WARP_SIZE == lane():
        logits[place] += change


@device_function
def log_sum(logits: Any, size: int, weights: Any) -> tuple[float, float]:
    """Write exp(logit) divided by the greatest; return their sum and the log of the whole."""
    for c in range(lane(), size, WARP_SIZE):
        weights[c] = logits[c]
    total, greatest = exp_weights(weights, size)
    return total, greatest + math.log(total)


@kernel
def exclude_paths(tree: Cells, queries: Any, exclusion: Exclusion, room: Room, tops: Any) -> None:
    """Write what each cell of a path keeps of its mass, and take the rest from the top cells.

    The last row of `log_kept` holds -inf before; a warp for each example.
    """
    b, (paths, log_kept) = warp_index(), exclusion
    if b >= queries.shape[0] or paths[0, b] < 0:
        return
    logits, weights = room.logits[b], room.weights[b]
    change = -math.inf
    for level in range(paths.shape[0] - 2, -1, -1):
        first, size = weigh_children(tree, paths[level, b], queries[b], logits)
        if size > 1:  # a child alone keeps as much as its cell
            _, before = log_sum(logits, size, weights)
            add_change(logits, size, paths[level + 1, b] - first, change)
            _, after = log_sum(logits, size, weights)
            change = after - before
        if lane() == 0:
            log_kept[level, b] = change
    if lane() == 0:
        tops[b, paths[0, b]] += change


@device_function
def weigh_without(
    tree: Cells,
    cell: int,
    level: int,
    query: Any,
    exclusion: Exclusion,
    b: int,
    logits: Any,
    weights: Any,
) -> tuple[int, int, float, float]:
    """Weigh the children of a cell without the excluded class.

    Returns the first of them, how many, the sum of their weights, and the log of the whole.
    """
    first, size = weigh_children(tree, cell, query, logits)
    child, change = exclusion.paths[level + 1, b], exclusion.log_kept[level + 1, b]
    add_change(logits, size, child - first, change)
    total, log_total = log_sum(logits, size, weights)
    return first, size, total, log_total


@kernel
def descend(
    tree: Cells,
    queries: Any,
    exclusion: Exclusion,
    order: Any,
    uniforms: Any,
    cells: Any,
    room: Room,
    ids: Any,
    log_q: Any,
) -> None:
    """Take each of the uniforms (B, m) from its top cell, in `cells`, to a class; a warp for each.

    `log_q` holds the log-probabilities of the top cells, and gets those of the classes.
    """
    i, num = warp_index(), cells.shape[1]
    b, k = i // num, i % num
    if b >= cells.shape[0]:
        return
    logits, weights = room.logits[i], room.weights[i]
    cell, u, log_here = cells[b, k], uniforms[b, k], log_q[b, k]
    for level in range(exclusion.paths.shape[0] - 1):
        first, size, total, log_total = weigh_without(
            tree, cell, level, queries[b], exclusion, b, logits, weights
        )
        child, below = find(weights, size, u * total, 0, 0.0)
        u = min((u * total - below) / weights[child], _BELOW_ONE)
        log_here += logits[child] - log_total
        cell = first + child
        warp_sync()  # all have read what the next cell overwrites
    if lane() == 0:
        ids[b, k], log_q[b, k] = order[cell], log_here


@kernel
def add_log_shares(
    tree: Cells, queries: Any, exclusion: Exclusion, paths: Any, room: Room, log_q: Any
) -> None:
    """Complete the log-probabilities (B, k) of the classes that `paths` lead to; a warp for each.

    `log_q` is as in `descend`.
    """
    i, num, depth = warp_index(), log_q.shape[1], paths.shape[0] - 1
    b, k = i // num, i % num
    if b >= log_q.shape[0]:
        return
    logits, weights = room.logits[i], room.weights[i]
    log_here = log_q[b, k]
    if paths[depth, i] == exclusion.paths[depth, b]:
        log_here = -math.inf
    else:
        for level in range(depth):
            first, _, _, log_total = weigh_without(
                tree, paths[level, i], level, queries[b], exclusion, b, logits, weights
            )
            log_here += logits[paths[level + 1, i] - first] - log_total
            warp_sync()
    if lane() == 0:
        log_q[b, k] = log_here


@kernel
def reach_children(
    tree: Cells, queries: Any, exclusion: Exclusion, level: int, log_reach: Any, weights: Any
) -> None:
    """Write the log-probabilities of the children of all cells on a level; a warp for each cell.

    `log_reach` (B, N + n) holds those of all cells, and then of all classes by their places. Before
    they are written they are -inf, as those stay that cannot be drawn.
    """
    begin = tree.levels[level]
    num = tree.levels[level + 1] - begin
    b, cell = warp_index() // num, begin + warp_index() % num
    if b >= queries.shape[0] or log_reach[b, cell] == -math.inf:
        return
    classes = tree.log_sizes.shape[0] if level == tree.levels.shape[0] - 2 else 0
    first, last = classes + tree.ranges[cell, 0], classes + tree.ranges[cell, 1]
    children = log_reach[b, first:last]
    _, size, _, log_total = weigh_without(
        tree, cell, level, queries[b], exclusion, b, children, weights[b, first:last]
    )
    for c in range(lane(), size, WARP_SIZE):
        children[c] = log_reach[b, cell] + (children[c] - log_total)


@kernel
def write_probs(log_reach: Any, places: Any, probs: Any) -> None:
    """Write the probabilities (B, n) of classes at places (n,), a thread for each."""
    i, num = thread_index(), probs.shape[1]
    b, j = i // num, i % num
    if b < probs.shape[0]:
        probs[b, j] = math.exp(log_reach[b, log_reach.shape[1] - num + places[j]])
