"""What instructors hand out: whole, without solutions, and never over something."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from samplesoft.teaching import write_student_version
from samplesoft.teaching.__main__ import main

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def clone(tmp_path):
    """Return a folder as a clone has it, with a solution where instructors have one."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks", ignore=ignored)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "toy_task.py").write_text("x = 1\n")
    (tmp_path / "figures" / "toy_task.csv").write_text("1\n")
    (tmp_path / "notebooks" / "assignment" / "my_solution.py").write_text("x = 2\n")
    return tmp_path


def test_students_get_all_that_they_need_and_no_more(clone):
    student = write_student_version(clone / "new" / "student", clone / "notebooks")
    notebooks = {f"notebooks/{path.name}" for path in NOTEBOOKS.glob("*.ipynb")}
    assert files(student) == {
        *notebooks,
        "notebooks/sampled_softmax.py",
        "notebooks/assignment/handout.md",
        "notebooks/assignment/adapters.py",
        "notebooks/assignment/test_assignment.py",
        "figures/toy_task.py",
    }
    assert files(student.parent) == {f"student/{name}" for name in files(student)}


def test_the_solution_is_nowhere_in_it(clone):
    student = write_student_version(clone / "student", clone / "notebooks")
    text = "".join(path.read_text(encoding="utf-8") for path in student.rglob("*.py"))
    assert "def loss_over" in (ROOT / "tests" / "assignment" / "solution.py").read_text()
    assert "def loss_over" not in text


def test_an_empty_folder_will_do_and_nothing_is_written_over(clone):
    target = clone / "student"
    target.mkdir()
    write_student_version(target, clone / "notebooks")
    before = files(target)
    (clone / "file").write_text("")
    for taken in (target, clone / "file"):
        with pytest.raises(FileExistsError, match="`target` must be a new or an empty folder"):
            write_student_version(taken, clone / "notebooks")
    assert files(target) == before


def break_adapters(clone):
    path = clone / "notebooks" / "assignment" / "adapters.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('raise NotImplementedError("task 4: write alias_draw', 'print("'))


def break_notebook(clone):
    (clone / "notebooks" / "02_exact_bias.ipynb").write_text("{}")


def adapters_with(text):
    def spoil(clone):
        path = clone / "notebooks" / "assignment" / "adapters.py"
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")

    return spoil


def notebook_with(*texts):
    def spoil(clone):
        path = clone / "notebooks" / "02_exact_bias.ipynb"
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for text in texts:
            notebook["cells"].append({"cell_type": "markdown", "metadata": {}, "source": [text]})
        path.write_text(json.dumps(notebook), encoding="utf-8")

    return spoil


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (break_adapters, ValueError, "has a solution: `alias_draw`"),
        (break_notebook, ValueError, r"'.*02_exact_bias\.ipynb' cannot be read"),
        (
            adapters_with("\nfrom solution import softmax_loss\n"),
            ValueError,
            "has a solution: line",
        ),
        (adapters_with("\nalias_table = lambda q: q\n"), ValueError, "has a solution: line"),
        (adapters_with("\ndef f(:\n"), ValueError, "which is no Python: line"),
        (notebook_with("<details>\nabc"), ValueError, "cell [0-9]+ of .*one end of <details>"),
        (notebook_with("<DETAILS>\nabc", "</details>"), ValueError, "one end of <details>"),
        (lambda clone: shutil.rmtree(clone / "figures"), FileNotFoundError, "lacks '.*figures'"),
        (lambda clone: shutil.rmtree(clone / "notebooks"), FileNotFoundError, "run this in a cl"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(spoil, error, words, clone):
    spoil(clone)
    before = files(clone)
    with pytest.raises(error, match=words):
        write_student_version(clone / "student", clone / "notebooks")
    assert files(clone) == before


def test_the_command(clone, monkeypatch, capsys):
    monkeypatch.chdir(clone)
    monkeypatch.setattr(sys, "argv", ["samplesoft.teaching", "student"])
    assert main() == 0
    assert "11 notebooks without solutions" in capsys.readouterr().out
    for path in Path("student", "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not re.search("<details>", "".join("".join(cell["source"]) for cell in cells))
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "remove it, or name another" in capsys.readouterr().err


@pytest.mark.parametrize(
    "tag", ["<details open>", "<DETAILS>", '<details class="a">', "<details >"]
)
def test_a_solution_in_any_form_is_left_out(tag, clone):
    notebook_with(f"before\n{tag}secret</details >\nafter")(clone)
    student = write_student_version(clone / "student", clone / "notebooks")
    text = (student / "notebooks" / "02_exact_bias.ipynb").read_text(encoding="utf-8")
    assert "secret" not in text and "after" in text


@pytest.mark.parametrize("inside", ["figures/student", "notebooks/student", "notebooks/a/b"])
def test_a_target_inside_of_what_is_copied_is_refused(inside, clone):
    before = files(clone)
    with pytest.raises(ValueError, match="`target` must be outside"):
        write_student_version(clone / inside, clone / "notebooks")
    assert files(clone) == before


def test_links_and_the_current_folder_are_refused_in_words(clone, monkeypatch):
    (clone / "empty").mkdir()
    monkeypatch.chdir(clone / "empty")
    with pytest.raises(FileExistsError, match="`target` must be a new or an empty folder"):
        write_student_version(".", clone / "notebooks")
    monkeypatch.chdir(clone)
    try:
        (clone / "link").symlink_to(clone / "empty", target_is_directory=True)
    except OSError:
        pytest.skip("no right to make links")
    with pytest.raises(FileExistsError, match="`target` must be a new or an empty folder"):
        write_student_version("link", "notebooks")


def test_what_tools_keep_beside_scripts_is_left_out(clone):
    for folder in (".ipynb_checkpoints", ".venv/lib", "__pycache__"):
        (clone / "figures" / folder).mkdir(parents=True)
        (clone / "figures" / folder / "other.py").write_text("x = 1")
    student = write_student_version(clone / "student", clone / "notebooks")
    assert {name for name in files(student) if "figures" in name} == {"figures/toy_task.py"}
