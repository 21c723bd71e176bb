"""Who comes to which cell: the draws of a batch in the order of the places they go to.

Contexts that meet in a cell of clusters, or in a leaf of a tree, then find its rows in the cache.
"""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import IntArray


@njit
def visits_of(at: IntArray, first: int, num: int) -> IntArray:
    """Return a row for each run of equal cells in a row of `at` (B, k).

    A row of the result is the context, and where the run begins and ends. Rows come in the order
    of the cells, which are `num` from `first` on.
    """
    # a counting sort: how many runs go to each cell, where those of a cell begin, then each run
    starts = np.zeros(num + 1, np.int64)
    for b in range(len(at)):
        for k in range(at.shape[1]):
            if k == 0 or at[b, k] != at[b, k - 1]:
                starts[at[b, k] - first + 1] += 1
    for cell in range(num):
        starts[cell + 1] += starts[cell]
    visits = np.empty((starts[num], 3), np.int64)
    for b in range(len(at)):
        begin = 0
        for k in range(1, at.shape[1] + 1):
            if k == at.shape[1] or at[b, k] != at[b, k - 1]:
                cell = at[b, begin] - first
                row = starts[cell]
                visits[row, 0] = b
                visits[row, 1] = begin
                visits[row, 2] = k
                starts[cell] += 1
                begin = k
    return visits
