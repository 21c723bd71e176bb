"""Names in backticks, in pages and in docstrings, are names of code and files that exist.

Nothing is imported: identifiers of the code are collected from the source without its docstrings
and comments, so that a name which only words still mention is found.
"""

import builtins
import functools
import json
import keyword
import re
from pathlib import Path

import numpy as np
import pytest
from test_repository import tracked

ROOT = Path(__file__).parents[1]
CODE = ("samplesoft/", "tests/", "figures/", "notebooks/", "docs/")
NOT_CHECKED = ("CHANGELOG.md", "docs/audit.md", "docs/paper/", ".github/CODE_OF_CONDUCT.md")
DOCSTRING = re.compile(r'r?"""(.*?)"""', re.S)
COMMENT = re.compile(r"(?m)(^|\s)#.*$")
FENCE = re.compile(r"(?ms)^\s*(```+)[^\n]*\n(.*?)^\s*\1")
BACKTICKS = re.compile(r"(``?)([^`\n]+)\1")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
FILE = re.compile(r"[\w./-]+\.(py|md|ipynb|yml|bib)|\w+/[\w./-]+\.(csv|png|json)")
OTHER_FILE = re.compile(r"\.(csv|png|json|npz|toml|txt|html|cff|yaml|rst|joblib)$")  # often made
OTHERS = {  # modules of other packages, whose names are theirs
    *("builtins", "concurrent", "csr_matrix", "dask", "dataclasses", "joblib", "math", "nn", "np"),
    *("numba", "numpy", "os", "scipy", "sklearn", "sparse", "tf", "torch", "transformers4rec"),
}
FOREIGN = {  # names of other packages that no code here uses
    *("HistGradientBoostingClassifier", "IndexFlatIP", "cross_val_score", "gradcheck", "interact"),
    *("inner_max_num_threads", "learned_unigram_candidate_sampler", "load_wine"),
    *("log_uniform_candidate_sampler", "num_true"),
}
SYMBOLS = re.compile(
    r"[A-Za-z]|[A-Za-z]{1,2}_\w{1,2}|pA|\w+_at_k"
)  # of equations, and of metrics at any k
PLACEHOLDERS = re.compile(r"NAME|NN_|\bname\b|relu\.py|your_|my_")


@functools.cache
def sources():
    """Return the code of each tracked Python file, without docstrings and comments."""
    names = [name for name in tracked() if name.endswith(".py") and name.startswith(CODE)]
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in names}
    return {name: COMMENT.sub("", DOCSTRING.sub('""', text)) for name, text in texts.items()}


@functools.cache
def identifiers(name):
    """Return the identifiers in the code of one file."""
    return frozenset(IDENTIFIER.findall(sources()[name]))


@functools.cache
def known():
    """Return all identifiers that a text may name."""
    names = set().union(*map(identifiers, sources()))
    return names | {*dir(builtins), *dir(np), *keyword.kwlist, *FOREIGN}


@functools.cache
def paths():
    """Return all tracked paths, and the ends of them that name a file in short."""
    ends = set()
    for name in tracked():
        parts = name.split("/")
        ends |= {"/".join(parts[start:]) for start in range(len(parts))}
    return ends


def why_stale(quoted, examples=frozenset()):
    """Return what of a text in backticks does not exist, None if nothing is missing.

    Names in `examples`, the code blocks of a page, exist there.
    """
    if PLACEHOLDERS.search(quoted):
        return None
    if FILE.fullmatch(quoted):
        return None if quoted.removeprefix("./") in paths() else f"file {quoted}"
    called = re.match(r"([A-Za-z_][\w.]*)\(", quoted)
    text = called[1] if called else quoted
    if not DOTTED.fullmatch(text) or OTHER_FILE.search(text):
        return None
    head, *rest = text.split(".")
    if head in OTHERS:
        return None
    if head == "samplesoft":
        return why_not_in_package(rest)
    if not (called or rest or "_" in head.strip("_") or re.search(r"[a-z][A-Z]", head)):
        return None  # a word, such as a variable of an equation or a value of an option
    missing = [part for part in (head, *rest) if part not in known() | examples]
    missing = [part for part in missing if not SYMBOLS.fullmatch(part)]
    return f"name {missing[-1]}" if missing else None


def why_not_in_package(parts):
    """Return which part of a dotted name of the package does not exist, None if all do."""
    folder, code = "samplesoft", "samplesoft/__init__.py"
    for index, part in enumerate(parts):
        if part.startswith("__"):
            return None
        if f"{folder}/{part}/__init__.py" in sources():
            folder = f"{folder}/{part}"
            code = f"{folder}/__init__.py"
        elif f"{folder}/{part}.py" in sources():
            code, folder = f"{folder}/{part}.py", "-"  # no module is in a module
        elif part not in (identifiers(code) if index == 0 or folder != "-" else known()):
            return f"{part} in {code}"
        else:
            folder = "-"
    return None


def stale(text, examples=frozenset()):
    """Return the reasons for all names in backticks of a text that do not exist."""
    quoted = {match[2].strip() for match in BACKTICKS.finditer(text)}
    return sorted(filter(None, (why_stale(one, examples) for one in quoted)))


def pages():
    """Return the pages that are checked."""
    return [name for name in tracked() if name.endswith(".md") and not name.startswith(NOT_CHECKED)]


def test_names_in_pages_exist():
    found = {}
    for name in pages():
        text = (ROOT / name).read_text(encoding="utf-8")
        examples = frozenset(IDENTIFIER.findall(" ".join(m[2] for m in FENCE.finditer(text))))
        if missing := stale(FENCE.sub("", text), examples):
            found[name] = missing
    assert not found


def test_names_in_notebooks_exist():
    found = {}
    for name in tracked():
        if name.endswith(".ipynb"):
            cells = json.loads((ROOT / name).read_text(encoding="utf-8"))["cells"]
            text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
            code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
            code += " ".join(match[2] for match in FENCE.finditer(text))
            if missing := stale(FENCE.sub("", text), frozenset(IDENTIFIER.findall(code))):
                found[name] = missing
    assert not found


def test_names_in_docstrings_exist():
    found = {}
    for name in sources():
        if name.startswith("samplesoft/"):
            text = (ROOT / name).read_text(encoding="utf-8")
            docstrings = DOCSTRING.findall(text)
            examples = frozenset(IDENTIFIER.findall(" ".join(re.findall(">>> .*", text))))
            if missing := stale("\n".join(docstrings), examples):
                found[name] = missing
    assert not found


MADE_UP = "exact" + "_bia"  # joined, so that no code has it


@pytest.mark.parametrize(
    "text",
    [
        f"`samplesoft.{MADE_UP}`",
        f"`samplesoft.bias.exact.{MADE_UP}`",
        f"``samplesoft.{MADE_UP}.exact``",
        f"call `{MADE_UP}(logits, 0, q)`",
        f"the method `SoftmaxLayer.{MADE_UP}`",
        f"`{MADE_UP}`",
        f"`samplesoft/bias/{MADE_UP}.py`",
        f"see `{MADE_UP}.py`",
    ],
)
def test_a_made_up_name_is_found(text):
    assert len(stale(text)) == 1
    assert not stale(text.replace(MADE_UP, "exact_bias").replace("exact_bias.py", "plain.py"))
