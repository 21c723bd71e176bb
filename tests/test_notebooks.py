"""Every notebook runs from a clean kernel, and its committed outputs are those of a clean run."""

import os
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra samplesoft[notebooks]")
nbclient = pytest.importorskip("nbclient", reason="needs the extra samplesoft[notebooks]")
pytest.importorskip("ipykernel", reason="needs the extra samplesoft[notebooks]")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
MAX_BYTES = 300_000
FOLDERS = "|".join(("home", "Users", "tmp", "work", "opt"))
MACHINE_PATH = re.compile(rf"(/(?:{FOLDERS})/|[A-Z]:\\\\)")


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any(output.output_type == "stream" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert notebook.metadata.kernelspec.name == "python3"
    text = "".join(cell.source for cell in notebook.cells)
    text += "".join(output.get("text", "") for output in outputs)
    assert not MACHINE_PATH.search(text)
    assert path.stat().st_size < MAX_BYTES


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the Jupyter packages are not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_from_a_clean_kernel(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute(env={**os.environ, "PYTHONWARNINGS": "default"})  # raises if a cell does
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
