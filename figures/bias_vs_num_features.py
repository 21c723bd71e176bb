"""How the bias of random features falls with their number D, on average over the features.

Writes ``bias_vs_num_features.csv`` and ``bias_vs_num_features.png`` beside this script, for words
of a text and for random unit vectors. The exact bias of one draw of the features is averaged over
draws, with standard errors. It is compared with results that need no draws: the bias of the kernel,
which is the limit of many features; the expansion in the errors of the estimates; the mean leading
term of positive features; and bounds. The committed files take about five minutes on one core::

    python figures/bias_vs_num_features.py

The text is the source of the Python standard library, unless ``--corpus`` names another.

References
----------
A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019, section 3.2.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from feature_moments import covariance, variance
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray
from random_q import positive_features_bias, random_q_bias
from scipy.special import softmax
from tables import write_csv
from tqdm import tqdm
from words import next_words

import samplesoft
from samplesoft._files import atomic_write
from samplesoft.data import Embeddings
from samplesoft.feature_maps import PositiveRandomFeatures, RandomFourierFeatures
from samplesoft.samplers import RFSoftmaxSampler

FloatArray = NDArray[np.float64]

# model's tau, and the sharpness of the features
FOURIER = ((10.0, 1.0), (10.0, 4.0), (10.0, 10.0), (1.0, 1.0))
POSITIVE = ((10.0, 1.0), (10.0, 4.0))
OURS = 4.0  # the sharpness for which a tree is drawn too
COLOURS = {1.0: "#0072B2", 4.0: "#D55E00", 10.0: "#009E73"}  # Okabe and Ito's
FIRST = 16  # features; from one number to the next they double
TREE = 4096  # most frequencies of a tree
BLOCK = 4096  # features at a time
FIELDS = (
    "data",
    "features",  # fourier and positive: q in proportion to estimates; tree: as a sampler has it
    "tau",
    "sharpness",  # nu, or tau, of the kernel that the features estimate
    "num_features",
    "l1_bias_mean",  # over the draws and the examples: L1 norm of the bias of one q
    "l1_bias_error",
    "label_bias_mean",  # E[p'_t] - p_t
    "label_bias_error",
    "kernel_l1_bias",  # of the kernel itself
    "expanded_l1_bias",  # to second order in the errors of the estimates
    "expanded_label_bias",
    "largest_error",  # of an estimate, in standard deviations divided by its kernel
    "leading_l1_bias",  # positive features: norm of the mean leading term, and its expansion
    "expanded_leading_l1_bias",
    "drawn_leading_l1_bias",
    "l1_bias_bound",
)


def main() -> None:
    """Read the command line, compute, write both files."""
    args = parse_arguments()
    rows = [row for name, some in examples(args).items() for row in compute(name, some, args)]
    settings = describe(args)
    folder: Path = args.output
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "bias_vs_num_features.csv", rows, FIELDS, settings)
    with atomic_write(folder / "bias_vs_num_features.png") as path:
        draw(path, rows, settings)
    print(f"wrote {folder / 'bias_vs_num_features.csv'} and .png")


def parse_arguments() -> argparse.Namespace:
    """Return the settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--corpus", type=Path, help="plain text, also .gz, .xz or .bz2")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--num-examples", type=int, default=6)
    parser.add_argument("--num-sampled", type=int, default=100)
    parser.add_argument("--num-draws", type=int, default=30, help="of the features")
    parser.add_argument("--max-num-features", type=int, default=1 << 16)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def examples(args: argparse.Namespace) -> dict[str, Embeddings]:
    """Return contexts, class vectors and labels of both kinds."""
    words = next_words(args.corpus, args.num_classes, args.dim, args.num_examples, args.seed)
    rng = np.random.default_rng(args.seed)
    rows = rng.normal(size=(args.num_examples + args.num_classes, args.dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    h, classes = rows[: args.num_examples], rows[args.num_examples :]
    labels = (h @ classes.T).argmax(axis=1)  # the nearest class
    return {"words": words, "random vectors": Embeddings(h, classes, labels)}


def compute(name: str, some: Embeddings, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of one set of examples."""
    for tau, nu in FOURIER:
        yield from fourier(name, some, tau, nu, args)
        if nu == OURS:
            yield from tree(name, some, tau, nu, args)
    for tau, sharpness in POSITIVE:
        yield from positive(name, some, tau, sharpness, args)


def fourier(
    name: str, some: Embeddings, tau: float, nu: float, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of frequencies."""
    h, classes, m = some.h, some.class_embeddings, args.num_sampled
    logits, floor = tau * h @ classes.T, np.exp(-2.0 * nu)
    drawn: dict[int, list[Any]] = {}
    for seed in tqdm(range(args.num_draws), desc=f"{name}, tau = {tau:g}, nu = {nu:g}"):
        make = partial(RandomFourierFeatures, classes.shape[1], nu=nu)
        for num, estimates in running_means(make, some, seed, args.max_num_features):
            q = np.maximum(estimates, floor)
            q /= q.sum(axis=1, keepdims=True)
            drawn.setdefault(num, []).append(samplesoft.exact_bias(logits, some.labels, q, m).bias)
    for num, biases in drawn.items():
        phi = RandomFourierFeatures(classes.shape[1], num, nu)
        expanded, bounds = [], []
        for o, label, x in zip(logits, some.labels, h, strict=True):
            kernel = phi.kernel(x, classes)[0]
            (spread,) = variance(phi, x, classes)
            given = o, label, kernel
            expanded.append(random_q_bias(*given, covariance(phi, x, classes), m))
            bounds.append(cosine_bound(*given, spread, m, num, phi.floor))
        yield {
            **named(name, "fourier", tau, nu, num),
            **measured(np.array(biases), some),
            "kernel_l1_bias": float(np.mean([np.abs(e.kernel_bias).sum() for e in expanded])),
            "expanded_l1_bias": float(np.mean([e.mean_norm for e in expanded])),
            "expanded_label_bias": float(
                np.mean([e.mean_bias[t] for e, t in zip(expanded, some.labels, strict=True)])
            ),
            "largest_error": max(e.largest_error for e in expanded),
            "l1_bias_bound": float(np.mean(bounds)),
        }


def cosine_bound(
    logits: FloatArray,
    label: int,
    kernel: FloatArray,
    variance: FloatArray,
    m: int,
    num_features: int,
    floor: float,
) -> float:
    """Bound the mean L1 norm of the bias for every m, below (B59) of ``samplesoft/bias/README.md``.

    Estimates that are all close to their kernel, but for a chance by Bernstein's inequality, give
    a proposal close to the kernel's; the chance that bounds most is taken.
    """
    drawn = np.arange(len(logits)) != label
    p = softmax(logits)[drawn]
    q = kernel[drawn] / kernel[drawn].sum()
    z_t, r = p.sum(), p / q
    errors, terms = np.sqrt(variance) / kernel, 2.0 / num_features / kernel
    best = 2.0
    for chance in np.geomspace(1e-16, 0.5, 64):
        exponent = np.log(2.0 * len(logits) / chance)
        part = terms * exponent / 3.0
        within = part + np.sqrt(part**2 + 2.0 * exponent * errors**2)
        if not np.all((within < 1.0) & (floor <= (1.0 - within) * kernel)):
            continue
        own, most = errors[drawn], within[drawn]
        apart = np.abs(r - z_t) + r * (own + q @ own) / (1.0 - most)
        deviation = np.sqrt((q * (1.0 + most) / (1.0 - q @ most)) @ apart**2)
        norm = deviation * (deviation + np.hypot(deviation, z_t)) / m
        best = min(best, float(norm + 2.0 * chance))
    return best


def tree(
    name: str, some: Embeddings, tau: float, nu: float, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of frequencies of the sampler of the paper."""
    logits = tau * some.h @ some.class_embeddings.T
    for num in numbers(min(TREE, args.max_num_features))[::2]:
        biases = []
        for seed in range(args.num_draws):
            q = RFSoftmaxSampler(
                some.class_embeddings,
                nu=nu,
                num_features=num,
                leaf="kernel",
                leaf_size=1,
                rng=seed,
            )
            found = samplesoft.exact_bias(logits, some.labels, q, args.num_sampled, h=some.h)
            biases.append(found.bias)
        yield {**named(name, "tree", tau, nu, num), **measured(np.array(biases), some)}


def positive(
    name: str, some: Embeddings, tau: float, sharpness: float, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of positive features, of the first example."""
    one = Embeddings(some.h[:1], some.class_embeddings, some.labels[:1])
    x, label, classes, m = one.h[0], one.labels[0], one.class_embeddings, args.num_sampled
    logits = tau * classes @ x
    drawn: dict[int, list[Any]] = {}
    for seed in range(args.num_draws):
        make = partial(PositiveRandomFeatures, len(x), tau=sharpness)
        for num, estimates in running_means(make, one, seed, args.max_num_features):
            q = estimates[0] / estimates[0].sum()
            exact = samplesoft.exact_bias(logits, label, q, m).bias
            drawn.setdefault(num, []).append(
                (exact, samplesoft.asymptotic_bias(logits, label, q) / m)
            )
    for num in tqdm(list(drawn)[::2], desc=f"{name}, positive, tau = {sharpness:g}"):
        phi = PositiveRandomFeatures(len(x), num, sharpness)
        kernel, errors = phi.kernel(x, classes)[0], covariance(phi, x, classes)
        leading = samplesoft.asymptotic_bias(logits, label, kernel / kernel.sum())
        far = 10**9  # draws, where the bias is its leading term
        second = far * random_q_bias(logits, label, kernel, errors, far).correction
        exact = positive_features_bias(
            logits, label, x, classes, m, tau=sharpness, num_features=num
        )
        exacts, leadings = (np.array(part) for part in zip(*drawn[num], strict=True))
        yield {
            **named(name, "positive", tau, sharpness, num),
            **measured(exacts[:, None], one),
            "leading_l1_bias": float(np.abs(exact.leading_bias).sum()),
            "expanded_leading_l1_bias": float(np.abs(leading + second).sum() / m),
            "drawn_leading_l1_bias": float(np.abs(leadings.mean(axis=0)).sum()),
            "l1_bias_bound": exact.norm_bound,
        }


def numbers(most: int) -> list[int]:
    """Return the numbers of features."""
    return [FIRST << k for k in range(40) if FIRST << k <= most]


def running_means(
    make: Callable[..., Any], some: Embeddings, seed: int, most: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each number of features, and estimates (B, n) with those before and as many more."""
    rng = np.random.default_rng((seed, 1))
    h, classes = (x.astype(np.float32) for x in (some.h, some.class_embeddings))
    total, have = np.zeros((len(h), len(classes))), 0
    for num in numbers(most):
        while have < num:
            more = min(num - have, BLOCK)
            phi = make(more, rng=rng)
            total += more * (phi.transform(h) @ phi.transform(classes).T)
            have += more
        yield num, total / num


def named(
    name: str, features: str, tau: float, sharpness: float, num_features: int
) -> dict[str, Any]:
    """Return the first columns."""
    return dict(zip(FIELDS, (name, features, tau, sharpness, num_features), strict=False))


def measured(biases: np.ndarray, some: Embeddings) -> dict[str, float]:
    """Return means over draws and examples of biases (S, B, n), and errors over the draws."""
    norms = np.abs(biases).sum(axis=2).mean(axis=1)
    own = biases[:, np.arange(len(some.labels)), some.labels].mean(axis=1)
    root = len(biases) ** 0.5
    return {
        "l1_bias_mean": float(norms.mean()),
        "l1_bias_error": float(norms.std(ddof=1) / root),
        "label_bias_mean": float(own.mean()),
        "label_bias_error": float(own.std(ddof=1) / root),
    }


def describe(args: argparse.Namespace) -> str:
    """Return the settings in one line, without anything of this machine."""
    source = "Python's standard library" if args.corpus is None else args.corpus.name
    return (
        f"words of {source} (PPMI and SVD), and random unit vectors: n = {args.num_classes:,}, "
        f"d = {args.dim}, m = {args.num_sampled}; {args.num_examples} examples (1 for positive "
        f"features); {args.num_draws} draws of the features, bars of two standard errors; "
        f"seed {args.seed}"
    )


def draw(path: Path, rows: list[dict[str, Any]], settings: str) -> None:
    """Draw a row of three panels for each set of examples."""
    figure = Figure(figsize=(13.0, 9.2), dpi=100)
    *panels, legends = figure.subplots(3, 3, height_ratios=(1.0, 1.0, 0.46))
    for line, name in zip(panels, dict.fromkeys(row["data"] for row in rows), strict=True):
        line[0].set_ylabel(f"{name}\nL1 norm of E[p'] - p")
        own = [row for row in rows if row["data"] == name]
        draw_kernels(line[0], [row for row in own if row["tau"] != 1.0])
        draw_rates(line[1], [row for row in own if row["tau"] == 1.0])
        draw_positive(line[2], [row for row in own if row["features"] == "positive"])
    titles = (
        r"RF-softmax of a model with $\tau$ = 10",
        r"Kernel and softmax the same: $\nu = \tau$ = 1",
        r"Positive features, $\tau$ = 10: term of order 1/m",
    )
    for axes, title in zip(panels[0], titles, strict=True):
        axes.set_title(title, fontsize=11)
    for axes in (*panels[0], *panels[1]):
        axes.set(xscale="log", yscale="log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(True, which="major", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for axes, place in zip(panels[1], legends, strict=True):
        axes.set_xlabel("features, D")
        place.axis("off")
        known = axes.get_legend_handles_labels()
        legend = place.legend(*known, loc="upper center", frameon=False, fontsize=9)
        legend.set_in_layout(False)  # or all rows would be as far apart as it is high
    figure.text(0.01, 0.012, textwrap.fill(settings, 180), fontsize=8, color="0.3")
    figure.tight_layout(rect=(0.0, 0.04, 1.0, 1.0))
    figure.savefig(path, metadata={"Software": None})


def column(rows: list[dict[str, Any]], key: str) -> np.ndarray:
    """Return a column as numbers."""
    return np.array([row[key] for row in rows], float)


def points(axes: Any, rows: list[dict[str, Any]], key: str, **style: Any) -> None:
    """Draw means over draws with bars."""
    bars = 2.0 * column(rows, f"{key}_error")
    x, y = column(rows, "num_features"), column(rows, f"{key}_mean")
    axes.errorbar(x, y, bars, fmt="o", markersize=4, linewidth=1.2, **style)


def draw_kernels(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw exact mean norms for each sharpness, with their limits and expansions."""
    for nu, colour in COLOURS.items():
        own = [r for r in rows if r["sharpness"] == nu and r["features"] == "fourier"]
        points(axes, own, "l1_bias", color=colour, label=rf"exact mean, $\nu$ = {nu:g}")
        if nu < 10.0:
            axes.axhline(own[0]["kernel_l1_bias"], color=colour, linestyle=":", linewidth=1.4)
        close = [r for r in own if r["largest_error"] < 1.0]
        x, y = column(close, "num_features"), column(close, "expanded_l1_bias")
        axes.plot(x, y, color=colour, linewidth=1.0)
    own = [r for r in rows if r["features"] == "tree"]
    label = rf"exact mean, draws by a tree, $\nu$ = {OURS:g}"
    style = {"color": COLOURS[OURS], "markerfacecolor": "white", "marker": "s", "linestyle": ""}
    axes.plot(column(own, "num_features"), column(own, "l1_bias_mean"), label=label, **style)
    axes.plot([], [], ":", color="0.3", label="limit D = ∞")
    axes.plot([], [], "-", color="0.3", linewidth=1.0, label="expansion, errors below 1")


def draw_rates(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw the norm of one q and the label's mean bias, which fall at different rates."""
    x = column(rows, "num_features")
    points(axes, rows, "l1_bias", color="#0072B2", label="L1 norm, features kept")
    axes.plot(x, column(rows, "expanded_l1_bias"), color="#0072B2", linewidth=1.0)
    points(axes, rows, "label_bias", color="#CC79A7", label="label's bias, features redrawn")
    axes.plot(x, column(rows, "expanded_label_bias"), color="#CC79A7", linewidth=1.0)
    bound = column(rows, "l1_bias_bound")
    some = bound < 2.0
    axes.plot(x[some], bound[some], "--", color="0.4", label="bound on the L1 norm, any m")
    axes.plot([], [], "-", color="0.3", linewidth=1.0, label=r"expansions: $D^{-1/2}$ and $1/D$")


def draw_positive(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw the exact mean leading term beside what draws and the expansion say of it."""
    for sharpness in dict.fromkeys(row["sharpness"] for row in rows):
        own, colour = [r for r in rows if r["sharpness"] == sharpness], COLOURS[sharpness]
        x = column(own, "num_features")
        label = rf"mean by quadrature, features of $\tau$ = {sharpness:g}"
        axes.plot(x, column(own, "leading_l1_bias"), color=colour, linewidth=1.6, label=label)
        axes.plot(x, column(own, "drawn_leading_l1_bias"), "o", color=colour, markersize=5)
        axes.plot(x, column(own, "expanded_leading_l1_bias"), "--", color=colour, linewidth=1.0)
    axes.plot([], [], "o", color="0.3", markersize=5, label="mean over the draws")
    axes.plot([], [], "--", color="0.3", linewidth=1.0, label="expansion in 1/D")


if __name__ == "__main__":
    main()
