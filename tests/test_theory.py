"""The pages of theory: equations, theorems, sources, functions and tests that they name exist."""

import re
from pathlib import Path

import pytest


def read(path):
    return path.read_text(encoding="utf-8")


ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "theory"
PAGES = sorted(FOLDER.glob("*.md"))
TEXT = {path.name: read(path) for path in PAGES}
PROVED = [path for path in PAGES if "{prf:theorem}" in TEXT[path.name]]
SOURCE = "".join(map(read, (ROOT / "samplesoft").rglob("*.py")))
WHOLE = "\n".join(TEXT.values())
each_page = pytest.mark.parametrize("path", PROVED, ids=lambda path: path.stem)


def once(pattern):
    """Return what the pattern finds in all pages, of which no two are equal."""
    found = re.findall(pattern, WHOLE, flags=re.MULTILINE)
    assert len(found) == len(set(found)) > 5
    return set(found)


def test_equations_and_theorems_that_are_named_exist():
    equations = once(r"^\$\$ \((eq-[\w-]+)\)$")
    statements = once(r"^:label: ([\w-]+)$")
    assert set(re.findall(r"\{eq\}`([^`]+)`", WHOLE)) <= equations
    assert set(re.findall(r"\{prf:ref\}`([^`]+)`", WHOLE)) <= statements


def test_sources_are_cited_and_known():
    keys = re.findall(r"^@\w+\{(\w+),$", read(FOLDER / "references.bib"), re.MULTILINE)
    assert keys == sorted(set(keys))
    cited = {key for group in re.findall(r"\{cite\}`([^`]+)`", WHOLE) for key in group.split(",")}
    assert cited == set(keys)


@each_page
def test_each_statement_has_a_proof_and_stands_in_the_table(path):
    """A proof follows each statement, or the sentence that says where it is."""
    text = TEXT[path.name]
    kinds = "theorem|lemma|proposition|corollary"
    parts = re.split(rf"^:::\{{prf:(?:{kinds})\}}", text, flags=re.MULTILINE)[1:]
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    for part in parts:
        (label,) = re.findall(r"^:label: ([\w-]+)$", part, flags=re.MULTILINE)
        assert "{prf:proof}" in part or "The proof is in [section" in part, label
        if label.startswith("thm-"):
            assert f"{{prf:ref}}`{label}`" in table, label


@each_page
def test_functions_and_tests_in_the_table_exist(path):
    rows = [line.split("|")[1:-1] for line in TEXT[path.name].splitlines() if line[:1] == "|"]
    header = rows.index([" statement ", " function ", " test ", " to read on "])
    for _, functions, tests, _ in rows[header + 2 :]:
        scripts = [ROOT / name for name in re.findall(r"`(figures/\w+\.py)`", functions)]
        source = "".join(map(read, scripts)) if scripts else SOURCE
        for name in re.findall(r"`(?:[\w.]*\.)?([a-z]\w+|[A-Z]\w+)(?:\(.*?\))?`", functions):
            assert re.search(rf"\b(def|class) {name}\b|^    {name}: ", source, re.MULTILINE), name
        for place in re.findall(r"`(tests/[\w/.]+)`", tests):
            assert (ROOT / place).exists(), place
