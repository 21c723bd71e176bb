"""Tiled matrix products on a CUDA device.

The product matrix is not stored: each of its entries is passed to a function, which writes results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from samplesoft._cuda import SIMULATED, cuda, kernel
from samplesoft.kernels.lanes_cuda import compile_for_device

_WriteEntry = Callable[..., None]  # such as `feature_maps.fourier.write_cos_sin`
# A block of threads computes a tile of the product, from slices of both factors in shared memory.
# Tiles in the simulator are small, because its threads are slow.
_SIDE = 2 if SIMULATED else 16  # a power of 2; a block has `_SIDE` x `_SIDE` threads
# a thread computes `_ROWS_EACH` x `_COLUMNS_EACH` entries of a tile
_ROWS_EACH = 2 if SIMULATED else 4
_COLUMNS_EACH = 2 if SIMULATED else 8
_ROWS = _SIDE * _ROWS_EACH  # number of rows of a tile
_COLUMNS = _SIDE * _COLUMNS_EACH  # number of columns of a tile
_DEPTH = 2 if SIMULATED else 16  # inner dimension of the slices in shared memory
# Number of columns of `left`, an array in shared memory. It is one more than `_ROWS`, so that lanes
# that write to the same column use different memory banks.
_PADDED = _ROWS + 1
_THREADS = _SIDE * _SIDE  # threads of a block


def multiply(
    write_entry: _WriteEntry, X: Any, columns: Any, out: Any, parameters: tuple[Any, ...]
) -> None:
    """Call ``write_entry(out, i, j, value, parameters)`` for each entry of ``X @ columns``.

    `X` is (N, d), and `columns` is (d, D). The CPU function `write_entry` is compiled for the
    device. It computes results from `value`, entry (i, j) of the product, and writes them to `out`.
    """
    tiles = -(-X.shape[0] // _ROWS) * -(-columns.shape[1] // _COLUMNS)
    _multiply_kernel(write_entry)[tiles, _THREADS](X, columns, out, parameters)


@cache
def _multiply_kernel(function: _WriteEntry) -> Any:
    """Return the CUDA kernel of `multiply` that calls `function` for each entry."""
    write_entry = compile_for_device(function)

    def multiply_tiles(x: Any, y: Any, out: Any, parameters: Any) -> None:
        left = cuda.shared.array((_DEPTH, _PADDED), x.dtype)
        right = cuda.shared.array((_DEPTH, _COLUMNS), x.dtype)
        sums = cuda.local.array((_ROWS_EACH, _COLUMNS_EACH), x.dtype)

        num_rows, depth = x.shape
        num_columns = y.shape[1]
        zero = x.dtype.type(0)

        thread = cuda.threadIdx.x
        row_tiles = -(-num_rows // _ROWS)
        # `&` shows the compiler that indices are not negative, so that it adds no wrap-around
        row = (thread // _SIDE) & (_SIDE - 1)
        column = thread & (_SIDE - 1)
        first_row = cuda.blockIdx.x % row_tiles * _ROWS
        first_column = cuda.blockIdx.x // row_tiles * _COLUMNS
        j = first_column + thread % _COLUMNS  # the column that this thread loads

        for r in range(_ROWS_EACH):
            for c in range(_COLUMNS_EACH):
                sums[r, c] = zero

        for start in range(0, depth, _DEPTH):
            for entry in range(thread, _ROWS * _DEPTH, cuda.blockDim.x):
                k = entry % _DEPTH
                i = entry // _DEPTH
                is_inside = first_row + i < num_rows and start + k < depth
                left[k, i] = x[first_row + i, start + k] if is_inside else zero

            for entry in range(thread, _COLUMNS * _DEPTH, cuda.blockDim.x):
                k = entry // _COLUMNS
                is_inside = j < num_columns and start + k < depth
                right[k, thread % _COLUMNS] = y[start + k, j] if is_inside else zero
            cuda.syncthreads()  # wait until both slices are loaded

            for k in range(_DEPTH):
                for r in range(_ROWS_EACH):
                    for c in range(_COLUMNS_EACH):
                        sums[r, c] += left[k, row + r * _SIDE] * right[k, column + c * _SIDE]
            cuda.syncthreads()

        for r in range(_ROWS_EACH):
            for c in range(_COLUMNS_EACH):
                i = first_row + row + r * _SIDE
                j = first_column + column + c * _SIDE
                if i < num_rows and j < num_columns:
                    write_entry(out, i, j, sums[r, c], parameters)

    multiply_tiles.__name__ = f"multiply_{function.__name__}"
    return kernel(multiply_tiles)
