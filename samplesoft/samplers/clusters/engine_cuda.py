"""The cells of a cluster sampler on a CUDA device, and launches of what both devices share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from samplesoft._cuda import device_function, empty, replaces, run_on_warps, to_device
from samplesoft._device.arrays_cuda import last_of_each, put_rows, take_rows
from samplesoft._device.select import to_host
from samplesoft._jit import chunks
from samplesoft._random import uniform_block
from samplesoft._validation import IntArray
from samplesoft.kernels.lanes_cuda import warp_products
from samplesoft.samplers.base import Draw
from samplesoft.samplers.clusters import descent
from samplesoft.samplers.clusters.descent import Cells, Contexts, Room
from samplesoft.samplers.clusters.engine import HostClusters

_NUMBERS = 1 << 26  # weights of children that are held at a time


class CudaClusters(HostClusters):
    """The twin of `HostClusters`: classes are divided on the processor, and drawn here."""

    def sample(self, h: Any, m: int, exclude: Any, key: np.uint64) -> Draw:
        """Draw m classes for each context."""
        uniforms = uniform_block(key, h.shape[0], m)
        places, log_q = empty(uniforms.shape, np.int64), empty(uniforms.shape, np.float64)
        for part, contexts, room in self._contexts_and_room(h, exclude, m):
            u = to_device(uniforms[part])
            drawn = self._tree, contexts, u, places[part], log_q[part], room
            run_on_warps(descent.descend, u.shape, *drawn)
        return Draw(to_device(self._order[places.copy_to_host()].astype(np.int64)), log_q)

    def log_prob(self, h: Any, ids: Any, exclude: Any) -> Any:
        """Return the log-probabilities (B, k) of classes."""
        places = self._places[to_host(ids)].astype(np.int64)
        log_q, leaves = empty(places.shape, np.float64), self._leaves(places)
        for part, contexts, room in self._contexts_and_room(h, exclude, places.shape[1]):
            asked = to_device(places[part]), to_device(leaves[part]), log_q[part]
            run_on_warps(descent.log_prob_alone, asked[0].shape, self._tree, contexts, *asked, room)
        return log_q

    def probs(self, h: Any, exclude: Any) -> Any:
        """Return the probabilities (B, n) of all classes."""
        n, probs = len(self._places), []
        # classes at a time for which one context has room
        for part in chunks(n, max(1, _NUMBERS // (2 * self._width))):
            ids = np.broadcast_to(np.arange(n)[part], (h.shape[0], part.stop - part.start))
            probs.append(np.exp(to_host(self.log_prob(h, ids, exclude))))
        return to_device(np.concatenate(probs, axis=1))

    def _contexts_and_room(
        self, h: Any, exclude: Any, k: int
    ) -> Iterator[tuple[slice, Contexts, Room]]:
        # checked and scaled on the processor, for the same messages
        queries, excluded = self._queries(to_host(h)), to_host(exclude)
        for part in chunks(len(queries), max(1, _NUMBERS // (2 * k * self._width))):
            contexts = self._without(queries[part], excluded[part])
            yield part, contexts, self._room(k * (part.stop - part.start))

    def _paths_written(self, contexts: Contexts, leaves: IntArray) -> Contexts:
        contexts = Contexts(*map(to_device, contexts))
        written = self._tree, to_device(leaves), contexts, self._room(len(leaves))
        run_on_warps(descent.exclude_class, (len(leaves), 1), *written)
        return contexts

    def _room(self, num: int) -> Room:
        # in float64, whatever the vectors are: weights are only read here
        shape = num, self._width
        return Room(empty(shape, np.float64), empty(shape, np.float64))

    def _placed(self, tree: Cells) -> Cells:
        # as on the processor, whose weights come in whole vectors of eight
        self._width = (int(tree.widest[0]) + 7) // 8 * 8  # children for which there is room
        return Cells(*map(to_device, tree))

    def _taken(self, places: IntArray) -> Any:
        return take_rows(self._tree.rows, places)

    def _last_of_each(self, ids: Any, rows: Any) -> tuple[IntArray, Any]:
        return last_of_each(ids, rows)

    def _write(self, places: IntArray, rows: Any) -> None:
        put_rows(rows, places, self._tree.rows)

    def _sum_up_leaves(self, which: IntArray) -> None:
        tree = self._tree
        summed = tree.rows, tree.ranges, to_device(which), tree.cells, self._sums(which)
        run_on_warps(descent.sum_up_leaf, (len(which), 1), *summed)

    def _sum_up_cells(self, which: IntArray) -> None:
        tree, there = self._tree, (to_device(self._sizes), self._tree.ranges, to_device(which))
        summed = tree.cells, *there, self._sums(which)
        run_on_warps(descent.sum_up_cell, (len(which), 1), *summed)

    def _sums(self, which: IntArray) -> Any:
        return empty((2 * len(which), self._tree.rows.shape[1]), np.float64)


@replaces(descent.multiply_children)
@device_function
def _multiply_children(
    tree: Any, is_leaf: bool, first: int, last: int, queries: Any, b: int, logits: Any, row: int
) -> None:
    """Do as that, with one product in place of two: 40 registers less in every kernel."""
    vectors = tree.rows if is_leaf else tree.cells
    warp_products(vectors, first, last, queries, b, logits, row)
