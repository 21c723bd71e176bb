"""The family in one picture: ways around the softmax, by what they reach in how many seconds.

Writes ``family.csv`` and ``family.png`` beside this script. One encoder for all, log-bilinear, of
the words before; two tasks: the Penn Treebank (10,000 words, 4 words before, vectors of 64), and
the names in the Python packages that are installed (100,000 names, 6 tokens before), of which a
method is to find the one that follows. Each method goes over the examples in the same order, with
Adagrad, 100 draws an example or 1,000 for a batch of 256 where draws do not look at it, and is
asked for the perplexity of held-out words by its own probabilities, or how often the name is among
its best 10. Seconds are of training steps alone. Three seeds, of the parameters, of the order and
of the draws; bars are from the least to the greatest. The names are those of the packages that are
installed, so that all their rows must come of one set of packages. About two hours on two cores::

    python figures/family.py --corpus ptb

An interrupted script goes on with what is missing in the CSV.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from log_bilinear import BATCH, Corpus, LogBilinear, packages, penn_treebank, softmax_layer
from matplotlib.figure import Figure
from scipy import sparse
from tables import write_csv
from tqdm import tqdm

from samplesoft._files import replaced
from samplesoft.losses import InBatchLoss, huffman_tree
from samplesoft.models import (
    AdaptiveSoftmax,
    HierarchicalSoftmax,
    SoftmaxLayer,
    SphericalSoftmax,
)
from samplesoft.samplers import BigramSampler, Draw, UnigramSampler

DIM, TAU = 64, 1.0 / 0.3**2
WORDS, EXAMPLES = 100_000, 500_000  # of the second task
PARTS = (0.25, 0.5, 1.0)  # of the examples, after which a method is asked
FIELDS = ("task", "method", "seed", "part", "seconds", "perplexity", "in_top_10")
Maker = Callable[[Corpus, int], Any]  # makes a layer with a seed


def by_settings(**settings: Any) -> Maker:
    """Return what makes a layer by the names of its loss and its sampler."""
    full = {"sampler": None, "num_sampled": None} if "sampler" not in settings else {}
    tau = {"tau": TAU} if settings.get("normalize", settings.get("loss") != "hierarchical") else {}
    return lambda corpus, seed: softmax_layer(corpus, DIM, seed, **full, **tau, **settings)


def huffman(corpus: Corpus, seed: int) -> Any:
    """Return a layer over Huffman's tree, whose inner nodes start with zeros."""
    tree = huffman_tree(corpus.counts)
    return HierarchicalSoftmax(np.zeros((tree.num_nodes, DIM), np.float32), tree)


def in_batch(corpus: Corpus, seed: int) -> Any:
    """Return a layer whose negatives are the labels of the other examples."""
    loss = InBatchLoss(UnigramSampler(corpus.counts, power=1.0), tau=TAU, normalize=True)
    rows = np.random.default_rng(seed).normal(size=(corpus.num_words, DIM)).astype(np.float32)
    return SoftmaxLayer(rows, loss)


class Spherical:
    """A Taylor softmax, which takes its steps itself, and whose losses start near log n."""

    parameters: dict[str, Any] = {}  # noqa: RUF012 - none that an optimizer may change

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self.layer = SphericalSoftmax(corpus.num_words, DIM, rng=seed)
        self.evaluate = self.layer.evaluate

    def forward(self, h: Any, labels: Any, rng: int) -> Any:
        """Return the loss and what the way back needs."""
        return self.layer.forward(h, labels)

    def backward(self, saved: Any) -> Any:
        """Return the gradient in the contexts; that of the classes is kept for `update`."""
        dh, self.gradient = self.layer.backward(saved)
        return dh, {}

    def update(self, ids: None) -> None:
        """Step down the gradient."""
        self.layer.step(self.gradient, 10.0)


class OwnDraws:
    """A softmax layer whose draws are made here, by what else is known of the examples."""

    takes_examples = True

    def __init__(self, corpus: Corpus, seed: int) -> None:
        settings = {"sampler": "uniform", "loss": "sampled-masked", "shared": False, "tau": TAU}
        self.corpus = corpus
        self.layer = softmax_layer(corpus, DIM, seed, **settings)
        self.parameters, self.evaluate = self.layer.parameters, self.layer.evaluate
        self.backward, self.update = self.layer.backward, self.layer.update

    def forward(self, h: Any, labels: Any, rng: int, examples: Any) -> Any:
        """Return the loss on the draws of the class."""
        draw = self.draws(h, examples, rng)
        return self.layer.loss.forward(h, self.layer.class_embeddings, labels, draw)

    def draws(self, h: Any, examples: Any, rng: int) -> Draw:
        """Return 100 draws for each example."""
        raise NotImplementedError


class Bigrams(OwnDraws):
    """Draws by the word before."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        super().__init__(corpus, seed)
        pairs = corpus.before[corpus.train, 0], corpus.labels[corpus.train]
        shape = corpus.num_words, corpus.num_words
        self.sampler = BigramSampler(sparse.coo_array((np.ones(len(pairs[0])), pairs), shape=shape))

    def draws(self, h: Any, examples: Any, rng: int) -> Draw:
        """Return draws from the smoothed bigrams."""
        return self.sampler.sample(self.corpus.before[examples, 0], 100, rng=rng)


class HardNegatives(OwnDraws):
    """The 100 highest scores among 1,000 uniform candidates, without a weight, as is common."""

    def draws(self, h: Any, examples: Any, rng: int) -> Draw:
        """Return the candidates of the highest scores as if each was expected once."""
        candidates = np.random.default_rng(rng).integers(self.corpus.num_words, size=1000)
        rows = self.layer.class_embeddings[candidates]
        scores = h @ (rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))).T
        best = candidates[np.argpartition(-scores, 100, axis=1)[:, :100]]
        return Draw(best, np.full(best.shape, -np.log(100.0)))


OWN, BATCH_OF_DRAWS = {"num_sampled": 100}, {"num_sampled": 1000, "shared": True}
METHODS: dict[str, Maker] = {
    "full softmax": by_settings(loss="full"),
    "full, not normalised": by_settings(loss="full", normalize=False),
    "two levels": by_settings(loss="hierarchical"),
    "Huffman tree": huffman,
    "adaptive": lambda corpus, seed: AdaptiveSoftmax(DIM, corpus.counts, rng=seed),
    "Taylor": Spherical,
    "in-batch": in_batch,
    "uniform": by_settings(sampler="uniform", loss="sampled-masked", **BATCH_OF_DRAWS),
    "unigram": by_settings(sampler="unigram", loss="sampled-masked", **BATCH_OF_DRAWS),
    "NCE, unigram": by_settings(sampler="unigram", loss="nce", **BATCH_OF_DRAWS),
    "one-vs-each, unigram": by_settings(sampler="unigram", loss="one-vs-each", **BATCH_OF_DRAWS),
    "multilevel, unigram": by_settings(sampler="unigram", loss="multilevel", **OWN),
    "bigrams": Bigrams,
    "hard negatives": HardNegatives,
    "two-pass": by_settings(sampler="two-pass", **OWN),
    "hash tables": by_settings(sampler="lsh", **OWN),
    "clusters": by_settings(sampler="clusters", **OWN),
    "random features": by_settings(sampler="rff+softmax-leaf", num_features=256, **OWN),
    "exact draws": by_settings(sampler="softmax", **OWN),
    "quadratic": by_settings(sampler="quadratic", loss="sampled-absolute", update_every=20, **OWN),
}
RATES = {"full, not normalised": 0.1}
# Okabe and Ito's colours, safe for the colour-blind; each is there once with each line
PALETTE = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#999999")
MARKERS, LINES = "os^vDPX*", ("-", "--", ":")


def main() -> None:
    """Train what the CSV does not have yet, then write the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", type=Path, help="folder of the Penn Treebank")
    parser.add_argument("--methods", default=";".join(METHODS), help="parted by ';'")
    parser.add_argument("--seeds", type=int, default=3, help="default: 3")
    parser.add_argument("--share", type=float, default=1.0, help="of the examples")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    path = args.output / "family.csv"
    rows: list[dict[str, Any]] = []
    if path.exists():
        with path.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    tasks: list[tuple[str, int, Callable[[], Corpus]]] = [
        ("names", args.seeds, lambda: packages(6, WORDS, EXAMPLES, names_only=True))
    ]
    if args.corpus:
        tasks.insert(0, ("words", args.seeds, lambda: penn_treebank(args.corpus, 4)))
    for task, seeds, read in tasks:
        corpus = read()
        for seed in range(seeds):
            for name in args.methods.split(";"):
                there = {(row["task"], row["method"], int(row["seed"])) for row in rows}
                if (task, name, seed) not in there:
                    # twice: the first goes over a few batches, for kernels are compiled
                    for share in (2000 / len(corpus.train), args.share):
                        found = train(name, corpus, seed, share)
                    rows += [{"task": task, "method": name, "seed": seed, **row} for row in found]
                    write_csv(path, rows, FIELDS, digits=5)
    with replaced(path.with_suffix(".png")) as draft:
        draw(rows).savefig(draft, dpi=130)


def train(name: str, corpus: Corpus, seed: int, share: float) -> list[dict[str, Any]]:
    """Go over a share of the examples, and return a row for each of `PARTS`."""
    order = np.random.default_rng(seed).permutation(corpus.train)
    order = order[: int(share * len(order))]
    model = LogBilinear(corpus, METHODS[name](corpus, seed), DIM, RATES.get(name, 0.2), seed)
    ends = [int(part * len(order)) for part in PARTS]
    rows = []
    with tqdm(total=len(order) // BATCH, desc=name, unit="step", mininterval=5) as bar:
        for part, first, last in zip(PARTS, [0, *ends], ends, strict=False):
            model.train(order[first:last], bar.update)
            loss, found = model.evaluate() if len(order) > 2000 else (0.0, 0.0)
            row = {"part": part, "seconds": model.seconds, "perplexity": float(np.exp(loss))}
            rows.append({**row, "in_top_10": found})
            bar.set_postfix(perplexity=f"{np.exp(loss):.1f}", top_10=f"{found:.3f}")
    return rows


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Plot what a method reaches against its seconds, a panel for each task."""
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    panels = {
        "words": ("perplexity", "Penn Treebank, 10,000 words", "perplexity of held-out words"),
        "names": ("in_top_10", "100,000 names of packages", "held-out name among the best 10"),
    }
    for axes, (task, (field, title, label)) in zip(
        figure.subplots(1, 2), panels.items(), strict=True
    ):
        for index, name in enumerate(METHODS):
            own = [row for row in rows if row["task"] == task and row["method"] == name]
            points = []
            for part in dict.fromkeys(row["part"] for row in own):
                found = [(float(r["seconds"]), float(r[field])) for r in own if r["part"] == part]
                x, y = np.transpose(found)
                points.append((x.mean(), y.mean(), y.mean() - y.min(), y.max() - y.mean()))
            if points:
                x, y, below, above = np.transpose(points)
                style = {"color": PALETTE[index % 8], "marker": MARKERS[index % 8]}
                style |= {"linestyle": LINES[index // 8 % 3], "linewidth": 1, "markersize": 6}
                axes.errorbar(x, y, (below, above), capsize=2, label=name, **style)
        axes.set(xscale="log", xlabel="seconds of training, 2 cores", ylabel=label, title=title)
        axes.grid(alpha=0.3, which="both")
        if field == "perplexity":
            axes.set_yscale("log")
            for of_axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                of_axis("{x:.0f}")
            axes.tick_params(which="minor", labelsize=8)
    handles, names = figure.axes[0].get_legend_handles_labels()
    if not handles:
        handles, names = figure.axes[1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", fontsize=9)
    figure.suptitle("Ways around the softmax, after a quarter, a half and all of the examples")
    return figure


if __name__ == "__main__":
    main()
