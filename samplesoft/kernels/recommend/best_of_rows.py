"""The best classes of each row of scores, in order."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import IntArray
from samplesoft.kernels.losses.candidate_scores import Floats


@njit
def best_of_rows(scores: Floats, ids: IntArray, best: Floats) -> None:
    """Write the k best columns (B, k) of `scores` (B, n), the best first, and their scores.

    Of equal scores the first column is better. Scores of -inf are left out: where a row has fewer
    than k others, its list ends with -1 and -inf.
    """
    k = ids.shape[1]
    ids[:] = -1
    best[:] = -np.inf
    for b in range(len(scores)):
        row, places, values = scores[b], ids[b], best[b]
        for j in range(len(row)):
            if row[j] > values[k - 1]:
                i = k - 1
                while i > 0 and values[i - 1] < row[j]:
                    values[i], places[i] = values[i - 1], places[i - 1]
                    i -= 1
                values[i], places[i] = row[j], j
