"""A problem of four classes for losses with a log-sum u for each example, over all their draws."""

import numpy as np

from oracles.loss_cases import LABEL, SCORES, dense, full_softmax
from oracles.naive_losses import every_draw
from samplesoft.samplers.base import Draw

N, M = 4, 2
O = SCORES[:N] + np.array([0.0, 0.0, 0.0, 2.0])  # noqa: E741  # a class is above the label
Q = {"uniform": np.full(N, 0.25), "skewed": np.array([0.05, 0.6, 0.3, 0.05])}
OTHERS = np.arange(N) != LABEL
BEST = full_softmax(O)[0]


def all_draws(q, m=M, exclude=False):
    """Every draw, and its chance."""
    if exclude:
        q = np.where(OTHERS, q, 0.0) / q[OTHERS].sum()
    ids, chances = map(np.array, zip(*every_draw(q, m), strict=True))
    return Draw(ids, np.log(q[ids])), chances


def of_log_sums(loss, draw, weights, u, o=O):
    """Value, gradient in the scores, that in u, and u as it was computed with."""
    size = len(draw.ids)
    value, cache = loss.forward(
        np.ones((size, 1)), o[:, None], np.full(size, LABEL), draw, log_sums=u, weights=weights
    )
    found = loss.backward(cache)
    return value, dense(found.dW, len(o))[:, 0], found.d_log_sums, cache.batch.log_sums
