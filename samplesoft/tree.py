"""The kernel tree: draws classes in proportion to a kernel in time logarithmic in their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._jit import chunks, num_threads, thread_map
from samplesoft._memory import available_bytes, human_bytes
from samplesoft._random import uniform_block
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
from samplesoft.kernels.tree_sums import add_to_tree, sums_to_differences
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
_VISIT = 1000  # cost of a visit beside its inner product, in multiplications
_WORTH_A_THREAD = 1 << 20  # multiplications below which threads cost more than they save


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
        Features (k, F) of rows (k, d), such as the ``transform`` of a feature map. Applied to
        class vectors in chunks, and to contexts.
    leaf_size : int, optional
        Classes in a bucket. Node sums take ``n * F / leaf_size`` numbers; a draw costs
        ``leaf_size * d`` multiplications in its bucket, or ``leaf_size * F`` for
        ``leaf="kernel"``. By default the power of two, at least 16, with which node sums take
        no more memory than the class vectors.
    leaf : {"kernel", "softmax", "quadratic"}
        Weight of a class in its bucket: the inner product of features, clipped by `floor`;
        ``exp(scale * h . c)``; or ``scale * (h . c)**2 + 1``.
    scale : float
        The inverse temperature of ``"softmax"``, the factor alpha of ``"quadratic"``.
    floor : float
        Least mass of one class, from 1e-150 to 1e150.
    progress : bool
        Show a progress bar on stderr while building, if that is a terminal.

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
    the same numbers. With float32 features a branch probability follows the kernel to about 1e-7.

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
        super().__init__(*rows.shape)
        self.leaf = as_choice("leaf", leaf, LEAVES)
        self.floor = min(max(as_positive("floor", floor), SMALLEST_FLOOR), 1.0 / SMALLEST_FLOOR)
        self.scale = as_positive("scale", scale)
        self._transform = transform
        self._dtype = rows.dtype
        self.num_features = self._features(rows[:1]).shape[1]
        if leaf_size is None:
            leaf_size = max(16, 1 << (-(-self.num_features // rows.shape[1]) - 1).bit_length())
        self.leaf_size = min(as_count("leaf_size", leaf_size), self.num_classes)
        self._num_leaves = -(-self.num_classes // self.leaf_size)
        self._check_memory()
        self._rows = rows.copy()
        self.rebuild(progress=progress)

    @property
    def nbytes(self) -> int:
        """Bytes of the node sums and the class vectors."""
        return int(self._nodes.nbytes) + int(self._rows.nbytes)

    @property
    def drift(self) -> float:
        """How far updates have moved the sum at the root, relative to its norm.

        Every update adds to the root, so that its rounding errors are the most. They are measured
        against a sum kept in float64.
        """
        norm = np.linalg.norm(self._total)
        return float(np.linalg.norm(self._nodes[0] - self._total) / norm) if norm > 0.0 else 0.0

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
        nodes = np.zeros((self._num_leaves, self.num_features), self._dtype)
        step = max(1, _BLOCK // (self.num_features * self.leaf_size))
        for part in _with_progress(chunks(self._num_leaves, step), progress):
            rows = self._rows[part.start * self.leaf_size : part.stop * self.leaf_size]
            features = self._features(rows)
            starts = np.arange(0, len(rows), self.leaf_size)
            np.add.reduceat(features, starts, axis=0, out=nodes[part])
        total = nodes.sum(axis=0, dtype=np.float64)
        if not np.isfinite(total).all():
            raise ValueError(
                "`transform` must give features with finite sums, got infinity or NaN; scale the "
                "class vectors down, or use float64."
            )
        for _ in thread_map(lambda columns: sums_to_differences(nodes, columns), self._columns()):
            pass
        self._nodes, self._total = nodes, total
        self.num_updates = 0

    def _features(self, rows: Rows) -> NDArray[Any]:
        if self._transform is None:
            return rows
        features = np.asarray(self._transform(rows))
        if features.ndim != 2 or len(features) != len(rows):
            raise ValueError(
                f"`transform` must give one row of features for each of {len(rows)} rows, got "
                f"shape {features.shape}."
            )
        return np.ascontiguousarray(features, self._dtype)

    def _columns(self) -> list[IntArray]:
        """Return ranges of features, one for each thread."""
        ends = np.linspace(0, self.num_features, num_threads() + 1).astype(np.int64)
        return [ends[i : i + 2] for i in range(num_threads())]

    def _check_memory(self) -> None:
        size, left = self._predicted(self.leaf_size), available_bytes()
        if left is None or size <= left:
            return
        fitting = self.leaf_size
        while fitting < self.num_classes and self._predicted(fitting) > left:
            fitting *= 2
        remedy = f"leaf_size={fitting} would fit"
        if self._predicted(fitting) > left:
            remedy = "no leaf_size would fit; use float32 or fewer classes"
        raise MemoryError(
            f"the tree over {self.num_classes:,} classes with {self.num_features:,} features needs "
            f"{human_bytes(size)}, but {human_bytes(left)} are available; {remedy}."
        )

    def _predicted(self, leaf_size: int) -> int:
        num_leaves = -(-self.num_classes // leaf_size)
        vectors = self.num_classes * (self.dim or 0)
        block = max(_BLOCK, leaf_size * self.num_features)
        return (num_leaves * self.num_features + vectors + 2 * block) * self._dtype.itemsize

    def _contexts(self, h: ArrayLike | None) -> Rows:
        contexts = super()._contexts(h)
        if contexts.dtype != self._dtype:
            with np.errstate(over="ignore"):
                contexts = as_float_rows("h", contexts.astype(self._dtype))
        return contexts

    def _sample(self, h: Rows, m: int, exclude: IntArray, key: np.uint64) -> Draw:
        phi = self._features(h)
        uniforms = uniform_block(key, len(h), m)
        ids, log_q = np.empty((len(h), m), np.int64), np.empty((len(h), m))

        def draw(part: slice) -> None:
            rest = self._rest_in_leaf(h[part], phi[part], exclude[part])
            shape = uniforms[part].shape
            order, leaves = np.empty(shape, np.int64), np.empty(shape, np.int64)
            log_p = np.empty(shape)
            levels = known_levels(self._num_leaves, m)
            known = np.empty((len(rest), 1 << levels))
            multiply_top(phi[part], self._nodes, levels, known)
            walk(
                phi[part],
                self._nodes,
                known,
                *self._walked,
                exclude[part],
                rest,
                uniforms[part],
                order,
                leaves,
                log_p,
            )
            queries, rows, starts = self._leaves(h[part], phi[part], leaves)
            pick(
                queries,
                rows,
                starts,
                leaves,
                exclude[part],
                rest,
                uniforms[part],
                order,
                log_p,
                *self._inside,
                ids[part],
                log_q[part],
            )

        self._share_out(draw, len(h), m)
        return Draw(ids, log_q)

    def _log_prob(self, h: Rows, ids: IntArray, exclude: IntArray) -> FloatArray:
        phi = self._features(h)
        log_q = np.empty(ids.shape)

        def read(part: slice) -> None:
            rest = self._rest_at_root(h[part], phi[part], exclude[part])
            leaves = ids[part] // self.leaf_size
            log_reach(phi[part], self._nodes, leaves, *self._walked, log_q[part])
            queries, rows, starts = self._leaves(h[part], phi[part], leaves)
            log_inside(queries, rows, starts, ids[part], *self._inside, log_q[part])
            log_q[part] -= rest[:, None]

        self._share_out(read, *ids.shape)
        log_q[ids == exclude[:, None]] = -np.inf
        return log_q

    def _probs(self, h: Rows, exclude: IntArray) -> FloatArray:
        phi = self._features(h)
        probs = np.empty((len(h), self.num_classes))

        def read(part: slice) -> None:
            reach = np.empty((part.stop - part.start, self._num_leaves))
            log_reach_all(phi[part], self._nodes, *self._walked, reach)
            reach -= self._rest_at_root(h[part], phi[part], exclude[part])[:, None]
            step = max(1, _BLOCK // (self.leaf_size * self.num_features))
            for leaves in chunks(self._num_leaves, step):
                every = np.arange(leaves.start, leaves.stop)
                queries, rows, starts = self._leaves(h[part], phi[part], every)
                probs_inside(queries, rows, starts, every, reach, *self._inside, probs[part])

        self._share_out(read, len(h), self._num_leaves)
        barred = np.flatnonzero(exclude >= 0)
        probs[barred, exclude[barred]] = 0.0
        return probs

    def _update(self, ids: IntArray, rows: Rows) -> None:
        if len(ids) == 0:
            return
        with np.errstate(over="ignore"):
            rows = as_float_rows("class_embeddings", rows.astype(self._dtype, copy=False))
        ids, last = np.unique(ids[::-1], return_index=True)
        rows = rows[len(rows) - 1 - last]
        leaves, starts = np.unique(ids // self.leaf_size, return_index=True)
        change = np.empty((len(leaves), self.num_features), self._dtype)
        old = self._rows[ids]
        step = max(1, _BLOCK // (self.num_features * self.leaf_size))
        for part in chunks(len(leaves), step):
            some = slice(starts[part.start], [*starts, len(ids)][part.stop])
            difference = self._features(rows[some]) - self._features(old[some])
            offsets = starts[part] - starts[part.start]
            np.add.reduceat(difference, offsets, axis=0, out=change[part])
        moved = change.sum(axis=0)
        if not np.isfinite(moved).all():
            raise ValueError(
                "`class_embeddings` must have finite features, got infinity or NaN; scale the "
                "vectors down."
            )
        self._total += moved
        for _ in thread_map(
            lambda columns: add_to_tree(self._nodes, leaves, change, columns), self._columns()
        ):
            pass
        self._rows[ids] = rows
        self.num_updates += len(ids)

    @property
    def _walked(self) -> tuple[int, int, float]:
        return self.num_classes, self.leaf_size, self.floor

    @property
    def _inside(self) -> tuple[int, int, int, float]:
        """What the kernels of a leaf need to know; a class alone in its leaf needs no features."""
        leaf = self.leaf if self.leaf_size > 1 else "softmax"
        scale = self.floor if leaf == "kernel" else self.scale
        return self.num_classes, self.leaf_size, LEAVES.index(leaf), scale

    def _leaves(self, h: Rows, phi: Rows, leaves: IntArray) -> tuple[Rows, NDArray[Any], IntArray]:
        """Return queries, rows to multiply them by, and where the rows of each leaf begin."""
        if self._transform is None or LEAVES[self._inside[2]] != "kernel":
            return h, self._rows, leaves * self.leaf_size
        visited, slots = np.unique(leaves, return_inverse=True)
        ids = (visited[:, None] * self.leaf_size + np.arange(self.leaf_size)).reshape(-1)
        features = self._features(self._rows[ids[ids < self.num_classes]])
        return phi, features, slots.reshape(leaves.shape) * self.leaf_size

    def _rest_in_leaf(self, h: Rows, phi: Rows, exclude: IntArray) -> FloatArray:
        """Return, in the leaf of each excluded class, the log-probability of the others, (B,)."""
        rest = np.zeros(len(h))
        if exclude.max() >= 0:
            leaves = np.maximum(exclude, 0) // self.leaf_size
            queries, rows, starts = self._leaves(h, phi, leaves)
            log_rest(queries, rows, starts, exclude, *self._inside, rest)
        return rest

    def _rest_at_root(self, h: Rows, phi: Rows, exclude: IntArray) -> FloatArray:
        """Return the log-probability of all but the excluded class, (B,)."""
        rest = self._rest_in_leaf(h, phi, exclude)
        lift_rest(phi, self._nodes, *self._walked, exclude, rest)
        return rest

    def _share_out(self, work: Callable[[slice], None], batch: int, num_leaves: int) -> None:
        """Call `work` for parts of the batch, on threads where that pays.

        `num_leaves` is how many leaves an example visits: the features of all that are visited
        at a time should fit.
        """
        visits = batch * num_leaves * self._num_leaves.bit_length()
        parts = num_threads() if visits * (self.num_features + _VISIT) > _WORTH_A_THREAD else 1
        size = -(-batch // parts)
        if self.leaf == "kernel" and self._transform is not None:
            size = max(1, min(size, _BLOCK // (num_leaves * self.leaf_size * self.num_features)))
        for _ in thread_map(work, chunks(batch, size)):
            pass


def _with_progress(parts: list[slice], wanted: bool) -> Iterable[slice]:
    if not wanted:
        return parts
    from tqdm import tqdm

    return tqdm(parts, unit="block", leave=False, disable=None, desc="building the tree")
