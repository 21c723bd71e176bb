"""The parts of a report: headings, paragraphs, lists and tables, rendered as text and as HTML."""

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
    """A heading of a report, above the following parts."""

    title: str

    def text(self) -> str:
        """Return the heading as plain text: the title, underlined with dashes."""
        return f"{self.title}\n{'-' * len(self.title)}"

    def html(self) -> str:
        """Return the heading as HTML."""
        return f"<h2>{_escaped_html(self.title)}</h2>"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph, in which backticks enclose code. A verdict is bold in HTML."""

    content: str
    is_verdict: bool = False

    def text(self) -> str:
        """Return the paragraph as plain text, wrapped to `TEXT_WIDTH`."""
        return _wrap_lines(self.content)

    def html(self) -> str:
        """Return the paragraph as HTML."""
        text = _escaped_html(self.content)
        return f"<p><strong>{text}</strong></p>" if self.is_verdict else f"<p>{text}</p>"


@dataclass(frozen=True)
class Items:
    """A bullet list of sentences."""

    sentences: Sequence[str]

    def text(self) -> str:
        """Return the list as plain text: wrapped sentences, each after a dash."""
        layout = {"initial_indent": "- ", "subsequent_indent": "  "}
        return "\n".join(_wrap_lines(sentence, **layout) for sentence in self.sentences)

    def html(self) -> str:
        """Return the list as HTML."""
        return "\n".join(
            ["<ul>", *(f"<li>{_escaped_html(s)}</li>" for s in self.sentences), "</ul>"]
        )


@dataclass(frozen=True)
class Settings:
    """Names and values of settings, shown at the end of a report."""

    values: Mapping[str, Any]

    def text(self) -> str:
        """Return the settings as plain text, one sentence."""
        pairs = (f"{name}: {value}" for name, value in self.values.items())
        return _wrap_lines(f"{'; '.join(pairs)}.")

    def html(self) -> str:
        """Return the settings as an HTML description list."""
        lines = []
        for name, value in self.values.items():
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            lines.append(f"<dt>{_escaped_html(str(name))}</dt><dd>{_escaped_html(text)}</dd>")
        return "\n".join(["<dl>", *lines, "</dl>"])


@dataclass(frozen=True)
class Column:
    """A column of a table, defined by functions of a row, which may be any object."""

    title: str  # title of the column, of one or two lines
    # returns the number or text of a row, or None for an empty cell
    value: Callable[[Any], Any]
    # a format specification for the value, or a function that returns the formatted text of a row
    value_format: str | Callable[[Any], str] = ""

    def cell_text(self, row: Any) -> str:
        """Return the text of this column's cell for a row, in one line; "-" for an empty cell."""
        value = self.value(row)
        if value is None:
            return "-"
        if callable(self.value_format):
            text = self.value_format(row)
        else:  # write 0 without decimals
            text = "0" if value == 0.0 else format(value, self.value_format)
        return " ".join(text.split())

    def is_numeric(self, rows: Iterable[Any]) -> bool:
        """Return whether this column has nonempty cells in `rows`, all of which are numbers."""
        values = [value for row in rows if (value := self.value(row)) not in (None, "")]
        return bool(values) and not any(isinstance(value, str) for value in values)


@dataclass(frozen=True)
class Table:
    """A table, whose first column is the header of each row.

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
    caption: str  # title of the table, shown only in HTML

    def text(self) -> str:
        """Return the table as plain text: numbers are aligned right, and other cells left."""
        height = max(len(column.title.splitlines()) for column in self.columns)
        columns = []
        for column in self.columns:
            title = column.title.splitlines()
            cells = [*[""] * (height - len(title)), *title]
            cells += (column.cell_text(row) for row in self.rows)
            width = max(map(len, cells))
            align = str.rjust if column.is_numeric(self.rows) else str.ljust
            cells.insert(height, "-" * width)
            columns.append([align(cell, width) for cell in cells])

        return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))

    def html(self) -> str:
        """Return the table as HTML, in a box that scrolls if the table is too wide."""
        kinds = [' class="number"' if c.is_numeric(self.rows) else "" for c in self.columns]
        heads = (
            f'<th scope="col"{kind}>{_escaped_html(column.title or "note")}</th>'
            for column, kind in zip(self.columns, kinds, strict=True)
        )

        tags = ['th scope="row"', *["td"] * (len(kinds) - 1)]  # the first cell is the row header
        lines = (
            "".join(map(_html_cell, tags, kinds, self.columns, repeat(row))) for row in self.rows
        )
        body = "\n".join(f"<tr>{cells}</tr>" for cells in lines)

        name = escape(self.caption)
        return f"""<div class="scroll" role="region" tabindex="0" aria-label="{name}">
<table>
<caption>{_escaped_html(self.caption)}</caption>
<thead>
<tr>{"".join(heads)}</tr>
</thead>
<tbody>
{body}
</tbody>
</table>
</div>"""


Part = Heading | Paragraph | Items | Settings | Table


def _html_cell(tag: str, kind: str, column: Column, row: Any) -> str:
    """Return the HTML of the cell of a column and a row.

    `tag` is the tag of the cell, and `kind` the class attribute of numeric columns, or "". A number
    is also written without rounding, for the script that sorts rows.
    """
    value = column.value(row)
    # the script sorts by this value, in JavaScript's syntax, and not by the formatted text
    is_number = value is not None and not isinstance(value, str)
    number = f' data-value="{float(value)!r}"'.replace("inf", "Infinity") if is_number else ""
    return f"<{tag}{kind}{number}>{_escaped_html(column.cell_text(row))}</{tag[:2]}>"


def _wrap_lines(text: str, **layout: str) -> str:
    """Return text broken into lines of at most `TEXT_WIDTH` characters."""
    return textwrap.fill(text, TEXT_WIDTH, break_on_hyphens=False, **layout)  # type: ignore[arg-type]


def _escaped_html(text: str) -> str:
    """Return text escaped for HTML, in which text between backticks is marked as code."""
    # escape first: names of samplers may contain "<"
    return _CODE.sub(r"<code>\1</code>", escape(text))
