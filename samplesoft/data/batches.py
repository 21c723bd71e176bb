"""Language-model batches: a text in rows, read in windows, and the folder it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import IntArray, as_count
from samplesoft.data.text import read_tokens
from samplesoft.data.vocabulary import Vocabulary, build_vocabulary

PARTS = ("train", "valid", "test")
ENDINGS = (".txt", ".txt.gz", ".txt.xz", ".txt.bz2")


class Windows:
    """A text cut into B contiguous rows, and these into windows of T tokens with the next ones.

    Parameters
    ----------
    ids : ndarray of int64, shape (N,)
        The text. Row b holds the tokens from ``b * (N // B)`` on; the last ``N % B`` are left out.
    batch_size : int
        Number of rows B.
    num_steps : int
        Length T of a window.
    keep_short : bool
        Whether a last window of less than T tokens is kept or dropped.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the text too short for one window.

    References
    ----------
    .. [1] W. Zaremba, I. Sutskever and O. Vinyals, "Recurrent Neural Network Regularization",
       arXiv:1409.2329, section 4.1: rows that go on where the window before ended, so that the
       hidden state of one window starts the next.

    Examples
    --------
    >>> windows = Windows(np.arange(11), 2, 3, keep_short=True)
    >>> len(windows)
    2
    >>> inputs, targets = windows[0]
    >>> inputs.T
    array([[0, 1, 2],
           [5, 6, 7]])
    >>> targets.T
    array([[1, 2, 3],
           [6, 7, 8]])
    >>> windows[1][1].T
    array([[4],
           [9]])
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


@dataclass(frozen=True, eq=False)
class Corpus:
    """The parts of a text as classes of one vocabulary.

    Attributes
    ----------
    vocabulary : Vocabulary
        That of the training part.
    train, valid, test : ndarray of int64, shape (number of tokens,)
        The parts.
    """

    vocabulary: Vocabulary
    train: IntArray
    valid: IntArray
    test: IntArray


def read_corpus(folder: str | Path, *, vocabulary_size: int = 10_000) -> Corpus:
    r"""Read a folder with a training, a validation and a test text.

    Parameters
    ----------
    folder : str or Path
        Holds one file for each of ``*train*``, ``*valid*`` and ``*test*``, each ``.txt``,
        ``.txt.gz``, ``.txt.xz`` or ``.txt.bz2`` with one sentence a line; see `read_tokens`.
    vocabulary_size : int
        Largest number of classes; see `build_vocabulary`.

    Returns
    -------
    Corpus
        Parts in the vocabulary of the training part.

    Raises
    ------
    FileNotFoundError
        If the folder or a part is missing.
    ValueError
        If several files match a part, one cannot be read, or a part has a word that the
        vocabulary has not, and no ``<unk>`` either.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in ("train", "valid", "test"):
    ...         _ = pathlib.Path(folder, f"my.{part}.txt").write_text("a cat\na dog\n")
    ...     read_corpus(folder).valid
    array([1, 2, 0, 1, 3, 0])
    """
    paths = {part: find_part(folder, part) for part in PARTS}
    tokens = {part: read_tokens(path) for part, path in paths.items()}
    vocabulary = build_vocabulary(tokens["train"], vocabulary_size)
    ids = {}
    for part in PARTS:
        try:
            ids[part] = vocabulary.encode(tokens[part])
        except ValueError as error:
            raise ValueError(f"{str(paths[part])!r}: {error}") from None
    return Corpus(vocabulary, **ids)


def find_part(folder: str | Path, part: str) -> Path:
    """Return the one text file in `folder` whose name contains `part`.

    Parameters
    ----------
    folder : str or Path
        Where to look.
    part : str
        One of ``train``, ``valid``, ``test``.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    FileNotFoundError
        If there is no such folder or file.
    ValueError
        If there are several.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(
            f"no such folder: {str(folder)!r}; give the folder that holds the texts."
        )
    found = sorted(
        path
        for path in Path(folder).iterdir()
        if fnmatch(path.name, f"*{part}*") and path.name.endswith(ENDINGS)
    )
    if not found:
        raise FileNotFoundError(
            f"{str(folder)!r} must hold a text named *{part}* that ends in "
            f"{', '.join(ENDINGS)}, got none; add or rename it."
        )
    if len(found) > 1:
        raise ValueError(
            f"{str(folder)!r} must hold one text named *{part}*, got "
            f"{', '.join(path.name for path in found)}; leave one of them there."
        )
    return found[0]
