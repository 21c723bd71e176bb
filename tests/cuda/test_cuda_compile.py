"""Every kernel compiles for a GPU, on a machine that has none."""

import importlib
import os
from pathlib import Path

import compiled_cuda
import numpy as np
import pytest

import samplesoft


def why_not():
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return "the simulator compiles nothing"
    if importlib.util.find_spec("numba_cuda") is None:
        return "no CUDA compiler; pip install samplesoft[cuda12] brings one"
    return ""


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]
FLOAT32 = {"multiply_write_fourier", "multiply_write_positive"}
FLOAT32 |= {"sum_runs", "sum_changes"}
FLOAT32 |= {"combine_siblings", "apply_updates", "context_gradients", "largest_in_rows"}
FLOAT32 |= {f"{name}_rows_on_device" for name in ("sgd", "momentum", "adagrad", "adam")}


@pytest.fixture(scope="module", params=[np.float32, np.float64], ids=["float32", "float64"])
def compiled(request):
    with compiled_cuda.compiling() as kernels:
        compiled_cuda.launch_everything(request.param)
        yield request.param, kernels


def kernels_written():
    from numba.cuda.dispatcher import CUDADispatcher

    root = Path(samplesoft.__file__).parent
    modules = [path.relative_to(root.parent).with_suffix("") for path in root.rglob("*cuda.py")]
    assert len(modules) > 3
    for module in modules:
        for thing in vars(importlib.import_module(".".join(module.parts))).values():
            if isinstance(thing, CUDADispatcher) and not thing.targetoptions.get("device"):
                yield thing.py_func.__name__


def test_every_kernel_is_compiled(compiled):
    _, kernels = compiled
    assert set(kernels_written()) <= {name for name, _ in kernels}
    for ptx in kernels.values():
        assert ".target sm_90" in ptx


def test_what_calculates_in_float32_has_no_float64(compiled):
    dtype, kernels = compiled
    seen = set()
    for (name, _), ptx in kernels.items():
        if dtype == np.float32 and name in FLOAT32:
            assert not compiled_cuda.float64_arithmetic(ptx), name
            seen.add(name)
    assert dtype == np.float64 or seen == FLOAT32


@pytest.mark.skipif(compiled_cuda.ptxas() is None, reason="no ptxas")
def test_no_kernel_spills(compiled, tmp_path):
    for (name, _), ptx in compiled[1].items():
        registers, spilled = compiled_cuda.resources(ptx, tmp_path)
        assert registers <= 128, name
        assert spilled == 0, name
