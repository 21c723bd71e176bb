"""Arrays on a CUDA device: what a function takes, checked there, and small work on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from samplesoft._cuda import (
    as_device_array,
    available_bytes,
    cuda,
    empty,
    first_found,
    kernel,
    launch_threads,
    thread_index,
    to_device,
)
from samplesoft._device.arrays import HostArrays
from samplesoft._device.select import on_device
from samplesoft._validation import IntArray, as_float_rows, as_ids, as_labels
from samplesoft.kernels import sort_ids
from samplesoft.kernels.lanes_cuda import run_on_warps


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


class CudaArrays(HostArrays):
    """The twin of `HostArrays`, for arrays on a CUDA device.

    What is there is used as it is; what is not is checked as for the processor, then copied.
    """

    available_bytes: Callable[[], float | None] = staticmethod(available_bytes)
    empty = staticmethod(empty)
    placed = staticmethod(to_device)
    run: Callable[..., None] = staticmethod(run_on_warps)

    @staticmethod
    def copied(array: Any) -> Any:
        """Return a copy of an array."""
        out = empty(array.shape, array.dtype)
        out.copy_to_device(array)
        return out

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
    def over_rows(kernel: Callable[..., None], *arrays: Any) -> None:
        """Call a kernel that goes through the rows of arrays, a warp for each."""
        run_on_warps(kernel, arrays[0].shape[0], *arrays)

    @staticmethod
    def times(rows: Any, factor: float) -> Any:
        """Return rows times a number, or themselves where that is 1."""
        if factor == 1.0:
            return rows
        out = empty(rows.shape, rows.dtype)
        launch_threads(_multiply, out.size, rows.reshape(-1), factor, out.reshape(-1))
        return out

    @staticmethod
    def take_rows(rows: Any, places: Any) -> Any:
        """Return ``rows[places]``; `places` may lie on the processor."""
        places = places if on_device(places) else to_device(places)
        out = empty((places.shape[0], rows.shape[1]), rows.dtype)
        launch_threads(_take_rows, out.size, rows, places, out)
        return out

    @staticmethod
    def put_rows(rows: Any, places: IntArray, out: Any) -> None:
        """Write `rows` (k, d) to different places (k,) of `out`."""
        launch_threads(_put_rows, rows.size, rows, to_device(places), out)

    @staticmethod
    def joined(rows: Any, others: Any) -> Any:
        """Return some rows (k, d) and others after them."""
        both = empty((rows.shape[0] + others.shape[0], rows.shape[1]), rows.dtype)
        both[: rows.shape[0]].copy_to_device(rows)
        both[rows.shape[0] :].copy_to_device(others)
        return both

    @staticmethod
    def float_rows(
        name: str, value: Any, dim: int | None = None, dtype: np.dtype[Any] | None = None
    ) -> Any:
        """Return `value` as finite rows (N, `dim`) in C order, float32 or float64."""
        if not on_device(value):
            return to_device(as_float_rows(name, value, dim, dtype))
        rows = CudaArrays.shaped_rows(name, value, dim, dtype)
        place = first_not_finite(rows)
        if place is not None:
            where = [place // rows.shape[1], place % rows.shape[1]]
            raise ValueError(
                f"`{name}` must be finite in {rows.dtype}, got {_number(rows, place)} at index "
                f"{where}; remove or replace NaN and infinite entries first."
            )
        return rows

    @staticmethod
    def shaped_rows(
        name: str, value: Any, dim: int | None = None, dtype: np.dtype[Any] | None = None
    ) -> Any:
        """Return rows (N, `dim`) in C order; those on the device are too many to be read."""
        if not on_device(value):
            return to_device(as_float_rows(name, value, dim, dtype))
        wanted = (dtype,) if dtype else (np.float32, np.float64)
        rows = contiguous(name, value, *wanted)
        rows = rows.reshape(1, -1) if rows.ndim == 1 else rows
        if rows.ndim != 2 or rows.size == 0:
            raise ValueError(f"`{name}` must be rows of shape (N, d), not empty, got {rows.shape}.")
        if dim is not None and rows.shape[1] != dim:
            raise ValueError(f"`{name}` must have {dim} columns, got shape {rows.shape}.")
        return rows

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
        if batch is None:
            return _classes(name, value, num_classes, len(value.shape) == 1, "(k,)")
        fits = len(value.shape) == 2 and value.shape[0] == batch
        return _classes(name, value, num_classes, fits, f"({batch}, k)")

    @staticmethod
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
    i, f = thread_index() // out.shape[1], thread_index() % out.shape[1]
    if i < out.shape[0]:
        out[i, f] = rows[places[i], f]


@kernel
def _put_rows(rows: Any, places: Any, out: Any) -> None:
    i, f = thread_index() // rows.shape[1], thread_index() % rows.shape[1]
    if i < rows.shape[0]:
        out[places[i], f] = rows[i, f]


@kernel
def _find_outside(values: Any, least: Any, most: Any, found: Any) -> None:
    """Write the place of the first offender to ``found[0]``, which holds a greater one before."""
    i = thread_index()
    # asked for what must hold, so that NaN is found too
    if i < values.shape[0] and not least <= values[i] <= most:
        cuda.atomic.min(found, 0, i)
