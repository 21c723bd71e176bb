"""Tiled matrix products on a CUDA device.

Each entry of the product is passed to a function at once, and is not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from samplesoft._cuda import SIMULATED, cuda, kernel
from samplesoft.kernels.lanes_cuda import for_device

_Finish = Callable[..., None]  # such as `feature_maps.fourier.write_cos_sin`
# tiles of the simulator are small, as its threads are slow
_SIDE = 2 if SIMULATED else 16  # threads along a side of a tile; a power of 2
_ROWS_EACH = 2 if SIMULATED else 4  # rows of a thread
_COLUMNS_EACH = 2 if SIMULATED else 8  # columns of a thread
_ROWS = _SIDE * _ROWS_EACH  # rows of a tile
_COLUMNS = _SIDE * _COLUMNS_EACH  # columns of a tile
_DEPTH = 2 if SIMULATED else 16  # inner dimension of both tiles in shared memory
_PADDED = _ROWS + 1  # lanes that write a column use different banks
_THREADS = _SIDE * _SIDE


def multiply(finish: _Finish, X: Any, columns: Any, out: Any, parameters: tuple[Any, ...]) -> None:
    """Call ``finish(out, i, j, x_i . y_j, parameters)`` for rows of `X` (N, d), columns (d, D).

    `finish` is a CPU function that writes to `out`.
    """
    tiles = -(-X.shape[0] // _ROWS) * -(-columns.shape[1] // _COLUMNS)
    _multiply_kernel(finish)[tiles, _THREADS](X, columns, out, parameters)


@cache
def _multiply_kernel(function: _Finish) -> Any:
    finish = for_device(function)

    def product(x: Any, y: Any, out: Any, parameters: Any) -> None:
        left = cuda.shared.array((_DEPTH, _PADDED), x.dtype)
        right = cuda.shared.array((_DEPTH, _COLUMNS), x.dtype)
        sums = cuda.local.array((_ROWS_EACH, _COLUMNS_EACH), x.dtype)
        num, depth = x.shape
        zero = x.dtype.type(0)
        columns = y.shape[1]
        thread = cuda.threadIdx.x
        row_tiles = -(-num // _ROWS)
        # `and` shows the compiler that these are not negative, so that indices need no wrapping
        row = (thread // _SIDE) & (_SIDE - 1)
        column = thread & (_SIDE - 1)
        first_row = cuda.blockIdx.x % row_tiles * _ROWS
        first_column = cuda.blockIdx.x // row_tiles * _COLUMNS
        j = first_column + thread % _COLUMNS  # the column that this thread loads
        for r in range(_ROWS_EACH):
            for c in range(_COLUMNS_EACH):
                sums[r, c] = zero
        for start in range(0, depth, _DEPTH):
            for number in range(thread, _ROWS * _DEPTH, cuda.blockDim.x):
                k = number % _DEPTH
                i = number // _DEPTH
                inside = first_row + i < num and start + k < depth
                left[k, i] = x[first_row + i, start + k] if inside else zero
            for number in range(thread, _COLUMNS * _DEPTH, cuda.blockDim.x):
                k = number // _COLUMNS
                inside = j < columns and start + k < depth
                right[k, thread % _COLUMNS] = y[start + k, j] if inside else zero
            cuda.syncthreads()  # both tiles are loaded
            for k in range(_DEPTH):
                for r in range(_ROWS_EACH):
                    for c in range(_COLUMNS_EACH):
                        sums[r, c] += left[k, row + r * _SIDE] * right[k, column + c * _SIDE]
            cuda.syncthreads()
        for r in range(_ROWS_EACH):
            for c in range(_COLUMNS_EACH):
                i = first_row + row + r * _SIDE
                j = first_column + column + c * _SIDE
                if i < num and j < columns:
                    finish(out, i, j, sums[r, c], parameters)

    product.__name__ = f"multiply_{function.__name__}"
    return kernel(product)
