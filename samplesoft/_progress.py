"""Progress on stderr: a bar where that is a terminal, else a line for each round."""

from __future__ import annotations

import sys
from typing import Any


def progress_bar(wanted: bool, **options: Any) -> Any:
    """Return a tqdm bar, which disappears when it is closed; `options` are those of ``tqdm``."""
    from tqdm import tqdm

    possible = wanted and sys.stderr is not None  # None if it was closed at the start
    return tqdm(leave=False, disable=None if possible else True, **options)


def progress_line(wanted: bool, line: str) -> None:
    """Write a line to stderr at once, where that is no terminal and so has no bar."""
    if wanted and sys.stderr is not None and not sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
