"""Iterated importance resampling with recycling: a surrogate of the loss, and its derivatives."""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.losses.multilevel_terms import weigh_block
from samplesoft.kernels.losses.softmax_terms import log_ratio
from samplesoft.kernels.weights import total


@njit
def br_snis_terms(
    logits: FloatArray, losses: FloatArray, uniforms: FloatArray, burn_in: int
) -> None:
    """Write the surrogate of each row (P, 1 + m), and turn rows into its gradient.

    Column 0 is the label's logit. The first draw is the first state; the others are new candidates
    of the k rounds, of nearly the same number each. In a round S is of the state and of its new
    candidates, and the next state is one of these by ``uniforms[:, round]`` (P, k), in proportion
    to the label's weight plus its own. The surrogate is the mean of ``log S``, less the label's
    logit, over the rounds after `burn_in`.
    """
    rounds, m = uniforms.shape[1], logits.shape[1] - 1
    slopes = np.empty(1 + m)
    for p in range(len(logits)):
        row, label, state = logits[p], logits[p, 0], 1
        slopes[:] = 0.0
        losses[p] = 0.0
        for c in range(rounds):
            first, last = 2 + (m - 1) * c // rounds, 2 + (m - 1) * (c + 1) // rounds
            size = 1 + last - first
            weights = np.empty(size)
            weights[0], weights[1:] = row[state], row[first:last]
            top = weigh_block(weights, label)
            # logits are those of m draws, and here are fewer
            own, scale = math.exp(label - top), m / size
            mass = scale * total(weights)
            if c >= burn_in:
                share = scale / ((own + mass) * (rounds - burn_in))
                losses[p] += log_ratio(own, mass, top - label) / (rounds - burn_in)
                slopes[state] += share * weights[0]
                for i in range(1, size):
                    slopes[first + i - 1] += share * weights[i]
            target, below = uniforms[p, c] * (own + mass), 0.0
            for i in range(size):
                below += own / size + scale * weights[i]
                if below > target:
                    if i > 0:
                        state = first + i - 1
                    break
        row[1:] = slopes[1:]
        row[0] = -total(slopes[1:])
