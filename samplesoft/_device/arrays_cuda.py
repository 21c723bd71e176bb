"""Arrays on a CUDA device: what a function takes, checked there, and small work on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from samplesoft._cuda import (
    WARP_SIZE,
    as_device_array,
    available_bytes,
    cuda,
    empty,
    first_found,
    kernel,
    lane,
    launch_threads,
    launch_warps,
    thread_index,
    to_device,
    warp_index,
    warp_max,
    warp_sum,
)
from samplesoft._device.arrays import HostArrays
from samplesoft._device.select import on_device, to_host
from samplesoft._jit import chunks
from samplesoft._validation import IntArray, as_float_rows, as_ids, as_labels
from samplesoft.kernels import sort_ids

_NUMBERS = 1 << 26  # numbers about a batch held at a time


def filled(shape: int | tuple[int, ...], value: Any) -> Any:
    """Return an array of one number, of its type."""
    return to_device(np.full(shape, value))


def cast(array: Any, dtype: DTypeLike, factor: float = 1.0) -> Any:
    """Return an array in another type, times a factor."""
    out = empty(array.shape, dtype)
    launch_threads(_cast, out.size, array.reshape(-1), factor, out.reshape(-1))
    return out


def copied(array: Any) -> Any:
    """Return a copy of an array, on the device too."""
    out = empty(array.shape, array.dtype)
    out.copy_to_device(array)
    return out


def take_rows(rows: Any, places: Any) -> Any:
    """Return ``rows[places]``; `places` may lie on the processor."""
    places = places if on_device(places) else to_device(places)
    out = empty((places.shape[0], rows.shape[1]), rows.dtype)
    launch_threads(_take_rows, out.size, rows, places, out)
    return out


def put_rows(rows: Any, places: IntArray, out: Any) -> None:
    """Write `rows` (k, d) to different places (k,) of `out`."""
    launch_threads(_put_rows, rows.size, rows, to_device(places), out)


# Ids are sorted on the processor: some thousands of them come and go in less time than a sort on
# the device takes to be launched, digit by digit.


def equal_runs(ids: Any, stop: int) -> tuple[Any, Any, Any, Any]:
    """Return what `sort_ids.equal_runs` does for ids (K,) below `stop`, but for the last start."""
    unique, inverse, order, starts = sort_ids.equal_runs(ids.copy_to_host(), stop)
    return to_device(unique), to_device(inverse), to_device(order), to_device(starts[:-1])


def union(arrays: list[Any], stop: int) -> Any:
    """Return the ids below `stop` that occur in some of the arrays, rising and each once."""
    return to_device(np.unique(np.concatenate([array.copy_to_host() for array in arrays])))


def last_of_each(ids: Any, rows: Any) -> tuple[IntArray, Any]:
    """Return ids (U,), rising and each once, on the processor, and the last row (U, d) of each."""
    # reversed, for `np.unique` returns the first place of each
    unique, last = np.unique(ids.copy_to_host()[::-1], return_index=True)
    return unique, take_rows(rows, ids.shape[0] - 1 - last)


def in_parts(work: Callable[..., None], each: int, *arrays: Any) -> None:
    """Call `work` on arrays (B, ...) for some examples at a time; one takes `each` numbers."""
    batch = arrays[0].shape[0]
    # slices share memory with the whole: results are written where they belong
    for part in chunks(batch, max(1, _NUMBERS // each)):
        work(*(array[part] for array in arrays))


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


def shaped_rows(
    name: str, value: Any, dim: int | None = None, dtype: np.dtype[Any] | None = None
) -> Any:
    """Return an array on the device as rows (N, `dim`), which may not be finite."""
    wanted = (dtype,) if dtype else (np.float32, np.float64)
    rows = contiguous(name, value, *wanted)
    rows = rows.reshape(1, -1) if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.size == 0:
        raise ValueError(f"`{name}` must be rows of shape (N, d), not empty, got {rows.shape}.")
    if dim is not None and rows.shape[1] != dim:
        raise ValueError(f"`{name}` must have {dim} columns, got shape {rows.shape}.")
    return rows


def _through_host(work: Callable[..., Any]) -> Any:
    """Return what `work` does, as a method, for arrays so small that they had better travel."""
    return staticmethod(lambda *arguments: to_device(work(*map(to_host, arguments))))


class CudaArrays:
    """Checks of arrays that a function takes, and small work on arrays, on a CUDA device.

    What is there is used as it is; what is not is checked as for the processor, then copied.
    """

    available_bytes = staticmethod(available_bytes)
    empty = staticmethod(empty)
    filled = staticmethod(filled)
    take_rows = staticmethod(take_rows)
    plus = _through_host(HostArrays.plus)
    take_numbers = _through_host(HostArrays.take_numbers)
    repeat_row = _through_host(HostArrays.repeat_row)
    log_mean = _through_host(HostArrays.log_mean)
    mean = _through_host(HostArrays.mean)

    @staticmethod
    def norm_outside(rows: Any, least: float, most: float) -> tuple[int, float] | None:
        """Return the place and the norm of a row (N, d) whose norm is outside [least, most]."""
        row = first_found(launch_warps, find_norm_outside, rows.shape[0], rows, least, most)
        if row is None:
            return None
        return row, float(np.linalg.norm(rows[row : row + 1].copy_to_host().astype(np.float64)))

    @staticmethod
    def float_rows(
        name: str, value: Any, dim: int | None = None, dtype: np.dtype[Any] | None = None
    ) -> Any:
        """Return `value` as finite rows (N, `dim`) in C order, float32 or float64."""
        if not on_device(value):
            return to_device(as_float_rows(name, value, dim, dtype))
        rows = shaped_rows(name, value, dim, dtype)
        place = first_not_finite(rows)
        if place is not None:
            where = [place // rows.shape[1], place % rows.shape[1]]
            raise ValueError(
                f"`{name}` must be finite in {rows.dtype}, got "
                f"{rows.reshape(-1)[place : place + 1].copy_to_host()[0]} at index {where}; remove "
                "or replace NaN and infinite entries first."
            )
        return rows

    @staticmethod
    def ids(name: str, value: Any, num_classes: int, batch: int | None = None) -> Any:
        """Return class indices as int64: (k,), or (batch, k) where a batch is given."""
        if not on_device(value):
            return to_device(as_ids(name, value, num_classes, batch))
        array = contiguous(name, value, np.int64)
        if (batch is None and array.ndim != 1) or (
            batch is not None and (array.ndim != 2 or array.shape[0] != batch)
        ):
            shape = "(k,)" if batch is None else f"({batch}, k)"
            raise ValueError(f"`{name}` must have shape {shape}, got {array.shape}.")
        _require_classes(name, array, num_classes)
        return array

    @staticmethod
    def labels(name: str, value: Any, num_classes: int, batch_shape: tuple[int, ...]) -> Any:
        """Return labels as int64 of shape `batch_shape`, each in ``range(num_classes)``."""
        if not on_device(value):
            return to_device(as_labels(name, value, num_classes, batch_shape))
        array = contiguous(name, value, np.int64)
        if array.shape != batch_shape:
            raise ValueError(f"`{name}` must have shape {batch_shape}, got {array.shape}.")
        _require_classes(name, array, num_classes)
        return array


def _require_classes(name: str, array: Any, num_classes: int) -> None:
    place = first_outside(array, 0, num_classes - 1)
    if place is not None:
        bad = array.reshape(-1)[place : place + 1].copy_to_host()[0]
        raise ValueError(
            f"`{name}` must lie in 0..{num_classes - 1} for {num_classes} classes, got {bad}."
        )


@kernel
def _cast(values: Any, factor: float, out: Any) -> None:
    i = thread_index()
    if i < out.shape[0]:
        out[i] = values[i] * factor


@kernel
def _take_rows(rows: Any, places: Any, out: Any) -> None:
    i, f = thread_index() // out.shape[1], thread_index() % out.shape[1]
    if i < out.shape[0]:
        out[i, f] = rows[places[i], f]


@kernel
def _put_rows(rows: Any, places: Any, out: Any) -> None:
    i, f = thread_index() // rows.shape[1], thread_index() % rows.shape[1]
    if i < rows.shape[0]:
        out[places[i], f] = rows[i, f]


# Searches write the place of the first offender to ``found[0]``, which holds a greater number
# before. They ask what must hold, so that NaN is found too.


@kernel
def _find_outside(values: Any, least: Any, most: Any, found: Any) -> None:
    i = thread_index()
    if i < values.shape[0] and not least <= values[i] <= most:
        cuda.atomic.min(found, 0, i)


@kernel
def find_norm_outside(rows: Any, least: float, most: float, found: Any) -> None:
    """Look for rows (N, d) whose norm is not in [least, most], a warp for each row."""
    i = warp_index()
    if i >= rows.shape[0]:
        return
    square = 0.0
    for k in range(lane(), rows.shape[1], WARP_SIZE):
        square += float(rows[i, k]) * float(rows[i, k])
    square = warp_sum(square)
    if lane() == 0 and not least <= math.sqrt(square) <= most:
        cuda.atomic.min(found, 0, i)


@kernel
def find_greatest_outside(rows: Any, least: float, most: float, found: Any) -> None:
    """Look for rows (N, d) whose greatest number is not between both, a warp for each row."""
    i = warp_index()
    if i >= rows.shape[0]:
        return
    largest = rows[i, 0]
    for k in range(lane(), rows.shape[1], WARP_SIZE):
        if not rows[i, k] < most:  # here, for `max` drops NaN
            cuda.atomic.min(found, 0, i)
        largest = max(largest, rows[i, k])
    largest = warp_max(largest)
    if lane() == 0 and not least < largest:
        cuda.atomic.min(found, 0, i)
