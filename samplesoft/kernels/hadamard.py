"""Products with random signs and Walsh-Hadamard matrices, row by row in O(p log p)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._jit import njit

# Every pass has Pease's constant geometry: it reads contiguous parts of one buffer and
# interleaves their sums and differences in another, so that LLVM vectorises all of them alike.
# In place, the first passes would pair neighbours and stay scalar.


@njit
def _signed_pass(x: NDArray[Any], signs: NDArray[Any], y: NDArray[Any]) -> None:
    """Do two levels of butterflies on ``signs * x`` (p,), into `y` (p,)."""
    n = len(x) // 4
    a, b, c, d = x[:n], x[n : 2 * n], x[2 * n : 3 * n], x[3 * n :]
    e, f, g, h = signs[:n], signs[n : 2 * n], signs[2 * n : 3 * n], signs[3 * n :]
    for i in range(n):
        first, third = a[i] * e[i], c[i] * g[i]
        second, fourth = b[i] * f[i], d[i] * h[i]
        p, q = first + third, second + fourth
        r, s = first - third, second - fourth
        y[4 * i] = p + q
        y[4 * i + 1] = p - q
        y[4 * i + 2] = r + s
        y[4 * i + 3] = r - s


@njit
def _pass_of_two(x: NDArray[Any], y: NDArray[Any]) -> None:
    """Do two levels of butterflies on `x` (p,), into `y` (p,)."""
    n = len(x) // 4
    a, b, c, d = x[:n], x[n : 2 * n], x[2 * n : 3 * n], x[3 * n :]
    for i in range(n):
        p, q = a[i] + c[i], b[i] + d[i]
        r, s = a[i] - c[i], b[i] - d[i]
        y[4 * i] = p + q
        y[4 * i + 1] = p - q
        y[4 * i + 2] = r + s
        y[4 * i + 3] = r - s


@njit
def _pass_of_one(x: NDArray[Any], y: NDArray[Any]) -> None:
    """Do one level of butterflies on `x` (p,), into `y` (p,)."""
    n = len(x) // 2
    a, b = x[:n], x[n:]
    for i in range(n):
        y[2 * i] = a[i] + b[i]
        y[2 * i + 1] = a[i] - b[i]


@njit
def signed_hadamard(
    x: NDArray[Any], signs: NDArray[Any], y: NDArray[Any], spare: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return H (signs * x), not normalized, and the buffer left over; p = len(x) is 4 or more.

    `y` and `spare` are buffers of the length of `x`, of which the result is one; `x` may be
    `spare`, and is then overwritten.
    """
    _signed_pass(x, signs, y)
    left = len(x) // 4
    while left >= 4:
        _pass_of_two(y, spare)
        y, spare = spare, y
        left //= 4
    if left == 2:
        _pass_of_one(y, spare)
        y, spare = spare, y
    return y, spare


@njit
def structured_rows(X: NDArray[Any], signs: NDArray[Any], out: NDArray[Any]) -> None:
    """Write H S_3 H S_2 H S_1 x for each row x of `X` (N, d) and each block into `out` (N, D).

    `signs` (blocks, 3, p) holds the diagonals in the order in which they are applied; rows are
    padded with zeros to p numbers, and the last block is cut to fill `out`.
    """
    blocks, factors, size = signs.shape
    row = np.zeros(size, X.dtype)
    first = np.empty(size, X.dtype)
    second = np.empty(size, X.dtype)
    for i in range(X.shape[0]):
        row[: X.shape[1]] = X[i]
        for b in range(blocks):
            y, spare = signed_hadamard(row, signs[b, 0], first, second)
            for k in range(1, factors):
                y, spare = signed_hadamard(y, signs[b, k], spare, y)
            part = out[i, b * size : (b + 1) * size]
            for j in range(len(part)):
                part[j] = y[j]
