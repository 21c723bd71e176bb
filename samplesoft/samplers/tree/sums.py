"""Sums of features in a binary tree, kept as one total and the differences between siblings.

Leaves are numbered 0..L-1; the node over leaves [lo, lo + 2s) stands in row lo + s as the sum of
its left half minus that of its right half, and row 0 holds the total. So L rows hold the whole
tree, and a child's sum is (its parent's sum ± the difference) / 2, whose error shrinks on the way
down with the sums themselves.

Functions whose first arguments are ``i, _, row`` work on one row, on both devices; the loops around
them are of the processor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from samplesoft._jit import njit, num_threads, thread_each
from samplesoft._validation import FloatArray, IntArray, writable
from samplesoft.kernels.lanes import lane, max_of_lanes, num_lanes
from samplesoft.kernels.rows import prefetch_row
from samplesoft.samplers.tree.walk import top

# as `np.frexp` counts them
_LEAST = np.finfo(np.float64).minexp - np.finfo(np.float64).nmant  # exponents of numbers above 0


class TreeSums:
    """Node sums (L, F) in the type of the features, beside their total (F,) in float64.

    They are made from the sums of each leaf (L, F), which are used up; changes are added to
    `total` without the rounding of `nodes`.
    """

    def __init__(self, leaf_sums: NDArray[Any]) -> None:
        self.nodes = leaf_sums
        # sums of absolute values bound every node: if they are finite, so are all sums on the way
        self._limits = np.zeros(leaf_sums.shape[1])
        self._limits = self._grown(leaf_sums)
        self.total = self._sum_columns(leaf_sums)
        self._make_differences()

    @property
    def drift(self) -> float:
        """Distance of the total among the nodes from that in float64, relative to its norm."""
        # a tree without features has drifted nowhere
        norm = np.linalg.norm(self.total)
        return float(np.linalg.norm(self._root() - self.total) / norm) if norm > 0.0 else 0.0

    def prepare(
        self, leaves: IntArray, change: NDArray[Any], total: FloatArray
    ) -> Callable[[], None]:
        """Return what adds `change` (k, F), used up, to leaves (k,), and `total` (F,) to the total.

        Raises `ValueError` if a sum might not be finite.
        """
        # before anything changes: an update that is refused leaves the tree as it was
        limits = self._grown(change)
        self._make_writable()

        def commit() -> None:
            # in float64, and never rounded to the type of the nodes: what drift is measured against
            self.total = self.total + total
            self._limits = limits
            self.add(leaves, change)

        return commit

    def add(self, leaves: IntArray, change: NDArray[Any]) -> None:
        """Add `change` (k, F), used up, to the sums of leaves (k,), rising and all different."""
        steps, _ = steps_up(leaves, self.nodes.shape[0])
        thread_each(lambda part: add_to_tree(self.nodes, change, steps, part), self._columns())

    def subtract(self, leaves: IntArray, leaf_sums: NDArray[Any]) -> None:
        """Subtract from the sums (k, F) of leaves (k,) what the tree holds as such."""
        subtract_leaf_sums(self.nodes, leaves, leaf_sums)

    def fit_again(self) -> bool:
        """Return whether there is memory for as many sums; nobody asks on the processor."""
        return True

    def _grown(self, sums: NDArray[Any]) -> FloatArray:
        """Return limits (F,) to the size of any node after sums of leaves are added."""
        limits = self._with_sizes(sums)
        if not limits.max() < float(np.finfo(sums.dtype).max):  # nor NaN
            raise ValueError(
                "`class_embeddings`, through `transform`, must give features with sums that are "
                f"finite in {sums.dtype}, got infinity or NaN; scale the vectors down, or use "
                "float64."
            )
        return limits

    def _with_sizes(self, sums: NDArray[Any]) -> FloatArray:
        limits = self._limits.copy()
        sum_sizes(sums, limits)
        return limits

    def _sum_columns(self, rows: NDArray[Any]) -> FloatArray:
        total: FloatArray = np.empty(rows.shape[1])
        sum_runs(rows, np.array([0]), total[None])
        return total

    def _make_differences(self) -> None:
        thread_each(lambda part: sums_to_differences(self.nodes, part), self._columns())

    def _make_writable(self) -> None:
        self.nodes = writable(self.nodes)

    def _root(self) -> NDArray[Any]:
        root: NDArray[Any] = self.nodes[0]
        return root

    def _columns(self) -> list[IntArray]:
        """Return ranges of features, two for each thread."""
        ends = np.linspace(0, self.nodes.shape[1], 2 * num_threads() + 1).astype(np.int64)
        return [ends[i : i + 2] for i in range(len(ends) - 1)]


class FeatureSizes:
    """Counts of classes by the binary exponent of their largest feature, now and at most so far.

    Sums are rounded in proportion to the largest numbers that they have held, and keep those
    errors when such numbers leave again. Counts of exponents are exact, whatever comes and goes.
    """

    def __init__(self, dtype: DTypeLike, sizes: NDArray[Any]) -> None:
        # half the digits: rounding of what has gone must not show in what is there
        self._bits = np.finfo(dtype).nmant // 2
        self._counts = _count(sizes)
        self._peak = self._largest()

    def moved(self, new: NDArray[Any], old: NDArray[Any]) -> FeatureSizes:
        """Return what follows when classes with features as large as `old` (k,) get `new` (k,)."""
        # a new object: an update may still be refused
        after = object.__new__(FeatureSizes)
        counts = _count(new)
        after._bits, after._counts = self._bits, self._counts + counts - _count(old)
        after._peak = max(self._peak, int(counts.nonzero()[0].max(initial=0)))
        return after

    @property
    def outgrown(self) -> bool:
        """Whether the largest features so far have cost those of now half their digits."""
        return self._peak - self._largest() > self._bits

    def _largest(self) -> int:
        return int(self._counts.nonzero()[0].max(initial=0))


def _count(sizes: NDArray[Any]) -> IntArray:
    """Return how many numbers have each exponent; 0 stands below them all."""
    # shifted so that the least denormal number has 1
    exponents = np.frexp(sizes)[1].astype(np.int64) - _LEAST + 1
    num = np.finfo(np.float64).maxexp - _LEAST + 2
    return np.bincount(np.where(sizes > 0.0, exponents, 0), minlength=num)


@njit
def sum_run(
    i: int, _: int, row: int, x: NDArray[Any], starts: IntArray, sums: NDArray[Any]
) -> None:
    """Write the sum of the rows of `x` from ``starts[i]`` up to the next start, or the end."""
    stop = starts[i + 1] if i + 1 < len(starts) else len(x)
    for f in range(lane(), x.shape[1], num_lanes()):
        sums[i, f] = x[starts[i], f]
    for j in range(starts[i] + 1, stop):
        for f in range(lane(), x.shape[1], num_lanes()):
            sums[i, f] += x[j, f]


@njit
def sum_runs(x: NDArray[Any], starts: IntArray, sums: NDArray[Any]) -> None:
    """Call `sum_run` for each run, (k, F)."""
    for i in range(len(starts)):
        sum_run(i, 0, 0, x, starts, sums)


@njit
def largest_in_row(i: int, _: int, row: int, features: NDArray[Any], largest: NDArray[Any]) -> None:
    """Write the largest absolute value in row i."""
    size = abs(features[i, 0])
    for f in range(lane(), features.shape[1], num_lanes()):
        size = max(size, abs(features[i, f]))
    largest[i] = max_of_lanes(size)


@njit
def largest_in_rows(features: NDArray[Any], largest: NDArray[Any]) -> None:
    """Call `largest_in_row` for all rows."""
    for i in range(len(features)):
        largest_in_row(i, 0, 0, features, largest)


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
                # in float64 before the difference is taken: the change of the nodes has been
                # rounded
                total[f] += np.float64(here[f]) - np.float64(there[f])


@njit
def subtract_leaf_sum(
    i: int, _: int, row: int, nodes: NDArray[Any], leaves: IntArray, sums: NDArray[Any]
) -> None:
    """Subtract from row i what the tree holds as the sum of leaf ``leaves[i]``, in float64."""
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
def subtract_leaf_sums(nodes: NDArray[Any], leaves: IntArray, sums: NDArray[Any]) -> None:
    """Call `subtract_leaf_sum` for all leaves (k,)."""
    for i in range(len(leaves)):
        subtract_leaf_sum(i, 0, 0, nodes, leaves, sums)


@njit
def make_difference(
    pair: int, _: int, row: int, nodes: NDArray[Any], half: int, columns: IntArray
) -> None:
    """Turn the sums of two neighbours over `half` leaves each into their sum and difference."""
    low = 2 * half * pair
    middle = low + half
    if middle < len(nodes):
        for f in range(columns[0] + lane(), columns[1], num_lanes()):
            left, right = nodes[low, f], nodes[middle, f]
            nodes[low, f], nodes[middle, f] = left + right, left - right


@njit
def sums_to_differences(nodes: NDArray[Any], columns: IntArray) -> None:
    """Turn leaf sums (L, F) into the tree, in place, for columns [first, last)."""
    half = 1
    while half < len(nodes):
        for pair in range(-(-len(nodes) // (2 * half))):
            make_difference(pair, 0, 0, nodes, half, columns)
        half *= 2


@njit
def steps_up(leaves: IntArray, num_leaves: int) -> tuple[IntArray, IntArray]:
    """Return how changes of leaves (k,), rising and all different, are added up to the root.

    A step (S, 4) is the row of a node or -1, the row of the change in one of its halves, that in
    the other half or -1, and whether the former is the right half. Steps of a level come together,
    from ``starts[level]`` on; the last adds the change of all to the root.
    """
    levels = top(num_leaves) + 1
    steps = np.empty(
        (len(leaves) * levels, 4), np.int64
    )  # a level has no more than there are leaves
    starts = np.zeros(levels + 1, np.int64)
    place = leaves.copy()  # of the left-most leaf of the block that each sum has come to
    change = np.arange(len(leaves))  # the row where that sum is
    num, level, step, half = len(leaves), 0, 0, 1
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
            place[kept], change[kept] = low, change[i]
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
def add_step(
    i: int,
    _: int,
    row: int,
    nodes: NDArray[Any],
    change: NDArray[Any],
    steps: IntArray,
    columns: IntArray,
) -> None:
    """Add what `steps_up` says to the difference of a node, and two changes to one of both."""
    middle, here, there, is_right = steps[i, 0], steps[i, 1], steps[i, 2], steps[i, 3]
    first, last = columns[0] + lane(), columns[1]
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


@njit
def add_to_tree(
    nodes: NDArray[Any], change: NDArray[Any], steps: IntArray, columns: IntArray
) -> None:
    """Add `change` (k, F), used up, to the tree by steps, in columns [first, last)."""
    here = nodes[:, columns[0] : columns[1]]
    for i in range(len(steps)):
        if i + 1 < len(steps) and steps[i + 1, 0] >= 0:  # comes while this row is added to
            prefetch_row(here, steps[i + 1, 0])
        add_step(i, 0, 0, nodes, change, steps, columns)
