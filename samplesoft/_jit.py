"""The one njit decorator, and threads that run its kernels side by side.

Kernels are serial; a pool of Python threads runs them on chunks. How many threads is Numba's
setting, as for its own parallel loops:

- ``NUMBA_NUM_THREADS`` in the environment, read when Numba is imported; else the usable cores.
  joblib sets it in its worker processes (``inner_max_num_threads``).
- ``numba.set_num_threads(k)``, for calls from the thread that sets it; k is at most the number
  above. Other threads keep their own setting, which starts at that number.

threadpoolctl does not know Numba: its limits hold for BLAS and OpenMP, and not here.

Where Numba is missing, as in a browser, kernels are the Python functions that they are written as,
on one thread: some hundred times as slow, and quick enough for the classes of a lesson.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from importlib import import_module
from typing import Any, TypeVar, cast

numba: Any = None
try:
    numba = import_module("numba")
except ModuleNotFoundError as error:  # of Numba itself, not of what it needs
    if error.name != "numba":
        raise
COMPILES = numba is not None and not getattr(numba.config, "DISABLE_JIT", False)
if COMPILES:
    from numba.core import types
    from numba.extending import intrinsic

    from samplesoft._kernel_cache import KernelCache
if numba is None:  # of kernels, in which integers wrap and divisions by zero are meant
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"samplesoft\.")

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

    NaN and infinity behave as ever; the last bits of the result depend on the processor.
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


def _compile(function: Function, fastmath: bool | set[str], **more: bool) -> Function:
    if not COMPILES:
        return function
    # nogil lets threads run side by side; NumPy's error model divides by zero without a check
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    options["no_cfunc_wrapper"] = True  # nobody calls a kernel from C
    options["_nrt"] = True  # or a kernel would follow the bare one that calls it first
    options |= more
    compiled: Any = numba.njit(**options)(function)
    compiled._cache = KernelCache(compiled)  # which finds no place where none is writable
    return cast(Function, compiled)


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
def alone() -> Iterator[None]:
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
    # the caller's thread works too
    pool = _pool(threads - 1)
    for part in chunks(len(items), workers):
        own, *others = items[part]
        # with the caller's context, of which np.errstate is a part
        pending = [pool.submit(copy_context().run, function, item) for item in others]
        try:
            yield function(own)
            yield from (future.result() for future in pending)
        except BaseException:  # leave no kernel at work on arrays that the caller still has
            wait(pending)
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
    left = iter(items)  # which threads share: next() of a list's is one step to them

    def work(_: int = 0) -> None:
        try:
            for item in left:
                function(item)
        except BaseException:
            for _item in left:  # so that other threads stop too
                pass
            raise

    if workers <= 1:
        work()
        return
    for _ in thread_map(work, range(workers)):
        pass


def call_alone(function: Callable[[Item], Result], item: Item) -> Result:
    """Call ``function(item)`` with one thread for its kernels, as a worker among others."""
    with alone():
        return function(item)


def together(function: Callable[[int, int], object], workers: int) -> None:
    """Call ``function(worker, workers)`` for each of some workers, all of them at the same time.

    For kernels whose workers `meet`: none may end with an error, for the others wait for it.
    """
    workers = min(workers, num_threads()) if COMPILES else 1
    if workers <= 1:
        function(0, 1)
        return
    # of two calls at once, each might have some threads of the pool and wait for the others
    with _meeting:
        for _ in thread_map(lambda worker: function(worker, workers), range(workers)):
            pass


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
_meeting = threading.Lock()


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


_thread = threading.local()


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    """Return the pool that all calls share, for starting threads costs more than a small draw."""
    # each marks itself when it starts
    return ThreadPoolExecutor(workers, "samplesoft", setattr, (_thread, "is_worker", True))


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def chunks(size: int, chunk: int) -> list[slice]:
    """Split ``range(size)`` into slices of `chunk` items, the last one shorter."""
    return [slice(start, min(start + chunk, size)) for start in range(0, size, chunk)]


def row_chunks(shape: tuple[int, ...], numbers: int) -> list[slice]:
    """Split the rows of a matrix of `shape` into slices of about `numbers` numbers each."""
    return chunks(shape[0], max(1, numbers // max(1, shape[1])))
