"""Precision, recall and nDCG of lists of best classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from samplesoft._validation import IntArray, as_array, as_count, as_csr, as_ids, as_real_array


def ranking_scores(ids: ArrayLike, labels: Any, k: int | Sequence[int]) -> dict[str, float]:
    """Compute precision, recall and nDCG of lists of classes.

    Parameters
    ----------
    ids : array_like of int, shape (B, K)
        Distinct classes of each example, the best first, as from `top_k_classes`.
    labels : scipy.sparse matrix, shape (B, n)
        Labels where it is not 0. Examples without any are left out.
    k : int or sequence of int
        Lengths of the lists to score, at most K.

    Returns
    -------
    dict of str to float
        For each k ``precision_at_k``, the mean share of labels in a list; ``recall_at_k``, that
        of the labels that are in it; and ``ndcg_at_k``, the sum of ``1 / log2(1 + place)`` over
        the labels in it, divided by the greatest possible.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, a length is out of range, or no example has a label.

    References
    ----------
    .. [1] H. Jain, Y. Prabhu and M. Varma, "Extreme multi-label loss functions for
       recommendation, tagging, ranking and other missing label applications", KDD 2016,
       section 3.

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
    given = as_array("ids", ids)
    if given.ndim != 2 or len(given) != labels.shape[0]:
        raise ValueError(
            f"`ids` must have shape (B, K), with a list for each of the {labels.shape[0]} rows of "
            f"`labels`, got {given.shape}."
        )
    lists: IntArray = as_ids("ids", given.ravel(), labels.shape[1]).reshape(given.shape)
    sizes = [as_count("k", size) for size in np.atleast_1d(as_array("k", k))]
    if not sizes or max(sizes) > lists.shape[1]:
        raise ValueError(
            f"`k` must hold lengths from 1 to {lists.shape[1]}, that of the lists, got {sizes}."
        )
    labels.sum_duplicates()
    labels.eliminate_zeros()
    counts = np.diff(labels.indptr)
    rows = np.flatnonzero(counts)
    if not len(rows):
        raise ValueError("`labels` must hold a label for some example, got none.")
    hits = np.zeros(lists.shape, bool)
    for b in rows:
        own = labels.indices[labels.indptr[b] : labels.indptr[b + 1]]
        hits[b] = np.isin(lists[b], own)
    hits, counts = hits[rows], counts[rows]
    gains = 1.0 / np.log2(np.arange(2, lists.shape[1] + 2))
    best = np.cumsum(gains)
    found = {}
    for size in sizes:
        in_list = hits[:, :size]
        number = in_list.sum(axis=1)
        found[f"precision_at_{size}"] = float(np.mean(number / size))
        found[f"recall_at_{size}"] = float(np.mean(number / counts))
        ideal = best[np.minimum(counts, size) - 1]
        found[f"ndcg_at_{size}"] = float(np.mean(in_list @ gains[:size] / ideal))
    return found
