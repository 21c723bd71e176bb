"""Operations on rows of a matrix: inner products, norms, weighted sums, and prefetching.

Norms run on both devices, and inner products are replaced on a GPU: see `samplesoft.kernels.lanes`.
Products of a query with many rows are in `samplesoft.kernels.products`.

Inner products take matrices and row indices. A row passed as an array would have a reference count,
whose updates by several threads cost more than a short product.
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
    """Return the product of row i of a matrix and row b of `queries`, summed in its dtype."""
    total = matrix.dtype.type(0)
    for f in range(matrix.shape[1]):
        total += matrix[i, f] * queries[b, f]
    return float(total)


@njit_sum
def squared_distance(matrix: Real, i: int, others: Real, j: int) -> float:
    """Return the squared distance between row i of a matrix and row j of another, in its dtype."""
    total = matrix.dtype.type(0)
    for f in range(matrix.shape[1]):
        difference = matrix[i, f] - others[j, f]
        total += difference * difference
    return float(total)


@njit_sum
def _scaled_square(row: Real, scale: float) -> float:
    total = 0.0
    # eight times as fast as a loop over the row itself
    for i in range(lane(), len(row), num_lanes()):
        total += (row[i] * scale) * (row[i] * scale)
    return sum_of_lanes(total)


@njit_bare
def divide_by_norms(rows: Real, norms: FloatArray) -> None:
    """Divide each of `rows` (N, d) by its norm, unless that is 0 or not finite.

    Norms are computed in float64, after scaling if their squares would overflow or underflow.
    """
    for r in range(worker(), len(rows), num_workers()):
        row = rows[r]
        square = _scaled_square(row, 1.0)
        norm = math.sqrt(square)
        # squares that overflow or lose digits: scale by a power of 2, which is exact
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
                square = _scaled_square(row, 1.0)
                norm = math.sqrt(square) / scale / scale
        norms[r] = norm
        if norm > 0.0 and norm < math.inf:
            factor = 1.0 / math.sqrt(square)
            for i in range(lane(), len(row), num_lanes()):
                row[i] = row[i] * factor


@njit_sum
def _inner(rows: Real, others: Real, r: int) -> float:
    total = 0.0
    for i in range(lane(), rows.shape[1], num_lanes()):
        total += rows[r, i] * others[r, i]
    return sum_of_lanes(total)


@njit
def unit_gradient(d_unit: Real, unit: Real, norms: FloatArray) -> None:
    """Replace the gradient in ``u = x / |x|``, `d_unit`, by that in x: ``(I - u u') d / |x|``.

    A row with norm 0 gets the gradient 0.
    """
    for r in range(worker(), len(unit), num_workers()):
        # changing the norm of x does not change u
        along = _inner(unit, d_unit, r)
        for i in range(lane(), unit.shape[1], num_lanes()):
            if norms[r] == 0.0:
                d_unit[r, i] = 0.0
            else:
                d_unit[r, i] = (d_unit[r, i] - along * unit[r, i]) / norms[r]


@njit
def squared_norms(rows: Real, norms: Real) -> None:
    """Write the squared norm of each row."""
    for i in range(worker(), len(rows), num_workers()):
        norms[i] = row_dot(rows, i, rows, i)


@njit
def largest_in_rows(rows: Real, largest: Real) -> None:
    """Write the largest absolute value in each row."""
    for i in range(worker(), len(rows), num_workers()):
        max_abs = abs(rows[i, 0])
        for f in range(lane(), rows.shape[1], num_lanes()):
            max_abs = max(max_abs, abs(rows[i, f]))
        largest[i] = max_of_lanes(max_abs)


_PREFETCH_ROWS = 4  # rows ahead, so that a row has arrived when it is used


# Not `into[:] = row`: the error message for unequal lengths takes two seconds to compile.
@njit_bare
def copy_row(into: NDArray[Any], row: NDArray[Any]) -> None:
    """Copy a row (K,) to another of the same length."""
    for i in range(len(row)):
        into[i] = row[i]


@njit_bare
def add_row(total: NDArray[Any], factor: float, row: NDArray[Any]) -> None:
    """Add a factor times the first K entries of a row to `total` (K,), in its dtype."""
    typed = total.dtype.type(factor)
    for i in range(len(total)):
        total[i] += typed * row[i]


@njit
def weighted_rows(
    offsets: NDArray[Any], rows: NDArray[Any], values: Real, matrix: Real, out: Real
) -> None:
    """Write ``out[g]``, the sum of ``values[k] * matrix[rows[k]]`` over one group of k.

    Group g is [``offsets[g]``, ``offsets[g + 1]``). `rows` and `values` are (K,), the matrix is (N,
    d) and `out` (groups, d).
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
CACHE = 1 << 23  # bytes of an array below which prefetching gains nothing


def _type_prefetch(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Return the signature and code generator of LLVM's prefetch of ``array[row, column]``."""
    signature = types.void(array, row, column)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        indices = [
            context.cast(builder, value, type_, types.intp)
            for value, type_ in zip(arguments[1:], signature.args[1:], strict=True)
        ]
        made = context.make_array(kind)(context, builder, arguments[0])
        pointer = _cgutils.get_item_pointer(context, builder, kind, made, indices)
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
_prefetch: Any = intrinsic(_type_prefetch) if COMPILES else lambda *_: None


@njit_bare
def prefetch_row(array: NDArray[Any], row: int) -> None:
    """Prefetch a row of a matrix, one cache line after another."""
    prefetch(array, row, 0, array.shape[1])


@njit_bare
def prefetch(array: NDArray[Any], row: int, first: int, last: int) -> None:
    """Prefetch columns [first, last) of a row of a matrix."""
    for column in range(first, last, _CACHE_LINE_BYTES // array.itemsize):
        _prefetch(array, row, column)
