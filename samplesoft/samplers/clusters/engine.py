"""The cells of a cluster sampler: draws on all threads, and updates that leave no errors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from samplesoft._device import cpu
from samplesoft._device.rows import last_of_each
from samplesoft._device.select import to_host
from samplesoft._jit import chunks, num_threads
from samplesoft._random import uniform_block
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.products import product, whole_eights
from samplesoft.samplers.base import NO_CLASS, Draw, Rows
from samplesoft.samplers.clusters.descent import (
    Cells,
    Contexts,
    Paths,
    Room,
    exclude_classes,
    sum_up,
    walk,
)
from samplesoft.samplers.clusters.partition import make_partition
from samplesoft.samplers.k_means import require_distances

_TOP = -1  # the cell over all, and its level
_DRAWS = 1 << 20  # that are held at a time, by a thread
_FEWEST = 64  # contexts of a part
_TOGETHER = 16  # visits, see `step`
_CELLS = 256  # that a task of a thread sums up, at least
_TASKS = 16  # or so for a long loop


class HostClusters:
    """What a `ClusterSampler` with class vectors (n, d) does, for checked arguments.

    What a GPU does in another way is in `CudaClusters`. Which cell holds which classes is known to
    the processor in both cases, and contexts are checked there, for the same messages.
    """

    _arrays: Any = cpu

    def __init__(
        self, rows: Rows, tau: float, leaf_size: int, key: np.uint64, progress: bool = False
    ) -> None:
        self.tau, self._leaf_size, self._key = tau, leaf_size, key
        self._changed, self._due = 0, len(rows)  # vectors so far, and when to divide anew
        self._divide(to_host(rows), progress)

    @property
    def nbytes(self) -> int:
        """Bytes of the class vectors, the cells and their places."""
        arrays = (*self._tree, self._parents, self._sizes, self._order, self._places)
        return int(sum(array.nbytes for array in arrays))

    def cells(self) -> list[list[IntArray]]:
        """Return the classes of each cell, level by level."""
        edges = [np.cumsum(self._sizes[a:b])[:-1] for a, b in pairwise(self._levels)]
        return [np.split(self._order.astype(np.int64), each) for each in edges]

    def rows(self, ids: Any = None) -> Rows:
        """Return a copy of the class vectors of some classes, or of all."""
        places: Any = self._places if ids is None else self._places[to_host(ids)]
        chosen: Rows = self._arrays.take_rows(self._tree.rows, places)
        return chosen

    def spread(self) -> float:
        """Return the mean squared distance of a class vector to the mean of its leaf."""
        leaves = slice(*self._levels[-2:])
        cells, sizes = to_host(self._tree.cells[leaves]), self._sizes[leaves]
        variances = cells[:, cells.shape[1] // 2 :].sum(axis=1, dtype=np.float64)
        return float(sizes @ variances / sizes.sum())

    def cluster(self, progress: bool = False) -> None:
        """Divide the classes anew, by their vectors as they are."""
        self._divide(to_host(self.rows()), progress)

    def _divide(self, rows: Rows, progress: bool = False) -> None:
        n, dim = rows.shape
        self._largest = float(np.abs(rows).max())
        require_distances(self._largest, rows.dtype)
        order, starts = make_partition(rows, self._leaf_size, self._key, progress)
        small = np.int32 if n < 2**31 else np.int64
        self._order = order.astype(small)
        self._places = np.empty(n, small)
        # the inverse: where each class stands among the leaves
        self._places[self._order] = np.arange(n)
        self._levels = levels = np.cumsum([0, *map(len, starts)])
        firsts = np.concatenate(starts)
        ends = np.concatenate([[*each[1:], n] for each in starts])
        ranges = np.stack([firsts, ends], axis=1)  # of classes, and below the top of cells
        self._parents = np.full(len(firsts), -1)
        # children of a cell stand side by side, so a range of them says where they are
        for above, here, below in zip(levels[:-2], levels[1:-1], levels[2:], strict=True):
            children = here + np.searchsorted(firsts[here:below], ranges[above:here])
            counts = np.diff(children, axis=1)[:, 0]
            self._parents[here:below] = np.repeat(np.arange(above, here), counts)
            ranges[above:here] = children
        self._sizes, self._leaf_starts = ends - firsts, starts[-1]
        ranges = np.concatenate([ranges, [[0, levels[1]]]])
        widest = int(np.diff(ranges, axis=1).max())
        self._width = whole_eights(widest)
        cells, sizes = np.empty((len(firsts), 2 * dim), rows.dtype), np.log(self._sizes)
        tree = (cells, rows[self._order], sizes.astype(rows.dtype), ranges, levels)
        self._tree = Cells(*map(self._arrays.placed, tree))
        self._sum_up(np.arange(levels[-2], levels[-1]))
        self.spread_when_clustered = self.spread()

    def _sum_up(self, which: IntArray) -> None:
        """Sum up leaves (k,), and the cells above them."""
        tree, arrays = self._tree, self._arrays
        children, sizes = tree.rows, arrays.placed(self._sizes[:0])  # of classes, none is asked for

        def sum_up_some(part: slice) -> None:
            num, some = part.stop - part.start, arrays.placed(which[part])
            room = arrays.empty((2 * arrays.workers(num), tree.rows.shape[1]), np.float64)
            arrays.run(sum_up, num, tree, children, sizes, some, room)

        # up to the top, level by level; cells of a level come together and rise
        while len(which):
            arrays.each(sum_up_some, chunks(len(which), max(_CELLS, len(which) // _TASKS)))
            above = self._parents[which]  # rising, as the cells are
            which = above[np.append(True, above[1:] > above[:-1])] if above[0] >= 0 else above[:0]
            children, sizes = tree.cells, arrays.placed(self._sizes)

    def sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        """Draw m classes for each context."""
        places, log_q = self._followed(h, exclude, uniform_block(key, h.shape[0], m), None)
        return Draw(self._arrays.placed(self._order[places].astype(np.int64)), log_q)

    def log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the log-probabilities (B, k) of classes."""
        places = self._places[to_host(ids)].astype(np.int64)
        return self._followed(h, exclude, np.zeros(places.shape), places)[1]

    def _followed(
        self, h: Rows, exclude: IntArray, uniforms: FloatArray, places: IntArray | None
    ) -> tuple[IntArray, FloatArray]:
        """Return the places (B, k) that uniforms draw, or known ones, and log-probabilities."""
        placed, shape = self._arrays.placed, uniforms.shape
        drawn, log_q = np.empty(shape, np.int64), np.empty(shape)
        queries, excluded = self._queries(to_host(h)), to_host(exclude)
        sorted_by: Any = uniforms if places is None else places

        def follow(part: slice) -> None:
            contexts = self._without(queries[part], excluded[part])
            # sorted, so that the draws of a context in a cell are neighbours, and so are those
            # below it; classes of a leaf side by side: a leaf is weighed once for all of them
            order = np.argsort(sorted_by[part], axis=1)
            ranked = np.take_along_axis(sorted_by[part], order, axis=1)
            u = ranked if places is None else uniforms[part]
            known = (
                np.stack(self._ways(ranked))
                if places is not None
                else np.empty((len(self._levels), 0, 0), np.int64)
            )
            zeros = np.zeros(order.shape)
            paths = Paths(*map(placed, (u, np.full_like(order, _TOP), zeros + 1.0, zeros)))
            self._descend(contexts, known, paths)
            at, logs = to_host(paths.at), np.log(to_host(paths.shares)) + to_host(paths.log_q)
            # what was added up on the way to an excluded class is of no use
            logs[at == to_host(contexts.path)[:, -1:]] = -np.inf
            np.put_along_axis(drawn[part], order, at, axis=1)
            np.put_along_axis(log_q[part], order, logs, axis=1)

        self._arrays.each(
            follow, chunks(len(queries), self._contexts_at_a_time(shape[1], len(queries)))
        )
        return drawn, placed(log_q)

    def probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the probabilities (B, n) of all classes."""
        shape = h.shape[0], len(self._places)
        log_q = self.log_prob(h, np.broadcast_to(np.arange(shape[1]), shape), exclude)
        return np.exp(log_q, out=log_q)

    def log_mass(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the logarithms (B,) of the estimated masses of the cells at the top, added up."""
        queries, top = self._queries(to_host(h)), slice(self._levels[1])
        contexts = self._without(queries, to_host(exclude))
        cells, log_sizes = to_host(self._tree.cells[top]), to_host(self._tree.log_sizes[top])
        logits = product(queries, cells.T) + log_sizes
        path, remaining = to_host(contexts.path)[:, 0], to_host(contexts.remaining)[:, 0]
        without = np.flatnonzero(path >= 0)
        logits[without, path[without]] += remaining[without]
        greatest = logits.max(axis=1, keepdims=True)
        sums = np.exp(logits - greatest).sum(axis=1, dtype=np.float64)
        log_mass: FloatArray = greatest[:, 0] + np.log(sums)
        return log_mass

    def prepare(self, ids: Any, rows: Rows) -> Callable[[], None]:
        """Return what makes an update happen; one of all classes divides them anew."""
        tree, arrays = self._tree, self._arrays
        self._tree = tree._replace(
            rows=arrays.writable(tree.rows), cells=arrays.writable(tree.cells)
        )
        ids, rows = last_of_each(ids, rows)
        largest = float(np.abs(to_host(rows)).max())
        require_distances(largest, rows.dtype)
        # cells that were made of other vectors would fit none of these
        if len(ids) == len(self._places):
            anew = type(self)(rows, self.tau, self._leaf_size, self._key)
            return lambda: self.__dict__.update(anew.__dict__)
        places = self._places[ids].astype(np.int64)
        touched = np.zeros(self._levels[-1], bool)  # quicker than to sort what may be many
        touched[self._leaves(places)] = True
        leaves = np.flatnonzero(touched)

        def commit() -> None:
            arrays.put_rows(rows, places, self._tree.rows)
            self._largest = max(self._largest, largest)
            self._sum_up(leaves)
            # at growing distances, for vectors move ever less: it costs a few times in all
            self._changed += len(ids)
            if self._changed >= self._due:
                self._due = 2 * self._changed
                self.cluster()

        return commit

    def _queries(self, h: Rows) -> Rows:
        """Return what contexts (B, d) multiply means and variances by, (B, 2 d)."""
        scaled, bounds = self._bounded(h)
        if not bounds.max() < np.finfo(h.dtype).max:  # the largest vector may have gone since
            self._largest = float(np.abs(to_host(self._tree.rows)).max())
            scaled, bounds = self._bounded(h)
        row = int(bounds.argmax())
        if not bounds[row] < np.finfo(h.dtype).max:
            raise ValueError(
                f"`h` must have logits and squares of them within the range of {h.dtype}, got up "
                f"to {bounds[row]:.3g} for row {row}; scale the vectors down, or use float64."
            )
        return np.concatenate([scaled, 0.5 * scaled**2], axis=1).astype(h.dtype)

    def _bounded(self, h: Rows) -> tuple[FloatArray, FloatArray]:
        """Return tau h (B, d), and bounds (B,) on logits and their squares."""
        largest = max(self._largest, 1.0)  # what is below 1 must not hide large queries
        with np.errstate(over="ignore"):
            scaled: FloatArray = self.tau * h.astype(np.float64)
            # |tau h . c| and half its square, for the greatest vector that there may be
            bounds: FloatArray = np.abs(scaled).sum(axis=1) * largest
            bounds += 0.5 * ((scaled * largest) ** 2).sum(axis=1)
        return scaled, bounds

    def _contexts_at_a_time(self, k: int, batch: int) -> int:
        """Return how many contexts, with k classes each, go down together."""
        # those that meet in a leaf share the reading of it: as few parts as there are threads
        return max(1, min(_DRAWS // k, max(_FEWEST, -(-batch // num_threads()))))

    def _without(self, queries: Rows, exclude: IntArray) -> Contexts:
        """Return contexts with what is left out for each."""
        placed, excludes = self._arrays.placed, exclude != NO_CLASS
        path = np.full((len(queries), len(self._levels)), -1)
        contexts = Contexts(placed(queries), placed(path), placed(np.empty(path.shape)))
        # where no path has a place, nobody asks what remains
        if excludes.any():
            ways = self._ways(self._places[exclude[excludes]].astype(np.int64))
            path[excludes] = np.stack(ways, axis=1)
            contexts = contexts._replace(path=placed(path))
            num, room = len(path), self._room(len(path))
            self._arrays.run(exclude_classes, num, self._tree, contexts, room)
        return contexts

    def _descend(self, contexts: Contexts, known: IntArray, paths: Paths) -> None:
        """Take paths from the top to classes."""
        walk(self._tree, contexts, known, paths, self._room(_TOGETHER))

    def _ways(self, places: IntArray) -> list[IntArray]:
        """Return the cells over the classes at some places, from the top, and those at the end."""
        cells = [places, self._leaves(places)]
        while len(cells) < len(self._levels):
            cells.append(self._parents[cells[-1]])
        return cells[::-1]

    def _leaves(self, places: IntArray) -> IntArray:
        """Return the leaves of the classes at some places."""
        above = np.searchsorted(self._leaf_starts, places, side="right")
        leaves: IntArray = self._levels[-2] + above - 1
        return leaves

    def _room(self, num: int) -> Room:
        """Return room for the workers that weigh the children of `num` cells, in a row for each."""
        logits = np.empty((min(num, _TOGETHER), self._width), self._tree.rows.dtype)
        return Room(logits, np.empty_like(logits), np.empty((len(logits), 2)))
