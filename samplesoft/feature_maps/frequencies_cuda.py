"""Random Fourier and positive features on a CUDA device.

Each product with a frequency becomes a feature before it is written: it is never stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from samplesoft._cuda import (
    SIMULATED,
    cuda,
    device_function,
    kernel,
    to_device,
)
from samplesoft._device.rows import largest_in_rows, squared_norms
from samplesoft._validation import FloatArray
from samplesoft.kernels.sincos import cos_sin

_TYPES = [np.dtype(t) for t in (np.float32, np.float64)]
_Finish = Callable[..., None]  # write_fourier or write_positive, called for each product
# of dense products, by tiles; those of the simulator are small, as its threads are slow
_SIDE = 2 if SIMULATED else 16  # threads along a side of a tile; a power of two
_ROWS_EACH = 2 if SIMULATED else 4  # that a thread computes
_COLUMNS_EACH = 2 if SIMULATED else 8
_ROWS, _COLUMNS = _SIDE * _ROWS_EACH, _SIDE * _COLUMNS_EACH  # of a tile
_DEPTH = 2 if SIMULATED else 16  # columns of both matrices that a block holds at a time
_PADDED = _ROWS + 1  # lanes that write a column are in banks of their own
_THREADS = _SIDE * _SIDE


class CudaDense:
    """The twin of `HostDense`, which also writes the features of the maps that hold it."""

    def __init__(self, matrix: FloatArray) -> None:
        self._columns = {t: to_device(matrix.T.astype(t)) for t in _TYPES}

    def _project(self, finish: _Finish, X: Any, out: Any, parameters: tuple[Any, ...]) -> None:
        """Call ``finish(out, i, j, scale * w_j . x_i, parameters)`` for all rows, in tiles.

        `finish` is a device function that writes to `out`.
        """
        columns = self._columns[X.dtype]
        tiles = -(-X.shape[0] // _ROWS) * -(-columns.shape[1] // _COLUMNS)
        _dense_kernel(finish)[tiles, _THREADS](X, columns, out, parameters)

    def write_fourier(self, X: Any, scale: float, terms: tuple[Any, ...], out: Any) -> None:
        """Write the features of `X` (N, d) by a `RandomFourierFeatures` into `out` (N, F)."""
        self._project(write_fourier, X, out, (X.dtype.type(scale), *terms))

    def write_positive(self, phi: Any, X: Any, out: Any) -> None:
        """Write the features of `X` (N, d) by a `PositiveRandomFeatures` into `out` (N, F)."""
        number = X.dtype.type
        squares = squared_norms(X)
        shift = number(0.5 * phi.tau), number(0.5 * np.log(phi.num_features))
        self._project(write_positive, X, out, (squares, *shift))
        phi.require_in_range(largest_in_rows(out))


@device_function
def write_fourier(out: Any, i: int, j: int, turns: Any, parameters: Any) -> None:
    """Write a cosine and, in the right half of the row, a sine."""
    scale, half, nearest, cosine, sine = parameters
    c, s = cos_sin(turns, scale, half, nearest, cosine, sine)
    out[i, j] = c
    out[i, out.shape[1] // 2 + j] = s


@device_function
def write_positive(out: Any, i: int, j: int, projection: Any, parameters: Any) -> None:
    """Write an exponential, shifted by half the squared norm of its row and a constant."""
    squares, factor, constant = parameters
    out[i, j] = math.exp(projection - (factor * squares[i] + constant))


@cache
def _dense_kernel(finish: _Finish) -> Any:
    def product(x: Any, y: Any, out: Any, parameters: Any) -> None:
        left = cuda.shared.array((_DEPTH, _PADDED), x.dtype)
        right = cuda.shared.array((_DEPTH, _COLUMNS), x.dtype)
        sums = cuda.local.array((_ROWS_EACH, _COLUMNS_EACH), x.dtype)
        num, depth = x.shape
        zero, columns = x.dtype.type(0), y.shape[1]
        thread, row_tiles = cuda.threadIdx.x, -(-num // _ROWS)
        # that these are at least 0, as an `and` shows the compiler, spares it wrapped indices
        row, column = (thread // _SIDE) & (_SIDE - 1), thread & (_SIDE - 1)
        first_row = cuda.blockIdx.x % row_tiles * _ROWS
        first_column = cuda.blockIdx.x // row_tiles * _COLUMNS
        j = first_column + thread % _COLUMNS  # the column that this thread reads
        for r in range(_ROWS_EACH):
            for c in range(_COLUMNS_EACH):
                sums[r, c] = zero
        for start in range(0, depth, _DEPTH):
            for number in range(thread, _ROWS * _DEPTH, cuda.blockDim.x):
                k, i = number % _DEPTH, number // _DEPTH
                inside = first_row + i < num and start + k < depth
                left[k, i] = x[first_row + i, start + k] if inside else zero
            for number in range(thread, _COLUMNS * _DEPTH, cuda.blockDim.x):
                k = number // _COLUMNS
                inside = j < columns and start + k < depth
                right[k, thread % _COLUMNS] = y[start + k, j] if inside else zero
            cuda.syncthreads()  # all have been read
            for k in range(_DEPTH):
                for r in range(_ROWS_EACH):
                    for c in range(_COLUMNS_EACH):
                        sums[r, c] += left[k, row + r * _SIDE] * right[k, column + c * _SIDE]
            cuda.syncthreads()
        for r in range(_ROWS_EACH):
            for c in range(_COLUMNS_EACH):
                i, j = first_row + row + r * _SIDE, first_column + column + c * _SIDE
                if i < num and j < columns:
                    finish(out, i, j, sums[r, c], parameters)

    product.__name__ = f"multiply_{finish.__name__}"
    return kernel(product)
