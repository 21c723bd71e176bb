"""Partial FC without a correction: the exact bias of its gradient by the fraction of classes drawn.

Writes ``partial_fc.csv`` and ``partial_fc.png`` beside this script. Partial FC keeps the classes of
face recognition in shards; a step takes the labels, and from each shard a fraction of the other
classes, uniformly and without replacement. The softmax is over these classes alone: a draw is not
divided by the fraction. Users report a lower accuracy with small fractions. The script computes the
biases of this gradient, and of the corrected gradient, on two problems:

- next words of a text, tau = 11.1;
- faces as in the middle of ArcFace training: class centres are random, cosines are multiplied by
  64, and the margin adds 0.5 to the angle of 40 to 58 degrees between a face and its centre, so
  that the label's probability can be anything from 0 to 1.

Only the problems are sampled. The other labels of the batch, which are also in each softmax, are
left out, because they are few. The committed files come from the training text of the Penn
Treebank, in five minutes on two cores::

    python figures/partial_fc.py --corpus ptb.train.txt.xz

Without ``--corpus`` the text is the source of the Python standard library.

References
----------
X. An et al., "Partial FC: Training 10 Million Identities on a Single Machine", 2020, section 3.
J. Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tables import write_both
from tqdm import tqdm
from words import next_words

from samplesoft.bias import stratified_bias

TAU, SCALE, MARGIN = 11.1, 64.0, 0.5
DEGREES = 40.0, 58.0  # of a face and its centre
LINES = {"published": "as published", "corrected": "corrected"}
COLOURS = {"published": "#D55E00", "corrected": "#0072B2"}
TITLES = {
    "words": f"next words, {TAU:g} times the cosine",
    "faces": f"faces, {SCALE:g} times the cosine, margin {MARGIN:g}",
}
FIELDS = (
    "problem",
    "rate",  # of the classes of a shard that are drawn
    "line",
    "relative_bias_mean",  # over examples: L1 norm of the bias, over that of the gradient
    "relative_bias_worst",
    "pull_mean",  # what is left of the label's gradient, 1 for all
    "pull_least",
    "loss_bias_mean",  # nats
    "label_prob_mean",
)


def main() -> None:
    """Read the command line, compute, write both files."""
    args = parse_arguments()
    problems = {"words": words(args), "faces": faces(args)}
    rows = [row for name in problems for row in compute(name, *problems[name], args)]
    what = (
        f"{args.num_classes:,} classes in {args.num_shards} shards, {args.num_examples} examples "
        f"of each problem, seed {args.seed}"
    )
    write_both(args.output, "partial_fc", rows, FIELDS, what, drawn(rows))


def parse_arguments() -> argparse.Namespace:
    """Return the settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--corpus", type=Path, help="plain text, also .gz, .xz or .bz2")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument("--num-classes", type=int, default=4000)
    parser.add_argument("--num-shards", type=int, default=8)
    parser.add_argument("--num-examples", type=int, default=12)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.03, 0.1, 0.3])
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def words(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return logits (B, n) and labels (B,) of next words."""
    found = next_words(args.corpus, args.num_classes, 64, args.num_examples, args.seed)
    return TAU * found.h @ found.class_embeddings.T, found.labels


def faces(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return logits (B, n) and labels (B,) of faces: cosines with random centres, and a margin."""
    rng = np.random.default_rng(args.seed)
    labels = rng.choice(args.num_classes, args.num_examples)
    # of unit vectors with 512 coordinates
    cosines = rng.normal(scale=512**-0.5, size=(args.num_examples, args.num_classes))
    angles = np.radians(np.linspace(*DEGREES, args.num_examples))
    cosines *= np.sin(angles)[:, None]
    cosines[np.arange(args.num_examples), labels] = np.cos(angles + MARGIN)
    return SCALE * cosines, labels


def compute(
    name: str, logits: np.ndarray, labels: np.ndarray, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return a row for each rate and line, exact for each example."""
    n = logits.shape[1]
    shards = np.random.default_rng(args.seed).permutation(n) % args.num_shards
    tasks = [(rate, line) for rate in args.rates for line in LINES]
    return [
        {"problem": name, "rate": rate, "line": line, **measure(logits, labels, shards, rate, line)}
        for rate, line in tqdm(tasks, desc=name, unit="point")
    ]


def measure(
    logits: np.ndarray, labels: np.ndarray, shards: np.ndarray, rate: float, line: str
) -> dict[str, float]:
    """Return means over the examples, and the worst of them."""
    n, every = logits.shape[1], np.arange(len(labels))
    exact = stratified_bias(
        logits,
        labels,
        np.full(n, 1.0 / n),
        np.maximum(1, np.round(rate * np.bincount(shards))).astype(int),
        shards,
        correction=np.ones(n) if line == "published" else None,
    )
    own = exact.probs[every, labels]
    relative = np.abs(exact.bias).sum(axis=1) / (2.0 * (1.0 - own))
    pull = 1.0 - exact.bias[every, labels] / (1.0 - own)
    return {
        "relative_bias_mean": float(relative.mean()),
        "relative_bias_worst": float(relative.max()),
        "pull_mean": float(pull.mean()),
        "pull_least": float(pull.min()),
        "loss_bias_mean": float(exact.loss_bias.mean()),
        "label_prob_mean": float(own.mean()),
    }


def drawn(rows: list[dict[str, Any]]) -> Figure:
    """Return the figure: the remaining pull at labels, and the bias, by rate."""
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    for (name, title), column in zip(TITLES.items(), axes.T, strict=True):
        for line, label in LINES.items():
            some = [row for row in rows if row["problem"] == name and row["line"] == line]
            rates = [row["rate"] for row in some]
            for axis, field in zip(column, ("pull_mean", "relative_bias_mean"), strict=True):
                values = [row[field] for row in some]
                axis.plot(rates, values, "o-", color=COLOURS[line], label=label)
        column[0].set_title(title, fontsize="medium")
        column[0].axhline(1.0, color="grey", linewidth=0.8)
        column[1].set(xscale="log", yscale="log", xlabel="fraction of the classes drawn")
        column[1].set_xticks(rates, [f"{rate:g}" for rate in rates])
        column[1].minorticks_off()
    axes[0, 0].set_ylabel("remaining pull\nat the label")
    axes[0, 0].set_ylim(0.0, 1.1)
    axes[1, 0].set_ylabel("bias of the gradient,\nrelative to the gradient (L1)")
    axes[0, 0].legend(frameon=False, loc="lower right")
    return figure


if __name__ == "__main__":
    main()
