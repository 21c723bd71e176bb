"""The cells of a cluster sampler: draws on all threads, and updates that leave no errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from samplesoft._jit import chunks, thread_each
from samplesoft._random import uniform_block
from samplesoft._validation import FloatArray, IntArray, writable
from samplesoft.kernels.clusters import descent
from samplesoft.kernels.clusters.cells import sum_up_children, sum_up_leaves
from samplesoft.samplers.base import NO_CLASS, Draw, Rows, last_of_each
from samplesoft.samplers.clusters.cells import classes_of_cells, mean_variance
from samplesoft.samplers.clusters.limits import require_logits
from samplesoft.samplers.clusters.partition import make_partition
from samplesoft.samplers.k_means import require_distances
from samplesoft.samplers.visits import visits_of

_TOP = -1  # the cell over all, and its level
_CONTEXTS = 64  # in a task of a thread
_CHILDREN = 1 << 16  # that are weighed in a task of a thread, at least
_FEW = 32  # children of a cell that is not at the top, about
_DRAWS = 1 << 20  # that are held at a time
_CELLS = 256  # that a task of a thread sums up, at least
_TASKS = 16  # or so for a long loop


class HostClusters:
    """What a `ClusterSampler` with class vectors (n, d) does, for checked arguments."""

    def __init__(
        self, rows: Rows, tau: float, leaf_size: int, key: np.uint64, progress: bool = False
    ) -> None:
        self.tau, self._leaf_size, self._key = tau, leaf_size, key
        require_distances(float(np.abs(rows).max()), rows.dtype)
        self._divide(rows, progress)

    @property
    def nbytes(self) -> int:
        """Bytes of the class vectors, the cells and their places."""
        arrays = (*self._tree, self._sizes, self._order, self._places)
        return int(sum(array.nbytes for array in arrays))

    def cells(self) -> list[list[IntArray]]:
        """Return the classes of each cell, level by level."""
        return classes_of_cells(self._order, self._sizes, self._tree.levels)

    def rows(self, ids: IntArray | None = None) -> Rows:
        """Return a copy of the class vectors of some classes, or of all."""
        found: Rows = self._tree.rows[self._places if ids is None else self._places[ids]]
        return found

    def spread(self) -> float:
        """Return the mean squared distance of a class vector to the mean of its leaf."""
        leaves = slice(*self._tree.levels[-2:])
        return mean_variance(self._tree.cells[leaves], self._sizes[leaves])

    def cluster(self, progress: bool = False) -> None:
        """Divide the classes anew, by their vectors as they are."""
        self._divide(self.rows(), progress)

    def _divide(self, rows: Rows, progress: bool = False) -> None:
        n, dim = rows.shape
        partition = make_partition(rows, self._leaf_size, self._key, progress)
        small = np.int32 if n < 2**31 else np.int64
        self._order = partition.order.astype(small)
        self._places = np.empty(n, small)
        self._places[self._order] = np.arange(n)
        levels = np.cumsum([0, *map(len, partition.starts)])
        firsts = np.concatenate(partition.starts)
        ends = np.concatenate([[*starts[1:], n] for starts in partition.starts])
        ranges = np.stack([firsts, ends], axis=1)  # of classes, and below the top of cells
        parents = np.full(len(firsts), -1)
        for above, here, below in zip(levels[:-2], levels[1:-1], levels[2:], strict=True):
            starts = firsts[here:below]
            children = here + np.searchsorted(starts, ranges[above:here])
            parents[here:below] = np.repeat(np.arange(above, here), np.diff(children, axis=1)[:, 0])
            ranges[above:here] = children
        self._sizes = ends - firsts
        cells = np.empty((len(firsts), 2 * dim), rows.dtype)
        ranges = np.concatenate([ranges, [[0, levels[1]]]])
        self._tree = descent.Cells(
            cells,
            rows[self._order],
            np.log(self._sizes).astype(rows.dtype),
            ranges,
            parents,
            levels,
            np.diff(ranges, axis=1).max(axis=0),
        )
        self._sum_up(np.arange(levels[-2], levels[-1]))
        self._largest = float(np.abs(rows).max())
        self.spread_when_clustered = self.spread()

    def _sum_up(self, leaves: IntArray) -> None:
        """Sum up leaves (k,), and the cells above them."""
        tree, which = self._tree, leaves
        thread_each(
            lambda part: sum_up_leaves(tree.rows, tree.ranges, which[part], tree.cells),
            chunks(len(which), max(_CELLS, len(which) // _TASKS)),
        )
        while which[0] >= tree.levels[1]:
            above = tree.parents[which]  # rising, as the cells are
            which = above[np.append(True, above[1:] > above[:-1])]
            sum_up_children(tree.cells, self._sizes, tree.ranges, which)

    def sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        """Draw m classes for each context."""
        uniforms = uniform_block(key, len(h), m)
        places, log_q = np.empty((len(h), m), np.int64), np.empty((len(h), m))
        for part, contexts in self._contexts(h, exclude, m):
            order = np.argsort(uniforms[part], axis=1)
            u, at = np.take_along_axis(uniforms[part], order, axis=1), np.full_like(order, _TOP)
            sums = np.zeros(u.shape)
            for level in range(_TOP, len(self._tree.levels) - 1):
                self._each_visit(descent.draw_children, contexts, level, at, u, at, sums)
            np.put_along_axis(places[part], order, at, axis=1)
            np.put_along_axis(log_q[part], order, sums, axis=1)
        return Draw(self._order[places].astype(np.int64), log_q)

    def log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the log-probabilities (B, k) of classes."""
        log_q = np.empty(ids.shape)
        for part, contexts in self._contexts(h, exclude, ids.shape[1]):
            places = self._places[ids[part]].astype(np.int64)
            order = np.argsort(places, axis=1)
            at = np.take_along_axis(places, order, axis=1)
            excluded = at == contexts.path[:, -1:]
            cells, sums = self._leaves(at), np.zeros(at.shape)
            for level in reversed(range(_TOP, len(self._tree.levels) - 1)):
                self._each_visit(descent.ascend, contexts, level, cells, at, cells, sums)
            sums[excluded] = -np.inf
            np.put_along_axis(log_q[part], order, sums, axis=1)
        return log_q

    def probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the probabilities (B, n) of all classes."""
        every = np.broadcast_to(np.arange(len(self._places)), (len(h), len(self._places)))
        log_q = self.log_prob(h, every, exclude)
        return np.exp(log_q, out=log_q)

    def prepare(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        """Return what makes an update happen; one of all classes divides them anew."""
        ids, rows = last_of_each(ids, rows)
        require_distances(float(np.abs(rows).max()), rows.dtype)
        if len(ids) == len(self._places):
            anew = HostClusters(rows, self.tau, self._leaf_size, self._key)
            return lambda: self.__dict__.update(anew.__dict__)
        places = self._places[ids].astype(np.int64)
        touched = np.zeros(self._tree.levels[-1], bool)
        touched[self._leaves(places)] = True
        leaves = np.flatnonzero(touched)
        self._tree = self._tree._replace(
            rows=writable(self._tree.rows), cells=writable(self._tree.cells)
        )

        def commit() -> None:
            self._tree.rows[places] = rows
            self._largest = max(self._largest, float(np.abs(rows).max()))
            self._sum_up(leaves)

        return commit

    def _queries(self, h: Rows) -> Rows:
        """Return what contexts (B, d) multiply means and variances by, (B, 2 d)."""
        scaled, bounds = self._bounded(h)
        if not bounds.max() < np.finfo(h.dtype).max:  # the largest vector may have gone since
            self._largest = float(np.abs(self._tree.rows).max())
            scaled, bounds = self._bounded(h)
        row = int(bounds.argmax())
        require_logits(bounds[row], row, h.dtype)
        return np.concatenate([scaled, 0.5 * scaled**2], axis=1).astype(h.dtype)

    def _bounded(self, h: Rows) -> tuple[FloatArray, FloatArray]:
        """Return tau h (B, d), and bounds (B,) on logits and their squares."""
        largest = max(self._largest, 1.0)  # what is below 1 must not hide large queries
        with np.errstate(over="ignore"):
            scaled: FloatArray = self.tau * h.astype(np.float64)
            bounds: FloatArray = np.abs(scaled).sum(axis=1) * largest
            bounds += 0.5 * ((scaled * largest) ** 2).sum(axis=1)
        return scaled, bounds

    def _contexts(
        self, h: Rows, exclude: IntArray, k: int
    ) -> Iterator[tuple[slice, descent.Contexts]]:
        """Yield as many contexts (B, d) at a time as fit, for k classes of each."""
        queries = self._queries(h)
        for part in chunks(len(h), max(1, _DRAWS // k)):
            yield part, self._without(queries[part], exclude[part])

    def _without(self, queries: Rows, exclude: IntArray) -> descent.Contexts:
        """Return contexts with what is left out for each."""
        tree = self._tree
        path = np.full((len(queries), len(tree.levels)), -1)
        remaining = np.empty(path.shape)
        if exclude.max() != NO_CLASS:
            path[:, -1] = places = np.where(exclude == NO_CLASS, -1, self._places[exclude])
            leaves = self._leaves(places)
            thread_each(
                lambda part: descent.exclude_classes(
                    tree, leaves[part], queries[part], path[part], remaining[part]
                ),
                chunks(len(queries), _CONTEXTS),
            )
        return descent.Contexts(queries, path, remaining)

    def _each_visit(
        self, kernel: Any, contexts: descent.Contexts, level: int, cells: IntArray, *rows: Any
    ) -> None:
        """Call a kernel on threads for the visits to `cells` (B, k), those of a level."""
        first, last = (_TOP, 0) if level == _TOP else self._tree.levels[level : level + 2]
        visits = visits_of(cells, first, last - first)
        wide = int(self._tree.levels[1]) if level == _TOP else _FEW
        thread_each(
            lambda part: kernel(self._tree, contexts, level, visits[part], *rows),
            chunks(len(visits), max(1, _CHILDREN // wide, len(visits) // _TASKS)),
        )

    def _leaves(self, places: IntArray) -> IntArray:
        """Return the leaves of the classes at some places."""
        first, last = self._tree.levels[-2:]
        found = np.searchsorted(self._tree.ranges[first:last, 0], places, side="right")
        leaves: IntArray = first + found - 1
        return leaves
