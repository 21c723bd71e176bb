"""Coupled chains on sets of draws: a surrogate of the loss, and its derivatives."""

from __future__ import annotations

import math

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray
from samplesoft.kernels.losses.multilevel_terms import weigh_block
from samplesoft.kernels.losses.softmax_terms import log_ratio
from samplesoft.kernels.weights import total


@njit
def coupled_terms(
    logits: FloatArray, losses: FloatArray, uniforms: FloatArray, apart: FloatArray
) -> None:
    """Write the surrogate of each row (P, 1 + T m), and turn rows into its gradient.

    Column 0 is the label's logit, then come T sets of m draws. `uniforms` (P, T - 1) decide on
    steps. `apart` (P,) becomes 1 where the chains have not met, and 0 where they have.

    One chain starts at set 0, and moves to set k where ``uniforms[k - 1] < S_k / S_0``. The other
    is a step behind: it starts at set 1, and sees the same sets and uniforms. It never has the
    greater S, so that it moves whenever the first one does; there they have met.
    """
    sets = uniforms.shape[1] + 1
    block = (logits.shape[1] - 1) // sets
    values, slopes, counts = np.empty(sets), np.empty(sets), np.empty(sets)
    for p in range(len(logits)):
        row = logits[p]
        label, loss, own_slope, behind = row[0], 0.0, 0.0, 1
        counts[:] = 0.0
        counts[0], apart[p] = 1.0, 1.0
        for k in range(sets):
            part = row[1 + k * block : 1 + (k + 1) * block]
            top = weigh_block(part, label)
            own, mass = math.exp(label - top), sets * total(part)
            values[k], slopes[k] = log_ratio(own, mass, top - label), sets / (own + mass)
            if k == 0 or apart[p] == 0.0:
                continue
            log_uniform = math.log(uniforms[p, k - 1])
            if not log_uniform >= values[k] - values[0]:  # so too where a score is not finite
                apart[p] = 0.0
                continue
            if log_uniform < values[k] - values[behind]:  # always at set 1, its start
                behind = k
            counts[0] += 1.0
            counts[behind] -= 1.0
        for k in range(sets):
            part = row[1 + k * block : 1 + (k + 1) * block]
            for i in range(block):
                part[i] *= counts[k] * slopes[k]
            if counts[k] != 0.0:
                loss += counts[k] * values[k]
                own_slope -= total(part)
        losses[p], row[0] = loss, own_slope
