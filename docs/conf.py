"""How the site is built, with ``.[docs]``: ``sphinx-build -W -n -b html docs build/site``.

Pages are Markdown that reads well on its own, so what only a site needs is made here: links that
leave ``docs/`` are led to pages or files of the site, the first page of a folder gets the others as
its table of contents, and names in code lead to the reference. Notebooks are shown with the outputs
that are committed; tests execute them. ``figures/`` needs no gallery that runs scripts, for some
run for hours: the page of benchmarks shows what they have written.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from docutils import nodes
from numpydoc.xref import DEFAULT_LINKS
from sphinx.addnodes import desc_signature, pending_xref
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS)]  # the source tree, installed or not

from two_columns import TwoColumns  # noqa: E402

from samplesoft.cli import build_parser  # noqa: E402

os.environ.update(COLUMNS="80", NO_COLOR="1")  # of the help of commands

project = "samplesoft"
author = "The samplesoft developers"
copyright = "the samplesoft developers, BSD 3-Clause"
NOTEBOOKS = "learn/notebooks"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
release = PROJECT["version"]
REPOSITORY = PROJECT["urls"]["Homepage"]

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_design",
    "sphinx_exercise",
    "sphinx_proof",
]
bibtex_bibfiles = [
    path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.bib") if "paper" not in path.parts
]
if bibtex_bibfiles:
    extensions.append("sphinxcontrib.bibtex")
exclude_patterns = ["_templates", "paper"]
templates_path = ["_templates"]
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".ipynb": "myst-nb"}

# Markdown and notebooks
nb_execution_mode = "off"
nb_merge_streams = True  # what a cell prints is one output, however often it was flushed
nb_ipywidgets_js: dict[str, Any] = {}  # from another server; committed outputs have no widgets
myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
math_number_all = False
suppress_warnings = ["myst.header"]  # the headings of a notebook need not begin at the first level

# docstrings
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"  # numpydoc says types in words, with shapes
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # the template has them
default_role = "py:obj"

# the page
html_theme = "pydata_sphinx_theme"
html_title = "samplesoft"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sourcelink_suffix = ""  # notebooks are taken along under their names
# a summary of each page found would be fetched, which browsers refuse in a folder without a server
html_show_search_summary = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc", "notebook"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "icon_links": [{"name": "Source", "url": REPOSITORY, "icon": "fa-solid fa-code"}],
    "logo": {"text": "samplesoft"},
}
# Folders have a list of their pages at the side. That of all names would take a third of the time
# to build, and the room of the text: the way back is above the title.
html_sidebars = {"*": [], "reference/generated/*": []}
html_context = {"default_mode": "auto"}
mathjax_path = "mathjax/tex-chtml.js"


# links and folders -------------------------------------------------------------------------------

# a picture, or the end of a link, with its path and its anchor
LINK = re.compile(r"(!\[[^\]]*)?\]\(([^)\s#]+)(#[^)\s]*)?\)")
INCLUDE = re.compile(r"```\{include\} (\S+)\n```\n")
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    ".github/CONTRIBUTING.md": "contributing.md",
    "notebooks/README.md": "learn/index.md",
    "notebooks/assignment/handout.md": "learn/assignment.md",
    "samplesoft/bias/README.md": "theory/derivation.md",
    "notebooks/sampled_softmax.py": "learn/one-file.md",
    "samplesoft/bias/plain.py": "theory/plain-bias.md",
    "samplesoft/feature_maps/plain.py": "theory/plain-feature-maps.md",
    "samplesoft/losses/plain.py": "theory/plain-losses.md",
    "samplesoft/optimizers/plain.py": "theory/plain-optimizers.md",
    "samplesoft/samplers/clusters/plain.py": "theory/plain-clusters.md",
    "samplesoft/samplers/tree/plain.py": "theory/plain-tree.md",
    "samplesoft/training/fused/plain.py": "theory/plain-steps.md",
}


def lead(link: re.Match[str], folder: Path) -> str:
    """Return a link of a file in `folder` as the site has it."""
    picture, path, anchor = link.groups(default="")
    if ":" in path or not (folder / path).exists():
        return link[0]
    place = (folder / path).resolve()
    name = place.relative_to(ROOT).as_posix()
    if picture:
        # with a width it is a link to its full size
        return f'{picture}](/{Path("..", name).as_posix()}){{width="100%"}}'
    if place.is_dir():
        return f"]({REPOSITORY}/tree/main/{name})"
    if place.parent == ROOT / "figures" and place.with_suffix(".csv").exists():
        return f"](#figure-{place.stem})"
    if place.suffix == ".ipynb":
        return f"](/{NOTEBOOKS}/{place.name})"
    if name == "README.md":
        anchor = ""  # its sections are the doors of the first page
    name = f"docs/{PAGES[name]}" if name in PAGES else name
    inside = name.removeprefix("docs/")
    return f"](/{inside if inside != name else f'../{name}'}{anchor})"


def read(app: Any, name: str, source: list[str]) -> None:
    """Change the text of a page before it is parsed."""
    file = Path(app.env.doc2path(name))
    if file.suffix == ".rst":
        return
    folder = ROOT / "notebooks" if name.startswith(NOTEBOOKS) else file.parent

    def include(block: re.Match[str]) -> str:
        path = (folder / block[1]).resolve()
        app.env.note_dependency(str(path))
        return LINK.sub(lambda link: lead(link, path.parent), path.read_text(encoding="utf-8"))

    text = INCLUDE.sub(include, LINK.sub(lambda link: lead(link, folder), source[0]))
    if name == "benchmarks":
        text = benchmarks(text)
    if file.name == "index.md" and "{toctree}" not in text:
        linked = re.findall(r"\]\(/?(?:\w+/)?((?:notebooks/)?[\w-]+)\.\w+\)", text)
        there = sorted(
            path.relative_to(file.parent).with_suffix("").as_posix()
            for path in file.parent.rglob("*")
            if path.suffix in (".md", ".ipynb") and path != file
        )
        pages = sorted(there, key=lambda page: linked.index(page) if page in linked else 99)
        text += "\n".join(["\n```{toctree}", ":hidden:", "", *pages, "```\n"])
    source[0] = text


def copy_notebooks(app: Any) -> None:
    """Copy the notebooks into the folder of the pages, where they differ."""
    folder = DOCS / NOTEBOOKS
    folder.mkdir(exist_ok=True)
    wanted = {path.name: path for path in (ROOT / "notebooks").glob("*.ipynb")}
    for path in folder.iterdir():
        if path.name not in wanted:
            path.unlink()
    for name, path in wanted.items():
        copy = folder / name
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            shutil.copy(path, copy)


def pack_notebooks(app: Any) -> None:
    """Pack the notebooks and all that they need, as a reader takes them."""
    with ZipFile(DOCS / "learn" / "samplesoft-notebooks.zip", "w", ZIP_DEFLATED) as archive:
        for pattern in (
            "notebooks/*.ipynb",
            "notebooks/**/*.py",
            "notebooks/**/*.md",
            "figures/**/*.py",
        ):
            for path in sorted(ROOT.glob(pattern)):
                archive.write(path, path.relative_to(ROOT))


# names and figures -------------------------------------------------------------------------------


def public_names() -> dict[str, str]:
    """Return what the pages of the reference list: the whole name by its last part."""
    entry = re.compile(r"^(?:   |\.\. (?:py:data|registry):: )([\w.]+)$", re.MULTILINE)
    pages = [page for page in (DOCS / "reference").glob("*.rst") if page.stem != "index"]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    names = [name for text in texts for name in entry.findall(text)]
    return {name.rpartition(".")[2]: f"samplesoft.{name}" for name in names}


PUBLIC = public_names()
# plain words are names of ours only at the top: `check` and `train` are also commands and files
LINKED = {
    name: whole
    for name, whole in PUBLIC.items()
    if re.search("[A-Z_]", name) or whole == f"samplesoft.{name}"
}
# classes of ours that stand as types of parameters and results are links, other words are not
DEFAULT_LINKS.clear()
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = {name: whole for name, whole in PUBLIC.items() if name[0].isupper()}


def link_code(app: Any, doctree: nodes.document) -> None:
    """Make links of public names, and of files that are pages, that stand in code in a text."""
    for code in [*doctree.findall(nodes.literal)]:
        text = code.astext()
        domain, kind = "py", "obj"
        target = LINKED.get(text.removesuffix("()").removeprefix("samplesoft."))
        if text in PAGES:
            domain, kind, target = "std", "doc", "/" + PAGES[text].removesuffix(".md")
        if target and isinstance(code.parent, (nodes.paragraph, nodes.entry, nodes.strong)):
            link = pending_xref(refdomain=domain, reftype=kind, reftarget=target, refexplicit=True)
            code.replace_self(link)
            link += code


def break_code(app: Any, doctree: nodes.document, name: str) -> None:
    """Let code in a table break between its parts, so that the table fits its page."""
    for table in doctree.findall(nodes.table):
        for code in [] if "autosummary" in table["classes"] else [*table.findall(nodes.literal)]:
            parts = re.split(r"(?<=[/._=(])(?=\w)|(?<=\w{12})(?=[A-Z][a-z])", code.astext())
            code[:] = [nodes.Text(parts[0])]
            for part in parts[1:]:
                code += [nodes.raw("", "<wbr>", format="html"), nodes.Text(part)]


def add_other_names(app: Any, doctree: nodes.document) -> None:
    """Make places of the other names of what is documented: where it is defined, and from where."""
    for head in doctree.findall(desc_signature):
        whole = f"{head.get('module')}.{head.get('fullname')}"
        module, _, last = whole.rpartition(".")
        if PUBLIC.get(last) == whole:
            home = getattr(getattr(import_module(module), last), "__module__", "")
            others = {f"{home}.{last}", f"samplesoft.{last}"} - set(head["ids"])
            head["ids"] += sorted(others)


def find_name(app: Any, env: Any, node: pending_xref, content: nodes.Node) -> nodes.Node | None:
    """Lead names in single backticks of docstrings to the reference; what is none stays code."""
    if node["reftype"] != "obj":
        return None
    target = LINKED.get(node["reftarget"].rpartition(".")[2])
    where = env.domaindata["py"]["objects"].get(target)
    if where is None:
        return nodes.literal(content.astext(), content.astext())
    return make_refnode(app.builder, node["refdoc"], where.docname, where.node_id, content, target)


class Registry(SphinxDirective):
    """``.. registry:: NAME``: a registry of samplesoft, and what its entries say of themselves."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the description of a name, with a table of its entries."""
        name = self.arguments[0]
        module, _, last = f"samplesoft.{name}".rpartition(".")
        table = ["   .. list-table::", "      :widths: auto", ""]
        for key, entry in getattr(import_module(module), last).items():
            made = getattr(entry, "make", entry)
            facts = [f"`{made.__name__}`"] if isinstance(made, type) else []
            facts += [f"``{k}={v!r}``" for k, v in getattr(entry, "fixed", {}).items()]
            facts += [
                f"``{getattr(entry, k)}``" for k in ("kernel", "formula") if hasattr(entry, k)
            ]
            facts += [entry.summary] if hasattr(entry, "summary") else []
            table += [f'      * - ``"{key}"``', f"        - {', '.join(facts)}"]
        lines = [f".. py:data:: {name}", "", *table, ""]
        return self.parse_text_to_nodes("\n".join(lines))


class Help(SphinxDirective):
    """``.. help:: COMMAND``: what a command of the command line says of itself."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return its help as it is printed."""
        words = [*self.arguments[0].split(), "-h"]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            build_parser(words).parse_args(words)
        text = printed.getvalue()
        return [nodes.literal_block(text, text, language="text")]


def uses() -> dict[str, list[str]]:
    """Return the figures, by their scripts, that use each public name."""
    found: dict[str, set[str]] = defaultdict(set)
    for script in sorted((ROOT / "figures").glob("*.py")):
        if not script.with_suffix(".csv").exists():
            continue
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("samplesoft"):
                for alias in node.names:
                    found[alias.name].add(script.stem)
            elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "samplesoft":
                found[node.attr].add(script.stem)
    return {name: sorted(scripts) for name, scripts in found.items()}


USES = uses()


def escape_initials(*event: Any) -> None:
    """Keep an initial at the beginning of a line, such as in a reference, from being a list."""
    lines = event[-1]
    initial = re.compile(r"^( *(?:\.\. \[[^]]+\] )?)([A-Z]\.)(?= |$)")
    lines[:] = [initial.sub(r"\1\\\2", line) for line in lines]


def add_figures(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Add links to the figures that use a public name, below its docstring."""
    last = name.rpartition(".")[2]
    if PUBLIC.get(last) == name and last in USES:
        links = (f":ref:`{stem} <figure-{stem}>`" for stem in USES[last])
        lines += ["", ".. rubric:: Figures that use it", "", ", ".join(links), ""]


def dates() -> dict[str, str]:
    """Return the day of the last commit of each file of ``figures/``, where git knows it."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return {}

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout

    if "false" not in git("rev-parse", "--is-shallow-repository"):
        return {}  # there all files have the day of the last commit
    found: dict[str, str] = {}
    day = ""
    for line in git("log", "--format=%cs", "--name-only", "--", "figures").splitlines():
        if re.fullmatch(r"\d{4}-\d\d-\d\d", line):
            day = line
        elif line:
            found.setdefault(line, day)
    return found


FIGURES = re.compile(r"<!-- figures: ([\w\s]+)-->\n")
# how a docstring of a figure begins, which is for those who run its script
WRITES = re.compile(r"Writes ``[\w.]+``(?: and ``[\w.]+``)? beside this script[.:,]\s+(\w)")


def benchmarks(page: str) -> str:
    """Put a section for each table of ``figures/`` that the page names where it names it."""
    days = dates()
    named = [stem for names in FIGURES.findall(page) for stem in names.split()]
    tables = [table.stem for table in (ROOT / "figures").glob("*.csv")]
    missing = {stem for stem in tables if f"(figure-{stem})=" not in page}.symmetric_difference(
        named
    )
    if missing:
        raise ValueError(f"docs/benchmarks.md must name all tables of figures/ once: {missing}")

    def sections(names: re.Match[str]) -> str:
        return "\n".join(
            section(stem, days.get(f"figures/{stem}.csv")) for stem in names[1].split()
        )

    return FIGURES.sub(sections, page)


def section(stem: str, day: str | None) -> str:
    """Return the section of a table: what its script says of it, and its picture."""
    table, script, picture = (ROOT / "figures" / f"{stem}.{end}" for end in ("csv", "py", "png"))
    doc = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    title, _, about = doc.partition("\n")
    # up to the command, which the script has
    about = re.split(r"::?\n\n    |\n\w+\n---", about)[0].strip().rstrip(".") + "."
    about = re.sub(r"`([^`<]+) <[^>]+>`_", r"\1", about)
    about = re.sub(r"\bdocs/(\w+)\.md\b", r"[The page](\1.md)", about)
    about = WRITES.sub(lambda begin: begin[1].upper(), about)
    lines = [f"(figure-{stem})=", f"### {title.rstrip('.')}", about, ""]
    if picture.exists():
        # with a width it is a link to its full size
        lines += [f'![{stem}](../figures/{picture.name}){{width="100%"}}', ""]
    links = (
        f"{{download}}`{what} <../figures/{stem}.{end}>`"
        for what, end in (("script", "py"), ("table", "csv"))
    )
    lines += [", ".join(links) + (f", of {day}" if day else "") + ".", ""]
    text = table.read_text(encoding="utf-8")
    made = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    lines += [f"About the table: {' '.join(made)}", ""] if made else []
    return "\n".join(lines)


def skip_member(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> Any:
    """Leave out fields that say only that they are fields, and scikit-learn's routing."""
    plain = (getattr(thing, "__doc__", None) or "").startswith("Alias for field")
    return True if plain or re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


def copy_mathjax(app: Any, error: Exception | None) -> None:
    """Copy of MathJax what pages load, so that a folder works without a network."""
    if error is None and app.builder.format == "html":
        source = Path(str(files("sphinx-mathjax-offline"))) / "static" / "mathjax"
        target = Path(app.outdir) / "_static" / "mathjax"
        fonts = "output/chtml/fonts/woff-v2"
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / "tex-chtml.js", target)
        shutil.copytree(source / fonts, target / fonts, dirs_exist_ok=True)


def setup(app: Any) -> None:
    """Connect what stands above."""
    app.add_directive("help", Help)
    app.add_directive("registry", Registry)
    app.add_directive("two-columns", TwoColumns)
    app.connect("builder-inited", copy_notebooks)
    app.connect("builder-inited", pack_notebooks)
    app.connect("source-read", read)
    app.connect("doctree-read", link_code)
    app.connect("doctree-read", add_other_names)
    app.connect("doctree-resolved", break_code)
    app.connect("missing-reference", find_name)
    app.connect("autodoc-process-docstring", escape_initials, priority=900)  # after numpydoc
    app.connect("autodoc-process-docstring", add_figures, priority=900)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("build-finished", copy_mathjax)
