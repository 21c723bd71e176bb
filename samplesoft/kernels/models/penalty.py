"""The gradient of a penalty, added in one pass."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from samplesoft._jit import njit

Rows = NDArray[Any]


@njit
def add_penalty(weights: Rows, of_rows: Rows, of_columns: Rows, gradient: Rows) -> None:
    """Add ``of_rows[i] * of_columns[j] * weights[i, j]`` to a gradient (k, d)."""
    for i in range(len(gradient)):
        row, weight, out = of_rows[i], weights[i], gradient[i]
        for j in range(len(out)):
            out[j] += row * of_columns[j] * weight[j]
