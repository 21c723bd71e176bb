"""Input of ``samplesoft verify`` and ``tune``: a text, vectors, logits or a checkpoint."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from samplesoft._progress import progress_phase
from samplesoft._temperature import as_tau, have_unit_norm
from samplesoft._validation import FloatArray, IntArray
from samplesoft.commands.files import InputFile, flag
from samplesoft.commands.options import Option, Options, add_options, positive_int
from samplesoft.data import (
    Embeddings,
    examples_from_corpus,
    load_embeddings,
    load_logits,
    read_tokens,
    stdlib_tokens,
)

if TYPE_CHECKING:
    from samplesoft.data.xml_repository import SparseExamples
    from samplesoft.training.trained import TrainedLinearSoftmax, TrainedSoftmax


_LOGIT_OPTIONS = ("logits", "labels")  # options for an input of logits, without vectors


@dataclass(frozen=True)
class Source:
    """Logits and labels of examples, with vectors, class counts and tau if the input has them."""

    title: str  # name of the input in reports
    logits: FloatArray  # (B, n)
    labels: IntArray  # (B,)
    embeddings: Embeddings | None = None  # the vectors, if logits are products of vectors
    counts: FloatArray | None = None  # (n,): count of each class
    tau: float = 1.0
    unit_vectors: bool = False  # True if there are vectors, all of norm 1


_INPUT_OPTIONS: Options = {
    "corpus": Option(
        "text file with one sentence per line; also .gz, .xz or .bz2",
        parse=InputFile,
        metavar="PATH",
    ),
    "embeddings": Option(
        ".npz file with the arrays h, class_embeddings, labels and, for unigram, counts",
        parse=InputFile,
        metavar="FILE",
    ),
    "logits": Option(
        ".npy file with logits (B, n); needs --labels as well",
        parse=InputFile,
        metavar="FILE",
    ),
    "checkpoint": Option(
        "file written by samplesoft train or SampledSoftmaxClassifier.save, with class vectors and "
        "tau; contexts are computed by the model from held-out examples or from --input",
        parse=InputFile,
        metavar="FILE",
    ),
}
_EXTRA_OPTIONS: Options = {
    "input": Option(
        "file of examples, in the format of the training data, for a --checkpoint of train xc, "
        "train items or a classifier, which holds no examples; labels are the model's classes, "
        "numbered from 0. If an example has several labels, --seed draws one. Of a user's items, "
        "one is drawn as the label, and the others are the context",
        parse=InputFile,
        metavar="FILE",
    ),
    "labels": Option(
        ".npy file with labels (B,) for --logits, or a list such as 3,0,7",
        parse=InputFile,
        metavar="FILE",
    ),
    "examples": Option(
        "number of examples (default %(default)s)",
        parse=positive_int,
        metavar="B",
    ),
}


def add_source_options(parser: argparse.ArgumentParser, *, examples: int, logits: bool) -> None:
    """Add the options that `load_source` reads to a parser.

    `examples` is the default number of examples. `logits` says whether to add the options for
    input of logits.
    """
    input_options, extra_options = (
        {name: option for name, option in options.items() if logits or name not in _LOGIT_OPTIONS}
        for options in (_INPUT_OPTIONS, _EXTRA_OPTIONS)
    )

    group = parser.add_argument_group(f"input (one of {', '.join(map(flag, input_options))})")
    add_options(group.add_mutually_exclusive_group(), input_options)
    add_options(group, extra_options)
    parser.set_defaults(examples=examples)
    if not logits:
        parser.set_defaults(**dict.fromkeys(_LOGIT_OPTIONS))


def check_source_options(options: argparse.Namespace) -> None:
    """Raise ValueError for conflicting options of the input."""
    if options.checkpoint and options.tau is not None:
        raise ValueError(
            f"--tau has no effect with --checkpoint, which holds its own, got {options.tau}; "
            "leave it out."
        )
    if options.input and not options.checkpoint:
        raise ValueError(
            f"--input needs --checkpoint with it, got {options.input!r} alone; add the model."
        )


def load_source(options: argparse.Namespace) -> Source:
    """Return ``--examples`` examples of the input that the options name.

    The default input is the source text of Python's standard library.
    """
    with progress_phase(True, "reading the input"):
        return _read_source(options)


def _read_source(options: argparse.Namespace) -> Source:
    if options.logits:
        # this source has no vectors, so samplers that need vectors cannot be tried
        logits, labels = load_logits(options.logits, options.labels)
        num_examples = options.examples
        title = f"logits of {options.logits}"
        return Source(title, logits[:num_examples], labels[:num_examples])

    if options.checkpoint:
        trained = _load_trained(options)
        title = f"checkpoint {options.checkpoint} after {trained.step:,} steps"
        if options.input:
            title += f", examples of {options.input}"

        source = _source_from_vectors(title, trained.embeddings, trained.tau)
        if trained.absolute:  # pass no vectors, because logits |o| are not products of vectors
            logits = np.abs(source.logits)
            return Source(f"{title}, |o|", logits, source.labels, counts=source.counts)
        return source

    sampling: dict[str, Any] = {"num_examples": options.examples, "rng": options.seed}
    if options.embeddings:
        title = f"embeddings of {options.embeddings}"
        vectors = load_embeddings(options.embeddings, **sampling)
    else:
        version = ".".join(map(str, sys.version_info[:3]))
        title = f"Python {version}'s library"
        if options.corpus:
            title = f"text of {options.corpus}"
        # the default is a text that every installation has, so that the command works without files
        tokens = read_tokens(options.corpus) if options.corpus else stdlib_tokens()
        vectors = examples_from_corpus(tokens, **sampling)
        title += f" ({len(tokens):,} tokens)"

    return _source_from_vectors(title, vectors, options.tau)


def _source_from_vectors(title: str, vectors: Embeddings, tau: float | None) -> Source:
    are_unit = have_unit_norm(vectors.h, vectors.class_embeddings)
    tau = as_tau(tau, are_unit)
    logits = tau * (vectors.h @ vectors.class_embeddings.T)
    return Source(
        title=title,
        logits=logits,
        labels=vectors.labels,
        embeddings=vectors,
        counts=vectors.counts,
        tau=tau,
        unit_vectors=are_unit,
    )


def _load_trained(options: argparse.Namespace) -> TrainedSoftmax:
    """Return the model of ``--checkpoint``, with examples from the checkpoint or ``--input``."""
    from samplesoft.training.trained import (
        read_examples,
        read_linear_softmax,
        sample_trained_softmax,
    )

    if not options.input:
        trained = read_examples(options.checkpoint)
        # take only --examples of the 300 contexts that a checkpoint stores
        embeddings = trained.embeddings.take(options.examples, options.seed)
        return replace(trained, embeddings=embeddings)

    model = read_linear_softmax(options.checkpoint)
    inputs, labels = read_inputs(options.input, model)
    remedy = "; number the model's classes from 0, in their order"
    _require_width("labels of the model", model.model.num_classes, labels, remedy)

    return sample_trained_softmax(model, inputs, labels, options.examples, options.seed)


def read_inputs(path: str, trained: TrainedLinearSoftmax) -> SparseExamples:
    """Read inputs (N, v) and labels; for ``train items``, both are the interaction matrix."""
    from samplesoft.data.interactions import enlarged_to_shape, load_interactions
    from samplesoft.data.xml_repository import SparseExamples, load_xml_repository

    width = trained.model.num_inputs
    if trained.leave_out:
        interactions = load_interactions(path)
        shape = (interactions.shape[0], max(interactions.shape[1], width))
        interactions = enlarged_to_shape(interactions, shape)
        examples = SparseExamples(interactions, interactions)
    else:
        examples = load_xml_repository(path)

    _require_width("columns that the model was trained on", width, examples.inputs, "")
    return examples


def _require_width(column_text: str, width: int, matrix: Any, remedy: str) -> None:
    if matrix.shape[1] != width:
        raise ValueError(
            f"--input must have the {width:,} {column_text}, got {matrix.shape[1]:,}{remedy}."
        )
