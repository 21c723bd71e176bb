"""Examples for verification: contexts, class vectors and labels, or logits, and their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samplesoft._random import stream_key
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_count,
    as_counts,
    as_labels,
    as_real_array,
    exact_integers,
    short_repr,
)
from samplesoft.data.arrays import ArrayArchive, open_arrays, read_array

_ARRAY_NAMES = ("h", "class_embeddings", "labels", "counts")
_EXPECTED_AND_REMEDY = (
    "a file of plain arrays",
    "write it with numpy.save, or numpy.savez where it ends in .npz, without Python objects",
)


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
        Number of occurrences of each class, for the unigram proposal.

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

        # the class is frozen, so that attributes cannot be set directly
        object.__setattr__(self, "h", h)
        object.__setattr__(self, "class_embeddings", classes)
        object.__setattr__(self, "labels", as_labels("labels", labels, len(classes), labels.shape))
        if self.counts is not None:
            object.__setattr__(self, "counts", as_counts("counts", self.counts, len(classes)))

    def take(self, num_examples: int | None, rng: int | np.random.Generator | None) -> Embeddings:
        """Return `num_examples` random distinct examples, in their original order.

        All examples are returned if `num_examples` is None or not less than their number.
        """
        indices = choose_indices(len(self.h), num_examples, rng)
        return Embeddings(self.h[indices], self.class_embeddings, self.labels[indices], self.counts)


def choose_indices(
    size: int, num_indices: int | None, rng: int | np.random.Generator | None
) -> IntArray:
    """Return `num_indices` random distinct indices below `size`, sorted.

    All indices are returned if `num_indices` is None or at least `size`.
    """
    if num_indices is None or as_count("num_examples", num_indices) >= size:
        return np.arange(size, dtype=np.int64)
    generator = np.random.default_rng(int(stream_key(rng)))
    return np.sort(generator.choice(size, num_indices, replace=False))


def load_embeddings(
    path: str | Path,
    *,
    num_examples: int | None = None,
    rng: int | np.random.Generator | None = None,
) -> Embeddings:
    r"""Load examples from an ``.npz`` file.

    The file holds the arrays ``h`` (N, d), ``class_embeddings`` (n, d), ``labels`` (N,) and
    optionally ``counts`` (n,). They are used unchanged; vectors are not normalised.

    Parameters
    ----------
    path : str or Path
        The file.
    num_examples : int or None
        Number of examples to draw, without replacement; None takes all.
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
    MemoryError
        If the arrays of the file do not fit in memory.
    ValueError
        If the file is malformed.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "vectors.npz")
    ...     np.savez(path, h=np.eye(2), class_embeddings=np.eye(3, 2), labels=[1, 0])
    ...     load_embeddings(path).labels
    array([1, 0])
    """
    arrays: dict[str, Any] = {}
    with open_arrays(path, *_EXPECTED_AND_REMEDY) as stream:
        archive = ArrayArchive(path, stream)
        names = [name for name in _ARRAY_NAMES if name in archive.names]
        if set(names) >= set(_ARRAY_NAMES[:3]):
            arrays = archive.read(names)

    missing_names = [name for name in _ARRAY_NAMES[:3] if name not in names]
    if missing_names:
        raise ValueError(
            f"{str(path)!r} must hold the arrays h, class_embeddings and labels, got of them "
            f"{', '.join(names) or 'none'}; add {', '.join(missing_names)} with numpy.savez."
        )

    try:
        return Embeddings(**arrays).take(num_examples, rng)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{str(path)!r}: {error}") from None


def load_logits(path: str | Path, labels: str | Path) -> tuple[FloatArray, IntArray]:
    """Load logits from an ``.npy`` file, and the labels of their examples.

    Parameters
    ----------
    path : str or Path
        An ``.npy`` file of logits, shape (B, n), or (n,) for one example.
    labels : str or Path
        An ``.npy`` file of B class indices, or the indices as text, separated by commas.

    Returns
    -------
    logits : ndarray of float64, shape (B, n)
        Logits of each example.
    labels : ndarray of int64, shape (B,)
        True class of each example.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If an array does not fit in memory.
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
        name = f"labels in {labels}"
        label_values = np.atleast_1d(_load_array(labels))
    else:
        name = "labels"
        try:
            label_values = exact_integers([int(word) for word in str(labels).split(",")])
        except ValueError:
            raise ValueError(
                f"`labels` must be an .npy file or integers separated by commas, got "
                f"{short_repr(str(labels))}; pass for example 3,1,4."
            ) from None

    return logits, as_labels(name, label_values, logits.shape[1], logits.shape[:1])


def _load_array(path: str | Path) -> Any:
    """Return the array of an ``.npy`` file; raise the errors of `open_arrays`."""
    with open_arrays(path, *_EXPECTED_AND_REMEDY) as stream:
        return read_array(path, stream)
