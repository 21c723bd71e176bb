"""The site: the reference has every public name, and what Sphinx builds works from a folder."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import ask_and_listen

import samplesoft

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXTENSIONS = ("sphinx", "myst_nb", "numpydoc", "pydata_sphinx_theme", "sphinx_design")
# listed on a page of the reference: below an autosummary, or by a directive
ENTRY = re.compile(r"^(?:   |\.\. (?:py:data|registry):: )([\w.]+)$", re.MULTILINE)
LOADS = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src")}


def listed():
    pages = [page for page in (DOCS / "reference").glob("*.rst") if page.stem != "index"]
    names = [name for page in pages for name in ENTRY.findall(page.read_text(encoding="utf-8"))]
    return Counter(f"samplesoft.{name}" for name in names)


def public():
    """Return what the package and its packages show."""
    found = {f"samplesoft.{name}" for name in samplesoft._MODULE_OF}
    for name in (*samplesoft._MODULES, "sklearn"):
        module = importlib.import_module(f"samplesoft.{name}")
        if hasattr(module, "__path__"):
            shown = [key for key, value in vars(module).items() if not inspect.ismodule(value)]
            shown = getattr(module, "__all__", [key for key in shown if not key.startswith("_")])
            found |= {f"samplesoft.{name}.{key}" for key in shown}
    return found


def test_the_reference_has_every_public_name_once():
    pytest.importorskip("sklearn", reason="needs the extra sklearn")
    names = listed()
    assert public() - set(names) == set()
    assert [name for name, times in names.items() if times > 1] == []
    assert len(names) > 150
    for name in names:
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name


# pages -------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The ids of a page, where its links lead, and what it loads."""

    def __init__(self, file):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name") and tag != "meta":
                self.ids.add(value)
            elif (tag, name) in LOADS:
                self.loads.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


def problems(site):
    """Return links that lead nowhere, and what pages would load from a network."""
    files = [file for file in site.rglob("*.html") if "_static" not in file.parts]
    pages = {file: Page(file) for file in files}
    found = []
    for file, page in pages.items():
        for target in page.loads + page.links:
            if re.match(r"(https?:)?//", target) and target in page.loads:
                found.append(f"{file.name} loads {target}")
            if re.match(r"\w+:|//", target):
                continue
            path, _, anchor = unquote(target.partition("?")[0]).partition("#")
            there = (file.parent / path).resolve() if path else file
            if not there.exists():
                found.append(f"{file.name}: {target}")
            elif anchor and there in pages and anchor not in pages[there].ids:
                found.append(f"{file.name}: {target} is no place there")
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        found += [
            f"{style.name} loads {url}" for url in re.findall(r"url\(['\"]?(http[^)]+)", text)
        ]
    return found


def index_of(site):
    """Return the names of objects that the search knows."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    objects = index["objects"].items()
    return {f"{prefix}.{entry[4]}" for prefix, entries in objects for entry in entries}


LOOK = """(page, window) => {
  const light = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).map((x) => x / 255)
      .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    while (one) {
      const color = window.getComputedStyle(one).backgroundColor;
      if (!/, 0\\)|transparent/.test(color)) return light(color);
      one = one.parentElement;
    }
    return 1;
  };
  const contrasts = () => [...page.querySelectorAll("h1, p, li, a, code, td, pre span")]
    .filter((one) => one.offsetWidth && [...one.childNodes].some(
      (part) => part.nodeType === 3 && part.textContent.trim()))
    .map((one) => [light(window.getComputedStyle(one).color), behind(one)])
    .map(([x, y]) => (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05));
  page.head.insertAdjacentHTML("beforeend", "<style>* {transition: none !important}</style>");
  const least = {};
  for (const theme of ["light", "dark"]) {
    page.documentElement.dataset.theme = theme;
    least[theme] = Math.min(...contrasts());
  }
  return {
    least,
    width: page.documentElement.scrollWidth,
    math: page.querySelectorAll("mjx-container").length,
    wrong: page.querySelectorAll("mjx-merror").length,
    results: [...page.querySelectorAll("#search-results li a")].map((one) => one.textContent),
    loaded: window.performance.getEntriesByType("resource").map((one) => one.name)
      .filter((name) => !name.startsWith("file:")),
  };
}"""


def look(folder, site, *pages):
    """Return what a browser sees in pages of a folder, which must load and fit and be readable."""
    questions = [(f"{site.as_uri()}/{path}", width, LOOK) for path, width in pages]
    answers, console = ask_and_listen(folder, *questions, delay=8000)
    assert [line for line in console if "[PST]" not in line] == []  # the theme's own notes
    for (path, width), answer in zip(pages, answers, strict=True):
        assert answer["width"] <= width, path
        assert not answer["wrong"] and not answer["loaded"], path
        assert min(answer["least"].values()) >= 4.5, (path, answer["least"])
    return answers


SMALL = (
    "index.html",
    "theory/derivation.html",
    "reference/generated/samplesoft.exact_bias.html",
    "learn/notebooks/01_softmax_layer.html",
    "learn/one-file.html",
    "theory/plain-tree.html",
    "search.html?q=exact_bias",
)


@pytest.mark.slow
def test_the_site_builds_and_works_from_a_folder(tmp_path):
    missing = [name for name in EXTENSIONS if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs the extra docs: {', '.join(missing)}")
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "-n", "-b", "html", str(DOCS), str(site)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert problems(site) == []
    assert set(listed()) - index_of(site) == set()
    reference = (site / "reference/generated/samplesoft.exact_bias.html").read_text()
    assert "Figures that use it" in reference and "benchmarks.html#figure-" in reference
    assert 'theory/derivation.html"><span class="doc">samplesoft/bias/README.md' in reference
    # there `check` is a command, or a file
    for page in ("theory/index.html", "changelog.html", "reference/loss.html"):
        assert "#samplesoft.teaching.check" not in (site / page).read_text()

    answers = look(tmp_path, site, ("benchmarks.html", 1280), *((path, 375) for path in SMALL))
    assert answers[2]["math"] > 100 and answers[4]["math"] > 100
    # words and code side by side on a wide page, and the file linked as a page
    assert "two-columns-code" in (site / "learn/one-file.html").read_text()
    assert 'href="plain-bias.html"' in (site / "theory/index.html").read_text()
    assert any("exact_bias" in name for name in answers[-1]["results"])


TWO_COLUMNS = [ROOT / "notebooks" / "sampled_softmax.py", *(ROOT / "samplesoft").rglob("plain.py")]


@pytest.mark.parametrize("path", TWO_COLUMNS, ids=lambda path: path.parent.name)
def test_a_file_in_two_columns_is_whole(path):
    pytest.importorskip("docutils", reason="needs the extra docs")
    two_columns = load_two_columns()
    source = path.read_text(encoding="utf-8")
    rows = two_columns.rows(source)
    code = [line.strip() for row in rows for line in row.code if line.strip()]
    words = "\n".join(line for row in rows for line in row.text)
    assert ast.dump(ast.parse("\n".join(line for row in rows for line in row.code))) == ast.dump(
        without_docstrings(ast.parse(source))
    )
    lines = [line.strip().removeprefix("#").strip() for line in source.splitlines()]
    for line in filter(None, lines):
        plain = line.removeprefix("r").removeprefix('"""').removesuffix('"""')
        assert plain in words or any(plain in one for one in code), line
    shown = " ".join(node.astext() for row in rows for node in two_columns.prose(row.text))
    assert len(shown.split()) >= 0.95 * len(re.sub("-{5,}", "", words).replace("`", "").split())


def load_two_columns():
    spec = spec_from_file_location("two_columns", DOCS / "two_columns.py")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_docstrings(tree):
    for node in ast.walk(tree):
        named = isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
        if named and node in (tree, *tree.body) and ast.get_docstring(node) is not None:
            node.body.pop(0)
    return tree


def test_wrong_pages_are_noticed(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="b"><a href="#b"></a><a href="#c"></a><a href="d.html"></a><a href="a.html#b"></a>'
        '<script src="https://example.org/x.js"></script><a href="https://example.org"></a>'
    )
    (tmp_path / "a.css").write_text("p {background: url(https://example.org/x.png)}")
    assert len(problems(tmp_path)) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        "<script>nothing.there()</script>",
        '<div style="width: 999px">a</div>',
        '<p style="color: #999; background: #fff">a</p>',
    ],
)
def test_a_browser_notices_what_is_wrong(wrong, tmp_path):
    for name, page in {"right.html": "<p>a</p>", "wrong.html": f"<p>a</p>{wrong}"}.items():
        text = f"<!DOCTYPE html><html><head></head><body>{page}</body></html>"
        (tmp_path / name).write_text(text)
    look(tmp_path, tmp_path, ("right.html", 375))
    with pytest.raises(AssertionError):
        look(tmp_path, tmp_path, ("wrong.html", 375))
