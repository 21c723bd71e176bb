"""Matrix products on one thread, and inner products of queries with eight rows at a time.

Numba's loops sum one row after another, and the horizontal sum of a vector register costs as much
as a short product. Here eight rows have one register each, and are reduced together.
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
# In multiplications. Up to the first, BLAS uses one thread (OpenBLAS on AVX-512; a quarter of it on
# other CPUs). Above the second, its threads are worth their synchronisation.
MAX_SINGLE_THREADED_WORK = 1_000_000
_MIN_THREADED_WORK = 1 << 25


def product(a: Real, b: Real, out: Any = None) -> Any:
    """Return the product of two matrices, computed in blocks for which BLAS uses one thread.

    BLAS threads busy-wait for each other. If another process has a core, a product of a tenth of a
    millisecond takes ten milliseconds with two threads.
    """
    height, depth = a.shape
    width = b.shape[1]
    work = height * depth * width
    if work >= _MIN_THREADED_WORK:
        return np.matmul(a, b, out=out)
    if b.flags.f_contiguous:  # BLAS starts threads earlier for transposes
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


def round_up_to_8(num: int) -> int:
    """Return `num` rounded up to a multiple of 8, the number of values that `products` writes."""
    return -(-num // _EIGHT) * _EIGHT


@njit_bare
def products(
    matrix: Real, first: int, last: int, queries: Real, b: int, c: int, out: Real, row: int
) -> None:
    """Write the inner products of rows [first, last) with query b.

    A longer query is truncated to the length of rows. Products go to `row` of `out`, in its dtype,
    and are written up to a multiple of 8. Products with query c, unless c < 0, go to the next row;
    the rows are then read once for both.
    """
    whole = matrix.shape[1] // _EIGHT * _EIGHT
    for i in range(first, last, _EIGHT):
        if c < 0:
            _of_one(matrix, i, last, queries, b, b, out, row, i - first)
        else:
            _of_two(matrix, i, last, queries, b, c, out, row, i - first)
    for f in range(whole, matrix.shape[1]):
        for i in range(first, last):
            out[row, i - first] += matrix[i, f] * queries[b, f]
            if c >= 0:
                out[row + 1, i - first] += matrix[i, f] * queries[c, f]


def _plain(
    matrix: Real, i: int, last: int, queries: Real, b: int, c: int, out: Real, row: int, at: int
) -> None:
    """Write ``matrix[i:i + 8] @ queries[b]``, up to the last multiple of 8 features, to `out`.

    Rows after the last repeat the last. Products with query c, if it is not b, go to the next row.
    """
    rows = matrix[np.minimum(np.arange(i, i + _EIGHT), last - 1)]
    whole = rows.shape[1] // _EIGHT * _EIGHT
    out[row, at : at + _EIGHT] = rows[:, :whole] @ queries[b, :whole]
    if c != b:
        out[row + 1, at : at + _EIGHT] = rows[:, :whole] @ queries[c, :whole]


def _vectors(num: int) -> Any:
    """Return `_plain` with vector instructions, a Numba intrinsic, for query b, or b and c."""
    return intrinsic(
        lambda _, matrix, i, last, queries, b, c, out, row, at: (
            types.void(matrix, i, last, queries, b, c, out, row, at),
            partial(_generate, num),
        )
    )


def _generate(num: int, context: Any, builder: Any, signature: Any, values: Any) -> Any:
    kinds = signature.args
    word = context.get_value_type(types.intp)
    vector = ir.VectorType(context.get_value_type(kinds[0].dtype), _EIGHT)
    matrix, i, last, queries, b, c, out, row, at = (
        context.make_array(kind)(context, builder, value)
        if isinstance(kind, types.Array)
        else context.cast(builder, value, kind, types.intp)
        for kind, value in zip(kinds, values, strict=True)
    )

    def eight(kind: Any, array: Any, *indices: Any) -> Any:
        # rows are C-contiguous, so that eight entries are adjacent
        pointer = _cgutils.get_item_pointer(context, builder, kind, array, indices)
        kind_of_eight = ir.VectorType(context.get_value_type(kind.dtype), _EIGHT)
        return builder.bitcast(pointer, kind_of_eight.as_pointer())

    def number(value: int) -> Any:
        return ir.Constant(word, value)

    def mask(indices: list[int]) -> Any:
        return ir.Constant(ir.VectorType(ir.IntType(32), _EIGHT), indices)

    align = kinds[0].dtype.bitwidth // 8
    end = builder.sub(last, number(1))
    nexts = [builder.add(i, number(r)) for r in range(_EIGHT)]
    rows = [builder.select(builder.icmp_signed("<", r, end), r, end) for r in nexts]
    zeros = ir.Constant(vector, [0.0] * _EIGHT)
    sums = [[_cgutils.alloca_once_value(builder, zeros) for _ in rows] for _ in range(num)]
    whole = builder.and_(_cgutils.unpack_tuple(builder, matrix.shape)[1], number(-_EIGHT))
    fused = ("contract",)  # allows fused multiply-add
    with _cgutils.for_range_slice(builder, number(0), whole, number(_EIGHT), word) as (f, _):
        xs = [builder.load(eight(kinds[3], queries, q, f), align=align) for q in (b, c)[:num]]
        for r, index in enumerate(rows):
            numbers = builder.load(eight(kinds[0], matrix, index, f), align=align)
            for x, totals in zip(xs, sums, strict=True):
                product = builder.fmul(numbers, x, flags=fused)
                builder.store(
                    builder.fadd(builder.load(totals[r]), product, flags=fused), totals[r]
                )
    for q, totals in enumerate(sums):
        partial_sums = [builder.load(total) for total in totals]
        for halves in _HALVES:  # pairwise sums until each vector is one value, in order
            partial_sums = [
                builder.fadd(*(builder.shuffle_vector(x, y, mask(half)) for half in halves))
                for x, y in zip(partial_sums[::2], partial_sums[1::2], strict=True)
            ]
        target = eight(kinds[6], out, builder.add(row, number(q)), at)
        sum_type = target.type.pointee
        converted = (
            partial_sums[0] if sum_type == vector else builder.fpext(partial_sums[0], sum_type)
        )
        builder.store(converted, target, align=kinds[6].dtype.bitwidth // 8)
    return context.get_dummy_value()


# shuffles of two vectors: even and odd entries within fours, twice, then the two fours
_IN_FOURS = [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]
_FOURS = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
_HALVES = _IN_FOURS, _IN_FOURS, _FOURS
_of_one, _of_two = map(_vectors, (1, 2)) if COMPILES else (_plain, _plain)
