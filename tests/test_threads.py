import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numba
import pytest

from samplesoft._jit import num_threads, thread_for_each, thread_map


@pytest.fixture(params=[1, 2, 5])
def count(request, threads):
    threads(request.param)
    return request.param


def names_of_threads(items):
    seen = set()
    barrier = threading.Barrier(items, timeout=30)

    def work(_):
        seen.add(threading.current_thread().name)
        barrier.wait()

    thread_for_each(work, range(items))
    return seen


def in_another_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_as_many_threads_as_numba_is_set_to(count):
    assert num_threads() == count
    assert len(names_of_threads(count)) == count


def test_another_thread_keeps_its_own_number(threads):
    threads(1)

    def elsewhere():
        first = num_threads()
        numba.set_num_threads(2)
        return first, num_threads(), len(names_of_threads(2))

    assert in_another_thread(elsewhere) == (numba.config.NUMBA_NUM_THREADS, 2, 2)
    assert num_threads() == 1


def test_workers_work_alone(threads):
    threads(2)
    counts = list(thread_map(lambda i: (time.sleep(0.05), num_threads())[1], range(2)))
    assert counts == [2, 1]  # the first is the calling thread


@pytest.mark.parametrize("given", [1, 3])
def test_the_environment_says_how_many_and_openmp_is_not_loaded_to_ask(given):
    code = """
from samplesoft._jit import num_threads, thread_map
import numba
print(num_threads(), list(thread_map(abs, [-1, -2, -3, -4])))
try:
    print(numba.threading_layer())
except ValueError:
    print("not loaded")
numba.set_num_threads(1)
print(num_threads())
"""
    environment = {**os.environ, "NUMBA_NUM_THREADS": str(given)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"{given} [1, 2, 3, 4]", "not loaded", "1"]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 11])
def test_results_come_in_order(count, size):
    assert list(thread_map(lambda i: i * i, range(size))) == [i * i for i in range(size)]


def test_work_is_shared_with_the_caller(count):
    barrier = threading.Barrier(count, timeout=30)  # breaks unless all run at once
    list(thread_map(lambda _: barrier.wait(), range(count)))


def test_an_error_comes_out_and_leaves_no_work_behind(count):
    running = []

    def work(i):
        running.append(i)
        try:
            if i == 0:
                raise RuntimeError("zero")
        finally:
            running.remove(i)

    with pytest.raises(RuntimeError, match="zero"):
        list(thread_map(work, range(7)))
    assert not running
    assert list(thread_map(lambda i: i, range(3))) == [0, 1, 2]  # the pool is still of use


def test_calls_inside_calls_do_not_wait_for_each_other(count):
    def outer(i):
        return list(thread_map(lambda j: 10 * i + j, range(4)))

    assert list(thread_map(outer, range(4))) == [[10 * i + j for j in range(4)] for i in range(4)]


def _child(results):
    results.put(list(thread_map(abs, [-1, -2, -3])))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_makes_threads_of_its_own(threads):
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("the system cannot fork")
    threads(2)
    list(thread_map(abs, [-1, -2]))  # the parent's threads are there
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_child, args=(results,))
    child.start()
    assert results.get(timeout=60) == [1, 2, 3]
    child.join()
