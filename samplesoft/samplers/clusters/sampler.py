"""The cluster sampler: draws through cells of similar classes, with masses from two cumulants."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._device import backend
from samplesoft._device.rows import last_of_each
from samplesoft._device.select import as_device, to_host
from samplesoft._jit import chunks, num_threads
from samplesoft._memory import require_bytes
from samplesoft._random import as_key, uniform_block
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
from samplesoft.samplers.k_means import require_distances

_ROOT_CELL = -1
_MAX_THREAD_DRAWS = 1 << 20  # draws in memory at a time, for each thread
_MIN_CHUNK_CONTEXTS = 64
_VISITS_PER_BLOCK = 16  # visits at a time: see `step`
_MIN_TASK_CELLS = 256  # cells whose moments a task of a thread updates
_TASKS_PER_LEVEL = 16  # about, where a level has many cells


class ClusterSampler(Sampler):
    r"""The softmax within leaves of similar classes, which are reached through estimated masses.

    K-means divides the classes into cells, these into smaller ones, and so on down to leaves of
    about 16 classes. A draw chooses a cell by its estimated mass, a cell inside it, and so on; in
    the leaf it draws a class from the softmax. Use it for more than a few thousand classes if each
    example has its own draws. It has the smallest bias of the samplers that do not score all
    classes.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    tau : float, optional
        Inverse temperature, 1 by default.
    leaf_size : int
        Approximate number of classes in a leaf; at most four times as many. Larger leaves have
        less bias and make a draw slower.
    progress : bool
        Show progress on stderr while clustering: a bar if that is a terminal, else lines.
    rng : int, numpy.random.Generator or None
        Seed of the clustering.
    device : {"cpu", "cuda"}
        Device of the sampler and of all results, except `cells`. Classes are divided into cells on
        the CPU in both cases.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `sample`, `log_prob` and `probs` also if logits overflow.
    MemoryError
        If the cells do not fit in the available memory.

    Notes
    -----
    **Mass of a cell.** Over the :math:`n_c` classes of a cell, with mean :math:`\mu_c` and
    variances :math:`v_c` of their vectors, the logits :math:`x_j = \tau h \cdot c_j` are taken to
    have two cumulants,

    .. math:: \log M_c = \log n_c + \tau h \cdot \mu_c + \tfrac{\tau^2}{2} \sum_k h_k^2 v_{ck},

    which is above 0 for all vectors, and costs 2 d multiplications.

    **q is exact.** The probability of a class is the product of the probabilities on its path;
    `sample`, `log_prob` and `probs` compute the same values. Rounding of the products with cells
    may depend on the batch. Stale cells increase the bias of the loss, and have no other effect.

    **How far q is from the softmax p.** Let all x_j of a cell lie in an interval of width
    :math:`w_c`. Then its true mass :math:`S_c = \sum_j e^{x_j}` has
    :math:`\log n_c + \bar x \le \log S_c \le \log n_c + \bar x + w_c^2 / 8` (Jensen; Hoeffding's
    lemma). With :math:`s_c = \tfrac{\tau^2}{2} \sum_k h_k^2 v_{ck}` this gives
    :math:`|\log M_c - \log S_c| \le e_c = \max(s_c, w_c^2 / 8)`. As each level normalises
    among siblings, :math:`|\log q_j / p_j| \le 2 \sum e`, summed over levels, with the largest
    e among the siblings of each.

    **Exclusion is exact.** An excluded class is removed from its leaf, and its fraction of the
    leaf from the mass of every cell above; only positive terms are added.

    **Class biases** b are one more coordinate: with vectors :math:`(c_j, b_j / \tau)` and contexts
    :math:`(h, 1)` draws follow :math:`\tau h \cdot c_j + b_j`.

    **Updates** recompute the moments of the leaf of each class, and of the cells above, from their
    children, so that rounding errors do not accumulate. Cells of untrained vectors become useless
    during training. Classes are therefore clustered again, as by `cluster`, when all of them are
    updated at once, and when n vectors have been updated, then 2 n, 4 n and so on. Clustering once
    an epoch helps in addition: call `cluster`, or ``refresh`` of a
    `samplesoft.models.SoftmaxLayer`, as the classifier and ``samplesoft train`` do. After a million
    examples, a log-bilinear model of 64,000 words had a perplexity of 58.4 with its first cells,
    52.8 with this schedule, and 52.5 with draws from the softmax.

    References
    ----------
    .. [1] J. Chen et al., "Fast Variational AutoEncoder with Inverted Multi-Index for
       Collaborative Filtering", WWW 2022, draw through cells of a product quantiser.

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
        subject = f"cells of {self.num_classes:,} classes"
        # vectors, a mean and a variance for each cell, and eight values for each class
        num_bytes = rows.nbytes * (1.0 + 4.0 / self.leaf_size) + 64.0 * self.num_classes
        remedy = "use float32, larger leaves or fewer classes"
        require_bytes(subject, rows.nbytes + num_bytes, remedy)  # where they are divided
        require_bytes(subject, num_bytes, remedy, arrays.available_bytes())
        # the assignment of classes to cells is on the host, whatever the device
        self._key = as_key(rng)
        self._start(rows, progress)

    @property
    def nbytes(self) -> int:
        """Bytes of the class vectors and of the cells."""
        arrays = (*self._tree, self._parents, self._sizes, self._order, self._positions)
        return int(sum(array.nbytes for array in arrays))

    def cells(self) -> list[list[IntArray]]:
        """Return the classes of each cell: level by level from the top, the leaves at the end."""
        edges = [np.cumsum(self._sizes[a:b])[:-1] for a, b in pairwise(self._levels)]
        return [np.split(self._order.astype(np.int64), each) for each in edges]

    def class_embeddings(self, ids: Any = None) -> Rows:
        """Return a copy of the class vectors (k, d) with these ids, or of all."""
        positions: Any = self._positions
        if ids is not None:
            positions = positions[to_host(self._arrays.ids("ids", ids, self.num_classes))]
        return self._arrays.take_rows(self._tree.rows, positions)

    @property
    def staleness(self) -> float:
        """Mean squared distance of classes to the mean of their leaf, divided by its initial value.

        It is 1 for new cells. The bias grows faster: a few classes that have moved far can make it
        ten times larger at a staleness of 1.4. Above 1.2, call `cluster`. The value falls where
        all classes move together, as in training from random vectors, although new cells would be
        far better. In that case call `cluster` once an epoch, whatever the staleness.
        """
        initial = self._variance_when_clustered
        current = self._variance_in_leaves()
        return current / initial if initial > 0.0 else 1.0 if current == 0.0 else np.inf

    def cluster(self, *, progress: bool = False) -> None:
        """Divide the classes into new cells, by their current vectors.

        Parameters
        ----------
        progress : bool
            Show progress on stderr: a bar if that is a terminal, else lines.
        """
        self._make_cells(to_host(self.class_embeddings()), as_flag("progress", progress))

    def _variance_in_leaves(self) -> float:
        """Return the mean squared distance of a class vector to the mean of its leaf."""
        leaves = slice(*self._levels[-2:])
        moments = to_host(self._tree.moments[leaves])
        sizes = self._sizes[leaves]
        variances = moments[:, moments.shape[1] // 2 :].sum(axis=1, dtype=np.float64)
        return float(sizes @ variances / sizes.sum())

    def _start(self, rows: Rows, progress: bool = False) -> None:
        self._num_updated = 0  # vectors updated so far
        self._next_clustering = self.num_classes  # value of `_num_updated` for the next clustering
        self._make_cells(to_host(rows), progress)

    def _make_cells(self, rows: Rows, progress: bool = False) -> None:
        n, dim = rows.shape
        self._max_entry = float(np.abs(rows).max())
        require_distances(self._max_entry, rows.dtype)
        order, level_starts = make_partition(rows, self.leaf_size, self._key, progress)
        index_dtype = np.int32 if n < 2**31 else np.int64
        self._order = order.astype(index_dtype)
        self._positions = np.empty(n, index_dtype)
        # the inverse permutation
        self._positions[self._order] = np.arange(n)
        self._levels = levels = np.cumsum([0, *map(len, level_starts)])
        first_classes = np.concatenate(level_starts)
        ends = np.concatenate([[*each[1:], n] for each in level_starts])
        # of classes; above the leaves replaced by children
        ranges = np.stack([first_classes, ends], axis=1)
        self._parents = np.full(len(first_classes), -1)
        # children of a cell are adjacent, so their range identifies them
        for above, here, below in zip(levels[:-2], levels[1:-1], levels[2:], strict=True):
            children = here + np.searchsorted(first_classes[here:below], ranges[above:here])
            counts = np.diff(children, axis=1)[:, 0]
            self._parents[here:below] = np.repeat(np.arange(above, here), counts)
            ranges[above:here] = children
        self._sizes = ends - first_classes
        self._leaf_starts = level_starts[-1]
        ranges = np.concatenate([ranges, [[0, levels[1]]]])
        widest = int(np.diff(ranges, axis=1).max())
        self._max_children = round_up_to_8(widest)
        to_device = self._arrays.to_device
        self._tree = CellTree(
            moments=to_device(np.empty((len(first_classes), 2 * dim), rows.dtype)),
            rows=to_device(rows[self._order]),
            log_sizes=to_device(np.log(self._sizes).astype(rows.dtype)),
            ranges=to_device(ranges),
            levels=to_device(levels),
        )
        self._update_moments(np.arange(levels[-2], levels[-1]))
        self._variance_when_clustered = self._variance_in_leaves()

    def _update_moments(self, cell_ids: IntArray) -> None:
        """Recompute the moments of leaves (k,), and of the cells above them."""
        tree = self._tree
        arrays = self._arrays
        children = tree.rows
        sizes = arrays.to_device(self._sizes[:0])  # empty: the children are classes

        def update_chunk(chunk: slice) -> None:
            num = chunk.stop - chunk.start
            chunk_ids = arrays.to_device(cell_ids[chunk])
            workspace = arrays.empty((2 * arrays.workers(num), tree.rows.shape[1]), np.float64)
            arrays.run(update_moments, num, tree, children, sizes, chunk_ids, workspace)

        # level by level up to the top; the cells of a level are sorted
        while len(cell_ids):
            arrays.each(
                update_chunk,
                chunks(len(cell_ids), max(_MIN_TASK_CELLS, len(cell_ids) // _TASKS_PER_LEVEL)),
            )
            parents = self._parents[cell_ids]  # sorted, because cells are
            cell_ids = (
                parents[np.append(True, parents[1:] > parents[:-1])]
                if parents[0] >= 0
                else parents[:0]
            )
            children = tree.moments
            sizes = arrays.to_device(self._sizes)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        positions, log_q = self._descend_and_score(
            h, exclude, uniform_block(key, h.shape[0], m), None
        )
        return Draw(self._arrays.to_device(self._order[positions].astype(np.int64)), log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        positions = self._positions[to_host(ids)].astype(np.int64)
        return self._descend_and_score(h, exclude, np.zeros(positions.shape), positions)[1]

    def _descend_and_score(
        self, h: Rows, exclude: IntArray, uniforms: FloatArray, positions: IntArray | None
    ) -> tuple[IntArray, FloatArray]:
        """Return positions (B, k) of classes, drawn or given, and their log-probabilities."""
        to_device = self._arrays.to_device
        shape = uniforms.shape
        drawn = np.empty(shape, np.int64)
        log_q = np.empty(shape)
        queries = self._queries(to_host(h))
        excluded = to_host(exclude)
        sorted_by: Any = uniforms if positions is None else positions

        def process_chunk(chunk: slice) -> None:
            contexts = self._with_exclusions(queries[chunk], excluded[chunk])
            # sorted, so that the draws of a context in a cell are adjacent on all levels, and given
            # classes of a leaf too: a leaf is weighed once for all of them
            order = np.argsort(sorted_by[chunk], axis=1)
            ranked = np.take_along_axis(sorted_by[chunk], order, axis=1)
            u = ranked if positions is None else uniforms[chunk]
            targets = (
                np.stack(self._ancestors(ranked))
                if positions is not None
                else np.empty((len(self._levels), 0, 0), np.int64)
            )
            paths = Paths(
                uniforms=to_device(u),
                cells=to_device(np.full_like(order, _ROOT_CELL)),
                probs=to_device(np.ones(order.shape)),
                log_q=to_device(np.zeros(order.shape)),
            )
            self._descend(contexts, targets, paths)
            cells = to_host(paths.cells)
            logs = np.log(to_host(paths.probs)) + to_host(paths.log_q)
            # the sum for an excluded class is meaningless
            logs[cells == to_host(contexts.excluded_path)[:, -1:]] = -np.inf
            np.put_along_axis(drawn[chunk], order, cells, axis=1)
            np.put_along_axis(log_q[chunk], order, logs, axis=1)

        batch, k = shape
        # few chunks, one per thread: the draws of a chunk share the reading of a leaf
        size = max(
            1, min(_MAX_THREAD_DRAWS // k, max(_MIN_CHUNK_CONTEXTS, -(-batch // num_threads())))
        )
        self._arrays.each(
            process_chunk, self._arrays.split(batch, size, 2 * k * self._max_children)
        )
        return drawn, to_device(log_q)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        batch = h.shape[0]
        n = self.num_classes
        probs = np.empty((batch, n))
        # as many classes at a time as memory allows for one context
        for chunk in self._arrays.split(n, n, 2 * self._max_children):
            ids = np.broadcast_to(np.arange(n)[chunk], (batch, chunk.stop - chunk.start))
            np.exp(to_host(self._log_prob(h, ids, exclude)), out=probs[:, chunk])
        return self._arrays.to_device(probs)

    def _log_mass(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the logarithms (B,) of the estimated mass of all cells at the top."""
        queries = self._queries(to_host(h))
        top = slice(self._levels[1])
        contexts = self._with_exclusions(queries, to_host(exclude))
        moments = to_host(self._tree.moments[top])
        log_sizes = to_host(self._tree.log_sizes[top])
        logits = product(queries, moments.T) + log_sizes
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
        arrays = self._arrays
        self._tree = tree._replace(
            rows=arrays.writable(tree.rows), moments=arrays.writable(tree.moments)
        )
        ids, rows = last_of_each(ids, rows)
        largest = float(np.abs(to_host(rows)).max())
        require_distances(largest, rows.dtype)
        # all vectors are new: cells of the old ones would be useless
        if len(ids) == len(self._positions):
            rebuilt = object.__new__(type(self))
            rebuilt.__dict__.update(self.__dict__)
            rebuilt._start(rows)
            return lambda: self.__dict__.update(rebuilt.__dict__)
        positions = self._positions[ids].astype(np.int64)
        touched = np.zeros(self._levels[-1], bool)  # faster than sorting many leaves
        touched[self._leaves_of(positions)] = True
        leaves = np.flatnonzero(touched)

        def commit() -> None:
            arrays.put_rows(rows, positions, self._tree.rows)
            self._max_entry = max(self._max_entry, largest)
            self._update_moments(leaves)
            # at growing intervals, because vectors move less and less: a few times in all
            self._num_updated += len(ids)
            if self._num_updated >= self._next_clustering:
                self._next_clustering = 2 * self._num_updated
                self.cluster()

        return commit

    def _queries(self, h: Rows) -> Rows:
        """Return the queries (B, 2 d): factors of the means and of the variances of cells."""
        scaled, bounds = self._scale_and_bound(h)
        if not bounds.max() < np.finfo(h.dtype).max:  # the largest vector may have been replaced
            self._max_entry = float(np.abs(to_host(self._tree.rows)).max())
            scaled, bounds = self._scale_and_bound(h)
        row = int(bounds.argmax())
        if not bounds[row] < np.finfo(h.dtype).max:
            raise ValueError(
                f"`h` must have logits and squares of them within the range of {h.dtype}, got up "
                f"to {bounds[row]:.3g} for row {row}; scale the vectors down, or use float64."
            )
        return np.concatenate([scaled, 0.5 * scaled**2], axis=1).astype(h.dtype)

    def _scale_and_bound(self, h: Rows) -> tuple[FloatArray, FloatArray]:
        """Return tau h (B, d), and bounds (B,) on the logits and their squares."""
        largest = max(self._max_entry, 1.0)  # small vectors must not hide large queries
        with np.errstate(over="ignore"):
            scaled: FloatArray = self.tau * h.astype(np.float64)
            # |tau h . c| and half its square, at most
            bounds: FloatArray = np.abs(scaled).sum(axis=1) * largest
            bounds += 0.5 * ((scaled * largest) ** 2).sum(axis=1)
        return scaled, bounds

    def _with_exclusions(self, queries: Rows, exclude: IntArray) -> Contexts:
        """Return queries with the ancestors of excluded classes and the masses left there."""
        to_device = self._arrays.to_device
        excludes = exclude != NO_CLASS
        excluded_path = np.full((len(queries), len(self._levels)), -1)
        contexts = Contexts(
            to_device(queries), to_device(excluded_path), to_device(np.empty(excluded_path.shape))
        )
        # without exclusion the remaining masses are not read
        if excludes.any():
            ways = self._ancestors(self._positions[exclude[excludes]].astype(np.int64))
            excluded_path[excludes] = np.stack(ways, axis=1)
            contexts = contexts._replace(excluded_path=to_device(excluded_path))
            num = len(excluded_path)
            workspace = self._workspace(len(excluded_path))
            self._arrays.run(exclude_classes, num, self._tree, contexts, workspace)
        return contexts

    def _descend(self, contexts: Contexts, targets: IntArray, paths: Paths) -> None:
        """Take paths from the root to classes, drawn or given."""
        if self.device == "cpu":
            walk(self._tree, contexts, targets, paths, self._workspace(_VISITS_PER_BLOCK))
            return
        # each path is a visit, and has a warp
        b, k = np.indices(paths.cells.shape).reshape(2, -1)
        visits = self._arrays.to_device(np.stack([b, k, k + 1], axis=1))
        num = paths.cells.size
        workspace = self._workspace(num)
        for level, children in enumerate(targets, start=-1):
            children = self._arrays.to_device(children)
            self._arrays.run(
                step, num, self._tree, contexts, level, visits, children, paths, workspace
            )

    def _ancestors(self, positions: IntArray) -> list[IntArray]:
        """Return the ancestors of classes at these positions from the top, then the positions."""
        cells = [positions, self._leaves_of(positions)]
        while len(cells) < len(self._levels):
            cells.append(self._parents[cells[-1]])
        return cells[::-1]

    def _leaves_of(self, positions: IntArray) -> IntArray:
        """Return the leaves of the classes at these positions."""
        leaf_numbers = np.searchsorted(self._leaf_starts, positions, side="right")
        leaves: IntArray = self._levels[-2] + leaf_numbers - 1
        return leaves

    def _workspace(self, num: int) -> Workspace:
        """Return a workspace to weigh the children of `num` cells at a time."""
        empty = self._arrays.empty
        num_rows = min(num, _VISITS_PER_BLOCK)
        dtype = self._tree.rows.dtype
        # on a GPU in float64, whatever the dtype of vectors: weights are not multiplied there
        if self.device != "cpu":
            num_rows = num
            dtype = np.dtype(np.float64)
        logits, weights = (empty((num_rows, self._max_children), dtype) for _ in range(2))
        return Workspace(logits, weights, empty((num_rows, 2), np.float64))
