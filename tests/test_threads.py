import multiprocessing
import threading

import pytest

from samplesoft import _jit
from samplesoft._jit import thread_map


@pytest.fixture(params=[1, 2, 5])
def threads(request, monkeypatch):
    monkeypatch.setattr(_jit, "num_threads", lambda: request.param)
    return request.param


@pytest.mark.parametrize("size", [0, 1, 2, 3, 11])
def test_results_come_in_order(threads, size):
    assert list(thread_map(lambda i: i * i, range(size))) == [i * i for i in range(size)]


def test_work_is_shared_with_the_caller(threads):
    barrier = threading.Barrier(threads, timeout=30)  # breaks unless all run at once
    list(thread_map(lambda _: barrier.wait(), range(threads)))


def test_an_error_comes_out_and_leaves_no_work_behind(threads):
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


def test_calls_inside_calls_do_not_wait_for_each_other(threads):
    def outer(i):
        return list(thread_map(lambda j: 10 * i + j, range(4)))

    assert list(thread_map(outer, range(4))) == [[10 * i + j for j in range(4)] for i in range(4)]


def _child(results):
    results.put(list(thread_map(abs, [-1, -2, -3])))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_makes_threads_of_its_own(monkeypatch):
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("the system cannot fork")
    monkeypatch.setattr(_jit, "num_threads", lambda: 2)
    list(thread_map(abs, [-1, -2]))  # the parent's threads are there
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_child, args=(results,))
    child.start()
    assert results.get(timeout=60) == [1, 2, 3]
    child.join()
