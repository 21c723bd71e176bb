"""One process at a time in the folder of a run.

The lock is the kernel's, on a file in the folder. It ends with the process that holds it, however
that ends, so that no lock is ever stale, and a number that another process has got since is no
matter. What the file says is for the message alone.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

LOCK = ".lock"

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # a byte that nobody reads
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError from error

else:
    from fcntl import LOCK_EX, LOCK_NB, flock

    def _lock(descriptor: int) -> None:
        flock(descriptor, LOCK_EX | LOCK_NB)


_TRIES = 100  # to open a file in a folder that others make and remove


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Keep other processes and threads out of a folder while the body runs.

    The folder is made where there is none, and removed if it is left empty. Raises ValueError if
    it is locked already, and warns where the file system has no locks.
    """
    path = Path(folder, LOCK)
    made = not path.parent.exists()
    with _open_locked(path) as stream:
        try:
            yield
        finally:
            if _is_at(path, stream):
                with suppress(PermissionError):  # of Windows, where it stays
                    path.unlink()
            if made:
                with suppress(OSError):  # there are files in it
                    path.parent.rmdir()


def _open_locked(path: Path) -> TextIO:
    """Open a lock file that is this process's alone, or raise ValueError."""
    tries = 0
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = open(path, "a+", encoding="utf-8", errors="replace")
        except (FileExistsError, FileNotFoundError):
            tries += 1
            if tries == _TRIES:
                raise
            continue  # the one that made the folder has just removed it
        try:
            _require(stream, path)
            # who held the lock may have removed the file between opening and locking: then this
            # lock is on a file without a name, which keeps nobody out
            if _is_at(path, stream):
                stream.truncate(0)
                stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
                stream.flush()
                return stream
        except BaseException:
            stream.close()
            raise
        stream.close()  # the one that held it has just removed it


def _require(stream: TextIO, path: Path) -> None:
    """Lock an open file, or raise ValueError that names who has locked it."""
    try:
        _lock(stream.fileno())
    except BlockingIOError:
        raise ValueError(_refusal(path, stream)) from None
    except OSError as error:
        warnings.warn(
            f"{str(path)!r} cannot be locked: {error.strerror or error}; see to it that no other "
            "process trains in this folder.",
            RuntimeWarning,
            stacklevel=2,
        )


def _refusal(path: Path, stream: TextIO) -> str:
    stream.seek(0)
    # whoever holds it may not have written yet
    holder = stream.readline(200).strip() or "another process"
    remedy = "wait until it has ended, end it, or choose another folder"
    # a process of another machine cannot be ended from here, and may have lost its network
    if " on " in holder and not holder.endswith(f" on {socket.gethostname()}"):
        remedy += f"; if that machine is gone for good, delete {str(path)!r}"
    return f"{str(path.parent)!r} is in use for training by {holder}; {remedy}."


def _is_at(path: Path, stream: TextIO) -> bool:
    """Tell whether `path` is still the name of an open file."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False
