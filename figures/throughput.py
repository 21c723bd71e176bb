"""The time of a training step by batch and number of classes, for the samplers.

Writes ``throughput.csv`` and ``throughput.png`` beside this script: the time of a whole step of the
softmax layer (draws, loss, gradients, Adagrad on the rows with a gradient, and the update of the
sampler), d = 64, float32. Losses have m = 100 draws for each example, or one set of m = 1,000 draws
for the batch. Class vectors are unit vectors around a thousand centers, and contexts are near the
vectors of their labels. The committed files took a quarter of an hour on 2 cores, with 16 GB free::

    python figures/throughput.py

``--num-classes 1e4,1e5`` sets other numbers of classes.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tables import write_csv
from tqdm import tqdm

from samplesoft._files import atomic_write
from samplesoft._jit import num_threads
from samplesoft.losses import make_loss
from samplesoft.models import SoftmaxLayer
from samplesoft.optimizers import make_optimizer
from samplesoft.samplers import (
    ClusterSampler,
    RFSoftmaxSampler,
    Sampler,
    SoftmaxSampler,
    UniformSampler,
)

DIM, TAU, NU, NUM_FEATURES = 64, 10.0, 4.0, 256
EACH, SHARED = 100, 1000  # draws of an example, and of a batch
TOO_LONG = 12.0  # seconds of a step; larger sizes are left out
ROUNDS = 5  # of which the median counts, in which the batches take turns
FIELDS = ("num_classes", "batch", "method", "num_sampled", "milliseconds", "building_s", "memory")
COLOURS = {"FULL": "#000000", "EXP": "#CC79A7", "RFF": "#D55E00", "CLUSTERS": "#0072B2"}
COLOURS["UNIFORM"] = "#999999"
SLOW: set[tuple[str, bool]] = set()  # methods that took too long with fewer classes
Array = np.ndarray[Any, np.dtype[Any]]


def main() -> None:
    """Read the command line, measure, write both files and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--num-classes", type=numbers, default=numbers("1e4,1e5,1e6,1e7"))
    parser.add_argument("--batches", type=numbers, default=[10, 128, 1024, 4096])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    args = parser.parse_args()
    rows = [row for n in args.num_classes for row in measure(n, args.batches)]
    settings = (
        f"d = {DIM}, float32, Adagrad, m = {EACH} for each example or {SHARED:,} shared, RFF with "
        f"D = {NUM_FEATURES}, {num_threads()} threads, medians of {ROUNDS} steps; building in "
        "seconds, memory of the sampler in sizes of the class vectors"
    )
    write_csv(args.output / "throughput.csv", rows, FIELDS, settings, digits=3)
    with atomic_write(args.output / "throughput.png") as path:
        draw(path, rows, settings)
    print(as_table(rows))


def numbers(text: str) -> list[int]:
    """Return the integers of an argument such as 1e4,1e5."""
    return [int(float(part)) for part in text.split(",")]


def methods(rows: Array) -> Iterator[tuple[str, bool, Callable[[], Sampler | None]]]:
    """Yield the name of each method, whether its set is shared, and how its sampler is made."""
    yield "FULL", False, lambda: None
    yield "EXP", False, lambda: SoftmaxSampler(rows, tau=TAU)
    options = {"nu": NU, "num_features": NUM_FEATURES, "tau": TAU, "leaf_size": 64, "rng": 0}
    for shared in (False, True):
        yield "RFF", shared, lambda: RFSoftmaxSampler(rows, **options)  # type: ignore[arg-type]
        yield "CLUSTERS", shared, lambda: ClusterSampler(rows, tau=TAU, rng=0)
    yield "UNIFORM", True, lambda: UniformSampler(len(rows))


def made_vectors(num_classes: int) -> Array:
    """Return unit vectors about a thousand centers."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((num_classes, DIM), np.float32)
    rows += 1.5 * rng.standard_normal((1000, DIM), np.float32)[rng.integers(0, 1000, num_classes)]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def measure(num_classes: int, batches: list[int]) -> Iterator[dict[str, Any]]:
    """Yield a row for each method and batch."""
    rows = made_vectors(num_classes)
    for name, shared, make in tqdm(list(methods(rows)), f"n = {num_classes:,}"):
        if (name, shared) in SLOW:
            continue
        start = perf_counter()
        sampler = make()
        building = perf_counter() - start
        size = getattr(sampler, "nbytes", None) or getattr(
            getattr(sampler, "tree", None), "nbytes", 0
        )
        m = SHARED if shared else EACH
        times = step_times(rows, sampler, m, shared, batches)
        for batch, seconds in times.items():
            yield {
                "num_classes": num_classes,
                "batch": batch,
                "method": f"{name}, shared" if shared else name,
                "num_sampled": "" if sampler is None else m,
                "milliseconds": 1e3 * float(np.median(seconds)),
                "building_s": building,
                "memory": size / rows.nbytes,
            }
        if not times or max(times) < max(batches):
            SLOW.add((name, shared))  # more classes would take longer still
        del sampler
        gc.collect()


def step_times(
    rows: Array, sampler: Sampler | None, m: int, shared: bool, batches: list[int]
) -> dict[int, list[float]]:
    """Return the seconds of steps with batches of some sizes; without those that take too long."""
    loss = make_loss("full" if sampler is None else "sampled-masked", tau=TAU, normalize=True)
    layer = SoftmaxLayer(rows, loss, sampler, None if sampler is None else m, shared=shared)
    optimizer, rng = make_optimizer("adagrad", 0.01), np.random.default_rng(1)
    times: dict[int, list[float]] = {}
    for round_ in range(ROUNDS + 1):
        for batch in sorted(batches):
            if times and batch > max(times) and round_ > 0:
                continue
            labels = rng.integers(0, len(rows), batch)
            h = rows[labels] + 0.15 * rng.standard_normal((batch, DIM), np.float32)
            start = perf_counter()
            _, cache = layer.forward(h, labels, rng=round_)
            _, gradients = layer.backward(cache)
            optimizer.step(layer.parameters, gradients)
            layer.update(getattr(gradients["class_embeddings"], "ids", None))
            took = perf_counter() - start
            if round_ == 0 and took > TOO_LONG:
                break
            times.setdefault(batch, [])
            if round_ > 0:
                times[batch].append(took)
    return times


def as_table(rows: list[dict[str, Any]]) -> str:
    """Return milliseconds, a line for each method and number of classes."""
    batches = sorted({row["batch"] for row in rows})
    lines = ["n           method            " + "".join(f"B = {b:<7,}" for b in batches) + " build"]
    for n, method in dict.fromkeys((row["num_classes"], row["method"]) for row in rows):
        of = {r["batch"]: r for r in rows if (r["num_classes"], r["method"]) == (n, method)}
        cells = (f"{of[b]['milliseconds']:<11.1f}" if b in of else " " * 11 for b in batches)
        building = next(iter(of.values()))["building_s"]
        lines.append(f"{n:<11,} {method:<17} {''.join(cells)} {building:.1f} s")
    return "\n".join(lines)


def draw(path: Path, rows: list[dict[str, Any]], settings: str) -> None:
    """Draw time against batch, a panel for each number of classes."""
    sizes = sorted({row["num_classes"] for row in rows})
    figure = Figure(figsize=(3.1 * len(sizes) + 2.0, 4.6), dpi=100)
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axes, n in zip(panels, sizes, strict=True):
        for method in dict.fromkeys(row["method"] for row in rows):
            points = [r for r in rows if (r["num_classes"], r["method"]) == (n, method)]
            name, *shared = method.split(", ")
            style = {"color": COLOURS[name], "linestyle": "--" if shared else "-", "marker": "o"}
            x, y = ([r[key] for r in points] for key in ("batch", "milliseconds"))
            draws = f", m = {SHARED:,}" if shared else "" if name == "FULL" else f", m = {EACH}"
            axes.loglog(x, y, markersize=3.5, label=method + draws, **style)
        axes.set_title(f"n = {n:,} classes", fontsize=10)
        axes.set_xlabel("batch (examples)")
        axes.grid(True, which="major", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("step of training (milliseconds)")
    panels[-1].legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    note = settings.partition("; building")[0]  # the rest is of columns of the table
    figure.text(0.01, 0.015, note, fontsize=8, color="0.3")
    figure.tight_layout(rect=(0.0, 0.04, 1.0, 1.0))
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    main()
