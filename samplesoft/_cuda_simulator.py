"""Numba's CUDA simulator: how its threads take turns, and what stands in for a warp's instructions.

Numba starts all threads of a block at once and asks again and again whether they wait at a
barrier. Here one thread runs at a time, up to its next barrier or its end, and then lets the next
one go on, so that no time is lost with asking. Between one barrier and the next, threads run in
the opposite order, so that a kernel that lacks a barrier is still likely to be found out.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numba.cuda.simulator import kernel, kernelapi

WARP_SIZE = 4
WARPS_PER_BLOCK = 2
THREADS_PER_BLOCK = 4  # where each thread works alone

BlockManager: Any = kernel.BlockManager
BlockThread: Any = kernel.BlockThread
FakeCUDAShared: Any = kernelapi.FakeCUDAShared


def _closed() -> threading.Lock:
    """Return a lock that the first to acquire it waits for."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class _Turns:
    """Which thread of a block runs next: `threads` are in their order before the first barrier."""

    def __init__(self, threads: list[_Thread]) -> None:
        self._to_run = threads[::-1]  # taken from the end
        self._at_barrier: list[_Thread] = []
        self.over = _closed()

    def wait(self, thread: _Thread) -> None:
        """Let the others run up to their next barrier or end, then return."""
        self._at_barrier.append(thread)
        self.go_on()
        thread.turn.acquire()

    def go_on(self) -> None:
        """Let the next thread run: when all have come to the barrier, the last to come first."""
        if not self._to_run:
            self._to_run, self._at_barrier = self._at_barrier, []
        if self._to_run:
            self._to_run.pop().turn.release()
        else:
            self.over.release()


class _Thread(BlockThread):  # type: ignore[misc]
    """A thread of a block that runs only when it is its turn."""

    turns: _Turns

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.turn = _closed()

    def run(self) -> None:
        """Run the kernel, where numbers overflow without a warning, as in compiled code."""
        self.turn.acquire()
        if self.abort:
            return
        try:
            with np.errstate(all="ignore"):
                super().run()
        finally:
            if self.exception and not self.abort:
                self.turns.over.release()
            elif not self.abort:
                self.turns.go_on()

    def syncthreads(self) -> None:
        """Wait for the other threads of the block."""
        if not self.abort:
            self.turns.wait(self)
        if self.abort:
            raise RuntimeError("abort flag set on syncthreads clear")


def run_block(manager: Any, block: tuple[int, ...], *arguments: Any) -> None:
    """Run the threads of a block in turns; raise the first exception that one of them raises."""

    def work() -> None:
        manager._f(*arguments)

    places = list(np.ndindex(*manager._block_dim))
    threads = [_Thread(work, manager, block, place, manager._debug) for place in places]
    turns = _Turns(threads if sum(block) % 2 == 0 else threads[::-1])
    for thread in threads:
        thread.turns = turns
        thread.start()
    turns.go_on()
    turns.over.acquire()
    failed = next((thread for thread in threads if thread.exception), None)
    if failed:
        for thread in threads:  # those that still wait end at their barrier
            thread.abort = True
            thread.turn.release()
        error, traceback = failed.exception
        raise error.with_traceback(traceback)


_numba_array: Any = FakeCUDAShared.array
_allocating = threading.Lock()


def shared_array(memory: Any, shape: Any, dtype: Any) -> Any:
    """Return the one array that all threads of a block share for the calling line.

    Numba's own looks an allocation up and then makes it without a lock, so that two threads that
    run at the same time could each get an array of their own.
    """
    if shape == 0:  # memory whose size the launch has given: it is there already
        return _numba_array(memory, shape, dtype)
    frame = sys._getframe(1)
    line = frame.f_code.co_filename, frame.f_lineno
    with _allocating:
        if line not in memory._allocations:
            memory._allocations[line] = np.empty(shape, dtype)
        return memory._allocations[line]


numba_run_block = BlockManager.run
BlockManager.run = run_block
FakeCUDAShared.array = shared_array


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
    thread.exchanges = getattr(thread, "exchanges", 0) + 1
    board, own = boards[thread.exchanges % 2], thread.threadIdx.x
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


def warp_sum_before(value: Any) -> Any:
    """Return the sum over the lanes of a warp before this one."""
    thread: Any = threading.current_thread()
    return sum(_exchange(value)[: thread.threadIdx.x % WARP_SIZE])


def warp_sync() -> None:
    """Let the lanes of a warp see what the others have written."""
    _exchange(None)
