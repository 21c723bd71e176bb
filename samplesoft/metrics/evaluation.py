"""Loss over all classes and hits among the best ones, without a matrix of all scores."""

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
from samplesoft.losses.base import check_targets
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.vectors import check_class_embeddings, unit_rows
from samplesoft.samplers.base import Rows
from samplesoft.search import check_k, top_k_classes


@dataclass(frozen=True)
class Evaluation:
    """Figures of merit of class scores.

    Parameters
    ----------
    loss : float
        Mean cross entropy of the full softmax, in nats.
    perplexity : float
        Its exponential; infinite beyond the range of float64.
    top_k : dict of int to float
        For each k, the share of pairs of example and label with the label among the k best
        classes of the example.
    precision_at_k : dict of int to float
        For each k, the mean share of labels among the k best classes.
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
    """Compute the loss of the full softmax, and how often labels are among the k best classes.

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
        Numbers of best classes; none for the loss alone. Classes of equal score stand in random
        order, and the result is the expectation over it: with all scores equal, a label is among
        the k best of n classes with probability k / n.
    batch_size : int
        Examples at a time.

    Returns
    -------
    Evaluation
        Figures of merit.

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
    rows = check_class_embeddings(class_embeddings)
    contexts = as_float_rows("h", h, rows.shape[1], rows.dtype)
    normalize = as_flag("normalize", normalize)
    absolute = as_flag("absolute", absolute)
    if normalize:  # here, so that messages name the row of h, not of a part of it
        contexts, _ = unit_rows("h", contexts.copy())
    targets = check_targets(labels, len(contexts), rows.shape[0])
    sizes = sorted({check_k(size, rows.shape[0]) for size in np.atleast_1d(as_array("k", k))})
    model: dict[str, Any] = {"tau": tau, "normalize": normalize, "absolute": absolute}
    loss = FullSoftmaxLoss(**model, reduction="sum")
    sliceable: Any = targets.labels
    if targets.example_ids is not None:  # not all sparse matrices can be sliced
        sliceable = as_csr("labels", labels)
    example_ids = targets.rows(np.arange(len(contexts)))  # the example of each label
    total = 0.0
    in_place = np.zeros(max(sizes, default=0))  # labels in each place of the lists
    for part in chunks(len(contexts), as_count("batch_size", batch_size)):
        value, _ = loss.forward(contexts[part], rows, sliceable[part], biases=biases)
        total += value
        if not sizes:
            continue
        pairs = slice(*np.searchsorted(example_ids, [part.start, part.stop]))
        of_part = example_ids[pairs] - part.start
        labels_of_part = targets.labels[pairs]
        in_place += labels_in_places(
            lambda some, size: top_k_classes(some, rows, size, biases=biases, **model),
            contexts[part],
            of_part,
            labels_of_part,
            len(in_place),
            rows.shape[0],
        )
    return evaluation_of(total / len(contexts), in_place, sizes, len(example_ids), len(contexts))


def labels_in_places(
    top_k: Callable[[Rows, int], tuple[IntArray, FloatArray]],
    contexts: Rows,
    example_ids: IntArray,
    labels: IntArray,
    length: int,
    num_classes: int,
) -> FloatArray:
    """Return the expected number of labels in each place of the lists, shape (length,).

    ``top_k(contexts, k)`` returns the best classes (B, k) and their scores, in falling order. Label
    p belongs to the example ``example_ids[p]``. Classes of equal score stand in random order, so
    that a label is equally likely at each of their positions.
    """
    # one class more than is asked for shows whether a tie goes on beyond the end of the list
    ids, scores = top_k(contexts, min(length + 1, num_classes))
    cut_off = np.zeros(len(ids), np.bool_)
    if length < num_classes:
        cut_off = scores[:, length - 1] == scores[:, length]
    whole = ~cut_off[example_ids]
    in_place = _places_in_lists(ids, scores, example_ids[whole], labels[whole], length)
    for b in np.flatnonzero(cut_off):  # all classes, for those of the tie are counted
        of_context = labels[example_ids == b]
        ids, scores = top_k(contexts[b : b + 1], num_classes)
        first_context = np.zeros(len(of_context), np.int64)
        in_place += _places_in_lists(ids, scores, first_context, of_context, length)
    return in_place


def _places_in_lists(
    ids: IntArray, scores: FloatArray, example_ids: IntArray, labels: IntArray, length: int
) -> FloatArray:
    """Return the expected number of labels in each place of lists that cut no tie off."""
    pair, place = np.nonzero(ids[example_ids] == labels[:, None])
    of_pair = scores[example_ids[pair]]
    own = np.take_along_axis(of_pair, place[:, None], axis=1)
    num_better = (of_pair > own).sum(axis=1)
    num_equal = (of_pair == own).sum(axis=1)
    in_place = np.zeros(length)
    for first, size in zip(num_better.tolist(), num_equal.tolist(), strict=True):
        in_place[first : first + size] += 1.0 / size
    return in_place


def evaluation_of(
    loss: float, in_place: FloatArray, sizes: Iterable[int], num_labels: int, num_examples: int
) -> Evaluation:
    """Return the figures of a mean loss, and of how many labels are in each place of the lists."""
    hits = {size: float(in_place[:size].sum()) for size in sizes}
    with np.errstate(over="ignore"):  # infinity is the answer then
        perplexity = float(np.exp(loss))
    return Evaluation(
        loss,
        perplexity,
        {size: count / num_labels for size, count in hits.items()},
        {size: count / (size * num_examples) for size, count in hits.items()},
        num_examples,
    )
