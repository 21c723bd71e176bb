"""What `cuda_turns` mends in Numba's simulator: turns in place of polling, and shared arrays."""

import sys
import time

import numpy as np
import pytest

from samplesoft._cuda import (
    SIMULATED,
    WARP_SIZE,
    cuda,
    kernel,
    lane,
    launch_warps,
    warp_index,
    warp_sum,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not SIMULATED, reason="of the simulator (NUMBA_ENABLE_CUDASIM=1)"),
]
if SIMULATED:
    import cuda_turns as simulator
_THREADS = 8


@pytest.fixture
def side_by_side(monkeypatch):
    """Let the threads of a block run at the same time, as Numba's own scheduler does."""
    monkeypatch.setattr(simulator.BlockManager, "run", simulator.numba_run_block)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


class _SlowSize:
    """A size that takes a while to read, so that other threads run while an array is made."""

    def __index__(self):
        time.sleep(1e-3)
        return _THREADS


_SIZE = _SlowSize()


@kernel
def _reverse(out):
    own = cuda.threadIdx.x
    shared = cuda.shared.array(_SIZE, np.int64)
    shared[own] = own
    cuda.syncthreads()
    out[cuda.blockIdx.x, own] = shared[_THREADS - 1 - own]


def _wrong_blocks(blocks=4):
    """Count the blocks whose threads did not all write to one array."""
    out = cuda.to_device(np.full((blocks, _THREADS), -1))
    _reverse[blocks, _THREADS](out)
    wanted = np.arange(_THREADS)[::-1]
    return int((out.copy_to_host() != wanted).any(axis=1).sum())


def test_threads_of_a_block_share_one_array():
    assert _wrong_blocks() == 0


def test_threads_that_run_at_the_same_time_share_one_array(side_by_side):
    assert _wrong_blocks() == 0


def test_an_allocation_without_a_lock_fails_that_test(side_by_side, monkeypatch):
    def look_up_then_make(self, shape, dtype):  # as Numba does
        array = self._allocations.get("line")
        if array is None:
            array = self._allocations["line"] = np.empty(shape, dtype)
        return array

    monkeypatch.setattr(simulator.FakeCUDAShared, "array", look_up_then_make)
    assert any(_wrong_blocks() for _ in range(20))  # threads need not meet the first time


@kernel
def _trace(trace, lengths):
    """Write the thread that runs; thread i of a block meets ``lengths[i]`` barriers."""
    for _ in range(lengths[cuda.threadIdx.x] + 1):
        trace[cuda.atomic.add(trace, 0, 1)] = cuda.threadIdx.x + 10 * cuda.blockIdx.x
        cuda.syncthreads()


def test_threads_take_turns_forwards_and_backwards():
    trace = np.ones(19, np.int64)
    _trace[2, 3](trace, np.array([1, 2, 3]))
    turns = [0, 1, 2, 2, 1, 0, 1, 2, 2]
    other = [12, 11, 10, 10, 11, 12, 12, 11, 12]
    assert trace[0] == 19
    np.testing.assert_array_equal(trace[1:], turns + other)


@kernel
def _sums(out):
    """Write the sums of three rounds, more of them in one warp than in the other."""
    w = warp_index()
    for turn in range(2 + w):
        total = warp_sum(10**turn * (lane() + w))
        if lane() == 0:
            out[w, turn] = total


@pytest.mark.parametrize("scheduler", ["turns", "side_by_side"])
def test_warps_exchange_values_apart_from_each_other(scheduler, request):
    if scheduler == "side_by_side":
        request.getfixturevalue(scheduler)
    out = np.zeros((2, 3), np.int64)
    launch_warps(_sums, 2, out)
    lanes = np.arange(WARP_SIZE)
    np.testing.assert_array_equal(out[0], [lanes.sum(), 10 * lanes.sum(), 0])
    np.testing.assert_array_equal(out[1], (lanes + 1).sum() * 10 ** np.arange(3))


@kernel
def _shift(out, shared, direction):
    """Read what the neighbour has written, without the barrier that this needs."""
    own, block = cuda.threadIdx.x, cuda.blockIdx.x
    shared[block, own] = own
    out[block, own] = shared[block, (own + direction) % _THREADS]


@pytest.mark.parametrize("direction", [-1, 1])
def test_a_missing_barrier_is_found_in_whatever_direction_threads_read(direction):
    out, shared = np.zeros((2, _THREADS)), np.full((2, _THREADS), -1)
    _shift[2, _THREADS](out, shared, direction)
    assert (out == -1).sum() >= _THREADS - 1


@kernel
def _fail_in_one(out):
    cuda.syncthreads()
    if cuda.threadIdx.x == 2:
        raise ValueError("no such class")
    cuda.syncthreads()
    out[cuda.threadIdx.x] = 1


@pytest.mark.parametrize("scheduler", ["turns", "side_by_side"])
def test_an_exception_ends_the_launch_and_names_its_thread(scheduler, request):
    if scheduler == "side_by_side":
        request.getfixturevalue(scheduler)
    out = np.zeros(4)
    message = r"tid=\[2, 0, 0\] ctaid=\[0, 0, 0\]: no such class"
    with pytest.raises(ValueError, match=message):
        _fail_in_one[2, 4](out)
    assert not out.any()
    assert _wrong_blocks() == 0  # and the next launch runs
