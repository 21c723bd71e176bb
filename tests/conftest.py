"""Settings for all tests."""

import gc
import os
import warnings
from collections import Counter

import pytest
from hypothesis import settings

# compiling takes its time at the first example, and the same examples come in every run
settings.register_profile("samplesoft", deadline=None, derandomize=True)
settings.load_profile("samplesoft")

MOST_THREADS = 5  # more than many machines have cores


def pytest_addoption(parser):
    parser.addoption("--thorough", action="store_true", help="run tests marked thorough, too")


def pytest_configure(config):
    """Let `numba.set_num_threads` go above the cores, and start with as many threads as cores."""
    given = os.environ.get("NUMBA_NUM_THREADS")
    os.environ["NUMBA_NUM_THREADS"] = str(MOST_THREADS)  # Numba reads it when it is imported
    import numba

    if numba.config.ENABLE_CUDASIM:
        import cuda_turns  # noqa: F401  # replaces what Numba's simulator does with threads

    start = numba.config.NUMBA_DEFAULT_NUM_THREADS
    if hasattr(config, "workerinput"):  # processes of pytest-xdist share the cores
        start //= config.workerinput["workercount"]
        if numba.config.ENABLE_CUDASIM:
            stay_on_one_core(int(config.workerinput["workerid"][2:]))
    elif given:
        start = int(given)
    numba.set_num_threads(min(max(start, 1), MOST_THREADS))
    # the oldest Matplotlib that we promise calls names that pyparsing has since renamed
    renamed = r"'\w+' (argument is )?deprecated( -|,) use '\w+'"
    config.addinivalue_line("filterwarnings", f"ignore:{renamed}:DeprecationWarning")


def pytest_collection_finish():
    """Let the garbage collector leave ten thousand tests alone, and come less often."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def stay_on_one_core(worker):
    """Keep the simulator's threads, of which one runs at a time, where they hand over quickly."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[worker % len(cores)]})


@pytest.fixture
def threads():
    """Return a function that sets the number of threads, as users do; at most `MOST_THREADS`."""
    import numba

    from samplesoft._jit import num_threads

    def use(count):
        numba.set_num_threads(count)
        assert num_threads() == count  # the library follows

    before = numba.get_num_threads()
    yield use
    numba.set_num_threads(before)


@pytest.fixture(scope="session")
def local_cluster():
    """Return a client of a Dask cluster of two processes on this machine."""
    distributed = pytest.importorskip("distributed", reason="needs pip install 'samplesoft[dask]'")
    how = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**how) as cluster, distributed.Client(cluster) as client:
        yield client


def leave_out_thorough(config, items):
    """Leave out what repeats, in more settings or at length, what quicker tests cover."""
    seen, left_out = Counter(), []
    for item in items:
        mark = item.get_closest_marker("thorough")
        if mark is not None:
            name = item.path, item.originalname
            seen[name] += 1
            if seen[name] > mark.kwargs.get("but", 0):
                left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--thorough"):
        leave_out_thorough(config, items)
    # what takes a minute begins early, so that no process waits for another at the end
    items.sort(key=lambda item: item.path.name not in ("test_notebooks.py", "test_site.py"))
    asked = [item for item in items if item.get_closest_marker("gpu")]
    if not asked:
        return
    # numba-cuda uses what newer versions of NumPy deprecate, when it is imported
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from numba import cuda

    if not cuda.is_available():
        missing = "no NVIDIA GPU that Numba can use, nor its simulator (NUMBA_ENABLE_CUDASIM=1)"
        for item in asked:
            item.add_marker(pytest.mark.skip(reason=missing))
