"""Where Numba cannot be installed, as in a browser, kernels run as the Python that they are."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import samplesoft
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

warnings.simplefilter("error")
sys.meta_path.insert(0, Missing())
threading.Thread.start = start
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


def test_a_lesson_is_the_same_without_numba():
    here = str(Path(__file__).parent)
    use = "from test_without_numba import lesson; print(json.dumps(lesson()))"
    code = f"{BROWSER}\nsys.path.append({here!r})\n{use}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, compiled = json.loads(done.stdout), lesson()
    assert plain.keys() == compiled.keys()
    for name, value in plain.items():
        np.testing.assert_allclose(value, compiled[name], rtol=1e-6, atol=1e-14, err_msg=name)
