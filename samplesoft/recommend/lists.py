"""Lists of the best items."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import IntArray
from samplesoft.metrics.best_classes import best_classes
from samplesoft.samplers.base import Rows


def best_items(
    users: Rows, items: Rows, number: int, leave_out: Any = None, absent: IntArray | None = None
) -> tuple[NDArray[np.int32], Rows]:
    """Return the best items (B, N) of user vectors (B, d), and their scores.

    Without those in `leave_out`, a CSR matrix (B, items), and without `absent` items (k,) for all.
    Where fewer are left, a list ends with ids of -1 and scores of -inf.
    """
    nowhere = None
    if absent is not None:
        nowhere = np.zeros(len(items), bool)
        nowhere[absent] = True
    ids, scores = best_classes(users, items, number, leave_out=leave_out, absent=nowhere)
    return ids.astype(np.int32), scores
