"""Bias and time of the cluster sampler beside RF-softmax and uniform draws in the same run.

``python tests/benchmarks/bench_clusters.py`` embeds the identifiers in the Python files of the
installed packages (PPMI and SVD, d = 64, float32), or in those of a folder that it is given, and
prints a table: the exact bias, and the medians of interleaved runs after a warm-up.
"""

import re
import sys
import time
from pathlib import Path

import numpy as np

from samplesoft import exact_bias
from samplesoft.data import examples_from_corpus
from samplesoft.samplers import (
    ClusterSampler,
    RFSoftmaxSampler,
    SoftmaxSampler,
    UniformSampler,
)

TOKEN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[^\sA-Za-z_0-9]")
MOST = 8_000_000  # tokens
TAU, M = 11.1, 100
CONTEXTS = 32  # whose bias is computed


def tokens_of(folder):
    tokens = []
    for path in sorted(Path(folder).rglob("*.py")):
        tokens += TOKEN.findall(path.read_text(encoding="utf-8", errors="replace"))
        if len(tokens) > MOST:
            break
    return tokens


def samplers(rows):
    yield "uniform", lambda: UniformSampler(len(rows))
    yield "clusters", lambda: ClusterSampler(rows, tau=TAU, rng=0)
    for features in (256, 1024):
        yield (
            f"RFF, D = {features}",
            lambda features=features: RFSoftmaxSampler(
                rows, tau=TAU, num_features=features, leaf_size=64, rng=0
            ),
        )
    yield "softmax", lambda: SoftmaxSampler(rows, tau=TAU)


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bench(tokens, num_classes):
    examples = examples_from_corpus(tokens, vocabulary_size=num_classes, num_examples=1024, rng=0)
    rows = examples.class_embeddings.astype(np.float32)
    h, labels = examples.h.astype(np.float32), examples.labels
    some, own = h[:CONTEXTS], labels[:CONTEXTS]
    logits = TAU * some.astype(float) @ rows.T.astype(float)
    made, building = {}, {}
    for name, make in samplers(rows):
        start = time.perf_counter()
        made[name] = make()
        building[name] = time.perf_counter() - start
    times = {}
    for batch in (128, 1024):
        for sampler in made.values():
            sampler.sample(h[:batch], M, exclude=labels[:batch], rng=0)
        for k in range(5):
            for name, sampler in made.items():
                work = lambda: sampler.sample(h[:batch], M, exclude=labels[:batch], rng=k)  # noqa
                times.setdefault((name, batch), []).append(seconds(work))
    moved = np.unique(np.random.default_rng(0).integers(0, len(rows), 20_000))
    print(f"n = {len(rows):,}, d = {rows.shape[1]}, m = {M}, tau = {TAU}")
    print("sampler         L1 bias   B = 128   B = 1024     update  building  of the vectors")
    for name, sampler in made.items():
        q = sampler.probs(some, exclude=own)
        bias = np.abs(exact_bias(logits, own, q, M).bias).sum(axis=1).mean()
        update = seconds(lambda: sampler.update(moved, rows[moved]))  # noqa
        size = getattr(sampler, "nbytes", getattr(getattr(sampler, "tree", None), "nbytes", 0))
        few, many = (1e3 * np.median(times[name, batch]) for batch in (128, 1024))
        print(
            f"{name:14} {bias:8.5f} {few:6.1f} ms {many:7.1f} ms {1e3 * update:7.1f} ms "
            f"{building[name]:7.1f} s {size / rows.nbytes:9.2f}"
        )


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else Path(np.__file__).parents[1]
    found = tokens_of(folder)
    for size in (10_000, 100_000):
        bench(found, size)
