"""Files that a reader never meets half written, whatever kills the writer."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """Give a new name beside `path`, and move that file to `path` once the body has written it.

    The content is on the disk before the name changes, so that `path` holds the old file or the
    new one after a crash of the machine too. Drafts of processes that were killed are removed, and
    this one if the body fails.
    """
    path = Path(path)
    before, after = f".{path.stem}.", f".draft{path.suffix}"
    for left in path.parent.glob(f"{glob.escape(before)}*{glob.escape(after)}"):
        if not _is_running(left.name.removeprefix(before).removesuffix(after)):
            left.unlink(missing_ok=True)
    draft = path.with_name(f"{before}{os.getpid()}{after}")
    try:
        yield draft
        _flush(draft)
        os.replace(draft, path)
        if os.name == "posix":  # elsewhere a folder cannot be opened
            _flush(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all."""
    with replaced(path) as draft:
        draft.write_text(text, encoding="utf-8")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_running(process: str) -> bool:
    """Tell whether this may be the number of a process that lives."""
    if not process.isdecimal() or os.name != "posix":  # elsewhere signal 0 is not a question
        return True
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
