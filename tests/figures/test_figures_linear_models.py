"""figures/linear_models.py runs on small files, keeps rows of before, and says what it lacks."""

import csv
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script

FIGURES = Path(__file__).parents[2] / "figures"
OURS = ["samplesoft, one-vs-all", "samplesoft, softmax of vectors of 64"]


def table(path):
    with path.open(encoding="utf-8") as stream:
        return {row["method"]: row for row in csv.DictReader(stream)}


def run(folder, methods, *options):
    given = "--bibtex", folder, "--output", folder, "--seeds", 2, "--methods", ";".join(methods)
    return run_script(FIGURES / "linear_models.py", *given, *options)


@pytest.mark.thorough
@pytest.mark.slow
def test_models_are_scored(tmp_path):
    """Each label has words of its own, which all models find."""
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    for part, num in (("train", 120), ("test", 40)):
        lines = [f"{num} 30 6"]
        for _ in range(num):
            labels = sorted(rng.choice(6, rng.integers(1, 3), replace=False))
            words = sorted({5 * label + rng.integers(5) for label in labels for _ in range(3)})
            lines.append(",".join(map(str, labels)) + " " + " ".join(f"{w}:1" for w in words))
        (tmp_path / f"bibtex_{part}.txt").write_text("\n".join(lines) + "\n")
    peers = ["scikit-learn, Ridge", "scikit-learn, one-vs-rest, tf-idf", "napkinXC, label tree"]
    said = run(tmp_path, peers)
    assert ("left out: napkinxc" in said) is (importlib.util.find_spec("napkinxc") is None)
    run(tmp_path, OURS)
    rows = table(tmp_path / "linear_models.csv")
    assert set(OURS) | set(peers[:2]) <= set(rows)
    assert all(float(row["precision_at_1"]) > 0.9 for row in rows.values())
    assert all(float(rows[name]["log_loss"]) < 3.0 for name in OURS)
    assert (tmp_path / "linear_models.png").stat().st_size > 10_000
    assert run(tmp_path, ["scikit-learn, Ridge, tf-idf"], "--choose").count("alpha") == 3
