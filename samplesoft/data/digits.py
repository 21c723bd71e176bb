"""Whole numbers in text, of any number of digits."""

from __future__ import annotations

_MOST = 25  # digits that are read; Python refuses more than 4,300


def whole_number(word: str) -> int | None:
    """Return the number that a word of ASCII digits is, and None for other words.

    One of more than 25 digits is returned as one of 25, beyond any limit of a file.
    """
    if not (word.isascii() and word.isdecimal()):
        return None
    return int(word if len(word) <= _MOST else word.lstrip("0")[:_MOST] or "0")
