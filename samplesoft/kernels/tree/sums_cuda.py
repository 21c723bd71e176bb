"""Sums of features in a binary tree on the device: the twins of `kernels.tree.sums`.

Every number is added up in the same order as on the processor, by a thread for each column or a
warp for each node; so the same features give the same sums, on every run.
"""

from __future__ import annotations

from typing import Any

from samplesoft._cuda import WARP_SIZE, cuda, kernel, lane, thread_index, warp_index, warp_max
from samplesoft.kernels.arrays.search_cuda import first_above


@kernel
def sum_runs(features: Any, starts: Any, sums: Any) -> None:
    """Write the sum of each run of rows that begins at one of `starts`, (k, F), a warp a run."""
    i = warp_index()
    if i >= starts.shape[0]:
        return
    stop = starts[i + 1] if i + 1 < starts.shape[0] else features.shape[0]
    for f in range(lane(), sums.shape[1], WARP_SIZE):
        total = features[starts[i], f]
        for j in range(starts[i] + 1, stop):
            total += features[j, f]
        sums[i, f] = total


@kernel
def sum_changes(new: Any, old: Any, starts: Any, first: int, change: Any) -> None:
    """Write sums of ``new - old`` over runs of rows, as `sum_runs`; `first` is that of row 0."""
    i = warp_index()
    if i >= starts.shape[0]:
        return
    begin = starts[i] - first
    stop = starts[i + 1] - first if i + 1 < starts.shape[0] else new.shape[0]
    for f in range(lane(), change.shape[1], WARP_SIZE):
        total = new[begin, f] - old[begin, f]
        for j in range(begin + 1, stop):
            total += new[j, f] - old[j, f]
        change[i, f] = total


@kernel
def largest_in_rows(features: Any, largest: Any) -> None:
    """Write the largest absolute value in each row (k,), a warp a row."""
    i = warp_index()
    if i >= features.shape[0]:
        return
    size = features.dtype.type(0)
    for f in range(lane(), features.shape[1], WARP_SIZE):
        size = max(size, abs(features[i, f]))
    largest[i] = warp_max(size)


@kernel
def subtract_leaf_sums(nodes: Any, leaves: Any, change: Any) -> None:
    """Subtract what the tree holds as the sums of leaves (k,), a thread for each number."""
    i, f = thread_index() // nodes.shape[1], thread_index() % nodes.shape[1]
    if i >= leaves.shape[0]:
        return
    leaf, half = leaves[i], 1
    while half < nodes.shape[0]:
        half *= 2
    held = float(nodes[0, f])
    while half > 1:
        half //= 2
        middle = leaf // (2 * half) * (2 * half) + half
        if middle < nodes.shape[0]:
            share = -0.5 if leaf >= middle else 0.5
            held = 0.5 * held + share * nodes[middle, f]
    change[i, f] -= held


@kernel
def sum_columns(rows: Any, sums: Any) -> None:
    """Write in float64, for parts of the rows, sums and sums of absolute values, (parts, 2, F)."""
    place, width = thread_index(), rows.shape[1]
    part, f = place // width, place % width
    if part >= sums.shape[0]:
        return
    each = -(-rows.shape[0] // sums.shape[0])
    total, size = 0.0, 0.0
    for i in range(part * each, min((part + 1) * each, rows.shape[0])):
        total += float(rows[i, f])
        size += abs(float(rows[i, f]))
    sums[part, 0, f], sums[part, 1, f] = total, size


@kernel
def grow(
    added: Any, taken: Any, sizes: Any, before: Any, largest: float, after: Any, found: Any
) -> None:
    """Add what `sum_columns` wrote to a total (F,) and to limits (F,) of all nodes, a pair.

    Adds sums of `added` and subtracts those of `taken`; sums of absolute values are of `sizes`.
    Looks for a limit that is not below `largest`, as the kernels of `checks_cuda` do.
    """
    f, (total, limits), (new_total, new_limits) = thread_index(), before, after
    if f >= total.shape[0]:
        return
    value, limit = total[f], limits[f]
    for part in range(added.shape[0]):
        value += added[part, 0, f]
    for part in range(taken.shape[0]):
        value -= taken[part, 0, f]
    for part in range(sizes.shape[0]):
        limit += sizes[part, 1, f]
    new_total[f], new_limits[f] = value, limit
    if not limit < largest:
        cuda.atomic.min(found, 0, f)


@kernel
def level_to_differences(nodes: Any, half: int) -> None:
    """Turn sums of ``half`` leaves each into sums of twice as many and differences, in place."""
    place, width = thread_index(), nodes.shape[1]
    low, f = place // width * 2 * half, place % width
    if low + half < nodes.shape[0]:
        left, right = nodes[low, f], nodes[low + half, f]
        nodes[low, f], nodes[low + half, f] = left + right, left - right


@kernel
def add_level(nodes: Any, leaves: Any, change: Any, half: int) -> None:
    """Add changes of sums over `half` leaves to the differences of the nodes above them.

    `change` (k, F) holds, at the first of the rising `leaves` (k,) in a block of `half`, the
    change of the block; afterwards at the first in a block of twice as many, that block's. A
    warp for each leaf, of which those at the first in a block work.
    """
    i = warp_index()
    if i >= leaves.shape[0]:
        return
    low = leaves[i] // (2 * half) * (2 * half)
    if i > 0 and leaves[i - 1] >= low:
        return
    middle = low + half
    if middle >= nodes.shape[0]:
        return
    other = first_above(leaves, middle, True)
    pair = i < other < leaves.shape[0] and leaves[other] < low + 2 * half
    for f in range(lane(), nodes.shape[1], WARP_SIZE):
        here = change[i, f]
        if pair:
            nodes[middle, f] = nodes[middle, f] + here - change[other, f]
            change[i, f] = here + change[other, f]
        elif leaves[i] < middle:
            nodes[middle, f] += here
        else:
            nodes[middle, f] -= here


@kernel
def add_to_root(nodes: Any, change: Any) -> None:
    """Add the change of all leaves, ``change[0]``, to the total, a thread for each column."""
    f = thread_index()
    if f < nodes.shape[1]:
        nodes[0, f] += change[0, f]
