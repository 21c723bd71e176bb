"""Sums of features in a binary tree, kept as one total and the differences between siblings.

Leaves are numbered 0..L-1; the node over leaves [lo, lo + 2s) stands in row lo + s as the sum of
its left half minus that of its right half, and row 0 holds the total. So L rows hold the whole
tree, and a child's sum is (its parent's sum ± the difference) / 2, whose error shrinks on the way
down with the sums themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.rows import prefetch_row


@njit
def add(row: NDArray[Any], other: NDArray[Any]) -> None:
    """Add one row to another, which is not the same."""
    for f in range(len(row)):
        row[f] += other[f]


@njit
def subtract(row: NDArray[Any], other: NDArray[Any]) -> None:
    """Subtract one row from another."""
    for f in range(len(row)):
        row[f] -= other[f]


@njit
def sum_runs(features: NDArray[Any], starts: IntArray, sums: NDArray[Any]) -> None:
    """Write the sum of each run of rows that begins at one of `starts`, (k, F)."""
    for i in range(len(starts)):
        sums[i] = features[starts[i]]
        stop = starts[i + 1] if i + 1 < len(starts) else len(features)
        for j in range(starts[i] + 1, stop):
            add(sums[i], features[j])


@njit
def largest_in_rows(features: NDArray[Any], largest: NDArray[Any]) -> None:
    """Write the largest absolute value in each row (k,)."""
    for i in range(len(features)):
        row = features[i]
        size = abs(row[0])
        for f in range(1, len(row)):
            size = max(size, abs(row[f]))
        largest[i] = size


@njit
def sum_sizes(rows: NDArray[Any], sizes: FloatArray) -> None:
    """Add the absolute values of each column to `sizes` (F,)."""
    for i in range(len(rows)):
        row = rows[i]
        for f in range(len(row)):
            sizes[f] += abs(np.float64(row[f]))


@njit
def sum_changes(
    new: NDArray[Any], old: NDArray[Any], starts: IntArray, change: NDArray[Any], total: FloatArray
) -> None:
    """Write sums of ``new - old`` over runs of rows, as `sum_runs`, and add all to `total` (F,)."""
    for i in range(len(starts)):
        row = change[i]
        row[:] = 0
        stop = starts[i + 1] if i + 1 < len(starts) else len(new)
        for j in range(starts[i], stop):
            here, there = new[j], old[j]
            for f in range(len(row)):
                row[f] += here[f] - there[f]
                total[f] += np.float64(here[f]) - np.float64(there[f])


@njit
def subtract_leaf_sums(nodes: NDArray[Any], leaves: IntArray, change: NDArray[Any]) -> None:
    """Subtract from rows of `change` (k, F) what the tree holds as the sums of leaves (k,)."""
    top = 1
    while top < len(nodes):
        top *= 2
    held = np.empty(nodes.shape[1])
    for i in range(len(leaves)):
        held[:] = nodes[0]
        half = top
        while half > 1:
            half //= 2
            middle = (leaves[i] & ~(2 * half - 1)) + half
            if middle < len(nodes):
                share = -0.5 if leaves[i] >= middle else 0.5
                for f in range(len(held)):
                    held[f] = 0.5 * held[f] + share * nodes[middle, f]
        subtract(change[i], held)


@njit
def sums_to_differences(nodes: NDArray[Any], columns: IntArray) -> None:
    """Turn leaf sums (L, F) into the tree, in place, for columns [first, last)."""
    half = 1
    while half < len(nodes):
        for mid in range(half, len(nodes), 2 * half):
            for f in range(columns[0], columns[1]):
                left, right = nodes[mid - half, f], nodes[mid, f]
                nodes[mid - half, f] = left + right
                nodes[mid, f] = left - right
        half *= 2


@njit
def add_to_tree(
    nodes: NDArray[Any], leaves: IntArray, change: NDArray[Any], columns: IntArray
) -> None:
    """Add `change` (k, F) to the leaves (k,), rising and all different, in columns [first, last).

    Changes that meet in a node are summed before they touch it; `change` is used up.
    """
    first, last = columns
    columns_of_nodes = nodes[:, first:last]
    place = leaves.copy()  # of the left-most leaf of the block that each sum has come to
    num = len(place)
    half = 1
    while half < len(nodes):
        kept = 0
        i = 0
        while i < num:
            low = place[i] & ~(2 * half - 1)
            pair = i + 1 < num and place[i + 1] < low + 2 * half
            here, there = change[i, first:last], change[min(i + 1, num - 1), first:last]
            mid = low + half
            if mid < len(nodes):
                row = columns_of_nodes[mid]
                ahead = place[min(i + 2, num - 1)] & ~(2 * half - 1)
                prefetch_row(columns_of_nodes, min(ahead + half, len(nodes) - 1))
                if pair:
                    add(row, here)
                    subtract(row, there)
                elif place[i] == low:
                    add(row, here)
                else:
                    subtract(row, here)
            if kept < i:
                change[kept, first:last] = here
            if pair:
                add(change[kept, first:last], there)
            place[kept] = low
            kept += 1
            i += 2 if pair else 1
        num = kept
        half *= 2
    add(columns_of_nodes[0], change[0, first:last])
