"""The figure of where sampling pays: a small run of its script, and what is committed of it."""

import runpy
from pathlib import Path

import pytest
from scripts import read_rows, run_script

FIGURES = Path(__file__).parents[2] / "figures"


@pytest.mark.thorough
@pytest.mark.slow
def test_the_script_writes_a_row_for_each_method_and_batch(tmp_path):
    printed = run_script(FIGURES / "crossover.py", "--most", 50, "--output", tmp_path)
    rows = read_rows(tmp_path / "crossover.csv")
    methods = {row["method"] for row in rows} - {"torch, linear_cross_entropy"}
    assert len(methods) == 5
    rows = [row for row in rows if row["method"] in methods]
    assert len(rows) == 2 * 2 * len(methods)  # dimensions, batches
    assert all(float(row["milliseconds"]) > 0.0 for row in rows)
    assert all((float(row["l1_bias"]) == 0.0) == (row["method"] == "full") for row in rows)
    assert (tmp_path / "crossover.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "pays from n" in printed


def test_crossovers_are_interpolated():
    add_crossovers = runpy.run_path(str(FIGURES / "crossover.py"))["add_crossovers"]
    times = {"full": (1.0, 10.0, 100.0), "a": (4.0, 4.0, 4.0), "b": (0.5, 1, 1), "c": (2, 20, 200)}
    rows = [
        {"method": name, "dim": 64, "batch": 1, "num_classes": 10**k, "milliseconds": float(ms)}
        for name, several in times.items()
        for k, ms in enumerate(several, 1)
    ]
    add_crossovers(rows)
    found = {row["method"]: row.get("crossover") for row in rows}
    assert found == {"full": None, "a": 40, "b": 0, "c": ""}


def test_sampling_pays_later_where_its_draws_cost_more():
    rows = read_rows(FIGURES / "crossover.csv")
    for d, batch in {(row["dim"], row["batch"]) for row in rows}:
        at = {r["method"]: r["crossover"] for r in rows if (r["dim"], r["batch"]) == (d, batch)}
        few, many = int(at["unigram, 100 shared"]), int(at["unigram, 1,000 shared"])
        assert few < many < int(at["clusters, 100 for each"])
    assert (FIGURES / "crossover.png").stat().st_size > 10_000
