"""Products of two matrices by tiles, with something done to each number before it is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from samplesoft._cuda import SIMULATED, cuda, device_function, kernel

_SIDE = 2 if SIMULATED else 16  # threads along a side of a tile
_EACH = 2 if SIMULATED else 4  # numbers along it that a thread computes
_TILE = _SIDE * _EACH
_DEPTH = 2 if SIMULATED else 16  # columns of both matrices that a block holds at a time

Finish = Callable[[Any, int, int, Any, Any], None]


def multiply(finish: Finish, x: Any, y: Any, out: Any, parameters: Any) -> None:
    """Call ``finish(out, i, j, product, parameters)`` for each row and each column.

    Parameters
    ----------
    finish : callable
        A device function that writes to `out`.
    x : device array, shape (N, d)
        Rows.
    y : device array, shape (L, d, size)
        Columns of the same type, in L buckets of `size`, one after another.
    out : device array
        What `finish` writes to.
    parameters : tuple
        What else it needs.
    """
    grid = (-(-x.shape[0] // _TILE), -(-y.shape[0] * y.shape[2] // _TILE))
    _kernel(finish)[grid, _SIDE * _SIDE](x, y, out, parameters)


@device_function
def write(out: Any, i: int, j: int, product: Any, parameters: Any) -> None:
    """Write the product itself."""
    out[i, j] = product


@cache
def _kernel(finish: Finish) -> Any:
    def product(x: Any, y: Any, out: Any, parameters: Any) -> None:
        left = cuda.shared.array((_DEPTH, _TILE), x.dtype)
        right = cuda.shared.array((_DEPTH, _TILE), x.dtype)
        sums = cuda.local.array((_EACH, _EACH), x.dtype)
        thread = cuda.threadIdx.x
        row, column = thread // _SIDE, thread % _SIDE
        first_row, first_column = cuda.blockIdx.x * _TILE, cuda.blockIdx.y * _TILE
        zero, size = x.dtype.type(0), y.shape[2]
        columns = y.shape[0] * size
        for r in range(_EACH):
            for c in range(_EACH):
                sums[r, c] = zero
        for start in range(0, x.shape[1], _DEPTH):
            for place in range(thread, _TILE * _DEPTH, _SIDE * _SIDE):
                k, i = place % _DEPTH, place // _DEPTH
                inside = first_row + i < x.shape[0] and start + k < x.shape[1]
                left[k, i] = x[first_row + i, start + k] if inside else zero
                k, i = place // _TILE, place % _TILE
                j = first_column + i
                inside = j < columns and start + k < x.shape[1]
                right[k, i] = y[j // size, start + k, j % size] if inside else zero
            cuda.syncthreads()
            for k in range(_DEPTH):
                for r in range(_EACH):
                    for c in range(_EACH):
                        sums[r, c] += left[k, row + r * _SIDE] * right[k, column + c * _SIDE]
            cuda.syncthreads()
        for r in range(_EACH):
            for c in range(_EACH):
                i, j = first_row + row + r * _SIDE, first_column + column + c * _SIDE
                if i < x.shape[0] and j < columns:
                    finish(out, i, j, sums[r, c], parameters)

    product.__name__ = f"multiply_{finish.__name__}"
    return kernel(product)
