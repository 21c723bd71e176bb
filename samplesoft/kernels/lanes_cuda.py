"""Compilation of CPU functions for CUDA, and CUDA versions of functions that use a warp's lanes."""

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
from samplesoft.kernels.weights import MIN_WEIGHT

_REPLACED: dict[Any, Any] = {}


def replaces(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a decorator that registers a device function as the CUDA version of `function`.

    `compile_for_device` then uses the device function instead of compiling `function`.
    """

    def register(replacement: Any) -> Any:
        _REPLACED[function] = replacement
        return replacement

    return register


@cache
def compile_for_device(function: Callable[..., Any]) -> Any:
    """Return a CPU function compiled for the device, with all samplesoft functions that it calls.

    The same source code serves both devices; `samplesoft.kernels.lanes` explains how its loops are
    divided among lanes.
    """
    if function in _REPLACED:
        return _REPLACED[function]

    body: Any = getattr(function, "py_func", function)
    # copy the globals, because the CPU function must still call CPU functions
    names = dict(body.__globals__)
    for name in body.__code__.co_names:
        if _is_samplesoft_cpu_function(names.get(name)):
            names[name] = compile_for_device(names[name])

    return device_function(FunctionType(body.__code__, names, body.__name__, body.__defaults__))


def _is_samplesoft_cpu_function(value: Any) -> bool:
    """Return whether `value` is a kernel for the CPU, compiled or not."""
    if isinstance(value, FunctionType):  # an uncompiled kernel, with NUMBA_DISABLE_JIT=1
        return value.__module__.startswith("samplesoft.") and "cuda" not in value.__module__
    return isinstance(value, CPUDispatcher)


def run_on_warps(function: Callable[..., None], num_items: int, *arguments: Any) -> None:
    """Run a CPU function on the device, with one warp for each of `num_items` items.

    The function divides the items among workers, which are warps: see `samplesoft.kernels.lanes`.
    """
    launch_warps(_warp_kernel(function), num_items, arguments)


@cache
def _warp_kernel(function: Callable[..., None]) -> Any:
    """Return a CPU function as a CUDA kernel, whose argument is the tuple of its arguments."""
    body = compile_for_device(function)

    def on_warps(arguments: Any) -> None:
        body(*arguments)

    # profilers and tests identify the kernel by this name
    on_warps.__name__ = function.__name__
    return kernel(on_warps)


replaces(lanes.worker)(warp_index)
replaces(lanes.lane)(lane)
replaces(lanes.sync_lanes)(warp_sync)
replaces(lanes.sum_of_lanes)(warp_sum)
replaces(lanes.max_of_lanes)(warp_max)


@replaces(lanes.num_workers)
@device_function
def num_workers() -> int:
    """Return more than the number of warps in any launch, so that each warp takes one item."""
    return 1 << 40


@replaces(rows.prefetch_row)
@device_function
def prefetch_row(array: Any, row: int) -> None:
    """Do nothing: while a warp waits for memory, the GPU runs other warps."""


@replaces(rows.prefetch)
@device_function
def prefetch(array: Any, row: int, start: int, stop: int) -> None:
    """Do nothing, for the same reason as `prefetch_row`."""


@replaces(lanes.num_lanes)
@device_function
def num_lanes() -> int:
    """Return the number of lanes in a warp."""
    return WARP_SIZE


@device_function
def warp_dot(x: Any, y: Any) -> float:
    """Return the inner product of two vectors (d,), summed over the lanes in the dtype of `x`."""
    # sum in the dtype of `x`, because float64 arithmetic would be slow for float32 vectors
    total = x.dtype.type(0)
    for f in range(lane(), x.shape[0], WARP_SIZE):
        total += x[f] * y[f]
    return float(warp_sum(total))


@replaces(rows.row_dot)
@device_function
def warp_row_dot(matrix: Any, i: int, queries: Any, b: int) -> float:
    """Return the inner product of row i of a matrix and row b of `queries`, as `rows.row_dot`."""
    product: float = warp_dot(matrix[i], queries[b])
    return product


@replaces(products.products)
@device_function
def warp_products(
    matrix: Any, start: int, stop: int, queries: Any, b: int, c: int, out: Any, row: int
) -> None:
    """Write inner products of rows [start, stop) with row b of `queries` to ``out[row]``.

    This replaces `products.products`, and ignores the second query c. Entry k of ``out[row]`` is
    written by the lane ``k % WARP_SIZE``, which also reads it later.
    """
    # in `warp_dot`, neighbouring lanes read neighbouring entries of a row, which is fast
    for i in range(start, stop):
        product = warp_dot(matrix[i], queries[b])
        if (i - start) % WARP_SIZE == lane():
            out[row, i - start] = product


@replaces(weights.exp_weights)
@device_function
def warp_exp_weights(
    logits: Any, weights: Any, row: int, size: int, excluded: int
) -> tuple[float, float]:
    """Write the weights ``exp(logit - max_logit)`` of a row of logits, as `weights.exp_weights`.

    Lane l must itself have written the logits at the indices c with ``c % WARP_SIZE == l``, because
    the lanes do not synchronise before they read them. Returns the sum of the weights, and
    `max_logit`.
    """
    # each lane reads the same entries in both passes, so that the lanes synchronise only twice
    max_logit = -math.inf
    for c in range(lane(), size, WARP_SIZE):
        if c == excluded:
            logits[row, c] = -math.inf
        max_logit = max(max_logit, logits[row, c])

    max_logit = warp_max(max_logit)

    total = 0.0
    for c in range(lane(), size, WARP_SIZE):
        # if all logits are -inf, the difference would be NaN
        weight = math.exp(logits[row, c] - max_logit) if logits[row, c] > -math.inf else 0.0
        weights[row, c] = weight if weight > MIN_WEIGHT else 0.0
        total += weights[row, c]

    total = warp_sum(total)
    warp_sync()
    return total, max_logit
