"""A CUDA device: arrays that functions take, checked, small work on arrays, and launches.

`samplesoft._device.cpu` has the same functions. What is on the device already is used as it is;
what is not is checked as for the processor, then copied.
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
    first_found,
    kernel,
    launch_threads,
    thread_index,
    to_device,
)
from samplesoft._cuda import available_bytes as available_bytes
from samplesoft._cuda import empty as empty
from samplesoft._device import cpu
from samplesoft._device.select import on_device
from samplesoft._jit import chunks
from samplesoft._validation import FloatArray, IntArray, as_float_rows, as_ids, as_labels
from samplesoft.kernels import sort_ids
from samplesoft.kernels.lanes_cuda import for_device, run_on_warps
from samplesoft.kernels.tiles_cuda import multiply

_NUMBERS = 1 << 26  # held at a time, of parts
_PARTS = 64  # of the rows whose columns are summed side by side

placed = to_device
viewed = as_device_array
run = run_on_warps


def equal_runs(ids: Any, stop: int) -> tuple[Any, Any, Any, Any]:
    """Return what `sort_ids.equal_runs` does for ids (K,) below `stop`, but for the last start."""
    unique, inverse, order, starts = sort_ids.equal_runs(ids.copy_to_host(), stop)
    return to_device(unique), to_device(inverse), to_device(order), to_device(starts[:-1])


def first_outside(values: Any, least: Any, most: Any) -> int | None:
    """Return the place, counted through an array, of the first number not in [least, most]."""
    # a search asks by one number, whatever the shape
    flat = values if values.ndim == 1 else values.reshape(-1)
    return first_found(launch_threads, _find_outside, flat.size, flat, least, most)


def first_not_finite(values: Any) -> int | None:
    """Return the place, counted through an array, of the first NaN or infinity."""
    most = np.finfo(values.dtype).max
    return first_outside(values, -most, most)


def contiguous(name: str, value: Any, *dtypes: DTypeLike) -> Any:
    """Return Numba's view of an array on the device, in C order and of one of some types."""
    array = as_device_array(value)
    if array.dtype not in dtypes:
        wanted = " or ".join(np.dtype(dtype).name for dtype in dtypes)
        raise TypeError(
            f"`{name}` on the device must be of {wanted}, got {array.dtype}; convert it there, or "
            "pass a NumPy array."
        )
    if not array.flags["C_CONTIGUOUS"]:
        raise ValueError(
            f"`{name}` on the device must be C-contiguous, got strides {array.strides} for shape "
            f"{array.shape}; copy it there first."
        )
    return array


def typed(name: str, value: Any, dtype: DTypeLike) -> Any:
    """Return numbers of a type in C order; `name` is for errors."""
    if not on_device(value):
        return to_device(np.asarray(value, dtype))
    return contiguous(name, value, dtype)


def copied(array: Any) -> Any:
    """Return a copy of an array."""
    out = empty(array.shape, array.dtype)
    out.copy_to_device(array)
    return out


def writable(array: Any) -> Any:
    """Return an array, or a copy of one that is not yet on the device, where all can be written."""
    return array if on_device(array) else to_device(array)


def workers(num: int) -> int:
    """Return how many workers share out `num` things to do: see `kernels.lanes`."""
    return num


def each(work: Callable[[Any], object], parts: Iterable[Any]) -> None:
    """Call `work` for one part after another, in which warps share the work."""
    for part in parts:
        work(part)


def over_rows(kernel: Callable[..., None], *arrays: Any) -> None:
    """Call a kernel that goes through the rows of arrays, a warp for each."""
    run_on_warps(kernel, arrays[0].shape[0], *arrays)


def times(rows: Any, factor: float) -> Any:
    """Return rows times a number, or themselves where that is 1."""
    if factor == 1.0:
        return rows
    out = empty(rows.shape, rows.dtype)
    launch_threads(_multiply, out.size, rows.reshape(-1), factor, out.reshape(-1))
    return out


def column_sums(rows: Any) -> FloatArray:
    """Return the sums of columns and of their absolute values in float64, (2, F)."""
    out = empty((_PARTS, 2, rows.shape[1]), np.float64)
    launch_threads(_sum_columns, _PARTS * rows.shape[1], rows, out)
    totals: FloatArray = out.copy_to_host().sum(axis=0)
    return totals


def are_rows(ids: Any, num_rows: int) -> bool:
    """Tell whether `ids` ascend, each once, within ``range(num_rows)``."""
    return first_found(launch_threads, _find_not_rising, ids.size, ids, num_rows) is None


def can_step(ids: Any, gradients: Any, table: Any, limit: float, largest: float) -> bool:
    """Tell whether `ids` are rows of a table, and no number of `gradients` is beyond a limit.

    Numbers of the table are not read, as they are on the processor.
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
    """Call a kernel of an optimizer for rows `ids` (k,) of a table (n, d).

    `gradients` are (k, d); a table and its states change in place.
    """
    # without a state the tuple may not be empty, which has no type for the compiler
    held = states or (gradients,)
    step = _step_kernel(rows_kernel, len(held))
    launch_threads(step, gradients.size, ids, gradients, table, held, numbers)


def write_features(X: Any, out: Any, of_rows: Any, of_products: Callable[[Any], Any]) -> None:
    """Write the features of `X` (N, d) into `out` (N, F), each a function of one product.

    ``of_products(X)`` returns columns (d, D), a compiled function for their products with a row,
    and what it takes besides: see `samplesoft.kernels.tiles_cuda`.
    """
    columns, finish, parameters = of_products(X)
    multiply(finish, X, columns, out, parameters)


def split(num: int, size: int, numbers: int) -> list[slice]:
    """Return parts of `num` things, each with so many `numbers`, of as many as memory is for."""
    return chunks(num, max(1, _NUMBERS // numbers))


def columns(num: int) -> list[tuple[int, int]]:
    """Return the one range of all `num` columns, which lanes share out."""
    return [(0, num)]


def stages(starts: IntArray) -> list[slice]:
    """Return the parts of a list that begin at `starts`, whose last is the end.

    A launch for each: later parts read what earlier ones have left.
    """
    return [slice(first, last) for first, last in zip(starts[:-1], starts[1:], strict=True)]


def take_rows(rows: Any, places: Any) -> Any:
    """Return ``rows[places]``; `places` may lie on the processor."""
    places = places if on_device(places) else to_device(places)
    out = empty((places.shape[0], rows.shape[1]), rows.dtype)
    launch_threads(_take_rows, out.size, rows, places, out)
    return out


def put_rows(rows: Any, places: IntArray, out: Any) -> None:
    """Write `rows` (k, d) to different places (k,) of `out`."""
    launch_threads(_put_rows, rows.size, rows, to_device(places), out)


def joined(rows: Any, others: Any) -> Any:
    """Return some rows (k, d) and others after them."""
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
    place = first_not_finite(rows)
    if place is not None:
        where = [place // rows.shape[1], place % rows.shape[1]]
        raise ValueError(
            f"`{name}` must be finite in {rows.dtype}, got {_number(rows, place)} at index "
            f"{where}; remove or replace NaN and infinite entries first."
        )
    return rows


def shaped_rows(name: str, value: Any) -> Any:
    """Return rows (N, d) in C order; those on the device are too many to be read."""
    return _rows(name, value) if on_device(value) else to_device(as_float_rows(name, value))


def _rows(name: str, value: Any, dim: int | None = None, dtype: np.dtype[Any] | None = None) -> Any:
    """Return what is on the device as rows (N, `dim`) in C order."""
    wanted = (dtype,) if dtype else (np.float32, np.float64)
    rows = contiguous(name, value, *wanted)
    rows = rows.reshape(1, -1) if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.size == 0:
        raise ValueError(f"`{name}` must be rows of shape (N, d), not empty, got {rows.shape}.")
    if dim is not None and rows.shape[1] != dim:
        raise ValueError(f"`{name}` must have {dim} columns, got shape {rows.shape}.")
    return rows


def vector(name: str, value: Any, size: int, dtype: np.dtype[Any]) -> Any:
    """Return numbers (size,) of a type."""
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
    """Return class indices on the device; `fits` says whether they are of the wanted shape."""
    array = contiguous(name, value, np.int64)
    if not fits:
        raise ValueError(f"`{name}` must have shape {shape}, got {array.shape}.")
    place = first_outside(array, 0, num_classes - 1)
    if place is not None:
        raise ValueError(
            f"`{name}` must lie in 0..{num_classes - 1} for {num_classes} classes, got "
            f"{_number(array, place)}."
        )
    return array


def _number(array: Any, place: int) -> Any:
    """Return the number at a place, counted through an array."""
    return array.reshape(-1)[place : place + 1].copy_to_host()[0]


@kernel
def _multiply(values: Any, factor: float, out: Any) -> None:
    i = thread_index()
    if i < out.shape[0]:
        out[i] = values[i] * factor


@kernel
def _take_rows(rows: Any, places: Any, out: Any) -> None:
    i = thread_index() // out.shape[1]
    f = thread_index() % out.shape[1]
    if i < out.shape[0]:
        out[i, f] = rows[places[i], f]


@kernel
def _put_rows(rows: Any, places: Any, out: Any) -> None:
    i = thread_index() // rows.shape[1]
    f = thread_index() % rows.shape[1]
    if i < rows.shape[0]:
        out[places[i], f] = rows[i, f]


@kernel
def _find_outside(values: Any, least: Any, most: Any, found: Any) -> None:
    """Write the place of the first offender to ``found[0]``, which holds a greater one before."""
    i = thread_index()
    # asked for what must hold, so that NaN is found too
    if i < values.shape[0] and not least <= values[i] <= most:
        cuda.atomic.min(found, 0, i)


@kernel
def _find_not_rising(ids: Any, stop: int, found: Any) -> None:
    """Look for ids (k,) that do not rise, or are not in ``range(stop)``, a thread for each."""
    i = thread_index()
    if i < ids.shape[0]:
        # neighbours are compared, and the least place that fails wins
        before = ids[i - 1] if i > 0 else -1
        if not before < ids[i] < stop:
            cuda.atomic.min(found, 0, i)


@kernel
def _sum_columns(rows: Any, out: Any) -> None:
    part = thread_index() // rows.shape[1]
    f = thread_index() % rows.shape[1]
    if part >= out.shape[0]:
        return
    # a thread for each column of a part: 64 of them, for one alone would wait for memory
    each = -(-rows.shape[0] // out.shape[0])
    total = 0.0
    size = 0.0
    for i in range(part * each, min((part + 1) * each, rows.shape[0])):
        total += float(rows[i, f])
        size += abs(float(rows[i, f]))
    out[part, 0, f] = total
    out[part, 1, f] = size


@cache
def _step_kernel(function: Callable[..., None], num_states: int) -> Any:
    """Return the kernel that does what one of the processor does, a thread for each number."""
    body = for_device(function)

    def step(ids: Any, gradients: Any, parameters: Any, states: Any, numbers: Any) -> None:
        place = thread_index()
        width = gradients.shape[1]
        i = place // width
        c = place % width
        if i < ids.shape[0]:
            # the processor's kernel does one number, so that the formulas stand once
            one = ids[i : i + 1], gradients[i : i + 1, c : c + 1], parameters[:, c : c + 1]
            if num_states == 2:
                body(*one, (states[0][:, c : c + 1], states[1][:, c : c + 1]), numbers)
            else:
                body(*one, (states[0][:, c : c + 1],), numbers)

    step.__name__ = f"{function.__name__}_on_device"
    return kernel(step)
