"""What ``samplesoft verify`` runs on, from each kind of input."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np

from samplesoft._validation import FloatArray, IntArray
from samplesoft.commands.options import say
from samplesoft.data import (
    Embeddings,
    examples_from_corpus,
    load_embeddings,
    load_logits,
    read_tokens,
    stdlib_tokens,
)


@dataclass(frozen=True)
class Source:
    """Logits and labels, and where they came from; vectors where the logits are their products."""

    title: str
    logits: FloatArray
    labels: IntArray
    embeddings: Embeddings | None = None
    counts: FloatArray | None = None
    tau: float = 1.0


def load_source(options: argparse.Namespace) -> Source:
    """Load what the options name, or the standard library's text.

    Parameters
    ----------
    options : argparse.Namespace
        Of ``samplesoft verify``.

    Returns
    -------
    Source
        At most ``--examples`` examples.

    Raises
    ------
    OSError, TypeError, ValueError
        If the input is bad.
    """
    if options.logits:
        logits, labels = load_logits(options.logits, options.labels)
        count = options.examples
        return Source(f"logits of {options.logits}", logits[:count], labels[:count])
    if options.checkpoint:
        return _of_checkpoint(options)
    if options.embeddings:
        say(f"Reading {options.embeddings}.")
        title = f"embeddings of {options.embeddings}"
        vectors = load_embeddings(
            options.embeddings, num_examples=options.examples, rng=options.seed
        )
    else:
        version = ".".join(map(str, sys.version_info[:3]))
        title = f"text of {options.corpus}" if options.corpus else f"Python {version}'s library"
        say(f"Reading and embedding: {title}.")
        tokens = read_tokens(options.corpus) if options.corpus else stdlib_tokens()
        vectors = examples_from_corpus(tokens, num_examples=options.examples, rng=options.seed)
        title += f" ({len(tokens):,} tokens)"
    return _of_vectors(title, vectors, options.tau)


def _of_vectors(title: str, vectors: Embeddings, tau: float) -> Source:
    logits = tau * (vectors.h @ vectors.class_embeddings.T)
    return Source(title, logits, vectors.labels, vectors, vectors.counts, tau)


def _of_checkpoint(options: argparse.Namespace) -> Source:
    from samplesoft.training.examples import read_examples

    trained = read_examples(options.checkpoint)
    vectors = trained.embeddings.take(options.examples, options.seed)
    title = f"checkpoint {options.checkpoint} after {trained.step:,} steps"
    source = _of_vectors(title, vectors, trained.tau)
    if trained.absolute:  # |o| is no product of vectors
        return Source(f"{title}, |o|", np.abs(source.logits), source.labels, counts=source.counts)
    return source
