"""Interactions of users with items: checked, hidden in part, and as a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from samplesoft._validation import IntArray, as_csr, require_finite
from samplesoft.models.linear_softmax import some_entries
from samplesoft.training.linear_epochs import held_out_order

Matrix = sparse.csr_array


def as_interactions(name: str, value: Any, num_items: int | None = None) -> Matrix:
    """Return weights of interactions (users, items) in order, none of them 0, as a new array."""
    matrix: Matrix = as_csr(name, value)
    if num_items is not None and matrix.shape[1] != num_items:
        raise ValueError(
            f"`{name}` must have a column for each of the {num_items} items, got {matrix.shape[1]}."
        )
    require_finite(name, matrix.data)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if matrix.nnz and matrix.data.min() < 0.0:
        raise ValueError(f"`{name}` must hold weights of at least 0, got {matrix.data.min()}.")
    return matrix


def hide(user_items: Matrix, share: float, seed: int) -> tuple[Matrix, IntArray, Matrix]:
    """Hide a fifth of the items of a share of the users, at least one of each.

    Return what is left (users, items), the users (k,) who had at least two items and were chosen,
    and their hidden items (k, items).
    """
    able = np.flatnonzero(np.diff(user_items.indptr) > 1)
    users = np.sort(held_out_order(able, seed)[: int(np.ceil(share * len(able)))])
    chosen = np.zeros(user_items.shape[0], bool)
    chosen[users] = True
    owners = np.repeat(np.arange(user_items.shape[0]), np.diff(user_items.indptr))
    places = np.random.default_rng(seed).random(user_items.nnz)
    first = np.lexsort((places, owners))  # of each user, the items in a random order
    rank = np.empty(user_items.nnz, np.int64)
    rank[first] = np.arange(user_items.nnz) - user_items.indptr[owners]
    sizes = np.diff(user_items.indptr)
    hidden = chosen[owners] & (rank < np.maximum(1, sizes // 5)[owners])
    return some_entries(user_items, ~hidden), users, some_entries(user_items, hidden)[users]


def normalized(user_items: Matrix) -> Matrix:
    """Return the interactions divided by the roots of both degrees, sums of weights, as float32."""
    weights = user_items.data / max(1.0, user_items.data.max(initial=0.0))
    weights = np.maximum(weights, np.finfo(np.float64).tiny)  # of which a degree is not 0
    owners = np.repeat(np.arange(user_items.shape[0]), np.diff(user_items.indptr))
    of_users = np.bincount(owners, weights, user_items.shape[0])
    of_items = np.bincount(user_items.indices, weights, user_items.shape[1])
    values = weights / np.sqrt(of_users[owners]) / np.sqrt(of_items[user_items.indices])
    return sparse.csr_array(
        (values.astype(np.float32), user_items.indices, user_items.indptr), user_items.shape
    )
