"""Kernel trees after ten million updates, beside new ones of the same classes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from samplesoft.samplers import (
    KernelSampler,
    KernelTree,
    PositiveSampler,
    QuadraticSampler,
    RFSoftmaxSampler,
)

FIELDS = ["map", "type", "updates", "of", "drift", "l1_worst", "l1_at_end", "l1_without_renewal"]
UPDATES = 10_000_000
N, DIM, BATCH = 1000, 8, 400  # classes, numbers in one, and how many are updated together
LOOKS = 20  # at the probabilities, on the way

MAPS: dict[str, Callable[[Any], Any]] = {
    "absolute": lambda W: KernelSampler(W, np.abs, leaf_size=4),
    "signed": lambda W: KernelSampler(W, np.asarray, leaf_size=4, floor=0.1),
    "quadratic": lambda W: QuadraticSampler(W, leaf_size=4),
    "rff": lambda W: RFSoftmaxSampler(W, num_features=64, leaf_size=4, rng=0),
    "positive": lambda W: PositiveSampler(W, num_features=64, leaf_size=4, rng=0),
}
SIZES = {
    "vectors of norm 1": lambda rng: np.ones(BATCH),
    "norms of 1e-3 to 1e3": lambda rng: 10.0 ** rng.uniform(-3, 3, BATCH),
    "one of 1e15 in 100 updates": lambda rng: np.where(rng.random(BATCH) < 1e-4, 1e15, 1.0),
}


def run(seconds: float, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each map, type and sizes of vectors; short of time, with fewer updates."""
    cases = [
        (name, dtype, sizes)
        for name in MAPS
        for dtype in (np.float32, np.float64)
        for sizes in SIZES
        if sizes == "vectors of norm 1" or name in ("absolute", "signed")
    ]
    for name, dtype, sizes in cases:
        share = seconds / len(cases) / 2
        updates, drift, found = _updated(name, dtype, sizes, seed, share)
        without = KernelTree._leaves_to_renew
        try:
            KernelTree._leaves_to_renew = lambda *_: np.empty(0, np.int64)  # type: ignore[method-assign]
            _, _, twin = _updated(name, dtype, sizes, seed, share)
        finally:
            KernelTree._leaves_to_renew = without  # type: ignore[method-assign]
        yield {
            "map": name,
            "type": np.dtype(dtype).name,
            "updates": updates,
            "of": sizes,
            "drift": f"{drift:.1e}",
            "l1_worst": f"{max(found):.1e}",
            "l1_at_end": f"{found[-1]:.1e}",
            "l1_without_renewal": f"{twin[-1]:.1e}",
        }


def _updated(
    name: str, dtype: Any, sizes: str, seed: int, seconds: float
) -> tuple[int, float, list[float]]:
    """Return the number of updates, the drift, and L1 distances to new trees on the way."""
    rng = np.random.default_rng(seed)
    W, h = _unit(rng, N).astype(dtype), _unit(rng, 5).astype(dtype)
    sampler = MAPS[name](W)
    pool = [_unit(rng, BATCH) for _ in range(50)]
    found, done, start = [], 0, time.monotonic()
    while done < UPDATES and (time.monotonic() - start < seconds or not found):
        for _ in range(UPDATES // BATCH // LOOKS):
            ids = rng.choice(N, BATCH, replace=False)
            some = pool[rng.integers(50)] * SIZES[sizes](rng)[:, None]
            W[ids] = some
            sampler.update(ids, W[ids])
            done += BATCH
        found.append(float(abs(sampler.probs(h) - MAPS[name](W).probs(h)).sum(axis=1).max()))
    return done, sampler.tree.drift, found


def _unit(rng: np.random.Generator, num: int) -> Any:
    rows = rng.standard_normal((num, DIM))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
