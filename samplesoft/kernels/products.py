"""Products: of matrices on one thread, and of queries with rows of a matrix, eight at a time.

Numba's loops sum up one row after another, and to add up the numbers of a vector register costs
as much as a short product. Here eight rows have a register each, and are added up together.
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
# Multiplications: up to so many BLAS works alone (OpenBLAS on AVX-512, on others a quarter), and of
# more than the others its threads are worth a wait.
ALONE = 1_000_000
_MANY = 1 << 25


def product(a: Real, b: Real, out: Any = None) -> Any:
    """Return the product of two matrices; of small ones in pieces that BLAS computes alone.

    Its threads wait for each other: where something else has a core, a product of a tenth of a
    millisecond takes ten with two threads.
    """
    height, depth = a.shape
    width = b.shape[1]
    work = height * depth * width
    if work >= _MANY:
        return np.matmul(a, b, out=out)
    if b.flags.f_contiguous:  # the transpose of rows, for which it takes threads sooner
        b = np.ascontiguousarray(b)
    if work <= ALONE:
        return np.matmul(a, b, out=out)
    result = np.empty((height, width), a.dtype) if out is None else out
    columns = min(width, max(_EIGHT, isqrt(ALONE // depth)))
    rows = max(1, ALONE // (depth * columns))
    for i in range(0, height, rows):
        for j in range(0, width, columns):
            piece = result[i : i + rows, j : j + columns]
            np.matmul(a[i : i + rows], b[:, j : j + columns], out=piece)
    return result


def whole_eights(num: int) -> int:
    """Return how many numbers `products` writes for `num` rows, at most."""
    return -(-num // _EIGHT) * _EIGHT


@njit_bare
def products(
    matrix: Real, first: int, last: int, queries: Real, b: int, c: int, out: Real, row: int
) -> None:
    """Write the inner products of rows [first, last) with as much of query b as they are long.

    They go to a row of `out`, which is written up to a whole eight, in its type; and those with
    query c, unless that is below 0, to the next row, for half of the reading.
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
    """Write ``matrix[i:i + 8] @ queries[b]``, but for features after a whole eight, to `out`.

    Rows after the last are the last; those of query c, if it is another, go to the next row.
    """
    rows = matrix[np.minimum(np.arange(i, i + _EIGHT), last - 1)]
    whole = rows.shape[1] // _EIGHT * _EIGHT
    out[row, at : at + _EIGHT] = rows[:, :whole] @ queries[b, :whole]
    if c != b:
        out[row + 1, at : at + _EIGHT] = rows[:, :whole] @ queries[c, :whole]


def _vectors(num: int) -> Any:
    """Return what types and generates `_plain` for as many queries: b, or b and c."""
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
        # rows are C-contiguous, so that eight numbers stand side by side
        place = _cgutils.get_item_pointer(context, builder, kind, array, indices)
        kind_of_eight = ir.VectorType(context.get_value_type(kind.dtype), _EIGHT)
        return builder.bitcast(place, kind_of_eight.as_pointer())

    def number(value: int) -> Any:
        return ir.Constant(word, value)

    def mask(places: list[int]) -> Any:
        return ir.Constant(ir.VectorType(ir.IntType(32), _EIGHT), places)

    align = kinds[0].dtype.bitwidth // 8
    end = builder.sub(last, number(1))
    nexts = [builder.add(i, number(r)) for r in range(_EIGHT)]
    rows = [builder.select(builder.icmp_signed("<", r, end), r, end) for r in nexts]
    zeros = ir.Constant(vector, [0.0] * _EIGHT)
    sums = [[_cgutils.alloca_once_value(builder, zeros) for _ in rows] for _ in range(num)]
    whole = builder.and_(_cgutils.unpack_tuple(builder, matrix.shape)[1], number(-_EIGHT))
    fused = ("contract",)  # a product and a sum are one instruction, where there is one
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
        found = [builder.load(total) for total in totals]
        for halves in _HALVES:  # which are added: a number of each vector is left, in their order
            found = [
                builder.fadd(*(builder.shuffle_vector(x, y, mask(half)) for half in halves))
                for x, y in zip(found[::2], found[1::2], strict=True)
            ]
        target = eight(kinds[6], out, builder.add(row, number(q)), at)
        sum_type = target.type.pointee
        wide = found[0] if sum_type == vector else builder.fpext(found[0], sum_type)
        builder.store(wide, target, align=kinds[6].dtype.bitwidth // 8)
    return context.get_dummy_value()


# of two vectors: even and odd numbers, twice in fours, and then the fours of each
_IN_FOURS = [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]
_FOURS = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
_HALVES = _IN_FOURS, _IN_FOURS, _FOURS
_of_one, _of_two = map(_vectors, (1, 2)) if COMPILES else (_plain, _plain)
