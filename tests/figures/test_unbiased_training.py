"""The figure of training without bias: a small run of its script, and what is committed of it."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script

FIGURES = Path(__file__).parents[2] / "figures"
LOSSES = {"full", "sampled", "br-snis", "jackknife", "multilevel", "double-sum"}
LOSSES |= {"one-vs-each"}
COLUMNS = ["proposal", "loss", "budget", "num_sampled", "learning_rate", "full_loss"]


def check(folder):
    lines = (folder / "unbiased_training.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ") and "tau = " in lines[0]
    table = list(csv.DictReader(lines[1:]))
    assert list(table[0]) == COLUMNS
    found = {(row["proposal"], row["loss"], row["budget"]): row for row in table}
    assert len(found) == len(table)
    assert {key[1] for key in found} == LOSSES
    png = folder / "unbiased_training.png"
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert png.stat().st_size < 200_000
    return {key: float(row["full_loss"]) for key, row in found.items()}


def test_committed():
    """What the README says of it."""
    found = check(FIGURES)
    for proposal, loss, budget in found:
        jackknife = found.get((proposal, "jackknife", budget))
        if loss == "sampled":
            assert found[proposal, loss, budget] > jackknife
        elif loss == "multilevel":
            few = (proposal, budget) == ("uniform", "20")
            assert (found[proposal, loss, budget] < jackknife) == few
        elif loss == "one-vs-each":
            many_good = proposal == "unigram" and budget != "20"
            behind = found[proposal, loss, budget] > found[proposal, "sampled", budget]
            assert behind == many_good
    names = ("one-vs-each", "double-sum", "jackknife", "sampled")
    few = [round(found["uniform", loss, "20"], 2) for loss in names]
    assert few == [3.26, 3.97, 4.88, 5.31]


@pytest.mark.thorough
@pytest.mark.slow
def test_unbiased_training_runs(tmp_path):
    ids = np.minimum(np.random.default_rng(0).geometric(0.1, size=3000), 40)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(" ".join(f"w{i}" for i in ids), encoding="utf-8")
    output = tmp_path / "out"
    options = ["--corpus", corpus]
    options += ["--output", output, "--vocabulary-size", "30", "--dim", "8", "--tau", "3"]
    options += ["--num-examples", "200", "--budgets", "8", "16", "--rates", "0.3", "1"]
    options += ["--num-steps", "50", "--batch-size", "20"]
    run_script(FIGURES / "unbiased_training.py", *options)
    found = check(output)
    assert all(loss < np.log(30) + 0.1 for key, loss in found.items() if key[1] != "multilevel")
