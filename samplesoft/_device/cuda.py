"""The CUDA backend: argument checks, operations on arrays, and launches of kernels.

`samplesoft._device.cpu` has the same functions. Arrays on the device are used as they are. Other
arrays are checked as on the CPU, and then copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from samplesoft._cuda import (
    as_device_array,
    cuda,
    kernel,
    launch_threads,
    smallest_reported_index,
    thread_index,
)
from samplesoft._cuda import available_bytes as available_bytes
from samplesoft._cuda import empty as empty
from samplesoft._cuda import to_device as to_device
from samplesoft._device import cpu
from samplesoft._device.select import on_device
from samplesoft._jit import chunks
from samplesoft._validation import FloatArray, IntArray, as_float_rows, as_ids, as_labels
from samplesoft.kernels import sort_ids
from samplesoft.kernels.lanes_cuda import compile_for_device, run_on_warps
from samplesoft.kernels.tiles_cuda import multiply

_CHUNK_VALUES = 1 << 26  # largest number of values in a chunk, so that it fits in memory
_NUM_ROW_BLOCKS = 64  # number of blocks of rows that threads sum in parallel

viewed = as_device_array
run = run_on_warps


def group_equal_ids(ids: Any, stop: int) -> tuple[Any, Any, Any, Any]:
    """Group equal ids (K,) in ``range(stop)`` as `sort_ids.group_equal_ids` does, on the device.

    Returns the same four arrays, except that the last offset, K, is left out: there are k offsets.
    """
    unique, inverse, order, starts = sort_ids.group_equal_ids(ids.copy_to_host(), stop)
    return to_device(unique), to_device(inverse), to_device(order), to_device(starts[:-1])


def first_index_outside(values: Any, low: Any, high: Any) -> int | None:
    """Return the flat index of the first value outside [low, high], or None if there is none.

    NaN counts as outside.
    """
    # the kernel takes a flat array
    flat = values if values.ndim == 1 else values.reshape(-1)
    return smallest_reported_index(launch_threads, _find_outside, flat.size, flat, low, high)


def first_index_not_finite(values: Any) -> int | None:
    """Return the flat index of the first NaN or infinity, or None if there is none."""
    max_float = np.finfo(values.dtype).max
    return first_index_outside(values, -max_float, max_float)


def contiguous(name: str, value: Any, *dtypes: DTypeLike) -> Any:
    """Return a device array as a Numba array, without a copy.

    Raises TypeError unless its dtype is one of `dtypes`, and ValueError unless it is C-contiguous.
    """
    array = as_device_array(value)
    if array.dtype not in dtypes:
        allowed = " or ".join(np.dtype(dtype).name for dtype in dtypes)
        raise TypeError(
            f"`{name}` on the device must be of {allowed}, got {array.dtype}; convert it there, or "
            "pass a NumPy array."
        )
    if not array.flags["C_CONTIGUOUS"]:
        raise ValueError(
            f"`{name}` on the device must be C-contiguous, got strides {array.strides} for shape "
            f"{array.shape}; copy it there first."
        )

    return array


def as_dtype(name: str, value: Any, dtype: DTypeLike) -> Any:
    """Return `value` on the device in a dtype and in C order; errors call it `name`.

    Only arrays on the host are converted; a device array must have the dtype already.
    """
    if not on_device(value):
        return to_device(np.asarray(value, dtype))
    return contiguous(name, value, dtype)


def copied(array: Any) -> Any:
    """Return a copy of an array on the device."""
    out = empty(array.shape, array.dtype)
    out.copy_to_device(array)
    return out


def writable(array: Any) -> Any:
    """Return `array` if it is on the device, otherwise a copy on the device."""
    return array if on_device(array) else to_device(array)


def num_workers_for(num_items: int) -> int:
    """Return the number of workers among which a kernel divides its items; on a GPU `num_items`.

    `samplesoft.kernels.lanes` explains workers.
    """
    return num_items


def each(function: Callable[[Any], object], items: Iterable[Any]) -> None:
    """Call ``function(item)`` for each item in turn; warps divide the work of each call."""
    for item in items:
        function(item)


def run_over_rows(kernel: Callable[..., None], *arrays: Any) -> None:
    """Run a kernel on the rows of several arrays, with one warp for each row.

    The arrays have the same number of rows. The kernel writes its results into some of them.
    """
    run_on_warps(kernel, arrays[0].shape[0], *arrays)


def times(rows: Any, factor: float) -> Any:
    """Return `rows` (N, d) times a factor, or the same array if the factor is 1."""
    if factor == 1.0:
        return rows
    out = empty(rows.shape, rows.dtype)
    launch_threads(_multiply, out.size, rows.reshape(-1), factor, out.reshape(-1))
    return out


def column_sums(rows: Any) -> FloatArray:
    """Return the float64 sums of each column of `rows` (N, F), shape (2, F).

    Row 0 has the sums of the values, and row 1 the sums of their absolute values.
    """
    out = empty((_NUM_ROW_BLOCKS, 2, rows.shape[1]), np.float64)
    launch_threads(_sum_columns, _NUM_ROW_BLOCKS * rows.shape[1], rows, out)
    totals: FloatArray = out.copy_to_host().sum(axis=0)
    return totals


def are_increasing_row_ids(ids: Any, num_rows: int) -> bool:
    """Return whether `ids` (k,) increase strictly and are all in ``range(num_rows)``."""
    index = smallest_reported_index(launch_threads, _find_not_rising, ids.size, ids, num_rows)
    return index is None


def is_step_safe(ids: Any, gradients: Any, table: Any, limit: float, largest: float) -> bool:
    """Return whether an optimizer step on rows `ids` (k,) of `table` (n, d) is safe.

    `ids` must increase strictly and be in ``range(n)``, and magnitudes of `gradients` (k, d) must
    be at most `limit`. Unlike on the CPU, entries of the table are not checked, and `largest` is
    not used.
    """
    return (
        are_increasing_row_ids(ids, table.shape[0])
        and first_index_outside(gradients, -limit, limit) is None
    )


def step_rows(
    rows_kernel: Callable[..., None],
    ids: Any,
    gradients: Any,
    table: Any,
    states: tuple[Any, ...],
    hyper_parameters: tuple[Any, ...],
) -> None:
    """Take an optimizer step on the rows `ids` (k,) of a table (n, d), in place.

    `rows_kernel` is the optimizer's kernel, `gradients` (k, d) are the gradients of the rows, and
    `states` are the optimizer's arrays (n, d), of which the same rows are updated.
    """
    # if there are no states, pass any array, because an empty tuple has no type in Numba
    kernel_states = states or (gradients,)
    step = _step_kernel(rows_kernel, len(kernel_states))
    launch_threads(step, gradients.size, ids, gradients, table, kernel_states, hyper_parameters)


def write_features(
    X: Any, out: Any, write_chunk: Any, projection_and_epilogue: Callable[[Any], Any]
) -> None:
    """Write the features of the rows of `X` (N, d) to `out` (N, F).

    Features are functions of the inner products of the rows with D columns.
    ``projection_and_epilogue(X)`` returns the columns (d, D), a function that writes the features
    of one inner product, and the parameters of this function: see
    `samplesoft.kernels.tiles_cuda.multiply`. The CPU uses `write_chunk` instead.
    """
    columns, write_entry, parameters = projection_and_epilogue(X)
    multiply(write_entry, X, columns, out, parameters)


def split(num_items: int, size: int, values_per_item: int) -> list[slice]:
    """Return ``range(num_items)`` split into slices of items that fit in memory.

    An item needs memory for `values_per_item` values. The CPU uses slices of `size` items instead.
    """
    return chunks(num_items, max(1, _CHUNK_VALUES // values_per_item))


def columns(num_columns: int) -> list[tuple[int, int]]:
    """Return the range (0, num_columns) of all columns, as a list of one.

    The lanes of a warp divide the columns among them.
    """
    return [(0, num_columns)]


def stages(starts: IntArray) -> list[slice]:
    """Return the slices of a list of steps that a kernel processes, one slice in each launch.

    Slice i is stage i, the steps from ``starts[i]`` to ``starts[i + 1] - 1``. The steps of a stage
    read only results of earlier stages, so that they can run in parallel.
    """
    return [slice(start, stop) for start, stop in zip(starts[:-1], starts[1:], strict=True)]


def take_rows(rows: Any, index: Any) -> Any:
    """Return ``rows[index]``, a copy of the rows with the indices `index` (k,).

    `index` may be on the host.
    """
    index = index if on_device(index) else to_device(index)
    out = empty((index.shape[0], rows.shape[1]), rows.dtype)
    launch_threads(_take_rows, out.size, rows, index, out)
    return out


def put_rows(rows: Any, index: IntArray, out: Any) -> None:
    """Write `rows` (k, d) to the rows of `out` with the distinct indices `index` (k,)."""
    launch_threads(_put_rows, rows.size, rows, to_device(index), out)


def concatenate_rows(rows: Any, others: Any) -> Any:
    """Return the rows of two matrices concatenated, (N + M, d)."""
    both = empty((rows.shape[0] + others.shape[0], rows.shape[1]), rows.dtype)
    both[: rows.shape[0]].copy_to_device(rows)
    both[rows.shape[0] :].copy_to_device(others)
    return both


def float_rows(
    name: str, value: Any, dim: int | None = None, dtype: np.dtype[Any] | None = None
) -> Any:
    """Return `value` on the device as finite rows (N, dim) in C order, float32 or float64.

    Errors call the argument `name`. A one-dimensional array becomes one row.
    """
    if not on_device(value):
        return to_device(as_float_rows(name, value, dim, dtype))
    rows = _as_device_rows(name, value, dim, dtype)

    index = first_index_not_finite(rows)
    if index is not None:
        position = [index // rows.shape[1], index % rows.shape[1]]
        raise ValueError(
            f"`{name}` must be finite in {rows.dtype}, got {_value_at(rows, index)} at index "
            f"{position}; remove or replace NaN and infinite entries first."
        )

    return rows


def shaped_rows(name: str, value: Any) -> Any:
    """Return `value` on the device as rows (N, d) in C order.

    Entries are checked only if the array is on the host.
    """
    if on_device(value):
        return _as_device_rows(name, value)
    return to_device(as_float_rows(name, value))


def _as_device_rows(
    name: str, value: Any, dim: int | None = None, dtype: np.dtype[Any] | None = None
) -> Any:
    """Return a device array as rows (N, dim) in C order, without a copy; check dtype and shape."""
    allowed = (dtype,) if dtype else (np.float32, np.float64)
    rows = contiguous(name, value, *allowed)
    rows = rows.reshape(1, -1) if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.size == 0:
        raise ValueError(f"`{name}` must be rows of shape (N, d), not empty, got {rows.shape}.")
    if dim is not None and rows.shape[1] != dim:
        raise ValueError(f"`{name}` must have {dim} columns, got shape {rows.shape}.")
    return rows


def vector(name: str, value: Any, size: int, dtype: np.dtype[Any]) -> Any:
    """Return `value` on the device as an array (size,) of a dtype; errors call it `name`."""
    if not on_device(value):
        return to_device(cpu.vector(name, value, size, dtype))
    vector = contiguous(name, value, dtype)
    if vector.shape != (size,):
        raise ValueError(f"`{name}` must have shape ({size},), got {vector.shape}.")
    return vector


def ids(name: str, value: Any, num_classes: int, batch: int | None = None) -> Any:
    """Return class indices on the device as int64, shape (k,), or (batch, k) with a batch.

    Each is in ``range(num_classes)``. Errors call the argument `name`.
    """
    if not on_device(value):
        return to_device(as_ids(name, value, num_classes, batch))
    if batch is None:
        return _as_class_ids(name, value, num_classes, len(value.shape) == 1, "(k,)")
    fits = len(value.shape) == 2 and value.shape[0] == batch
    return _as_class_ids(name, value, num_classes, fits, f"({batch}, k)")


def labels(name: str, value: Any, num_classes: int, batch_shape: tuple[int, ...]) -> Any:
    """Return labels on the device as int64, shape `batch_shape`, each in ``range(num_classes)``.

    Errors call the argument `name`.
    """
    if not on_device(value):
        return to_device(as_labels(name, value, num_classes, batch_shape))
    fits = tuple(value.shape) == batch_shape
    return _as_class_ids(name, value, num_classes, fits, str(batch_shape))


def _as_class_ids(name: str, value: Any, num_classes: int, fits: bool, shape: str) -> Any:
    """Return class indices on the device, after checking their dtype, shape and range.

    `fits` says whether the shape is the expected one; errors describe the expected one by `shape`.
    """
    array = contiguous(name, value, np.int64)
    if not fits:
        raise ValueError(f"`{name}` must have shape {shape}, got {array.shape}.")

    index = first_index_outside(array, 0, num_classes - 1)
    if index is not None:
        raise ValueError(
            f"`{name}` must lie in 0..{num_classes - 1} for {num_classes} classes, got "
            f"{_value_at(array, index)}."
        )

    return array


def _value_at(array: Any, index: int) -> Any:
    """Return the value of a device array at a flat index, copied to the host."""
    return array.reshape(-1)[index : index + 1].copy_to_host()[0]


@kernel
def _multiply(values: Any, factor: float, out: Any) -> None:
    """Write ``values * factor`` to `out` (n,)."""
    i = thread_index()
    if i < out.shape[0]:
        out[i] = values[i] * factor


@kernel
def _take_rows(rows: Any, index: Any, out: Any) -> None:
    """Write ``rows[index]`` to `out` (k, d)."""
    i = thread_index() // out.shape[1]
    f = thread_index() % out.shape[1]
    if i < out.shape[0]:
        out[i, f] = rows[index[i], f]


@kernel
def _put_rows(rows: Any, index: Any, out: Any) -> None:
    """Write `rows` (k, d) to ``out[index]``."""
    i = thread_index() // rows.shape[1]
    f = thread_index() % rows.shape[1]
    if i < rows.shape[0]:
        out[index[i], f] = rows[i, f]


@kernel
def _find_outside(values: Any, low: Any, high: Any, found: Any) -> None:
    """Write the smallest index of a value outside [low, high] to ``found[0]``.

    Before the launch, ``found[0]`` must be larger than all indices.
    """
    i = thread_index()
    # the negated condition is true for NaN too
    if i < values.shape[0] and not low <= values[i] <= high:
        cuda.atomic.min(found, 0, i)


@kernel
def _find_not_rising(ids: Any, stop: int, found: Any) -> None:
    """Write the index of the first invalid id to ``found[0]``.

    An id is invalid if it is not larger than the id before it, or not in ``range(stop)``. Before
    the launch, ``found[0]`` must be larger than all indices.
    """
    i = thread_index()
    if i < ids.shape[0]:
        previous_id = ids[i - 1] if i > 0 else -1
        if not previous_id < ids[i] < stop:
            cuda.atomic.min(found, 0, i)


@kernel
def _sum_columns(rows: Any, out: Any) -> None:
    """Write the sums of each column over blocks of rows to `out` (blocks, 2, F).

    ``out[:, 0]`` has the sums of the values, and ``out[:, 1]`` the sums of their absolute values.
    """
    block = thread_index() // rows.shape[1]
    f = thread_index() % rows.shape[1]
    if block >= out.shape[0]:
        return

    # One thread sums a column over a block of rows. With one thread per column, there would be too
    # few threads to hide the latency of memory.
    rows_per_block = -(-rows.shape[0] // out.shape[0])
    total = 0.0
    abs_total = 0.0

    for i in range(block * rows_per_block, min((block + 1) * rows_per_block, rows.shape[0])):
        total += float(rows[i, f])
        abs_total += abs(float(rows[i, f]))

    out[block, 0, f] = total
    out[block, 1, f] = abs_total


@cache
def _step_kernel(function: Callable[..., None], num_states: int) -> Any:
    """Return an optimizer's CPU kernel as a CUDA kernel, with a thread for each gradient entry.

    `num_states` is the number of state arrays, 1 or 2.
    """
    body = compile_for_device(function)

    def step(ids: Any, gradients: Any, parameters: Any, states: Any, hyper_parameters: Any) -> None:
        entry = thread_index()
        width = gradients.shape[1]
        i = entry // width
        c = entry % width

        if i < ids.shape[0]:
            # call the CPU kernel on slices of one entry, so that its formulas are written once
            entry_arrays = ids[i : i + 1], gradients[i : i + 1, c : c + 1], parameters[:, c : c + 1]
            first_state = states[0][:, c : c + 1]
            if num_states == 2:
                body(*entry_arrays, (first_state, states[1][:, c : c + 1]), hyper_parameters)
            else:
                body(*entry_arrays, (first_state,), hyper_parameters)

    step.__name__ = f"{function.__name__}_on_device"
    return kernel(step)
