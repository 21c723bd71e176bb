"""What is told of cells: which classes they hold, and how spread out those are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import IntArray
from samplesoft.samplers.base import Rows


def classes_of_cells(
    order: NDArray[Any], sizes: IntArray, levels: IntArray
) -> list[list[IntArray]]:
    """Return the classes of each cell, level by level, for classes (n,) in order of the leaves."""
    edges = [np.cumsum(sizes[a:b])[:-1] for a, b in pairwise(levels)]
    return [np.split(order.astype(np.int64), each) for each in edges]


def mean_variance(leaves: Rows, sizes: IntArray) -> float:
    """Return the mean squared distance of a class vector to the mean of its leaf, of (L, 2 d)."""
    variances = leaves[:, leaves.shape[1] // 2 :].sum(axis=1, dtype=np.float64)
    return float(sizes @ variances / sizes.sum())
