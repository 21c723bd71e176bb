"""The price of less bias: the samplers by the time of a draw and the remaining bias.

Writes ``bias_vs_cost.csv`` and ``bias_vs_cost.png`` beside this script. Each sampler, in several
settings, is one point: the measured time of drawing m negatives for an example of a batch, and the
exact bias of the sampled-softmax gradient, averaged over next-word examples of a text, for each
size of the vocabulary. The line joins the settings that no other setting beats in both. The
committed files come from the identifiers in the Python files of the installed packages, ten minutes
on two idle cores::

    python figures/bias_vs_cost.py --corpus lib/python3.11/site-packages

Without ``--corpus`` the text is the source of the Python standard library, which has fewer than
100,000 identifiers; also pass ``--vocabulary-size 10000``.

References
----------
G. Blanc and S. Rendle, "Adaptive Sampled Softmax with Kernel Based Sampling", ICML 2018.
J. Chen et al., "Fast Variational AutoEncoder with Inverted Multi-Index", WWW 2022.
A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019.
"""

from __future__ import annotations

import argparse
import os
import re
import textwrap
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.special import softmax
from tables import write_csv
from tqdm import tqdm

import samplesoft
from samplesoft._files import atomic_write
from samplesoft._jit import num_threads
from samplesoft.data import Embeddings, examples_from_corpus, read_tokens, stdlib_tokens
from samplesoft.feature_maps import PositiveRandomFeatures
from samplesoft.samplers import (
    ClusterSampler,
    KernelSampler,
    LogUniformSampler,
    MixtureSampler,
    QuadraticSampler,
    RFSoftmaxSampler,
    Sampler,
    SoftmaxSampler,
    TwoPassSampler,
    UniformSampler,
    UnigramSampler,
)

# sampler: colour (Okabe and Ito's, safe for the colour-blind), marker
STYLES = {
    "uniform": ("#000000", "o"),
    "log-uniform": ("#E69F00", "s"),
    "unigram": ("#56B4E9", "^"),
    "clusters": ("#0072B2", "*"),
    "two-pass": ("#332288", ">"),
    "two-pass + unigram": ("#332288", "<"),
    "quadratic": ("#009E73", "P"),
    "RFF": ("#D55E00", "v"),
    "RFF + unigram": ("#8C564B", "D"),
    "positive": ("#777777", "h"),
}
FIELDS = (
    "num_classes",
    "sampler",
    "leaf",  # of a tree: how a class is drawn in its bucket
    "setting",
    "time_us",  # of drawing for one example of the batch, microseconds
    "l1_bias",  # mean over the examples: L1 norm of E[p'] - p
    "h_squared_bias",  # of the gradient in h, means over NUM_MOMENTS examples; of few classes
    "h_variance",
    "h_mse",
    "memory_bytes",  # that the sampler holds
)
SOFTMAX = "#CC79A7"  # the colour of what has no bias
LABEL_GAP = 0.04  # at least, between two labels, of the height of the panel
ALPHA = 100.0  # of the quadratic kernel of a logit, alpha o^2 + 1
NUM_BIASES = 32  # examples whose bias is computed
NUM_MOMENTS = 16  # a variance takes fifty times as long as a bias
MOST_MOMENTS = 20_000  # classes for which variances are computed at all
MOST_NUMBERS = 1 << 27  # of the sums of a tree: settings that want more are left out
MOST_TOKENS = 8_000_000
TOKEN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[^\sA-Za-z_0-9]")
WEIGHTS = (0.5, 0.9)  # of the first sampler of a mixture


@dataclass(frozen=True)
class Setting:
    """A point of the figure: its names, and how its sampler is made."""

    sampler: str
    leaf: str
    setting: str
    make: Callable[[], Sampler]


def main() -> None:
    """Read the command line, compute, write both files."""
    args = parse_arguments()
    tokens = text(args.corpus)
    rows: list[dict[str, Any]] = []
    for n in args.vocabulary_size:
        examples = examples_from_corpus(
            tokens, vocabulary_size=n, dim=args.dim, num_examples=args.num_examples, rng=args.seed
        )
        n = len(examples.class_embeddings)  # at most as many as there are
        settings = list(list_settings(examples, args))
        costs = [
            measure_cost(setting, examples, args)
            for setting in tqdm(settings, desc=f"n = {n:,}, time of the draws", unit="setting")
        ]
        bar = tqdm(settings, desc=f"n = {n:,}, bias", unit="setting")
        rows += [
            {"num_classes": n, "sampler": s.sampler, "leaf": s.leaf, "setting": s.setting, **cost}
            | measure_error(s, examples, args)
            for s, cost in zip(bar, costs, strict=True)
        ]
    folder: Path = args.output
    folder.mkdir(parents=True, exist_ok=True)
    description = describe(args)
    write_csv(folder / "bias_vs_cost.csv", rows, FIELDS, description)
    with atomic_write(folder / "bias_vs_cost.png") as path:
        draw(path, rows, description)
    print(f"wrote {folder / 'bias_vs_cost.csv'} and {folder / 'bias_vs_cost.png'}")


def text(corpus: Path | None) -> list[str]:
    """Return the tokens of a file of text, of the Python files of a folder, or of the library."""
    if corpus is None:
        return stdlib_tokens()
    if not corpus.is_dir():
        return read_tokens(corpus)
    tokens: list[str] = []
    for path in sorted(corpus.rglob("*.py")):
        tokens += TOKEN.findall(path.read_text(encoding="utf-8", errors="replace"))
        if len(tokens) > MOST_TOKENS:
            break
    return tokens


def parse_arguments() -> argparse.Namespace:
    """Return the settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--corpus", type=Path, help="plain text, also .gz, .xz or .bz2, or a folder of Python"
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument("--vocabulary-size", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--num-examples", type=int, default=128, help="the batch")
    parser.add_argument("--num-sampled", type=int, default=100, help="negatives drawn, m")
    parser.add_argument("--tau", type=float, default=11.1, help="inverse temperature")
    parser.add_argument(
        "--num-features", type=int, nargs="+", default=[64, 256, 1024, 2048], help="values of D"
    )
    parser.add_argument("--num-repeats", type=int, default=15, help="draws that are timed")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def list_settings(examples: Embeddings, args: argparse.Namespace) -> Iterator[Setting]:
    """Yield the points; a new one is a line here."""
    vectors = examples.class_embeddings.astype(np.float32)
    n, tau, seed = len(vectors), args.tau, args.seed
    every = args.num_features
    dim = vectors.shape[1]

    def fits(numbers: int, size: int) -> bool:
        return -(-n // size) * numbers <= MOST_NUMBERS

    def unigram() -> Sampler:
        return UnigramSampler(examples.counts)

    def clusters(size: int) -> Sampler:
        return ClusterSampler(vectors, tau=tau, leaf_size=size, rng=seed)

    def two_pass(num: int) -> Sampler:
        return TwoPassSampler(unigram(), vectors, num_candidates=num, tau=tau, rng=seed)

    def quadratic(leaf: str, size: int) -> Sampler:
        alpha = ALPHA * tau**2
        return QuadraticSampler(vectors, alpha=alpha, tau=tau, leaf=leaf, leaf_size=size)

    def fourier(num: int, nu: float, leaf: str, size: int, draw: str = "iid") -> Sampler:
        return RFSoftmaxSampler(
            vectors,
            nu=nu,
            num_features=num,
            frequencies=draw,
            tau=tau,
            leaf=leaf,
            leaf_size=size,
            rng=seed,
        )

    def positive(num: int, sharpness: float, leaf: str, size: int) -> Sampler:
        phi = PositiveRandomFeatures(dim, num, sharpness, rng=seed)
        return KernelSampler(vectors, phi, leaf=leaf, leaf_size=size, tau=tau)

    def mixture(first: Callable[[], Sampler], weight: float) -> Sampler:
        return MixtureSampler(first(), unigram(), weight)

    yield Setting("uniform", "", "", partial(UniformSampler, n))
    yield Setting("log-uniform", "", "", partial(LogUniformSampler, n))
    yield Setting("unigram", "", "", unigram)
    yield Setting("softmax", "", "", partial(SoftmaxSampler, vectors, tau=tau))
    for size in (8, 16, 64):
        yield Setting("clusters", "", f"leaf={size}", partial(clusters, size))
    for num in (n // 8, n // 4, n // 2, n):
        make = partial(two_pass, num)
        yield Setting("two-pass", "", f"K={num}", make)
        for w in WEIGHTS:
            name = f"K={num} w={w:g}"
            yield Setting("two-pass + unigram", "", name, partial(mixture, make, w))
    for leaf, size in (
        *product(["kernel"], (1, 16, 64)),
        *product(["softmax"], (16, 64, 256, 1024)),
    ):
        if fits(dim * (dim + 1) // 2 + 1, size):
            yield Setting("quadratic", leaf, f"leaf={size}", partial(quadratic, leaf, size))
    for num, nu in product(every, (2.0, 4.0, 8.0)):
        for leaf, size in (("kernel", 1), ("softmax", 64)):
            if not fits(2 * num, size):
                continue
            name = f"D={num} nu={nu:g} leaf={size}"
            yield Setting("RFF", leaf, name, partial(fourier, num, nu, leaf, size))
    for num in every:
        for leaf, size in (("kernel", 1), ("softmax", 64)):
            if not fits(2 * num, size):
                continue
            for draw in ("orthogonal", "structured"):
                name = f"D={num} nu=4 leaf={size} {draw}"
                yield Setting("RFF", leaf, name, partial(fourier, num, 4.0, leaf, size, draw))
        for size in (16, 256, 1024):
            if not fits(2 * num, size):
                continue
            name = f"D={num} nu=4 leaf={size}"
            yield Setting("RFF", "softmax", name, partial(fourier, num, 4.0, "softmax", size))
        make = partial(fourier, num, 4.0, "softmax", 64)
        for w in WEIGHTS:
            name = f"D={num} nu=4 leaf=64 w={w:g}"
            yield Setting("RFF + unigram", "softmax", name, partial(mixture, make, w))
        for leaf, size in (("kernel", 1), ("softmax", 256)):
            if not fits(2 * num, size):
                continue
            for sharpness in (4.0, tau):
                name = f"D={num} sharpness={sharpness:g} leaf={size}"
                yield Setting("positive", leaf, name, partial(positive, num, sharpness, leaf, size))


def measure_cost(
    setting: Setting, examples: Embeddings, args: argparse.Namespace
) -> dict[str, float]:
    """Return the median time of a draw, with new candidates where there are any, and the memory."""
    h, labels, m = examples.h.astype(np.float32), examples.labels, args.num_sampled
    setting.make().sample(h, m, exclude=labels, rng=args.seed)  # compiles
    tracemalloc.start()
    sampler = setting.make()
    sampler.sample(h, m, exclude=labels, rng=args.seed)  # makes what is kept
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    times = []
    for seed in range(args.num_repeats):
        start = time.perf_counter()
        for part in (sampler, getattr(sampler, "first", None)):
            if isinstance(part, TwoPassSampler):
                part.refresh(seed)
        sampler.sample(h, m, exclude=labels, rng=seed)
        times.append(time.perf_counter() - start)
    return {"time_us": 1e6 * float(np.median(times)) / len(h), "memory_bytes": memory}


def measure_error(
    setting: Setting, examples: Embeddings, args: argparse.Namespace
) -> dict[str, float]:
    """Return the averages over the examples, exact for each of them."""
    h, labels = examples.h[:NUM_BIASES], examples.labels[:NUM_BIASES]
    q = setting.make().probs(h.astype(np.float32), exclude=labels)
    vectors = examples.class_embeddings.astype(np.float32).astype(np.float64)
    logits = args.tau * h.astype(np.float32).astype(np.float64) @ vectors.T
    l1: list[float] = []
    square: list[float] = []
    variance: list[float] = []
    for o, label, p, drawn in zip(logits, labels, q, q > 0.0, strict=True):
        drawn[label] = True  # two passes draw candidates alone: the others never get mass
        bias = -softmax(o)
        case = o[drawn], int(drawn[:label].sum()), p[drawn], args.num_sampled
        exact = samplesoft.exact_bias(*case)
        bias[drawn] = exact.bias + (exact.probs + bias[drawn])
        l1.append(np.abs(bias).sum())
        if len(o) <= MOST_MOMENTS and len(variance) < NUM_MOMENTS:
            moments = samplesoft.exact_gradient_moments(*case, vectors[drawn], tau=args.tau)
            square.append(((args.tau * bias @ vectors) ** 2).sum())
            variance.append(moments.variance)
    found = {"l1_bias": float(np.mean(l1))}
    if variance:
        means = float(np.mean(square)), float(np.mean(variance))
        found |= {"h_squared_bias": means[0], "h_variance": means[1], "h_mse": sum(means)}
    return found


def find_front(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that no other one beats in both time and bias, by rising time."""
    front: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda r: (r["time_us"], r["l1_bias"])):
        if not front or row["l1_bias"] < front[-1]["l1_bias"]:
            front.append(row)
    return front


def describe(args: argparse.Namespace) -> str:
    """Return the settings in one line, without anything of this machine but its threads."""
    source = "Python's standard library" if args.corpus is None else args.corpus.name
    blas = os.environ.get("OPENBLAS_NUM_THREADS", "as many as it takes")
    return (
        f"{source}: a batch of {args.num_examples} next-word examples, the bias over "
        f"{min(NUM_BIASES, args.num_examples)} of them, d = {args.dim} (PPMI and SVD), "
        f"tau = {args.tau:g}, m = {args.num_sampled}, float32, "
        f"{num_threads()} threads, of BLAS {blas}, median of {args.num_repeats} draws for the "
        f"batch; seed {args.seed}. D: frequencies, leaf: classes in a bucket, K: candidates, "
        f"w: weight of the first in a mixture. Quadratic: {ALPHA:g} o^2 + 1. "
        "Two-pass: new candidates for each batch, bias given one set of them."
    )


def draw(path: Path, rows: list[dict[str, Any]], description: str) -> None:
    """Draw the bias against the time, and the front, for each number of classes."""
    sizes = list(dict.fromkeys(row["num_classes"] for row in rows))
    figure = Figure(figsize=(3.0 + 6.5 * len(sizes), 6.8), dpi=100)
    panels = figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
    names: dict[str, Any] = {}
    floor = min(row["l1_bias"] for row in rows if row["sampler"] != "softmax") / 4.0
    for axes, n in zip(panels, sizes, strict=True):
        draw_panel(axes, [row for row in rows if row["num_classes"] == n], floor)
        axes.set_title(f"n = {n:,} classes", fontsize=11)
        names |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    panels[0].set_ylabel("mean L1 norm of E[p'] - p (probability)")
    panels[-1].legend(
        names.values(), names, frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1)
    )
    figure.suptitle("Exact bias of the gradient in the logits, and what it costs", fontsize=12)
    width = 55 + 75 * len(sizes)
    figure.text(0.01, 0.015, textwrap.fill(description, width), fontsize=8, color="0.3")
    figure.tight_layout(rect=(0.0, 0.09, 1.0, 1.0))
    figure.savefig(path, metadata={"Software": None})


def draw_panel(axes: Any, rows: list[dict[str, Any]], floor: float) -> None:
    """Draw the points of one number of classes, down to a bias of `floor`."""
    exact = next(row for row in rows if row["sampler"] == "softmax")
    others = [row for row in rows if row is not exact]
    for sampler, (colour, marker) in STYLES.items():
        for leaf, face in (("", colour), ("softmax", colour), ("kernel", "white")):
            points = [r for r in others if (r["sampler"], r["leaf"]) == (sampler, leaf)]
            if points:
                x, y = ([r[k] for r in points] for k in ("time_us", "l1_bias"))
                label = f"{sampler}, {leaf} leaves" if leaf else sampler
                big = 12 if sampler == "clusters" else 6
                style = {"linestyle": "", "markersize": big, "markerfacecolor": face}
                axes.loglog(x, y, marker, color=colour, label=label, zorder=3, **style)
    end = exact["time_us"], floor * 1.1
    axes.plot(*end, "v", color=SOFTMAX, markersize=10, zorder=4)
    note = f"softmax: no bias\n(computed: {exact['l1_bias']:.0e}, rounding)"
    axes.annotate(
        note, end, (-8, 2), textcoords="offset points", color=SOFTMAX, fontsize=9, ha="right"
    )
    place_front(axes, find_front(rows), floor)
    axes.set_ylim(floor, None)
    axes.set_xlim(min(row["time_us"] for row in rows) / 3.0, None)
    axes.set_xlabel("time of drawing the negatives of an example (microseconds)")
    axes.grid(True, which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def place_front(axes: Any, front: list[dict[str, Any]], floor: float) -> None:
    """Draw the front, and name its points below it, where no point can be."""
    x, y = ([row[k] for row in front] for k in ("time_us", "l1_bias"))
    steps = np.maximum(y, floor)
    axes.plot(x, steps, drawstyle="steps-post", color="0.6", linewidth=1.2, zorder=1)
    last, gap = np.inf, (front[0]["l1_bias"] / floor) ** LABEL_GAP
    for row in front:
        if row["sampler"] in STYLES:
            last = min(row["l1_bias"] / 1.1, last / gap)
            text = " ".join(filter(None, (row["sampler"], row["leaf"], row["setting"])))
            axes.annotate(
                text,
                (row["time_us"], row["l1_bias"]),
                (row["time_us"] / 1.15, last),
                arrowprops={
                    "arrowstyle": "-",
                    "color": "0.6",
                    "linewidth": 0.6,
                    "shrinkB": 3,
                    "relpos": (1, 1),
                },
                fontsize=8,
                ha="right",
                va="top",
                color=STYLES[row["sampler"]][0],
            )


if __name__ == "__main__":
    main()
