"""figures/recommenders.py runs on small files, keeps the rows of before, and says what it lacks."""

import csv
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script, write_interactions

FIGURES = Path(__file__).parents[2] / "figures"


def table(path):
    with path.open(encoding="utf-8") as stream:
        return {(row["data"], row["method"]): row for row in csv.DictReader(stream)}


def run(folder, methods, *options):
    given = "--output", folder, "--seeds", 1, "--methods", ";".join(methods)
    return run_script(FIGURES / "recommenders.py", *given, *options)


@pytest.mark.thorough
@pytest.mark.slow
def test_recommenders_are_scored_on_both(tmp_path):
    """Users of two groups take items of their group: all methods but popularity find these."""
    rng = np.random.default_rng(0)
    lists = [user % 2 * 25 + rng.permutation(25)[:12] for user in range(80)]
    write_interactions(tmp_path, lists, 9)
    lines = [
        " ".join([str(u % 3), *(f"{i}:1" for i in sorted(own))]) for u, own in enumerate(lists)
    ]
    (tmp_path / "bibtex_train.txt").write_text("\n".join(["80 50 3", *lines]) + "\n")
    options = ("--gowalla", tmp_path, "--bibtex", tmp_path)
    said = run(tmp_path, ["popularity", "RP3beta", "ALS of implicit"], *options)
    assert ("implicit's ALS is left out" in said) is (importlib.util.find_spec("implicit") is None)
    run(tmp_path, ["EASE", "samplesoft, no propagation"], *options)
    rows = table(tmp_path / "recommenders.csv")
    for data in ("Gowalla", "Words of Bibtex"):
        figures = {name: float(row["ndcg_at_20"]) for (d, name), row in rows.items() if d == data}
        assert {"RP3beta", "EASE", "samplesoft, no propagation"} < set(figures)
        least = figures.pop("popularity") + 0.1
        assert all(value > least for value in figures.values()), figures
    assert (tmp_path / "recommenders.png").stat().st_size > 10_000


def test_the_committed_table_has_every_figure():
    rows = table(FIGURES / "recommenders.csv")
    for row in rows.values():
        assert 0.0 < float(row["recall_at_20"]) < 1.0 and 0.0 < float(row["ndcg_at_20"]) < 1.0
    assert int(rows["Gowalla", "samplesoft"]["seeds"]) >= 3
    assert ("Gowalla", "ALS of implicit") in rows and ("Gowalla", "EASE") not in rows
