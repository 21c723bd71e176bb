"""The kernel tree on a CUDA device: its sums and buckets, and launches of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from samplesoft._cuda import as_device_array, empty, launch_threads, launch_warps, to_device
from samplesoft._device.arrays_cuda import copied, filled, repeat_row
from samplesoft._device.draws_cuda import in_parts, uniforms
from samplesoft._device.select import on_device
from samplesoft._device.sort_ids_cuda import last_of_each, runs
from samplesoft._jit import chunks
from samplesoft._progress import progress_bar
from samplesoft.kernels.tree import leaf_cuda, walk_cuda
from samplesoft.kernels.tree.records import KERNEL, Exclusion
from samplesoft.kernels.tree.sums_cuda import largest_in_rows, sum_changes, sum_runs
from samplesoft.kernels.tree.walk import top
from samplesoft.samplers.base import Draw
from samplesoft.samplers.tree.shape import TreeShape
from samplesoft.samplers.tree.sizes import FeatureSizes
from samplesoft.samplers.tree.sums_cuda import CudaTreeSums, room_for_sums, sum_columns

_BLOCK = 1 << 26  # numbers in the features, or inner products, held at a time


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


class CudaTree:
    """The twin of `HostTree`: class vectors (n, d) lie in buckets on the device."""

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
        launch_threads(leaf_cuda.gather_classes, rows.size, ids, self._buckets, rows)
        return rows

    def rebuild(self, progress: bool = False) -> None:
        """Sum the features of all classes again, where memory allows beside the old sums."""
        if self._sums is not None and not self._sums.fit_again():
            self._sums = None
        self._sums, self._sizes = self._built(self._buckets, progress)
        self.num_updates = 0

    def sample(self, h: Any, m: int, exclude: Any, key: np.uint64) -> Draw:
        """Return draws (B, m)."""
        u = uniforms(key, h.shape[0], m)
        ids, log_q = empty(u.shape, np.int64), empty(u.shape, np.float64)
        in_parts(self._draw, self._room(m), h, exclude, u, ids, log_q)
        return Draw(ids, log_q)

    def _draw(self, h: Any, exclude: Any, u: Any, ids: Any, log_q: Any) -> None:
        phi, rules, leaves = self._transformed(h), self._shape.rules, empty(u.shape, np.int64)
        exclusion, shares = self._exclusion(h, phi, exclude)
        descent = phi, self._sums.nodes, exclusion, shares, rules, u, leaves, log_q
        launch_warps(walk_cuda.walk, u.size, *descent)
        products, weights = self._products(h, phi, leaves)
        drawn = products, leaves, u, exclusion, rules, weights, ids, log_q
        launch_warps(leaf_cuda.pick, u.size, *drawn)

    def log_prob(self, h: Any, ids: Any, exclude: Any) -> Any:
        """Return log-probabilities (B, k)."""
        log_q = empty(ids.shape, np.float64)
        in_parts(self._read, self._room(ids.shape[1]), h, ids, exclude, log_q)
        return log_q

    def _read(self, h: Any, ids: Any, exclude: Any, log_q: Any) -> None:
        phi, rules, leaves = self._transformed(h), self._shape.rules, self._leaves_of(ids)
        exclusion, _ = self._exclusion(h, phi, exclude)
        shares = empty((ids.size, self._depth, 2), np.float64)
        reached = phi, self._sums.nodes, leaves, rules, shares, log_q
        launch_warps(walk_cuda.reach_leaves, ids.size, *reached)
        products, weights = self._products(h, phi, leaves)
        asked = products, ids, exclusion, rules, weights, log_q
        launch_warps(leaf_cuda.add_log_in_leaf, ids.size, *asked)

    def probs(self, h: Any, exclude: Any) -> Any:
        """Return probabilities (B, n)."""
        probs = empty((h.shape[0], self._shape.num_classes), np.float64)
        in_parts(self._fill, self._room(self._shape.num_leaves), h, exclude, probs)
        return probs

    def _fill(self, h: Any, exclude: Any, probs: Any) -> None:
        phi, rules = self._transformed(h), self._shape.rules
        exclusion, _ = self._exclusion(h, phi, exclude)
        nodes, shape = self._sums.nodes, (h.shape[0], self._shape.num_leaves)
        mass, log_reach, factor = (empty(shape, np.float64) for _ in range(3))
        launch_warps(walk_cuda.start_at_root, shape[0], phi, nodes, mass, log_reach, factor)
        for level in range(top(shape[1]), 0, -1):
            half = 1 << (level - 1)
            across = -(-shape[1] // (2 * half))
            descent = phi, nodes, half, rules, mass, log_reach, factor
            launch_warps(walk_cuda.reach_next_level, shape[0] * across, *descent)
        flat = log_reach.reshape(-1), factor.reshape(-1)
        launch_threads(walk_cuda.add_log, log_reach.size, *flat)
        leaves = repeat_row(self._all_leaves.reshape(1, -1), shape[0])
        products, weights = self._products(h, phi, leaves)
        asked = products, log_reach, exclusion, rules, weights, probs
        launch_warps(leaf_cuda.probs_in_leaves, log_reach.size, *asked)

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
        added, taken = (room_for_sums(change, len(parts)) for _ in range(2))
        sizes = empty((2, ids.shape[0]), rows.dtype)
        for i, (some, run) in enumerate(parts):
            new, old = (self._transformed(x) for x in (rows[some], self.rows(ids[some])))
            changed = new, old, starts[run], some.start, change[run]
            launch_warps(sum_changes, run.stop - run.start, *changed)
            sum_columns(new, added, i)
            sum_columns(old, taken, i)
            launch_warps(largest_in_rows, new.shape[0], new, sizes[0, some])
            launch_warps(largest_in_rows, old.shape[0], old, sizes[1, some])
        add = self._sums.prepare(leaves, change, added, taken)
        moved = self._sizes.moved(*sizes.copy_to_host())
        if moved.outgrown and self._sums.fit_again():
            return self._prepare_rebuild(ids, rows)
        renew = self._prepare_renewal(ids.shape[0])

        def commit() -> None:
            add()
            renew()
            self._sizes = moved
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
        sums, sizes = self._built(buckets)

        def commit() -> None:
            self._buckets, self._sums, self._sizes, self.num_updates = buckets, sums, sizes, 0

        return commit

    def _prepare_renewal(self, num: int) -> Callable[[], None]:
        """Return what ends drift in the leaves whose turn comes with the next `num` updates."""
        shape, sums = self._shape, self._sums
        due = shape.leaves_due(self.num_updates, num)
        if not len(due):
            return lambda: None
        leaves = to_device(due)
        errors = empty((len(due), shape.feature_dim), self._buckets.dtype)
        for part in chunks(len(due), shape.leaves_at_a_time(_BLOCK)):
            count = shape.num_classes_in(due[part])
            self._sum_leaves(self._buckets, leaves[part], count, errors[part])
            sums.subtract(leaves[part], errors[part])
        return partial(sums.add, leaves, errors)

    def _built(self, buckets: Any, progress: bool = False) -> tuple[CudaTreeSums, FeatureSizes]:
        """Return the sums of the features of all classes, and how large those are."""
        shape, size = self._shape, self._shape.leaf_size
        sizes = empty(shape.num_classes, buckets.dtype)
        leaf_sums = empty((shape.num_leaves, shape.feature_dim), buckets.dtype)
        parts = chunks(shape.num_leaves, shape.leaves_at_a_time(_BLOCK))
        with progress_bar(
            progress, total=len(parts), unit="block", desc="building the tree"
        ) as bar:
            for part in parts:
                leaves = self._all_leaves[part]
                count = min(part.stop * size, shape.num_classes) - part.start * size
                features = self._sum_leaves(buckets, leaves, count, leaf_sums[part])
                here = sizes[part.start * size : part.start * size + count]
                launch_warps(largest_in_rows, count, features, here)
                bar.update()
        return CudaTreeSums(leaf_sums), FeatureSizes(buckets.dtype, sizes.copy_to_host())

    def _sum_leaves(self, buckets: Any, leaves: Any, count: int, sums: Any) -> Any:
        """Sum the features of `count` classes over leaves (k,), and return them."""
        features = self._transformed(self._rows_of(buckets, leaves, count))
        starts = to_device(np.arange(0, count, self._shape.leaf_size))
        launch_warps(sum_runs, starts.shape[0], features, starts, sums)
        return features

    def _transformed(self, rows: Any) -> Any:
        return rows if self._features is None else self._features(rows)

    def _write(self, buckets: Any, ids: Any, rows: Any) -> None:
        launch_threads(leaf_cuda.scatter, rows.size, ids, rows, buckets)

    def _rows_of(self, buckets: Any, leaves: Any, count: int) -> Any:
        """Return the first `count` class vectors of leaves (k,), one leaf after another."""
        rows = empty((count, buckets.shape[1]), buckets.dtype)
        num = self._shape.num_classes
        launch_threads(leaf_cuda.gather, rows.size, buckets, leaves, num, rows)
        return rows

    def _leaves_of(self, ids: Any) -> Any:
        leaves, size = empty(ids.shape, np.int64), self._shape.leaf_size
        launch_threads(leaf_cuda.leaf_of, ids.size, ids.reshape(-1), size, leaves.reshape(-1))
        return leaves

    def _exclusion(self, h: Any, phi: Any, exclude: Any) -> tuple[Exclusion, Any]:
        """Return what remains without excluded classes (B,), and shares on the paths to them."""
        batch, rules = h.shape[0], self._shape.rules
        exclusion = Exclusion(exclude, filled((batch, 2), 0.0))
        shares = empty((batch, self._depth, 2), np.float64)
        products, weights = self._products(h, phi, self._leaves_of(exclude.reshape(batch, 1)))
        launch_warps(leaf_cuda.remaining_in_leaf, batch, products, exclusion, rules, weights)
        path = phi, self._sums.nodes, exclusion, rules, shares
        launch_warps(walk_cuda.exclude_classes, batch, *path)
        return exclusion, shares

    def _products(self, h: Any, phi: Any, leaves: Any) -> tuple[Any, Any]:
        """Return products (B, k, leaf_size) with the classes of leaves (B, k), and as much room."""
        size = self._shape.leaf_size
        products = empty((*leaves.shape, size), np.float64)
        if size == 1:  # a class alone in its leaf has all of the weight
            products = filled(products.shape, 0.0)
        elif self._features is None or self._shape.rules.kind != KERNEL:
            launch_warps(leaf_cuda.bucket_products, leaves.size, h, self._buckets, leaves, products)
        else:
            flat = leaves.reshape(-1)
            for part in chunks(leaves.size, self._shape.leaves_at_a_time(_BLOCK)):
                count = (part.stop - part.start) * size
                features = self._transformed(self._rows_of(self._buckets, flat[part], count))
                visited = phi, features, part.start, products
                launch_warps(leaf_cuda.feature_products, count, *visited)
        return products, empty(products.shape, np.float64)

    @property
    def _depth(self) -> int:
        return top(self._shape.num_leaves) + 1
