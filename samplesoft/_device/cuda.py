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
    first_offender,
    kernel,
    launch_threads,
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
from samplesoft.kernels.lanes_cuda import for_device, run_on_warps
from samplesoft.kernels.tiles_cuda import multiply

_CHUNK_VALUES = 1 << 26  # values of a chunk in memory at a time
_NUM_ROW_BLOCKS = 64  # blocks of rows whose columns are summed in parallel

viewed = as_device_array
run = run_on_warps


def equal_runs(ids: Any, stop: int) -> tuple[Any, Any, Any, Any]:
    """Return `sort_ids.equal_runs` of ids (K,) below `stop`, without the last offset."""
    unique, inverse, order, starts = sort_ids.equal_runs(ids.copy_to_host(), stop)
    return to_device(unique), to_device(inverse), to_device(order), to_device(starts[:-1])


def first_outside(values: Any, least: Any, most: Any) -> int | None:
    """Return the flat index of the first value outside [least, most], or None."""
    # the kernel takes a flat array
    flat = values if values.ndim == 1 else values.reshape(-1)
    return first_offender(launch_threads, _find_outside, flat.size, flat, least, most)


def first_not_finite(values: Any) -> int | None:
    """Return the flat index of the first NaN or infinity, or None."""
    most = np.finfo(values.dtype).max
    return first_outside(values, -most, most)


def contiguous(name: str, value: Any, *dtypes: DTypeLike) -> Any:
    """Return Numba's view of a device array; it must be C-contiguous and of one of `dtypes`."""
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


def typed(name: str, value: Any, dtype: DTypeLike) -> Any:
    """Return values in a dtype and in C order; `name` is for errors."""
    if not on_device(value):
        return to_device(np.asarray(value, dtype))
    return contiguous(name, value, dtype)


def copied(array: Any) -> Any:
    """Return a copy of an array."""
    out = empty(array.shape, array.dtype)
    out.copy_to_device(array)
    return out


def writable(array: Any) -> Any:
    """Return a writable array on the device: `array` itself, or a copy from the host."""
    return array if on_device(array) else to_device(array)


def workers(num: int) -> int:
    """Return the number of workers for `num` items: see `kernels.lanes`."""
    return num


def each(work: Callable[[Any], object], parts: Iterable[Any]) -> None:
    """Call `work` for each part in turn; warps share the work of each."""
    for part in parts:
        work(part)


def over_rows(kernel: Callable[..., None], *arrays: Any) -> None:
    """Call a kernel over the rows of arrays, with one warp for each row."""
    run_on_warps(kernel, arrays[0].shape[0], *arrays)


def times(rows: Any, factor: float) -> Any:
    """Return rows times a factor, the same array if it is 1."""
    if factor == 1.0:
        return rows
    out = empty(rows.shape, rows.dtype)
    launch_threads(_multiply, out.size, rows.reshape(-1), factor, out.reshape(-1))
    return out


def column_sums(rows: Any) -> FloatArray:
    """Return the sums of columns and of their absolute values in float64, (2, F)."""
    out = empty((_NUM_ROW_BLOCKS, 2, rows.shape[1]), np.float64)
    launch_threads(_sum_columns, _NUM_ROW_BLOCKS * rows.shape[1], rows, out)
    totals: FloatArray = out.copy_to_host().sum(axis=0)
    return totals


def are_rows(ids: Any, num_rows: int) -> bool:
    """Return whether `ids` are strictly increasing within ``range(num_rows)``."""
    return first_offender(launch_threads, _find_not_rising, ids.size, ids, num_rows) is None


def can_step(ids: Any, gradients: Any, table: Any, limit: float, largest: float) -> bool:
    """Return whether `ids` are rows of the table, and gradients are at most `limit` in size.

    Unlike on the CPU, entries of the table are not checked.
    """
    return are_rows(ids, table.shape[0]) and first_outside(gradients, -limit, limit) is None


def step_rows(
    rows_kernel: Callable[..., None],
    ids: Any,
    gradients: Any,
    table: Any,
    states: tuple[Any, ...],
    numbers: tuple[Any, ...],
) -> None:
    """Call an optimizer's kernel for rows `ids` (k,) of a table (n, d).

    `gradients` are (k, d). The table and its states are updated in place.
    """
    # an empty tuple has no type in Numba
    kernel_states = states or (gradients,)
    step = _step_kernel(rows_kernel, len(kernel_states))
    launch_threads(step, gradients.size, ids, gradients, table, kernel_states, numbers)


def write_features(X: Any, out: Any, of_rows: Any, of_products: Callable[[Any], Any]) -> None:
    """Write the features of `X` (N, d) to `out` (N, F), each a function of one product.

    ``of_products(X)`` returns columns (d, D), a compiled function of their products with rows, and
    its parameters: see `samplesoft.kernels.tiles_cuda`.
    """
    columns, finish, parameters = of_products(X)
    multiply(finish, X, columns, out, parameters)


def split(num: int, size: int, numbers: int) -> list[slice]:
    """Return chunks of `num` items that fit in memory with `numbers` values for each item."""
    return chunks(num, max(1, _CHUNK_VALUES // numbers))


def columns(num: int) -> list[tuple[int, int]]:
    """Return a single range of all `num` columns, which lanes share."""
    return [(0, num)]


def stages(starts: IntArray) -> list[slice]:
    """Return the slices of a list of steps that a kernel processes in one launch each.

    Stages begin at `starts`, whose last entry is the end; each reads results of the one before.
    """
    return [slice(first, last) for first, last in zip(starts[:-1], starts[1:], strict=True)]


def take_rows(rows: Any, index: Any) -> Any:
    """Return ``rows[index]``; `index` may be on the host."""
    index = index if on_device(index) else to_device(index)
    out = empty((index.shape[0], rows.shape[1]), rows.dtype)
    launch_threads(_take_rows, out.size, rows, index, out)
    return out


def put_rows(rows: Any, index: IntArray, out: Any) -> None:
    """Write `rows` (k, d) to distinct rows `index` (k,) of `out`."""
    launch_threads(_put_rows, rows.size, rows, to_device(index), out)


def joined(rows: Any, others: Any) -> Any:
    """Return the concatenation of two arrays of rows."""
    both = empty((rows.shape[0] + others.shape[0], rows.shape[1]), rows.dtype)
    both[: rows.shape[0]].copy_to_device(rows)
    both[rows.shape[0] :].copy_to_device(others)
    return both


def float_rows(
    name: str, value: Any, dim: int | None = None, dtype: np.dtype[Any] | None = None
) -> Any:
    """Return `value` as finite rows (N, `dim`) in C order, float32 or float64."""
    if not on_device(value):
        return to_device(as_float_rows(name, value, dim, dtype))
    rows = _rows(name, value, dim, dtype)
    index = first_not_finite(rows)
    if index is not None:
        position = [index // rows.shape[1], index % rows.shape[1]]
        raise ValueError(
            f"`{name}` must be finite in {rows.dtype}, got {_number(rows, index)} at index "
            f"{position}; remove or replace NaN and infinite entries first."
        )
    return rows


def shaped_rows(name: str, value: Any) -> Any:
    """Return rows (N, d) in C order; entries of device arrays are not checked."""
    return _rows(name, value) if on_device(value) else to_device(as_float_rows(name, value))


def _rows(name: str, value: Any, dim: int | None = None, dtype: np.dtype[Any] | None = None) -> Any:
    """Return a device array as rows (N, `dim`) in C order."""
    allowed = (dtype,) if dtype else (np.float32, np.float64)
    rows = contiguous(name, value, *allowed)
    rows = rows.reshape(1, -1) if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.size == 0:
        raise ValueError(f"`{name}` must be rows of shape (N, d), not empty, got {rows.shape}.")
    if dim is not None and rows.shape[1] != dim:
        raise ValueError(f"`{name}` must have {dim} columns, got shape {rows.shape}.")
    return rows


def vector(name: str, value: Any, size: int, dtype: np.dtype[Any]) -> Any:
    """Return values (size,) in a dtype."""
    if not on_device(value):
        return to_device(cpu.vector(name, value, size, dtype))
    vector = contiguous(name, value, dtype)
    if vector.shape != (size,):
        raise ValueError(f"`{name}` must have shape ({size},), got {vector.shape}.")
    return vector


def ids(name: str, value: Any, num_classes: int, batch: int | None = None) -> Any:
    """Return class indices as int64: (k,), or (batch, k) where a batch is given."""
    if not on_device(value):
        return to_device(as_ids(name, value, num_classes, batch))
    if batch is None:
        return _classes(name, value, num_classes, len(value.shape) == 1, "(k,)")
    fits = len(value.shape) == 2 and value.shape[0] == batch
    return _classes(name, value, num_classes, fits, f"({batch}, k)")


def labels(name: str, value: Any, num_classes: int, batch_shape: tuple[int, ...]) -> Any:
    """Return labels as int64 of shape `batch_shape`, each in ``range(num_classes)``."""
    if not on_device(value):
        return to_device(as_labels(name, value, num_classes, batch_shape))
    fits = tuple(value.shape) == batch_shape
    return _classes(name, value, num_classes, fits, str(batch_shape))


def _classes(name: str, value: Any, num_classes: int, fits: bool, shape: str) -> Any:
    """Return checked class indices on the device. `fits` is False for an unexpected shape."""
    array = contiguous(name, value, np.int64)
    if not fits:
        raise ValueError(f"`{name}` must have shape {shape}, got {array.shape}.")
    index = first_outside(array, 0, num_classes - 1)
    if index is not None:
        raise ValueError(
            f"`{name}` must lie in 0..{num_classes - 1} for {num_classes} classes, got "
            f"{_number(array, index)}."
        )
    return array


def _number(array: Any, index: int) -> Any:
    """Return the value at a flat index."""
    return array.reshape(-1)[index : index + 1].copy_to_host()[0]


@kernel
def _multiply(values: Any, factor: float, out: Any) -> None:
    i = thread_index()
    if i < out.shape[0]:
        out[i] = values[i] * factor


@kernel
def _take_rows(rows: Any, index: Any, out: Any) -> None:
    i = thread_index() // out.shape[1]
    f = thread_index() % out.shape[1]
    if i < out.shape[0]:
        out[i, f] = rows[index[i], f]


@kernel
def _put_rows(rows: Any, index: Any, out: Any) -> None:
    i = thread_index() // rows.shape[1]
    f = thread_index() % rows.shape[1]
    if i < rows.shape[0]:
        out[index[i], f] = rows[i, f]


@kernel
def _find_outside(values: Any, least: Any, most: Any, found: Any) -> None:
    """Write the smallest index of a value outside to ``found[0]``, which is larger before."""
    i = thread_index()
    # negated condition, so that NaN is found too
    if i < values.shape[0] and not least <= values[i] <= most:
        cuda.atomic.min(found, 0, i)


@kernel
def _find_not_rising(ids: Any, stop: int, found: Any) -> None:
    """Find the first of ids (k,) that does not increase, or is not in ``range(stop)``."""
    i = thread_index()
    if i < ids.shape[0]:
        # the smallest failing index wins
        before = ids[i - 1] if i > 0 else -1
        if not before < ids[i] < stop:
            cuda.atomic.min(found, 0, i)


@kernel
def _sum_columns(rows: Any, out: Any) -> None:
    block = thread_index() // rows.shape[1]
    f = thread_index() % rows.shape[1]
    if block >= out.shape[0]:
        return
    # one thread for each column and block of rows: one per column would wait for memory
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
    """Return the CUDA version of an optimizer's kernel, with one thread for each entry."""
    body = for_device(function)

    def step(ids: Any, gradients: Any, parameters: Any, states: Any, numbers: Any) -> None:
        place = thread_index()
        width = gradients.shape[1]
        i = place // width
        c = place % width
        if i < ids.shape[0]:
            # the CPU kernel on slices of one entry, so that formulas are written once
            one = ids[i : i + 1], gradients[i : i + 1, c : c + 1], parameters[:, c : c + 1]
            if num_states == 2:
                body(*one, (states[0][:, c : c + 1], states[1][:, c : c + 1]), numbers)
            else:
                body(*one, (states[0][:, c : c + 1],), numbers)

    step.__name__ = f"{function.__name__}_on_device"
    return kernel(step)
