"""Open text files, compressed or not, with errors that name the file and the remedy."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TextIO

_OPENED_BY = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}  # some Pythons lack one of them


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file, without a byte order mark; ``.gz``, ``.xz``, ``.bz2`` are unpacked.

    Raises FileNotFoundError, or ValueError if the file cannot be read, decompressed or decoded,
    while it is open too.
    """
    name = str(path)
    module = import_module(_OPENED_BY.get(Path(name).suffix, "io"))
    damaged = (OSError, EOFError, zlib.error, getattr(module, "LZMAError", OSError))
    try:
        with module.open(name, "rt", encoding="utf-8-sig") as stream:
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
