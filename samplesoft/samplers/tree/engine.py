"""The kernel tree on the processor: its sums, and draws on all threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, num_threads, thread_each, thread_map
from samplesoft._progress import progress_bar
from samplesoft._random import uniform_block
from samplesoft._validation import FloatArray, IntArray, writable
from samplesoft.feature_maps import FeatureMap
from samplesoft.samplers.base import Draw, Rows, last_of_each
from samplesoft.samplers.tree.leaf import (
    KERNEL,
    LEAVES,
    SOFTMAX,
    LeafRows,
    add_log_in_leaves,
    pick,
    probs_in_leaves,
    remaining_in_leaves,
)
from samplesoft.samplers.tree.sums import (
    FeatureSizes,
    TreeSums,
    largest_in_rows,
    sum_changes,
    sum_runs,
)
from samplesoft.samplers.tree.walk import (
    Draws,
    Exclusion,
    TreeRules,
    exclude_classes,
    known_levels,
    multiply_top,
    reach_all_leaves,
    reach_leaves,
    top,
    walk,
)
from samplesoft.samplers.visits import visits_of

UPDATES_OF_A_CLASS = 16  # after which its leaf is summed anew
_BLOCK = 1 << 24  # numbers in the features held at a time while building
_UPDATES = 256  # classes whose changes are computed together
_KERNEL_PART = 64  # examples that share the features of the leaves which they visit
_VISIT = 1000  # cost of a visit beside its inner product, in multiplications
_WORTH_A_THREAD = 3 << 20  # multiplications below which threads cost more than they save


@dataclass(frozen=True)
class TreeShape:
    """Sizes and weights of a `KernelTree`, whose parameters these are."""

    num_classes: int
    feature_dim: int
    leaf_size: int
    leaf: str
    scale: float
    floor: float

    @property
    def num_leaves(self) -> int:
        """Number of buckets L."""
        return -(-self.num_classes // self.leaf_size)

    @property
    def rules(self) -> TreeRules:
        """What kernels need to know; a class alone in its leaf needs no features."""
        # (whatever weighs it, its share is 1, and exp of a vector product is the cheapest)
        kind = LEAVES[self.leaf] if self.leaf_size > 1 else SOFTMAX
        scale = self.floor if kind == KERNEL else self.scale
        return TreeRules(self.num_classes, self.leaf_size, self.floor, kind, scale)

    def leaves_due(self, num_updates: int, num: int) -> IntArray:
        """Return the leaves (k,), rising, to be summed anew after `num` more updates.

        One after another, every leaf once in `UPDATES_OF_A_CLASS` updates of all classes.
        """
        # by their number and not by which classes they were: a class that is updated all the time
        # rounds nodes on its path only, and leaves in turn reach all of them
        each = UPDATES_OF_A_CLASS * self.leaf_size
        first, last = num_updates // each, (num_updates + num) // each
        return np.sort(np.arange(first, last) % self.num_leaves)

    def leaves_at_a_time(self, numbers: int) -> int:
        """Return of how many leaves the classes' features are about so many numbers."""
        return max(1, numbers // (self.leaf_size * self.feature_dim))


def _identity(rows: Rows) -> Rows:
    return rows


class HostFeatures:
    """A transform whose results are checked; `dim` is F, which the first of `rows` (n, d) tells.

    A `FeatureMap` writes what it should, and need not check rows that have been checked.
    """

    def __init__(self, transform: Callable[[Rows], NDArray[Any]], rows: Rows) -> None:
        self._transform = transform
        # those of the library may be written in place and need no check
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

    It copies the class vectors (n, d); `features` is None where they are features themselves. The
    methods from `_copied` on are those that work on other arrays on a GPU, in `CudaTree`.
    """

    Features: Callable[..., Any] = HostFeatures
    Sums: Callable[..., Any] = TreeSums
    _map: Callable[..., Any] = staticmethod(thread_map)

    def __init__(
        self, rows: Rows, features: HostFeatures | None, shape: TreeShape, progress: bool = False
    ) -> None:
        self._shape = shape
        self._features = features or _identity
        self._rows = self._copied(rows)
        self._sums: Any = None
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
        return float(self._sums.drift)

    def rows(self, ids: Any) -> Rows:
        """Return a copy of the class vectors of some classes, or of all."""
        return self._copied(self._rows) if ids is None else self._taken(ids)

    def rebuild(self, progress: bool = False) -> None:
        """Sum the features of all classes again, where memory allows beside the old sums."""
        if self._sums is not None and not self._sums.fit_again():
            self._sums = None
        self._sums, self._sizes = self._built(self._rows, progress)
        self.num_updates = 0

    def _built(self, rows: Rows, progress: bool = False) -> tuple[Any, FeatureSizes]:
        """Return the sums of the features of `rows` (n, d), and how large those are."""
        shape, size = self._shape, self._shape.leaf_size
        sizes = np.empty(shape.num_classes, rows.dtype)
        leaf_sums = self._empty((shape.num_leaves, shape.feature_dim))
        parts = chunks(shape.num_leaves, shape.leaves_at_a_time(_BLOCK))
        with progress_bar(
            progress, total=len(parts), unit="block", desc="building the tree"
        ) as bar:
            for part in parts:
                here = slice(part.start * size, min(part.stop * size, shape.num_classes))
                features = self._features(rows[here])
                self._sum_leaves(features, leaf_sums[part])
                sizes[here] = self._largest(features)
                bar.update()
        return self.Sums(leaf_sums), FeatureSizes(rows.dtype, sizes)

    def sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        """Draw m classes for each context."""
        phi = self._features(h)
        uniforms = uniform_block(key, len(h), m)
        ids, log_q = np.empty((len(h), m), np.int64), np.empty((len(h), m))

        def draw(part: slice) -> None:
            u, nodes, rules = uniforms[part], self._sums.nodes, self._shape.rules
            exclusion = self._exclusion(h[part], phi[part], exclude[part])
            # of one part alone: a thread shares nothing that it writes
            order, leaves = np.empty(u.shape, np.int64), np.empty(u.shape, np.int64)
            draws = Draws(u, order, leaves, np.empty(u.shape))
            # the upper levels are few and visited by all: multiplied whole, before the walk
            levels = known_levels(self._shape.num_leaves, *u.shape)
            known = np.empty((len(u), 1 << levels))
            multiply_top(phi[part], nodes, levels, known)
            walk(phi[part], nodes, known, exclusion, rules, draws)
            # in the order of the leaves, whose rows then come into the cache once
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
            rules, log_reach = self._shape.rules, np.empty(ids[part].shape)
            exclusion = self._exclusion(h[part], phi[part], exclude[part])
            leaves = ids[part] // rules.leaf_size
            reach_leaves(phi[part], self._sums.nodes, leaves, rules, log_reach)
            for visited in self._leaf_rows(h[part], phi[part], leaves):
                add_log_in_leaves(visited, ids[part], exclusion, rules, log_reach, log_q[part])

        self._share_out(read, *ids.shape)
        return log_q

    def probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the probabilities (B, n) of all classes."""
        phi = self._features(h)
        nodes, rules = self._sums.nodes, self._shape.rules
        log_reach = np.empty((len(h), self._shape.num_leaves))
        probs = np.empty((len(h), self._shape.num_classes))
        exclusion = self._exclusion(h, phi, exclude)

        def descend(part: slice) -> None:
            reach_all_leaves(phi[part], nodes, rules, log_reach[part])

        def fill(part: slice) -> None:
            for first, visited in self._rows_of_leaves(h, phi, part):
                probs_in_leaves(visited, first, log_reach, exclusion, rules, probs)

        # two passes: through the tree by examples, and inside the leaves by leaves
        self._share_out(descend, len(h), self._shape.num_leaves)
        thread_each(fill, chunks(self._shape.num_leaves, self._shape.leaves_at_a_time(_BLOCK)))
        return probs

    def prepare(self, ids: Any, rows: Rows) -> Callable[[], None]:
        """Return what makes an update happen, having raised whatever there is to raise."""
        ids, rows = self._last_of_each(ids, rows)
        if 2 * len(ids) >= self._shape.num_classes and self._sums.fit_again():
            return self._prepare_rebuild(ids, rows)  # features of new and old rows would cost more
        leaves, starts = np.unique(ids // self._shape.leaf_size, return_index=True)
        ends = np.append(starts, len(ids))
        change = self._empty((len(leaves), self._shape.feature_dim))
        sizes = np.empty((2, len(ids)), rows.dtype)

        def read(part: slice) -> FloatArray:
            some = slice(ends[part.start], ends[part.stop])
            num = some.stop - some.start
            # in one call: BLAS may round the same row otherwise in a batch of another size
            features = self._features(self._joined(rows[some], self._taken(ids[some])))
            new, old = features[:num], features[num:]
            sizes[0, some], sizes[1, some] = self._largest(new), self._largest(old)
            return self._sum_changes(new, old, starts[part] - starts[part.start], change[part])

        # leaves are never cut: a part ends with its last leaf, and so may be larger by one
        at_a_time = min(
            _UPDATES, _BLOCK // (2 * self._shape.feature_dim) - self._shape.leaf_size + 1
        )
        edges = np.searchsorted(starts, np.arange(0, len(ids), max(1, at_a_time)))
        edges = np.unique([*edges, len(leaves)])
        total = np.zeros(self._shape.feature_dim)
        # in the order of the parts, so that the total does not depend on threads
        for part_total in self._map(read, map(slice, edges[:-1], edges[1:])):
            total += part_total
        add = self._sums.prepare(leaves, change, total)
        moved = self._sizes.moved(*sizes)
        if moved.outgrown and self._sums.fit_again():
            return self._prepare_rebuild(ids, rows)
        # errors are those of the tree before this update; sums of changes commute
        renew = self._prepare_renewal(len(ids))

        def commit() -> None:
            add()
            renew()
            self._sizes = moved
            self._write(self._rows, ids, rows)
            self.num_updates += len(ids)

        return commit

    def _prepare_rebuild(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        all_rows = self._copied(self._rows)
        self._write(all_rows, ids, rows)
        sums, sizes = self._built(all_rows)

        def commit() -> None:
            self._rows, self._sums, self._sizes, self.num_updates = all_rows, sums, sizes, 0

        return commit

    def _prepare_renewal(self, num: int) -> Callable[[], None]:
        """Return what ends drift in the leaves whose turn comes with the next `num` updates."""
        leaves = self._shape.leaves_due(self.num_updates, num)
        errors = self._empty((len(leaves), self._shape.feature_dim))
        for part in chunks(len(leaves), self._shape.leaves_at_a_time(_BLOCK)):
            features = self._features(self._taken(self._classes_in(leaves[part])))
            self._sum_leaves(features, errors[part])
            self._sums.subtract(leaves[part], errors[part])
        return partial(self._sums.add, leaves, errors) if len(leaves) else lambda: None

    def _classes_in(self, leaves: IntArray) -> IntArray:
        size = self._shape.leaf_size
        ids: IntArray = (leaves[:, None] * size + np.arange(size)).reshape(-1)
        return ids[ids < self._shape.num_classes]

    def _leaf_rows(self, h: Rows, phi: Rows, leaves: IntArray) -> Iterator[LeafRows]:
        """Yield what is multiplied in each of `leaves`: class vectors, or features of classes.

        Features come for some leaves at a time, the others beginning at -1.
        """
        size = self._shape.leaf_size
        if self._weighs_vectors:
            yield LeafRows(h, self._rows, leaves * size)
            return
        visited, slots = np.unique(leaves, return_inverse=True)
        slots = slots.reshape(leaves.shape)
        for part in chunks(len(visited), self._shape.leaves_at_a_time(_BLOCK)):
            features = self._features(self._taken(self._classes_in(visited[part])))
            # visits of leaves that come with other parts are skipped by their -1
            here = (slots >= part.start) & (slots < part.stop)
            yield LeafRows(phi, features, np.where(here, (slots - part.start) * size, -1))

    @property
    def _weighs_vectors(self) -> bool:
        """Whether classes are weighed in their leaves by their vectors, and not by features."""
        return self._features is _identity or self._shape.rules.kind != KERNEL

    def _rows_of_leaves(self, h: Rows, phi: Rows, part: slice) -> Iterator[tuple[int, LeafRows]]:
        """Yield the first of some leaves, and what is multiplied in them, for all of a part."""
        size = self._shape.leaf_size
        if self._weighs_vectors:
            yield part.start, LeafRows(h, self._rows, np.arange(part.start, part.stop) * size)
            return
        num = self._shape.leaves_at_a_time(_BLOCK)
        for first in range(part.start, part.stop, num):
            leaves = np.arange(first, min(first + num, part.stop))
            features = self._features(self._taken(self._classes_in(leaves)))
            yield first, LeafRows(phi, features, (leaves - first) * size)

    def _exclusion(self, h: Rows, phi: Rows, exclude: IntArray) -> Exclusion:
        """Return the excluded classes (B,), and what remains without them."""
        levels = top(self._shape.num_leaves) + 1
        exclusion = Exclusion(exclude, np.zeros((len(h), 2)), np.empty((len(h), levels, 4)))
        # with nothing excluded shares stay unwritten, for no path asks for them
        if exclude.max() >= 0:
            leaves = np.maximum(exclude, 0)[:, None] // self._shape.leaf_size
            for visited in self._leaf_rows(h, phi, leaves):
                remaining_in_leaves(visited, exclusion, self._shape.rules)
            exclude_classes(phi, self._sums.nodes, exclusion, self._shape.rules)
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
        # parts of a fixed size: features of a leaf are computed for a part as a whole
        if shape.leaf == "kernel" and self._features is not _identity:
            size = _KERNEL_PART
        thread_each(work, chunks(batch, size))

    def _copied(self, rows: Rows) -> Rows:
        return rows.copy()

    def _empty(self, shape: tuple[int, ...]) -> Rows:
        return np.empty(shape, self._rows.dtype)

    def _joined(self, rows: Rows, others: Rows) -> Rows:
        return np.concatenate((rows, others))

    def _taken(self, ids: IntArray) -> Rows:
        """Return the class vectors of some classes."""
        return self._rows[ids]

    def _write(self, rows: Rows, ids: IntArray, some: Rows) -> None:
        rows[ids] = some

    def _last_of_each(self, ids: IntArray, rows: Rows) -> tuple[IntArray, Rows]:
        self._rows = writable(self._rows)
        return last_of_each(ids, rows)

    def _largest(self, features: Rows) -> Rows:
        """Return the largest absolute value in each row."""
        largest = np.empty(len(features), features.dtype)
        largest_in_rows(features, largest)
        return largest

    def _sum_leaves(self, features: Rows, sums: Rows) -> None:
        """Write the sums of the features of leaves, whose classes come one after another."""
        sum_runs(features, np.arange(0, len(features), self._shape.leaf_size), sums)

    def _sum_changes(self, new: Rows, old: Rows, starts: IntArray, change: Rows) -> FloatArray:
        """Write the sums of ``new - old`` over runs, and return that of all columns in float64."""
        total = np.zeros(self._shape.feature_dim)
        sum_changes(new, old, starts, change, total)
        return total
