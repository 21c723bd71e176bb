"""How large the house may be: the budgets of pyproject.toml, held against what is there.

An issue that needs more raises its number there, in the commit that uses it.
"""

import ast
import io
import tokenize
import tomllib
from functools import cache
from pathlib import Path

import pytest

import samplesoft

ROOT = Path(__file__).parents[1]
BUDGET = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["samplesoft"]["budget"]
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def count(source):
    """Return numbers of lines: of code, with a comment, and all.

    A line of code holds a token that is part of no comment, docstring or import.
    """
    tree = ast.parse(source)
    apart = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    scopes = [node for node in ast.walk(tree) if isinstance(node, SCOPES)]
    apart += [node.body[0] for node in scopes if ast.get_docstring(node, clean=False) is not None]
    code, comments = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in SILENT:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in apart:
        code.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(code), len(comments), source.count("\n")


@cache
def sources():
    """Return the texts of the package by the names of their modules."""
    found = {}
    for path in sorted((ROOT / "samplesoft").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return found


def imported(source, names):
    """Return those of `names` that a source text imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= below & names or {node.module}
    return found & names


def with_one_importer(texts):
    """Return the modules that one other module imports: paragraphs of that one."""
    uses = {name: imported(text, set(texts)) - {name} for name, text in texts.items()}
    return [name for name in texts if sum(name in others for others in uses.values()) == 1]


@cache
def measure():
    """Return what there is of each thing in the budget."""
    counts = {name: count(text) for name, text in sources().items()}
    return {
        "code": sum(code for code, _, _ in counts.values()),
        "cuda": sum(code for name, (code, _, _) in counts.items() if "cuda" in name),
        "files": len(counts),
        "one-importer": len(with_one_importer(sources())),
        "functions": sum(callable(getattr(samplesoft, name)) for name in samplesoft.__all__),
        "readme": (ROOT / "README.md").read_text(encoding="utf-8").count("\n"),
        "test-helpers": sum(
            not path.name.startswith("test_") for path in (ROOT / "tests").glob("*.py")
        ),
    }


@pytest.mark.parametrize("thing", BUDGET["most"])
def test_what_there_is_stays_below_its_budget(thing):
    there = measure()
    assert set(there) == set(BUDGET["most"])
    assert there[thing] <= BUDGET["most"][thing]


def test_comments_say_why_on_many_lines():
    counts = [count(text) for text in sources().values()]
    share = sum(comments for _, comments, _ in counts) / sum(lines for _, _, lines in counts)
    assert share >= BUDGET["least"]["comments"]


def test_lines_are_counted_as_a_reader_does():
    text = '"""A docstring,\nof two lines."""\nimport os\n\n# why\nx = {  # what\n    1: os,\n}\n'
    assert count(text) == (3, 2, 8)
    assert count("def f():\n    'A docstring.'\n    return '''a\n    b'''\n") == (3, 0, 4)


def test_a_module_with_one_importer_is_found():
    texts = {"a": "", "a.b": "import a.c", "a.c": "from a import b", "d": "from a.c import x"}
    assert with_one_importer(texts) == ["a.b"]
