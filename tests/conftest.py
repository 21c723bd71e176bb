"""Settings for all tests."""

import os
import sys

import pytest
from hypothesis import settings

# compiling takes its time at the first example, and the same examples come in every run
settings.register_profile("samplesoft", deadline=None, derandomize=True)
settings.load_profile("samplesoft")

if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
    sys.setswitchinterval(1e-5)  # a simulated barrier is passed at a switch of threads


def pytest_collection_modifyitems(items):
    asked = [item for item in items if item.get_closest_marker("gpu")]
    if not asked:
        return
    for item in asked:  # in the simulator numbers overflow with a word
        item.add_marker(pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"))
    from numba import cuda

    if not cuda.is_available():
        missing = "no NVIDIA GPU that Numba can use, nor its simulator (NUMBA_ENABLE_CUDASIM=1)"
        for item in asked:
            item.add_marker(pytest.mark.skip(reason=missing))
