"""Files that a reader never meets half written, JSON that anybody wrote, and names of arrays."""

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

# Seconds between tries, 1.5 in all. Scanners and indexers of Windows, and readers, hold a file for
# some milliseconds.
_PAUSES = (0.01, 0.02, 0.05, *[0.1] * 14)
_BUSY = {errno.EBUSY, errno.ETXTBSY}  # of network file systems
_BUSY_ON_WINDOWS = {5, 32, 33, 1224}  # denied, shared, locked, mapped into memory
_LONGEST_NAME = 180  # bytes; file systems take 255, and a draft has some more than its target
_DAY_SECONDS = 86_400.0  # seconds
_worked_on: set[str] = set()  # names of drafts of this process


class FileInUse(PermissionError):
    """A file cannot be replaced now, and the draft of what was to be in it is kept.

    Parameters
    ----------
    path : Path
        The file, which is as it was.
    draft : Path
        What was to be in it, whole and on the disk.
    reason : str
        What the system says.
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
    """Give a new name beside `path`, and move that file to `path` once the body has written it.

    The content is on the disk before the name changes, so that `path` holds the old file or the
    new one after a crash of the machine too. Several threads and processes may do so at once: the
    last one wins. Drafts of processes that were killed are removed, and this one if the body
    fails. A `path` that another program holds is tried for a second or so; then `FileInUse`
    is raised, and says where the draft is.
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
    """Move a draft to `path`, in whose folder it is, or raise `FileInUse` and keep it."""
    try:
        # atomic on one file system, where the draft stands beside its target
        retry_while_in_use(lambda: os.replace(draft, path))
    except OSError as error:
        if not is_in_use(error):
            discard_draft(draft)
            raise
        _worked_on.discard(draft.name)
        raise FileInUse(Path(path), draft, error.strerror or str(error)) from error
    except BaseException:
        discard_draft(draft)
        raise
    _worked_on.discard(draft.name)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        # some file systems refuse, and the file has its name already
        with suppress(OSError):
            _flush(Path(path).parent)


def retry_while_in_use(action: Callable[[], _T]) -> _T:
    """Return what `action` returns, called again for a second or so while its file is in use."""
    for pause in _PAUSES:
        try:
            return action()
        except OSError as error:
            if not is_in_use(error):
                raise
        time.sleep(pause)
    return action()


def is_in_use(error: OSError) -> bool:
    """Tell whether an error of the system may be gone in a moment, as another program holds a file.

    Windows does not tell such a file from one that is forbidden.
    """
    return (
        isinstance(error, PermissionError)
        or error.errno in _BUSY
        or getattr(error, "winerror", None) in _BUSY_ON_WINDOWS
    )


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all, with the same bytes on all systems.

    What UTF-8 has no code for, such as the bytes of a file name that could not be decoded, is
    written as an escape of Python.
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
    """Return a name that no other thread or process has, and remove drafts that nobody needs."""
    stem = path.stem
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        stem = sha256(os.fsencode(path.name)).hexdigest()[:32]
    suffix = path.suffix if len(os.fsencode(path.suffix)) <= _LONGEST_NAME else ""
    before = f".{stem}."
    after = f".draft{suffix}"
    for left in path.parent.glob(f"{glob.escape(before)}*{glob.escape(after)}"):
        writer = left.name.removeprefix(before).removesuffix(after)
        if left.name not in _worked_on and is_abandoned(left, writer):
            with suppress(OSError):  # a scanner may hold it; the next draft removes it
                left.unlink()
    name = f"{before}{writer_name()}{after}"
    _worked_on.add(name)
    return path.with_name(name)


def discard_draft(draft: Path) -> None:
    """Remove a draft that is not needed any more."""
    _worked_on.discard(draft.name)
    with suppress(OSError):  # the error that brought us here counts
        retry_while_in_use(lambda: draft.unlink(missing_ok=True))


def writer_name() -> str:
    """Return a name that no other writer has, for what `is_abandoned` is asked about."""
    # random beside the number of the process, which is 1 in many a container
    return f"{os.getpid()}-{_host()}-{os.urandom(4).hex()}"


def is_abandoned(draft: Path, writer: str) -> bool:
    """Tell whether the `writer` of a draft is gone, or is this process; a `writer_name`."""
    process, _, host = writer.partition("-")
    if not (process.isascii() and process.isdecimal()):
        return False
    if host and host.partition("-")[0] != _host():  # one cannot ask for processes elsewhere
        try:
            return time.time() - draft.stat().st_mtime > _DAY_SECONDS
        except OSError:
            return False
    # this process knows its own drafts; others had its number before
    return int(process) == os.getpid() or not _is_running(int(process))


def _host() -> str:
    """Return a short name of the machine, or of the container."""
    return f"{crc32(os.fsencode(socket.gethostname())):08x}"


if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _SYNCHRONIZE = 0x00100000
    _TIMEOUT = 0x102
    _NO_SUCH_PROCESS = 87

    def _is_running(process: int) -> bool:
        """Tell whether this may be the number of a process that lives."""
        if process >= 1 << 32:
            return False
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        # a handle has 64 bits, where ctypes takes an int unless it is told
        kernel.OpenProcess.argtypes = wintypes.DWORD, wintypes.BOOL, wintypes.DWORD
        kernel.OpenProcess.restype = wintypes.HANDLE
        kernel.WaitForSingleObject.argtypes = wintypes.HANDLE, wintypes.DWORD
        kernel.WaitForSingleObject.restype = wintypes.DWORD
        kernel.CloseHandle.argtypes = (wintypes.HANDLE,)
        handle = kernel.OpenProcess(_SYNCHRONIZE, False, process)
        if not handle:  # where access is denied, there is a process
            return bool(ctypes.get_last_error() != _NO_SUCH_PROCESS)
        try:
            # one that has ended is there as long as somebody has a handle
            return bool(kernel.WaitForSingleObject(handle, 0) == _TIMEOUT)
        finally:
            kernel.CloseHandle(handle)

else:

    def _is_running(process: int) -> bool:
        """Tell whether this may be the number of a process that lives."""
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            return True
        return process > 0  # 0 is a group


# JSON and names --------------------------------------------------------------------------------


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


def unprefixed(name: str, arrays: Mapping[str, _T], separator: str = ".") -> dict[str, _T]:
    """Return one of the mappings that `prefixed` has joined, empty if it was.

    >>> unprefixed("lstm", {"lstm.w": 1, "softmax.w": 2})
    {'w': 1}
    """
    prefix = f"{name}{separator}"
    return {
        key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)
    }
