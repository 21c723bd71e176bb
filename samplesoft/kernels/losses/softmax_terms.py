"""Softmax over corrected logits: losses and their derivatives."""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.losses.logit_rows import weigh
from samplesoft.kernels.weights import greatest, total


@njit
def softmax_terms(logits: FloatArray, losses: FloatArray, first: int) -> None:
    """Write ``logsumexp(logits[first:]) - logits[0]`` of each row, and turn rows into its gradient.

    Column 0 of the logits (P, 1 + m) is the label's, and finite; in the sum if `first` is 0, not 1.
    """
    for b in range(len(logits)):
        row = logits[b]
        label = row[0]
        if first == 1:
            row[0] = -np.inf
        top = greatest(row)
        losses[b] = top - label
        for k in range(len(row)):
            row[k] -= top
    weigh(logits.reshape(-1))  # long rows leave few numbers that do not fill a vector
    for b in range(len(logits)):
        row = logits[b]
        own, drawn = row[0], total(row[1:])
        losses[b] = log_ratio(own, drawn, losses[b])
        scale = 1.0 / (own + drawn)
        for k in range(1, len(row)):
            row[k] *= scale
        row[0] = -drawn / (own + drawn)


@njit
def log_ratio(own: float, drawn: float, above: float) -> float:
    """Return ``log((own + drawn) / e)`` where e is ``exp(-above)``, and `own` if that is not 0."""
    if own > drawn:  # a small loss keeps its digits
        return math.log1p(drawn / own)
    return above + math.log(own + drawn)
