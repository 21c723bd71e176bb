"""Lists of the best items, some users at a time: never a matrix of all scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, thread_each
from samplesoft._validation import IntArray
from samplesoft.kernels.recommend.best_of_rows import best_of_rows
from samplesoft.samplers.base import Rows

_SCORES = 1 << 22  # at a time, for each thread


def best_items(
    users: Rows, items: Rows, number: int, leave_out: Any = None, absent: IntArray | None = None
) -> tuple[NDArray[np.int32], Rows]:
    """Return the best items (B, N) of user vectors (B, d), and their scores.

    Without those in `leave_out`, a CSR matrix (B, items), and without `absent` items (k,) for all.
    Where fewer are left, a list ends with ids of -1 and scores of -inf.
    """
    ids = np.empty((len(users), number), np.int64)
    best = np.empty((len(users), number), users.dtype)

    def work(part: slice) -> None:
        scores = users[part] @ items.T
        if leave_out is not None:
            scores[leave_out[part].nonzero()] = -np.inf
        if absent is not None:
            scores[:, absent] = -np.inf
        best_of_rows(scores, ids[part], best[part])

    thread_each(work, chunks(len(users), max(1, min(256, _SCORES // len(items)))))
    return ids.astype(np.int32), best
