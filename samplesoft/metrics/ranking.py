"""Precision, recall, nDCG and propensity-scored precision of top-k lists, and propensities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_choice,
    as_count,
    as_csr,
    as_ids,
    as_positive,
    as_real_array,
)
from samplesoft.metrics.target_ranks import as_ranks

METRICS = ("recall", "precision", "ndcg", "mrr")  # the metrics that `rank_metric` computes
# Smallest number of examples for `propensities`; with fewer, its constant C would be negative.
MIN_EXAMPLES = 3


def rank_metric(name: str, k: int, ranks: ArrayLike) -> FloatArray:
    """Compute a ranking metric of one relevant item at given ranks of the item.

    Parameters
    ----------
    name : str
        The metric, which is 0 for ranks above k. For ranks up to k, ``"recall"`` is 1,
        ``"precision"`` is 1 / k, ``"ndcg"`` is 1 / log2(1 + rank), and ``"mrr"`` is 1 / rank.
    k : int
        Length of the list.
    ranks : array_like of int, shape (P,)
        Ranks, counted from 1.

    Returns
    -------
    ndarray of float64, shape (P,)
        The metric at each rank.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    Examples
    --------
    >>> rank_metric("ndcg", 3, [1, 2, 3, 4]).round(3)
    array([1.   , 0.631, 0.5  , 0.   ])
    """
    rank = as_ranks(ranks)
    size = as_count("k", k)
    divisors = {"recall": 1.0, "precision": size, "ndcg": np.log2(1.0 + rank), "mrr": rank}
    gains: FloatArray = (rank <= size) / divisors[as_choice("name", name, METRICS)]
    return gains


def ranking_scores(
    ids: ArrayLike, labels: Any, k: int | Sequence[int], *, propensities: ArrayLike | None = None
) -> dict[str, float]:
    """Compute precision, recall and nDCG of top-k lists of classes.

    Parameters
    ----------
    ids : array_like of int, shape (B, K)
        Distinct classes for each example, the best first, for example from `top_k_classes`.
    labels : scipy.sparse matrix, shape (B, n)
        Nonzero entries are labels. Examples without labels are ignored.
    k : int or sequence of int
        Lengths of the lists to score, at most K.
    propensities : array_like, shape (n,), optional
        Propensities of the labels, above 0 and at most 1, for example from
        `samplesoft.metrics.propensities`.

    Returns
    -------
    dict of str to float
        Values under the following names, for each k. ``precision_at_k`` is the mean fraction of
        the list that are labels, and ``recall_at_k`` the mean fraction of the labels that are in
        the list. ``ndcg_at_k`` is the mean of the sum of ``1 / log2(1 + position)`` over the labels
        in the list, divided by its largest possible value. ``psp_at_k``, propensity-scored
        precision, is only computed with `propensities`: the sum of ``1 / propensity`` over the
        labels in all lists, divided by its largest possible value.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, a length is out of range, or no example has a label.

    References
    ----------
    .. [1] H. Jain, Y. Prabhu and M. Varma, "Extreme multi-label loss functions for
       recommendation, tagging, ranking and other missing label applications", KDD 2016,
       section 3. Sums are divided by their largest possible value, as in the extreme
       classification repository.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> labels = csr_array(np.array([[1, 0, 1, 0], [0, 0, 0, 1]]))
    >>> ranking_scores(np.array([[2, 1], [3, 0]]), labels, [1, 2])["precision_at_2"]
    0.5
    """
    if not sparse.issparse(labels):
        labels = sparse.csr_array(as_real_array("labels", labels, (2,)))
    labels = as_csr("labels", labels)

    id_array = as_array("ids", ids)
    if id_array.ndim != 2 or len(id_array) != labels.shape[0]:
        raise ValueError(
            f"`ids` must have shape (B, K), with a list for each of the {labels.shape[0]} rows of "
            f"`labels`, got {id_array.shape}."
        )
    lists: IntArray = as_ids("ids", id_array.ravel(), labels.shape[1]).reshape(id_array.shape)

    sorted_lists = np.sort(lists, axis=1)
    if (sorted_lists[:, 1:] == sorted_lists[:, :-1]).any():
        raise ValueError("`ids` must hold distinct classes in each list, got one of them twice.")

    sizes = [as_count("k", size) for size in np.atleast_1d(as_array("k", k))]
    if not sizes or max(sizes) > lists.shape[1]:
        raise ValueError(
            f"`k` must hold lengths from 1 to {lists.shape[1]}, that of the lists, got {sizes}."
        )

    labels.sum_duplicates()
    labels.eliminate_zeros()
    inverse_propensities = None
    if propensities is not None:
        inverse_propensities = _inverse_propensities(propensities, labels.shape[1])

    counts = np.diff(labels.indptr)
    rows = np.flatnonzero(counts)
    if not len(rows):
        raise ValueError("`labels` must hold a label for some example, got none.")

    lists = lists[rows]
    counts = counts[rows]
    # one number for each pair of an example and a class
    first_pairs = np.arange(len(rows)) * labels.shape[1]
    labelled_pairs = np.repeat(first_pairs, counts) + labels.indices
    hits = np.isin(first_pairs[:, None] + lists, labelled_pairs)

    discounts = 1.0 / np.log2(np.arange(2, lists.shape[1] + 2))
    # sum of the discounts of a list that contains only labels, for each length of the list
    ideal = np.cumsum(discounts)
    if inverse_propensities is not None:
        # at each position of the lists: 1 / propensity of the class if it is a label, else 0; and
        # the values for the best possible lists
        gains = np.where(hits, inverse_propensities[lists], 0.0)
        largest_gains = np.zeros(lists.shape)
        for b, row in enumerate(rows):
            row_labels = labels.indices[labels.indptr[row] : labels.indptr[row + 1]]
            rarest = np.sort(inverse_propensities[row_labels])[::-1][: lists.shape[1]]
            largest_gains[b, : len(rarest)] = rarest

    scores = {}
    for size in sizes:
        hits_at_k = hits[:, :size]
        num_hits = hits_at_k.sum(axis=1)
        scores[f"precision_at_{size}"] = float(np.mean(num_hits / size))
        scores[f"recall_at_{size}"] = float(np.mean(num_hits / counts))
        ideal_dcg = ideal[np.minimum(counts, size) - 1]
        scores[f"ndcg_at_{size}"] = float(np.mean(hits_at_k @ discounts[:size] / ideal_dcg))
        if inverse_propensities is not None:
            # a ratio of sums over all lists, not a mean of ratios
            scores[f"psp_at_{size}"] = float(gains[:, :size].sum() / largest_gains[:, :size].sum())

    return scores


def _inverse_propensities(propensities: ArrayLike, num_classes: int) -> FloatArray:
    """Return ``1 / propensity`` (n,) for validated propensities."""
    values = as_real_array("propensities", propensities, (1,))
    if len(values) != num_classes or not ((values > 0.0) & (values <= 1.0)).all():
        raise ValueError(
            f"`propensities` must have shape ({num_classes},) and lie above 0 and up to 1, got "
            f"shape {values.shape} with values from {values.min()} to {values.max()}; take them "
            "from samplesoft.metrics.propensities."
        )
    return 1.0 / values


def propensities(
    counts: ArrayLike, num_examples: int, *, a: float = 0.55, b: float = 1.5
) -> FloatArray:
    r"""Estimate the propensities of labels from their counts.

    The propensity of a label is the probability that it is observed in an example for which it is
    relevant. Rare labels are missing most often. For a label with count :math:`N_l` among N
    examples the model is :math:`1 / (1 + C (N_l + B)^{-A})` with
    :math:`C = (\log N - 1) (B + 1)^A`.

    Parameters
    ----------
    counts : array_like, shape (n,)
        Number of training examples with each label.
    num_examples : int
        Number N of training examples, at least 3.
    a, b : float
        Constants A and B. The defaults are the usual values. For Wikipedia, [1]_ and the extreme
        classification repository use 0.5 and 0.4; for Amazon, 0.6 and 2.6.

    Returns
    -------
    ndarray of float64, shape (n,)
        Propensities between 0 and 1.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed.

    References
    ----------
    .. [1] H. Jain, Y. Prabhu and M. Varma, "Extreme multi-label loss functions for
       recommendation, tagging, ranking and other missing label applications", KDD 2016,
       section 4.

    Examples
    --------
    >>> propensities([0, 10, 1000], 5000).round(3)
    array([0.091, 0.235, 0.782])
    """
    label_counts = as_real_array("counts", counts, (1,))
    if label_counts.min() < 0.0:
        raise ValueError(
            f"`counts` must be at least 0, got {label_counts.min()}; count the labels again."
        )

    size = as_count("num_examples", num_examples, MIN_EXAMPLES)
    a = as_positive("a", a)
    b = as_positive("b", b)

    # compute one power of a quotient, because C and the other power may be out of range where their
    # product is not
    with np.errstate(over="ignore", under="ignore"):
        odds_missing = (np.log(size) - 1.0) * ((b + 1.0) / (label_counts + b)) ** a
    result: FloatArray = 1.0 / (1.0 + odds_missing)
    return result
