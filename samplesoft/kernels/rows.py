"""Operations on rows of a matrix: inner products, norms, weighted sums, and prefetching.

Kernels for norms run on both devices, and `samplesoft.kernels.lanes_cuda` replaces inner products
on a GPU. Products of a query with many rows are in `samplesoft.kernels.products`.

Functions for inner products take matrices and indices of rows instead of rows: an array of a row
would have a reference count, whose updates by several threads cost more than a short product.
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from samplesoft._jit import COMPILES, njit, njit_bare, njit_sum
from samplesoft._validation import FloatArray
from samplesoft.kernels.lanes import (
    lane,
    max_of_lanes,
    num_lanes,
    num_workers,
    sum_of_lanes,
    worker,
)

if COMPILES:
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    _cgutils: Any = cgutils

Real = NDArray[Any]  # float32 or float64


@njit_sum
def row_dot(matrix: Real, i: int, queries: Real, b: int) -> float:
    """Return the inner product of row i of a matrix and row b of `queries`.

    It is summed in the dtype of the matrix. Queries may be longer than the rows.
    """
    total = matrix.dtype.type(0)
    for f in range(matrix.shape[1]):
        total += matrix[i, f] * queries[b, f]
    return float(total)


@njit_sum
def squared_distance(matrix: Real, i: int, others: Real, j: int) -> float:
    """Return the squared distance between row i of a matrix and row j of `others`.

    It is summed in the dtype of the matrix.
    """
    total = matrix.dtype.type(0)
    for f in range(matrix.shape[1]):
        difference = matrix[i, f] - others[j, f]
        total += difference * difference
    return float(total)


@njit_sum
def _scaled_squared_norm(row: Real, scale: float) -> float:
    """Return the squared norm of ``row * scale`` in float64, summed over the lanes of a warp."""
    total = 0.0
    # a loop over indices, which is eight times as fast as a loop over the entries
    for i in range(lane(), len(row), num_lanes()):
        total += (row[i] * scale) * (row[i] * scale)
    return sum_of_lanes(total)


@njit_bare
def divide_by_norms(rows: Real, norms: FloatArray) -> None:
    """Divide `rows` (N, d) by their norms in place, and write the norms to `norms` (N,).

    A row is not divided if its norm is 0 or not finite. Norms are computed in float64.
    """
    for r in range(worker(), len(rows), num_workers()):
        row = rows[r]
        square = _scaled_squared_norm(row, 1.0)
        norm = math.sqrt(square)

        # The square of a very large norm overflows, and of a very small norm loses digits. In these
        # cases scale the row by a power of 2, which is exact.
        if not 1e-290 < square < 1e290:
            max_abs = 0.0
            for i in range(lane(), len(row), num_lanes()):
                max_abs = max(max_abs, abs(row[i]))
            max_abs = max_of_lanes(max_abs)

            if max_abs > 0.0 and max_abs < math.inf:
                exponent = -math.floor(math.log2(max_abs))
                scale = 2.0 ** (0.5 * exponent)  # applied twice, because 2**1074 is infinite
                for i in range(lane(), len(row), num_lanes()):
                    row[i] = row[i] * scale * scale
                square = _scaled_squared_norm(row, 1.0)
                norm = math.sqrt(square) / scale / scale

        norms[r] = norm
        if norm > 0.0 and norm < math.inf:
            factor = 1.0 / math.sqrt(square)
            for i in range(lane(), len(row), num_lanes()):
                row[i] = row[i] * factor


@njit_sum
def _row_inner_product(rows: Real, others: Real, r: int) -> float:
    """Return the inner product of row r of two matrices, summed over the lanes of a warp."""
    total = 0.0
    for i in range(lane(), rows.shape[1], num_lanes()):
        total += rows[r, i] * others[r, i]
    return sum_of_lanes(total)


@njit
def unit_gradient(d_unit: Real, unit: Real, norms: FloatArray) -> None:
    """Replace gradients with respect to normalised rows by gradients with respect to the rows.

    For a row x with norm |x|, ``u = x / |x|``, and gradient d in u, the gradient in x is
    ``(d - u (u . d)) / |x|``. `unit` (N, d) are the normalised rows u, `norms` (N,) the norms |x|,
    and `d_unit` (N, d) the gradients, which are changed in place. If |x| is 0, the result is 0.
    """
    for r in range(worker(), len(unit), num_workers()):
        # subtract the component along u, because u does not depend on the norm of x
        component = _row_inner_product(unit, d_unit, r)
        for i in range(lane(), unit.shape[1], num_lanes()):
            if norms[r] == 0.0:
                d_unit[r, i] = 0.0
            else:
                d_unit[r, i] = (d_unit[r, i] - component * unit[r, i]) / norms[r]


@njit
def squared_norms(rows: Real, norms: Real) -> None:
    """Write the squared norm of each of `rows` (N, d) to `norms` (N,)."""
    for i in range(worker(), len(rows), num_workers()):
        norms[i] = row_dot(rows, i, rows, i)


@njit
def largest_in_rows(rows: Real, largest: Real) -> None:
    """Write the largest absolute value in each of `rows` (N, d) to `largest` (N,)."""
    for i in range(worker(), len(rows), num_workers()):
        max_abs = abs(rows[i, 0])
        for f in range(lane(), rows.shape[1], num_lanes()):
            max_abs = max(max_abs, abs(rows[i, f]))
        largest[i] = max_of_lanes(max_abs)


_PREFETCH_ROWS = 4  # while row k of a sum is added, row k + _PREFETCH_ROWS is prefetched


# A loop instead of `into[:] = row`, because Numba takes two seconds to compile the error for
# unequal lengths.
@njit_bare
def copy_row(into: NDArray[Any], row: NDArray[Any]) -> None:
    """Copy `row` (K,) to `into` (K,)."""
    for i in range(len(row)):
        into[i] = row[i]


@njit_bare
def add_row(total: NDArray[Any], factor: float, row: NDArray[Any]) -> None:
    """Add ``factor * row[:K]`` to `total` (K,), computed in the dtype of `total`."""
    typed = total.dtype.type(factor)
    for i in range(len(total)):
        total[i] += typed * row[i]


@njit
def weighted_rows(
    offsets: NDArray[Any], rows: NDArray[Any], values: Real, matrix: Real, out: Real
) -> None:
    """Write weighted sums of rows of a matrix (N, d), one for each group, to `out` (G, d).

    ``out[g]`` is the sum of ``values[k] * matrix[rows[k]]`` over k from ``offsets[g]`` to
    ``offsets[g + 1] - 1``. `rows` (K,) are indices, `values` (K,) weights, and `offsets` (G + 1,).
    """
    for g in range(len(out)):
        total = out[g]
        total[:] = 0.0
        for k in range(offsets[g], offsets[g + 1]):
            if k + _PREFETCH_ROWS < offsets[g + 1]:
                prefetch_row(matrix, rows[k + _PREFETCH_ROWS])

            row = matrix[rows[k]]
            factor = values[k]
            for i in range(len(total)):
                total[i] += factor * row[i]


_CACHE_LINE_BYTES = 64
CACHE = 1 << 23  # bytes of the largest array that stays in the cache, so that it needs no prefetch


def _prefetch_signature_and_code(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Return the signature and code generator of an intrinsic that prefetches an array entry.

    The entry is ``array[row, column]``. The code is LLVM's prefetch instruction.
    """
    signature = types.void(array, row, column)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        indices = [
            context.cast(builder, value, type_, types.intp)
            for value, type_ in zip(arguments[1:], signature.args[1:], strict=True)
        ]
        array_value = context.make_array(kind)(context, builder, arguments[0])
        pointer = _cgutils.get_item_pointer(context, builder, kind, array_value, indices)

        byte = ir.IntType(8).as_pointer()
        word = ir.IntType(32)
        function = _cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, word, word, word]),
            "llvm.prefetch.p0i8",
        )

        to_read, into_level_2, data = (ir.Constant(word, value) for value in (0, 2, 1))
        builder.call(function, [builder.bitcast(pointer, byte), to_read, into_level_2, data])
        return context.get_dummy_value()

    return signature, generate


# without compilation there is nothing to prefetch
_prefetch: Any = intrinsic(_prefetch_signature_and_code) if COMPILES else lambda *_: None


@njit_bare
def prefetch_row(array: NDArray[Any], row: int) -> None:
    """Load a row of a matrix into the cache, without waiting for it."""
    prefetch(array, row, 0, array.shape[1])


@njit_bare
def prefetch(array: NDArray[Any], row: int, start: int, stop: int) -> None:
    """Load columns [start, stop) of a row of a matrix into the cache, without waiting for them."""
    for column in range(start, stop, _CACHE_LINE_BYTES // array.itemsize):
        _prefetch(array, row, column)
