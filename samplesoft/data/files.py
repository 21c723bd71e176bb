"""Text files, compressed or not, with errors that name the file and the remedy."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TextIO

from samplesoft._memory import available_bytes, human_bytes
from samplesoft._validation import as_count

# A user with a million items of eight digits makes a line of 9 million characters. The longest
# lines of the Penn Treebank, Bibtex and Gowalla have 520, 1,765 and 4,309.
MAX_LINE_CHARACTERS = 1 << 24
_PIECE_CHARACTERS = 1 << 20  # characters read at a time
_CHARACTERS_BETWEEN_CHECKS = 1 << 24  # characters between two checks of the available memory
_MAX_DIGITS = 25
_MODULE_OF_SUFFIX = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}  # some Pythons lack one of them


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file, with or without a byte order mark; unpack ``.gz``, ``.xz``, ``.bz2``.

    Raises FileNotFoundError, or ValueError if the file cannot be read, decompressed or decoded, now
    or while it is read.
    """
    name = str(path)
    module = import_module(_MODULE_OF_SUFFIX.get(Path(name).suffix, "io"))
    damaged = (OSError, EOFError, zlib.error, getattr(module, "LZMAError", OSError))
    try:
        with module.open(name, "rt", encoding="utf-8-sig") as stream:
            yield stream
    except FileNotFoundError:
        raise file_not_found(path) from None
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
    """An error in a line of a file; `open_lines` adds the file and the line number."""


@contextmanager
def open_lines(path: str | Path, longest_line: int, remedy: str) -> Iterator[Iterator[str]]:
    """Open a text file with `open_text`, and yield an iterator of its lines with their line ends.

    In addition, raises ValueError at a line of more than `longest_line` characters, before the rest
    of it is read; MemoryError as `pieces`; and, for `Malformed` from the body, ValueError with the
    number of the last line and the remedy.
    """
    as_count("longest_line", longest_line)
    number = 1  # of the current line

    def lines(stream: TextIO) -> Iterator[str]:
        nonlocal number
        line_pieces = []  # pieces of an unfinished line
        size = 0  # characters in them
        for piece in pieces(path, stream):
            line_pieces.append(piece)
            is_ended = piece[-1] == "\n"
            size += len(piece) - is_ended
            if size > longest_line:
                raise ValueError(
                    f"{str(path)!r}, line {number}: got more than {longest_line:,} characters, the "
                    "limit for a line; check that this is the right file, or raise `longest_line`."
                )
            if is_ended:
                yield piece if len(line_pieces) == 1 else "".join(line_pieces)
                number += 1
                line_pieces = []
                size = 0
        if line_pieces:
            yield "".join(line_pieces)

    with open_text(path) as stream:
        try:
            yield lines(stream)
        except Malformed as error:
            raise ValueError(f"{str(path)!r}, line {number}: {error}{remedy}.") from None


def pieces(path: str | Path, stream: TextIO) -> Iterator[str]:
    """Yield the lines of a stream; a line of more than a million characters in several pieces.

    Raises MemoryError if less than a quarter is left of the memory available at first, because the
    data still have to be converted to arrays.
    """
    initial_bytes = available_bytes()
    num_read = 0
    while piece := stream.readline(_PIECE_CHARACTERS):
        num_read += len(piece)
        if num_read >= _CHARACTERS_BETWEEN_CHECKS:
            bytes_left = available_bytes()
            num_read = 0
            if (
                initial_bytes is not None
                and bytes_left is not None
                and bytes_left < initial_bytes / 4
            ):
                raise MemoryError(
                    f"what has been read of {str(path)!r} leaves {human_bytes(bytes_left)} of the "
                    f"{human_bytes(initial_bytes)} of memory that were available; give a "
                    "shorter file."
                )
        yield piece


def file_not_found(path: str | Path) -> FileNotFoundError:
    """Return the error for a file that does not exist."""
    try:
        folder = repr(str(Path.cwd()))
    except OSError:  # it was deleted while the process ran
        folder = "a working folder that no longer exists"
    return FileNotFoundError(
        f"no such file: {str(path)!r}; check the path, it is taken relative to {folder}."
    )


def whole_number(word: str) -> int | None:
    """Return the value of a word of ASCII digits, None for other words.

    Only the first 25 digits of a longer number are kept: it is still above every limit of a format.
    """
    if not (word.isascii() and word.isdecimal()):
        return None
    # Python refuses more than 4,300 digits, with a message that names no file
    return int(word if len(word) <= _MAX_DIGITS else word.lstrip("0")[:_MAX_DIGITS] or "0")
