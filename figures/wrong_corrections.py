"""Bias that more draws cannot remove: draws corrected by wrong probabilities.

Writes ``wrong_corrections.csv`` and ``wrong_corrections.png`` beside this script. For a
log-bilinear model of the Penn Treebank (10,000 words), the table has the L1 norm of the exact bias
of the gradient in the logits, averaged over 100 held-out examples:

- by the age of a cache of class vectors, in steps of training by 256 words: 100 draws from the
  softmax of the old scores, corrected by their own probabilities, or as if the scores were new
  (Lindgren et al.); and the 100 words with the highest old scores as negatives, without a
  correction;
- by the number of draws: draws by counts, corrected and not (InfoNCE), or by frequencies as a
  stream estimates them (Yi et al.); and by hash tables, corrected by the probability of a draw
  given the tables, or by the probability that random tables find a word (Spring and Shrivastava).

A few minutes::

    python figures/wrong_corrections.py --corpus ptb

References
----------
E. Lindgren et al., "Efficient training of retrieval models using negative cache", NeurIPS 2021.
R. Spring and A. Shrivastava, "A new unbiased and efficient class of LSH-based samplers and
estimators for partition function computation in log-linear models", 2017.
X. Yi et al., "Sampling-bias-corrected neural modeling for large corpus item recommendations",
RecSys 2019.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from log_bilinear import BATCH, LogBilinear, penn_treebank, softmax_layer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import softmax
from tables import write_both
from tqdm import tqdm

from samplesoft import exact_bias
from samplesoft.bias import truncated_bias
from samplesoft.losses import LOSSES
from samplesoft.samplers import LSHSampler, StreamingUnigramSampler

FloatArray = NDArray[np.float64]

DIM, TAU, STEPS, EXAMPLES, DRAWS = 64, 1.0 / 0.3**2, 2400, 100, 100
AGES = (1, 3, 10, 30, 100, 300, 1000)
NUMBERS = (10, 30, 100, 300, 1000, 3000, 10_000)
FIELDS = ("panel", "method", "x", "bias")  # x: age in steps, or number of draws
STYLES = {  # Okabe and Ito's colours, safe for the colour-blind
    "corrected by its own probabilities": ("#0072B2", "o", "-"),
    "corrected as if it were new": ("#D55E00", "s", "-"),
    "100 highest old scores": ("#000000", "v", "--"),
    "counts": ("#0072B2", "o", "-"),
    "counts, by a stream's estimates": ("#56B4E9", "D", "--"),
    "counts, no correction (InfoNCE)": ("#D55E00", "s", "-"),
    "hash tables": ("#009E73", "^", "-"),
    "hash tables, by collision probability": ("#E69F00", "P", "--"),
}
Row = dict[str, Any]


def main() -> None:
    """Train the model, compute the biases, and write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of the Penn Treebank")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    corpus = penn_treebank(args.corpus, 4)
    model = LogBilinear(corpus, softmax_layer(corpus, DIM, 0, tau=TAU), DIM, 0.2, 0)
    order = np.random.default_rng(0).permutation(corpus.train)[: STEPS * BATCH]
    old: dict[int, Any] = {}
    with tqdm(total=STEPS, desc="training", unit="step") as bar:
        first = 0
        for age in (*sorted(AGES, reverse=True), 0):
            last = (STEPS - age) * BATCH
            model.train(order[first:last], bar.update)
            old[age], first = unit(model.layer.class_embeddings), last
    chosen = np.random.default_rng(1).choice(corpus.held_out, EXAMPLES, replace=False)
    h, labels = unit(model.contexts(chosen)), corpus.labels[chosen]
    rows = by_age(h, labels, old) + by_draws(h, labels, old[0], corpus.counts, corpus.labels[order])
    write_both(args.output, "wrong_corrections", rows, FIELDS, "L1 norm of the bias", draw(rows))


def unit(rows: Any) -> FloatArray:
    """Return vectors of norm 1."""
    rows = np.asarray(rows, np.float64)
    return rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))


def size(bias: FloatArray) -> float:
    """Return the mean over examples of the L1 norm."""
    return float(np.abs(bias).sum(axis=-1).mean())


def by_age(h: FloatArray, labels: Any, old: dict[int, Any]) -> list[Row]:
    """Return what a cache of class vectors does by its age."""
    logits, rows = TAU * h @ old[0].T, []
    fresh = given_negatives(softmax(logits, axis=1), labels)
    for age in tqdm(AGES, desc="ages", unit="age"):
        scores = TAU * h @ old[age].T
        q = softmax(scores, axis=1)
        best = np.argsort(-scores, axis=1)[:, :DRAWS]
        found = {
            "corrected by its own probabilities": exact_bias(logits, labels, q, DRAWS),
            "corrected as if it were new": exact_bias(logits, labels, q, DRAWS, correction=fresh),
            "100 highest old scores": truncated_bias(logits, labels, best),
        }
        rows += [row("cache", name, age, result.bias) for name, result in found.items()]
    return rows


def by_draws(
    h: FloatArray, labels: Any, vectors: FloatArray, counts: FloatArray, stream: Any
) -> list[Row]:
    """Return what draws by counts and by hash tables do, by their number."""
    logits, rows = TAU * h @ vectors.T, []
    q = counts / counts.sum()
    streaming = StreamingUnigramSampler(len(counts), power=1.0)
    for first in range(0, len(stream), BATCH):
        streaming.observe(stream[first : first + BATCH])
    estimate = streaming.probs(None)[0]
    hashes = LSHSampler(vectors, rng=0)
    of_tables = hashes.probs(h)
    collision = np.exp(hashes.collision_log_prob(h, vectors))
    collision /= collision.sum(axis=1, keepdims=True)
    assert LOSSES["sampled-masked"].bias_scheme == "masked"
    for m in tqdm(NUMBERS, desc="draws", unit="m"):
        given: dict[str, tuple[FloatArray, Any]] = {
            "counts": (q, None),
            "counts, by a stream's estimates": (q, estimate),
            "counts, no correction (InfoNCE)": (q, np.full(len(q), 1.0 / m)),
            "hash tables": (of_tables, None),
            "hash tables, by collision probability": (of_tables, collision),
        }
        for name, (drawn, correction) in given.items():
            found = exact_bias(logits, labels, drawn, m, scheme="masked", correction=correction)
            rows.append(row("draws", name, m, found.bias))
    return rows


def given_negatives(p: FloatArray, labels: Any) -> FloatArray:
    """Return probabilities (B, n) given that a class is not the label."""
    others = p.copy()
    others[np.arange(len(p)), labels] = 0.0
    return p / others.sum(axis=1, keepdims=True)


def row(panel: str, method: str, x: int, bias: FloatArray) -> Row:
    """Return a row of the CSV."""
    return dict(zip(FIELDS, (panel, method, x, size(bias)), strict=True))


def draw(rows: list[Row]) -> Figure:
    """Plot the bias against the age of a cache, and against the number of draws."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    panels = {
        "cache": ("age of the class vectors, steps", "100 negatives by old scores"),
        "draws": ("draws m", "draws by counts and by hash tables"),
    }
    for axes, (panel, (label, title)) in zip(
        figure.subplots(1, 2, sharey=True), panels.items(), strict=True
    ):
        for method in dict.fromkeys(r["method"] for r in rows if r["panel"] == panel):
            own = [r for r in rows if (r["panel"], r["method"]) == (panel, method)]
            colour, marker, line = STYLES[method]
            x, y = [r["x"] for r in own], [r["bias"] for r in own]
            axes.plot(x, y, line, color=colour, marker=marker, label=method)
        axes.set(xscale="log", yscale="log", xlabel=label, title=title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=9)
    figure.axes[0].set_ylabel("L1 norm of the bias of the gradient in the logits")
    figure.suptitle("Draws corrected by wrong probabilities: Penn Treebank, exact bias")
    return figure


if __name__ == "__main__":
    main()
