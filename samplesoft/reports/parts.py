"""The parts of a report: headings, paragraphs, lists and tables, as text and as HTML."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import repeat
from typing import Any

TEXT_WIDTH = 80  # of sentences; a table is as wide as it is

_CODE = re.compile("`([^`]+)`")


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
