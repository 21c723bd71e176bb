"""Whether a gradient without bias trains better: class vectors of next words, loss by loss.

Writes ``unbiased_training.csv`` and ``unbiased_training.png`` beside this script. Contexts of a
text are fixed, and class vectors are trained from 0 by stochastic gradient descent; with the full
softmax this is a convex problem. All losses have the same mean number of draws for an example, and
each has the best of several learning rates. The result is the full softmax loss on the contexts.
The committed files come from the source of the Python standard library, half an hour on one core::

    python figures/unbiased_training.py

With ``--losses``, other losses keep their rows of the existing files. One-vs-each, a sum over n
classes, has the learning rates times 10 / n. The values u of `DoubleSumLoss` start from log n. Each
time that its context is in a batch, ``exp(u)`` moves by a fixed fraction towards its estimate from
the draws.

References
----------
J. H. Blanchet and P. W. Glynn, "Unbiased Monte Carlo for optimization and functions of
expectations via multi-level randomization", Winter Simulation Conference 2015.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from chains import BrSnisLoss
from matplotlib.figure import Figure
from tables import read_csv, write_both
from tqdm import tqdm
from unbiased import STYLES, multilevel_size
from words import next_words

from samplesoft.data import Embeddings
from samplesoft.losses import DoubleSumLoss, make_loss
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import Sampler, UniformSampler, UnigramSampler

LOSSES = ("sampled", "br-snis", "jackknife", "multilevel", "double-sum", "one-vs-each")
SHARE = 0.7  # of exp(u) that a draw replaces
FIELDS = (
    "proposal",
    "loss",
    "budget",  # draws for an example, in the mean; empty for the full softmax
    "num_sampled",
    "learning_rate",  # the best of those tried
    "full_loss",  # mean over the contexts after the last step, nats; best over the rates
)
DECAY = 500  # steps after which the learning rate is 1 / sqrt(2) of the first


def main() -> None:
    """Read the command line, train, write both files."""
    args = parse_arguments()
    data = next_words(args.corpus, args.vocabulary_size, args.dim, args.num_examples, args.seed)
    n = len(data.class_embeddings)
    proposals: dict[str, Sampler] = {
        "uniform": UniformSampler(n),
        "unigram": UnigramSampler(data.counts),
    }
    points: list[tuple[str, str, int | None]] = [("", "full", None)]
    points += [(p, loss, b) for p in proposals for b in args.budgets for loss in LOSSES]
    old = read_csv(args.output / "unbiased_training.csv")
    known = {(row["proposal"] or "", row["loss"], row["budget"]): row for row in old}
    rows = []
    for proposal, loss, budget in tqdm(points, unit="point"):
        if loss not in args.losses:
            rows += [known[key] for key in [(proposal, loss, budget)] if key in known]
            continue
        m = budget
        if loss == "multilevel" and budget is not None:
            m = multilevel_size(budget, n)
        rates = [10.0 * rate / n if loss == "one-vs-each" else rate for rate in args.rates]
        losses = [train(data, loss, proposals.get(proposal), m, rate, args) for rate in rates]
        best = int(np.argmin(losses))
        named = {"proposal": proposal, "loss": loss, "budget": budget, "num_sampled": m}
        rows.append(named | {"learning_rate": rates[best], "full_loss": losses[best]})
    description = describe(n, args)
    write_both(args.output, "unbiased_training", rows, FIELDS, description, draw(rows, description))


def parse_arguments() -> argparse.Namespace:
    """Return the settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--corpus", type=Path, help="plain text, also .gz, .xz or .bz2")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument("--vocabulary-size", type=int, default=2000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--tau", type=float, default=11.1, help="inverse temperature")
    parser.add_argument("--num-examples", type=int, default=20_000, help="contexts")
    parser.add_argument("--budgets", type=int, nargs="+", default=[20, 80, 320])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
    parser.add_argument("--num-steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    names = ("full", *LOSSES)
    parser.add_argument("--losses", nargs="+", choices=names, default=names)
    return parser.parse_args()


def train(
    data: Embeddings,
    loss: str,
    sampler: Sampler | None,
    num_sampled: int | None,
    rate: float,
    args: argparse.Namespace,
) -> float:
    """Return the full softmax loss after all steps, infinite where training fails."""
    if loss == "double-sum":
        return train_double_sum(data, sampler, num_sampled, rate, args)
    start = np.zeros(data.class_embeddings.shape)
    rng = np.random.default_rng(args.seed)
    made = BrSnisLoss(rng, tau=args.tau) if loss == "br-snis" else make_loss(loss, tau=args.tau)
    layer = SoftmaxLayer(start, made, sampler, num_sampled, shared=False)
    vectors = layer.parameters["class_embeddings"]
    for step in range(args.num_steps):
        some = rng.integers(0, len(data.h), args.batch_size)
        cache = layer.forward(data.h[some], data.labels[some], rng=rng)[1]
        ids, rows = layer.backward(cache)[1]["class_embeddings"]
        vectors[ids] -= rate / np.sqrt(1.0 + step / DECAY) * rows
    found = float(layer.evaluate(data.h, data.labels).loss)
    return found if np.isfinite(found) else np.inf


def train_double_sum(
    data: Embeddings, sampler: Any, num_sampled: Any, rate: float, args: argparse.Namespace
) -> float:
    """Return the same where each context has a number u, which is trained too."""
    vectors, rng = np.zeros(data.class_embeddings.shape), np.random.default_rng(args.seed)
    loss, log_sums = DoubleSumLoss(tau=args.tau), np.full(len(data.h), np.log(len(vectors)))
    for step in range(args.num_steps):
        some = rng.integers(0, len(data.h), args.batch_size)
        h, labels = data.h[some], data.labels[some]
        drawn = sampler.sample(h, num_sampled, exclude=labels, rng=rng)
        try:
            cache = loss.forward(h, vectors, labels, drawn, log_sums=log_sums[some])[1]
        except ValueError:  # it has diverged
            return np.inf
        gradients = loss.backward(cache)
        slopes = args.batch_size * gradients.d_log_sums
        log_sums[some] = cache.batch.log_sums + np.log1p(-SHARE * slopes)
        vectors[gradients.dW.ids] -= rate / np.sqrt(1.0 + step / DECAY) * gradients.dW.rows
    layer = SoftmaxLayer(vectors, make_loss("full", tau=args.tau))
    return float(layer.evaluate(data.h, data.labels).loss)


def describe(n: int, args: argparse.Namespace) -> str:
    """Return the settings in one line."""
    source = "Python's standard library" if args.corpus is None else args.corpus.name
    rates = ", ".join(f"{rate:g}" for rate in args.rates)
    return (
        f"{source}: {args.num_examples} contexts, n = {n}, d = {args.dim} (PPMI and SVD), "
        f"tau = {args.tau:g}; {args.num_steps} steps of {args.batch_size} examples from vectors of "
        f"0, the best of the learning rates {rates}, which fall as 1 / sqrt(1 + step / {DECAY}). "
        f"One-vs-each: rates times 10 / n. Double-sum: {SHARE:g} of exp(u) is new at each visit. "
        f"Seed {args.seed}."
    )


def draw(rows: list[dict[str, Any]], description: str) -> Figure:
    """Draw the loss that is reached against the draws."""
    proposals = list(dict.fromkeys(row["proposal"] for row in rows if row["proposal"]))
    full = next(row["full_loss"] for row in rows if row["loss"] == "full")
    figure = Figure(figsize=(4.8 * len(proposals), 4.6), dpi=100)
    panels = figure.subplots(1, len(proposals), squeeze=False)[0]
    for axes, proposal in zip(panels, proposals, strict=True):
        for loss in LOSSES:
            label, colour, marker = STYLES[loss]
            label = label.split(",")[0]
            own = [row for row in rows if (row["proposal"], row["loss"]) == (proposal, loss)]
            x, y = ([row[name] for row in own] for name in ("budget", "full_loss"))
            axes.semilogx(x, y, color=colour, marker=marker, markersize=6, label=label)
        axes.axhline(full, color="0.4", linestyle=":", label="full softmax")
        axes.set(title=f"proposal: {proposal}", xlabel="mean number of draws for an example")
        ticks = sorted({row["budget"] for row in rows if row["budget"]})
        axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
        axes.minorticks_off()
        axes.grid(True, color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("full softmax loss on the contexts (nats)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=7, frameon=False, fontsize=9)
    note = textwrap.fill(description, 60 * len(proposals), break_on_hyphens=False)
    figure.text(0.01, 0.01, note, fontsize=8, color="0.3")
    figure.tight_layout(rect=(0.0, 0.1, 1.0, 0.95))
    return figure


if __name__ == "__main__":
    main()
