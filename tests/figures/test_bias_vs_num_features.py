"""The figure of the bias over the number of random features: its table, and a small run."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script

FIGURES = Path(__file__).parents[2] / "figures"
LINES = {
    ("fourier", 10.0, 1.0),
    ("fourier", 10.0, 4.0),
    ("fourier", 10.0, 10.0),
    ("fourier", 1.0, 1.0),
    ("positive", 10.0, 1.0),
    ("positive", 10.0, 4.0),
    ("tree", 10.0, 4.0),
}


def check(folder):
    text = (folder / "bias_vs_num_features.csv").read_text(encoding="utf-8").splitlines()
    assert "m = " in text[0]
    rows = list(csv.DictReader(line for line in text if not line.startswith("#")))
    table = {}
    for row in rows:
        line = row["features"], float(row["tau"]), float(row["sharpness"])
        numbers = {k: float(v) for k, v in row.items() if v and k not in ("data", "features")}
        table.setdefault((row["data"], *line), []).append(numbers)
        assert 0.0 < numbers["l1_bias_mean"] < 2.0
        slack = 2.0 * numbers["l1_bias_error"]
        assert numbers["l1_bias_mean"] - slack <= numbers.get("l1_bias_bound", 2.0)
    assert {line[1:] for line in table} == LINES
    assert {line[0] for line in table} == {"words", "random vectors"}
    png = (folder / "bias_vs_num_features.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(png) < 300_000
    return table


def test_committed_figure():
    """The expansion is that of what was drawn, the limit is reached, and rates are those of D."""
    table = check(FIGURES)
    for (_, features, tau, nu), rows in table.items():
        if features == "fourier":
            for row in rows:
                apart = abs(row["l1_bias_mean"] - row["expanded_l1_bias"])
                if row["largest_error"] < 0.2:
                    assert apart < 0.02 * row["l1_bias_mean"] + 4.0 * row["l1_bias_error"]
        if features == "positive":
            last = rows[-1]
            wanted, drawn = last["leading_l1_bias"], last["drawn_leading_l1_bias"]
            assert drawn == pytest.approx(wanted, rel=0.15)
            far = last["expanded_leading_l1_bias"] / wanted
            assert far < 1.001 if nu == 1.0 else far > 1.05
        if (features, tau) == ("fourier", 1.0):
            many = [row for row in rows if row["num_features"] >= 256]
            logs = {k: np.log([row[k] for row in many]) for k in many[0] if "mean" in k}
            x = np.log([row["num_features"] for row in many])
            assert np.polyfit(x, logs["l1_bias_mean"], 1)[0] == pytest.approx(-0.5, abs=0.05)
            assert np.polyfit(x, logs["label_bias_mean"], 1)[0] == pytest.approx(-1.0, abs=0.1)


@pytest.mark.slow
def test_the_figure_runs(tmp_path):
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.geometric(0.1, size=3000), 40)
    corpus = tmp_path / "corpus.txt"
    rows = [" ".join(f"w{i}" for i in row) for row in ids.reshape(-1, 10)]
    corpus.write_text("\n".join(rows), encoding="utf-8")
    options = ["--corpus", corpus]
    options += ["--output", tmp_path / "out", "--num-classes", "30", "--dim", "8"]
    options += ["--num-examples", "2", "--num-draws", "3", "--max-num-features", "64"]
    run_script(FIGURES / "bias_vs_num_features.py", *options)
    table = check(tmp_path / "out")
    assert {row["num_features"] for row in table["words", "fourier", 10.0, 1.0]} == {16, 32, 64}
