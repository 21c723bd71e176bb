"""K-means of rows on all threads, with centers moved by a sample of them: Lloyd's algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, thread_each
from samplesoft._random import uniform_block
from samplesoft._validation import IntArray
from samplesoft.kernels.rows import squared_distance

Rows = NDArray[Any]  # float32 or float64
_ROUNDS = 8  # of Lloyd's algorithm
_ROWS_PER_CENTER = 64  # rows for each center that centers are moved by
_TASK_ROWS = 4096  # rows in a task of a thread
_FAR_WIDTHS = 16.0  # widths of a coordinate from 0, from where it is moved there


def require_distances(largest: float, dtype: np.dtype[Any]) -> None:
    """Raise ValueError if squared distances of class vectors up to `largest` might be infinite."""
    limit = float(np.finfo(dtype).max) ** 0.5
    if not largest < limit:
        raise ValueError(
            f"`class_embeddings` must be less than {limit:.2g} in size for squared distances in "
            f"{dtype}, got {largest:.3g}; scale the vectors down, or use float64."
        )


def k_means(rows: Rows, num: int, key: np.uint64) -> IntArray:
    """Return to which of `num` centers each row (k, d) is nearest, by Lloyd's algorithm.

    What all rows have in common, such as a large vector that was added to each, changes nothing.
    """
    rows = _near_zero(rows)
    chosen = np.argsort(uniform_block(key, 1, len(rows))[0], kind="stable")
    sample = rows[chosen[: _ROWS_PER_CENTER * num]]  # more rows hardly move a center
    centers = sample[:num].copy()
    for _ in range(_ROUNDS):
        _move_centers(sample, _nearest(sample, centers), centers)
    return _nearest(rows, centers)


def _near_zero(rows: Rows) -> Rows:
    """Return rows, each less the same number in coordinates that are far from 0 in all of them."""
    least = rows.min(axis=0)
    greatest = rows.max(axis=0)
    middle = least + (greatest - least) / 2
    # a mean of rows is rounded to their type; nothing else is, for numbers so alike have an exact
    # difference
    far = np.abs(middle) > _FAR_WIDTHS * (greatest - least)
    near: Rows = rows - np.where(far, middle, 0).astype(rows.dtype) if far.any() else rows
    return near


def _nearest(rows: Rows, centers: Rows) -> IntArray:
    labels = np.empty(len(rows), np.int64)
    thread_each(
        lambda part: _write_nearest(rows[part], centers, labels[part]),
        chunks(len(rows), _TASK_ROWS),
    )
    return labels


@njit
def _write_nearest(rows: Rows, centers: Rows, labels: IntArray) -> None:
    """Write for each row the nearest center."""
    # |x - c|^2 is |x|^2 - 2 x . c + |c|^2, a matrix product and two norms. With all vectors far
    # from 0 these terms are large and nearly cancel: at a distance of 1e4 none of the seven digits
    # of float32 is left of distances about 1. Differences are as exact as the vectors.
    for i in range(len(rows)):
        nearest = 0
        least = np.inf
        for c in range(len(centers)):
            distance = squared_distance(rows, i, centers, c)
            if distance < least:
                nearest = c
                least = distance
        labels[i] = nearest


@njit
def _move_centers(rows: Rows, labels: IntArray, centers: Rows) -> None:
    """Move each center to the mean of its rows; one without rows stays."""
    sums = np.zeros(centers.shape)  # float64, whatever the rows are
    counts = np.zeros(len(centers), np.int64)
    for i in range(len(rows)):
        counts[labels[i]] += 1
        total = sums[labels[i]]
        for f in range(len(total)):
            total[f] += rows[i, f]
    for c in range(len(centers)):
        if counts[c] > 0:
            for f in range(centers.shape[1]):
                centers[c, f] = sums[c, f] / counts[c]
