"""Figure 4 of Rawat et al.: samplers compared by perplexity, with 64,000 words.

Writes ``fig4_identifiers.csv`` and ``fig4_identifiers.png`` beside this script. The paper's corpus
is not free and its model takes weeks, so that both are smaller here: words are those of the Python
packages that are installed (15 million tokens, the 63,999 most frequent ones and one for the rest),
and the model is log-bilinear, of the 4 words before, with vectors of 64. It goes once over a
million examples, and is asked for its perplexity of 10,000 others after each quarter. Vectors have
norm 1, with 1 / sqrt(tau) = 0.3, m = 100 negatives for each word, D = 1024 random frequencies with
T = 1 / sqrt(nu) = 0.5. Two relatives stand beside: hierarchical softmax of two levels by frequency,
and adaptive softmax. Samplers are told of new class vectors every 20 steps. About an hour on one
core::

    python figures/fig4_identifiers.py

An interrupted script goes on with the method that it was at.

References
----------
A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019, Figure 4.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
from log_bilinear import BATCH, Corpus, LogBilinear, packages, softmax_layer
from matplotlib.figure import Figure
from tables import write_csv
from tqdm import tqdm

from samplesoft._files import replaced
from samplesoft.models import AdaptiveSoftmax

WORDS, EXAMPLES, PARTS, DIM = 64_000, 1_000_000, 4, 64
PAPER = {"tau": 1.0 / 0.3**2, "update_every": 20}
FULL = {"loss": "full", "sampler": None, "num_sampled": None}
METHODS: dict[str, dict[str, Any]] = {
    "FULL": FULL | {"tau": PAPER["tau"]},
    "EXP": PAPER | {"sampler": "softmax"},
    "UNIFORM": PAPER | {"sampler": "uniform", "shared": False},
    "RFF": PAPER | {"sampler": "rff"},
    "CLUSTERS": PAPER | {"sampler": "clusters"},
    "hierarchical": FULL | {"loss": "hierarchical"},
    "adaptive": {},
    "QUADRATIC": PAPER | {"sampler": "quadratic", "loss": "sampled-absolute"},
}
STYLES = {  # Okabe and Ito's colours, safe for the colour-blind
    "FULL": ("#000000", "o", "-"),
    "EXP": ("#CC79A7", "s", "-"),
    "UNIFORM": ("#E69F00", "^", "-"),
    "RFF": ("#0072B2", "D", "-"),
    "CLUSTERS": ("#D55E00", "*", "-"),
    "QUADRATIC": ("#009E73", "P", "-"),
    "hierarchical": ("#56B4E9", "v", "--"),
    "adaptive": ("#666666", "X", "--"),
}
FIELDS = ("method", "examples", "validation_perplexity")


def main() -> None:
    """Train what the CSV does not have yet, then write the figure."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--methods", default=";".join(METHODS), help="parted by ';'")
    options.add_argument("--examples", type=int, default=EXAMPLES, help="default: a million")
    options.add_argument("--output", type=Path, default=Path(__file__).parent)
    chosen = options.parse_args()
    path = chosen.output / "fig4_identifiers.csv"
    rows: list[dict[str, Any]] = []
    if path.exists():
        with path.open() as file:
            rows = list(csv.DictReader(file))
    corpus = packages(4, WORDS, chosen.examples, names_only=False)
    for name in chosen.methods.split(";"):
        if name not in {row["method"] for row in rows}:
            rows += train(name, corpus)
            write_csv(path, rows, FIELDS, digits=6)
    with replaced(path.with_suffix(".png")) as draft:
        draw(rows).savefig(draft, dpi=130)


def train(name: str, corpus: Corpus) -> list[dict[str, Any]]:
    """Go over the examples, and return a row for each part of them."""
    layer: Any = AdaptiveSoftmax(DIM, corpus.counts, rng=0)
    if METHODS[name]:
        layer = softmax_layer(corpus, DIM, 0, **METHODS[name])
    model, rows = LogBilinear(corpus, layer, DIM, 0.1, 0), []
    with tqdm(total=-(-len(corpus.train) // BATCH), desc=name, unit="step", mininterval=5) as bar:
        for part in np.array_split(corpus.train, PARTS):
            model.train(part, bar.update)
            perplexity = float(np.exp(model.evaluate()[0]))
            seen = sum(row["examples"] for row in rows[-1:]) + len(part)
            rows.append(dict(zip(FIELDS, (name, seen, perplexity), strict=True)))
            bar.set_postfix(perplexity=f"{perplexity:.1f}")
    return rows


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Plot perplexity against the examples seen."""
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    for name, (colour, marker, line) in STYLES.items():
        own = [row for row in rows if row["method"] == name]
        x = [float(row["examples"]) / 1e6 for row in own]
        y = [float(row["validation_perplexity"]) for row in own]
        if own:
            axes.plot(x, y, line, color=colour, marker=marker, label=f"{name}, {y[-1]:.0f}")
    axes.set(xlabel="examples seen, millions", ylabel="perplexity of held-out words", yscale="log")
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_minor_formatter("{x:.0f}")
    axes.tick_params(which="minor", labelsize=8)
    axes.grid(alpha=0.3, which="both")
    title = "method, and its\nlast perplexity"
    figure.legend(title=title, fontsize=9, loc="outside right center")
    axes.set_title("64,000 words of Python packages, 4 words before, m = 100 negatives")
    return figure


if __name__ == "__main__":
    main()
