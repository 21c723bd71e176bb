"""The figure of sampled metrics: a small run of its script, and what is committed of it."""

from pathlib import Path

import numpy as np
import pytest
from scripts import read_rows, run_script, write_interactions

FIGURES = Path(__file__).parents[2] / "figures"
FULL, NAIVE = "all items", "not corrected"


def recall(path, number):
    """Mean recall by estimator and recommender, of so many draws where it is of draws."""
    found = {}
    for row in read_rows(path):
        if row["num_sampled"] in ("", str(number)):
            own = found.setdefault(row["estimator"], {}).setdefault(row["recommender"], [])
            own.append(float(row["recall_at_20"]))
    return {e: {r: np.mean(v) for r, v in own.items()} for e, own in found.items()}


@pytest.mark.slow
def test_all_of_few_items_are_the_same_as_those_drawn(tmp_path):
    """Users of two groups take items of their group; 50 draws miss one negative or two."""
    rng = np.random.default_rng(0)
    lists = [user % 2 * 40 + rng.permutation(40)[:29] for user in range(80)]
    write_interactions(tmp_path, lists, 26)
    run_script(
        FIGURES / "sampled_metrics.py", "--data", tmp_path, "--draws", 1, "--output", tmp_path
    )
    table = recall(tmp_path / "sampled_metrics.csv", 50)
    assert len(table[FULL]) == 5
    for name, value in table[FULL].items():
        assert abs(table[NAIVE][name] - value) < 0.02, name
    groups = {name: value for name, value in table[FULL].items() if name != "popularity"}
    assert min(groups.values()) > table[FULL]["popularity"]
    assert (tmp_path / "sampled_metrics.png").stat().st_size > 10_000


def test_the_committed_table_has_an_inversion_that_corrections_take_back():
    table = recall(FIGURES / "sampled_metrics.csv", 100)

    def order(estimator):
        return sorted(table[estimator], key=table[estimator].get)

    assert order(NAIVE) != order(FULL)
    assert order("bias-variance, gamma 0.01") == order(FULL)
