"""The figure of the time of a step: a small run of its script, and what is committed of it."""

from pathlib import Path

import pytest
from scripts import read_rows, run_script

FIGURES = Path(__file__).parents[2] / "figures"


@pytest.mark.thorough
@pytest.mark.slow
def test_the_script_writes_a_row_for_each_method_and_batch(tmp_path):
    options = ["--num-classes", 300, "--batches", "2,40", "--output", tmp_path]
    run_script(FIGURES / "throughput.py", *options)
    rows = read_rows(tmp_path / "throughput.csv")
    assert {(row["num_classes"], row["batch"]) for row in rows} == {("300", "2"), ("300", "40")}
    assert len({row["method"] for row in rows}) == len(rows) / 2 == 7
    assert all(float(row["milliseconds"]) > 0.0 for row in rows)
    assert (tmp_path / "throughput.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_committed_table_has_a_million_classes():
    rows = read_rows(FIGURES / "throughput.csv")
    found = {r["method"]: float(r["milliseconds"]) for r in rows if r["num_classes"] == "1000000"}
    assert found["CLUSTERS"] > 0.0
    assert (FIGURES / "throughput.png").stat().st_size > 10_000
