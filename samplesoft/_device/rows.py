"""Small work on rows, written once for all devices: it is done where the rows lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft._device import backend_of
from samplesoft._device.select import to_host
from samplesoft._validation import FloatArray, IntArray
from samplesoft.kernels import rows as kernels


def squared_norms(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the squared norm of each row (N,), in its type."""
    arrays = backend_of(rows)
    norms = arrays.empty(rows.shape[0], rows.dtype)
    arrays.over_rows(kernels.squared_norms, rows, norms)
    return norms


def unit_rows(
    name: str, rows: NDArray[Any], ids: IntArray | None = None
) -> tuple[NDArray[Any], FloatArray]:
    """Divide rows (N, d) by their norms in place; return them, and the norms (N,) they had.

    Rows of zeros stay as they are, with a norm of 0. Errors call the rows by `ids` (N,), where
    those are given, of the argument `name`.
    """
    arrays = backend_of(rows)
    norms = arrays.empty(rows.shape[0], np.float64)  # for rows of float32 too
    arrays.over_rows(kernels.divide_by_norms, rows, norms)
    had = to_host(norms)
    good = np.isfinite(had)  # others were left as they are
    if not good.all():
        worst = int(np.argmin(good))
        row = worst if ids is None else int(to_host(ids)[worst])
        raise ValueError(
            f"`{name}` must have rows of a finite norm to be normalised, got {had[worst]} for "
            f"row {row}; remove NaN and infinity, or lower the learning rate of what made them."
        )
    return rows, norms


def unit_rows_backward(d_unit: NDArray[Any], unit: NDArray[Any], norms: FloatArray) -> NDArray[Any]:
    """Turn derivatives in the normalised rows, in place, into those in the rows."""
    backend_of(d_unit).over_rows(kernels.unit_gradient, d_unit, unit, norms)
    return d_unit


def largest_in_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the largest absolute value in each row (N,), on the processor."""
    arrays = backend_of(rows)
    largest = arrays.empty(rows.shape[0], rows.dtype)
    arrays.run(kernels.largest_in_rows, rows.shape[0], rows, largest)
    on_processor: NDArray[Any] = to_host(largest)
    return on_processor


# Ids are sorted on the processor: some thousands of them come and go in less time than a sort
# on a device takes to be launched, digit by digit.


def union(ids: list[IntArray]) -> IntArray:
    """Return the ids that occur in some of the arrays, rising and each once."""
    here: list[IntArray] = [to_host(some) for some in ids]
    # the usual case needs no sort: one list, as from a gradient
    if len(here) == 1 and (here[0][1:] > here[0][:-1]).all():
        return ids[0]
    return backend_of(ids[0]).placed(np.unique(np.concatenate(here)))


def last_of_each(ids: IntArray, rows: NDArray[Any]) -> tuple[IntArray, NDArray[Any]]:
    """Return ids (k,) rising and each once, on the processor, with the last rows of each."""
    ids = to_host(ids)
    # the usual case costs a comparison and no sort
    if (ids[1:] > ids[:-1]).all():  # as from a gradient
        return ids, rows
    # reversed, for `np.unique` returns the first place of each
    ids, last = np.unique(ids[::-1], return_index=True)
    return ids, backend_of(rows).take_rows(rows, rows.shape[0] - 1 - last)
