"""The cells of a cluster sampler on a CUDA device: its arrays, and launches of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samplesoft._cuda import empty, launch_threads, launch_warps, to_device
from samplesoft._device.arrays_cuda import filled, repeat_row, take_rows
from samplesoft._device.draws_cuda import in_parts, uniforms
from samplesoft._device.sort_ids_cuda import last_of_each, union
from samplesoft._validation import IntArray
from samplesoft.kernels import product_cuda
from samplesoft.kernels.clusters import cells_cuda, descent_cuda
from samplesoft.kernels.clusters.descent import Cells
from samplesoft.kernels.clusters.descent_cuda import Exclusion, Room
from samplesoft.kernels.tree import leaf_cuda
from samplesoft.kernels.tree.sums_cuda import largest_in_rows
from samplesoft.samplers.base import Draw
from samplesoft.samplers.clusters import blocks_cuda
from samplesoft.samplers.clusters.cells import classes_of_cells, mean_variance
from samplesoft.samplers.clusters.engine import HostClusters
from samplesoft.samplers.clusters.limits import require_logits
from samplesoft.samplers.k_means import require_distances


class CudaClusters:
    """The twin of `HostClusters`: classes are divided on the processor, and drawn here."""

    def __init__(
        self, rows: Any, tau: float, leaf_size: int, key: np.uint64, progress: bool = False
    ) -> None:
        self.tau, self._leaf_size, self._key = tau, leaf_size, key
        self._divide(rows, progress)

    @property
    def nbytes(self) -> int:
        """Bytes of the class vectors, the cells and their places."""
        arrays = (*self._tree, self._sizes, self._order, self._places)
        return int(sum(array.nbytes for array in arrays))

    def cells(self) -> list[list[IntArray]]:
        """Return the classes of each cell, level by level; these arrays are on the processor."""
        order, sizes = self._order.copy_to_host(), self._sizes.copy_to_host()
        return classes_of_cells(order, sizes, self._levels)

    def rows(self, ids: Any = None) -> Any:
        """Return a copy of the class vectors of some classes, or of all."""
        places = self._places
        if ids is not None:
            places = take_rows(places.reshape(-1, 1), ids).reshape(-1)
        return take_rows(self._tree.rows, places)

    def spread(self) -> float:
        """Return the mean squared distance of a class vector to the mean of its leaf."""
        leaves = slice(*map(int, self._levels[-2:]))
        cells: Any = self._tree.cells[leaves]
        return mean_variance(cells.copy_to_host(), self._sizes[leaves].copy_to_host())

    def cluster(self, progress: bool = False) -> None:
        """Divide the classes anew, by their vectors as they are."""
        self._divide(self.rows(), progress)

    def _divide(self, rows: Any, progress: bool) -> None:
        there = rows.copy_to_host(), self.tau, self._leaf_size, self._key, progress
        host = HostClusters(*there)
        self._levels, self._depth = host._tree.levels, len(host._tree.levels) - 1
        ranges = host._tree.ranges[:-1]  # the top cells are a matrix product here
        self._widest = int(np.diff(ranges, axis=1).max())
        self._tree = Cells(*map(to_device, host._tree._replace(ranges=ranges)))
        placed = host._sizes, host._order, host._places
        self._sizes, self._order, self._places = map(to_device, placed)
        self._largest, self.spread_when_clustered = host._largest, host.spread_when_clustered

    def sample(self, h: Any, m: int, exclude: Any, key: np.uint64) -> Draw:
        """Draw m classes for each context."""
        u = uniforms(key, h.shape[0], m)
        ids, log_q = empty(u.shape, np.int64), empty(u.shape, np.float64)
        in_parts(self._draw, self._numbers(m), h, exclude, u, ids, log_q)
        return Draw(ids, log_q)

    def _draw(self, h: Any, exclude: Any, u: Any, ids: Any, log_q: Any) -> None:
        queries, exclusion, tops, shares, log_totals = self._weigh_tops(h, exclude)
        cells = empty(u.shape, np.int64)
        drawn = tops, shares, log_totals, u, cells, log_q
        launch_threads(blocks_cuda.choose_blocks, u.size, *drawn)
        descent = self._tree, queries, exclusion, self._order, u, cells, self._room(u.size)
        launch_warps(descent_cuda.descend, u.size, *descent, ids, log_q)

    def log_prob(self, h: Any, ids: Any, exclude: Any) -> Any:
        """Return the log-probabilities (B, k) of classes."""
        log_q = empty(ids.shape, np.float64)
        in_parts(self._read, self._numbers(ids.shape[1]), h, ids, exclude, log_q)
        return log_q

    def _read(self, h: Any, ids: Any, exclude: Any, log_q: Any) -> None:
        queries, exclusion, tops, _, log_totals = self._weigh_tops(h, exclude)
        paths = self._paths(ids.reshape(-1))
        asked = tops, log_totals, paths[0].reshape(ids.shape), log_q
        launch_threads(blocks_cuda.log_blocks, ids.size, *asked)
        descent = self._tree, queries, exclusion, paths, self._room(ids.size), log_q
        launch_warps(descent_cuda.add_log_shares, ids.size, *descent)

    def probs(self, h: Any, exclude: Any) -> Any:
        """Return the probabilities (B, n) of all classes."""
        num = self._order.shape[0]
        probs = empty((h.shape[0], num), np.float64)
        in_parts(self._fill, self._numbers(0) + 2 * (num + self._sizes.size), h, exclude, probs)
        return probs

    def _fill(self, h: Any, exclude: Any, probs: Any) -> None:
        queries, exclusion, tops, _, log_totals = self._weigh_tops(h, exclude)
        shape = probs.shape[0], self._sizes.size + probs.shape[1]
        log_reach, weights = filled(shape, -np.inf), empty(shape, np.float64)
        every = repeat_row(to_device(np.arange(tops.shape[1])[None]), tops.shape[0])
        asked = tops, log_totals, every, log_reach
        launch_threads(blocks_cuda.log_blocks, every.size, *asked)
        for level, width in enumerate(map(int, np.diff(self._levels))):
            descent = self._tree, queries, exclusion, level, log_reach, weights
            launch_warps(descent_cuda.reach_children, probs.shape[0] * width, *descent)
        launch_threads(descent_cuda.write_probs, probs.size, log_reach, self._places, probs)

    def prepare(self, ids: Any, rows: Any) -> Callable[[], None]:
        """Return what makes an update happen; one of all classes divides them anew."""
        ids, rows = last_of_each(ids, rows, self._order.shape[0])
        sizes = empty(rows.shape[0], rows.dtype)
        launch_warps(largest_in_rows, rows.shape[0], rows, sizes)
        largest = float(sizes.copy_to_host().max())
        require_distances(largest, rows.dtype)
        if rows.shape[0] == self._order.shape[0]:
            anew = CudaClusters(rows, self.tau, self._leaf_size, self._key)
            return lambda: self.__dict__.update(anew.__dict__)
        paths = self._paths(ids)
        moved = [union([paths[level]], self._sizes.size) for level in range(self._depth)]

        def commit() -> None:
            tree = self._tree
            buckets = tree.rows.reshape(*tree.rows.shape, 1)  # of one class each
            launch_threads(leaf_cuda.scatter, rows.size, paths[self._depth], rows, buckets)
            self._largest = max(self._largest, largest)
            *above, leaves = moved
            summed = tree.rows, tree.ranges, leaves, tree.cells
            launch_warps(cells_cuda.sum_up_leaves, leaves.size, *summed)
            for which in reversed(above):
                summed = tree.cells, self._sizes, tree.ranges, which
                launch_warps(cells_cuda.sum_up_children, which.size, *summed)

        return commit

    def _weigh_tops(self, h: Any, exclude: Any) -> tuple[Any, Exclusion, Any, Any, Any]:
        """Return queries (B, 2 d), what is excluded, and the top cells without that.

        The latter are logits (B, K), running sums of their exponentials, and logarithms of all.
        """
        batch, num = h.shape[0], int(self._levels[1])
        queries, tree = self._queries(h), self._tree
        tops, shares = (empty((batch, num), np.float64) for _ in range(2))
        log_totals = empty(batch, np.float64)
        columns = tree.cells[:num].reshape(num, -1, 1)
        parameters = (tree.log_sizes,)
        product_cuda.multiply(descent_cuda.write_top, queries, columns, tops, parameters)
        exclusion = Exclusion(self._paths(exclude), filled((self._depth + 1, batch), -np.inf))
        excluded = tree, queries, exclusion, self._room(batch), tops
        launch_warps(descent_cuda.exclude_paths, batch, *excluded)
        launch_warps(blocks_cuda.add_up_blocks, batch, tops, shares, log_totals)
        return queries, exclusion, tops, shares, log_totals

    def _queries(self, h: Any) -> Any:
        """Return what contexts (B, d) multiply means and variances by, (B, 2 d)."""
        queries = empty((h.shape[0], 2 * h.shape[1]), h.dtype)
        bounds = empty(h.shape[0], np.float64)
        largest = max(self._largest, 1.0)  # what is below 1 must not hide large queries
        scaled = h, self.tau, largest, queries, bounds
        launch_warps(descent_cuda.write_queries, h.shape[0], *scaled)
        found = bounds.copy_to_host()
        row = int(found.argmax())
        require_logits(found[row], row, h.dtype)
        return queries

    def _paths(self, ids: Any) -> Any:
        """Return the cells over classes (N,), and their places, (T + 1, N)."""
        paths = empty((self._depth + 1, ids.shape[0]), np.int64)
        launch_threads(descent_cuda.find_paths, ids.shape[0], self._tree, self._places, ids, paths)
        return paths

    def _room(self, num: int) -> Room:
        """Return room for the children of `num` cells."""
        shape = num, self._widest
        return Room(empty(shape, np.float64), empty(shape, np.float64))

    def _numbers(self, num: int) -> int:
        """Return how many numbers work on `num` classes of an example takes."""
        return 2 * int(self._levels[1]) + 2 * (num + 1) * self._widest
