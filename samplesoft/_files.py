"""Atomic writing of files, strict JSON, and prefixes of array names."""

from __future__ import annotations

import errno
import glob
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

_T = TypeVar("_T")

# Seconds between tries, 1.5 in total. Virus scanners and indexers on Windows, and readers, hold a
# file for some milliseconds.
_PAUSES = (0.01, 0.02, 0.05, *[0.1] * 14)
_BUSY = {errno.EBUSY, errno.ETXTBSY}  # reported by network file systems
_BUSY_ON_WINDOWS = {5, 32, 33, 1224}  # access denied, sharing violation, locked, memory-mapped
_LONGEST_NAME = 180  # bytes; file systems allow 255, and a draft's name is longer than its target's
_DAY_SECONDS = 86_400.0  # seconds
_drafts_in_progress: set[str] = set()  # names of drafts that this process is writing


class FileInUse(PermissionError):
    """A file cannot be replaced at the moment; the draft of its new content is kept.

    Parameters
    ----------
    path : Path
        The file, unchanged.
    draft : Path
        The complete new content, flushed to disk.
    reason : str
        Message of the operating system.
    """

    def __init__(self, path: Path, draft: Path, reason: str) -> None:
        super().__init__(
            f"{str(path)!r} cannot be replaced: {reason}; another program may hold it. What was to "
            f"be written is in {str(draft)!r}: rename it once that program has ended, before "
            "anything else is saved there."
        )
        self.path = path
        self.draft = draft
        self.reason = reason


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Give the path of a draft next to `path`; move it to `path` once the body has written it.

    The content is flushed to disk before the move. So `path` holds either the old file or the new
    one, even after a crash of the machine. Several threads and processes may write at once; the
    last one wins. The draft is removed if the body fails; drafts of killed processes are removed as
    well. If another program holds `path`, the move is retried for about a second; then `FileInUse`
    is raised, which names the draft.
    """
    with draft_path(path) as draft:
        yield draft
    move_into_place(draft, path)


@contextmanager
def draft_path(path: str | Path) -> Iterator[Path]:
    """Give the path of a draft for `path`; flush it to disk once the body has written it.

    This is the first half of `atomic_write`; `move_into_place` is the second half. A draft that
    `move_into_place` could not move is removed by the next draft for the same `path`.
    """
    draft = _new_draft(Path(path))
    try:
        yield draft
        retry_while_in_use(lambda: _flush(draft))
    except BaseException:
        discard_draft(draft)
        raise


def move_into_place(draft: Path, path: str | Path) -> None:
    """Move a draft to `path` in the same folder; if `path` is in use, raise `FileInUse`."""
    try:
        # atomic, because both are in the same folder
        retry_while_in_use(lambda: os.replace(draft, path))
    except OSError as error:
        if not is_in_use(error):
            discard_draft(draft)
            raise
        _drafts_in_progress.discard(draft.name)
        raise FileInUse(Path(path), draft, error.strerror or str(error)) from error
    except BaseException:
        discard_draft(draft)
        raise
    _drafts_in_progress.discard(draft.name)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        # some file systems refuse; the file is already in place
        with suppress(OSError):
            _flush(Path(path).parent)


def retry_while_in_use(action: Callable[[], _T]) -> _T:
    """Return ``action()``; while its file is in use, retry for about 1.5 seconds."""
    for pause in _PAUSES:
        try:
            return action()
        except OSError as error:
            if not is_in_use(error):
                raise
        time.sleep(pause)
    return action()


def is_in_use(error: OSError) -> bool:
    """Return whether an error may be temporary, because another program holds the file.

    On Windows that is a PermissionError, as for missing permission, so that all of these count.
    """
    return (
        isinstance(error, PermissionError)
        or error.errno in _BUSY
        or getattr(error, "winerror", None) in _BUSY_ON_WINDOWS
    )


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to `path` atomically, with the same bytes on all systems.

    Characters that UTF-8 cannot encode, such as undecodable bytes of a file name, are written as
    Python escapes.
    """
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# drafts ------------------------------------------------------------------------------------------


def _new_draft(path: Path) -> Path:
    """Return a unique path for a draft of `path`, and remove abandoned drafts of `path`."""
    stem = path.stem
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        stem = sha256(os.fsencode(path.name)).hexdigest()[:32]
    suffix = path.suffix if len(os.fsencode(path.suffix)) <= _LONGEST_NAME else ""
    prefix = f".{stem}."
    suffix_pattern = f".draft{suffix}"
    for old_draft in path.parent.glob(f"{glob.escape(prefix)}*{glob.escape(suffix_pattern)}"):
        writer = old_draft.name.removeprefix(prefix).removesuffix(suffix_pattern)
        if old_draft.name not in _drafts_in_progress and is_abandoned(old_draft, writer):
            with suppress(OSError):  # if a scanner holds it, the next draft removes it
                old_draft.unlink()
    name = f"{prefix}{writer_name()}{suffix_pattern}"
    _drafts_in_progress.add(name)
    return path.with_name(name)


def discard_draft(draft: Path) -> None:
    """Remove a draft that is no longer needed."""
    _drafts_in_progress.discard(draft.name)
    with suppress(OSError):  # do not hide the error that is being handled
        retry_while_in_use(lambda: draft.unlink(missing_ok=True))


def writer_name() -> str:
    """Return a unique name of a writer: process id, host and random digits; see `is_abandoned`."""
    # the process id alone is not unique: it is 1 in many containers
    return f"{os.getpid()}-{_host_hash()}-{os.urandom(4).hex()}"


def is_abandoned(draft: Path, writer: str) -> bool:
    """Return whether the writer of a draft (a `writer_name`) has ended, or is this process."""
    process, _, host = writer.partition("-")
    if not (process.isascii() and process.isdecimal()):
        return False
    # processes of other machines cannot be queried
    if host and host.partition("-")[0] != _host_hash():
        try:
            return time.time() - draft.stat().st_mtime > _DAY_SECONDS
        except OSError:
            return False
    # callers skip the drafts of this process; an equal id is that of an earlier process
    return int(process) == os.getpid() or not _is_running(int(process))


def _host_hash() -> str:
    """Return a short hash of the name of the machine or container."""
    return f"{crc32(os.fsencode(socket.gethostname())):08x}"


if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _SYNCHRONIZE = 0x00100000
    _TIMEOUT = 0x102
    _NO_SUCH_PROCESS = 87

    def _is_running(process: int) -> bool:
        """Return whether a process with this id may be running."""
        if process >= 1 << 32:
            return False
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        # a handle has 64 bits; without these declarations ctypes assumes an int
        kernel.OpenProcess.argtypes = wintypes.DWORD, wintypes.BOOL, wintypes.DWORD
        kernel.OpenProcess.restype = wintypes.HANDLE
        kernel.WaitForSingleObject.argtypes = wintypes.HANDLE, wintypes.DWORD
        kernel.WaitForSingleObject.restype = wintypes.DWORD
        kernel.CloseHandle.argtypes = (wintypes.HANDLE,)
        handle = kernel.OpenProcess(_SYNCHRONIZE, False, process)
        if not handle:  # access denied means that there is a process
            return bool(ctypes.get_last_error() != _NO_SUCH_PROCESS)
        try:
            # a process that has ended stays visible while someone has a handle
            return bool(kernel.WaitForSingleObject(handle, 0) == _TIMEOUT)
        finally:
            kernel.CloseHandle(handle)

else:

    def _is_running(process: int) -> bool:
        """Return whether a process with this id may be running."""
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            return True
        return process > 0  # id 0 means a process group


# JSON and names --------------------------------------------------------------------------------


def read_json(text: str | bytes) -> Any:
    """Parse strict JSON; raise ValueError for malformed or too deeply nested text.

    >>> read_json('{"a": [1, null]}')
    {'a': [1, None]}
    >>> read_json("[NaN]")
    Traceback (most recent call last):
        ...
    ValueError: NaN is no number of JSON
    """
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("its lists and objects are too deep in one another") from None


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def prefixed(parts: Mapping[str, Mapping[str, _T]], separator: str = ".") -> dict[str, _T]:
    """Join mappings into one dict whose keys are prefixed with the name of their mapping.

    >>> prefixed({"lstm": {"w": 1}, "softmax": {"w": 2}})
    {'lstm.w': 1, 'softmax.w': 2}
    """
    return {
        f"{part}{separator}{name}": value
        for part, values in parts.items()
        for name, value in values.items()
    }


def unprefixed(name: str, arrays: Mapping[str, _T], separator: str = ".") -> dict[str, _T]:
    """Return one of the mappings joined by `prefixed`, with its original keys.

    >>> unprefixed("lstm", {"lstm.w": 1, "softmax.w": 2})
    {'w': 1}
    """
    prefix = f"{name}{separator}"
    return {
        key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)
    }
