"""Compiling and launching CUDA kernels, and the warp operations that kernels use.

This is the only module that imports CUDA. A warp is a group of 32 GPU threads that run in parallel;
each of its threads is a lane. Numba's simulator has no warp instructions. In the simulator, a warp
is a group of a few Python threads that synchronise at barriers.
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

cuda: Any = _cuda  # used inside kernels; other code calls the functions of this module
_config: Any = config
SIMULATED = bool(_config.ENABLE_CUDASIM)
_config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # Numba would warn of small batches, which are intended

_ALL_LANES_MASK = 0xFFFFFFFF
_NONE_FOUND = np.iinfo(np.int64).max  # the result of a search kernel that reports no index
# Attributes of the calling thread: `found`, a device array (1,) to which its search kernels write
# an index, and which holds `_NONE_FOUND` between searches; and `context`, its CUDA context.
_thread_state = threading.local()


def kernel(function: Callable[..., None]) -> Any:
    """Return `function` as a CUDA kernel, compiled at the first launch with new argument types."""
    return cuda.jit(function)


def launch_warps(function: Any, num_warps: int, *arguments: Any) -> None:
    """Launch a kernel on at least `num_warps` warps, each with a different `warp_index`."""
    if num_warps:
        # the driver accepts only Python integers, and values read from arrays are NumPy integers
        blocks = -(-int(num_warps) // WARPS_PER_BLOCK)
        function[blocks, WARPS_PER_BLOCK * WARP_SIZE](*arguments)


def launch_threads(function: Any, num_threads: int, *arguments: Any) -> None:
    """Launch a kernel on at least `num_threads` threads, each with a different `thread_index`."""
    if num_threads:
        blocks = -(-int(num_threads) // THREADS_PER_BLOCK)
        function[blocks, THREADS_PER_BLOCK](*arguments)


def device_function(function: Callable[..., Any]) -> Any:
    """Return `function` compiled for the device, so that kernels can call it.

    In the simulator it stays a Python function, which must not use `cuda`.
    """
    return function if SIMULATED else cuda.jit(function, device=True)


def as_device_array(value: Any) -> Any:
    """Return an array on the device, of any library, as a Numba array that shares its memory."""
    return value if hasattr(value, "__cuda_ndarray__") else cuda.as_cuda_array(value)


def to_device(array: Any) -> Any:
    """Return a copy of a NumPy array on the device."""
    contiguous = np.ascontiguousarray(array)
    # NumPy calls a single row contiguous whatever its stride is, even 0 as in a broadcast array.
    # Numba would keep such a stride, and then refuse to reshape the array.
    contiguous = contiguous.reshape(-1).reshape(contiguous.shape)
    return cuda.to_device(contiguous)


def empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> Any:
    """Return an uninitialised array on the device."""
    return cuda.device_array(shape, dtype)


def available_bytes() -> float:
    """Return the number of bytes available for new arrays on the device."""
    context = cuda.current_context()
    waiting = getattr(getattr(context, "memory_manager", None), "deallocations", None)
    if waiting is not None:  # free the memory of deleted arrays now, because Numba frees it later
        waiting.clear()
    return float(context.get_memory_info().free)


def smallest_reported_index(
    launch: Callable[..., None], search: Any, num_threads: int, *arguments: Any
) -> int | None:
    """Run the kernel `search`; return the smallest index that it reports, None if it reports none.

    ``launch(search, num_threads, *arguments, found)`` launches the kernel, as `launch_threads`
    does. The kernel reports indices by an atomic minimum in ``found[0]``.
    """
    context = cuda.current_context()
    if getattr(_thread_state, "context", None) is not context:
        _thread_state.found = to_device(np.array([_NONE_FOUND]))
        _thread_state.context = context
    found = _thread_state.found

    launch(search, num_threads, *arguments, found)
    index = int(found.copy_to_host()[0])
    if index == _NONE_FOUND:
        return None

    # reset the output, so that the next search need not allocate one
    found.copy_to_device(np.array([_NONE_FOUND]))
    return index


if SIMULATED:
    from numba.cuda.simulator.kernel import BlockThread

    # fewer threads than on a GPU, because each is a Python thread
    WARP_SIZE = 4
    WARPS_PER_BLOCK = 2
    THREADS_PER_BLOCK = 4  # for kernels that do not use warps

    def _is_alive_after_pause(thread: threading.Thread) -> bool:
        # Numba polls the threads of a block in a loop: sleep, so that the threads can run
        time.sleep(1e-5)
        return threading.Thread.is_alive(thread)

    numba_thread: Any = BlockThread
    numba_thread.is_alive = _is_alive_after_pause

    def thread_index() -> int:
        """Return the index of the calling thread among all threads of the launch."""
        thread: Any = threading.current_thread()
        width = thread._manager._block_dim[0]
        return int(thread.blockIdx.x * width + thread.threadIdx.x)

    def _values_of_all_lanes(value: Any) -> list[Any]:
        """Return the list of the values that the lanes of this warp pass to this function.

        Each lane writes its value to a board, waits at a barrier, and reads the values of the other
        lanes. Successive calls alternate between two boards: a fast lane may write to one board
        while a slow lane still reads the other. So one barrier for each call is enough.
        """
        thread: Any = threading.current_thread()
        boards = thread._manager.__dict__.setdefault("boards", ({}, {}))
        # the number of calls by this lane; the attribute is absent before the first call
        thread.exchanges = getattr(thread, "exchanges", 0) + 1
        board = boards[thread.exchanges % 2]
        lane_index = thread.threadIdx.x
        board[lane_index] = value
        thread.syncthreads()

        first_lane = lane_index - lane_index % WARP_SIZE
        return [board[first_lane + i] for i in range(WARP_SIZE)]

    def warp_sum(value: Any) -> Any:
        """Return the sum of the lanes' values, the same on all lanes of a warp."""
        values = _values_of_all_lanes(value)
        # add in the same order as the butterfly exchange on a GPU
        while len(values) > 1:
            half = len(values) // 2
            values = [values[i] + values[i + half] for i in range(half)]
        return values[0]

    def warp_max(value: Any) -> Any:
        """Return the maximum of the lanes' values, the same on all lanes of a warp."""
        return max(_values_of_all_lanes(value))

    def warp_sync() -> None:
        """Wait for all lanes of a warp, so that each lane sees the values that others wrote."""
        _values_of_all_lanes(None)

else:
    WARP_SIZE = 32
    WARPS_PER_BLOCK = 4
    THREADS_PER_BLOCK = 128

    @device_function
    def thread_index() -> int:
        """Return the index of the calling thread among all threads of the launch."""
        # an int64, because a grid may have more than 2**31 threads
        index: int = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        return index

    @device_function
    def warp_sum(value: Any) -> Any:
        """Return the sum of the lanes' values, the same on all lanes of a warp."""
        # a butterfly exchange: after log2(32) = 5 rounds all lanes hold the sum of all values
        offset = WARP_SIZE // 2
        while offset > 0:
            value += cuda.shfl_xor_sync(_ALL_LANES_MASK, value, offset)
            offset //= 2
        return value

    @device_function
    def warp_max(value: Any) -> Any:
        """Return the maximum of the lanes' values, the same on all lanes of a warp."""
        offset = WARP_SIZE // 2
        while offset > 0:
            value = max(value, cuda.shfl_xor_sync(_ALL_LANES_MASK, value, offset))
            offset //= 2
        return value

    @device_function
    def warp_sync() -> None:
        """Wait for all lanes of a warp, so that each lane sees the values that others wrote."""
        cuda.syncwarp()


@device_function
def warp_index() -> int:
    """Return the index of the calling thread's warp among all warps of the launch."""
    return thread_index() // WARP_SIZE


@device_function
def lane() -> int:
    """Return the index of the calling thread in its warp, from 0 to ``WARP_SIZE - 1``."""
    return thread_index() % WARP_SIZE
