"""Plain twins: each stands alone, is short enough to be read, and is not part of the interface."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

import samplesoft

PACKAGE = Path(samplesoft.__file__).parent
TWINS = sorted(PACKAGE.rglob("plain.py"))
NUMBERS = {"numpy", "math", "fractions", "itertools"}  # beside what is for types alone
OF_TYPES = {"__future__", "typing", "collections.abc"}
MOST_LINES = 245
USERS = {"samplesoft.bias.plain": ["checking/exact.py"]}  # of mixtures, which no fast code has
each_twin = pytest.mark.parametrize("path", TWINS, ids=[p.parent.name for p in TWINS])


def imported(text):
    """Return the names of all modules that a source imports, wherever it does."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


@each_twin
def test_a_twin_imports_nothing_of_the_package(path):
    assert imported(path.read_text(encoding="utf-8")) <= NUMBERS | OF_TYPES


def test_an_import_is_found_wherever_it_stands():
    text = "import math\ndef f():\n    from samplesoft.bias import a\n    from . import b"
    assert imported(text) == {"math", "samplesoft.bias", "."}


@each_twin
def test_a_twin_is_to_be_read(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    words = " ".join(ast.get_docstring(ast.parse(text)).split())
    assert "to be read, not to be used" in words


@each_twin
def test_a_twin_is_no_part_of_the_interface(path):
    """Its room imports without it, and does not show what it holds."""
    name = ".".join(["samplesoft", *path.parent.relative_to(PACKAGE).parts])
    room = importlib.import_module(name)
    twin = importlib.import_module(f"{name}.plain")
    held = {
        key
        for key, value in vars(twin).items()
        if getattr(value, "__module__", "") == twin.__name__
    }
    assert held and not held & set(getattr(room, "__all__", ()))
    users = [
        str(other.relative_to(PACKAGE))
        for other in PACKAGE.rglob("*.py")
        if other != path and f"{name}.plain" in imported(other.read_text(encoding="utf-8"))
    ]
    assert users == USERS.get(f"{name}.plain", []) and f"{name}.plain" in sys.modules
