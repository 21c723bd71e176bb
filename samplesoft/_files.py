"""Files that a reader never meets half written, JSON that anybody wrote, and names of arrays."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")


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
        # drafts of writers that live are theirs
        if not _is_running(left.name.removeprefix(before).removesuffix(after)):
            left.unlink(missing_ok=True)
    draft = path.with_name(f"{before}{os.getpid()}{after}")
    try:
        yield draft
        _flush(draft)
        # atomic on one file system, where the draft stands beside its target
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


def read_json(text: str | bytes) -> Any:
    """Return what strict JSON holds; raise ValueError for other text, and for what is deep.

    >>> read_json('{"a": [1, null]}')
    {'a': [1, None]}
    >>> read_json("[NaN]")
    Traceback (most recent call last):
        ...
    ValueError: NaN is no number of JSON
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("its lists and objects are too deep in one another") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def prefixed(parts: Mapping[str, Mapping[str, _T]], separator: str = ".") -> dict[str, _T]:
    """Join mappings into one, with the name of each before its keys.

    >>> prefixed({"lstm": {"w": 1}, "softmax": {"w": 2}})
    {'lstm.w': 1, 'softmax.w': 2}
    """
    return {
        f"{part}{separator}{name}": value
        for part, values in parts.items()
        for name, value in values.items()
    }


def part(name: str, arrays: Mapping[str, _T], separator: str = ".") -> dict[str, _T]:
    """Return one of the mappings that `prefixed` has joined, empty if it was.

    >>> part("lstm", {"lstm.w": 1, "softmax.w": 2})
    {'w': 1}
    """
    prefix = f"{name}{separator}"
    return {
        key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)
    }
