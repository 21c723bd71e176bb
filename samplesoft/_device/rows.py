"""Operations on rows, written once for all devices; they run where the rows are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device import backend_of
from samplesoft._device.select import to_host
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels import rows as kernels


def squared_norms(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the squared norm of each row (N,), in the dtype of the rows."""
    arrays = backend_of(rows)
    norms = arrays.empty(rows.shape[0], rows.dtype)
    arrays.over_rows(kernels.squared_norms, rows, norms)
    return norms


def unit_rows(
    name: str, rows: NDArray[Any], ids: IntArray | None = None
) -> tuple[NDArray[Any], FloatArray]:
    """Divide rows (N, d) by their norms in place; return them, and their former norms (N,).

    Rows of zeros stay as they are, with norm 0. Error messages call the rows by `ids` (N,), if
    given, and the argument `name`.
    """
    arrays = backend_of(rows)
    norms = arrays.empty(rows.shape[0], np.float64)  # for rows of float32 too
    arrays.over_rows(kernels.divide_by_norms, rows, norms)
    host_norms = to_host(norms)
    is_finite = np.isfinite(host_norms)  # the kernel left other rows unchanged
    if not is_finite.all():
        worst = int(np.argmin(is_finite))
        row = worst if ids is None else int(to_host(ids)[worst])
        raise ValueError(
            f"`{name}` must have rows of a finite norm to be normalised, got {host_norms[worst]} "
            f"for row {row}; remove NaN and infinity, or lower the learning rate of what made them."
        )
    return rows, norms


def unit_rows_backward(d_unit: NDArray[Any], unit: NDArray[Any], norms: FloatArray) -> NDArray[Any]:
    """Replace gradients in the normalised rows by gradients in the rows, in place."""
    backend_of(d_unit).over_rows(kernels.unit_gradient, d_unit, unit, norms)
    return d_unit


def largest_in_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the largest absolute value in each row (N,), on the host."""
    arrays = backend_of(rows)
    largest = arrays.empty(rows.shape[0], rows.dtype)
    arrays.run(kernels.largest_in_rows, rows.shape[0], rows, largest)
    on_processor: NDArray[Any] = to_host(largest)
    return on_processor


# Ids are sorted on the CPU: copying a few thousand of them is faster than launching a radix sort
# on a GPU.


def union(ids: list[IntArray]) -> IntArray:
    """Return the union of arrays of ids, sorted."""
    host_ids: list[IntArray] = [to_host(array) for array in ids]
    # the common case needs no sort: one sorted array, as from a gradient
    if len(host_ids) == 1 and (host_ids[0][1:] > host_ids[0][:-1]).all():
        return ids[0]
    return backend_of(ids[0]).to_device(np.unique(np.concatenate(host_ids)))


def last_of_each(ids: IntArray, rows: NDArray[Any]) -> tuple[IntArray, NDArray[Any]]:
    """Return the distinct ids (k,), sorted and on the host, with the last row of each."""
    ids = to_host(ids)
    # the common case needs no sort
    if (ids[1:] > ids[:-1]).all():  # as from a gradient
        return ids, rows
    # reversed, because `np.unique` returns the first index of each
    ids, last = np.unique(ids[::-1], return_index=True)
    return ids, backend_of(rows).take_rows(rows, rows.shape[0] - 1 - last)
