"""The hierarchical softmax: a softmax layer over a tree of classes."""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks, njit, num_threads, thread_for_each
from samplesoft._temperature import times_tau
from samplesoft._validation import FloatArray, IntArray, as_float_rows
from samplesoft.kernels.products import product, products
from samplesoft.kernels.sort_ids import count_below
from samplesoft.kernels.weights import exp_weights
from samplesoft.losses.hierarchical import ClassTree, HierarchicalLoss, Workspace, make_workspace
from samplesoft.losses.vectors import require_finite_rows
from samplesoft.metrics.evaluation import Evaluation, count_labels_by_position, make_evaluation
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.samplers.base import Rows
from samplesoft.search import checked_k, checked_leave_out

_CHUNK_VALUES = 1 << 22  # log-probabilities that all threads together compute at a time


class HierarchicalSoftmax(SoftmaxLayer):
    """A softmax layer over a tree of classes, in which a step uses only the path to the label.

    The probability of a class is a product over the nodes on the path from the root to the class.
    Each factor is a softmax over the scores ``tau * h . c`` of the node and its siblings. So the
    probabilities of all classes sum to 1, although no step sums over all classes. An example takes
    about 2 sqrt(n) scores in a tree of two levels (`two_level_tree`), and of the order of log(n) in
    a binary tree (`huffman_tree`). Use this layer to train normalised probabilities at such a cost.
    A wrong probability of a node affects all classes below it, so that the full or the sampled
    softmax is usually more accurate.

    Parameters
    ----------
    node_embeddings : array_like, shape (N, d)
        Vectors of the nodes, float32 or float64; copied.
    tree : ClassTree
        Tree whose leaves are the classes.
    **options
        Further arguments of `samplesoft.losses.HierarchicalLoss`.

    Attributes
    ----------
    parameters : dict of str to ndarray
        ``"class_embeddings"`` (N, d), the vectors of the nodes.

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
    >>> from samplesoft.losses import two_level_tree
    >>> tree = two_level_tree(np.ones(9))
    >>> layer = HierarchicalSoftmax(np.zeros((tree.num_nodes, 2)), tree)
    >>> loss, cache = layer.forward([[1.0, 0.0]], [4])
    >>> round(float(np.exp(loss)), 6)
    9.0
    >>> dh, gradients = layer.backward(cache)
    >>> gradients["class_embeddings"].ids.tolist()  # three inner nodes, and the leaves of one
    [0, 1, 2, 6, 7, 8]
    """

    _on_tree = True

    def __init__(self, node_embeddings: ArrayLike, tree: ClassTree, **options: Any) -> None:
        super().__init__(node_embeddings, HierarchicalLoss(tree, **options))
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
            Log-probabilities, in nats.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        tree = self.tree
        z = self._scaled_contexts(h)
        logs = np.empty((len(z), tree.num_classes))

        def compute_log_probs(rows: slice) -> None:
            scores = product(z[rows], self.class_embeddings.T).astype(np.float64)
            _log_probs_of_nodes(tree.children, scores)
            np.take(scores, tree.places, axis=1, out=logs[rows])

        thread_for_each(
            compute_log_probs,
            chunks(len(z), max(1, _CHUNK_VALUES // (tree.num_nodes * num_threads()))),
        )
        return logs

    def top_k(self, h: ArrayLike, k: int, *, leave_out: Any = None) -> tuple[IntArray, FloatArray]:
        """Find the k most likely classes of each context exactly, by branch and bound.

        Parameters
        ----------
        h : array_like, shape (B, d)
            Context vectors.
        k : int
            Number of classes, at most n.
        leave_out : scipy.sparse CSR matrix, shape (B, n), optional
            Classes to exclude for each context.

        Returns
        -------
        ids : ndarray of int64, shape (B, k)
            Classes by descending probability; of equal ones, the class with the smallest index
            first.
        logs : ndarray of float64, shape (B, k)
            Log-probabilities of these classes. If fewer than k classes are not excluded, excluded
            ones follow with -inf.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        tree = self.tree
        z = self._scaled_contexts(h)
        k = checked_k(k, tree.num_classes)
        excluded = checked_leave_out(leave_out, (len(z), tree.num_classes))
        excluded_offsets = np.zeros(len(z) + 1, np.int64)
        excluded_classes = np.zeros(0, np.int64)
        if excluded is not None:
            excluded_offsets = excluded.indptr.astype(np.int64)
            excluded_classes = excluded.indices.astype(np.int64)

        ids = np.empty((len(z), k), np.int64)
        logs = np.empty((len(z), k))

        def search_contexts(rows: slice) -> None:
            workspace = make_workspace(tree, z)
            for b in range(rows.start, rows.stop):
                excluded_here = excluded_classes[excluded_offsets[b] : excluded_offsets[b + 1]]
                _write_most_likely_classes(
                    tree.children,
                    tree.classes,
                    self.class_embeddings,
                    z,
                    b,
                    excluded_here,
                    ids[b],
                    logs[b],
                    workspace,
                )

        thread_for_each(search_contexts, chunks(len(z), max(1, -(-len(z) // (4 * num_threads())))))
        return ids, logs

    def evaluate(self, h: ArrayLike, labels: Any, *, k: tuple[int, ...] = ()) -> Evaluation:
        """Compute the loss over the tree and the top-k accuracy; see `SoftmaxLayer.evaluate`."""
        mean_loss = HierarchicalLoss(self.tree, tau=self.loss.tau)
        value, cache = mean_loss.forward(h, self.class_embeddings, labels)
        targets = cache.batch.targets
        num_examples = len(cache.batch.z)
        classes = self.tree.classes[targets.labels]
        example_ids = targets.rows(np.arange(num_examples))

        label_hits = np.zeros(0)
        if k:
            contexts = np.asarray(h)
            label_hits = count_labels_by_position(
                self.top_k, contexts, example_ids, classes, max(k), len(self.class_embeddings)
            )

        return make_evaluation(value, label_hits, k, len(classes), num_examples)

    def _scaled_contexts(self, h: ArrayLike) -> Rows:
        """Return validated contexts (B, d) times tau; raise if a logit could overflow."""
        rows = self.class_embeddings
        require_finite_rows(rows)
        contexts = as_float_rows("h", h, rows.shape[1], rows.dtype)

        max_product = float(np.abs(rows).max()) * float(np.abs(contexts).max()) * self.loss.tau
        if not max_product * rows.shape[1] < np.finfo(rows.dtype).max:
            raise ValueError(
                f"`h` must have logits within the range of {rows.dtype}, got numbers up to "
                f"{np.abs(contexts).max():.3g}; scale the vectors down, or use float64."
            )
        return times_tau(contexts, self.loss.tau)


@njit
def _log_probs_of_nodes(children: IntArray, scores: FloatArray) -> None:
    """Overwrite the scores (b, N) of the nodes by the log-probabilities of reaching them."""
    for b in range(len(scores)):
        row = scores[b]
        for node in range(-1, len(children) - 1):  # -1 is the root; parents come before children
            start, stop = children[node, 0], children[node, 1]
            if start == stop:
                continue

            max_score = -np.inf
            total = 0.0
            for i in range(start, stop):
                max_score = max(max_score, row[i])
            for i in range(start, stop):
                total += math.exp(row[i] - max_score)

            shift = max_score + math.log(total) - (row[node] if node >= 0 else 0.0)
            for i in range(start, stop):
                row[i] -= shift


@njit
def _write_most_likely_classes(
    children: IntArray,
    classes: IntArray,
    rows: Rows,
    z: Rows,
    b: int,
    excluded: IntArray,
    ids: IntArray,
    logs: FloatArray,
    workspace: Workspace,
) -> None:
    """Write the k most likely classes of context b to `ids` and their log-probabilities to `logs`.

    `excluded` are ascending classes to leave out. The search visits nodes in the order of
    decreasing probability. A class is at most as likely as its ancestors, so that the first k
    classes that the search visits are the most likely ones.
    """
    logits, weights = workspace

    # Entries are (minus log-probability, class, node). The class is -1 for an inner node, so that
    # inner nodes come before classes of the same probability. A class below such a node may be as
    # probable, and have a smaller index.
    heap = [(0.0, -1, -1)]
    num_found = 0

    while num_found < len(ids) and len(heap) > 0:
        cost, class_id, node = heapq.heappop(heap)
        if class_id >= 0:
            ids[num_found] = class_id
            logs[num_found] = -cost
            num_found += 1
            continue

        start, stop = children[node, 0], children[node, 1]
        products(rows, start, stop, z, b, -1, logits, 0)
        total, max_logit = exp_weights(logits, weights, 0, stop - start, -1)
        cost += max_logit + math.log(total)

        for i in range(start, stop):
            index = count_below(excluded, classes[i])
            if index == len(excluded) or excluded[index] != classes[i]:
                heapq.heappush(heap, (cost - float(logits[0, i - start]), classes[i], i))

    for class_id in excluded[: len(ids) - num_found]:
        ids[num_found] = class_id
        logs[num_found] = -np.inf
        num_found += 1
