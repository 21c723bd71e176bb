"""The kernel tree on a CUDA device: its sums and buckets, and launches of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samplesoft._cuda import (
    as_device_array,
    available_bytes,
    empty,
    first_found,
    launch_threads,
    launch_warps,
    to_device,
)
from samplesoft._device.arrays_cuda import copied, filled
from samplesoft._device.draws_cuda import in_parts, uniforms
from samplesoft._device.select import on_device
from samplesoft._device.sort_ids_cuda import last_of_each, runs
from samplesoft._jit import chunks
from samplesoft._progress import progress_bar
from samplesoft.kernels.arrays import elementwise_cuda as arrays_cuda
from samplesoft.kernels.tree import leaf_cuda as tree_leaf_cuda
from samplesoft.kernels.tree import sums_cuda as tree_sums_cuda
from samplesoft.kernels.tree import walk_cuda as tree_walk_cuda
from samplesoft.kernels.tree.walk import top
from samplesoft.samplers.base import Draw
from samplesoft.samplers.tree.shape import TreeShape

_BLOCK = 1 << 26  # numbers in the features, or inner products, held at a time
_PARTS = 64  # of the rows whose columns are summed side by side


class CudaFeatures:
    """A transform on the device whose results are checked.

    Parameters
    ----------
    transform : callable
        Gives features for rows.
    rows : device array, shape (n, d)
        Class vectors, of which the first tells the number of features.

    Attributes
    ----------
    dim : int
        Number of features F.
    """

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


class _CudaSums:
    """The twin of `TreeSums`: node sums, beside their total in float64."""

    def __init__(self, leaf_sums: Any) -> None:
        nobody = filled(leaf_sums.shape[1], 0.0)
        self._total = self._limits = nobody
        sums, nothing = _room_for_sums(leaf_sums), _room_for_sums(leaf_sums, 0)
        _sum_columns(leaf_sums, sums)
        self._total, self._limits = self._grown(sums, nothing, sums, leaf_sums.dtype)
        half = 1
        while half < leaf_sums.shape[0]:
            pairs = -(-leaf_sums.shape[0] // (2 * half))
            size = pairs * leaf_sums.shape[1]
            launch_threads(tree_sums_cuda.level_to_differences, size, leaf_sums, half)
            half *= 2
        self.nodes = leaf_sums

    @property
    def drift(self) -> float:
        total = self._total.copy_to_host()
        norm = np.linalg.norm(total)
        here = self.nodes[:1].copy_to_host()[0]
        return float(np.linalg.norm(here - total) / norm) if norm > 0.0 else 0.0

    def fit_again(self) -> bool:
        """Return whether there is memory for as many sums."""
        return bool(self.nodes.nbytes < available_bytes())

    def prepare(self, leaves: Any, change: Any, added: Any, taken: Any) -> Callable[[], None]:
        """Return what adds the change (k, F) of some leaves.

        `added` and `taken` are column sums, as `_sum_columns` writes them, of what that is the
        difference of.
        """
        sizes = _room_for_sums(change)
        _sum_columns(change, sizes)
        total, limits = self._grown(added, taken, sizes, change.dtype)

        def add() -> None:
            self._total, self._limits = total, limits
            half = 1
            while half < self.nodes.shape[0]:
                launch_warps(
                    tree_sums_cuda.add_level, leaves.shape[0], self.nodes, leaves, change, half
                )
                half *= 2
            launch_threads(tree_sums_cuda.add_to_root, change.shape[1], self.nodes, change)

        return add

    def _grown(self, added: Any, taken: Any, sizes: Any, dtype: Any) -> tuple[Any, Any]:
        """Return the total and the limits to the size of any node, with changes added."""
        num = self._total.shape[0]
        total, limits = empty(num, np.float64), empty(num, np.float64)
        before = self._total, self._limits, float(np.finfo(dtype).max)
        grown = added, taken, sizes, *before, total, limits
        if first_found(launch_threads, tree_sums_cuda.grow, num, *grown) is not None:
            raise ValueError(
                "`class_embeddings`, through `transform`, must give features with sums that are "
                f"finite in {dtype}, got infinity or NaN; scale the vectors down, or use float64."
            )
        return total, limits


def _room_for_sums(rows: Any, num: int = 1) -> Any:
    """Return room for the column sums of `num` arrays as wide as `rows` (k, F)."""
    return empty((num * _PARTS, 2, rows.shape[1]), np.float64)


def _sum_columns(rows: Any, sums: Any, place: int = 0) -> None:
    """Write sums of columns, and of their absolute values, to one of the places in `sums`."""
    part = sums[place * _PARTS : (place + 1) * _PARTS]
    launch_threads(tree_sums_cuda.sum_columns, _PARTS * rows.shape[1], rows, part)


class CudaTree:
    """What a `KernelTree` does, for arguments that have been checked and lie on the device.

    Parameters
    ----------
    rows : device array, shape (n, d)
        Class vectors; copied.
    features : CudaFeatures, or None
        Features of rows; None where rows are features.
    shape : TreeShape
        Sizes.
    progress : bool
        Show a progress bar while building.
    """

    Features = CudaFeatures

    def __init__(
        self, rows: Any, features: CudaFeatures | None, shape: TreeShape, progress: bool = False
    ) -> None:
        self._shape = shape
        self._features = features
        size = (shape.num_leaves, rows.shape[1], shape.leaf_size)
        self._buckets = filled(size, rows.dtype.type(0))
        self._write(self._buckets, to_device(np.arange(shape.num_classes)), rows)
        self._all_leaves = to_device(np.arange(shape.num_leaves))
        self._sums: Any = None
        self.rebuild(progress)

    @staticmethod
    def predicted_bytes(
        num_classes: int, dim: int, feature_dim: int, itemsize: int, leaf_size: int
    ) -> int:
        """Return the bytes that the tree and its building take."""
        num_leaves = -(-num_classes // leaf_size)
        block = min(num_classes * feature_dim, max(_BLOCK, leaf_size * feature_dim))
        vectors = num_leaves * leaf_size * dim
        return (num_leaves * feature_dim + vectors + block) * itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the node sums and the class vectors."""
        return int(self._sums.nodes.nbytes) + int(self._buckets.nbytes)

    @property
    def drift(self) -> float:
        """How far updates have moved the sum at the root, relative to its norm."""
        return float(self._sums.drift)

    def rows(self, ids: Any) -> Any:
        """Return a copy of the class vectors of some classes, or of all."""
        if ids is None:
            return self._rows_of(self._buckets, self._all_leaves, self._shape.num_classes)
        rows = empty((ids.shape[0], self._buckets.shape[1]), self._buckets.dtype)
        launch_threads(tree_leaf_cuda.gather_classes, rows.size, ids, self._buckets, rows)
        return rows

    def rebuild(self, progress: bool = False) -> None:
        """Sum the features of all classes again, where memory allows beside the old sums."""
        if self._sums is not None and not self._sums.fit_again():
            self._sums = None
        self._sums = self._built(self._buckets, progress)
        self.num_updates = 0

    def sample(self, h: Any, m: int, exclude: Any, key: np.uint64) -> Draw:
        """Return draws (B, m)."""
        u = uniforms(key, h.shape[0], m)
        ids, log_q = empty(u.shape, np.int64), empty(u.shape, np.float64)
        for part in in_parts(self._room(m), h, exclude, u, ids, log_q):
            self._draw(*part)
        return Draw(ids, log_q)

    def _draw(self, h: Any, exclude: Any, u: Any, ids: Any, log_q: Any) -> None:
        phi = self._transformed(h)
        rest, shares = self._left_out(h, phi, exclude)
        leaves = empty(u.shape, np.int64)
        walked = phi, self._sums.nodes, *self._shape.walked
        launch_warps(tree_walk_cuda.walk, u.size, *walked, exclude, shares, u, leaves, log_q)
        products, weights = self._products(h, phi, leaves)
        drawn = products, leaves, exclude, rest, u
        launch_warps(tree_leaf_cuda.pick, u.size, *drawn, *self._shape.inside, weights, ids, log_q)

    def log_prob(self, h: Any, ids: Any, exclude: Any) -> Any:
        """Return log-probabilities (B, k)."""
        log_q = empty(ids.shape, np.float64)
        for part in in_parts(self._room(ids.shape[1]), h, ids, exclude, log_q):
            self._ask(*part)
        return log_q

    def _ask(self, h: Any, ids: Any, exclude: Any, log_q: Any) -> None:
        phi = self._transformed(h)
        rest, _ = self._left_out(h, phi, exclude)
        leaves = self._leaves_of(ids)
        room = empty((ids.size, self._depth, 2), np.float64)
        reached = phi, self._sums.nodes, leaves, *self._shape.walked, room, log_q
        launch_warps(tree_walk_cuda.log_reach, ids.size, *reached)
        products, weights = self._products(h, phi, leaves)
        asked = products, ids, exclude, rest, *self._shape.inside, weights, log_q
        launch_warps(tree_leaf_cuda.log_inside, ids.size, *asked)

    def probs(self, h: Any, exclude: Any) -> Any:
        """Return probabilities (B, n)."""
        probs = empty((h.shape[0], self._shape.num_classes), np.float64)
        for part in in_parts(self._room(self._shape.num_leaves), h, exclude, probs):
            self._spread(*part)
        return probs

    def _spread(self, h: Any, exclude: Any, probs: Any) -> None:
        phi = self._transformed(h)
        rest, _ = self._left_out(h, phi, exclude)
        nodes, shape = self._sums.nodes, (h.shape[0], self._shape.num_leaves)
        mass, log_p, reach = (empty(shape, np.float64) for _ in range(3))
        launch_warps(tree_walk_cuda.start_all, shape[0], phi, nodes, mass, log_p, reach)
        for level in range(top(shape[1]), 0, -1):
            half = 1 << (level - 1)
            across = -(-shape[1] // (2 * half))
            levels = phi, nodes, half, *self._shape.walked, mass, log_p, reach
            launch_warps(tree_walk_cuda.log_reach_level, shape[0] * across, *levels)
        flat = log_p.reshape(-1), reach.reshape(-1)
        launch_threads(tree_walk_cuda.add_log, log_p.size, *flat)
        leaves = empty(shape, np.int64)
        launch_threads(arrays_cuda.repeat_row, leaves.size, self._all_leaves.reshape(1, -1), leaves)
        products, weights = self._products(h, phi, leaves)
        asked = products, log_p, exclude, rest, *self._shape.inside, weights, probs
        launch_warps(tree_leaf_cuda.probs_inside, log_p.size, *asked)

    def _room(self, num: int) -> int:
        """Return how many numbers work on `num` classes of an example takes."""
        return self._shape.feature_dim + 2 * num * (self._shape.leaf_size + self._depth)

    def prepare(self, ids: Any, rows: Any) -> Callable[[], None]:
        """Return what makes an update happen, having raised whatever there is to raise."""
        ids, rows = last_of_each(ids, rows, self._shape.num_classes)
        if 2 * ids.shape[0] >= self._shape.num_classes and self._sums.fit_again():
            return self._prepare_rebuild(ids, rows)  # new and old features would cost more
        leaves, starts = runs(ids, self._shape.leaf_size)
        change = empty((leaves.shape[0], self._shape.feature_dim), rows.dtype)
        parts = self._parts_of(ids.shape[0], starts)
        added, taken = (_room_for_sums(change, len(parts)) for _ in range(2))
        for i, (some, run) in enumerate(parts):
            new, old = (self._transformed(x) for x in (rows[some], self.rows(ids[some])))
            changed = new, old, starts[run], some.start, change[run]
            launch_warps(tree_sums_cuda.sum_changes, run.stop - run.start, *changed)
            _sum_columns(new, added, i)
            _sum_columns(old, taken, i)
        add = self._sums.prepare(leaves, change, added, taken)

        def commit() -> None:
            add()
            self._write(self._buckets, ids, rows)
            self.num_updates += ids.shape[0]

        return commit

    def _parts_of(self, num: int, starts: Any) -> list[tuple[slice, slice]]:
        """Return ranges of `num` ids whose features fit in memory, and of the leaves they are in.

        `starts` (U,) tells where the ids of a leaf begin.
        """
        at_once = _BLOCK // (2 * self._shape.feature_dim)
        if num <= at_once:
            return [(slice(0, num), slice(0, starts.shape[0]))]
        begin = starts.copy_to_host()
        edges = np.searchsorted(begin, np.arange(0, num, max(1, at_once)))
        edges = np.unique([*edges, len(begin)])
        stops = np.append(begin, num)[edges]
        ids, leaves = (list(map(slice, x[:-1], x[1:])) for x in (stops, edges))
        return list(zip(ids, leaves, strict=True))

    def _prepare_rebuild(self, ids: Any, rows: Any) -> Callable[[], None]:
        buckets = copied(self._buckets)
        self._write(buckets, ids, rows)
        sums = self._built(buckets)

        def commit() -> None:
            self._buckets, self._sums, self.num_updates = buckets, sums, 0

        return commit

    def _built(self, buckets: Any, progress: bool = False) -> _CudaSums:
        """Return the sums of the features of all classes."""
        shape, size = self._shape, self._shape.leaf_size
        leaf_sums = empty((shape.num_leaves, shape.feature_dim), buckets.dtype)
        parts = chunks(shape.num_leaves, shape.leaves_at_a_time(_BLOCK))
        for part in progress_bar(progress, iterable=parts, unit="block", desc="building the tree"):
            count = min(part.stop * size, shape.num_classes) - part.start * size
            features = self._transformed(self._rows_of(buckets, self._all_leaves[part], count))
            starts = to_device(np.arange(0, count, size))
            launch_warps(
                tree_sums_cuda.sum_runs, starts.shape[0], features, starts, leaf_sums[part]
            )
        return _CudaSums(leaf_sums)

    def _transformed(self, rows: Any) -> Any:
        return rows if self._features is None else self._features(rows)

    def _write(self, buckets: Any, ids: Any, rows: Any) -> None:
        launch_threads(tree_leaf_cuda.scatter, rows.size, ids, rows, buckets)

    def _rows_of(self, buckets: Any, leaves: Any, count: int) -> Any:
        """Return the first `count` class vectors of leaves (k,), one leaf after another."""
        rows = empty((count, buckets.shape[1]), buckets.dtype)
        num = self._shape.num_classes
        launch_threads(tree_leaf_cuda.gather, rows.size, buckets, leaves, num, rows)
        return rows

    def _leaves_of(self, ids: Any) -> Any:
        leaves, size = empty(ids.shape, np.int64), self._shape.leaf_size
        launch_threads(tree_leaf_cuda.leaf_of, ids.size, ids.reshape(-1), size, leaves.reshape(-1))
        return leaves

    def _left_out(self, h: Any, phi: Any, exclude: Any) -> tuple[Any, Any]:
        """Return what is left without the excluded classes: see `leave_out`."""
        batch = h.shape[0]
        rest, shares = filled((batch, 2), 0.0), empty((batch, self._depth, 2), np.float64)
        products, weights = self._products(h, phi, self._leaves_of(exclude.reshape(batch, 1)))
        within = products, exclude, *self._shape.inside, weights, rest
        launch_warps(tree_leaf_cuda.log_rest, batch, *within)
        lifted = phi, self._sums.nodes, *self._shape.walked, exclude, rest, shares
        launch_warps(tree_walk_cuda.leave_out, batch, *lifted)
        return rest, shares

    def _products(self, h: Any, phi: Any, leaves: Any) -> tuple[Any, Any]:
        """Return products (B, k, leaf_size) with the classes of leaves (B, k), and as much room."""
        size = self._shape.leaf_size
        products = empty((*leaves.shape, size), np.float64)
        if size == 1:  # a class alone in its leaf has all of the weight
            products = filled(products.shape, 0.0)
        elif self._features is None or self._shape.leaf != "kernel":
            launch_warps(
                tree_leaf_cuda.bucket_products, leaves.size, h, self._buckets, leaves, products
            )
        else:
            flat = leaves.reshape(-1)
            for part in chunks(leaves.size, self._shape.leaves_at_a_time(_BLOCK)):
                count = (part.stop - part.start) * size
                features = self._transformed(self._rows_of(self._buckets, flat[part], count))
                visited = phi, features, part.start, products
                launch_warps(tree_leaf_cuda.feature_products, count, *visited)
        return products, empty(products.shape, np.float64)

    @property
    def _depth(self) -> int:
        return top(self._shape.num_leaves) + 1
