"""The processor: arrays that functions take, checked, small work on arrays, and calls of kernels.

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
from samplesoft._limits import quiet
from samplesoft._temperature import times_tau
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_float_rows,
    as_ids,
    as_labels,
    as_real_array,
    as_type,
)
from samplesoft._validation import writable as writable

_CHUNK_NUMBERS = 1 << 18  # of a chunk for a thread
_TASK_FEATURES = 1 << 20  # that a thread writes at a time: 0.2 ms of work or more
_FEW_STEPS = 1 << 18  # numbers to step below which threads cost more than they save

float_rows = as_float_rows
ids = as_ids
labels = as_labels
empty: Callable[..., NDArray[Any]] = np.empty
placed = np.asarray
viewed = np.asarray
copied: Callable[..., NDArray[Any]] = np.copy
times = times_tau
each = thread_each


def shaped_rows(name: str, value: Any) -> NDArray[Any]:
    """Return rows (N, d) in C order; those of an array as it is are not read through."""
    # a step touches a few rows of n; to read all of them would cost more than the step
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
    """Return numbers (size,) of a type."""
    numbers = as_real_array(name, value, (1,))
    if len(numbers) != size:
        raise ValueError(f"`{name}` must have shape ({size},), got {numbers.shape}.")
    return as_type(name, numbers, dtype)


def typed(name: str, value: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return numbers of a type in C order; those too large for it become infinite."""
    if value.dtype == dtype:
        whole = type(value) is np.ndarray and value.flags.c_contiguous
        return value if whole else np.asarray(value, order="C")
    with quiet():
        return np.asarray(value, dtype, order="C")


def available_bytes() -> float | None:
    """Return the bytes that new arrays may take, where the system tells."""
    return _memory.available_bytes()


def take_rows(rows: NDArray[Any], places: IntArray) -> NDArray[Any]:
    """Return ``rows[places]``."""
    return rows[places]


def put_rows(rows: NDArray[Any], places: IntArray, out: NDArray[Any]) -> None:
    """Write `rows` (k, d) to different places (k,) of `out`."""
    out[places] = rows


def joined(rows: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Return some rows (k, d) and others after them."""
    return np.concatenate((rows, others))


def column_sums(rows: NDArray[Any]) -> FloatArray:
    """Return the sums of columns and of their absolute values in float64, (2, F)."""
    sums = np.zeros((2, rows.shape[1]))
    _add_columns(rows, sums)
    return sums


def first_outside(values: NDArray[Any], least: float, most: float) -> int | None:
    """Return the place, counted through an array, of the first number not in [least, most]."""
    # asked for what must hold, so that NaN is found too
    outside = ~((values >= least) & (values <= most))
    return int(outside.argmax()) if outside.any() else None


def are_rows(ids: IntArray, num_rows: int) -> bool:
    """Tell whether `ids` ascend, each once, within ``range(num_rows)``."""
    return _are_rows(ids, num_rows)


def run(kernel: Callable[..., None], num: int, *arguments: Any) -> None:
    """Call a kernel that has `num` things to do."""
    kernel(*arguments)


def workers(num: int) -> int:
    """Return how many workers share out `num` things to do: see `kernels.lanes`."""
    return 1


def over_rows(kernel: Callable[..., None], *arrays: NDArray[Any]) -> None:
    """Call a kernel that goes through the rows of arrays, on threads where they are many."""
    parts = row_chunks(arrays[0].shape, _CHUNK_NUMBERS)
    thread_each(lambda part: kernel(*(array[part] for array in arrays)), parts)


def step_rows(
    rows_kernel: Callable[..., None],
    ids: IntArray,
    gradients: NDArray[Any],
    table: NDArray[Any],
    states: tuple[NDArray[Any], ...],
    numbers: tuple[Any, ...],
) -> None:
    """Call a kernel of an optimizer for rows `ids` (k,) of a table (n, d).

    `gradients` are (k, d); a table and its states change in place.
    """
    if gradients.size <= _FEW_STEPS:  # as in most steps
        rows_kernel(ids, gradients, table, states, numbers)
        return

    def change(part: slice) -> None:
        if single:  # a long row, of which threads take parts
            parts_of = tuple(state[:, part] for state in states)
            rows_kernel(ids, gradients[:, part], table[:, part], parts_of, numbers)
        else:  # ids rise, each once, so that no two threads write to the same row
            rows_kernel(ids[part], gradients[part], table, states, numbers)

    single = ids.shape[0] == 1
    count = gradients.shape[1] if single else gradients.shape[0]
    thread_each(change, chunks(count, max(1, -(-count // num_threads()))))


def write_features(
    X: NDArray[Any],
    out: NDArray[Any],
    of_rows: Callable[[NDArray[Any], NDArray[Any]], None],
    of_products: Callable[[NDArray[Any]], tuple[Any, Callable[..., None], tuple[Any, ...]]],
) -> None:
    """Write the features of `X` (N, d) into `out` (N, F), on threads where they are many.

    ``of_rows(X, out)`` writes those of some rows; a device asks `of_products` instead.
    """
    thread_each(lambda part: of_rows(X[part], out[part]), row_chunks(out.shape, _TASK_FEATURES))


def split(num: int, size: int, numbers: int) -> list[slice]:
    """Return parts of `num` things of the `size` that suits threads.

    A device takes as many together as it has memory for, each with so many `numbers`.
    """
    return chunks(num, size)


def columns(num: int) -> list[tuple[int, int]]:
    """Return ranges of `num` columns, two for each thread, whose work does not depend on others."""
    ends = np.linspace(0, num, 2 * num_threads() + 1).astype(np.int64)
    return list(pairwise(ends.tolist()))


def stages(starts: IntArray) -> list[slice]:
    """Return what of a list a kernel goes through in one call, where later parts read earlier ones.

    Those parts begin at `starts`, whose last is the end; here one call does all, in their order.
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
    # -1 before the first: negative ids are refused by the same comparison
    for j in ids:
        if j <= last:
            return False
        last = j
    return last < num_rows


@njit
def can_step(
    ids: IntArray, gradients: NDArray[Any], table: NDArray[Any], limit: Any, largest: Any
) -> bool:
    """Tell whether `ids` (k,) are rows of a table, which can take a step.

    No gradient is greater than `limit` in size and no number in those rows than `largest`, nor NaN.
    One pass; what is wrong is sought only then.
    """
    if not _are_rows(ids, len(table)):
        return False
    count = 0
    for i in range(len(ids)):
        row = table[ids[i]]
        for c in range(len(row)):
            # in this order NaN, which is not <= anything, counts; without a branch it vectorises
            count += 0 if abs(gradients[i, c]) <= limit else 1
            count += 0 if abs(row[c]) <= largest else 1
    return count == 0
