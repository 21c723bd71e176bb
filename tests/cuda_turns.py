"""Numba's CUDA simulator, mended for tests: threads take turns, and share one array.

Numba starts all threads of a block at once and asks again and again whether they wait at a
barrier. Here one thread runs at a time, up to its next barrier or its end, and then lets the next
one go on, so that no time is lost with asking. Between one barrier and the next, threads run in
the opposite order, so that a kernel that lacks a barrier is still likely to be found out.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.cuda.simulator import kernel, kernelapi

BlockManager: Any = kernel.BlockManager
BlockThread: Any = kernel.BlockThread
Dim3: Any = kernelapi.Dim3
FakeCUDAShared: Any = kernelapi.FakeCUDAShared


def _closed() -> threading.Lock:
    """Return a lock that the first to acquire it waits for."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class _Turns:
    """Which thread of a block runs next; `places` are those of threads that have not begun."""

    def __init__(self, work: Callable[[], None], manager: Any, block: tuple[int, ...]) -> None:
        self.work, self.manager, self.block = work, manager, block
        places = list(np.ndindex(*manager._block_dim))
        # every other block starts from the other end: a missing barrier shows in one of both
        self.places = places if sum(block) % 2 else places[::-1]  # taken from the end
        self._to_run: list[_Thread] = []
        self.at_barrier: list[_Thread] = []
        self.failed: _Thread | None = None
        self.over = _closed()

    def wait(self, thread: _Thread) -> None:
        """Let the others run up to their next barrier or end, then return."""
        self.at_barrier.append(thread)
        self.go_on()
        thread.turn.acquire()

    def go_on(self) -> None:
        """Let the next thread run: when all have come to the barrier, the last to come first."""
        if self.places:
            thread = _IDLE.pop() if _IDLE else _Thread()
            thread.turns = self
            thread.turn.release()
            return
        # all have come to the barrier or ended: the next round begins
        if not self._to_run:
            self._to_run, self.at_barrier = self.at_barrier, []
        if self._to_run:
            self._to_run.pop().turn.release()
        else:
            self.over.release()

    def waiting(self) -> list[_Thread]:
        """Return the threads that have begun and not ended."""
        return [*self._to_run, *self.at_barrier]


class _Thread(BlockThread):  # type: ignore[misc]
    """Plays one thread of a block after another, and runs only when it is its turn.

    Numba starts a thread for each, which takes longer than most of them run.
    """

    turns: _Turns
    exception: Any

    def __init__(self) -> None:
        threading.Thread.__init__(self, daemon=True)
        self.turn = _closed()
        self.start()

    def run(self) -> None:
        """Play what has not begun; what has waited at a barrier ends when nothing is left to."""
        while True:
            self.turn.acquire()
            turns = self.turns
            while turns.places:
                self._play(turns, turns.places.pop())
                if self.exception:
                    break
            _IDLE.append(self)
            if self.exception and not self.abort:
                turns.failed = self
                turns.over.release()
            elif not self.abort:
                turns.go_on()

    def _play(self, turns: _Turns, place: tuple[int, ...]) -> None:
        """Run the kernel, where numbers overflow without a warning, as in compiled code."""
        self._manager, self.debug = turns.manager, turns.manager._debug
        self.blockIdx, self.threadIdx = Dim3(*turns.block), Dim3(*place)
        self.thread_id = int(np.ravel_multi_index(place[::-1], turns.manager._block_dim[::-1]))
        self.exception, self.abort, self.exchanges = None, False, 0
        try:
            # as compiled code does: NaN and overflow are results
            with np.errstate(all="ignore"):
                turns.work()
        except Exception as error:
            where = f"tid={list(place)} ctaid={list(turns.block)}"
            told = type(error)(f"{where}: {error}" if str(error) else where)
            self.exception = told, error.__traceback__

    def syncthreads(self) -> None:
        """Wait for the other threads of the block."""
        if not self.abort:
            self.turns.wait(self)
        if self.abort:
            raise RuntimeError("abort flag set on syncthreads clear")


_IDLE: list[_Thread] = []  # that wait for a block


def run_block(manager: Any, block: tuple[int, ...], *arguments: Any) -> None:
    """Run the threads of a block in turns; raise the first exception that one of them raises."""

    def work() -> None:
        manager._f(*arguments)

    turns = _Turns(work, manager, block)
    turns.go_on()
    turns.over.acquire()
    if turns.failed:
        error, traceback = turns.failed.exception
        for thread in turns.waiting():  # they end at their barrier
            thread.abort = True
            thread.turn.release()
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
