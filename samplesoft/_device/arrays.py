"""Rows that others keep: what stands for an array where no memory here holds one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import FloatArray, IntArray


class DistantRows:
    """Rows (n, d) that others keep, who are asked for results: see `distributed.rows.ShardedRows`.

    Attributes
    ----------
    shape : tuple of int
        n and d.
    dtype : dtype
        float32 or float64.
    take, scores, gradients, exponentials, best : callable
        What arrays of rows and losses, lists of the best classes included, ask for.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    take: Callable[..., NDArray[Any]]
    scores: Callable[..., tuple[NDArray[Any], NDArray[Any]]]
    gradients: Callable[..., NDArray[Any]]
    exponentials: Callable[..., tuple[NDArray[Any], FloatArray]]
    best: Callable[..., tuple[IntArray, NDArray[Any]]]
