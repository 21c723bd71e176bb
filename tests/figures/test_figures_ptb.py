"""The scripts of the Penn Treebank figures run on a small text, and share their runs."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script

FIGURES = Path(__file__).parents[2] / "figures"


def run(script, *arguments):
    return run_script(FIGURES / script, *arguments)


def table(path):
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    for name, lines in (("train", 150), ("valid", 20), ("test", 20)):
        words = rng.zipf(1.5, (lines, 12)) % 40
        text = "\n".join(" ".join(f"w{w}" for w in line) for line in words)
        (folder / f"small.{name}.txt").write_text(text + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def common(corpus, runs, output):
    return "--corpus", corpus, "--runs", runs, "--epochs", 2, "--vocabulary", 30, "--output", output


@pytest.mark.slow
def test_fig3_goes_on_where_it_was_and_bias_during_training_reads_its_runs(corpus, runs, tmp_path):
    shared = common(corpus, runs, tmp_path)
    run("fig3_ptb_samplers.py", *shared, "--methods", "FULL;UNIFORM")
    first = table(tmp_path / "fig3_ptb_samplers.csv")
    assert [(row["method"], row["epoch"]) for row in first] == [
        ("FULL", "1"), ("FULL", "2"), ("UNIFORM", "1"), ("UNIFORM", "2")
    ]  # fmt: skip
    assert all(1.0 < float(row["validation_perplexity"]) < 1e4 for row in first)
    kept = {path: path.stat().st_mtime_ns for path in runs.rglob("epoch_*.npz")}
    assert len(kept) == 4
    printed = run("fig3_ptb_samplers.py", *shared, "--methods", "FULL;jackknife UNIFORM")
    assert "jackknife UNIFORM" in printed
    assert table(tmp_path / "fig3_ptb_samplers.csv")[:2] == first[:2]
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())

    run("bias_during_training.py", *shared, "--examples", 3)
    rows = table(tmp_path / "bias_during_training.csv")
    assert len(rows) == 2 * len({row["sampler"] for row in rows})
    bias = {(row["sampler"], row["epoch"]): float(row["l1_bias"]) for row in rows}
    assert bias["softmax", "2"] < 1e-12 < bias["rff+softmax-leaf", "2"] < bias["uniform", "2"]
    assert (tmp_path / "bias_during_training.png").stat().st_size > 10_000


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("script", "lines"), [("fig1_ptb_nu", 5), ("fig2_ptb_num_features", 6)])
def test_sweeps_draw_one_line_for_each_setting(script, lines, corpus, runs, tmp_path):
    run(f"{script}.py", *common(corpus, runs, tmp_path))
    rows = table(tmp_path / f"{script}.csv")
    assert {row["method"] for row in rows} > {"FULL"}
    assert len(rows) == 2 * lines
    assert (tmp_path / f"{script}.png").stat().st_size > 10_000


@pytest.mark.thorough
@pytest.mark.slow
def test_epoch_times_compares_all_with_the_full_softmax(corpus, tmp_path):
    run("epoch_times.py", "--corpus", corpus, "--steps", 2, "--largest", 1000, "--output", tmp_path)
    rows = table(tmp_path / "epoch_times.csv")
    full = [row for row in rows if row["method"] == "FULL"]
    assert len(full) == 2 and all(float(row["ratio_to_full"]) == 1.0 for row in full)
    assert all(float(row["step_ms"]) > 0.0 for row in rows)
