"""The figure of losses without bias: a small run of its script, and what is committed of it."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script

FIGURES = Path(__file__).parents[2] / "figures"
COLUMNS = [
    "proposal",
    "loss",
    "budget",
    "num_sampled",
    "num_draws",
    "h_squared_bias",
    "h_squared_bias_stderr",
    "h_variance",
    "h_variance_stderr",
]
LOSSES = {"sampled", "jackknife", "br-snis", "multilevel", "coupled"}
SUMS = {"double-sum", "double-sum-stale", "one-vs-each"}
LOSSES |= SUMS


def check(folder):
    lines = (folder / "unbiased.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ") and "tau = " in lines[0]
    table = list(csv.DictReader(lines[1:]))
    assert list(table[0]) == COLUMNS
    found = {}
    for row in table:
        key = row["proposal"], row["loss"], int(row["budget"])
        found[key] = {name: float(row[name]) for name in COLUMNS[3:]}
    assert len(found) == len(table)
    for key, row in found.items():
        assert row["h_variance"] > 0.0
        exact = key[1] in {"sampled", "jackknife", "multilevel"} | SUMS
        assert (row["h_variance_stderr"] == 0.0) == exact
        assert (row["h_squared_bias_stderr"] == 0.0) == exact
        if key[1] in ("multilevel", "double-sum"):
            assert row["h_squared_bias"] == 0.0
        elif key[1] == "coupled":  # simulated
            assert abs(row["h_squared_bias"]) < 5.0 * row["h_squared_bias_stderr"]
        assert row["num_draws"] == pytest.approx(key[2], rel=0.5 if key[1] == "coupled" else 0.1)
    assert {key[1] for key in found} == LOSSES
    assert {key[0] for key in found} == {"uniform", "unigram", "clusters"}
    png = folder / "unbiased.png"
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert png.stat().st_size < 300_000
    return found


def test_committed_unbiased():
    """What the README says of it."""
    found = check(FIGURES)
    budgets = sorted({key[2] for key in found})
    for proposal in ("uniform", "unigram", "clusters"):
        for budget in budgets:
            plain, fold, levels = (
                found[proposal, loss, budget] for loss in ("sampled", "jackknife", "multilevel")
            )
            assert levels["h_variance"] > 1.4 * plain["h_variance"]
            assert fold["h_squared_bias"] < plain["h_squared_bias"]
            double, stale = (found[proposal, x, budget] for x in ("double-sum", "double-sum-stale"))
            assert double["h_variance"] < stale["h_variance"] and stale["h_squared_bias"] > 1.0
            # levels pay with m**2 for a block of few draws
            assert budget > 512 or double["h_variance"] < levels["h_variance"]
    ratios = {
        proposal: found[proposal, "double-sum", 128]["h_variance"]
        / found[proposal, "sampled", 128]["h_variance"]
        for proposal in ("clusters", "unigram", "uniform")
    }
    assert ratios == pytest.approx({"clusters": 1.03, "unigram": 22, "uniform": 176}, rel=0.01)
    ahead, ratio = {}, {}
    for proposal in ("uniform", "unigram", "clusters"):
        plain, fold, levels = (
            found[proposal, loss, 128] for loss in ("sampled", "jackknife", "multilevel")
        )
        ratio[proposal] = levels["h_variance"] / plain["h_variance"]
        extra = levels["h_variance"] - fold["h_variance"]
        ahead[proposal] = extra / fold["h_squared_bias"]
    assert ratio == pytest.approx({"clusters": 1.7, "unigram": 96, "uniform": 2000}, rel=0.03)
    assert ahead == pytest.approx({"clusters": 3.3e9, "unigram": 200, "uniform": 510}, rel=0.03)


@pytest.mark.thorough
@pytest.mark.slow
def test_unbiased_runs(tmp_path):
    ids = np.minimum(np.random.default_rng(0).geometric(0.1, size=3000), 40)
    corpus = tmp_path / "corpus.txt"
    lines = [" ".join(f"w{i}" for i in row) for row in ids.reshape(-1, 10)]
    corpus.write_text("\n".join(lines), encoding="utf-8")
    output = tmp_path / "out"
    options = ["--corpus", corpus]
    options += ["--output", output, "--vocabulary-size", "30", "--dim", "8", "--tau", "3"]
    options += ["--num-examples", "1", "--budgets", "32", "--num-trials", "300"]
    run_script(FIGURES / "unbiased.py", *options)
    assert sorted(path.name for path in output.iterdir()) == ["unbiased.csv", "unbiased.png"]
    check(output)
    assert str(tmp_path) not in (output / "unbiased.csv").read_text(encoding="utf-8")
