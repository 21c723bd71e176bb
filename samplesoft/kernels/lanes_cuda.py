"""Functions of the processor on a device: the lanes of a warp, and what takes their place."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from numba.core.registry import CPUDispatcher

from samplesoft._cuda import (
    WARP_SIZE,
    device_function,
    kernel,
    lane,
    launch_warps,
    warp_index,
    warp_max,
    warp_sum,
    warp_sync,
)
from samplesoft.kernels import lanes, products, rows, weights
from samplesoft.kernels.weights import LEAST

_REPLACED: dict[Any, Any] = {}


def replaces(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Give a function of the processor one of the device, which `for_device` puts in its place."""

    def remember(replacement: Any) -> Any:
        _REPLACED[function] = replacement
        return replacement

    return remember


@cache
def for_device(function: Callable[..., Any]) -> Any:
    """Return a compiled function of the processor for the device, with all that it calls.

    One body so serves both, where a loop on the one is shared out among lanes on the other: see
    `samplesoft.kernels.lanes`.
    """
    # what lanes share out has a version of its own
    if function in _REPLACED:
        return _REPLACED[function]
    body: Any = getattr(function, "py_func", function)
    # a copy, for the globals of the processor stay as they are
    names = dict(body.__globals__)
    for name in body.__code__.co_names:
        if _is_compiled_here(names.get(name)):
            names[name] = for_device(names[name])
    return device_function(FunctionType(body.__code__, names, body.__name__, body.__defaults__))


def _is_compiled_here(thing: Any) -> bool:
    if isinstance(thing, FunctionType):  # as all kernels are with NUMBA_DISABLE_JIT=1
        return thing.__module__.startswith("samplesoft.") and "cuda" not in thing.__module__
    return isinstance(thing, CPUDispatcher)


def run_on_warps(function: Callable[..., None], num: int, *arguments: Any) -> None:
    """Call a function of the processor that shares out `num` things to do among its workers.

    A warp is a worker: see `samplesoft.kernels.lanes`.
    """
    launch_warps(_on_warps(function), num, arguments)


@cache
def _on_warps(function: Callable[..., None]) -> Any:
    body = for_device(function)

    def on_warps(arguments: Any) -> None:
        body(*arguments)

    # by this name a profiler and the compile test know it
    on_warps.__name__ = function.__name__
    return kernel(on_warps)


replaces(lanes.worker)(warp_index)
replaces(lanes.lane)(lane)
replaces(lanes.meet)(warp_sync)
replaces(lanes.sum_of_lanes)(warp_sum)
replaces(lanes.max_of_lanes)(warp_max)


@replaces(lanes.num_workers)
@device_function
def num_workers() -> int:
    """Return more than any launch has: each warp takes one thing to do, and never a second."""
    return 1 << 40


@replaces(rows.prefetch_row)
@device_function
def prefetch_row(array: Any, row: int) -> None:
    """Ask for nothing: while one warp waits for memory, others work."""


@replaces(rows.prefetch)
@device_function
def prefetch(array: Any, row: int, first: int, last: int) -> None:
    """Ask for nothing, as there."""


@replaces(lanes.num_lanes)
@device_function
def num_lanes() -> int:
    """Return how many lanes a warp has."""
    return WARP_SIZE


@device_function
def warp_dot(x: Any, y: Any) -> float:
    """Return the inner product of two vectors, summed in the type of the first."""
    # in the type of the rows, so that float32 vectors cost no float64
    total = x.dtype.type(0)
    for f in range(lane(), x.shape[0], WARP_SIZE):
        total += x[f] * y[f]
    return float(warp_sum(total))


@replaces(rows.row_dot)
@device_function
def warp_row_dot(matrix: Any, i: int, queries: Any, b: int) -> float:
    """Do as `rows.row_dot`."""
    product: float = warp_dot(matrix[i], queries[b])
    return product


@replaces(products.products)
@device_function
def warp_products(
    matrix: Any, first: int, last: int, queries: Any, b: int, c: int, out: Any, row: int
) -> None:
    """Do as `products.products` for query b alone; a lane writes the products it goes on with."""
    # lanes read a row side by side, row after row
    for i in range(first, last):
        product = warp_dot(matrix[i], queries[b])
        if (i - first) % WARP_SIZE == lane():
            out[row, i - first] = product


@replaces(weights.exp_weights)
@device_function
def warp_exp_weights(
    logits: Any, weights: Any, row: int, size: int, excluded: int
) -> tuple[float, float]:
    """Do as `weights.exp_weights`, for logits of which each lane has written its own."""
    # in two passes over numbers of its own, so that lanes meet only twice
    greatest = -math.inf
    for c in range(lane(), size, WARP_SIZE):
        if c == excluded:
            logits[row, c] = -math.inf
        greatest = max(greatest, logits[row, c])
    greatest = warp_max(greatest)
    total = 0.0
    for c in range(lane(), size, WARP_SIZE):
        # of logits that are all -inf, the difference would be NaN
        weight = math.exp(logits[row, c] - greatest) if logits[row, c] > -math.inf else 0.0
        weights[row, c] = weight if weight > LEAST else 0.0
        total += weights[row, c]
    total = warp_sum(total)
    warp_sync()
    return total, greatest
