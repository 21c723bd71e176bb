"""Figure 3 of Rawat et al.: samplers compared by validation perplexity on the Penn Treebank.

Writes ``fig3_ptb_samplers.csv`` and ``fig3_ptb_samplers.png`` beside this script. The small model
of Zaremba et al. (two LSTM layers of 200, batches of 20 rows, windows of 35 steps, their learning
rates), vectors of norm 1 with 1 / sqrt(tau) = 0.3, m = 100 negatives for each word, D = 1024 random
frequencies with T = 1 / sqrt(nu) = 0.5. In addition to the paper's methods there are RFF with exact
softmax draws in its buckets, the jackknife of the uniform sampler, and FULL without normalising.
Samplers are updated every 20 steps. The committed files come from the Penn Treebank, and take a few
hours on two cores::

    python figures/fig3_ptb_samplers.py --corpus ptb --runs runs --jobs 2

An interrupted script continues where it stopped.

References
----------
A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019, Figure 3.
W. Zaremba, I. Sutskever and O. Vinyals, "Recurrent Neural Network Regularization", 2014.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure
from ptb_runs import FIELDS, FULL, parser, run_all, sampled
from tables import write_csv

from samplesoft._files import atomic_write

METHODS = {
    "FULL": FULL,
    "UNIFORM": sampled("uniform"),
    "RFF": sampled("rff"),
    "RFF, softmax in buckets": sampled("rff+softmax-leaf"),
    "CLUSTERS": sampled("clusters"),
    "EXP": sampled("softmax"),
    "jackknife UNIFORM": sampled("uniform", loss="jackknife"),
    "QUADRATIC": sampled("quadratic", loss="sampled-absolute"),
    "FULL, not normalised": replace(FULL, normalize=False, tau=1.0, init_scale=0.1),
}
ANCHORS = {"FULL": 120.0, "FULL, not normalised": 126.0}  # Rawat et al., section 4, 10 epochs
STYLES = {  # Okabe and Ito's colours, safe for the colour-blind
    "FULL": ("#000000", "o", "-"),
    "FULL, not normalised": ("#000000", "o", ":"),
    "EXP": ("#CC79A7", "s", "-"),
    "UNIFORM": ("#E69F00", "^", "-"),
    "jackknife UNIFORM": ("#E69F00", "v", "--"),
    "QUADRATIC": ("#009E73", "P", "-"),
    "CLUSTERS": ("#D55E00", "*", "-"),
    "RFF": ("#0072B2", "D", "-"),
    "RFF, softmax in buckets": ("#56B4E9", "X", "--"),
}


def main() -> None:
    """Train the models, then write the CSV and the figure."""
    options = parser(__doc__ or "", epochs=10)
    options.add_argument("--methods", default="all", help="names parted by ';' (default: all)")
    chosen = options.parse_args()
    names = list(METHODS) if chosen.methods == "all" else chosen.methods.split(";")
    rows = run_all({name: METHODS[name] for name in names}, chosen)
    chosen.output.mkdir(parents=True, exist_ok=True)
    write_csv(chosen.output / "fig3_ptb_samplers.csv", rows, FIELDS)
    with atomic_write(chosen.output / "fig3_ptb_samplers.png") as draft:
        draw(rows).savefig(draft, dpi=130)
    last = {row["method"]: row["validation_perplexity"] for row in rows}
    for name in sorted(last, key=last.__getitem__):
        print(f"{name:26s} {last[name]:8.2f}")


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Plot perplexity against epochs: all of it, and the last epochs enlarged."""
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    last = max(row["epoch"] for row in rows)
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        colour, marker, line = STYLES[name]
        x, y = [r["epoch"] for r in own], [r["validation_perplexity"] for r in own]
        for axes in (left, right):
            axes.plot(x, y, line, color=colour, marker=marker, markersize=5, label=name)
    left.set(yscale="log", title="all epochs")
    left.set_yticks([100, 150, 200, 300, 500], ["100", "150", "200", "300", "500"])
    left.minorticks_off()
    best = min(row["validation_perplexity"] for row in rows)
    first = max(1, last - 5)
    right.set(
        xlim=(first - 0.3, last + 0.3), ylim=(best - 2, best + 35), title="the last, enlarged"
    )
    for name, value in ANCHORS.items():
        right.axhline(value, color="#999999", linewidth=0.8, linestyle="--", zorder=0)
        right.annotate(
            f"paper's {name}:\n{value:.0f}".replace(", not", ",\nnot"),
            (1.01, value),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
            color="#666666",
        )
    for axes in (left, right):
        axes.set(xlabel="epoch", ylabel="validation perplexity")
        axes.grid(alpha=0.3)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    figure.suptitle("Penn Treebank, LSTM 2 x 200, m = 100 negatives for each word")
    return figure


if __name__ == "__main__":
    main()
