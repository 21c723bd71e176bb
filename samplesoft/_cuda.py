"""The one place that imports CUDA: what kernels are written with, and how they are launched.

A warp is 32 threads that work side by side. In Numba's simulator, which has no instructions for
warps, it is a few threads that meet at barriers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import config
from numba import cuda as _cuda
from numpy.typing import DTypeLike

cuda: Any = _cuda  # for kernels; all else goes through the functions here
_config: Any = config
SIMULATED = bool(_config.ENABLE_CUDASIM)
_config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # a small batch is no mistake

_EVERY_LANE = 0xFFFFFFFF
_NONE_FOUND = np.iinfo(np.int64).max
# `found`, what a search of this thread writes to; it holds `_NONE_FOUND` between searches
_OF_THREAD = threading.local()


def kernel(function: Callable[..., None]) -> Any:
    """Compile a kernel, when it is first launched on arguments of some types."""
    return cuda.jit(function)


def launch_warps(function: Any, num: int, *arguments: Any) -> None:
    """Launch a kernel on `num` warps or a few more; each asks `warp_index` which it is."""
    if num:
        # a driver takes Python's integers alone, and sizes that were read from arrays are NumPy's
        blocks = -(-int(num) // WARPS_PER_BLOCK)
        function[blocks, WARPS_PER_BLOCK * WARP_SIZE](*arguments)


def launch_threads(function: Any, num: int, *arguments: Any) -> None:
    """Launch a kernel on `num` threads or a few more; each asks `thread_index` which it is."""
    if num:
        blocks = -(-int(num) // THREADS_PER_BLOCK)
        function[blocks, THREADS_PER_BLOCK](*arguments)


def device_function(function: Callable[..., Any]) -> Any:
    """Compile a function that kernels call; in the simulator it must not use `cuda` itself."""
    return function if SIMULATED else cuda.jit(function, device=True)


def as_device_array(value: Any) -> Any:
    """Return Numba's view of an array on the device, without a copy."""
    return value if hasattr(value, "__cuda_ndarray__") else cuda.as_cuda_array(value)


def to_device(array: Any) -> Any:
    """Copy a NumPy array to the device."""
    contiguous = np.ascontiguousarray(array)
    # NumPy calls one row contiguous whatever its stride, such as the 0 of a broadcast array. Numba
    # keeps the stride, and then refuses to reshape what it does not call contiguous.
    contiguous = contiguous.reshape(-1).reshape(contiguous.shape)
    return cuda.to_device(contiguous)


def empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> Any:
    """Return an array on the device, not filled."""
    return cuda.device_array(shape, dtype)


def available_bytes() -> float:
    """Return the bytes that new arrays on the device may take."""
    context = cuda.current_context()
    waiting = getattr(getattr(context, "memory_manager", None), "deallocations", None)
    if waiting is not None:  # Numba frees memory late
        waiting.clear()
    return float(context.get_memory_info().free)


def first_found(launch: Callable[..., None], search: Any, num: int, *arguments: Any) -> int | None:
    """Return the place of the first offender that a kernel of `checks_cuda` finds."""
    context = cuda.current_context()
    if getattr(_OF_THREAD, "context", None) is not context:
        _OF_THREAD.found = to_device(np.array([_NONE_FOUND]))
        _OF_THREAD.context = context
    found = _OF_THREAD.found
    launch(search, num, *arguments, found)
    place = int(found.copy_to_host()[0])
    if place == _NONE_FOUND:
        return None
    # ready for the next search, which then needs no array and no launch of its own
    found.copy_to_device(np.array([_NONE_FOUND]))
    return place


if SIMULATED:
    from numba.cuda.simulator.kernel import BlockThread

    # few threads, for each is one of Python's; what meets at a barrier may be of several warps
    WARP_SIZE = 4
    WARPS_PER_BLOCK = 2
    THREADS_PER_BLOCK = 4  # where each thread works alone

    def _is_alive(thread: threading.Thread) -> bool:
        # Numba asks the threads of a block again and again: let them run meanwhile
        time.sleep(1e-5)
        return threading.Thread.is_alive(thread)

    numba_thread: Any = BlockThread
    numba_thread.is_alive = _is_alive

    def thread_index() -> int:
        """Return the index of a thread in the whole launch."""
        thread: Any = threading.current_thread()
        width = thread._manager._block_dim[0]
        return int(thread.blockIdx.x * width + thread.threadIdx.x)

    def _exchange(value: Any) -> list[Any]:
        """Return the values of all lanes of the warp.

        What is exchanged next is written elsewhere, so that one barrier is enough: no lane comes to
        write here again before all have read.
        """
        thread: Any = threading.current_thread()
        boards = thread._manager.__dict__.setdefault("boards", ({}, {}))
        thread.exchanges = getattr(thread, "exchanges", 0) + 1  # Numba's own have none at first
        # two boards in turn: who is quick writes on one while others still read the other
        board = boards[thread.exchanges % 2]
        own = thread.threadIdx.x
        board[own] = value
        thread.syncthreads()
        first = own - own % WARP_SIZE
        return [board[first + i] for i in range(WARP_SIZE)]

    def warp_sum(value: Any) -> Any:
        """Return the sum over the lanes of a warp, the same in each of them."""
        values = _exchange(value)
        while len(values) > 1:  # in the order of the warp's butterfly
            half = len(values) // 2
            values = [values[i] + values[i + half] for i in range(half)]
        return values[0]

    def warp_max(value: Any) -> Any:
        """Return the maximum over the lanes of a warp, the same in each of them."""
        return max(_exchange(value))

    def warp_sync() -> None:
        """Let the lanes of a warp see what the others have written."""
        _exchange(None)

else:
    WARP_SIZE = 32
    WARPS_PER_BLOCK = 4
    THREADS_PER_BLOCK = 128

    @device_function
    def thread_index() -> int:
        """Return the index of a thread in the whole launch."""
        # in 64 bits: a grid may have more than 2**31 threads
        place: int = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        return place

    @device_function
    def warp_sum(value: Any) -> Any:
        """Return the sum over the lanes of a warp, the same in each of them."""
        # a butterfly: after log2(32) exchanges all lanes hold the same sum
        offset = WARP_SIZE // 2
        while offset > 0:
            value += cuda.shfl_xor_sync(_EVERY_LANE, value, offset)
            offset //= 2
        return value

    @device_function
    def warp_max(value: Any) -> Any:
        """Return the maximum over the lanes of a warp, the same in each of them."""
        offset = WARP_SIZE // 2
        while offset > 0:
            value = max(value, cuda.shfl_xor_sync(_EVERY_LANE, value, offset))
            offset //= 2
        return value

    @device_function
    def warp_sync() -> None:
        """Let the lanes of a warp see what the others have written."""
        cuda.syncwarp()


@device_function
def warp_index() -> int:
    """Return the index of a thread's warp in the whole launch."""
    return thread_index() // WARP_SIZE


@device_function
def lane() -> int:
    """Return the index of a thread in its warp, 0 to `WARP_SIZE` - 1."""
    return thread_index() % WARP_SIZE
