"""The classifiers of other packages for ``classifier_frontier.py``; not a script.

Each method yields its results with one or more settings, or raises `LeftOut` with the reason. The
seconds are those of `fit` alone, on two threads. Files that a package reads are written before.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from classifier_sets import Data, LeftOut
from joblib import Parallel, delayed, parallel_config
from numpy.typing import NDArray
from scipy import sparse
from sklearn.datasets import dump_svmlight_file
from sklearn.linear_model import Ridge, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

THREADS = 2
TOP = 5  # labels predicted for each example
MAX_ONE_VS_REST = 2000  # classes
MAX_ESTIMATE = 40.0  # seconds of one-vs-rest
FASTTEXT_SETTINGS = ((1, 0.5), (5, 0.5), (25, 0.2), (100, 0.5))  # epochs and learning rate
MAX_FASTTEXT_WORDS = 80_000_000  # of all epochs
MAX_FASTTEXT_SCORES = 600_000_000  # examples of all epochs times classes, if all are scored
RIDGE_BLOCK = 64  # classes


@dataclass(frozen=True)
class Result:
    """Labels predicted for the test examples, the best first; -1 stands for none."""

    setting: str
    seed: int | None
    seconds: float
    ids: NDArray[np.int64]  # (N, 5)


def require(package: str) -> None:
    """Raise `LeftOut` if a package is not installed."""
    if find_spec(package) is None:
        raise LeftOut(f"{package} is not installed")


def padded(lists: Any) -> NDArray[np.int64]:
    """Return lists of at most 5 labels as an array (N, 5)."""
    ids = np.full((len(lists), TOP), -1, dtype=np.int64)
    for row, labels in enumerate(lists):
        ids[row, : len(labels)] = labels
    return ids


def best_of_scores(scores: Any) -> NDArray[np.int64]:
    """Return the labels (N, 5) of the largest scores (N, n)."""
    return padded(np.argsort(-scores, axis=1, kind="stable")[:, :TOP])


def label_lists(labels: sparse.csr_array) -> list[list[int]]:
    """Return the labels of each example."""
    return [own.tolist() for own in np.split(labels.indices, labels.indptr[1:-1])]


# label trees --------------------------------------------------------------------------------------


def omikuji(data: Data, *, bonsai: bool) -> Iterator[Result]:
    """Yield omikuji's Parabel, which is its default, or Bonsai as its authors run it."""
    require("omikuji")
    from omikuji import Model  # noqa: PLC0415

    hyper = Model.default_hyper_param()
    if bonsai:
        hyper.cluster_balanced = False
        hyper.cluster_k = 100
        hyper.max_depth = 3
    with repository_file(data) as path, silence():
        start = perf_counter()
        model = Model.train_on_data(path, hyper, THREADS)
        seconds = perf_counter() - start
    X = unit_rows(data, data.test)
    lists = []
    for a, b in zip(X.indptr[:-1], X.indptr[1:], strict=True):
        pairs = zip(X.indices[a:b].tolist(), X.data[a:b].tolist(), strict=True)
        lists.append([label for label, _ in model.predict(pairs, top_k=TOP)])
    setting = "unbalanced, k=100, max_depth=3" if bonsai else "defaults"
    yield Result(setting, None, seconds, padded(lists))


@contextmanager
def silence() -> Iterator[None]:
    """Send the output of compiled code nowhere, such as a line of progress for each example."""
    sys.stdout.flush()
    sys.stderr.flush()
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        kept = {stream: os.dup(stream) for stream in (1, 2)}
        try:
            for stream in kept:
                os.dup2(nowhere.fileno(), stream)
            yield
        finally:
            for stream, copy in kept.items():
                os.dup2(copy, stream)
                os.close(copy)


@contextmanager
def repository_file(data: Data) -> Iterator[str]:
    """Write training examples in the format of the extreme classification repository."""
    X, labels = unit_rows(data, data.train), data.labels[data.train]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.txt")
        with path.open("wb") as file:
            file.write(f"{X.shape[0]} {X.shape[1]} {labels.shape[1]}\n".encode())
            dump_svmlight_file(X, sparse.csr_matrix(labels), file, multilabel=True)
        yield str(path)


def unit_rows(data: Data, rows: Any) -> sparse.csr_matrix:
    """Return rows of length 1 as a sparse matrix."""
    return sparse.csr_matrix(normalize(sparse.csr_matrix(data.X[rows])))


def napkinxc(data: Data) -> Iterator[Result]:
    """Yield napkinXC's probabilistic label tree with its defaults."""
    require("napkinxc")
    from napkinxc.models import PLT  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        X, lists = sparse.csr_matrix(data.X[data.train]), label_lists(data.labels[data.train])
        model = PLT(folder, threads=THREADS)
        start = perf_counter()
        model.fit(X, lists)
        seconds = perf_counter() - start
        predicted = model.predict(sparse.csr_matrix(data.X[data.test]), top_k=TOP)
    yield Result("defaults", None, seconds, padded(predicted))


# fastText -----------------------------------------------------------------------------------------


def fast_text(data: Data, loss: str) -> Iterator[Result]:
    """Yield fastText with vectors of 64, for few to many epochs."""
    require("fasttext")
    if data.words is None:
        raise LeftOut("the inputs are no words")
    if loss != "hs" and data.single != (loss == "softmax"):
        raise LeftOut("examples have one label" if data.single else "examples have several labels")
    num_words = sum(data.words[i].count(" ") + 1 for i in data.train)
    num_scores = 0 if loss == "hs" else len(data.train) * data.labels.shape[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.txt")
        with path.open("w", encoding="utf-8") as file:
            for i, labels in zip(data.train, label_lists(data.labels[data.train]), strict=True):
                names = " ".join(f"__label__{label}" for label in labels)
                file.write(f"{names} {data.words[i]}\n")
        for epochs, rate in FASTTEXT_SETTINGS:
            if epochs * num_words > MAX_FASTTEXT_WORDS:
                raise LeftOut(f"{epochs} epochs have over {MAX_FASTTEXT_WORDS:,} words")
            if epochs * num_scores > MAX_FASTTEXT_SCORES:
                raise LeftOut(f"{epochs} epochs have over {MAX_FASTTEXT_SCORES:,} scores")
            yield fast_text_result(data, path, loss, epochs, rate)


def fast_text_result(data: Data, path: Path, loss: str, epochs: int, rate: float) -> Result:
    """Return the result of one model of fastText."""
    import fasttext  # noqa: PLC0415

    options = {"epoch": epochs, "lr": rate, "loss": loss, "dim": 64, "minCount": 1}
    start = perf_counter()
    try:
        model = fasttext.train_supervised(str(path), thread=THREADS, verbose=0, **options)
    except RuntimeError as error:  # of parameters that are not finite
        raise LeftOut(f"fastText has raised {error}") from error
    seconds = perf_counter() - start
    lists = []
    for i in data.test:
        # not model.predict, which NumPy 2 refuses
        pairs = model.f.predict(data.words[i] + "\n", TOP, 0.0, "strict")
        lists.append([int(name.removeprefix("__label__")) for _, name in pairs])
    return Result(f"{epochs} epochs, rate {rate}", None, seconds, padded(lists))


# scikit-learn, a model for each label, on rows of length 1 ----------------------------------------


def linear_svc(data: Data) -> Iterator[Result]:
    """Yield linear support vector machines."""
    yield one_vs_rest(data, LinearSVC(), "defaults")


def sgd(data: Data) -> Iterator[Result]:
    """Yield logistic regressions that are trained by stochastic gradient descent."""
    model = SGDClassifier(loss="log_loss", alpha=1e-6, max_iter=5, tol=None, random_state=0)
    yield one_vs_rest(data, model, "5 epochs")


def one_vs_rest(data: Data, model: Any, setting: str) -> Result:
    """Return the result of a binary classifier for each label, in two threads."""
    X, labels = one_vs_rest_inputs(data, data.train), data.labels[data.train]
    refuse_if_slow(labels, lambda targets: model.fit(X, targets.ravel()))
    start = perf_counter()
    with parallel_config("threading"):
        trained = OneVsRestClassifier(model, n_jobs=THREADS).fit(X, labels)
    seconds = perf_counter() - start
    scores = trained.decision_function(one_vs_rest_inputs(data, data.test))
    return Result(setting, None, seconds, best_of_scores(scores))


def ridge(data: Data) -> Iterator[Result]:
    """Yield a ridge regression of the labels, 64 labels at once."""
    X, labels = one_vs_rest_inputs(data, data.train), data.labels[data.train]
    solver = "sparse_cg" if sparse.issparse(X) else "auto"
    refuse_if_slow(labels, lambda targets: Ridge(solver=solver).fit(X, targets))
    starts = range(0, labels.shape[1], RIDGE_BLOCK)
    start = perf_counter()
    models = Parallel(THREADS, "threading")(
        delayed(Ridge(solver=solver).fit)(X, labels[:, a : a + RIDGE_BLOCK].toarray())
        for a in starts
    )
    seconds = perf_counter() - start
    X_test = one_vs_rest_inputs(data, data.test)
    scores = np.hstack([model.predict(X_test).reshape(len(data.test), -1) for model in models])
    yield Result("alpha=1", None, seconds, best_of_scores(scores))


def one_vs_rest_inputs(data: Data, rows: Any) -> Any:
    """Return rows of length 1 in float64, which is not copied for each label."""
    return normalize(data.X[rows].astype(np.float64))


def refuse_if_slow(labels: sparse.csr_array, fit: Callable[[Any], Any]) -> None:
    """Raise `LeftOut` if there are too many labels, or a few of them take too long."""
    num_labels = labels.shape[1]
    if num_labels > MAX_ONE_VS_REST:
        raise LeftOut(f"more than {MAX_ONE_VS_REST:,} classes")
    by_count = np.argsort(labels.sum(axis=0))
    some = by_count[np.linspace(0, num_labels - 1, 6).astype(int)[1:-1]]
    start = perf_counter()
    for label in some:
        fit(labels[:, [label]].toarray())
    estimate = (perf_counter() - start) / len(some) * num_labels / THREADS
    if estimate > MAX_ESTIMATE:
        raise LeftOut(f"it would take about {estimate:.0f} s")


PEERS: dict[str, Callable[[Data], Iterator[Result]]] = {
    "omikuji Parabel": lambda data: omikuji(data, bonsai=False),
    "omikuji Bonsai": lambda data: omikuji(data, bonsai=True),
    "napkinXC PLT": napkinxc,
    "fastText hs": lambda data: fast_text(data, "hs"),
    "fastText softmax": lambda data: fast_text(data, "softmax"),
    "fastText ova": lambda data: fast_text(data, "ova"),
    "LinearSVC": linear_svc,
    "Ridge": ridge,
    "SGDClassifier": sgd,
}
