"""Operations on the rows of matrices, for all devices; each runs on the device of its argument."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device import backend_of
from samplesoft._device.select import to_host
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels import rows as kernels


def squared_norms(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the squared norms (N,) of `rows` (N, d), in the same dtype and on the same device."""
    arrays = backend_of(rows)
    norms = arrays.empty(rows.shape[0], rows.dtype)
    arrays.run_over_rows(kernels.squared_norms, rows, norms)
    return norms


def unit_rows(
    name: str, rows: NDArray[Any], ids: IntArray | None = None
) -> tuple[NDArray[Any], FloatArray]:
    """Divide rows (N, d) by their norms in place; return the rows, and their former norms (N,).

    Rows of zeros are not changed, and have the norm 0. Raises ValueError if a norm is not finite.
    The error calls the argument `name`, and identifies a row by its entry of `ids` (N,), or by its
    index.
    """
    arrays = backend_of(rows)
    norms = arrays.empty(rows.shape[0], np.float64)  # float64 even if the rows are float32
    arrays.run_over_rows(kernels.divide_by_norms, rows, norms)

    host_norms = to_host(norms)
    is_finite = np.isfinite(host_norms)  # where False, the kernel did not divide the row
    if not is_finite.all():
        worst = int(np.argmin(is_finite))
        row = worst if ids is None else int(to_host(ids)[worst])
        raise ValueError(
            f"`{name}` must have rows of a finite norm to be normalised, got {host_norms[worst]} "
            f"for row {row}; remove NaN and infinity, or lower the learning rate of what made them."
        )

    return rows, norms


def unit_rows_backward(d_unit: NDArray[Any], unit: NDArray[Any], norms: FloatArray) -> NDArray[Any]:
    """Replace gradients with respect to normalised rows by gradients with respect to the rows.

    `unit` (N, d) are the normalised rows, and `norms` (N,) the norms by which `unit_rows` divided.
    `d_unit` (N, d) is changed in place and returned.
    """
    backend_of(d_unit).run_over_rows(kernels.unit_gradient, d_unit, unit, norms)
    return d_unit


def largest_in_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the largest absolute value of each row, shape (N,), on the host."""
    arrays = backend_of(rows)
    largest = arrays.empty(rows.shape[0], rows.dtype)
    arrays.run(kernels.largest_in_rows, rows.shape[0], rows, largest)
    on_host: NDArray[Any] = to_host(largest)
    return on_host


# Ids are sorted on the CPU: copying a few thousand of them is faster than launching a radix sort
# on a GPU.


def union(ids: list[IntArray]) -> IntArray:
    """Return the distinct ids of several arrays, sorted, on the device of the first array."""
    host_ids: list[IntArray] = [to_host(array) for array in ids]
    # the common case is one array that is sorted already, such as the ids of a gradient
    if len(host_ids) == 1 and (host_ids[0][1:] > host_ids[0][:-1]).all():
        return ids[0]
    return backend_of(ids[0]).to_device(np.unique(np.concatenate(host_ids)))


def last_row_of_each_id(ids: IntArray, rows: NDArray[Any]) -> tuple[IntArray, NDArray[Any]]:
    """Return the distinct ids (k,), sorted, and for each id the last of its rows, (k, d).

    `ids` (N,) are the ids of `rows` (N, d). The returned ids are on the host.
    """
    ids = to_host(ids)
    # the common case is distinct ids that are sorted already, such as the ids of a gradient
    if (ids[1:] > ids[:-1]).all():
        return ids, rows
    # reversed, because `np.unique` returns the first index of each id
    ids, reversed_index = np.unique(ids[::-1], return_index=True)
    return ids, backend_of(rows).take_rows(rows, rows.shape[0] - 1 - reversed_index)
