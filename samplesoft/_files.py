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

# Pauses between attempts to replace a file, 1.5 seconds in total. On Windows a file that is open
# cannot be replaced; virus scanners, indexers and readers open files for a few milliseconds.
_RETRY_PAUSES_SECONDS = (0.01, 0.02, 0.05, *[0.1] * 14)
# errors of a file that is in use: from network file systems, and from Windows (access denied,
# sharing violation, locked, memory-mapped)
_BUSY_ERRNOS = {errno.EBUSY, errno.ETXTBSY}
_BUSY_WINDOWS_ERRORS = {5, 32, 33, 1224}
# A draft is a temporary file with the new content of its target; renaming it replaces the target.
# The name of a draft contains the target's name, or a checksum of a name longer than this, because
# file systems allow 255 bytes.
_MAX_TARGET_NAME_BYTES = 180
_DAY_SECONDS = 86_400.0
_drafts_in_progress: set[str] = set()  # names of drafts that this process is writing


class FileInUse(PermissionError):
    """Raised if a file cannot be replaced now; its new content is kept in another file.

    Parameters
    ----------
    path : Path
        The file, which is unchanged.
    draft : Path
        The file that holds the complete new content, flushed to disk.
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
    """Replace the file `path` atomically by a draft that the body of ``with`` writes.

    The value of the context is the path of the draft, a new file in the same folder. After the
    body, the draft is flushed to disk and renamed to `path`. So `path` holds either the old file or
    the new one, even after a crash of the machine. If several threads or processes write at once,
    the last one wins.

    If the body fails, the draft is removed. Drafts of killed processes are removed too. If another
    program holds `path`, renaming is retried for about 1.5 seconds; then `FileInUse` is raised,
    which names the draft.
    """
    with draft_path(path) as draft:
        yield draft
    move_into_place(draft, path)


@contextmanager
def draft_path(path: str | Path) -> Iterator[Path]:
    """Provide the path of a new draft for `path`; flush the draft to disk after the body.

    This is the first half of `atomic_write`, and `move_into_place` is the second half. If
    `move_into_place` cannot move a draft, the draft stays until the next draft for `path` is made.
    """
    draft = _new_draft_path(Path(path))
    try:
        yield draft
        retry_while_in_use(lambda: _sync_to_disk(draft))
    except BaseException:
        discard_draft(draft)
        raise


def move_into_place(draft: Path, path: str | Path) -> None:
    """Rename a draft to `path`, in the same folder; raise `FileInUse` if `path` stays in use."""
    try:
        # atomic, because the draft and `path` are in the same folder
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

    if os.name == "posix":  # on other systems a folder cannot be opened
        # some file systems cannot flush a folder; the file is already in place
        with suppress(OSError):
            _sync_to_disk(Path(path).parent)


def retry_while_in_use(action: Callable[[], _T]) -> _T:
    """Return ``action()``; if it fails because a file is in use, retry for about 1.5 seconds."""
    for pause in _RETRY_PAUSES_SECONDS:
        try:
            return action()
        except OSError as error:
            if not is_in_use(error):
                raise
        time.sleep(pause)
    return action()


def is_in_use(error: OSError) -> bool:
    """Return whether an error may be temporary, because another program holds the file.

    On Windows such an error is a PermissionError, and so is an error of missing permission.
    Therefore the result is True for every PermissionError.
    """
    return (
        isinstance(error, PermissionError)
        or error.errno in _BUSY_ERRNOS
        or getattr(error, "winerror", None) in _BUSY_WINDOWS_ERRORS
    )


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to `path` atomically, with the same bytes on all systems.

    Characters that UTF-8 cannot encode, such as undecodable bytes of a file name, are written as
    Python escapes.
    """
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def _sync_to_disk(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# drafts ------------------------------------------------------------------------------------------


def _new_draft_path(path: Path) -> Path:
    """Return a unique path for a draft of `path`, and remove abandoned drafts of `path`."""
    stem = path.stem
    if len(os.fsencode(path.name)) > _MAX_TARGET_NAME_BYTES:
        stem = sha256(os.fsencode(path.name)).hexdigest()[:32]
    suffix = path.suffix if len(os.fsencode(path.suffix)) <= _MAX_TARGET_NAME_BYTES else ""
    prefix = f".{stem}."
    suffix_pattern = f".draft{suffix}"

    for old_draft in path.parent.glob(f"{glob.escape(prefix)}*{glob.escape(suffix_pattern)}"):
        writer = old_draft.name.removeprefix(prefix).removesuffix(suffix_pattern)
        if old_draft.name not in _drafts_in_progress and is_abandoned(old_draft, writer):
            # if a virus scanner holds the draft now, the next call removes it
            with suppress(OSError):
                old_draft.unlink()

    name = f"{prefix}{writer_name()}{suffix_pattern}"
    _drafts_in_progress.add(name)
    return path.with_name(name)


def discard_draft(draft: Path) -> None:
    """Delete a draft that is no longer needed; ignore errors of the file system."""
    _drafts_in_progress.discard(draft.name)
    # suppress errors, because they would hide the error that the caller handles
    with suppress(OSError):
        retry_while_in_use(lambda: draft.unlink(missing_ok=True))


def writer_name() -> str:
    """Return a unique name for a file that this process writes, which names the process.

    It consists of the process id, a hash of the host's name, and random digits. `is_abandoned`
    reads the id and the hash.
    """
    # the process id alone is not unique, because it is 1 in many containers
    return f"{os.getpid()}-{_host_hash()}-{os.urandom(4).hex()}"


def is_abandoned(draft: Path, writer: str) -> bool:
    """Return whether the process that wrote `draft` has ended, or has the id of this process.

    `writer` is the result of `writer_name` in the process that wrote the draft. A draft of another
    machine counts as abandoned after a day.
    """
    process, _, host = writer.partition("-")
    if not (process.isascii() and process.isdecimal()):
        return False

    # the processes of another machine cannot be queried, so the age of the draft decides
    if host and host.partition("-")[0] != _host_hash():
        try:
            return time.time() - draft.stat().st_mtime > _DAY_SECONDS
        except OSError:
            return False

    # callers skip drafts of this process, so an equal id belongs to an earlier, ended process
    return int(process) == os.getpid() or not _may_be_running(int(process))


def _host_hash() -> str:
    """Return a short hash of the name of the machine or container."""
    return f"{crc32(os.fsencode(socket.gethostname())):08x}"


if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _SYNCHRONIZE = 0x00100000
    _TIMEOUT = 0x102
    _NO_SUCH_PROCESS = 87

    def _may_be_running(process: int) -> bool:
        """Return whether a process with the id `process` may be running on this machine."""
        if process >= 1 << 32:
            return False

        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        # without these declarations, ctypes would pass a handle of 64 bits as an int of 32 bits
        kernel.OpenProcess.argtypes = wintypes.DWORD, wintypes.BOOL, wintypes.DWORD
        kernel.OpenProcess.restype = wintypes.HANDLE
        kernel.WaitForSingleObject.argtypes = wintypes.HANDLE, wintypes.DWORD
        kernel.WaitForSingleObject.restype = wintypes.DWORD
        kernel.CloseHandle.argtypes = (wintypes.HANDLE,)

        handle = kernel.OpenProcess(_SYNCHRONIZE, False, process)
        if not handle:  # the process may still exist, if access to it is denied
            return bool(ctypes.get_last_error() != _NO_SUCH_PROCESS)
        try:
            # an ended process still exists while any program has a handle of it
            return bool(kernel.WaitForSingleObject(handle, 0) == _TIMEOUT)
        finally:
            kernel.CloseHandle(handle)

else:

    def _may_be_running(process: int) -> bool:
        """Return whether a process with the id `process` may be running on this machine."""
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            return True
        return process > 0  # `os.kill` takes id 0 as this process group, not as a process


# JSON and names --------------------------------------------------------------------------------


def read_json(text: str | bytes) -> Any:
    """Return the value of strict JSON; raise ValueError for malformed or too deeply nested text.

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


def with_prefixes(mappings: Mapping[str, Mapping[str, _T]], separator: str = ".") -> dict[str, _T]:
    """Return the items of several mappings in one dict, with the mapping's name before each key.

    >>> with_prefixes({"lstm": {"w": 1}, "softmax": {"w": 2}})
    {'lstm.w': 1, 'softmax.w': 2}
    """
    return {
        f"{prefix}{separator}{name}": value
        for prefix, mapping in mappings.items()
        for name, value in mapping.items()
    }


def without_prefix(name: str, arrays: Mapping[str, _T], separator: str = ".") -> dict[str, _T]:
    """Return the mapping `name` out of a dict made by `with_prefixes`, with its original keys.

    >>> without_prefix("lstm", {"lstm.w": 1, "softmax.w": 2})
    {'w': 1}
    """
    prefix = f"{name}{separator}"
    return {
        key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)
    }
