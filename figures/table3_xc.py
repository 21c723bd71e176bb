"""Table 3 of Rawat et al. on other data: samplers compared on Bibtex and on Gowalla.

Writes ``table3_xc.csv`` and ``table3_xc.png`` beside this script: precision at 1, 3 and 5 on the
test points of Bibtex (159 labels), and precision at 1, recall and nDCG at 20 on the test items of
Gowalla (40,981 items; those of training are left out), with the time of the steps of training. A
linear embedding under a softmax layer, vectors of norm 1, Adagrad, m = 100 draws for each example,
the same number of steps for all methods; evaluation always ranks all classes. The paper's methods
are EXP, UNIFORM, QUADRATIC (here without the absolute softmax), RFF and FULL; ours are CLUSTERS,
also with 200 draws, RFF with exact softmax draws in its buckets, and its jackknife. For comparison
there are scikit-learn's logistic regressions, if it is installed (``linear_models.py`` and
``recommenders.py`` have more methods), and reported results of fastText on two cores: its current
release does not train reliably, because its weights may start from uninitialised memory. Embedding
size, tau, dropout and the number of epochs were chosen for FULL on a part of the training data; no
method was tuned separately. On Gowalla samplers are updated every 10 steps. The data files come
from the extreme classification repository and the LightGCN repository::

    python figures/table3_xc.py --bibtex bibtex --gowalla gowalla --runs runs

An interrupted script continues where it stopped.

References
----------
A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019, Table 3.
"""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import sparse
from tables import write_csv

from samplesoft._files import atomic_write
from samplesoft.data import load_interactions, load_xml_repository
from samplesoft.data.interactions import enlarged_to_shape
from samplesoft.metrics.ranking import ranking_scores
from samplesoft.training import (
    BEST,
    CHECKPOINT,
    RetrievalSettings,
    RetrievalTask,
    Settings,
    load_parameters,
    train,
)
from samplesoft.training.linear_task import with_unit_rows

FIELDS = (
    *("data", "method", "seconds", "precision_at_1", "precision_at_3", "precision_at_5"),
    *("recall_at_20", "ndcg_at_20"),
)
FULL = RetrievalSettings(loss="full", sampler=None, num_sampled=None, validation=0.0)
METHODS: dict[str, dict[str, Any]] = {
    "FULL": {},
    "EXP": {"loss": "sampled-masked", "sampler": "softmax"},
    "CLUSTERS": {"loss": "sampled-masked", "sampler": "clusters"},
    "CLUSTERS, m = 200": {"loss": "sampled-masked", "sampler": "clusters", "num_sampled": 200},
    "UNIGRAM": {"loss": "sampled-masked", "sampler": "unigram"},
    "UNIFORM": {"loss": "sampled-masked", "sampler": "uniform"},
    "QUADRATIC": {"loss": "sampled-masked", "sampler": "quadratic"},
    "RFF": {"loss": "sampled-masked", "sampler": "rff"},
    "RFF, softmax in buckets": {"loss": "sampled-masked", "sampler": "rff+softmax-leaf"},
    "jackknife of that": {"loss": "jackknife-masked", "sampler": "rff+softmax-leaf"},
}
STYLES = {  # Okabe and Ito's colours, safe for the colour-blind
    "FULL": ("#000000", "o"),
    "EXP": ("#CC79A7", "s"),
    "CLUSTERS": ("#D55E00", "*"),
    "CLUSTERS, m = 200": ("#D55E00", "X"),
    "UNIGRAM": ("#8C564B", "<"),
    "UNIFORM": ("#E69F00", "^"),
    "QUADRATIC": ("#009E73", "P"),
    "RFF": ("#0072B2", "D"),
    "RFF, softmax in buckets": ("#56B4E9", "X"),
    "jackknife of that": ("#56B4E9", "v"),
}
PEERS = {"scikit-learn, one-vs-rest": ("#777777", "h")}
REPORTED_STYLE = ("#777777", "*")
REPORTED = (  # with vectors of 128 and 50 epochs, and with vectors of 64 and 200 epochs
    {
        "method": "fastText, one-vs-all, reported",
        "seconds": 4.4,
        "precision_at_1": 0.563,
        "precision_at_3": 0.339,
        "precision_at_5": 0.249,
    },
    {
        "method": "fastText, negative sampling, reported",
        "seconds": 170.0,
        "precision_at_1": 0.131,
        "recall_at_20": 0.085,
        "ndcg_at_20": 0.086,
    },
)
Row = dict[str, Any]


def main() -> None:
    """Train the models, then print the table, and write the CSV and the figure."""
    parser = argparse.ArgumentParser(description="Compare samplers on Bibtex and Gowalla.")
    parser.add_argument("--bibtex", type=Path, metavar="DIR", help="with bibtex_train.txt, _test")
    parser.add_argument("--gowalla", type=Path, metavar="DIR", help="with train.txt, test.txt")
    parser.add_argument("--runs", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--methods", default=";".join(METHODS), help="names parted by ';'")
    parser.add_argument("--bibtex-epochs", type=int, default=20)
    parser.add_argument("--gowalla-epochs", type=int, default=8)
    parser.add_argument("--no-peers", action="store_true", help="without other libraries")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    names = args.methods.split(";")
    rows: list[Row] = []
    if args.bibtex:
        rows += bibtex(args, names)
    if args.gowalla:
        rows += gowalla(args, names)
    for row in rows:
        figures = "  ".join(f"{name} {row[name]:.4f}" for name in FIELDS[3:] if name in row)
        print(f"{row['data']:8s} {row['method']:24s} {row['seconds']:7.1f} s  {figures}")
    args.output.mkdir(parents=True, exist_ok=True)
    write_csv(args.output / "table3_xc.csv", rows, FIELDS)
    with atomic_write(args.output / "table3_xc.png") as draft:
        draw(rows).savefig(draft, dpi=130)


def bibtex(args: argparse.Namespace, names: list[str]) -> list[Row]:
    """Return the rows of Bibtex."""
    data, test = (load_xml_repository(found(args.bibtex, f"bibtex_{p}")) for p in ("train", "test"))
    base = replace(FULL, embedding_dim=64, tau=5.0, dropout=0.3, batch_size=64)
    settings = Settings(epochs=args.bibtex_epochs, optimizer="adagrad", learning_rate=0.1)
    rows = []
    for name in names:
        task = RetrievalTask(*data, with_method(base, name))
        rows.append(trained("Bibtex", name, task, settings, args.runs, test))
    if not args.no_peers:
        rows += [{**REPORTED[0], "data": "Bibtex"}, *sklearn_peer(data, test)]
    return rows


def gowalla(args: argparse.Namespace, names: list[str]) -> list[Row]:
    """Return the rows of Gowalla."""
    data, test = (load_interactions(found(args.gowalla, p)) for p in ("train", "test"))
    shape = tuple(max(data.shape[i], test.shape[i]) for i in range(2))
    data, test = enlarged_to_shape(data, shape), enlarged_to_shape(test, shape)
    base = replace(FULL, embedding_dim=128, tau=12.0, dropout=0.5, batch_size=256, update_every=10)
    settings = Settings(epochs=args.gowalla_epochs, optimizer="adagrad", learning_rate=0.1)
    rows = []
    for name in names:
        task = RetrievalTask(data, data, with_method(base, name), leave_out=True)
        rows.append(trained("Gowalla", name, task, settings, args.runs, (data, test)))
    return rows if args.no_peers else [*rows, {**REPORTED[1], "data": "Gowalla"}]


def found(folder: Path, name: str) -> Path:
    """Return a file of a name, compressed or not."""
    files = sorted(folder.glob(f"{name}.txt*"))
    if not files:
        raise FileNotFoundError(f"no {name}.txt, .txt.xz or .txt.gz in {folder}")
    return files[0]


def with_method(base: RetrievalSettings, name: str) -> RetrievalSettings:
    """Return the settings of a method."""
    options = METHODS[name]
    return replace(base, **{"num_sampled": 100} | options) if options else base


def trained(
    data: str, name: str, task: RetrievalTask, settings: Settings, runs: Path, test: Any
) -> Row:
    """Train a model, or go on with it, and score it."""
    folder = runs / f"{data}-{name}".lower().replace(", ", "-").replace(" ", "-")
    there = (folder / CHECKPOINT).exists()
    at = train(task, settings, folder, resume=there, progress=True)
    load_parameters(folder / (BEST if task.settings.validation else CHECKPOINT), task)
    return row(data, name, at.seconds, task.evaluate(*test))


def row(data: str, name: str, seconds: float, figures: dict[str, float]) -> Row:
    """Return a line of the table, with the figures that are usual for the data."""
    wanted = FIELDS[3:6] if data == "Bibtex" else (FIELDS[3], *FIELDS[6:])
    return {"data": data, "method": name, "seconds": seconds} | {k: figures[k] for k in wanted}


def sklearn_peer(data: Any, test: Any) -> list[Row]:
    """Return the row of scikit-learn's logistic regressions, if it is installed."""
    if importlib.util.find_spec("sklearn") is None:
        return []
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    labels = sparse.csr_matrix(data.labels)
    start = perf_counter()
    model = OneVsRestClassifier(LogisticRegression(C=10.0, solver="liblinear"))
    model.fit(with_unit_rows(data.inputs), labels)
    seconds = perf_counter() - start
    ids = np.argsort(-model.decision_function(with_unit_rows(test.inputs)), axis=1)[:, :20]
    name = "scikit-learn, one-vs-rest"
    return [row("Bibtex", name, seconds, scores(ids, test.labels))]


def scores(ids: Any, labels: Any) -> dict[str, float]:
    """Return figures of lists of labels."""
    return ranking_scores(ids, sparse.csr_array(labels), (1, 3, 5, 20))


def draw(rows: list[Row]) -> Figure:
    """Plot what was reached against the time of training, a panel for each data set."""
    names = list(dict.fromkeys(r["data"] for r in rows))
    figure = Figure(figsize=(5.6 * len(names), 5.4), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, data in zip(panels, names, strict=True):
        what = "precision_at_1" if data == "Bibtex" else "recall_at_20"
        for own in (r for r in rows if r["data"] == data):
            colour, marker = (STYLES | PEERS).get(own["method"], REPORTED_STYLE)
            axes.plot(
                own["seconds"],
                own[what],
                marker,
                color=colour,
                markersize=9,
                label=own["method"].replace("of that", "of RFF, softmax in buckets"),
                linestyle="none",
            )
        axes.set(xlabel="seconds of training", title=data)
        axes.set_xlim(left=0.0)
        axes.set_ylabel(what.replace("_at_", " at ") + " on the test data")
        axes.grid(alpha=0.3)
    shown: dict[str, Any] = {}  # once, for all panels
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        shown = dict(zip(labels, handles, strict=True)) | shown
    figure.legend(
        list(shown.values()), list(shown), loc="outside lower center", ncols=4, fontsize=9
    )
    return figure


if __name__ == "__main__":
    main()
