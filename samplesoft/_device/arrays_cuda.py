"""Arrays on a CUDA device: what a function takes, checked there, and what it returns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from samplesoft._cuda import (
    as_device_array,
    available_bytes,
    empty,
    first_found,
    launch_threads,
    launch_warps,
    to_device,
)
from samplesoft._device.select import on_device
from samplesoft._validation import as_float_rows, as_ids, as_labels
from samplesoft.kernels.arrays import elementwise_cuda as kernels
from samplesoft.kernels.arrays.checks_cuda import find_norm_outside, find_outside


def filled(shape: int | tuple[int, ...], value: Any) -> Any:
    """Return an array of one number, of its type."""
    out = empty(shape, np.asarray(value).dtype)
    launch_threads(kernels.fill, out.size, out.reshape(-1), out.dtype.type(value))
    return out


def plus(array: Any, number: float) -> Any:
    """Return ``array + number``, float64."""
    out = empty(array.shape, np.float64)
    launch_threads(kernels.add, out.size, array.reshape(-1), number, out.reshape(-1))
    return out


def cast(array: Any, dtype: DTypeLike, factor: float = 1.0) -> Any:
    """Return an array in another type, times a factor."""
    out = empty(array.shape, dtype)
    launch_threads(kernels.cast, out.size, array.reshape(-1), factor, out.reshape(-1))
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
    launch_threads(kernels.take_rows, out.size, rows, places, out)
    return out


def take_numbers(numbers: Any, rows: Any, columns: Any) -> Any:
    """Return ``numbers[rows, columns]`` as a row (1, k); the places lie on the processor."""
    out = empty((1, len(rows)), numbers.dtype)
    launch_threads(kernels.take_numbers, out.size, numbers, *map(to_device, (rows, columns)), out)
    return out


def repeat_row(row: Any, batch: int) -> Any:
    """Return a row (1, k) as often as there are examples, (B, k)."""
    out = empty((batch, row.shape[1]), row.dtype)
    launch_threads(kernels.repeat_row, out.size, row, out)
    return out


def log_mean(logs: Any, shares: Any) -> Any:
    """Return the log of the mean of exp over columns of (R, k) by shares (R,), as (1, k)."""
    out = empty((1, logs.shape[1]), np.float64)
    launch_warps(kernels.log_mean, out.size, logs, to_device(shares), out)
    return out


def mean(rows: Any, shares: Any) -> Any:
    """Return the mean of rows (R, n) by shares (R,), as a row (1, n)."""
    return to_device(shares[None] @ rows.copy_to_host())


def first_outside(values: Any, least: Any, most: Any) -> int | None:
    """Return the place, counted through an array, of the first number not in [least, most]."""
    flat = values if values.ndim == 1 else values.reshape(-1)
    return first_found(launch_threads, find_outside, flat.size, flat, least, most)


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


class CudaArrays:
    """Checks of arrays that a function takes, and small work on arrays, on a CUDA device.

    What is there is used as it is; what is not is checked as for the processor, then copied.
    """

    available_bytes = staticmethod(available_bytes)
    empty = staticmethod(empty)
    filled = staticmethod(filled)
    plus = staticmethod(plus)
    take_rows = staticmethod(take_rows)
    take_numbers = staticmethod(take_numbers)
    repeat_row = staticmethod(repeat_row)
    log_mean = staticmethod(log_mean)
    mean = staticmethod(mean)

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
