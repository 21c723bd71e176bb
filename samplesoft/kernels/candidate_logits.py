"""Scores turned into corrected logits, and the softmax over them."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.candidate_scores import Floats
from samplesoft.kernels.exponential import exp_to


@njit
def correct(
    scores: Floats, ids: IntArray, log_counts: FloatArray, labels: IntArray, logits: FloatArray
) -> int:
    """Subtract logarithms of expected counts from the scores of drawn classes.

    Parameters
    ----------
    scores : ndarray, shape (P, 1 + m)
        The label's in column 0.
    ids : ndarray of int64, shape (P, m) or (1, m)
        Drawn classes.
    log_counts : ndarray of float64, shape (P, m) or (1, m)
        Logarithms of the expected number of times that a draw contains each.
    labels : ndarray of int64, shape (P,)
        A draw of the label has no weight: its logit is -inf. Negative to keep such draws.
    logits : ndarray of float64, shape (P, 1 + m)
        Output; column 0 is the label's score.

    Returns
    -------
    int
        The first row with a draw of its label, or -1.
    """
    hit = -1
    for b in range(len(scores)):
        row = b if len(ids) > 1 else 0
        logits[b, 0] = scores[b, 0]
        for k in range(ids.shape[1]):
            if ids[row, k] == labels[b]:
                logits[b, k + 1] = -np.inf
                if hit < 0:
                    hit = b
            else:
                logits[b, k + 1] = scores[b, k + 1] - log_counts[row, k]
    return hit


@njit
def softmax_terms(logits: FloatArray, losses: FloatArray, first: int) -> None:
    """Write ``logsumexp(logits[first:]) - logits[0]`` of each row, and turn rows into its gradient.

    Parameters
    ----------
    logits : ndarray of float64, shape (P, 1 + m)
        Column 0 is finite; replaced by derivatives.
    losses : ndarray of float64, shape (P,)
        Output.
    first : int
        0 if the label takes part in the sum, 1 if not.
    """
    for b in range(len(logits)):
        row = logits[b]
        label = row[0]
        greatest = -np.inf
        for k in range(first, len(row)):
            greatest = max(greatest, row[k])
        for k in range(len(row)):
            row[k] -= greatest
        if first == 1:
            row[0] = -np.inf
        exp_to(row)
        rest = 0.0
        for k in range(1, len(row)):
            rest += row[k]
        own = row[0] if first == 0 else 0.0
        total = own + rest
        if first == 0 and own > 0.5 * total:  # a small loss keeps its digits
            losses[b] = np.log1p(rest / own)
        else:
            losses[b] = greatest - label + np.log(total)
        for k in range(len(row)):
            row[k] /= total
        row[0] = -rest / total if first == 0 else -1.0
