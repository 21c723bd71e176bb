"""Speed of the bias core as ratios against a peer in the same run.

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


def bench_exact(n, m=1000):
    rng = np.random.default_rng(0)
    logits, q = rng.normal(size=n) * 3, np.full(n, 1 / n)
    ours, exp = pair(lambda: samplesoft.exact_bias(logits, 0, q, m), lambda: np.exp(logits))
    print(f"exact_bias n={n:.0e} m={m}: {1e3 * ours:.1f} ms, {ours / exp:.0f} times np.exp (n)")


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


def bench_verify():
    with tempfile.TemporaryDirectory() as cache:
        for state in ("cold", "warm"):
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "samplesoft", "verify"],
                check=True,
                capture_output=True,
                env={**os.environ, "NUMBA_CACHE_DIR": cache},
            )
            print(f"samplesoft verify, {state} compile cache: {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    print(f"{num_threads()} threads, numpy {np.__version__}")
    bench_exact(10_000)
    bench_exact(1_000_000)
    bench_monte_carlo()
    bench_import()
    bench_verify()
