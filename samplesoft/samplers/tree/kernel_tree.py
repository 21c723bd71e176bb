"""The kernel tree: draws classes in proportion to a kernel in time logarithmic in their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from math import log2
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device import backend
from samplesoft._device.rows import largest_in_rows, last_of_each
from samplesoft._device.select import as_device, to_host
from samplesoft._jit import chunks, num_threads
from samplesoft._memory import require_fitting_option
from samplesoft._progress import progress_bar
from samplesoft._random import uniform_block
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_choice,
    as_count,
    as_flag,
    as_positive,
    writable,
)
from samplesoft.kernels.products import whole_eights
from samplesoft.samplers.base import Draw, Rows, Sampler
from samplesoft.samplers.tree.features import Features, Transform
from samplesoft.samplers.tree.leaf import (
    KERNEL,
    LEAVES,
    SOFTMAX,
    Classes,
    LeafRows,
    Workspace,
    draw_in_leaves,
    exclude_classes,
    probs_in_leaves,
)
from samplesoft.samplers.tree.sums import TreeSums, sum_changes, sum_runs
from samplesoft.samplers.tree.walk import (
    Contexts,
    Paths,
    TopProducts,
    Tree,
    TreeRules,
    descend_to_excluded,
    num_precomputed_levels,
    precompute_top_products,
    top,
    walk,
)
from samplesoft.samplers.visits import visits_of

UPDATES_OF_A_CLASS = 16  # after which its leaf is summed anew
_BLOCK_NUMBERS = 1 << 24  # numbers in the features held at a time while building
_UPDATES_TOGETHER = 256  # classes whose changes are computed together
_KERNEL_EXAMPLES = 64  # examples that share the features of the leaves which they visit
_MOST_PATHS = 1 << 21  # through the tree that are held at a time
_VISIT_COST = 1000  # cost of a visit beside its inner product, in multiplications
_THREAD_COST = 3 << 20  # multiplications below which threads cost more than they save

SMALLEST_FLOOR = 1e-150  # so that the ratio of two masses is a number above 0


class KernelTree(Sampler):
    r"""A tree of feature sums from which classes are drawn in proportion to a kernel.

    A node holds the sum of the features of the classes below it, so that its inner product with
    the features of a context is the kernel's sum over all those classes. A draw descends from the
    root by these masses, each clipped from below by `floor` for each class, to a leaf bucket of
    `leaf_size` classes, and draws one of them by its own weight.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied. Without `transform` they are the
        features themselves.
    transform : callable, optional
        Gives a new array of features (k, F) for rows (k, d), as the ``transform`` of a feature
        map does. Applied to class vectors in chunks, and to contexts.
    leaf_size : int, optional
        Classes in a bucket. Node sums take ``n * F / leaf_size`` numbers; a draw costs
        ``leaf_size * d`` multiplications in its bucket, or ``leaf_size * F`` for
        ``leaf="kernel"``. By default the power of two, at least 16, with which node sums take
        about half the memory of the class vectors: the two then cost a draw about the same.
    leaf : {"kernel", "softmax", "quadratic"}
        Weight of a class in its bucket: the inner product of features, clipped by `floor`;
        ``exp(scale * h . c)``; or ``scale * (h . c)**2 + 1``.
    scale : float
        The inverse temperature of ``"softmax"``, the factor alpha of ``"quadratic"``.
    floor : float
        Least mass of one class; taken as at least 1e-150 and at most 1e150, as masses are.
    progress : bool
        Show progress on stderr while building: a bar if that is a terminal, else lines.
    device : {"cpu", "cuda"}
        Where the tree lies, and what is drawn and computed stays. `transform` takes and gives
        arrays there.

    Attributes
    ----------
    feature_dim : int
        Number of features F.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If the tree would not fit in the memory that is left; names a `leaf_size` that would.

    Notes
    -----
    **q is exact.** The probability of a class is defined as the product of the clipped branch
    probabilities that are used, whatever the features; `sample`, `log_prob` and `probs` compute
    the same numbers. How well they follow the kernel is another matter: a branch probability has
    an error of about 1e-7 with float32 features, so that in their sums a class much lighter than
    1e-7 of its neighbours counts as the floor.

    **Exclusion is exact.** With :math:`\rho_v` the probability of reaching the excluded class
    from node v, the branch c towards it is taken with probability
    :math:`p_c (1 - \rho_c) / (1 - \rho_v)`, where :math:`1 - \rho_v = (1 - p_c) + p_c (1 -
    \rho_c)` is built upwards from the leaf, without rejection and without cancellation.

    **Draws.** All draws of one context descend together: its uniforms are split at each node,
    whose inner product is computed once. They equal those of as many independent descents.

    References
    ----------
    .. [1] G. Blanc and S. Rendle, "Adaptive Sampled Softmax with Kernel Based Sampling",
       ICML 2018, section 3.2.
    .. [2] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       section 3.1.

    Examples
    --------
    >>> import numpy as np
    >>> features = np.array([[3.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    >>> tree = KernelTree(features, leaf_size=1)
    >>> tree.probs([1.0, 0.0]).round(3)
    array([[0.75, 0.25, 0.  ]])
    >>> tree.update([2], [[4.0, 0.0]])
    >>> tree.probs([1.0, 0.0], exclude=0).round(3)
    array([[0. , 0.2, 0.8]])
    """

    def __init__(
        self,
        class_embeddings: ArrayLike,
        transform: Transform | None = None,
        *,
        leaf_size: int | None = None,
        leaf: str = "kernel",
        scale: float = 1.0,
        floor: float = 1e-9,
        progress: bool = False,
        device: str = "cpu",
    ) -> None:
        arrays = backend(as_device(device))
        # where they lie already, or copied there
        rows = arrays.float_rows("class_embeddings", class_embeddings)
        n, dim = rows.shape
        super().__init__(n, dim, rows.dtype, device)
        self.leaf = as_choice("leaf", leaf, LEAVES)
        # so that the ratio of two masses stays a number, whatever is asked for
        self.floor = min(max(as_positive("floor", floor), SMALLEST_FLOOR), 1.0 / SMALLEST_FLOOR)
        self.scale = as_positive("scale", scale)
        progress = as_flag("progress", progress)
        self.tau = self.scale if self.leaf == "softmax" else None
        if not (transform is None or callable(transform)):
            raise TypeError(
                f"`transform` must be callable, got {type(transform).__name__}; of a feature map, "
                "pass its `transform`."
            )
        self._features = Features(transform, rows)
        self.feature_dim = self._features.dim
        if leaf_size is None:
            # node sums take n F / leaf_size numbers, the vectors n d: half of that
            leaf_size = 1 << max(4, round(log2(2 * self.feature_dim / dim)))
        self.leaf_size = min(as_count("leaf_size", leaf_size), self.num_classes)
        require_fitting_option(
            f"the tree over {self.num_classes:,} classes with {self.feature_dim:,} features",
            "leaf_size",
            self.leaf_size,
            self.num_classes,
            partial(predicted_bytes, n, dim, self.feature_dim, rows.dtype.itemsize),
            arrays.available_bytes(),
        )
        # a class alone in its leaf has a share of 1 there, whatever weighs it: by its vector, as
        # the softmax does, that costs least
        kind = LEAVES[self.leaf] if self.leaf_size > 1 else SOFTMAX
        scale = self.floor if kind == KERNEL else self.scale
        self._rules = TreeRules(self.num_classes, self.leaf_size, self.floor, kind, scale)
        self._num_leaves = -(-self.num_classes // self.leaf_size)
        # by their vectors or by features: that of a class alone in its leaf needs none
        self._weighs_vectors = transform is None or kind != KERNEL
        self._rows = arrays.copied(rows)
        self._sums: Any = None
        self._build(progress)

    @property
    def nbytes(self) -> int:
        """Bytes of the class vectors, and of what is held to draw by them."""
        return int(self._sums.nodes.nbytes) + int(self._rows.nbytes)

    @property
    def num_updates(self) -> int:
        """Class vectors updated since all sums were built, as by an update of half of them."""
        return self._num_updates

    @property
    def drift(self) -> float:
        """How far updates have moved the sum at the root, relative to its norm.

        Every update adds to the root, whose rounding errors are measured against a sum in float64.
        It stays small by itself: with each update some leaves are summed anew, all of them once in
        16 updates of every class, and once features have become so much smaller than some that
        were there since the sums were built that rounding could show (by a factor of
        2,000 in float32 and 7e7 in float64), all sums are built anew.
        """
        return float(self._sums.drift)

    def rebuild(self, *, progress: bool = False) -> None:
        """Sum the features of all classes again, which ends any drift.

        Parameters
        ----------
        progress : bool
            Show progress on stderr: a bar if that is a terminal, else lines.

        Raises
        ------
        TypeError
            If `progress` is neither True nor False.
        """
        as_flag("progress", progress)
        # where memory does not allow old sums beside the new ones
        if self._sums is not None and not self._fit_again():
            self._sums = None
        self._build(progress)

    def class_embeddings(self, ids: Any = None) -> Rows:
        """Return a copy of the class vectors (k, d) of some classes, or of all."""
        if ids is None:
            return self._arrays.copied(self._rows)
        return self._arrays.take_rows(self._rows, self._arrays.ids("ids", ids, self.num_classes))

    def _build(self, progress: bool) -> None:
        self._sums, self._sizes = self._built(self._rows, progress)
        self._peak = self._sizes.max()
        self._num_updates = 0

    def _fit_again(self) -> bool:
        """Return whether there is memory for as many sums again."""
        free = self._arrays.available_bytes()
        return free is None or bool(self._sums.nodes.nbytes < free)

    def _built(self, rows: Rows, progress: bool = False) -> tuple[TreeSums, Rows]:
        """Return the sums of the features of `rows` (n, d), and the largest of each class (n,)."""
        num = self._rules.num_classes
        size = self._rules.leaf_size
        sizes = np.empty(num, rows.dtype)
        leaf_sums = self._arrays.empty((self._num_leaves, self.feature_dim), rows.dtype)
        parts = self._leaf_chunks(self._num_leaves)
        with progress_bar(
            progress, total=len(parts), unit="block", desc="building the tree"
        ) as bar:
            for part in parts:
                here = slice(part.start * size, min(part.stop * size, num))
                features = self._features(rows[here])
                self._sum_leaves(features, leaf_sums[part])
                sizes[here] = largest_in_rows(features)
                bar.update()
        return TreeSums(leaf_sums), sizes

    @property
    def _tree(self) -> Tree:
        return Tree(self._sums.nodes, self._rules)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        # on the processor, whose numbers these are: some microseconds for a batch
        uniforms = uniform_block(key, h.shape[0], m)
        ids: IntArray = self._arrays.empty(uniforms.shape, np.int64)
        return Draw(ids, self._descend(h, exclude, ids, uniforms))

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        # of a type that can be written, which the same kernel draws into
        return self._descend(h, exclude, self._arrays.copied(ids))

    def _descend(
        self, h: Rows, exclude: IntArray, ids: IntArray, uniforms: FloatArray | None = None
    ) -> FloatArray:
        """Return log-probabilities of `ids` (B, k), which uniforms draw where they are given."""
        phi = self._features(h)
        arrays = self._arrays
        is_drawn = uniforms is not None
        log_q: FloatArray = arrays.empty(ids.shape, np.float64)
        sorted_by: Any = uniforms if is_drawn else to_host(ids)

        def follow(part: slice) -> None:
            # sorted, so that neighbours have much of their paths in common
            order = np.argsort(sorted_by[part], axis=1)
            ranked = sorted_by[part][np.arange(len(order))[:, None], order]
            workspace = self._workspace(order.size)
            # the order of the passes, and why: see `walk`
            contexts = self._contexts(h[part], phi[part], exclude[part], workspace)
            if is_drawn:
                paths = self._walk_down(contexts, np.zeros_like(order), ranked)
            else:
                paths = self._walk_down(contexts, ranked // self._rules.leaf_size)
            leaves = to_host(paths.leaves).reshape(order.shape)
            # in the order of the leaves, whose rows then come into the cache once
            visits = arrays.placed(visits_of(leaves, 0, self._num_leaves))
            classes = Classes(ids=ids[part], log_q=log_q[part], order=arrays.placed(order))
            for visited in self._leaf_rows(h[part], phi[part], leaves):
                arrays.run(
                    draw_in_leaves,
                    visits.shape[0],
                    self._rules,
                    contexts,
                    visited,
                    visits,
                    is_drawn,
                    paths,
                    classes,
                    workspace,
                )

        if ids.size:
            # of one part alone: a thread shares nothing that it writes
            arrays.each(follow, self._parts(*ids.shape))
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        phi = self._features(h)
        arrays = self._arrays
        num_leaves = self._num_leaves
        log_reach = np.empty((h.shape[0], num_leaves))
        probs: FloatArray = arrays.empty((h.shape[0], self._rules.num_classes), np.float64)
        contexts = self._contexts(h, phi, exclude, self._workspace(h.shape[0]))

        def reach(part: slice) -> None:
            leaves = np.tile(np.arange(num_leaves), (part.stop - part.start, 1))
            some = Contexts._make(each[part] for each in contexts)
            paths = self._walk_down(some, leaves)
            log_reach[part] = to_host(paths.log_reach).reshape(leaves.shape)

        def fill(part: slice) -> None:
            leaves = np.arange(part.start, part.stop)[None]
            num = h.shape[0] * leaves.size
            visited = next(self._leaf_rows(h, phi, leaves))  # all come with one part
            workspace = self._workspace(num)
            arrays.run(
                probs_in_leaves,
                num,
                self._rules,
                contexts,
                visited,
                part.start,
                reached,
                workspace,
                probs,
            )

        # two passes: through the tree by examples, and inside the leaves by leaves
        arrays.each(reach, self._parts(h.shape[0], num_leaves))
        reached = arrays.placed(log_reach)
        arrays.each(fill, self._leaf_chunks(num_leaves, h.shape[0]))
        return probs

    def _log_mass(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the logarithms (B,) of the mass at the root, clipped as in all nodes."""
        phi = to_host(self._features(h))
        rules = self._rules
        contexts = self._contexts(h, phi, exclude, self._workspace(h.shape[0]))
        mass = phi.astype(np.float64) @ to_host(self._sums.nodes[0])
        least = rules.floor * rules.num_classes
        clipped = np.where(mass > least, np.minimum(mass, 1e150), least)  # NaN too
        log_mass: FloatArray = np.log(clipped) + to_host(contexts.log_remaining)[:, 1]
        return log_mass

    def _prepare(self, ids: Any, rows: Rows) -> Callable[[], None]:
        arrays = self._arrays
        leaf_size = self._rules.leaf_size
        self._rows = arrays.writable(self._rows)
        self._sizes = writable(self._sizes)
        ids, rows = last_of_each(ids, rows)
        if 2 * len(ids) >= self._rules.num_classes and self._fit_again():
            return self._prepare_rebuild(ids, rows)  # features of new and old rows would cost more
        leaves, starts = np.unique(ids // leaf_size, return_index=True)
        ends = np.append(starts, len(ids))
        change = arrays.empty((len(leaves), self.feature_dim), rows.dtype)
        sizes = np.empty(len(ids), rows.dtype)
        # leaves are never cut: a part ends with its last leaf, and so may be larger by one
        at_a_time = min(_UPDATES_TOGETHER, _BLOCK_NUMBERS // (2 * self.feature_dim) - leaf_size + 1)
        edges = np.searchsorted(starts, np.arange(0, len(ids), max(1, at_a_time)))
        parts = list(pairwise(np.unique([*edges, len(leaves)])))
        totals = np.zeros((len(parts), self.feature_dim))

        def read(i: int) -> None:
            part = slice(*parts[i])
            some = slice(*ends[list(parts[i])])
            num = some.stop - some.start
            # in one call: BLAS may round the same row otherwise in a batch of another size
            before = arrays.take_rows(self._rows, ids[some])
            features = self._features(arrays.joined(rows[some], before))
            new = features[:num]
            old = features[num:]
            sizes[some] = largest_in_rows(new)
            # in float64, before the difference is rounded to the type of the features
            totals[i] = arrays.column_sums(new)[0] - arrays.column_sums(old)[0]
            begins = arrays.placed(starts[part] - starts[part.start])
            arrays.run(sum_changes, len(begins), new, old, begins, change[part])

        arrays.each(read, range(len(parts)))
        # in the order of the parts, so that the total does not depend on threads
        add = self._sums.prepare(leaves, change, totals.sum(axis=0))
        if self._precision_lost(ids, sizes) and self._fit_again():
            return self._prepare_rebuild(ids, rows)
        # errors are those of the tree before this update; sums of changes commute
        renew = self._prepare_renewal(len(ids))

        def commit() -> None:
            add()
            renew()
            self._sizes[ids] = sizes
            self._peak = max(self._peak, sizes.max())
            arrays.put_rows(rows, ids, self._rows)
            self._num_updates += len(ids)

        return commit

    def _prepare_rebuild(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        all_rows = self._arrays.copied(self._rows)
        self._arrays.put_rows(rows, ids, all_rows)
        sums, sizes = self._built(all_rows)

        def commit() -> None:
            self._rows = all_rows
            self._sums = sums
            self._sizes = sizes
            self._peak = sizes.max()
            self._num_updates = 0

        return commit

    def _precision_lost(self, ids: IntArray, sizes: Rows) -> bool:
        """Return whether the largest features so far have cost those of now half their digits.

        Sums are rounded in proportion to the largest numbers that they have held, and keep those
        errors when such numbers leave again, as they do when classes (k,) get features that are at
        most `sizes` (k,).
        """
        peak = float(max(self._peak, sizes.max()))
        digits = np.finfo(sizes.dtype).nmant // 2
        least = peak / 2.0**digits
        # nearly always the new features say so by themselves, which spares a pass over all classes
        if sizes.max() >= least:
            return False
        return bool(np.delete(self._sizes, ids).max(initial=0.0) < least)

    def _prepare_renewal(self, num: int) -> Callable[[], None]:
        """Return what ends drift in the leaves whose turn comes with the next `num` updates."""
        leaves = self._leaves_due(num)
        errors = self._arrays.empty((len(leaves), self.feature_dim), self._rows.dtype)
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
        first = self._num_updates // each
        last = (self._num_updates + num) // each
        return np.sort(np.arange(first, last) % self._num_leaves)

    def _features_in(self, leaves: IntArray) -> Rows:
        """Return the features of the classes in some leaves, one leaf after another."""
        size = self._rules.leaf_size
        ids: IntArray = (leaves[:, None] * size + np.arange(size)).reshape(-1)
        ids = ids[ids < self._rules.num_classes]
        return self._features(self._arrays.take_rows(self._rows, ids))

    def _leaf_rows(self, h: Rows, phi: Rows, leaves: IntArray) -> Iterator[LeafRows]:
        """Yield what is multiplied in `leaves` (B, k): class vectors, or features of classes.

        Features come for some leaves at a time, the others beginning at -1.
        """
        size = self._rules.leaf_size
        placed = self._arrays.placed
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

    def _contexts(self, h: Rows, phi: Rows, exclude: IntArray, workspace: Workspace) -> Contexts:
        """Return contexts with the classes (B,) that they exclude, and what remains without.

        `workspace` is for as many workers as there are contexts, or more.
        """
        arrays = self._arrays
        rules = self._rules
        batch = h.shape[0]
        levels = top(self._num_leaves) + 1
        contexts = Contexts(
            phi=phi,
            excluded=exclude,
            log_remaining=arrays.placed(np.zeros((batch, 2))),
            branches=arrays.empty((batch, levels, 2), np.float64),
            left_shares=arrays.empty((batch, levels), np.float64),
        )
        excluded = to_host(exclude)
        # with nothing excluded shares stay unwritten, for no path asks for them
        if excluded.max() >= 0:
            products = self._top_products(phi, batch, num_paths=1)
            masses = arrays.empty(batch, np.float64)
            arrays.run(descend_to_excluded, batch, self._tree, contexts, products, masses)
            leaves = np.maximum(excluded, 0)[:, None] // rules.leaf_size
            for visited in self._leaf_rows(h, phi, leaves):
                arrays.run(exclude_classes, batch, self._tree, contexts, visited, workspace)
        return contexts

    def _walk_down(self, contexts: Contexts, leaves: IntArray, uniforms: Any = None) -> Paths:
        """Return sorted paths (B k,) at their leaves, to which uniforms lead where they are given.

        Without uniforms (B, k) they go to `leaves` (B, k).
        """
        arrays = self._arrays
        num = leaves.size
        is_drawn = uniforms is not None
        paths = Paths(
            leaves=arrays.placed(leaves.reshape(-1)),
            run_ends=arrays.empty(num, np.int64),
            uniforms=arrays.placed(uniforms.reshape(-1) if is_drawn else np.empty(num)),
            log_reach=arrays.empty(num, np.float64),
            factors=arrays.empty(num, np.float64),
            masses=arrays.empty(num, np.float64),
        )
        batch, num_paths = leaves.shape
        rows = max(batch, arrays.workers(num))  # a worker for each example, or for each path
        products = self._top_products(contexts.phi, rows, num_paths)
        arrays.run(walk, rows, self._tree, contexts, products, is_drawn, paths)
        return paths

    def _top_products(self, phi: Rows, rows: int, num_paths: int) -> TopProducts:
        """Return the products of contexts (B, F) with nodes of the upper levels, in some `rows`.

        Each context has `num_paths` paths. Where a row is of one of them, it is of the total alone.
        """
        arrays = self._arrays
        num_leaves = self._num_leaves
        batch = phi.shape[0]
        levels = num_precomputed_levels(num_leaves, batch, num_paths) if rows == batch else 0
        products = TopProducts(
            values=arrays.empty((rows, 1 << levels), np.float64), above=top(num_leaves) - levels
        )
        arrays.run(precompute_top_products, rows, phi, self._sums.nodes, products)
        return products

    def _parts(self, batch: int, num_leaves: int) -> list[slice]:
        """Return the parts of a batch that are worked on, whose examples visit so many leaves.

        Features of a leaf's classes are computed for a part as a whole, and so that results do not
        depend on threads, nor do those parts.
        """
        visits = batch * num_leaves * self._num_leaves.bit_length()
        parts = num_threads() if visits * (self.feature_dim + _VISIT_COST) > _THREAD_COST else 1
        size = min(-(-batch // parts), max(1, _MOST_PATHS // num_leaves))
        levels = top(self._num_leaves) + 1
        numbers = self.feature_dim + 2 * num_leaves * (self.leaf_size + 2 * levels)
        return self._arrays.split(
            batch, size if self._weighs_vectors else _KERNEL_EXAMPLES, numbers
        )

    def _leaf_chunks(self, num: int, batch: int = 0) -> list[slice]:
        """Return parts of `num` leaves, whose features are held at a time with those of a batch."""
        numbers = max(self.feature_dim, self._arrays.workers(2 * batch))
        return chunks(num, max(1, _BLOCK_NUMBERS // (self._rules.leaf_size * numbers)))

    def _workspace(self, num: int) -> Workspace:
        """Return a workspace for the workers that weigh the classes of `num` leaves."""
        arrays = self._arrays
        shape = arrays.workers(num), whole_eights(self._rules.leaf_size)
        return Workspace(arrays.empty(shape, np.float64), arrays.empty(shape, np.float64))

    def _sum_leaves(self, features: Rows, out: Rows) -> None:
        """Write the sums (k, F) of the features of k leaves, one leaf after another."""
        starts = self._arrays.placed(np.arange(0, features.shape[0], self._rules.leaf_size))
        self._arrays.run(sum_runs, starts.shape[0], features, starts, out)


def predicted_bytes(
    num_classes: int, dim: int, feature_dim: int, itemsize: int, leaf_size: int
) -> int:
    """Return the bytes that the tree and its building take."""
    sums = -(-num_classes // leaf_size) * feature_dim
    block = min(num_classes * feature_dim, max(_BLOCK_NUMBERS, leaf_size * feature_dim))
    return (sums + num_classes * dim + 2 * block) * itemsize
