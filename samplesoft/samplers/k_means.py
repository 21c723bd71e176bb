"""K-means by Lloyd's algorithm on all threads, with centers fitted to a sample of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import chunks, njit, thread_for_each
from samplesoft._random import uniform_block
from samplesoft._validation import IntArray
from samplesoft.kernels.rows import squared_distance

Rows = NDArray[Any]  # float32 or float64
_NUM_ITERATIONS = 8  # iterations of Lloyd's algorithm
_SAMPLE_ROWS_PER_CENTER = 64  # rows in the sample / number of centers
_TASK_ROWS = 4096  # number of rows in one task of a thread
# largest ratio |middle of its values| / (range of its values) at which a coordinate is not centered
_MAX_OFFSET_RATIO = 16.0


def require_finite_distances(max_abs: float, dtype: np.dtype[Any]) -> None:
    """Raise ValueError if squared distances of rows with entries up to `max_abs` may overflow."""
    limit = float(np.finfo(dtype).max) ** 0.5
    if not max_abs < limit:
        raise ValueError(
            f"`class_embeddings` must be less than {limit:.2g} in size for squared distances in "
            f"{dtype}, got {max_abs:.3g}; scale the vectors down, or use float64."
        )


def k_means(rows: Rows, num_centers: int, key: np.uint64) -> IntArray:
    """Return the index (k,) of the nearest center of each row (k, d), by k-means.

    There are `num_centers` centers, which start at random rows that `key` selects. If the same
    vector is added to all rows, the result changes only by the rounding of the rows.
    """
    rows = _subtract_common_offset(rows)

    permutation = np.argsort(uniform_block(key, 1, len(rows))[0], kind="stable")
    # more rows in the sample would hardly move a center
    sample = rows[permutation[: _SAMPLE_ROWS_PER_CENTER * num_centers]]

    centers = sample[:num_centers].copy()
    for _ in range(_NUM_ITERATIONS):
        _move_centers_to_means(sample, _nearest_centers(sample, centers), centers)
    return _nearest_centers(rows, centers)


def _subtract_common_offset(rows: Rows) -> Rows:
    """Return rows (k, d), centered in those coordinates whose values are close, but far from 0."""
    low = rows.min(axis=0)
    high = rows.max(axis=0)
    middle = low + (high - low) / 2

    # The middle is rounded to the dtype of the rows. The subtraction is then exact, because all
    # values of the coordinate are close to the middle.
    is_far = np.abs(middle) > _MAX_OFFSET_RATIO * (high - low)
    centered: Rows = rows - np.where(is_far, middle, 0).astype(rows.dtype) if is_far.any() else rows
    return centered


def _nearest_centers(rows: Rows, centers: Rows) -> IntArray:
    """Return the index of the nearest center of each row (k, d), computed on all threads."""
    labels = np.empty(len(rows), np.int64)
    thread_for_each(
        lambda chunk: _write_nearest_centers(rows[chunk], centers, labels[chunk]),
        chunks(len(rows), _TASK_ROWS),
    )
    return labels


@njit
def _write_nearest_centers(rows: Rows, centers: Rows, labels: IntArray) -> None:
    """Write the index of the nearest center of each row (k, d) to `labels` (k,)."""
    # The expansion |x|^2 - 2 x . c + |c|^2 would be faster, as a matrix product. But if all vectors
    # are far from 0, its terms are large and nearly cancel: at a distance of 1e4 from 0, float32
    # has no correct digit of a distance of 1. Differences x - c are as exact as the vectors.

    for i in range(len(rows)):
        nearest = 0
        min_distance = np.inf
        for c in range(len(centers)):
            distance = squared_distance(rows, i, centers, c)
            if distance < min_distance:
                nearest = c
                min_distance = distance
        labels[i] = nearest


@njit
def _move_centers_to_means(rows: Rows, labels: IntArray, centers: Rows) -> None:
    """Move each center in place to the mean of the rows with its label; without rows, it stays."""
    sums = np.zeros(centers.shape)  # float64, whatever the dtype of the rows
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
