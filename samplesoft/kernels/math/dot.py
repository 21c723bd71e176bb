"""The inner products that kernels take of rows.

Matrices and the numbers of their rows, for a row that is passed on is an array with a count of its
references, which threads change in turn: dearer than a short product.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from samplesoft._jit import njit_sum

Real = NDArray[Any]  # float32 or float64


@njit_sum
def dot(x: Real, y: Real) -> float:
    """Return the inner product of two vectors, summed in the type of the first."""
    total = x.dtype.type(0)
    for i in range(len(y)):
        total += x[i] * y[i]
    return float(total)


@njit_sum
def row_dot(matrix: Real, i: int, queries: Real, b: int) -> float:
    """Return `dot` of row i of a matrix and row b of `queries`."""
    total = matrix.dtype.type(0)
    for f in range(matrix.shape[1]):
        total += matrix[i, f] * queries[b, f]
    return float(total)


@njit_sum
def products(matrix: Real, first: int, last: int, queries: Real, b: int, out: Real) -> None:
    """Write the inner products of rows [first, last) with as much of query b as they are long.

    They go to row 0 of `out`. Four rows at a time, for which the query is read once.
    """
    dim = matrix.shape[1]
    zero = matrix.dtype.type(0)
    whole = first + (last - first) // 4 * 4
    for i in range(first, whole, 4):
        s0 = s1 = s2 = s3 = zero
        for f in range(dim):
            x = queries[b, f]
            s0 += matrix[i, f] * x
            s1 += matrix[i + 1, f] * x
            s2 += matrix[i + 2, f] * x
            s3 += matrix[i + 3, f] * x
        at = i - first
        out[0, at], out[0, at + 1], out[0, at + 2], out[0, at + 3] = s0, s1, s2, s3
    for i in range(whole, last):
        s0 = zero
        for f in range(dim):
            s0 += matrix[i, f] * queries[b, f]
        out[0, i - first] = s0


@njit_sum
def pair_products(
    matrix: Real,
    first: int,
    last: int,
    queries: Real,
    b: int,
    c: int,
    out: Real,
) -> None:
    """Write what `products` does for query b, and in row 1 the same for query c.

    Half as much is read for a product as by one query after the other.
    """
    dim = matrix.shape[1]
    zero = matrix.dtype.type(0)
    whole = first + (last - first) // 4 * 4
    for i in range(first, whole, 4):
        s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = zero
        for f in range(dim):
            x, y = queries[b, f], queries[c, f]
            m0, m1, m2, m3 = matrix[i, f], matrix[i + 1, f], matrix[i + 2, f], matrix[i + 3, f]
            s0 += m0 * x
            s1 += m1 * x
            s2 += m2 * x
            s3 += m3 * x
            t0 += m0 * y
            t1 += m1 * y
            t2 += m2 * y
            t3 += m3 * y
        at = i - first
        out[0, at], out[0, at + 1], out[0, at + 2], out[0, at + 3] = s0, s1, s2, s3
        out[1, at], out[1, at + 1], out[1, at + 2], out[1, at + 3] = t0, t1, t2, t3
    for i in range(whole, last):
        s0 = t0 = zero
        for f in range(dim):
            s0 += matrix[i, f] * queries[b, f]
            t0 += matrix[i, f] * queries[c, f]
        out[0, i - first], out[1, i - first] = s0, t0
