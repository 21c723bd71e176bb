"""The figures of the softmax layer: small runs of their scripts, and what is committed of them."""

import csv
import itertools
import math
from pathlib import Path

import pytest
from scripts import run_script

FIGURES = Path(__file__).parents[2] / "figures"
NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()
HORSE = NAMES.index("horse")


def read_table(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    return lines[0], list(csv.DictReader(lines[1:]))


def check_png(path):
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert 10_000 < path.stat().st_size < 300_000


def run(script, output, *options):
    run_script(FIGURES / f"{script}.py", "--output", output, *options)
    assert {path.name for path in output.iterdir()} == {f"{script}.csv", f"{script}.png"}
    assert str(output) not in (output / f"{script}.csv").read_text(encoding="utf-8")


def gradient(scores, negatives):
    """Return the gradient in the scores for drawn negatives, each of probability 1/9."""
    weights = [0.0] * len(scores)
    weights[HORSE] = math.exp(scores[HORSE])
    for j in negatives:
        weights[j] += math.exp(scores[j]) * 9 / len(negatives)
    total = sum(weights)
    return [w / total - (j == HORSE) for j, w in enumerate(weights)]


def check_tutorial(folder):
    _, table = read_table(folder / "tutorial_gradients.csv")
    assert [row["class"] for row in table] == NAMES

    def column(name):
        return [float(row[name] or 0.0) for row in table]

    scores = column("score")
    weights = [math.exp(o) for o in scores]
    full = [w / sum(weights) - (j == HORSE) for j, w in enumerate(weights)]
    drawn = [NAMES.index(name) for name in ("bird", "cat", "dog")]
    others = [j for j in range(10) if j != HORSE]
    every = [gradient(scores, s) for s in itertools.product(others, repeat=3)]
    expected = [sum(values) / len(every) for values in zip(*every, strict=True)]
    assert column("full_gradient") == pytest.approx(full, rel=1e-5)
    assert column("sampled_gradient") == pytest.approx(gradient(scores, drawn), rel=1e-5)
    assert column("expected_gradient") == pytest.approx(expected, rel=1e-5)
    assert column("bias") == pytest.approx(
        [e - f for e, f in zip(expected, full, strict=True)], rel=1e-4
    )
    for j, row in enumerate(table):
        assert (row["sampled_score"] != "") == (j in {HORSE, *drawn})
        added = math.log(3.0) if j in drawn else 0.0
        assert float(row["correction"] or 0.0) == pytest.approx(added, rel=1e-5)
        off = float(row["mean_gradient"]) - expected[j]
        assert abs(off) < 5.0 * float(row["mean_stderr"])
    check_png(folder / "tutorial_gradients.png")


def check_cntk(folder):
    settings, table = read_table(folder / "cntk207_toy.csv")
    assert "inclusion probabilities" in settings
    training = [row for row in table if row["part"] == "convergence"]
    speed = [row for row in table if row["part"] == "speed"]
    assert len(training) + len(speed) == len(table)
    curves = {}
    for row in training:
        key = row["data"], row["proposal"]
        curves.setdefault(key, []).append(float(row["cross_entropy"]))
    assert len(curves) == 6
    for data, proposal in curves:
        curve = curves[data, proposal]
        assert curve == sorted(curve, reverse=True)
        assert curve[-1] >= curves[data, "full softmax"][-1]
    assert {row["batch_size"] for row in speed} == {"8", "128"}
    assert all(float(row["examples_per_second"]) > 0.0 for row in speed)
    check_png(folder / "cntk207_toy.png")
    return training


def test_committed_tutorial_gradients():
    check_tutorial(FIGURES)


def test_committed_cntk207_toy():
    training = check_cntk(FIGURES)
    printed = [row for row in training if row["printed_cross_entropy"] != ""]
    assert len(printed) == 10
    for row in printed:  # one run of other code with other numbers at random
        ours, theirs = float(row["cross_entropy"]), float(row["printed_cross_entropy"])
        assert ours == pytest.approx(theirs, abs=0.1)


@pytest.mark.thorough
@pytest.mark.slow
def test_tutorial_gradients_runs(tmp_path):
    run("tutorial_gradients", tmp_path, "--num-draws", "2000", "--seed", "1")
    check_tutorial(tmp_path)


@pytest.mark.thorough
@pytest.mark.slow
def test_cntk207_toy_runs(tmp_path):
    options = "--num-seeds 2 --num-classes 300 --rounds 1 --seconds 0.01".split()
    run("cntk207_toy", tmp_path, *options)
    check_cntk(tmp_path)
