"""Table 2 of Rawat et al. (2019): the wall time of one sampled softmax loss, by sampler.

Writes ``table2_walltime.csv`` and ``table2_walltime.png`` beside this script: the time to draw m =
10 negatives for each of 10 contexts (d = 64, unit vectors, float32) and to evaluate the sampled
loss, with the exact softmax (EXP), the quadratic kernel and random Fourier features with D
frequencies. Each number of classes is one run. It also times EXP in torch, if torch is installed,
and RFF with the label excluded from the draws. The figure also has the paper's times, from other
hardware. The committed files took a quarter of an hour on 2 cores, with 12 GB free::

    python figures/table2_walltime.py

``--num-classes 10000,500000`` leaves out the large problems.

References
----------
A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019, Table 2.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import itertools
import platform
import textwrap
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
from samplesoft.samplers import QuadraticSampler, RFSoftmaxSampler, Sampler, SoftmaxSampler

BATCH, NUM_SAMPLED, DIM, TAU, NU = 10, 10, 64, 11.1, 4.0
NUM_BATCHES = 32
LONG_ENOUGH = 0.07  # seconds for each call that counts, so that parts of a large tree come in
ROUNDS = 3  # in which the methods take turns, so that all meet the same noise
FREQUENCIES = (50, 200, 500, 1000)
PAPER = {  # milliseconds, from the paper's Table 2
    (10_000, "EXP"): 1.4,
    (10_000, "QUADRATIC"): 6.5,
    (10_000, "RFF D = 50"): 0.5,
    (10_000, "RFF D = 200"): 0.6,
    (10_000, "RFF D = 500"): 1.2,
    (10_000, "RFF D = 1000"): 1.4,
    (500_000, "EXP"): 32.3,
    (500_000, "QUADRATIC"): 8.2,
    (500_000, "RFF D = 50"): 1.6,
    (500_000, "RFF D = 200"): 1.7,
    (500_000, "RFF D = 500"): 2.0,
    (500_000, "RFF D = 1000"): 2.4,
}
FIELDS = ("num_classes", "method", "milliseconds", "times_faster_than_torch_exp", "paper_ms")
Array = np.ndarray[Any, np.dtype[Any]]


def main() -> None:
    """Time every method at every number of classes, and write the table and the figure."""
    parser = argparse.ArgumentParser(description="Time Table 2 of Rawat et al. (2019).")
    parser.add_argument(
        "--num-classes",
        type=lambda text: [int(float(part)) for part in text.split(",")],
        default=[10_000, 100_000, 500_000, 1_000_000, 10_000_000],
        metavar="N",
        help="numbers of classes, parted by commas",
    )
    parser.add_argument(
        "--repeats", type=int, default=9, help="least calls of which the median counts"
    )
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent, help="folder for the files"
    )
    args = parser.parse_args()
    rows = [row for n in args.num_classes for row in measure(n, args.repeats)]
    settings = (
        f"batch {BATCH}, m = {NUM_SAMPLED}, d = {DIM}, unit vectors, float32, tau = {TAU}, "
        f"nu = {NU:g}, softmax leaves; {num_threads()} threads, {platform.machine()}; medians of "
        f"{args.repeats} calls or more, each with contexts and draws of its own"
    )
    write_csv(args.output / "table2_walltime.csv", rows, FIELDS, settings, digits=4)
    with atomic_write(args.output / "table2_walltime.png") as draft:
        draw(draft, rows, settings)
    print(as_table(rows))


def measure(num_classes: int, repeats: int) -> list[dict[str, Any]]:
    """Time all methods on one set of class vectors."""
    rng = np.random.default_rng(0)
    W = rng.standard_normal((num_classes, DIM), dtype=np.float32)
    W /= np.linalg.norm(W, axis=1, keepdims=True)
    batches = rng.standard_normal((NUM_BATCHES, BATCH, DIM), dtype=np.float32)
    batches /= np.linalg.norm(batches, axis=2, keepdims=True)
    labels = rng.integers(0, num_classes, (NUM_BATCHES, BATCH))
    peer = torch_exp(W, batches, labels)
    rows = []
    for method, sampler in tqdm(samplers(W), f"n = {num_classes:,}", 6, leave=False):
        work = [lambda k, s=sampler: step(s, W, batches, labels, k)]
        names = [method]
        if method == "RFF D = 1000":
            work.append(lambda k, s=sampler: step(s, W, batches, labels, k, exclude=True))
            names.append(f"{method}, label excluded")
        if peer is not None:
            work.append(peer)
            names.append("EXP in torch")
        times = dict(zip(names, medians(work, repeats), strict=True))
        exp = times.pop("EXP in torch", None)
        if method == "EXP" and exp is not None:
            rows.append(row(num_classes, "EXP in torch", exp, exp))
        rows += [row(num_classes, name, time, exp) for name, time in times.items()]
        del sampler, work
        gc.collect()
    return rows


def row(num_classes: int, method: str, seconds: float, peer: float | None) -> dict[str, Any]:
    """Return a line of the table; `peer` is torch's time between the same calls."""
    return {
        "num_classes": num_classes,
        "method": method,
        "milliseconds": 1e3 * seconds,
        "times_faster_than_torch_exp": "" if peer is None else peer / seconds,
        "paper_ms": PAPER.get((num_classes, method), ""),
    }


def samplers(W: Array) -> Iterator[tuple[str, Sampler]]:
    """Make one sampler after another, for a tree of ten million classes is large."""
    yield "EXP", SoftmaxSampler(W, tau=TAU)
    yield "QUADRATIC", QuadraticSampler(W, tau=TAU, alpha=100.0)
    for num in FREQUENCIES:
        yield f"RFF D = {num}", RFSoftmaxSampler(W, nu=NU, num_features=num, tau=TAU, rng=0)


def step(
    sampler: Sampler, W: Array, batches: Array, labels: Array, k: int, exclude: bool = False
) -> Array:
    """Draw negatives for a batch and return the sampled loss of each example."""
    h, targets = batches[k % NUM_BATCHES], labels[k % NUM_BATCHES]
    draw = sampler.sample(h, NUM_SAMPLED, exclude=targets if exclude else None, rng=k)
    o_target = TAU * np.einsum("bd,bd->b", h, W[targets])
    o = TAU * np.einsum("bd,bmd->bm", h, W[draw.ids]) - draw.log_q - np.log(NUM_SAMPLED)
    loss: Array = np.logaddexp(o_target, np.logaddexp.reduce(o, axis=1)) - o_target
    return loss


def torch_exp(W: Array, batches: Array, labels: Array) -> Callable[[int], Any] | None:
    """Return the same work with the exact softmax in torch, or None where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(num_threads())
    classes, contexts, targets = (torch.from_numpy(a) for a in (W, batches, labels))

    @torch.no_grad()
    def work(k: int) -> Any:
        o = TAU * contexts[k % NUM_BATCHES] @ classes.T
        probs = torch.softmax(o, 1)
        cumulative = probs.cumsum(1)
        uniforms = torch.rand(BATCH, NUM_SAMPLED) * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, uniforms).clamp_(max=len(classes) - 1)
        log_q = probs.gather(1, ids).log()
        o_target = o.gather(1, targets[k % NUM_BATCHES, :, None])
        drawn = o.gather(1, ids) - log_q - np.log(NUM_SAMPLED)
        return torch.logsumexp(torch.cat([o_target, drawn], 1), 1) - o_target[:, 0]

    return work


def medians(work: list[Callable[[int], Any]], repeats: int) -> list[float]:
    """Return the median seconds of each function, over rounds in which each is warmed up.

    They are called with the number of the call: no two draw the same.
    """
    times: list[list[float]] = [[] for _ in work]
    calls = itertools.count()
    for _ in range(ROUNDS):
        for function, seconds in zip(work, times, strict=True):
            called(function, calls, 1)
            seconds += called(function, calls, -(-repeats // ROUNDS))
    return [float(np.median(t)) for t in times]


def called(function: Callable[[int], Any], calls: Iterator[int], least: int) -> list[float]:
    """Return the seconds of calls: at least so many, and as long as `LONG_ENOUGH` for each."""
    seconds: list[float] = []
    while len(seconds) < least or sum(seconds) < least * LONG_ENOUGH:
        k = next(calls)
        start = perf_counter()
        function(k)
        seconds.append(perf_counter() - start)
    return seconds


def as_table(rows: list[dict[str, Any]]) -> str:
    """Return the rows for people."""
    lines = [f"{'classes':>12}  {'method':<30}{'ms':>10}{'x torch EXP':>13}{'paper ms':>10}"]
    for r in rows:
        ratio = r["times_faster_than_torch_exp"]
        times = f"{ratio:.3g}" if ratio != "" else ""
        lines.append(
            f"{r['num_classes']:>12,}  {r['method']:<30}{r['milliseconds']:>10.3g}{times:>13}"
            f"{r['paper_ms']:>10}"
        )
    return "\n".join(lines)


# method: colour (Okabe and Ito's, safe for the colour-blind), marker
STYLE = {
    "EXP in torch": ("#000000", "X"),
    "EXP": ("#999999", "D"),
    "QUADRATIC": ("#009E73", "P"),
    "RFF D = 1000": ("#D55E00", "v"),
    "RFF D = 500": ("#E69F00", "^"),
    "RFF D = 200": ("#56B4E9", "s"),
    "RFF D = 50": ("#0072B2", "o"),
}


def draw(path: Path, rows: list[dict[str, Any]], settings: str) -> None:
    """Draw time against the number of classes, the paper's as open markers."""
    figure = Figure(figsize=(8.0, 5.2), dpi=110)
    axes = figure.subplots()
    for method, (colour, marker) in STYLE.items():
        ours = [r for r in rows if r["method"] == method]
        if not ours:
            continue
        n, ms = ([r[k] for r in ours] for k in ("num_classes", "milliseconds"))
        axes.loglog(n, ms, marker=marker, color=colour, label=method, markersize=6)
        printed = [(n, t) for (n, name), t in PAPER.items() if name == method]
        if printed:
            axes.loglog(*zip(*printed, strict=True), marker, color=colour, mfc="none", markersize=9)
    axes.loglog([], [], "o", color="0.3", mfc="none", markersize=9, label="the paper's, open")
    axes.set_xlabel("classes, n")
    axes.set_ylabel("time of one sampled loss, batch of 10 (ms)")
    axes.set_title("Wall time by sampler (Rawat et al. 2019, Table 2)", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    axes.grid(True, which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.text(0.01, 0.015, textwrap.fill(settings, 150), fontsize=7.5, color="0.3")
    figure.tight_layout(rect=(0.0, 0.06, 1.0, 1.0))
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    main()
