"""Files that a reader never meets half written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """Give a new name beside `path`, and move that file to `path` once the body has written it.

    Parameters
    ----------
    path : str or Path
        What to write or replace.

    Yields
    ------
    Path
        Where to write; removed if the body fails.

    Raises
    ------
    OSError
        If the folder cannot be written to.
    """
    path = Path(path)
    draft = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all."""
    with replaced(path) as draft:
        draft.write_text(text, encoding="utf-8")
