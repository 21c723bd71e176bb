"""Workers: the same bits as without, whatever becomes of them, and bad input in words."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import samplesoft
from samplesoft import _executors
from samplesoft._executors import RestartingProcessPool, run_tasks
from samplesoft._jit import num_threads
from samplesoft.cli import main

N, BATCH = 60, 5
RNG = np.random.default_rng(0)
CLASSES, H = RNG.normal(size=(N, 3)), RNG.normal(size=(BATCH, 3))
LOGITS, LABELS = H @ CLASSES.T, np.arange(BATCH)
Q = RNG.dirichlet(np.ones(N), BATCH)
OF_VECTORS = {"h": H, "class_embeddings": CLASSES}


def exact(executor):
    results = [
        samplesoft.exact_bias(LOGITS, LABELS, Q, 5, executor=executor),
        samplesoft.exact_bias(LOGITS, LABELS, Q, 5, correction=Q[::-1], executor=executor),
        samplesoft.exact_bias(LOGITS[0], 0, Q[0], 5, executor=executor),
    ]
    return [x for one in results for x in (one.bias, one.error, one.loss_bias)]


def monte_carlo(executor):
    how = {"rng": 3, "executor": executor}
    results = [
        samplesoft.monte_carlo_bias(LOGITS, LABELS, Q, 5, num_trials=20, certain=[1], **how),
        samplesoft.monte_carlo_bias(LOGITS[0], 0, Q[0], 50, num_trials=2000, **how),
    ]
    return [x for one in results for x in (one.bias, one.stderr, one.loss_bias)]


def verification(executor):
    proposals = {"uniform": np.full(N, 1 / N), "other": Q}
    report = samplesoft.verify(
        *(LOGITS, LABELS, proposals, (2, 20)),
        **OF_VECTORS,
        num_trials=500,
        rng=0,
        executor=executor,
    )
    return report.rows, report.max_abs_z, report.num_untested


def tuned(executor):
    report = samplesoft.tune(
        *(CLASSES, H, LABELS), samplers=["uniform"], num_sampled=[2, 9], executor=executor
    )
    settings = [(one.num_sampled, one.shared, one.bias, one.error) for one in report.settings]
    return sorted(settings, key=str)


SWEEPS = [exact, monte_carlo, verification, tuned]


@pytest.fixture(scope="module")
def alone():
    """Return what each sweep finds without workers."""
    return {sweep: sweep(None) for sweep in SWEEPS}


@pytest.fixture(scope="module")
def processes():
    with RestartingProcessPool(2) as pool:
        yield pool


def assert_same(found, wanted):
    np.testing.assert_equal(found, wanted)  # NaN equals NaN, and all else bit for bit


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("sweep", SWEEPS)
def test_the_same_bits_on_threads(sweep, workers, alone):
    with ThreadPoolExecutor(workers) as pool:
        assert_same(sweep(pool), alone[sweep])


@pytest.mark.slow
@pytest.mark.parametrize("sweep", SWEEPS)
def test_the_same_bits_on_processes(sweep, processes, alone):
    assert_same(sweep(processes), alone[sweep])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("sweep", SWEEPS)
def test_the_same_bits_on_dask(sweep, workers, local_cluster, alone):
    some = sorted(local_cluster.scheduler_info()["workers"])[:workers]
    with local_cluster.get_executor(pure=False, workers=some) as executor:
        assert_same(sweep(executor), alone[sweep])


def test_other_bits_would_be_seen(alone):
    found = samplesoft.monte_carlo_bias(LOGITS, LABELS, Q, 5, num_trials=20, certain=[1], rng=4)
    with pytest.raises(AssertionError):
        assert_same(found.bias, alone[monte_carlo][0])


@pytest.mark.parametrize("workers", [0, 2])
def test_lost_digits_are_told_from_the_line_that_asks(workers, monkeypatch):
    monkeypatch.setattr("samplesoft.bias.with_replacement.integral._MAX_RELATIVE_ERROR", 1e-30)
    softmax = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    q = np.where(LABELS[:, None] < 3, softmax, Q)  # of examples 0 to 2 it is rounding alone
    with ThreadPoolExecutor(max(workers, 1)) as pool, pytest.warns(RuntimeWarning) as seen:
        how = {"num_trials": 9, "executor": pool if workers else None}
        samplesoft.verify(LOGITS, LABELS, {"q": q}, 5, **how)
        samplesoft.exact_bias(LOGITS, LABELS, q, 5, executor=how["executor"])
    assert len(seen) == 2
    assert all("(example 3)" in str(one.message) for one in seen)
    assert all(one.filename == __file__ for one in seen)


# --- tasks ----------------------------------------------------------------------------------------


class Later(Executor):
    """Does nothing until a result is asked for, and notes what is asked of it."""

    def __init__(self):
        self.futures = []

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.result = lambda timeout=None: fn(*args, **kwargs)
        self.futures.append(future)
        return future


def kernels_threads(_):
    return num_threads()


def kill_once(folder, number):
    """End the process at the third task, if it is the first to come there."""
    time.sleep(0.01)
    if number == 3:
        try:
            (folder / "killed").touch(exist_ok=False)
        except FileExistsError:
            return number
        (folder / "killed").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / f"{number}-{os.getpid()}-{time.monotonic_ns()}").touch()
    return number


def kill(_):
    os.kill(os.getpid(), signal.SIGKILL)


def fail_at_three(number):
    if number == 3:
        raise ValueError("`number` must not be 3.")
    return number


def test_a_task_has_one_thread(threads, processes):
    threads(2)
    with ThreadPoolExecutor(2) as pool:
        assert [*run_tasks(kernels_threads, range(3), pool)] == [1, 1, 1]
    assert [*run_tasks(kernels_threads, range(3), processes)] == [1, 1, 1]
    assert [*run_tasks(kernels_threads, range(1), Later())] == [1]
    assert num_threads() == 2


def test_results_come_in_order_and_tasks_are_not_all_handed_out_at_once():
    taken = []
    items = (taken.append(k) or k for k in range(1000))
    later = Later()
    results = run_tasks(abs, items, later)
    assert next(results) == 0
    ahead = len(taken)
    assert ahead < 1000 and [*results] == list(range(1, 1000))


def test_an_error_ends_the_work_and_cancels_the_rest():
    later = Later()
    results = run_tasks(fail_at_three, range(1000), later)
    with pytest.raises(ValueError, match="must not be 3"):
        list(results)
    assert all(future.cancelled() for future in later.futures[4:])


def test_what_is_not_read_is_cancelled():
    later = Later()
    results = run_tasks(abs, range(10), later)
    next(results)
    results.close()
    assert all(future.cancelled() for future in later.futures[1:])


@pytest.mark.slow
def test_a_process_that_is_killed_costs_what_it_had(processes, tmp_path):
    assert [*run_tasks(partial(kill_once, tmp_path), range(30), processes)] == list(range(30))
    again = len(list(tmp_path.glob("*-*"))) - 29  # and task 3 once more, which leaves no file
    assert 0 <= again <= 2  # what the other process had


@pytest.mark.slow
def test_a_worker_of_dask_that_is_killed_costs_what_it_had(local_cluster, tmp_path):
    with local_cluster.get_executor(pure=False) as executor:
        assert [*run_tasks(partial(kill_once, tmp_path), range(30), executor)] == list(range(30))
    local_cluster.wait_for_workers(2)  # the cluster starts another one
    killed = (tmp_path / "killed").read_text()
    # a result that the worker still held is made once more, and no other
    alive = [
        path.name.split("-")[0] for path in tmp_path.glob("*-*") if f"-{killed}-" not in path.name
    ]
    assert len(set(alive)) == len(alive)


@pytest.mark.slow
def test_a_task_that_kills_every_worker_is_given_up(processes, monkeypatch):
    monkeypatch.setattr(_executors, "_MAX_DEATHS_IN_A_ROW", 1)
    with pytest.raises(ChildProcessError, match="short of memory: take fewer"):
        list(run_tasks(kill, range(3), processes))
    assert [*run_tasks(abs, [-1], processes)] == [1]


@pytest.mark.slow
def test_a_pool_that_is_broken_is_an_error_that_says_so():
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        with pytest.raises(ChildProcessError, match="the workers lost a task .BrokenProcessPool"):
            list(run_tasks(kill, range(3), pool))


# --- Ctrl-C ---------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys
from pathlib import Path
from samplesoft import __main__, _executors
from samplesoft._executors import RestartingProcessPool, run_tasks
sys.path.insert(0, {tests!r})
from endless import work

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job ignores it
    __main__.end_at_interrupts()
    with RestartingProcessPool(2) as pool:
        list(run_tasks(work, [Path({folder!r})] * 9, pool))
"""
ENDLESS = """
import os, time

def work(folder):
    (folder / f"{os.getpid()}.pid").touch()
    time.sleep(600)
"""


def is_there(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def wait_until(holds):
    for _ in range(1200):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("waited for a minute")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_interrupts_leave_no_orphans(tmp_path):
    (tmp_path / "endless.py").write_text(ENDLESS)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(tests=str(tmp_path), folder=str(tmp_path)))
    with subprocess.Popen([sys.executable, program], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
        workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
        assert all(map(is_there, workers))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    wait_until(lambda: not any(map(is_there, workers)))


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["threads", 2, ThreadPoolExecutor])
@pytest.mark.parametrize("sweep", SWEEPS)
def test_what_is_no_executor(sweep, executor):
    with pytest.raises(TypeError, match="`executor` must be .* or None, got"):
        sweep(executor)


def test_functions_that_do_not_pickle(processes):
    with pytest.raises(TypeError, match="`executor` must be one of threads for .* top of a module"):
        list(run_tasks(lambda x: x, [1], processes))
    with ThreadPoolExecutor(1) as pool:
        assert [*run_tasks(lambda x: x, [1], pool)] == [1]


class Client:
    """A client of a cluster with some versions, and memory."""

    scheduler = type("", (), {"address": "tcp://1.2.3.4:8786"})

    def __init__(self, memory=0, **changed):
        self._memory = memory
        self._changed = changed

    def run(self, function):
        if self._changed.get("samplesoft") == "none":
            raise ModuleNotFoundError("No module named 'samplesoft'")
        if self._changed.get("workers") == "none":
            return {}
        return {"tcp://a": function(), "tcp://b": {**function(), **self._changed}}

    def scheduler_info(self, n_workers):
        return {"workers": {"tcp://a": {"memory_limit": self._memory, "nthreads": 2}}}

    def nthreads(self):
        return {"tcp://a": 2}


@pytest.fixture
def on_cluster(monkeypatch):
    """Return a function that lets an executor be that of a client."""

    def set_client(client):
        pytest.importorskip("distributed", reason="needs pip install 'samplesoft[dask]'")
        monkeypatch.setattr(_executors, "_dask_client_of", lambda executor: executor and client)

    return set_client


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"numpy": "1.0"}, r"versions of here, numpy \d.*, got numpy 1.0 on tcp://b; install"),
        ({"samplesoft": "9.9"}, "got samplesoft 9.9 on tcp://b"),
        ({"python": "3.1"}, "got python 3.1 on"),
        ({"samplesoft": "none"}, "the same samplesoft as here.*No module named .*install it there"),
        ({"workers": "none"}, "`executor` must have workers.*dask worker tcp://1.2.3.4:8786"),
    ],
)
def test_clusters_that_have_not_this_code(on_cluster, changed, words):
    on_cluster(Client(**changed))
    with pytest.raises(ValueError, match=words):
        exact(Later())


def test_clusters_without_the_memory(on_cluster):
    on_cluster(Client(memory=10_000))
    with pytest.raises(MemoryError, match="tcp://a: its arrays need .*B, and 10 kB are available"):
        exact(Later())
    on_cluster(Client(memory=10**9))
    assert len(exact(Later())) == 9


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "tune"])
def test_addresses_that_are_none(command, capsys):
    pytest.importorskip("distributed", reason="needs pip install 'samplesoft[dask]'")
    assert main([command, "--scheduler", "nowhere"]) == 2
    error = capsys.readouterr().err
    assert "--scheduler must be threads, processes or the address" in error
    assert "'nowhere' (missing port number" in error


@pytest.mark.slow
def test_addresses_that_do_not_answer(monkeypatch, capsys):
    pytest.importorskip("distributed", reason="needs pip install 'samplesoft[dask]'")
    monkeypatch.setattr(_executors, "_CONNECT_SECONDS", 0.3)
    assert main(["verify", "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "answers in 0.3 s" in capsys.readouterr().err


def test_an_address_without_dask(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["verify", "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "pip install 'dask[array]' distributed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["threads", "dask"])
def test_the_command_line_gives_the_same_report(scheduler, local_cluster, tmp_path, capsys):
    np.save(tmp_path / "o.npy", LOGITS)
    np.save(tmp_path / "t.npy", LABELS)
    command = ["verify", "--logits", str(tmp_path / "o.npy"), "--labels", str(tmp_path / "t.npy")]
    command += ["--samplers", "uniform", "--num-sampled", "9", "--trials", "200"]
    assert main(command) == 0
    wanted = capsys.readouterr().out
    where = local_cluster.scheduler.address if scheduler == "dask" else scheduler
    assert main([*command, "--scheduler", where]) == 0
    assert capsys.readouterr().out == wanted
