"""Arrays on the processor: what a function takes, checked, and what it returns.

``twin(device, ARRAYS)`` gives `HostArrays` here, or `CudaArrays` with what a device does otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplesoft import _memory
from samplesoft._device.select import to_host
from samplesoft._jit import row_chunks, thread_each
from samplesoft._temperature import times_tau
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_float_rows,
    as_ids,
    as_labels,
    as_real_array,
    as_type,
    writable,
)
from samplesoft.kernels.rows import divide_by_norms, largest_in_rows, squared_norms, unit_gradient

_CHUNK_NUMBERS = 1 << 18  # of a chunk for a thread


class DistantRows:
    """Rows (n, d) that others keep, who are asked for results: see `models.sharded.ShardedRows`.

    Attributes
    ----------
    shape : tuple of int
        n and d.
    dtype : dtype
        float32 or float64.
    take, scores, gradients, exponentials, best : callable
        What arrays of rows and losses, lists of the best classes included, ask for.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    take: Callable[..., NDArray[Any]]
    scores: Callable[..., tuple[NDArray[Any], NDArray[Any]]]
    gradients: Callable[..., NDArray[Any]]
    exponentials: Callable[..., tuple[NDArray[Any], FloatArray]]
    best: Callable[..., tuple[IntArray, NDArray[Any]]]


class HostArrays:
    """Checks of arrays that a function takes, and small work on arrays, on the processor."""

    empty: Callable[..., NDArray[Any]] = staticmethod(np.empty)
    copied: Callable[..., NDArray[Any]] = staticmethod(np.copy)
    placed: Callable[..., NDArray[Any]] = staticmethod(np.asarray)
    float_rows: Callable[..., NDArray[Any]] = staticmethod(as_float_rows)
    ids: Callable[..., IntArray] = staticmethod(as_ids)
    labels: Callable[..., IntArray] = staticmethod(as_labels)
    times = staticmethod(times_tau)
    writable = staticmethod(writable)
    each = staticmethod(thread_each)

    @staticmethod
    def shaped_rows(name: str, value: Any) -> NDArray[Any]:
        """Return rows (N, d) in C order; those of an array as it is are not read through."""
        if isinstance(value, DistantRows):
            return value  # type: ignore[return-value]
        # a step touches a few rows of n; to read all of them would cost more than the step
        if (
            (type(value) is np.ndarray or isinstance(value, np.memmap))
            and value.dtype in (np.float32, np.float64)
            and value.ndim == 2
            and value.size
            and value.flags.c_contiguous
        ):
            return value
        return as_float_rows(name, value)

    @staticmethod
    def vector(name: str, value: Any, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return numbers (size,) of a type."""
        vector = as_real_array(name, value, (1,))
        if len(vector) != size:
            raise ValueError(f"`{name}` must have shape ({size},), got {vector.shape}.")
        return as_type(name, vector, dtype)

    @staticmethod
    def workers(num: int) -> int:
        """Return how many workers share out `num` things to do: see `kernels.lanes`."""
        return 1

    @staticmethod
    def run(kernel: Callable[..., None], num: int, *arguments: Any) -> None:
        """Call a kernel that has `num` things to do."""
        kernel(*arguments)

    @staticmethod
    def over_rows(kernel: Callable[..., None], *arrays: NDArray[Any]) -> None:
        """Call a kernel that goes through the rows of arrays, on threads where they are many."""
        parts = row_chunks(arrays[0].shape, _CHUNK_NUMBERS)
        thread_each(lambda part: kernel(*(array[part] for array in arrays)), parts)

    @staticmethod
    def available_bytes() -> float | None:
        """Return the bytes that new arrays may take, where the system tells."""
        return _memory.available_bytes()

    @staticmethod
    def take_rows(rows: NDArray[Any], places: IntArray) -> NDArray[Any]:
        """Return ``rows[places]``."""
        return rows[places]

    @staticmethod
    def put_rows(rows: NDArray[Any], places: IntArray, out: NDArray[Any]) -> None:
        """Write `rows` (k, d) to different places (k,) of `out`."""
        out[places] = rows

    @staticmethod
    def joined(rows: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
        """Return some rows (k, d) and others after them."""
        return np.concatenate((rows, others))

    # what follows is the same on any device, as it uses the methods above

    @classmethod
    def filled(cls, shape: int | tuple[int, ...], value: Any) -> NDArray[Any]:
        """Return an array of one number, of its type."""
        return cls.placed(np.full(shape, value))

    @classmethod
    def squared_norms(cls, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the squared norm of each row (N,), in its type."""
        norms = cls.empty(rows.shape[0], rows.dtype)
        cls.over_rows(squared_norms, rows, norms)
        return norms

    @classmethod
    def unit_rows(
        cls, name: str, rows: NDArray[Any], ids: IntArray | None = None
    ) -> tuple[NDArray[Any], FloatArray]:
        """Divide rows (N, d) by their norms in place; return them, and the norms (N,) they had.

        Rows of zeros stay as they are, with a norm of 0. Errors call the rows by `ids` (N,), where
        those are given, of the argument `name`.
        """
        norms = cls.empty(rows.shape[0], np.float64)  # for rows of float32 too
        cls.over_rows(divide_by_norms, rows, norms)
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

    @classmethod
    def unit_rows_backward(
        cls, d_unit: NDArray[Any], unit: NDArray[Any], norms: FloatArray
    ) -> NDArray[Any]:
        """Turn derivatives in the normalised rows, in place, into those in the rows."""
        cls.over_rows(unit_gradient, d_unit, unit, norms)
        return d_unit

    @classmethod
    def largest_in_rows(cls, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the largest absolute value in each row (N,), on the processor."""
        largest = cls.empty(rows.shape[0], rows.dtype)
        cls.run(largest_in_rows, rows.shape[0], rows, largest)
        on_processor: NDArray[Any] = to_host(largest)
        return on_processor

    # Ids are sorted on the processor: some thousands of them come and go in less time than a sort
    # on a device takes to be launched, digit by digit.

    @classmethod
    def union(cls, ids: list[IntArray]) -> IntArray:
        """Return the ids that occur in some of the arrays, rising and each once."""
        here: list[IntArray] = [to_host(some) for some in ids]
        # the usual case needs no sort: one list, as from a gradient
        if len(here) == 1 and (here[0][1:] > here[0][:-1]).all():
            return ids[0]
        return cls.placed(np.unique(np.concatenate(here)))

    @classmethod
    def last_of_each(cls, ids: IntArray, rows: NDArray[Any]) -> tuple[IntArray, NDArray[Any]]:
        """Return ids (k,) rising and each once, on the processor, with the last rows of each."""
        ids = to_host(ids)
        # the usual case costs a comparison and no sort
        if (ids[1:] > ids[:-1]).all():  # as from a gradient
            return ids, rows
        # reversed, for `np.unique` returns the first place of each
        ids, last = np.unique(ids[::-1], return_index=True)
        return ids, cls.take_rows(rows, rows.shape[0] - 1 - last)
