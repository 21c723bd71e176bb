"""What memory costs in training: drift, on the Penn Treebank and on names of packages.

Writes ``moving_average_training.csv`` and ``.png`` beside this script. A running estimate of an
example lags behind its true sum, because the logits move between two visits, an epoch apart. All
methods train one log-bilinear encoder under a layer of unit vectors for some epochs, by Adagrad, in
the same order of examples: the full softmax; sampled softmax with 100 draws by clusters for each
example, or with draws by counts that a batch of 256 shares; and the same draws by counts with a
running estimate, of constant gamma or of SCENT's alpha. The results are the perplexity of held-out
text by the full softmax, against the processor's seconds of training steps alone.

After each epoch the exact bias of some training examples is computed twice: given their states as
they are, and in the long run at the same logits, where nothing drifts. About an hour on two
cores::

    python figures/moving_average_training.py --corpus ptb

With ``--rate`` another learning rate gets rows of its own. An interrupted script continues with the
rows that are missing in the CSV.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from log_bilinear import BATCH, Corpus, LogBilinear, packages, penn_treebank, softmax_layer
from matplotlib.figure import Figure
from tables import read_csv, write_csv
from tqdm import tqdm

from samplesoft._files import atomic_write
from samplesoft.bias import moving_average_bias
from samplesoft.losses import MovingAverageLoss
from samplesoft.samplers import UnigramSampler

DIM, TAU = 64, 1.0 / 0.3**2
EPOCHS = 3
RATE = 0.2  # of Adagrad, in the figure
WORDS, EXAMPLES = 100_000, 500_000  # of the second task
NUM_PROBED = 48  # examples whose bias is computed
FIELDS = (
    "task",
    "method",
    "num_sampled",
    "rate",  # of Adagrad
    "seed",
    "epoch",
    "seconds",  # of the processor, in training steps
    "perplexity",
    "in_top_10",
    "lag",  # mean of u minus the log of the true sum, nats
    "lag_deviation",  # standard deviation over examples
    "l1_bias",  # mean L1 norm of the bias of the gradient in the logits, given the states
    "l1_turning",  # of the part that changes the direction
    "l1_long_run",  # of the bias in the long run at the same logits
)
Row = dict[str, Any]


class MovingAverage:
    """A softmax layer with draws by counts for a batch, and a running sum for each example."""

    takes_examples = True

    def __init__(self, corpus: Corpus, seed: int, num_sampled: int, rate: dict[str, float]) -> None:
        settings = {"sampler": "uniform", "loss": "sampled-masked", "tau": TAU}
        self.layer = softmax_layer(corpus, DIM, seed, **settings)
        self.loss = MovingAverageLoss(tau=TAU, normalize=True, **rate)
        self.sampler = UnigramSampler(corpus.counts)
        self.num_sampled = num_sampled
        self.rate = rate
        self.log_sums = np.full(len(corpus.labels), -np.inf)
        self.parameters = self.layer.parameters
        self.evaluate = self.layer.evaluate
        self.update = self.layer.update

    def forward(self, h: Any, labels: Any, rng: int, examples: Any) -> Any:
        """Return the loss, and the state for `backward`; the running sums move."""
        draw = self.sampler.sample(h, self.num_sampled, shared=True, rng=rng)
        rows = self.layer.class_embeddings
        value, cache = self.loss.forward(h, rows, labels, draw, log_sums=self.log_sums[examples])
        self.log_sums[examples] = cache.batch.log_sums
        return value, cache

    def backward(self, cache: Any) -> Any:
        """Return the gradients in contexts and parameters."""
        gradients = self.loss.backward(cache)
        return gradients.dh, {"class_embeddings": gradients.dW}

    def probe(self, contexts: Any, corpus: Corpus, examples: Any) -> Row:
        """Return the lag of the running sums of some examples, and their exact bias."""
        rows = self.layer.class_embeddings.astype(float)
        h = contexts.astype(float)
        h /= np.linalg.norm(h, axis=1, keepdims=True)
        logits = TAU * h @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T
        labels = corpus.labels[examples]
        log_sums = self.log_sums[examples]
        true = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(labels)), labels]
        case = logits, labels, self.sampler.probs(h), self.num_sampled
        options = {"scheme": "masked", **self.rate}
        given = moving_average_bias(*case, log_sums=log_sums, **options)
        settled = moving_average_bias(*case, **options)
        return {
            "lag": float((log_sums - true).mean()),
            "lag_deviation": float((log_sums - true).std()),
            "l1_bias": mean_l1(given.bias),
            "l1_turning": mean_l1(given.turning_bias),
            "l1_long_run": mean_l1(settled.bias),
        }


def mean_l1(rows: Any) -> float:
    """Return the mean L1 norm of rows."""
    return float(np.abs(rows).sum(axis=1).mean())


def by_settings(**settings: Any) -> Callable[[Corpus, int, int], Any]:
    """Return a function that makes a layer without memory from corpus, seed and draws."""

    def make(corpus: Corpus, seed: int, num_sampled: int) -> Any:
        draws = {} if settings["loss"] == "full" else {"num_sampled": num_sampled}
        full = {"sampler": None, "num_sampled": None} if settings["loss"] == "full" else {}
        return softmax_layer(corpus, DIM, seed, tau=TAU, **settings, **draws, **full)

    return make


def by_memory(**rate: float) -> Callable[[Corpus, int, int], Any]:
    """Return a function that makes a layer with memory from corpus, seed and draws."""
    return lambda corpus, seed, num_sampled: MovingAverage(corpus, seed, num_sampled, rate)


METHODS: dict[str, Callable[[Corpus, int, int], Any]] = {
    "counts": by_settings(sampler="unigram", loss="sampled-masked", shared=True),
    "gamma 1": by_memory(gamma=1.0),
    "gamma 0.5": by_memory(gamma=0.5),
    "gamma 0.1": by_memory(gamma=0.1),
    "gamma 0.02": by_memory(gamma=0.02),
    "SCENT": by_memory(alpha=1e-3),
    "clusters": by_settings(sampler="clusters", loss="sampled"),
    "full": by_settings(loss="full"),
}
# numbers of draws of each method: for a batch, or for an example by clusters
DRAWS = {"clusters": (100,), "full": (0,)}
SHARED_DRAWS = (100, 1000)
COLOURS = {
    "counts": "#999999",
    "gamma 1": "#000000",
    "gamma 0.5": "#56B4E9",
    "gamma 0.1": "#0072B2",
    "gamma 0.02": "#CC79A7",
    "SCENT": "#D55E00",
    "clusters": "#009E73",
    "full": "#E69F00",
}


def main() -> None:
    """Train what the CSV does not have yet, then write the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", type=Path, help="folder of the Penn Treebank")
    parser.add_argument("--tasks", default="words,names", help="by commas")
    parser.add_argument("--methods", default=";".join(METHODS), help="parted by ';'")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=RATE, help="of Adagrad")
    parser.add_argument("--share", type=float, default=1.0, help="of the examples")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "moving_average_training.csv"
    rows: list[Row] = read_csv(path) if path.exists() else []
    tasks: dict[str, Callable[[], Corpus]] = {
        "words": lambda: penn_treebank(args.corpus, 4),
        "names": lambda: packages(6, WORDS, EXAMPLES, names_only=True),
    }
    for task in args.tasks.split(","):
        corpus = tasks[task]()
        for seed in range(args.seeds):
            for name in args.methods.split(";"):
                for m in DRAWS.get(name, SHARED_DRAWS):
                    key = (task, name, m, args.rate, seed)
                    about = ("task", "method", "num_sampled", "rate", "seed")
                    if key in {tuple(row[field] for field in about) for row in rows}:
                        continue
                    train(name, corpus, m, args.rate, seed, 2000 / len(corpus.train), 1)  # compiles
                    found = train(name, corpus, m, args.rate, seed, args.share, EPOCHS)
                    rows += [{**dict(zip(about, key, strict=True)), **row} for row in found]
                    write_csv(path, rows, FIELDS, digits=5)
    with atomic_write(path.with_suffix(".png")) as draft:
        draw(rows).savefig(draft, dpi=100)


def train(
    name: str, corpus: Corpus, num_sampled: int, rate: float, seed: int, share: float, epochs: int
) -> list[Row]:
    """Train by a method, and return a row for each epoch."""
    order = np.random.default_rng(seed).permutation(corpus.train)
    order = order[: int(share * len(order))]
    layer = METHODS[name](corpus, seed, num_sampled)
    model = LogBilinear(corpus, layer, DIM, rate, seed, clock=process_time)
    probed = order[:NUM_PROBED]
    rows = []
    description = f"{name}, m = {num_sampled}"
    with tqdm(total=epochs * len(order) // BATCH, desc=description, mininterval=10) as bar:
        for epoch in range(epochs):
            shuffled = np.random.default_rng([seed, epoch]).permutation(order)
            model.train(shuffled, bar.update)
            loss, found = model.evaluate() if len(order) > 2000 else (0.0, 0.0)
            row = {"epoch": epoch + 1, "seconds": model.seconds, "perplexity": float(np.exp(loss))}
            row["in_top_10"] = found
            if isinstance(layer, MovingAverage) and len(order) > 2000:
                row |= layer.probe(model.contexts(probed), corpus, probed)
            rows.append(row)
            bar.set_postfix(perplexity=f"{np.exp(loss):.1f}")
    return rows


def draw(rows: list[Row]) -> Figure:
    """Plot perplexity against seconds, and below it the bias of each epoch."""
    titles = {"words": "Penn Treebank, 10,000 words", "names": "100,000 names of packages"}
    tasks = [task for task in titles if any(row["task"] == task for row in rows)]
    numbers = SHARED_DRAWS
    figure = Figure(figsize=(3.6 * len(tasks) * len(numbers), 7.2), dpi=100)
    panels = figure.subplots(2, len(tasks) * len(numbers), squeeze=False)
    for column, (task, m) in enumerate((t, k) for t in tasks for k in numbers):
        axes, below = panels[:, column]
        for name, colour in COLOURS.items():
            own = [
                row
                for row in rows
                if (row["task"], row["method"], row["rate"]) == (task, name, RATE)
                and row["num_sampled"] in (m, *DRAWS.get(name, ()))
            ]
            if not own:
                continue
            means = {
                field: [
                    np.mean([row[field] for row in own if row["epoch"] == epoch])
                    for epoch in range(1, EPOCHS + 1)
                ]
                for field in ("seconds", "perplexity")
            }
            axes.plot(means["seconds"], means["perplexity"], "o-", color=colour, label=name, ms=4)
            if own[0].get("l1_bias") in ("", None):
                continue
            for field, style in (("l1_bias", "o-"), ("l1_long_run", ":"), ("l1_turning", "--")):
                line = [
                    np.mean([row[field] for row in own if row["epoch"] == epoch])
                    for epoch in range(1, EPOCHS + 1)
                ]
                below.semilogy(range(1, EPOCHS + 1), line, style, color=colour, ms=4)
        axes.set(xscale="log", yscale="log", xlabel="seconds of the processor in training")
        axes.set_title(f"{titles[task]},\n{m} draws by counts for a batch", fontsize=9)
        below.set(xlabel="epoch", xticks=range(1, EPOCHS + 1))
        axes.set_xticks([10, 30, 100, 300], ["10", "30", "100", "300"])
        axes.xaxis.set_minor_formatter("")
        axes.yaxis.set_minor_formatter("{x:.0f}")
        axes.yaxis.set_major_formatter("{x:.0f}")
        axes.tick_params(axis="y", which="both", labelsize=7)
        for panel in (axes, below):
            panel.grid(color="0.92")
            panel.set_axisbelow(True)
            panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("perplexity of held-out text")
    panels[1, 0].set_ylabel("mean L1 norm of the bias in the logits")
    panels[0, 0].legend(frameon=False, fontsize=8)
    panels[1, 0].set_title(
        "line: given the states; dashed: its turning part; dotted: long run at fixed logits",
        fontsize=8,
        loc="left",
    )
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    main()
