"""Figure 4 of Rawat et al.: samplers compared by perplexity, with 64,000 words.

Writes ``fig4_identifiers.csv`` and ``fig4_identifiers.png`` beside this script. The paper's corpus
is not free and its model takes weeks, so both are smaller here. The words come from the installed
Python packages (15 million tokens; the 63,999 most frequent words and one word for the rest). The
model is log-bilinear, with the 4 previous words and vectors of 64. An epoch has a million examples,
and after each quarter the perplexity of 10,000 other examples is measured. Vectors have norm 1,
with 1 / sqrt(tau) = 0.3, m = 100 negatives for each word, D = 1024 random frequencies with T = 1 /
sqrt(nu) = 0.5. There are two other models for comparison: hierarchical softmax with two levels by
frequency, and adaptive softmax. Samplers are updated every 20 steps. An epoch of all methods takes
about three quarters of an hour on one core::

    python figures/fig4_identifiers.py --runs runs

Each method has a folder with a checkpoint after each quarter, from which an interrupted script
continues. After the second epoch all methods except UNIFORM begin to overfit.

References
----------
A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019, Figure 4.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
from log_bilinear import BATCH, Corpus, LogBilinear, Words, packages, softmax_layer
from matplotlib.figure import Figure
from tables import ends_of_epochs, write_csv

from samplesoft._files import atomic_write
from samplesoft.models import AdaptiveSoftmax, SoftmaxLayer
from samplesoft.training import CHECKPOINT, LOG, Settings, Task, train
from samplesoft.training.task import derive_seed

WORDS, EXAMPLES, EPOCHS, PARTS, DIM = 64_000, 1_000_000, 3, 4, 64
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
FIELDS = ("method", "epoch", "validation_perplexity")


class NextWord(Task):
    """The model under one of `METHODS`; an epoch of its training is one of `PARTS` of a pass."""

    def __init__(self, name: str, corpus: Corpus) -> None:
        layer: Any = AdaptiveSoftmax(DIM, corpus.counts, rng=0)
        if METHODS[name]:
            layer = softmax_layer(corpus, DIM, 0, **METHODS[name])
        self.name, self.corpus, self.model = name, corpus, LogBilinear(corpus, layer, DIM, 0.1, 0)
        self.parameters, self.num_examples = self.model.parameters, BATCH
        self.num_steps = len(corpus.train) // (PARTS * BATCH)
        self.order: tuple[int, Words] = (-1, corpus.train)
        self.sampled = layer if isinstance(layer, SoftmaxLayer) else None

    def config(self) -> dict[str, Any]:
        """Return the method, and a number that other packages would change."""
        digest = hashlib.sha256(self.corpus.labels.tobytes()).hexdigest()
        return {"method": self.name, "labels": digest, "examples": len(self.corpus.train)}

    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Any]]:
        """Return the loss and the gradients of a batch; each pass has an order of its own."""
        number, part = divmod(epoch, PARTS)
        if self.order[0] != number:
            self.order = number, np.random.default_rng(number).permutation(self.corpus.train)
        first = (part * self.num_steps + index) * BATCH
        examples = self.order[1][first : first + BATCH]
        return self.model.gradients(examples, derive_seed(0, epoch, index))

    def validate(self) -> dict[str, float]:
        """Return the loss of the held-out words, by the probabilities of the method."""
        return {"loss": self.model.evaluate()[0]}

    def after_step(self, gradients: dict[str, Any]) -> None:
        """Tell the sampler of the new vectors."""
        self.model.update(gradients)

    def refresh(self) -> None:
        """Make the sampler anew, where there is one."""
        if self.sampled:
            self.sampled.refresh()

    def state(self) -> dict[str, Any]:
        """Return what the sampler has learned."""
        return self.sampled.state() if self.sampled else {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go back to a `state`."""
        if self.sampled:
            self.sampled.load_state(state)


def main() -> None:
    """Train what is missing, then write the figure."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    options.add_argument("--methods", default=";".join(METHODS), help="parted by ';'")
    options.add_argument("--epochs", type=int, default=EPOCHS, help=f"default: {EPOCHS}")
    options.add_argument("--output", type=Path, default=Path(__file__).parent)
    chosen = options.parse_args()
    corpus = packages(4, WORDS, EXAMPLES, names_only=False)
    for name in chosen.methods.split(";"):
        run(name, corpus, chosen.epochs, chosen.runs / name)
    rows = [row for name in METHODS for row in found(name, chosen.runs / name)]
    path = chosen.output / "fig4_identifiers.csv"
    write_csv(path, rows, FIELDS, digits=6)
    with atomic_write(path.with_suffix(".png")) as draft:
        draw(rows).savefig(draft, dpi=130)


def run(name: str, corpus: Corpus, epochs: int, folder: Path) -> None:
    """Train a method, or go on from its checkpoint."""
    settings = Settings(epochs=PARTS * epochs, optimizer="adagrad", learning_rate=0.1)
    print(name)
    resume = (folder / CHECKPOINT).exists()
    train(NextWord(name, corpus), settings, folder, resume=resume, progress=True)


def found(name: str, folder: Path) -> list[dict[str, Any]]:
    """Return a row for each part of an epoch that has been trained."""
    rows = [
        (name, line["epoch"] / PARTS, math.exp(line["validation_loss"]))
        for line in ends_of_epochs(folder / LOG)
    ]
    return [dict(zip(FIELDS, row, strict=True)) for row in rows]


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Plot perplexity by epoch."""
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    for name, (colour, marker, line) in STYLES.items():
        own = [row for row in rows if row["method"] == name]
        x = [float(row["epoch"]) for row in own]
        y = [float(row["validation_perplexity"]) for row in own]
        if own:
            axes.plot(x, y, line, color=colour, marker=marker, label=f"{name}, {y[-1]:.0f}")
    axes.set(
        xlabel="epochs, of a million examples", ylabel="perplexity of held-out words", yscale="log"
    )
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_minor_formatter("{x:.0f}")
    axes.tick_params(axis="y", which="both", labelsize=9)
    axes.grid(alpha=0.3, which="both")
    title = "method, and its\nlast perplexity"
    figure.legend(title=title, fontsize=9, loc="outside right center")
    axes.set_title("64,000 words of Python packages, 4 words before, m = 100 negatives")
    return figure


if __name__ == "__main__":
    main()
