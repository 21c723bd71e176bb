"""Accuracy against training time: the classifier, fastText, napkinXC and scikit-learn.

Writes ``classifier_frontier.csv`` and ``classifier_frontier.png`` beside this script: precision at
1 and how often a label is among the best 5, for held-out examples, and the seconds of `fit` alone,
for each method with several numbers of rounds. There are three data sets. Lines: lines of Python's
standard library, with their module as the class. Identifiers: the 8 tokens before an identifier of
that library, with the identifier as the class, for identifiers that occur at least 4 times (about
30,000). Bibtex, whose examples have several labels, if its folder is given. Methods of packages
that are not installed, fasttext and napkinxc, keep their rows of the CSV file::

    python figures/classifier_frontier.py --bibtex bibtex
"""

from __future__ import annotations

import argparse
import csv
import re
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import normalize
from table3_xc import found
from tables import write_csv

from samplesoft._files import atomic_write
from samplesoft.data import load_xml_repository
from samplesoft.sklearn import SampledSoftmaxClassifier

TOKEN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[0-9]+|[^\sA-Za-z_0-9]")
FIELDS = ("data", "method", "setting", "seconds", "precision_at_1", "in_top_5")
LIBRARY = Path(sysconfig.get_paths()["stdlib"])
TESTS = {"test", "tests", "idle_test"}
WIDTH, LEAST, TESTED = 8, 4, 20_000
FEW = 2000  # classes up to which one classifier for each is trained
ROUNDS = (1, 2, 5, 10)
EPOCHS = ((1, 0.5), (5, 0.2), (5, 0.5), (25, 0.2))  # of fastText, with rates
LONG = 10_000_000  # examples of all epochs, beyond which softmax and ns take too long here
SMALL = "samplesoft, vectors of 64, 100 draws"
Row = dict[str, Any]


class Data(NamedTuple):
    """Examples as texts of words and as rows of numbers, and their labels (N, n)."""

    words: list[str]
    X: Any  # (N, v)
    labels: Any  # (N, n)
    train: Any
    test: Any


def main() -> None:
    """Train all methods on all data, then write the CSV and the figure."""
    parser = argparse.ArgumentParser(description="Compare classifiers of many labels.")
    parser.add_argument("--bibtex", type=Path, metavar="DIR", help="with bibtex_train, bibtex_test")
    parser.add_argument("--data", default="lines;Bibtex;identifiers", help="parted by ';'")
    parser.add_argument("--methods", default=";".join(METHODS), help="parted by ';'")
    parser.add_argument("--share", type=float, default=1.0, help="of the examples")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    path = args.output / "classifier_frontier.csv"
    rows = {}
    if path.exists():
        with path.open(encoding="utf-8") as file:
            rows = {(r["data"], r["method"], r["setting"]): r for r in csv.DictReader(file)}
    for name, data in data_sets(args):
        for method in args.methods.split(";"):
            for setting, seconds, best in METHODS[method](data):
                row = {"data": name, "method": method, "setting": setting, "seconds": seconds}
                rows[name, method, setting] = row | scores(best, data)
                print(*rows[name, method, setting].values(), flush=True)
                write_csv(path, list(rows.values()), FIELDS, digits=4)
    with atomic_write(path.with_suffix(".png")) as draft:
        draw(list(rows.values())).savefig(draft, dpi=130)


def data_sets(args: argparse.Namespace) -> Iterator[tuple[str, Data]]:
    """Yield the data that are asked for."""
    if "lines" in args.data:
        yield "lines", lines(args.share)
    if "Bibtex" in args.data and args.bibtex:
        yield "Bibtex", bibtex(args.bibtex)
    if "identifiers" in args.data:
        yield "identifiers", identifiers(args.share)


def library(tests: bool) -> Iterator[tuple[str, str]]:
    """Yield name and text of the modules of Python's library."""
    for path in sorted(LIBRARY.rglob("*.py")):
        parts = path.relative_to(LIBRARY).with_suffix("").parts
        if "site-packages" not in parts and (tests or not TESTS & set(parts)):
            yield ".".join(parts), path.read_text(encoding="utf-8", errors="replace")


def lines(share: float) -> Data:
    """Return lines of more than 20 characters of modules that have 10 of them."""
    words, names = [], []
    for name, text in library(tests=False):
        kept = [line for line in text.splitlines() if len(line.strip()) > 20]
        if len(kept) >= 10:
            words += [" ".join(TOKEN.findall(line)) for line in kept]
            names += [name] * len(kept)
    vectorizer = HashingVectorizer(
        n_features=2**17, alternate_sign=False, token_pattern=r"\S+", lowercase=False
    )
    X = vectorizer.transform(words).astype(np.float32)
    return split(words, X, np.unique(names, return_inverse=True)[1], share)


def identifiers(share: float) -> Data:
    """Return the tokens before identifiers, at most 600,000."""
    tokens = np.array([token for _, text in library(tests=True) for token in TOKEN.findall(text)])
    names, ids, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    wanted = (counts >= LEAST) & [name[0].isalpha() or name[0] == "_" for name in names]
    places = np.flatnonzero(wanted[ids])
    places = np.random.default_rng(0).permutation(places[places >= WIDTH])[:600_000]
    before = ids[places[:, None] - np.arange(1, WIDTH + 1)]
    starts = np.arange(0, before.size + 1, WIDTH)
    X = sparse.csr_array(
        (np.ones(before.size, np.float32), before.flatten(), starts),
        (len(before), len(names)),  # a copy: rows are sorted
    )
    X.sum_duplicates()
    words = [" ".join(names[row]) for row in before]
    return split(words, normalize(X), np.unique(ids[places], return_inverse=True)[1], share)


def split(words: list[str], X: Any, labels: Any, share: float) -> Data:
    """Hold a tenth of a share of the examples out, at most 20,000."""
    order = np.random.default_rng(1).permutation(len(labels))[: int(share * len(labels))]
    cut = len(order) - min(len(order) // 10, TESTED)
    each = np.arange(len(labels) + 1)
    matrix = sparse.csr_array((np.ones(len(labels)), labels, each))
    return Data(words, sparse.csr_array(X), matrix, order[:cut], order[cut:])


def bibtex(folder: Path) -> Data:
    """Return Bibtex as it is split, without examples that have no label."""
    parts = [load_xml_repository(found(folder, f"bibtex_{part}")) for part in ("train", "test")]
    X = sparse.csr_array(sparse.vstack([part.inputs for part in parts], format="csr"))
    labels = sparse.csr_array(sparse.vstack([part.labels for part in parts], format="csr"))
    words = [" ".join(f"w{i}" for i in X.indices[a:b]) for a, b in pairwise(X.indptr)]
    has = np.flatnonzero(np.diff(labels.indptr))
    cut = parts[0].inputs.shape[0]
    return Data(words, normalize(X).astype(np.float32), labels, has[has < cut], has[has >= cut])


def scores(best: Any, data: Data) -> Row:
    """Return how often the first of lists (N, 5) of labels is one, and any of them."""
    wanted = data.labels[data.test]
    right = np.zeros(best.shape, bool)
    for k in range(best.shape[1]):
        there = best[:, k] >= 0
        right[there, k] = wanted[np.flatnonzero(there), best[there, k]] > 0
    return {"precision_at_1": right[:, 0].mean(), "in_top_5": right.any(axis=1).mean()}


def single(data: Data) -> bool:
    """Tell whether each example has one label."""
    return bool(data.labels.nnz == data.labels.shape[0])


def samplesoft(data: Data, **options: Any) -> Iterator[tuple[str, float, Any]]:
    """Yield the defaults, and fewer or more rounds."""
    X, labels = data.X[data.train], data.labels[data.train]
    y = labels.indices if single(data) else labels
    SampledSoftmaxClassifier(max_iter=2, random_state=0, **options).fit(X[:3000], y[:3000])
    for rounds in (None, *ROUNDS):
        given = {} if rounds is None else {"max_iter": rounds}
        start = perf_counter()
        model = SampledSoftmaxClassifier(random_state=0, **given, **options).fit(X, y)
        seconds = perf_counter() - start
        named, _ = model.predict_topk(data.X[data.test], 5)
        yield f"{rounds or 'default'} rounds", seconds, named


def fast_text(data: Data, loss: str) -> Iterator[tuple[str, float, Any]]:
    """Yield fastText with 64 dimensions, on two threads."""
    if find_spec("fasttext") is None or (loss == "softmax" and data.labels.shape[1] > FEW):
        return
    import fasttext  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.txt")
        with path.open("w", encoding="utf-8") as file:
            for i in data.train:
                names = " ".join(f"__label__{j}" for j in data.labels[[i]].indices)
                file.write(f"{names} {data.words[i]}\n")
        for epochs, rate in EPOCHS:
            if loss != "hs" and epochs * len(data.train) > (LONG if loss == "ns" else LONG // 5):
                continue
            start = perf_counter()
            given = {"epoch": epochs, "lr": rate, "loss": loss, "dim": 64, "minCount": 1}
            model = fasttext.train_supervised(str(path), thread=2, verbose=0, **given)
            seconds = perf_counter() - start
            best = np.full((len(data.test), 5), -1)
            for row, i in enumerate(data.test):
                # not model.predict, which NumPy 2 refuses
                lists = model.f.predict(data.words[i] + "\n", 5, 0.0, "strict")
                names = [name.removeprefix("__label__") for _, name in lists]
                best[row, : len(names)] = names
            yield f"{epochs} epochs, rate {rate}", seconds, best


def plt(data: Data) -> Iterator[tuple[str, float, Any]]:
    """Yield napkinXC's probabilistic label tree with its defaults."""
    if find_spec("napkinxc") is None:
        return
    from napkinxc.models import PLT  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        labels = data.labels[data.train]
        lists = [list(map(int, part)) for part in np.split(labels.indices, labels.indptr[1:-1])]
        model, start = PLT(folder), perf_counter()
        model.fit(sparse.csr_matrix(data.X[data.train]), lists)
        seconds = perf_counter() - start
        best = np.full((len(data.test), 5), -1)
        for row, names in enumerate(model.predict(sparse.csr_matrix(data.X[data.test]), top_k=5)):
            best[row, : len(names)] = names
        yield "defaults", seconds, best


def sgd(data: Data) -> Iterator[tuple[str, float, Any]]:
    """Yield a logistic regression for each label, of scikit-learn, on both cores."""
    if data.labels.shape[1] > FEW:
        return
    for rounds in (1, 5):
        one = SGDClassifier(loss="log_loss", alpha=1e-6, max_iter=rounds, tol=None, random_state=0)
        start = perf_counter()
        model = OneVsRestClassifier(one, n_jobs=2).fit(data.X[data.train], data.labels[data.train])
        seconds = perf_counter() - start
        yield (
            f"{rounds} rounds",
            seconds,
            np.argsort(-model.decision_function(data.X[data.test]), axis=1)[:, :5],
        )


METHODS: dict[str, Any] = {
    "samplesoft": samplesoft,
    SMALL: lambda data: samplesoft(data, embedding_dim=64, num_sampled=100),
    "samplesoft, hierarchical": lambda data: samplesoft(data, loss="hierarchical"),
    "fastText hs": lambda data: fast_text(data, "hs"),
    "fastText ns": lambda data: fast_text(data, "ns"),
    "fastText softmax": lambda data: fast_text(data, "softmax"),
    "napkinXC PLT": plt,
    "SGDClassifier": sgd,
}


def draw(rows: list[Row]) -> Figure:
    """Return accuracy against time, a panel for each data set and figure."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure = Figure(figsize=(4.4 * len(names), 7), layout="constrained")
    axes = figure.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        for axis, field in zip(axes[:, column], ("precision_at_1", "in_top_5"), strict=True):
            for index, method in enumerate(METHODS):
                mine = [r for r in rows if r["data"] == name and r["method"] == method]
                if mine:
                    points = sorted((float(r["seconds"]), float(r[field])) for r in mine)
                    ours = method.startswith("samplesoft")
                    style = "o-" if ours else "os^vDPX"[index % 7]
                    axis.plot(*np.transpose(points), style, color=f"C{index}", ms=5, label=method)
                    for r in (r for r in mine if r["setting"].startswith("default ") and not index):
                        place = float(r["seconds"]), float(r[field])
                        axis.plot(*place, "o", color=f"C{index}", ms=11, mfc="none")
            axis.set_xscale("log")
            axis.grid(alpha=0.3)
        axes[0, column].set_title(name)
        axes[1, column].set_xlabel("seconds of training (2 cores)")
    axes[0, 0].set_ylabel("precision at 1")
    axes[1, 0].set_ylabel("a label among the best 5")
    known = {}
    for axis in axes[0]:  # a method may have no point on some data
        known |= {
            label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
    figure.legend(known.values(), known, loc="outside lower center", ncols=4, fontsize=9)
    figure.suptitle("Held-out accuracy against time of training; a ring: the defaults")
    return figure


if __name__ == "__main__":
    main()
