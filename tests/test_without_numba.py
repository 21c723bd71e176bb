"""Where Numba cannot be installed, as in a browser, kernels run as the Python that they are."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import samplesoft
from samplesoft import _jit
from samplesoft.losses import SampledSoftmaxLoss
from samplesoft.samplers import ClusterSampler, RFSoftmaxSampler, UnigramSampler

# in a browser threads cannot be started either
BROWSER = """
import json, sys, threading, warnings

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite"):
            raise ModuleNotFoundError(name, name=name)

def start(self):
    raise RuntimeError("can't start new thread")

sys.meta_path.insert(0, Missing())
threading.Thread.start = start
"""
# a debugger, or a measurement of coverage
DISABLED = "import json, os, sys, warnings; os.environ['NUMBA_DISABLE_JIT'] = '1'"
# as pytest does for each test: what was set when a module was imported is of no more use
STRICT = """
import samplesoft.samplers, samplesoft.losses
warnings.resetwarnings()
warnings.simplefilter("error")
"""


def lesson():
    """Return what a first lesson computes: a bias, draws, a loss and its gradients."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(14, 4))
    W, h = np.split(rows / np.linalg.norm(rows, axis=1, keepdims=True), [12])
    found = {"bias": samplesoft.exact_bias(h @ W.T, [0, 1], np.full(12, 1 / 12), 5).bias}
    jackknifed = samplesoft.exact_bias(h @ W.T, [0, 1], np.full(12, 1 / 12), 5, scheme="jackknife")
    found["jackknife"] = jackknifed.bias
    for sampler in (
        UnigramSampler(np.arange(1.0, 13.0)),
        ClusterSampler(W, tau=5.0, rng=0),
        RFSoftmaxSampler(W, nu=2.0, tau=5.0, num_features=8, rng=0),
    ):
        name = type(sampler).__name__
        draw = sampler.sample(h, 6, exclude=[0, 1], rng=3)
        loss = SampledSoftmaxLoss()
        value, cache = loss.forward(h, W, [0, 1], draw)
        found |= {f"{name} draws": draw.ids, f"{name} log q": draw.log_q, f"{name} loss": value}
        found[f"{name} dh"] = loss.backward(cache).dh
    return {name: np.asarray(value).tolist() for name, value in found.items()}


@pytest.mark.parametrize("how", [BROWSER, DISABLED], ids=["missing", "disabled"])
def test_a_lesson_is_the_same_without_numba(how):
    here = str(Path(__file__).parent)
    use = "from test_without_numba import lesson; print(json.dumps(lesson()))"
    code = f"{how}\nsys.path.append({here!r})\n{STRICT}\n{use}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, compiled = json.loads(done.stdout), lesson()
    assert plain.keys() == compiled.keys()
    for name, value in plain.items():
        np.testing.assert_allclose(value, compiled[name], rtol=1e-6, atol=1e-14, err_msg=name)


def wrap(word):
    return word * np.uint64(3), inner(word)


def inner(word):
    return np.float64(word) / np.float64(0.0)


def fail(word):
    raise KeyError(word * np.uint64(3))


MOST = np.uint64(2**64 - 1)


@pytest.fixture
def plain(monkeypatch):
    """Return `njit` as it is where nothing is compiled."""
    monkeypatch.setattr(_jit, "COMPILES", False)
    monkeypatch.setitem(globals(), "inner", _jit.njit(inner))
    return _jit.njit


def test_numbers_overflow_in_kernels_without_a_warning(plain):
    kernel = plain(wrap)
    with np.errstate(all="raise"):  # which training asks for, and compiled code does not hear
        assert kernel(MOST) == (MOST - np.uint64(2), np.inf)
        assert kernel(word=MOST) == kernel(MOST)
    assert kernel.__name__ == "wrap"


@pytest.mark.parametrize("kernel, error", [(wrap, None), (fail, KeyError)])
def test_what_callers_do_themselves_has_its_warnings(plain, kernel, error):
    with pytest.raises(error) if error else contextlib.nullcontext():
        plain(kernel)(MOST)
    with pytest.warns(RuntimeWarning, match="overflow"):
        MOST * np.uint64(3)
    with pytest.warns(RuntimeWarning, match="overflow"):
        list(_jit.thread_map(lambda word: word * np.uint64(3), [MOST]))


def test_threads_of_a_kernel_have_no_warnings_either(plain, threads):
    threads(3)
    kernel = plain(wrap)
    found = list(_jit.thread_map(kernel, [MOST] * 5))
    assert found == [(MOST - np.uint64(2), np.inf)] * 5
