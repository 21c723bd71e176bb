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
from samplesoft._device.arrays import RemoteRows
from samplesoft._jit import chunks, njit, num_threads, row_chunks, thread_for_each
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

_CHUNK_VALUES = 1 << 18  # number of values that a thread processes in one task
_TASK_FEATURES = 1 << 20  # number of features that a thread computes in one task, in 0.2 ms or more
# Largest number of gradient entries for which a step runs on one thread. For a step of this size,
# starting threads costs more than it saves.
_MIN_THREADED_VALUES = 1 << 18

float_rows = as_float_rows
ids = as_ids
labels = as_labels
empty: Callable[..., NDArray[Any]] = np.empty
to_device = np.asarray
viewed = np.asarray
copied: Callable[..., NDArray[Any]] = np.copy
times = times_tau
each = thread_for_each


def shaped_rows(name: str, value: Any) -> NDArray[Any]:
    """Return `value` as rows (N, d) in C order.

    An array that needs no conversion is returned as it is, and its entries are not checked. If it
    is converted, entries must be finite.
    """
    # A training step uses a few of the n rows; checking all of them would cost more than the step.
    if (
        (type(value) is np.ndarray or isinstance(value, np.memmap))
        and value.dtype in (np.float32, np.float64)
        and value.ndim == 2
        and value.size
        and value.flags.c_contiguous
    ):
        return value

    if isinstance(value, RemoteRows):
        return value  # type: ignore[return-value]
    return as_float_rows(name, value)


def vector(name: str, value: Any, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `value` as a finite array (size,) of a dtype; errors call it `name`."""
    values = as_real_array(name, value, (1,))
    if len(values) != size:
        raise ValueError(f"`{name}` must have shape ({size},), got {values.shape}.")
    return convert_finite(name, values, dtype)


def as_dtype(name: str, value: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array in a dtype and in C order; values too large for the dtype become infinite.

    The array itself is returned if it needs no conversion.
    """
    if value.dtype == dtype:
        is_contiguous = type(value) is np.ndarray and value.flags.c_contiguous
        return value if is_contiguous else np.asarray(value, order="C")

    with ignore_overflow():
        return np.asarray(value, dtype, order="C")


def available_bytes() -> float | None:
    """Return the number of bytes available for new arrays, or None if it is unknown."""
    return _memory.available_bytes()


def take_rows(rows: NDArray[Any], index: IntArray) -> NDArray[Any]:
    """Return ``rows[index]``, a copy of the rows with the indices `index` (k,)."""
    return rows[index]


def put_rows(rows: NDArray[Any], index: IntArray, out: NDArray[Any]) -> None:
    """Write `rows` (k, d) to the rows of `out` with the distinct indices `index` (k,)."""
    out[index] = rows


def concatenate_rows(rows: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of two matrices concatenated, (N + M, d)."""
    return np.concatenate((rows, others))


def column_sums(rows: NDArray[Any]) -> FloatArray:
    """Return the float64 sums of each column of `rows` (N, F), shape (2, F).

    Row 0 has the sums of the values, and row 1 the sums of their absolute values.
    """
    sums = np.zeros((2, rows.shape[1]))
    _add_column_sums(rows, sums)
    return sums


def first_index_outside(values: NDArray[Any], low: float, high: float) -> int | None:
    """Return the flat index of the first value outside [low, high], or None if there is none.

    NaN counts as outside.
    """
    # the negated condition is true for NaN too
    outside = ~((values >= low) & (values <= high))
    return int(outside.argmax()) if outside.any() else None


def are_increasing_row_ids(ids: IntArray, num_rows: int) -> bool:
    """Return whether `ids` (k,) increase strictly and are all in ``range(num_rows)``."""
    return _are_increasing_row_ids(ids, num_rows)


def run(kernel: Callable[..., None], num_items: int, *arguments: Any) -> None:
    """Call a kernel that processes `num_items` items, with its arguments, on the calling thread."""
    kernel(*arguments)


def num_workers_for(num_items: int) -> int:
    """Return the number of workers among which a kernel divides its items; 1 on the CPU.

    `samplesoft.kernels.lanes` explains workers.
    """
    return 1


def run_over_rows(kernel: Callable[..., None], *arrays: NDArray[Any]) -> None:
    """Call a kernel on chunks of the rows of several arrays, with threads if there are many rows.

    The arrays have the same number of rows. The kernel writes its results into some of them.
    """
    row_slices = row_chunks(arrays[0].shape, _CHUNK_VALUES)
    thread_for_each(lambda rows: kernel(*(array[rows] for array in arrays)), row_slices)


def step_rows(
    rows_kernel: Callable[..., None],
    ids: IntArray,
    gradients: NDArray[Any],
    table: NDArray[Any],
    states: tuple[NDArray[Any], ...],
    hyper_parameters: tuple[Any, ...],
) -> None:
    """Take an optimizer step on the rows `ids` (k,) of a table (n, d), in place.

    `rows_kernel` is the optimizer's kernel, `gradients` (k, d) are the gradients of the rows, and
    `states` are the optimizer's arrays (n, d), of which the same rows are updated.
    """
    if gradients.size <= _MIN_THREADED_VALUES:  # the common case
        rows_kernel(ids, gradients, table, states, hyper_parameters)
        return
    is_single_row = ids.shape[0] == 1

    def step_chunk(chunk: slice) -> None:
        if is_single_row:  # one long row, whose columns are divided among threads
            chunk_states = tuple(state[:, chunk] for state in states)
            rows_kernel(ids, gradients[:, chunk], table[:, chunk], chunk_states, hyper_parameters)
        else:
            # ids increase strictly, so that no two threads write to the same row
            rows_kernel(ids[chunk], gradients[chunk], table, states, hyper_parameters)

    count = gradients.shape[1] if is_single_row else gradients.shape[0]
    thread_for_each(step_chunk, chunks(count, max(1, -(-count // num_threads()))))


def write_features(
    X: NDArray[Any],
    out: NDArray[Any],
    write_chunk: Callable[[NDArray[Any], NDArray[Any]], None],
    projection_and_epilogue: Callable[
        [NDArray[Any]], tuple[Any, Callable[..., None], tuple[Any, ...]]
    ],
) -> None:
    """Write the features of the rows of `X` (N, d) to `out` (N, F), with threads if N is large.

    ``write_chunk(X, out)`` writes the features of a chunk of rows. A GPU uses
    `projection_and_epilogue` instead.
    """
    thread_for_each(
        lambda chunk: write_chunk(X[chunk], out[chunk]), row_chunks(out.shape, _TASK_FEATURES)
    )


def split(num_items: int, size: int, values_per_item: int) -> list[slice]:
    """Return ``range(num_items)`` split into slices of `size` items; the last may be shorter.

    `values_per_item` is ignored here. The CUDA backend ignores `size` instead, and makes slices
    whose items, of `values_per_item` values each, fit in memory.
    """
    return chunks(num_items, size)


def columns(num_columns: int) -> list[tuple[int, int]]:
    """Return ``range(num_columns)`` split into ranges (start, stop), two for each thread.

    Threads can process the ranges independently.
    """
    ends = np.linspace(0, num_columns, 2 * num_threads() + 1).astype(np.int64)
    return list(pairwise(ends.tolist()))


def stages(starts: IntArray) -> list[slice]:
    """Return the slices of a list of steps that a kernel processes, one slice in each call.

    The list is divided into stages: stage i has the steps from ``starts[i]`` to
    ``starts[i + 1] - 1``, which read only results of earlier stages. On the CPU, one call processes
    all steps in order, so the result is a single slice.
    """
    return [slice(0, int(starts[-1]))]


@njit
def _add_column_sums(rows: NDArray[Any], sums: FloatArray) -> None:
    """Add the sums of the columns of `rows` to ``sums[0]``, and of absolute values to ``sums[1]``.

    `rows` is (N, F), and `sums` (2, F).
    """
    for i in range(len(rows)):
        for f in range(rows.shape[1]):
            sums[0, f] += np.float64(rows[i, f])
            sums[1, f] += abs(np.float64(rows[i, f]))


@njit
def _are_increasing_row_ids(ids: IntArray, num_rows: int) -> bool:
    """Return whether `ids` (k,) increase strictly and are all in ``range(num_rows)``."""
    previous_id = -1  # so that a negative first id does not increase
    for j in ids:
        if j <= previous_id:
            return False
        previous_id = j
    return previous_id < num_rows


@njit
def is_step_safe(
    ids: IntArray, gradients: NDArray[Any], table: NDArray[Any], limit: Any, largest: Any
) -> bool:
    """Return whether an optimizer step on rows `ids` (k,) of `table` (n, d) is safe.

    `ids` must increase strictly and be in ``range(n)``. Magnitudes of `gradients` (k, d) must be at
    most `limit`, and magnitudes of entries of the rows at most `largest`; NaN fails. Everything is
    checked in one pass; if the result is False, callers look for the cause.
    """
    if not _are_increasing_row_ids(ids, len(table)):
        return False

    count = 0
    for i in range(len(ids)):
        row = table[ids[i]]
        for c in range(len(row)):
            # `<=` is False for NaN; the loop has no branch, so that LLVM vectorises it
            count += 0 if abs(gradients[i, c]) <= limit else 1
            count += 0 if abs(row[c]) <= largest else 1
    return count == 0
