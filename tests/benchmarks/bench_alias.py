"""Speed of the static samplers as ratios against NumPy in the same run.

``python tests/benchmarks/bench_alias.py`` prints one line each; medians of interleaved runs after a
warm-up. pytest does not collect this file.
"""

import time
from itertools import count

import numpy as np
from bench_bias import pair

from samplesoft._random import stream_key
from samplesoft.kernels.alias import build_alias
from samplesoft.samplers import static
from samplesoft.samplers.frequency import LogUniformSampler
from samplesoft.samplers.static import UniformSampler, WeightedSampler


def bench_draws(n, num=10_000):
    weights = np.random.default_rng(0).gamma(0.5, size=n)
    rng, seeds, q = np.random.default_rng(0), count(), weights / weights.sum()
    tables, nothing = static._AliasTables(*[build_alias(weights)] * 2, 0), np.full(1, -1)
    ids = np.empty((1, num), np.int64)
    weighted, uniform = WeightedSampler(weights), UniformSampler(n)

    def draw():
        static._write_alias_draws(stream_key(next(seeds)), 0, tables, nothing, ids)

    for name, call in {
        "alias draws alone": draw,
        "WeightedSampler.sample, with log q": lambda: weighted.sample(None, num, rng=next(seeds)),
        "UniformSampler.sample, with log q": lambda: uniform.sample(None, num, rng=next(seeds)),
    }.items():
        # in turn, choice clears the caches before each of our calls: that is the lower ratio
        cold, numpys = pair(call, lambda: rng.choice(n, num, p=q), 15)
        for _ in range(50):  # in turn with itself alone, as in a loop of draws
            call()
        warm, _ = pair(call, call, 15)
        print(
            f"n={n:.0e}, {num} draws, {name}: {1e9 * cold / num:.1f} ns a draw, "
            f"{numpys / cold:.0f} times faster than Generator.choice(p=); with warm caches "
            f"{1e9 * warm / num:.1f} ns, {numpys / warm:.0f} times"
        )


def bench_batch(n=1_000_000, batch=128, m=100):
    sampler, labels, seeds = LogUniformSampler(n), np.arange(batch), count()
    rng, h, q = np.random.default_rng(0), np.empty((batch, 1)), sampler.probs(None)[0]
    ours, numpys = pair(
        lambda: sampler.sample(h, m, exclude=labels, rng=next(seeds)),
        lambda: rng.choice(n, batch * m, p=q),
    )
    print(
        f"n={n:.0e}, {batch} x {m} draws that exclude a label each: {1e6 * ours:.0f} us, "
        f"{numpys / ours:.0f} times faster than as many that do not of Generator.choice(p=)"
    )


def bench_call():
    sampler, rng = WeightedSampler([1.0, 2.0]), np.random.default_rng(0)
    ours, numpys = pair(
        lambda: sampler.sample(None, 1, rng=0), lambda: rng.choice(2, 1, p=[0.3, 0.7]), 999
    )
    print(f"n=2, one draw: {1e6 * ours:.0f} us, {ours / numpys:.1f} times as long as choice(p=)")


def bench_without_replacement(n, batch=32, m=100):
    sampler, seeds = LogUniformSampler(n, replace=False), count()
    rng, h, labels = np.random.default_rng(0), np.empty((batch, 1)), np.arange(batch)
    q = sampler.probs(None)[0]
    for exclude in (None, labels):
        start = time.perf_counter()
        sampler.sample(h, m, exclude=exclude, rng=0)
        first = time.perf_counter() - start
        ours, numpys = pair(
            lambda exclude=exclude: sampler.sample(h, m, exclude=exclude, rng=next(seeds)),
            lambda: rng.choice(n, m, replace=False, p=q),
        )
        what = "nothing" if exclude is None else "a label each"
        print(
            f"n={n:.0e}, {batch} x {m} distinct draws that exclude {what}, with inclusion "
            f"probabilities: {1e3 * ours / batch:.2f} ms an example (first call {first:.1f} s), "
            f"{batch * numpys / ours:.0f} times faster than Generator.choice(p=) without them"
        )


if __name__ == "__main__":
    bench_draws(10_000)
    bench_draws(1_000_000)
    bench_batch()
    bench_call()
    bench_without_replacement(100_000)
    bench_without_replacement(1_000_000)
