"""Full-softmax loss and top-k accuracy, computed without storing the scores of all classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_count,
    as_csr,
    as_flag,
    as_float_rows,
)
from samplesoft.losses.base import checked_targets
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.vectors import checked_class_embeddings, unit_rows
from samplesoft.samplers.base import Rows
from samplesoft.search import checked_k, top_k_classes


@dataclass(frozen=True)
class Evaluation:
    """Full-softmax loss, perplexity and top-k accuracy of a model.

    Parameters
    ----------
    loss : float
        Mean cross entropy of the full softmax, in nats.
    perplexity : float
        ``exp(loss)``; infinite if that exceeds the range of float64.
    top_k : dict of int to float
        For each k, the fraction of (example, label) pairs whose label is among the k best classes
        of the example.
    precision_at_k : dict of int to float
        For each k, the mean fraction of the k best classes that are labels.
    num_examples : int
        Number of examples.
    """

    loss: float
    perplexity: float
    top_k: dict[int, float]
    precision_at_k: dict[int, float]
    num_examples: int


def evaluate(
    h: ArrayLike,
    class_embeddings: ArrayLike,
    labels: Any,
    *,
    tau: float | None = None,
    normalize: bool = False,
    absolute: bool = False,
    biases: ArrayLike | None = None,
    k: int | Sequence[int] = (1, 5),
    batch_size: int = 1024,
) -> Evaluation:
    """Compute the full-softmax loss and the top-k accuracy of given contexts and class vectors.

    Parameters
    ----------
    h : array_like, shape (B, d)
        Context vectors.
    class_embeddings : array_like, shape (n, d)
        Class vectors.
    labels : array_like of int, shape (B,), or scipy sparse matrix, shape (B, n)
        Labels, as in `samplesoft.losses.base.Loss.forward`.
    tau, normalize, absolute
        As in `samplesoft.losses.base.Loss`.
    biases : array_like, shape (n,), optional
        Class biases.
    k : int or sequence of int
        Lengths k of the lists of best classes; an empty sequence for the loss alone. Classes of
        equal score count as randomly ordered, and the accuracy is the expectation over this order:
        if all n scores are equal, a label is among the k best with probability k / n.
    batch_size : int
        Examples per batch.

    Returns
    -------
    Evaluation
        The loss, the perplexity, and the accuracy for each k.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the loss is not finite.

    References
    ----------
    Jain, Prabhu and Varma (2016), "Extreme multi-label loss functions for recommendation, tagging,
    ranking and other missing label applications", section 3: precision at k.

    Examples
    --------
    >>> import numpy as np
    >>> h = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    >>> result = evaluate(h, np.eye(3), [0, 1], k=(1, 2))
    >>> result.top_k
    {1: 0.5, 2: 1.0}
    >>> result.precision_at_k
    {1: 0.5, 2: 0.5}
    """
    rows = checked_class_embeddings(class_embeddings)
    contexts = as_float_rows("h", h, rows.shape[1], rows.dtype)
    normalize = as_flag("normalize", normalize)
    absolute = as_flag("absolute", absolute)
    if normalize:
        # normalise all contexts at once, so that an error names the right row of `h`
        contexts, _ = unit_rows("h", contexts.copy())

    targets = checked_targets(labels, len(contexts), rows.shape[0])
    sizes = sorted({checked_k(size, rows.shape[0]) for size in np.atleast_1d(as_array("k", k))})

    model: dict[str, Any] = {"tau": tau, "normalize": normalize, "absolute": absolute}
    loss = FullSoftmaxLoss(**model, reduction="sum")

    sliceable: Any = targets.labels
    if targets.example_ids is not None:  # a CSR matrix, because not all formats can be sliced
        sliceable = as_csr("labels", labels)
    example_ids = targets.rows(np.arange(len(contexts)))  # index of the example of each label

    total = 0.0
    counts_by_position = np.zeros(max(sizes, default=0))  # number of labels at each position

    for chunk in chunks(len(contexts), as_count("batch_size", batch_size)):
        value, _ = loss.forward(contexts[chunk], rows, sliceable[chunk], biases=biases)
        total += value
        if not sizes:
            continue

        pairs = slice(*np.searchsorted(example_ids, [chunk.start, chunk.stop]))
        chunk_example_ids = example_ids[pairs] - chunk.start
        chunk_labels = targets.labels[pairs]
        counts_by_position += count_labels_by_position(
            lambda h_chunk, size: top_k_classes(h_chunk, rows, size, biases=biases, **model),
            contexts[chunk],
            chunk_example_ids,
            chunk_labels,
            len(counts_by_position),
            rows.shape[0],
        )

    return make_evaluation(
        total / len(contexts), counts_by_position, sizes, len(example_ids), len(contexts)
    )


def count_labels_by_position(
    top_k: Callable[[Rows, int], tuple[IntArray, FloatArray]],
    contexts: Rows,
    example_ids: IntArray,
    labels: IntArray,
    length: int,
    num_classes: int,
) -> FloatArray:
    """Return the expected number of labels (length,) at each position of the lists of best classes.

    ``top_k(contexts, k)`` returns the best classes (B, k) and their scores, in decreasing order.
    Label p belongs to example ``example_ids[p]``. Classes of equal score count as randomly ordered,
    so that a label is equally likely at each position of its tie.
    """
    # get one class more than the list has, to see whether the list ends within a tie
    ids, scores = top_k(contexts, min(length + 1, num_classes))
    tie_is_cut = np.zeros(len(ids), np.bool_)
    if length < num_classes:
        tie_is_cut = scores[:, length - 1] == scores[:, length]
    has_full_ties = ~tie_is_cut[example_ids]

    counts_by_position = _count_by_position(
        ids, scores, example_ids[has_full_ties], labels[has_full_ties], length
    )

    # for a list that ends within a tie, get all classes, because the length of the tie is needed
    for b in np.flatnonzero(tie_is_cut):
        context_labels = labels[example_ids == b]
        ids, scores = top_k(contexts[b : b + 1], num_classes)
        first_context = np.zeros(len(context_labels), np.int64)
        counts_by_position += _count_by_position(ids, scores, first_context, context_labels, length)

    return counts_by_position


def _count_by_position(
    ids: IntArray, scores: FloatArray, example_ids: IntArray, labels: IntArray, length: int
) -> FloatArray:
    """Return the expected number of labels (length,) at each position of the lists `ids` (B, k).

    No list may end within a tie of `scores` (B, k).
    """
    pair, position = np.nonzero(ids[example_ids] == labels[:, None])
    pair_scores = scores[example_ids[pair]]
    label_score = np.take_along_axis(pair_scores, position[:, None], axis=1)
    num_better = (pair_scores > label_score).sum(axis=1)
    num_equal = (pair_scores == label_score).sum(axis=1)
    counts_by_position = np.zeros(length)
    for start, size in zip(num_better.tolist(), num_equal.tolist(), strict=True):
        counts_by_position[start : start + size] += 1.0 / size
    return counts_by_position


def make_evaluation(
    loss: float,
    counts_by_position: FloatArray,
    sizes: Iterable[int],
    num_labels: int,
    num_examples: int,
) -> Evaluation:
    """Return an `Evaluation` from the mean loss and the number of labels at each list position."""
    hits = {size: float(counts_by_position[:size].sum()) for size in sizes}
    with np.errstate(over="ignore"):  # infinity is the documented result
        perplexity = float(np.exp(loss))
    return Evaluation(
        loss,
        perplexity,
        {size: count / num_labels for size, count in hits.items()},
        {size: count / (size * num_examples) for size, count in hits.items()},
        num_examples,
    )
