"""The interface of matrices whose rows are held by other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import FloatArray, IntArray


class RemoteRows:
    """A matrix (n, d) whose rows are held by other processes, which also compute with them.

    It is implemented by `samplesoft.distributed.rows.ShardedRows`.

    Attributes
    ----------
    shape : tuple of int
        n and d.
    dtype : dtype
        float32 or float64.
    take, scores, gradients, exponentials, best : callable
        Operations on the rows that backends, losses and `samplesoft.search` call.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    take: Callable[..., NDArray[Any]]
    scores: Callable[..., tuple[NDArray[Any], NDArray[Any]]]
    gradients: Callable[..., NDArray[Any]]
    exponentials: Callable[..., tuple[NDArray[Any], FloatArray]]
    best: Callable[..., tuple[IntArray, NDArray[Any]]]
