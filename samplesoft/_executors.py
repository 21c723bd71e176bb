"""Running tasks on the workers of an executor: threads, processes, or a Dask cluster.

The kernels of a task are single-threaded, and results are returned in the order of the tasks.
Random numbers depend only on keys, and sums are computed in a fixed order. So results are equal to
the last bit for any number of workers.
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
_CONNECT_SECONDS = 10  # timeout of a connection to a Dask scheduler
_TASKS_AHEAD_PER_WORKER = 4  # tasks per worker that are submitted before results are read
_MIN_TASKS_AHEAD = 32  # smallest number of tasks that are submitted before results are read
# Largest number of deaths of workers between two results after which the lost tasks are submitted
# again. After more deaths `run_tasks` raises an error, as Dask does.
_MAX_DEATHS_IN_A_ROW = 3
_WORKSPACE_BYTES_PER_PICKLED_BYTE = 10  # bytes a task needs per byte of its pickled arguments
_PACKAGES = ("numpy", "numba", "scipy", "dask", "distributed", "cloudpickle")


def as_executor(executor: Any) -> Executor | None:
    """Return the public argument `executor`, an executor or None, after checking it.

    Raises TypeError for other objects, and ValueError if Dask workers have other versions of the
    packages than this process.
    """
    if executor is not None and not isinstance(executor, Executor):
        raise TypeError(
            "`executor` must be a concurrent.futures.Executor or None, got "
            f"{type(executor).__name__}; for a Dask client pass client.get_executor(pure=False)."
        )
    client = _dask_client_of(executor)
    if client is not None:
        require_same_versions(client, "executor")
    return executor


def run_tasks(
    function: Callable[[Item], Result], items: Iterable[Item], executor: Executor | None
) -> Iterator[Result]:
    """Yield ``function(item)`` for each item in order, computed on the workers of an executor.

    If `executor` is None, this thread makes the calls. If a worker dies, its tasks are submitted
    again. If the executor refuses a task, because it is shut down or cannot start a thread, this
    thread runs the task. When the loop ends early, as at Ctrl-C, tasks that have not begun are
    cancelled.
    """
    if executor is None:
        yield from map(function, items)
        return

    has_refused = False

    def submit_unless_refused(item: Item) -> tuple[Item, Future[Result] | None]:
        nonlocal has_refused
        has_refused = has_refused or _has_no_manager_thread(executor)
        if not has_refused:
            try:
                return item, executor.submit(call_single_threaded, function, item)
            except BrokenExecutor:
                raise
            except RuntimeError:
                has_refused = True

        return item, None

    remaining = iter(items)
    num_deaths = 0
    pending: deque[tuple[Item, Future[Result] | None]] = deque()

    try:
        for first_item in islice(remaining, 1):
            _require_picklable_and_fitting(function, first_item, executor)
            pending.append(submit_unless_refused(first_item))
        pending.extend(map(submit_unless_refused, islice(remaining, _num_tasks_ahead(executor))))

        while pending:
            item, future = pending[0]

            try:
                result = call_single_threaded(function, item) if future is None else future.result()
            except BrokenExecutor:
                num_deaths += 1
                if num_deaths > _MAX_DEATHS_IN_A_ROW:
                    raise
                # Submit all tasks of the broken pool again now. If each were submitted only when
                # its result is needed, only one worker would be busy.
                pending = deque(
                    submit_unless_refused(item) if _has_dead_worker(future) else (item, future)
                    for item, future in pending
                )
                continue

            num_deaths = 0
            pending.popleft()
            pending.extend(map(submit_unless_refused, islice(remaining, 1)))
            yield result
    except Exception as error:
        is_lost_task = isinstance(error, (BrokenExecutor, CancelledError))
        if is_lost_task or type(error).__name__ == "KilledWorker":  # Dask's error
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
    """Return whether an executor runs its tasks in other processes of this machine."""
    # look the module up, because Python refuses to import it after the main thread has ended
    module: Any = sys.modules.get("concurrent.futures.process")
    return module is not None and isinstance(
        executor, (module.ProcessPoolExecutor, RestartingProcessPool)
    )


def _has_no_manager_thread(executor: Executor) -> bool:
    """Return whether a process pool failed to start the thread that distributes its tasks.

    Such a pool raises an error for the first task, and then accepts tasks that never begin.
    """
    thread: Any = getattr(executor, "_executor_manager_thread", None)
    return thread is not None and thread.ident is None


def _has_dead_worker(future: Future[Any] | None) -> bool:
    """Return whether the task of a future has failed because a worker of its pool died."""
    return future is not None and future.done() and isinstance(future.exception(), BrokenExecutor)


def _num_tasks_ahead(executor: Executor) -> int:
    """Return the number of tasks to submit to an executor before results are read.

    More tasks would need more memory for their arguments and results.
    """
    client = _dask_client_of(executor)
    pool_workers = getattr(executor, "_max_workers", None) or os.cpu_count() or 1
    workers: int = pool_workers if client is None else sum(client.nthreads().values())
    return max(_TASKS_AHEAD_PER_WORKER * workers, _MIN_TASKS_AHEAD)


def _require_picklable_and_fitting(function: Any, item: Any, executor: Executor) -> None:
    """Raise TypeError if a task cannot be pickled, or MemoryError if Dask workers lack memory.

    Executors that run threads of this process need no check.
    """
    client = _dask_client_of(executor)
    if client is None and not _has_processes(executor):
        return

    try:
        # Dask pickles with cloudpickle, which also handles lambdas and local functions
        module = pickle if client is None else import_module("cloudpickle")
        size = len(module.dumps((function, item)))
    except Exception as error:
        raise TypeError(
            f"`executor` must be one of threads for arguments that do not pickle, got a "
            f"{type(executor).__name__} ({error}); define functions and classes at the top of a "
            "module, or use a ThreadPoolExecutor."
        ) from error

    workers = {} if client is None else client.scheduler_info(n_workers=-1)["workers"]
    for address, worker in workers.items():
        if worker["memory_limit"]:  # 0 if there is no limit
            description = f"a task on each thread of `executor`'s worker {address}: its arrays"
            remedy = "start workers with more memory or fewer threads, or use fewer classes"
            needed = _WORKSPACE_BYTES_PER_PICKLED_BYTE * size * worker["nthreads"]
            require_bytes(description, needed, remedy, worker["memory_limit"])


# Dask clusters ------------------------------------------------------------------------------------


def _dask_client_of(executor: Any) -> Any:
    """Return the client of a Dask executor, or None for other executors."""
    if "distributed" not in sys.modules:
        return None
    client = getattr(executor, "_client", None)
    return client if isinstance(client, import_module("distributed").Client) else None


def _package_versions() -> dict[str, str]:
    """Return the versions of Python, samplesoft and the packages on which results depend."""
    packages = {name: str(import_module(name).__version__) for name in _PACKAGES}
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"python": python, "samplesoft": __version__, **packages}


def require_same_versions(client: Any, name: str) -> None:
    """Raise ValueError if a Dask client has no workers, or they have other package versions.

    The versions must be equal to those in this process. Errors call the argument `name`.
    """
    try:
        workers = client.run(_package_versions)
    except Exception as error:  # workers without this version of samplesoft may raise any error
        raise ValueError(
            f"`{name}` must have workers with the same samplesoft as here, {__version__}, got "
            f"{type(error).__name__}: {error}; install it there."
        ) from error

    if not workers:
        raise ValueError(
            f"`{name}` must have workers, got a scheduler with none; start some with "
            f"dask worker {client.scheduler.address}."
        )

    versions_here = _package_versions()
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


# executors of the command line --------------------------------------------------------------------


@contextmanager
def open_executor(scheduler: str | None) -> Iterator[Executor | None]:
    """Open the executor named by the option ``--scheduler``, as a context manager.

    `scheduler` is "threads", "processes", the address of a Dask scheduler, or None for no executor.
    A pool has as many threads or processes as Numba's setting allows threads.
    """
    if scheduler is None:
        yield None
    elif scheduler in SCHEDULERS:
        from concurrent.futures import ThreadPoolExecutor

        pool_class: Any = ThreadPoolExecutor if scheduler == "threads" else RestartingProcessPool
        with pool_class(num_threads()) as pool:
            yield pool
    else:
        with (
            connect_client(scheduler, _SCHEDULER_ERROR, set_as_default=False) as client,
            client.get_executor(pure=False) as executor,
        ):
            yield executor


@contextmanager
def open_dask_client(address: str | None) -> Iterator[Any]:
    """Open a client of the Dask scheduler at the address of ``--scheduler``, as a context manager.

    The value of the context is the client, or None if `address` is None. Raises ValueError if the
    workers have other versions of the packages than this process.
    """
    if address is None:
        yield None
        return

    error_prefix = "--scheduler must be"
    if address in SCHEDULERS:
        raise ValueError(
            f"{error_prefix} the address of a scheduler of Dask, whose workers keep class vectors, "
            f"got {address!r}; leave it out to train on the threads of this process."
        )

    with connect_client(address, error_prefix, direct_to_workers=True) as client:
        require_same_versions(client, "--scheduler")
        yield client


def connect_client(address: str, error_prefix: str, **options: Any) -> Any:
    """Return a Dask client of the scheduler at `address`, made with the keywords `options`.

    Raises ValueError if Dask is not installed, or if the scheduler does not answer within 10
    seconds. The message begins with `error_prefix`, such as "--scheduler must be threads, processes
    or".
    """
    # Dask is an optional dependency
    try:
        distributed = import_module("distributed")
    except ImportError:
        raise ValueError(
            f"{error_prefix} an address, for which there must be Dask, got {address!r}; "
            "pip install 'dask[array]' distributed."
        ) from None

    async def require_answer() -> None:
        connection_args = distributed.Security().get_connection_args("client")
        # a server with another protocol may accept the connection and then not answer
        async with asyncio.timeout(_CONNECT_SECONDS):
            connection = await distributed.comm.connect(
                address, timeout=_CONNECT_SECONDS, **connection_args
            )
            connection.abort()

    # Test the connection first. A client would retry for longer than 10 seconds, and would retry
    # again when it is closed.
    try:
        asyncio.run(require_answer())
    except Exception as error:  # any error of the network, the address or the server
        raise ValueError(
            f"{error_prefix} the address of a scheduler of Dask that answers in "
            f"{_CONNECT_SECONDS} s, such as tcp://10.0.0.1:8786, got {address!r} "
            f"({str(error) or 'silence'})."
        ) from error

    return distributed.Client(address, timeout=_CONNECT_SECONDS, **options)


class RestartingProcessPool(Executor):
    """A pool of worker processes that end with this process; a killed worker is replaced."""

    def __init__(self, workers: int) -> None:
        self._max_workers = workers
        self._pool = self._start_pool()

    def _start_pool(self) -> ProcessPoolExecutor:
        """Return a new pool of processes."""
        from concurrent.futures import ProcessPoolExecutor

        # spawned, because a forked process would copy locks that other threads hold
        return ProcessPoolExecutor(
            self._max_workers, get_context("spawn"), _initialise_worker_process
        )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit the call ``fn(*args, **kwargs)``, and return its future.

        A pool that is broken, because a worker was killed, is replaced first.
        """
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenExecutor:
            self._pool = self._start_pool()
            return self._pool.submit(fn, *args, **kwargs)
        except RuntimeError:
            if _has_no_manager_thread(self._pool):  # the pool's processes would never get a task
                for process in list(self._pool._processes.values()):
                    process.kill()
                self._pool = self._start_pool()
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the worker processes, after their tasks if `wait` is True."""
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


def _initialise_worker_process() -> None:
    """Make this process, a worker of a pool, ignore Ctrl-C, and exit when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent: Any = parent_process()
    # a RuntimeError means that no thread can be started; the worker then runs tasks without it
    with suppress(RuntimeError):
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
