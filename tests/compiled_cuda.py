"""Compiles every kernel that a call launches, for a GPU that is not there.

Arrays stay in the host's memory, launches become compilations for the types of their arguments,
and nothing runs: what comes out of a call is rubbish of the right shapes.

``python tests/compiled_cuda.py figures/cuda_kernels.csv`` records what each kernel takes of a
multiprocessor; it needs ``samplesoft[cuda12]`` and ptxas.
"""

import argparse
import csv
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np

CAPABILITY = (9, 0)


class HostArray(np.ndarray):
    """An array that passes for one on the device."""

    __cuda_ndarray__ = True

    def copy_to_host(self):
        return np.asarray(self).copy()

    def copy_to_device(self, other):
        self[...] = other


def to_device(array):
    return np.array(array).view(HostArray)


def device_array(shape, dtype):
    return np.ones(shape, dtype).view(HostArray)  # a count that is read back is then not 0


@contextmanager
def compiling():
    """Yield a dict, filled with the PTX of each kernel launched, by its name and types."""
    import numba.cuda
    from numba.cuda import dispatcher

    compiled = {}

    def launch(kernel, configuration):
        def compile_for(*arguments):
            arguments = [np.asarray(a) if isinstance(a, HostArray) else a for a in arguments]
            signature = numba.void(*map(numba.typeof, as_tuples(arguments)))
            key = kernel.py_func.__name__, str(signature)
            if key not in compiled:
                compiled[key], _ = numba.cuda.compile_ptx(kernel.py_func, signature, cc=CAPABILITY)

        return compile_for

    memory = SimpleNamespace(get_memory_info=lambda: SimpleNamespace(free=2**36))
    with (
        mock.patch.object(numba.cuda, "is_available", lambda: True),
        mock.patch.object(numba.cuda, "to_device", to_device),
        mock.patch.object(numba.cuda, "device_array", device_array),
        mock.patch.object(numba.cuda, "current_context", lambda: memory),
        mock.patch.object(dispatcher.CUDADispatcher, "__getitem__", launch),
        mock.patch.object(
            dispatcher,
            "get_current_device",
            lambda: SimpleNamespace(compute_capability=CAPABILITY),
        ),
        np.errstate(all="ignore"),  # on the host, rubbish may be NaN or infinite
    ):
        yield compiled


def as_tuples(arguments):
    """Turn arrays inside tuples into those of NumPy too."""

    def turned(value):
        if not isinstance(value, tuple):
            return np.asarray(value) if isinstance(value, HostArray) else value
        items = map(turned, value)
        return value._make(items) if hasattr(value, "_fields") else tuple(items)

    return list(map(turned, arguments))


def ptxas():
    """Return the path of NVIDIA's assembler, or None."""
    try:
        import nvidia
    except ImportError:
        return shutil.which("ptxas")
    found = (p for root in nvidia.__path__ for p in Path(root).glob("*/bin/ptxas"))
    return next(map(str, found), shutil.which("ptxas"))


def resources(ptx, folder):
    """Return the registers of a kernel, and the bytes that it spills, as ptxas has it."""
    path = Path(folder) / "kernel.ptx"
    path.write_text(ptx)
    target = "sm_" + "".join(map(str, CAPABILITY))
    done = subprocess.run(
        [ptxas(), f"-arch={target}", "-v", str(path), "-o", str(path.with_suffix(".cubin"))],
        capture_output=True,
        text=True,
        check=True,
    )
    registers = int(re.search(r"Used (\d+) registers", done.stderr)[1])
    return registers, sum(map(int, re.findall(r"(\d+) bytes spill", done.stderr)))


def resident_warps(registers, in_block=4, of_registers=2**16, at_most=64):
    """Return the warps that a multiprocessor holds at once, as far as registers allow."""
    warps = of_registers // (32 * -(-registers // 8) * 8)
    return min(at_most, warps // in_block * in_block)


def float64_arithmetic(ptx):
    """Return the instructions that calculate in float64."""
    return re.findall(r"\b(?:add|sub|mul|fma|div|sqrt|rcp|cvt)\.[\w.]*f64[\w.]*", ptx)


def launch_everything(dtype):
    """Launch each kernel for vectors of a type, through what users call."""
    from samplesoft.feature_maps import PositiveRandomFeatures, RandomFourierFeatures
    from samplesoft.losses import SampledSoftmaxLoss
    from samplesoft.losses.base import SparseRows
    from samplesoft.models import SoftmaxLayer
    from samplesoft.optimizers.registry import OPTIMIZERS, make_optimizer
    from samplesoft.samplers import ClusterSampler, RFSoftmaxSampler, UniformSampler
    from samplesoft.samplers.tree.kernel_tree import KernelTree

    X = to_device(np.eye(3, dtype=dtype))
    W = np.zeros((13, 3), dtype)
    W[:, 0] = 1.0
    for phi in (
        RandomFourierFeatures(3, 7, device="cuda"),
        RandomFourierFeatures(3, 7, frequencies="structured", device="cuda"),
        PositiveRandomFeatures(3, 7, device="cuda"),
    ):
        phi.transform(X)
    common = {"num_features": 4, "leaf_size": 3, "device": "cuda"}
    for sampler in (
        RFSoftmaxSampler(W, tau=1.0, **common),
        RFSoftmaxSampler(W, leaf="kernel", **common),
        ClusterSampler(np.tile(W, (7, 1)), leaf_size=1, device="cuda"),  # of two levels
    ):
        sampler.sample(X, 4, exclude=[1, 1, 2], rng=0)
        sampler.sample(X, 4, shared=True, rng=0)
        sampler.log_prob(X, to_device(np.array([[1, 2]] * 3)))
        sampler.probs(X)
        sampler.update([1, 1], X[:2])
    KernelTree(W[:2], leaf_size=1, device="cuda").update([0], W[:1])
    tree = KernelTree(W, leaf_size=1, device="cuda")
    tree._num_updates = 15  # so that the next sums the first leaf anew
    tree.update([0], W[:1])
    for name in OPTIMIZERS:
        for shared in (False, True):
            loss = SampledSoftmaxLoss(
                scheme="candidate",
                normalize=True,
                tau=2.0,
                reduction="none",
                device="cuda",
            )
            layer = SoftmaxLayer(W, loss, UniformSampler(13), 4, biases=np.zeros(13), shared=shared)
            _, cache = layer.forward(X, [1, 2, 3], rng=0)
            _, gradients = layer.backward(cache)
            gradients = {
                name: SparseRows(to_device(np.arange(rows.rows.shape[0])), rows.rows)
                for name, rows in gradients.items()
            }
            make_optimizer(name, 0.1).step(layer.parameters, gradients)
            layer.update()


def record(path):
    """Write the resources of every kernel, for vectors of both types."""
    fields = "kernel", "vectors", "registers", "spilled_bytes", "warps_of_64", "float64_arithmetic"
    rows = set()
    for dtype in (np.float32, np.float64):
        with compiling() as compiled, tempfile.TemporaryDirectory() as folder:
            launch_everything(dtype)
            for (name, _), ptx in compiled.items():
                registers, spilled = resources(ptx, folder)
                warps, float64 = resident_warps(registers), len(float64_arithmetic(ptx))
                rows.add((name, dtype.__name__, registers, spilled, warps, float64))
    with open(path, "w", encoding="utf-8", newline="") as stream:
        stream.write(f"# compiled for sm_{CAPABILITY[0]}{CAPABILITY[1]}; instructions in PTX\n")
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(fields)
        table.writerows(sorted(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=record.__doc__)
    parser.add_argument("output", type=Path)
    record(parser.parse_args().output)
