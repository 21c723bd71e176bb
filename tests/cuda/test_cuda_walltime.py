"""The script of the times on a GPU runs, and writes what it promises, at a tiny size."""

import csv
import sys
from pathlib import Path

import pytest

FIGURES = Path(__file__).parents[2] / "figures"
pytestmark = pytest.mark.gpu


def test_every_work_is_timed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FIGURES))
    import gpu_walltime

    for name in ("DIM", "NUM_SAMPLED", "STEP_BATCH", "STEP_SAMPLED"):
        monkeypatch.setattr(gpu_walltime, name, 3)
    options = "--num-classes 20 --batches 2 --num-frequencies 4,5 --rows 6 --repeats 1 --output"
    monkeypatch.setattr(sys, "argv", ["gpu_walltime.py", *options.split(), str(tmp_path)])
    gpu_walltime.main()
    with (tmp_path / "gpu_walltime.csv").open() as stream:
        rows = list(csv.DictReader(line for line in stream if line[0] != "#"))
    assert tuple(rows[0]) == gpu_walltime.FIELDS
    works = {row["work"] for row in rows}
    assert works == {"sampled loss", "features", "training step"}
    drawn = {row["method"] for row in rows if row["work"] == "sampled loss"}
    assert drawn - {gpu_walltime.PEER} == {"clusters", "RFF D = 4", "RFF D = 5"}
    assert all(float(row["milliseconds"]) > 0 for row in rows)
    assert (tmp_path / "gpu_walltime.png").stat().st_size > 0
