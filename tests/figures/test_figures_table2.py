import csv
from pathlib import Path

import pytest
from scripts import run_script

SCRIPT = Path(__file__).parents[2] / "figures" / "table2_walltime.py"


@pytest.mark.thorough
@pytest.mark.slow
def test_the_table_has_every_method_at_every_size(tmp_path):
    printed = run_script(SCRIPT, "--num-classes", "40,3e2", "--repeats", 3, "--output", tmp_path)
    lines = (tmp_path / "table2_walltime.csv").read_text().splitlines()
    assert lines[0].startswith("# batch 10, m = 10, d = 64")
    rows = list(csv.DictReader(lines[1:]))
    for n in ("40", "300"):
        methods = {row["method"] for row in rows if row["num_classes"] == n}
        assert {"EXP", "QUADRATIC", "RFF D = 50", "RFF D = 1000, label excluded"} <= methods
    assert all(float(row["milliseconds"]) > 0.0 for row in rows)
    assert (tmp_path / "table2_walltime.png").stat().st_size > 10_000
    assert "RFF D = 200" in printed
