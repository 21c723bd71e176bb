"""Speed of the bias core as ratios against a peer in the same run, and to what is asked for.

``python tests/benchmarks/bench_bias.py`` prints one line each; medians of interleaved runs after a
warm-up. pytest does not collect this file.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracles import naive

import samplesoft
from samplesoft import samplers
from samplesoft._jit import num_threads


def pair(first, second, repeats=9):
    """Return the median seconds of two functions, timed in turn after one warm-up of each."""
    times = ([], [])
    first()
    second()
    for _ in range(repeats):
        for function, record in zip((first, second), times, strict=True):
            start = time.perf_counter()
            function()
            record.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def bench_exact(n, m=1000, spread=3.0, goal_ms=None, goal_exp=None):
    rng = np.random.default_rng(0)
    logits, q = rng.normal(size=n) * spread, np.full(n, 1 / n)
    repeats = 9 if n > 100_000 else 101
    ours, exp = pair(
        lambda: samplesoft.exact_bias(logits, 0, q, m), lambda: np.exp(logits), repeats
    )
    goal = goal_ms if goal_ms is not None else goal_exp and 1e3 * goal_exp * exp
    asked = f", {1e3 * ours / goal:.2f} of the {goal:.2f} ms asked for" if goal else ""
    print(
        f"exact_bias n={n:.0e} m={m} spread {spread:.0f}: {1e3 * ours:.2f} ms, "
        f"{ours / exp:.0f} times np.exp (n){asked}"
    )


def bench_monte_carlo(n=10_000, m=100, trials=20_000):
    rng = np.random.default_rng(0)
    logits, q = rng.normal(size=n), np.full(n, 1 / n)

    def ours():
        samplesoft.monte_carlo_bias(logits, 0, q, m, num_trials=trials, rng=0)

    for stderr in (True, False):
        us, them = pair(
            ours,
            lambda stderr=stderr: naive.multinomial_numpy_monte_carlo(
                logits, 0, q, m, trials // 5, np.random.default_rng(0), stderr=stderr
            ),
            repeats=5,
        )
        what = "mean and standard error" if stderr else "mean only"
        print(
            f"monte_carlo_bias n={n} m={m}: {trials * m / us / 1e6:.0f} M draws/s, "
            f"{5 * them / us:.1f} times NumPy ({what})"
        )


def bench_import():
    def run(code):
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    with_it, without = pair(run("import numpy, numba, samplesoft"), run("import numpy, numba"))
    print(f"import samplesoft: {with_it - without:+.3f} s on {without:.2f} s for numpy and numba")


def bench_verify_of_arrays(goal=0.5):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(10, 100)), rng.integers(0, 100, 10)
    inputs = samplers.SamplerInputs(logits=logits, counts=np.arange(100, 0, -1))
    q = samplers.dense_proposals(["uniform", "log-uniform", "unigram"], inputs)
    for m in (10, (10, 100, 1000)):
        took, _ = pair(
            lambda m=m: samplesoft.verify(logits, labels, q, m, rng=0), lambda: None, repeats=5
        )
        print(
            f"verify of 10 examples, 100 classes, {len(q)} proposals, m={m}: {took:.2f} s, "
            f"{took / goal:.2f} of the {goal} s asked for"
        )


def bench_verify(goal=20.0):
    """Time the command, and its progress in a pipe: when it begins, and its longest silence."""
    with tempfile.TemporaryDirectory() as cache:
        for state in ("cold", "warm"):
            start = time.perf_counter()
            with subprocess.Popen(
                [sys.executable, "-m", "samplesoft", "verify"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "NUMBA_CACHE_DIR": cache},
            ) as command:
                times = [start]
                while os.read(command.stderr.fileno(), 1 << 16):
                    times.append(time.perf_counter())
            assert command.returncode == 0
            took, pauses = time.perf_counter() - start, np.diff(times)
            asked = f", {took / goal:.2f} of the {goal:.0f} s asked for" if state == "cold" else ""
            print(
                f"samplesoft verify, {state} compile cache: {took:.1f} s{asked}; progress begins "
                f"after {pauses[0]:.1f} s, longest silence {pauses[1:].max():.1f} s"
            )


if __name__ == "__main__":
    print(f"{num_threads()} threads, numpy {np.__version__}")
    bench_exact(10, 10, goal_ms=0.15)
    bench_exact(1000, 10, goal_ms=0.5)
    bench_exact(10_000, 10, goal_exp=100)
    bench_exact(10_000, 10, spread=1.0, goal_exp=100)
    bench_exact(10_000)
    bench_exact(1_000_000)
    bench_verify_of_arrays()
    bench_monte_carlo()
    bench_import()
    bench_verify()
