"""Linear models of texts compared on Bibtex: ours, scikit-learn's, and label trees.

Writes ``linear_models.csv`` and ``linear_models.png`` beside this script: precision at 1, 3 and 5
on the test data of Bibtex (1,836 words, 159 labels), the log loss of an example if a model has
probabilities (in nats, summed over the labels), and the seconds of training. Inputs are rows of
norm 1, or tf-idf, as the name says. Settings of our models and of scikit-learn's were chosen on
fifths of the training data, from `GRIDS`. napkinXC and omikuji have their defaults, which their
authors chose for such data. The test data are scored once. Our models are trained with several
seeds, and their seconds are means. Libraries that are not installed are left out. The figure also
has published results::

    python figures/linear_models.py --bibtex bibtex

Methods that are not in ``--methods`` keep their rows of the existing CSV file.

References
----------
The extreme classification repository, http://manikvarma.org/downloads/XC/XMLRepository.html: data
and published figures.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import sparse
from scipy.special import expit
from table3_xc import found
from tables import write_csv

from samplesoft._files import atomic_write
from samplesoft.data import load_xml_repository
from samplesoft.metrics.ranking import ranking_scores
from samplesoft.training.linear_task import with_unit_rows

FIELDS = (
    *("method", "seconds", "precision_at_1", "precision_at_3", "precision_at_5"),
    *("sd_of_precision_at_1", "log_loss", "seeds", "chosen"),
)
PUBLISHED = (  # precision at 1, 3 and 5
    ("SLEEC, published", 0.6508, 0.3964, 0.2887),
    ("PfastreXML, published", 0.6346, 0.3922, 0.2914),
    ("FastXML, published", 0.6342, 0.3923, 0.2886),
)
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "samplesoft, one-vs-all": {
        "alpha": (3e-5, 4e-5, 5e-5),
        "max_iter": (10, 15),
        "power": (0.0, 0.5, 1.0),
    },
    "scikit-learn, Ridge": {"alpha": (0.5, 1.0, 2.0)},
    "scikit-learn, one-vs-rest": {"C": (1.0, 3.0, 10.0)},
}
Row = dict[str, Any]
Found = tuple[Any, Any]  # scores (N, n), and probabilities (N, n) or None
Fitted = tuple[float, Callable[[Any], Found]]


def main() -> None:
    """Train the models, then print the table, and write the CSV and the figure."""
    parser = argparse.ArgumentParser(description="Compare linear models on Bibtex.")
    parser.add_argument(
        "--bibtex", type=Path, required=True, metavar="DIR", help="with bibtex_train.txt, _test"
    )
    parser.add_argument("--methods", default=";".join(METHODS), help="parted by ';'")
    parser.add_argument("--seeds", type=int, default=3, help="of ours")
    parser.add_argument("--choose", action="store_true", help="on fifths of the training data")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    train, test = (with_labels(args.bibtex, part) for part in ("train", "test"))
    if args.choose:
        choose(train, args.methods.split(";"))
        return
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "linear_models.csv"
    rows = written(path)
    for method in args.methods.split(";"):
        if missing := LIBRARIES.get(method.split(",")[0], "numpy"):
            if importlib.util.find_spec(missing) is None:
                print(f"{method} is left out: {missing} is not installed.")
                continue
        rows[method] = {"method": method, **compared(method, train, test, args.seeds)}
        print(line(rows[method]), flush=True)
        write_csv(path, list(rows.values()), FIELDS)
    with atomic_write(path.with_suffix(".png")) as draft:
        draw(list(rows.values())).savefig(draft, dpi=130)


def with_labels(folder: Path, part: str) -> tuple[Any, Any]:
    """Return the inputs and labels of a part; of training, the examples that have a label."""
    inputs, labels = load_xml_repository(found(folder, f"bibtex_{part}"))[:2]
    if part == "train":
        rows = np.flatnonzero(np.diff(labels.indptr))
        inputs, labels = inputs[rows], labels[rows]
    return sparse.csr_matrix(inputs), sparse.csr_matrix(labels)


def written(path: Path) -> dict[str, Row]:
    """Return the rows of a file of before, if there is one."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def compared(method: str, train: Any, test: Any, seeds: int) -> Row:
    """Train a model with each seed, and score it once."""
    fit, settings = METHODS[method]
    seeds = seeds if method.startswith("samplesoft") else 1
    figures, seconds = [], []
    for seed in range(seeds):
        taken, answer = fit(*train, seed, **settings)
        figures.append(scored(*answer(test[0]), test[1]))
        seconds.append(taken)
    mean = {name: np.mean([one[name] for one in figures]) for name in figures[0]}
    chosen = " ".join(f"{name}={value:g}" for name, value in settings.items())
    spread = np.std([one["precision_at_1"] for one in figures], ddof=1) if seeds > 1 else ""
    row = {"seconds": np.mean(seconds), "seeds": seeds, "sd_of_precision_at_1": spread}
    return {**row, **mean, "chosen": chosen}


def scored(scores: Any, probabilities: Any, labels: Any) -> dict[str, float]:
    """Return precisions of scores (N, n), and the log loss of probabilities, if there are some."""
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    ranked = ranking_scores(ids, sparse.csr_array(labels), (1, 3, 5))
    figures = {name: ranked[name] for name in FIELDS[2:5]}
    if probabilities is not None:
        p = np.clip(probabilities.astype(np.float64), 1e-12, 1.0 - 1e-12)
        right = labels.toarray() != 0.0
        figures["log_loss"] = -np.where(right, np.log(p), np.log1p(-p)).sum(axis=1).mean()
    return figures


def choose(train: Any, methods: list[str]) -> None:
    """Print figures of all settings in a grid, the mean of five fifths that are left out."""
    order = np.random.default_rng(0).permutation(train[0].shape[0])
    parts = np.array_split(order, 5)
    for method in (name for name in methods if name.split(", tf")[0] in GRIDS):
        grid = GRIDS[method.split(", tf")[0]]
        for values in np.stack(np.meshgrid(*grid.values(), indexing="ij"), -1).reshape(
            -1, len(grid)
        ):
            settings = dict(zip(grid, values.tolist(), strict=True))
            figures = []
            for k, part in enumerate(parts):
                rest = np.concatenate([other for i, other in enumerate(parts) if i != k])
                fit, others = METHODS[method]
                _, answer = fit(*(of[rest] for of in train), 0, **others | settings)
                figures.append(list(scored(*answer(train[0][part]), train[1][part]).values()))
            print(method, settings, np.round(np.mean(figures, axis=0), 4), flush=True)


def line(row: Row) -> str:
    """Return a line of the table."""
    figures = " ".join(f"{float(row[name]):.4f}" for name in FIELDS[2:5])
    loss = f"{float(row['log_loss']):.3f} nats" if row.get("log_loss") else ""
    return f"{row['method']:38s} {float(row['seconds']):6.2f} s  {figures}  {loss}"


def tf_idf(inputs: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return tf-idf of inputs, of length 1, and what makes it of others."""
    from sklearn.feature_extraction.text import TfidfTransformer

    transformer = TfidfTransformer().fit(inputs)
    return sparse.csr_matrix(transformer.transform(inputs)), transformer.transform


def one_vs_all(inputs: Any, labels: Any, seed: int, *, power: float, **settings: Any) -> Fitted:
    """Train ours without a bottleneck, with a logistic regression of each label.

    An example has so many losses that those with many labels would rule; they have less weight.
    """
    settings = {"embedding_dim": None, "loss": "full-logistic", **settings}
    weights = np.diff(labels.indptr) ** -power
    return classifier(inputs, labels, seed, sample_weight=weights / weights.mean(), **settings)


def classifier(
    inputs: Any, labels: Any, seed: int, sample_weight: Any = None, **settings: Any
) -> Fitted:
    """Train ours on tf-idf; kernels are loaded before the clock starts."""
    from samplesoft.sklearn import SampledSoftmaxClassifier

    settings["max_iter"] = int(settings["max_iter"])
    few, some = inputs[:64].astype(np.float32), labels[:64]
    SampledSoftmaxClassifier(**settings | {"max_iter": 1}).fit(few, some).predict_proba(few)
    start = perf_counter()
    x, transform = tf_idf(inputs)
    model = SampledSoftmaxClassifier(random_state=seed, **settings).fit(
        x.astype(np.float32), labels, sample_weight
    )
    seconds = perf_counter() - start

    def answer(test: Any) -> Found:
        x = transform(test).astype(np.float32)
        return model.decision_function(x), model.predict_proba(x)

    return seconds, answer


def ridge(inputs: Any, labels: Any, seed: int, *, idf: bool, **settings: Any) -> Fitted:
    """Train scikit-learn's ridge regression."""
    from sklearn.linear_model import Ridge

    start = perf_counter()
    x, transform = tf_idf(inputs) if idf else (with_unit_rows(inputs), with_unit_rows)
    model = Ridge(**settings).fit(x, labels.toarray())
    return perf_counter() - start, lambda test: (model.predict(transform(test)), None)


def one_vs_rest(inputs: Any, labels: Any, seed: int, *, idf: bool, **settings: Any) -> Fitted:
    """Train scikit-learn's logistic regressions."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    start = perf_counter()
    x, transform = tf_idf(inputs) if idf else (with_unit_rows(inputs), with_unit_rows)
    model = OneVsRestClassifier(LogisticRegression(solver="liblinear", **settings))
    model.fit(sparse.csr_matrix(x), labels)
    seconds = perf_counter() - start

    def answer(test: Any) -> Found:
        scores = model.decision_function(sparse.csr_matrix(transform(test)))
        return scores, expit(scores)

    return seconds, answer


def label_tree(inputs: Any, labels: Any, seed: int) -> Fitted:
    """Train napkinXC's probabilistic label tree; it divides rows by their lengths itself."""
    from napkinxc.models import PLT

    folder = tempfile.mkdtemp()
    start = perf_counter()
    model = PLT(folder, seed=1)
    model.fit(inputs, lists_of(labels))
    seconds = perf_counter() - start

    def answer(test: Any) -> Found:
        p = np.zeros((test.shape[0], labels.shape[1]))
        for row, pairs in enumerate(model.predict_proba(test, top_k=labels.shape[1])):
            for label, value in pairs:
                p[row, label] = value
        return p, p

    return seconds, answer


def omikuji_tree(inputs: Any, labels: Any, seed: int) -> Fitted:
    """Train omikuji's Parabel, which reads a file."""
    import omikuji

    x = sparse.csr_matrix(with_unit_rows(inputs))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(f"{x.shape[0]} {x.shape[1]} {labels.shape[1]}\n")
        for own, row in zip(lists_of(labels), x, strict=True):
            pairs = zip(row.indices, row.data, strict=True)
            file.write(",".join(map(str, own)) + " " + " ".join(f"{i}:{v:g}" for i, v in pairs))
            file.write("\n")
        file.flush()
        start = perf_counter()
        model = omikuji.Model.train_on_data(file.name)
        seconds = perf_counter() - start

    def answer(test: Any) -> Found:
        scores = np.full((test.shape[0], labels.shape[1]), -np.inf)
        for row, own in enumerate(sparse.csr_matrix(with_unit_rows(test))):
            for label, value in model.predict(list(zip(own.indices, own.data, strict=True))):
                scores[row, label] = value
        return scores, None

    return seconds, answer


def lists_of(labels: Any) -> list[list[int]]:
    """Return the labels of each example."""
    return [own.tolist() for own in np.split(labels.indices, labels.indptr[1:-1])]


METHODS: dict[str, tuple[Callable[..., Fitted], dict[str, Any]]] = {
    "samplesoft, one-vs-all": (
        one_vs_all,
        {"alpha": 4e-5, "max_iter": 10, "power": 0.5},
    ),
    "samplesoft, softmax of vectors of 64": (classifier, {"embedding_dim": 64, "max_iter": 5}),
    "scikit-learn, Ridge": (ridge, {"alpha": 1.0, "idf": False}),
    "scikit-learn, Ridge, tf-idf": (ridge, {"alpha": 1.0, "idf": True}),
    "scikit-learn, one-vs-rest": (one_vs_rest, {"C": 10.0, "idf": False}),
    "scikit-learn, one-vs-rest, tf-idf": (one_vs_rest, {"C": 10.0, "idf": True}),
    "napkinXC, label tree": (label_tree, {}),
    "omikuji, Parabel": (omikuji_tree, {}),
}
LIBRARIES = {"scikit-learn": "sklearn", "napkinXC": "napkinxc", "omikuji": "omikuji"}


def draw(rows: list[Row]) -> Figure:
    """Plot the precisions of each method, the best at the top."""
    lines = [
        (f"{r['method']}  ({float(r['seconds']):.1f} s)", *map(float, values(r))) for r in rows
    ]
    lines = sorted([*lines, *PUBLISHED], key=lambda own: own[1])
    figure = Figure(figsize=(8.4, 0.36 * len(lines) + 1.2), layout="constrained")
    axes = figure.subplots(1, 3)
    for k, (panel, at) in enumerate(zip(axes, (1, 3, 5), strict=True), 1):
        for height, own in enumerate(lines):
            ours = own[0].startswith("samplesoft")
            colour = "#D55E00" if ours else "#888888" if "published" in own[0] else "#0072B2"
            panel.plot(own[k], height, "o", color=colour, markersize=7)
        panel.set(xlabel=f"precision at {at}", yticks=range(len(lines)))
        panel.set_yticklabels([own[0] for own in lines] if k == 1 else [])
        panel.grid(alpha=0.3)
        panel.margins(x=0.1)
    figure.suptitle(
        "Bibtex, test data, and seconds of training; published results in grey", size=11
    )
    return figure


def values(row: Row) -> list[Any]:
    """Return the precisions of a row."""
    return [row[name] for name in FIELDS[2:5]]


if __name__ == "__main__":
    main()
