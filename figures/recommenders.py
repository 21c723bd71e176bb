"""Recommenders compared: ours, implicit's ALS, EASE, RP3beta and popularity.

Writes ``recommenders.csv`` and ``recommenders.png`` beside this script: recall and nDCG at 20 on
the test items of Gowalla (LightGCN's split; 40,981 items), and on a hidden fifth of the words of
Bibtex's texts (1,836 words), with the seconds of training. Lists contain no items of the training
data.

Our models have their defaults, and are trained with several seeds; propagation and the round are
chosen on items of the training data that `fit` hides. The parameters of the other methods are the
best of `GRIDS` for a hidden fifth of the training data of 3,000 users; the seconds are for the last
training alone. EASE inverts a matrix of items by items, and is left out for more than 5,000 items.
implicit is left out if it is not installed. RP3beta computes everything in prediction. The figure
also has published results for Gowalla. Most of them, including all of BSL and of the BARS
benchmark, choose the epoch on the test data; ours do not::

    python figures/recommenders.py --gowalla gowalla --bibtex bibtex

Methods that are not in ``--methods`` keep their rows of the existing CSV file.

References
----------
H. Steck, "Embarrassingly shallow autoencoders for sparse data", WWW 2019: EASE.
B. Paudel et al., "Updatable, accurate, diverse, and scalable recommendations for interactive
applications", TiiS 2017: RP3beta.
Y. Hu, Y. Koren and C. Volinsky, "Collaborative filtering for implicit feedback datasets", ICDM
2008: ALS.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import sparse
from table3_xc import found
from tables import write_csv

from samplesoft._files import atomic_write
from samplesoft.data import load_interactions, load_xml_repository
from samplesoft.data.interactions import enlarged_to_shape
from samplesoft.metrics.ranking import ranking_scores
from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.recommend.training import as_interactions, hide_items

FIELDS = ("data", "method", "seconds", "recall_at_20", "ndcg_at_20", "seeds", "ndcg_sd", "tuned")
OURS: dict[str, dict[str, Any]] = {
    "samplesoft": {},
    "samplesoft, no propagation": {"propagation": 0.0},
    "samplesoft, no propagation, 15 rounds": {"propagation": 0.0, "max_iter": 15},
    "samplesoft, full loss": {"loss": "full"},
}
PUBLISHED = (  # recall and nDCG at 20 on Gowalla
    ("BSPM, published", 0.1920, 0.1597),
    ("LightGCN + BSL, published", 0.1892, 0.1590),
    ("MF + BSL, published", 0.1882, 0.1584),
    ("LightGCN + softmax, published", 0.1874, 0.1571),
    ("SimpleX, published", 0.1872, 0.1557),
    ("LightGCN, published", 0.1830, 0.1554),
    ("EASE, published", 0.1765, 0.1467),
    ("YoutubeDNN, published", 0.1754, 0.1473),
)
N, BATCH, USERS, ITEMS = 20, 256, 3000, 5000  # ITEMS: at most, for EASE
Row = dict[str, Any]
Lists = Callable[[Any], Any]  # from users (B,) to their lists (B, N)


def main() -> None:
    """Train the recommenders, then print the table, and write the CSV and the figure."""
    parser = argparse.ArgumentParser(description="Compare recommenders.")
    parser.add_argument("--gowalla", type=Path, metavar="DIR", help="with train.txt, test.txt")
    parser.add_argument("--bibtex", type=Path, metavar="DIR", help="with bibtex_train.txt")
    parser.add_argument("--methods", default=";".join((*PEERS, *OURS)), help="parted by ';'")
    parser.add_argument("--seeds", type=int, default=3, help="of ours")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "recommenders.csv"
    rows = written(path)
    for data, (train, test) in splits(args).items():
        for method in args.methods.split(";"):
            row = compared(method, train, test, args.seeds)
            if row is not None:
                rows[data, method] = {"data": data, "method": method, **row}
                print(line(rows[data, method]), flush=True)
                write_csv(path, list(rows.values()), FIELDS)
    with atomic_write(path.with_suffix(".png")) as draft:
        draw(list(rows.values())).savefig(draft, dpi=130)


def written(path: Path) -> dict[tuple[str, str], Row]:
    """Return the rows of a file of before, if there is one."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8") as file:
        return {(row["data"], row["method"]): row for row in csv.DictReader(file)}


def splits(args: argparse.Namespace) -> dict[str, tuple[Any, Any]]:
    """Return what users have taken, and what is hidden, both (users, items), by name."""
    data = {}
    if args.gowalla:
        data["Gowalla"] = interactions(args.gowalla)
    if args.bibtex:
        words = load_xml_repository(found(args.bibtex, "bibtex_train")).inputs
        left, users, hidden = hide_items(
            as_interactions("bibtex", words.astype(bool) * 1.0), 1.0, 0
        )
        data["Words of Bibtex"] = left[users], hidden
    return data


def interactions(folder: Path) -> tuple[Any, Any]:
    """Return ``train.txt`` and ``test.txt`` of a folder, of one shape (users, items)."""
    train, test = (load_interactions(found(folder, part)) for part in ("train", "test"))
    shape = tuple(max(train.shape[i], test.shape[i]) for i in range(2))
    return as_interactions("train", enlarged_to_shape(train, shape)), enlarged_to_shape(test, shape)


def compared(method: str, train: Any, test: Any, seeds: int) -> Row | None:
    """Return the figures of a method, or None where it cannot be run, with the reason printed."""
    if method in OURS:
        return ours(OURS[method], train, test, 1 if method.endswith("full loss") else seeds)
    if method == "EASE" and train.shape[1] > ITEMS:
        print(f"EASE is left out: it would invert a matrix of {train.shape[1]:,} by as many items")
        return None
    if method.startswith("ALS") and importlib.util.find_spec("implicit") is None:
        print("implicit's ALS is left out: it is not installed, `pip install implicit`")
        return None
    left, users, hidden = hide_items(train, min(1.0, USERS / train.shape[0]), 0)
    tries = [
        (figures(PEERS[method](left, **options), left, hidden, users)["ndcg_at_20"], options)
        for options in GRIDS[method]
    ]
    options = max(tries, key=lambda one: one[0])[1]
    start = perf_counter()
    lists = PEERS[method](train, **options)
    seconds = perf_counter() - start
    said = " ".join(f"{name}={value}" for name, value in options.items())
    return {"seconds": seconds, "seeds": 1, "tuned": said, **figures(lists, train, test)}


def ours(options: Row, train: Any, test: Any, seeds: int) -> Row:
    """Return means over the seeds."""
    small = {**options, "embedding_dim": 8, "max_iter": 1, "random_state": 0}
    SampledSoftmaxRecommender(**small).fit(train[:500])  # compile
    runs = []
    for seed in range(seeds):
        start = perf_counter()
        model = SampledSoftmaxRecommender(random_state=seed, **options).fit(train)
        seconds = perf_counter() - start
        lists = lists_of(model, train)
        runs.append({"seconds": seconds, **figures(lists, train, test)})
    means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    spread = float(np.std([run["ndcg_at_20"] for run in runs], ddof=1)) if seeds > 1 else 0.0
    return {**means, "seeds": seeds, "ndcg_sd": round(spread, 5)}


def figures(lists: Lists, train: Any, hidden: Any, users: Any = None) -> dict[str, float]:
    """Return recall and nDCG of the lists of users, by default of all."""
    ids = np.arange(train.shape[0]) if users is None else users
    parts = [lists(ids[i : i + BATCH]) for i in range(0, len(ids), BATCH)]
    scores = ranking_scores(np.concatenate(parts), hidden, N)
    return {name: scores[name] for name in ("recall_at_20", "ndcg_at_20")}


def lists_of(model: Any, train: Any) -> Lists:
    """Return the lists of a model with implicit's interface."""
    return lambda users: model.recommend(users, train[users], N=N)[0]


def best_by(train: Any, scores: Callable[[Any], Any]) -> Lists:
    """Return lists by scores (B, items) of histories (B, items), without these."""

    def lists(users: Any) -> Any:
        own = train[users]
        found = np.array(scores(own), np.float32)
        found[own.nonzero()] = -np.inf
        ids = np.argpartition(-found, N, axis=1)[:, :N]
        order = np.argsort(-np.take_along_axis(found, ids, axis=1), axis=1)
        return np.take_along_axis(ids, order, axis=1)

    return lists


def popularity(train: Any) -> Lists:
    """Items by how many users have taken them."""
    counts = np.bincount(train.indices, minlength=train.shape[1])
    return best_by(train, lambda own: np.tile(counts, (own.shape[0], 1)))


def rp3beta(train: Any, beta: float) -> Lists:
    """Random walks of three steps from a user, divided by how frequent an item is to `beta`."""
    return best_by(train, walks(train, beta))


def walks(train: Any, beta: float) -> Callable[[Any], Any]:
    """Return how histories (B, items) are scored by RP3beta."""
    counts = np.maximum(1, np.bincount(train.indices, minlength=train.shape[1]))
    to_items = sparse.csr_array(train / np.maximum(1.0, train.sum(axis=1))[:, None])
    to_users = sparse.csr_array(train.T / counts[:, None])
    weights = counts**-beta
    return lambda own: ((own @ to_users) @ to_items).toarray() * weights


def ease(train: Any, ridge: float) -> Lists:
    """Predict each item from all others by a ridge regression, in closed form."""
    inverse = np.linalg.inv((train.T @ train).toarray() + ridge * np.eye(train.shape[1]))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return best_by(train, lambda own: own @ weights)


def als(train: Any, factors: int, alpha: float, regularization: float) -> Lists:
    """Train implicit's alternating least squares."""
    from implicit.cpu.als import AlternatingLeastSquares

    model = AlternatingLeastSquares(
        factors=factors, alpha=alpha, regularization=regularization, random_state=0
    )
    taken = sparse.csr_matrix(train, dtype=np.float32)
    model.fit(taken, show_progress=False)
    return lists_of(model, taken)


PEERS: dict[str, Callable[..., Lists]] = {
    "popularity": popularity,
    "RP3beta": rp3beta,
    "EASE": ease,
    "ALS of implicit": als,
}
GRIDS: dict[str, list[dict[str, Any]]] = {
    "popularity": [{}],
    "RP3beta": [{"beta": b} for b in (0.0, 0.2, 0.4, 0.6, 0.8)],
    "EASE": [{"ridge": r} for r in (50.0, 150.0, 500.0, 1500.0)],
    "ALS of implicit": [
        {"factors": f, "alpha": a, "regularization": r}
        for f, a, r in (
            *((128, 1.0, 0.1), (128, 10.0, 0.1), (128, 1.0, 3.0), (128, 10.0, 10.0)),
            *((128, 10.0, 30.0), (256, 10.0, 10.0)),
        )
    ],
}


def line(row: Row) -> str:
    """Return a row as it is printed."""
    said = f"{row['data']:16s} {row['method']:28s} {row['seconds']:7.1f} s"
    figures = f"recall {row['recall_at_20']:.4f}  nDCG {row['ndcg_at_20']:.4f}"
    return f"{said}  {figures}  {row.get('tuned', '')}"


def rounded(seconds: float) -> str:
    """Return a time in words."""
    return f"{seconds:,.0f} s" if seconds >= 1.0 else "below 1 s"


def draw(rows: list[Row]) -> Figure:
    """Draw recall and nDCG of each method as two dots on a line, a panel for each data set."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    shown = {
        data: [
            (
                f"{row['method']}  ({rounded(float(row['seconds']))})",
                *(float(row[name]) for name in ("recall_at_20", "ndcg_at_20")),
            )
            for row in rows
            if row["data"] == data
        ]
        for data in names
    }
    if "Gowalla" in shown:
        shown["Gowalla"] += PUBLISHED
    heights = [len(shown[data]) + 2 for data in names]
    figure = Figure(figsize=(8.4, 0.3 * sum(heights) + 0.9), layout="constrained")
    panels = figure.subplots(len(names), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, data in zip(panels, names, strict=True):
        lines = sorted(shown[data], key=lambda one: one[2])
        for place, (name, recall, ndcg) in enumerate(lines):
            colour = "#D55E00" if name.startswith("samplesoft") else "#0072B2"
            colour = "#888888" if "published" in name else colour
            axes.plot([recall, ndcg], [place, place], color=colour, alpha=0.3, linewidth=1.5)
            axes.plot(recall, place, "o", color=colour, markersize=7, markerfacecolor="white")
            axes.plot(ndcg, place, "o", color=colour, markersize=7)
        axes.set_yticks(range(len(lines)), [name for name, *_ in lines], fontsize=9)
        note = ""
        if data == "Gowalla":
            note = "; published results in grey, most with the epoch chosen on the test data"
        axes.set_title(data + note, fontsize=10)
        axes.set_ylim(-0.7, len(lines) - 0.3)
        axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("on hidden items: nDCG at 20 (filled), recall at 20 (open)")
    return figure


if __name__ == "__main__":
    main()
