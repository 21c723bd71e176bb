"""A text for a language model: in three parts, and in rows that are read in windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import IntArray, as_array, as_count, as_counts, short_repr
from samplesoft.data import EOS, UNK, read_tokens
from samplesoft.data.text import as_words, count_words

PARTS = ("train", "valid", "test")
ENDINGS = (".txt", ".txt.gz", ".txt.xz", ".txt.bz2")
VOCABULARY_SIZE = 10_000  # of the Penn Treebank as language models have it


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
            raise ValueError(
                f"`words` must be distinct, got {short_repr(twice)} twice; leave one out."
            )
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
        if UNK in ids:  # of words that were left out
            return np.fromiter((ids.get(token, ids[UNK]) for token in tokens), np.int64)
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
    counts = count_words(as_words("tokens", tokens), as_count("size", size, 2))
    return Vocabulary(tuple(counts), np.array([*counts.values()]))


@dataclass(frozen=True, eq=False)
class Corpus:
    """The parts of a text, each (N,), as classes of the training part's vocabulary."""

    vocabulary: Vocabulary
    train: IntArray
    valid: IntArray
    test: IntArray


def read_corpus(path: str | Path, *, vocabulary_size: int = VOCABULARY_SIZE) -> Corpus:
    """Read a training, a validation and a test text of at most `vocabulary_size` classes.

    `path` is a folder that holds one file for each of ``*train*``, ``*valid*`` and ``*test*``, each
    ``.txt``, ``.txt.gz``, ``.txt.xz`` or ``.txt.bz2`` with one sentence a line; or one such file:
    its first 80% of the lines are for training, the next 10% for validation, the rest for the test.

    Where training left no word out, but the other parts have words that it has not, its two
    rarest words become ``<unk>`` with them: a class that is never seen would not be trained.
    """
    if Path(path).is_dir():
        tokens = {part: read_tokens(find_part(path, part)) for part in PARTS}
    else:
        tokens = _split(path, read_tokens(path))
    vocabulary = build_vocabulary(tokens["train"], vocabulary_size)
    unseen = set(tokens["valid"] + tokens["test"]) - set(vocabulary.words)
    if unseen and UNK not in vocabulary.words:
        if len(vocabulary.words) < 3:
            raise ValueError(
                f"the training text of {str(path)!r} must hold more than one word where other "
                f"parts have words such as {min(unseen)!r}; give a longer one."
            )
        vocabulary = build_vocabulary(tokens["train"], len(vocabulary.words) - 1)
    return Corpus(vocabulary, **{part: vocabulary.encode(tokens[part]) for part in PARTS})


def find_part(folder: str | Path, part: str) -> Path:
    """Return the one text file in `folder` whose name contains `part`, such as "train"."""
    texts = sorted(
        path
        for path in Path(folder).iterdir()
        if fnmatch(path.name, f"*{part}*") and path.name.endswith(ENDINGS)
    )
    if not texts:
        raise FileNotFoundError(
            f"{str(folder)!r} must hold a text named *{part}* that ends in "
            f"{', '.join(ENDINGS)}, got none; add or rename it."
        )
    if len(texts) > 1:
        raise ValueError(
            f"{str(folder)!r} must hold one text named *{part}*, got "
            f"{', '.join(path.name for path in texts)}; leave one of them there."
        )
    return texts[0]


def _split(path: str | Path, tokens: list[str]) -> dict[str, list[str]]:
    """Return 80%, 10% and 10% of the lines of a text, in their order."""
    ends = [place + 1 for place, token in enumerate(tokens) if token == EOS]
    if len(ends) < len(PARTS):
        raise ValueError(
            f"{str(path)!r} must have at least {len(PARTS)} lines to be split into training, "
            f"validation and test, got {len(ends)}; give a longer text."
        )
    tenth = max(len(ends) // 10, 1)
    first, second = ends[-2 * tenth - 1], ends[-tenth - 1]
    return {"train": tokens[:first], "valid": tokens[first:second], "test": tokens[second:]}


class Windows:
    """A text (N,) in B contiguous rows, cut into windows of T tokens with the next ones.

    Row b holds the tokens from ``b * (N // B)`` on, and goes on where the window before ended, so
    that the hidden state of one window starts the next [1]_. The last ``N % B`` tokens are left
    out, and a last window of less than T tokens too unless `keep_short`.

    References
    ----------
    .. [1] W. Zaremba, I. Sutskever and O. Vinyals, "Recurrent Neural Network Regularization",
       arXiv:1409.2329, section 4.1.
    """

    def __init__(
        self, ids: NDArray[np.int64], batch_size: int, num_steps: int, *, keep_short: bool
    ) -> None:
        self.batch_size = as_count("batch_size", batch_size)
        self.num_steps = as_count("num_steps", num_steps)
        length = len(ids) // self.batch_size
        predicted = length - 1  # the last token of a row has no next one
        self._len = -(-predicted // self.num_steps) if keep_short else predicted // self.num_steps
        if self._len < 1:
            needed = self.batch_size * (2 if keep_short else self.num_steps + 1)
            raise ValueError(
                f"`ids` must hold at least {needed} tokens for {self.batch_size} rows of a window "
                f"of {self.num_steps}, got {len(ids)}; give a longer text, or lower `batch_size` "
                "or `num_steps`."
            )
        self._columns = np.ascontiguousarray(
            ids[: length * self.batch_size].reshape(self.batch_size, length).T
        )

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, index: int) -> tuple[IntArray, IntArray]:
        """Return inputs and targets of window `index`, each (T, B)."""
        if not 0 <= index < self._len:
            raise IndexError(f"window {index} of {self._len}")
        start = index * self.num_steps
        stop = min(start + self.num_steps, len(self._columns) - 1)
        return self._columns[start:stop], self._columns[start + 1 : stop + 1]

    def __iter__(self) -> Iterator[tuple[IntArray, IntArray]]:
        return (self[index] for index in range(self._len))
