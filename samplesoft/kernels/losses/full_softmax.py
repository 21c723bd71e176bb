"""Passes over a block of scores, classes by examples: softmax sums and probabilities.

Scores stay in the cache, and all loops over examples are vector instructions. Threads do not pay
here: those of the product of matrices before are still at their posts, and would be in the way.
"""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels.exponential import exp_to
from samplesoft.kernels.losses.candidate_scores import Floats

_RUN = 32  # classes that are added up in the type of the scores before they go to float64


@njit
def finish(scores: Floats, offsets: Floats, absolute: bool) -> None:
    """Add ``offsets[j]`` to the scores (r, B) of class j, and take absolute values if `absolute`.

    Offsets, biases of the classes, have shape (r,), or (0,) where there are none.
    """
    if len(offsets) > 0:
        for j in range(len(scores)):
            row = scores[j]
            for b in range(len(row)):
                row[b] += offsets[j]
    if absolute:
        for j in range(len(scores)):
            row = scores[j]
            for b in range(len(row)):
                row[b] = abs(row[b])


@njit
def add_exponentials(
    scores: Floats, excluded: IntArray, examples: IntArray, top: Floats, total: FloatArray
) -> None:
    """Add a block of classes to running sums of ``exp(score - top)``.

    Scores (r, B) are overwritten; that of class ``excluded[i]`` of the block stays out of the sum
    of example ``examples[i]``. The greatest scores `top` (B,), -inf before the first block,
    and the sums `total` (B,) are updated.
    """
    batch = len(top)
    for i in range(len(excluded)):
        scores[excluded[i], examples[i]] = -np.inf
    shift = top.copy()
    for j in range(len(scores)):
        row = scores[j]
        for b in range(batch):
            top[b] = max(top[b], row[b])
    for b in range(batch):
        before = np.float64(shift[b])
        shift[b] = top[b] if top[b] != -np.inf else 0.0  # no class yet but excluded ones
        total[b] *= np.exp(before - shift[b])
    run = np.empty_like(top)
    for begin in range(0, len(scores), _RUN):
        run[:] = 0.0
        for j in range(begin, min(begin + _RUN, len(scores))):
            row = scores[j]
            for b in range(batch):
                row[b] -= shift[b]
            exp_to(row, batch)
            for b in range(batch):
                run[b] += row[b]
        for b in range(batch):
            total[b] += run[b]


@njit
def probabilities(
    scores: Floats, offsets: Floats, absolute: bool, top: Floats, factor: Floats
) -> None:
    """Replace scores (r, B) by ``factor * exp(score - top)``, the derivatives of a log of a sum.

    `top` (B,) are greatest scores, `factor` (B,) weights divided by the sums of exponentials.
    Offsets and `absolute` are as in `finish`; with `absolute`, derivatives get the sign of the
    score.
    """
    batch, signed = len(top), factor.copy()
    for j in range(len(scores)):
        row = scores[j]
        if len(offsets) > 0:
            for b in range(batch):
                row[b] += offsets[j]
        if absolute:
            for b in range(batch):
                signed[b] = factor[b] * np.sign(row[b])
                row[b] = abs(row[b])
        for b in range(batch):
            row[b] -= top[b]
        exp_to(row, batch)
        for b in range(batch):
            row[b] *= signed[b]
