"""The kernel tree on the processor: its sums, and draws on all threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device.arrays import HostArrays
from samplesoft._device.select import on_device, to_host
from samplesoft._jit import chunks, num_threads
from samplesoft._progress import progress_bar
from samplesoft._random import uniform_block
from samplesoft._validation import FloatArray, IntArray, writable
from samplesoft.feature_maps import FeatureMap
from samplesoft.samplers.base import Draw, Rows
from samplesoft.samplers.tree.leaf import (
    KERNEL,
    LeafRows,
    Room,
    log_in_leaves,
    pick,
    probs_in_leaves,
    remaining_in_leaves,
)
from samplesoft.samplers.tree.sums import TreeSums, sum_changes, sum_runs
from samplesoft.samplers.tree.walk import (
    Contexts,
    Draws,
    Tree,
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


def _identity(rows: Rows) -> Rows:
    return rows


class HostFeatures:
    """A transform whose results are checked; `dim` is F, which the first of `rows` (n, d) tells.

    A `FeatureMap` writes what it should, and need not check rows that have been checked.
    """

    _arrays: Any = HostArrays
    _as_array: Callable[[Any], Any] = staticmethod(np.asarray)

    def __init__(self, transform: Callable[[Rows], NDArray[Any]], rows: Rows) -> None:
        self._transform = transform
        self.dim = 0  # not known before the first features
        self.dim = int(self._checked(rows[:1]).shape[1])

    def __call__(self, rows: Rows) -> Rows:
        """Return features (k, F) of the type of `rows` (k, d)."""
        if not isinstance(self._transform, FeatureMap):
            return self._checked(rows)
        features: Rows = self._arrays.empty((rows.shape[0], self.dim), rows.dtype)
        with np.errstate(over="ignore"):
            self._transform._write(rows, features)
        return features

    def _checked(self, rows: Rows) -> Rows:
        num, there = rows.shape[0], on_device(rows)
        with np.errstate(over="ignore"):
            features = self._as_array(self._transform(rows))
            wanted = num, self.dim or max(1, features.shape[1] if features.ndim == 2 else 1)
            # only on the processor are they turned into the type of the rows
            fits = features.dtype == rows.dtype if there else features.dtype.kind in "biuf"
            if features.shape != wanted or not fits:
                raise ValueError(
                    f"`transform` must give real features of shape {wanted} for {num} rows"
                    f"{f', in {rows.dtype}' if there else ''}, got {features.dtype} of shape "
                    f"{features.shape}."
                )
            return features if there else np.ascontiguousarray(features, rows.dtype)


class HostTree:
    """What a `KernelTree` does, for arguments that have been checked.

    It copies the class vectors (n, d); `features` is None where they are features themselves. What
    a GPU does in another way is in `CudaTree`: how a batch is parted, and how it goes down.
    """

    Features: Callable[..., Any] = HostFeatures
    Sums: Callable[..., Any] = TreeSums
    _arrays: Any = HostArrays

    def __init__(
        self, rows: Rows, features: HostFeatures | None, rules: TreeRules, progress: bool = False
    ) -> None:
        self._rules = rules
        self._num_leaves = -(-rules.num_classes // rules.leaf_size)
        self._features = features or _identity
        self._dim = features.dim if features else rows.shape[1]  # of features, F
        # by their vectors or by features: that of a class alone in its leaf needs none
        self._weighs_vectors = features is None or rules.kind != KERNEL
        self._rows = self._arrays.copied(rows)
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
        return self._arrays.copied(self._rows) if ids is None else self._taken(ids)

    def rebuild(self, progress: bool = False) -> None:
        """Sum the features of all classes again, where memory allows beside the old sums."""
        if self._sums is not None and not self._fit_again():
            self._sums = None
        self._sums, self._sizes = self._built(self._rows, progress)
        self._peak, self.num_updates = self._sizes.max(), 0

    def _fit_again(self) -> bool:
        """Return whether there is memory for as many sums again."""
        free = self._arrays.available_bytes()
        return free is None or bool(self._sums.nodes.nbytes < free)

    def _built(self, rows: Rows, progress: bool = False) -> tuple[Any, Rows]:
        """Return the sums of the features of `rows` (n, d), and the largest of each class (n,)."""
        num, size = self._rules.num_classes, self._rules.leaf_size
        sizes = np.empty(num, rows.dtype)
        leaf_sums = self._empty((self._num_leaves, self._dim))
        parts = self._leaf_chunks(self._num_leaves)
        with progress_bar(
            progress, total=len(parts), unit="block", desc="building the tree"
        ) as bar:
            for part in parts:
                here = slice(part.start * size, min(part.stop * size, num))
                features = self._features(rows[here])
                self._sum_leaves(features, leaf_sums[part])
                sizes[here] = self._arrays.largest_in_rows(features)
                bar.update()
        return self.Sums(leaf_sums), sizes

    @property
    def _tree(self) -> Tree:
        return Tree(self._sums.nodes, self._rules)

    def sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        """Draw m classes for each context."""
        phi, arrays, rules = self._features(h), self._arrays, self._rules
        # on the processor, whose numbers these are: some microseconds for a batch
        uniforms = arrays.placed(uniform_block(key, h.shape[0], m))
        ids, log_q = (arrays.empty(uniforms.shape, kind) for kind in (np.int64, np.float64))

        def draw(part: slice) -> None:
            # of one part alone: a thread shares nothing that it writes
            u = uniforms[part]
            room = self._room(u.size)
            contexts = self._contexts(h[part], phi[part], exclude[part], room)
            order, leaves = (arrays.empty(u.shape, np.int64) for _ in range(2))
            log_reach = arrays.empty(u.shape, np.float64)
            draws = Draws(u, order, leaves, log_reach, ids[part], log_q[part])
            self._walk(contexts, draws)
            leaves = to_host(leaves)
            # in the order of the leaves, whose rows then come into the cache once
            visits = arrays.placed(visits_of(leaves, 0, self._num_leaves))
            num = visits.shape[0]
            for visited in self._leaf_rows(h[part], phi[part], leaves):
                arrays.run(pick, num, rules, contexts, visited, visits, draws, room)

        arrays.each(draw, self._parts(h.shape[0], m))
        return Draw(ids, log_q)

    def log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        """Return the log-probabilities (B, k) of classes."""
        phi, arrays, rules = self._features(h), self._arrays, self._rules
        log_q: FloatArray = arrays.empty(ids.shape, np.float64)

        def read(part: slice) -> None:
            leaves = to_host(ids[part]) // rules.leaf_size
            room = self._room(leaves.size)
            contexts = self._contexts(h[part], phi[part], exclude[part], room)
            log_reach = arrays.empty(leaves.shape, np.float64)
            self._reach(phi[part], leaves, log_reach)
            asked = ids[part], log_reach, room, log_q[part]
            for visited in self._leaf_rows(h[part], phi[part], leaves):
                arrays.run(log_in_leaves, leaves.size, rules, contexts, visited, *asked)

        arrays.each(read, self._parts(*ids.shape))
        return log_q

    def probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the probabilities (B, n) of all classes."""
        phi, arrays, num_leaves = self._features(h), self._arrays, self._num_leaves
        log_reach = arrays.empty((h.shape[0], num_leaves), np.float64)
        probs: FloatArray = arrays.empty((h.shape[0], self._rules.num_classes), np.float64)
        contexts = self._contexts(h, phi, exclude, self._room(h.shape[0]))

        def fill(part: slice) -> None:
            leaves = np.arange(part.start, part.stop)[None]
            num = h.shape[0] * leaves.size
            visited = next(self._leaf_rows(h, phi, leaves))  # all come with one part
            asked = contexts, visited, part.start, log_reach, self._room(num), probs
            arrays.run(probs_in_leaves, num, self._rules, *asked)

        # two passes: through the tree by examples, and inside the leaves by leaves
        arrays.each(
            lambda part: self._reach_all(phi[part], log_reach[part]),
            self._parts(h.shape[0], num_leaves),
        )
        arrays.each(fill, self._leaf_chunks(num_leaves, h.shape[0]))
        return probs

    def prepare(self, ids: Any, rows: Rows) -> Callable[[], None]:
        """Return what makes an update happen, having raised whatever there is to raise."""
        arrays, leaf_size = self._arrays, self._rules.leaf_size
        self._rows, self._sizes = arrays.writable(self._rows), writable(self._sizes)
        ids, rows = arrays.last_of_each(ids, rows)
        if 2 * len(ids) >= self._rules.num_classes and self._fit_again():
            return self._prepare_rebuild(ids, rows)  # features of new and old rows would cost more
        leaves, starts = np.unique(ids // leaf_size, return_index=True)
        ends = np.append(starts, len(ids))
        change = self._empty((len(leaves), self._dim))
        sizes = np.empty(len(ids), rows.dtype)
        # leaves are never cut: a part ends with its last leaf, and so may be larger by one
        at_a_time = min(_UPDATES, _BLOCK // (2 * self._dim) - leaf_size + 1)
        edges = np.searchsorted(starts, np.arange(0, len(ids), max(1, at_a_time)))
        parts = list(pairwise(np.unique([*edges, len(leaves)])))
        totals = np.zeros((len(parts), self._dim))

        def read(i: int) -> None:
            part, some = slice(*parts[i]), slice(*ends[list(parts[i])])
            num = some.stop - some.start
            # in one call: BLAS may round the same row otherwise in a batch of another size
            features = self._features(arrays.joined(rows[some], self._taken(ids[some])))
            new, old = features[:num], features[num:]
            sizes[some] = arrays.largest_in_rows(new)
            # in float64, before the difference is rounded to the type of the features
            totals[i] = self._sums.total_change(new, old)
            begins = arrays.placed(starts[part] - starts[part.start])
            arrays.run(sum_changes, len(begins), new, old, begins, change[part])

        arrays.each(read, range(len(parts)))
        # in the order of the parts, so that the total does not depend on threads
        add = self._sums.prepare(leaves, change, totals.sum(axis=0))
        if self._outgrown(ids, sizes) and self._fit_again():
            return self._prepare_rebuild(ids, rows)
        # errors are those of the tree before this update; sums of changes commute
        renew = self._prepare_renewal(len(ids))

        def commit() -> None:
            add()
            renew()
            self._sizes[ids] = sizes
            self._peak = max(self._peak, sizes.max())
            arrays.put_rows(rows, ids, self._rows)
            self.num_updates += len(ids)

        return commit

    def _prepare_rebuild(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        all_rows = self._arrays.copied(self._rows)
        self._arrays.put_rows(rows, ids, all_rows)
        sums, sizes = self._built(all_rows)

        def commit() -> None:
            self._rows, self._sums, self._sizes = all_rows, sums, sizes
            self._peak, self.num_updates = sizes.max(), 0

        return commit

    def _outgrown(self, ids: IntArray, sizes: Rows) -> bool:
        """Return whether the largest features so far have cost those of now half their digits.

        Sums are rounded in proportion to the largest numbers that they have held, and keep those
        errors when such numbers leave again, as they do when classes (k,) get features that are at
        most `sizes` (k,).
        """
        peak, digits = float(max(self._peak, sizes.max())), np.finfo(sizes.dtype).nmant // 2
        least = peak / 2.0**digits
        # nearly always the new features say so by themselves, which spares a pass over all classes
        if sizes.max() >= least:
            return False
        return bool(np.delete(self._sizes, ids).max(initial=0.0) < least)

    def _prepare_renewal(self, num: int) -> Callable[[], None]:
        """Return what ends drift in the leaves whose turn comes with the next `num` updates."""
        leaves = self._leaves_due(num)
        errors = self._empty((len(leaves), self._dim))
        for part in self._leaf_chunks(len(leaves)):
            self._sum_leaves(self._features_in(leaves[part]), errors[part])
            self._sums.subtract(leaves[part], errors[part])
        return partial(self._sums.add, leaves, errors) if len(leaves) else lambda: None

    def _leaves_due(self, num: int) -> IntArray:
        """Return the leaves (k,), rising, to be summed anew after `num` more updates.

        One after another, every leaf once in `UPDATES_OF_A_CLASS` updates of all classes.
        """
        # by their number and not by which classes they were: a class that is updated all the time
        # rounds nodes on its path only, and leaves in turn reach all of them
        each = UPDATES_OF_A_CLASS * self._rules.leaf_size
        first, last = self.num_updates // each, (self.num_updates + num) // each
        return np.sort(np.arange(first, last) % self._num_leaves)

    def _features_in(self, leaves: IntArray) -> Rows:
        """Return the features of the classes in some leaves, one leaf after another."""
        size = self._rules.leaf_size
        ids: IntArray = (leaves[:, None] * size + np.arange(size)).reshape(-1)
        return self._features(self._taken(ids[ids < self._rules.num_classes]))

    def _leaf_rows(self, h: Rows, phi: Rows, leaves: IntArray) -> Iterator[LeafRows]:
        """Yield what is multiplied in `leaves` (B, k): class vectors, or features of classes.

        Features come for some leaves at a time, the others beginning at -1.
        """
        size, placed = self._rules.leaf_size, self._arrays.placed
        if self._weighs_vectors:
            yield LeafRows(h, self._rows, placed(leaves * size))
            return
        visited, slots = np.unique(leaves, return_inverse=True)
        slots = slots.reshape(leaves.shape)
        for part in self._leaf_chunks(len(visited)):
            # visits of leaves that come with other parts are skipped by their -1
            here = (slots >= part.start) & (slots < part.stop)
            starts = placed(np.where(here, (slots - part.start) * size, -1))
            yield LeafRows(phi, self._features_in(visited[part]), starts)

    def _contexts(self, h: Rows, phi: Rows, exclude: IntArray, room: Room) -> Contexts:
        """Return contexts with the classes (B,) that they exclude, and what remains without.

        `room` is for as many workers as there are contexts, or more.
        """
        arrays, rules, batch = self._arrays, self._rules, h.shape[0]
        log_remaining = arrays.placed(np.zeros((batch, 2)))
        contexts = Contexts(phi, exclude, log_remaining, self._shares(batch))
        excluded = to_host(exclude)
        # with nothing excluded shares stay unwritten, for no path asks for them
        if excluded.max() >= 0:
            leaves = np.maximum(excluded, 0)[:, None] // rules.leaf_size
            for visited in self._leaf_rows(h, phi, leaves):
                arrays.run(remaining_in_leaves, batch, rules, contexts, visited, room)
            arrays.run(exclude_classes, batch, self._tree, contexts)
        return contexts

    def _reach(self, phi: Rows, leaves: IntArray, log_reach: FloatArray) -> None:
        """Write the log-probabilities of reaching leaves (B, k)."""
        shares = self._shares(self._arrays.workers(leaves.size))
        asked = phi, self._arrays.placed(leaves), shares, log_reach
        self._arrays.run(reach_leaves, leaves.size, self._tree, *asked)

    def _reach_all(self, phi: Rows, log_reach: FloatArray) -> None:
        """Write the log-probabilities of reaching all leaves (B, L)."""
        reach_all_leaves(self._tree, phi, log_reach)

    def _walk(self, contexts: Contexts, draws: Draws) -> None:
        """Send the uniforms of `draws` to leaves, and fill in the rest of what they are there."""
        # the upper levels are few and visited by all: multiplied whole, before the walk
        levels = known_levels(self._num_leaves, *draws.uniforms.shape)
        known = np.empty((len(draws.uniforms), 1 << levels))
        multiply_top(contexts.phi, self._sums.nodes, levels, known)
        walk(self._tree, contexts, known, draws)

    def _parts(self, batch: int, num_leaves: int) -> list[slice]:
        """Return the parts of a batch that threads work on, whose examples visit so many leaves.

        Features of a leaf's classes are computed for a part as a whole, and so that results do not
        depend on threads, nor do those parts.
        """
        visits = batch * num_leaves * self._num_leaves.bit_length()
        parts = num_threads() if visits * (self._dim + _VISIT) > _WORTH_A_THREAD else 1
        return chunks(batch, -(-batch // parts) if self._weighs_vectors else _KERNEL_PART)

    def _leaf_chunks(self, num: int, batch: int = 0) -> list[slice]:
        """Return parts of `num` leaves whose features, and room for a batch, are held at a time."""
        numbers = max(self._dim, self._arrays.workers(2 * batch))
        return chunks(num, max(1, _BLOCK // (self._rules.leaf_size * numbers)))

    def _empty(self, shape: tuple[int, ...]) -> Rows:
        empty: Rows = self._arrays.empty(shape, self._rows.dtype)
        return empty

    def _room(self, num: int) -> Room:
        """Return room for the workers that weigh the classes of `num` leaves."""
        arrays, shape = self._arrays, (self._arrays.workers(num), self._rules.leaf_size)
        return Room(arrays.empty(shape, np.float64), arrays.empty(shape, np.float64))

    def _shares(self, num: int) -> FloatArray:
        """Return room for the shares on `num` paths."""
        levels = top(self._num_leaves) + 1
        shares: FloatArray = self._arrays.empty((num, levels, 4), np.float64)
        return shares

    def _taken(self, ids: IntArray) -> Rows:
        """Return the class vectors of some classes."""
        rows: Rows = self._arrays.take_rows(self._rows, ids)
        return rows

    def _sum_leaves(self, features: Rows, out: Rows) -> None:
        """Write the sums (k, F) of the features of k leaves, one leaf after another."""
        starts = self._arrays.placed(np.arange(0, features.shape[0], self._rules.leaf_size))
        self._arrays.run(sum_runs, starts.shape[0], features, starts, out)
