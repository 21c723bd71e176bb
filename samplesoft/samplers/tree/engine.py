"""The kernel tree on the processor: its sums, and draws on all threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, num_threads, thread_each, thread_map
from samplesoft._progress import progress_bar
from samplesoft._random import uniform_block
from samplesoft._validation import FloatArray, IntArray, writable
from samplesoft.feature_maps import FeatureMap
from samplesoft.kernels.tree.leaf import add_log_in_leaf, pick, probs_in_leaves, remaining_in_leaf
from samplesoft.kernels.tree.records import KERNEL, Draws, Exclusion, LeafRows
from samplesoft.kernels.tree.sums import largest_in_rows, sum_changes, sum_runs
from samplesoft.kernels.tree.walk import (
    known_levels,
    multiply_top,
    reach_all_leaves,
    reach_leaves,
    remaining_from_root,
    walk,
)
from samplesoft.samplers.base import Draw, Rows, last_of_each
from samplesoft.samplers.tree.shape import TreeShape
from samplesoft.samplers.tree.sizes import FeatureSizes
from samplesoft.samplers.tree.sums import HostTreeSums
from samplesoft.samplers.visits import visits_of

_BLOCK = 1 << 24  # numbers in the features held at a time while building
_UPDATES = 256  # classes whose changes are computed together
_KERNEL_PART = 64  # examples that share the features of the leaves which they visit
_VISIT = 1000  # cost of a visit beside its inner product, in multiplications
_WORTH_A_THREAD = 3 << 20  # multiplications below which threads cost more than they save


def _identity(rows: Rows) -> Rows:
    return rows


class HostFeatures:
    """A transform whose results are checked; `dim` is F, which the first of `rows` (n, d) tells.

    A `FeatureMap` writes what it should, and need not check rows that have been checked.
    """

    def __init__(self, transform: Callable[[Rows], NDArray[Any]], rows: Rows) -> None:
        self._transform = transform
        self._write = transform._write if isinstance(transform, FeatureMap) else None
        self.dim = 0  # not known before the first features
        self.dim = self._checked(rows[:1]).shape[1]

    def __call__(self, rows: Rows) -> Rows:
        """Return features (k, F) of the type of `rows` (k, d)."""
        if self._write is None:
            return self._checked(rows)
        features = np.empty((len(rows), self.dim), rows.dtype)
        with np.errstate(over="ignore"):
            self._write(rows, features)
        return features

    def _checked(self, rows: Rows) -> Rows:
        with np.errstate(over="ignore"):
            features = np.asarray(self._transform(rows))
            wanted = self.dim or max(1, features.shape[-1] if features.ndim else 1)
            if features.shape != (len(rows), wanted) or features.dtype.kind not in "biuf":
                raise ValueError(
                    f"`transform` must give real features of shape ({len(rows)}, {wanted}) for "
                    f"{len(rows)} rows, got {features.dtype} of shape {features.shape}."
                )
            return np.ascontiguousarray(features, rows.dtype)


class HostTree:
    """What a `KernelTree` does, for arguments that have been checked.

    It copies the class vectors (n, d); `features` is None where they are features themselves.
    """

    Features = HostFeatures

    def __init__(
        self, rows: Rows, features: HostFeatures | None, shape: TreeShape, progress: bool = False
    ) -> None:
        self._shape = shape
        self._features = features or _identity
        self._rows = rows.copy()
        self.rebuild(progress)

    @staticmethod
    def predicted_bytes(
        num_classes: int, dim: int, feature_dim: int, itemsize: int, leaf_size: int
    ) -> int:
        """Return the bytes that the tree and its building take."""
        sums = -(-num_classes // leaf_size) * feature_dim
        block = min(num_classes * feature_dim, max(_BLOCK, leaf_size * feature_dim))
        return (sums + num_classes * dim + 2 * block) * itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the node sums and the class vectors."""
        return int(self._sums.nodes.nbytes) + int(self._rows.nbytes)

    @property
    def drift(self) -> float:
        """How far updates have moved the sum at the root, relative to its norm."""
        return self._sums.drift

    def rows(self, ids: IntArray | None) -> Rows:
        """Return a copy of the class vectors of some classes, or of all."""
        return self._rows.copy() if ids is None else self._rows[ids]

    def rebuild(self, progress: bool = False) -> None:
        """Sum the features of all classes again."""
        self._sums, self._sizes = self._built(self._rows, progress)
        self.num_updates = 0

    def _built(self, rows: Rows, progress: bool = False) -> tuple[HostTreeSums, FeatureSizes]:
        """Return the sums of the features of `rows` (n, d), and how large those are."""
        sizes = np.empty(len(rows), rows.dtype)
        leaf_sums = np.empty((self._shape.num_leaves, self._shape.feature_dim), rows.dtype)
        parts = chunks(self._shape.num_leaves, self._shape.leaves_at_a_time(_BLOCK))
        with progress_bar(
            progress, total=len(parts), unit="block", desc="building the tree"
        ) as bar:
            for part in parts:
                here = slice(part.start * self._shape.leaf_size, part.stop * self._shape.leaf_size)
                features = self._features(rows[here])
                starts = np.arange(0, len(features), self._shape.leaf_size)
                sum_runs(features, starts, leaf_sums[part])
                largest_in_rows(features, sizes[here])
                bar.update()
        return HostTreeSums(leaf_sums), FeatureSizes(rows.dtype, sizes)

    def sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        """Draw m classes for each context."""
        phi = self._features(h)
        uniforms = uniform_block(key, len(h), m)
        ids, log_q = np.empty((len(h), m), np.int64), np.empty((len(h), m))

        def draw(part: slice) -> None:
            u, nodes, rules = uniforms[part], self._sums.nodes, self._shape.rules
            exclusion = self._exclusion(h[part], phi[part], exclude[part])
            order, leaves = np.empty(u.shape, np.int64), np.empty(u.shape, np.int64)
            draws = Draws(u, order, leaves, np.empty(u.shape))
            levels = known_levels(self._shape.num_leaves, *u.shape)
            known = np.empty((len(u), 1 << levels))
            multiply_top(phi[part], nodes, levels, known)
            walk(phi[part], nodes, known, exclusion, rules, draws)
            visits = visits_of(leaves, 0, self._shape.num_leaves)
            for visited in self._leaf_rows(h[part], phi[part], leaves):
                pick(visited, visits, draws, exclusion, rules, ids[part], log_q[part])

        self._share_out(draw, len(h), m)
        return Draw(ids, log_q)

    def log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the log-probabilities (B, k) of classes."""
        phi = self._features(h)
        log_q = np.empty(ids.shape)

        def read(part: slice) -> None:
            nodes, rules = self._sums.nodes, self._shape.rules
            exclusion = self._exclusion(h[part], phi[part], exclude[part])
            remaining_from_root(phi[part], nodes, exclusion, rules)
            leaves = ids[part] // rules.leaf_size
            reach_leaves(phi[part], nodes, leaves, rules, log_q[part])
            for visited in self._leaf_rows(h[part], phi[part], leaves):
                add_log_in_leaf(visited, ids[part], exclusion, rules, log_q[part])

        self._share_out(read, *ids.shape)
        return log_q

    def probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the probabilities (B, n) of all classes."""
        phi = self._features(h)
        nodes, rules = self._sums.nodes, self._shape.rules
        log_reach = np.empty((len(h), self._shape.num_leaves))
        probs = np.empty((len(h), self._shape.num_classes))
        exclusion = self._exclusion(h, phi, exclude)
        remaining_from_root(phi, nodes, exclusion, rules)

        def descend(part: slice) -> None:
            reach_all_leaves(phi[part], nodes, rules, log_reach[part])

        def fill(part: slice) -> None:
            leaves = np.arange(part.start, part.stop)
            for visited in self._leaf_rows(h, phi, leaves):
                here = visited.starts >= 0
                some = visited._replace(starts=visited.starts[here])
                probs_in_leaves(some, leaves[here], log_reach, exclusion, rules, probs)

        self._share_out(descend, len(h), self._shape.num_leaves)
        thread_each(fill, chunks(self._shape.num_leaves, self._shape.leaves_at_a_time(_BLOCK)))
        return probs

    def prepare(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        """Return what makes an update happen, having raised whatever there is to raise."""
        self._rows = writable(self._rows)
        ids, rows = last_of_each(ids, rows)
        if 2 * len(ids) >= self._shape.num_classes:  # features of new and old rows would cost more
            return self._prepare_rebuild(ids, rows)
        leaves, starts = np.unique(ids // self._shape.leaf_size, return_index=True)
        ends = np.append(starts, len(ids))
        change = np.empty((len(leaves), self._shape.feature_dim), self._rows.dtype)
        sizes = np.empty((2, len(ids)), self._rows.dtype)

        def read(part: slice) -> FloatArray:
            some = slice(ends[part.start], ends[part.stop])
            num = some.stop - some.start
            features = self._features(np.concatenate((rows[some], self._rows[ids[some]])))
            total = np.zeros(self._shape.feature_dim)
            offsets = starts[part] - starts[part.start]
            sum_changes(features[:num], features[num:], offsets, change[part], total)
            largest_in_rows(features[:num], sizes[0, some])
            largest_in_rows(features[num:], sizes[1, some])
            return total

        at_a_time = min(
            _UPDATES, _BLOCK // (2 * self._shape.feature_dim) - self._shape.leaf_size + 1
        )
        edges = np.searchsorted(starts, np.arange(0, len(ids), max(1, at_a_time)))
        edges = np.unique([*edges, len(leaves)])
        total = np.zeros(self._shape.feature_dim)
        for part_total in thread_map(read, map(slice, edges[:-1], edges[1:])):
            total += part_total
        add = self._sums.prepare(leaves, change, total)
        moved = self._sizes.moved(*sizes)
        if moved.outgrown:
            return self._prepare_rebuild(ids, rows)
        renew = self._prepare_renewal(len(ids))

        def commit() -> None:
            add()
            renew()
            self._sizes = moved
            self._rows[ids] = rows
            self.num_updates += len(ids)

        return commit

    def _prepare_rebuild(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        every = self._rows.copy()
        every[ids] = rows
        sums, sizes = self._built(every)

        def commit() -> None:
            self._rows, self._sums, self._sizes, self.num_updates = every, sums, sizes, 0

        return commit

    def _prepare_renewal(self, num: int) -> Callable[[], None]:
        """Return what ends drift in the leaves whose turn comes with the next `num` updates."""
        leaves = self._shape.leaves_due(self.num_updates, num)
        size, sums = self._shape.leaf_size, self._sums
        errors = np.empty((len(leaves), self._shape.feature_dim), self._rows.dtype)
        for part in chunks(len(leaves), self._shape.leaves_at_a_time(_BLOCK)):
            ids = (leaves[part, None] * size + np.arange(size)).reshape(-1)
            features = self._features(self._rows[ids[ids < self._shape.num_classes]])
            sum_runs(features, np.arange(0, len(features), size), errors[part])
            sums.subtract(leaves[part], errors[part])
        return partial(sums.add, leaves, errors) if len(leaves) else lambda: None

    def _leaf_rows(self, h: Rows, phi: Rows, leaves: IntArray) -> Iterator[LeafRows]:
        """Yield what is multiplied in each of `leaves`: class vectors, or features of classes.

        Features come for some leaves at a time, the others beginning at -1.
        """
        size = self._shape.leaf_size
        if self._features is _identity or self._shape.rules.kind != KERNEL:
            yield LeafRows(h, self._rows, leaves * size)
            return
        visited, slots = np.unique(leaves, return_inverse=True)
        slots = slots.reshape(leaves.shape)
        for part in chunks(len(visited), self._shape.leaves_at_a_time(_BLOCK)):
            ids = (visited[part, None] * size + np.arange(size)).reshape(-1)
            features = self._features(self._rows[ids[ids < self._shape.num_classes]])
            here = (slots >= part.start) & (slots < part.stop)
            starts = np.where(here, (slots - part.start) * size, -1)
            yield LeafRows(phi, features, starts)

    def _exclusion(self, h: Rows, phi: Rows, exclude: IntArray) -> Exclusion:
        """Return the excluded classes (B,), and what remains in the leaf of each."""
        exclusion = Exclusion(exclude, np.zeros((len(h), 2)))
        if exclude.max() >= 0:
            leaves = np.maximum(exclude, 0) // self._shape.leaf_size
            for visited in self._leaf_rows(h, phi, leaves):
                remaining_in_leaf(visited, exclusion, self._shape.rules)
        return exclusion

    def _share_out(self, work: Callable[[slice], None], batch: int, num_leaves: int) -> None:
        """Call `work` for parts of the batch, on threads where that pays.

        An example visits so many leaves. Features of a leaf's classes are computed for a part as
        a whole, and so that results do not depend on threads, nor do those parts.
        """
        shape = self._shape
        visits = batch * num_leaves * shape.num_leaves.bit_length()
        parts = num_threads() if visits * (shape.feature_dim + _VISIT) > _WORTH_A_THREAD else 1
        size = -(-batch // parts)
        if shape.leaf == "kernel" and self._features is not _identity:
            size = _KERNEL_PART
        thread_each(work, chunks(batch, size))
