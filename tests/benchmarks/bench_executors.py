"""What an executor adds to one worker's time, and what a second worker takes off.

``python tests/benchmarks/bench_executors.py`` prints the time without an executor, on one worker
and on two, all with one thread for kernels, and ratios; medians of runs in turn after a warm-up.
Two cores are needed. pytest does not collect this file.
"""

import os
import statistics
import time

os.environ |= {"NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from distributed import Client, LocalCluster

import samplesoft
from samplesoft._executors import RestartingProcessPool

REPEATS = 5


def exact(executor, batch=400, n=10_000):
    rng = np.random.default_rng(0)
    logits, q = rng.normal(size=(batch, n)), np.full(n, 1 / n)
    samplesoft.exact_bias(logits, 3, q, num_sampled=100, executor=executor)


def monte_carlo(executor, batch=64, n=2_000):
    rng = np.random.default_rng(0)
    logits, q = rng.normal(size=(batch, n)), np.full(n, 1 / n)
    samplesoft.monte_carlo_bias(logits, 3, q, 100, num_trials=20_000, rng=0, executor=executor)


def verify(executor, n=3_000):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, n))
    weights = rng.random((12, n)) + 0.1
    proposals = {f"q{i}": row / row.sum() for i, row in enumerate(weights)}
    settings = {"num_trials": 4000, "rng": 0}
    samplesoft.verify(logits, 3, proposals, (10, 100, 1000), executor=executor, **settings)


def dask_workers(workers):
    cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    return Client(cluster).get_executor(pure=False)


def main():
    pools = {
        "processes": RestartingProcessPool,
        "threads": ThreadPoolExecutor,
        "Dask": dask_workers,
    }
    open_pools = {f"{name}, {k}": make(k) for name, make in pools.items() for k in (1, 2)}
    for work in (exact, monte_carlo, verify):
        ways = {"none": None, **open_pools}
        seconds = {name: [] for name in ways}
        for executor in ways.values():
            work(executor)
        for _ in range(REPEATS):
            for name, executor in ways.items():
                started = time.perf_counter()
                work(executor)
                seconds[name].append(time.perf_counter() - started)
        found = {name: statistics.median(times) for name, times in seconds.items()}
        print(f"{work.__name__}: {found['none']:.2f} s without an executor")
        for name in pools:
            one, two = found[f"{name}, 1"], found[f"{name}, 2"]
            added = one / found["none"] - 1
            print(
                f"  {name}: one worker {added:+.0%} (asked +10%), two workers "
                f"{one / two:.2f} times as quick (asked 1.7)"
            )


if __name__ == "__main__":
    main()
