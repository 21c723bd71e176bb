"""What sampling does to the gradient of a softmax, at a glance: the picture of the README.

Writes ``at_a_glance.csv`` and ``at_a_glance.png`` beside this script. Left: ten classes, the
gradient of the full softmax in the scores, and the average gradient of sampled softmax. Right:
three lines of ``bias_vs_m.csv``, with labels in plain words. It takes a few seconds::

    python figures/at_a_glance.py
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tables import write_csv

import samplesoft
from samplesoft._files import atomic_write

NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()
SCORES = np.array([0.3, 0.9, 0.6, 3.0, 1.2, 2.4, 0.2, 3.4, 0.4, 2.2])
LABEL = NAMES.index("horse")
NUM_SAMPLED = 3
LINES = {  # proposal: what it is called, colour, marker
    "uniform": ("each word equally often", "#000000", "o"),
    "unigram": ("frequent words more often", "#56B4E9", "^"),
    "quadratic": ("words near the context more often", "#009E73", "P"),
}


def main() -> None:
    """Compute the bars, read the lines, write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    here = Path(__file__).parent
    parser.add_argument("--lines", type=Path, default=here / "bias_vs_m.csv")
    parser.add_argument("--output", type=Path, default=here, help="folder")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    bars = compute()
    note = f"uniform proposal, m = {NUM_SAMPLED}, label {NAMES[LABEL]}"
    write_csv(args.output / "at_a_glance.csv", bars, ("name", "score", "full", "sampled"), note)
    with atomic_write(args.output / "at_a_glance.png") as path:
        draw(path, bars, read_lines(args.lines))
    print(f"wrote {args.output / 'at_a_glance.csv'} and {args.output / 'at_a_glance.png'}")


def compute() -> list[dict[str, Any]]:
    """Return both gradients for each class."""
    q = np.full(len(NAMES), 1 / len(NAMES))
    exact = samplesoft.exact_bias(SCORES, LABEL, q, NUM_SAMPLED)
    target = np.arange(len(NAMES)) == LABEL
    columns = SCORES, exact.probs - target, exact.expected_probs - target
    return [
        {"name": name, "score": score, "full": full, "sampled": sampled}
        for name, score, full, sampled in zip(NAMES, *columns, strict=True)
    ]


def read_lines(path: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Return the numbers of draws and the mean biases of each proposal."""
    text = path.read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in text if not line.startswith("#")))
    lines = {}
    for name in LINES:
        own = [r for r in rows if (r["proposal"], r["scheme"]) == (name, "negatives")]
        lines[name] = (
            [float(r["num_sampled"]) for r in own],
            [float(r["l1_bias_mean"]) for r in own],
        )
    return lines


def draw(
    path: Path, bars: list[dict[str, Any]], lines: dict[str, tuple[list[float], list[float]]]
) -> None:
    """Draw the bars and the lines side by side."""
    figure = Figure(figsize=(10.0, 4.0), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    place = np.arange(len(bars))
    for shift, key, colour, label in (
        (-0.2, "full", "#999999", "full softmax: 10 scores"),
        (0.2, "sampled", "#0072B2", f"sampled, on average: {NUM_SAMPLED + 1} scores"),
    ):
        left.bar(place + shift, [row[key] for row in bars], 0.4, color=colour, label=label)
    left.set_xticks(place, [row["name"] for row in bars], rotation=40, ha="right")
    left.axhline(0.0, color="black", linewidth=0.8)
    left.set_ylabel("gradient in the score")
    left.set_title("A picture of a horse: sampling changes the gradient", fontsize=11)
    left.legend(frameon=False, loc="lower left")
    for name, (label, colour, marker) in LINES.items():
        right.loglog(*lines[name], color=colour, marker=marker, markersize=5, label=label)
    right.set_xlabel("number of draws, among 10,000 words")
    right.set_ylabel("bias of the gradient (at most 2)")
    right.set_title("The next word: how much depends on what you draw", fontsize=11)
    right.legend(frameon=False, loc="lower left", title="draw", alignment="left")
    for axes in (left, right):
        axes.grid(True, axis="y", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    main()
