"""Scores and gradients of the full and of the sampled softmax, for one image of a horse.

Writes ``tutorial_gradients.csv`` and ``tutorial_gradients.png`` beside this script: the three pairs
of bars by which a well-known tutorial explains sampled softmax, computed with this package. Ten
classes, the label is horse, and the negatives are bird, cat and dog. The last pair is the mean over
many draws of three, with what the tutorial leaves out: the bias that no number of draws removes,
computed exactly. The scores are our own, because the tutorial prints none. It takes a few seconds::

    python figures/tutorial_gradients.py

References
----------
"Sampled Softmax Loss", a tutorial in a series on training objectives, with code in PyTorch.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.special import softmax
from tables import write_csv

import samplesoft
from samplesoft._files import atomic_write
from samplesoft.losses import SampledSoftmaxLoss
from samplesoft.samplers import UniformSampler
from samplesoft.samplers.base import Draw

# class: score
SCORES = {
    "airplane": 0.3,
    "automobile": 0.9,
    "bird": 0.6,
    "cat": 3.0,
    "deer": 1.2,
    "dog": 2.4,
    "frog": 0.2,
    "horse": 3.4,
    "ship": 0.4,
    "truck": 2.2,
}
CLASSES = tuple(SCORES)
LABEL = CLASSES.index("horse")
DRAWN = tuple(map(CLASSES.index, ("bird", "cat", "dog")))
NUM_BATCHES = 100  # whose means give the standard error of the mean of all draws
FIELDS = (
    "class",
    "score",
    "sampled_score",  # empty where neither label nor drawn; the score and the correction
    "correction",  # log((1 - q_t) / (m q)) of a drawn class, 0 of the label
    "full_gradient",  # in the scores
    "sampled_gradient",
    "mean_gradient",  # over many draws
    "mean_stderr",
    "expected_gradient",  # exact
    "bias",  # expected_gradient - full_gradient
)
# Okabe and Ito's colours, safe for the colour-blind
MODEL, CORRECTION, NEGATIVE, POSITIVE, EXACT = "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#000000"


def main() -> None:
    """Read the command line, compute, write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder")
    parser.add_argument(
        "--num-draws", type=int, default=10_000, help=f"of three, a multiple of {NUM_BATCHES}"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.num_draws < NUM_BATCHES or args.num_draws % NUM_BATCHES:
        parser.error(f"--num-draws must be a multiple of {NUM_BATCHES}, got {args.num_draws}")
    rows = compute(args.num_draws, args.seed)
    l1 = sum(abs(row["bias"]) for row in rows)
    measured = sum(abs(row["mean_gradient"] - row["full_gradient"]) for row in rows)
    settings = (
        f"{len(CLASSES)} classes, label {CLASSES[LABEL]}, uniform proposal without the label, "
        f"m = {len(DRAWN)} with replacement, {args.num_draws:,} draws, seed {args.seed}. L1 norm "
        f"of the bias of the gradient in the scores: {l1:.4f} exact, {measured:.4f} on average "
        "over the draws"
    )
    folder: Path = args.output
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "tutorial_gradients.csv", rows, FIELDS, settings)
    with atomic_write(folder / "tutorial_gradients.png") as path:
        draw(path, rows, settings)
    print(f"wrote {folder / 'tutorial_gradients.csv'} and {folder / 'tutorial_gradients.png'}")


def compute(num_draws: int, seed: int) -> list[dict[str, Any]]:
    """Return one row for each class."""
    scores, n, m = np.array(list(SCORES.values())), len(CLASSES), len(DRAWN)
    sampler, label, ids = UniformSampler(n), np.array([LABEL]), np.array([DRAWN])
    drawn = Draw(ids, sampler.log_prob(None, ids, exclude=label))
    sampled = dict(zip(DRAWN, -drawn.log_expected_count[0], strict=True)) | {LABEL: 0.0}
    one = gradient(scores, drawn)
    labels = np.full(num_draws // NUM_BATCHES, LABEL)
    means = [
        gradient(scores, sampler.sample(None, m, exclude=labels, rng=rng))
        for rng in np.random.default_rng(seed).spawn(NUM_BATCHES)
    ]
    mean, stderr = np.mean(means, axis=0), np.std(means, axis=0, ddof=1) / np.sqrt(NUM_BATCHES)
    bias = samplesoft.exact_bias(scores, LABEL, np.full(n, 1.0 / n), m).bias
    full = softmax(scores) - (np.arange(n) == LABEL)
    return [
        {
            "class": name,
            "score": scores[j],
            "sampled_score": scores[j] + sampled[j] if j in sampled else "",
            "correction": sampled.get(j, ""),
            "full_gradient": full[j],
            "sampled_gradient": one[j],
            "mean_gradient": mean[j],
            "mean_stderr": stderr[j],
            "expected_gradient": full[j] + bias[j],
            "bias": bias[j],
        }
        for j, name in enumerate(CLASSES)
    ]


def gradient(scores: np.ndarray, drawn: Draw) -> np.ndarray:
    """Return the mean over a batch of draws of the gradient in the scores, shape (n,).

    A class vector of one number is the score, in the context 1.
    """
    num = len(drawn.ids)
    loss = SampledSoftmaxLoss()
    _, cache = loss.forward(np.ones((num, 1)), scores[:, None], np.full(num, LABEL), drawn)
    ids, rows = loss.backward(cache).dW
    dense = np.zeros(len(scores))
    dense[ids] = rows[:, 0]
    return dense


def draw(path: Path, rows: list[dict[str, Any]], settings: str) -> None:
    """Draw the pairs, full softmax on the left and sampled on the right."""
    figure = Figure(figsize=(10.0, 9.0), dpi=100)
    grid = figure.subplots(3, 2, sharex=True, sharey="row")
    values = {name: np.array([row[name] or 0.0 for row in rows], float) for name in FIELDS[1:]}
    x = np.arange(len(rows))
    present = np.array([row["correction"] != "" for row in rows])
    draw_scores(grid[0], x, values, present)
    for axes, name in zip(grid[1:].ravel(), ("full", "sampled", "full", "mean"), strict=True):
        heights = values[f"{name}_gradient"]
        axes.bar(x, heights, color=np.where(heights < 0.0, NEGATIVE, POSITIVE))
    note_totals(grid[1], values)
    note_bias(grid[2, 1], x, values)
    titles = (
        ("full softmax: scores", "sampled: the label and three negatives"),
        ("full softmax: a spike and a forest", "sampled: a gradient of one draw"),
        ("full softmax, again", "sampled: mean of the gradients of many draws"),
    )
    for pair, names, label in zip(
        grid, titles, ("score", *["gradient in the score"] * 2), strict=True
    ):
        pair[0].set_ylabel(label)
        for axes, title in zip(pair, names, strict=True):
            axes.set_title(title, fontsize=11)
            axes.axhline(0.0, color="0.2", linewidth=0.8)
            axes.grid(True, axis="y", color="0.9", linewidth=0.8)
            axes.set_axisbelow(True)
            axes.tick_params(labelleft=True, labelbottom=True, bottom=False)
            axes.set_xticks(x, CLASSES, rotation=40, ha="right", rotation_mode="anchor")
            axes.spines[["top", "right", "bottom"]].set_visible(False)
    figure.text(0.01, 0.01, textwrap.fill(settings, 170), fontsize=8, color="0.3")
    figure.tight_layout(rect=(0.0, 0.04, 1.0, 1.0))
    figure.savefig(path, metadata={"Software": None})


def draw_scores(
    pair: Any, x: np.ndarray, values: dict[str, np.ndarray], present: np.ndarray
) -> None:
    """Draw the scores, and on the right what the correction adds to those of drawn classes."""
    left, right = pair
    left.bar(x, values["score"], color=MODEL)
    right.bar(x[present], values["score"][present], color=MODEL, label="from the model")
    right.bar(
        x[present],
        values["correction"][present],
        bottom=values["score"][present],
        color=CORRECTION,
        edgecolor=MODEL,
        hatch="///",
        linewidth=0.0,
        label="correction, log((1 - q$_t$) / (m q))",
    )
    right.set_ylim(0.0, 1.3 * (values["score"] + values["correction"]).max())
    right.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)


def note_totals(pair: Any, values: dict[str, np.ndarray]) -> None:
    """Write how large spike and forest are."""
    for axes, name in zip(pair, ("full", "sampled"), strict=True):
        forest = values[f"{name}_gradient"].clip(min=0.0).sum()
        note = f"spike {-forest:.3f}\nforest {forest:+.3f} in all"
        axes.text(0.02, 0.05, note, fontsize=9, transform=axes.transAxes)


def note_bias(axes: Any, x: np.ndarray, values: dict[str, np.ndarray]) -> None:
    """Mark full softmax and exact expectation over the means, and write how far they are apart."""
    full, expected = values["full_gradient"], values["expected_gradient"]
    axes.bar(x, full, fill=False, edgecolor="0.3", linestyle="--", label="full softmax")
    axes.plot(x, expected, "D", color=EXACT, markersize=4, label="exact expectation")
    l1 = np.abs(values["bias"]).sum()
    measured = np.abs(values["mean_gradient"] - full).sum()
    note = f"L1 norm of the bias:\nexact {l1:.3f}, of this mean {measured:.3f}"
    axes.text(0.02, 0.05, note, fontsize=9, transform=axes.transAxes)
    axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0.0, 0.2))


if __name__ == "__main__":
    main()
