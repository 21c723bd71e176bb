"""figures/table3_xc.py runs on small files and goes on where it was; its files are whole."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script

FIGURES = Path(__file__).parents[2] / "figures"


def table(path):
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def run(folder, output, *options):
    given = ["--bibtex", folder, "--gowalla", folder, "--runs", folder / "runs", "--output", output]
    given += ["--gowalla-epochs", 1, "--bibtex-epochs", 2, "--no-peers"]
    return run_script(FIGURES / "table3_xc.py", *given, *options)


@pytest.mark.thorough
@pytest.mark.slow
def test_every_method_is_scored_on_both(tmp_path):
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        lines = ["40 6 7", *(f"{rng.integers(7)} {rng.integers(6)}:1" for _ in range(40))]
        (tmp_path / f"bibtex_{part}.txt").write_text("\n".join(lines) + "\n")
        taken = [rng.choice(25, 3, replace=False) for _ in range(30)]
        lists = [f"{user} " + " ".join(map(str, own)) for user, own in enumerate(taken)]
        (tmp_path / f"{part}.txt").write_text("\n".join(lists) + "\n")
    first = run(tmp_path, tmp_path)
    rows = table(tmp_path / "table3_xc.csv")
    methods = [
        row["method"] for row in table(FIGURES / "table3_xc.csv") if row["data"] == "Gowalla"
    ]
    ours = [name for name in methods if "reported" not in name]
    assert [(r["data"], r["method"]) for r in rows] == [
        (data, name) for data in ("Bibtex", "Gowalla") for name in ours
    ]
    assert all(0.0 <= float(row["precision_at_1"]) <= 1.0 for row in rows)
    assert (tmp_path / "table3_xc.png").stat().st_size > 10_000
    assert run(tmp_path, tmp_path) == first  # from the checkpoints


def test_the_committed_table_has_every_figure():
    rows = table(FIGURES / "table3_xc.csv")
    for row in rows:
        wanted = ["precision_at_3"] if row["data"] == "Bibtex" else ["recall_at_20", "ndcg_at_20"]
        assert all(0.0 < float(row[name]) < 1.0 for name in ("precision_at_1", *wanted))
        assert float(row["seconds"]) > 0.0
    assert len({row["method"] for row in rows}) >= 9
