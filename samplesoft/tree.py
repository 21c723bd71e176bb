"""The kernel tree: draws classes in proportion to a kernel in time logarithmic in their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log2
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._jit import chunks, num_threads, thread_each, thread_map
from samplesoft._memory import require_memory
from samplesoft._progress import progress_bar
from samplesoft._random import uniform_block
from samplesoft._tree_sums import TreeSums
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_choice,
    as_count,
    as_float_rows,
    as_ids,
    as_positive,
)
from samplesoft.kernels.tree_leaf import log_inside, log_rest, pick, probs_inside
from samplesoft.kernels.tree_sums import sum_changes, sum_runs
from samplesoft.kernels.tree_walk import (
    known_levels,
    lift_rest,
    log_reach,
    log_reach_all,
    multiply_top,
    walk,
)
from samplesoft.sampler import Draw, Rows, Sampler

Transform = Callable[[Rows], NDArray[Any]]

LEAVES = ("kernel", "softmax", "quadratic")
SMALLEST_FLOOR = 1e-150  # so that the ratio of two masses is a number above 0
_BLOCK = 1 << 24  # numbers in the features held at a time while building
_UPDATES = 256  # classes whose changes are computed together
_KERNEL_PART = 64  # examples that share the features of the leaves which they visit
_VISIT = 1000  # cost of a visit beside its inner product, in multiplications
_WORTH_A_THREAD = 3 << 20  # multiplications below which threads cost more than they save


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
        Show a progress bar on stderr while building, if that is a terminal.

    Attributes
    ----------
    num_features : int
        Number of features F.
    num_updates : int
        Class vectors updated since the sums were built; updating half of them builds them anew.

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
    ) -> None:
        rows = as_float_rows("class_embeddings", class_embeddings)
        super().__init__(len(rows), rows.shape[1], rows.dtype)
        self.leaf = as_choice("leaf", leaf, LEAVES)
        self.floor = min(max(as_positive("floor", floor), SMALLEST_FLOOR), 1.0 / SMALLEST_FLOOR)
        self.scale = as_positive("scale", scale)
        if not (transform is None or callable(transform)):
            raise TypeError(
                f"`transform` must be callable, got {type(transform).__name__}; of a feature map, "
                "pass its `transform`."
            )
        self._transform = transform
        self.num_features = 0  # not known before the first features
        self.num_features = self._features(rows[:1]).shape[1]
        if leaf_size is None:
            leaf_size = 1 << max(4, round(log2(2 * self.num_features / rows.shape[1])))
        self.leaf_size = min(as_count("leaf_size", leaf_size), self.num_classes)
        self._num_leaves = -(-self.num_classes // self.leaf_size)
        require_memory(
            f"the tree over {self.num_classes:,} classes with {self.num_features:,} features",
            "leaf_size",
            self.leaf_size,
            self.num_classes,
            self._predicted,
        )
        self._rows = rows.copy()
        self.rebuild(progress=progress)

    @property
    def nbytes(self) -> int:
        """Bytes of the node sums and the class vectors."""
        return int(self._sums.nodes.nbytes) + int(self._rows.nbytes)

    @property
    def drift(self) -> float:
        """How far updates have moved the sum at the root, relative to its norm.

        Every update adds to the root, whose rounding errors are measured against a sum in float64.
        What cancels on the way to the root does not show: after vectors that were for a time very
        much longer, rebuild.
        """
        return self._sums.drift

    def class_embeddings(self, ids: Any = None) -> Rows:
        """Return a copy of the class vectors (k, d) of some classes, or of all."""
        if ids is None:
            return self._rows.copy()
        rows: Rows = self._rows[as_ids("ids", ids, self.num_classes)]
        return rows

    def rebuild(self, *, progress: bool = False) -> None:
        """Sum the features of all classes again, which ends any drift.

        Parameters
        ----------
        progress : bool
            Show a progress bar on stderr, if that is a terminal.
        """
        self._sums = self._built(self._rows, progress)
        self.num_updates = 0

    def _built(self, rows: Rows, progress: bool = False) -> TreeSums:
        """Return the sums of the features of `rows` (n, d)."""
        leaf_sums = np.empty((self._num_leaves, self.num_features), self._dtype)
        parts = chunks(self._num_leaves, self._leaves_at_a_time)
        for part in progress_bar(progress, iterable=parts, unit="block", desc="building the tree"):
            here = rows[part.start * self.leaf_size : part.stop * self.leaf_size]
            starts = np.arange(0, len(here), self.leaf_size)
            sum_runs(self._features(here), starts, leaf_sums[part])
        return TreeSums(leaf_sums)

    def _features(self, rows: Rows) -> NDArray[Any]:
        if self._transform is None:
            return rows
        with np.errstate(over="ignore"):
            features = np.asarray(self._transform(rows))
            wanted = self.num_features or max(1, features.shape[-1] if features.ndim else 1)
            if features.shape != (len(rows), wanted) or features.dtype.kind not in "biuf":
                raise ValueError(
                    f"`transform` must give real features of shape ({len(rows)}, {wanted}) for "
                    f"{len(rows)} rows, got {features.dtype} of shape {features.shape}."
                )
            return np.ascontiguousarray(features, self._dtype)

    def _predicted(self, leaf_size: int) -> int:
        num_leaves = -(-self.num_classes // leaf_size)
        vectors = self.num_classes * (self.dim or 0)
        block = min(
            self.num_classes * self.num_features, max(_BLOCK, leaf_size * self.num_features)
        )
        return (num_leaves * self.num_features + vectors + 2 * block) * np.dtype(
            self._dtype
        ).itemsize

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        phi = self._features(h)
        uniforms = uniform_block(key, len(h), m)
        ids, log_q = np.empty((len(h), m), np.int64), np.empty((len(h), m))

        def draw(part: slice) -> None:
            barred, rest = exclude[part], self._rest_in_leaf(h[part], phi[part], exclude[part])
            shape, u = uniforms[part].shape, uniforms[part]
            order, leaves = np.empty(shape, np.int64), np.empty(shape, np.int64)
            log_p = np.empty(shape)
            levels = known_levels(self._num_leaves, *shape)
            known = np.empty((len(rest), 1 << levels))
            nodes, tree, inside = self._sums.nodes, self._walked, self._inside
            multiply_top(phi[part], nodes, levels, known)
            walk(phi[part], nodes, known, *tree, barred, rest, u, order, leaves, log_p)
            out = ids[part], log_q[part]
            for queries, rows, begin in self._leaf_rows(h[part], phi[part], leaves):
                drawn = queries, rows, begin, leaves, barred, rest, u, order, log_p
                pick(*drawn, *inside, *out)

        self._share_out(draw, len(h), m)
        return Draw(ids, log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        phi = self._features(h)
        log_q = np.empty(ids.shape)

        def read(part: slice) -> None:
            rest = self._rest_at_root(h[part], phi[part], exclude[part])
            leaves = ids[part] // self.leaf_size
            log_reach(phi[part], self._sums.nodes, leaves, *self._walked, log_q[part])
            barred, inside = exclude[part], self._inside
            for queries, rows, begin in self._leaf_rows(h[part], phi[part], leaves):
                log_inside(queries, rows, begin, ids[part], barred, rest, *inside, log_q[part])

        self._share_out(read, *ids.shape)
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        phi = self._features(h)
        reach = np.empty((len(h), self._num_leaves))
        probs = np.empty((len(h), self.num_classes))
        rest = self._rest_at_root(h, phi, exclude)

        def descend(part: slice) -> None:
            log_reach_all(phi[part], self._sums.nodes, *self._walked, reach[part])

        def spread(part: slice) -> None:
            leaves = np.arange(part.start, part.stop)
            for queries, rows, begin in self._leaf_rows(h, phi, leaves):
                here = begin >= 0
                probs_inside(
                    queries,
                    rows,
                    begin[here],
                    leaves[here],
                    reach,
                    exclude,
                    rest,
                    *self._inside,
                    probs,
                )

        self._share_out(descend, len(h), self._num_leaves)
        thread_each(spread, chunks(self._num_leaves, self._leaves_at_a_time))
        return probs

    def _prepare(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        ids, last = np.unique(ids[::-1], return_index=True)
        rows = rows[len(rows) - 1 - last]
        if 2 * len(ids) >= self.num_classes:  # features of new and old rows would cost more
            return self._prepare_rebuild(ids, rows)
        leaves, starts = np.unique(ids // self.leaf_size, return_index=True)
        change = np.empty((len(leaves), self.num_features), self._dtype)

        def read(part: slice) -> FloatArray:
            some = slice(starts[part.start], [*starts, len(ids)][part.stop])
            num = some.stop - some.start
            features = self._features(np.concatenate((rows[some], self._rows[ids[some]])))
            total = np.zeros(self.num_features)
            offsets = starts[part] - starts[part.start]
            sum_changes(features[:num], features[num:], offsets, change[part], total)
            return total

        at_a_time = min(_UPDATES, _BLOCK // (2 * self.num_features) - self.leaf_size + 1)
        edges = np.searchsorted(starts, np.arange(0, len(ids), max(1, at_a_time)))
        edges = np.unique([*edges, len(leaves)])
        total = np.zeros(self.num_features)
        for moved in thread_map(read, map(slice, edges[:-1], edges[1:])):
            total += moved
        add = self._sums.prepare(leaves, change, total)

        def commit() -> None:
            add()
            self._rows[ids] = rows
            self.num_updates += len(ids)

        return commit

    def _prepare_rebuild(self, ids: IntArray, rows: Rows) -> Callable[[], None]:
        every = self._rows.copy()
        every[ids] = rows
        sums = self._built(every)

        def commit() -> None:
            self._rows, self._sums, self.num_updates = every, sums, 0

        return commit

    @property
    def _walked(self) -> tuple[int, int, float]:
        return self.num_classes, self.leaf_size, self.floor

    @property
    def _inside(self) -> tuple[int, int, int, float]:
        """What the kernels of a leaf need to know; a class alone in its leaf needs no features."""
        leaf = self.leaf if self.leaf_size > 1 else "softmax"
        scale = self.floor if leaf == "kernel" else self.scale
        return self.num_classes, self.leaf_size, LEAVES.index(leaf), scale

    @property
    def _leaves_at_a_time(self) -> int:
        return max(1, _BLOCK // (self.leaf_size * self.num_features))

    def _leaf_rows(
        self, h: Rows, phi: Rows, leaves: IntArray
    ) -> Iterator[tuple[Rows, NDArray[Any], IntArray]]:
        """Yield queries, rows to multiply them by, and where the rows of each of `leaves` begin.

        Where these are features, they come for some leaves at a time, the others beginning at -1.
        """
        if self._transform is None or LEAVES[self._inside[2]] != "kernel":
            yield h, self._rows, leaves * self.leaf_size
            return
        visited, slots = np.unique(leaves, return_inverse=True)
        slots = slots.reshape(leaves.shape)
        for part in chunks(len(visited), self._leaves_at_a_time):
            ids = (visited[part, None] * self.leaf_size + np.arange(self.leaf_size)).reshape(-1)
            features = self._features(self._rows[ids[ids < self.num_classes]])
            here = (slots >= part.start) & (slots < part.stop)
            yield phi, features, np.where(here, (slots - part.start) * self.leaf_size, -1)

    def _rest_in_leaf(self, h: Rows, phi: Rows, exclude: IntArray) -> FloatArray:
        """Return (B, 2): in the leaf of each excluded class, the log-probability of the others."""
        rest = np.zeros((len(h), 2))
        if exclude.max() >= 0:
            leaves = np.maximum(exclude, 0) // self.leaf_size
            for queries, rows, begin in self._leaf_rows(h, phi, leaves):
                log_rest(queries, rows, begin, exclude, *self._inside, rest)
        return rest

    def _rest_at_root(self, h: Rows, phi: Rows, exclude: IntArray) -> FloatArray:
        """Return (B, 2): the same, and the log-probability of the others from the root."""
        rest = self._rest_in_leaf(h, phi, exclude)
        lift_rest(phi, self._sums.nodes, *self._walked, exclude, rest)
        return rest

    def _share_out(self, work: Callable[[slice], None], batch: int, num_leaves: int) -> None:
        """Call `work` for parts of the batch, on threads where that pays.

        An example visits so many leaves. Features of a leaf's classes are computed for a part as
        a whole, and so that results do not depend on threads, nor do those parts.
        """
        visits = batch * num_leaves * self._num_leaves.bit_length()
        parts = num_threads() if visits * (self.num_features + _VISIT) > _WORTH_A_THREAD else 1
        size = -(-batch // parts)
        if self.leaf == "kernel" and self._transform is not None:
            size = _KERNEL_PART
        thread_each(work, chunks(batch, size))
