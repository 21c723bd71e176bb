"""Precision, recall, nDCG and propensity-scored precision of lists of best classes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_count,
    as_csr,
    as_ids,
    as_real_array,
)


def ranking_scores(
    ids: ArrayLike,
    labels: Any,
    k: int | Sequence[int],
    *,
    propensities: ArrayLike | None = None,
) -> dict[str, float]:
    """Compute precision, recall and nDCG of lists of classes.

    Parameters
    ----------
    ids : array_like of int, shape (B, K)
        Distinct classes of each example, the best first, as from `top_k_classes`.
    labels : scipy.sparse matrix, shape (B, n)
        Labels where it is not 0. Examples without any are left out.
    k : int or sequence of int
        Lengths of the lists to score, at most K.
    propensities : array_like, shape (n,), optional
        Of the labels, above 0 and at most 1, as from `samplesoft.metrics.propensities`.

    Returns
    -------
    dict of str to float
        For each k ``precision_at_k``, the mean share of labels in a list; ``recall_at_k``, that
        of the labels that are in it; and ``ndcg_at_k``, the sum of ``1 / log2(1 + place)`` over
        the labels in it, divided by the greatest possible. With `propensities` also
        ``psp_at_k``, propensity-scored precision: the sum over all lists of ``1 / propensity`` of
        the labels in them, divided by the greatest possible, so that the best lists have 1.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, a length is out of range, or no example has a label.

    References
    ----------
    .. [1] H. Jain, Y. Prabhu and M. Varma, "Extreme multi-label loss functions for
       recommendation, tagging, ranking and other missing label applications", KDD 2016,
       section 3; sums are divided by the greatest as in the extreme classification repository.

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
    gained = None if propensities is None else _gained(labels, lists, propensities)
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
        if gained is not None:
            of_lists, of_best = (part[:, :size].sum() for part in gained)
            found[f"psp_at_{size}"] = float(of_lists / of_best)
    return found


def _gained(labels: Any, lists: IntArray, propensities: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return ``1 / propensity`` (B, K) of the labels in the lists, and in the best lists."""
    given = as_real_array("propensities", propensities, (1,))
    if given.shape != labels.shape[1:] or not ((given > 0.0) & (given <= 1.0)).all():
        raise ValueError(
            f"`propensities` must have shape ({labels.shape[1]},) and lie above 0 and up to 1, got "
            f"shape {given.shape} with values from {given.min()} to {given.max()}; take them from "
            "samplesoft.metrics.propensities."
        )
    of_lists, of_best = np.zeros(lists.shape), np.zeros(lists.shape)
    for b, (first, last) in enumerate(pairwise(labels.indptr)):
        own = labels.indices[first:last]
        here = np.isin(lists[b], own)
        of_lists[b, here] = 1.0 / given[lists[b, here]]
        best = np.sort(1.0 / given[own])[::-1][: lists.shape[1]]
        of_best[b, : len(best)] = best
    return of_lists, of_best
