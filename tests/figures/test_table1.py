"""figures/table1_kernel_mse.py runs in a small setting; its committed files keep their promise."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script

FIGURES = Path(__file__).parents[2] / "figures"
SCRIPT = FIGURES / "table1_kernel_mse.py"
MAPS = {
    "rff",
    "rff:orthogonal",
    "rff:structured",
    "positive",
    "positive:orthogonal",
    "maclaurin",
    "quadratic",
}


def read_table(folder):
    lines = (folder / "table1_kernel_mse.csv").read_text(encoding="utf-8").splitlines()
    table = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert lines[0].startswith("# USPS") and {row["map"] for row in table} == MAPS
    return {(float(r["tau"]), r["map"], int(r["D"])): r for r in table}


def run(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_committed_table_agrees_with_the_theory_and_with_the_paper():
    table = read_table(FIGURES)
    for (tau, name, num), row in table.items():
        mse = float(row["mse"])
        assert float(row["mse_gaussian"]) == pytest.approx(mse * np.exp(-2 * tau), rel=2e-3)
        if name.startswith("rff") and row["mse_expected"] and num <= 1000:
            spread = float(row["mse_std"]) / np.sqrt(int(row["num_maps"]))
            assert abs(mse - float(row["mse_expected"])) < 4 * spread
    for num in (100, 1000):
        half = table[0.5, "rff", num]
        assert float(half["mse_expected"]) == pytest.approx(float(half["mse_printed"]), rel=0.05)
        for better in ("rff:orthogonal", "rff:structured"):
            assert float(table[0.5, better, num]["mse"]) < 0.7 * float(half["mse"])
    quadratic = table[1.0, "quadratic", 256**2]
    assert float(quadratic["mse"]) == pytest.approx(float(quadratic["mse_printed"]), rel=0.06)
    png = FIGURES / "table1_kernel_mse.png"
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert png.stat().st_size < 300_000


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npz", "text"])
def test_small_run(tmp_path, kind):
    pixels = np.random.default_rng(0).integers(-1000, 1001, size=(30, 20))
    digits = tmp_path / ("digits.npz" if kind == "npz" else "zip.train")
    if kind == "npz":
        np.savez(digits, train_x=pixels.astype(np.int16))
    else:
        np.savetxt(digits, np.column_stack([np.arange(30) % 10, pixels / 1000]))
    small = ("--num-pairs", 40, "--counts", 10, 40, "--num-maps", 2, "--taus", 1, 2)
    printed = run_script(SCRIPT, "--usps", digits, "--output", tmp_path, *small)
    assert set(read_table(tmp_path)) == {
        (tau, name, num)
        for tau in (1.0, 2.0)
        for name in MAPS
        for num in ((400,) if name == "quadratic" else (10, 40))
    }
    assert (tmp_path / "table1_kernel_mse.png").stat().st_size > 10_000
    assert "printed (no tau)" in printed


@pytest.mark.slow
def test_says_where_the_digits_are_published(tmp_path):
    done = run("--usps", tmp_path / "none.npz")
    assert done.returncode == 2 and "hastie.su.domains" in done.stderr
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    done = run("--usps", tmp_path / "other.npz")
    assert done.returncode == 1 and "no array `train_x`, but x" in done.stderr
