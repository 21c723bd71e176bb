"""The one njit decorator, and threads that run its kernels side by side.

Kernels are serial; a pool of Python threads runs them on chunks. How many threads is Numba's
setting, as for its own parallel loops:

- ``NUMBA_NUM_THREADS`` in the environment, read when Numba is imported; else the usable cores.
  joblib sets it in its worker processes (``inner_max_num_threads``).
- ``numba.set_num_threads(k)``, for calls from the thread that sets it; k is at most the number
  above. Other threads keep their own setting, which starts at that number.

threadpoolctl does not know Numba: its limits hold for BLAS and OpenMP, and not here.

Whoever refuses a thread, as a system or a container may at any time, costs the threads and not the
work: the calling thread does what nobody else has begun. In a forked child all locks and threads
are new. What cannot be made new is NumPy's: OpenBLAS waits for ever, in the parent or in the child,
if a thread was at a product of matrices on several threads when another one forked. A server that
forks while it computes sets ``OPENBLAS_NUM_THREADS=1``.

Where Numba is missing, as in a browser, or ``NUMBA_DISABLE_JIT=1`` turns it off, kernels are the
Python functions that they are written as: some hundred times as slow, and quick enough for the
classes of a lesson. Integers wrap there too, and NumPy says nothing of it while a kernel runs.
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
except ModuleNotFoundError as error:  # of Numba itself, not of what it needs
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
    """Compile `function` for one thread, without the GIL, with a disk cache where one is writable.

    Division by zero follows IEEE 754, as in NumPy.
    """
    return _compile(function, False)


# LLVM vectorises a sum only if it may add in any order: 12 times as fast for 1,000 products.
# Not fastmath=True, which would break tests for NaN and infinity.
def njit_sum(function: Function) -> Function:
    """Compile a sum as `njit` does, free to add in any order and to fuse products into sums.

    NaN and infinity behave as ever; the last bits of the result depend on the processor. A loop
    that adds up must write to no array: where it does, the compiled one asks whether arrays lie too
    near each other for vectors, and then adds up in another order.
    """
    return _compile(function, {"reassoc", "contract"})


def njit_inline(function: Function) -> Function:
    """Compile `function` as `njit_bare` does, into each function that calls it.

    For one with many arrays and little to do with them: to pass them costs more than it does.
    """
    return _compile(function, False, forceinline=True, _nrt=False)


def njit_bare(function: Function) -> Function:
    """Compile `function` as `njit` does, but count no references: it may not make arrays.

    For loops over short rows: counting those of an array that is passed on, by instructions that
    all cores agree on, costs as much as a short product.
    """
    return _compile(function, False, _nrt=False)


def is_kernel(function: Any) -> bool:
    """Tell whether a function is a kernel of this module, compiled or as Python.

    Functions of plain ``numba.njit`` are none: those that a kernel calls are compiled with options
    of the kernel that they do not set themselves, and would compute something else.
    """
    if COMPILES:
        return isinstance(getattr(function, "_cache", None), KernelCache)
    return hasattr(function, "py_func")


def _compile(function: Function, fastmath: bool | set[str], **more: bool) -> Function:
    if not COMPILES:
        return _as_python(function)
    # nogil lets threads run side by side; NumPy's error model divides by zero without a check
    options: dict[str, Any] = {"nopython": True, "nogil": True, "error_model": "numpy"}
    options["fastmath"] = fastmath
    options["no_cfunc_wrapper"] = True  # nobody calls a kernel from C
    options["_nrt"] = True  # or a kernel would follow the bare one that calls it first
    options |= more
    compiled: Any = Kernel(function, targetoptions=options)
    compiled._cache = KernelCache(compiled)  # which finds no place where none is writable
    return cast(Function, compiled)


@contextmanager
def report_compilation(wanted: bool) -> Iterator[None]:
    """Say on stderr, once, that kernels are compiled, if any is in the body of ``with``.

    Those that are on disk are not compiled.
    """
    if not (wanted and COMPILES):
        yield
        return
    told = False

    class Listener(events.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            nonlocal told
            if not told:
                told = True  # first, for threads
                report_line(True, "compiling kernels, which later runs find on disk")

        def on_end(self, event: Any) -> None:
            pass

    with events.install_listener("numba:compile", Listener()):
        yield


_in_kernel: ContextVar[bool] = ContextVar("in_kernel", default=False)


def _as_python(function: Function) -> Function:
    """Return a kernel that is not compiled, and in which numbers overflow without a warning.

    Around the outermost call, for NumPy's settings take longer to change than most kernels run, and
    around no more than the call, so that a caller's own warnings come.
    """

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if _in_kernel.get():
            return function(*arguments, **options)
        before = _in_kernel.set(True)
        try:
            with np.errstate(all="ignore"):
                return function(*arguments, **options)
        finally:
            _in_kernel.reset(before)

    kernel: Any = call
    kernel.py_func = function  # as a compiled one has
    return cast(Function, kernel)


def num_threads() -> int:
    """Return how many threads kernels may use: what `numba.get_num_threads` says to this thread.

    Numba is asked only once its threading layer is loaded, as `numba.set_num_threads` does: to
    load OpenMP for the question would forbid parallel loops of Numba in forked children.
    """
    if numba is None or getattr(_thread, "is_worker", False):  # a worker works alone
        return 1
    try:
        numba.threading_layer()
    except ValueError:  # not loaded, so nobody has set a number
        return int(getattr(numba.config, "NUMBA_NUM_THREADS", 1))
    return int(numba.get_num_threads())


def use_threads(most: int) -> None:
    """Let kernels that this thread calls use so many threads, or as many as Numba may have."""
    if numba is not None:
        numba.set_num_threads(min(most, numba.config.NUMBA_NUM_THREADS))


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let the calling thread work without the pool, as one of many that another engine has."""
    before = getattr(_thread, "is_worker", False)
    _thread.is_worker = True
    try:
        yield
    finally:
        _thread.is_worker = before


def thread_map(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Apply `function` to each item, on the calling thread and a pool, and yield in order.

    `function` releases the GIL while it works, as kernels made by `njit` do. At most one unread
    result per thread is held, so a reduction over the results needs memory for as many of them as
    there are threads, and its order does not depend on their number.
    """
    # chunks need their number
    items = list(items)
    threads = num_threads()
    workers = min(threads, len(items))
    if workers <= 1:  # as in a worker, which may wait forever if it waits for others
        yield from map(function, items)
        return
    for part in chunks(len(items), workers):
        own, *others = items[part]
        tasks = [_Task(function, item) for item in others]
        _pool.hand_out(tasks, threads - 1)
        try:
            # the caller's thread works too, and does in the end what no other has begun
            yield function(own)
            for task in tasks:
                yield task.result()
        except BaseException:  # leave no kernel at work on arrays that the caller still has
            _drop(tasks)
            raise


def thread_each(function: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Apply `function` to each item as `thread_map` does, for what it does and not for results.

    No two calls may write to the same place. A thread that is done with an item takes the next.
    """
    items = list(items)
    if items and not items[1:]:
        function(items[0])
        return
    workers = min(num_threads(), len(items))
    left = deque(items)  # which threads share: no two of them get the same item, with a GIL or not

    def work(_: int = 0) -> None:
        try:
            while True:
                try:
                    item = left.popleft()
                except IndexError:
                    return
                function(item)
        except BaseException:
            left.clear()  # so that other threads stop too
            raise

    if workers <= 1:
        work()
        return
    for _ in thread_map(work, range(workers)):
        pass


def call_single_threaded(function: Callable[[Item], Result], item: Item) -> Result:
    """Call ``function(item)`` with one thread for its kernels, as a worker among others."""
    with single_threaded():
        return function(item)


def run_in_lockstep(function: Callable[[int, int], object], workers: int) -> None:
    """Call ``function(worker, workers)`` for each of some workers, all of them at the same time.

    For kernels whose workers `meet`: none may end with an error, for the others wait for it. There
    are as many workers as threads could be started, which are of this call alone: in a pool that is
    busy or short of threads, one worker might wait for another that nobody has begun.
    """
    workers = min(workers, num_threads()) if COMPILES else 1
    if workers > 1:
        with _meeting:  # two calls at once would wait for cores at each of their meetings
            if _start_lockstep(function, workers):
                return
    function(0, 1)


def _start_lockstep(function: Callable[[int, int], object], workers: int) -> bool:
    """Do as `run_in_lockstep` on new threads; return False where not even one could be started."""
    number = 0
    gate = threading.Event()

    def work(worker: int) -> None:
        gate.wait()
        if number:
            function(worker, number)

    tasks = [_Task(work, worker) for worker in range(workers)]
    started = 0
    try:
        while started < workers and _start_worker(tasks[started].begin):
            started += 1
        number = started
    finally:
        gate.set()  # without a number after an interrupt: then they end at once
    try:
        # this thread does no part of it: an interrupt here keeps no worker waiting
        for task in tasks[:number]:
            task.wait()
    except BaseException:
        _drop(tasks[:number])
        raise
    return number > 0


def _start_worker(work: Callable[[], object]) -> bool:
    """Start a thread that works alone, and return whether that was possible.

    It is not where the system has no more of them for this process, or where Python is at its end.
    """

    def run() -> None:
        _thread.is_worker = True
        work()

    try:
        threading.Thread(target=run, name=f"samplesoft_{next(_numbers)}", daemon=True).start()
    except RuntimeError:
        return False
    return True


def _add(typing: Any, array: Any, value: Any) -> Any:
    """Type and generate an atomic addition to ``array[0]``, which returns what was there."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", data, arguments[1], ordering="seq_cst")

    return types.int64(array, types.int64), generate


if COMPILES:
    _atomic_add: Any = intrinsic(_add)
    _let_others: Any = types.ExternalFunction(
        "Sleep" if os.name == "nt" else "usleep", types.int32(types.uint32)
    )
_PATIENCE = 1000  # questions, some 20 us, after which a thread that waits lets others have its core


@njit
def meet(arrived: Any, workers: int, number: int) -> None:
    """Wait until all workers have come to the meeting of that number, counted from 1.

    `arrived` (1,) are int64, 0 before the first meeting. What the others have written can then be
    read.
    """
    if workers > 1:
        _atomic_add(arrived, 1)
        asked = 0
        while _atomic_add(arrived, 0) < number * workers:
            asked += 1
            if asked > _PATIENCE:
                _let_others(1)


class _Task(Generic[Item, Result]):
    """A call of a function, made by the first thread that comes to it."""

    def __init__(self, function: Callable[[Item], Result], item: Item) -> None:
        # with the caller's context, of which np.errstate is a part
        self._call: Any = (copy_context().run, function, item)
        self._unbegun = threading.Lock()
        self._future = Future[Result]()

    def begin(self) -> None:
        """Make the call, unless another thread has begun it."""
        if not self._unbegun.acquire(blocking=False):
            return
        # not kept, for a queue may still hold the task when its arrays are of no more use
        (run, function, item), self._call = self._call, None
        try:
            self._future.set_result(run(function, item))
        except BaseException as error:
            self._future.set_exception(error)

    def wait(self) -> Result:
        """Return what the call returns, made by another thread."""
        return self._future.result()

    def result(self) -> Result:
        """Return what the call returns, made here if no other thread has begun it."""
        self.begin()
        return self.wait()

    def drop(self) -> Future[Result] | None:
        """Let nobody begin the call; return what to wait for if somebody has."""
        if self._unbegun.acquire(blocking=False):
            self._call = None
            return None
        return self._future


def _drop(tasks: list[_Task[Any, Any]]) -> None:
    """Wait for what has begun, and let the rest never begin."""
    wait([future for future in [task.drop() for task in tasks] if future is not None])


class _Pool:
    """Threads that all calls share, for starting them costs more than a small draw.

    They are daemons: what still waits for one when the program ends is a thread that outlives the
    main one, and goes on with them.
    """

    def __init__(self) -> None:
        self._size = 0
        self._growing = threading.Lock()
        self._tasks: SimpleQueue[_Task[Any, Any]] = SimpleQueue()

    def hand_out(self, tasks: list[Any], threads: int) -> None:
        """Give tasks to so many threads, or as many as there can be; they may begin with none."""
        with self._growing:
            while self._size < threads and _start_worker(self._work):
                self._size += 1
            size = self._size
        if size:  # else nobody would take them out of the queue again
            for task in tasks:
                self._tasks.put(task)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            task.begin()
            del task  # and with it its arrays, while this thread waits for the next


_thread = threading.local()
_numbers = count()
_meeting = threading.Lock()
_pool = _Pool()
_COMPILING_SECONDS = 60.0  # seconds that a fork waits for another thread that compiles


def _before_fork() -> None:
    """Wait until no other thread compiles, so that the child has a compiler that it can use."""
    _thread.holds_compiler = COMPILES and global_compiler_lock._lock.acquire(
        timeout=_COMPILING_SECONDS
    )


def _after_fork_in_parent() -> None:
    if _thread.holds_compiler:
        global_compiler_lock._lock.release()


def _after_fork_in_child() -> None:
    """Rebuild what threads of the parent may hold, none of which is here."""
    global _meeting, _pool
    _meeting = threading.Lock()
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


def row_chunks(shape: tuple[int, ...], numbers: int) -> list[slice]:
    """Split the rows of a matrix of `shape` into slices of about `numbers` numbers each."""
    return chunks(shape[0], max(1, numbers // max(1, shape[1])))
