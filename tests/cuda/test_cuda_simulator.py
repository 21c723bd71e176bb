"""What the library mends in Numba's simulator, provoked."""

import sys
import time

import numpy as np
import pytest

from samplesoft import _cuda
from samplesoft._cuda import SIMULATED, cuda, kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not SIMULATED, reason="of the simulator (NUMBA_ENABLE_CUDASIM=1)"),
]
_THREADS = 8


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
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        out = cuda.to_device(np.full((blocks, _THREADS), -1))
        _reverse[blocks, _THREADS](out)
    finally:
        sys.setswitchinterval(interval)
    wanted = np.arange(_THREADS)[::-1]
    return int((out.copy_to_host() != wanted).any(axis=1).sum())


def test_threads_of_a_block_share_one_array():
    assert _wrong_blocks() == 0


def test_an_allocation_without_a_lock_fails_that_test(monkeypatch):
    def look_up_then_make(self, shape, dtype):  # as Numba does
        array = self._allocations.get("line")
        if array is None:
            array = self._allocations["line"] = np.empty(shape, dtype)
        return array

    monkeypatch.setattr(_cuda.FakeCUDAShared, "array", look_up_then_make)
    assert _wrong_blocks() > 0
