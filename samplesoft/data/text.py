"""Texts as lists of tokens, from a file or from the sources of Python, and their vocabularies."""

from __future__ import annotations

import os
import re
import sysconfig
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samplesoft._validation import as_count, short_repr
from samplesoft.data.files import open_text, read_pieces

EOS = "<eos>"
UNK = "<unk>"
MAX_WORD_CHARACTERS = 10**6  # max number of characters in a word
STDLIB_TOKENS = 2_000_000  # default number of tokens from the standard library

_SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)
# The token of a line end includes the blank lines that follow, so that <eos> is not repeated.
_TOKEN_PATTERN = re.compile(
    r"\n\s*|[^\W\d]\w*|\d[\w.]*|\*\*=?|//=?|>>=?|<<=?|->|\.\.\.|[-+*/%&|^@:=!<>]=|[^\w\s]"
)


def read_tokens(path: str | Path) -> list[str]:
    r"""Return the words of a text file, with ``<eos>`` after each line.

    Parameters
    ----------
    path : str or Path
        UTF-8 text with one sentence per line; compressed if the name ends in ``.gz``, ``.xz`` or
        ``.bz2``.

    Returns
    -------
    list of str
        ``line.split() + ["<eos>"]`` for each line, joined.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If the words do not fit in memory.
    ValueError
        If the file cannot be read or decoded, has no words, or has a word of more than a million
        characters.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "corpus.txt")
    ...     _ = path.write_text("the cat sat\nthe end\n")
    ...     read_tokens(path)
    ['the', 'cat', 'sat', '<eos>', 'the', 'end', '<eos>']
    """
    tokens: list[str] = []
    num_lines = 0
    is_line_ended = True
    word_start = ""  # start of a word that continues in the next piece

    with open_text(path) as stream:
        for piece in read_pieces(path, stream):
            words = (word_start + piece).split()
            is_line_ended = piece[-1] == "\n"
            word_start = "" if is_line_ended or piece[-1].isspace() else words.pop()

            if len(word_start) > MAX_WORD_CHARACTERS:
                raise ValueError(
                    f"{str(path)!r}, line {num_lines + 1}: got a word of more than "
                    f"{MAX_WORD_CHARACTERS:,} characters; give a plain text file, with words "
                    "separated by white space."
                )

            tokens += words
            if is_line_ended:
                tokens.append(EOS)
                num_lines += 1

    if not is_line_ended:
        tokens += [word_start, EOS] if word_start else [EOS]
        num_lines += 1
    if len(tokens) == num_lines:
        raise ValueError(
            f"{str(path)!r} must hold words, got {num_lines} line(s) without any; "
            "give a plain text file with one sentence a line."
        )

    return tokens


def stdlib_tokens(max_tokens: int = STDLIB_TOKENS) -> list[str]:
    """Return the tokens of the Python sources of this interpreter's standard library.

    Files are read in the order of their paths, without tests and installed packages. A token is an
    identifier, a number, an operator, or ``<eos>`` at the end of a line. Words in strings and
    comments also count as identifiers.

    Parameters
    ----------
    max_tokens : int
        Maximum number of tokens. Two million tokens are most of the library, and take about a
        second.

    Returns
    -------
    list of str
        At most `max_tokens` tokens.

    Raises
    ------
    FileNotFoundError
        If this interpreter has no library sources.

    Examples
    --------
    >>> len(stdlib_tokens(max_tokens=1000))
    1000
    """
    as_count("max_tokens", max_tokens)
    root = sysconfig.get_paths()["stdlib"]

    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]

    tokens: list[str] = []
    for path in sorted(paths):
        source = path.read_bytes().decode("utf-8", errors="replace").strip()
        tokens += [EOS if token[0] == "\n" else token for token in _TOKEN_PATTERN.findall(source)]
        tokens.append(EOS)
        if len(tokens) >= max_tokens:
            return tokens[:max_tokens]

    if not tokens:
        raise FileNotFoundError(
            f"the standard library's sources are missing: no .py files in {root!r}; "
            "give a text with --corpus, vectors with --embeddings, or logits with --logits."
        )

    return tokens


def count_words(tokens: Sequence[str], size: int) -> dict[str, int]:
    """Return a dict from the `size` most frequent words to their counts.

    Words are sorted by decreasing count, which log-uniform sampling expects, and words of equal
    count alphabetically. If there are more than `size` words, one of the words returned is
    ``<unk>``, with the total count of all words that are left out. Raises ValueError if the text
    has fewer than 2 distinct words.
    """
    counts = Counter(tokens)
    if len(counts) < 2:
        raise ValueError(
            f"`tokens` must hold at least 2 distinct words, got {len(counts)}; give a longer text."
        )

    if len(counts) > size:
        # if "<unk>" occurs in the text, it counts as a word that is left out
        unknown = counts.pop(UNK, 0)
        ranked = sorted(counts.items(), key=_frequency_sort_key)
        unknown += sum(count for _, count in ranked[size - 1 :])
        counts = Counter(dict(ranked[: size - 1]) | {UNK: unknown})

    return dict(sorted(counts.items(), key=_frequency_sort_key))


def as_words(name: str, value: Any) -> list[str]:
    """Return the words of the argument `name`, a sequence of str, as a list.

    Raises TypeError if the argument is a single str, or if one of its items is not a str.
    """
    try:
        words = list(value)
    except TypeError:  # not iterable, such as a number
        words = [None]

    if isinstance(value, str) or not all(issubclass(kind, str) for kind in set(map(type, words))):
        raise TypeError(
            f"`{name}` must be a sequence of words, each of them a str, got "
            f"{type(value).__name__} {short_repr(value)}; split a text with its method split."
        )

    return words


def _frequency_sort_key(item: tuple[str, int]) -> tuple[int, str]:
    """Return a key for a pair (word, count), to sort by decreasing count, then alphabetically."""
    word, count = item
    return -count, word
