"""The kernel tree, which draws in proportion to a kernel in O(log n) time for n classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from math import log2
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device import backend
from samplesoft._device.rows import largest_in_rows, last_row_of_each_id
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
    TreeParameters,
    compute_excluded_path_probs,
    num_precomputed_levels,
    precompute_top_products,
    root_level,
    walk,
)
from samplesoft.samplers.visits import group_runs_by_node

# number of updates per class after which the sums of all leaves have been computed again
UPDATES_BEFORE_RENEWAL = 16
# max number of feature values in memory at a time; a single leaf may have more
_CHUNK_VALUES = 1 << 24
_UPDATE_CHUNK_CLASSES = 256  # number of updated classes whose features are computed together
# number of examples that are processed together if weights in leaves are computed from features
_KERNEL_CHUNK_EXAMPLES = 64
_MAX_PATHS = 1 << 21  # max number of paths from the root to a leaf in memory at a time
_VISIT_COST = 1000  # cost of visiting a node in addition to its product, in multiplications
_MIN_THREADED_COST = 3 << 20  # number of multiplications below which one thread is the fastest

# min value of `floor`: large enough that the ratio of two masses does not underflow
MIN_FLOOR = 1e-150


class KernelTree(Sampler):
    r"""A tree of feature sums from which classes are drawn in proportion to a kernel.

    A node holds the sum of the features of the classes below it. The inner product of this sum with
    the features of a context is the mass of the node: the sum of the kernel over these classes. A
    draw descends from the root. At each node a child is chosen in proportion to its mass, clipped
    from below at `floor` times the number of classes of the child. In the leaf, a bucket of
    `leaf_size` classes, a class is drawn in proportion to its weight. `leaf` chooses the weight.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied. Without `transform` the rows are the
        features.
    transform : callable, optional
        Function from rows (k, d) to a new array of features (k, F), such as the ``transform`` of a
        feature map. It is applied to class vectors in chunks, and to contexts.
    leaf_size : int, optional
        Number of classes in a bucket. Node sums hold ``n * F / leaf_size`` values; a draw costs
        ``leaf_size * d`` multiplications in its bucket, or ``leaf_size * F`` for
        ``leaf="kernel"``. By default the power of two, at least 16, with which node sums take
        about half the memory of the class vectors. A draw then takes about the same time in the
        tree as in the leaf.
    leaf : {"kernel", "softmax", "quadratic"}
        Weight of a class in its bucket: for ``"kernel"`` the inner product of features, but at
        least `floor`; for ``"softmax"`` ``exp(scale * h . c)``; for ``"quadratic"``
        ``scale * (h . c)**2 + 1``.
    scale : float
        The inverse temperature of ``"softmax"``, the factor alpha of ``"quadratic"``.
    floor : float
        Minimum mass of a class, clipped to [1e-150, 1e150].
    progress : bool
        Show progress on stderr while building: a bar if stderr is a terminal, otherwise lines.
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
    `probs` compute the same values. This does not mean that q follows the kernel: with float32
    features, a branch probability differs from that of the kernel by about 1e-7. A class with less
    than 1e-7 of the mass of its neighbours is therefore treated like a class at the floor.

    **Exclusion is exact.** Let :math:`\rho_v` be the probability of reaching the excluded class
    from node v, and :math:`p_c` the probability of the branch to the child c of v that contains the
    class. With exclusion this branch has the probability
    :math:`p_c (1 - \rho_c) / (1 - \rho_v)`, where :math:`1 - \rho_v = (1 - p_c) + p_c (1 -
    \rho_c)` is computed upwards from the leaf. Nothing is rejected, and nothing cancels.

    **Draws.** All draws of one context descend together. Their sorted uniforms are split at each
    node, so that its inner product is computed only once. The draws are the same as if each
    descended separately.

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
        rows = arrays.float_rows("class_embeddings", class_embeddings)
        n, dim = rows.shape
        super().__init__(n, dim, rows.dtype, device)
        self.leaf = as_choice("leaf", leaf, LEAF_WEIGHTS)

        # clipped, so that the ratio of two masses stays finite and above 0
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
            # node sums hold n F / leaf_size values, and class vectors n d values: with this leaf
            # size the ratio is about 1 / 2
            leaf_size = 1 << max(4, round(log2(2 * self.feature_dim / dim)))

        self.leaf_size = min(as_count("leaf_size", leaf_size), self.num_classes)
        require_fitting_option(
            f"the tree over {self.num_classes:,} classes with {self.feature_dim:,} features",
            "leaf_size",
            self.leaf_size,
            self.num_classes,
            partial(peak_build_bytes, n, dim, self.feature_dim, rows.dtype.itemsize),
            arrays.available_bytes(),
        )

        # if each leaf has one class, all weights give the same probabilities; the softmax is the
        # fastest, because it needs no features of classes
        weight_kind = LEAF_WEIGHTS[self.leaf] if self.leaf_size > 1 else SOFTMAX
        scale = self.floor if weight_kind == KERNEL else self.scale
        self._parameters = TreeParameters(
            self.num_classes, self.leaf_size, self.floor, weight_kind, scale
        )
        self._num_leaves = -(-self.num_classes // self.leaf_size)

        # whether weights in leaves are computed from class vectors; otherwise from features
        self._leaf_weights_use_vectors = transform is None or weight_kind != KERNEL

        self._rows = arrays.copied(rows)
        self._sums: Any = None
        self._build(progress)

    @property
    def nbytes(self) -> int:
        """Memory of the class vectors and of the node sums, in bytes."""
        return int(self._sums.nodes.nbytes) + int(self._rows.nbytes)

    @property
    def num_updates(self) -> int:
        """Number of vectors updated since all sums were last built.

        An update of at least half of the classes usually builds all sums, and so resets this
        number to 0.
        """
        return self._num_updates

    @property
    def drift(self) -> float:
        """Rounding error of the sum at the root, relative to the norm of this sum.

        Every update adds to the root, in the dtype of the features; the error is measured against a
        sum in float64. It stays bounded, for two reasons. Every update computes the sums of a few
        leaves again from the class vectors; with n classes, 16 n updated vectors cover all leaves.
        Moreover, all sums are built again when the largest feature has become much smaller than the
        largest since the last build, by a factor of 2,000 in float32 or 7e7 in float64, because
        rounding errors could then matter.
        """
        return float(self._sums.drift)

    def rebuild(self, *, progress: bool = False) -> None:
        """Sum the features of all classes again, which removes any drift.

        Parameters
        ----------
        progress : bool
            Show progress on stderr: a bar if stderr is a terminal, otherwise lines.

        Raises
        ------
        TypeError
            If `progress` is neither True nor False.
        """
        as_flag("progress", progress)
        # if the old and the new sums do not fit in memory together, free the old ones first
        if self._sums is not None and not self._has_memory_to_rebuild():
            self._sums = None
        self._build(progress)

    def class_embeddings(self, ids: Any = None) -> Rows:
        """Return a copy of the class vectors (k, d) of the classes `ids`, or of all classes."""
        if ids is None:
            return self._backend.copied(self._rows)
        return self._backend.take_rows(self._rows, self._backend.ids("ids", ids, self.num_classes))

    def _build(self, progress: bool) -> None:
        """Compute all node sums from the class vectors, and reset the counters of updates."""
        self._sums, self._max_features = self._compute_sums(self._rows, progress)
        self._peak_feature = self._max_features.max()
        self._num_updates = 0

    def _has_memory_to_rebuild(self) -> bool:
        """Return whether a second copy of the node sums fits in the available memory."""
        free = self._backend.available_bytes()
        return free is None or bool(self._sums.nodes.nbytes < free)

    def _compute_sums(self, rows: Rows, progress: bool = False) -> tuple[TreeSums, Rows]:
        """Return the node sums for class vectors (n, d), and the max |feature| of a class (n,)."""
        num_classes = self._parameters.num_classes
        leaf_size = self._parameters.leaf_size
        max_features = np.empty(num_classes, rows.dtype)
        leaf_sums = self._backend.empty((self._num_leaves, self.feature_dim), rows.dtype)
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
        return Tree(self._sums.nodes, self._parameters)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        # uniforms are drawn on the CPU, which is fast, so that all devices use the same uniforms
        uniforms = uniform_block(key, h.shape[0], m)
        ids: IntArray = self._backend.empty(uniforms.shape, np.int64)
        return Draw(ids, self._descend_and_score(h, exclude, ids, uniforms))

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        # pass a writable copy of `ids`, because the same kernel also writes draws to this array
        return self._descend_and_score(h, exclude, self._backend.copied(ids))

    def _descend_and_score(
        self, h: Rows, exclude: IntArray, ids: IntArray, uniforms: FloatArray | None = None
    ) -> FloatArray:
        """Return the log-probabilities (B, k) of the classes `ids` (B, k) for contexts `h` (B, d).

        With `uniforms` (B, k), the classes are drawn first, and written to `ids`.
        """
        phi = self._features(h)
        arrays = self._backend
        is_drawn = uniforms is not None
        log_q: FloatArray = arrays.empty(ids.shape, np.float64)
        sorted_by: Any = uniforms if is_drawn else to_host(ids)

        def process_chunk(chunk: slice) -> None:
            # sort paths by uniform or class, so that paths through the same node are adjacent
            order = np.argsort(sorted_by[chunk], axis=1)
            ranked = sorted_by[chunk][np.arange(len(order))[:, None], order]
            workspace = self._make_workspace(order.size)

            # the order of the passes is described at the top of the module `walk`
            contexts = self._contexts_with_exclusions(
                h[chunk], phi[chunk], exclude[chunk], workspace
            )
            if is_drawn:
                paths = self._walk_down(contexts, np.zeros_like(order), ranked)
            else:
                paths = self._walk_down(contexts, ranked // self._parameters.leaf_size)

            # sort visits by leaf, so that the rows of a leaf stay in the cache for all its visits
            leaves = to_host(paths.leaves).reshape(order.shape)
            visits = arrays.to_device(group_runs_by_node(leaves, 0, self._num_leaves))
            classes = ClassLogProbs(
                ids=ids[chunk], log_q=log_q[chunk], order=arrays.to_device(order)
            )

            for leaf_rows in self._leaf_rows(h[chunk], phi[chunk], leaves):
                arrays.run(
                    draw_in_leaves,
                    visits.shape[0],
                    self._parameters,
                    contexts,
                    leaf_rows,
                    visits,
                    is_drawn,
                    paths,
                    classes,
                    workspace,
                )

        if ids.size:
            # thread-safe, because a task only writes to its chunk of `ids` and `log_q`
            arrays.each(process_chunk, self._batch_chunks(*ids.shape))
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        phi = self._features(h)
        arrays = self._backend
        num_leaves = self._num_leaves
        log_reach = np.empty((h.shape[0], num_leaves))
        probs: FloatArray = arrays.empty((h.shape[0], self._parameters.num_classes), np.float64)
        contexts = self._contexts_with_exclusions(h, phi, exclude, self._make_workspace(h.shape[0]))

        def write_log_reach(chunk: slice) -> None:
            leaves = np.tile(np.arange(num_leaves), (chunk.stop - chunk.start, 1))
            chunk_contexts = Contexts._make(field[chunk] for field in contexts)
            paths = self._walk_down(chunk_contexts, leaves)
            log_reach[chunk] = to_host(paths.log_reach).reshape(leaves.shape)

        def write_probs(chunk: slice) -> None:
            # all leaves are in one chunk, so `_leaf_rows` yields one result
            leaves = np.arange(chunk.start, chunk.stop)[None]
            leaf_rows = next(self._leaf_rows(h, phi, leaves))

            num_visits = h.shape[0] * leaves.size
            workspace = self._make_workspace(num_visits)
            arrays.run(
                probs_in_leaves,
                num_visits,
                self._parameters,
                contexts,
                leaf_rows,
                chunk.start,
                log_reach_on_device,
                workspace,
                probs,
            )

        # first the descent for chunks of examples, then the probabilities for chunks of leaves
        arrays.each(write_log_reach, self._batch_chunks(h.shape[0], num_leaves))
        log_reach_on_device = arrays.to_device(log_reach)
        arrays.each(write_probs, self._leaf_chunks(num_leaves, h.shape[0]))
        return probs

    def _log_total_weight(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the log of the clipped mass of the root, for each context (B,).

        The mass is multiplied by the probability that a draw is not the excluded class.
        """
        phi = to_host(self._features(h))
        parameters = self._parameters
        contexts = self._contexts_with_exclusions(h, phi, exclude, self._make_workspace(h.shape[0]))
        mass = phi.astype(np.float64) @ to_host(self._sums.nodes[0])
        min_mass = parameters.floor * parameters.num_classes

        # a mass of NaN becomes `min_mass`
        clipped = np.where(mass > min_mass, np.minimum(mass, 1e150), min_mass)
        log_mass: FloatArray = np.log(clipped) + to_host(contexts.log_remaining)[:, 1]
        return log_mass

    def _prepare_update(self, ids: Any, rows: Rows) -> Callable[[], None]:
        arrays = self._backend
        leaf_size = self._parameters.leaf_size
        self._rows = arrays.writable(self._rows)
        self._max_features = writable(self._max_features)
        ids, rows = last_row_of_each_id(ids, rows)

        if 2 * len(ids) >= self._parameters.num_classes and self._has_memory_to_rebuild():
            # cheaper than an update, which computes features of the new and of the old vectors
            return self._prepare_rebuild(ids, rows)

        leaves, starts = np.unique(ids // leaf_size, return_index=True)
        ends = np.append(starts, len(ids))
        change = arrays.empty((len(leaves), self.feature_dim), rows.dtype)
        max_features = np.empty(len(ids), rows.dtype)

        # each chunk ends with a leaf, so it may exceed `chunk_size` by almost one leaf
        chunk_size = min(
            _UPDATE_CHUNK_CLASSES, _CHUNK_VALUES // (2 * self.feature_dim) - leaf_size + 1
        )
        bounds = np.searchsorted(starts, np.arange(0, len(ids), max(1, chunk_size)))
        chunk_bounds = list(pairwise(np.unique([*bounds, len(leaves)])))
        totals = np.zeros((len(chunk_bounds), self.feature_dim))

        def compute_changes(i: int) -> None:
            chunk_leaves = slice(*chunk_bounds[i])
            chunk_classes = slice(*ends[list(chunk_bounds[i])])
            num_classes = chunk_classes.stop - chunk_classes.start

            # the features of new and old vectors are computed in one call, because BLAS may round a
            # row differently in a batch of another size
            old_rows = arrays.take_rows(self._rows, ids[chunk_classes])
            features = self._features(arrays.concatenate_rows(rows[chunk_classes], old_rows))
            new_features = features[:num_classes]
            old_features = features[num_classes:]
            max_features[chunk_classes] = largest_in_rows(new_features)

            # subtract in float64, before differences are rounded to the dtype of the features
            totals[i] = arrays.column_sums(new_features)[0] - arrays.column_sums(old_features)[0]
            offsets = arrays.to_device(starts[chunk_leaves] - starts[chunk_leaves.start])
            arrays.run(
                sum_changes, len(offsets), new_features, old_features, offsets, change[chunk_leaves]
            )

        arrays.each(compute_changes, range(len(chunk_bounds)))

        # sum in the order of the chunks, so that the total does not depend on threads
        add = self._sums.prepare_update(leaves, change, totals.sum(axis=0))
        if self._would_lose_precision(ids, max_features) and self._has_memory_to_rebuild():
            return self._prepare_rebuild(ids, rows)

        # the renewal is computed from the tree before this update; it is still correct after the
        # update, because both only add changes to sums, in any order
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
        """Return a function that commits an update, after building all sums again.

        The update replaces the vectors of the classes `ids` (k,) by `rows` (k, d).
        """
        all_rows = self._backend.copied(self._rows)
        self._backend.put_rows(rows, ids, all_rows)
        sums, max_features = self._compute_sums(all_rows)

        def commit() -> None:
            self._rows = all_rows
            self._sums = sums
            self._max_features = max_features
            self._peak_feature = max_features.max()
            self._num_updates = 0

        return commit

    def _would_lose_precision(self, ids: IntArray, max_features: Rows) -> bool:
        """Return whether an update would leave node sums with less than half of their digits.

        The update gives the classes `ids` (k,) features of at most `max_features` (k,). The
        rounding errors of node sums are relative to the largest features since the last build, and
        remain when features become smaller.
        """
        peak = float(max(self._peak_feature, max_features.max()))
        digits = np.finfo(max_features.dtype).nmant // 2
        threshold = peak / 2.0**digits
        # usually the new features are large enough, and the pass over all classes is skipped
        if max_features.max() >= threshold:
            return False
        return bool(np.delete(self._max_features, ids).max(initial=0.0) < threshold)

    def _prepare_renewal(self, num_updates: int) -> Callable[[], None]:
        """Return a function that removes rounding errors from the sums of some leaves.

        These leaves are the ones that `_leaves_to_renew` selects for the next `num_updates`
        updates.
        """
        leaves = self._leaves_to_renew(num_updates)
        errors = self._backend.empty((len(leaves), self.feature_dim), self._rows.dtype)
        for chunk in self._leaf_chunks(len(leaves)):
            self._sum_leaves(self._features_of_leaves(leaves[chunk]), errors[chunk])
            self._sums.subtract_stored_sums(leaves[chunk], errors[chunk])
        return partial(self._sums.add_changes, leaves, errors) if len(leaves) else lambda: None

    def _leaves_to_renew(self, num_updates: int) -> IntArray:
        """Return the sorted leaves (k,) whose sums are renewed in the next `num_updates` updates.

        With n classes, each leaf is renewed once in about ``n * UPDATES_BEFORE_RENEWAL`` updates.
        """
        # all leaves take turns, even if some are updated more often than others: a class that is
        # updated very often adds errors only to the nodes on its path
        updates_per_leaf = UPDATES_BEFORE_RENEWAL * self._parameters.leaf_size
        start = self._num_updates // updates_per_leaf
        stop = (self._num_updates + num_updates) // updates_per_leaf
        return np.sort(np.arange(start, stop) % self._num_leaves)

    def _features_of_leaves(self, leaves: IntArray) -> Rows:
        """Return the features of the classes in `leaves` (k,), one row for each class."""
        leaf_size = self._parameters.leaf_size
        ids: IntArray = (leaves[:, None] * leaf_size + np.arange(leaf_size)).reshape(-1)
        ids = ids[ids < self._parameters.num_classes]
        return self._features(self._backend.take_rows(self._rows, ids))

    def _leaf_rows(self, h: Rows, phi: Rows, leaves: IntArray) -> Iterator[LeafRows]:
        """Yield the `LeafRows` of contexts that visit `leaves` (B, k).

        `h` (B, d) are the contexts, and `phi` (B, F) their features. If weights in leaves are
        computed from class vectors, there is one result. Otherwise there is one result for each
        chunk of leaves, with the features of their classes; the offsets of leaves in other chunks
        are -1.
        """
        leaf_size = self._parameters.leaf_size
        to_device = self._backend.to_device
        if self._leaf_weights_use_vectors:
            yield LeafRows(h, self._rows, to_device(leaves * leaf_size))
            return
        visited, slots = np.unique(leaves, return_inverse=True)
        slots = slots.reshape(leaves.shape)

        for chunk in self._leaf_chunks(len(visited)):
            # the offset -1 marks leaves of other chunks, which kernels skip
            in_chunk = (slots >= chunk.start) & (slots < chunk.stop)
            offsets = to_device(np.where(in_chunk, (slots - chunk.start) * leaf_size, -1))
            yield LeafRows(phi, self._features_of_leaves(visited[chunk]), offsets)

    def _contexts_with_exclusions(
        self, h: Rows, phi: Rows, exclude: IntArray, workspace: Workspace
    ) -> Contexts:
        """Return the `Contexts` of a batch, including the probabilities that exclusion needs.

        `h` (B, d) are the contexts, `phi` (B, F) their features, and `exclude` (B,) their excluded
        classes, or -1. `workspace` must suffice for B visits of leaves.
        """
        arrays = self._backend
        parameters = self._parameters
        batch = h.shape[0]
        levels = root_level(self._num_leaves) + 1
        contexts = Contexts(
            phi=phi,
            excluded=exclude,
            log_remaining=arrays.to_device(np.zeros((batch, 2))),
            excluded_path_probs=arrays.empty((batch, levels, 2), np.float64),
            conditional_left_probs=arrays.empty((batch, levels), np.float64),
        )
        excluded = to_host(exclude)

        # without exclusion, the last two fields of `contexts` are not written: no path reads them
        if excluded.max() >= 0:
            products = self._compute_top_products(phi, batch, num_paths=1)
            masses = arrays.empty(batch, np.float64)
            arrays.run(compute_excluded_path_probs, batch, self._tree, contexts, products, masses)
            leaves = np.maximum(excluded, 0)[:, None] // parameters.leaf_size
            for leaf_rows in self._leaf_rows(h, phi, leaves):
                arrays.run(exclude_classes, batch, self._tree, contexts, leaf_rows, workspace)

        return contexts

    def _walk_down(self, contexts: Contexts, leaves: IntArray, uniforms: Any = None) -> Paths:
        """Return k paths for each of B contexts, after their descent from the root to leaves.

        With `uniforms` (B, k), sorted in each row, leaves are drawn, and `leaves` (B, k) must be 0.
        Otherwise the paths lead to `leaves` (B, k), which must be sorted in each row.
        """
        arrays = self._backend
        total_paths = leaves.size
        is_drawn = uniforms is not None
        paths = Paths(
            leaves=arrays.to_device(leaves.reshape(-1)),
            run_ends=arrays.empty(total_paths, np.int64),
            uniforms=arrays.to_device(uniforms.reshape(-1) if is_drawn else np.empty(total_paths)),
            log_reach=arrays.empty(total_paths, np.float64),
            factors=arrays.empty(total_paths, np.float64),
            masses=arrays.empty(total_paths, np.float64),
        )

        batch, num_paths = leaves.shape
        num_rows = max(batch, arrays.num_workers_for(total_paths))  # on a GPU one for each path
        products = self._compute_top_products(contexts.phi, num_rows, num_paths)
        arrays.run(walk, num_rows, self._tree, contexts, products, is_drawn, paths)
        return paths

    def _compute_top_products(self, phi: Rows, num_rows: int, num_paths: int) -> TopProducts:
        """Return the products of contexts with the nodes of upper levels, in `num_rows` rows.

        `phi` (B, F) are the features of the contexts, each of which has `num_paths` paths. If there
        are more rows than contexts, only products with the sum over all classes are computed.
        """
        arrays = self._backend
        num_leaves = self._num_leaves
        batch = phi.shape[0]
        levels = num_precomputed_levels(num_leaves, batch, num_paths) if num_rows == batch else 0
        products = TopProducts(
            values=arrays.empty((num_rows, 1 << levels), np.float64),
            level_below=root_level(num_leaves) - levels,
        )
        arrays.run(precompute_top_products, num_rows, phi, self._sums.nodes, products)
        return products

    def _batch_chunks(self, batch: int, num_leaves: int) -> list[slice]:
        """Return slices that divide a batch, whose examples visit `num_leaves` leaves each.

        If weights in leaves are computed from features, the slices do not depend on the number of
        threads. The features of the leaves that a slice visits are computed together, and another
        division could round them differently.
        """
        visits = batch * num_leaves * self._num_leaves.bit_length()
        num_chunks = 1
        if visits * (self.feature_dim + _VISIT_COST) > _MIN_THREADED_COST:
            num_chunks = num_threads()
        chunk_size = min(-(-batch // num_chunks), max(1, _MAX_PATHS // num_leaves))
        levels = root_level(self._num_leaves) + 1
        values_per_example = self.feature_dim + 2 * num_leaves * (self.leaf_size + 2 * levels)

        return self._backend.split(
            batch,
            chunk_size if self._leaf_weights_use_vectors else _KERNEL_CHUNK_EXAMPLES,
            values_per_example,
        )

    def _leaf_chunks(self, num_leaves: int, batch: int = 0) -> list[slice]:
        """Return slices of `num_leaves` leaves, such that the features of each slice fit in memory.

        If `batch` is not 0, the products of a slice with a batch of this size also fit.
        """
        values_per_class = max(self.feature_dim, self._backend.num_workers_for(2 * batch))
        return chunks(
            num_leaves, max(1, _CHUNK_VALUES // (self._parameters.leaf_size * values_per_class))
        )

    def _make_workspace(self, num_visits: int) -> Workspace:
        """Return a `Workspace` for `num_visits` visits of leaves, with one row for each worker."""
        arrays = self._backend
        shape = arrays.num_workers_for(num_visits), round_up_to_8(self._parameters.leaf_size)
        return Workspace(arrays.empty(shape, np.float64), arrays.empty(shape, np.float64))

    def _sum_leaves(self, features: Rows, out: Rows) -> None:
        """Write the sums of the features of k leaves to `out` (k, F).

        `features` has a row for each class, leaf by leaf.
        """
        offsets = self._backend.to_device(
            np.arange(0, features.shape[0], self._parameters.leaf_size)
        )
        self._backend.run(sum_runs, offsets.shape[0], features, offsets, out)


def peak_build_bytes(
    num_classes: int, dim: int, feature_dim: int, itemsize: int, leaf_size: int
) -> int:
    """Return the peak memory of building a tree, in bytes."""
    node_values = -(-num_classes // leaf_size) * feature_dim
    chunk = min(num_classes * feature_dim, max(_CHUNK_VALUES, leaf_size * feature_dim))
    return (node_values + num_classes * dim + 2 * chunk) * itemsize
