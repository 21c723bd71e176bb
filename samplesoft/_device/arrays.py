"""Arrays on the processor: what a function takes, checked, and what it returns.

``twin(device, ARRAYS)`` gives `HostArrays` here or, with the same methods, `CudaArrays`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft import _memory
from samplesoft._validation import FloatArray, IntArray, as_float_rows, as_ids, as_labels


class HostArrays:
    """Checks of arrays that a function takes, and small work on arrays, on the processor."""

    empty: Callable[..., NDArray[Any]] = staticmethod(np.empty)
    filled: Callable[..., NDArray[Any]] = staticmethod(np.full)
    plus: Callable[..., NDArray[Any]] = staticmethod(np.add)
    float_rows = staticmethod(as_float_rows)
    ids = staticmethod(as_ids)
    labels = staticmethod(as_labels)

    @staticmethod
    def available_bytes() -> int | None:
        """Return the bytes that new arrays may take, where the system tells."""
        return _memory.available_bytes()

    @staticmethod
    def norm_outside(rows: NDArray[Any], least: float, most: float) -> tuple[int, float] | None:
        """Return the place and the norm of a row (N, d) whose norm is outside [least, most]."""
        # one pass without a copy; roots only where a square is outside
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        if least * least <= squares.min() and squares.max() <= most * most:
            return None
        norms = np.sqrt(squares)
        # the row that is farthest out makes the clearest message
        worst = int(np.argmax(np.abs(norms - 0.5 * (least + most))))
        return None if least <= norms[worst] <= most else (worst, float(norms[worst]))

    @staticmethod
    def take_rows(rows: NDArray[Any], places: IntArray) -> NDArray[Any]:
        """Return ``rows[places]``."""
        return rows[places]

    @staticmethod
    def take_numbers(numbers: NDArray[Any], rows: IntArray, columns: IntArray) -> NDArray[Any]:
        """Return ``numbers[rows, columns]`` as a row (1, k)."""
        return numbers[rows, columns][None]

    @staticmethod
    def repeat_row(row: NDArray[Any], batch: int) -> NDArray[Any]:
        """Return a row (1, k) as often as there are examples, (B, k)."""
        return np.repeat(row, batch, axis=0)

    @staticmethod
    def log_mean(logs: FloatArray, shares: FloatArray) -> FloatArray:
        """Return the log of the mean of exp over columns of (R, k) by shares (R,), as (1, k)."""
        # of logarithms, for the probabilities themselves may underflow
        mean: FloatArray = np.logaddexp.reduce(
            logs + np.log(shares)[:, None], axis=0, keepdims=True
        )
        return mean

    @staticmethod
    def mean(rows: FloatArray, shares: FloatArray) -> FloatArray:
        """Return the mean of rows (R, n) by shares (R,), as a row (1, n)."""
        return shares[None] @ rows
