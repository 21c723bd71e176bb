"""What a verification runs on: contexts, classes and labels; and how to get them from a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from samplesoft._random import as_key
from samplesoft._validation import (
    FloatArray,
    IntArray,
    as_array,
    as_count,
    as_counts,
    as_labels,
    as_real_array,
)
from samplesoft.data.ppmi import normalise, ppmi_svd
from samplesoft.data.vocabulary import as_words, build_vocabulary


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


def examples_from_corpus(
    tokens: Sequence[str],
    *,
    vocabulary_size: int = 10_000,
    dim: int = 64,
    window: int = 1,
    num_examples: int | None = 1000,
    rng: int | np.random.Generator | None = None,
) -> Embeddings:
    """Make next-word examples from a text: the vectors of `ppmi_svd`, the labels that came next.

    Parameters
    ----------
    tokens : sequence of str
        The text.
    vocabulary_size, dim, window : int
        Passed on to `build_vocabulary` and `ppmi_svd`.
    num_examples : int or None
        How many places of the text to draw, without replacement; None takes all there are.
    rng : int or numpy.random.Generator or None
        Seed of the draw; the vectors do not depend on it.

    Returns
    -------
    Embeddings
        ``h`` is the unit vector of the word before, or of the sum over `window` words with
        weights 1/k; classes are numbered by falling frequency.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed or the text too short.
    MemoryError
        If the vectors would not fit.

    Examples
    --------
    >>> text = "the cat sat on the mat <eos> the cat ran <eos>".split() * 20
    >>> examples = examples_from_corpus(text, dim=6, num_examples=4, rng=0)
    >>> examples.h.shape, examples.class_embeddings.shape
    ((4, 6), (7, 6))
    """
    tokens = as_words("tokens", tokens)
    window = as_count("window", window)
    places = choose(len(tokens) - window, num_examples, rng) + window
    vocabulary = build_vocabulary(tokens, as_count("vocabulary_size", vocabulary_size, 2))
    ids = vocabulary.encode(tokens)
    contexts, classes = ppmi_svd(ids, len(vocabulary.words), dim, window)
    total = np.zeros((len(places), contexts.shape[1]))
    for k in range(1, window + 1):
        total += contexts[ids[places - k]] / k
    return Embeddings(normalise(total), classes, ids[places], vocabulary.counts.astype(np.float64))
