"""Vectors of users and items, as they are scored by their products."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from samplesoft._jit import chunks
from samplesoft._memory import require_bytes
from samplesoft._validation import IntArray
from samplesoft.losses.vectors import unit_rows
from samplesoft.models.linear import Linear
from samplesoft.samplers.base import Rows
from samplesoft.training.linear_epochs import unit_norm

_USERS = 4096  # at a time


def user_vectors(embedding: Linear, histories: Any) -> Rows:
    """Return vectors of norm 1 (B, d) of users with `histories`, a CSR matrix (B, items).

    A history is divided by its norm, then multiplied by the embedding of its items; that of no
    items is the intercept.
    """
    found: Rows = np.empty((histories.shape[0], len(embedding.parameters["intercept"])), np.float32)
    inputs = unit_norm(histories)
    for part in chunks(len(found), _USERS):
        found[part] = unit_rows("user_items", embedding.forward(inputs[part])[0])[0]
    return found


def propagated(items: Rows, users: Rows, graph: sparse.csr_array, weight: float) -> Rows:
    """Return item vectors C + weight N'H: each has the vectors of its users added.

    For `items` C (items, d), `users` H (users, d), and the normalised `graph` N (users, items).
    """
    if weight == 0.0:
        return items
    found: Rows = items + np.float32(weight) * (graph.T @ users)
    return found


def with_users(users: Rows, embedding: Linear, ids: IntArray) -> Rows:
    """Return a copy of user vectors (B, d) with a row for each of `ids`, new ones of no items."""
    number = max(len(users), int(ids.max(initial=-1)) + 1)
    require_bytes(
        f"vectors of {number:,} users, up to the largest of `userids`,",
        number * users[:1].nbytes,
        "number users from 0 without gaps",
    )
    of_none = user_vectors(embedding, sparse.csr_array((1, len(embedding.parameters["weights"]))))
    found: Rows = np.concatenate([users, of_none.repeat(number - len(users), axis=0)])
    return found
