"""Options that name the input of a command: text, vectors, a checkpoint, or logits."""

from __future__ import annotations

import argparse

from samplesoft.commands.options import positive_int


def add_source(parser: argparse.ArgumentParser, *, examples: int, logits: bool) -> None:
    """Add the options that `samplesoft.commands.source.load_source` reads."""
    names = (
        "--corpus, --embeddings, --logits, --checkpoint"
        if logits
        else ("--corpus, --embeddings, --checkpoint")
    )
    source = parser.add_argument_group(f"input (one of {names})")
    only = source.add_mutually_exclusive_group()
    only.add_argument(
        "--corpus",
        metavar="PATH",
        help="a text file with one sentence a line, or a folder with one whose name contains "
        "train; also .gz, .xz or .bz2",
    )
    only.add_argument(
        "--embeddings",
        metavar="FILE",
        help=".npz with the arrays h, class_embeddings, labels and, for unigram, counts; or "
        "vectors in word2vec's text format, 'n d' and then 'word v_1 ... v_d' on n lines, where "
        "the context is a word's vector and its label the nearest other word",
    )
    if logits:
        only.add_argument(
            "--logits", metavar="FILE", help=".npy of logits (B, n); needs --labels as well"
        )
    only.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="written by samplesoft train or SampledSoftmaxClassifier.save: its class vectors, "
        "its tau, and contexts that the trained model made of held-out examples or of --input",
    )
    source.add_argument(
        "--input",
        metavar="FILE",
        help="examples for a --checkpoint of train xc, train items or a classifier, whose file "
        "holds none, in the format of the training data; labels are the model's classes, numbered "
        "from 0. Where an example has several, one is drawn at random by --seed; of a user's "
        "items, the one that is drawn is the label, and the others make the context",
    )
    if logits:
        source.add_argument(
            "--labels",
            metavar="FILE",
            help=".npy of B integers for --logits, or the list, as 3,0,7",
        )
    else:
        parser.set_defaults(logits=None, labels=None)
    source.add_argument(
        "--examples",
        type=positive_int,
        default=examples,
        metavar="B",
        help="number of examples (default %(default)s)",
    )


def check_source(options: argparse.Namespace) -> None:
    """Raise ValueError if options of the input do not go together."""
    if options.checkpoint and options.tau is not None:
        raise ValueError(
            f"--tau has no effect with --checkpoint, which holds its own, got {options.tau}; "
            "leave it out."
        )
    if options.input and not options.checkpoint:
        raise ValueError(
            f"--input needs --checkpoint with it, got {options.input!r} alone; add the model."
        )
