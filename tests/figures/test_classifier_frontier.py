"""figures/classifier_frontier.py runs on few lines, and what is committed of it."""

import csv
import shutil
from pathlib import Path

import pytest
from scripts import run_script

FIGURES = Path(__file__).parents[2] / "figures"


def table(folder):
    with (folder / "classifier_frontier.csv").open(encoding="utf-8") as stream:
        return {(r["data"], r["method"], r["setting"]): r for r in csv.DictReader(stream)}


@pytest.mark.thorough
@pytest.mark.slow
def test_it_keeps_the_rows_of_other_methods(tmp_path):
    shutil.copy(FIGURES / "classifier_frontier.csv", tmp_path)
    methods, before = {"samplesoft", "SGDClassifier"}, table(tmp_path)
    options = "--share", 0.003, "--data", "lines", "--methods", ";".join(methods)
    run_script(FIGURES / "classifier_frontier.py", "--output", tmp_path, *options)
    after = table(tmp_path)
    new = {key for key in after if key[0] == "lines" and key[1] in methods}
    assert {method for _, method, _ in new} == methods
    assert all(after[key] == row for key, row in before.items() if key not in new)
    assert all(after[key] != before.get(key) for key in new)
    for row in (after[key] for key in new):
        assert 0.0 < float(row["seconds"]) and 0.0 <= float(row["precision_at_1"]) <= 1.0
        assert float(row["in_top_5"]) >= float(row["precision_at_1"])
    assert (tmp_path / "classifier_frontier.png").read_bytes().startswith(b"\x89PNG")


def test_committed():
    """On each data set the classifier is above every method that took as long or less time."""
    rows = table(FIGURES)
    assert {data for data, _, _ in rows} == {"lines", "Bibtex", "identifiers"}
    default = {d: r for (d, m, s), r in rows.items() if m == "samplesoft" and s == "default rounds"}
    for (data, method, _), row in rows.items():
        mine = default[data]
        if method != "samplesoft" and float(row["seconds"]) <= float(mine["seconds"]):
            assert float(row["precision_at_1"]) <= float(mine["precision_at_1"])
