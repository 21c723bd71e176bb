"""The picture of the README: its script runs, and the committed table is what it writes."""

import csv
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

FIGURES = Path(__file__).parents[2] / "figures"
NUM_SAMPLED = 3


def read_table(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def enumerated(scores, label):
    """Return the average gradient by a visit to every outcome of the draws."""
    e = np.exp(scores)
    negatives = [j for j in range(len(e)) if j != label]
    total = np.zeros(len(e))
    for drawn in product(negatives, repeat=NUM_SAMPLED):
        weights = e[list(drawn)] * len(negatives) / NUM_SAMPLED
        s = e[label] + weights.sum()
        np.add.at(total, [label, *drawn], np.append(e[label], weights) / s)
    total /= len(negatives) ** NUM_SAMPLED
    total[label] -= 1.0
    return total


def test_committed_bars_are_right():
    table = read_table(FIGURES / "at_a_glance.csv")
    scores, full, sampled = (
        np.array([float(row[key]) for row in table]) for key in ("score", "full", "sampled")
    )
    label = [row["name"] for row in table].index("horse")
    p = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(full, p - (np.arange(len(p)) == label), atol=1e-6)
    np.testing.assert_allclose(sampled, enumerated(scores, label), atol=1e-6)
    assert np.abs(sampled - full).sum() > 0.1


@pytest.mark.slow
def test_script_writes_what_is_committed(tmp_path):
    command = [sys.executable, str(FIGURES / "at_a_glance.py"), "--output", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    assert read_table(tmp_path / "at_a_glance.csv") == read_table(FIGURES / "at_a_glance.csv")
    png = (tmp_path / "at_a_glance.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and len(png) < 150_000
