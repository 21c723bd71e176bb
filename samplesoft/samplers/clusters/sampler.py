"""Classes drawn through cells of similar ones, whose mass two cumulants estimate."""

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
from samplesoft.kernels.products import product, whole_eights
from samplesoft.samplers.base import NO_CLASS, Draw, Rows, Sampler
from samplesoft.samplers.clusters.descent import (
    Cells,
    Contexts,
    Paths,
    Room,
    exclude_classes,
    step,
    sum_up,
    walk,
)
from samplesoft.samplers.clusters.partition import make_partition
from samplesoft.samplers.k_means import require_distances

_TOP_CELL = -1  # the cell over all, and its level
_THREAD_DRAWS = 1 << 20  # that are held at a time, by a thread
_FEWEST_CONTEXTS = 64  # contexts of a part
_VISITS_TOGETHER = 16  # visits, see `step`
_TASK_CELLS = 256  # that a task of a thread sums up, at least
_LOOP_TASKS = 16  # or so for a long loop


class ClusterSampler(Sampler):
    r"""The softmax among similar classes, which are reached through cells of estimated mass.

    K-means divides the classes into cells, these into smaller ones, and so on down to leaves of
    some 16 classes. A draw takes a cell by its estimated mass, a cell in it, and so on, and in a
    leaf a class by the softmax. Take it for more than some thousand classes, where each example
    has draws of its own: it has the least bias of the samplers that do not score all classes.

    Parameters
    ----------
    class_embeddings : array_like, shape (n, d)
        One row for each class, float32 or float64; copied.
    tau : float, optional
        Inverse temperature, 1 by default.
    leaf_size : int
        Classes in a leaf, about; at most four times as many. Larger leaves have less bias, and
        cost a draw more.
    progress : bool
        Show progress on stderr while clustering: a bar if that is a terminal, else lines.
    rng : int, numpy.random.Generator or None
        Seed of the clustering.
    device : {"cpu", "cuda"}
        Where it works, and where what it returns stays, but for `cells`. Classes are divided on
        the processor in both cases.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed; in `sample`, `log_prob` and `probs` also if logits overflow.
    MemoryError
        If the cells would not fit in the memory that is left.

    Notes
    -----
    **Mass of a cell.** Over the :math:`n_c` classes of a cell, with mean :math:`\mu_c` and
    variances :math:`v_c` of their vectors, the logits :math:`x_j = \tau h \cdot c_j` are taken to
    have two cumulants,

    .. math:: \log M_c = \log n_c + \tau h \cdot \mu_c + \tfrac{\tau^2}{2} \sum_k h_k^2 v_{ck},

    which is above 0 for all vectors, and costs 2 d multiplications.

    **q is exact.** The probability of a class is the product of the shares that are used on the
    way to it; `sample`, `log_prob` and `probs` compute the same numbers. Rounding of the products
    with cells may depend on the batch that a context comes in. Cells that have become stale cost
    bias of the loss, and nothing else.

    **How far q is from the softmax p.** Let all x_j of a cell lie in an interval of width
    :math:`w_c`. Then its true mass :math:`S_c = \sum_j e^{x_j}` has
    :math:`\log n_c + \bar x \le \log S_c \le \log n_c + \bar x + w_c^2 / 8` (Jensen; Hoeffding's
    lemma). With :math:`s_c = \tfrac{\tau^2}{2} \sum_k h_k^2 v_{ck}` so
    :math:`|\log M_c - \log S_c| \le e_c = \max(s_c, w_c^2 / 8)`, and as each level normalises
    among siblings, :math:`|\log q_j / p_j| \le 2 \sum e`, summed over levels with the greatest
    e among the siblings of each.

    **Exclusion is exact.** An excluded class is left out of its leaf, and of the mass of every
    cell above by the share that it has there; only positive numbers are added.

    **Class biases** b are one more coordinate: with vectors :math:`(c_j, b_j / \tau)` and contexts
    :math:`(h, 1)` draws follow :math:`\tau h \cdot c_j + b_j`.

    **Updates** sum up the leaf of each class, and the cells above from their children, anew: they
    leave no rounding behind. Cells that were made of untrained vectors are of little use later. So
    classes are divided anew, as `cluster` does, by an update of all of them, and when n vectors
    have been updated, and 2 n, 4 n and so on. Once an epoch is well besides: call `cluster`, or
    ``refresh`` of a `samplesoft.models.SoftmaxLayer`, as the classifier and ``samplesoft train``
    do. A log-bilinear model of 64,000 words had a perplexity of 58.4 after a million examples with
    its first cells, of 52.8 so, and of 52.5 with draws from the softmax itself.

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
        what = f"cells of {self.num_classes:,} classes"
        # vectors, a mean and a variance for each cell, and eight numbers for each class
        needed = rows.nbytes * (1.0 + 4.0 / self.leaf_size) + 64.0 * self.num_classes
        remedy = "use float32, larger leaves or fewer classes"
        require_bytes(what, rows.nbytes + needed, remedy)  # where they are divided
        require_bytes(what, needed, remedy, arrays.available_bytes())
        # which cell holds which classes is known to the processor, whatever the device
        self._key = as_key(rng)
        self._begin(rows, progress)

    @property
    def nbytes(self) -> int:
        """Bytes of the class vectors, and of what is held to draw by them."""
        arrays = (*self._tree, self._parents, self._sizes, self._order, self._places)
        return int(sum(array.nbytes for array in arrays))

    def cells(self) -> list[list[IntArray]]:
        """Return the classes of each cell: level by level from the top, the leaves at the end."""
        edges = [np.cumsum(self._sizes[a:b])[:-1] for a, b in pairwise(self._levels)]
        return [np.split(self._order.astype(np.int64), each) for each in edges]

    def class_embeddings(self, ids: Any = None) -> Rows:
        """Return a copy of the class vectors (k, d) of some classes, or of all."""
        places: Any = self._places
        if ids is not None:
            places = places[to_host(self._arrays.ids("ids", ids, self.num_classes))]
        return self._arrays.take_rows(self._tree.rows, places)

    @property
    def staleness(self) -> float:
        """Mean squared distance of classes to the mean of their leaf, over that when clustered.

        1 for cells as good as new. The bias grows faster: a few classes that have moved far, as at
        1.4, can make it ten times what it was. Beyond 1.2 or so call `cluster`. Where all classes
        draw together, as in training that starts from random vectors, it falls, though new cells
        would be far better: there call `cluster` once an epoch, whatever it says.
        """
        before = self._spread_when_clustered
        now = self._spread()
        return now / before if before > 0.0 else 1.0 if now == 0.0 else np.inf

    def cluster(self, *, progress: bool = False) -> None:
        """Divide the classes anew, by their vectors as they are now.

        Parameters
        ----------
        progress : bool
            Show progress on stderr: a bar if that is a terminal, else lines.
        """
        self._divide(to_host(self.class_embeddings()), as_flag("progress", progress))

    def _spread(self) -> float:
        """Return the mean squared distance of a class vector to the mean of its leaf."""
        leaves = slice(*self._levels[-2:])
        cells = to_host(self._tree.cells[leaves])
        sizes = self._sizes[leaves]
        variances = cells[:, cells.shape[1] // 2 :].sum(axis=1, dtype=np.float64)
        return float(sizes @ variances / sizes.sum())

    def _begin(self, rows: Rows, progress: bool = False) -> None:
        self._changed = 0  # vectors so far
        self._due = self.num_classes  # number of changed vectors at which classes are divided again
        self._divide(to_host(rows), progress)

    def _divide(self, rows: Rows, progress: bool = False) -> None:
        n, dim = rows.shape
        self._largest = float(np.abs(rows).max())
        require_distances(self._largest, rows.dtype)
        order, starts = make_partition(rows, self.leaf_size, self._key, progress)
        small = np.int32 if n < 2**31 else np.int64
        self._order = order.astype(small)
        self._places = np.empty(n, small)
        # the inverse: where each class stands among the leaves
        self._places[self._order] = np.arange(n)
        self._levels = levels = np.cumsum([0, *map(len, starts)])
        firsts = np.concatenate(starts)
        ends = np.concatenate([[*each[1:], n] for each in starts])
        ranges = np.stack([firsts, ends], axis=1)  # of classes, and below the top of cells
        self._parents = np.full(len(firsts), -1)
        # children of a cell stand side by side, so a range of them says where they are
        for above, here, below in zip(levels[:-2], levels[1:-1], levels[2:], strict=True):
            children = here + np.searchsorted(firsts[here:below], ranges[above:here])
            counts = np.diff(children, axis=1)[:, 0]
            self._parents[here:below] = np.repeat(np.arange(above, here), counts)
            ranges[above:here] = children
        self._sizes = ends - firsts
        self._leaf_starts = starts[-1]
        ranges = np.concatenate([ranges, [[0, levels[1]]]])
        widest = int(np.diff(ranges, axis=1).max())
        self._width = whole_eights(widest)
        placed = self._arrays.placed
        self._tree = Cells(
            cells=placed(np.empty((len(firsts), 2 * dim), rows.dtype)),
            rows=placed(rows[self._order]),
            log_sizes=placed(np.log(self._sizes).astype(rows.dtype)),
            ranges=placed(ranges),
            levels=placed(levels),
        )
        self._sum_up(np.arange(levels[-2], levels[-1]))
        self._spread_when_clustered = self._spread()

    def _sum_up(self, which: IntArray) -> None:
        """Sum up leaves (k,), and the cells above them."""
        tree = self._tree
        arrays = self._arrays
        children = tree.rows
        sizes = arrays.placed(self._sizes[:0])  # of classes, none is asked for

        def sum_up_some(part: slice) -> None:
            num = part.stop - part.start
            some = arrays.placed(which[part])
            room = arrays.empty((2 * arrays.workers(num), tree.rows.shape[1]), np.float64)
            arrays.run(sum_up, num, tree, children, sizes, some, room)

        # up to the top, level by level; cells of a level come together and rise
        while len(which):
            arrays.each(
                sum_up_some, chunks(len(which), max(_TASK_CELLS, len(which) // _LOOP_TASKS))
            )
            above = self._parents[which]  # rising, as the cells are
            which = above[np.append(True, above[1:] > above[:-1])] if above[0] >= 0 else above[:0]
            children = tree.cells
            sizes = arrays.placed(self._sizes)

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        places, log_q = self._followed(h, exclude, uniform_block(key, h.shape[0], m), None)
        return Draw(self._arrays.placed(self._order[places].astype(np.int64)), log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        places = self._places[to_host(ids)].astype(np.int64)
        return self._followed(h, exclude, np.zeros(places.shape), places)[1]

    def _followed(
        self, h: Rows, exclude: IntArray, uniforms: FloatArray, places: IntArray | None
    ) -> tuple[IntArray, FloatArray]:
        """Return the places (B, k) that uniforms draw, or known ones, and log-probabilities."""
        placed = self._arrays.placed
        shape = uniforms.shape
        drawn = np.empty(shape, np.int64)
        log_q = np.empty(shape)
        queries = self._queries(to_host(h))
        excluded = to_host(exclude)
        sorted_by: Any = uniforms if places is None else places

        def follow(part: slice) -> None:
            contexts = self._without(queries[part], excluded[part])
            # sorted, so that the draws of a context in a cell are neighbours, and so are those
            # below it; classes of a leaf side by side: a leaf is weighed once for all of them
            order = np.argsort(sorted_by[part], axis=1)
            ranked = np.take_along_axis(sorted_by[part], order, axis=1)
            u = ranked if places is None else uniforms[part]
            known = (
                np.stack(self._ways(ranked))
                if places is not None
                else np.empty((len(self._levels), 0, 0), np.int64)
            )
            paths = Paths(
                uniforms=placed(u),
                at=placed(np.full_like(order, _TOP_CELL)),
                shares=placed(np.ones(order.shape)),
                log_q=placed(np.zeros(order.shape)),
            )
            self._descend(contexts, known, paths)
            at = to_host(paths.at)
            logs = np.log(to_host(paths.shares)) + to_host(paths.log_q)
            # what was added up on the way to an excluded class is of no use
            logs[at == to_host(contexts.path)[:, -1:]] = -np.inf
            np.put_along_axis(drawn[part], order, at, axis=1)
            np.put_along_axis(log_q[part], order, logs, axis=1)

        batch, k = shape
        # those that meet in a leaf share the reading of it: as few parts as there are threads
        size = max(1, min(_THREAD_DRAWS // k, max(_FEWEST_CONTEXTS, -(-batch // num_threads()))))
        self._arrays.each(follow, self._arrays.split(batch, size, 2 * k * self._width))
        return drawn, placed(log_q)

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        batch = h.shape[0]
        n = self.num_classes
        probs = np.empty((batch, n))
        # classes at a time for which one context has room
        for part in self._arrays.split(n, n, 2 * self._width):
            ids = np.broadcast_to(np.arange(n)[part], (batch, part.stop - part.start))
            np.exp(to_host(self._log_prob(h, ids, exclude)), out=probs[:, part])
        return self._arrays.placed(probs)

    def _log_mass(self, h: Rows, exclude: IntArray) -> FloatArray:
        """Return the logarithms (B,) of the estimated masses of the cells at the top, added up."""
        queries = self._queries(to_host(h))
        top = slice(self._levels[1])
        contexts = self._without(queries, to_host(exclude))
        cells = to_host(self._tree.cells[top])
        log_sizes = to_host(self._tree.log_sizes[top])
        logits = product(queries, cells.T) + log_sizes
        path = to_host(contexts.path)[:, 0]
        remaining = to_host(contexts.remaining)[:, 0]
        without = np.flatnonzero(path >= 0)
        logits[without, path[without]] += remaining[without]
        greatest = logits.max(axis=1, keepdims=True)
        sums = np.exp(logits - greatest).sum(axis=1, dtype=np.float64)
        log_mass: FloatArray = greatest[:, 0] + np.log(sums)
        return log_mass

    def _prepare(self, ids: Any, rows: Rows) -> Callable[[], None]:
        tree = self._tree
        arrays = self._arrays
        self._tree = tree._replace(
            rows=arrays.writable(tree.rows), cells=arrays.writable(tree.cells)
        )
        ids, rows = last_of_each(ids, rows)
        largest = float(np.abs(to_host(rows)).max())
        require_distances(largest, rows.dtype)
        # cells that were made of other vectors would fit none of these
        if len(ids) == len(self._places):
            anew = object.__new__(type(self))
            anew.__dict__.update(self.__dict__)
            anew._begin(rows)
            return lambda: self.__dict__.update(anew.__dict__)
        places = self._places[ids].astype(np.int64)
        touched = np.zeros(self._levels[-1], bool)  # quicker than to sort what may be many
        touched[self._leaves(places)] = True
        leaves = np.flatnonzero(touched)

        def commit() -> None:
            arrays.put_rows(rows, places, self._tree.rows)
            self._largest = max(self._largest, largest)
            self._sum_up(leaves)
            # at growing distances, for vectors move ever less: it costs a few times in all
            self._changed += len(ids)
            if self._changed >= self._due:
                self._due = 2 * self._changed
                self.cluster()

        return commit

    def _queries(self, h: Rows) -> Rows:
        """Return what contexts (B, d) multiply means and variances by, (B, 2 d)."""
        scaled, bounds = self._bounded(h)
        if not bounds.max() < np.finfo(h.dtype).max:  # the largest vector may have gone since
            self._largest = float(np.abs(to_host(self._tree.rows)).max())
            scaled, bounds = self._bounded(h)
        row = int(bounds.argmax())
        if not bounds[row] < np.finfo(h.dtype).max:
            raise ValueError(
                f"`h` must have logits and squares of them within the range of {h.dtype}, got up "
                f"to {bounds[row]:.3g} for row {row}; scale the vectors down, or use float64."
            )
        return np.concatenate([scaled, 0.5 * scaled**2], axis=1).astype(h.dtype)

    def _bounded(self, h: Rows) -> tuple[FloatArray, FloatArray]:
        """Return tau h (B, d), and bounds (B,) on logits and their squares."""
        largest = max(self._largest, 1.0)  # what is below 1 must not hide large queries
        with np.errstate(over="ignore"):
            scaled: FloatArray = self.tau * h.astype(np.float64)
            # |tau h . c| and half its square, for the greatest vector that there may be
            bounds: FloatArray = np.abs(scaled).sum(axis=1) * largest
            bounds += 0.5 * ((scaled * largest) ** 2).sum(axis=1)
        return scaled, bounds

    def _without(self, queries: Rows, exclude: IntArray) -> Contexts:
        """Return contexts with what is left out for each."""
        placed = self._arrays.placed
        excludes = exclude != NO_CLASS
        path = np.full((len(queries), len(self._levels)), -1)
        contexts = Contexts(placed(queries), placed(path), placed(np.empty(path.shape)))
        # where no path has a place, nobody asks what remains
        if excludes.any():
            ways = self._ways(self._places[exclude[excludes]].astype(np.int64))
            path[excludes] = np.stack(ways, axis=1)
            contexts = contexts._replace(path=placed(path))
            num = len(path)
            room = self._room(len(path))
            self._arrays.run(exclude_classes, num, self._tree, contexts, room)
        return contexts

    def _descend(self, contexts: Contexts, known: IntArray, paths: Paths) -> None:
        """Take paths from the top to classes."""
        if self.device == "cpu":
            walk(self._tree, contexts, known, paths, self._room(_VISITS_TOGETHER))
            return
        # each path is a visit of its own, and has a warp
        b, k = np.indices(paths.at.shape).reshape(2, -1)
        visits = self._arrays.placed(np.stack([b, k, k + 1], axis=1))
        num = paths.at.size
        room = self._room(num)
        for level, children in enumerate(known, start=-1):
            children = self._arrays.placed(children)
            self._arrays.run(step, num, self._tree, contexts, level, visits, children, paths, room)

    def _ways(self, places: IntArray) -> list[IntArray]:
        """Return the cells over the classes at some places, from the top, and those at the end."""
        cells = [places, self._leaves(places)]
        while len(cells) < len(self._levels):
            cells.append(self._parents[cells[-1]])
        return cells[::-1]

    def _leaves(self, places: IntArray) -> IntArray:
        """Return the leaves of the classes at some places."""
        above = np.searchsorted(self._leaf_starts, places, side="right")
        leaves: IntArray = self._levels[-2] + above - 1
        return leaves

    def _room(self, num: int) -> Room:
        """Return room for the workers that weigh the children of `num` cells, in a row for each."""
        empty = self._arrays.empty
        num_rows = min(num, _VISITS_TOGETHER)
        dtype = self._tree.rows.dtype
        # on a device in float64, whatever the vectors are: weights are only read there
        if self.device != "cpu":
            num_rows = num
            dtype = np.dtype(np.float64)
        logits, weights = (empty((num_rows, self._width), dtype) for _ in range(2))
        return Room(logits, weights, empty((num_rows, 2), np.float64))
