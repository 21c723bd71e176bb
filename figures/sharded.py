"""The time of a step of a sharded layer, compared with a layer in memory, and the data it sends.

Writes ``sharded.csv`` beside this script. Batches have 1,024 contexts of dimension 64, with 100
draws, plain gradient descent and float32. Draws are uniform and shared by the batch, or by clusters
and separate for each example. Each worker has one thread and the layer in memory has two, so both
use the same two cores up to two workers; four workers share the two cores::

    python figures/sharded.py

It takes about fifteen minutes and 10 GB. ``seconds`` is the median of steps without the first two,
and ``ratio`` is relative to the layer in memory in the same run.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before Numba is imported
    os.environ.setdefault("NUMBA_NUM_THREADS", "2")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "2")

import numpy as np
from distributed import Client, LocalCluster
from tables import write_csv
from tqdm import tqdm

from samplesoft.distributed.layer import ShardedSoftmaxLayer
from samplesoft.losses import SampledSoftmaxLoss
from samplesoft.models import SoftmaxLayer
from samplesoft.optimizers import make_optimizer
from samplesoft.samplers import SamplerInputs, make_sampler

DIM, BATCH, DRAWS = 64, 1024, 100
SAMPLERS = {"uniform": True, "clusters": False}  # and whether one set serves a batch
FIELDS = (
    "classes",
    "sampler",
    "shards",  # 0 for the layer in memory
    "seconds",
    "ratio",
    "round_trips",  # of a step
    "mb_sent",
    "mb_received",
    "start_seconds",  # to make the layer
)


def vectors(n: int) -> np.ndarray:
    """Return class vectors around a few hundred centres, as learned ones are."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((500, DIM), np.float32)
    rows = 0.5 * rng.standard_normal((n, DIM), np.float32)
    rows += centres[rng.integers(500, size=n)]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


@contextmanager
def made(rows: Any, sampler: str, shards: int) -> Iterator[tuple[Any, Any]]:
    """Give a layer and the function that updates it."""
    shared = SAMPLERS[sampler]
    loss = SampledSoftmaxLoss(tau=8.0, scheme="masked" if shared else "negatives")
    sgd = make_optimizer("sgd", 0.1)
    if shards == 0:
        drawer = make_sampler(sampler, SamplerInputs(rows, tau=8.0, rng=0))
        layer = SoftmaxLayer(rows.copy(), loss, drawer, DRAWS, shared=shared)

        def update(gradients: Any) -> None:
            sgd.step(layer.parameters, gradients)
            layer.update(gradients["class_embeddings"].ids)

        yield layer, update
        return
    with (
        LocalCluster(
            n_workers=shards, threads_per_worker=1, memory_limit="9GB", dashboard_address=None
        ) as cluster,
        Client(cluster, direct_to_workers=True) as client,
    ):
        sharded = ShardedSoftmaxLayer(
            rows, loss, sampler, DRAWS, optimizer=sgd, workers=client, shared=shared, rng=0
        )
        sharded.shards.call_all("refresh", [()] * shards)  # all are there
        yield sharded, lambda _: sharded.update()


def measure(rows: Any, sampler: str, shards: int, steps: int) -> dict[str, Any]:
    """Return a row of the table, without the ratio."""
    rng = np.random.default_rng(1)
    started = time.perf_counter()
    with made(rows, sampler, shards) as (layer, update):
        start = time.perf_counter() - started
        seconds = []
        of = getattr(layer, "shards", None)
        names = "round_trips", "bytes_sent", "bytes_received"
        before = np.zeros(3)
        for step in range(steps):
            labels = rng.integers(len(rows), size=BATCH)
            h = rows[labels] + 0.1 * rng.standard_normal((BATCH, DIM), np.float32)
            if of is not None:
                before = np.array([getattr(of, name) for name in names], float)
            started = time.perf_counter()
            _, cache = layer.forward(h, labels, rng=step)
            _, gradients = layer.backward(cache)
            update(gradients)
            seconds.append(time.perf_counter() - started)
        after = np.zeros(3) if of is None else np.array([getattr(of, name) for name in names])
    travels = after - before
    values = len(rows), sampler, shards, float(np.median(seconds[2:])), 0.0, int(travels[0])
    return dict(zip(FIELDS, (*values, travels[1] / 1e6, travels[2] / 1e6, start), strict=True))


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--steps", type=int, default=22)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"))
    args = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"
    found: list[dict[str, Any]] = []
    alone = 0.0
    for n in args.classes:
        rows = vectors(n)
        for sampler in SAMPLERS:
            for shards in tqdm((0, 1, 2, 4), desc=f"{n:,} classes, {sampler}"):
                row = measure(rows, sampler, shards, args.steps)
                alone = row["seconds"] if shards == 0 else alone
                row["ratio"] = row["seconds"] / alone
                found.append(row)
                write_csv(args.out, found, FIELDS, f"measured on {machine}", digits=4)


if __name__ == "__main__":
    main()
