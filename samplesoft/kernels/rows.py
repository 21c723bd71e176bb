"""What kernels do with rows of a matrix: inner products, norms, weighted sums, and a prefetch.

Norms serve both devices, and inner products are replaced on a GPU: see `samplesoft.kernels.lanes`.
Products of a query with many rows are in `samplesoft.kernels.products`.

Inner products take matrices and the numbers of their rows, for a row that is passed on is an array
with a count of its references, which threads change in turn: dearer than a short product.
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
    """Return the product of row i of a matrix and row b of `queries`, summed in its type."""
    total = matrix.dtype.type(0)
    for f in range(matrix.shape[1]):
        total += matrix[i, f] * queries[b, f]
    return float(total)


@njit_sum
def squared_distance(matrix: Real, i: int, others: Real, j: int) -> float:
    """Return the squared distance of row i of a matrix from row j of another, in its type."""
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

    Norms are computed in float64, and after scaling where their squares leave its range.
    """
    for r in range(worker(), len(rows), num_workers()):
        row = rows[r]
        square = _scaled_square(row, 1.0)
        norm = math.sqrt(square)
        # squares that overflow or lose digits: scale by a power of 2, which is exact
        if not 1e-290 < square < 1e290:
            greatest = 0.0
            for i in range(lane(), len(row), num_lanes()):
                greatest = max(greatest, abs(row[i]))
            greatest = max_of_lanes(greatest)
            if greatest > 0.0 and greatest < math.inf:
                exponent = -math.floor(math.log2(greatest))
                scale = 2.0 ** (0.5 * exponent)  # in two steps, for 2**1074 is infinite
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
    """Turn `d_unit`, the derivative in ``x / |x|``, into that in x: ``(I - u u') d / |x|``.

    A row of zeros, whose norm is 0, has no derivative and gets zeros: it stays where it is.
    """
    for r in range(worker(), len(unit), num_workers()):
        # of u = x / |x|: what changes the length alone changes nothing
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
        size = abs(rows[i, 0])
        for f in range(lane(), rows.shape[1], num_lanes()):
            size = max(size, abs(rows[i, f]))
        largest[i] = max_of_lanes(size)


_ROWS_AHEAD = 4  # rows, so that a row is there when its turn comes


# Not `into[:] = row`: the message of its check of lengths takes two seconds to compile.
@njit_bare
def copy_row(into: NDArray[Any], row: NDArray[Any]) -> None:
    """Write the numbers (K,) of one row to another that is as long."""
    for i in range(len(row)):
        into[i] = row[i]


@njit_bare
def add_row(total: NDArray[Any], factor: float, row: NDArray[Any]) -> None:
    """Add a factor times the first numbers of a row to `total` (K,), in its type."""
    typed = total.dtype.type(factor)
    for i in range(len(total)):
        total[i] += typed * row[i]


@njit
def weighted_rows(
    starts: NDArray[Any], rows: NDArray[Any], values: Real, matrix: Real, out: Real
) -> None:
    """Write ``out[g]``, the sum of ``values[k] * matrix[rows[k]]`` over one group of k.

    Group g holds the k from ``starts[g]`` up to ``starts[g + 1]``; `rows` and `values` are (K,),
    the matrix (N, d) and `out` (groups, d).
    """
    for g in range(len(out)):
        total = out[g]
        total[:] = 0.0
        for k in range(starts[g], starts[g + 1]):
            if k + _ROWS_AHEAD < starts[g + 1]:
                prefetch_row(matrix, rows[k + _ROWS_AHEAD])
            row = matrix[rows[k]]
            factor = values[k]
            for i in range(len(total)):
                total[i] += factor * row[i]


_LINE_BYTES = 64  # bytes
CACHE = 1 << 23  # bytes of an array up to which there is nothing to gain


def _hint(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Type and generate a call of LLVM's prefetch for ``array[row, column]``."""
    signature = types.void(array, row, column)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        indices = [
            context.cast(builder, value, type_, types.intp)
            for value, type_ in zip(arguments[1:], signature.args[1:], strict=True)
        ]
        made = context.make_array(kind)(context, builder, arguments[0])
        place = _cgutils.get_item_pointer(context, builder, kind, made, indices)
        byte = ir.IntType(8).as_pointer()
        word = ir.IntType(32)
        function = _cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, word, word, word]),
            "llvm.prefetch.p0i8",
        )
        to_read, into_level_2, data = (ir.Constant(word, value) for value in (0, 2, 1))
        builder.call(function, [builder.bitcast(place, byte), to_read, into_level_2, data])
        return context.get_dummy_value()

    return signature, generate


# in plain Python a hint has nothing to hint at
_prefetch: Any = intrinsic(_hint) if COMPILES else lambda *_: None


@njit_bare
def prefetch_row(array: NDArray[Any], row: int) -> None:
    """Ask for a row of a matrix, one cache line after another."""
    prefetch(array, row, 0, array.shape[1])


@njit_bare
def prefetch(array: NDArray[Any], row: int, first: int, last: int) -> None:
    """Ask for some columns of a row of a matrix."""
    for column in range(first, last, _LINE_BYTES // array.itemsize):
        _prefetch(array, row, column)
