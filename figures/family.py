"""Twenty methods for many classes in one figure: the results by the seconds of training.

Writes ``family.csv`` and ``family.png`` beside this script. All methods share one log-bilinear
encoder of the previous words. There are two tasks: the Penn Treebank (10,000 words, 4 previous
words, vectors of 64), and the names in the installed Python packages (100,000 names, 6 previous
tokens), where a method must find the name that follows. Each method visits the examples in the
same order, with Adagrad. It makes 100 draws for each example, or 1,000 for a batch of 256 if draws
do not depend on the context. The results are the perplexity of held-out words by the method's own
probabilities, and how often the name is among its best 10. Seconds are of training steps alone.
There are three seeds, of the parameters, the order and the draws; bars run from the smallest to the
largest result. All rows of the names must come from one set of installed packages. About two hours
on two cores::

    python figures/family.py --corpus ptb

An interrupted script continues with the rows that are missing in the CSV.
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
from matplotlib.patheffects import withStroke
from scipy import sparse
from tables import write_csv
from tqdm import tqdm

from samplesoft._files import atomic_write
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
FAMILIES: dict[str, tuple[str, ...]] = {  # a row of panels for each
    "full softmax and other models": (
        "full softmax",
        "full, not normalised",
        "two levels",
        "Huffman tree",
        "adaptive",
        "Taylor",
    ),
    "draws that ignore the context": (
        "in-batch",
        "uniform",
        "unigram",
        "NCE, unigram",
        "one-vs-each, unigram",
        "multilevel, unigram",
    ),
    "draws by bigrams, candidates, tables": (
        "bigrams",
        "hard negatives",
        "two-pass",
        "hash tables",
    ),
    "draws close to the softmax": ("clusters", "random features", "exact draws", "quadratic"),
}
# Okabe and Ito's colours, safe for the colour-blind; each is in a family once
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
MARKERS = "osD^vX"
OTHERS = "#CCCCCC"  # colour of the methods of other families
NAME_WIDTH = 5.0  # of a letter, in points
NAME_HEIGHT = 10.0  # between two names, in points
MARKER_HEIGHT = 7.0  # between a name and the marker of another line, in points
SPACE_FOR_NAMES = 8.0  # factor of the seconds at the right end of a panel


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
    with atomic_write(path.with_suffix(".png")) as draft:
        draw(rows).savefig(draft, dpi=100)


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
    """Plot the results against the seconds of training: a row for each family, a column a task.

    The methods of other families are grey lines, so that all panels of a task show all of them.
    """
    tasks = {
        "words": ("perplexity", "Penn Treebank, 10,000 words", "perplexity of held-out words"),
        "names": ("in_top_10", "100,000 names of packages", "held-out name among the best 10"),
    }
    figure = Figure(figsize=(11, 13))
    panels = figure.subplots(len(FAMILIES), len(tasks), sharex="col", sharey="col", squeeze=False)
    for column, (task, (field, title, label)) in enumerate(tasks.items()):
        lines = {name: mean_line(rows, task, name, field) for name in METHODS}
        lines = {name: line for name, line in lines.items() if len(line)}
        for axes, (family, names) in zip(panels[:, column], FAMILIES.items(), strict=True):
            for name, (x, y, _, _) in lines.items():
                if name not in names:
                    axes.plot(x, y, color=OTHERS, linewidth=1, zorder=1)
            ends = []
            for name, color, marker in zip(names, PALETTE, MARKERS, strict=False):
                if name in lines:
                    x, y, below, above = lines[name]
                    style = {"color": color, "marker": marker, "markersize": 5, "linewidth": 1.6}
                    axes.errorbar(x, y, (below, above), capsize=2, **style)
                    ends.append((x[-1], y[-1], name, color))
            axes.set(xscale="log", yscale="log" if field == "perplexity" else "linear")
            axes.grid(color="0.92")
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_ylabel(label)
            axes.set_title(f"{title}: {family}", fontsize=10)
            axes.label_ends = ends  # placed once the limits of the shared axes are known
        panels[-1, column].set_xlabel("seconds of training, 2 cores")
        left, right = panels[0, column].get_xlim()
        panels[0, column].set_xlim(left, right * SPACE_FOR_NAMES)
        bottom, top = panels[0, column].get_ylim()
        panels[0, column].set_ylim(bottom / 1.05, top * 1.06)  # for names beyond the lines
    for axes in panels[:, 0]:
        axes.set_yticks([200, 300, 400, 500], ["200", "300", "400", "500"])
        axes.yaxis.set_minor_formatter("")
    figure.suptitle("Twenty methods, after a quarter, a half and all of the examples")
    figure.tight_layout(rect=(0, 0, 1, 0.99), h_pad=1.5)
    for axes in panels.flat:
        place_names(axes, axes.label_ends)
    return figure


def mean_line(rows: list[dict[str, Any]], task: str, name: str, field: str) -> Any:
    """Return the means of seconds and of a field, and the bars below and above (4, parts)."""
    own = [row for row in rows if row["task"] == task and row["method"] == name]
    points = []
    for part in dict.fromkeys(row["part"] for row in own):
        found = [(float(r["seconds"]), float(r[field])) for r in own if r["part"] == part]
        x, y = np.transpose(found)
        points.append((x.mean(), y.mean(), y.mean() - y.min(), y.max() - y.mean()))
    return np.transpose(points)


def place_names(axes: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """Write names at the ends of lines, moved up or down from those that are there already."""
    points = 72.0 / axes.figure.dpi
    markers = {name: axes.transData.transform((x, y)) * points for x, y, name, _ in ends}
    taken: list[tuple[float, float, float]] = []  # left, right and height of names, in points
    for x, y, name, color in sorted(ends, key=lambda end: end[1]):
        left, height = markers[name]
        right = left + NAME_WIDTH * len(name)
        gaps = [(at, NAME_HEIGHT) for begin, end, at in taken if begin < right and left < end]
        gaps += [(at, MARKER_HEIGHT) for end, at in markers.values() if left < end < right + 9]
        moves = sorted((step * side for step in range(40) for side in (1, -1)), key=abs)
        move = next(m for m in moves if all(abs(height + m - at) >= gap for at, gap in gaps))
        taken.append((left, right, height + move))
        axes.annotate(
            name,
            (x, y),
            (7, move),
            textcoords="offset points",
            color=color,
            va="center",
            fontsize=9,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )


if __name__ == "__main__":
    main()
