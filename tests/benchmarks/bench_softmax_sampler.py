"""Speed of the exact softmax sampler as ratios against PyTorch in the same run.

``python tests/benchmarks/bench_softmax_sampler.py`` prints one line each; medians of interleaved
runs after a warm-up. PyTorch holds all logits: matmul, softmax, cumsum, searchsorted.
"""

import tracemalloc

import numpy as np
from bench_bias import pair

from samplesoft.samplers import SoftmaxSampler

try:
    import torch
except ImportError:
    torch = None


def torch_draw(class_embeddings, h, num_sampled):
    weights, queries = torch.from_numpy(class_embeddings), torch.from_numpy(h)

    def draw():
        cdf = torch.softmax(queries @ weights.T, 1).cumsum(1)
        return torch.searchsorted(cdf, torch.rand(len(h), num_sampled, dtype=cdf.dtype))

    return draw


def bench(num_classes, batch, num_sampled, dtype, dim=64):
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((num_classes, dim)) / dim**0.5).astype(dtype)
    h = rng.standard_normal((batch, dim)).astype(dtype)
    sampler = SoftmaxSampler(rows)

    def ours():
        return sampler.sample(h, num_sampled, rng=0)

    peer = ours if torch is None else torch_draw(rows, h, num_sampled)
    seconds, theirs = pair(ours, peer, repeats=7)
    tracemalloc.start()
    ours()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    share = peak / (num_classes * batch * np.dtype(dtype).itemsize)
    ratio = "" if torch is None else f", {theirs / seconds:.1f} times PyTorch"
    print(
        f"SoftmaxSampler n={num_classes:,} B={batch} m={num_sampled} d={dim} {np.dtype(dtype)}: "
        f"{1e3 * seconds:.1f} ms, {share:.2f} of the memory of all logits{ratio}"
    )


if __name__ == "__main__":
    bench(500_000, 10, 10, np.float32)
    bench(500_000, 10, 100, np.float32)
    bench(500_000, 10, 10, np.float64)
    bench(100_000, 256, 100, np.float32)
    bench(500_000, 1, 10, np.float32)
