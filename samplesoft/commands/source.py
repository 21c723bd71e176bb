"""The input of ``samplesoft verify``: text, vectors, logits or a checkpoint."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from samplesoft._progress import progress_phase
from samplesoft._temperature import as_tau, have_norm_1
from samplesoft._validation import FloatArray, IntArray
from samplesoft.commands.inputs import read_inputs
from samplesoft.data import (
    Embeddings,
    examples_from_corpus,
    load_embeddings,
    load_logits,
    read_tokens,
    stdlib_tokens,
)
from samplesoft.data.corpus import training_text

if TYPE_CHECKING:
    from samplesoft.training.examples import TrainedSoftmax


@dataclass(frozen=True)
class Source:
    """Logits and labels with the name of their origin, and what else the input says."""

    title: str
    logits: FloatArray  # (B, n)
    labels: IntArray  # (B,)
    embeddings: Embeddings | None = None  # where logits are products of vectors
    counts: FloatArray | None = None  # (n,)
    tau: float = 1.0

    @property
    def unit_vectors(self) -> bool:
        """Whether there are vectors, all of norm 1."""
        return self.embeddings is not None and have_norm_1(
            self.embeddings.h, self.embeddings.class_embeddings
        )


def load_source(options: argparse.Namespace) -> Source:
    """Load ``--examples`` examples of the input that the options name, or of Python's library."""
    with progress_phase(True, "reading the input"):
        return _loaded(options)


def _loaded(options: argparse.Namespace) -> Source:
    if options.logits:
        logits, labels = load_logits(options.logits, options.labels)
        count = options.examples
        return Source(f"logits of {options.logits}", logits[:count], labels[:count])
    if options.checkpoint:
        return _from_checkpoint(options)
    if options.embeddings:
        title = f"embeddings of {options.embeddings}"
        vectors = load_embeddings(
            options.embeddings, num_examples=options.examples, rng=options.seed
        )
    else:
        version = ".".join(map(str, sys.version_info[:3]))
        path = None if options.corpus is None else training_text(options.corpus)
        title = f"Python {version}'s library" if path is None else f"text of {path}"
        tokens = stdlib_tokens() if path is None else read_tokens(path)
        vectors = examples_from_corpus(tokens, num_examples=options.examples, rng=options.seed)
        title += f" ({len(tokens):,} tokens)"
    return _from_vectors(title, vectors, as_tau(options.tau, _are_unit(vectors)))


def _are_unit(vectors: Embeddings) -> bool:
    return have_norm_1(vectors.h, vectors.class_embeddings)


def _from_vectors(title: str, vectors: Embeddings, tau: float) -> Source:
    logits = tau * (vectors.h @ vectors.class_embeddings.T)
    return Source(title, logits, vectors.labels, vectors, vectors.counts, tau)


def _from_checkpoint(options: argparse.Namespace) -> Source:
    trained = _trained(options)
    title = f"checkpoint {options.checkpoint} after {trained.step:,} steps"
    if options.input:
        title += f", examples of {options.input}"
    source = _from_vectors(title, trained.embeddings, trained.tau)
    if trained.absolute:  # logits |o| are not products of vectors
        return Source(f"{title}, |o|", np.abs(source.logits), source.labels, counts=source.counts)
    return source


def _trained(options: argparse.Namespace) -> TrainedSoftmax:
    """Return the model with ``--examples`` examples of its own, or of ``--input``."""
    from samplesoft.training.examples import read_examples
    from samplesoft.training.linear_examples import linear_examples
    from samplesoft.training.linear_model import read_linear_softmax

    if not options.input:
        found = read_examples(options.checkpoint)
        some = found.embeddings.take(options.examples, options.seed)
        return replace(found, embeddings=some)
    model = read_linear_softmax(options.checkpoint)
    inputs, labels = read_inputs(options.input, model)
    if labels.shape[1] != model.num_classes:
        raise ValueError(
            f"--input must have the {model.num_classes:,} labels of the model, got "
            f"{labels.shape[1]:,}; number the model's classes from 0, in their order."
        )
    return linear_examples(model, inputs, labels, options.examples, options.seed)
