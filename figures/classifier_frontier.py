"""Accuracy against training time: the classifier, label trees, fastText and scikit-learn.

Writes ``classifier_frontier.csv`` and ``classifier_frontier.png`` beside this script: precision at
1, 3 and 5 of held-out examples, and the seconds of `fit` alone on two cores, for each method on 14
sets of data. All have one protocol, which is described in ``classifier_sets.py``: a fifth of the
examples is held out, at most 20,000, at most 200,000 are for training, and test examples with the
inputs of a training example are left out. The sets "other half" and "glyphs" were not looked at
before they were first run; the default of 1,000 draws for several labels is of after that run. The
committed rows are of one run, but for the defaults on the five sets with more than 20,000 examples,
which were trained again with a later rule for their epochs, and on the six sets on which pair
weights are tried.

- digits, USPS: pixels of a picture, and the digit, 10 classes;
- Bibtex: the words of a text, and its labels;
- modules: tf-idf of a docstring, or 100 singular vectors of that (dense), and its module;
- calls: tf-idf of a docstring, and the functions that its function calls;
- imports: tf-idf of the words of a module, and the modules that it imports;
- Unicode names: counts of the words and pairs of words of a character's name, and its last word;
- characters: counts of the parts of an identifier, and the module that has it most often;
- lines: the tokens of a line of code, and its module;
- Penn Treebank: three words, and the next word;
- identifiers: eight tokens of code, and the next token, an identifier;
- other half: half of the names in a function, and the other half;
- glyphs: pixels of a character in a font, and the character.

samplesoft has its default settings, other numbers of epochs, and the full softmax, if that is not
the default and examples times classes are at most 200 million. The defaults and the full softmax
are trained with several seeds: there is a row for each seed, and a row "mean" with the standard
deviations. The rows of the defaults also have the best setting of the other packages by precision
at 1 and at 5, the difference in points, and the training time divided by the time of that setting.
omikuji, napkinXC, LinearSVC and Ridge have their default settings, and Bonsai has those of its
authors. fastText is trained for up to 100 epochs, as long as they have at most 80 million words,
and 600 million scores where all classes are scored. scikit-learn's models get rows of length 1, and
are left out beyond 2,000 classes or an estimated time of 40 s. The script prints what is left out
and the reason::

    python figures/classifier_frontier.py --bibtex bibtex --ptb ptb --usps usps

With ``--data`` or ``--methods``, the other rows of the CSV file are kept. Without its folder, a set
is left out; ``--packages`` is the folder of the installed packages whose code is read.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from classifier_peers import PEERS, TOP, Result, padded
from classifier_sets import MAX_TRAIN, PACKAGES, SETS, Data, LeftOut, Sources, data_set
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from tables import read_csv, write_csv

from samplesoft._files import atomic_write
from samplesoft.sklearn import SampledSoftmaxClassifier

DEFAULT = "samplesoft"
FULL = "samplesoft, full softmax"
EPOCHS = "samplesoft, max_iter"
MAX_FULL = 200_000_000  # examples times classes
CUTOFFS = (1, 3, 5)
SHOWN = 0.7  # of the best precision of a set, in the figure
MEAN = "mean"  # in the column of seeds
FIELDS = (
    *("data", "examples", "columns", "classes", "labels_each", "method", "setting", "seed"),
    "seconds",
    *(f"precision_at_{k}" for k in CUTOFFS),
    *(f"sd_of_precision_at_{k}" for k in CUTOFFS),
    *("best_peer_at_1", "points_at_1", "time_ratio_at_1"),
    *("best_peer_at_5", "points_at_5", "time_ratio_at_5"),
)
STYLES = {  # colours of Okabe and Ito, and markers
    DEFAULT: ("#D55E00", "o"),
    EPOCHS: ("#D55E00", "."),
    FULL: ("#CC79A7", "o"),
    "omikuji Parabel": ("#0072B2", "s"),
    "omikuji Bonsai": ("#0072B2", "D"),
    "napkinXC PLT": ("#56B4E9", "^"),
    "fastText hs": ("#009E73", "v"),
    "fastText softmax": ("#009E73", "P"),
    "fastText ova": ("#009E73", "X"),
    "LinearSVC": ("#000000", "s"),
    "Ridge": ("#000000", "D"),
    "SGDClassifier": ("#777777", "^"),
}
Row = dict[str, Any]


def main() -> None:
    """Train all methods on all sets, then print the comparison, and write the CSV and figure."""
    parser = argparse.ArgumentParser(description="Compare classifiers of very many classes.")
    parser.add_argument("--bibtex", type=Path, metavar="DIR", help="with bibtex_train, bibtex_test")
    parser.add_argument("--ptb", type=Path, metavar="DIR", help="with ptb.train")
    parser.add_argument("--usps", type=Path, metavar="DIR", help="with usps_int16.npz")
    parser.add_argument(
        "--packages", type=Path, metavar="DIR", default=PACKAGES, help="site-packages to be read"
    )
    parser.add_argument("--data", default=";".join(SETS), help="parted by ';'")
    parser.add_argument("--methods", default=";".join(METHODS), help="parted by ';'")
    parser.add_argument("--seeds", type=int, default=3, help="of samplesoft")
    parser.add_argument("--share", type=float, default=1.0, help="of the examples")
    parser.add_argument("--max-train", type=int, default=MAX_TRAIN, help="training examples")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    sources = Sources(args.bibtex, args.ptb, args.usps, args.packages, args.share, args.max_train)

    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "classifier_frontier.csv"
    runs = runs_of(read_csv(path))
    for name in args.data.split(";"):
        try:
            data = data_set(name, sources)
        except LeftOut as reason:
            print(f"{name} is left out: {reason}", flush=True)
            continue
        for method in args.methods.split(";"):
            new = results(name, data, method, args.seeds)
            if new:
                runs = [r for r in runs if (r["data"], r["method"]) != (name, method)] + new
                write_csv(path, table(runs), FIELDS, digits=4)
    rows = table(runs)
    print(comparison(rows))
    with atomic_write(path.with_suffix(".png")) as draft:
        draw(rows).savefig(draft, dpi=110)


def results(name: str, data: Data, method: str, seeds: int) -> list[Row]:
    """Return a row for each result of a method on a set; none if it is left out."""
    labels = data.labels[data.train]
    shape = {
        "data": name,
        "examples": len(data.train),
        "columns": data.X.shape[1],
        "classes": labels.shape[1],
        "labels_each": labels.nnz / labels.shape[0],
    }
    rows: list[Row] = []
    try:
        for result in METHODS[method](data, seeds):
            row = {"method": method, "setting": result.setting, "seed": result.seed}
            precisions = precision(result.ids, data.labels[data.test])
            rows.append(shape | row | {"seconds": result.seconds} | precisions)
            figures = " ".join(f"{value:.4f}" for value in precisions.values())
            seed = "" if result.seed is None else f", seed {result.seed}"
            start = f"{name}: {method}, {result.setting}{seed}:"
            print(f"{start} {result.seconds:.2f} s, {figures}", flush=True)
    except LeftOut as reason:
        print(f"{name}: {method} is left out: {reason}", flush=True)
    return rows


def precision(ids: Any, labels: Any) -> dict[str, float]:
    """Return the fractions of the first 1, 3 and 5 of lists (N, 5) that are labels (N, n)."""
    rows, places = np.nonzero(ids >= 0)
    right = np.zeros(ids.shape)
    right[rows, places] = labels[rows, ids[rows, places]] > 0
    return {f"precision_at_{k}": float(right[:, :k].mean(axis=0).sum() / k) for k in CUTOFFS}


# samplesoft ---------------------------------------------------------------------------------------


def samplesoft(data: Data, seeds: int, **options: Any) -> Iterator[Result]:
    """Yield a model for each seed."""
    X, labels = data.X[data.train], data.labels[data.train]
    y = labels.indices if data.single else labels
    few = {**options, "max_iter": 2}  # which loads the compiled code
    SampledSoftmaxClassifier(random_state=0, **few).fit(X[:3000], y[:3000])
    setting = ", ".join(f"{name}={value}" for name, value in options.items()) or "defaults"
    for seed in range(seeds):
        start = perf_counter()
        model = SampledSoftmaxClassifier(random_state=seed, **options).fit(X, y)
        seconds = perf_counter() - start
        ids, _ = model.predict_topk(data.X[data.test], min(TOP, labels.shape[1]))
        yield Result(setting, seed, seconds, padded(ids))


def full_softmax(data: Data, seeds: int) -> Iterator[Result]:
    """Yield models of the full softmax, unless that is the default or takes too long."""
    X, labels = data.X[data.train], data.labels[data.train]
    if labels.shape[0] * labels.shape[1] > MAX_FULL:
        raise LeftOut(f"examples times classes are over {MAX_FULL:,}")
    y = labels.indices if data.single else labels
    default = SampledSoftmaxClassifier(random_state=0, max_iter=1).fit(X, y)
    if default.resolved_.model.loss == "full":
        raise LeftOut("the defaults are the full softmax")
    yield from samplesoft(data, seeds, loss="full")


def samplesoft_epochs(data: Data, seeds: int) -> Iterator[Result]:
    """Yield models of one seed with several numbers of epochs."""
    for epochs in (1, 2, 5, 10):
        yield from samplesoft(data, 1, max_iter=epochs)


def peer(method: str) -> Callable[[Data, int], Iterator[Result]]:
    """Return a method of another package, which has no seeds."""
    return lambda data, seeds: PEERS[method](data)


METHODS: dict[str, Callable[[Data, int], Iterator[Result]]] = {
    DEFAULT: samplesoft,
    EPOCHS: samplesoft_epochs,
    FULL: full_softmax,
    **{method: peer(method) for method in PEERS},
}


# the table ----------------------------------------------------------------------------------------


def runs_of(rows: list[Row]) -> list[Row]:
    """Return the rows of a table that stand for a run, of sets and methods that still exist."""
    return [
        row
        for row in rows
        if set(FIELDS) <= set(row)
        and row["seed"] != MEAN
        and row["data"] in SETS
        and row["method"] in METHODS
    ]


def table(runs: list[Row]) -> list[Row]:
    """Return runs in order, with the means over seeds, and with comparisons in those of ours."""
    rows: list[Row] = []
    for name in SETS:
        peers = [run for run in runs if run["data"] == name and run["method"] in PEERS]
        for method in METHODS:
            own = [run for run in runs if run["data"] == name and run["method"] == method]
            rows += own
            if method in (DEFAULT, FULL) and own:
                mean = mean_row(own)
                rows.append(mean | compared(mean, peers) if method == DEFAULT else mean)
    return rows


def mean_row(runs: list[Row]) -> Row:
    """Return the mean of runs with several seeds, and the standard deviation of precisions."""
    row = {**runs[0], "seed": MEAN, "seconds": float(np.mean([run["seconds"] for run in runs]))}
    for k in CUTOFFS:
        values = [run[f"precision_at_{k}"] for run in runs]
        row[f"precision_at_{k}"] = float(np.mean(values))
        row[f"sd_of_precision_at_{k}"] = float(np.std(values, ddof=1)) if len(runs) > 1 else None
    return row


def compared(row: Row, peers: list[Row]) -> Row:
    """Return the best run of other packages at 1 and 5, and how a row differs from it."""
    columns: Row = {}
    for k in (1, 5) if peers else ():
        measure = f"precision_at_{k}"
        best = max(peers, key=lambda run: (run[measure], -run["seconds"]))
        columns[f"best_peer_at_{k}"] = f"{best['method']}, {best['setting']}"
        columns[f"points_at_{k}"] = 100 * (row[measure] - best[measure])
        columns[f"time_ratio_at_{k}"] = row["seconds"] / best["seconds"]
    return columns


def comparison(rows: list[Row]) -> str:
    """Return the comparison of the defaults with the best of other packages, a line for each set.

    Differences are in points of precision, and times are divided by those of the other package.
    """
    lines = []
    for row in rows:
        if row["method"] == DEFAULT and row["seed"] == MEAN:
            cells = [f"{row['data']:15s}", f"{row['classes']:6d} classes"]
            for k in (1, 5) if row.get("best_peer_at_1") else ():
                spread = row[f"sd_of_precision_at_{k}"]
                deviation = "" if spread is None else f" +- {spread:.4f}"
                cells.append(
                    f"at {k}: {row[f'precision_at_{k}']:.4f}{deviation}, "
                    f"{row[f'points_at_{k}']:+.2f} points, "
                    f"{row[f'time_ratio_at_{k}']:.2f} of the time, {row[f'best_peer_at_{k}']}"
                )
            lines.append("  ".join(cells))
    return "\n".join(lines)


def draw(rows: list[Row]) -> Figure:
    """Return precision at 1 against time, a panel for each set; a ring stands for our defaults.

    Points far below the best one of a panel are not shown.
    """
    names = list(dict.fromkeys(row["data"] for row in rows))
    num_columns = min(4, len(names))
    num_rows = -(-len(names) // num_columns)
    figure = Figure(figsize=(3.6 * num_columns, 2.9 * num_rows + 1.2), layout="constrained")
    axes = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    handles = {}
    for axis, name in zip(axes, names, strict=False):
        for method, (colour, marker) in STYLES.items():
            own = [
                row
                for row in rows
                if (row["data"], row["method"]) == (name, method)
                and (row["seed"] == MEAN or method not in (DEFAULT, FULL))
            ]
            if own:
                points = sorted((row["seconds"], row["precision_at_1"]) for row in own)
                style: Row = {"color": colour, "marker": marker, "markersize": 6, "linewidth": 1}
                if method == DEFAULT:
                    style |= {"markersize": 12, "markerfacecolor": "none", "markeredgewidth": 2}
                (handles[method],) = axis.plot(*np.transpose(points), **style, label=method)
        classes = next(row["classes"] for row in rows if row["data"] == name)
        axis.set_title(f"{name} ({classes:,} classes)", size=11)
        values = [row["precision_at_1"] for row in rows if row["data"] == name]
        lowest = max(SHOWN * max(values), min(values))
        margin = 0.08 * (max(values) - lowest) + 0.002
        axis.set_ylim(lowest - margin, max(values) + margin)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3)
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    ordered = [method for method in STYLES if method in handles]
    figure.legend(
        [handles[method] for method in ordered], ordered, loc="outside lower center", ncols=4
    )
    figure.supylabel("precision at 1")
    figure.suptitle(
        "Held-out precision at 1 against seconds of training on 2 cores, down to "
        f"{SHOWN:.0%} of the best"
    )
    return figure


if __name__ == "__main__":
    main()
