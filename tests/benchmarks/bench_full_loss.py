"""Speed and memory of the full softmax loss against PyTorch's cross entropy in the same run.

``python tests/benchmarks/bench_full_loss.py`` prints one line each; medians of interleaved runs
after a warm-up. Memory is that beyond vectors and gradients: the peak of NumPy's arrays, and how
far the peak of the resident set of a fresh process rises. On a busy machine the ratio falls, for
the threads of NumPy's matrix products wait for each other more often.
"""

import resource
import statistics
import time
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from samplesoft.losses.full import FullSoftmaxLoss
from samplesoft.metrics.evaluation import evaluate

try:
    import torch
except ImportError:
    torch = None

MB = 1e6
LOSS = FullSoftmaxLoss()


def case(n, d, batch):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, d), dtype=np.float32)
    rows *= np.float32(d**-0.5)  # in place: the peak of the resident set is that of the arguments
    return rng.standard_normal((batch, d), dtype=np.float32), rows, rng.integers(0, n, batch)


def our_step(h, rows, labels):
    def step():
        _, cache = LOSS.forward(h, rows, labels)
        yield
        LOSS.backward(cache)
        yield

    return step


def torch_step(h, rows, labels):
    leaves = [torch.from_numpy(x).requires_grad_() for x in (h, rows)]
    target = torch.from_numpy(labels)

    def step():
        for leaf in leaves:
            leaf.grad = None
        loss = torch.nn.functional.cross_entropy(leaves[0] @ leaves[1].T, target)
        yield
        loss.backward()
        yield

    return step


def laps(step):
    """Return seconds between the stops of a generator."""
    start, seconds = time.perf_counter(), []
    for _ in step():
        now = time.perf_counter()
        seconds.append(now - start)
        start = now
    return seconds


def medians(steps, repeats):
    """Return for each step its median seconds forward and backward, timed in turn."""
    records = [[] for _ in steps]
    for turn in range(repeats + 1):
        for step, record in zip(steps, records, strict=True):
            seconds = laps(step)
            if turn > 0:
                record.append(seconds)
    return [[statistics.median(column) for column in zip(*r, strict=True)] for r in records]


def traced_megabytes(step):
    tracemalloc.start()
    for _ in step():
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / MB


def resident_megabytes(n, d, batch):
    """Return by how much a step raises the peak of the resident set; for a process of its own."""
    h, rows, labels = case(n, d, batch)
    for _ in our_step(h[:2], rows[:99], labels[:2] % 99)():
        pass  # so that compiled code is there
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in our_step(h, rows, labels)():
        pass
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / MB


def bench(n, d, batch, repeats=9):
    arguments = case(n, d, batch)
    steps = [our_step(*arguments)] + ([] if torch is None else [torch_step(*arguments)])
    (forward, backward), *peer = medians(steps, repeats)
    gradients = (4 * d * (n + batch) + 8 * n) / MB
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        resident = fresh.submit(resident_megabytes, n, d, batch).result() - gradients
    traced = traced_megabytes(steps[0]) - gradients
    ratio = ""
    if peer:
        ours, theirs = forward + backward, sum(peer[0])
        ratio = (
            f"; PyTorch {1e3 * peer[0][0]:.1f} + {1e3 * peer[0][1]:.1f} ms: "
            f"{theirs / ours:.2f} times as fast as PyTorch"
        )
    print(
        f"full loss n={n:,} d={d} B={batch}: {1e3 * forward:.1f} + {1e3 * backward:.1f} ms, "
        f"{traced:.0f} MB traced, {resident:.0f} MB resident{ratio}"
    )


def bench_evaluation(n, d, examples):
    h, rows, labels = case(n, d, examples)
    evaluate(h[:9], rows, labels[:9])
    start = time.perf_counter()
    evaluate(h, rows, labels)
    seconds = time.perf_counter() - start
    print(f"evaluate n={n:,} d={d}: {1e6 * seconds / examples:.1f} us for each example")


if __name__ == "__main__":
    bench(10_000, 200, 700)
    bench(100_000, 128, 128)
    bench(500_000, 64, 128)
    bench_evaluation(10_000, 200, 8_192)
