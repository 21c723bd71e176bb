"""K-means of rows on all threads, with centers moved by a sample of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._jit import chunks, thread_each
from samplesoft._random import uniform_block
from samplesoft._validation import IntArray
from samplesoft.feature_maps.base import squared_norms
from samplesoft.kernels.clusters.kmeans import move_centers, nearest
from samplesoft.samplers.draw import Rows

_ROUNDS = 8  # of Lloyd's algorithm
_SAMPLE = 64  # rows for each center that centers are moved by
_PART = 4096  # rows in a task of a thread


def require_distances(largest: float, dtype: np.dtype[Any]) -> None:
    """Raise ValueError if squared distances of class vectors up to `largest` might be infinite."""
    limit = float(np.finfo(dtype).max) ** 0.5
    if not largest < limit:
        raise ValueError(
            f"`class_embeddings` must be less than {limit:.2g} in size for squared distances in "
            f"{dtype}, got {largest:.3g}; scale the vectors down, or use float64."
        )


def k_means(rows: Rows, num: int, key: np.uint64) -> IntArray:
    """Return to which of `num` centers each row (k, d) is nearest, by Lloyd's algorithm."""
    chosen = np.argsort(uniform_block(key, 1, len(rows))[0], kind="stable")
    sample = rows[chosen[: _SAMPLE * num]]
    centers = sample[:num].copy()
    for _ in range(_ROUNDS):
        move_centers(sample, _nearest(sample, centers), centers)
    return _nearest(rows, centers)


def _nearest(rows: Rows, centers: Rows) -> IntArray:
    halves = 0.5 * squared_norms(centers.astype(np.float64))
    labels = np.empty(len(rows), np.int64)
    thread_each(
        lambda part: nearest(rows[part], centers, halves, labels[part]), chunks(len(rows), _PART)
    )
    return labels
