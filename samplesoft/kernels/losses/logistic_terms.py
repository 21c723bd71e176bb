"""Logistic regression of the label against each draw: losses and their derivatives."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.losses.logit_rows import weigh
from samplesoft.kernels.math.logarithm import log1p_to
from samplesoft.kernels.math.weights import total


@njit
def logistic_terms(logits: FloatArray, losses: FloatArray) -> None:
    """Write ``softplus(-logits[0]) + sum(softplus(logits[1:]))``, and turn rows into its gradient.

    Logits (P, 1 + m) have the label's in column 0; losses (P,) are written.
    """
    small, large = np.empty(logits.shape[1]), np.empty(logits.shape[1])
    for b in range(len(logits)):
        row = logits[b]
        row[0] = -row[0]
        for k in range(len(row)):
            small[k] = -abs(row[k])
            large[k] = max(row[k], 0.0)
        weigh(small)
        for k in range(len(row)):
            row[k] = (1.0 if row[k] >= 0.0 else small[k]) / (1.0 + small[k])
        log1p_to(small)
        losses[b] = total(large) + total(small)
        row[0] = -row[0]
