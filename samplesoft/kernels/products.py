"""Matrix products for which BLAS uses one thread, and inner products of a query with eight rows.

A loop compiled by Numba sums the products of one row in a vector register, and then adds up the
entries of the register, which takes as long as a short product. `products` sums eight rows in eight
registers, and adds up their entries together.
"""

from __future__ import annotations

from functools import partial
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import COMPILES, njit_bare

if COMPILES:
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    _cgutils: Any = cgutils

Real = NDArray[Any]  # float32 or float64
_EIGHT = 8
# Largest number of multiplications in a matrix product for which OpenBLAS uses one thread, on a CPU
# with AVX-512. On other CPUs the limit is a quarter of this.
MAX_SINGLE_THREADED_WORK = 1_000_000
# smallest number of multiplications for which BLAS threads save more time than they cost
_MIN_THREADED_WORK = 1 << 25


def product(a: Real, b: Real, out: Any = None) -> Any:
    """Return ``a @ b``, computed in blocks for which BLAS uses one thread, unless it is very large.

    BLAS threads busy-wait for each other: while another process uses a core, a product that takes
    0.1 ms on one thread takes 10 ms on two. The result is written to `out` if it is not None.
    """
    height, depth = a.shape
    width = b.shape[1]
    work = height * depth * width

    if work >= _MIN_THREADED_WORK:
        return np.matmul(a, b, out=out)
    if b.flags.f_contiguous:  # a transposed matrix, for which BLAS uses threads at smaller sizes
        b = np.ascontiguousarray(b)

    if work <= MAX_SINGLE_THREADED_WORK:
        return np.matmul(a, b, out=out)

    result = np.empty((height, width), a.dtype) if out is None else out
    columns = min(width, max(_EIGHT, isqrt(MAX_SINGLE_THREADED_WORK // depth)))
    rows = max(1, MAX_SINGLE_THREADED_WORK // (depth * columns))

    for i in range(0, height, rows):
        for j in range(0, width, columns):
            block = result[i : i + rows, j : j + columns]
            np.matmul(a[i : i + rows], b[:, j : j + columns], out=block)

    return result


def round_up_to_8(num_rows: int) -> int:
    """Return `num_rows` rounded up to a multiple of 8.

    `products` writes this number of values for `num_rows` rows.
    """
    return -(-num_rows // _EIGHT) * _EIGHT


@njit_bare
def products(
    matrix: Real, start: int, stop: int, queries: Real, b: int, c: int, out: Real, row: int
) -> None:
    """Write the inner products of rows [start, stop) of a matrix with row b of `queries` to `out`.

    They are written to ``out[row, :stop - start]``, in the dtype of `out`. Up to 7 further entries
    are overwritten, because eight rows are processed at a time. If c >= 0, the products with row c
    of `queries` are written to the next row of `out`, and the matrix is read only once. Queries
    longer than the rows of the matrix are truncated.
    """
    whole = matrix.shape[1] // _EIGHT * _EIGHT
    for i in range(start, stop, _EIGHT):
        if c < 0:
            _products_with_one_query(matrix, i, stop, queries, b, b, out, row, i - start)
        else:
            _products_with_two_queries(matrix, i, stop, queries, b, c, out, row, i - start)

    # add the products of the last features, fewer than eight
    for f in range(whole, matrix.shape[1]):
        for i in range(start, stop):
            out[row, i - start] += matrix[i, f] * queries[b, f]
            if c >= 0:
                out[row + 1, i - start] += matrix[i, f] * queries[c, f]


def _plain_products_of_eight(
    matrix: Real, i: int, stop: int, queries: Real, b: int, c: int, out: Real, row: int, column: int
) -> None:
    """Write products of rows [i, i + 8) with query b to ``out[row, column : column + 8]``.

    For rows from `stop` on, the products of row ``stop - 1`` are written. If the number of features
    is not a multiple of 8, the caller adds the products of the last ones. If c differs from b, the
    products with query c are written to the next row of `out`.
    """
    rows = matrix[np.minimum(np.arange(i, i + _EIGHT), stop - 1)]
    whole = rows.shape[1] // _EIGHT * _EIGHT
    out[row, column : column + _EIGHT] = rows[:, :whole] @ queries[b, :whole]
    if c != b:
        out[row + 1, column : column + _EIGHT] = rows[:, :whole] @ queries[c, :whole]


def _simd_intrinsic(num_queries: int) -> Any:
    """Return a Numba intrinsic that computes `_plain_products_of_eight` with vector instructions.

    It computes products with the query b if `num_queries` is 1, and with b and c if it is 2.
    """
    return intrinsic(
        lambda _, matrix, i, stop, queries, b, c, out, row, column: (
            types.void(matrix, i, stop, queries, b, c, out, row, column),
            partial(_generate_simd_code, num_queries),
        )
    )


def _generate_simd_code(
    num_queries: int, context: Any, builder: Any, signature: Any, values: Any
) -> Any:
    """Generate the LLVM code of `_simd_intrinsic` for 1 or 2 queries."""
    kinds = signature.args
    word = context.get_value_type(types.intp)
    vector = ir.VectorType(context.get_value_type(kinds[0].dtype), _EIGHT)
    matrix, i, stop, queries, b, c, out, row, column = (
        context.make_array(kind)(context, builder, value)
        if isinstance(kind, types.Array)
        else context.cast(builder, value, kind, types.intp)
        for kind, value in zip(kinds, values, strict=True)
    )

    def pointer_to_eight(kind: Any, array: Any, *indices: Any) -> Any:
        # Return the pointer to eight entries, which are adjacent because rows are C-contiguous.
        pointer = _cgutils.get_item_pointer(context, builder, kind, array, indices)
        kind_of_eight = ir.VectorType(context.get_value_type(kind.dtype), _EIGHT)
        return builder.bitcast(pointer, kind_of_eight.as_pointer())

    def integer_constant(value: int) -> Any:
        return ir.Constant(word, value)

    def shuffle_mask(indices: list[int]) -> Any:
        return ir.Constant(ir.VectorType(ir.IntType(32), _EIGHT), indices)

    align = kinds[0].dtype.bitwidth // 8
    last_row = builder.sub(stop, integer_constant(1))
    next_rows = [builder.add(i, integer_constant(r)) for r in range(_EIGHT)]
    rows = [builder.select(builder.icmp_signed("<", r, last_row), r, last_row) for r in next_rows]
    zeros = ir.Constant(vector, [0.0] * _EIGHT)
    sums = [[_cgutils.alloca_once_value(builder, zeros) for _ in rows] for _ in range(num_queries)]

    whole = builder.and_(_cgutils.unpack_tuple(builder, matrix.shape)[1], integer_constant(-_EIGHT))
    fused = ("contract",)  # allows LLVM to use fused multiply-add instructions
    with _cgutils.for_range_slice(
        builder, integer_constant(0), whole, integer_constant(_EIGHT), word
    ) as (f, _):
        xs = [
            builder.load(pointer_to_eight(kinds[3], queries, q, f), align=align)
            for q in (b, c)[:num_queries]
        ]
        for r, index in enumerate(rows):
            row_entries = builder.load(pointer_to_eight(kinds[0], matrix, index, f), align=align)
            for x, totals in zip(xs, sums, strict=True):
                product = builder.fmul(row_entries, x, flags=fused)
                builder.store(
                    builder.fadd(builder.load(totals[r]), product, flags=fused), totals[r]
                )

    for q, totals in enumerate(sums):
        partial_sums = [builder.load(total) for total in totals]
        # add adjacent entries of pairs of vectors, until one vector has the sums of the eight rows
        for halves in _PAIRWISE_SHUFFLES:
            partial_sums = [
                builder.fadd(*(builder.shuffle_vector(x, y, shuffle_mask(half)) for half in halves))
                for x, y in zip(partial_sums[::2], partial_sums[1::2], strict=True)
            ]

        target = pointer_to_eight(kinds[6], out, builder.add(row, integer_constant(q)), column)
        sum_type = target.type.pointee
        eight_sums = partial_sums[0]
        if sum_type != vector:
            eight_sums = builder.fpext(eight_sums, sum_type)
        builder.store(eight_sums, target, align=kinds[6].dtype.bitwidth // 8)

    return context.get_dummy_value()


# Shuffles of two vectors of 8 entries, whose entries are numbered from 0 to 15. The first pair of
# shuffles selects the even and the odd entries of each four, and is used in two rounds. The second
# pair selects the lower and the upper four entries of both vectors, in the last round.
_EVEN_AND_ODD_IN_FOURS = [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]
_LOW_AND_HIGH_FOURS = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
_PAIRWISE_SHUFFLES = _EVEN_AND_ODD_IN_FOURS, _EVEN_AND_ODD_IN_FOURS, _LOW_AND_HIGH_FOURS
_products_with_one_query: Any = _plain_products_of_eight
_products_with_two_queries: Any = _plain_products_of_eight
if COMPILES:
    _products_with_one_query = _simd_intrinsic(1)
    _products_with_two_queries = _simd_intrinsic(2)
