"""Every notebook and its solutions run from a clean kernel; what is committed is a clean run."""

import ast
import base64
import os
import re
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from documents import blocks

from samplesoft.teaching import write_student_version

nbformat = pytest.importorskip("nbformat", reason="needs the extra samplesoft[notebooks]")
nbclient = pytest.importorskip("nbclient", reason="needs the extra samplesoft[notebooks]")
pytest.importorskip("ipykernel", reason="needs the extra samplesoft[notebooks]")

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MAX_BYTES = 450_000
FOLDERS = "|".join(("home", "Users", "tmp", "work", "opt"))
MACHINE_PATH = re.compile(rf"(/(?:{FOLDERS})/|[A-Z]:\\\\)")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs_of(cells):
    return [output for cell in cells for output in cell.outputs]


def add_solutions(notebook):
    """Put a code cell after each exercise that is solved in Python; return them with outputs."""
    cells, solutions = [], []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "markdown":
            for block in blocks(cell.source):
                cells.append(nbformat.v4.new_code_cell(block.text))
                solutions.append((cells[-1], block.output))
    notebook.cells = cells
    return solutions


def test_there_are_notebooks():
    assert NOTEBOOKS


@each_notebook
def test_committed_outputs(path):
    notebook = read(path)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = outputs_of(cells)
    assert any(output.output_type == "stream" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert notebook.metadata.kernelspec.name == "python3"
    text = "".join(cell.source for cell in notebook.cells)
    text += "".join(output.get("text", "") for output in outputs)
    assert not MACHINE_PATH.search(text)
    assert path.stat().st_size < MAX_BYTES


@each_notebook
def test_figures_are_sharp(path):
    """A figure has twice the pixels that it takes on the page, for screens that show them."""
    for output in outputs_of(code_cells(read(path))):
        if "image/png" in output.get("data", {}):
            width = struct.unpack(">I", base64.b64decode(output.data["image/png"])[16:20])[0]
            assert width >= 2 * output.metadata["image/png"]["width"] >= 600


@each_notebook
def test_uses_public_names_alone(path):
    for cell in code_cells(read(path)):
        for node in ast.walk(ast.parse(cell.source)):
            names = [alias.name for alias in getattr(node, "names", []) if hasattr(alias, "name")]
            names += [getattr(node, "module", None) or "", getattr(node, "attr", "")]
            private = [n for name in names for n in name.split(".") if re.match("_[^_]", n)]
            assert not private, f"line {node.lineno} of {cell.id}"


@each_notebook
def test_exercises_have_solutions(path):
    cells = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    text = "\n".join(cells)
    exercises = text[text.index("Exercises\n") :]
    assert exercises.count("\n### ") == exercises.count("<details><summary>Solution</summary>\n\n")
    assert exercises.count("\n### ") == exercises.count("\n</details>") >= 3


def test_student_versions_neither_have_nor_promise_solutions(tmp_path):
    student = write_student_version(tmp_path / "student", FOLDER)
    for path in NOTEBOOKS:
        made, given = read(student / "notebooks" / path.name), read(path)
        nbformat.validate(made)
        text = "".join(cell.source for cell in made.cells)
        assert not re.search(r"(?i)<details>|\bsolutions?\b|\bfolded\b|\bpaste\b", text)
        assert text.count("\n### ") == "".join(c.source for c in given.cells).count("\n### ")
        assert code_cells(made) == code_cells(given)


@pytest.mark.parametrize("name", ["01_softmax_layer", "02_exact_bias"])
def test_a_notebook_taken_alone_says_what_it_lacks(name, tmp_path, monkeypatch):
    (source,) = [
        c.source for c in code_cells(read(FOLDER / f"{name}.ipynb")) if "sys.path" in c.source
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [x for x in sys.path if Path(x).name != "figures"])
    for module in ("toy_task", "jackknife_moments", "multilevel_moments"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    installed = SimpleNamespace(__file__=str(tmp_path / "samplesoft" / "__init__.py"))
    with pytest.raises(ModuleNotFoundError, match=r"take samplesoft-notebooks\.zip"):
        exec(source, {"samplesoft": installed})


@pytest.mark.filterwarnings("ignore")  # those of the Jupyter packages are not ours
@pytest.mark.parametrize("name", ["00_from_word2vec", "01_softmax_layer", "02_exact_bias"])
def test_slides_of_a_lecture(name):
    """As ``jupyter nbconvert --to slides`` makes them: a slide for a text, and no exercises."""
    exporters = pytest.importorskip("nbconvert.exporters", reason="needs samplesoft[notebooks]")
    notebook = read(FOLDER / f"{name}.ipynb")
    kinds = [cell.metadata.slideshow.slide_type for cell in notebook.cells]
    html, _ = exporters.SlidesExporter().from_notebook_node(notebook)
    assert html.count("<section>") >= kinds.count("slide") + kinds.count("subslide") > 10
    assert "image/png;base64" in html
    assert "Solution</summary>" not in html


def test_the_road_map_names_every_notebook():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"\((\d\d_\w+\.ipynb)\)", text)
    assert sorted(set(named)) == [path.name for path in NOTEBOOKS]


@pytest.mark.slow
@pytest.mark.thorough(but=2)
@pytest.mark.filterwarnings("ignore")  # those of the Jupyter packages are not ours
@each_notebook
def test_runs_from_a_clean_kernel(path, tmp_path):
    notebook = read(path)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    solutions = add_solutions(notebook)
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute(env={**os.environ, "PYTHONWARNINGS": "default"})  # raises if a cell does
    assert any("image/png" in o.get("data", {}) for o in outputs_of(code_cells(notebook)))
    for cell, expected in solutions:
        if expected is not None:
            assert "".join(o.get("text", "") for o in cell.outputs) == expected
