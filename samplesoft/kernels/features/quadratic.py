"""All products of two entries of a row."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from samplesoft._jit import njit


@njit
def product_rows(X: NDArray[Any], root: float, out: NDArray[Any]) -> None:
    """Write products of pairs of entries, each pair once, and a last 1, into `out`.

    With r = `root`, the features of a row x of `X` (N, d) are ``r x_i^2`` and, for i < j,
    ``sqrt(2) r x_i x_j``; `out` has d (d + 1) / 2 + 1 columns.
    """
    number = out.dtype.type
    diagonal, other = number(root), number(root * 2.0**0.5)
    dim = X.shape[1]
    for n in range(X.shape[0]):
        start = 0
        for i in range(dim):
            row = X[n, i:]
            part = out[n, start : start + dim - i]
            factor = other * row[0]
            for j in range(1, dim - i):
                part[j] = factor * row[j]
            part[0] = diagonal * row[0] * row[0]
            start += dim - i
        out[n, start] = number(1.0)
