"""A weighted log-sum-exp over the draws against the label's logit: losses and derivatives."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.losses.logit_rows import weigh
from samplesoft.kernels.weights import greatest, total


@njit
def bilateral_terms(logits: FloatArray, losses: FloatArray, weight: float) -> None:
    """Write ``weight * logsumexp(logits[1:]) - logits[0]`` of each row; it becomes its gradient.

    A row of logits (P, 1 + m) without any draw of weight, all -inf, has loss and gradient 0.
    """
    for b in range(len(logits)):
        row = logits[b]
        top = greatest(row[1:])
        losses[b] = 0.0 if top == -np.inf else weight * top - row[0]
        row[0] = 0.0 if top == -np.inf else -1.0
        for k in range(1, len(row)):
            row[k] = row[k] if top == -np.inf else row[k] - top
    for b in range(len(logits)):
        row = logits[b, 1:]
        weigh(row)
        mass = total(row)
        if mass > 0.0:
            losses[b] += weight * np.log(mass)
            for k in range(len(row)):
                row[k] *= weight / mass
