"""Arrays on a CUDA device: what a function takes, checked there, and small work on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
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
    run_on_warps,
    thread_index,
    to_device,
    warp_index,
    warp_max,
    warp_sum,
)
from samplesoft._device.arrays import HostArrays, no_norm
from samplesoft._device.select import on_device, to_host
from samplesoft._validation import IntArray, as_float_rows, as_ids, as_labels
from samplesoft.kernels import (
    lanes_cuda,  # noqa: F401, what takes the place of `kernels.lanes`
    sort_ids,
)


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


def joined(rows: Any, others: Any) -> Any:
    """Return some rows (k, d) and others after them."""
    both = empty((rows.shape[0] + others.shape[0], rows.shape[1]), rows.dtype)
    both[: rows.shape[0]].copy_to_device(rows)
    both[rows.shape[0] :].copy_to_device(others)
    return both


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


def unit_rows(name: str, rows: Any, ids: Any = None) -> tuple[Any, Any]:
    """Divide rows (N, d) by their norms (N,), in place; `ids` is what they are called."""
    norms = empty(rows.shape[0], np.float64)
    launch_warps(divide_by_norms, rows.shape[0], rows, norms)
    range_of = np.finfo(np.float64)
    row = first_outside(norms, range_of.smallest_subnormal, range_of.max)
    if row is not None:
        named = row if ids is None else int(ids[row : row + 1].copy_to_host()[0])
        raise no_norm(name, float(norms[row : row + 1].copy_to_host()[0]), named)
    return rows, norms


def unit_rows_backward(d_unit: Any, unit: Any, norms: Any) -> Any:
    """Turn derivatives in the normalised rows, in place, into those in the rows."""
    launch_warps(unit_gradient, unit.shape[0], d_unit, unit, norms)
    return d_unit


def times(rows: Any, factor: float) -> Any:
    """Return rows times a number, or themselves where that is 1."""
    return rows if factor == 1.0 else cast(rows, rows.dtype, factor)


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
    copied = staticmethod(copied)
    placed = staticmethod(to_device)
    run = staticmethod(run_on_warps)
    take_rows = staticmethod(take_rows)
    put_rows = staticmethod(put_rows)
    joined = staticmethod(joined)
    last_of_each = staticmethod(last_of_each)
    union = staticmethod(union)
    times = staticmethod(times)
    unit_rows = staticmethod(unit_rows)
    unit_rows_backward = staticmethod(unit_rows_backward)
    plus = _through_host(HostArrays.plus)
    take_numbers = _through_host(HostArrays.take_numbers)
    repeat_row = _through_host(HostArrays.repeat_row)
    log_mean = _through_host(HostArrays.log_mean)
    mean = _through_host(HostArrays.mean)

    @staticmethod
    def writable(array: Any) -> Any:
        """Return the array itself: all on the device can be written."""
        return array

    @staticmethod
    def workers(num: int) -> int:
        """Return how many workers share out `num` things to do: see `kernels.lanes`."""
        return num

    @staticmethod
    def each(work: Callable[[Any], object], parts: Iterable[Any]) -> None:
        """Call `work` for one part after another, in which warps share the work."""
        for part in parts:
            work(part)

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
    def shaped_rows(name: str, value: Any) -> Any:
        """Return rows (N, d) in C order; those on the device are too many to be read through."""
        return shaped_rows(name, value) if on_device(value) else CudaArrays.float_rows(name, value)

    @staticmethod
    def vector(name: str, value: Any, size: int, dtype: np.dtype[Any]) -> Any:
        """Return numbers (size,) of a type."""
        if not on_device(value):
            return to_device(HostArrays.vector(name, value, size, dtype))
        vector = contiguous(name, value, dtype)
        if vector.shape != (size,):
            raise ValueError(f"`{name}` must have shape ({size},), got {vector.shape}.")
        return vector

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


@kernel
def divide_by_norms(rows: Any, norms: Any) -> None:
    """Divide each of `rows` (N, d) by its norm, unless that is 0 or not finite."""
    i = warp_index()
    if i >= rows.shape[0]:
        return
    greatest = 0.0  # keeps NaN, of which no comparison holds
    for f in range(lane(), rows.shape[1], WARP_SIZE):
        size = abs(float(rows[i, f]))
        greatest = size if not size <= greatest else greatest
    greatest = warp_max(greatest)
    square = 0.0
    if 0.0 < greatest < math.inf:  # so that no square leaves the range
        for f in range(lane(), rows.shape[1], WARP_SIZE):
            part = float(rows[i, f]) / greatest
            square += part * part
        square = warp_sum(square)
        for f in range(lane(), rows.shape[1], WARP_SIZE):
            rows[i, f] = float(rows[i, f]) / greatest / math.sqrt(square)
    if lane() == 0:
        norms[i] = greatest * math.sqrt(square) if greatest < math.inf else greatest


@kernel
def unit_gradient(d_unit: Any, unit: Any, norms: Any) -> None:
    """Turn `d_unit` (N, d), the derivative in ``x / |x|``, into that in x, a warp for each row."""
    i = warp_index()
    if i >= unit.shape[0]:
        return
    along = 0.0
    for f in range(lane(), unit.shape[1], WARP_SIZE):
        along += float(unit[i, f]) * float(d_unit[i, f])
    along = warp_sum(along)
    for f in range(lane(), unit.shape[1], WARP_SIZE):
        d_unit[i, f] = (float(d_unit[i, f]) - along * float(unit[i, f])) / norms[i]
