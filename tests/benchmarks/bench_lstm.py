"""Speed of the layers of a language model as ratios against a peer in the same run.

``python tests/benchmarks/bench_lstm.py`` prints one line each; medians of runs after a warm-up.
pytest does not collect this file.
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np
from bench_bias import pair
from scipy.sparse import csr_array

from samplesoft._jit import num_threads
from samplesoft.models import Linear

sys.path.append(str(Path(__file__).parents[2] / "figures"))
from language_model.layers import Embedding  # noqa: E402
from language_model.lstm import LSTM  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

SETTINGS = [  # T, B, H: a small and a medium model of Zaremba et al. (2014), and a wide batch
    (35, 20, 200),
    (35, 20, 650),
    (20, 128, 200),
]


def blocks(first, second, rounds=3, runs=5):
    """Return the median seconds of two functions, timed in turn in blocks of `runs`.

    Both keep threads that spin for a while after a product, in the way of the other's: each block
    starts with a run that does not count.
    """
    times = ([], [])
    for _ in range(rounds):
        for function, record in zip((first, second), times, strict=True):
            function()
            for _ in range(runs):
                start = time.perf_counter()
                function()
                record.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def bench_lstm(steps, batch, size, dtype):
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, steps, batch, size)).astype(dtype)
    lstm = LSTM(size, size, num_layers=2, dtype=dtype, rng=0)
    peer = torch.nn.LSTM(size, size, 2, dtype=torch.from_numpy(x).dtype)
    inputs, slopes = torch.from_numpy(x).requires_grad_(), torch.from_numpy(dy)

    def ours():
        _, _, cache = lstm.forward(x)
        lstm.backward(cache, dy)

    def theirs():
        peer.zero_grad()
        inputs.grad = None
        peer(inputs)[0].backward(slopes)

    def theirs_forward():
        peer(inputs)

    us, them = blocks(ours, theirs)
    us_forward, them_forward = blocks(lambda: lstm.forward(x), theirs_forward)
    print(
        f"LSTM, 2 layers x {size}, T = {steps}, B = {batch}, {np.dtype(dtype)}: "
        f"{1e3 * us:.1f} ms forward and backward, {us / them:.2f} times torch's time "
        f"(forward {us_forward / them_forward:.2f})"
    )


def bench_sparse_linear(num_inputs, dim=256, batch=128, nonzeros=100):
    rng = np.random.default_rng(0)
    used = batch * nonzeros
    values, columns = rng.random(used, np.float32), rng.integers(0, num_inputs, used)
    x = csr_array((values, columns, np.arange(batch + 1) * nonzeros), (batch, num_inputs))
    layer = Linear(num_inputs, dim, rng=0)
    weights = layer.parameters["weights"]
    y, cache = layer.forward(x)
    ours, scipy = pair(lambda: layer.forward(x), lambda: x @ weights, 31)
    backward, _ = pair(lambda: layer.backward(cache, y), lambda: None, 31)
    print(
        f"sparse linear, v = {num_inputs:.0e}, {batch} x {nonzeros} entries, d = {dim}: forward "
        f"{1e3 * ours:.2f} ms, {scipy / ours:.1f} times SciPy; backward {1e3 * backward:.2f} ms"
    )


def bench_embedding(num=10_000, dim=200, shape=(35, 20)):
    layer = Embedding(num, dim, rng=0)
    ids = np.random.default_rng(0).integers(0, num, shape)
    y, cache = layer.forward(ids)
    dense = np.zeros((num, dim), np.float32)
    ours, numpy = pair(lambda: layer.backward(cache, y), lambda: np.add.at(dense, ids, y), 31)
    print(
        f"embedding backward, {shape} ids: {1e3 * ours:.2f} ms, {numpy / ours:.1f} times np.add.at"
    )


if __name__ == "__main__":
    print(f"{num_threads()} threads, numpy {np.__version__}")
    if torch is None:
        print("LSTM against torch: left out, torch is not installed")
    else:
        torch.set_num_threads(num_threads())
        for setting in SETTINGS:
            for dtype in (np.float32, np.float64):
                bench_lstm(*setting, dtype)
    for num_inputs in (10**4, 10**5, 10**6):
        bench_sparse_linear(num_inputs)
    bench_embedding()
