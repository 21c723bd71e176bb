"""Vocabulary: the most frequent words, numbered by falling frequency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samplesoft._validation import IntArray, as_array, as_count, as_counts, shown

UNK = "<unk>"


@dataclass(frozen=True)
class Vocabulary:
    """Words by falling frequency, so that ids follow the Zipf order log-uniform sampling expects.

    Parameters
    ----------
    words : sequence of str, length n
        The word of each class; ``<unk>`` stands for all words left out, where there are any.
    counts : array_like of int, shape (n,)
        How often each occurs.

    Raises
    ------
    TypeError, ValueError
        If `words` are not distinct words, or `counts` not a number for each.
    """

    words: tuple[str, ...]
    counts: IntArray

    def __post_init__(self) -> None:
        words, counts = tuple(as_words("words", self.words)), as_array("counts", self.counts)
        if len(set(words)) < len(words):
            twice = Counter(words).most_common(1)[0][0]
            raise ValueError(f"`words` must be distinct, got {shown(twice)} twice; leave one out.")
        if counts.dtype.kind not in "iu":
            raise TypeError(f"`counts` must hold integers, got {counts.dtype}; count the words.")
        as_counts("counts", counts, len(words))
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "counts", counts.astype(np.int64))

    def encode(self, tokens: Iterable[str]) -> IntArray:
        """Return the class of each token; unknown ones become ``<unk>``.

        Parameters
        ----------
        tokens : iterable of str
            The text.

        Returns
        -------
        ndarray of int64, shape (number of tokens,)
            Classes in ``range(n)``.

        Raises
        ------
        TypeError
            If `tokens` are not words.
        ValueError
            If a token is unknown and the vocabulary has no ``<unk>``.
        """
        tokens = as_words("tokens", tokens)
        ids = {word: i for i, word in enumerate(self.words)}
        if UNK in ids:
            unk = ids[UNK]
            return np.fromiter((ids.get(token, unk) for token in tokens), np.int64)
        try:
            return np.fromiter((ids[token] for token in tokens), np.int64)
        except KeyError as error:
            raise ValueError(
                f"`tokens` must be in the vocabulary, got {error}; this vocabulary left no word "
                f"out and so has no {UNK}: build it with a smaller `size`."
            ) from None


def build_vocabulary(tokens: Sequence[str], size: int) -> Vocabulary:
    """Count the tokens and keep the `size` most frequent, ties in alphabetical order.

    Parameters
    ----------
    tokens : sequence of str
        The text.
    size : int
        Largest number of classes, at least 2. Where words are left out, one class is ``<unk>``,
        and it carries their counts, as language models have it.

    Returns
    -------
    Vocabulary
        Words and counts by falling frequency; fewer than `size` where the text has fewer.

    Raises
    ------
    TypeError, ValueError
        If `size` is not an integer of at least 2, or the text is no sequence of words, or has
        fewer than 2 distinct ones.

    Examples
    --------
    >>> build_vocabulary("b a b c b a".split(), 2).words
    ('<unk>', 'b')
    >>> build_vocabulary("b a b c b a".split(), 3).words
    ('b', 'a', 'c')
    """
    size = as_count("size", size, 2)
    counts = Counter(as_words("tokens", tokens))
    if len(counts) < 2:
        raise ValueError(
            f"`tokens` must hold at least 2 distinct words, got {len(counts)}; give a longer text."
        )
    if len(counts) > size:
        unknown = counts.pop(UNK, 0)
        ranked = sorted(counts.items(), key=_by_frequency)
        unknown += sum(count for _, count in ranked[size - 1 :])
        counts = Counter(dict(ranked[: size - 1]))
        counts[UNK] = unknown
    final = sorted(counts.items(), key=_by_frequency)
    return Vocabulary(
        tuple(word for word, _ in final), np.array([count for _, count in final], np.int64)
    )


def as_words(name: str, value: Any) -> list[str]:
    """Return the words of a text as a list; TypeError for one string, and for what are no words."""
    try:
        words = list(value)
    except TypeError:  # of a number, or of an array without a dimension
        words = [None]
    if isinstance(value, str) or not all(issubclass(kind, str) for kind in set(map(type, words))):
        raise TypeError(
            f"`{name}` must be a sequence of words, each of them a str, got "
            f"{type(value).__name__} {shown(value)}; split a text with its method split."
        )
    return words


def _by_frequency(item: tuple[str, int]) -> tuple[int, str]:
    word, count = item
    return -count, word
