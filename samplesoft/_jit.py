"""The one njit decorator, and threads that run its kernels side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])
Item = TypeVar("Item")
Result = TypeVar("Result")


def njit(function: Function) -> Function:
    """Compile `function` for one thread, without the GIL, with a disk cache where one is writable.

    Parameters
    ----------
    function : callable
        A kernel or a scalar function in the subset of Python that Numba compiles.

    Returns
    -------
    callable
        The compiled function; division by zero follows IEEE 754, as in NumPy.
    """
    compiled: Any
    try:
        compiled = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # no writable place for the cache: compile in every process instead
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    return cast(Function, compiled)


def num_threads() -> int:
    """Return how many threads kernels may use: ``NUMBA_NUM_THREADS`` or the usable cores."""
    return int(getattr(numba.config, "NUMBA_NUM_THREADS", 1))


def thread_map(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Apply `function` to each item on a thread pool and yield the results in order.

    At most one unread result per thread is held, so a reduction over the results needs memory
    for as many of them as there are threads, and its order does not depend on their number.

    Parameters
    ----------
    function : callable
        Releases the GIL while it works, as kernels made by `njit` do.
    items : iterable
        One argument for each call.

    Yields
    ------
    object
        ``function(item)`` for each item, in the order of the items.
    """
    items = list(items)
    workers = min(num_threads(), len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[Result]] = deque()
        for item in items:
            if len(pending) == workers:
                yield pending.popleft().result()
            pending.append(pool.submit(function, item))
        while pending:
            yield pending.popleft().result()


def chunks(size: int, chunk: int) -> list[slice]:
    """Split ``range(size)`` into slices of `chunk` items, the last one shorter."""
    return [slice(start, min(start + chunk, size)) for start in range(0, size, chunk)]
