"""What a command reads and what it writes, by the types of its options, and one check of both.

An option of a file says by its type what becomes of it: `InputFile`, `OutputFile`, or a subclass of
`OutputFolder`. `check_files` looks at all of them before a command begins its work.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations, product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from samplesoft._files import discard_draft, draft_path, write_text


class _Path(str):
    """The text of an option that names a file or a folder."""

    _what: ClassVar[str]

    def __new__(cls, text: str) -> Self:
        """Take a text that is not empty, as an unset variable of a shell is."""
        if not text:
            raise argparse.ArgumentTypeError(f"expected {cls._what}, got {text!r}")
        return super().__new__(cls, text)


class InputFile(_Path):
    """A file that a command reads."""

    _what = "the name of a file"


class OutputFile(_Path):
    """A file that a command writes."""

    _what = "the name of a file"


class OutputFolder(_Path):
    """A folder that a command makes, unless it is there, and in which it writes some `files`."""

    _what = "the name of a folder"
    files: ClassVar[tuple[str, ...]] = ()


def check_files(options: argparse.Namespace) -> None:
    """Raise ValueError unless all that is to be written can be, and is nothing that is read.

    Two names are the same file whatever leads to it: links, other folders on the way, or other
    letters where the file system does not tell them apart. The sources of all modules that are
    loaded are read too.
    """
    inputs: list[tuple[str, InputFile]] = [*_named(options, InputFile)]
    files: list[tuple[str, OutputFile]] = [*_named(options, OutputFile)]
    folders: list[tuple[str, OutputFolder]] = [*_named(options, OutputFolder)]
    in_folders = [
        (option, path)
        for option, folder in folders
        for path in (folder, *(os.path.join(folder, name) for name in folder.files))
    ]
    written: list[tuple[str, str]] = [*files, *in_folders]
    for option, path in written:
        for reader, source in inputs:
            if _is_same(path, source):
                what = "" if path == source else f", which is the same file as {path!r}"
                raise ValueError(
                    f"{option} would overwrite what {reader} reads, {source!r}{what}; choose "
                    f"another name for {option}."
                )
    for (option, first), (other, second) in combinations(files, 2):
        if _is_same(first, second) or _is_inside(first, second) or _is_inside(second, first):
            both = f"{first!r} for both" if first == second else f"{first!r} and {second!r}"
            raise ValueError(f"{option} and {other} must name two files, got {both}; rename one.")
    for (option, first), (other, inside) in product(files, in_folders):
        if _is_same(first, inside) or _is_inside(inside, first):
            raise ValueError(
                f"{option} must name a file of its own, got {first!r}, which is {other} or one of "
                "the files of the run; rename it, for example results.json."
            )
    for option, folder in folders:
        check_folder(option, folder)
    for option, file in files:
        _check_file(option, file, folders)
    _check_sources(files)


def check_folder(option: str, folder: str | Path) -> None:
    """Raise ValueError unless `folder` is writable, or can be created."""
    existing = Path(folder)
    # its first folder that is there decides, for the others can be made in it
    while not os.path.exists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not _can_write(existing / "draft"):
        what = "is not writable" if existing.is_dir() else "is a file"
        raise ValueError(
            f"{option} must name a folder that is writable or can be created, got "
            f"{str(folder)!r}, and {str(existing)!r} {what}; choose another."
        )


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as JSON."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def _named(options: argparse.Namespace, kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options of a kind that are given, as they are written, with their values."""
    for name, value in vars(options).items():
        if isinstance(value, kind):
            yield flag(name), value


def flag(name: str) -> str:
    """Return the option whose value argparse stores under `name`, such as ``--num-sampled``."""
    return f"--{name.replace('_', '-')}"


def _check_file(option: str, path: str, folders: list[tuple[str, OutputFolder]]) -> None:
    """Raise ValueError unless a file can be written to `path`, perhaps in a folder to be made."""
    problem = None
    if os.path.isdir(path):
        problem = "it is a folder"
    elif os.path.exists(path) and not os.path.isfile(path):
        problem = "it is a device, which would be replaced by a file"
    elif os.path.exists(path) and not os.access(path, os.W_OK):
        problem = "the file there may not be changed"
    elif not _can_write(Path(path)):
        within = os.path.dirname(os.path.abspath(path))
        # one that the command makes
        if os.path.exists(within) or not any(_is_same(within, made) for _, made in folders):
            problem = "no file can be made there"
    if problem:
        raise ValueError(
            f"{option} must name a file in a writable folder, got {path!r}, and {problem}; create "
            "the folder first, or choose another."
        )


def _can_write(path: Path) -> bool:
    """Tell whether a file can be made beside `path`, and `path` is a name that a file can have."""
    try:
        with suppress(FileNotFoundError):
            path.lstat()
        # tried, as systems do not say beforehand: Windows calls every folder writable
        with draft_path(path) as draft:
            draft.touch()
        discard_draft(draft)
    except OSError:
        return False
    return True


def _check_sources(files: list[tuple[str, OutputFile]]) -> None:
    """Raise ValueError if a file that is written is the source of a module that is loaded."""
    there = {_identity(path): (option, path) for option, path in files if os.path.exists(path)}
    if not there:
        return
    for name, module in [*sys.modules.items()]:
        source = getattr(module, "__file__", None)
        if not isinstance(source, str) or not os.path.exists(source):
            continue
        option, path = there.get(_identity(source), ("", ""))
        if option:
            raise ValueError(
                f"{option} would overwrite the source of the module {name!r}, got {path!r}; choose "
                "another name."
            )


# names of one file -------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Where a path leads: the last folder or file that exists, and the rest of the way."""

    existing: str
    identity: tuple[int, int]
    rest: tuple[str, ...]


def _place(path: str) -> _Place:
    existing = Path(os.path.realpath(path))
    rest = list[str]()
    while not os.path.exists(existing) and existing != existing.parent:
        rest.insert(0, existing.name)
        existing = existing.parent
    return _Place(str(existing), _identity(existing), tuple(rest))


def _identity(path: str | Path) -> tuple[int, int]:
    """Return the numbers by which the system knows a file, as `os.path.samefile` does."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _is_same(one: str, other: str) -> bool:
    """Tell whether two paths lead to one file, which need not exist."""
    first = _place(one)
    second = _place(other)
    return first.identity == second.identity and _begins(first, second, len(second.rest))


def _is_inside(path: str, file: str) -> bool:
    """Tell whether `path` lies in what is to be a file."""
    outer = _place(file)
    inner = _place(path)
    if outer.identity != inner.identity or not outer.rest:
        return False
    return _begins(outer, inner, len(outer.rest))


def _begins(first: _Place, second: _Place, length: int) -> bool:
    """Tell whether the whole rest of the first is that of the second up to a length."""
    names = first.rest
    others = second.rest[:length]
    if names == others or len(names) != len(others):
        return names == others
    if [*map(_folded, names)] != [*map(_folded, others)]:
        return False
    return _ignores_case(first.existing)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _ignores_case(folder: str) -> bool:
    """Tell whether "a" and "A" are one file in a folder, as on Windows and macOS."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".a", dir=folder) as probe:
            name = Path(probe.name)
            return name.with_name(name.name.swapcase()).exists()
    except OSError:  # nothing can be written there anyway
        return False
