"""Input and output files of commands: types of their options, and a check of all paths.

The value of an option for a file is an `InputFile`, an `OutputFile`, or a subclass of
`OutputFolder`. `check_files` checks all these values before a command begins its work.
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
    """The value of an option that names a file or a folder."""

    _description: ClassVar[str]

    def __new__(cls, text: str) -> Self:
        """Return the path; raise if the text is empty, for example from an unset shell variable."""
        if not text:
            raise argparse.ArgumentTypeError(f"expected {cls._description}, got {text!r}")
        return super().__new__(cls, text)


class InputFile(_Path):
    """A file that a command reads."""

    _description = "the name of a file"


class OutputFile(_Path):
    """A file that a command writes."""

    _description = "the name of a file"


class OutputFolder(_Path):
    """A folder that a command creates if necessary, and in which it writes `files`."""

    _description = "the name of a folder"
    files: ClassVar[tuple[str, ...]] = ()


def check_files(options: argparse.Namespace) -> None:
    """Raise ValueError unless all outputs are writable, and distinct from inputs and each other.

    Two paths are the same file even if one is a link to the other, if they are spelled differently,
    or if they differ in case and the file system ignores case. The source files of all loaded
    modules count as inputs.
    """
    inputs: list[tuple[str, InputFile]] = [*_options_of_type(options, InputFile)]
    files: list[tuple[str, OutputFile]] = [*_options_of_type(options, OutputFile)]
    folders: list[tuple[str, OutputFolder]] = [*_options_of_type(options, OutputFolder)]
    folder_paths = [
        (option, path)
        for option, folder in folders
        for path in (folder, *(os.path.join(folder, name) for name in folder.files))
    ]
    output_paths: list[tuple[str, str]] = [*files, *folder_paths]

    for option, path in output_paths:
        for reader, source in inputs:
            if _is_same(path, source):
                note = "" if path == source else f", which is the same file as {path!r}"
                raise ValueError(
                    f"{option} would overwrite what {reader} reads, {source!r}{note}; choose "
                    f"another name for {option}."
                )

    for (option, path), (other_option, other_path) in combinations(files, 2):
        is_inside = _is_inside(path, other_path) or _is_inside(other_path, path)
        if _is_same(path, other_path) or is_inside:
            names = f"{path!r} and {other_path!r}"
            if path == other_path:
                names = f"{path!r} for both"
            raise ValueError(
                f"{option} and {other_option} must name two files, got {names}; rename one."
            )

    for (option, path), (folder_option, folder_path) in product(files, folder_paths):
        if _is_same(path, folder_path) or _is_inside(folder_path, path):
            raise ValueError(
                f"{option} must name a file of its own, got {path!r}, which is {folder_option} or "
                "one of the files of the run; rename it, for example results.json."
            )

    for option, folder in folders:
        check_folder(option, folder)

    for option, file in files:
        _check_file(option, file, folders)

    _check_sources(files)


def check_folder(option: str, folder: str | Path) -> None:
    """Raise ValueError unless `folder` is writable, or can be created."""
    # if the folder does not exist, its nearest existing parent must be writable
    existing = Path(folder)
    while not os.path.exists(existing) and existing != existing.parent:
        existing = existing.parent

    if not existing.is_dir() or not _can_write(existing / "draft"):
        reason = "is not writable" if existing.is_dir() else "is a file"
        raise ValueError(
            f"{option} must name a folder that is writable or can be created, got "
            f"{str(folder)!r}, and {str(existing)!r} {reason}; choose another."
        )


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as JSON to the file `path`."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def _options_of_type(options: argparse.Namespace, kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the flag and the value of each option whose value has the type `kind`."""
    for name, value in vars(options).items():
        if isinstance(value, kind):
            yield flag(name), value


def flag(name: str) -> str:
    """Return the flag, such as ``--num-sampled``, of an attribute such as ``num_sampled``."""
    return f"--{name.replace('_', '-')}"


def _check_file(option: str, path: str, folders: list[tuple[str, OutputFolder]]) -> None:
    """Raise ValueError unless a file can be written to `path`.

    The file's folder may be missing if it is one of `folders`, which the command creates.
    """
    problem = None
    if os.path.isdir(path):
        problem = "it is a folder"
    elif os.path.exists(path) and not os.path.isfile(path):
        problem = "it is a device, which would be replaced by a file"
    elif os.path.exists(path) and not os.access(path, os.W_OK):
        problem = "the file there may not be changed"
    elif not _can_write(Path(path)):
        parent = os.path.dirname(os.path.abspath(path))
        # no problem if the folder is missing, and the command creates it
        if os.path.exists(parent) or not any(_is_same(parent, folder) for _, folder in folders):
            problem = "no file can be created there"

    if problem:
        raise ValueError(
            f"{option} must name a file in a writable folder, got {path!r}, and {problem}; create "
            "the folder first, or choose another."
        )


def _can_write(path: Path) -> bool:
    """Return whether a file could be created at `path`."""
    try:
        with suppress(FileNotFoundError):
            path.lstat()
        # try to create a file, because Windows reports every folder as writable
        with draft_path(path) as draft:
            draft.touch()
        discard_draft(draft)
    except OSError:
        return False
    return True


def _check_sources(files: list[tuple[str, OutputFile]]) -> None:
    """Raise ValueError if an output file is the source of a loaded module."""
    outputs = {
        _device_and_inode(path): (option, path) for option, path in files if os.path.exists(path)
    }
    if not outputs:
        return

    for name, module in [*sys.modules.items()]:
        source = getattr(module, "__file__", None)
        if not isinstance(source, str) or not os.path.exists(source):
            continue
        option, path = outputs.get(_device_and_inode(source), ("", ""))
        if option:
            raise ValueError(
                f"{option} would overwrite the source of the module {name!r}, got {path!r}; choose "
                "another name."
            )


# whether two paths name the same file ------------------------------------------------------------


class _ResolvedPath(NamedTuple):
    """A path without links, split after the last folder or file on it that exists."""

    existing: str  # path of that folder or file
    identity: tuple[int, int]  # device and inode of `existing`
    missing_names: tuple[str, ...]  # names after `existing`, which do not exist


def _resolve_path(path: str) -> _ResolvedPath:
    existing = Path(os.path.realpath(path))
    missing_names = list[str]()
    while not os.path.exists(existing) and existing != existing.parent:
        missing_names.insert(0, existing.name)
        existing = existing.parent
    return _ResolvedPath(str(existing), _device_and_inode(existing), tuple(missing_names))


def _device_and_inode(path: str | Path) -> tuple[int, int]:
    """Return the device and the inode of a file, which identify it, as in `os.path.samefile`."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _is_same(path: str, other: str) -> bool:
    """Return whether two paths name the same file, even if it does not exist yet."""
    resolved = _resolve_path(path)
    other_resolved = _resolve_path(other)
    return resolved.identity == other_resolved.identity and _missing_names_match(
        resolved, other_resolved, len(other_resolved.missing_names)
    )


def _is_inside(path: str, file: str) -> bool:
    """Return whether `path` needs a folder where the output `file` will be, as a.json/b.json does.

    `file` does not exist yet.
    """
    resolved_file = _resolve_path(file)
    resolved_path = _resolve_path(path)
    if resolved_file.identity != resolved_path.identity or not resolved_file.missing_names:
        return False
    return _missing_names_match(resolved_file, resolved_path, len(resolved_file.missing_names))


def _missing_names_match(first: _ResolvedPath, second: _ResolvedPath, length: int) -> bool:
    """Return whether the missing names of `first` equal the first `length` of those of `second`.

    If the file system ignores case, the names may differ in case.
    """
    names = first.missing_names
    others = second.missing_names[:length]

    if names == others or len(names) != len(others):
        return names == others
    if [*map(_normalised_name, names)] != [*map(_normalised_name, others)]:
        return False
    return _ignores_case(first.existing)


def _normalised_name(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _ignores_case(folder: str) -> bool:
    """Return whether "a" and "A" are the same file in a folder, as on Windows and macOS."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".a", dir=folder) as probe:
            name = Path(probe.name)
            return name.with_name(name.name.swapcase()).exists()
    except OSError:  # the folder is not writable, which other checks report
        return False
