"""Readers of text files, compressed or not, whose errors name the file and the remedy."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TextIO

from samplesoft._memory import available_bytes, human_bytes
from samplesoft._validation import as_count

# Default limit of the characters in a line. It suffices for a user with a million items of eight
# digits, whose line has 9 million characters. The longest lines of the Penn Treebank, Bibtex and
# Gowalla have 520, 1,765 and 4,309 characters.
MAX_LINE_CHARACTERS = 1 << 24
_PIECE_CHARACTERS = 1 << 20  # max number of characters read at a time
_CHARACTERS_BETWEEN_CHECKS = 1 << 24  # characters read between two checks of the available memory
_MAX_DIGITS = 25  # longer numbers are truncated to this length; no allowed number is as long
# imported on demand, because some builds of Python lack one of these modules
_MODULE_BY_SUFFIX = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file, as a context manager that yields the stream.

    Files ending in ``.gz``, ``.xz`` or ``.bz2`` are decompressed, and a byte order mark is skipped.
    Raises FileNotFoundError if there is no such file. Raises ValueError if the file cannot be read,
    decompressed or decoded, either on opening or while the body reads it.
    """
    name = str(path)
    module = import_module(_MODULE_BY_SUFFIX.get(Path(name).suffix, "io"))
    damaged_file_errors = (OSError, EOFError, zlib.error, getattr(module, "LZMAError", OSError))

    try:
        with module.open(name, "rt", encoding="utf-8-sig") as stream:
            yield stream
    except FileNotFoundError:
        raise file_not_found_error(path) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name!r} must be UTF-8 text, got {error}; convert it with "
            "`iconv -t utf-8`, or name the file by its compression (.gz, .xz, .bz2)."
        ) from None
    except damaged_file_errors as error:
        raise ValueError(
            f"{name!r} cannot be read: {error}; check that it is a whole file, that you may "
            "read it, and that its ending (.gz, .xz, .bz2 or none) fits its content."
        ) from None


class MalformedLineError(Exception):
    """Raised for an error in the current line; `open_lines` adds the file and the line number."""


@contextmanager
def open_lines(path: str | Path, longest_line: int, remedy: str) -> Iterator[Iterator[str]]:
    """Open a text file with `open_text`, and yield an iterator of its lines, with their line ends.

    Raises the errors of `open_text` and `read_pieces`. In addition, raises ValueError

    - if a line has more than `longest_line` characters, before the rest of the line is read;
    - if the body raises `MalformedLineError`. The message is then extended by the file, the number
      of the last line that was read, and `remedy`.
    """
    as_count("longest_line", longest_line)
    number = 1  # number of the current line

    def lines(stream: TextIO) -> Iterator[str]:
        nonlocal number
        line_pieces = []  # pieces of an unfinished line
        num_characters = 0  # number of characters in these pieces

        for piece in read_pieces(path, stream):
            line_pieces.append(piece)
            is_ended = piece[-1] == "\n"
            num_characters += len(piece) - is_ended
            if num_characters > longest_line:
                raise ValueError(
                    f"{str(path)!r}, line {number}: got more than {longest_line:,} characters, the "
                    "limit for a line; check that this is the right file, or raise `longest_line`."
                )

            if is_ended:
                yield piece if len(line_pieces) == 1 else "".join(line_pieces)
                number += 1
                line_pieces = []
                num_characters = 0

        if line_pieces:
            yield "".join(line_pieces)

    with open_text(path) as stream:
        try:
            yield lines(stream)
        except MalformedLineError as error:
            raise ValueError(f"{str(path)!r}, line {number}: {error}{remedy}.") from None


def read_pieces(path: str | Path, stream: TextIO) -> Iterator[str]:
    """Yield the lines of a stream; lines of more than a million characters are cut into pieces.

    Raises MemoryError as soon as less than a quarter of the initially available memory is left,
    because the caller still has to convert the data to arrays.
    """
    initial_bytes = available_bytes()
    characters_since_check = 0

    while piece := stream.readline(_PIECE_CHARACTERS):
        characters_since_check += len(piece)
        if characters_since_check >= _CHARACTERS_BETWEEN_CHECKS:
            bytes_left = available_bytes()
            characters_since_check = 0

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


def file_not_found_error(path: str | Path) -> FileNotFoundError:
    """Return the FileNotFoundError to raise for a path that does not exist."""
    try:
        folder = repr(str(Path.cwd()))
    except OSError:  # the folder was deleted while the process ran
        folder = "a working folder that no longer exists"
    return FileNotFoundError(
        f"no such file: {str(path)!r}; check the path, it is taken relative to {folder}."
    )


def parse_whole_number(word: str) -> int | None:
    """Return the value of a word of ASCII digits, or None for any other word.

    A number of more than 25 digits, without leading zeros, is truncated to its first 25 digits. The
    result is still above every limit of a file format, so that the caller raises an error.
    """
    if not (word.isascii() and word.isdecimal()):
        return None
    # without truncation, `int` would raise for more than 4,300 digits, without naming the file
    return int(word if len(word) <= _MAX_DIGITS else word.lstrip("0")[:_MAX_DIGITS] or "0")
