"""Values of a report as JSON and CSV have them, and what docstrings say of each."""

from __future__ import annotations

import csv
import inspect
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any


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
