"""The kernel tree on a CUDA device: its arrays, and launches of what both devices share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samplesoft._cuda import (
    as_device_array,
    available_bytes,
    empty,
    kernel,
    launch_threads,
    run_on_warps,
    thread_index,
    to_device,
)
from samplesoft._device.arrays_cuda import copied, in_parts, last_of_each, put_rows, take_rows
from samplesoft._device.select import on_device, to_host
from samplesoft._random import uniform_block
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels import lanes_cuda  # noqa: F401, what takes the place of `kernels.lanes`
from samplesoft.samplers.base import Draw
from samplesoft.samplers.tree import leaf, sums, walk
from samplesoft.samplers.tree.engine import HostTree
from samplesoft.samplers.tree.leaf import Room
from samplesoft.samplers.tree.walk import Draws, Exclusion

_PARTS = 64  # of the rows whose columns are summed side by side


class CudaFeatures:
    """The twin of `HostFeatures`: results lie on the device."""

    def __init__(self, transform: Callable[[Any], Any], rows: Any) -> None:
        self._transform = transform
        self.dim: int = 0  # not known before the first features
        self.dim = self(rows[:1]).shape[1]

    def __call__(self, rows: Any) -> Any:
        """Return features (k, F) of the type of `rows` (k, d)."""
        features = self._transform(rows)
        if not on_device(features):
            raise TypeError(
                "`transform` must return an array on the GPU with device='cuda', got "
                f"{type(features).__name__}; make the feature map with device='cuda'."
            )
        features = as_device_array(features)
        wanted = (rows.shape[0], self.dim or max(1, features.size // rows.shape[0]))
        if features.shape != wanted or features.dtype != rows.dtype:
            raise ValueError(
                f"`transform` must give features of {rows.dtype} and shape {wanted} for "
                f"{rows.shape[0]} rows, got {features.dtype} of shape {features.shape}."
            )
        return features


class CudaTreeSums(sums.TreeSums):
    """The twin of `TreeSums`: nodes lie on the device, their total and their limits do not."""

    def add(self, leaves: IntArray, change: Any) -> None:
        """Add `change` (k, F), used up, to the sums of leaves (k,), level by level."""
        steps, starts = sums.steps_up(leaves, self.nodes.shape[0])
        # a launch for each level: those above read what it has left
        for first, last in zip(starts[:-1], starts[1:], strict=True):
            level = to_device(steps[first:last]), (0, self.nodes.shape[1])
            run_on_warps(sums.add_step, (last - first, 1), self.nodes, change, *level)

    def subtract(self, leaves: IntArray, leaf_sums: Any) -> None:
        """Subtract from the sums (k, F) of leaves (k,) what the tree holds as such."""
        held = self.nodes, to_device(leaves), leaf_sums
        run_on_warps(sums.subtract_leaf_sum, (len(leaves), 1), *held)

    def fit_again(self) -> bool:
        """Return whether there is memory for as many sums."""
        return bool(self.nodes.nbytes < available_bytes())

    def _with_sizes(self, rows: Any) -> FloatArray:
        sizes: FloatArray = self._limits + column_sums(rows)[1]
        return sizes

    def _sum_columns(self, rows: Any) -> FloatArray:
        total: FloatArray = column_sums(rows)[0]
        return total

    def _make_differences(self) -> None:
        num, width = self.nodes.shape
        # leaves upwards, as on the processor: the same sums in the same order
        for level in range(walk.top(num)):
            pairs = -(-num // (2 << level))
            run_on_warps(sums.make_difference, (pairs, 1), self.nodes, 1 << level, (0, width))

    def _make_writable(self) -> None:
        pass

    def _root(self) -> Any:
        return to_host(self.nodes[:1])[0]


class CudaTree(HostTree):
    """The twin of `HostTree`: class vectors (n, d) and node sums lie on the device."""

    Features = CudaFeatures
    Sums = CudaTreeSums
    _map = staticmethod(map)

    def sample(self, h: Any, m: int, exclude: Any, key: np.uint64) -> Draw:
        """Return draws (B, m)."""
        # drawn on the processor, whose numbers these are: some microseconds for a batch
        u = to_device(uniform_block(key, h.shape[0], m))
        ids, log_q = empty(u.shape, np.int64), empty(u.shape, np.float64)
        in_parts(self._draw, self._room_for(m), h, exclude, u, ids, log_q)
        return Draw(ids, log_q)

    def _draw(self, h: Any, exclude: Any, u: Any, ids: Any, log_q: Any) -> None:
        phi, rules = self._features(h), self._shape.rules
        exclusion, shape = self._exclusion(h, phi, exclude), u.shape
        places = empty(shape, np.int64), empty(shape, np.int64)
        # each draw alone: a warp has no use for the sorting that saves the processor inner products
        draws = Draws(u, *places, empty(shape, np.float64))
        run_on_warps(walk.descend, shape, phi, self._sums.nodes, exclusion, rules, draws)
        room = self._room(u.size)
        for visited in self._leaf_rows(h, phi, to_host(draws.leaves)):
            drawn = visited, draws, exclusion, rules, room, ids, log_q
            run_on_warps(leaf.pick_alone, shape, *drawn)

    def log_prob(self, h: Any, ids: Any, exclude: Any) -> Any:
        """Return log-probabilities (B, k)."""
        log_q = empty(ids.shape, np.float64)
        in_parts(self._read, self._room_for(ids.shape[1]), h, ids, exclude, log_q)
        return log_q

    def _read(self, h: Any, ids: Any, exclude: Any, log_q: Any) -> None:
        phi, rules = self._features(h), self._shape.rules
        exclusion = self._exclusion(h, phi, exclude)
        leaves = ids.copy_to_host() // rules.leaf_size
        log_reach, room = self._reach(phi, leaves), self._room(ids.size)
        for visited in self._leaf_rows(h, phi, leaves):
            asked = visited, ids, exclusion, rules, room, log_reach, log_q
            run_on_warps(leaf.add_log_in_leaf, ids.shape, *asked)

    def probs(self, h: Any, exclude: Any) -> Any:
        """Return probabilities (B, n)."""
        probs = empty((h.shape[0], self._shape.num_classes), np.float64)
        in_parts(self._fill, self._room_for(self._shape.num_leaves), h, exclude, probs)
        return probs

    def _fill(self, h: Any, exclude: Any, probs: Any) -> None:
        phi, num = self._features(h), self._shape.num_leaves
        exclusion, batch = self._exclusion(h, phi, exclude), h.shape[0]
        # every path from the root: more products than level by level, for a third of the code
        log_reach = self._reach(phi, np.tile(np.arange(num), (batch, 1)))
        room = self._room(batch * num)
        for first, visited in self._rows_of_leaves(h, phi, slice(0, num)):
            asked = visited, first, log_reach, exclusion, self._shape.rules, room, probs
            run_on_warps(leaf.probs_in_leaf, (batch, visited.starts.shape[0]), *asked)

    def _reach(self, phi: Any, leaves: IntArray) -> Any:
        """Return the log-probabilities of reaching leaves (B, k)."""
        log_reach, shares = empty(leaves.shape, np.float64), self._room_on_paths(leaves.size)
        asked = phi, self._sums.nodes, to_device(leaves), self._shape.rules, shares, log_reach
        run_on_warps(walk.reach_leaf, leaves.shape, *asked)
        return log_reach

    def _exclusion(self, h: Any, phi: Any, exclude: Any) -> Exclusion:
        """Return the excluded classes (B,), and what remains without them."""
        batch, rules = h.shape[0], self._shape.rules
        # both 0 where nothing is excluded
        log_remaining = to_device(np.zeros((batch, 2)))
        exclusion = Exclusion(exclude, log_remaining, self._room_on_paths(batch))
        leaves = np.maximum(exclude.copy_to_host(), 0)[:, None] // self._shape.leaf_size
        room = self._room(batch)
        for visited in self._leaf_rows(h, phi, leaves):
            run_on_warps(leaf.remaining_in_leaf, (batch, 1), visited, exclusion, rules, room)
        path = phi, self._sums.nodes, exclusion, rules
        run_on_warps(walk.exclude_class, (batch, 1), *path)
        return exclusion

    def _room_for(self, num: int) -> int:
        """Return how many numbers work on `num` classes of an example takes."""
        levels = walk.top(self._shape.num_leaves) + 1
        return self._shape.feature_dim + 2 * num * (self._shape.leaf_size + 2 * levels)

    def _room(self, num: int) -> Room:
        shape = num, self._shape.leaf_size
        return Room(empty(shape, np.float64), empty(shape, np.float64))

    def _room_on_paths(self, num: int) -> Any:
        return empty((num, walk.top(self._shape.num_leaves) + 1, 4), np.float64)

    def _leaf_rows(self, h: Any, phi: Any, leaves: IntArray) -> Any:
        for visited in super()._leaf_rows(h, phi, leaves):
            yield visited._replace(starts=to_device(visited.starts))

    def _rows_of_leaves(self, h: Any, phi: Any, part: slice) -> Any:
        for first, visited in super()._rows_of_leaves(h, phi, part):
            yield first, visited._replace(starts=to_device(visited.starts))

    def _copied(self, rows: Any) -> Any:
        return copied(rows)

    def _empty(self, shape: tuple[int, ...]) -> Any:
        return empty(shape, self._rows.dtype)

    def _joined(self, rows: Any, others: Any) -> Any:
        # new rows and old ones, so that their features come from one call
        both = empty((rows.shape[0] + others.shape[0], rows.shape[1]), rows.dtype)
        both[: rows.shape[0]].copy_to_device(rows)
        both[rows.shape[0] :].copy_to_device(others)
        return both

    def _taken(self, ids: Any) -> Any:
        return take_rows(self._rows, ids)

    def _write(self, rows: Any, ids: IntArray, some: Any) -> None:
        put_rows(some, ids, rows)

    def _last_of_each(self, ids: Any, rows: Any) -> tuple[IntArray, Any]:
        return last_of_each(ids, rows)

    def _largest(self, features: Any) -> Any:
        largest = empty(features.shape[0], features.dtype)
        run_on_warps(sums.largest_in_row, (features.shape[0], 1), features, largest)
        return largest.copy_to_host()

    def _sum_leaves(self, features: Any, out: Any) -> None:
        starts = np.arange(0, features.shape[0], self._shape.leaf_size)
        run_on_warps(sums.sum_run, (len(starts), 1), features, to_device(starts), out)

    def _sum_changes(self, new: Any, old: Any, starts: IntArray, change: Any) -> FloatArray:
        # in float64, before the difference is rounded to the type of the features
        total: FloatArray = column_sums(new)[0] - column_sums(old)[0]
        # in place: the features are of our own joined rows, and nobody else reads them
        launch_threads(_subtract, new.size, new, old)
        run_on_warps(sums.sum_run, (len(starts), 1), new, to_device(starts), change)
        return total


def column_sums(rows: Any) -> FloatArray:
    """Return the sums of columns and of their absolute values in float64, (2, F)."""
    out = empty((_PARTS, 2, rows.shape[1]), np.float64)
    launch_threads(_sum_columns, _PARTS * rows.shape[1], rows, out)
    totals: FloatArray = out.copy_to_host().sum(axis=0)
    return totals


@kernel
def _sum_columns(rows: Any, out: Any) -> None:
    part, f = thread_index() // rows.shape[1], thread_index() % rows.shape[1]
    if part >= out.shape[0]:
        return
    # a thread for each column of a part: 64 of them, for one alone would wait for memory
    each = -(-rows.shape[0] // out.shape[0])
    total, size = 0.0, 0.0
    for i in range(part * each, min((part + 1) * each, rows.shape[0])):
        total += float(rows[i, f])
        size += abs(float(rows[i, f]))
    out[part, 0, f], out[part, 1, f] = total, size


@kernel
def _subtract(rows: Any, others: Any) -> None:
    i, f = thread_index() // rows.shape[1], thread_index() % rows.shape[1]
    if i < rows.shape[0]:
        rows[i, f] -= others[i, f]
