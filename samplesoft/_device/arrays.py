"""The interface of rows that are held by other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import FloatArray, IntArray


class DistantRows:
    """Rows (n, d) held by other processes, which compute results: see `models.sharded.ShardedRows`.

    Attributes
    ----------
    shape : tuple of int
        n and d.
    dtype : dtype
        float32 or float64.
    take, scores, gradients, exponentials, best : callable
        Operations that backends, losses and `search` use.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    take: Callable[..., NDArray[Any]]
    scores: Callable[..., tuple[NDArray[Any], NDArray[Any]]]
    gradients: Callable[..., NDArray[Any]]
    exponentials: Callable[..., tuple[NDArray[Any], FloatArray]]
    best: Callable[..., tuple[IntArray, NDArray[Any]]]
