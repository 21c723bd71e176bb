"""The CPU backend: argument checks, operations on arrays, and calls of kernels.

`samplesoft._device.cuda` has the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from samplesoft import _memory
from samplesoft._device.arrays import DistantRows
from samplesoft._jit import chunks, njit, num_threads, row_chunks, thread_each
from samplesoft._limits import ignore_overflow
from samplesoft._temperature import times_tau
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_float_rows,
    as_ids,
    as_labels,
    as_real_array,
    convert_finite,
)
from samplesoft._validation import writable as writable

_CHUNK_VALUES = 1 << 18  # values in a chunk for a thread
_TASK_FEATURES = 1 << 20  # features in one task of a thread: 0.2 ms of work or more
_MIN_THREADED_VALUES = 1 << 18  # parameters below which threads cost more than they save

float_rows = as_float_rows
ids = as_ids
labels = as_labels
empty: Callable[..., NDArray[Any]] = np.empty
to_device = np.asarray
viewed = np.asarray
copied: Callable[..., NDArray[Any]] = np.copy
times = times_tau
each = thread_each


def shaped_rows(name: str, value: Any) -> NDArray[Any]:
    """Return rows (N, d) in C order, without reading arrays that need no conversion."""
    # a step uses a few of n rows; checking all of them would cost more than the step
    if (
        (type(value) is np.ndarray or isinstance(value, np.memmap))
        and value.dtype in (np.float32, np.float64)
        and value.ndim == 2
        and value.size
        and value.flags.c_contiguous
    ):
        return value
    if isinstance(value, DistantRows):
        return value  # type: ignore[return-value]
    return as_float_rows(name, value)


def vector(name: str, value: Any, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values (size,) in a dtype."""
    values = as_real_array(name, value, (1,))
    if len(values) != size:
        raise ValueError(f"`{name}` must have shape ({size},), got {values.shape}.")
    return convert_finite(name, values, dtype)


def typed(name: str, value: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return values in a dtype and in C order; values too large for it become infinite."""
    if value.dtype == dtype:
        is_contiguous = type(value) is np.ndarray and value.flags.c_contiguous
        return value if is_contiguous else np.asarray(value, order="C")
    with ignore_overflow():
        return np.asarray(value, dtype, order="C")


def available_bytes() -> float | None:
    """Return the bytes available for new arrays, None if unknown."""
    return _memory.available_bytes()


def take_rows(rows: NDArray[Any], index: IntArray) -> NDArray[Any]:
    """Return ``rows[places]``."""
    return rows[index]


def put_rows(rows: NDArray[Any], index: IntArray, out: NDArray[Any]) -> None:
    """Write `rows` (k, d) to distinct rows `index` (k,) of `out`."""
    out[index] = rows


def joined(rows: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Return the concatenation of two arrays of rows."""
    return np.concatenate((rows, others))


def column_sums(rows: NDArray[Any]) -> FloatArray:
    """Return the sums of columns and of their absolute values in float64, (2, F)."""
    sums = np.zeros((2, rows.shape[1]))
    _add_columns(rows, sums)
    return sums


def first_outside(values: NDArray[Any], least: float, most: float) -> int | None:
    """Return the flat index of the first value outside [least, most], or None."""
    # negated condition, so that NaN is found too
    outside = ~((values >= least) & (values <= most))
    return int(outside.argmax()) if outside.any() else None


def are_rows(ids: IntArray, num_rows: int) -> bool:
    """Return whether `ids` are strictly increasing within ``range(num_rows)``."""
    return _are_rows(ids, num_rows)


def run(kernel: Callable[..., None], num: int, *arguments: Any) -> None:
    """Call a kernel that processes `num` items."""
    kernel(*arguments)


def workers(num: int) -> int:
    """Return the number of workers for `num` items: see `kernels.lanes`."""
    return 1


def over_rows(kernel: Callable[..., None], *arrays: NDArray[Any]) -> None:
    """Call a kernel over the rows of arrays, on threads if there are many."""
    row_slices = row_chunks(arrays[0].shape, _CHUNK_VALUES)
    thread_each(lambda rows: kernel(*(array[rows] for array in arrays)), row_slices)


def step_rows(
    rows_kernel: Callable[..., None],
    ids: IntArray,
    gradients: NDArray[Any],
    table: NDArray[Any],
    states: tuple[NDArray[Any], ...],
    numbers: tuple[Any, ...],
) -> None:
    """Call an optimizer's kernel for rows `ids` (k,) of a table (n, d).

    `gradients` are (k, d). The table and its states are updated in place.
    """
    if gradients.size <= _MIN_THREADED_VALUES:  # the common case
        rows_kernel(ids, gradients, table, states, numbers)
        return

    def step_chunk(chunk: slice) -> None:
        if is_single_row:  # one long row: threads take column ranges
            chunk_states = tuple(state[:, chunk] for state in states)
            rows_kernel(ids, gradients[:, chunk], table[:, chunk], chunk_states, numbers)
        else:  # ids are strictly increasing, so that no two threads write to the same row
            rows_kernel(ids[chunk], gradients[chunk], table, states, numbers)

    is_single_row = ids.shape[0] == 1
    count = gradients.shape[1] if is_single_row else gradients.shape[0]
    thread_each(step_chunk, chunks(count, max(1, -(-count // num_threads()))))


def write_features(
    X: NDArray[Any],
    out: NDArray[Any],
    of_rows: Callable[[NDArray[Any], NDArray[Any]], None],
    of_products: Callable[[NDArray[Any]], tuple[Any, Callable[..., None], tuple[Any, ...]]],
) -> None:
    """Write the features of `X` (N, d) to `out` (N, F), on threads if there are many.

    ``of_rows(X, out)`` writes the features of some rows. A GPU uses `of_products` instead.
    """
    thread_each(lambda chunk: of_rows(X[chunk], out[chunk]), row_chunks(out.shape, _TASK_FEATURES))


def split(num: int, size: int, numbers: int) -> list[slice]:
    """Return chunks of `num` items; on the CPU each has `size` items.

    A GPU uses chunks as large as memory allows, with `numbers` values for each item.
    """
    return chunks(num, size)


def columns(num: int) -> list[tuple[int, int]]:
    """Return independent ranges of `num` columns, two for each thread."""
    ends = np.linspace(0, num, 2 * num_threads() + 1).astype(np.int64)
    return list(pairwise(ends.tolist()))


def stages(starts: IntArray) -> list[slice]:
    """Return the slices of a list of steps that a kernel processes in one call each.

    Steps of a stage read results of the stages before. Stages begin at `starts`, whose last entry
    is the end. On the CPU one call processes all stages in order.
    """
    return [slice(0, int(starts[-1]))]


@njit
def _add_columns(rows: NDArray[Any], sums: FloatArray) -> None:
    """Add the columns, and their absolute values, to `sums` (2, F)."""
    for i in range(len(rows)):
        for f in range(rows.shape[1]):
            sums[0, f] += np.float64(rows[i, f])
            sums[1, f] += abs(np.float64(rows[i, f]))


@njit
def _are_rows(ids: IntArray, num_rows: int) -> bool:
    last = -1
    # starting at -1 also refuses negative ids
    for j in ids:
        if j <= last:
            return False
        last = j
    return last < num_rows


@njit
def can_step(
    ids: IntArray, gradients: NDArray[Any], table: NDArray[Any], limit: Any, largest: Any
) -> bool:
    """Return whether `ids` (k,) are rows of the table, and a step on them is safe.

    Gradients must be at most `limit` in size, and entries of these rows at most `largest`; NaN
    fails. One pass; callers look for the cause only on failure.
    """
    if not _are_rows(ids, len(table)):
        return False
    count = 0
    for i in range(len(ids)):
        row = table[ids[i]]
        for c in range(len(row)):
            # `<=` is False for NaN; branch-free, so that it is vectorised
            count += 0 if abs(gradients[i, c]) <= limit else 1
            count += 0 if abs(row[c]) <= largest else 1
    return count == 0
