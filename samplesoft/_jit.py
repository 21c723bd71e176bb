"""The njit decorators of the package, and the thread pool that runs kernels in parallel.

Kernels are serial; a pool of Python threads runs them on chunks. The number of threads is Numba's
setting, as for its own parallel loops:

- ``NUMBA_NUM_THREADS`` in the environment, read when Numba is imported; by default the number of
  usable cores. joblib sets it in its worker processes (``inner_max_num_threads``).
- ``numba.set_num_threads(k)``, for calls from the thread that sets it; k is at most the number
  above. Other threads keep their own setting, which starts at that number.

threadpoolctl does not control Numba: its limits apply to BLAS and OpenMP only.

If the system or a container refuses to start a thread, the work still completes: the calling thread
runs all tasks that no other thread has begun. A forked child gets new locks and threads. The
threads of OpenBLAS cannot be renewed: if one thread forks while another runs a multithreaded matrix
product, OpenBLAS hangs in the parent or the child. A server that forks during computations sets
``OPENBLAS_NUM_THREADS=1``.

Without Numba, as in a browser, or with ``NUMBA_DISABLE_JIT=1``, kernels run as plain Python
functions. They are about a hundred times slower, which is fast enough for teaching examples.
Integers wrap around there too, without warnings from NumPy.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import wraps
from importlib import import_module
from itertools import count
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

import numpy as np

from samplesoft._progress import report_line

numba: Any = None
try:
    numba = import_module("numba")
except ModuleNotFoundError as error:  # ignore only a missing Numba, not a missing dependency of it
    if error.name != "numba":
        raise
COMPILES = numba is not None and not getattr(numba.config, "DISABLE_JIT", False)
if COMPILES:
    from numba.core import types
    from numba.core.compiler_lock import global_compiler_lock
    from numba.extending import intrinsic

    events: Any = import_module("numba.core.event")

    from samplesoft._kernel_cache import Kernel, KernelCache

Function = TypeVar("Function", bound=Callable[..., Any])
Item = TypeVar("Item")
Result = TypeVar("Result")


def njit(function: Function) -> Function:
    """Compile a serial kernel that releases the GIL and is cached on disk if possible.

    Division by zero follows IEEE 754, as in NumPy.
    """
    return _compile(function, False)


# LLVM vectorises a sum only if it may reorder additions: 12 times as fast for 1,000 products.
# fastmath=True would also break checks for NaN and infinity.
def njit_sum(function: Function) -> Function:
    """Compile a sum as `njit` does, allowing reordered additions and fused multiply-adds.

    NaN and infinity behave as usual; the last bits of the result depend on the processor. The
    summation loop must not write to an array. If it does, the compiled code checks at run time
    whether arrays overlap, and the order of additions depends on that.
    """
    return _compile(function, {"reassoc", "contract"})


def njit_inline(function: Function) -> Function:
    """Compile `function` as `njit_bare` does, and always inline it into its callers.

    For short functions with many array arguments, where the call costs more than the work.
    """
    return _compile(function, False, forceinline=True, _nrt=False)


def njit_bare(function: Function) -> Function:
    """Compile `function` as `njit` does, without reference counting; it must not create arrays.

    For loops over short rows: the atomic reference count of an array argument costs as much as a
    short inner product.
    """
    return _compile(function, False, _nrt=False)


def is_kernel(function: Any) -> bool:
    """Return whether a function was made by a decorator of this module, compiled or not.

    A function of plain ``numba.njit`` is not accepted: inside a kernel it inherits compiler options
    that it does not set itself, and may then compute something else.
    """
    if COMPILES:
        return isinstance(getattr(function, "_cache", None), KernelCache)
    return hasattr(function, "py_func")


def _compile(function: Function, fastmath: bool | set[str], **extra_options: bool) -> Function:
    if not COMPILES:
        return _as_python(function)
    # nogil lets threads run in parallel; NumPy's error model divides by zero without a check
    options: dict[str, Any] = {"nopython": True, "nogil": True, "error_model": "numpy"}
    options["fastmath"] = fastmath
    options["no_cfunc_wrapper"] = True  # kernels are not called from C
    options["_nrt"] = True  # explicit, so that it is not inherited from a bare caller
    options |= extra_options
    compiled: Any = Kernel(function, targetoptions=options)
    compiled._cache = KernelCache(compiled)  # inactive if no folder is writable
    return cast(Function, compiled)


@contextmanager
def report_compilation(enabled: bool) -> Iterator[None]:
    """Report on stderr, once, if kernels are compiled in the body of ``with``.

    Kernels loaded from the disk cache are not reported.
    """
    if not (enabled and COMPILES):
        yield
        return
    reported = False

    class Listener(events.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            nonlocal reported
            if not reported:
                reported = True  # before the report, because other threads may come here
                report_line(True, "compiling kernels, which later runs find on disk")

        def on_end(self, event: Any) -> None:
            pass

    with events.install_listener("numba:compile", Listener()):
        yield


_in_kernel: ContextVar[bool] = ContextVar("in_kernel", default=False)


def _as_python(function: Function) -> Function:
    """Return an uncompiled kernel, in which overflow gives no warnings.

    Warnings are disabled around the outermost kernel call only: changing NumPy's error state takes
    longer than most kernels, and warnings in the caller's own code must remain.
    """

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if _in_kernel.get():
            return function(*arguments, **options)
        token = _in_kernel.set(True)
        try:
            with np.errstate(all="ignore"):
                return function(*arguments, **options)
        finally:
            _in_kernel.reset(token)

    kernel: Any = call
    kernel.py_func = function  # the attribute of a compiled kernel
    return cast(Function, kernel)


def num_threads() -> int:
    """Return the number of threads for kernels: `numba.get_num_threads` of the calling thread.

    `numba.get_num_threads` is called only if Numba's threading layer is loaded already, as it is
    after `numba.set_num_threads`. Loading OpenMP here would forbid Numba's parallel loops in forked
    children.
    """
    if numba is None or getattr(_thread, "is_worker", False):  # workers are single-threaded
        return 1
    try:
        numba.threading_layer()
    except ValueError:  # not loaded, so the number was never set
        return int(getattr(numba.config, "NUMBA_NUM_THREADS", 1))
    return int(numba.get_num_threads())


def use_threads(threads: int) -> None:
    """Set the number of threads for kernels called from this thread, at most Numba's maximum."""
    if numba is not None:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run kernels single-threaded in the body of ``with``, without the pool.

    For threads of another engine, which runs many of them at once.
    """
    was_worker = getattr(_thread, "is_worker", False)
    _thread.is_worker = True
    try:
        yield
    finally:
        _thread.is_worker = was_worker


def thread_map(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Apply `function` to each item on a thread pool, and yield the results in order.

    The calling thread works too. `function` should release the GIL, as kernels made by `njit` do.
    At most one unread result per thread is held, so a reduction needs memory for one result per
    thread. Its order does not depend on the number of threads.
    """
    items = list(items)
    threads = num_threads()
    workers = min(threads, len(items))
    if workers <= 1:  # also inside a worker, where waiting for other workers could deadlock
        yield from map(function, items)
        return
    for chunk in chunks(len(items), workers):
        first, *rest = items[chunk]
        tasks = [_Task(function, item) for item in rest]
        _pool.submit(tasks, threads - 1)
        try:
            # the calling thread works too, and runs the tasks that no worker has begun
            yield function(first)
            for task in tasks:
                yield task.result()
        except BaseException:  # do not leave kernels running on the caller's arrays
            _cancel(tasks)
            raise


def thread_each(function: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Call `function` on each item, on the threads of `thread_map`, for its side effects.

    No two calls may write to the same memory. A thread that has finished an item takes the next.
    """
    items = list(items)
    if items and not items[1:]:
        function(items[0])
        return
    workers = min(num_threads(), len(items))
    queue = deque(items)  # shared by the threads; `popleft` is atomic, with or without a GIL

    def work(_: int = 0) -> None:
        try:
            while True:
                try:
                    item = queue.popleft()
                except IndexError:
                    return
                function(item)
        except BaseException:
            queue.clear()  # stop the other threads
            raise

    if workers <= 1:
        work()
        return
    for _ in thread_map(work, range(workers)):
        pass


def call_single_threaded(function: Callable[[Item], Result], item: Item) -> Result:
    """Call ``function(item)`` with single-threaded kernels, as a task among parallel ones."""
    with single_threaded():
        return function(item)


def run_in_lockstep(function: Callable[[int, int], object], workers: int) -> None:
    """Call ``function(worker, workers)`` for all workers at the same time, each on its own thread.

    For kernels whose workers synchronise with `barrier_wait`. A worker must not raise, because the
    others would wait for it forever. The number of workers is the number of threads that could be
    started. The threads are new ones: in the shared pool, a worker might wait for another that no
    thread has begun.
    """
    workers = min(workers, num_threads()) if COMPILES else 1
    if workers > 1:
        with _lockstep_lock:  # two calls at once would compete for cores at each barrier
            if _start_lockstep(function, workers):
                return
    function(0, 1)


def _start_lockstep(function: Callable[[int, int], object], workers: int) -> bool:
    """Run the workers of `run_in_lockstep` on new threads; return False if none can be started."""
    num_workers = 0
    gate = threading.Event()

    def work(worker: int) -> None:
        gate.wait()
        if num_workers:
            function(worker, num_workers)

    tasks = [_Task(work, worker) for worker in range(workers)]
    started = 0
    try:
        while started < workers and _start_worker(tasks[started].begin):
            started += 1
        num_workers = started
    finally:
        gate.set()  # after an interrupt `num_workers` is 0, and the threads end at once
    try:
        # the calling thread is not a worker, so an interrupt here leaves no worker waiting
        for task in tasks[:num_workers]:
            task.wait()
    except BaseException:
        _cancel(tasks[:num_workers])
        raise
    return num_workers > 0


def _start_worker(work: Callable[[], object]) -> bool:
    """Start a thread with single-threaded kernels; return False if the system refuses it.

    That happens at the process's limit of threads, and when the interpreter shuts down.
    """

    def run() -> None:
        _thread.is_worker = True
        work()

    try:
        threading.Thread(
            target=run, name=f"samplesoft_{next(_thread_numbers)}", daemon=True
        ).start()
    except RuntimeError:
        return False
    return True


def _atomic_add_intrinsic(typing: Any, array: Any, value: Any) -> Any:
    """Type and generate an atomic addition to ``array[0]`` that returns the previous value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", data, arguments[1], ordering="seq_cst")

    return types.int64(array, types.int64), generate


if COMPILES:
    _atomic_add: Any = intrinsic(_atomic_add_intrinsic)
    _yield_core: Any = types.ExternalFunction(
        "Sleep" if os.name == "nt" else "usleep", types.int32(types.uint32)
    )
_SPINS_BEFORE_YIELD = 1000  # polls, about 20 us, after which a waiting thread yields its core


@njit
def barrier_wait(arrived: Any, workers: int, number: int) -> None:
    """Wait at a barrier until all workers have arrived; `number` counts the barriers from 1.

    `arrived` (1,) is an int64 counter, 0 before the first barrier. After the barrier, a worker can
    read what the others have written.
    """
    if workers > 1:
        _atomic_add(arrived, 1)
        spins = 0
        while _atomic_add(arrived, 0) < number * workers:
            spins += 1
            if spins > _SPINS_BEFORE_YIELD:
                _yield_core(1)


class _Task(Generic[Item, Result]):
    """A function call that is run by the first thread to begin it."""

    def __init__(self, function: Callable[[Item], Result], item: Item) -> None:
        # in a copy of the caller's context, which includes np.errstate
        self._call: Any = (copy_context().run, function, item)
        self._begin_lock = threading.Lock()
        self._future = Future[Result]()

    def begin(self) -> None:
        """Run the call, unless another thread has begun it."""
        if not self._begin_lock.acquire(blocking=False):
            return
        # drop the reference: a queue may hold the task longer than its arrays are needed
        (run, function, item), self._call = self._call, None
        try:
            self._future.set_result(run(function, item))
        except BaseException as error:
            self._future.set_exception(error)

    def wait(self) -> Result:
        """Wait for the call, which another thread runs, and return its result."""
        return self._future.result()

    def result(self) -> Result:
        """Return the result of the call; run it here if no other thread has begun it."""
        self.begin()
        return self.wait()

    def cancel(self) -> Future[Result] | None:
        """Cancel the call; if it has begun, return the future to wait for."""
        if self._begin_lock.acquire(blocking=False):
            self._call = None
            return None
        return self._future


def _cancel(tasks: list[_Task[Any, Any]]) -> None:
    """Cancel tasks, and wait for those that have begun."""
    wait([future for future in [task.cancel() for task in tasks] if future is not None])


class _Pool:
    """A thread pool shared by all calls, because starting a thread costs more than a small draw.

    The threads are daemons. A thread that still waits for them at the end of the program outlives
    the main thread, and they continue to serve it.
    """

    def __init__(self) -> None:
        self._size = 0
        self._growing = threading.Lock()
        self._tasks: SimpleQueue[_Task[Any, Any]] = SimpleQueue()

    def submit(self, tasks: list[Any], threads: int) -> None:
        """Queue tasks for up to `threads` threads; it is not guaranteed that any of them begins."""
        with self._growing:
            while self._size < threads and _start_worker(self._work):
                self._size += 1
            size = self._size
        if size:  # without threads the tasks would stay in the queue forever
            for task in tasks:
                self._tasks.put(task)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            task.begin()
            del task  # free its arrays while this thread waits for the next task


_thread = threading.local()
_thread_numbers = count()
_lockstep_lock = threading.Lock()
_pool = _Pool()
_COMPILING_SECONDS = 60.0  # seconds that a fork waits for a compilation in another thread


def _before_fork() -> None:
    """Wait until no other thread compiles, so that the compiler is usable in the child."""
    _thread.holds_compiler = COMPILES and global_compiler_lock._lock.acquire(
        timeout=_COMPILING_SECONDS
    )


def _after_fork_in_parent() -> None:
    if _thread.holds_compiler:
        global_compiler_lock._lock.release()


def _after_fork_in_child() -> None:
    """Replace locks that threads of the parent may hold; the child does not have these threads."""
    global _lockstep_lock, _pool
    _lockstep_lock = threading.Lock()
    _pool = _Pool()
    if _thread.holds_compiler:
        global_compiler_lock._lock.release()
    elif COMPILES:
        global_compiler_lock._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


def chunks(size: int, chunk: int) -> list[slice]:
    """Split ``range(size)`` into slices of `chunk` items, the last one shorter."""
    return [slice(start, min(start + chunk, size)) for start in range(0, size, chunk)]


def row_chunks(shape: tuple[int, ...], size: int) -> list[slice]:
    """Split the rows of a matrix of `shape` into slices of about `size` entries each."""
    return chunks(shape[0], max(1, size // max(1, shape[1])))
