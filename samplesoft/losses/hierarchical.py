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

Workspace = tuple[Rows, Rows]  # (1, widest) each: logits of siblings, and their exponentials
_ROOT = -1


@dataclass(frozen=True, eq=False)
class ClassTree:
    """A tree whose leaves are n classes. It has N nodes in addition to the root.

    Nodes are numbered level by level, so that the children of a node are consecutive, and follow
    it. Build trees with `from_parents`, or from class counts with `huffman_tree` and
    `two_level_tree`.

    Parameters
    ----------
    parents : ndarray of int64, shape (N,)
        Parent of each node; -1 for children of the root.
    children : ndarray of int64, shape (N + 1, 2)
        First child of each node, and last child plus 1. Both are equal for a class, which has no
        children. The last row is that of the root.
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
        """Make a tree from the parents of classes and inner nodes.

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
        above = as_array("parents", parents)
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

        order = np.argsort(above, kind="stable")  # siblings are consecutive, the root is first
        ends = 1 + np.cumsum(inner)
        level = roots
        levels = []
        starts = ends - inner

        while len(level):
            counts = inner[level]
            shifts = np.repeat(starts[level] - np.cumsum(counts) + counts, counts)
            level = order[shifts + np.arange(len(shifts))]
            levels.append(level)

        nodes = np.concatenate(levels)  # old node numbers in the new order
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
        """Number of nodes N without the root. Each has a vector."""
        return len(self.parents)

    @property
    def num_top(self) -> int:
        """Number of children of the root. They are the first nodes."""
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
        """Return the depth (n,) of each class: the number of steps from the root."""
        return self._path_sums(np.ones(self.num_nodes, np.int64))[self.places]

    @cached_property
    def num_scores_below_top(self) -> IntArray:
        """Return the number of scores (N,) that the path to each node needs below the top level.

        The scores of the root's children, the top level, are needed by all paths.
        """
        siblings = np.diff(self.children)[:, 0][self.parents]
        siblings[: self.num_top] = 0
        return self._path_sums(siblings)

    def _path_sums(self, values: IntArray) -> IntArray:
        """Return, for each node, the sum (N,) of `values` (N,) over the nodes of its path."""
        sums = values.copy()
        first = 0
        last = self.num_top
        while last < len(sums):  # level by level
            first, last = last, int(self.children[first:last].max())
            sums[first:last] += sums[self.parents[first:last]]
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

    order = np.argsort(frequencies, kind="stable")
    # two queues of ascending weights: classes, and inner nodes in the order of their creation
    weights = np.full(2 * n - 1, np.inf)
    parents = np.full(2 * n - 1, -1)
    weights[:n] = frequencies[order]
    _merge_lightest(weights, parents, n)
    above = np.empty_like(parents)
    above[order] = parents[:n]
    above[n:] = parents[n:]

    return ClassTree.from_parents(above, n)


def two_level_tree(counts: ArrayLike, cells: Any = None) -> ClassTree:
    """Make a tree of two levels: cells of classes, by default by descending frequency.

    Parameters
    ----------
    counts : array_like, shape (n,)
        Count or frequency of each class, in any unit.
    cells : int or array_like of int, shape (n,), optional
        Number of cells, by default the square root of n; empty cells are dropped. Or the cell of
        each class, for example a cluster of class vectors.

    Returns
    -------
    ClassTree
        The root, the cells below the root, and the classes below the cells. By default all cells
        have about the same total weight; half of a class's weight is the same for all classes, and
        half is proportional to the square root of its count. Frequent classes are therefore in
        small cells, and no cell is much larger than twice the average.

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
        cell_of_class = np.empty(n, np.int64)
        cell_of_class[order] = np.minimum(num * (np.cumsum(fractions) - 0.5 * fractions), num - 1)
    else:
        cell_of_class = as_labels("cells", cells, n, (n,))

    _, cell_of_class = np.unique(cell_of_class, return_inverse=True)
    above = np.append(
        n + cell_of_class, np.full(cell_of_class.max() + 2, n + cell_of_class.max() + 1)
    )
    above[-1] = -1

    return ClassTree.from_parents(above, n)


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
        """Validate the arguments of `forward`; labels of the result are nodes, not classes."""
        tree = self.tree
        n = self.tree.num_classes
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

        tree = self.tree
        targets = batch.targets
        z = batch.z
        rows = batch.class_embeddings
        labels = targets.labels
        size = len(z)
        example_ids = targets.rows(np.arange(size))
        label_weights = (
            np.ones(len(labels)) if targets.label_weights is None else targets.label_weights
        )
        ends = np.cumsum(tree.num_scores_below_top[labels])
        starts = ends - tree.num_scores_below_top[labels]

        # all examples need the scores of the root's children, which are one matrix product
        top = product(z, rows[: tree.num_top].T)
        d_top = np.zeros_like(top)
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
                top,
                d_top,
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

        thread_for_each(
            differentiate_examples, chunks(size, max(8, -(-size // (2 * num_threads()))))
        )

        return targets.per_example(losses), (d_top, ids, derivatives, np.append(starts, ends[-1]))

    def _backward(self, batch: Batch, saved: Any, weights: FloatArray) -> Gradients:
        d_top, ids, derivatives, starts = saved
        z = batch.z
        rows = batch.class_embeddings
        num_top = d_top.shape[1]
        column = weights.astype(z.dtype)[:, None]
        weighted = column * z
        below = np.empty_like(z)
        offsets = np.append(batch.targets.offsets(), len(starts) - 1)
        weighted_rows(starts[offsets], ids, derivatives, rows, below)
        dz = column * (product(d_top, rows[:num_top]) + below)
        classes, _, order, begins = group_equal_ids(ids, len(rows))
        example_ids = np.repeat(np.arange(len(z)), np.diff(starts[offsets]))
        dW = np.empty((num_top + len(classes), z.shape[1]), z.dtype)
        product(d_top.T, weighted, dW[:num_top])
        weighted_rows(begins, example_ids[order], derivatives[order], weighted, dW[num_top:])

        return Gradients(dz, SparseRows(np.append(np.arange(num_top), classes), dW), None)


def make_workspace(tree: ClassTree, z: Rows) -> Workspace:
    """Return the workspace of one thread, with the dtype of `z`."""
    logits, weights = np.empty((2, 1, round_up_to_8(tree.widest)), z.dtype)
    return logits, weights


@njit
def _merge_lightest(weights: FloatArray, parents: IntArray, n: int) -> None:
    """Write the parents of all nodes of Huffman's tree, and the weights of its inner nodes.

    Each inner node merges the two lightest nodes that have no parent yet. The first n weights, of
    the classes, must be ascending.
    """
    leaf = 0
    node = n

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
def _softmax_loss_and_derivatives(
    logits: Rows, weights: Rows, size: int, label_index: int
) -> float:
    """Return the softmax loss of the logit at `label_index`, and write derivatives to `weights`.

    The loss is logsumexp of the first `size` logits minus the label's logit, or NaN if a logit is
    not finite. Overwrites the logits.
    """
    num_not_finite = 0
    for i in range(size):
        num_not_finite += 0 if abs(logits[0, i]) < np.inf else 1

    if num_not_finite > 0:
        return np.nan
    if size == 1:
        weights[0, 0] = 0.0
        return 0.0

    logit = float(logits[0, label_index])
    # The sum leaves out the label, so that a small loss and a small 1 - p need no subtraction of
    # nearly equal numbers.
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
    """Write the losses of pairs [first, last), and derivatives in the scores on their paths.

    `top` (B, k) holds the scores of the root's k children; derivatives in them are added to
    `d_top`. The other derivatives of pair p are written to `derivatives` from index ``starts[p]``
    on, and the nodes to which they belong to `ids`.
    """
    logits, weights = workspace
    for p in range(first, last):
        b = example_ids[p]
        node = labels[p]
        i_score = starts[p]
        loss = 0.0

        while parents[node] >= 0:
            begin = children[parents[node], 0]
            end = children[parents[node], 1]
            products(rows, begin, end, z, b, -1, logits, 0)
            loss += _softmax_loss_and_derivatives(logits, weights, end - begin, node - begin)
            for i in range(end - begin):
                ids[i_score + i] = begin + i
                derivatives[i_score + i] = label_weights[p] * weights[0, i]
            i_score += end - begin
            node = parents[node]

        for i in range(top.shape[1]):
            logits[0, i] = top[b, i]

        loss += _softmax_loss_and_derivatives(logits, weights, top.shape[1], node)
        for i in range(top.shape[1]):
            d_top[b, i] += label_weights[p] * weights[0, i]

        losses[p] = label_weights[p] * loss
