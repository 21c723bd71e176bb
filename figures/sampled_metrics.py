"""The order of recommenders by sampled metrics, and by metrics on all items.

Writes ``sampled_metrics.csv`` and ``sampled_metrics.png`` beside this script: recall at 20 of five
recommenders on the test items of Gowalla (LightGCN's split; 40,981 items), where each test item of
a user is ranked alone among items that the user has not taken: all of these, or m of them. The
results for m are exact expectations and standard deviations; nothing is drawn. There are also
corrections of the ranks among 100: values by sampled rank, again exact, and for several sets of
draws the most likely distribution of ranks, and a correction with this prior. Items of equal score,
such as zeros for items without neighbours, are in random order. The recommenders are simple, and
trained quickly: ``recommenders.py`` has better ones. Half an hour on two cores, 3 GB::

    python figures/sampled_metrics.py --data gowalla
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from recommenders import interactions, walks
from scipy import sparse
from tables import write_both

from samplesoft.metrics import (
    TargetRanks,
    correct_metric,
    estimate_rank_distribution,
    rank_metric,
    sampled_metrics,
    sampled_rank_distribution,
    target_ranks,
)
from samplesoft.recommend import SampledSoftmaxRecommender

FIELDS = ("recommender", "estimator", "num_sampled", "recall_at_20", "sd")
K, M, BATCH, NEIGHBOURS, GAMMA = 20, 100, 256, 50, 0.01
NUMBERS = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)  # of sampled negatives
TRUE, NAIVE, RANK = "all items", "not corrected", "unbiased rank"
BIAS, LIKELY = f"bias-variance, gamma {GAMMA}", "likelihood"
BOTH = f"{LIKELY} as prior of {BIAS}"
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#888888")
Row = dict[str, Any]
Scores = Callable[[Any], Any]  # from users (B,) to scores (B, items)


def main() -> None:
    """Train the recommenders, rank the test items, print the orders and write both files."""
    parser = argparse.ArgumentParser(description="Compare sampled metrics with those on all items.")
    parser.add_argument("--data", type=Path, required=True, help="with train.txt, test.txt")
    parser.add_argument("--users", type=int, default=6000, help="at most, whose items are ranked")
    parser.add_argument("--draws", type=int, default=3, help="sets of draws for the likelihood")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    train, test = interactions(args.data)
    users = np.flatnonzero(np.diff(sparse.csr_array(test).indptr))
    users = np.random.default_rng(0).permutation(users)[: args.users]
    rows: list[Row] = []
    for name, make in RECOMMENDERS.items():
        ranks = alone(make(train), train, test, np.sort(users))
        rows += [{"recommender": name, **row} for row in estimates(ranks, args.draws)]
        print(f"{name}: ranked {len(ranks.ranks):,} items", flush=True)
    for estimator in dict.fromkeys(row["estimator"] for row in rows):
        found = [row for row in rows if row["estimator"] == estimator]
        found = [row for row in found if row["num_sampled"] in (M, "")]
        best = sorted(of_mean(found).items(), key=lambda one: -one[1])
        print(f"{estimator}: " + ", ".join(f"{name} {value:.3f}" for name, value in best))
    note = f"Recall at {K} of items ranked alone, of {len(users):,} users; sd over the draws"
    write_both(args.output, "sampled_metrics", rows, FIELDS, note, draw(rows))


def alone(scores: Scores, train: Any, test: Any, users: Any) -> TargetRanks:
    """Return the rank of each test item of users among itself and all that they have not taken."""
    better, tied, worse = [], [], []
    for i in range(0, len(users), BATCH):
        part = users[i : i + BATCH]
        found = target_ranks(scores(part), test[part], leave_out=train[part])
        better.append(found.better.astype(np.int64))
        tied.append(found.num_tied)
        worse.append(found.worse.astype(np.int64))
    above, equal, below = map(np.concatenate, (better, tied, worse))
    return TargetRanks(above + 1, above + equal + below + 1, num_tied=equal)


def estimates(targets: TargetRanks, sets: int) -> list[Row]:
    """Return the recall of a recommender, and all estimates of it."""
    number, size = len(targets.ranks), int(np.median(targets.num_candidates))
    m = min(M, int(targets.num_candidates.min()) - 1)
    rows = [result(TRUE, "", sampled_metrics(targets, 1, K).full[f"recall@{K}"])]
    for draws in NUMBERS:
        if draws < targets.num_candidates.min():
            found = sampled_metrics(targets, draws, K)
            variance = found.variance[f"sampled_recall@{K}"]
            rows.append(result(NAIVE, draws, found.expected[f"sampled_recall@{K}"], variance))
    metric = rank_metric("recall", K, np.arange(1, size + 1))
    distribution = sampled_rank_distribution(targets, m)
    for estimator, options in ((RANK, {"method": "rank"}), (BIAS, {"gamma": GAMMA})):
        values = correct_metric(metric, m, **options).values
        mean = distribution @ values
        variance = np.mean(distribution @ values**2 - mean**2) / number
        rows.append(result(estimator, m, np.mean(mean), variance))
    rng = np.random.default_rng(0)
    for _ in range(sets):
        not_better = targets.worse.astype(int) + targets.num_tied
        b = rng.hypergeometric(targets.better.astype(int), not_better, m)
        if targets.num_tied.any():  # which stand before and after the item in random order
            equal = rng.hypergeometric(targets.num_tied, targets.worse.astype(int), m - b)
            b += rng.integers(0, equal + 1)
        counts = np.bincount(b, minlength=m + 1)
        likely = estimate_rank_distribution(counts, size)
        values = correct_metric(metric, m, gamma=GAMMA, prior=likely).values
        rows.append(result(LIKELY, m, likely @ metric))
        rows.append(result(BOTH, m, counts @ values / number))
    return rows


def result(estimator: str, draws: int | str, recall: Any, variance: Any = None) -> Row:
    """Return a row of the table; without a variance its place is empty."""
    sd = "" if variance is None else float(np.sqrt(max(variance, 0.0)))
    return {"estimator": estimator, "num_sampled": draws, "recall_at_20": float(recall), "sd": sd}


def of_mean(rows: list[Row]) -> dict[str, float]:
    """Return the mean of each recommender."""
    names = dict.fromkeys(row["recommender"] for row in rows)
    own = {
        name: [row["recall_at_20"] for row in rows if row["recommender"] == name] for name in names
    }
    return {name: float(np.mean(values)) for name, values in own.items()}


def popularity(train: Any) -> Scores:
    """Score items by how many users have taken them."""
    counts = np.bincount(train.indices, minlength=train.shape[1]).astype(np.float64)
    return lambda users: np.tile(counts, (len(users), 1))


def neighbours(train: Any) -> Scores:
    """Score items by their cosines with those of a user that have them among their nearest."""
    norms = np.sqrt(np.maximum(1, np.bincount(train.indices, minlength=train.shape[1])))
    unit = sparse.csr_array(train / norms)
    items, kept = sparse.csr_array(unit.T), []
    for start in range(0, items.shape[0], BATCH):
        cosines = (items[start : start + BATCH] @ unit).toarray()
        own = np.arange(len(cosines))
        cosines[own, start + own] = 0.0
        number = min(NEIGHBOURS, len(norms))
        ids = np.argpartition(-cosines, number - 1, axis=1)[:, :number]
        values = np.take_along_axis(cosines, ids, axis=1)
        ends = np.arange(0, values.size + 1, number)
        kept.append(sparse.csr_array((values.ravel(), ids.ravel(), ends), cosines.shape))
    nearest = sparse.vstack(kept, format="csr")
    return lambda users: (train[users] @ nearest).toarray()


def walked(train: Any) -> Scores:
    """Score items by random walks of three steps."""
    score = walks(train, 0.2)
    return lambda users: score(train[users])


def ours(**options: Any) -> Callable[[Any], Scores]:
    """Return how a small recommender of the library is trained."""

    def make(train: Any) -> Scores:
        given = {"propagation": 0.0, "early_stopping": False, "max_iter": 8, "random_state": 0}
        model = SampledSoftmaxRecommender(64, **given, **options).fit(train)
        return lambda users: model.user_factors[users] @ model.item_factors.T

    return make


RECOMMENDERS: dict[str, Callable[[Any], Scores]] = {
    "random walks, RP3beta": walked,
    "samplesoft, 64, no propagation": ours(),
    "the same with BPR's loss": ours(loss="bpr", num_sampled=1000),
    f"{NEIGHBOURS} nearest items": neighbours,
    "popularity": popularity,
}


def draw(rows: list[Row]) -> Figure:
    """Draw recall against the number of draws, and what the corrections make of 100 of them."""
    figure = Figure(figsize=(11.0, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.1))
    order = (NAIVE, RANK, BIAS, LIKELY, BOTH)
    for colour, name in zip(COLOURS, RECOMMENDERS, strict=True):
        own = [row for row in rows if row["recommender"] == name]
        curve = [row for row in own if row["estimator"] == NAIVE]
        (true,) = (row["recall_at_20"] for row in own if row["estimator"] == TRUE)
        numbers = [row["num_sampled"] for row in curve]
        recall = [row["recall_at_20"] for row in curve]
        left.plot([*numbers, 2 * numbers[-1]], [*recall, true], "o-", color=colour, label=name)
        left.plot(2 * numbers[-1], true, "s", color=colour, markersize=8)
        right.axvline(true, color=colour, linewidth=1.0, linestyle=":")
        height = 0.12 * (2 - list(RECOMMENDERS).index(name))
        for place, estimator in enumerate(reversed(order)):
            found = [r for r in own if r["estimator"] == estimator and r["num_sampled"] in (M, "")]
            values = [row["recall_at_20"] for row in found]
            right.plot(values, [place + height] * len(values), "o", color=colour, alpha=0.7)
    left.set(xscale="log", yscale="logit", xlabel="sampled negatives m; all at the right (squares)")
    left.set_ylabel(f"expected recall at {K} among them")
    marks = (0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98)
    left.yaxis.set_major_locator(FixedLocator(marks))
    left.yaxis.set_minor_locator(NullLocator())
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left.axvline(M, color="black", linewidth=0.8, alpha=0.4)
    left.grid(alpha=0.3)
    left.legend(fontsize=8, loc="upper right")
    labels = [name.replace(f" of {BIAS}", f" of\n{BIAS}") for name in reversed(order)]
    right.set_yticks(range(len(order)), labels, fontsize=9)
    right.set(xscale="log", xlabel=f"recall at {K}; dotted: among all items")
    right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    right.set_title(f"estimates from ranks among {M}", fontsize=10)
    right.grid(axis="x", alpha=0.3)
    return figure


if __name__ == "__main__":
    main()
