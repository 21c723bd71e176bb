"""Right losses of all kinds, of which `check_loss` must call none wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from samplesoft import check_loss

FIELDS = (
    "scheme",
    "draws",
    "losses",
    "false_alarms",
    "first_of_them",
    "others_named",
    "mean_calls",
    "greatest_z",
)
SCHEMES = ("masked", "candidate", "candidate_masked", "negatives", "nce", "nce_masked")
SCHEMES += ("negative_sampling_kept", "negative_sampling_masked", "negative_sampling")
EXCLUDES = ("negatives", "negative_sampling")
# with replacement; distinct, corrected by the chance of a class to be in the set, or by tries
DRAWS = ("repeated", "distinct", "by tries")


def run(seconds: float, seed: int) -> Iterator[dict[str, object]]:
    """Yield a row for each scheme and kind of draws; losses are random in all else."""
    rng, end = np.random.default_rng(seed), time.monotonic() + seconds
    found: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    number = 0
    while time.monotonic() < end:
        scheme, draws = str(rng.choice(SCHEMES)), str(rng.choice(DRAWS, p=[0.5, 0.35, 0.15]))
        loss, proposal, m, options = right_loss(scheme, draws, rng)
        report = check_loss(loss, proposal, m, rng=number, **options)
        named = {name for name, fault in report.consistent if fault is None}
        wanted = scheme_of(scheme, draws)
        row = number, report.fault is not None or not named, named, report, wanted in named
        found.setdefault((scheme, draws), []).append(row)
        if row[1]:
            print(number, scheme, draws, m, options, report.verdict, flush=True)
        number += 1
    for (scheme, draws), rows in sorted(found.items()):
        alarms = [row for row in rows if row[1]]
        yield {
            "scheme": scheme,
            "draws": draws,
            "losses": len(rows),
            "false_alarms": len(alarms),
            "first_of_them": f"[{alarms[0][0]}]" if alarms else "",
            "others_named": sum(not row[4] for row in rows) - len(alarms),
            "mean_calls": round(np.mean([row[3].calls for row in rows])),
            "greatest_z": f"{max(row[3].scores[0].z for row in rows):.2f}",
        }


def scheme_of(scheme: str, draws: str) -> str:
    """Return the name that a right loss has in a report."""
    if draws == "repeated":
        return scheme
    return "distinct" if scheme == "negatives" else f"distinct_{scheme}"


def right_loss(scheme: str, draws: str, rng: np.random.Generator) -> tuple[Any, Any, int, Any]:
    """Return a loss in plain NumPy, its proposal, its number of draws, and other arguments."""
    kind, n = rng.choice(["uniform", "log-uniform", "Zipf", "random"]), int(rng.integers(6, 25))
    most = max(1, n // 2 - 1) if draws != "repeated" else 20
    m, tau = int(rng.integers(1, most + 1)), float(rng.choice([1.0, 1.0, 0.5, 20.0]))
    power, shape = rng.uniform(0.5, 1.5), rng.uniform(1.0, 4.0)

    def law(size: int) -> Any:
        ranks = np.arange(1.0, size + 1.0)
        weights = {
            "uniform": np.ones(size),
            "log-uniform": np.log1p(1.0 / ranks),
            "Zipf": ranks**-power,
            "random": np.random.default_rng(size).gamma(shape, size=size) + 1e-3,
        }[kind]
        return weights / weights.sum()

    # as a function of n the proposal has a larger problem too, which takes its time
    proposal = law if draws == "repeated" and rng.random() < 0.1 else law(n)
    shared = scheme not in EXCLUDES and rng.random() < 0.5
    with_gradient, biases = rng.random() < 0.6, rng.random() < 0.3
    dtype = np.float32 if rng.random() < 0.2 else np.float64

    def loss(c: Any, h: Any, labels: Any, m: int, seed: int, b: Any = 0.0) -> Any:
        one, q, rows = np.random.default_rng(seed), law(len(c)), np.arange(len(h))
        laws = np.tile(q, (len(h), 1))
        if scheme in EXCLUDES:
            laws[rows, labels] = 0.0
            laws /= laws.sum(axis=1, keepdims=True)
        sets = 1 if shared else len(h)
        if draws == "repeated":
            ends = np.cumsum(laws[:sets], axis=1)
            uniforms = one.random((sets, m)) * ends[:, -1:]
            ids = np.array(
                [e.searchsorted(u, "right") for e, u in zip(ends, uniforms, strict=True)]
            )
            counts = m * laws
        else:  # the first m of exponential clocks; tries beyond them are repeats
            with np.errstate(divide="ignore"):
                times = one.standard_exponential((sets, len(q))) / laws[:sets]
            ids = np.argsort(times, axis=1)[:, :m]
            if draws == "by tries":
                rung = np.take_along_axis(times, ids, axis=1)
                seen = np.cumsum(np.take_along_axis(laws[:sets], ids, axis=1), axis=1)[:, :-1]
                tries = m + one.poisson((seen * np.diff(rung, axis=1)).sum(axis=1))[:, None]
                counts = np.where(tries == m, m * laws, -np.expm1(tries * np.log1p(-laws)))
            else:
                counts = inclusion(laws, m)
        ids, counts = np.broadcast_to(ids, (len(h), m)), np.broadcast_to(counts, laws.shape)
        o = (tau * h @ c.T + b).astype(dtype)
        if not scheme.startswith("negative_"):
            with np.errstate(divide="ignore"):
                log_counts = np.log(counts, where=counts > 0.0, out=np.zeros_like(laws))
            log_counts = log_counts.astype(dtype)
        else:
            log_counts = np.zeros_like(o)
        x = np.take_along_axis(o - log_counts, ids, axis=1)
        if scheme.endswith("masked"):
            x = np.where(ids == labels[:, None], -np.inf, x)
        own = o[rows, labels]
        if scheme.startswith(("candidate", "nce")):
            own = own - log_counts[rows, labels]
        if scheme.startswith(("nce", "negative_")):
            losses = np.logaddexp(0, -own) + np.logaddexp(0, x).sum(axis=1)
            shares, of_label = np.exp(-np.logaddexp(0, -x)), -np.exp(-np.logaddexp(0, own))
        else:
            total = np.logaddexp(own, np.logaddexp.reduce(x, axis=1))
            losses, shares = total - own, np.exp(x - total[:, None])
            of_label = np.exp(own - total) - 1
        if not with_gradient:
            return losses
        slopes = np.zeros_like(o)
        np.add.at(slopes, (rows[:, None], ids), shares)
        np.add.at(slopes, (rows, labels), of_label)
        return losses, (tau * slopes @ c).astype(dtype)

    return loss, proposal, m, {"tau": tau, "biases": biases}


_SETS: dict[bytes, Any] = {}


def inclusion(laws: Any, m: int) -> Any:
    """Return the chances (B, n) that m draws without replacement hold each class.

    The set is that of the first m exponential clocks: an integral over the time of the m-th ring,
    of chances that come from those of the numbers of others that have rung.
    """
    for law in laws:
        if law.tobytes() + bytes([m]) not in _SETS:
            _SETS[law.tobytes() + bytes([m])] = inclusion_of(law, m)
    return np.array([_SETS[law.tobytes() + bytes([m])] for law in laws])


def inclusion_of(q: Any, m: int) -> Any:
    """Return the chances (n,) for one law."""
    n = len(q)
    times = np.exp(np.linspace(np.log(1e-12), np.log(60.0 / q[q > 0.0].min()), 4000))
    rung = -np.expm1(-np.outer(times, q))
    chances = np.zeros(n)
    for j in range(n):  # it rings while fewer than m others have
        counts = np.zeros((len(times), m))
        counts[:, 0] = 1.0
        for i in range(n):
            if i != j:
                p = rung[:, i : i + 1]
                less = np.hstack([np.zeros((len(times), 1)), counts[:, :-1]])
                counts = counts * (1.0 - p) + less * p
        density = q[j] * np.exp(-q[j] * times) * counts.sum(axis=1) * times
        chances[j] = np.trapezoid(density, np.log(times))
    return chances
