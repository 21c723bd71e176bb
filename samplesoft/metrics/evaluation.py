"""Loss over all classes and hits among the best ones, without a matrix of all scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._jit import chunks
from samplesoft._temperature import as_tau, times_tau
from samplesoft._validation import IntArray, as_array, as_count, as_csr, as_flag, as_float_rows
from samplesoft.kernels.losses.full_softmax import finish, keep_best
from samplesoft.losses.class_blocks import class_blocks
from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.losses.targets import check_targets
from samplesoft.losses.vectors import check_biases, check_class_embeddings, unit_rows
from samplesoft.samplers.base import Rows


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
        Numbers of best classes; none for the loss alone. Of classes of equal score the first is
        better.
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
    normalize, absolute = as_flag("normalize", normalize), as_flag("absolute", absolute)
    if normalize:  # here, so that messages name the row of h, not of a part of it
        contexts, _ = unit_rows("h", contexts.copy())
    targets = check_targets(labels, len(contexts), len(rows))
    sizes = sorted({check_k(size, len(rows)) for size in np.atleast_1d(as_array("k", k))})
    model: dict[str, Any] = {"tau": tau, "normalize": normalize, "absolute": absolute}
    loss = FullSoftmaxLoss(**model, reduction="sum")
    sliceable: Any = targets.labels
    if targets.owners is not None:  # not all sparse matrices can be sliced
        sliceable = as_csr("labels", labels)
    owners = targets.rows(np.arange(len(contexts)))
    total, found = 0.0, np.zeros(max(sizes, default=0))
    for part in chunks(len(contexts), as_count("batch_size", batch_size)):
        value, _ = loss.forward(contexts[part], rows, sliceable[part], biases=biases)
        total += value
        if not sizes:
            continue
        ids, _ = top_k_classes(contexts[part], rows, sizes[-1], biases=biases, **model)
        pairs = slice(*np.searchsorted(owners, [part.start, part.stop]))
        best = ids[owners[pairs] - part.start]
        found += (best == targets.labels[pairs, None]).sum(axis=0)
    hits = {size: float(found[:size].sum()) for size in sizes}
    mean = total / len(contexts)
    with np.errstate(over="ignore"):
        perplexity = float(np.exp(mean))
    return Evaluation(
        mean,
        perplexity,
        {size: count / len(owners) for size, count in hits.items()},
        {size: count / (size * len(contexts)) for size, count in hits.items()},
        len(contexts),
    )


def top_k_classes(
    h: ArrayLike,
    class_embeddings: ArrayLike,
    k: int,
    *,
    tau: float | None = None,
    normalize: bool = False,
    absolute: bool = False,
    biases: ArrayLike | None = None,
) -> tuple[IntArray, Rows]:
    """Find the classes of the greatest scores.

    Parameters
    ----------
    h : array_like, shape (B, d)
        Context vectors.
    class_embeddings : array_like, shape (n, d)
        Class vectors.
    k : int
        How many classes, at most n.
    tau, normalize, absolute
        As in `samplesoft.losses.base.Loss`.
    biases : array_like, shape (n,), optional
        Class biases.

    Returns
    -------
    ids : ndarray of int64, shape (B, k)
        Classes of each example, the best first, and of classes of equal score the first one.
    scores : ndarray, shape (B, k)
        Their scores, in the type of the class vectors.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or a score among the best is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> top_k_classes([[1.0, 3.0, 2.0]], np.eye(3), 2)
    (array([[1, 2]]), array([[3., 2.]]))
    """
    rows = check_class_embeddings(class_embeddings)
    n, d = rows.shape
    contexts = as_float_rows("h", h, d, rows.dtype)
    k = check_k(k, n)
    normalize, absolute = as_flag("normalize", normalize), as_flag("absolute", absolute)
    offsets = None if biases is None else check_biases(biases, n, rows.dtype)
    if normalize:
        contexts, _ = unit_rows("h", contexts.copy())
    z = times_tau(contexts, as_tau(tau, unit_vectors=normalize))
    ids = np.full((len(z), k), n)
    best = np.full((len(z), k), -np.inf, z.dtype)
    for block in class_blocks(z, rows, offsets, normalize):
        finish(block.scores, block.offsets, absolute)
        keep_best(block.scores, block.part.start, best, ids)
    if not np.isfinite(best).all():
        row = int(np.argmin(np.isfinite(best).all(axis=1)))
        raise ValueError(
            f"the best scores must be finite, got {best[row].max()} for row {row} of `h`; "
            f"`class_embeddings` must be finite, and scores within the range of {z.dtype}: scale "
            "vectors down, or use float64."
        )
    order = np.lexsort((ids, -best), axis=1)
    return np.take_along_axis(ids, order, 1), np.take_along_axis(best, order, 1)


def check_k(k: Any, n: int) -> int:
    """Return the number k of best classes, at most n."""
    if as_count("k", k) > n:
        raise ValueError(f"`k` must be at most the number of classes {n}, got {k}.")
    return int(k)
