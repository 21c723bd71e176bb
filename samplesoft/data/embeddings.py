"""What a verification runs on: contexts, classes and labels, or logits, and their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samplesoft._jit import chunks
from samplesoft._memory import require_bytes
from samplesoft._random import as_key
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_count,
    as_counts,
    as_labels,
    as_real_array,
    shown,
)
from samplesoft.data.arrays import Archive, open_arrays, read_array
from samplesoft.data.files import LONGEST_LINE, Malformed, open_lines, whole_number

_ARRAYS = ("h", "class_embeddings", "labels", "counts")
_PLAIN = (
    "a file of plain arrays",
    "write it with numpy.save, or numpy.savez where it ends in .npz, without Python objects",
)
_LARGEST = 10**8  # number of words, and dimension
_CHUNK = 256  # examples at a time against all words


@dataclass(frozen=True)
class Embeddings:
    """Examples for a softmax whose logits are ``tau * h @ class_embeddings.T``.

    Parameters
    ----------
    h : array_like, shape (N, d)
        One context vector for each example.
    class_embeddings : array_like, shape (n, d)
        One vector for each class.
    labels : array_like of int, shape (N,)
        The true class of each example.
    counts : array_like or None, shape (n,)
        How often each class occurs, for the unigram proposal.

    Raises
    ------
    TypeError, ValueError
        If shapes disagree, entries are not finite, labels are out of range or counts negative.
    """

    h: FloatArray
    class_embeddings: FloatArray
    labels: IntArray
    counts: FloatArray | None = None

    def __post_init__(self) -> None:
        h = as_real_array("h", self.h, (2,))
        classes = as_real_array("class_embeddings", self.class_embeddings, (2,))
        if h.shape[1] != classes.shape[1]:
            raise ValueError(
                f"`h` and `class_embeddings` must have the same dimension d, "
                f"got shapes {h.shape} and {classes.shape}."
            )
        labels = as_array("labels", self.labels)
        if labels.shape != h.shape[:1]:
            raise ValueError(f"`labels` must have shape {h.shape[:1]}, got {labels.shape}.")
        object.__setattr__(self, "h", h)
        object.__setattr__(self, "class_embeddings", classes)
        object.__setattr__(self, "labels", as_labels("labels", labels, len(classes), labels.shape))
        if self.counts is not None:
            object.__setattr__(self, "counts", as_counts("counts", self.counts, len(classes)))

    def take(self, num_examples: int | None, rng: int | np.random.Generator | None) -> Embeddings:
        """Return `num_examples` of the examples, in order; all where there are no more."""
        chosen = choose(len(self.h), num_examples, rng)
        return Embeddings(self.h[chosen], self.class_embeddings, self.labels[chosen], self.counts)


def choose(size: int, num: int | None, rng: int | np.random.Generator | None) -> IntArray:
    """Return `num` distinct indices below `size` in rising order; all where there are no more."""
    if num is None or as_count("num_examples", num) >= size:
        return np.arange(size, dtype=np.int64)
    generator = np.random.default_rng(int(as_key(rng)))
    return np.sort(generator.choice(size, num, replace=False))


def load_embeddings(
    path: str | Path,
    *,
    num_examples: int | None = None,
    rng: int | np.random.Generator | None = None,
    longest_line: int = LONGEST_LINE,
) -> Embeddings:
    r"""Load examples from an ``.npz`` file, or vectors in the text format of word2vec.

    An ``.npz`` file holds ``h`` (N, d), ``class_embeddings`` (n, d), ``labels`` (N,) and, if
    wanted, ``counts`` (n,), which are taken as they are. Any other file is text, ``n d`` on its
    first line, then ``word v_1 ... v_d`` on n lines. Those vectors, divided by their norms, are
    the class vectors; an example is a word's own vector, its label the nearest other word.

    Parameters
    ----------
    path : str or Path
        The file; text may be compressed (``.gz``, ``.xz``, ``.bz2``).
    num_examples : int or None
        How many examples to draw, without replacement; None takes all. With word vectors each
        example costs n * d multiplications.
    rng : int or numpy.random.Generator or None
        Seed of the draw.
    longest_line : int
        Most characters of a line of text.

    Returns
    -------
    Embeddings
        The examples.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If its arrays, or the vectors that its first line announces, would not fit.
    ValueError
        If it is malformed; for text the message names the line.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "vectors.txt")
    ...     _ = path.write_text("3 2\nred 1 0\npink 4 3\ngreen 0 -1\n")
    ...     load_embeddings(path).labels
    array([1, 0, 0])
    """
    if str(path).endswith(".npz"):
        return _load_npz(path).take(num_examples, rng)
    vectors = _load_word2vec(path, longest_line)
    chosen = choose(len(vectors), num_examples, rng)
    h = vectors[chosen]
    labels = np.empty(len(chosen), dtype=np.int64)
    for rows in chunks(len(chosen), _CHUNK):
        cosines = h[rows] @ vectors.T
        # a word is the nearest to itself
        cosines[np.arange(len(cosines)), chosen[rows]] = -np.inf
        labels[rows] = cosines.argmax(axis=1)
    return Embeddings(h, vectors, labels)


def load_logits(path: str | Path, labels: str | Path) -> tuple[FloatArray, IntArray]:
    """Load logits and their labels.

    Parameters
    ----------
    path : str or Path
        An ``.npy`` file of logits, shape (B, n), or (n,) for one example.
    labels : str or Path
        An ``.npy`` file of B class indices, or the indices themselves parted by commas.

    Returns
    -------
    logits : ndarray of float64, shape (B, n)
    labels : ndarray of int64, shape (B,)

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If its array would not fit.
    TypeError, ValueError
        If a file is unreadable, shapes disagree, logits are not finite or labels out of range.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "logits.npy")
    ...     np.save(path, np.zeros((2, 5)))
    ...     logits, labels = load_logits(path, "3,0")
    >>> logits.shape, labels
    ((2, 5), array([3, 0]))
    """
    logits = np.atleast_2d(as_real_array(f"logits in {path}", _load_array(path), (1, 2)))
    if str(labels).endswith(".npy"):
        name, values = f"labels in {labels}", np.atleast_1d(_load_array(labels))
    else:
        name = "labels"
        try:
            values = np.array([int(part) for part in str(labels).split(",")])
        except ValueError:
            raise ValueError(
                f"`labels` must be an .npy file or integers parted by commas, got "
                f"{shown(str(labels))}; write for example 3,1,4."
            ) from None
    return logits, as_labels(name, values, logits.shape[1], logits.shape[:1])


def _load_array(path: str | Path) -> Any:
    with open_arrays(path, *_PLAIN) as stream:
        return read_array(path, stream)


def _load_npz(path: str | Path) -> Embeddings:
    arrays: dict[str, Any] = {}
    with open_arrays(path, *_PLAIN) as stream:
        archive = Archive(path, stream)
        names = [name for name in _ARRAYS if name in archive.names]
        if set(names) >= set(_ARRAYS[:3]):
            arrays = archive.read(names)
    absent = [name for name in _ARRAYS[:3] if name not in names]
    if absent:
        raise ValueError(
            f"{str(path)!r} must hold the arrays h, class_embeddings and labels, got of them "
            f"{', '.join(names) or 'none'}; add {', '.join(absent)} with numpy.savez."
        )
    try:
        return Embeddings(**arrays)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{str(path)!r}: {error}") from None


def _load_word2vec(path: str | Path, longest_line: int) -> FloatArray:
    """Return the vectors of a word2vec text file as rows of norm 1, shape (n, d)."""
    with open_lines(path, longest_line, "") as lines:
        n, dim = _word2vec_sizes(next(lines, ""))
        require_bytes(
            f"{n:,} vectors of {dim:,} numbers, which line 1 of {str(path)!r} announces,",
            2 * 8 * n * dim,  # with a copy of the examples
            "correct that line, or give fewer of them",
        )
        vectors = np.empty((n, dim))
        rows = 0  # lines, of which those beyond n are only counted
        for line in lines:
            row = _word2vec_row(line, dim)
            if rows < n:
                vectors[rows] = row
            rows += 1
    if rows != n or n < 2:
        raise ValueError(
            f"{str(path)!r} must hold as many words as line 1 says, and at least 2: line 1 says "
            f"{n}, got {rows}; correct line 1, or fetch the whole file."
        )
    with np.errstate(over="ignore"):  # the norm is infinite then
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    bad = np.flatnonzero(~(np.isfinite(norms[:, 0]) & (norms[:, 0] > 0.0)))
    if len(bad):
        raise ValueError(
            f"{str(path)!r}, line {bad[0] + 2}: expected a finite vector other than 0, got norm "
            f"{norms[bad[0], 0]}; remove the line and lower the count on line 1."
        )
    vectors /= norms
    return vectors


def _word2vec_sizes(line: str) -> tuple[int, int]:
    words = line.split()
    n, dim = map(whole_number, words) if len(words) == 2 else (None, None)
    if not n or not dim or max(n, dim) > _LARGEST:
        raise Malformed(
            "expected the number of words and the dimension, from 1 to "
            f"{_LARGEST:,}, got {shown(line.strip())}; word2vec's text format starts so, and a "
            "GloVe file needs that line put first"
        )
    return n, dim


def _word2vec_row(line: str, dim: int) -> list[float]:
    # from the right: words may hold spaces
    word, *parts = line.rstrip(" \t\r\n").rsplit(" ", dim)
    try:
        row = list(map(float, parts))
    except ValueError as error:
        message = f"expected a word and {dim} numbers: {str(error)[:100]}"
        raise Malformed(message) from None
    if len(row) != dim:
        raise Malformed(
            f"expected a word and {dim} numbers parted by single spaces, got {len(row) + 1} "
            "field(s); line 1 gives the dimension"
        )
    return row
