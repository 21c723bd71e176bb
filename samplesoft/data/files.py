"""Open text files, compressed or not, with errors that name the file and the remedy."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file, without a byte order mark; ``.gz``, ``.xz``, ``.bz2`` are unpacked.

    Raises FileNotFoundError, or ValueError if the file cannot be read, decompressed or decoded,
    while it is open too.
    """
    name = str(path)
    damaged: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    try:
        if name.endswith(".gz"):
            import gzip

            stream: TextIO = gzip.open(name, "rt", encoding="utf-8-sig")
        elif name.endswith(".bz2"):
            import bz2

            stream = bz2.open(name, "rt", encoding="utf-8-sig")
        elif name.endswith(".xz"):
            import lzma

            damaged += (lzma.LZMAError,)
            stream = lzma.open(name, "rt", encoding="utf-8-sig")
        else:
            stream = open(name, encoding="utf-8-sig")
        with stream:
            yield stream
    except FileNotFoundError:
        raise missing(path) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name!r} must be UTF-8 text, got {error}; convert it with "
            "`iconv -t utf-8`, or name the file by its compression (.gz, .xz, .bz2)."
        ) from None
    except damaged as error:
        raise ValueError(
            f"{name!r} cannot be read: {error}; check that it is a whole file, that you may "
            "read it, and that its ending (.gz, .xz, .bz2 or none) fits its content."
        ) from None


def missing(path: str | Path) -> FileNotFoundError:
    """Return the error for a file that does not exist."""
    return FileNotFoundError(
        f"no such file: {str(path)!r}; check the path, it is taken relative to {str(Path.cwd())!r}."
    )
