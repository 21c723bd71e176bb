"""Where threads cannot be had: in a forked child, at the end of a program, where a system refuses.

The work is done all the same, with the same bits, and what comes after does not hang.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import _ExecutorManagerThread
from multiprocessing import get_context

import pytest
import tqdm

import samplesoft
from samplesoft import _jit
from samplesoft._cached import cached_property
from samplesoft._executors import RestartingProcessPool, run_tasks
from samplesoft._jit import COMPILES, run_in_lockstep, thread_for_each, thread_map
from samplesoft._progress import progress_bar

# one refusal after another where the system has no more threads; then a pool that it had started
REFUSED = [0, 1, 2]


@pytest.fixture
def refuse(monkeypatch):
    """Return a function after which so many threads can be started, and no more."""
    real = threading.Thread.start

    def refuse(left):
        started = []

        def start(self):
            if len(started) >= left:
                raise RuntimeError("can't start new thread")
            real(self)
            started.append(self)

        monkeypatch.setattr(threading.Thread, "start", start)

    def allow():
        monkeypatch.setattr(threading.Thread, "start", real)

    refuse.allow = allow
    if hasattr(_jit, "_ThreadPool"):
        monkeypatch.setattr(_jit, "_pool", _jit._ThreadPool())
    else:
        _jit._pool.cache_clear()
    yield refuse
    allow()


def workers_that_meet(workers):
    """Return which workers there were, each of which has waited for all others."""
    seen, barriers = [], [threading.Barrier(size, timeout=20) for size in range(1, workers + 1)]

    def work(worker, size):
        barriers[size - 1].wait()
        seen.append((worker, size))

    run_in_lockstep(work, workers)
    return sorted(seen)


@pytest.mark.parametrize("left", REFUSED)
def test_the_calling_thread_does_the_work(threads, refuse, left):
    threads(4)
    refuse(left)
    for _ in range(2):
        assert list(thread_map(lambda i: i * i, range(11))) == [i * i for i in range(11)]
        done = []
        thread_for_each(done.append, range(50))
        assert sorted(done) == list(range(50))
    refuse.allow()
    time.sleep(0.05)
    assert len(done) == 50  # nothing was left that comes later


@pytest.mark.skipif(not COMPILES, reason="there is one worker")
@pytest.mark.parametrize("left", REFUSED)
def test_workers_that_meet_are_those_that_there_are(threads, refuse, left):
    threads(4)
    refuse(left)
    expected = max(left, 1)
    assert workers_that_meet(4) == [(worker, expected) for worker in range(expected)]
    refuse.allow()
    assert workers_that_meet(4) == [(worker, 4) for worker in range(4)]
    assert list(thread_map(abs, [-1, -2, -3, -4])) == [1, 2, 3, 4]


@pytest.mark.skipif(not COMPILES, reason="there is one worker")
def test_an_interrupt_keeps_no_worker_waiting(threads, monkeypatch):
    """Before all of them are there, and while they work."""
    threads(3)
    real, started = threading.Thread.start, []

    def start(self):
        if len(started) == 1:
            raise KeyboardInterrupt
        started.append(self)
        real(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", start)
        workers_that_meet(3)
    for thread in started:
        thread.join(timeout=20)
        assert not thread.is_alive()
    assert workers_that_meet(3) == [(worker, 3) for worker in range(3)]


@pytest.mark.skipif(
    sys.platform != "linux", reason="the stack of a thread is not asked for at once"
)
def test_a_system_that_refuses(threads, refuse):
    """No system has 64 TiB for the stack of a thread."""
    threads(4)
    before = threading.stack_size(1 << 46)
    try:
        assert list(thread_map(abs, range(7))) == list(range(7))
        if COMPILES:
            assert workers_that_meet(4) == [(0, 1)]
    finally:
        threading.stack_size(before)
    assert list(thread_map(abs, range(7))) == list(range(7))


@pytest.mark.parametrize("tty", [False, True])
def test_progress_without_a_thread(refuse, tty, monkeypatch):
    monkeypatch.setattr(tqdm.tqdm, "monitor", None)
    monkeypatch.setattr("samplesoft._progress._writes_lines", lambda: not tty)
    refuse(0)
    with progress_bar(True, desc="work", total=3, unit="step") as bar:
        bar.update()


class Refuses(ThreadPoolExecutor):
    """Takes so many tasks and no more."""

    def __init__(self, takes):
        super().__init__(2)
        self.takes = takes

    def submit(self, *arguments, **options):
        self.takes -= 1
        if self.takes < 0:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        return super().submit(*arguments, **options)


@pytest.mark.parametrize("takes", [0, 1, 40])
def test_an_executor_that_refuses(takes):
    with Refuses(takes) as executor:
        assert list(run_tasks(abs, range(-60, 0), executor)) == list(range(60, 0, -1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [RestartingProcessPool, lambda n: ProcessPoolExecutor(n, get_context("spawn"))]
)
def test_a_pool_of_processes_without_its_thread(make, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    pool = make(1)
    with monkeypatch.context() as patch:
        patch.setattr(_ExecutorManagerThread, "start", start, raising=False)
        for _ in range(2):  # what it then takes, nobody begins
            assert list(run_tasks(abs, range(-5, 0), pool)) == [5, 4, 3, 2, 1]
    assert list(run_tasks(abs, range(-5, 0), pool)) == [5, 4, 3, 2, 1]
    if isinstance(pool, RestartingProcessPool):
        pool.shutdown()
    else:  # Python waits for processes of which nobody asks anything
        for process in pool._processes.values():
            process.kill()


# forks --------------------------------------------------------------------------------------------

forks = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@contextlib.contextmanager
def held(lock):
    """Let another thread hold a lock."""
    has, may_end = threading.Event(), threading.Event()

    def hold():
        with lock:
            has.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    has.wait()
    try:
        yield
    finally:
        may_end.set()
        thread.join()


def in_a_forked_child(work):
    """Return whether `work` returns in a forked child, in 20 seconds."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # which ends it
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def all_kinds_of_work():
    assert list(thread_map(abs, [-1, -2, -3])) == [1, 2, 3]
    if COMPILES:
        assert workers_that_meet(2) == [(0, 2), (1, 2)]

        @_jit.njit
        def twice(x):
            return 2 * x

        assert twice(4) == 8
    with progress_bar(True, desc="work", total=1) as bar:
        bar.update()


def locks():
    """Return the locks that a thread may hold when another one forks."""
    of_bars = tqdm.std.TqdmDefaultWriteLock
    found = {"of compiled fits": lambda: _jit._lockstep_lock, "of bars": lambda: of_bars.th_lock}
    if hasattr(_jit, "_ThreadPool"):
        found["of the pool"] = lambda: _jit._pool._growth_lock
    if COMPILES:
        from numba.core.compiler_lock import global_compiler_lock

        found["of the compiler"] = lambda: global_compiler_lock._lock
    return found


@pytest.mark.usefixtures("_forks")
class TestForks:
    """In a forked child all is new."""

    pytestmark = forks

    @pytest.fixture
    def _forks(self, threads, monkeypatch):
        threads(3)
        monkeypatch.setattr("samplesoft._progress._writes_lines", lambda: False)
        monkeypatch.setattr(_jit, "_MAX_COMPILATION_WAIT_SECONDS", 0.1, raising=False)
        list(thread_map(abs, range(3)))

    @pytest.mark.parametrize("name", locks())
    def test_a_lock_that_another_thread_holds(self, name):
        with held(locks()[name]()):
            assert in_a_forked_child(all_kinds_of_work)
        all_kinds_of_work()  # and here as well

    @pytest.mark.skipif(not COMPILES, reason="nothing is compiled")
    def test_a_fork_waits_for_a_compiler_at_work(self, monkeypatch):
        from numba.core.compiler_lock import global_compiler_lock

        monkeypatch.setattr(_jit, "_MAX_COMPILATION_WAIT_SECONDS", 20.0)
        has = threading.Event()

        def compile_something():
            with global_compiler_lock:
                has.set()
                time.sleep(0.2)
                ends.append(time.perf_counter())

        ends = []
        thread = threading.Thread(target=compile_something)
        thread.start()
        has.wait()
        assert in_a_forked_child(all_kinds_of_work)
        assert len(ends) == 1
        thread.join()
        all_kinds_of_work()

    @pytest.mark.skipif(not COMPILES, reason="nothing is compiled")
    def test_a_fork_in_the_midst_of_a_compilation(self, monkeypatch):
        """What a compilation has changed for a while is undone: its thread is not in the child."""
        from numba.core.compiler import Compiler

        from samplesoft._kernel_cache import Kernel

        if not Kernel.__module__.startswith("samplesoft"):
            pytest.skip("kernels are compiled as Numba does it")
        compiles, may_end, waits = threading.Event(), threading.Event(), False
        compile_extra = Compiler.compile_extra

        def slowly(self, function):
            if waits and function.__name__ == "inner":
                compiles.set()
                may_end.wait(20.0)
            return compile_extra(self, function)

        monkeypatch.setattr(Compiler, "compile_extra", slowly)

        @_jit.njit
        def inner(x):
            return 2 * x

        @_jit.njit
        def outer(x):
            return inner(x) + 1

        for kernel in (inner, outer):
            kernel._cache.disable()
        assert inner(1) == 2
        whole, waits = inner.overloads, True
        thread = threading.Thread(target=outer, args=(1,))
        thread.start()
        assert compiles.wait(20.0) and not gc.isenabled() and inner.overloads is not whole

        def child():
            assert gc.isenabled() and inner.overloads is whole
            all_kinds_of_work()

        assert in_a_forked_child(child)
        may_end.set()
        thread.join()
        assert gc.isenabled() and inner.overloads is whole and outer(2) == 5

    def test_a_property_that_another_thread_works_out(self):
        asked, may_end = threading.Event(), threading.Event()

        class Thing:
            def __init__(self, waits):
                self.waits = waits

            @cached_property
            def value(self):
                if self.waits:
                    asked.set()
                    may_end.wait()
                return 7

        thing = Thing(True)
        thread = threading.Thread(target=lambda: thing.value)
        thread.start()
        asked.wait()
        assert in_a_forked_child(lambda: Thing(False).value)
        may_end.set()
        thread.join()
        assert vars(thing)["value"] == Thing(False).value == 7


def test_no_property_of_the_package_has_a_lock():
    """As those of functools have before Python 3.12, one for all objects of a class."""
    found = []
    for module in pkgutil.walk_packages(samplesoft.__path__, "samplesoft."):
        if module.name.endswith(("cuda", "__main__")):
            continue
        for thing in vars(importlib.import_module(module.name)).values():
            if isinstance(thing, type) and thing.__module__.startswith("samplesoft"):
                found += [one for one in vars(thing).values() if hasattr(one, "attrname")]
    assert found and all(isinstance(one, cached_property) for one in found)


# programs -----------------------------------------------------------------------------------------

WORK = """
import json, os, signal, sys, threading, time
import numpy as np
from scipy import sparse
import samplesoft.sklearn
import samplesoft.training.fused.steps as fused_steps
from samplesoft.search import top_k_classes
from samplesoft.samplers import UnigramSampler

fused_steps._MIN_PARALLEL_MULTIPLICATIONS = 0  # for threads that meet
SAMPLER = UnigramSampler(np.arange(1.0, 2000.0))

def work():
    rng = np.random.default_rng(0)
    draw = SAMPLER.sample(np.zeros((50, 1)), 300, rng=1)
    ids, scores = top_k_classes(rng.normal(size=(20, 8)), rng.normal(size=(3000, 8)), 5)
    x = sparse.random(400, 50, 0.1, random_state=0, format="csr")
    y = rng.integers(0, 30, 400)
    model = samplesoft.sklearn.SampledSoftmaxClassifier(
        random_state=0, max_iter=2, early_stopping=False
    ).fit(x, y)
    logits = rng.normal(size=(3, 300))
    bias = samplesoft.exact_bias(logits, [0, 1, 2], np.full(300, 1 / 300), 5).bias
    parts = draw.ids, draw.log_q, ids, scores, model.decision_function(x), bias
    return [float(part.sum()).hex() for part in parts]
"""
LATE = """
def late():
    threading.main_thread().join()
    time.sleep(0.2)  # until Python has told all pools that it ends
    print(json.dumps(work()))

threading.Thread(target=late).start()
"""
IMPORTED_LATE = """
import threading, time
import numpy  # which has threads of its own

def late():
    threading.main_thread().join()
    time.sleep(0.2)
    from samplesoft.models import LinearSoftmax
    from samplesoft.samplers import UnigramSampler
    print(UnigramSampler([1.0, 2.0]).sample(numpy.zeros((1, 1)), 4, rng=0).ids.shape)

threading.Thread(target=late).start()
"""
SERVER = """
ends = threading.Event()

def fit():
    while not ends.is_set():
        found.append(work())

right, found = work(), []
threads = [threading.Thread(target=fit) for _ in range(2)]
for thread in threads:
    thread.start()
children = []
for _ in range(6):
    time.sleep(0.1)
    pid = os.fork()
    if pid == 0:
        signal.alarm(100)
        os._exit(0 if work() == right else 1)
    children.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in children]
ends.set()
for thread in threads:
    thread.join()
assert found and all(one == right for one in found)
print(json.dumps(codes))
"""


def printed(code):
    # products on several threads of OpenBLAS outlive no fork, in the parent neither
    environment = {**os.environ, "NUMBA_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0 and not done.stderr.count("Traceback"), done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_thread_that_outlives_the_main_one():
    assert json.loads(printed(WORK + LATE)) == json.loads(
        printed(WORK + "print(json.dumps(work()))")
    )


@pytest.mark.slow
def test_a_thread_that_imports_when_the_main_one_has_ended():
    assert printed(IMPORTED_LATE) == "(1, 4)\n"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_server_that_forks_while_threads_fit_and_draw():
    assert json.loads(printed(WORK + SERVER)) == [0] * 6
