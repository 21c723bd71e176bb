"""Load vectors or logits that a user already has."""

from __future__ import annotations

import zipfile
import zlib
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from samplesoft._jit import chunks
from samplesoft._validation import FloatArray, IntArray, as_labels, as_real_array
from samplesoft.data.embeddings import Embeddings, choose
from samplesoft.data.files import missing, open_text

_ARRAYS = ("h", "class_embeddings", "labels", "counts")
_CHUNK = 256  # examples at a time against all words


def load_embeddings(
    path: str | Path,
    *,
    num_examples: int | None = None,
    rng: int | np.random.Generator | None = None,
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

    Returns
    -------
    Embeddings
        The examples.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
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
    vectors = _load_word2vec(path)
    chosen = choose(len(vectors), num_examples, rng)
    h = vectors[chosen]
    labels = np.empty(len(chosen), dtype=np.int64)
    for rows in chunks(len(chosen), _CHUNK):
        cosines = h[rows] @ vectors.T
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
                f"{str(labels)!r}; write for example 3,1,4."
            ) from None
    return logits, as_labels(name, values, logits.shape[1], logits.shape[:1])


def _load_npy(path: str | Path) -> Any:
    """Return the array of an ``.npy`` file, or what an ``.npz`` file holds of ``_ARRAYS``."""
    try:
        with open(path, "rb") as stream:  # NumPy leaves a file that it opened and refused open
            value = np.load(stream, allow_pickle=False)
            if isinstance(value, np.lib.npyio.NpzFile):
                return {name: value[name] for name in _ARRAYS if name in value}
            return value
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{str(path)!r} must be a file of plain arrays in NumPy's format: {error}; "
            "write it with numpy.save or numpy.savez, and without Python objects."
        ) from None


def _load_array(path: str | Path) -> Any:
    array = _load_npy(path)
    if isinstance(array, dict):
        raise ValueError(f"{str(path)!r} must hold one array; write it with numpy.save.")
    return array


def _load_npz(path: str | Path) -> Embeddings:
    arrays = _load_npy(path)
    if not isinstance(arrays, dict):
        raise ValueError(f"{str(path)!r} must be an archive; write it with numpy.savez.")
    absent = [name for name in _ARRAYS if name not in arrays and name != "counts"]
    if absent:
        raise ValueError(
            f"{str(path)!r} must hold the arrays h, class_embeddings and labels, got of them "
            f"{', '.join(arrays) or 'none'}; add {', '.join(absent)} with numpy.savez."
        )
    try:
        return Embeddings(**arrays)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{str(path)!r}: {error}") from None


def _load_word2vec(path: str | Path) -> FloatArray:
    """Return the vectors of a word2vec text file as rows of norm 1, shape (n, d)."""
    values = array("d")
    with open_text(path) as stream:
        header = stream.readline().split()
        if len(header) != 2 or not all(part.isdecimal() and int(part) > 0 for part in header):
            raise ValueError(
                f"{str(path)!r}, line 1: expected the number of words and the dimension, got "
                f"{' '.join(header)[:60]!r}; word2vec's text format starts so, and a GloVe file "
                "needs that line put first."
            )
        n, dim = map(int, header)
        rows = 0
        for number, line in enumerate(stream, start=2):
            parts = line.rstrip(" \t\r\n").rsplit(" ", dim)
            try:
                values.extend(map(float, parts[1:]))
            except ValueError as error:
                raise ValueError(
                    f"{str(path)!r}, line {number}: expected a word and {dim} numbers: {error}."
                ) from None
            if len(parts) != dim + 1:
                raise ValueError(
                    f"{str(path)!r}, line {number}: expected a word and {dim} numbers parted by "
                    f"single spaces, got {len(parts)} field(s); line 1 gives the dimension."
                )
            rows += 1
    if rows != n or n < 2:
        raise ValueError(
            f"{str(path)!r} must hold as many words as line 1 says, and at least 2: line 1 says "
            f"{n}, got {rows}; correct line 1, or fetch the whole file."
        )
    vectors = np.array(values).reshape(n, dim)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    bad = np.flatnonzero(~(np.isfinite(norms[:, 0]) & (norms[:, 0] > 0.0)))
    if len(bad):
        raise ValueError(
            f"{str(path)!r}, line {bad[0] + 2}: expected a finite vector other than 0, got norm "
            f"{norms[bad[0], 0]}; remove the line and lower the count on line 1."
        )
    unit: FloatArray = vectors / norms
    return unit
