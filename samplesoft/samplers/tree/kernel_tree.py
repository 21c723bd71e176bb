"""The kernel tree: draws in proportion to a kernel, in time logarithmic in the class count."""

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
from samplesoft.kernels.products import round_up_to_8
from samplesoft.samplers.base import Draw, Rows, Sampler
from samplesoft.samplers.tree.features import Features, Transform
from samplesoft.samplers.tree.leaf import (
    KERNEL,
    LEAF_WEIGHTS,
    SOFTMAX,
    ClassLogProbs,
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
    root_level,
    walk,
)
from samplesoft.samplers.visits import group_runs_by_node

UPDATES_BEFORE_RENEWAL = 16  # updates per class after which all leaves have been summed again
_CHUNK_VALUES = 1 << 24  # feature values in memory at a time while building
_UPDATE_CHUNK_CLASSES = 256  # classes whose changes are computed together
_KERNEL_CHUNK_EXAMPLES = 64  # examples that share the features of the leaves they visit
_MAX_PATHS = 1 << 21  # paths through the tree in memory at a time
_VISIT_COST = 1000  # overhead of visiting a node, in multiplications
_MIN_THREADED_COST = 3 << 20  # multiplications below which threads cost more than they save

MIN_FLOOR = 1e-150  # so that the ratio of two masses does not underflow


class KernelTree(Sampler):
    r"""A tree of feature sums from which classes are drawn in proportion to a kernel.

    A node holds the sum of the features of the classes below it. Its inner product with the
    features of a context is therefore the sum of the kernel over these classes, its mass. A draw
    descends from the root: each child is chosen in proportion to its mass, clipped from below at
    `floor` times its number of classes. In the leaf, a bucket of `leaf_size` classes, one class is
    drawn by its own weight.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied. Without `transform` the rows are the
        features.
    transform : callable, optional
        Maps rows (k, d) to a new array of features (k, F), as the ``transform`` of a feature
        map does. Applied to class vectors in chunks, and to contexts.
    leaf_size : int, optional
        Classes in a bucket. Node sums hold ``n * F / leaf_size`` values; a draw costs
        ``leaf_size * d`` multiplications in its bucket, or ``leaf_size * F`` for
        ``leaf="kernel"``. By default the power of two, at least 16, with which node sums take
        about half the memory of the class vectors. The tree and the leaf then cost a draw about the
        same.
    leaf : {"kernel", "softmax", "quadratic"}
        Weight of a class in its bucket: the inner product of features, clipped by `floor`;
        ``exp(scale * h . c)``; or ``scale * (h . c)**2 + 1``.
    scale : float
        The inverse temperature of ``"softmax"``, the factor alpha of ``"quadratic"``.
    floor : float
        Minimum mass of a class, clipped to [1e-150, 1e150].
    progress : bool
        Show progress on stderr while building: a bar if that is a terminal, else lines.
    device : {"cpu", "cuda"}
        Device of the tree and of all results. `transform` maps arrays of that device to arrays of
        that device.

    Attributes
    ----------
    feature_dim : int
        Number of features F.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.
    MemoryError
        If the tree does not fit in the available memory; the message names a `leaf_size` that does.

    Notes
    -----
    **q is exact.** The probability of a class is the product of the clipped branch probabilities
    on its path and of its probability in the leaf, whatever the features. `sample`, `log_prob` and
    `probs` compute the same values. How well q follows the kernel is a different question. A
    branch probability has an error of about 1e-7 with float32 features. A class with less than
    1e-7 of the mass of its neighbours is therefore treated like one at the floor.

    **Exclusion is exact.** With :math:`\rho_v` the probability of reaching the excluded class
    from node v, the branch c towards it is taken with probability
    :math:`p_c (1 - \rho_c) / (1 - \rho_v)`, where :math:`1 - \rho_v = (1 - p_c) + p_c (1 -
    \rho_c)` is built upwards from the leaf, without rejection and without cancellation.

    **Draws.** All draws of one context descend together. Their sorted uniforms are split at each
    node, whose inner product is computed once. The result equals that of independent descents.

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
        # on that device already, or copied there
        rows = arrays.float_rows("class_embeddings", class_embeddings)
        n, dim = rows.shape
        super().__init__(n, dim, rows.dtype, device)
        self.leaf = as_choice("leaf", leaf, LEAF_WEIGHTS)
        # the ratio of two masses must stay finite and above 0
        self.floor = min(max(as_positive("floor", floor), MIN_FLOOR), 1.0 / MIN_FLOOR)
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
            # node sums hold n F / leaf_size values, the vectors n d: half of that
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
        # a class alone in its leaf has probability 1 there, whatever its weight; the softmax costs
        # least, because it needs no features
        weight_kind = LEAF_WEIGHTS[self.leaf] if self.leaf_size > 1 else SOFTMAX
        scale = self.floor if weight_kind == KERNEL else self.scale
        self._rules = TreeRules(self.num_classes, self.leaf_size, self.floor, weight_kind, scale)
        self._num_leaves = -(-self.num_classes // self.leaf_size)
        # whether leaves are weighed by class vectors rather than by features
        self._weighs_vectors = transform is None or weight_kind != KERNEL
        self._rows = arrays.copied(rows)
        self._sums: Any = None
        self._build(progress)

    @property
    def nbytes(self) -> int:
        """Bytes of the class vectors and of the node sums."""
        return int(self._sums.nodes.nbytes) + int(self._rows.nbytes)

    @property
    def num_updates(self) -> int:
        """Number of vectors updated since all sums were built, at first or by a large update."""
        return self._num_updates

    @property
    def drift(self) -> float:
        """Rounding error that updates have left in the sum at the root, relative to its norm.

        Every update adds to the root; the reference is a sum in float64. The drift is bounded.
        Every update also sums some leaves again, all of them once in 16 updates per class. All
        sums are built again once features have become so much smaller than the largest since the
        last build that rounding could show: by a factor of 2,000 in float32 and 7e7 in float64.
        """
        return float(self._sums.drift)

    def rebuild(self, *, progress: bool = False) -> None:
        """Sum the features of all classes again, which removes any drift.

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
        # if memory does not hold old and new sums at once, the old ones are freed first
        if self._sums is not None and not self._has_memory_to_rebuild():
            self._sums = None
        self._build(progress)

    def class_embeddings(self, ids: Any = None) -> Rows:
        """Return a copy of the class vectors (k, d) with these ids, or of all."""
        if ids is None:
            return self._arrays.copied(self._rows)
        return self._arrays.take_rows(self._rows, self._arrays.ids("ids", ids, self.num_classes))

    def _build(self, progress: bool) -> None:
        self._sums, self._max_features = self._compute_sums(self._rows, progress)
        self._peak_feature = self._max_features.max()
        self._num_updates = 0

    def _has_memory_to_rebuild(self) -> bool:
        """Return whether memory allows a second copy of the node sums."""
        free = self._arrays.available_bytes()
        return free is None or bool(self._sums.nodes.nbytes < free)

    def _compute_sums(self, rows: Rows, progress: bool = False) -> tuple[TreeSums, Rows]:
        """Return the node sums for `rows` (n, d), and the largest feature of each class (n,)."""
        num_classes = self._rules.num_classes
        leaf_size = self._rules.leaf_size
        max_features = np.empty(num_classes, rows.dtype)
        leaf_sums = self._arrays.empty((self._num_leaves, self.feature_dim), rows.dtype)
        leaf_chunks = self._leaf_chunks(self._num_leaves)
        with progress_bar(
            progress, total=len(leaf_chunks), unit="block", desc="building the tree"
        ) as bar:
            for chunk in leaf_chunks:
                classes = slice(chunk.start * leaf_size, min(chunk.stop * leaf_size, num_classes))
                features = self._features(rows[classes])
                self._sum_leaves(features, leaf_sums[chunk])
                max_features[classes] = largest_in_rows(features)
                bar.update()
        return TreeSums(leaf_sums), max_features

    @property
    def _tree(self) -> Tree:
        return Tree(self._sums.nodes, self._rules)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        # drawn on the CPU, so that all devices use the same uniforms: microseconds for a batch
        uniforms = uniform_block(key, h.shape[0], m)
        ids: IntArray = self._arrays.empty(uniforms.shape, np.int64)
        return Draw(ids, self._descend(h, exclude, ids, uniforms))

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        # a copy that is writable, for the kernel that draws into it as well
        return self._descend(h, exclude, self._arrays.copied(ids))

    def _descend(
        self, h: Rows, exclude: IntArray, ids: IntArray, uniforms: FloatArray | None = None
    ) -> FloatArray:
        """Return log-probabilities of `ids` (B, k), drawn here if `uniforms` are given."""
        phi = self._features(h)
        arrays = self._arrays
        is_drawn = uniforms is not None
        log_q: FloatArray = arrays.empty(ids.shape, np.float64)
        sorted_by: Any = uniforms if is_drawn else to_host(ids)

        def process_chunk(chunk: slice) -> None:
            # sorted, so that paths that share nodes are adjacent
            order = np.argsort(sorted_by[chunk], axis=1)
            ranked = sorted_by[chunk][np.arange(len(order))[:, None], order]
            workspace = self._workspace(order.size)
            # for the order of the passes see `walk`
            contexts = self._contexts(h[chunk], phi[chunk], exclude[chunk], workspace)
            if is_drawn:
                paths = self._walk_down(contexts, np.zeros_like(order), ranked)
            else:
                paths = self._walk_down(contexts, ranked // self._rules.leaf_size)
            leaves = to_host(paths.leaves).reshape(order.shape)
            # in the order of leaves, so that the rows of a leaf are in the cache for all visits
            visits = arrays.to_device(group_runs_by_node(leaves, 0, self._num_leaves))
            classes = ClassLogProbs(
                ids=ids[chunk], log_q=log_q[chunk], order=arrays.to_device(order)
            )
            for visited in self._leaf_rows(h[chunk], phi[chunk], leaves):
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
            # all writes of a thread go to its own chunk
            arrays.each(process_chunk, self._batch_chunks(*ids.shape))
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        phi = self._features(h)
        arrays = self._arrays
        num_leaves = self._num_leaves
        log_reach = np.empty((h.shape[0], num_leaves))
        probs: FloatArray = arrays.empty((h.shape[0], self._rules.num_classes), np.float64)
        contexts = self._contexts(h, phi, exclude, self._workspace(h.shape[0]))

        def write_log_reach(chunk: slice) -> None:
            leaves = np.tile(np.arange(num_leaves), (chunk.stop - chunk.start, 1))
            chunk_contexts = Contexts._make(each[chunk] for each in contexts)
            paths = self._walk_down(chunk_contexts, leaves)
            log_reach[chunk] = to_host(paths.log_reach).reshape(leaves.shape)

        def write_probs(chunk: slice) -> None:
            leaves = np.arange(chunk.start, chunk.stop)[None]
            num = h.shape[0] * leaves.size
            visited = next(self._leaf_rows(h, phi, leaves))  # one chunk of leaves: one result
            workspace = self._workspace(num)
            arrays.run(
                probs_in_leaves,
                num,
                self._rules,
                contexts,
                visited,
                chunk.start,
                log_reach_on_device,
                workspace,
                probs,
            )

        # two passes: the tree in chunks of examples, then the leaves in chunks of leaves
        arrays.each(write_log_reach, self._batch_chunks(h.shape[0], num_leaves))
        log_reach_on_device = arrays.to_device(log_reach)
        arrays.each(write_probs, self._leaf_chunks(num_leaves, h.shape[0]))
        return probs

    def _log_mass(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the log-masses (B,) of the root, clipped as in all nodes."""
        phi = to_host(self._features(h))
        rules = self._rules
        contexts = self._contexts(h, phi, exclude, self._workspace(h.shape[0]))
        mass = phi.astype(np.float64) @ to_host(self._sums.nodes[0])
        min_mass = rules.floor * rules.num_classes
        clipped = np.where(mass > min_mass, np.minimum(mass, 1e150), min_mass)  # NaN too
        log_mass: FloatArray = np.log(clipped) + to_host(contexts.log_remaining)[:, 1]
        return log_mass

    def _prepare_update(self, ids: Any, rows: Rows) -> Callable[[], None]:
        arrays = self._arrays
        leaf_size = self._rules.leaf_size
        self._rows = arrays.writable(self._rows)
        self._max_features = writable(self._max_features)
        ids, rows = last_of_each(ids, rows)
        if 2 * len(ids) >= self._rules.num_classes and self._has_memory_to_rebuild():
            return self._prepare_rebuild(ids, rows)  # cheaper than features of new and old rows
        leaves, starts = np.unique(ids // leaf_size, return_index=True)
        ends = np.append(starts, len(ids))
        change = arrays.empty((len(leaves), self.feature_dim), rows.dtype)
        max_features = np.empty(len(ids), rows.dtype)
        # chunks end at the end of a leaf, and so may be larger by up to one leaf
        chunk_size = min(
            _UPDATE_CHUNK_CLASSES, _CHUNK_VALUES // (2 * self.feature_dim) - leaf_size + 1
        )
        bounds = np.searchsorted(starts, np.arange(0, len(ids), max(1, chunk_size)))
        chunk_bounds = list(pairwise(np.unique([*bounds, len(leaves)])))
        totals = np.zeros((len(chunk_bounds), self.feature_dim))

        def compute_changes(i: int) -> None:
            chunk_leaves = slice(*chunk_bounds[i])
            chunk_classes = slice(*ends[list(chunk_bounds[i])])
            num = chunk_classes.stop - chunk_classes.start
            # one call for both: BLAS may round a row differently in a batch of another size
            before = arrays.take_rows(self._rows, ids[chunk_classes])
            features = self._features(arrays.joined(rows[chunk_classes], before))
            new = features[:num]
            old = features[num:]
            max_features[chunk_classes] = largest_in_rows(new)
            # in float64, before the difference is rounded to the dtype of the features
            totals[i] = arrays.column_sums(new)[0] - arrays.column_sums(old)[0]
            offsets = arrays.to_device(starts[chunk_leaves] - starts[chunk_leaves.start])
            arrays.run(sum_changes, len(offsets), new, old, offsets, change[chunk_leaves])

        arrays.each(compute_changes, range(len(chunk_bounds)))
        # in the order of the chunks, so that the total does not depend on threads
        add = self._sums.prepare_update(leaves, change, totals.sum(axis=0))
        if self._precision_lost(ids, max_features) and self._has_memory_to_rebuild():
            return self._prepare_rebuild(ids, rows)
        # computed on the tree before this update; the two changes of sums commute
        renew = self._prepare_renewal(len(ids))

        def commit() -> None:
            add()
            renew()
            self._max_features[ids] = max_features
            self._peak_feature = max(self._peak_feature, max_features.max())
            arrays.put_rows(rows, ids, self._rows)
            self._num_updates += len(ids)

        return commit

    def _prepare_rebuild(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        all_rows = self._arrays.copied(self._rows)
        self._arrays.put_rows(rows, ids, all_rows)
        sums, max_features = self._compute_sums(all_rows)

        def commit() -> None:
            self._rows = all_rows
            self._sums = sums
            self._max_features = max_features
            self._peak_feature = max_features.max()
            self._num_updates = 0

        return commit

    def _precision_lost(self, ids: IntArray, max_features: Rows) -> bool:
        """Return whether features are now so small that node sums have lost half their digits.

        Rounding errors of node sums are relative to the largest values that they have held since
        the last build. They remain when classes (k,) change to features up to `max_features` (k,).
        """
        peak = float(max(self._peak_feature, max_features.max()))
        digits = np.finfo(max_features.dtype).nmant // 2
        threshold = peak / 2.0**digits
        # nearly always the new features are large enough, and no pass over all classes is needed
        if max_features.max() >= threshold:
            return False
        return bool(np.delete(self._max_features, ids).max(initial=0.0) < threshold)

    def _prepare_renewal(self, num: int) -> Callable[[], None]:
        """Return a function that removes the drift of the leaves due within `num` more updates."""
        leaves = self._leaves_due(num)
        errors = self._arrays.empty((len(leaves), self.feature_dim), self._rows.dtype)
        for chunk in self._leaf_chunks(len(leaves)):
            self._sum_leaves(self._features_in(leaves[chunk]), errors[chunk])
            self._sums.subtract(leaves[chunk], errors[chunk])
        return partial(self._sums.add, leaves, errors) if len(leaves) else lambda: None

    def _leaves_due(self, num: int) -> IntArray:
        """Return the sorted leaves (k,) whose sums are renewed during the next `num` updates.

        Leaves take turns: with n classes, each is renewed once in about ``n *
        UPDATES_BEFORE_RENEWAL`` updates.
        """
        # turns depend on the number of updates, not on their classes: a class that is updated all
        # the time affects only nodes on its path, and taking turns reaches all nodes
        updates_per_leaf = UPDATES_BEFORE_RENEWAL * self._rules.leaf_size
        first = self._num_updates // updates_per_leaf
        last = (self._num_updates + num) // updates_per_leaf
        return np.sort(np.arange(first, last) % self._num_leaves)

    def _features_in(self, leaves: IntArray) -> Rows:
        """Return the features of the classes in these leaves, leaf by leaf."""
        size = self._rules.leaf_size
        ids: IntArray = (leaves[:, None] * size + np.arange(size)).reshape(-1)
        ids = ids[ids < self._rules.num_classes]
        return self._features(self._arrays.take_rows(self._rows, ids))

    def _leaf_rows(self, h: Rows, phi: Rows, leaves: IntArray) -> Iterator[LeafRows]:
        """Yield the queries and rows for `leaves` (B, k): class vectors, or features of classes.

        Features are computed for a chunk of leaves at a time; other leaves have the offset -1.
        """
        size = self._rules.leaf_size
        to_device = self._arrays.to_device
        if self._weighs_vectors:
            yield LeafRows(h, self._rows, to_device(leaves * size))
            return
        visited, slots = np.unique(leaves, return_inverse=True)
        slots = slots.reshape(leaves.shape)
        for chunk in self._leaf_chunks(len(visited)):
            # leaves of other chunks are skipped
            in_chunk = (slots >= chunk.start) & (slots < chunk.stop)
            offsets = to_device(np.where(in_chunk, (slots - chunk.start) * size, -1))
            yield LeafRows(phi, self._features_in(visited[chunk]), offsets)

    def _contexts(self, h: Rows, phi: Rows, exclude: IntArray, workspace: Workspace) -> Contexts:
        """Return contexts with their excluded classes (B,), and the probabilities of exclusion.

        `workspace` has a row for each context, or more.
        """
        arrays = self._arrays
        rules = self._rules
        batch = h.shape[0]
        levels = root_level(self._num_leaves) + 1
        contexts = Contexts(
            phi=phi,
            excluded=exclude,
            log_remaining=arrays.to_device(np.zeros((batch, 2))),
            branches=arrays.empty((batch, levels, 2), np.float64),
            left_probs=arrays.empty((batch, levels), np.float64),
        )
        excluded = to_host(exclude)
        # without exclusion the branch probabilities are not written, because no path reads them
        if excluded.max() >= 0:
            products = self._top_products(phi, batch, num_paths=1)
            masses = arrays.empty(batch, np.float64)
            arrays.run(descend_to_excluded, batch, self._tree, contexts, products, masses)
            leaves = np.maximum(excluded, 0)[:, None] // rules.leaf_size
            for visited in self._leaf_rows(h, phi, leaves):
                arrays.run(exclude_classes, batch, self._tree, contexts, visited, workspace)
        return contexts

    def _walk_down(self, contexts: Contexts, leaves: IntArray, uniforms: Any = None) -> Paths:
        """Return sorted paths (B k,) at the leaves that `uniforms` (B, k) draw.

        Without uniforms they go to `leaves` (B, k).
        """
        arrays = self._arrays
        num = leaves.size
        is_drawn = uniforms is not None
        paths = Paths(
            leaves=arrays.to_device(leaves.reshape(-1)),
            run_ends=arrays.empty(num, np.int64),
            uniforms=arrays.to_device(uniforms.reshape(-1) if is_drawn else np.empty(num)),
            log_reach=arrays.empty(num, np.float64),
            factors=arrays.empty(num, np.float64),
            masses=arrays.empty(num, np.float64),
        )
        batch, num_paths = leaves.shape
        rows = max(batch, arrays.workers(num))  # for each example, on a GPU for each path
        products = self._top_products(contexts.phi, rows, num_paths)
        arrays.run(walk, rows, self._tree, contexts, products, is_drawn, paths)
        return paths

    def _top_products(self, phi: Rows, rows: int, num_paths: int) -> TopProducts:
        """Return the products of contexts (B, F) with nodes of the upper levels, in `rows` rows.

        Each context has `num_paths` paths. If a row is for one path, it holds the total alone.
        """
        arrays = self._arrays
        num_leaves = self._num_leaves
        batch = phi.shape[0]
        levels = num_precomputed_levels(num_leaves, batch, num_paths) if rows == batch else 0
        products = TopProducts(
            values=arrays.empty((rows, 1 << levels), np.float64),
            level_below=root_level(num_leaves) - levels,
        )
        arrays.run(precompute_top_products, rows, phi, self._sums.nodes, products)
        return products

    def _batch_chunks(self, batch: int, num_leaves: int) -> list[slice]:
        """Return chunks of a batch whose examples visit `num_leaves` leaves each.

        With weights from features, chunks do not depend on the number of threads: features of a
        leaf's classes are computed for a chunk at once, and may round differently.
        """
        visits = batch * num_leaves * self._num_leaves.bit_length()
        num_chunks = (
            num_threads() if visits * (self.feature_dim + _VISIT_COST) > _MIN_THREADED_COST else 1
        )
        size = min(-(-batch // num_chunks), max(1, _MAX_PATHS // num_leaves))
        levels = root_level(self._num_leaves) + 1
        values_per_example = self.feature_dim + 2 * num_leaves * (self.leaf_size + 2 * levels)
        return self._arrays.split(
            batch, size if self._weighs_vectors else _KERNEL_CHUNK_EXAMPLES, values_per_example
        )

    def _leaf_chunks(self, num: int, batch: int = 0) -> list[slice]:
        """Return chunks of `num` leaves whose features, and those of a batch, fit in memory."""
        values_per_class = max(self.feature_dim, self._arrays.workers(2 * batch))
        return chunks(num, max(1, _CHUNK_VALUES // (self._rules.leaf_size * values_per_class)))

    def _workspace(self, num: int) -> Workspace:
        """Return a workspace to weigh the classes of `num` leaves at a time."""
        arrays = self._arrays
        shape = arrays.workers(num), round_up_to_8(self._rules.leaf_size)
        return Workspace(arrays.empty(shape, np.float64), arrays.empty(shape, np.float64))

    def _sum_leaves(self, features: Rows, out: Rows) -> None:
        """Write the sums (k, F) of features that are grouped by leaf."""
        offsets = self._arrays.to_device(np.arange(0, features.shape[0], self._rules.leaf_size))
        self._arrays.run(sum_runs, offsets.shape[0], features, offsets, out)


def predicted_bytes(
    num_classes: int, dim: int, feature_dim: int, itemsize: int, leaf_size: int
) -> int:
    """Return the peak memory of building the tree, in bytes."""
    node_values = -(-num_classes // leaf_size) * feature_dim
    chunk = min(num_classes * feature_dim, max(_CHUNK_VALUES, leaf_size * feature_dim))
    return (node_values + num_classes * dim + 2 * chunk) * itemsize
