"""Hierarchical softmax: classes are leaves of a tree, and every step down it is a small softmax.

`ClassTree` and what makes one come first, then the loss on paths, then the layer and its kernels.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from samplesoft._jit import chunks, njit, num_threads, thread_each
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_count,
    as_counts,
    as_csr,
    as_float_rows,
    require_instance,
)
from samplesoft.kernels.products import product, products, whole_eights
from samplesoft.kernels.rows import weighted_rows
from samplesoft.kernels.sort_ids import count_below, equal_runs
from samplesoft.kernels.weights import exp_weights
from samplesoft.losses.base import Batch, Gradients, Loss, SparseRows
from samplesoft.losses.vectors import require_finite_rows
from samplesoft.metrics.best_classes import check_k, check_leave_out
from samplesoft.metrics.evaluation import Evaluation
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.samplers.base import Draw, Rows

Room = tuple[Rows, Rows]  # (1, widest) each: logits of siblings, and their weights
_ROOT = -1
_NUMBERS = 1 << 22  # log-probabilities at a time


@dataclass(frozen=True, eq=False)
class ClassTree:
    """A tree whose leaves are n classes, with a node for each class and N in all but the root.

    Nodes are numbered level by level, so that the children of a node stand side by side, and after
    it. `from_parents` makes one of any tree, `huffman_tree` and `two_level_tree` of how often
    classes occur.

    Parameters
    ----------
    parents : ndarray of int64, shape (N,)
        The node above each; -1 for children of the root.
    children : ndarray of int64, shape (N + 1, 2)
        First and end of the children of each node, and last those of the root; equal for classes.
    places : ndarray of int64, shape (n,)
        The node of each class.

    Examples
    --------
    >>> tree = ClassTree.from_parents([3, 3, 4, 4, -1], num_classes=3)  # ((0, 1), 2)
    >>> tree.num_nodes, tree.depths.tolist()
    (4, [2, 2, 1])
    """

    parents: IntArray
    children: IntArray
    places: IntArray

    @classmethod
    def from_parents(cls, parents: ArrayLike, num_classes: int) -> ClassTree:
        """Make a tree of the node above each class, and above each node that is no class.

        Parameters
        ----------
        parents : array_like of int, shape (M,)
            Of the classes 0, ..., n - 1, and of the other nodes n, ..., M - 1; -1 for the root.
        num_classes : int
            Number of classes n.

        Returns
        -------
        ClassTree
            The tree.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or the nodes are no tree with the classes as its leaves.
        """
        n, above = as_count("num_classes", num_classes), as_array("parents", parents)
        if above.dtype.kind not in "iu" or above.ndim != 1 or len(above) <= n:
            raise ValueError(
                f"`parents` must hold more integers than the {n} classes, one for each node, got "
                f"{above.dtype} of shape {above.shape}; the root is a node too, with parent -1."
            )
        above, size = above.astype(np.int64), len(above)
        roots = np.flatnonzero(above < 0)
        inner = np.bincount(above[above >= 0], minlength=size) if above.max() < size else above[:0]
        if len(roots) != 1 or len(inner) != size or inner[:n].any() or not inner[n:].all():
            raise ValueError(
                f"`parents` must have one root, with -1, no class above another node, and a child "
                f"of each node from {n} on; got {len(roots)} with -1 among {size} nodes."
            )
        order = np.argsort(above, kind="stable")  # children of a node side by side, the root first
        ends = 1 + np.cumsum(inner)
        level, levels, starts = roots, [], ends - inner
        while len(level):
            counts = inner[level]
            shifts = np.repeat(starts[level] - np.cumsum(counts) + counts, counts)
            level = order[shifts + np.arange(len(shifts))]
            levels.append(level)
        nodes = np.concatenate(levels)  # old numbers in the new order
        if len(nodes) != size - 1:
            raise ValueError("`parents` must lead from each node to the root, got a circle.")
        renumbered = np.full(size, _ROOT)
        renumbered[nodes] = np.arange(len(nodes))
        counts = inner[np.append(roots, nodes)]
        bounds = np.stack([np.cumsum(counts) - counts, np.cumsum(counts)], axis=1)
        return cls(renumbered[above[nodes]], np.roll(bounds, -1, axis=0), renumbered[:n])

    @property
    def num_classes(self) -> int:
        """Number of classes n."""
        return len(self.places)

    @property
    def num_nodes(self) -> int:
        """Number of nodes N, each of which has a vector."""
        return len(self.parents)

    @property
    def num_top(self) -> int:
        """Number of children of the root, which are the first nodes."""
        return int(self.children[_ROOT, 1])

    @property
    def widest(self) -> int:
        """Largest number of children."""
        return int(np.diff(self.children).max())

    @cached_property
    def classes(self) -> IntArray:
        """The class (N,) of each node, or -1."""
        found = np.full(self.num_nodes, -1)
        found[self.places] = np.arange(self.num_classes)
        return found

    @cached_property
    def depths(self) -> IntArray:
        """The number of steps (n,) from the root to each class."""
        return self._added_up(np.ones(self.num_nodes, np.int64))[self.places]

    @cached_property
    def below_top(self) -> IntArray:
        """How many scores (N,) a path to each node needs below the children of the root."""
        siblings = np.diff(self.children)[:, 0][self.parents]
        siblings[: self.num_top] = 0
        return self._added_up(siblings)

    def _added_up(self, numbers: IntArray) -> IntArray:
        """Return the sums over the way to each node."""
        sums = numbers.copy()
        first, last = 0, self.num_top
        while last < len(sums):  # level by level
            first, last = last, int(self.children[first:last].max())
            sums[first:last] += sums[self.parents[first:last]]
        return sums


def huffman_tree(counts: ArrayLike) -> ClassTree:
    """Make the binary tree with the shortest paths on average, by how often classes occur.

    Parameters
    ----------
    counts : array_like, shape (n,)
        How often each class occurs, in any unit.

    Returns
    -------
    ClassTree
        The tree; of equal counts earlier classes are joined first.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] D. A. Huffman, "A method for the construction of minimum-redundancy codes", 1952.
    .. [2] T. Mikolov et al., "Distributed representations of words and phrases and their
       compositionality", NeurIPS 2013, section 2.1.

    Examples
    --------
    >>> huffman_tree([5, 1, 1, 2]).depths
    array([1, 3, 3, 2])
    """
    frequencies = as_counts("counts", counts)
    n = len(frequencies)
    if n == 1:
        return ClassTree.from_parents([1, -1], 1)
    order = np.argsort(frequencies, kind="stable")
    # two queues, both of rising weights: classes, and nodes in the order in which they are made
    weights, parents = np.full(2 * n - 1, np.inf), np.full(2 * n - 1, -1)
    weights[:n] = frequencies[order]
    _join(weights, parents, n)
    above = np.empty_like(parents)
    above[order], above[n:] = parents[:n], parents[n:]
    return ClassTree.from_parents(above, n)


def two_level_tree(counts: ArrayLike, num_cells: int | None = None) -> ClassTree:
    """Divide classes into cells, from the most frequent to the rarest.

    Parameters
    ----------
    counts : array_like, shape (n,)
        How often each class occurs, in any unit.
    num_cells : int, optional
        Number of cells, by default the root of n. There may be fewer of them.

    Returns
    -------
    ClassTree
        Cells below the root, and classes below them. Half of a cell's share is in the number of
        its classes and half in the roots of their counts, so that frequent classes are in small
        cells, and no cell is much larger than two of equal size.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] J. Goodman, "Classes for fast maximum entropy training", ICASSP 2001.
    .. [2] T. Mikolov et al., "Extensions of recurrent neural network language model", ICASSP 2011,
       section 4.2: cells by frequency.

    Examples
    --------
    >>> two_level_tree([4, 4, 4, 4, 4, 4, 4, 4, 4]).num_nodes  # three cells of three
    12
    """
    frequencies = as_counts("counts", counts)
    n = len(frequencies)
    num = as_count("num_cells", math.isqrt(n) if num_cells is None else num_cells)
    order = np.argsort(-frequencies, kind="stable")
    roots = np.sqrt(frequencies[order])
    shares = 0.5 / n + 0.5 * roots / roots.sum()
    cells = np.minimum((num * (np.cumsum(shares) - 0.5 * shares)).astype(np.int64), num - 1)
    _, cells = np.unique(cells, return_inverse=True)
    above = np.full(n + cells.max() + 2, n + cells.max() + 1)
    above[order], above[-1] = n + cells, -1
    return ClassTree.from_parents(above, n)


class HierarchicalLoss(Loss):
    """Cross entropy of the softmax over a tree: each step of the path to a label has its own.

    What a loss calls class vectors are those of the nodes here.

    Parameters
    ----------
    tree : ClassTree
        The classes.
    tau, reduction, label_reduction
        As for every loss; see `samplesoft.losses.base.Loss`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> loss = HierarchicalLoss(huffman_tree([2, 1, 1]))
    >>> value, cache = loss.forward([[1.0]], [[0.0], [0.0], [2.0], [0.0]], [0])
    >>> round(value, 6)  # log 2
    0.693147
    """

    def __init__(
        self,
        tree: ClassTree,
        *,
        tau: float | None = None,
        reduction: str = "mean",
        label_reduction: str = "pal-n",
    ) -> None:
        super().__init__(tau=tau, reduction=reduction, label_reduction=label_reduction)
        require_instance("tree", tree, ClassTree)
        self.tree = tree

    def check_batch(
        self, h: Any, class_embeddings: ArrayLike, labels: Any, biases: ArrayLike | None
    ) -> Batch:
        """Check the arguments of `forward`; labels are numbers of nodes in what it returns."""
        tree, n = self.tree, self.tree.num_classes
        if sparse.issparse(labels):
            labels = as_csr("labels", labels)
            if labels.shape[1] != n:
                raise ValueError(
                    f"`labels` must have {n} columns as a matrix, got shape {labels.shape}."
                )
            labels = sparse.csr_array(
                (labels.data, tree.places[labels.indices], labels.indptr),
                (labels.shape[0], tree.num_nodes),
            )
        batch = super().check_batch(h, class_embeddings, labels, biases)
        if batch.class_embeddings.shape[0] != tree.num_nodes:
            raise ValueError(
                f"`class_embeddings` must have a row for each of the {tree.num_nodes} nodes of the "
                f"tree, got {batch.class_embeddings.shape[0]}."
            )
        if sparse.issparse(labels):
            return batch
        if batch.targets.labels.max() >= n:
            raise ValueError(
                f"`labels` must hold classes in 0..{n - 1}, got {batch.targets.labels.max()}."
            )
        targets = replace(batch.targets, labels=tree.places[batch.targets.labels])
        return replace(batch, targets=targets)

    def _forward(
        self, batch: Batch, draw: Draw | None, label_log_count: ArrayLike | None
    ) -> tuple[FloatArray, Any]:
        if draw is not None:
            raise TypeError("`draw` must be None for HierarchicalLoss, which draws nothing.")
        tree, targets, z, rows = self.tree, batch.targets, batch.z, batch.class_embeddings
        labels, size = targets.labels, len(z)
        owners = targets.rows(np.arange(size))
        shares = np.ones(len(labels)) if targets.shares is None else targets.shares
        ends = np.cumsum(tree.below_top[labels])
        starts = ends - tree.below_top[labels]
        # the children of the root are scored by all: by one product
        top = product(z, rows[: tree.num_top].T)
        d_top, losses = np.zeros_like(top), np.empty(len(labels))
        ids, slopes = np.empty(ends[-1], np.int64), np.empty(ends[-1], z.dtype)
        firsts = np.append(targets.firsts(), len(labels))

        def work(part: slice) -> None:
            _go_down(
                *(tree.parents, tree.children, rows, z, top, d_top),
                *(labels, owners, shares, starts, firsts[part.start], firsts[part.stop]),
                *(ids, slopes, losses, _room(tree, z)),
            )

        thread_each(work, chunks(size, max(8, -(-size // (2 * num_threads())))))
        return targets.per_example(losses), (d_top, ids, slopes, np.append(starts, ends[-1]))

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        d_top, ids, slopes, starts = saved
        z, rows, num = batch.z, batch.class_embeddings, d_top.shape[1]
        column = weights.astype(z.dtype)[:, None]
        weighted, below = column * z, np.empty_like(z)
        firsts = np.append(batch.targets.firsts(), len(starts) - 1)
        weighted_rows(starts[firsts], ids, slopes, rows, below)
        dz = column * (product(d_top, rows[:num]) + below)
        classes, _, order, begins = equal_runs(ids, len(rows))
        owners = np.repeat(np.arange(len(z)), np.diff(starts[firsts]))
        dW = np.empty((num + len(classes), z.shape[1]), z.dtype)
        product(d_top.T, weighted, dW[:num])
        weighted_rows(begins, owners[order], slopes[order], weighted, dW[num:])
        return Gradients(dz, SparseRows(np.append(np.arange(num), classes), dW), None)


class HierarchicalSoftmax(SoftmaxLayer):
    """A softmax layer over a tree of classes: a step costs as much as the path to the label.

    A class has the probability of all steps on the path to it, each of which is a softmax over the
    scores ``tau * h . c`` of siblings: probabilities sum to 1 without a sum over all classes. Two
    levels (`two_level_tree`) cost about 2 sqrt(n) scores an example, a binary tree (`huffman_tree`)
    log n. Take it where a normalised loss is wanted at that cost; what a node cannot tell apart
    is lost to all classes below it, so that the full or the sampled softmax is usually better.

    Parameters
    ----------
    node_embeddings : array_like, shape (N, d)
        Vectors of the nodes, float32 or float64; copied.
    tree : ClassTree
        The classes.
    tau : float
        Inverse temperature.
    reduction, label_reduction : str
        As for every loss; see `samplesoft.losses.base.Loss`.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``"class_embeddings"`` (N, d): those of the nodes.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] F. Morin and Y. Bengio, "Hierarchical probabilistic neural network language model",
       AISTATS 2005.
    .. [2] J. Goodman, "Classes for fast maximum entropy training", ICASSP 2001.

    Examples
    --------
    >>> import numpy as np
    >>> tree = two_level_tree(np.ones(9))
    >>> layer = HierarchicalSoftmax(np.zeros((tree.num_nodes, 2)), tree)
    >>> loss, cache = layer.forward([[1.0, 0.0]], [4])
    >>> round(float(np.exp(loss)), 6)
    9.0
    >>> dh, gradients = layer.backward(cache)
    >>> gradients["class_embeddings"].ids.tolist()  # three cells, and the classes of one
    [0, 1, 2, 6, 7, 8]
    """

    def __init__(
        self,
        node_embeddings: ArrayLike,
        tree: ClassTree,
        *,
        tau: float = 1.0,
        reduction: str = "mean",
        label_reduction: str = "pal-n",
    ) -> None:
        loss = HierarchicalLoss(tree, tau=tau, reduction=reduction, label_reduction=label_reduction)
        super().__init__(node_embeddings, loss)
        self.tree = tree
        if len(self.class_embeddings) != tree.num_nodes:
            raise ValueError(
                f"`node_embeddings` must have a row for each of the {tree.num_nodes} nodes of the "
                f"tree, got {len(self.class_embeddings)}."
            )

    def log_probs(self, h: ArrayLike) -> FloatArray:
        """Compute the log-probabilities of all classes.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.

        Returns
        -------
        ndarray of float64, shape (B, n)
            In nats.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        tree, z = self.tree, self._scaled(h)
        logs = np.empty((len(z), tree.num_classes))

        def work(part: slice) -> None:
            scores = product(z[part], self.class_embeddings.T).astype(np.float64)
            _add_up(tree.children, scores)
            np.take(scores, tree.places, axis=1, out=logs[part])

        thread_each(work, chunks(len(z), max(1, _NUMBERS // (tree.num_nodes * num_threads()))))
        return logs

    def top_k(self, h: ArrayLike, k: int, *, leave_out: Any = None) -> tuple[IntArray, FloatArray]:
        """Find the most likely classes, by branch and bound: exactly, without a look at the rest.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        k : int
            How many classes, at most n.
        leave_out : scipy.sparse CSR matrix, shape (B, n), optional
            Classes that are not wanted for a context.

        Returns
        -------
        ids : ndarray of int64, shape (B, k)
            Classes, the most likely first, and of equal ones the first one.
        logs : ndarray of float64, shape (B, k)
            Their log-probabilities; -inf for classes left out, where fewer than k are left.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        tree, z = self.tree, self._scaled(h)
        k = check_k(k, tree.num_classes)
        absent = check_leave_out(leave_out, (len(z), tree.num_classes))
        bounds, unwanted = np.zeros(len(z) + 1, np.int64), np.zeros(0, np.int64)
        if absent is not None:
            absent.sort_indices()
            bounds, unwanted = absent.indptr.astype(np.int64), absent.indices.astype(np.int64)
        ids, logs = np.empty((len(z), k), np.int64), np.empty((len(z), k))

        def work(part: slice) -> None:
            room = _room(tree, z)
            for b in range(part.start, part.stop):
                without = unwanted[bounds[b] : bounds[b + 1]]
                _search(
                    *(tree.children, tree.classes, self.class_embeddings, z, b),
                    *(without, ids[b], logs[b], room),
                )

        thread_each(work, chunks(len(z), max(1, -(-len(z) // (4 * num_threads())))))
        return ids, logs

    def evaluate(self, h: ArrayLike, labels: Any, *, k: tuple[int, ...] = ()) -> Evaluation:
        """Compute the loss and ranks of the labels, as `SoftmaxLayer.evaluate`."""
        whole = HierarchicalLoss(self.tree, tau=self.loss.tau)
        value, cache = whole.forward(h, self.class_embeddings, labels)
        targets, size = cache.batch.targets, len(cache.batch.z)
        classes, owners = self.tree.classes[targets.labels], targets.rows(np.arange(size))
        best, _ = self.top_k(h, max(k)) if k else (np.empty((size, 0), np.int64), None)
        hits = best[owners] == classes[:, None]
        shares = {each: float(hits[:, :each].sum()) for each in k}
        return Evaluation(
            float(value),
            float(np.exp(min(value, 709.0))) if value < 709.0 else np.inf,
            {each: found / len(classes) for each, found in shares.items()},
            {each: found / (size * each) for each, found in shares.items()},
            size,
        )

    def _scaled(self, h: ArrayLike) -> Rows:
        rows = self.class_embeddings
        require_finite_rows(rows)
        contexts = as_float_rows("h", h, rows.shape[1], rows.dtype)
        return contexts if self.loss.tau == 1.0 else contexts * rows.dtype.type(self.loss.tau)


def _room(tree: ClassTree, z: Rows) -> Room:
    logits, weights = np.empty((2, 1, whole_eights(tree.widest)), z.dtype)
    return logits, weights


@njit
def _join(weights: FloatArray, parents: IntArray, n: int) -> None:
    """Join the two lightest nodes until one is left; the first n weights rise."""
    leaf, node = 0, n
    for new in range(n, len(weights)):
        total = 0.0
        for _ in range(2):
            if leaf < n and (node >= new or weights[leaf] <= weights[node]):
                chosen = leaf
                leaf += 1
            else:
                chosen = node
                node += 1
            total += weights[chosen]
            parents[chosen] = new
        weights[new] = total


@njit
def _differentiate(logits: Rows, weights: Rows, size: int, own: int) -> float:
    """Write derivatives of a loss in logits over `weights`, and return it.

    It is the log of the sum of exponentials, less the logit at the place `own`. The logits are
    changed.
    """
    bad = 0
    for i in range(size):
        bad += 0 if abs(logits[0, i]) < np.inf else 1
    if bad > 0:
        return np.nan
    if size == 1:
        weights[0, 0] = 0.0
        return 0.0
    logit = float(logits[0, own])
    # of the others, so that neither a small loss nor 1 - p near 0 is a difference
    total, top = exp_weights(logits, weights, 0, size, own)
    behind = top + math.log(total) - logit
    loss = max(behind, 0.0) + math.log1p(math.exp(-abs(behind)))
    missed = math.exp(behind - loss)
    scale = missed / total
    for i in range(size):
        weights[0, i] *= scale
    weights[0, own] = -missed
    return loss


@njit
def _go_down(
    parents: IntArray,
    children: IntArray,
    rows: Rows,
    z: Rows,
    top: Rows,
    d_top: Rows,
    labels: IntArray,
    owners: IntArray,
    shares: FloatArray,
    starts: IntArray,
    first: int,
    last: int,
    ids: IntArray,
    slopes: Rows,
    losses: FloatArray,
    room: Room,
) -> None:
    """Write losses of the pairs [first, last), and derivatives in the scores on their paths.

    Those of the children of the root are added to `d_top` (B, k); of the others each pair has its
    own from `starts` (P,) on, of the nodes `ids`.
    """
    logits, weights = room
    for p in range(first, last):
        b, node, at, lost = owners[p], labels[p], starts[p], 0.0
        while parents[node] >= 0:
            begin, end = children[parents[node], 0], children[parents[node], 1]
            products(rows, begin, end, z, b, -1, logits, 0)
            lost += _differentiate(logits, weights, end - begin, node - begin)
            for i in range(end - begin):
                ids[at + i], slopes[at + i] = begin + i, shares[p] * weights[0, i]
            at += end - begin
            node = parents[node]
        for i in range(top.shape[1]):
            logits[0, i] = top[b, i]
        lost += _differentiate(logits, weights, top.shape[1], node)
        for i in range(top.shape[1]):
            d_top[b, i] += shares[p] * weights[0, i]
        losses[p] = shares[p] * lost


@njit
def _add_up(children: IntArray, scores: FloatArray) -> None:
    """Turn scores (b, N) of nodes into log-probabilities."""
    for b in range(len(scores)):
        row = scores[b]
        for node in range(_ROOT, len(children) - 1):  # a node before its children
            first, last = children[node, 0], children[node, 1]
            if first == last:
                continue
            top, total = -np.inf, 0.0
            for i in range(first, last):
                top = max(top, row[i])
            for i in range(first, last):
                total += math.exp(row[i] - top)
            shift = top + math.log(total) - (row[node] if node >= 0 else 0.0)
            for i in range(first, last):
                row[i] -= shift


@njit
def _search(
    children: IntArray,
    classes: IntArray,
    rows: Rows,
    z: Rows,
    b: int,
    unwanted: IntArray,
    ids: IntArray,
    logs: FloatArray,
    room: Room,
) -> None:
    """Write the most likely classes of a context, but for those unwanted, which rise.

    A class is as likely as the nodes above it at most: those are opened from the most likely on.
    """
    logits, weights = room
    # by how unlikely they are; of equal ones nodes are opened before classes are taken
    heap, found = [(0.0, -1, _ROOT)], 0
    while found < len(ids) and len(heap) > 0:
        cost, class_id, node = heapq.heappop(heap)
        if class_id >= 0:
            ids[found], logs[found] = class_id, -cost
            found += 1
            continue
        first, last = children[node, 0], children[node, 1]
        products(rows, first, last, z, b, -1, logits, 0)
        total, top = exp_weights(logits, weights, 0, last - first, -1)
        cost += top + math.log(total)
        for i in range(first, last):
            place = count_below(unwanted, classes[i])
            if place == len(unwanted) or unwanted[place] != classes[i]:
                heapq.heappush(heap, (cost - float(logits[0, i - first]), classes[i], i))
    for class_id in unwanted[: len(ids) - found]:
        ids[found], logs[found] = class_id, -np.inf
        found += 1
