"""The only module that imports CUDA: building blocks of kernels, and how kernels are launched.

A warp is 32 threads that run in parallel. Numba's simulator has no warp instructions; there a warp
is a few threads that synchronise at barriers.
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

cuda: Any = _cuda  # for use inside kernels; other code calls the functions below
_config: Any = config
SIMULATED = bool(_config.ENABLE_CUDASIM)
_config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small batches are intended

_EVERY_LANE = 0xFFFFFFFF
_NONE_FOUND = np.iinfo(np.int64).max
# per thread: `found`, the output array of its searches, which is `_NONE_FOUND` between searches
_THREAD_STATE = threading.local()


def kernel(function: Callable[..., None]) -> Any:
    """Make a CUDA kernel, compiled at its first launch for each combination of argument types."""
    return cuda.jit(function)


def launch_warps(function: Any, num: int, *arguments: Any) -> None:
    """Launch a kernel on at least `num` warps; `warp_index` identifies the warp."""
    if num:
        # the driver accepts only Python integers, and sizes read from arrays are NumPy integers
        blocks = -(-int(num) // WARPS_PER_BLOCK)
        function[blocks, WARPS_PER_BLOCK * WARP_SIZE](*arguments)


def launch_threads(function: Any, num: int, *arguments: Any) -> None:
    """Launch a kernel on at least `num` threads; `thread_index` identifies the thread."""
    if num:
        blocks = -(-int(num) // THREADS_PER_BLOCK)
        function[blocks, THREADS_PER_BLOCK](*arguments)


def device_function(function: Callable[..., Any]) -> Any:
    """Compile a function that kernels call. It must not use `cuda` itself in the simulator."""
    return function if SIMULATED else cuda.jit(function, device=True)


def as_device_array(value: Any) -> Any:
    """Return Numba's view of an array on the device, without a copy."""
    return value if hasattr(value, "__cuda_ndarray__") else cuda.as_cuda_array(value)


def to_device(array: Any) -> Any:
    """Copy a NumPy array to the device."""
    contiguous = np.ascontiguousarray(array)
    # NumPy calls a single row contiguous whatever its stride, such as the stride 0 of a broadcast
    # array. Numba keeps that stride, and then refuses to reshape the array.
    contiguous = contiguous.reshape(-1).reshape(contiguous.shape)
    return cuda.to_device(contiguous)


def empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> Any:
    """Return an uninitialised array on the device."""
    return cuda.device_array(shape, dtype)


def available_bytes() -> float:
    """Return the number of bytes available for new arrays on the device."""
    context = cuda.current_context()
    waiting = getattr(getattr(context, "memory_manager", None), "deallocations", None)
    if waiting is not None:  # Numba defers freeing memory
        waiting.clear()
    return float(context.get_memory_info().free)


def first_offender(
    launch: Callable[..., None], search: Any, num: int, *arguments: Any
) -> int | None:
    """Run a search kernel, and return the smallest index that it reports, or None."""
    context = cuda.current_context()
    if getattr(_THREAD_STATE, "context", None) is not context:
        _THREAD_STATE.found = to_device(np.array([_NONE_FOUND]))
        _THREAD_STATE.context = context
    found = _THREAD_STATE.found
    launch(search, num, *arguments, found)
    index = int(found.copy_to_host()[0])
    if index == _NONE_FOUND:
        return None
    # reset for the next search, which then allocates and launches nothing extra
    found.copy_to_device(np.array([_NONE_FOUND]))
    return index


if SIMULATED:
    from numba.cuda.simulator.kernel import BlockThread

    # few threads, because each is a Python thread; a barrier may cover several warps
    WARP_SIZE = 4
    WARPS_PER_BLOCK = 2
    THREADS_PER_BLOCK = 4  # for kernels without warps

    def _is_alive(thread: threading.Thread) -> bool:
        # Numba polls the threads of a block: yield so that they can run
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

        Successive exchanges alternate between two boards, so one barrier is enough: no lane writes
        to a board again before all lanes have read it.
        """
        thread: Any = threading.current_thread()
        boards = thread._manager.__dict__.setdefault("boards", ({}, {}))
        thread.exchanges = getattr(thread, "exchanges", 0) + 1  # absent at first
        # a fast lane writes to one board while others still read the other
        board = boards[thread.exchanges % 2]
        lane_index = thread.threadIdx.x
        board[lane_index] = value
        thread.syncthreads()
        first_lane = lane_index - lane_index % WARP_SIZE
        return [board[first_lane + i] for i in range(WARP_SIZE)]

    def warp_sum(value: Any) -> Any:
        """Return the sum over the lanes of a warp, the same in each of them."""
        values = _exchange(value)
        while len(values) > 1:  # the order of the butterfly exchange on a GPU
            half = len(values) // 2
            values = [values[i] + values[i + half] for i in range(half)]
        return values[0]

    def warp_max(value: Any) -> Any:
        """Return the maximum over the lanes of a warp, the same in each of them."""
        return max(_exchange(value))

    def warp_sync() -> None:
        """Synchronise the lanes of a warp, so that each sees what the others have written."""
        _exchange(None)

else:
    WARP_SIZE = 32
    WARPS_PER_BLOCK = 4
    THREADS_PER_BLOCK = 128

    @device_function
    def thread_index() -> int:
        """Return the index of a thread in the whole launch."""
        # in 64 bits: a grid may have more than 2**31 threads
        index: int = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        return index

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
        """Synchronise the lanes of a warp, so that each sees what the others have written."""
        cuda.syncwarp()


@device_function
def warp_index() -> int:
    """Return the index of a thread's warp in the whole launch."""
    return thread_index() // WARP_SIZE


@device_function
def lane() -> int:
    """Return the index of a thread in its warp, 0 to `WARP_SIZE` - 1."""
    return thread_index() % WARP_SIZE
