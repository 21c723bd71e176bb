"""The figure of bias against cost: a small run of its script, and what is committed of it."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script

FIGURES = Path(__file__).parents[2] / "figures"
COLUMNS = [
    "num_classes",
    "sampler",
    "leaf",
    "setting",
    "time_us",
    "l1_bias",
    "h_squared_bias",
    "h_variance",
    "h_mse",
    "memory_bytes",
]
FLAT = {
    *("uniform", "log-uniform", "unigram", "softmax", "two-pass", "two-pass + unigram"),
    "clusters",
}
TREES = {"quadratic", "RFF", "RFF + unigram", "positive"}


def check(folder):
    lines = (folder / "bias_vs_cost.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ") and "tau = " in lines[0]
    table = list(csv.DictReader(lines[1:]))
    assert list(table[0]) == COLUMNS
    keys = {tuple(row[name] for name in COLUMNS[:4]) for row in table}
    assert len(keys) == len(table)
    for n in {row["num_classes"] for row in table}:
        assert {row["sampler"] for row in table if row["num_classes"] == n} == FLAT | TREES
    for row in table:
        assert (row["leaf"] in {"kernel", "softmax"}) == (row["sampler"] in TREES)
        time, l1, memory = (float(row[k]) for k in ("time_us", "l1_bias", "memory_bytes"))
        assert time > 0.0 and memory >= 0.0
        assert (row["h_mse"] == "") == (int(row["num_classes"]) > 20_000)
        if row["h_mse"]:
            square, variance = float(row["h_squared_bias"]), float(row["h_variance"])
            assert variance > 0.0
            assert float(row["h_mse"]) == pytest.approx(square + variance, rel=1e-4)
        assert 0.0 <= l1 < (1e-6 if row["sampler"] == "softmax" else 2.0)
    png = folder / "bias_vs_cost.png"
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert png.stat().st_size < 300_000
    return table


def test_committed_bias_vs_cost():
    every = check(FIGURES)
    assert {row["num_classes"] for row in every} == {"10000", "100000"}
    for n in ("10000", "100000"):  # what the README says of them
        bias = {
            (r["sampler"], r["setting"]): float(r["l1_bias"])
            for r in every
            if r["num_classes"] == n
        }
        assert 10.0 * bias["clusters", "leaf=16"] < bias["RFF", "D=1024 nu=4 leaf=64"]
    table = [row for row in every if row["num_classes"] == "10000"]
    l1 = {(r["sampler"], r["leaf"], r["setting"]): float(r["l1_bias"]) for r in table}
    size = {key: int(r["memory_bytes"]) for key, r in zip(l1, table, strict=True)}
    assert all(l1[key] > 1e-6 for key in l1 if key[0] != "softmax")
    for leaf in (16, 64):  # of one kernel tree, buckets change the memory, not the distribution
        one, other = (("quadratic", "kernel", f"leaf={k}") for k in (1, leaf))
        assert l1[one] == pytest.approx(l1[other], rel=1e-3)
        assert size[one] > size[other]
    for num in (64, 256, 1024, 2048):  # exact leaves are nearer to the softmax
        name = f"D={num} nu=4 leaf="
        assert l1["RFF", "softmax", name + "64"] < l1["RFF", "kernel", name + "1"]


@pytest.mark.thorough
@pytest.mark.slow
def test_bias_vs_cost_runs(tmp_path):
    ids = np.minimum(np.random.default_rng(0).geometric(0.1, size=3000), 40)
    corpus = tmp_path / "corpus.txt"
    lines = [" ".join(f"w{i}" for i in row) for row in ids.reshape(-1, 10)]
    corpus.write_text("\n".join(lines), encoding="utf-8")
    output = tmp_path / "out"
    options = ["--corpus", corpus, "--output", output, "--vocabulary-size", 30, "--dim", 8]
    options += ["--num-examples", 3, "--num-sampled", 5, "--num-features", 16, "--num-repeats", 1]
    run_script(FIGURES / "bias_vs_cost.py", *options)
    assert sorted(path.name for path in output.iterdir()) == [
        "bias_vs_cost.csv",
        "bias_vs_cost.png",
    ]
    check(output)
    assert str(tmp_path) not in (output / "bias_vs_cost.csv").read_text(encoding="utf-8")
