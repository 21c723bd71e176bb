"""Sums of features in a binary tree, stored as one total and the differences between siblings.

Leaves are numbered 0..L-1. Row 0 holds the total. For the node over leaves [lo, lo + 2s), row
lo + s holds the sum of its left half minus the sum of its right half. L rows so hold the whole
tree. The sum of a child is (sum of the parent ± difference) / 2, and its rounding error shrinks on
the way down together with the sums.

All kernels run on both devices: see `samplesoft.kernels.lanes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device import Backend, backend_of
from samplesoft._device.select import to_host
from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.lanes import lane, num_lanes, num_workers, worker
from samplesoft.kernels.rows import prefetch_row
from samplesoft.samplers.tree.walk import root_level


class TreeSums:
    """Node sums (L, F) in the dtype of the features, and their total (F,) in float64.

    `leaf_sums` (L, F) is overwritten. Updates are added to `total` without being rounded to the
    dtype of `nodes`. On a GPU `nodes` is device memory, and everything else is on the host.
    """

    def __init__(self, leaf_sums: NDArray[Any]) -> None:
        self.nodes = leaf_sums
        # sums of absolute values bound all node sums: if they are finite, so are all node sums
        self._bounds = np.zeros(leaf_sums.shape[1])
        self.total, self._bounds = self._total_and_bounds(leaf_sums)
        num = leaf_sums.shape[0]
        arrays = self._arrays

        def combine(columns: tuple[int, int]) -> None:
            for level in range(root_level(num)):  # from the leaves upwards
                pairs = -(-num // (2 << level))
                arrays.run(combine_siblings, pairs, self.nodes, 1 << level, columns)

        arrays.each(combine, arrays.columns(self.nodes.shape[1]))

    @property
    def _arrays(self) -> Backend:
        return backend_of(self.nodes)

    @property
    def drift(self) -> float:
        """Distance of the root row to the float64 total, relative to the norm of the total."""
        # a tree whose features are all 0 has no drift
        norm = np.linalg.norm(self.total)
        root = to_host(self.nodes[:1])[0]
        return float(np.linalg.norm(root - self.total) / norm) if norm > 0.0 else 0.0

    def prepare_update(
        self, leaves: IntArray, change: NDArray[Any], total: FloatArray
    ) -> Callable[[], None]:
        """Return a function that adds `change` (k, F) to leaves (k,) and `total` (F,) to the total.

        `change` is overwritten. Raises `ValueError` if a sum might not be finite.
        """
        # checked before anything is written: a refused update leaves the tree unchanged
        _, bounds = self._total_and_bounds(change)
        self.nodes = self._arrays.writable(self.nodes)

        def commit() -> None:
            # in float64, never rounded to the dtype of the nodes: the reference for `drift`
            self.total = self.total + total
            self._bounds = bounds
            self.add(leaves, change)

        return commit

    def add(self, leaves: IntArray, change: NDArray[Any]) -> None:
        """Add `change` (k, F), which is overwritten, to the sums of increasing leaves (k,)."""
        steps, offsets = plan_updates(leaves, self.nodes.shape[0])
        arrays = self._arrays
        # steps of a level read the results of the level below
        for stage in arrays.stages(offsets):
            stage_steps = arrays.to_device(steps[stage])

            def add(columns: tuple[int, int], stage_steps: IntArray = stage_steps) -> None:
                arrays.run(
                    apply_updates, stage_steps.shape[0], self.nodes, change, stage_steps, columns
                )

            arrays.each(add, arrays.columns(self.nodes.shape[1]))

    def subtract(self, leaves: IntArray, leaf_sums: NDArray[Any]) -> None:
        """Subtract the leaf sums that the tree holds for leaves (k,) from `leaf_sums` (k, F)."""
        leaves = self._arrays.to_device(leaves)
        self._arrays.run(subtract_leaf_sums, leaves.shape[0], self.nodes, leaves, leaf_sums)

    def _total_and_bounds(self, leaf_sums: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """Return the total (F,) of leaf sums, and bounds (F,) on all nodes after their addition."""
        total, abs_sums = self._arrays.column_sums(leaf_sums)
        bounds: FloatArray = self._bounds + abs_sums
        if not bounds.max() < float(np.finfo(leaf_sums.dtype).max):  # nor NaN
            raise ValueError(
                "`class_embeddings`, through `transform`, must give features with sums that are "
                f"finite in {leaf_sums.dtype}, got infinity or NaN; scale the vectors down, or use "
                "float64."
            )
        return total, bounds


@njit
def sum_runs(x: NDArray[Any], offsets: IntArray, sums: NDArray[Any]) -> None:
    """Write the sums (k, F) of the rows of `x` over the runs that begin at `offsets` (k,)."""
    for i in range(worker(), len(offsets), num_workers()):
        # read before the loop: a store to `sums` might change it, and block vectorisation
        start = offsets[i]
        stop = offsets[i + 1] if i + 1 < len(offsets) else len(x)
        for f in range(lane(), x.shape[1], num_lanes()):
            sums[i, f] = x[start, f]
        for j in range(start + 1, stop):
            for f in range(lane(), x.shape[1], num_lanes()):
                sums[i, f] += x[j, f]


@njit
def sum_changes(
    new: NDArray[Any], old: NDArray[Any], offsets: IntArray, change: NDArray[Any]
) -> None:
    """Write the sums (k, F) of ``new - old`` over the runs that begin at `offsets` (k,)."""
    for i in range(worker(), len(offsets), num_workers()):
        start = offsets[i]
        stop = offsets[i + 1] if i + 1 < len(offsets) else len(new)
        for f in range(lane(), new.shape[1], num_lanes()):
            change[i, f] = new[start, f] - old[start, f]
        for j in range(start + 1, stop):
            for f in range(lane(), new.shape[1], num_lanes()):
                change[i, f] += new[j, f] - old[j, f]


@njit
def subtract_leaf_sums(nodes: NDArray[Any], leaves: IntArray, sums: NDArray[Any]) -> None:
    """Subtract the leaf sums that the tree holds for leaves (k,) from `sums` (k, F), in float64."""
    for i in range(worker(), len(leaves), num_workers()):
        for f in range(lane(), nodes.shape[1], num_lanes()):
            leaf_sum = np.float64(nodes[0, f])
            for level in range(root_level(len(nodes)) - 1, -1, -1):
                half = 1 << level
                middle = (leaves[i] & ~(2 * half - 1)) + half
                if middle < len(nodes):
                    sign = -0.5 if leaves[i] >= middle else 0.5
                    # a child is (its parent ± the difference) / 2
                    leaf_sum = 0.5 * leaf_sum + sign * nodes[middle, f]
            sums[i, f] -= leaf_sum


@njit
def combine_siblings(nodes: NDArray[Any], half: int, columns: tuple[int, int]) -> None:
    """Replace the sums of all siblings over `half` leaves each by their sum and difference.

    Works on columns [first, last).
    """
    for pair in range(worker(), -(-len(nodes) // (2 * half)), num_workers()):
        left_row = 2 * half * pair
        middle = left_row + half
        if middle < len(nodes):
            for f in range(columns[0] + lane(), columns[1], num_lanes()):
                left = nodes[left_row, f]
                right = nodes[middle, f]
                nodes[left_row, f] = left + right
                nodes[middle, f] = left - right


@njit
def plan_updates(leaves: IntArray, num_leaves: int) -> tuple[IntArray, IntArray]:
    """Return the steps (S, 4) that add changes of increasing leaves (k,) to the tree.

    A step has four entries: the row of a node, or -1; the row of the change in one of its halves;
    the row of the change in the other half, or -1; and whether the former is the right half. The
    steps of a level begin at ``offsets[level]``. The last step adds the sum of all changes to the
    root.
    """
    levels = root_level(num_leaves) + 1
    # at most one step for each leaf on each level
    steps = np.empty((len(leaves) * levels, 4), np.int64)
    offsets = np.zeros(levels + 1, np.int64)
    first_leaf = leaves.copy()  # first leaf of the node that each change has reached
    change = np.arange(len(leaves))  # row that holds the change
    num = len(leaves)
    level = 0
    step = 0
    half = 1
    # changes that reach the same node are added first, so that the node is updated once
    while half < num_leaves:
        num_merged = i = 0
        while i < num:
            low = first_leaf[i] & ~(2 * half - 1)
            # leaves increase, so only the next change can be in the other half
            has_sibling = i + 1 < num and first_leaf[i + 1] < low + 2 * half
            steps[step, 0] = low + half if low + half < num_leaves else -1
            steps[step, 1] = change[i]
            steps[step, 2] = change[i + 1] if has_sibling else -1
            steps[step, 3] = first_leaf[i] != low
            first_leaf[num_merged] = low
            change[num_merged] = change[i]
            step += 1
            num_merged += 1
            i += 2 if has_sibling else 1
        num = num_merged
        half *= 2
        level += 1
        offsets[level] = step
    # all changes have been added to the first, and the root holds a sum
    steps[step] = 0, 0, -1, 0
    offsets[level + 1] = step + 1
    return steps[: step + 1], offsets[: level + 2]


@njit
def apply_updates(
    nodes: NDArray[Any], change: NDArray[Any], steps: IntArray, columns: tuple[int, int]
) -> None:
    """Add changes (k, F) to the nodes of some steps of `plan_updates`, in columns [first, last).

    Where both halves of a node change, the two changes are added up in `change`.
    """
    first = columns[0] + lane()
    last = columns[1]
    block = nodes[:, columns[0] : columns[1]]
    for i in range(worker(), len(steps), num_workers()):
        if i + 1 < len(steps) and steps[i + 1, 0] >= 0:  # prefetched during this step
            prefetch_row(block, steps[i + 1, 0])
        middle = steps[i, 0]
        row = steps[i, 1]
        sibling = steps[i, 2]
        is_right = steps[i, 3]
        # left minus right: a change of the left half is added, one of the right half subtracted
        if sibling >= 0:
            for f in range(first, last, num_lanes()):
                nodes[middle, f] = nodes[middle, f] + change[row, f] - change[sibling, f]
                change[row, f] += change[sibling, f]
        elif middle >= 0 and is_right:
            for f in range(first, last, num_lanes()):
                nodes[middle, f] -= change[row, f]
        elif middle >= 0:
            for f in range(first, last, num_lanes()):
                nodes[middle, f] += change[row, f]
