"""The scripts in figures/ run in a small setting; the committed files have what they promise."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script

FIGURES = Path(__file__).parents[2] / "figures"
COLUMNS = [
    "proposal",
    "scheme",
    "num_sampled",
    "l1_bias_mean",
    "l1_bias_median",
    "loss_bias_mean",
    "relative_h_bias_mean",
    "h_squared_bias_mean",
    "h_variance_mean",
]
PROPOSALS = {"uniform", "log-uniform", "unigram", "rff", "quadratic", "softmax"}


def read_table(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = [line for line in lines if line.startswith("#")]
    table = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return comments, table


def check(folder):
    comments, table = read_table(folder / "bias_vs_m.csv")
    assert "tau = " in comments[0]
    assert list(table[0]) == COLUMNS
    assert {row["proposal"] for row in table} == PROPOSALS
    assert {row["scheme"] for row in table} == {"negatives", "jackknife"}
    for row in table:
        m, l1 = int(row["num_sampled"]), float(row["l1_bias_mean"])
        assert m > 1 or row["scheme"] == "negatives"
        assert l1 < 1e-15 if row["proposal"] == "softmax" else 1e-15 < l1 < 2.0
        assert (row["h_variance_mean"] == "") == (
            row["scheme"] == "jackknife" or not np.log10(m).is_integer()
        )
    png = folder / "bias_vs_m.png"
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert png.stat().st_size < 300_000
    return table


def test_committed_bias_vs_m():
    table = check(FIGURES)
    assert {int(row["num_sampled"]) for row in table} >= {1, 10, 100, 1000, 10_000, 100_000}
    for proposal in PROPOSALS - {"softmax"}:
        rows = [r for r in table if (r["proposal"], r["scheme"]) == (proposal, "negatives")]
        l1 = [float(row["l1_bias_mean"]) for row in rows]
        assert l1 == sorted(l1, reverse=True)


@pytest.mark.slow
def test_bias_vs_m_runs(tmp_path):
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.geometric(0.1, size=3000), 40)
    corpus = tmp_path / "corpus.txt"
    lines = [" ".join(f"w{i}" for i in row) for row in ids.reshape(-1, 10)]
    corpus.write_text("\n".join(lines), encoding="utf-8")
    output = tmp_path / "out"
    options = ["--corpus", corpus, "--output", output, "--vocabulary-size", 30, "--dim", 8]
    options += ["--num-examples", 3, "--max-num-sampled", 100, "--num-features", 16]
    run_script(FIGURES / "bias_vs_m.py", *options)
    assert sorted(path.name for path in output.iterdir()) == ["bias_vs_m.csv", "bias_vs_m.png"]
    table = check(output)
    assert {int(row["num_sampled"]) for row in table} == {1, 3, 10, 30, 100}
    assert str(tmp_path) not in (output / "bias_vs_m.csv").read_text(encoding="utf-8")
