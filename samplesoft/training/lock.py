"""One process at a time in the folder of a run.

The lock is the kernel's, on a file that stays in the folder. It ends with the process that holds
it, however that ends, so that no lock is ever stale, and a number that another process has got
since is no matter. What the file says is for the message alone.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Keep other processes and threads out of a folder, which is made, while the body runs.

    Raises ValueError if it is locked already, and warns where the file system has no locks.
    """
    path, host = Path(folder, LOCK), socket.gethostname()
    path.parent.mkdir(parents=True, exist_ok=True)
    # the file stays: one that is removed may be open elsewhere, and keep nobody out
    with open(path, "a+", encoding="utf-8", errors="replace") as stream:
        try:
            _lock(stream.fileno())
        except BlockingIOError:
            stream.seek(0)
            # whoever holds it may not have written yet
            holder = stream.readline(200).strip() or "another process"
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
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {host}\n")
        stream.flush()
        yield
