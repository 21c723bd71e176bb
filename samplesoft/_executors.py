"""Tasks on the workers of an executor: threads, processes, or a cluster of Dask.

Each task has one thread for its kernels, and results come in the order of the tasks: random numbers
are keyed and sums are taken in order, so that the bits are the same with any number of workers.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import islice
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING, Any, TypeVar

from samplesoft import __version__
from samplesoft._jit import call_single_threaded, num_threads
from samplesoft._memory import require_bytes

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Item = TypeVar("Item")
Result = TypeVar("Result")

SCHEDULERS = ("threads", "processes")
_WHERE = "--scheduler must be threads, processes or"
_CONNECT_SECONDS = 10  # in which an address must answer
_TASKS_AHEAD_PER_WORKER = 4  # tasks handed out ahead, for each worker
_LEAST_TASKS_AHEAD = 32  # tasks handed out ahead, in all
_MOST_DEATHS = 3  # in a row, after which a task is given up; Dask has the same number
_BYTES_PER_BYTE_SENT = 10  # bytes that a task works in, for each byte that it is sent
_PACKAGES = ("numpy", "numba", "scipy", "dask", "distributed", "cloudpickle")


def as_executor(executor: Any) -> Executor | None:
    """Return the public `executor` argument, when it is clear that its workers have this code."""
    if executor is not None and not isinstance(executor, Executor):
        raise TypeError(
            "`executor` must be a concurrent.futures.Executor or None, got "
            f"{type(executor).__name__}; of a client of Dask give client.get_executor(pure=False)."
        )
    client = _client_of(executor)
    if client is not None:
        require_alike(client, "executor")
    return executor


def run_tasks(
    function: Callable[[Item], Result], items: Iterable[Item], executor: Executor | None
) -> Iterator[Result]:
    """Yield ``function(item)`` for each item in order: here, or on the workers of an executor.

    What a worker had that died is handed out again. What the executor does not take, since it is
    shut down or may start no thread, is done here. Whatever ends the loop, such as Ctrl-C, cancels
    the tasks that have not begun.
    """
    if executor is None:
        yield from map(function, items)
        return

    refuses = False

    def hand_out(item: Item) -> tuple[Item, Future[Result] | None]:
        nonlocal refuses
        refuses = refuses or _has_no_thread(executor)
        if not refuses:
            try:
                return item, executor.submit(call_single_threaded, function, item)
            except BrokenExecutor:
                raise
            except RuntimeError:
                refuses = True
        return item, None

    left = iter(items)
    deaths = 0
    waiting: deque[tuple[Item, Future[Result] | None]] = deque()
    try:
        for first in islice(left, 1):
            _require_memory(function, first, executor)
            waiting.append(hand_out(first))
        waiting.extend(map(hand_out, islice(left, _window(executor))))
        while waiting:
            item, future = waiting[0]
            try:
                result = call_single_threaded(function, item) if future is None else future.result()
            except BrokenExecutor:
                deaths += 1
                if deaths > _MOST_DEATHS:
                    raise
                # at once all that the pool had: one by one they would keep one worker busy
                waiting = deque(
                    hand_out(item) if _is_broken(future) else (item, future)
                    for item, future in waiting
                )
                continue
            deaths = 0
            waiting.popleft()
            waiting.extend(map(hand_out, islice(left, 1)))
            yield result
    except Exception as error:
        lost = isinstance(error, (BrokenExecutor, CancelledError))
        if lost or type(error).__name__ == "KilledWorker":  # of Dask
            raise ChildProcessError(
                f"the workers lost a task ({type(error).__name__}: {error}); if nobody killed "
                "them, they are short of memory: take fewer of them."
            ) from error
        raise
    finally:
        for _, future in waiting:
            if future is not None:
                future.cancel()


def _has_processes(executor: Executor) -> bool:
    # not imported for the question: where the main thread has ended, that would be refused
    module: Any = sys.modules.get("concurrent.futures.process")
    return module is not None and isinstance(executor, (module.ProcessPoolExecutor, Processes))


def _has_no_thread(executor: Executor) -> bool:
    """Return whether a pool of processes was refused the thread that hands its tasks out.

    It says so once, and then takes tasks that nobody begins.
    """
    thread: Any = getattr(executor, "_executor_manager_thread", None)
    return thread is not None and thread.ident is None


def _is_broken(future: Future[Any] | None) -> bool:
    return future is not None and future.done() and isinstance(future.exception(), BrokenExecutor)


def _window(executor: Executor) -> int:
    """Return how many tasks are handed out ahead, whose arguments and results take memory."""
    client = _client_of(executor)
    of_pool = getattr(executor, "_max_workers", None) or os.cpu_count() or 1
    workers: int = of_pool if client is None else sum(client.nthreads().values())
    return max(_TASKS_AHEAD_PER_WORKER * workers, _LEAST_TASKS_AHEAD)


def _require_memory(function: Any, item: Any, executor: Executor) -> None:
    """Raise where a task cannot be sent to another process, or workers of Dask cannot hold it."""
    client = _client_of(executor)
    if client is None and not _has_processes(executor):
        return
    try:
        # Dask falls back on cloudpickle, which takes functions without a name too
        module = pickle if client is None else import_module("cloudpickle")
        size = len(module.dumps((function, item)))
    except Exception as error:
        raise TypeError(
            f"`executor` must be one of threads for arguments that do not pickle, got a "
            f"{type(executor).__name__} ({error}); define functions and classes at the top of a "
            "module, or take a ThreadPoolExecutor."
        ) from error
    workers = {} if client is None else client.scheduler_info(n_workers=-1)["workers"]
    for address, worker in workers.items():
        if worker["memory_limit"]:  # 0 for none
            what = f"a task on each thread of `executor`'s worker {address}: its arrays"
            remedy = "start workers with more memory or fewer threads, or take fewer classes"
            needed = _BYTES_PER_BYTE_SENT * size * worker["nthreads"]
            require_bytes(what, needed, remedy, worker["memory_limit"])


# a cluster of Dask --------------------------------------------------------------------------------


def _client_of(executor: Any) -> Any:
    """Return the client of an executor of Dask; None of others."""
    if "distributed" not in sys.modules:
        return None
    client = getattr(executor, "_client", None)
    return client if isinstance(client, import_module("distributed").Client) else None


def _versions() -> dict[str, str]:
    """Return the versions on which code and bits depend."""
    found = {name: str(import_module(name).__version__) for name in _PACKAGES}
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"python": python, "samplesoft": __version__, **found}


def require_alike(client: Any, name: str) -> None:
    """Raise ValueError unless there are workers, and all have the versions of this process."""
    try:
        workers = client.run(_versions)
    except Exception as error:  # whatever a worker raises that has no samplesoft, or another one
        raise ValueError(
            f"`{name}` must have workers with the same samplesoft as here, {__version__}, got "
            f"{type(error).__name__}: {error}; install it there."
        ) from error
    if not workers:
        raise ValueError(
            f"`{name}` must have workers, got a scheduler with none; start some with "
            f"dask worker {client.scheduler.address}."
        )
    own = _versions()
    for address, versions in workers.items():
        other = {name: found for name, found in versions.items() if own[name] != found}
        if other:
            there = ", ".join(f"{name} {found}" for name, found in other.items())
            here = ", ".join(f"{name} {own[name]}" for name in other)
            raise ValueError(
                f"`{name}` must have workers with the versions of here, {here}, got {there} on "
                f"{address}; install the same on both sides."
            )


# workers of the command line ----------------------------------------------------------------------


@contextmanager
def open_scheduler(scheduler: str | None) -> Iterator[Executor | None]:
    """Give the executor that ``--scheduler`` names, as many workers as threads if it is of here."""
    if scheduler is None:
        yield None
    elif scheduler in SCHEDULERS:
        from concurrent.futures import ThreadPoolExecutor

        with (ThreadPoolExecutor if scheduler == "threads" else Processes)(num_threads()) as pool:
            yield pool
    else:
        with (
            connected(scheduler, _WHERE, set_as_default=False) as client,
            client.get_executor(pure=False) as executor,
        ):
            yield executor


@contextmanager
def open_cluster(address: str | None) -> Iterator[Any]:
    """Give the client of a cluster of Dask whose scheduler ``--scheduler`` names, None for none."""
    if address is None:
        yield None
        return
    what = "--scheduler must be"
    if address in SCHEDULERS:
        raise ValueError(
            f"{what} the address of a scheduler of Dask, whose workers keep class vectors, got "
            f"{address!r}; leave it out to train on the threads of this process."
        )
    with connected(address, what, direct_to_workers=True) as client:
        require_alike(client, "--scheduler")
        yield client


def connected(address: str, what: str, **options: Any) -> Any:
    """Return a client of Dask for a scheduler, which must answer soon.

    Errors begin with `what`, such as "--scheduler must be threads, processes or".
    """
    try:
        distributed = import_module("distributed")
    except ImportError:
        raise ValueError(
            f"{what} an address, for which there must be Dask, got {address!r}; "
            "pip install 'dask[array]' distributed."
        ) from None

    async def ask() -> None:
        how = distributed.Security().get_connection_args("client")
        # for what answers, but not as a scheduler does
        async with asyncio.timeout(_CONNECT_SECONDS):
            (await distributed.comm.connect(address, timeout=_CONNECT_SECONDS, **how)).abort()

    # before there is a client, which would try for longer, and once more when it is closed
    try:
        asyncio.run(ask())
    except Exception as error:  # of the network, of the address, or of what else answers there
        raise ValueError(
            f"{what} the address of a scheduler of Dask that answers in "
            f"{_CONNECT_SECONDS} s, such as tcp://10.0.0.1:8786, got {address!r} "
            f"({str(error) or 'silence'})."
        ) from error
    return distributed.Client(address, timeout=_CONNECT_SECONDS, **options)


class Processes(Executor):
    """Worker processes that end with this one; there are new ones where some were killed."""

    def __init__(self, workers: int) -> None:
        self._max_workers = workers
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        from concurrent.futures import ProcessPoolExecutor

        # a fork would copy locks that threads of this process hold
        return ProcessPoolExecutor(self._max_workers, get_context("spawn"), _begin)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand out ``fn(*args, **kwargs)``."""
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenExecutor:
            self._pool = self._start()
            return self._pool.submit(fn, *args, **kwargs)
        except RuntimeError:
            if _has_no_thread(self._pool):  # and processes, of which nobody asks anything
                for process in list(self._pool._processes.values()):
                    process.kill()
                self._pool = self._start()
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers."""
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


def _begin() -> None:
    """Let a worker process end with its parent, which hears of Ctrl-C for both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent: Any = parent_process()
    with suppress(RuntimeError):  # where no thread can be started, there is work to do still
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
