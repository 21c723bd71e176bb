"""The notebooks as students get them: without solutions, with all that they import."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

_SOLUTION = re.compile(r"<details\b[^>]*>.*?</details\s*>\n*", re.DOTALL | re.IGNORECASE)
_PROMISE = re.compile(r"(Each has a solution|Paste its code|Solutions are folded)[^.]*\. ?")
_ASSIGNMENT = ("handout.md", "adapters.py", "test_assignment.py")


def write_student_version(target: str | Path, notebooks: str | Path = "notebooks") -> Path:
    """Write the notebooks without solutions, and the assignment, to a new folder.

    The folder has what a student needs: ``notebooks`` with the assignment, and beside it
    ``figures``, with the scripts that notebooks import.

    Parameters
    ----------
    target : str or pathlib.Path
        The folder to write, outside `notebooks` and ``figures``. It must not be there yet, or be
        empty.
    notebooks : str or pathlib.Path
        The folder of the notebooks in a clone or in ``samplesoft-notebooks.zip`` unpacked, with the
        folder ``figures`` beside it.

    Returns
    -------
    pathlib.Path
        The folder that was written.

    Raises
    ------
    FileNotFoundError
        If `notebooks`, or a folder or file that belongs to it, is not there.
    FileExistsError
        If something stands at `target`.
    ValueError
        If ``adapters.py`` of the assignment has more than functions that are not written, so that
        students would get a solution, if something of a solution is left in a notebook, or if a
        notebook cannot be read, or `target` is inside of what is copied.

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
    for needed in (figures, source / "sampled_softmax.py", *(assignment / n for n in _ASSIGNMENT)):
        if not needed.exists():
            raise FileNotFoundError(
                f"`notebooks` lacks {str(needed)!r}; take all of samplesoft-notebooks.zip or of a "
                "clone."
            )
    _require_unwritten(assignment / "adapters.py")
    place = target.resolve()
    if any(place.is_relative_to(folder.resolve()) for folder in (source, figures)):
        raise ValueError(
            f"`target` must be outside of the notebooks and of figures, got {str(target)!r}; name "
            "a folder beside them."
        )
    is_free = not target.exists() or (target.is_dir() and not any(target.iterdir()))
    if target.is_symlink() or place == Path.cwd() or not is_free:
        raise FileExistsError(
            f"`target` must be a new or an empty folder, got {str(target)!r}; remove it, or name "
            "another."
        )
    students = {path.name: _without_solutions(path) for path in paths}
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    # beside the target, so that it is there as a whole or not at all
    with TemporaryDirectory(dir=target.absolute().parent, prefix=f".{target.name}.") as draft:
        whole = Path(draft, "whole")
        (whole / "notebooks" / "assignment").mkdir(parents=True)
        for name, text in students.items():
            (whole / "notebooks" / name).write_text(text, encoding="utf-8")
        shutil.copy(source / "sampled_softmax.py", whole / "notebooks")
        for name in _ASSIGNMENT:
            shutil.copy(assignment / name, whole / "notebooks" / "assignment")
        for script in figures.rglob("*.py"):
            parts = script.relative_to(figures)
            if any(part.startswith((".", "__py")) for part in parts.parts):
                continue  # such as an environment, or what Jupyter keeps
            copy = whole / "figures" / parts
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(script, copy)
        if target.exists():
            target.rmdir()
        whole.rename(target)
    return target


def _without_solutions(path: Path) -> str:
    """Return a notebook as text, without solutions and without sentences that promise them."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [(cell, cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"`notebooks` must hold notebooks, and {str(path)!r} cannot be read as one; "
            "take it anew."
        ) from error
    for number, (cell, kind, text) in enumerate(cells, start=1):
        if kind == "markdown":
            text = _PROMISE.sub("", _SOLUTION.sub("", text))
            cell["source"] = text
        if kind != "code" and re.search("(?i)</?details", text):
            raise ValueError(
                f"`notebooks` has a solution that is not whole: cell {number} of {str(path)!r} has "
                "one end of <details>; put both into one text cell."
            )
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _require_unwritten(adapters: Path) -> None:
    """Raise unless a module has a docstring, imports NumPy, and functions that are not written."""
    try:
        body = ast.parse(adapters.read_text(encoding="utf-8")).body
    except SyntaxError as error:
        raise ValueError(
            f"`notebooks` has {str(adapters)!r}, which is no Python: line {error.lineno}; put the "
            "file back as it was."
        ) from error
    for node in body:
        if isinstance(node, ast.FunctionDef):
            *before, last = node.body
            unwritten = isinstance(last, ast.Raise) and all(map(_is_text, before))
            what = f"`{node.name}`"
        else:
            unwritten = _is_text(node) or ast.unparse(node) == "import numpy as np"
            what = f"line {node.lineno}"
        if not unwritten:
            raise ValueError(
                f"`notebooks` has a solution: {what} in {str(adapters)!r} is written, and students "
                "would get it; put the file back as it was."
            )


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
