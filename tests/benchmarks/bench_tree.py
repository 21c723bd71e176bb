"""What the kernel tree costs: draws against updates, growth with n, and memory.

Run as ``python tests/benchmarks/bench_tree.py``; ``--large`` adds ten million classes, which take
two minutes and 8 GB. Unit vectors, d = 64, float32, 1,000 random frequencies, softmax leaves.
"""

import argparse
import resource
from time import perf_counter

import numpy as np

from samplesoft._memory import human_bytes
from samplesoft.samplers import RFSoftmaxSampler


def unit(rng, rows, dim=64):
    vectors = rng.standard_normal((rows, dim), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def median(work, repeats):
    work()
    work()
    times = np.empty(repeats)
    for k in range(repeats):
        start = perf_counter()
        work()
        times[k] = perf_counter() - start
    return np.median(times)


def measure(num_classes):
    rng = np.random.default_rng(0)
    classes, h = unit(rng, num_classes), unit(rng, 10)
    start = perf_counter()
    sampler = RFSoftmaxSampler(classes, num_features=1000, tau=11.1, rng=0)
    built = perf_counter() - start
    ids, moved = rng.integers(0, num_classes, 1000), unit(rng, 1000)
    seeds = iter(range(10**6))
    draw = median(lambda: sampler.sample(h, 10, rng=next(seeds)), 101)
    excluded = median(lambda: sampler.sample(h, 10, exclude=ids[:10], rng=next(seeds)), 101)
    update = median(lambda: sampler.update(ids, moved), 15)
    many = unit(rng, 1000)
    large = median(lambda: sampler.sample(many, 100, rng=next(seeds)), 7)
    print(
        f"n = {num_classes:>10,}: leaves of {sampler.tree.leaf_size}, built in {built:.1f} s, "
        f"{human_bytes(sampler.tree.nbytes)} with the class vectors\n"
        f"    draw, batch 10, m = 10          {1e3 * draw:8.3f} ms\n"
        f"    ... with the label excluded     {1e3 * excluded:8.3f} ms\n"
        f"    draw, batch 1,000, m = 100      {1e3 * large:8.1f} ms\n"
        f"    update of 1,000 classes         {1e3 * update:8.3f} ms: {update / draw:.1f} draws\n"
        f"    largest memory of the process so far {human_bytes(peak())}"
    )
    return draw


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="also ten million classes")
    args = parser.parse_args()
    sizes = [10_000, 500_000] + [10_000_000] * args.large
    draws = [measure(n) for n in sizes]
    print(f"n = {sizes[-1]:,} costs {draws[-1] / draws[0]:.1f} times n = {sizes[0]:,}")


if __name__ == "__main__":
    main()
