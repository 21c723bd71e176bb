"""The parts of a report: headings, paragraphs, lists and tables, as text and as HTML."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import repeat
from typing import Any

TEXT_WIDTH = 80  # characters in a line of sentences; tables may be wider

_CODE = re.compile("`([^`]+)`")


@dataclass(frozen=True)
class Heading:
    """A heading."""

    title: str

    def text(self) -> str:
        """Return the title, underlined."""
        return f"{self.title}\n{'-' * len(self.title)}"

    def html(self) -> str:
        """Return the HTML heading."""
        return f"<h2>{_html(self.title)}</h2>"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph, with code between backticks; a verdict is bold in HTML."""

    words: str
    is_verdict: bool = False

    def text(self) -> str:
        """Return the wrapped text."""
        return _wrapped(self.words)

    def html(self) -> str:
        """Return the HTML paragraph."""
        words = _html(self.words)
        return f"<p><strong>{words}</strong></p>" if self.is_verdict else f"<p>{words}</p>"


@dataclass(frozen=True)
class Items:
    """A bullet list of sentences."""

    sentences: Sequence[str]

    def text(self) -> str:
        """Return the wrapped sentences, each after a dash."""
        layout = {"initial_indent": "- ", "subsequent_indent": "  "}
        return "\n".join(_wrapped(sentence, **layout) for sentence in self.sentences)

    def html(self) -> str:
        """Return the HTML list."""
        return "\n".join(["<ul>", *(f"<li>{_html(s)}</li>" for s in self.sentences), "</ul>"])


@dataclass(frozen=True)
class Settings:
    """Settings by name, shown at the end of a page."""

    values: Mapping[str, Any]

    def text(self) -> str:
        """Return the settings as one sentence."""
        pairs = (f"{name}: {value}" for name, value in self.values.items())
        return _wrapped(f"{'; '.join(pairs)}.")

    def html(self) -> str:
        """Return the HTML description list."""
        lines = []
        for name, value in self.values.items():
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            lines.append(f"<dt>{_html(str(name))}</dt><dd>{_html(text)}</dd>")
        return "\n".join(["<dl>", *lines, "</dl>"])


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, the value for a row, and the format of the value."""

    title: str  # one or two lines
    value: Callable[[Any], Any]  # maps a row to a number, a text, or None for an empty cell
    form: str | Callable[[Any], str] = ""  # format specification, or a function of the row

    def cell_text(self, row: Any) -> str:
        """Return the text of a cell, in one line."""
        value = self.value(row)
        if value is None:
            return "-"
        if callable(self.form):
            text = self.form(row)
        else:  # 0 without decimals
            text = "0" if value == 0.0 else format(value, self.form)
        return " ".join(text.split())

    def is_numeric(self, rows: Iterable[Any]) -> bool:
        """Whether all nonempty cells are numbers."""
        values = [value for row in rows if (value := self.value(row)) not in (None, "")]
        return bool(values) and not any(isinstance(value, str) for value in values)


@dataclass(frozen=True)
class Table:
    """A table; the first column is the header of the row.

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
    caption: str  # in HTML only

    def text(self) -> str:
        """Return the table as text, with numbers aligned right and words left."""
        columns = []
        height = max(len(column.title.splitlines()) for column in self.columns)
        for column in self.columns:
            title = column.title.splitlines()
            cells = [*[""] * (height - len(title)), *title]
            cells += (column.cell_text(row) for row in self.rows)
            width = max(map(len, cells))
            put = str.rjust if column.is_numeric(self.rows) else str.ljust
            cells.insert(height, "-" * width)
            columns.append([put(cell, width) for cell in cells])
        return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))

    def html(self) -> str:
        """Return the HTML table in a scrollable box."""
        kinds = [' class="number"' if c.is_numeric(self.rows) else "" for c in self.columns]
        heads = (
            f'<th scope="col"{kind}>{_html(column.title or "note")}</th>'
            for column, kind in zip(self.columns, kinds, strict=True)
        )
        tags = ['th scope="row"', *["td"] * (len(kinds) - 1)]  # the first cell is the row header
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
    """Return an HTML cell, with its number in JavaScript syntax for the script that sorts."""
    value = column.value(row)
    # sorted by value, not by the formatted text
    is_number = value is not None and not isinstance(value, str)
    number = f' data-value="{float(value)!r}"'.replace("inf", "Infinity") if is_number else ""
    return f"<{tag}{kind}{number}>{_html(column.cell_text(row))}</{tag[:2]}>"


def _wrapped(text: str, **layout: str) -> str:
    """Return text in lines of at most `TEXT_WIDTH` characters."""
    return textwrap.fill(text, TEXT_WIDTH, break_on_hyphens=False, **layout)  # type: ignore[arg-type]


def _html(text: str) -> str:
    """Return text as HTML, with text between backticks as code."""
    # escape first: names of samplers may contain "<"
    return _CODE.sub(r"<code>\1</code>", escape(text))
