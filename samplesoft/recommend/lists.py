"""Lists of the best items."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplesoft._validation import as_ids
from samplesoft.metrics.best_classes import best_classes
from samplesoft.samplers.base import Rows


def best_items(
    users: Rows,
    items: Rows,
    number: int,
    leave_out: Any = None,
    absent: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.int32], Rows]:
    """Return the best items (B, N) of user vectors (B, d), and their scores.

    Without those in `leave_out`, a CSR matrix (B, items), and for all users those where `absent`
    (items,) is true. Where fewer are left, a list ends with ids of -1 and scores of -inf.
    """
    ids, scores = best_classes(users, items, number, leave_out=leave_out, absent=absent)
    return ids.astype(np.int32), scores


def absent_items(
    num_items: int, filter_items: ArrayLike | None, items: ArrayLike | None
) -> NDArray[np.bool_] | None:
    """Return which items (num_items,) are in no list."""
    if filter_items is None and items is None:
        return None
    absent = np.zeros(num_items, bool)
    if items is not None:
        absent[:] = True
        absent[as_ids("items", items, num_items, of="items")] = False
    if filter_items is not None:
        absent[as_ids("filter_items", filter_items, num_items, of="items")] = True
    return absent
