"""Bias and time of the cluster sampler beside RF-softmax and uniform draws in the same run.

``python tests/benchmarks/bench_clusters.py`` embeds the identifiers in the Python files of the
installed packages (PPMI and SVD, d = 64, float32), or in those of a folder that it is given, and
prints a table: the exact bias, and the medians of interleaved runs after a warm-up.

``python tests/benchmarks/bench_clusters.py --figures`` times draws from mixtures of Gaussians,
each with its ratio: to the exact softmax, to 10,000 classes, and with ``--against`` and a folder
that has another version of the package, to that, by turns in a process of its own. Milliseconds on
the clock, and of the processor, which other work on the machine does not count for.
"""

import argparse
import json
import os
import re
import subprocess
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
CASES = (1, 5), (16, M), (128, M), (1024, M)  # contexts, draws
ROUNDS = 9


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


def mixture(num_classes, dim=64):
    """Return class vectors of norm 1 in clusters of clusters, contexts near some, and these."""
    rng = np.random.default_rng(0)
    wide, narrow = int(num_classes**0.4), num_classes // 30
    centers = rng.standard_normal((wide, dim), dtype=np.float32)
    centers = centers[rng.integers(0, wide, narrow)]
    centers += 0.6 * rng.standard_normal((narrow, dim), dtype=np.float32)
    rows = centers[rng.integers(0, narrow, num_classes)]
    for part in np.array_split(rows, max(1, num_classes >> 18)):
        part += 0.4 * rng.standard_normal(part.shape, dtype=np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    labels = rng.integers(0, num_classes, 1024)
    h = rows[labels] + 0.12 * rng.standard_normal((1024, dim), dtype=np.float32)
    return rows, h / np.linalg.norm(h, axis=1, keepdims=True), labels


def work(num_classes):
    """Draw as often as a line of the input says, and print the least times on the clock and not."""
    rows, h, labels = mixture(num_classes)
    made = {"clusters": ClusterSampler(rows, tau=TAU, rng=0)}
    if num_classes <= 100_000:
        made["softmax"] = SoftmaxSampler(rows, tau=TAU)
        q = made["clusters"].probs(h[:CONTEXTS], exclude=labels[:CONTEXTS])
        logits = TAU * h[:CONTEXTS].astype(float) @ rows.T.astype(float)
        found = np.abs(exact_bias(logits, labels[:CONTEXTS], q, M).bias).sum(axis=1).mean()
        print(json.dumps(float(found)), flush=True)
    else:
        print("null", flush=True)
    for line in sys.stdin:
        name, batch, m, times = json.loads(line)
        sampler, runs = made[name], []
        for k in range(times):
            start = time.perf_counter(), time.process_time()
            sampler.sample(h[:batch], m, exclude=labels[:batch], rng=k)
            runs.append([time.perf_counter() - start[0], time.process_time() - start[1]])
        print(json.dumps((1e3 * np.median(runs, axis=0)).tolist()), flush=True)


def worker(num_classes, folder):
    """Start a process that draws with the package in a folder, and return it and its bias."""
    command = [sys.executable, __file__, "--work", str(num_classes)]
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(folder)},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    return process, json.loads(process.stdout.readline())


def ask(process, *what):
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def figures(against, most):
    here, smallest = Path(__file__).parents[2], {}
    for num_classes in (n for n in (10_000, 100_000, 1_000_000, 10_000_000) if n <= most):
        folders = [here, *against]
        workers, biases = zip(*(worker(num_classes, folder) for folder in folders), strict=True)
        print(f"n = {num_classes:,}; L1 bias {', '.join(map(str, biases))}")
        for batch, m in CASES:
            asked = "clusters", batch, m, 200 if batch == 1 else 5
            rounds = np.array([[ask(w, *asked) for w in workers] for _ in range(ROUNDS)])
            clock, processor = np.median(rounds, axis=0).T
            line = f"  B = {batch:4}, m = {m:3}: {clock[0]:8.3f} ms ({processor[0]:8.3f})"
            for i, folder in enumerate(against, start=1):
                ratios = np.median(rounds[:, 0] / rounds[:, i], axis=0)
                line += f"; {ratios[0]:.2f} ({ratios[1]:.2f}) of {folder}, {clock[i]:.3f} ms"
            grown = smallest.setdefault((batch, m), processor[0])
            line += f"; {processor[0] / grown:.2f} of the processor time for 10,000 classes"
            if num_classes == 100_000 and batch > 16:
                exact = ask(workers[0], "softmax", batch, m, 5)
                line += f"; 1/{exact[0] / clock[0]:.1f} of the exact softmax, {exact[0]:.0f} ms"
            print(line, flush=True)
        for each in workers:
            each.communicate()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=Path(np.__file__).parents[1])
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--against", type=Path, action="append", default=[])
    parser.add_argument("--most", type=int, default=1_000_000, help="classes")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
    elif options.figures:
        figures(options.against, options.most)
    else:
        found = tokens_of(options.folder)
        for size in (10_000, 100_000):
            bench(found, size)


if __name__ == "__main__":
    main()
