"""Hierarchical softmax: classes are leaves of a tree, and every step down it is a small softmax.

`ClassTree` and what makes one come first, then the loss of the paths to labels, then its kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from samplesoft._cached import cached_property
from samplesoft._jit import chunks, njit, num_threads, thread_each
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_count,
    as_counts,
    as_csr,
    as_labels,
    require_instance,
)
from samplesoft.kernels.products import product, products, whole_eights
from samplesoft.kernels.rows import weighted_rows
from samplesoft.kernels.sort_ids import equal_runs
from samplesoft.kernels.weights import exp_weights
from samplesoft.losses.base import Batch, Gradients, Loss, SparseRows
from samplesoft.samplers.base import Draw, Rows

Workspace = tuple[Rows, Rows]  # (1, widest) each: logits of siblings, and their weights
_ROOT = -1


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
        """Return the class (N,) of each node, or -1."""
        found = np.full(self.num_nodes, -1)
        found[self.places] = np.arange(self.num_classes)
        return found

    @cached_property
    def depths(self) -> IntArray:
        """Return the number of steps (n,) from the root to each class."""
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


def two_level_tree(counts: ArrayLike, cells: Any = None) -> ClassTree:
    """Divide classes into cells, by default from the most frequent to the rarest.

    Parameters
    ----------
    counts : array_like, shape (n,)
        How often each class occurs, in any unit.
    cells : int or array_like of int, shape (n,), optional
        Number of cells, by default the root of n, of which there may be fewer. Or the number of
        the cell that each class is in, as by clusters of class vectors.

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

    Cells of similar classes, by k-means of vectors from another model:

    >>> from scipy.cluster.vq import kmeans2
    >>> vectors = np.array([[0.0, 1.0], [0.9, 0.1], [0.1, 1.0], [1.0, 0.0]])
    >>> _, cells = kmeans2(vectors, 2, minit="++", seed=0)
    >>> tree = two_level_tree([1, 1, 1, 1], cells)
    """
    frequencies = as_counts("counts", counts)
    n = len(frequencies)
    if cells is None or np.ndim(cells) == 0:
        num = as_count("cells", math.isqrt(n) if cells is None else cells)
        order = np.argsort(-frequencies, kind="stable")
        roots = np.sqrt(frequencies[order])
        fractions = 0.5 / n + 0.5 * roots / roots.sum()
        chosen = np.empty(n, np.int64)
        chosen[order] = np.minimum(num * (np.cumsum(fractions) - 0.5 * fractions), num - 1)
    else:
        chosen = as_labels("cells", cells, n, (n,))
    _, chosen = np.unique(chosen, return_inverse=True)
    above = np.append(n + chosen, np.full(chosen.max() + 2, n + chosen.max() + 1))
    above[-1] = -1
    return ClassTree.from_parents(above, n)


class HierarchicalLoss(Loss):
    """Cross entropy of the softmax over a tree: each step of the path to a label has its own.

    What a loss calls class vectors are those of the nodes here.

    Parameters
    ----------
    tree : ClassTree
        The classes.
    **options
        Those of `samplesoft.losses.base.Loss`, but for `normalize`, `absolute` and
        `mask_other_labels`, which must be False.

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
    >>> loss = HierarchicalLoss(huffman_tree([2, 1, 1]))
    >>> value, cache = loss.forward([[1.0]], [[0.0], [0.0], [2.0], [0.0]], [0])
    >>> round(value, 6)  # log 2
    0.693147
    """

    on_tree = True

    def __init__(self, tree: ClassTree, **options: Any) -> None:
        super().__init__(**options)
        for name in ("normalize", "absolute", "mask_other_labels"):
            if getattr(self, name):
                raise ValueError(f"`{name}` must be False for HierarchicalLoss, got True.")
        require_instance("tree", tree, ClassTree)
        self.tree = tree

    def check_batch(
        self, h: Any, class_embeddings: ArrayLike, labels: Any, biases: ArrayLike | None
    ) -> Batch:
        """Check the arguments of `forward`; labels are numbers of nodes in what it returns."""
        tree, n = self.tree, self.tree.num_classes
        if biases is not None:
            raise ValueError(
                "`biases` must be None for HierarchicalLoss; give contexts a coordinate that is 1."
            )
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
        example_ids = targets.rows(np.arange(size))
        label_weights = (
            np.ones(len(labels)) if targets.label_weights is None else targets.label_weights
        )
        ends = np.cumsum(tree.below_top[labels])
        starts = ends - tree.below_top[labels]
        # the children of the root are scored by all: by one product
        top = product(z, rows[: tree.num_top].T)
        d_top, losses = np.zeros_like(top), np.empty(len(labels))
        ids, derivatives = np.empty(ends[-1], np.int64), np.empty(ends[-1], z.dtype)
        offsets = np.append(targets.offsets(), len(labels))

        def work(part: slice) -> None:
            _go_down(
                tree.parents,
                tree.children,
                rows,
                z,
                top,
                d_top,
                labels,
                example_ids,
                label_weights,
                starts,
                offsets[part.start],
                offsets[part.stop],
                ids,
                derivatives,
                losses,
                workspace_of(tree, z),
            )

        thread_each(work, chunks(size, max(8, -(-size // (2 * num_threads())))))
        return targets.per_example(losses), (d_top, ids, derivatives, np.append(starts, ends[-1]))

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        d_top, ids, derivatives, starts = saved
        z, rows, num = batch.z, batch.class_embeddings, d_top.shape[1]
        column = weights.astype(z.dtype)[:, None]
        weighted, below = column * z, np.empty_like(z)
        offsets = np.append(batch.targets.offsets(), len(starts) - 1)
        weighted_rows(starts[offsets], ids, derivatives, rows, below)
        dz = column * (product(d_top, rows[:num]) + below)
        classes, _, order, begins = equal_runs(ids, len(rows))
        example_ids = np.repeat(np.arange(len(z)), np.diff(starts[offsets]))
        dW = np.empty((num + len(classes), z.shape[1]), z.dtype)
        product(d_top.T, weighted, dW[:num])
        weighted_rows(begins, example_ids[order], derivatives[order], weighted, dW[num:])
        return Gradients(dz, SparseRows(np.append(np.arange(num), classes), dW), None)


def workspace_of(tree: ClassTree, z: Rows) -> Workspace:
    """Return the workspace of a worker that scores contexts like `z`."""
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
    example_ids: IntArray,
    label_weights: FloatArray,
    starts: IntArray,
    first: int,
    last: int,
    ids: IntArray,
    derivatives: Rows,
    losses: FloatArray,
    workspace: Workspace,
) -> None:
    """Write losses of the pairs [first, last), and derivatives in the scores on their paths.

    Those of the children of the root are added to `d_top` (B, k); of the others each pair has its
    own from `starts` (P,) on, of the nodes `ids`.
    """
    logits, weights = workspace
    for p in range(first, last):
        b, node, at, lost = example_ids[p], labels[p], starts[p], 0.0
        while parents[node] >= 0:
            begin, end = children[parents[node], 0], children[parents[node], 1]
            products(rows, begin, end, z, b, -1, logits, 0)
            lost += _differentiate(logits, weights, end - begin, node - begin)
            for i in range(end - begin):
                ids[at + i], derivatives[at + i] = begin + i, label_weights[p] * weights[0, i]
            at += end - begin
            node = parents[node]
        for i in range(top.shape[1]):
            logits[0, i] = top[b, i]
        lost += _differentiate(logits, weights, top.shape[1], node)
        for i in range(top.shape[1]):
            d_top[b, i] += label_weights[p] * weights[0, i]
        losses[p] = label_weights[p] * lost
