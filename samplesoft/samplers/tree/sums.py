"""Sums of features in a binary tree, stored as one total and the differences between siblings.

A tree of L leaves has L rows. Row 0 holds the total, the sum over all leaves. For each node over
the leaves [lo, lo + 2 s), row lo + s holds the sum of the left half minus the sum of the right
half. The sum of a child is (sum of its parent ± difference) / 2, with + for the left child. So the
rounding error of a parent is halved in its children.

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
    """The node sums of a tree, made from the sums of features (L, F) of its leaves.

    `leaf_sums` is overwritten. The attribute `nodes` (L, F) holds the node sums in the dtype of the
    features, on their device. The attribute `total` (F,) holds the sum over all leaves in float64,
    in host memory; updates are added to `total` without being rounded to the dtype of `nodes`.
    """

    def __init__(self, leaf_sums: NDArray[Any]) -> None:
        self.nodes = leaf_sums
        # sums of absolute values bound all node sums: if these bounds are finite, no sum overflows
        self._bounds = np.zeros(leaf_sums.shape[1])
        self.total, self._bounds = self._total_and_bounds(leaf_sums)

        num_leaves = leaf_sums.shape[0]
        arrays = self._backend

        def combine(columns: tuple[int, int]) -> None:
            for level in range(root_level(num_leaves)):  # from the leaves upwards
                pairs = -(-num_leaves // (2 << level))
                arrays.run(combine_siblings, pairs, self.nodes, 1 << level, columns)

        arrays.each(combine, arrays.columns(self.nodes.shape[1]))

    @property
    def _backend(self) -> Backend:
        return backend_of(self.nodes)

    @property
    def drift(self) -> float:
        """Distance of row 0 of `nodes` from `total`, relative to the norm of `total`."""
        # a tree whose features are all 0 has no drift
        norm = np.linalg.norm(self.total)
        root = to_host(self.nodes[:1])[0]
        return float(np.linalg.norm(root - self.total) / norm) if norm > 0.0 else 0.0

    def prepare_update(
        self, leaves: IntArray, change: NDArray[Any], total: FloatArray
    ) -> Callable[[], None]:
        """Return a function that applies an update to the tree.

        The function adds `change` (k, F) to the sums of `leaves` (k,), and `total` (F,), the sum of
        all changes, to the attribute `total`. It overwrites `change`. Raises ValueError if a sum
        might overflow.
        """
        # checked before anything is written, so that an error leaves the tree unchanged
        _, bounds = self._total_and_bounds(change)
        self.nodes = self._backend.writable(self.nodes)

        def commit() -> None:
            # kept in float64, because `drift` compares the rounded row 0 of `nodes` with this total
            self.total = self.total + total
            self._bounds = bounds
            self.add_changes(leaves, change)

        return commit

    def add_changes(self, leaves: IntArray, change: NDArray[Any]) -> None:
        """Add `change` (k, F) to the sums of `leaves` (k,), which are in increasing order.

        `change` is overwritten.
        """
        steps, offsets = plan_updates(leaves, self.nodes.shape[0])
        arrays = self._backend

        # from the leaves upwards, because the steps of a level read the results of the level below
        for stage in arrays.stages(offsets):
            stage_steps = arrays.to_device(steps[stage])

            def add(columns: tuple[int, int], stage_steps: IntArray = stage_steps) -> None:
                arrays.run(
                    apply_updates, stage_steps.shape[0], self.nodes, change, stage_steps, columns
                )

            arrays.each(add, arrays.columns(self.nodes.shape[1]))

    def subtract_stored_sums(self, leaves: IntArray, leaf_sums: NDArray[Any]) -> None:
        """Subtract from `leaf_sums` (k, F), in place, the sums that the tree holds for `leaves`.

        `leaves` has shape (k,). The results are the corrections that remove the tree's drift.
        """
        leaves = self._backend.to_device(leaves)
        self._backend.run(subtract_leaf_sums, leaves.shape[0], self.nodes, leaves, leaf_sums)

    def _total_and_bounds(self, leaf_sums: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """Return the total (F,) of `leaf_sums` (k, F), and bounds (F,) on all node sums.

        The bounds are on the magnitude of node sums after `leaf_sums` have been added to the tree.
        Raises ValueError if a bound overflows.
        """
        total, abs_sums = self._backend.column_sums(leaf_sums)
        bounds: FloatArray = self._bounds + abs_sums
        if not bounds.max() < float(np.finfo(leaf_sums.dtype).max):  # true for NaN as well
            raise ValueError(
                "`class_embeddings`, through `transform`, must give features with sums that are "
                f"finite in {leaf_sums.dtype}, got infinity or NaN; scale the vectors down, or use "
                "float64."
            )
        return total, bounds


@njit
def sum_runs(x: NDArray[Any], offsets: IntArray, sums: NDArray[Any]) -> None:
    """Write to `sums` (k, F) the sums of consecutive rows of `x`.

    The rows of sum i begin at ``offsets[i]`` and end before ``offsets[i + 1]``; for the last sum,
    at the end of `x`.
    """
    for i in range(worker(), len(offsets), num_workers()):
        # `offsets` is read before the loop: the compiler must assume that a store to `sums` could
        # change `offsets`, and would not vectorise the loop
        start = offsets[i]
        stop = offsets[i + 1] if i + 1 < len(offsets) else len(x)

        for f in range(lane(), x.shape[1], num_lanes()):
            sums[i, f] = x[start, f]

        for j in range(start + 1, stop):
            for f in range(lane(), x.shape[1], num_lanes()):
                sums[i, f] += x[j, f]


@njit
def sum_changes(
    new_features: NDArray[Any], old_features: NDArray[Any], offsets: IntArray, change: NDArray[Any]
) -> None:
    """Write to `change` (k, F) the sums of consecutive rows of ``new_features - old_features``.

    The rows of sum i begin at ``offsets[i]`` and end before ``offsets[i + 1]``; for the last sum,
    at the end of `new_features`.
    """
    for i in range(worker(), len(offsets), num_workers()):
        start = offsets[i]
        stop = offsets[i + 1] if i + 1 < len(offsets) else len(new_features)

        for f in range(lane(), new_features.shape[1], num_lanes()):
            change[i, f] = new_features[start, f] - old_features[start, f]

        for j in range(start + 1, stop):
            for f in range(lane(), new_features.shape[1], num_lanes()):
                change[i, f] += new_features[j, f] - old_features[j, f]


@njit
def subtract_leaf_sums(nodes: NDArray[Any], leaves: IntArray, sums: NDArray[Any]) -> None:
    """Subtract from `sums` (k, F), in place, the sums that the tree holds for `leaves` (k,).

    The sums of leaves are computed in float64.
    """
    for i in range(worker(), len(leaves), num_workers()):
        for f in range(lane(), nodes.shape[1], num_lanes()):
            leaf_sum = np.float64(nodes[0, f])
            for level in range(root_level(len(nodes)) - 1, -1, -1):
                half = 1 << level
                middle = (leaves[i] & ~(2 * half - 1)) + half
                if middle < len(nodes):
                    # a child is (its parent ± the difference) / 2
                    sign = -0.5 if leaves[i] >= middle else 0.5
                    leaf_sum = 0.5 * leaf_sum + sign * nodes[middle, f]

            sums[i, f] -= leaf_sum


@njit
def combine_siblings(nodes: NDArray[Any], half: int, columns: tuple[int, int]) -> None:
    """Replace the sums of siblings, in place, by their sum and their difference (left minus right).

    The siblings are the nodes of `half` leaves. Only the columns [start, stop) in the tuple
    `columns` are computed.
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
    """Return the steps (S, 4) of an update of `leaves` (k,), and the offset of each level in them.

    `leaves` are in increasing order. Each step updates the row of one node. The changes of leaves
    are the rows of an array (k, F), in which `apply_updates` also stores the sums of changes. The
    columns of the steps are:

    - the row of the node, or -1 for a node without a right half,
    - the row of the change of one half,
    - the row of the change of the other half, or -1 if only one half changes,
    - whether the first of these halves is the right one.

    The steps of a level are ``steps[offsets[level] : offsets[level + 1]]``. The last step adds the
    sum of all changes to the total in row 0.
    """
    levels = root_level(num_leaves) + 1
    # at most one step for each leaf on each level
    steps = np.empty((len(leaves) * levels, 4), np.int64)
    offsets = np.zeros(levels + 1, np.int64)
    first_leaf = leaves.copy()  # first leaf of the node that each change has reached
    change = np.arange(len(leaves))  # row that holds the change of this node

    num_changes = len(leaves)
    level = 0
    step = 0
    half = 1

    # the changes of both halves of a node are merged, so that each node is updated once
    while half < num_leaves:
        num_merged = i = 0
        while i < num_changes:
            start = first_leaf[i] & ~(2 * half - 1)
            # leaves increase, so only the next change can be in the right half of this node
            has_sibling = i + 1 < num_changes and first_leaf[i + 1] < start + 2 * half

            steps[step, 0] = start + half if start + half < num_leaves else -1
            steps[step, 1] = change[i]
            steps[step, 2] = change[i + 1] if has_sibling else -1
            steps[step, 3] = first_leaf[i] != start

            # one change of the node replaces the changes of its halves
            first_leaf[num_merged] = start
            change[num_merged] = change[i]
            step += 1
            num_merged += 1
            i += 2 if has_sibling else 1

        num_changes = num_merged
        half *= 2
        level += 1
        offsets[level] = step

    # row 0 of the changes now holds the sum of all changes, which is added to the total
    steps[step] = 0, 0, -1, 0
    offsets[level + 1] = step + 1
    return steps[: step + 1], offsets[: level + 2]


@njit
def apply_updates(
    nodes: NDArray[Any], change: NDArray[Any], steps: IntArray, columns: tuple[int, int]
) -> None:
    """Add changes to `nodes` (L, F), in place, by the `steps` for one level.

    The steps are computed by `plan_updates`. If both halves of a node change, their sum is stored
    in `change` (k, F), for the next level. Only the columns [start, stop) in the tuple `columns`
    are computed.
    """
    start = columns[0] + lane()
    stop = columns[1]
    block = nodes[:, columns[0] : columns[1]]

    for i in range(worker(), len(steps), num_workers()):
        # prefetch the node of the next step
        if i + 1 < len(steps) and steps[i + 1, 0] >= 0:
            prefetch_row(block, steps[i + 1, 0])

        middle = steps[i, 0]
        row = steps[i, 1]
        sibling = steps[i, 2]
        is_right = steps[i, 3]

        # a node's row holds the left half minus the right half: add a change of the left half,
        # subtract a change of the right half
        if sibling >= 0:
            for f in range(start, stop, num_lanes()):
                nodes[middle, f] = nodes[middle, f] + change[row, f] - change[sibling, f]
                change[row, f] += change[sibling, f]
        elif middle >= 0 and is_right:
            for f in range(start, stop, num_lanes()):
                nodes[middle, f] -= change[row, f]
        elif middle >= 0:
            for f in range(start, stop, num_lanes()):
                nodes[middle, f] += change[row, f]
