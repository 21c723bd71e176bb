"""Frequencies on a CUDA device, where each product becomes a feature before it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samplesoft._cuda import to_device
from samplesoft._validation import FloatArray
from samplesoft.kernels import hadamard_cuda, product_cuda

_TYPES = [np.dtype(t) for t in (np.float32, np.float64)]


class CudaDense:
    """The twin of `HostDense`."""

    def __init__(self, matrix: FloatArray) -> None:
        self._columns = {t: to_device(matrix.T.astype(t)[None]) for t in _TYPES}

    def project(
        self, finish: Callable[..., None], X: Any, out: Any, parameters: tuple[Any, ...]
    ) -> None:
        """Call ``finish(out, i, j, scale * w_j . x_i, parameters)`` for all rows, in tiles."""
        product_cuda.multiply(finish, X, self._columns[X.dtype], out, parameters)


class CudaStructured:
    """The twin of `HostStructured`."""

    def __init__(self, signs: FloatArray, num: int) -> None:
        self._num = num
        self._signs = {t: to_device(signs.astype(t)) for t in _TYPES}

    def project(
        self, finish: Callable[..., None], X: Any, out: Any, parameters: tuple[Any, ...]
    ) -> None:
        """Call ``finish(out, i, j, scale * w_j . x_i, parameters)``, in shared memory."""
        hadamard_cuda.project(finish, X, self._signs[X.dtype], self._num, out, parameters)
