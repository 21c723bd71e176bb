"""Next words of a text as classes, for several of the figures; not a script."""

from __future__ import annotations

from pathlib import Path

from samplesoft.data import Embeddings, examples_from_corpus, read_tokens, stdlib_tokens


def next_words(
    corpus: Path | None, vocabulary_size: int, dim: int, num_examples: int, seed: int
) -> Embeddings:
    """Return contexts, class vectors and labels from a text, or from Python's standard library."""
    return examples_from_corpus(
        stdlib_tokens() if corpus is None else read_tokens(corpus),
        vocabulary_size=vocabulary_size,
        dim=dim,
        num_examples=num_examples,
        rng=seed,
    )
