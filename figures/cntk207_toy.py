"""Convergence and speed of sampled softmax on the toy task of CNTK's tutorial 207.

Writes ``cntk207_toy.csv`` and ``cntk207_toy.png`` beside this script. Left: cross entropy of the
full softmax while training on Zipf data of 50 classes, with ten classes drawn for a minibatch
uniformly or by Zipf's law, or with the full softmax. Right: training examples per second with
50,000 classes, for whole steps: data, draw, forward, backward and update. Draws are without
replacement, as in the tutorial, and their inclusion probabilities are computed once for each m, in
the first step. The file also has the training on uniform data, with the values that the tutorial
prints. It takes a minute on two cores, which must be idle: otherwise threads of BLAS wait for each
other, and the full softmax and a thousand draws are many times slower::

    python figures/cntk207_toy.py

References
----------
Microsoft Cognitive Toolkit, tutorial 207, "Sampled Softmax".
"""

from __future__ import annotations

import argparse
import os
import platform
import textwrap
from collections.abc import Callable
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tables import write_csv
from toy_task import LEARNING_RATE, MOMENTUM, ToySettings, ToyTask
from tqdm import tqdm

from samplesoft._files import atomic_write
from samplesoft._jit import num_threads
from samplesoft.optimizers import Momentum

# minibatch: cross entropy that the tutorial prints, of its one run on uniform data
PRINTED = {
    5: 3.844,
    15: 3.467,
    25: 3.067,
    35: 2.777,
    45: 2.459,
    55: 2.269,
    65: 2.104,
    75: 1.937,
    85: 1.798,
    95: 1.707,
}
FULL = "full softmax"
# proposal: label, colour (Okabe and Ito's, safe for the colour-blind), marker
PROPOSALS = {
    "uniform": ("uniform sampling", "#D55E00", "v"),
    "zipf": ("Zipf sampling", "#0072B2", "o"),
    FULL: ("full softmax", "#000000", "s"),
}
BATCHES = {8: ("#0072B2", "o"), 128: ("#E69F00", "s")}
SIZES = (5, 10, 100, 1000)
WARM_UP = 3  # steps: they compile, and compute what a sampler keeps
FIELDS = (
    "part",  # convergence or speed
    "data",
    "proposal",
    "num_classes",
    "batch_size",
    "num_sampled",
    "minibatch",
    "cross_entropy",  # nats, full softmax on test data, mean over the seeds
    "cross_entropy_std",
    "printed_cross_entropy",  # by the tutorial, where it has the same settings
    "examples_per_second",  # median
    "times_full",
)


def main() -> None:
    """Read the command line, train, time, write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument("--num-seeds", type=int, default=10, help="runs of each training")
    parser.add_argument("--num-classes", type=int, default=50_000, help="where steps are timed")
    parser.add_argument("--rounds", type=int, default=5, help="in which the timed take turns")
    parser.add_argument("--seconds", type=float, default=0.3, help="least time of one in a round")
    args = parser.parse_args()
    rows = [
        row
        for data, proposal in tqdm(list(product(("uniform", "zipf"), PROPOSALS)), desc="training")
        for row in converge(data, proposal, args.num_seeds)
    ]
    rows += measure_speed(args.num_classes, args.rounds, args.seconds)
    at, blas = ToySettings(), os.environ.get("OPENBLAS_NUM_THREADS", "as many as it takes")
    dim = at.embedding_dim
    settings = (
        f"Left: n = {at.num_classes}, d = {dim}, m = {at.num_sampled}, minibatch "
        f"{at.batch_size}, {args.num_seeds} seeds, lines are means, bands one standard deviation. "
        f"Right: n = {args.num_classes:,}, d = {dim}, uniform, medians of whole steps, "
        f"{num_threads()} threads, of BLAS {blas}, {platform.machine()}. Both: one set of m "
        "distinct classes for a minibatch, exact inclusion probabilities, label's score adjusted "
        "too, momentum, float32."
    )
    folder: Path = args.output
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "cntk207_toy.csv", rows, FIELDS, settings, digits=4)
    with atomic_write(folder / "cntk207_toy.png") as path:
        draw(path, rows, settings)
    print(f"wrote {folder / 'cntk207_toy.csv'} and {folder / 'cntk207_toy.png'}")


def make_task(proposal: str, num_sampled: int | None, **settings: Any) -> ToyTask:
    """Return the task; the full softmax is a proposal here, for it takes the place of one."""
    if proposal == FULL:
        return ToyTask(ToySettings(loss="full", num_sampled=None, **settings))
    return ToyTask(ToySettings(proposal=proposal, num_sampled=num_sampled, **settings))


def stepper(task: ToyTask) -> Callable[[int], None]:
    """Return a whole step of training, by its number."""
    optimizer = Momentum(LEARNING_RATE * (1.0 - MOMENTUM), MOMENTUM)

    def step(index: int) -> None:
        _, gradients = task.step(0, index)
        optimizer.step(task.parameters, gradients)
        task.after_step(gradients)

    return step


def converge(data: str, proposal: str, num_seeds: int) -> list[dict[str, Any]]:
    """Return the cross entropy after 0, 5, 15, ... minibatches, over the seeds."""
    after = (0, *PRINTED)
    found = np.empty((num_seeds, len(after)))
    num_sampled = None if proposal == FULL else ToySettings().num_sampled
    for seed in range(num_seeds):
        task = make_task(proposal, num_sampled, data=data, seed=seed)
        step, done = stepper(task), 0
        for k, num in enumerate(after):
            for index in range(done, num):
                step(index)
            found[seed, k], done = task.validate()["loss"], num
    at = task.settings
    spread = found.std(axis=0, ddof=1) if num_seeds > 1 else np.zeros(len(after))
    return [
        {
            "part": "convergence",
            "data": data,
            "proposal": proposal,
            "num_classes": at.num_classes,
            "batch_size": at.batch_size,
            "num_sampled": num_sampled,
            "minibatch": num,
            "cross_entropy": mean,
            "cross_entropy_std": std,
            "printed_cross_entropy": PRINTED.get(num) if data == proposal == "uniform" else None,
        }
        for num, mean, std in zip(after, found.mean(axis=0), spread, strict=True)
    ]


def measure_speed(num_classes: int, rounds: int, least: float) -> list[dict[str, Any]]:
    """Time whole steps; the settings take turns, so that all meet the same noise."""
    cases = [
        (batch, proposal, m)
        for batch in BATCHES
        for proposal, m in [*(("uniform", m) for m in SIZES if m <= num_classes), (FULL, None)]
    ]
    steps = [
        stepper(make_task(proposal, m, num_classes=num_classes, batch_size=batch))
        for batch, proposal, m in cases
    ]
    for step in steps:
        for index in range(WARM_UP):
            step(index)
    times: list[list[float]] = [[] for _ in cases]
    for _ in tqdm(range(rounds), desc="timing", unit="round"):
        for step, seconds in zip(steps, times, strict=True):
            seconds += timed(step, WARM_UP + len(seconds), least)
    speeds = {
        case: case[0] / float(np.median(seconds))
        for case, seconds in zip(cases, times, strict=True)
    }
    return [
        {
            "part": "speed",
            "data": "uniform",
            "proposal": proposal,
            "num_classes": num_classes,
            "batch_size": batch,
            "num_sampled": m,
            "examples_per_second": speed,
            "times_full": speed / speeds[batch, FULL, None],
        }
        for (batch, proposal, m), speed in speeds.items()
    ]


def timed(step: Callable[[int], None], first: int, least: float) -> list[float]:
    """Return the seconds of steps, in all at least so many and two of them."""
    seconds: list[float] = []
    while len(seconds) < 2 or sum(seconds) < least:
        start = perf_counter()
        step(first + len(seconds))
        seconds.append(perf_counter() - start)
    return seconds


def draw(path: Path, rows: list[dict[str, Any]], settings: str) -> None:
    """Draw cross entropy against minibatch, and speed against sample size."""
    figure = Figure(figsize=(10.5, 5.2), dpi=100)
    left, right = figure.subplots(1, 2)
    for proposal, (label, colour, marker) in PROPOSALS.items():
        chosen = [
            r
            for r in rows
            if (r["part"], r["data"], r["proposal"]) == ("convergence", "zipf", proposal)
        ]
        names = ("minibatch", "cross_entropy", "cross_entropy_std")
        x, mean, std = (np.array([r[name] for r in chosen]) for name in names)
        left.fill_between(x, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0.0)
        left.plot(x, mean, marker=marker, color=colour, label=label, markersize=5)
    left.set_xlabel("minibatches of 100 examples")
    left.set_ylabel("cross entropy of the full softmax (nats)")
    left.set_title("Convergence, Zipf data of 50 classes", fontsize=11)
    left.set_ylim(0.0, None)
    draw_speed(right, [r for r in rows if r["part"] == "speed"])
    left.legend(frameon=False, fontsize=9)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 2}
    right.legend(frameon=False, fontsize=9, **below)
    for axes in (left, right):
        axes.grid(True, which="major", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.text(0.01, 0.015, textwrap.fill(settings, 175), fontsize=8, color="0.3")
    figure.tight_layout(rect=(0.0, 0.09, 1.0, 1.0))
    figure.savefig(path, metadata={"Software": None})


def draw_speed(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw the sampled softmax as points, and the full one as a level."""
    for batch, (colour, marker) in BATCHES.items():
        own = [r for r in rows if r["batch_size"] == batch]
        sampled = [r for r in own if r["proposal"] != FULL]
        full = next(r["examples_per_second"] for r in own if r["proposal"] == FULL)
        x, y = ([r[name] for r in sampled] for name in ("num_sampled", "examples_per_second"))
        axes.loglog(x, y, marker=marker, color=colour, label=f"sampled, minibatch {batch}")
        axes.axhline(full, color=colour, linestyle="--", label=f"full, minibatch {batch}")
    axes.set_xlabel("classes drawn for a minibatch, m")
    axes.set_ylabel("training examples per second")
    axes.set_title(f"Speed, {rows[0]['num_classes']:,} classes", fontsize=11)


if __name__ == "__main__":
    main()
