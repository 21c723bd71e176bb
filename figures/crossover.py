"""Do you still need to sample? The time of full and of sampled steps by the number of classes.

Writes ``crossover.csv`` and ``crossover.png`` beside this script: the time of a whole step of the
softmax layer (draws, loss, gradients, Adagrad on the rows with a gradient, and the update of the
sampler), the number of classes from which on a sampled step is faster than a full step, and the
exact bias of a sampled step. If torch has ``linear_cross_entropy``, it is timed too.

Class vectors resemble learned vectors: a Gaussian mixture, with one coordinate for the log of the
class frequency, which follows Zipf's law. Labels are drawn from the softmax itself, with a tau for
which the mean loss is half of log n. The committed files come from one thread. Its processor time
is measured, so other processes hardly matter. It takes a quarter of an hour and 21 GB::

    OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python figures/crossover.py

Without the variables all cores work, as for most users, and wall-clock time is measured; the
machine should be idle then. ``--most 1e4`` takes a minute, and ``--most 1e6`` 8 GB.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from tables import write_both
from tqdm import tqdm

from samplesoft import exact_bias
from samplesoft._jit import num_threads
from samplesoft.losses import make_loss
from samplesoft.models import SoftmaxLayer
from samplesoft.optimizers import make_optimizer
from samplesoft.samplers import ClusterSampler, Sampler, UniformSampler, UnigramSampler

SIZES = (50, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 1_000_000, 10_000_000)
DIMS, BATCHES = (64, 256), (64, 1024)
LARGEST = 1_000_000  # classes with more dimensions than the first of DIMS
COPIES = 8  # of the class vectors in memory: of layer and optimizer, gradients and what they need
CALLS, ENOUGH = 20, 0.5  # at most so many calls and seconds
TOO_LONG = 60.0  # seconds of a step that is left out
NUMBERS, LEAST, MOST = 8_000_000, 4, 64  # logits of the examples of the bias, and those examples
FIELDS = ("num_classes", "dim", "batch", "method", "num_sampled", "milliseconds")
FIELDS += ("l1_bias", "crossover", "building_s", "tau", "loss")
STYLES = {  # colour, marker, line
    "full": ("#000000", "o", "-"),
    "torch, linear_cross_entropy": ("#CC79A7", "P", "-"),
    "clusters, 100 for each": ("#0072B2", "s", "-"),
    "unigram, 1,000 shared": ("#009E73", "v", "--"),
    "unigram, 100 shared": ("#D55E00", "^", "--"),
    "uniform, 100 shared": ("#999999", "D", ":"),
}
ONE_THREAD = num_threads() == 1 and os.environ.get("OPENBLAS_NUM_THREADS") == "1"
clock = process_time if ONE_THREAD else perf_counter
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Classes:
    """Class vectors (n, d), how often each class occurs (n,), and examples."""

    rows: Array
    shares: Array
    h: Array
    labels: Array
    tau: float
    logits: Array  # (E, n): of the first examples, for which the bias is computed
    loss: float  # in nats


def main() -> None:
    """Read the command line, measure, write both files and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--most", type=float, default=1e7, help="classes")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    args = parser.parse_args()
    if linear_cross_entropy() is None:
        print("left out: torch has no linear_cross_entropy here")
    rows: list[dict[str, Any]] = []
    sizes = [n for n in SIZES if n <= args.most]
    threads = "one thread" if ONE_THREAD else f"{num_threads()} threads"
    description = (
        "Time: a step with draws, loss, gradients, Adagrad and update; float32, the fastest "
        f"of several steps, {threads}. Bias: exact, mean over examples (at most 2)."
    )
    for n in tqdm(sizes, "classes"):
        for d in DIMS:
            if d != DIMS[0] and n > LARGEST or COPIES * 4 * n * d > available_bytes():
                print(f"left out: n = {n:,} with d = {d}, for want of memory")
                continue
            rows += measure(n, d, rows)
        add_crossovers(rows)  # many classes take long: what is there is written
        write_both(args.output, "crossover", rows, FIELDS, description, draw(rows, description))
    print(as_table(rows))


def available_bytes() -> float:
    """Return the memory that is left, infinite where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return np.inf
    return next(1024.0 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable"))


def made_classes(n: int, d: int) -> Classes:
    """Return classes with examples whose mean loss is half of log n."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, d), np.float32)
    centers = rng.standard_normal((max(n // 100, 10), d), np.float32)
    rows += centers[rng.integers(0, len(centers), n)]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    shares = 1.0 / rng.permutation(np.arange(1.0, n + 1.0))
    shares /= shares.sum()
    few, many = max(LEAST, min(MOST, NUMBERS // n)), max(BATCHES)
    near = rng.choice(n, many, p=shares)
    h = rows[near] + rng.standard_normal((many, d), np.float32) * np.float32(0.5 / np.sqrt(d))
    rows[:, -1] = np.log(shares)
    # logits are tau h . c + log share: the last coordinate of the context is 1 / tau
    h[:, -1] = 0.0
    scores = h[:few].astype(np.float64) @ rows.T
    low, high = 0.0, 200.0
    while high - low > 0.01:
        tau = (low + high) / 2.0
        logits = tau * scores + np.log(shares)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        loss = float(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1).mean())
        low, high = (tau, high) if loss > 0.5 * np.log(n) else (low, tau)
    labels = near
    labels[:few] = [rng.choice(n, p=row) for row in p]
    h[:, -1] = 1.0 / tau
    return Classes(rows, shares, h, labels, tau, logits, loss)


def methods(
    classes: Classes,
) -> Iterator[tuple[str, int | None, bool, Callable[[], Sampler | None]]]:
    """Yield the name of each method, m, whether a set is shared, and how its sampler is made."""
    n = len(classes.rows)
    yield "full", None, False, lambda: None
    unigram = partial(UnigramSampler, classes.shares, power=1.0)
    yield "uniform, 100 shared", 100, True, partial(UniformSampler, n)
    yield "unigram, 100 shared", 100, True, unigram
    yield "unigram, 1,000 shared", 1000, True, unigram
    make = partial(ClusterSampler, classes.rows, tau=classes.tau, rng=0)
    yield "clusters, 100 for each", 100, False, make


def measure(n: int, d: int, before: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each method and batch, but for those that took too long `before`."""
    classes = made_classes(n, d)
    for name, m, shared, make in methods(classes):
        batches = [b for b in BATCHES if not too_long(name, n, d, b, before)]
        if not batches:
            continue
        start = clock()
        sampler = make()
        building = clock() - start
        bias = 0.0 if sampler is None else bias_of(classes, sampler, int(m or 0), shared)
        loss = make_loss(
            "full" if m is None else "sampled-masked" if shared else "sampled", tau=classes.tau
        )
        layer = SoftmaxLayer(classes.rows, loss, sampler, m, shared=shared if sampler else None)
        for batch in batches:
            seconds = least_seconds(layer_step(layer, classes, batch))
            yield row(n, d, batch, name, m, seconds, bias, building, classes)
        del sampler, layer
        gc.collect()
    if (function := linear_cross_entropy()) is not None:
        for batch in BATCHES:
            if not too_long(name := "torch, linear_cross_entropy", n, d, batch, before):
                seconds = least_seconds(torch_step(function, classes, batch))
                yield row(n, d, batch, name, None, seconds, 0.0, 0.0, classes)


def row(
    n: int,
    d: int,
    batch: int,
    name: str,
    m: int | None,
    seconds: float,
    bias: float,
    building: float,
    classes: Classes,
) -> dict[str, Any]:
    """Return a row of the table."""
    values = (n, d, batch, name, m or "", 1e3 * seconds, bias, "", building)
    return dict(zip(FIELDS, (*values, classes.tau, classes.loss), strict=True))


def too_long(name: str, n: int, d: int, batch: int, before: list[dict[str, Any]]) -> bool:
    """Return whether a step takes too long, by its time with fewer classes; say so if it does."""
    same = [r for r in before if (r["dim"], r["batch"], r["method"]) == (d, batch, name)]
    if not same:
        return False
    last = same[-1]
    growth = n / last["num_classes"]
    step = last["milliseconds"] / 1e3 * (growth if name.startswith(("full", "torch")) else 1.0)
    if max(step, growth * last["building_s"]) < TOO_LONG:
        return False
    print(f"left out: {name} with n = {n:,}, d = {d}, batch {batch:,}, for want of time")
    return True


def bias_of(classes: Classes, sampler: Sampler, m: int, shared: bool) -> float:
    """Return the mean over examples of the L1 norm of the exact bias of the gradient in logits."""
    few = len(classes.logits)
    h, labels = classes.h[:few], classes.labels[:few]
    scheme = "masked" if shared else "negatives"
    norms = []
    for k in range(few):  # one after another, for memory
        one = slice(k, k + 1)
        q = sampler.probs(h[one], exclude=None if shared else labels[one], shared=shared)
        q = np.maximum(q, 1e-300)  # as a softmax may underflow
        bias = exact_bias(classes.logits[one], labels[one], q, m, scheme=scheme).bias
        norms.append(np.abs(bias).sum())
    return float(np.mean(norms))


def layer_step(layer: SoftmaxLayer, classes: Classes, batch: int) -> Callable[[int], None]:
    """Return a step of a layer, which takes a seed."""
    optimizer = make_optimizer("adagrad", 1e-9)  # vectors are to stay where they are
    h, labels = classes.h[:batch], classes.labels[:batch]

    def step(seed: int) -> None:
        _, cache = layer.forward(h, labels, rng=seed)
        _, gradients = layer.backward(cache)
        optimizer.step(layer.parameters, gradients)
        layer.update(getattr(gradients["class_embeddings"], "ids", None))

    return step


def linear_cross_entropy() -> Callable[..., Any] | None:
    """Return torch's function, in chunks where it has them; None where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    from torch.nn import functional

    function = getattr(functional, "linear_cross_entropy", None)
    options = getattr(functional, "LinearCrossEntropyOptions", None)
    return function if function is None or options is None else partial(function, options=options())


def torch_step(function: Callable[..., Any], classes: Classes, batch: int) -> Callable[[int], None]:
    """Return the same step in torch."""
    import torch

    torch.set_num_threads(num_threads())
    W = torch.from_numpy(classes.rows).clone().requires_grad_()
    h = torch.from_numpy(np.float32(classes.tau) * classes.h[:batch]).requires_grad_()
    labels = torch.from_numpy(classes.labels[:batch])
    optimizer = torch.optim.Adagrad([W], lr=1e-9)

    def step(_: int) -> None:
        optimizer.zero_grad()
        function(h, W, labels).backward()
        optimizer.step()

    return step


def least_seconds(step: Callable[[int], None]) -> float:
    """Return the least seconds of some calls: the first, which compiles, only if it is long."""
    times: list[float] = []
    for seed in range(CALLS + 1):
        start = clock()
        step(seed)
        times.append(clock() - start)
        # the first steps also meet memory of the optimizer that nobody has touched
        if sum(times) > 10.0 or len(times) > 20 and sum(times) > ENOUGH:
            break
    return min(times[1:] or times)


def add_crossovers(rows: list[dict[str, Any]]) -> None:
    """Add to each row the number of classes from which on its method beats the full softmax.

    Times are interpolated in logarithms. The number is 0 where the method is quicker from the
    fewest classes on, and empty where it is with none.
    """
    full = {key_of(r): r["milliseconds"] for r in rows if r["method"] == "full"}
    for method, d, batch in {(r["method"], r["dim"], r["batch"]) for r in rows}:
        mine = [r for r in rows if (r["method"], r["dim"], r["batch"]) == (method, d, batch)]
        both = [r for r in mine if key_of(r) in full]
        if method == "full" or not both:
            continue
        x = np.log([r["num_classes"] for r in both])
        ahead = np.log([full[key_of(r)] / r["milliseconds"] for r in both])
        at: int | str = ""
        if ahead[-1] > 0.0:
            k = int(np.flatnonzero(ahead <= 0.0)[-1]) if (ahead <= 0.0).any() else -1
            at = 0
            if k >= 0:  # the last size at which the full softmax is as quick
                at = round(np.exp(np.interp(0.0, ahead[k : k + 2], x[k : k + 2])))
        for one in mine:
            one["crossover"] = at


def key_of(row: dict[str, Any]) -> tuple[int, int, int]:
    """Return the number of classes, the dimension and the batch of a row."""
    return row["num_classes"], row["dim"], row["batch"]


def as_table(rows: list[dict[str, Any]]) -> str:
    """Return crossovers, a line for each dimension, batch and method."""
    lines = [f"{'d':>4} {'batch':>6}  {'method':<28} {'pays from n =':>13}  bias there"]
    for d, batch, method in dict.fromkeys((r["dim"], r["batch"], r["method"]) for r in rows):
        mine = [r for r in rows if (r["dim"], r["batch"], r["method"]) == (d, batch, method)]
        if method == "full":
            continue
        at, first, last = mine[0]["crossover"], mine[0]["num_classes"], mine[-1]["num_classes"]
        words = f"{at:,}" if at else f"> {last:,}" if at == "" else f"< {first:,}"
        near = min(mine, key=lambda r: abs(np.log(r["num_classes"] / max(at or 1, 1))))
        lines.append(f"{d:>4} {batch:>6,}  {method:<28} {words:>13}  {near['l1_bias']:.2g}")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], description: str) -> Figure:
    """Return time against the number of classes, and bias, a line of panels for each dimension."""
    dims = sorted({r["dim"] for r in rows})
    figure = Figure(figsize=(14.0, 4.1 * len(dims) + 0.9), dpi=100)
    panels = figure.subplots(len(dims), 3, squeeze=False, sharex=True)
    for line, d in zip(panels, dims, strict=True):
        for axes, batch in zip(line, BATCHES, strict=False):
            some = [r for r in rows if (r["dim"], r["batch"]) == (d, batch)]
            draw_lines(axes, some, "milliseconds")
            for at, y, method in {
                (r["crossover"], height(r, some), r["method"]) for r in some if r["crossover"]
            }:
                axes.plot([at], [y], "o", color="black", markersize=9, fillstyle="none", zorder=4)
                if not method.startswith("uniform"):  # which stands where unigram does
                    above = method.startswith("clusters")  # below are the lines of shared draws
                    axes.annotate(
                        f"{at:,}",
                        (at, y),
                        (-7, 5) if above else (9, -12),
                        textcoords="offset points",
                        color=STYLES[method][0],
                        fontsize=9,
                        ha="right" if above else "left",
                    )
            axes.set_title(f"d = {d}, batch {batch:,}", fontsize=10)
            axes.set_ylabel("time of a step (milliseconds)")
        some = [r for r in rows if (r["dim"], r["batch"]) == (d, BATCHES[0])]
        # with fewer classes than draws the bias of clusters is that of rounding
        draw_lines(line[2], [r for r in some if r["num_classes"] >= 100], "l1_bias")
        line[2].set_title(f"d = {d}, bias of a sampled step", fontsize=10)
        line[2].set_ylabel("exact L1 bias of the gradient")
    for axes in panels[-1]:
        axes.set_xlabel("classes n")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    circle = panels[0, 0].plot([], [], "ko", markersize=9, fillstyle="none")
    figure.legend(
        [*handles, *circle],
        [*labels, "crossover: sampling pays to the right of it"],
        frameon=False,
        fontsize=9,
        ncols=4,
        loc="upper center",
    )
    figure.text(0.01, 0.01, description, fontsize=8, color="0.3")
    figure.tight_layout(rect=(0.0, 0.03, 1.0, 1.0 - 0.6 / figure.get_figheight()))
    return figure


def draw_lines(axes: Any, rows: list[dict[str, Any]], field: str) -> None:
    """Draw a column of the table against the number of classes, a line for each method."""
    for method, (colour, marker, line) in STYLES.items():
        points = [r for r in rows if r["method"] == method and r[field] > 0.0]
        if points:
            x, y = ([r[key] for r in points] for key in ("num_classes", field))
            axes.loglog(x, y, line, color=colour, marker=marker, markersize=4, label=method)
    axes.xaxis.set_major_locator(LogLocator(numticks=12))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelbottom=True)
    axes.grid(True, which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def height(row: dict[str, Any], rows: list[dict[str, Any]]) -> float:
    """Return the milliseconds of a full step at the crossover of a row."""
    full = [r for r in rows if r["method"] == "full"]
    x, y = (np.log([r[key] for r in full]) for key in ("num_classes", "milliseconds"))
    return float(np.exp(np.interp(np.log(row["crossover"]), x, y)))


if __name__ == "__main__":
    main()
