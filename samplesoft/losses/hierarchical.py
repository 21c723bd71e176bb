"""Hierarchical softmax: classes are leaves of a tree, with a small softmax at each inner node.

The file contains `ClassTree` and the functions that build trees, the loss, and its kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from samplesoft._cached import cached_property
from samplesoft._jit import chunks, njit, num_threads, thread_for_each
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
from samplesoft.kernels.products import product, products, round_up_to_8
from samplesoft.kernels.rows import weighted_rows
from samplesoft.kernels.sort_ids import group_equal_ids
from samplesoft.kernels.weights import exp_weights
from samplesoft.losses.base import Batch, Gradients, Loss, SparseRows
from samplesoft.samplers.base import Draw, Rows

# logits of the children of a node, and their exponentials; each (1, largest number of children)
Workspace = tuple[Rows, Rows]
_ROOT = -1


@dataclass(frozen=True, eq=False)
class ClassTree:
    """A tree whose leaves are n classes. It has N nodes in addition to the root.

    Nodes are numbered level by level. The children of a node are therefore consecutive, and have
    larger numbers than the node. Build trees with `from_parents`, or from class counts with
    `huffman_tree` and `two_level_tree`.

    Parameters
    ----------
    parents : ndarray of int64, shape (N,)
        Parent of each node; -1 for children of the root.
    children : ndarray of int64, shape (N + 1, 2)
        First child of each node, and last child plus 1. The two are equal for a class, which has no
        children. The last row belongs to the root.
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
        """Make a tree from the parent of each class and of each inner node.

        Parameters
        ----------
        parents : array_like of int, shape (M,)
            Parents of the classes 0, ..., n - 1 and the inner nodes n, ..., M - 1; -1 for the root.
        num_classes : int
            Number of classes n.

        Returns
        -------
        ClassTree
            The tree.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or the nodes are not a tree with the classes as leaves.
        """
        n = as_count("num_classes", num_classes)
        node_parents = as_array("parents", parents)
        if node_parents.dtype.kind not in "iu" or node_parents.ndim != 1 or len(node_parents) <= n:
            raise ValueError(
                f"`parents` must hold more integers than the {n} classes, one for each node, got "
                f"{node_parents.dtype} of shape {node_parents.shape}; the root is a node too, with "
                "parent -1."
            )

        node_parents = node_parents.astype(np.int64)
        size = len(node_parents)
        roots = np.flatnonzero(node_parents < 0)
        child_counts = node_parents[:0]  # stays empty, and is rejected below, if a parent >= size
        if node_parents.max() < size:
            child_counts = np.bincount(node_parents[node_parents >= 0], minlength=size)

        if (
            len(roots) != 1
            or len(child_counts) != size
            or child_counts[:n].any()
            or not child_counts[n:].all()
        ):
            raise ValueError(
                f"`parents` must have one root, with -1, no class above another node, and a child "
                f"of each node from {n} on; got {len(roots)} with -1 among {size} nodes."
            )

        # nodes sorted by parent: the root is first, and siblings are consecutive
        order = np.argsort(node_parents, kind="stable")
        child_stops = 1 + np.cumsum(child_counts)
        child_starts = child_stops - child_counts

        # list the nodes level by level
        level = roots
        levels = []
        while len(level):
            level_counts = child_counts[level]
            shifts = np.repeat(
                child_starts[level] - np.cumsum(level_counts) + level_counts, level_counts
            )
            level = order[shifts + np.arange(len(shifts))]
            levels.append(level)

        nodes = np.concatenate(levels)  # for each new node number, the number in `parents`
        if len(nodes) != size - 1:
            raise ValueError("`parents` must lead from each node to the root, got a circle.")

        renumbered = np.full(size, _ROOT)
        renumbered[nodes] = np.arange(len(nodes))
        counts = child_counts[np.append(roots, nodes)]
        child_ranges = np.stack([np.cumsum(counts) - counts, np.cumsum(counts)], axis=1)

        return cls(
            renumbered[node_parents[nodes]], np.roll(child_ranges, -1, axis=0), renumbered[:n]
        )

    @property
    def num_classes(self) -> int:
        """Number of classes n."""
        return len(self.places)

    @property
    def num_nodes(self) -> int:
        """Number of nodes N, not counting the root. Each of them has a vector."""
        return len(self.parents)

    @property
    def num_top(self) -> int:
        """Number k of children of the root. They are the nodes 0, ..., k - 1."""
        return int(self.children[_ROOT, 1])

    @property
    def widest(self) -> int:
        """Largest number of children of a node."""
        return int(np.diff(self.children).max())

    @cached_property
    def classes(self) -> IntArray:
        """Return the class (N,) of each node; -1 for inner nodes."""
        classes = np.full(self.num_nodes, -1)
        classes[self.places] = np.arange(self.num_classes)
        return classes

    @cached_property
    def depths(self) -> IntArray:
        """Return the depth (n,) of each class: the number of edges from the root to the class."""
        return self._path_sums(np.ones(self.num_nodes, np.int64))[self.places]

    @cached_property
    def num_scores_below_top(self) -> IntArray:
        """Return, for each node, the number (N,) of scores that the path to the node needs.

        A path needs the scores of its nodes and of their siblings. The scores of the root's
        children, the top level, are not counted, because all paths need them.
        """
        siblings = np.diff(self.children)[:, 0][self.parents]
        siblings[: self.num_top] = 0
        return self._path_sums(siblings)

    def _path_sums(self, values: IntArray) -> IntArray:
        """Return, for each node, the sum (N,) of `values` (N,) over the nodes of its path."""
        sums = values.copy()
        start = 0
        stop = self.num_top
        # go down level by level; the last child of a level's nodes is the end of the next level
        while stop < len(sums):
            start, stop = stop, int(self.children[start:stop].max())
            sums[start:stop] += sums[self.parents[start:stop]]
        return sums


def huffman_tree(counts: ArrayLike) -> ClassTree:
    """Make the binary tree with the shortest average path, for given class counts.

    Parameters
    ----------
    counts : array_like, shape (n,)
        Count or frequency of each class, in any unit.

    Returns
    -------
    ClassTree
        The tree. Among equal counts, earlier classes are merged first.

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

    # Two queues have ascending weights: the sorted classes, and the inner nodes in the order of
    # their creation. The lightest node is therefore at the front of one of them.
    order = np.argsort(frequencies, kind="stable")
    weights = np.full(2 * n - 1, np.inf)
    parents = np.full(2 * n - 1, -1)
    weights[:n] = frequencies[order]
    _merge_lightest(weights, parents, n)

    tree_parents = np.empty_like(parents)
    tree_parents[order] = parents[:n]
    tree_parents[n:] = parents[n:]
    return ClassTree.from_parents(tree_parents, n)


def two_level_tree(counts: ArrayLike, cells: Any = None) -> ClassTree:
    """Make a tree of two levels: the root's children are cells, and the cells' children classes.

    Parameters
    ----------
    counts : array_like, shape (n,)
        Count or frequency of each class, in any unit.
    cells : int or array_like of int, shape (n,), optional
        Number of cells, by default the square root of n, which are filled in the order of
        descending counts; empty cells are dropped. Or the cell of each class, for example its
        cluster of class vectors.

    Returns
    -------
    ClassTree
        The tree. Unless `cells` is an array, all cells have about the same total weight. Half of a
        class's weight is the same for all classes, and half is proportional to the square root of
        its count. Frequent classes are therefore in small cells, and no cell has many more classes
        than twice the average.

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
        num_cells = as_count("cells", math.isqrt(n) if cells is None else cells)
        order = np.argsort(-frequencies, kind="stable")
        square_roots = np.sqrt(frequencies[order])
        fractions = 0.5 / n + 0.5 * square_roots / square_roots.sum()
        cell_of_class = np.empty(n, np.int64)
        cell_of_class[order] = np.minimum(
            num_cells * (np.cumsum(fractions) - 0.5 * fractions), num_cells - 1
        )
    else:
        cell_of_class = as_labels("cells", cells, n, (n,))

    _, cell_of_class = np.unique(cell_of_class, return_inverse=True)  # drops empty cells

    # nodes are numbered: classes, then cells, then the root
    root = n + cell_of_class.max() + 1
    parents = np.append(n + cell_of_class, np.full(cell_of_class.max() + 2, root))
    parents[-1] = -1
    return ClassTree.from_parents(parents, n)


class HierarchicalLoss(Loss):
    """Cross entropy of hierarchical softmax: the sum of the losses on the path to the label.

    The class vectors of this loss are the vectors of the tree's nodes.

    Parameters
    ----------
    tree : ClassTree
        The tree of the classes.
    **options
        Options of `samplesoft.losses.base.Loss`, except `normalize`, `absolute` and
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
        """Return the validated arguments of `forward`, with the nodes of the labels as labels."""
        tree = self.tree
        n = self.tree.num_classes
        if biases is not None:
            raise ValueError(
                "`biases` must be None for HierarchicalLoss; add a coordinate of 1 to the contexts."
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

        tree = self.tree
        targets = batch.targets
        z = batch.z
        rows = batch.class_embeddings
        labels = targets.labels
        size = len(z)
        example_ids = targets.rows(np.arange(size))
        label_weights = targets.label_weights
        if label_weights is None:
            label_weights = np.ones(len(labels))

        # the scores of a pair below the top level have the indices starts[p], ..., ends[p] - 1
        ends = np.cumsum(tree.num_scores_below_top[labels])
        starts = ends - tree.num_scores_below_top[labels]

        # all examples need the scores of the root's children: compute them as a matrix product
        top_scores = product(z, rows[: tree.num_top].T)
        d_top_scores = np.zeros_like(top_scores)
        losses = np.empty(len(labels))
        ids = np.empty(ends[-1], np.int64)
        derivatives = np.empty(ends[-1], z.dtype)
        offsets = np.append(targets.offsets(), len(labels))

        def differentiate_examples(examples: slice) -> None:
            _path_losses_and_derivatives(
                tree.parents,
                tree.children,
                rows,
                z,
                top_scores,
                d_top_scores,
                labels,
                example_ids,
                label_weights,
                starts,
                offsets[examples.start],
                offsets[examples.stop],
                ids,
                derivatives,
                losses,
                make_workspace(tree, z),
            )

        chunk_size = max(8, -(-size // (2 * num_threads())))
        thread_for_each(differentiate_examples, chunks(size, chunk_size))
        score_offsets = np.append(starts, ends[-1])
        return targets.per_example(losses), (d_top_scores, ids, derivatives, score_offsets)

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        d_top_scores, ids, derivatives, score_offsets = saved
        z = batch.z
        rows = batch.class_embeddings
        num_top = d_top_scores.shape[1]
        weight_column = weights.astype(z.dtype)[:, None]
        weighted_z = weight_column * z

        # gradients in the contexts: sums over the top level, and over the nodes below it
        dz_below_top = np.empty_like(z)
        offsets = np.append(batch.targets.offsets(), len(score_offsets) - 1)
        weighted_rows(score_offsets[offsets], ids, derivatives, rows, dz_below_top)
        dz = weight_column * (product(d_top_scores, rows[:num_top]) + dz_below_top)

        # gradients in the vectors of the distinct nodes below the top level
        nodes, _, order, node_starts = group_equal_ids(ids, len(rows))
        example_ids = np.repeat(np.arange(len(z)), np.diff(score_offsets[offsets]))
        dW = np.empty((num_top + len(nodes), z.shape[1]), z.dtype)
        product(d_top_scores.T, weighted_z, dW[:num_top])
        weighted_rows(node_starts, example_ids[order], derivatives[order], weighted_z, dW[num_top:])

        return Gradients(dz, SparseRows(np.append(np.arange(num_top), nodes), dW), None)


def make_workspace(tree: ClassTree, z: Rows) -> Workspace:
    """Return the workspace of one thread, with the dtype of `z`."""
    logits, weights = np.empty((2, 1, round_up_to_8(tree.widest)), z.dtype)
    return logits, weights


@njit
def _merge_lightest(weights: FloatArray, parents: IntArray, n: int) -> None:
    """Write the parents of all nodes of Huffman's tree, and the weights of its inner nodes.

    Each inner node merges the two lightest nodes that have no parent yet. On entry, the first n
    `weights` are the weights of the classes, in ascending order.
    """
    leaf = 0
    node = n

    for parent in range(n, len(weights)):
        total = 0.0
        for _ in range(2):
            if leaf < n and (node >= parent or weights[leaf] <= weights[node]):
                chosen = leaf
                leaf += 1
            else:
                chosen = node
                node += 1
            total += weights[chosen]
            parents[chosen] = parent
        weights[parent] = total


@njit
def _softmax_loss_and_derivatives(
    logits: Rows, weights: Rows, size: int, label_index: int
) -> float:
    """Return the softmax loss of the first `size` logits, whose label is at `label_index`.

    The loss is the logsumexp of these logits minus the label's logit, or NaN if a logit is not
    finite. Writes the derivatives in the logits to `weights`, and overwrites the logits.
    """
    num_not_finite = 0
    for i in range(size):
        num_not_finite += 0 if abs(logits[0, i]) < np.inf else 1

    if num_not_finite > 0:
        return np.nan
    if size == 1:
        weights[0, 0] = 0.0
        return 0.0

    # The sum leaves out the label. Otherwise, if the label's probability p is near 1, the loss and
    # 1 - p would be differences of nearly equal numbers.
    logit = float(logits[0, label_index])
    total, max_logit = exp_weights(logits, weights, 0, size, label_index)
    gap = max_logit + math.log(total) - logit
    loss = max(gap, 0.0) + math.log1p(math.exp(-abs(gap)))
    label_shortfall = math.exp(gap - loss)

    scale = label_shortfall / total
    for i in range(size):
        weights[0, i] *= scale
    weights[0, label_index] = -label_shortfall
    return loss


@njit
def _path_losses_and_derivatives(
    parents: IntArray,
    children: IntArray,
    rows: Rows,
    z: Rows,
    top_scores: Rows,
    d_top_scores: Rows,
    labels: IntArray,
    example_ids: IntArray,
    label_weights: FloatArray,
    score_starts: IntArray,
    start: int,
    stop: int,
    ids: IntArray,
    derivatives: Rows,
    losses: FloatArray,
    workspace: Workspace,
) -> None:
    """Write the losses of the pairs [start, stop), and their derivatives in the nodes' scores.

    `top_scores` (B, k) holds the scores of the root's k children. The derivatives in these scores
    are added to `d_top_scores`. The other scores of pair p belong to the nodes below the top level
    on the label's path, and to their siblings: these nodes are written to `ids`, and the
    derivatives to `derivatives`, from index ``score_starts[p]`` on.
    """
    logits, weights = workspace

    for p in range(start, stop):
        b = example_ids[p]
        node = labels[p]
        score_index = score_starts[p]
        loss = 0.0

        # go up from the label to the top level
        while parents[node] >= 0:
            child_start = children[parents[node], 0]
            child_stop = children[parents[node], 1]
            products(rows, child_start, child_stop, z, b, -1, logits, 0)
            loss += _softmax_loss_and_derivatives(
                logits, weights, child_stop - child_start, node - child_start
            )
            for i in range(child_stop - child_start):
                ids[score_index + i] = child_start + i
                derivatives[score_index + i] = label_weights[p] * weights[0, i]
            score_index += child_stop - child_start
            node = parents[node]

        for i in range(top_scores.shape[1]):
            logits[0, i] = top_scores[b, i]
        loss += _softmax_loss_and_derivatives(logits, weights, top_scores.shape[1], node)
        for i in range(top_scores.shape[1]):
            d_top_scores[b, i] += label_weights[p] * weights[0, i]

        losses[p] = label_weights[p] * loss
