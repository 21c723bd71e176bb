"""Tables as text: aligned Markdown, LaTeX, and comma-separated values."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Column = tuple[str, Callable[[Any], str]]  # a title, and the text of a row's cell below it

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<=": r"$\le$",
    ">=": r"$\ge$",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
_SPECIAL = re.compile("|".join(map(re.escape, _LATEX)))
_SCIENTIFIC = re.compile(r"(-?\d(?:\.\d+)?)e([+-]\d+)")
_NEGATIVE = re.compile(r"-\d[\d.,]*")
_ENDS_CELL = re.compile(r"[\\|]")  # in Markdown, a bar, or a backslash that would unescape it


def table_cells(rows: Sequence[Any], columns: Sequence[Column]) -> list[list[str]]:
    """Return the titles and, below them, the text of each row, without line breaks."""
    texts = [[title for title, _ in columns], *([show(row) for _, show in columns] for row in rows)]
    return [[" ".join(text.split()) for text in line] for line in texts]


def markdown_table(rows: Sequence[Any], columns: Sequence[Column]) -> str:
    """Return a Markdown table that is aligned as plain text too.

    The first column is set to the left, the others, of numbers, to the right.

    >>> columns = [("name", lambda row: row[0]), ("n", lambda row: str(row[1]))]
    >>> print(markdown_table([("a", 10), ("b", 2)], columns))
    | name |  n |
    | :--- | -: |
    | a    | 10 |
    | b    |  2 |
    """
    cells = [
        [_ENDS_CELL.sub(r"\\\g<0>", text) for text in line] for line in table_cells(rows, columns)
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = [":" + "-" * (w - 1) if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    lines = [
        [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in cells
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]])


def latex_table(rows: Sequence[Any], columns: Sequence[Column]) -> str:
    """Return a LaTeX ``tabular`` that needs no package.

    The first column is of text, which is escaped, the others of numbers, of which those such as
    ``1.5e-06`` are written with powers of ten.
    """
    titles, *lines = table_cells(rows, columns)
    cells = [[escape_latex(title) for title in titles]]
    cells += [[escape_latex(first), *map(_number, others)] for first, *others in lines]
    body = [f"{' & '.join(line)} \\\\" for line in cells]
    layout = "l" + "r" * (len(columns) - 1)
    return "\n".join(
        [rf"\begin{{tabular}}{{{layout}}}", r"\hline", body[0], r"\hline", *body[1:]]
        + [r"\hline", r"\end{tabular}"]
    )


def escape_latex(text: str) -> str:
    """Return text as LaTeX prints it, without a package."""
    return _SPECIAL.sub(lambda found: _LATEX[found[0]], text)


def _number(cell: str) -> str:
    number = _SCIENTIFIC.fullmatch(cell)
    if number:
        mantissa, exponent = number[1], int(number[2])
        if -3 <= exponent <= 0:
            decimals = len(mantissa.partition(".")[2]) - exponent
            return f"${float(cell):.{decimals}f}$"
        return rf"${mantissa} \times 10^{{{exponent}}}$"
    if _NEGATIVE.fullmatch(cell):
        return f"${cell.replace(',', '{,}')}$"
    return "--" if cell == "-" else escape_latex(cell)


def csv_table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return comma-separated values, quoted where they have to be (RFC 4180).

    Rows hold text, numbers, of which floats get 8 significant digits, and None for an empty cell.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    for row in rows:
        writer.writerow([f"{x:.8g}" if isinstance(x, float) else x for x in row])
    return text.getvalue()
