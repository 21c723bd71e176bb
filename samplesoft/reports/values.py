"""Conversion of a report's values for JSON and CSV, and descriptions of values from docstrings."""

from __future__ import annotations

import csv
import inspect
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def json_value(value: Any) -> Any:
    """Return `value` with NumPy types replaced by Python types, and NaN and infinities by None.

    Dicts, lists and tuples are converted recursively.
    """
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if hasattr(value, "tolist"):
        return json_value(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def field_descriptions(kind: Callable[..., Any]) -> dict[str, str]:
    """Return the description of each parameter or attribute in the docstring of `kind`, by name.

    Descriptions are on one line, without backticks and without a final full stop.
    """
    # without docstrings (python -OO) the result is empty
    text = inspect.getdoc(kind) or ""
    blocks = re.findall(r"^(\w[\w, ]*) : [^\n]*\n((?:    [^\n]*\n?)+)", text, re.MULTILINE)
    return {
        name: " ".join(lines.split()).rstrip(".").replace("`", "")
        for names, lines in blocks
        for name in names.split(", ")
    }


def csv_table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as comma-separated values, quoted where necessary (RFC 4180).

    Cells are text, numbers, or None for an empty cell. Floats are written with 8 significant
    digits.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows([f"{x:.8g}" if isinstance(x, float) else x for x in row] for row in rows)
    return text.getvalue()
