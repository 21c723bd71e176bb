"""Equal ids brought together on a CUDA device."""

from __future__ import annotations

from typing import Any

import numpy as np

from samplesoft._cuda import empty, launch_threads, launch_warps
from samplesoft._device.arrays_cuda import take_rows
from samplesoft.kernels.arrays import sort_ids_cuda as kernels


def sort(ids: Any, stop: int) -> tuple[Any, Any]:
    """Return ids (k,) below `stop` in rising order, stably, and the place where each stood."""
    num = ids.shape[0]
    order = empty(num, np.int64)
    launch_threads(kernels.count_up, num, order)
    threads = -(-num // kernels.IDS_EACH)
    places = empty((kernels.DIGITS, threads), np.int64)
    divisor = 1
    while divisor < stop:
        new_ids, new_order = empty(num, np.int64), empty(num, np.int64)
        launch_threads(kernels.count_digits, threads, ids, divisor, places)
        _sum_before(places.reshape(-1))
        launch_threads(
            kernels.move_by_digit, threads, ids, order, divisor, places, new_ids, new_order
        )
        ids, order = new_ids, new_order
        divisor *= kernels.DIGITS
    return ids, order


def runs(ids: Any, divisor: int = 1) -> tuple[Any, Any]:
    """Return the value (U,) and the start (U,) of each run of equal ``ids // divisor``, sorted."""
    return _runs(ids, divisor)[:2]


def _runs(ids: Any, divisor: int) -> tuple[Any, Any, Any]:
    """Return the runs, and how many of them begin before each of the ids."""
    num = ids.shape[0]
    places = empty(num, np.int64)
    launch_threads(kernels.mark_firsts, num, ids, divisor, places)
    total = int(_sum_before(places).copy_to_host()[0])
    values, starts = empty(total, np.int64), empty(total, np.int64)
    launch_threads(kernels.write_runs, num, ids, divisor, places, values, starts)
    return values, starts, places


def equal_runs(ids: Any, stop: int) -> tuple[Any, Any, Any, Any]:
    """Return what `sort_ids.equal_runs` does for ids (K,) below `stop`, but for the last start."""
    in_order, order = sort(ids, stop)
    unique, starts, places = _runs(in_order, 1)
    inverse = empty(ids.shape[0], np.int64)
    launch_threads(kernels.write_inverse, ids.shape[0], in_order, order, places, inverse)
    return unique, inverse, order, starts


def union(arrays: list[Any], stop: int) -> Any:
    """Return the ids below `stop` that occur in some of the arrays, rising and each once."""
    together = empty(sum(array.shape[0] for array in arrays), np.int64)
    start = 0
    for array in arrays:
        together[start : start + array.shape[0]].copy_to_device(array)
        start += array.shape[0]
    return runs(sort(together, stop)[0])[0]


def last_of_each(ids: Any, rows: Any, stop: int) -> tuple[Any, Any]:
    """Return ids (U,) below `stop`, rising and each once, and the last row (U, d) of each."""
    in_order, order = sort(ids, stop)
    ids, starts = runs(in_order)
    lasts = empty(ids.shape[0], np.int64)
    launch_threads(kernels.last_of_runs, lasts.shape[0], starts, order, lasts)
    return ids, take_rows(rows, lasts)


def _sum_before(values: Any) -> Any:
    """Replace each of `values` (N,) by the sum of those before it; return that of all (1,)."""
    totals = empty(max(1, -(-values.shape[0] // kernels.PART)), np.int64)
    launch_warps(kernels.sum_before, totals.shape[0], values, totals)
    if totals.shape[0] == 1:
        return totals
    every = _sum_before(totals)
    launch_threads(kernels.add_parts, values.shape[0], totals, values)
    return every
