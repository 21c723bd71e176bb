"""A lock that admits one process at a time to the folder of a run.

The operating system locks a file that stays in the folder. The lock ends with its process, however
that ends, so that no lock is ever stale, even if the process id is reused. The content of the file
is only used in the error message.

A forked child inherits the lock, and would keep it after its parent has ended. It therefore closes
its copy at once.
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
_MAX_HOLDER_BYTES = 200  # bytes of the file's content that are read
_held: set[int] = set()  # open descriptors of this process; a fork copies the set

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # a byte beyond the content
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError from error

    def _unlock(descriptor: int) -> None:
        # explicitly, because Windows may release the lock only some time after the file is closed
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock

    def _lock(descriptor: int) -> None:
        flock(descriptor, LOCK_EX | LOCK_NB)

    def _unlock(descriptor: int) -> None:
        # closing is not enough, because a child may hold a copy of the descriptor
        flock(descriptor, LOCK_UN)


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Lock a folder against other processes and threads while the body runs.

    Makes the folder if need be. Raises ValueError if it is locked already, and warns if the file
    system has no locks.
    """
    path, host = Path(folder, LOCK), socket.gethostname()
    path.parent.mkdir(parents=True, exist_ok=True)
    # the file is never removed: a removed file that is open elsewhere would lock nothing
    descriptor = retry_while_in_use(lambda: os.open(path, _OPEN_FLAGS, 0o666))
    _held.add(descriptor)
    try:
        try:
            _lock(descriptor)
        except BlockingIOError:
            os.lseek(descriptor, 0, os.SEEK_SET)
            content = os.read(descriptor, _MAX_HOLDER_BYTES).decode(errors="replace")
            # the holder may not have written its name yet
            holder = content.partition("\n")[0].strip() or "another process"
            remedy = "wait until it has ended, end it, or choose another folder"
            # a process on another machine cannot be ended from here, and may be disconnected
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
            if descriptor in _held:
                with suppress(OSError):  # on file systems without locks
                    _unlock(descriptor)
    finally:
        # in a forked child it is closed already, and the number may belong to another file
        if descriptor in _held:
            _held.discard(descriptor)
            os.close(descriptor)


def _close_inherited() -> None:
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
