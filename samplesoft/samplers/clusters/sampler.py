"""The cluster sampler, which draws a cell of similar classes first, then a class of the cell."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device import backend
from samplesoft._device.rows import last_row_of_each_id
from samplesoft._device.select import as_device, to_host
from samplesoft._jit import chunks, num_threads
from samplesoft._memory import require_bytes
from samplesoft._random import stream_key, uniform_block
from samplesoft._temperature import as_tau
from samplesoft._validation import FloatArray, IntArray, as_count, as_flag
from samplesoft.kernels.products import product, round_up_to_8
from samplesoft.samplers.base import NO_CLASS, Draw, Rows, Sampler
from samplesoft.samplers.clusters.descent import (
    CellTree,
    Contexts,
    Paths,
    Workspace,
    exclude_classes,
    step,
    update_moments,
    walk,
)
from samplesoft.samplers.clusters.partition import make_partition
from samplesoft.samplers.k_means import require_finite_distances

_ROOT_CELL = -1
_MAX_THREAD_DRAWS = 1 << 20  # max number of draws that a thread processes together
_MIN_CHUNK_CONTEXTS = 64  # min number of contexts that a thread processes together
_VISITS_PER_BLOCK = 16  # number of visits that `step` processes together on the CPU
_MIN_TASK_CELLS = 256  # min number of cells whose moments one task updates
_TASKS_PER_LEVEL = 16  # approximate number of tasks for a level with many cells


class ClusterSampler(Sampler):
    r"""Sampler that approximates the softmax by a descent through cells of similar classes.

    K-means divides the classes into cells, these into smaller cells, and so on down to leaves of
    about 16 classes. A draw chooses a cell by its estimated mass, then a cell inside it, and so on;
    in the leaf it draws a class from the softmax over the classes of the leaf. Use this sampler for
    more than a few thousand classes if examples do not share draws. It has the smallest bias of the
    samplers that do not score all classes.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    tau : float, optional
        Inverse temperature, 1 by default.
    leaf_size : int
        Approximate number of classes in a leaf; a leaf has at most four times as many. Larger
        leaves reduce the bias and make a draw slower.
    progress : bool
        Show progress on stderr while clustering: a bar if stderr is a terminal, otherwise lines.
    rng : int, numpy.random.Generator or None
        Seed of the clustering.
    device : {"cpu", "cuda"}
        Device of the sampler and of all results, except `cells`. Classes are divided into cells on
        the CPU for both devices.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `sample`, `log_prob` and `probs` also if logits overflow.
    MemoryError
        If the cells do not fit in the available memory.

    Notes
    -----
    **Mass of a cell.** Let the vectors of the :math:`n_c` classes of a cell have the mean
    :math:`\mu_c` and the variances :math:`v_c`. The mass of the cell, the sum of the exponentials
    of the logits :math:`x_j = \tau h \cdot c_j`, is estimated from the first two cumulants of the
    logits:

    .. math:: \log M_c = \log n_c + \tau h \cdot \mu_c + \tfrac{\tau^2}{2} \sum_k h_k^2 v_{ck}.

    The estimated mass is always positive, and costs 2 d multiplications.

    **q is exact.** The probability of a class is the product of the probabilities on its path;
    `sample`, `log_prob` and `probs` compute the same values. Rounding of the products with cells
    may depend on the batch. Stale cells increase the bias of the loss, and have no other effect.

    **How far q is from the softmax p.** Let all logits :math:`x_j` of a cell lie in an interval of
    width :math:`w_c`, and let :math:`\bar x` be their mean. The true mass
    :math:`S_c = \sum_j e^{x_j}` then satisfies
    :math:`\log n_c + \bar x \le \log S_c \le \log n_c + \bar x + w_c^2 / 8`, by Jensen's inequality
    and Hoeffding's lemma. With :math:`s_c = \tfrac{\tau^2}{2} \sum_k h_k^2 v_{ck}` this gives
    :math:`|\log M_c - \log S_c| \le e_c = \max(s_c, w_c^2 / 8)`. Each level normalises over the
    siblings of a cell, so :math:`|\log q_j / p_j| \le 2 \sum e`, where the sum is over levels and
    :math:`e` is the largest :math:`e_c` among the siblings on the level.

    **Exclusion is exact.** An excluded class is removed from its leaf, and the mass of every cell
    above the leaf is reduced by the corresponding fraction. The computation adds only positive
    terms, so that nothing cancels.

    **Class biases** :math:`b_j` can be written as one more coordinate of the vectors: with class
    vectors :math:`(c_j, b_j / \tau)` and contexts :math:`(h, 1)`, the logits are
    :math:`\tau h \cdot c_j + b_j`.

    **Updates** recompute the moments of the leaves of the updated classes, and of the cells above
    these leaves, from their children, so that rounding errors do not accumulate. Cells of untrained
    vectors become useless during training. The classes are therefore clustered again when all of
    them are updated at once, and when n vectors have been updated, then 2 n, 4 n and so on. It also
    helps to cluster once an epoch: call `cluster`, or ``refresh`` of a
    `samplesoft.models.SoftmaxLayer`, as the classifier and ``samplesoft train`` do. After a million
    examples, a log-bilinear model of 64,000 words had a perplexity of 58.4 with its first cells,
    52.8 with this schedule, and 52.5 with draws from the softmax.

    References
    ----------
    .. [1] J. Chen et al., "Fast Variational AutoEncoder with Inverted Multi-Index for
       Collaborative Filtering", WWW 2022, draw through cells of a product quantiser.
    .. [2] W. Bendada and G. Salha-Galvan, "Two-Level Softmax Sampling Done Right", 2026, draw a
       cell by the same mass, with the full covariance and on one level, and do not correct for q.

    Examples
    --------
    >>> vectors = np.random.default_rng(0).normal(size=(1000, 8))
    >>> sampler = ClusterSampler(vectors, rng=0)
    >>> softmax = np.exp(vectors @ vectors[0])
    >>> softmax /= softmax.sum()
    >>> float(abs(sampler.probs(vectors[0]) - softmax).sum()) < 0.2
    True
    >>> sampler.update([5], vectors[[0]])
    >>> 1.0 <= sampler.staleness < 1.1
    True
    """

    def __init__(
        self,
        class_embeddings: ArrayLike,
        *,
        tau: float | None = None,
        leaf_size: int = 16,
        progress: bool = False,
        rng: int | np.random.Generator | None = None,
        device: str = "cpu",
    ) -> None:
        arrays = backend(as_device(device))
        as_flag("progress", progress)
        rows = arrays.float_rows("class_embeddings", class_embeddings)
        super().__init__(rows.shape[0], rows.shape[1], rows.dtype, device)
        self.tau: float = as_tau(tau, unit_vectors=False)
        self.leaf_size = as_count("leaf_size", leaf_size)

        # memory of the class vectors, of a mean and a variance for each cell, and of eight 8-byte
        # values for each class
        subject = f"cells of {self.num_classes:,} classes"
        num_bytes = rows.nbytes * (1.0 + 4.0 / self.leaf_size) + 64.0 * self.num_classes
        remedy = "use float32, larger leaves or fewer classes"
        require_bytes(subject, rows.nbytes + num_bytes, remedy)  # host memory for clustering
        require_bytes(subject, num_bytes, remedy, arrays.available_bytes())

        # the assignment of classes to cells stays in host memory for any device
        self._key = stream_key(rng)
        self._initialise_cells(rows, progress)

    @property
    def nbytes(self) -> int:
        """Memory of the class vectors and of the cells, in bytes."""
        arrays = (*self._tree, self._parents, self._sizes, self._order, self._positions)
        return int(sum(array.nbytes for array in arrays))

    def cells(self) -> list[list[IntArray]]:
        """Return the cells of each level, from the top level to the leaves.

        The result has a list for each level. A cell is an array (k,) of its classes.
        """
        edges = [np.cumsum(self._sizes[a:b])[:-1] for a, b in pairwise(self._level_offsets)]
        return [np.split(self._order.astype(np.int64), level_edges) for level_edges in edges]

    def class_embeddings(self, ids: Any = None) -> Rows:
        """Return a copy of the class vectors (k, d) of the classes `ids`, or of all classes."""
        positions: Any = self._positions
        if ids is not None:
            positions = positions[to_host(self._backend.ids("ids", ids, self.num_classes))]
        return self._backend.take_rows(self._tree.rows, positions)

    @property
    def staleness(self) -> float:
        """Mean squared distance of classes to the mean of their leaf, relative to new cells.

        The distance is divided by its value when the cells were made, so that new cells have
        staleness 1. The bias of the loss grows faster than the staleness: a few classes that have
        moved far can make the bias ten times larger at a staleness of 1.4. Call `cluster` if the
        staleness is above 1.2. In training from random vectors, all classes move
        together, and the staleness falls although new cells would be far better. In that case call
        `cluster` once an epoch, whatever the staleness.
        """
        initial = self._variance_when_clustered
        current = self._variance_in_leaves()
        if initial > 0.0:
            return current / initial
        return 1.0 if current == 0.0 else np.inf

    def cluster(self, *, progress: bool = False) -> None:
        """Divide the classes into new cells according to their current vectors.

        Parameters
        ----------
        progress : bool
            Show progress on stderr: a bar if stderr is a terminal, otherwise lines.
        """
        self._make_cells(to_host(self.class_embeddings()), as_flag("progress", progress))

    def _variance_in_leaves(self) -> float:
        """Return the mean squared distance of a class vector to the mean of its leaf."""
        leaves = slice(*self._level_offsets[-2:])
        moments = to_host(self._tree.moments[leaves])
        sizes = self._sizes[leaves]
        variances = moments[:, moments.shape[1] // 2 :].sum(axis=1, dtype=np.float64)
        return float(sizes @ variances / sizes.sum())

    def _initialise_cells(self, rows: Rows, progress: bool = False) -> None:
        """Make cells for the class vectors (n, d), and reset the count of updates."""
        self._num_updated = 0  # vectors updated so far
        # value of `_num_updated` at which classes are clustered again
        self._next_clustering = self.num_classes
        self._make_cells(to_host(rows), progress)

    def _make_cells(self, rows: Rows, progress: bool = False) -> None:
        """Cluster the class vectors (n, d), and set all attributes that describe the cells."""
        n, dim = rows.shape
        self._max_entry = float(np.abs(rows).max())
        require_finite_distances(self._max_entry, rows.dtype)

        order, level_starts = make_partition(rows, self.leaf_size, self._key, progress)
        index_dtype = np.int32 if n < 2**31 else np.int64
        self._order = order.astype(index_dtype)
        self._positions = np.empty(n, index_dtype)
        self._positions[self._order] = np.arange(n)  # the inverse permutation of `_order`

        self._level_offsets = levels = np.cumsum([0, *map(len, level_starts)])
        first_classes = np.concatenate(level_starts)
        ends = np.concatenate([[*starts[1:], n] for starts in level_starts])

        # ranges of classes at first; above the leaves, the loop below replaces them by ranges of
        # child cells
        ranges = np.stack([first_classes, ends], axis=1)
        self._parents = np.full(len(first_classes), -1)

        for parent_start, start, stop in zip(levels[:-2], levels[1:-1], levels[2:], strict=True):
            children = start + np.searchsorted(
                first_classes[start:stop], ranges[parent_start:start]
            )
            counts = np.diff(children, axis=1)[:, 0]
            self._parents[start:stop] = np.repeat(np.arange(parent_start, start), counts)
            ranges[parent_start:start] = children

        self._sizes = ends - first_classes
        self._leaf_starts = level_starts[-1]

        ranges = np.concatenate([ranges, [[0, levels[1]]]])
        widest = int(np.diff(ranges, axis=1).max())
        self._padded_max_children = round_up_to_8(widest)

        to_device = self._backend.to_device
        self._tree = CellTree(
            moments=to_device(np.empty((len(first_classes), 2 * dim), rows.dtype)),
            rows=to_device(rows[self._order]),
            log_sizes=to_device(np.log(self._sizes).astype(rows.dtype)),
            child_ranges=to_device(ranges),
            level_offsets=to_device(levels),
        )

        self._update_moments(np.arange(levels[-2], levels[-1]))
        self._variance_when_clustered = self._variance_in_leaves()

    def _update_moments(self, cell_ids: IntArray) -> None:
        """Recompute the moments of the leaves `cell_ids` (k,), and of the cells that contain them.

        `cell_ids` must be sorted.
        """
        tree = self._tree
        arrays = self._backend

        # the leaves first: their children are classes, for which `sizes` is empty
        children = tree.rows
        sizes = arrays.to_device(self._sizes[:0])

        def update_chunk(chunk: slice) -> None:
            num_cells = chunk.stop - chunk.start
            chunk_ids = arrays.to_device(cell_ids[chunk])
            workspace = arrays.empty(
                (2 * arrays.num_workers_for(num_cells), tree.rows.shape[1]), np.float64
            )
            arrays.run(update_moments, num_cells, tree, children, sizes, chunk_ids, workspace)

        # level by level up to the top; `cell_ids` stays sorted
        while len(cell_ids):
            chunk_size = max(_MIN_TASK_CELLS, len(cell_ids) // _TASKS_PER_LEVEL)
            arrays.each(update_chunk, chunks(len(cell_ids), chunk_size))

            parents = self._parents[cell_ids]
            if parents[0] >= 0:
                cell_ids = parents[np.append(True, parents[1:] > parents[:-1])]
            else:
                cell_ids = parents[:0]
            children = tree.moments
            sizes = arrays.to_device(self._sizes)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        positions, log_q = self._descend_and_score(
            h, exclude, uniform_block(key, h.shape[0], m), None
        )
        return Draw(self._backend.to_device(self._order[positions].astype(np.int64)), log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        positions = self._positions[to_host(ids)].astype(np.int64)
        return self._descend_and_score(h, exclude, np.zeros(positions.shape), positions)[1]

    def _descend_and_score(
        self, h: Rows, exclude: IntArray, uniforms: FloatArray, positions: IntArray | None
    ) -> tuple[IntArray, FloatArray]:
        """Return the positions of classes in leaf order (B, k), and their log-probabilities (B, k).

        If `positions` is None, the classes are drawn by `uniforms` (B, k). Otherwise the result
        contains `positions` (B, k) unchanged.
        """
        to_device = self._backend.to_device
        shape = uniforms.shape
        result_positions = np.empty(shape, np.int64)
        log_q = np.empty(shape)
        queries = self._make_queries(to_host(h))
        excluded = to_host(exclude)
        sorted_by: Any = uniforms if positions is None else positions

        def process_chunk(chunk: slice) -> None:
            contexts = self._contexts_with_exclusions(queries[chunk], excluded[chunk])

            # sorted by uniform or position, so that paths of a context that reach the same cell are
            # adjacent on all levels, and the weights in a cell are computed once for these paths
            order = np.argsort(sorted_by[chunk], axis=1)
            ranked = np.take_along_axis(sorted_by[chunk], order, axis=1)
            if positions is None:
                ranked_uniforms = ranked
                targets = np.empty((len(self._level_offsets), 0, 0), np.int64)
            else:
                ranked_uniforms = uniforms[chunk]
                targets = np.stack(self._paths_to_classes(ranked))

            paths = Paths(
                uniforms=to_device(ranked_uniforms),
                cells=to_device(np.full_like(order, _ROOT_CELL)),
                probs=to_device(np.ones(order.shape)),
                log_q=to_device(np.zeros(order.shape)),
            )
            self._descend(contexts, targets, paths)

            cells = to_host(paths.cells)
            log_probs = np.log(to_host(paths.probs)) + to_host(paths.log_q)

            # the sum is meaningless for an excluded class, whose log-probability is -inf
            log_probs[cells == to_host(contexts.excluded_path)[:, -1:]] = -np.inf
            np.put_along_axis(result_positions[chunk], order, cells, axis=1)
            np.put_along_axis(log_q[chunk], order, log_probs, axis=1)

        # one chunk per thread rather than many, because the vectors of a leaf are read once for all
        # draws of a chunk
        batch, k = shape
        contexts_per_thread = max(_MIN_CHUNK_CONTEXTS, -(-batch // num_threads()))
        chunk_size = max(1, min(_MAX_THREAD_DRAWS // k, contexts_per_thread))
        batch_chunks = self._backend.split(batch, chunk_size, 2 * k * self._padded_max_children)
        self._backend.each(process_chunk, batch_chunks)

        return result_positions, to_device(log_q)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        batch = h.shape[0]
        n = self.num_classes
        probs = np.empty((batch, n))

        # process as many classes at a time as memory allows for one context
        for chunk in self._backend.split(n, n, 2 * self._padded_max_children):
            ids = np.broadcast_to(np.arange(n)[chunk], (batch, chunk.stop - chunk.start))
            np.exp(to_host(self._log_prob(h, ids, exclude)), out=probs[:, chunk])

        return self._backend.to_device(probs)

    def _log_total_weight(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the log of the total estimated mass of the top cells, for each context (B,)."""
        queries = self._make_queries(to_host(h))
        top = slice(self._level_offsets[1])
        contexts = self._contexts_with_exclusions(queries, to_host(exclude))
        moments = to_host(self._tree.moments[top])
        log_sizes = to_host(self._tree.log_sizes[top])
        logits = product(queries, moments.T) + log_sizes

        # a cell that contains the excluded class keeps only the mass of its other classes
        excluded_path = to_host(contexts.excluded_path)[:, 0]
        log_remaining = to_host(contexts.log_remaining)[:, 0]
        rows_with_exclusion = np.flatnonzero(excluded_path >= 0)
        logits[rows_with_exclusion, excluded_path[rows_with_exclusion]] += log_remaining[
            rows_with_exclusion
        ]

        max_logits = logits.max(axis=1, keepdims=True)
        sums = np.exp(logits - max_logits).sum(axis=1, dtype=np.float64)
        log_mass: FloatArray = max_logits[:, 0] + np.log(sums)
        return log_mass

    def _prepare_update(self, ids: Any, rows: Rows) -> Callable[[], None]:
        tree = self._tree
        arrays = self._backend
        self._tree = tree._replace(
            rows=arrays.writable(tree.rows), moments=arrays.writable(tree.moments)
        )

        ids, rows = last_row_of_each_id(ids, rows)
        largest = float(np.abs(to_host(rows)).max())
        require_finite_distances(largest, rows.dtype)

        # if all vectors are replaced, cluster again, because the old cells would not fit them
        if len(ids) == len(self._positions):
            rebuilt = object.__new__(type(self))
            rebuilt.__dict__.update(self.__dict__)
            rebuilt._initialise_cells(rows)
            return lambda: self.__dict__.update(rebuilt.__dict__)

        positions = self._positions[ids].astype(np.int64)
        touched = np.zeros(self._level_offsets[-1], bool)  # a mask is faster than sorting
        touched[self._leaves_containing(positions)] = True
        leaves = np.flatnonzero(touched)

        def commit() -> None:
            arrays.put_rows(rows, positions, self._tree.rows)
            self._max_entry = max(self._max_entry, largest)
            self._update_moments(leaves)
            # cluster again at growing intervals, because vectors move less and less
            self._num_updated += len(ids)
            if self._num_updated >= self._next_clustering:
                self._next_clustering = 2 * self._num_updated
                self.cluster()

        return commit

    def _make_queries(self, h: Rows) -> Rows:
        """Return the queries (B, 2 d) for contexts `h` (B, d): `tau h`, then `(tau h)**2 / 2`.

        The product of a query with the moments of a cell is the mean logit plus half the variance
        of the logits. Raises ValueError if a product may overflow.
        """
        scaled, bounds = self._scale_and_bound_products(h)

        # before raising an error, recompute the largest entry of all class vectors, because the
        # vector that contained it may have been replaced
        if not bounds.max() < np.finfo(h.dtype).max:
            self._max_entry = float(np.abs(to_host(self._tree.rows)).max())
            scaled, bounds = self._scale_and_bound_products(h)

        row = int(bounds.argmax())
        if not bounds[row] < np.finfo(h.dtype).max:
            raise ValueError(
                f"`h` must have logits and squares of them within the range of {h.dtype}, got up "
                f"to {bounds[row]:.3g} for row {row}; scale the vectors down, or use float64."
            )

        return np.concatenate([scaled, 0.5 * scaled**2], axis=1).astype(h.dtype)

    def _scale_and_bound_products(self, h: Rows) -> tuple[FloatArray, FloatArray]:
        """Return ``tau * h`` (B, d), and bounds (B,) on all products of each query.

        A bound is on the magnitude of products with class vectors and with moments of cells.
        """
        # at least 1, so that the bounds hold for the queries as well
        largest = max(self._max_entry, 1.0)
        with np.errstate(over="ignore"):
            scaled: FloatArray = self.tau * h.astype(np.float64)
            # |tau h . c| <= sum(|tau h|) * largest, and likewise for the squares
            bounds: FloatArray = np.abs(scaled).sum(axis=1) * largest
            bounds += 0.5 * ((scaled * largest) ** 2).sum(axis=1)
        return scaled, bounds

    def _contexts_with_exclusions(self, queries: Rows, exclude: IntArray) -> Contexts:
        """Return the `Contexts` of queries (B, 2 d) and excluded classes (B,).

        The entry `NO_CLASS` of `exclude` means that the context excludes no class.
        """
        to_device = self._backend.to_device
        excludes = exclude != NO_CLASS
        excluded_path = np.full((len(queries), len(self._level_offsets)), -1)
        contexts = Contexts(
            to_device(queries), to_device(excluded_path), to_device(np.empty(excluded_path.shape))
        )

        # without an excluded class, no kernel reads `log_remaining`
        if excludes.any():
            excluded_paths = self._paths_to_classes(
                self._positions[exclude[excludes]].astype(np.int64)
            )
            excluded_path[excludes] = np.stack(excluded_paths, axis=1)
            contexts = contexts._replace(excluded_path=to_device(excluded_path))
            num_contexts = len(excluded_path)
            workspace = self._make_workspace(len(excluded_path))
            self._backend.run(exclude_classes, num_contexts, self._tree, contexts, workspace)

        return contexts

    def _descend(self, contexts: Contexts, targets: IntArray, paths: Paths) -> None:
        """Move all paths, in place, from the root to classes; see `walk` for `targets`."""
        if self.device == "cpu":
            walk(self._tree, contexts, targets, paths, self._make_workspace(_VISITS_PER_BLOCK))
            return

        # on a GPU each path is a visit, processed by one warp
        b, k = np.indices(paths.cells.shape).reshape(2, -1)
        visits = self._backend.to_device(np.stack([b, k, k + 1], axis=1))
        num_paths = paths.cells.size
        workspace = self._make_workspace(num_paths)

        for level, children in enumerate(targets, start=-1):
            children = self._backend.to_device(children)
            self._backend.run(
                step, num_paths, self._tree, contexts, level, visits, children, paths, workspace
            )

    def _paths_to_classes(self, positions: IntArray) -> list[IntArray]:
        """Return the cells (k,) that contain k classes, for each level from the top.

        Classes are given by their `positions` (k,) in leaf order, which are also the last array of
        the result.
        """
        cells = [positions, self._leaves_containing(positions)]
        while len(cells) < len(self._level_offsets):
            cells.append(self._parents[cells[-1]])
        return cells[::-1]

    def _leaves_containing(self, positions: IntArray) -> IntArray:
        """Return the cell indices of the leaves that hold the classes at `positions` (k,)."""
        leaf_numbers = np.searchsorted(self._leaf_starts, positions, side="right")
        leaves: IntArray = self._level_offsets[-2] + leaf_numbers - 1
        return leaves

    def _make_workspace(self, num_visits: int) -> Workspace:
        """Return a `Workspace` for `num_visits` visits, or for one block of visits on the CPU."""
        empty = self._backend.empty
        num_rows = min(num_visits, _VISITS_PER_BLOCK)
        dtype = self._tree.rows.dtype

        # on a GPU all visits are in progress at once, and logits are float64 for vectors of any
        # dtype
        if self.device != "cpu":
            num_rows = num_visits
            dtype = np.dtype(np.float64)
        logits, weights = (empty((num_rows, self._padded_max_children), dtype) for _ in range(2))

        return Workspace(logits, weights, empty((num_rows, 2), np.float64))
