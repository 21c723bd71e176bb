"""Text and tables as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from samplesoft._tables import Column, table_cells

_CODE = re.compile("`([^`]+)`")
_NUMBER = re.compile(
    r"([+-]?(?:\d[\d,]*\.?\d*(?:e[+-]?\d+)?|\.\d+|inf))(?![\w.]) *(%?)", re.IGNORECASE
)
_ABSENT = ("", "-")


def html_text(text: str) -> str:
    """Return text as HTML, with code between backticks as in Markdown.

    >>> html_text("`m` < 3 & more")
    '<code>m</code> &lt; 3 &amp; more'
    """
    return _CODE.sub(r"<code>\1</code>", escape(text))


def html_table(rows: Sequence[Any], columns: Sequence[Column], caption: str) -> str:
    """Return a table in a box of its own, in which it can be scrolled.

    Cells of numbers say which number, for the script that sorts; columns of them are set to the
    right. The first column names the rows. A column without a title is called "note".

    >>> columns = [("name", lambda row: row[0]), ("n", lambda row: str(row[1]))]
    >>> print(html_table([("a & b", 10)], columns, "Counts"))
    <div class="scroll" role="region" tabindex="0" aria-label="Counts">
    <table>
    <caption>Counts</caption>
    <thead>
    <tr><th scope="col">name</th><th scope="col" class="number">n</th></tr>
    </thead>
    <tbody>
    <tr><th scope="row">a &amp; b</th><td class="number" data-value="10.0">10</td></tr>
    </tbody>
    </table>
    </div>
    """
    titles, *lines = table_cells(rows, columns)
    kinds = [_kind(cells) for cells in zip(*lines, strict=True)] or [""] * len(titles)
    heads = [
        f'<th scope="col"{kind}>{html_text(title or "note")}</th>'
        for title, kind in zip(titles, kinds, strict=True)
    ]
    body = [
        "".join(
            _cell("td" if k else 'th scope="row"', cell, kind)
            for k, (cell, kind) in enumerate(zip(line, kinds, strict=True))
        )
        for line in lines
    ]
    return "\n".join(
        [
            f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">',
            "<table>",
            f"<caption>{html_text(caption)}</caption>",
            "<thead>",
            f"<tr>{''.join(heads)}</tr>",
            "</thead>",
            "<tbody>",
            *(f"<tr>{cells}</tr>" for cells in body),
            "</tbody>",
            "</table>",
            "</div>",
        ]
    )


def number_of(text: str) -> float | None:
    """Return the number that a cell begins with, or None.

    >>> [number_of(text) for text in ("1.5e-06", "1,000", "12%", "7 (+2)", "3rd", "-")]
    [1.5e-06, 1000.0, 0.12, 7.0, None, None]
    """
    found = _NUMBER.match(text)
    if found is None:
        return None
    return float(found[1].replace(",", "")) / (100.0 if found[2] else 1.0)


def _cell(tag: str, text: str, kind: str) -> str:
    """Return a cell with the number in it as JavaScript reads it."""
    number = number_of(text)
    value = "" if number is None else f' data-value="{number!r}"'.replace("inf", "Infinity")
    return f"<{tag}{kind}{value}>{html_text(text)}</{tag[:2]}>"


def _kind(cells: Sequence[str]) -> str:
    """Return the class of a column, as an attribute."""
    given = [cell for cell in cells if cell not in _ABSENT]
    numbers = given and all(number_of(cell) is not None for cell in given)
    return ' class="number"' if numbers else ""
