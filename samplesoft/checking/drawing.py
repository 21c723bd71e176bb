"""Draws for losses that make none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.checking.calls import call
from samplesoft.checking.problem import Problem

DRAWS = ("own", "given", "given-negatives")


def drawing(loss: Callable[..., Any], problem: Problem, exclude: bool) -> Callable[..., Any]:
    """Return ``loss(scores, ids, log_q, labels)`` as a loss that draws from the problem's q."""
    rows = np.arange(len(problem.labels))
    q = problem.q.copy()
    if exclude:
        q[rows, problem.labels] = 0.0
        q /= q.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        log_q = np.log(q)

    def drawn(
        class_embeddings: FloatArray,
        h: FloatArray,
        labels: IntArray,
        num_sampled: int,
        seed: int,
        biases: FloatArray | None = None,
    ) -> Any:
        scores = problem.tau * h @ class_embeddings.T + (0.0 if biases is None else biases)
        copies = len(h) // len(rows)
        ids = _ids(np.tile(q, (copies, 1)), num_sampled, np.random.default_rng(seed))
        given = scores, ids, np.tile(log_q, (copies, 1)), labels
        returned = call(loss, "scores, ids, log_q, labels", *given)
        if not isinstance(returned, tuple):
            return returned
        losses, slopes = returned
        return losses, problem.tau * np.asarray(slopes) @ class_embeddings

    return drawn


def _ids(q: FloatArray, num: int, rng: np.random.Generator) -> IntArray:
    """Return draws (B, num), each row by its probabilities q (B, n)."""
    starts = np.arange(len(q))[:, None]  # rows one after the other, each a unit apart
    ends = np.cumsum(q, axis=1)
    ends = np.minimum(ends / ends[:, -1:], 1.0) + starts
    places = np.searchsorted(ends.ravel(), rng.random((len(q), num)) + starts, side="right")
    ids: IntArray = places - q.shape[1] * starts
    return ids
