"""Run tasks on the workers of an executor: threads, processes, or a Dask cluster.

Kernels of a task are single-threaded, and results come in the order of the tasks. Random numbers
are keyed and sums are taken in order, so results are bitwise equal for any number of workers.
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
_SCHEDULER_ERROR = "--scheduler must be threads, processes or"
_CONNECT_SECONDS = 10  # timeout of a connection
_TASKS_AHEAD_PER_WORKER = 4  # tasks submitted ahead, per worker
_MIN_TASKS_AHEAD = 32  # tasks submitted ahead, at least
_MOST_DEATHS = 3  # worker deaths in a row after which a task is given up, as in Dask
_BYTES_PER_BYTE_SENT = 10  # working memory of a task, per byte of its pickled arguments
_PACKAGES = ("numpy", "numba", "scipy", "dask", "distributed", "cloudpickle")


def as_executor(executor: Any) -> Executor | None:
    """Check the public `executor` argument; Dask workers must have the same versions as here."""
    if executor is not None and not isinstance(executor, Executor):
        raise TypeError(
            "`executor` must be a concurrent.futures.Executor or None, got "
            f"{type(executor).__name__}; for a Dask client pass client.get_executor(pure=False)."
        )
    client = _client_of(executor)
    if client is not None:
        require_same_versions(client, "executor")
    return executor


def run_tasks(
    function: Callable[[Item], Result], items: Iterable[Item], executor: Executor | None
) -> Iterator[Result]:
    """Yield ``function(item)`` for each item in order, computed on the workers of an executor.

    Without an executor the calls are made here. Tasks of a worker that died are submitted again.
    Tasks that the executor refuses, because it is shut down or cannot start a thread, run here.
    When the loop ends early, as at Ctrl-C, tasks that have not begun are cancelled.
    """
    if executor is None:
        yield from map(function, items)
        return

    refused = False

    def submit(item: Item) -> tuple[Item, Future[Result] | None]:
        nonlocal refused
        refused = refused or _has_no_thread(executor)
        if not refused:
            try:
                return item, executor.submit(call_single_threaded, function, item)
            except BrokenExecutor:
                raise
            except RuntimeError:
                refused = True
        return item, None

    remaining = iter(items)
    deaths = 0
    pending: deque[tuple[Item, Future[Result] | None]] = deque()
    try:
        for first in islice(remaining, 1):
            _require_memory(function, first, executor)
            pending.append(submit(first))
        pending.extend(map(submit, islice(remaining, _num_tasks_ahead(executor))))
        while pending:
            item, future = pending[0]
            try:
                result = call_single_threaded(function, item) if future is None else future.result()
            except BrokenExecutor:
                deaths += 1
                if deaths > _MOST_DEATHS:
                    raise
                # resubmit all tasks of the broken pool at once; one by one, only one worker is busy
                pending = deque(
                    submit(item) if _is_broken(future) else (item, future)
                    for item, future in pending
                )
                continue
            deaths = 0
            pending.popleft()
            pending.extend(map(submit, islice(remaining, 1)))
            yield result
    except Exception as error:
        lost = isinstance(error, (BrokenExecutor, CancelledError))
        if lost or type(error).__name__ == "KilledWorker":  # Dask's error
            raise ChildProcessError(
                f"the workers lost a task ({type(error).__name__}: {error}); if nobody killed "
                "them, they are short of memory: take fewer of them."
            ) from error
        raise
    finally:
        for _, future in pending:
            if future is not None:
                future.cancel()


def _has_processes(executor: Executor) -> bool:
    # looked up and not imported: after the main thread has ended, the import would be refused
    module: Any = sys.modules.get("concurrent.futures.process")
    return module is not None and isinstance(executor, (module.ProcessPoolExecutor, Processes))


def _has_no_thread(executor: Executor) -> bool:
    """Return whether a process pool could not start the thread that distributes its tasks.

    Such a pool raises once, and then accepts tasks that never begin.
    """
    thread: Any = getattr(executor, "_executor_manager_thread", None)
    return thread is not None and thread.ident is None


def _is_broken(future: Future[Any] | None) -> bool:
    return future is not None and future.done() and isinstance(future.exception(), BrokenExecutor)


def _num_tasks_ahead(executor: Executor) -> int:
    """Return the number of tasks to submit ahead; it bounds the memory of arguments and results."""
    client = _client_of(executor)
    pool_workers = getattr(executor, "_max_workers", None) or os.cpu_count() or 1
    workers: int = pool_workers if client is None else sum(client.nthreads().values())
    return max(_TASKS_AHEAD_PER_WORKER * workers, _MIN_TASKS_AHEAD)


def _require_memory(function: Any, item: Any, executor: Executor) -> None:
    """Raise if a task cannot be pickled, or does not fit into the memory of a Dask worker."""
    client = _client_of(executor)
    if client is None and not _has_processes(executor):
        return
    try:
        # Dask falls back on cloudpickle, which also handles lambdas and local functions
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
            description = f"a task on each thread of `executor`'s worker {address}: its arrays"
            remedy = "start workers with more memory or fewer threads, or take fewer classes"
            needed = _BYTES_PER_BYTE_SENT * size * worker["nthreads"]
            require_bytes(description, needed, remedy, worker["memory_limit"])


# a cluster of Dask --------------------------------------------------------------------------------


def _client_of(executor: Any) -> Any:
    """Return the client of a Dask executor; None for other executors."""
    if "distributed" not in sys.modules:
        return None
    client = getattr(executor, "_client", None)
    return client if isinstance(client, import_module("distributed").Client) else None


def _versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on which results depend."""
    packages = {name: str(import_module(name).__version__) for name in _PACKAGES}
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"python": python, "samplesoft": __version__, **packages}


def require_same_versions(client: Any, name: str) -> None:
    """Raise ValueError unless there are Dask workers, all with the versions of this process."""
    try:
        workers = client.run(_versions)
    except Exception as error:  # workers without samplesoft, or with another version, may raise any
        raise ValueError(
            f"`{name}` must have workers with the same samplesoft as here, {__version__}, got "
            f"{type(error).__name__}: {error}; install it there."
        ) from error
    if not workers:
        raise ValueError(
            f"`{name}` must have workers, got a scheduler with none; start some with "
            f"dask worker {client.scheduler.address}."
        )
    versions_here = _versions()
    for address, versions in workers.items():
        different = {
            name: version for name, version in versions.items() if versions_here[name] != version
        }
        if different:
            got = ", ".join(f"{name} {version}" for name, version in different.items())
            expected = ", ".join(f"{name} {versions_here[name]}" for name in different)
            raise ValueError(
                f"`{name}` must have workers with the versions of here, {expected}, got {got} on "
                f"{address}; install the same on both sides."
            )


# workers of the command line ----------------------------------------------------------------------


@contextmanager
def open_scheduler(scheduler: str | None) -> Iterator[Executor | None]:
    """Give the executor named by ``--scheduler``; local ones have as many workers as threads."""
    if scheduler is None:
        yield None
    elif scheduler in SCHEDULERS:
        from concurrent.futures import ThreadPoolExecutor

        with (ThreadPoolExecutor if scheduler == "threads" else Processes)(num_threads()) as pool:
            yield pool
    else:
        with (
            connect_client(scheduler, _SCHEDULER_ERROR, set_as_default=False) as client,
            client.get_executor(pure=False) as executor,
        ):
            yield executor


@contextmanager
def open_cluster(address: str | None) -> Iterator[Any]:
    """Give a client of the Dask scheduler at the address of ``--scheduler``; None without one."""
    if address is None:
        yield None
        return
    error_prefix = "--scheduler must be"
    if address in SCHEDULERS:
        raise ValueError(
            f"{error_prefix} the address of a scheduler of Dask, whose workers keep class "
            "vectors, got "
            f"{address!r}; leave it out to train on the threads of this process."
        )
    with connect_client(address, error_prefix, direct_to_workers=True) as client:
        require_same_versions(client, "--scheduler")
        yield client


def connect_client(address: str, error_prefix: str, **options: Any) -> Any:
    """Return a Dask client of the scheduler at `address`, which must answer within 10 seconds.

    Errors begin with `error_prefix`, such as "--scheduler must be threads, processes or".
    """
    try:
        distributed = import_module("distributed")
    except ImportError:
        raise ValueError(
            f"{error_prefix} an address, for which there must be Dask, got {address!r}; "
            "pip install 'dask[array]' distributed."
        ) from None

    async def probe() -> None:
        connection_args = distributed.Security().get_connection_args("client")
        # a server of another protocol may accept the connection and then stay silent
        async with asyncio.timeout(_CONNECT_SECONDS):
            (
                await distributed.comm.connect(address, timeout=_CONNECT_SECONDS, **connection_args)
            ).abort()

    # probe first, because a client would retry for longer, and again when it is closed
    try:
        asyncio.run(probe())
    except Exception as error:  # of the network, the address or the server
        raise ValueError(
            f"{error_prefix} the address of a scheduler of Dask that answers in "
            f"{_CONNECT_SECONDS} s, such as tcp://10.0.0.1:8786, got {address!r} "
            f"({str(error) or 'silence'})."
        ) from error
    return distributed.Client(address, timeout=_CONNECT_SECONDS, **options)


class Processes(Executor):
    """A process pool whose workers end with this process; killed workers are replaced."""

    def __init__(self, workers: int) -> None:
        self._max_workers = workers
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        from concurrent.futures import ProcessPoolExecutor

        # a fork would copy locks that other threads of this process hold
        return ProcessPoolExecutor(self._max_workers, get_context("spawn"), _init_worker)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit ``fn(*args, **kwargs)``."""
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenExecutor:
            self._pool = self._start()
            return self._pool.submit(fn, *args, **kwargs)
        except RuntimeError:
            if _has_no_thread(self._pool):  # its processes will never get a task
                for process in list(self._pool._processes.values()):
                    process.kill()
                self._pool = self._start()
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers."""
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


def _init_worker() -> None:
    """Initialise a worker process: ignore Ctrl-C, and end when the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent: Any = parent_process()
    with suppress(RuntimeError):  # the worker is usable without this thread
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
