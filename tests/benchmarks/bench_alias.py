"""Speed of the static samplers as ratios against NumPy in the same run.

``python tests/benchmarks/bench_alias.py`` prints one line each; medians of interleaved runs after a
warm-up. pytest does not collect this file.
"""

import time

import numpy as np
from bench_bias import pair

from samplesoft.samplers.static import LogUniformSampler, UniformSampler, WeightedSampler


def bench_draws(n, num=10_000):
    weights = np.random.default_rng(0).gamma(0.5, size=n)
    rng = np.random.default_rng(0)
    q = weights / weights.sum()
    for name, sampler in (("any weights", WeightedSampler(weights)), ("uniform", UniformSampler(n))):
        ours, numpys = pair(
            lambda sampler=sampler: sampler.sample(None, num, rng=0), lambda: rng.choice(n, num, p=q)
        )
        print(
            f"{name}, n={n:.0e}, {num} draws with log q: {1e9 * ours / num:.1f} ns a draw, "
            f"{numpys / ours:.0f} times faster than Generator.choice(p=)"
        )


def bench_batch(n=1_000_000, batch=128, m=100):
    sampler, labels = LogUniformSampler(n), np.arange(batch)
    rng, h = np.random.default_rng(0), np.empty((batch, 1))
    q = sampler.probs(None)[0]
    ours, numpys = pair(
        lambda: sampler.sample(h, m, exclude=labels, rng=0), lambda: rng.choice(n, batch * m, p=q)
    )
    print(
        f"{batch} x {m} draws without each label, n={n:.0e}: {1e6 * ours:.0f} us, {numpys / ours:.0f} "
        "times faster than as many of Generator.choice(p=) with it"
    )


def bench_call():
    sampler, rng = WeightedSampler([1.0, 2.0]), np.random.default_rng(0)
    ours, numpys = pair(
        lambda: sampler.sample(None, 1, rng=0), lambda: rng.choice(2, 1, p=[0.3, 0.7]), 999
    )
    print(f"one draw from 2 classes: {1e6 * ours:.0f} us, {ours / numpys:.1f} times choice(p=)")


def bench_without_replacement(n, batch=32, m=100):
    sampler = LogUniformSampler(n, replace=False)
    rng, h, labels = np.random.default_rng(0), np.empty((batch, 1)), np.arange(batch)
    q = sampler.probs(None)[0]
    start = time.perf_counter()
    sampler.sample(h, m, exclude=labels, rng=0)
    first = time.perf_counter() - start
    for exclude in (None, labels):
        ours, numpys = pair(
            lambda exclude=exclude: sampler.sample(h, m, exclude=exclude, rng=0),
            lambda: rng.choice(n, m, replace=False, p=q),
        )
        what = "nothing excluded" if exclude is None else "labels excluded"
        print(
            f"without replacement, n={n:.0e}, m={m}, {what}: {1e3 * ours / batch:.2f} ms an example "
            f"with its inclusion probabilities, {batch * numpys / ours:.1f} times faster than "
            "Generator.choice(p=) alone"
        )
    print(f"    the first call took {1e3 * first:.0f} ms, compilation and tables included")


if __name__ == "__main__":
    bench_draws(10_000)
    bench_draws(1_000_000)
    bench_batch()
    bench_call()
    bench_without_replacement(100_000)
    bench_without_replacement(1_000_000)
