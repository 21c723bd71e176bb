"""Sums of features in a binary tree, kept as one total and the differences between siblings.

Leaves are numbered 0..L-1; the node over leaves [lo, lo + 2s) stands in row lo + s as the sum of
its left half minus that of its right half, and row 0 holds the total. So L rows hold the whole
tree, and a child's sum is (its parent's sum ± the difference) / 2, whose error shrinks on the way
down with the sums themselves.

All kernels serve both devices: see `samplesoft.kernels.lanes`.
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
from samplesoft.samplers.tree.walk import top


class TreeSums:
    """Node sums (L, F) in the type of the features, beside their total (F,) in float64.

    They are made from the sums of each leaf (L, F), which are used up; changes are added to
    `total` without the rounding of `nodes`. On a GPU the nodes lie there, and nothing else.
    """

    def __init__(self, leaf_sums: NDArray[Any]) -> None:
        self.nodes = leaf_sums
        # sums of absolute values bound every node: if they are finite, so are all sums on the way
        self._limits = np.zeros(leaf_sums.shape[1])
        self.total, self._limits = self._grown(leaf_sums)
        num = leaf_sums.shape[0]
        arrays = self._arrays

        def make(columns: tuple[int, int]) -> None:
            for level in range(top(num)):  # leaves upwards
                pairs = -(-num // (2 << level))
                arrays.run(make_differences, pairs, self.nodes, 1 << level, columns)

        arrays.each(make, arrays.columns(self.nodes.shape[1]))

    @property
    def _arrays(self) -> Backend:
        return backend_of(self.nodes)

    @property
    def drift(self) -> float:
        """Distance of the total among the nodes from that in float64, relative to its norm."""
        # a tree without features has drifted nowhere
        norm = np.linalg.norm(self.total)
        root = to_host(self.nodes[:1])[0]
        return float(np.linalg.norm(root - self.total) / norm) if norm > 0.0 else 0.0

    def prepare(
        self, leaves: IntArray, change: NDArray[Any], total: FloatArray
    ) -> Callable[[], None]:
        """Return what adds `change` (k, F), used up, to leaves (k,), and `total` (F,) to the total.

        Raises `ValueError` if a sum might not be finite.
        """
        # before anything changes: an update that is refused leaves the tree as it was
        _, limits = self._grown(change)
        self.nodes = self._arrays.writable(self.nodes)

        def commit() -> None:
            # in float64, and never rounded to the type of the nodes: what drift is measured against
            self.total = self.total + total
            self._limits = limits
            self.add(leaves, change)

        return commit

    def add(self, leaves: IntArray, change: NDArray[Any]) -> None:
        """Add `change` (k, F), used up, to the sums of leaves (k,), rising and all different."""
        steps, starts = steps_up(leaves, self.nodes.shape[0])
        arrays = self._arrays
        # steps of a level read what those below it have left
        for stage in arrays.stages(starts):
            some = arrays.placed(steps[stage])

            def add(columns: tuple[int, int], some: IntArray = some) -> None:
                arrays.run(add_steps, some.shape[0], self.nodes, change, some, columns)

            arrays.each(add, arrays.columns(self.nodes.shape[1]))

    def subtract(self, leaves: IntArray, leaf_sums: NDArray[Any]) -> None:
        """Subtract from the sums (k, F) of leaves (k,) what the tree holds as such."""
        leaves = self._arrays.placed(leaves)
        self._arrays.run(subtract_leaf_sums, leaves.shape[0], self.nodes, leaves, leaf_sums)

    def _grown(self, leaf_sums: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """Return the total of sums of leaves, and limits (F,) to any node after they are added."""
        total, sizes = self._arrays.column_sums(leaf_sums)
        limits: FloatArray = self._limits + sizes
        if not limits.max() < float(np.finfo(leaf_sums.dtype).max):  # nor NaN
            raise ValueError(
                "`class_embeddings`, through `transform`, must give features with sums that are "
                f"finite in {leaf_sums.dtype}, got infinity or NaN; scale the vectors down, or use "
                "float64."
            )
        return total, limits


@njit
def sum_runs(x: NDArray[Any], starts: IntArray, sums: NDArray[Any]) -> None:
    """Write the sums (k, F) of the rows of `x` from each start (k,) up to the next, or the end."""
    for i in range(worker(), len(starts), num_workers()):
        # read once: in the loop it might have changed with what is written, and none is vectorised
        start = starts[i]
        stop = starts[i + 1] if i + 1 < len(starts) else len(x)
        for f in range(lane(), x.shape[1], num_lanes()):
            sums[i, f] = x[start, f]
        for j in range(start + 1, stop):
            for f in range(lane(), x.shape[1], num_lanes()):
                sums[i, f] += x[j, f]


@njit
def sum_changes(
    new: NDArray[Any], old: NDArray[Any], starts: IntArray, change: NDArray[Any]
) -> None:
    """Do as `sum_runs` with ``new - old``."""
    for i in range(worker(), len(starts), num_workers()):
        start = starts[i]
        stop = starts[i + 1] if i + 1 < len(starts) else len(new)
        for f in range(lane(), new.shape[1], num_lanes()):
            change[i, f] = new[start, f] - old[start, f]
        for j in range(start + 1, stop):
            for f in range(lane(), new.shape[1], num_lanes()):
                change[i, f] += new[j, f] - old[j, f]


@njit
def subtract_leaf_sums(nodes: NDArray[Any], leaves: IntArray, sums: NDArray[Any]) -> None:
    """Subtract from `sums` (k, F) what the tree holds as the sums of leaves (k,), in float64."""
    for i in range(worker(), len(leaves), num_workers()):
        for f in range(lane(), nodes.shape[1], num_lanes()):
            held = np.float64(nodes[0, f])
            for level in range(top(len(nodes)) - 1, -1, -1):
                half = 1 << level
                middle = (leaves[i] & ~(2 * half - 1)) + half
                if middle < len(nodes):
                    share = -0.5 if leaves[i] >= middle else 0.5
                    # down the path: a child is (its parent plus or minus the difference) / 2
                    held = 0.5 * held + share * nodes[middle, f]
            sums[i, f] -= held


@njit
def make_differences(nodes: NDArray[Any], half: int, columns: tuple[int, int]) -> None:
    """Turn the sums of two neighbours over `half` leaves each into their sum and difference.

    Of all such pairs, in columns [first, last).
    """
    for pair in range(worker(), -(-len(nodes) // (2 * half)), num_workers()):
        low = 2 * half * pair
        middle = low + half
        if middle < len(nodes):
            for f in range(columns[0] + lane(), columns[1], num_lanes()):
                left = nodes[low, f]
                right = nodes[middle, f]
                nodes[low, f] = left + right
                nodes[middle, f] = left - right


@njit
def steps_up(leaves: IntArray, num_leaves: int) -> tuple[IntArray, IntArray]:
    """Return how changes of leaves (k,), rising and all different, are added up to the root.

    A step (S, 4) is the row of a node or -1, the row of the change in one of its halves, that in
    the other half or -1, and whether the former is the right half. Steps of a level come together,
    from ``starts[level]`` on; the last adds the change of all to the root.
    """
    levels = top(num_leaves) + 1
    # a level has no more than there are leaves
    steps = np.empty((len(leaves) * levels, 4), np.int64)
    starts = np.zeros(levels + 1, np.int64)
    place = leaves.copy()  # of the left-most leaf of the block that each sum has come to
    change = np.arange(len(leaves))  # the row where that sum is
    num = len(leaves)
    level = 0
    step = 0
    half = 1
    # upwards: changes that meet in a node are summed first, so that it is touched once
    while half < num_leaves:
        kept = i = 0
        while i < num:
            low = place[i] & ~(2 * half - 1)
            # the leaves rise, so a sum of the other half can only be the next one
            pair = i + 1 < num and place[i + 1] < low + 2 * half
            steps[step, 0] = low + half if low + half < num_leaves else -1
            steps[step, 1] = change[i]
            steps[step, 2] = change[i + 1] if pair else -1
            steps[step, 3] = place[i] != low
            place[kept] = low
            change[kept] = change[i]
            step += 1
            kept += 1
            i += 2 if pair else 1
        num = kept
        half *= 2
        level += 1
        starts[level] = step
    # the first leaf has taken all others in, and the root is no difference
    steps[step] = 0, 0, -1, 0
    starts[level + 1] = step + 1
    return steps[: step + 1], starts[: level + 2]


@njit
def add_steps(
    nodes: NDArray[Any], change: NDArray[Any], steps: IntArray, columns: tuple[int, int]
) -> None:
    """Add what `steps_up` says to the differences of nodes, and two changes to one of both.

    `change` (k, F) is used up; all in columns [first, last).
    """
    first = columns[0] + lane()
    last = columns[1]
    block = nodes[:, columns[0] : columns[1]]
    for i in range(worker(), len(steps), num_workers()):
        if i + 1 < len(steps) and steps[i + 1, 0] >= 0:  # comes while this row is added to
            prefetch_row(block, steps[i + 1, 0])
        middle = steps[i, 0]
        here = steps[i, 1]
        there = steps[i, 2]
        is_right = steps[i, 3]
        # left minus right: the change of one half adds, that of the other subtracts
        if there >= 0:
            for f in range(first, last, num_lanes()):
                nodes[middle, f] = nodes[middle, f] + change[here, f] - change[there, f]
                change[here, f] += change[there, f]
        elif middle >= 0 and is_right:
            for f in range(first, last, num_lanes()):
                nodes[middle, f] -= change[here, f]
        elif middle >= 0:
            for f in range(first, last, num_lanes()):
                nodes[middle, f] += change[here, f]
