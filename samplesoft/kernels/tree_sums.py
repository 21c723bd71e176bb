"""Sums of features in a binary tree, kept as one total and the differences between siblings.

Leaves are numbered 0..L-1; the node over leaves [lo, lo + 2s) stands in row lo + s as the sum of
its left half minus that of its right half, and row 0 holds the total. So L rows hold the whole
tree, and a child's sum is (its parent's sum ± the difference) / 2, whose error shrinks on the way
down with the sums themselves.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from samplesoft._jit import njit
from samplesoft._validation import IntArray


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
    place = leaves.copy()  # of the left-most leaf of the block that each sum has come to
    num = len(place)
    zero = change.dtype.type(0)
    half = 1
    while half < len(nodes):
        kept = 0
        i = 0
        while i < num:
            low = place[i] & ~(2 * half - 1)
            pair = i + 1 < num and place[i + 1] < low + 2 * half
            sign = 1 if place[i] == low else -1
            mid = low + half
            for f in range(first, last):
                here = change[i, f]
                there = change[i + 1, f] if pair else zero
                if mid < len(nodes):
                    nodes[mid, f] += sign * here - there
                change[kept, f] = here + there
            place[kept] = low
            kept += 1
            i += 2 if pair else 1
        num = kept
        half *= 2
    for f in range(first, last):
        nodes[0, f] += change[0, f]
