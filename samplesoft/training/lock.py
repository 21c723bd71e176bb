"""One process at a time in the folder of a run.

The lock is the kernel's, on a file that stays in the folder. It ends with the process that holds
it, however that ends, so that no lock is ever stale, and a number that another process has got
since is no matter. What the file says is for the message alone.

A forked child has the lock too, as the kernel sees it, and would keep it when its parent has ended:
so it closes its copy at once.
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
_WAYS = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
_LONGEST = 200  # bytes of what the file says
_held: set[int] = set()  # descriptors of this process, as it is after a fork too

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # a byte that nobody reads
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError from error

    def _unlock(descriptor: int) -> None:
        # at the end of the file's last handle the system takes its time
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock

    def _lock(descriptor: int) -> None:
        flock(descriptor, LOCK_EX | LOCK_NB)

    def _unlock(descriptor: int) -> None:
        # and not only the descriptor closed, of which a child may have been made a copy
        flock(descriptor, LOCK_UN)


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Keep other processes and threads out of a folder, which is made, while the body runs.

    Raises ValueError if it is locked already, and warns where the file system has no locks.
    """
    path, host = Path(folder, LOCK), socket.gethostname()
    path.parent.mkdir(parents=True, exist_ok=True)
    # the file stays: one that is removed may be open elsewhere, and keep nobody out
    descriptor = retry_while_in_use(lambda: os.open(path, _WAYS, 0o666))
    _held.add(descriptor)
    try:
        try:
            _lock(descriptor)
        except BlockingIOError:
            os.lseek(descriptor, 0, os.SEEK_SET)
            said = os.read(descriptor, _LONGEST).decode(errors="replace")
            # whoever holds it may not have written yet
            holder = said.partition("\n")[0].strip() or "another process"
            remedy = "wait until it has ended, end it, or choose another folder"
            # a process of another machine cannot be ended from here, and may have lost its network
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
                with suppress(OSError):  # of a file system without locks
                    _unlock(descriptor)
    finally:
        # in a child that was forked meanwhile it is closed, and its number may be another file's
        if descriptor in _held:
            _held.discard(descriptor)
            os.close(descriptor)


def _let_go() -> None:
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
