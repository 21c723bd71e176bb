"""Logistic regression of the label against each draw: losses and their derivatives."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.exponential import log1p_to
from samplesoft.kernels.losses.logit_rows import weigh
from samplesoft.kernels.weights import total

_BUFFER = 1 << 10


@njit
def logistic_terms(logits: FloatArray, losses: FloatArray) -> None:
    """Write ``softplus(-logits[0]) + sum(softplus(logits[1:]))``, and turn rows into its gradient.

    Logits (P, 1 + m) have the label's in column 0; losses (P,) are written.
    """
    width = logits.shape[1]
    step = max(1, _BUFFER // width)  # rows at a time, for vector instructions on short ones too
    small, large = np.empty(step * width), np.empty(step * width)
    for first in range(0, len(logits), step):
        rows = logits[first : first + step]
        rows[:, 0] = -rows[:, 0]
        every = rows.reshape(-1)
        size = len(every)
        for k in range(size):
            small[k] = -abs(every[k])
            large[k] = max(every[k], 0.0)
        weigh(small[:size])
        for k in range(size):
            every[k] = (1.0 if every[k] >= 0.0 else small[k]) / (1.0 + small[k])
        log1p_to(small[:size])
        rows[:, 0] = -rows[:, 0]
        for b in range(len(rows)):
            place = slice(b * width, (b + 1) * width)
            losses[first + b] = total(large[place]) + total(small[place])
