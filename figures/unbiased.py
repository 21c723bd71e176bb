"""The price of no bias: variance and bias of gradients with the same number of draws, by loss.

Writes ``unbiased.csv`` and ``unbiased.png`` beside this script. For next words of a text, three
proposals and several numbers of draws: the squared bias of the gradient in h and its variance,
averaged over the examples, for sampled softmax, its jackknife, the losses "multilevel",
"one-vs-each" and `DoubleSumLoss`, and two losses by Markov chains, in ``chains.py``. All have the
same mean number of draws. The last two are simulated, the others exact. The committed files come
from the source of the Python standard library, ten minutes on one core::

    python figures/unbiased.py

With ``--losses``, other losses keep their rows of the existing files. `DoubleSumLoss` has a row
with the best u of each example, and a row with a stale u, from a model whose score differences were
smaller by a tenth. The stale u is wrong by 0.06 to 0.6, about as much as in the last steps of
``unbiased_training.py``. The gradient of one-vs-each belongs to a different loss, and is 22 to
6,900 times as long here. For each example it is multiplied by the factor that brings its mean
closest to the full gradient, which helps more than a learning rate can.

References
----------
J. H. Blanchet and P. W. Glynn, "Unbiased Monte Carlo for optimization and functions of
expectations via multi-level randomization", Winter Simulation Conference 2015.
G. Cardoso et al., "BR-SNIS: Bias Reduced Self-Normalized Importance Sampling", NeurIPS 2022.
G. Deligiannidis et al., "On importance sampling and independent Metropolis-Hastings with an
unbounded weight function", arXiv 2411.09514.
F. Fagan and G. Iyengar, "Unbiased scalable softmax optimization", arXiv 1803.08577.
M. K. Titsias, "One-vs-each approximation to softmax for scalable estimation of probabilities",
NeurIPS 2016.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from chains import BrSnisLoss, coupled_slopes
from jackknife_moments import jackknife_moments
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from multilevel_moments import expected_draws, multilevel_moments
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax
from sums_moments import double_sum_moments, one_vs_each_moments
from tables import read_csv, write_both
from tqdm import tqdm
from words import next_words

from samplesoft import exact_gradient_moments
from samplesoft.data import Embeddings
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import ClusterSampler, Sampler, UniformSampler, UnigramSampler
from samplesoft.schemes import last_level

FloatArray = NDArray[np.float64]

# loss: name in the figure, colour (Okabe and Ito's, safe for the colour-blind), marker
STYLES = {
    "sampled": ("sampled softmax", "#000000", "o"),
    "br-snis": ("BR-SNIS", "#56B4E9", "v"),
    "jackknife": ("jackknife", "#E69F00", "s"),
    "multilevel": ("multilevel", "#009E73", "D"),
    "coupled": ("coupled chains", "#CC79A7", "X"),
    "double-sum": ("double-sum, best u", "#0072B2", "P"),
    "double-sum-stale": ("double-sum, stale u", "#882255", "^"),
    "one-vs-each": ("one-vs-each, rescaled", "#D55E00", "h"),
}
EXACT = {"sampled": exact_gradient_moments, "jackknife": jackknife_moments}
UNBIASED = {"coupled": 0.45, "double-sum": 0.95, "multilevel": 1.7}  # places in the margin
STALE = 0.9  # times the scores of which u is stale
FIELDS = (
    "proposal",
    "loss",
    "budget",  # draws for an example, in the mean
    "num_sampled",  # that the loss is asked for
    "num_draws",  # and takes, in the mean; a batch of one example
    "h_squared_bias",  # of the gradient in h, mean over the examples
    "h_squared_bias_stderr",  # 0 where it is exact
    "h_variance",
    "h_variance_stderr",
)
BATCH = 256  # trials of BR-SNIS at a time
PILOT = 100  # trials that find the number of draws in a set of a chain
STEPS = np.geomspace(1.0, 1e6, 61)  # numbers of gradients that are averaged


@dataclass(frozen=True)
class Example:
    """One example and a proposal for it."""

    h: FloatArray  # (d,)
    label: int
    vectors: FloatArray  # (n, d)
    tau: float
    sampler: Sampler

    @property
    def logits(self) -> FloatArray:
        """Scores (n,)."""
        return self.tau * self.vectors @ self.h

    @property
    def q(self) -> FloatArray:
        """The law of a draw (n,)."""
        probs: FloatArray = self.sampler.probs(self.h[None], exclude=np.array([self.label]))
        return np.atleast_2d(probs)[0]

    @property
    def gradient(self) -> FloatArray:
        """The full gradient in h (d,)."""
        return self.tau * (softmax(self.logits) @ self.vectors - self.vectors[self.label])


class Counter:
    """A sampler that counts its draws."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler, self.count = sampler, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def sample(self, *args: Any, **options: Any) -> Any:
        """Draw, and count."""
        draw = self._sampler.sample(*args, **options)
        self.count += draw.ids.size
        return draw


def main() -> None:
    """Read the command line, compute, write both files."""
    args = parse_arguments()
    data = next_words(args.corpus, args.vocabulary_size, args.dim, args.num_examples, args.seed)
    old = [row for row in read_csv(args.output / "unbiased.csv") if row["loss"] not in args.losses]
    rows = [*old, *measure(data, args)]
    places = {loss: place for place, loss in enumerate(STYLES)}
    proposals = list(dict.fromkeys(row["proposal"] for row in rows))
    rows.sort(key=lambda x: (proposals.index(x["proposal"]), x["budget"], places[x["loss"]]))
    description = describe(data, args)
    write_both(args.output, "unbiased", rows, FIELDS, description, draw(rows, description))


def parse_arguments() -> argparse.Namespace:
    """Return the settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--corpus", type=Path, help="plain text, also .gz, .xz or .bz2")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument("--vocabulary-size", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--tau", type=float, default=11.1, help="inverse temperature")
    parser.add_argument("--num-examples", type=int, default=8)
    parser.add_argument("--budgets", type=int, nargs="+", default=[32, 128, 512, 2048])
    parser.add_argument("--num-trials", type=int, default=2048, help="of simulations, an example")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", nargs="+", choices=STYLES, default=list(STYLES))
    return parser.parse_args()


def measure(data: Embeddings, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table."""
    vectors = data.class_embeddings.astype(np.float64)
    proposals: dict[str, Sampler] = {
        "uniform": UniformSampler(len(vectors)),
        "unigram": UnigramSampler(data.counts),
        "clusters": ClusterSampler(vectors, tau=args.tau, leaf_size=16, rng=args.seed),
    }
    bar = tqdm(total=len(proposals) * len(args.budgets) * len(args.losses), unit="point")
    for name, sampler in proposals.items():
        examples = [
            Example(h.astype(np.float64), int(label), vectors, args.tau, sampler)
            for h, label in zip(data.h, data.labels, strict=True)
        ]
        for budget in args.budgets:
            for loss in args.losses:
                found = [measure_one(example, loss, budget, args) for example in examples]
                yield {"proposal": name, "loss": loss, "budget": budget} | average(found)
                bar.update()
    bar.close()


def measure_one(
    example: Example, loss: str, budget: int, args: argparse.Namespace
) -> dict[str, float]:
    """Return a row for one example: exact where that is known, else by trials."""
    n, tau = len(example.vectors), example.tau
    case = example.logits, example.label, example.q
    if loss in EXACT:
        moments = EXACT[loss](*case, budget, example.vectors, tau=tau)
        return row(budget, budget, moments.squared_bias, moments.variance)
    if loss == "multilevel":
        m = multilevel_size(budget, n)
        levels = multilevel_moments(*case, m, example.vectors, tau=tau)
        return row(m, levels.num_draws, 0.0, levels.variance)
    if loss in ("double-sum", "double-sum-stale", "one-vs-each"):
        return row(budget, budget, *moments_of_sums(example, loss, budget))
    if loss == "br-snis":
        return simulate(example, loss, budget, args.num_trials, args.seed)
    m = max(budget // 4, 1)
    for _ in range(2):  # a chain has as many sets as it needs
        pilot = simulate(example, loss, m, PILOT, args.seed)
        m = max(round(m * budget / pilot["num_draws"]), 1)
    return simulate(example, loss, m, args.num_trials, args.seed + 1)


def moments_of_sums(example: Example, loss: str, m: int) -> tuple[float, float]:
    """Return the squared bias and the variance of a loss that is a sum over the classes."""
    case = example.logits, example.label, example.q, m, example.tau * example.vectors
    full, scale = example.gradient, 1.0
    if loss == "one-vs-each":
        mean, variance = one_vs_each_moments(*case)
        scale = float(mean @ full / (mean @ mean))
    else:
        scores = (1.0 if loss == "double-sum" else STALE) * example.logits
        log_sum = logsumexp(scores) - scores[example.label]
        mean, variance = double_sum_moments(*case, log_sum)
    bias = scale * mean - full
    return (0.0 if loss in UNBIASED else float(bias @ bias)), scale**2 * variance


def row(m: int, num_draws: float, squared_bias: float, variance: float) -> dict[str, float]:
    """Return what is known exactly."""
    return {
        "num_sampled": m,
        "num_draws": num_draws,
        "h_squared_bias": squared_bias,
        "h_squared_bias_stderr": 0.0,
        "h_variance": variance,
        "h_variance_stderr": 0.0,
    }


def multilevel_size(budget: int, n: int) -> int:
    """Return the size of a block whose levels come nearest to so many draws in the mean."""
    sizes = range(1, budget + 1)
    return min(sizes, key=lambda m: abs(expected_draws(m, last_level(m, n), n - 1) - budget))


def simulate(example: Example, loss: str, m: int, num_trials: int, seed: int) -> dict[str, float]:
    """Return bias and variance by trials, with standard errors."""
    sampler, rng = Counter(example.sampler), np.random.default_rng(seed)
    trials = []
    if loss == "coupled":
        h, labels = example.h[None], np.array([example.label])

        def new_set() -> tuple[Any, FloatArray]:
            drawn = sampler.sample(h, m, exclude=labels, rng=rng)
            return drawn.ids[0], drawn.log_q[0]

        for _ in range(num_trials):
            slopes = coupled_slopes(new_set, example.logits, example.label, rng)
            trials.append(example.tau * slopes[None] @ example.vectors - example.gradient)
    else:
        rivals = BrSnisLoss(rng, tau=example.tau)
        layer = SoftmaxLayer(example.vectors, rivals, sampler, num_sampled=m, shared=False)
        h, labels = np.tile(example.h, (BATCH, 1)), np.full(BATCH, example.label)
        for _ in range(-(-num_trials // BATCH)):
            cache = layer.forward(h, labels, rng=rng)[1]
            trials.append(layer.backward(cache)[0] * BATCH - example.gradient)
    errors = np.concatenate(trials)
    count, mean = len(errors), errors.mean(axis=0)
    spread = errors - mean
    squares = np.einsum("td,td->t", spread, spread)
    variance = squares.sum() / (count - 1)
    # the mean of trials varies by variance / count, in which their covariance says how
    along = spread @ mean
    noise = np.einsum("td,sd->ts", spread[:500], spread[:500])
    overlap = (noise**2).sum() - (np.diag(noise) ** 2).sum()
    overlap /= len(noise) * (len(noise) - 1)  # the square of the norm of the covariance
    bias_error = np.sqrt(4.0 * along.var() / count + 2.0 * overlap / count**2)
    return {
        "num_sampled": m,
        "num_draws": sampler.count / count,
        "h_squared_bias": float(mean @ mean - variance / count),
        "h_squared_bias_stderr": float(bias_error),
        "h_variance": float(variance),
        "h_variance_stderr": float(squares.std() / np.sqrt(count)),
    }


def average(found: list[dict[str, float]]) -> dict[str, float]:
    """Return the means over the examples, and standard errors of these."""
    columns = {name: np.array([one[name] for one in found]) for name in found[0]}
    return {
        name: float(np.sqrt((column**2).sum()) / len(column))
        if name.endswith("stderr")
        else float(column.mean())
        for name, column in columns.items()
    }


def describe(data: Embeddings, args: argparse.Namespace) -> str:
    """Return the settings in one line."""
    source = "Python's standard library" if args.corpus is None else args.corpus.name
    return (
        f"{source}: {args.num_examples} next-word examples, n = {len(data.class_embeddings)}, "
        f"d = {args.dim} (PPMI and SVD), tau = {args.tau:g}; means over the examples. "
        f"{args.num_trials} trials an example of coupled and br-snis (2 rounds, the first left "
        f"out) with bars of two standard errors, the others exact; seed {args.seed}. Coupled: "
        "draws of a batch of one. Labels at the points: mean number of draws. BR-SNIS "
        "below its noise: at the upper end of its bar, and not among the averages. Stale: u of "
        f"scores {STALE:g} times as far apart. One-vs-each: rescaled by the best factor for "
        "each example."
    )


def draw(rows: list[dict[str, Any]], description: str) -> Figure:
    """Draw variance times draws against bias, and what is left after averaging gradients."""
    proposals = list(dict.fromkeys(row["proposal"] for row in rows))
    figure = Figure(figsize=(4.6 * len(proposals), 8.8), dpi=100)
    panels = figure.subplots(2, len(proposals), squeeze=False)
    budgets = sorted({row["budget"] for row in rows})
    middle = budgets[(len(budgets) - 1) // 2]
    for column, name in zip(panels.T, proposals, strict=True):
        own = [row for row in rows if row["proposal"] == name]
        draw_products(column[0], own)
        column[0].set_title(f"proposal: {name}", fontsize=11, pad=16)
        draw_averages(column[1], [row for row in own if row["budget"] == middle])
        column[1].set_title(f"{middle} draws each", fontsize=10)
    panels[0, 0].set_ylabel("variance of the gradient in h times draws")
    panels[1, 0].set_ylabel("mean squared error of their average")
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="-" if loss in EXACT else "")
        for loss, (_, colour, marker) in STYLES.items()
    ]
    labels = [label for label, _, _ in STYLES.values()]
    figure.legend(handles, labels, loc="upper center", ncols=8, frameon=False, fontsize=9)
    figure.text(0.01, 0.01, textwrap.fill(description, 210), fontsize=8, color="0.3")
    figure.tight_layout(rect=(0.0, 0.05, 1.0, 0.96))
    return figure


def draw_products(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw variance times draws against the bias; losses without one stand at the left."""
    biased = [row for row in rows if row["loss"] not in UNBIASED]
    least = min(row["h_squared_bias"] for row in biased if row["loss"] in EXACT) ** 0.5
    none = least / 30.0
    for loss, (label, colour, marker) in STYLES.items():
        own = [row for row in rows if row["loss"] == loss]
        squares = np.array([row["h_squared_bias"] for row in own])
        reach = 2.0 * np.array([row["h_squared_bias_stderr"] for row in own])
        draws = np.array([row["num_draws"] for row in own])
        y = draws * [row["h_variance"] for row in own]
        dy = 2.0 * draws * [row["h_variance_stderr"] for row in own]
        if loss in UNBIASED:
            x = np.full(len(own), none * UNBIASED[loss])
            low = high = x
        else:
            low, high = np.sqrt(np.maximum([squares - reach, squares + reach], least**2))
            x = np.where(squares > reach, np.sqrt(np.maximum(squares, least**2)), high)
        style: dict[str, Any] = {"color": colour, "markersize": 5, "linewidth": 1, "capsize": 2}
        style["linestyle"] = "-" if loss in EXACT else ""
        axes.errorbar(x, y, dy, [x - low, high - x], marker=marker, label=label, **style)
        for point, height, row in zip(x, y, own, strict=True):
            if loss == "sampled" or (loss == "multilevel" and row in (own[0], own[-1])):
                offset = (0, -12) if loss == "sampled" else (6, -3)
                last = row is own[-1]  # the most draws, next to which points are close
                axes.annotate(
                    str(row["budget"]),
                    (point, height),
                    offset,
                    textcoords="offset points",
                    fontsize=8,
                    ha="left" if loss != "sampled" else "right" if last else "center",
                )
    axes.axvspan(none / 4.0, none * 3.0, color="0.93", zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="norm of the bias of the gradient in h")
    axes.set_xlim(none / 4.0, None)
    axes.margins(y=0.1)
    low, high = axes.get_ylim()
    if high < 30.0 * low:  # less than two powers of ten have few ticks
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.annotate(
        "no bias",
        (none, 1.0),
        (0, 4),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        fontsize=8,
        ha="center",
        color="0.3",
    )
    finish(axes)


def draw_averages(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw the squared error of the mean of many gradients of one example."""
    for row in rows:
        label, colour, _ = STYLES[row["loss"]]
        if row["loss"] == "br-snis" and row["h_squared_bias"] < 2.0 * row["h_squared_bias_stderr"]:
            continue  # its bias is not known
        square = 0.0 if row["loss"] in UNBIASED else row["h_squared_bias"]
        left = row["h_variance"] / STEPS + square
        # where losses agree, the line below shows between the dashes
        dashes = "--" if row["loss"].startswith("double-sum") else "-"
        axes.loglog(STEPS, left, dashes, color=colour, linewidth=1.5, label=label)
    axes.set_xlabel("gradients of an example that are averaged")
    finish(axes)


def finish(axes: Any) -> None:
    """Set what all panels share."""
    axes.grid(True, which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
