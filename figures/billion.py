"""The exact bias of classes that do not fit in memory: the time of a class in memory and in chunks.

Writes ``billion.csv`` beside this script. Logits are normal with standard deviation 2, and
generated again in each pass; the proposal is log-uniform, as for words by rank. The rows are arrays
in memory, the same arrays in chunks, and lazy Dask arrays on one thread and on two; the last row
has 10^9 classes::

    python figures/billion.py

It takes about ten minutes on two cores. ``seconds`` is the time for the loss bias and the L1 norm
of the bias, over all classes.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before Numba is imported
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import dask
import dask.array as da
import numpy as np
from tables import write_csv

from samplesoft import exact_bias
from samplesoft.bias import exact_bias_of_chunks

DRAWS, LABEL, CHUNK = 100, 5, 1 << 21
FIELDS = ("classes", "way", "workers", "seconds", "ns_per_class", "memory_gb", "loss_bias", "l1")


def problem(n: int) -> tuple[Any, Any]:
    """Return lazy logits and a lazy proposal of n classes."""
    logits = 2.0 * da.random.default_rng(0).normal(size=n, chunks=CHUNK)
    ranks = da.arange(n, chunks=CHUNK, dtype=float)
    return logits, da.log1p(1.0 / (ranks + 1.0)) / np.log(n + 1.0)


def in_memory(logits: Any, q: Any) -> tuple[float, float]:
    """Return the loss bias and the L1 norm of the bias."""
    found = exact_bias(logits, LABEL, q, DRAWS)
    return found.loss_bias, float(abs(found.bias).sum())


def in_chunks(logits: Any, q: Any) -> tuple[float, float]:
    """Return the same by chunks of arrays."""
    parts = [slice(start, start + CHUNK) for start in range(0, len(q), CHUNK)]
    found = exact_bias_of_chunks(lambda: ((logits[i], q[i]) for i in parts), LABEL, DRAWS)
    norms = [np.abs(found.bias(i.start, logits[i], q[i])).sum() for i in parts]
    return found.loss_bias, float(np.sum(norms))


def over_dask(logits: Any, q: Any) -> tuple[float, float]:
    """Return the same by Dask."""
    found = exact_bias(logits, LABEL, q, DRAWS)
    return found.loss_bias, float(abs(found.bias).sum().compute())


def measure(way: Any, n: int, workers: int, *arrays: Any) -> dict[str, Any]:
    """Return a row of the table."""
    with dask.config.set(scheduler="threads", num_workers=workers):
        started = time.perf_counter()
        loss_bias, norm = way(*arrays)
        seconds = time.perf_counter() - started
    # in kB on Linux, in bytes on macOS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak /= 1e9 if sys.platform == "darwin" else 1e6
    values = n, way.__name__, workers, f"{seconds:.2f}", f"{seconds / n * 1e9:.0f}", f"{peak:.2f}"
    return dict(zip(FIELDS, (*values, f"{loss_bias:.12g}", f"{norm:.12g}"), strict=True))


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=float, default=1e9, help="classes of the last row")
    most = int(parser.parse_args().most)
    exact_bias(*(x.compute() for x in problem(100_000)[:1]), LABEL, np.full(100_000, 1e-5), DRAWS)
    rows = []
    for way, n, workers in (
        (over_dask, most, 2),  # first, for the peak of memory is that of the process
        (over_dask, most // 10, 2),
        (over_dask, most // 10, 1),
        (in_chunks, most // 100, 1),
        (in_memory, most // 100, 1),
    ):
        arrays = problem(n)
        if way is not over_dask:
            arrays = tuple(array.compute() for array in arrays)
        rows.insert(0, measure(way, n, workers, *arrays))
        print(rows[0], flush=True)
    note = f"{os.cpu_count()} cores, {platform.machine()}; {DRAWS} draws, chunks of {CHUNK} classes"
    write_csv(Path(__file__).with_suffix(".csv"), rows, FIELDS, note)


if __name__ == "__main__":
    main()
