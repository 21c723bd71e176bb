"""Draws of every registered sampler: by chi-square, against oracles, at 1, 2 and 8 threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import numba
import numpy as np
from oracles.naive_samplers import ORACLES, chi_square

from samplesoft.losses import LOSSES, SampledLoss, make_loss
from samplesoft.samplers import SAMPLERS, SamplerInputs, make_sampler

FIELDS = ("sampler", "tests", "smallest_p", "corrected_p", "worst_error", "off")
FIELDS += ("thread_tests", "threads_differ", "wrong_twins", "twins_found")
DRAWS = 200_000
DIM = 8
THREADS = (1, 2, 8)
TOLERANCE = {"float64": 1e-8, "float32": 1e-2}  # relative, and of a class that is not lost in sums
SHARED = [
    name
    for name, spec in LOSSES.items()
    if spec.shares_draws and spec.make.draw is SampledLoss.draw
]


@dataclass
class Found:
    """What has been found of one sampler."""

    p_values: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    off: int = 0
    same_bits: list[bool] = field(default_factory=list)
    twins: list[float] = field(default_factory=list)


def run(seconds: float, seed: int) -> Iterator[dict[str, object]]:
    """Yield a row for each sampler; a p is corrected for the number of all tests by Bonferroni.

    A test is of fresh or of updated class vectors, in float32 or float64, without a class or with
    one excluded, or of one set for three contexts. Its draws are counted against `probs`, and these
    against the oracle. The wrong twin has probabilities of which every second is a tenth too large;
    it is found where its p is below a thousandth of that which any test may have.
    """
    found = {name: Found() for name in SAMPLERS}
    rng, end = np.random.default_rng(seed), time.monotonic() + seconds
    for name in cycle(SAMPLERS):
        if time.monotonic() > end:
            break
        _test(name, rng, found[name])
        if rng.random() < 0.2:
            found[name].same_bits.append(_same_at_all_threads(name, rng))
    total = sum(len(one.p_values) for one in found.values())
    for name, one in found.items():
        least = min(one.p_values, default=1.0)
        yield {
            "sampler": name,
            "tests": len(one.p_values),
            "smallest_p": f"{least:.1e}",
            "corrected_p": f"{min(1.0, total * least):.2g}",
            "worst_error": f"{max(one.errors, default=0.0):.1e}",
            "off": one.off,
            "thread_tests": len(one.same_bits),
            "threads_differ": one.same_bits.count(False),
            "wrong_twins": len(one.twins),
            "twins_found": sum(p < 1e-5 / total for p in one.twins),
        }


def _test(name: str, rng: np.random.Generator, found: Found) -> None:
    n, dtype = int(rng.integers(20, 60)), str(rng.choice(["float32", "float64"]))
    given, kind = _inputs(n, dtype, rng), str(rng.choice(["plain", "excluded", "shared"]))
    sampler = make_sampler(name, given)
    for _ in range(rng.integers(0, 4)):
        ids = rng.choice(n, 5, replace=False)
        rows = given.class_embeddings.copy()
        rows[ids] = _unit_rows(5, dtype, rng)
        sampler.update(ids, rows[ids])
        given = replace(given, class_embeddings=rows)
    h = _unit_rows(3 if kind == "shared" else 1, dtype, rng)
    label = int(rng.integers(n)) if kind == "excluded" else None
    exclude = None if label is None else [label]
    probs = sampler.probs(h, exclude=exclude)
    wanted = np.array(
        [[float(p) for p in ORACLES[name](sampler, x, given, label)] for x in h], np.float64
    )
    heavy = wanted > 1e-6
    error = float(np.abs(probs[heavy] / wanted[heavy] - 1.0).max())
    if dtype == "float64":
        found.errors.append(error)
    found.off += error > TOLERANCE[dtype]
    draw = sampler.sample(
        h, DRAWS, exclude=exclude, shared=kind == "shared", rng=int(rng.integers(2**31))
    )
    counts, q = np.bincount(draw.ids[0], minlength=n), probs.mean(axis=0)
    found.p_values.append(chi_square(counts, q))
    wrong = q * np.where(np.arange(n) % 2, 1.0, 1.1)
    if 0.2 < q[1::2].sum() < 0.8:  # else the twin is nearly the same
        found.twins.append(chi_square(counts, wrong / wrong.sum()))


def _same_at_all_threads(name: str, rng: np.random.Generator) -> bool:
    """Return whether draws, a loss and its gradients have the same bits at any of `THREADS`."""
    n, dtype, before = 3000, "float32", numba.get_num_threads()
    given, h, labels = _inputs(n, dtype, rng), _unit_rows(64, dtype, rng), rng.integers(n, size=64)
    loss, seed, results = make_loss(str(rng.choice(SHARED)), tau=3.0), int(rng.integers(2**31)), []
    for threads in THREADS:
        numba.set_num_threads(threads)
        sampler = make_sampler(name, given)
        draw = sampler.sample(h, 200, rng=seed)
        m, count = draw.ids.shape[1], None
        if loss.needs_label_count:
            count = sampler.log_expected_count(h, labels[:, None], m)[:, 0]
            if not np.isfinite(count).all():  # a label that is no candidate
                count = np.full(len(h), -3.0)
        value, cache = loss.forward(h, given.class_embeddings, labels, draw, label_log_count=count)
        gradients = loss.backward(cache)
        results.append([draw.ids, draw.log_q, np.float64(value), gradients.dh, *gradients.dW])
    numba.set_num_threads(before)
    first = [np.asarray(part).tobytes() for part in results[0]]
    return all([np.asarray(part).tobytes() for part in result] == first for result in results)


def _inputs(n: int, dtype: str, rng: np.random.Generator) -> SamplerInputs:
    counts = rng.integers(1, 1000, n)
    options: dict[str, Any] = {"tau": 3.0, "nu": 2.0, "num_features": 32, "power": 0.75}
    rows = _unit_rows(n, dtype, rng)
    return SamplerInputs(rows, counts=counts, rng=int(rng.integers(2**31)), **options)


def _unit_rows(num: int, dtype: str, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    rows = rng.normal(size=(num, DIM))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(dtype)
