"""A lock on the folder of a training run, which only one process can hold at a time.

The operating system locks a file in the folder; the file is never removed. The system releases the
lock when the process ends, even if it is killed, so that no lock is ever stale. The file contains
the process id, but only for the error message: a process id may be reused.

A forked child process inherits the open file and with it the lock, and would hold the lock after
its parent has ended. The child therefore closes the file at once.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from samplesoft._files import retry_while_in_use

LOCK = ".lock"
_OPEN_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
_MAX_HOLDER_BYTES = 200  # largest number of bytes that are read from a lock file
# descriptors of the lock files that this process has open; a forked child has a copy of the set
_open_descriptors: set[int] = set()

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        """Lock an open file; raise BlockingIOError if another process has locked it."""
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # lock a byte far beyond the content
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError from error

    def _unlock(descriptor: int) -> None:
        # unlock explicitly: Windows may release the lock only some time after the file is closed
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock

    def _lock(descriptor: int) -> None:
        """Lock an open file; raise BlockingIOError if another process has locked it."""
        flock(descriptor, LOCK_EX | LOCK_NB)

    def _unlock(descriptor: int) -> None:
        # closing the file would not unlock it while a child process has a copy of the descriptor
        flock(descriptor, LOCK_UN)


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Lock a folder against other processes and threads in the body of a ``with`` statement.

    Makes the folder if it does not exist. Raises ValueError if another process or thread has locked
    the folder, and warns if the file system does not support locks.
    """
    path = Path(folder, LOCK)
    host = socket.gethostname()
    path.parent.mkdir(parents=True, exist_ok=True)

    # never remove the file: a process that has it open would hold a lock that no other can see
    descriptor = retry_while_in_use(lambda: os.open(path, _OPEN_FLAGS, 0o666))
    _open_descriptors.add(descriptor)

    try:
        try:
            _lock(descriptor)
        except BlockingIOError:
            os.lseek(descriptor, 0, os.SEEK_SET)
            content = os.read(descriptor, _MAX_HOLDER_BYTES).decode(errors="replace")
            # the file is empty if the process that holds the lock has not yet written its name
            holder = content.partition("\n")[0].strip() or "another process"

            remedy = "wait until it has ended, end it, or choose another folder"
            # a process on another machine may have ended without releasing its lock
            if " on " in holder and not holder.endswith(f" on {host}"):
                remedy += f"; if that machine is gone for good, delete {str(path)!r}"

            raise ValueError(
                f"{str(folder)!r} is in use for training by {holder}; {remedy}."
            ) from None
        except OSError as error:
            warnings.warn(
                f"{str(path)!r} cannot be locked: {error.strerror or error}; see to it that no "
                "other process trains in this folder.",
                RuntimeWarning,
                stacklevel=3,
            )

        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, f"process {os.getpid()} on {host}\n".encode(errors="replace"))

        try:
            yield
        finally:
            if descriptor in _open_descriptors:
                with suppress(OSError):  # unlocking fails on file systems without locks
                    _unlock(descriptor)
    finally:
        # a forked child has closed the descriptor already, and its number may now belong to another
        # file
        if descriptor in _open_descriptors:
            _open_descriptors.discard(descriptor)
            os.close(descriptor)


def _close_inherited_descriptors() -> None:
    """Close the lock files that a forked child has inherited."""
    while _open_descriptors:
        with suppress(OSError):
            os.close(_open_descriptors.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited_descriptors)
