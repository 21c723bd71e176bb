"""Conversion of report values for JSON and CSV, and their descriptions from docstrings."""

from __future__ import annotations

import csv
import inspect
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def plain(value: Any) -> Any:
    """Return `value` with NumPy types as Python types, and None for NaN and infinities."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def described(kind: Callable[..., Any]) -> dict[str, str]:
    """Return the description of each argument or attribute in a docstring, without full stop."""
    # empty if docstrings are stripped (python -OO)
    text = inspect.getdoc(kind) or ""
    blocks = re.findall(r"^(\w[\w, ]*) : [^\n]*\n((?:    [^\n]*\n?)+)", text, re.MULTILINE)
    return {
        name: " ".join(lines.split()).rstrip(".").replace("`", "")
        for names, lines in blocks
        for name in names.split(", ")
    }


def csv_table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return comma-separated values, quoted where necessary (RFC 4180).

    Cells are text, numbers, or None for an empty cell. Floats get 8 significant digits.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows([f"{x:.8g}" if isinstance(x, float) else x for x in row] for row in rows)
    return text.getvalue()
