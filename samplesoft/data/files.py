"""Open text files, compressed or not, with errors that name the file and the remedy."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TextIO

from samplesoft._memory import available_bytes, human_bytes
from samplesoft._validation import as_count

# A user of a million items of eight digits makes a line of 9 million characters; the longest of
# the Penn Treebank, Bibtex and Gowalla have 520, 1,765 and 4,309.
LONGEST_LINE = 1 << 24
_PIECE_CHARACTERS = 1 << 20  # characters that are read at a time
_CHARACTERS_BETWEEN_LOOKS = 1 << 24  # characters between two looks at the memory
_MOST_DIGITS = 25
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


class Malformed(Exception):
    """What is wrong with a line of a file; `open_lines` adds which file and which line."""


@contextmanager
def open_lines(path: str | Path, longest_line: int, remedy: str) -> Iterator[Iterator[str]]:
    """Open a text file as `open_text`, for its lines, each with the end that it has in the file.

    Also raises ValueError at a line of more than `longest_line` characters, before the rest of it
    is read, MemoryError as `pieces`, and for a `Malformed` of the body ValueError, which names the
    last line that it has taken and ends with the remedy.
    """
    as_count("longest_line", longest_line)
    number = 1  # of the line that the body works on, or that is being read

    def lines(stream: TextIO) -> Iterator[str]:
        nonlocal number
        begun = []  # pieces of a line whose end has not come
        size = 0  # characters in them
        for piece in pieces(path, stream):
            begun.append(piece)
            ended = piece[-1] == "\n"
            size += len(piece) - ended
            if size > longest_line:
                raise ValueError(
                    f"{str(path)!r}, line {number}: got more than {longest_line:,} characters, the "
                    "limit for a line; check that this is the right file, or raise `longest_line`."
                )
            if ended:
                yield piece if len(begun) == 1 else "".join(begun)
                number += 1
                begun = []
                size = 0
        if begun:
            yield "".join(begun)

    with open_text(path) as stream:
        try:
            yield lines(stream)
        except Malformed as error:
            raise ValueError(f"{str(path)!r}, line {number}: {error}{remedy}.") from None


def pieces(path: str | Path, stream: TextIO) -> Iterator[str]:
    """Yield the lines of a stream, those of more than a million characters in several pieces.

    Raises MemoryError when less than a quarter is left of the memory that was there at first: what
    has been read is still to be turned into arrays.
    """
    first = available_bytes()
    read = 0
    while piece := stream.readline(_PIECE_CHARACTERS):
        read += len(piece)
        if read >= _CHARACTERS_BETWEEN_LOOKS:
            left = available_bytes()
            read = 0
            if first is not None and left is not None and left < first / 4:
                raise MemoryError(
                    f"what has been read of {str(path)!r} leaves {human_bytes(left)} of the "
                    f"{human_bytes(first)} of memory that were available; give a shorter file."
                )
        yield piece


def missing(path: str | Path) -> FileNotFoundError:
    """Return the error for a file that does not exist."""
    try:
        folder = repr(str(Path.cwd()))
    except OSError:  # it was deleted while the process ran
        folder = "a working folder that no longer exists"
    return FileNotFoundError(
        f"no such file: {str(path)!r}; check the path, it is taken relative to {folder}."
    )


def whole_number(word: str) -> int | None:
    """Return the number that a word of ASCII digits is, and None for other words.

    One of more than 25 digits is returned as one of 25, beyond any limit of a file.
    """
    if not (word.isascii() and word.isdecimal()):
        return None
    # Python refuses to read more than 4,300 digits, with a message that names no file
    return int(word if len(word) <= _MOST_DIGITS else word.lstrip("0")[:_MOST_DIGITS] or "0")
