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
threads of OpenBLAS cannot be replaced: if one thread forks while another runs a multithreaded
matrix product, OpenBLAS hangs in the parent or the child. A server that forks during computations
should set ``OPENBLAS_NUM_THREADS=1``.

Without Numba, as in a browser, or with ``NUMBA_DISABLE_JIT=1``, kernels run as plain Python
functions. They are about a hundred times slower, which is fast enough for teaching examples.
Overflowing integers wrap around as in compiled kernels, without warnings from NumPy.
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
except ModuleNotFoundError as error:
    # ignore only that Numba is missing, not that a dependency of Numba is missing
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
    """Return `function` as a compiled kernel, which runs on one thread and releases the GIL.

    The machine code is cached on disk, if a cache folder is writable. Division by zero follows IEEE
    754, as in NumPy.
    """
    return _compile(function, False)


# LLVM vectorises a sum only if it may reorder the additions, which makes a sum of 1,000 products 12
# times as fast. The option fastmath=True would allow this too, but break checks for NaN and inf.
def njit_sum(function: Function) -> Function:
    """Return `function` compiled as by `njit`, with reordered additions and fused multiply-adds.

    For functions that return a sum. NaN and infinity behave as usual; the last bits of the sum
    depend on the processor. The summation loop must not write to an array: if it does, the compiled
    code checks at run time whether arrays overlap, and the order of additions depends on the
    result.
    """
    return _compile(function, {"reassoc", "contract"})


def njit_inline(function: Function) -> Function:
    """Return `function` compiled as by `njit_bare`, and always inlined into its callers.

    For short functions with many array arguments, whose call would cost more than their work.
    """
    return _compile(function, False, forceinline=True, _nrt=False)


def njit_bare(function: Function) -> Function:
    """Return `function` compiled as by `njit`, without reference counting of arrays.

    The function must not create arrays. Use it for loops over short rows, because an atomic update
    of an array's reference count costs as much as a short inner product.
    """
    return _compile(function, False, _nrt=False)


def is_kernel(function: Any) -> bool:
    """Return whether a function was made by a decorator of this module, compiled or not.

    The result is False for a function compiled by plain ``numba.njit``. Such a function inherits
    compiler options from the kernel that calls it, and may then compute something else.
    """
    if COMPILES:
        return isinstance(getattr(function, "_cache", None), KernelCache)
    return hasattr(function, "py_func")


def _compile(function: Function, fastmath: bool | set[str], **extra_options: bool) -> Function:
    """Return `function` as a kernel, compiled by Numba if Numba is available and not disabled."""
    if not COMPILES:
        return _uncompiled_kernel(function)

    # `nogil` lets threads run in parallel; NumPy's error model does not check for zero divisors
    options: dict[str, Any] = {"nopython": True, "nogil": True, "error_model": "numpy"}
    options["fastmath"] = fastmath
    options["no_cfunc_wrapper"] = True  # kernels are not called from C

    # set explicitly: a kernel called by one of `njit_bare` would otherwise inherit its False
    options["_nrt"] = True
    options |= extra_options

    compiled: Any = Kernel(function, targetoptions=options)
    compiled._cache = KernelCache(compiled)  # inactive if no folder is writable
    return cast(Function, compiled)


@contextmanager
def report_compilation(enabled: bool) -> Iterator[None]:
    """Write one line to stderr if any kernel is compiled in the body of ``with``.

    Kernels that are loaded from the disk cache do not count. Nothing is written unless `enabled`.
    """
    if not (enabled and COMPILES):
        yield
        return

    reported = False

    class Listener(events.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            nonlocal reported
            if not reported:
                # set before the report, because another thread may compile during the report
                reported = True
                report_line(True, "compiling kernels, which later runs find on disk")

        def on_end(self, event: Any) -> None:
            pass

    with events.install_listener("numba:compile", Listener()):
        yield


_in_kernel: ContextVar[bool] = ContextVar("in_kernel", default=False)


def _uncompiled_kernel(function: Function) -> Function:
    """Return `function` as an uncompiled kernel, in which NumPy gives no warnings of overflow.

    Only the outermost kernel call turns the warnings off, because changing NumPy's error state
    takes longer than most kernels. Code outside kernels still gives warnings.
    """

    @wraps(function)
    def kernel_without_warnings(*arguments: Any, **options: Any) -> Any:
        if _in_kernel.get():
            return function(*arguments, **options)
        token = _in_kernel.set(True)
        try:
            with np.errstate(all="ignore"):
                return function(*arguments, **options)
        finally:
            _in_kernel.reset(token)

    kernel: Any = kernel_without_warnings
    kernel.py_func = function  # a compiled kernel has this attribute too
    return cast(Function, kernel)


def num_threads() -> int:
    """Return the number of threads on which the calling thread may run kernels.

    It is Numba's setting for the calling thread, and 1 inside a worker thread. If Numba's threading
    layer is not loaded, ``numba.set_num_threads`` was never called, and the setting has its default
    value. The layer is not loaded for this purpose, because after loading OpenMP, Numba's parallel
    loops fail in forked children.
    """
    if numba is None or getattr(_thread_state, "is_worker", False):
        return 1
    try:
        numba.threading_layer()
    except ValueError:  # the layer is not loaded, so `numba.set_num_threads` was never called
        return int(getattr(numba.config, "NUMBA_NUM_THREADS", 1))
    return int(numba.get_num_threads())


def set_num_threads(threads: int) -> None:
    """Set the number of threads for kernels called from this thread, up to Numba's maximum."""
    if numba is not None:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))


@contextmanager
def single_threaded() -> Iterator[None]:
    """Make kernels run on the calling thread alone in the body of ``with``.

    For threads of an executor, which already runs one task per core.
    """
    was_worker = getattr(_thread_state, "is_worker", False)
    _thread_state.is_worker = True
    try:
        yield
    finally:
        _thread_state.is_worker = was_worker


def thread_map(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield ``function(item)`` for each item in order, computed on a pool of threads.

    The calling thread also computes. `function` should release the GIL, as kernels made by `njit`
    do. At most one unread result per thread is held in memory. A caller that adds up the results
    does so in the same order for any number of threads.
    """
    items = list(items)
    threads = num_threads()
    workers = min(threads, len(items))

    # inside a worker `threads` is 1, because waiting for other workers could deadlock
    if workers <= 1:
        yield from map(function, items)
        return

    for chunk in chunks(len(items), workers):
        first_item, *other_items = items[chunk]
        tasks = [_Task(function, item) for item in other_items]
        _pool.submit(tasks, threads - 1)

        try:
            # the calling thread works too, and runs the tasks that no worker has begun
            yield function(first_item)
            for task in tasks:
                yield task.run_or_wait()
        except BaseException:
            # wait, because after the error no kernel may use the caller's arrays
            _cancel_and_wait(tasks)
            raise


def thread_for_each(function: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Call ``function(item)`` for each item, on the threads of `thread_map`; discard the results.

    The calls may run in any order, so no two of them may write to the same memory.
    """
    items = list(items)
    if items and not items[1:]:
        function(items[0])
        return

    workers = min(num_threads(), len(items))
    # shared by the threads: `popleft` is atomic, with or without a GIL
    queue = deque(items)

    def process_queue(_: int = 0) -> None:
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
        process_queue()
        return
    for _ in thread_map(process_queue, range(workers)):
        pass


def call_single_threaded(function: Callable[[Item], Result], item: Item) -> Result:
    """Return ``function(item)``, whose kernels run on the calling thread alone."""
    with single_threaded():
        return function(item)


def run_in_lockstep(function: Callable[[int, int], object], workers: int) -> None:
    """Call ``function(worker, num_workers)`` for all workers at the same time, one per thread.

    For kernels whose workers synchronise with `barrier_wait`. `function` must not raise an error in
    a worker, because the other workers would wait for it forever. There are at most `workers`
    workers, fewer if Numba's setting or the system allows fewer threads. Each call starts new
    threads: in the shared pool, a worker could wait at a barrier for a worker that is still in the
    queue.
    """
    workers = min(workers, num_threads()) if COMPILES else 1
    if workers > 1:
        with _lockstep_lock:  # two concurrent calls would compete for cores at each barrier
            if _run_on_new_threads(function, workers):
                return

    function(0, 1)


def _run_on_new_threads(function: Callable[[int, int], object], workers: int) -> bool:
    """Run the workers of `run_in_lockstep`, one for each thread that can be started.

    Returns False, without calling `function`, if no thread can be started.
    """
    num_workers = 0
    gate = threading.Event()  # opened when the number of workers is known

    def run_worker(worker: int) -> None:
        gate.wait()
        if num_workers:
            function(worker, num_workers)

    tasks = [_Task(run_worker, worker) for worker in range(workers)]
    num_started = 0
    try:
        while num_started < workers and _start_worker_thread(tasks[num_started].run_if_not_begun):
            num_started += 1
        num_workers = num_started
    finally:
        # after an interrupt `num_workers` is still 0, and the threads end at once
        gate.set()

    try:
        # the calling thread is not a worker, so no worker waits forever if it is interrupted
        for task in tasks[:num_workers]:
            task.wait_for_result()
    except BaseException:
        _cancel_and_wait(tasks[:num_workers])
        raise

    return num_workers > 0


def _start_worker_thread(function: Callable[[], object]) -> bool:
    """Start a thread that calls `function`, with kernels on it alone; return whether it started.

    The system refuses a thread beyond the limit of the process, or when the interpreter shuts down.
    """

    def run_single_threaded() -> None:
        _thread_state.is_worker = True
        function()

    try:
        threading.Thread(
            target=run_single_threaded, name=f"samplesoft_{next(_thread_numbers)}", daemon=True
        ).start()
    except RuntimeError:
        return False
    return True


def _atomic_add_intrinsic(typing: Any, array: Any, value: Any) -> Any:
    """Return the signature and code generator of an atomic addition of `value` to ``array[0]``.

    The generated code returns the previous value of ``array[0]``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", data, arguments[1], ordering="seq_cst")

    return types.int64(array, types.int64), generate


if COMPILES:
    _atomic_add: Any = intrinsic(_atomic_add_intrinsic)
    _yield_core: Any = types.ExternalFunction(
        "Sleep" if os.name == "nt" else "usleep", types.int32(types.uint32)
    )
# number of polls of a barrier, about 20 us, after which a waiting thread yields its core
_SPINS_BEFORE_YIELD = 1000


@njit
def barrier_wait(arrived: Any, workers: int, number: int) -> None:
    """Wait until all workers have arrived at a barrier.

    `arrived` (1,) is an int64 counter that all workers share, set to 0 before the first barrier.
    `number` is the index of this barrier, counted from 1. After the barrier, a worker can read the
    values that other workers wrote before it.
    """
    if workers > 1:
        _atomic_add(arrived, 1)
        spins = 0
        while _atomic_add(arrived, 0) < number * workers:
            spins += 1
            if spins > _SPINS_BEFORE_YIELD:
                _yield_core(1)


class _Task(Generic[Item, Result]):
    """A call ``function(item)`` that runs only once, on the first of the threads that try it."""

    def __init__(self, function: Callable[[Item], Result], item: Item) -> None:
        # The call runs in a copy of the caller's context variables, which include np.errstate.
        self._call: Any = (copy_context().run, function, item)
        self._begin_lock = threading.Lock()
        self._future = Future[Result]()

    def run_if_not_begun(self) -> None:
        """Run the call, unless a thread has already begun it."""
        if not self._begin_lock.acquire(blocking=False):
            return
        # drop the references to the arguments, because a queue may hold this object for longer
        run, function, item = self._call
        self._call = None
        try:
            self._future.set_result(run(function, item))
        except BaseException as error:
            self._future.set_exception(error)

    def wait_for_result(self) -> Result:
        """Wait until another thread has run the call, and return its result or raise its error."""
        return self._future.result()

    def run_or_wait(self) -> Result:
        """Return the result of the call; run it on this thread if no thread has begun it."""
        self.run_if_not_begun()
        return self.wait_for_result()

    def cancel_unless_begun(self) -> Future[Result] | None:
        """Prevent the call if it has not begun; otherwise return its future."""
        if self._begin_lock.acquire(blocking=False):
            self._call = None
            return None
        return self._future


def _cancel_and_wait(tasks: list[_Task[Any, Any]]) -> None:
    """Cancel the tasks that have not begun, and wait for the end of the others."""
    wait(
        [future for future in [task.cancel_unless_begun() for task in tasks] if future is not None]
    )


class _ThreadPool:
    """A thread pool shared by all calls, because starting a thread costs more than a small kernel.

    The threads are daemons, which do not keep the program alive. If another thread of the program
    outlives the main thread, the pool continues to run its tasks.
    """

    def __init__(self) -> None:
        self._num_threads = 0
        self._growth_lock = threading.Lock()
        self._tasks: SimpleQueue[_Task[Any, Any]] = SimpleQueue()

    def submit(self, tasks: list[Any], threads: int) -> None:
        """Queue tasks for up to `threads` threads of the pool.

        A task never begins if the system refuses to start any thread; the caller must run it then.
        """
        with self._growth_lock:
            while self._num_threads < threads and _start_worker_thread(self._run_queued_tasks):
                self._num_threads += 1
            num_started = self._num_threads
        if num_started:  # without threads the tasks would stay in the queue forever
            for task in tasks:
                self._tasks.put(task)

    def _run_queued_tasks(self) -> None:
        """Run tasks from the queue forever, as a thread of the pool."""
        while True:
            task = self._tasks.get()
            task.run_if_not_begun()
            # free the task's arrays while this thread waits for the next task
            del task


_thread_state = threading.local()
_thread_numbers = count()
_lockstep_lock = threading.Lock()
_pool = _ThreadPool()
# Longest time that a fork waits for a compilation in another thread. After this time the fork goes
# on, and the child replaces the lock of the compiler.
_MAX_COMPILATION_WAIT_SECONDS = 60.0


def _wait_for_compiler_before_fork() -> None:
    """Wait until no other thread compiles, so that the forked child can use the compiler."""
    _thread_state.holds_compiler = COMPILES and global_compiler_lock._lock.acquire(
        timeout=_MAX_COMPILATION_WAIT_SECONDS
    )


def _release_compiler_after_fork() -> None:
    """Release the lock of the compiler in the parent, if it was acquired before the fork."""
    if _thread_state.holds_compiler:
        global_compiler_lock._lock.release()


def _replace_locks_after_fork() -> None:
    """In a forked child, replace the locks that other threads of the parent may hold."""
    global _lockstep_lock, _pool
    _lockstep_lock = threading.Lock()
    _pool = _ThreadPool()
    if _thread_state.holds_compiler:
        global_compiler_lock._lock.release()
    elif COMPILES:
        global_compiler_lock._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_wait_for_compiler_before_fork,
        after_in_parent=_release_compiler_after_fork,
        after_in_child=_replace_locks_after_fork,
    )


def chunks(size: int, chunk: int) -> list[slice]:
    """Return ``range(size)`` split into slices of `chunk` items; the last one may be shorter."""
    return [slice(start, min(start + chunk, size)) for start in range(0, size, chunk)]


def row_chunks(shape: tuple[int, ...], size: int) -> list[slice]:
    """Return slices of the rows of a matrix of shape `shape`, each of at most `size` entries.

    A slice has at least one row, even if a row has more entries.
    """
    return chunks(shape[0], max(1, size // max(1, shape[1])))
