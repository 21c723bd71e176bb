"""Arrays on the processor: what a function takes, checked, and what it returns.

``twin(device, ARRAYS)`` gives `HostArrays` here or, with the same methods, `CudaArrays`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft import _memory
from samplesoft._jit import row_chunks, thread_each
from samplesoft._temperature import times_tau
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_float_rows,
    as_ids,
    as_labels,
    as_real_array,
    as_type,
    writable,
)
from samplesoft.kernels.rows import divide_by_norms, unit_gradient

_CHUNK_NUMBERS = 1 << 18  # of a chunk for a thread


def unit_rows(
    name: str, rows: NDArray[Any], ids: IntArray | None = None
) -> tuple[NDArray[Any], FloatArray]:
    """Divide rows (N, d) by their norms in place; return them, and the norms (N,) that they had.

    Errors call the rows by `ids` (N,), where those are given, of the argument `name`.
    """
    norms = np.empty(len(rows))  # float64, for rows of float32 too
    _each_chunk(rows, lambda part: divide_by_norms(rows[part], norms[part]))
    good = (norms > 0.0) & np.isfinite(norms)  # others were left as they are
    if not good.all():
        worst = int(np.argmin(good))
        raise no_norm(name, norms[worst], worst if ids is None else int(ids[worst]))
    return rows, norms


def no_norm(name: str, norm: float, row: int) -> ValueError:
    """Return the error for a row that cannot be normalised."""
    return ValueError(
        f"`{name}` must have rows of a finite norm greater than 0 to be normalised, got {norm} for "
        f"row {row}; start from random vectors, or use normalize=False."
    )


def unit_rows_backward(d_unit: NDArray[Any], unit: NDArray[Any], norms: FloatArray) -> NDArray[Any]:
    """Turn derivatives in the normalised rows, in place, into those in the rows."""
    _each_chunk(unit, lambda part: unit_gradient(d_unit[part], unit[part], norms[part]))
    return d_unit


def _each_chunk(rows: NDArray[Any], work: Callable[[slice], None]) -> None:
    thread_each(work, row_chunks(rows.shape, _CHUNK_NUMBERS))


class HostArrays:
    """Checks of arrays that a function takes, and small work on arrays, on the processor."""

    empty: Callable[..., NDArray[Any]] = staticmethod(np.empty)
    filled: Callable[..., NDArray[Any]] = staticmethod(np.full)
    plus: Callable[..., NDArray[Any]] = staticmethod(np.add)
    float_rows = staticmethod(as_float_rows)
    ids = staticmethod(as_ids)
    labels = staticmethod(as_labels)
    copied: Callable[..., NDArray[Any]] = staticmethod(np.copy)
    times = staticmethod(times_tau)
    unit_rows = staticmethod(unit_rows)
    unit_rows_backward = staticmethod(unit_rows_backward)

    @staticmethod
    def shaped_rows(name: str, value: Any) -> NDArray[Any]:
        """Return rows (N, d) in C order; those of an array as it is are not read through."""
        # a step touches a few rows of n; to read all of them would cost more than the step
        if (
            isinstance(value, np.ndarray)
            and not isinstance(value, np.ma.MaskedArray)
            and value.dtype in (np.float32, np.float64)
            and value.ndim == 2
            and value.size
            and value.flags.c_contiguous
        ):
            return value
        return as_float_rows(name, value)

    @staticmethod
    def vector(name: str, value: Any, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return numbers (size,) of a type."""
        vector = as_real_array(name, value, (1,))
        if len(vector) != size:
            raise ValueError(f"`{name}` must have shape ({size},), got {vector.shape}.")
        return as_type(name, vector, dtype)

    @staticmethod
    def union(ids: list[IntArray], stop: int) -> IntArray:
        """Return the ids below `stop` that occur, rising and each once."""
        # the usual case needs no sort: one list, as from a gradient
        if len(ids) == 1 and (ids[0][1:] > ids[0][:-1]).all():
            return ids[0]
        united: IntArray = np.unique(np.concatenate(ids))
        return united

    placed: Callable[..., NDArray[Any]] = staticmethod(np.asarray)
    writable = staticmethod(writable)
    each = staticmethod(thread_each)

    @staticmethod
    def workers(num: int) -> int:
        """Return how many workers share out `num` things to do: see `kernels.lanes`."""
        return 1

    @staticmethod
    def run(kernel: Callable[..., None], num: int, *arguments: Any) -> None:
        """Call a kernel that has `num` things to do."""
        kernel(*arguments)

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
    def put_rows(rows: NDArray[Any], places: IntArray, out: NDArray[Any]) -> None:
        """Write `rows` (k, d) to different places (k,) of `out`."""
        out[places] = rows

    @staticmethod
    def joined(rows: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
        """Return some rows (k, d) and others after them."""
        return np.concatenate((rows, others))

    @staticmethod
    def last_of_each(ids: IntArray, rows: NDArray[Any]) -> tuple[IntArray, NDArray[Any]]:
        """Return ids (k,) rising and each once, with the last of the rows (k, d) of each."""
        # the usual case costs a comparison and no sort
        if (ids[1:] > ids[:-1]).all():  # as from a gradient
            return ids, rows
        ids, last = np.unique(ids[::-1], return_index=True)
        return ids, rows[len(rows) - 1 - last]

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
