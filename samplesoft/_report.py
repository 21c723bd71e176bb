"""Reports of `verify`, `check_loss` and `tune`: text, JSON, CSV, a figure, and one HTML page.

A report says what it has to say once, in parts. Values stay values until a part is written: a
number on the page knows its size, so that a click on the title of its column sorts.
"""

from __future__ import annotations

import csv
import inspect
import io
import json
import math
import platform
import re
import textwrap
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib import import_module
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from samplesoft import __version__
from samplesoft._files import replaced

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_FORMATS = (".png", ".pdf", ".svg")
TEXT_WIDTH = 80  # of sentences; a table is as wide as it is

_DPI = 130
_NO_METADATA: dict[str, dict[str, Any]] = {  # so that equal figures have equal bytes
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}
_CODE = re.compile("`([^`]+)`")


class Report(ABC):
    """A result for programs and for readers; a new one has numbers, parts and a figure."""

    _title: ClassVar[str]  # of the page
    _figure_title: ClassVar[str]
    _setting_names: ClassVar[tuple[str, ...]] = ()  # fields that are settings

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, numbers and strings."""

    @abstractmethod
    def _parts(self) -> list[Part]:
        """Return what the report says, in the order of reading."""

    @abstractmethod
    def _figure(self) -> Figure:
        """Draw the report."""

    def _settings(self) -> dict[str, Any]:
        """Return what the report was made with, for the end of the page; None is not shown."""
        return {name: getattr(self, name) for name in self._setting_names}

    def _details(self) -> list[Part]:
        """Return what only those read who want all of it."""
        return []

    def to_json(self) -> str:
        """Return `to_dict` as JSON.

        Returns
        -------
        str
            JSON of several lines.
        """
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_text(self, details: bool = False) -> str:
        """Return the report as sentences and tables.

        Parameters
        ----------
        details : bool
            Add all figures, where the report has more than it shows at first.

        Returns
        -------
        str
            Lines of at most 80 characters, but for tables that are wider.
        """
        more = self._details()
        parts = self._parts() + (more if details else [])
        if more and not details:
            parts.append(Paragraph("All figures: --details, or to_text(details=True)."))
        return "\n\n".join(part.text() for part in parts)

    def to_html(self, settings: Mapping[str, Any] | None = None) -> str:
        """Return the report as a page: text, all tables, and the figure of `plot`.

        The page needs no other file and no network. A click on the title of a column sorts its
        table. At its end are the settings and the versions of what is installed.

        Parameters
        ----------
        settings : mapping, optional
            Shown with those of the report, for example where the data came from. Where both have a
            name, the report's value counts.

        Returns
        -------
        str
            HTML of several lines.
        """
        # the report's own settings win, for they are what was used
        shown = {**(settings or {}), **self._settings()}
        figure = _image(self._figure(), self._figure_title)
        parts: list[Part] = [part for part in self._parts() if not isinstance(part, Settings)]
        parts += [*self._details(), Heading(self._figure_title)]
        ending: list[Part] = [
            Heading("Settings"),
            Settings({name: value for name, value in shown.items() if value is not None}),
            Heading("Versions"),
            Settings(_versions()),
        ]
        drawing = f'<figure class="scroll" tabindex="0">\n{figure}\n</figure>'
        content = [part.html() for part in parts], [drawing], [part.html() for part in ending]
        return _page(self._title, [*chain(*content)])

    def __str__(self) -> str:
        """Return `to_text`."""
        return self.to_text()

    def plot(self, path: str | Path) -> None:
        """Draw the report.

        Parameters
        ----------
        path : str or Path
            Where to write it; the ending gives the format (.png, .pdf, .svg).

        Raises
        ------
        ValueError
            If the ending is not one of these.
        OSError
            If the file cannot be written.
        """
        save_figure(self._figure(), figure_path("`path`", path))


def plain(value: Any) -> Any:
    """Return `value` with Python's numbers for NumPy's, and None for those that are not finite."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def described(kind: Callable[..., Any]) -> dict[str, str]:
    """Return what a docstring says of each argument or attribute, without the full stop."""
    # without docstrings, as of python -OO, nothing is found
    text = inspect.getdoc(kind) or ""
    blocks = re.findall(r"^(\w[\w, ]*) : [^\n]*\n((?:    [^\n]*\n?)+)", text, re.MULTILINE)
    return {
        name: " ".join(lines.split()).rstrip(".").replace("`", "")
        for names, lines in blocks
        for name in names.split(", ")
    }


def csv_table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return comma-separated values, quoted where they have to be (RFC 4180).

    Rows hold text, numbers, of which floats get 8 significant digits, and None for an empty cell.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows([f"{x:.8g}" if isinstance(x, float) else x for x in row] for row in rows)
    return text.getvalue()


# parts -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heading:
    """The title of what comes next."""

    title: str

    def text(self) -> str:
        """Return it with a line below."""
        return f"{self.title}\n{'-' * len(self.title)}"

    def html(self) -> str:
        """Return it as HTML."""
        return f"<h2>{_html(self.title)}</h2>"


@dataclass(frozen=True)
class Paragraph:
    """Sentences, with code between backticks; those of the verdict stand out on a page."""

    words: str
    is_verdict: bool = False

    def text(self) -> str:
        """Return it in lines."""
        return _in_lines(self.words)

    def html(self) -> str:
        """Return it as HTML."""
        words = _html(self.words)
        return f"<p><strong>{words}</strong></p>" if self.is_verdict else f"<p>{words}</p>"


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    sentences: Sequence[str]

    def text(self) -> str:
        """Return them in lines, each sentence with a dash before it."""
        layout = {"initial_indent": "- ", "subsequent_indent": "  "}
        return "\n".join(_in_lines(sentence, **layout) for sentence in self.sentences)

    def html(self) -> str:
        """Return them as HTML."""
        return "\n".join(["<ul>", *(f"<li>{_html(s)}</li>" for s in self.sentences), "</ul>"])


@dataclass(frozen=True)
class Settings:
    """Names with their values, which stand at the end of a page."""

    values: Mapping[str, Any]

    def text(self) -> str:
        """Return them as a sentence."""
        pairs = (f"{name}: {value}" for name, value in self.values.items())
        return _in_lines(f"{'; '.join(pairs)}.")

    def html(self) -> str:
        """Return them as HTML."""
        lines = []
        for name, value in self.values.items():
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            lines.append(f"<dt>{_html(str(name))}</dt><dd>{_html(text)}</dd>")
        return "\n".join(["<dl>", *lines, "</dl>"])


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, the value of a row, and how that is written."""

    title: str  # of one or two lines
    value: Callable[[Any], Any]  # a number, a text, or None for a cell that is absent
    form: str | Callable[[Any], str] = ""  # of a number as `format` takes it, or the row's text

    def written(self, row: Any) -> str:
        """Return the text of a row's cell, in one line."""
        value = self.value(row)
        if value is None:
            return "-"
        if callable(self.form):
            text = self.form(row)
        else:  # a zero has no digits to show
            text = "0" if value == 0.0 else format(value, self.form)
        return " ".join(text.split())

    def is_of_numbers(self, rows: Iterable[Any]) -> bool:
        """Return whether all cells that are not absent hold numbers."""
        values = [value for row in rows if (value := self.value(row)) not in (None, "")]
        return bool(values) and not any(isinstance(value, str) for value in values)


@dataclass(frozen=True)
class Table:
    """Rows, and what stands in their columns, of which the first names the row.

    >>> columns = [Column("name", lambda row: row[0]), Column("n", lambda row: row[1], ",")]
    >>> table = Table([("a & b", 10), ("c", 2000)], columns, "Counts")
    >>> print(table.text())
    name       n
    -----  -----
    a & b     10
    c      2,000
    >>> print(table.html().splitlines()[7])
    <tr><th scope="row">a &amp; b</th><td class="number" data-value="10.0">10</td></tr>
    """

    rows: Sequence[Any]
    columns: Sequence[Column]
    caption: str  # of the page

    def text(self) -> str:
        """Return it with numbers to the right and words to the left."""
        columns = []
        height = max(len(column.title.splitlines()) for column in self.columns)
        for column in self.columns:
            title = column.title.splitlines()
            cells = [*[""] * (height - len(title)), *title]
            cells += (column.written(row) for row in self.rows)
            width = max(map(len, cells))
            put = str.rjust if column.is_of_numbers(self.rows) else str.ljust
            cells.insert(height, "-" * width)
            columns.append([put(cell, width) for cell in cells])
        return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))

    def html(self) -> str:
        """Return it in a box of its own, in which it can be scrolled."""
        kinds = [' class="number"' if c.is_of_numbers(self.rows) else "" for c in self.columns]
        heads = (
            f'<th scope="col"{kind}>{_html(column.title or "note")}</th>'
            for column, kind in zip(self.columns, kinds, strict=True)
        )
        tags = ['th scope="row"', *["td"] * (len(kinds) - 1)]  # the first cell names its row
        lines = ("".join(map(_cell, tags, kinds, self.columns, repeat(row))) for row in self.rows)
        body = "\n".join(f"<tr>{cells}</tr>" for cells in lines)
        name = escape(self.caption)
        return f"""<div class="scroll" role="region" tabindex="0" aria-label="{name}">
<table>
<caption>{_html(self.caption)}</caption>
<thead>
<tr>{"".join(heads)}</tr>
</thead>
<tbody>
{body}
</tbody>
</table>
</div>"""


Part = Heading | Paragraph | Items | Settings | Table


def _cell(tag: str, kind: str, column: Column, row: Any) -> str:
    """Return a cell with its number as JavaScript reads it, for the script that sorts."""
    value = column.value(row)
    # sorted by the value, whatever its text looks like
    known = value is not None and not isinstance(value, str)
    number = f' data-value="{float(value)!r}"'.replace("inf", "Infinity") if known else ""
    return f"<{tag}{kind}{number}>{_html(column.written(row))}</{tag[:2]}>"


def _in_lines(text: str, **layout: str) -> str:
    """Return text in lines that are no longer than a terminal is wide."""
    return textwrap.fill(text, TEXT_WIDTH, break_on_hyphens=False, **layout)  # type: ignore[arg-type]


def _html(text: str) -> str:
    """Return text as HTML, with code between backticks."""
    # escaped first, so that no name of a sampler becomes a tag
    return _CODE.sub(r"<code>\1</code>", escape(text))


# figures -----------------------------------------------------------------------------------------


def figure_path(name: str, path: str | Path) -> Path:
    """Return a path with one of the `FIGURE_FORMATS`; `name` is that of the argument."""
    if Path(path).suffix.lower() not in FIGURE_FORMATS:
        raise ValueError(
            f"{name} must end in {', '.join(FIGURE_FORMATS)}, got {str(path)!r}; rename it, for "
            "example report.png."
        )
    return Path(path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a path with one of the `FIGURE_FORMATS`, whole or not at all."""
    with replaced(path) as draft:
        _save(figure, draft, path.suffix.lower())


def titled_figure(verdict: str, size: tuple[float, float]) -> tuple[Figure, Any]:
    """Return a figure of so many inches with a verdict above it, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    title = textwrap.fill(verdict.replace("`", ""), 105)
    figure.suptitle(title, fontsize=9.5, x=0.01, ha="left")
    axes = figure.subplots()
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _image(figure: Figure, title: str) -> str:
    """Return a figure as an image of a page, as wide as its place; `title` says what it is.

    It has at least a pixel for each of its points, as letters of 8 points must be readable.
    """
    file = io.BytesIO()
    _save(figure, file, ".svg")
    content = b64encode(file.getvalue()).decode()
    return (
        f'<img alt="{escape(title)}" style="min-width: {72.0 * figure.get_figwidth():g}px" '
        f'src="data:image/svg+xml;base64,{content}">'
    )


def _save(figure: Figure, file: Any, ending: str) -> None:
    # half a second, which a report without a figure does not need
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "samplesoft"}):  # ids are else random
        figure.savefig(file, format=ending[1:], dpi=_DPI, metadata=_NO_METADATA[ending])


# the page ----------------------------------------------------------------------------------------


def _page(title: str, parts: Sequence[str]) -> str:
    """Return a page of parts that are HTML, whose tables a click on a title sorts.

    The browser is told to load nothing, and to run no other script.
    """
    here = Path(__file__)
    style, script = (here.with_suffix(end).read_text(encoding="utf-8") for end in (".css", ".js"))
    # the policy names the one script that may run by its hash
    digest = b64encode(sha256(script.encode()).digest()).decode()
    content = "\n".join(parts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src 'unsafe-inline'; script-src 'sha256-{digest}'">
<title>{escape(title)} - samplesoft</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{content}
</main>
<script>{script}</script>
</body>
</html>
"""


def _versions() -> dict[str, Any]:
    """Return what results may depend on: versions, the platform, and the number of threads."""
    import numba

    libraries = ("NumPy", "Numba", "SciPy")
    return {
        "samplesoft": __version__,
        "Python": platform.python_version(),
        **{name: import_module(name.lower()).__version__ for name in libraries},
        "platform": platform.platform(),
        "threads": numba.get_num_threads(),
    }
