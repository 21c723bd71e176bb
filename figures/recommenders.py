"""Recommenders compared: ours, iALS, ALS, EASE, neighbours, RP3beta and popularity.

Writes ``recommenders.csv`` and ``recommenders.png`` beside this script: recall and nDCG at 20 on
the hidden items of four data sets, with the seconds of training. Lists contain no items of the
training data. The data sets are:

- Gowalla, LightGCN's split; 40,981 items;
- the words of Bibtex's texts; 1,836 words;
- the calls in Python's library: a user is a function, an item is a name that it calls. A function
  calls few names, which are easy to predict;
- the names in Python's library: a user is a module, an item is a name in it. A random fifth of a
  module's names is kept, which is hard to predict.

All but Gowalla hide a random fifth of the items of each user. Python's library, which differs among
versions, is read from the machine.

Our models have their defaults, and are trained with several seeds; propagation and the epoch are
chosen on items of the training data that `fit` hides. The parameters of the other methods are the
best of `GRIDS` for a hidden fifth of the training data of 3,000 users; the seconds are for the last
training alone. EASE inverts a matrix of items by items, and is left out for more than 5,000 items.
irspack and implicit are left out if they are not installed. RP3beta computes everything in
prediction. The figure also has published results for Gowalla. Most of them, including all of BSL
and of the BARS benchmark, choose the epoch on the test data; ours do not. Our committed rows
without propagation on Gowalla were measured with ``n_iter_no_change=15``; rows of other data and of
irspack have seconds of a machine that was busy with other work::

    python figures/recommenders.py --gowalla gowalla --bibtex bibtex --library

Methods that are not in ``--methods`` keep their rows of the existing CSV file.

References
----------
H. Steck, "Embarrassingly shallow autoencoders for sparse data", WWW 2019: EASE.
B. Paudel et al., "Updatable, accurate, diverse, and scalable recommendations for interactive
applications", TiiS 2017: RP3beta.
Y. Hu, Y. Koren and C. Volinsky, "Collaborative filtering for implicit feedback datasets", ICDM
2008: ALS.
S. Rendle et al., "Revisiting the performance of iALS on item recommendation benchmarks", RecSys
2022: iALS, with a regularisation that grows with the frequency.
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib.util
import re
import sysconfig
from collections.abc import Callable, Iterable
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
NAME = re.compile(r"[A-Za-z_]\w{3,}")
KEPT_NAMES = 0.2  # fraction of the names of a module
Row = dict[str, Any]
Lists = Callable[[Any], Any]  # from users (B,) to their lists (B, N)


def main() -> None:
    """Train the recommenders, then print the table, and write the CSV and the figure."""
    parser = argparse.ArgumentParser(description="Compare recommenders.")
    parser.add_argument("--gowalla", type=Path, metavar="DIR", help="with train.txt, test.txt")
    parser.add_argument("--bibtex", type=Path, metavar="DIR", help="with bibtex_train.txt")
    parser.add_argument("--library", action="store_true", help="also calls and names of Python's")
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
        data["Words of Bibtex"] = hidden_fifth(words.astype(bool) * 1.0)
    if args.library:
        calls, names = of_library()
        data["Calls in Python's library"] = hidden_fifth(with_at_least(5, 5, calls))
        frequent = with_at_least(10, 4, names)
        frequent.data *= np.random.default_rng(0).random(frequent.nnz) < KEPT_NAMES
        data["Names in Python's library"] = hidden_fifth(with_at_least(10, 4, frequent))
    return data


def hidden_fifth(taken: Any) -> tuple[Any, Any]:
    """Return what is left (users, items) and what is hidden: a fifth of the items of each user."""
    left, users, hidden = hide_items(as_interactions("taken", taken), 1.0, 0)
    return left[users], hidden


def of_library() -> tuple[Any, Any]:
    """Return the calls (functions, names) and the names (modules, names) of Python's library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    calls, names = [], []
    for path in sorted(folder.rglob("*.py")):
        if "site-packages" in path.relative_to(folder).parts:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        names.append(set(NAME.findall(text)))
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except (SyntaxError, ValueError):  # a test of Python's own, of what is refused
            continue
        calls += [called(node) for node in nodes if isinstance(node, ast.FunctionDef)]
    return indicators(calls), indicators(names)


def called(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function calls."""
    places = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    attributes = {place.attr for place in places if isinstance(place, ast.Attribute)}
    return attributes | {place.id for place in places if isinstance(place, ast.Name)}


def indicators(sets: Iterable[set[str]]) -> Any:
    """Return a matrix (sets, names) of ones."""
    columns: dict[str, int] = {}
    ids = [[columns.setdefault(name, len(columns)) for name in sorted(own)] for own in sets]
    ends = np.cumsum([0, *map(len, ids)])
    return sparse.csr_array((np.ones(ends[-1]), np.concatenate(ids).astype(int), ends))


def with_at_least(items: int, users: int, taken: Any) -> Any:
    """Return the users that have at least `items` items, of which each has at least `users`."""
    taken.eliminate_zeros()
    rows = np.diff(taken.indptr) >= items
    columns = np.bincount(taken.indices, minlength=taken.shape[1]) >= users
    if rows.all() and columns.all():
        return taken
    return with_at_least(items, users, taken[np.flatnonzero(rows)][:, np.flatnonzero(columns)])


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
    package = method.partition(" of ")[2]
    if package and importlib.util.find_spec(package) is None:
        print(f"{package}'s {method.split()[0]} is left out: `pip install {package}`")
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
    return lambda users: best_of(train[users], scores(train[users]))


def best_of(own: Any, scores: Any) -> Any:
    """Return the N items with the largest of the scores (B, items), without those of `own`."""
    found = np.array(scores, np.float32)
    found[own.nonzero()] = -np.inf
    ids = np.argpartition(-found, N, axis=1)[:, :N]
    order = np.argsort(-np.take_along_axis(found, ids, axis=1), axis=1)
    return np.take_along_axis(ids, order, axis=1)


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


def ials(train: Any, alpha: float, reg: float) -> Lists:
    """Train irspack's iALS."""
    from irspack import IALSRecommender

    options = {"n_components": 128, "alpha0": alpha, "reg": reg, "train_epochs": 12}
    return lists_of_irspack(IALSRecommender, train, **options)


def neighbours(train: Any, shrinkage: float) -> Lists:
    """Score items by the cosines with the items of a user, each of its 200 nearest neighbours."""
    from irspack import CosineKNNRecommender

    options = {"normalize": True, "top_k": 200, "shrinkage": shrinkage}
    return lists_of_irspack(CosineKNNRecommender, train, **options)


def lists_of_irspack(recommender: Any, train: Any, **options: Any) -> Lists:
    """Train a recommender of irspack, and return its lists."""
    taken = sparse.csr_matrix(train, dtype=np.float64)
    model = recommender(taken, **options).learn()
    return lambda users: best_of(train[users], model.get_score(users))


PEERS: dict[str, Callable[..., Lists]] = {
    "popularity": popularity,
    "RP3beta": rp3beta,
    "cosines of irspack": neighbours,
    "EASE": ease,
    "iALS of irspack": ials,
    "ALS of implicit": als,
}
GRIDS: dict[str, list[dict[str, Any]]] = {
    "popularity": [{}],
    "RP3beta": [{"beta": b} for b in (0.0, 0.2, 0.4, 0.6, 0.8)],
    "EASE": [{"ridge": r} for r in (20.0, 50.0, 150.0, 500.0, 1500.0)],
    "cosines of irspack": [{"shrinkage": s} for s in (0.0, 10.0, 100.0)],
    "iALS of irspack": [
        {"alpha": a, "reg": r} for a in (0.02, 0.05, 0.1) for r in (1e-3, 3e-3, 1e-2, 3e-2)
    ],
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
