"""Write the student version of the notebooks: without solutions, with everything they import."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

_SOLUTION_PATTERN = re.compile(r"<details\b[^>]*>.*?</details\s*>\n*", re.DOTALL | re.IGNORECASE)
_MENTION_PATTERN = re.compile(r"(Each has a solution|Paste its code|Solutions are folded)[^.]*\. ?")
_ASSIGNMENT_FILES = ("handout.md", "adapters.py", "test_assignment.py")


def write_student_version(target: str | Path, notebooks: str | Path = "notebooks") -> Path:
    """Write the notebooks without solutions, and the assignment, to a new folder.

    The new folder contains the folder ``notebooks``, which includes the assignment, and the folder
    ``figures`` with the scripts that the notebooks import.

    Parameters
    ----------
    target : str or pathlib.Path
        The folder to write, outside `notebooks` and ``figures``. It must be new or empty.
    notebooks : str or pathlib.Path
        The folder of the notebooks, in a clone or unpacked from ``samplesoft-notebooks.zip``, next
        to the folder ``figures``.

    Returns
    -------
    pathlib.Path
        The folder that was written.

    Raises
    ------
    FileNotFoundError
        If `notebooks`, or a folder or file that belongs to it, does not exist.
    FileExistsError
        If `target` exists and is not an empty folder.
    ValueError
        If functions in ``adapters.py`` of the assignment are implemented, so that students would
        get a solution; if some of a solution remains in a notebook; if a notebook cannot be read;
        or if `target` is inside a folder that is copied.

    Examples
    --------
    >>> from samplesoft.teaching import write_student_version
    >>> write_student_version("student")  # doctest: +SKIP
    PosixPath('student')
    """
    target = Path(target)
    source = Path(notebooks)
    figures = source.absolute().parent / "figures"
    assignment = source / "assignment"
    paths = sorted(source.glob("*.ipynb"))
    if not paths:
        raise FileNotFoundError(
            f"`notebooks` must be the folder of the notebooks, got {str(source)!r}, which has "
            "none; run this in a clone, or where samplesoft-notebooks.zip was unpacked."
        )

    assignment_paths = [assignment / name for name in _ASSIGNMENT_FILES]
    for path in (figures, source / "sampled_softmax.py", *assignment_paths):
        if not path.exists():
            raise FileNotFoundError(
                f"`notebooks` lacks {str(path)!r}; take all of samplesoft-notebooks.zip or of a "
                "clone."
            )

    _require_stubs(assignment / "adapters.py")
    resolved = target.resolve()
    if any(resolved.is_relative_to(folder.resolve()) for folder in (source, figures)):
        raise ValueError(
            f"`target` must be outside of the notebooks and of figures, got {str(target)!r}; name "
            "a folder beside them."
        )

    is_new_or_empty = not target.exists() or (target.is_dir() and not any(target.iterdir()))
    if target.is_symlink() or resolved == Path.cwd() or not is_new_or_empty:
        raise FileExistsError(
            f"`target` must be a new or an empty folder, got {str(target)!r}; remove it, or name "
            "another."
        )

    student_notebooks = {path.name: _notebook_without_solutions(path) for path in paths}
    target.absolute().parent.mkdir(parents=True, exist_ok=True)

    # Write to a temporary folder next to the target, and rename it: an error then leaves no
    # incomplete target.
    with TemporaryDirectory(dir=target.absolute().parent, prefix=f".{target.name}.") as draft:
        complete = Path(draft, "whole")
        (complete / "notebooks" / "assignment").mkdir(parents=True)
        for name, text in student_notebooks.items():
            (complete / "notebooks" / name).write_text(text, encoding="utf-8")

        shutil.copy(source / "sampled_softmax.py", complete / "notebooks")
        for name in _ASSIGNMENT_FILES:
            shutil.copy(assignment / name, complete / "notebooks" / "assignment")

        for script in figures.rglob("*.py"):
            relative_path = script.relative_to(figures)
            if any(name.startswith((".", "__py")) for name in relative_path.parts):
                continue  # for example a virtual environment or Jupyter's checkpoints
            target_script = complete / "figures" / relative_path
            target_script.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(script, target_script)

        if target.exists():
            target.rmdir()

        complete.rename(target)

    return target


def _notebook_without_solutions(path: Path) -> str:
    """Return a notebook as JSON text, without solutions and sentences that mention solutions."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [(cell, cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"`notebooks` must hold notebooks, and {str(path)!r} cannot be read as one; "
            "get it again."
        ) from error

    for number, (cell, kind, text) in enumerate(cells, start=1):
        if kind == "markdown":
            text = _MENTION_PATTERN.sub("", _SOLUTION_PATTERN.sub("", text))
            cell["source"] = text

        if kind != "code" and re.search("(?i)</?details", text):
            raise ValueError(
                f"`notebooks` has a solution that is not whole: cell {number} of {str(path)!r} has "
                "one end of <details>; put both into one text cell."
            )

    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _require_stubs(adapters: Path) -> None:
    """Raise ValueError if the module `adapters` contains anything that may be a solution.

    Allowed are docstrings, ``import numpy as np``, and functions whose body is only docstrings and
    a raise statement.
    """
    try:
        body = ast.parse(adapters.read_text(encoding="utf-8")).body
    except SyntaxError as error:
        raise ValueError(
            f"`notebooks` has {str(adapters)!r}, which is no Python: line {error.lineno}; put the "
            "file back as it was."
        ) from error

    for node in body:
        if isinstance(node, ast.FunctionDef):
            *docstrings, last_statement = node.body
            is_stub = isinstance(last_statement, ast.Raise) and all(map(_is_docstring, docstrings))
            location = f"`{node.name}`"
        else:
            is_stub = _is_docstring(node) or ast.unparse(node) == "import numpy as np"
            location = f"line {node.lineno}"

        if not is_stub:
            raise ValueError(
                f"`notebooks` has a solution: {location} in {str(adapters)!r} is written, and "
                "students "
                "would get it; put the file back as it was."
            )


def _is_docstring(node: ast.stmt) -> bool:
    """Return whether a statement is only a constant, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
