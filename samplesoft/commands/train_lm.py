"""``samplesoft train lm``: a recurrent language model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samplesoft.commands.model import Model, learning_rate, rates_in_words
from samplesoft.commands.options import (
    add_sizes,
    class_count,
    given,
    positive_float,
    positive_int,
    rate,
)
from samplesoft.commands.softmax_options import add_softmax, check_memory, check_softmax
from samplesoft.data.corpus import VOCABULARY_SIZE
from samplesoft.models.optimizers import OPTIMIZERS
from samplesoft.training.language_settings import LanguageModelSettings

if TYPE_CHECKING:
    from samplesoft.training.language_model import LanguageModelTask
    from samplesoft.training.settings import Settings

RATES = {"sgd": 1.0, "momentum": 0.1, "adagrad": 0.1, "adam": 0.003}  # others must be given
EPOCHS, CLIP, HOLD, DECAY = 13, 5.0, 4, 2.0
DEFAULTS = LanguageModelSettings()


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--corpus",
        metavar="PATH",
        help="a folder with one text file each named *train*, *valid* and *test*, or one text "
        "file, of whose lines 80%% are for training, 10%% for validation and 10%% for the test; "
        ".txt, also .gz, .xz, .bz2; needed except with --resume",
    )
    parser.add_argument(
        "--vocabulary",
        type=class_count,
        metavar="N",
        help="number of classes: the most frequent words, and <unk> for all others "
        f"(default {VOCABULARY_SIZE:,})",
    )
    add_softmax(
        parser.add_argument_group("softmax"),
        DEFAULTS,
        example="word",
        batch="words of a window",
    )
    _add_model(parser.add_argument_group("model"))


def _add_model(group: Any) -> None:
    lengths = "length of word vectors, class vectors and LSTM states"
    sizes = (
        ("--embedding-dim", "embedding_dim", lengths),
        ("--layers", "num_layers", "number of LSTM layers"),
        ("--batch", "batch_size", "rows of text in a batch"),
        ("--window", "num_steps", "words of each row in a step; gradients go back as far"),
    )
    add_sizes(group, DEFAULTS, sizes)
    group.add_argument(
        "--dropout",
        type=rate,
        metavar="RATE",
        help="probability with which an input of a layer or of the softmax is dropped "
        f"(default {DEFAULTS.dropout:g})",
    )
    group.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        metavar="NAME",
        help=f"one of {', '.join(OPTIMIZERS)} (default sgd with --no-normalize, else adam: with "
        "vectors of norm 1 the first gradients are so large that sgd saturates the LSTM)",
    )
    for name, value, what in (
        ("init-scale", DEFAULTS.init_scale, "parameters start uniform in [-X, X]"),
        ("clip", CLIP, "largest norm of the gradients of a step; larger ones are scaled down"),
        ("decay", DECAY, "divisor of the learning rate after each epoch beyond --hold"),
    ):
        group.add_argument(
            f"--{name}", type=positive_float, metavar="X", help=f"{what} (default {value:g})"
        )
    group.add_argument(
        "--hold",
        type=positive_int,
        metavar="N",
        help=f"epochs with the full learning rate (default {HOLD})",
    )


def _make_task(options: argparse.Namespace) -> LanguageModelTask:
    """Read the corpus and make the model; the path of the corpus in `options` becomes absolute."""
    from samplesoft.data.corpus import read_corpus
    from samplesoft.training.language_model import LanguageModelTask

    values = check_softmax(given(options, LanguageModelSettings), DEFAULTS)
    settings = LanguageModelSettings(**values)
    check_memory(settings)
    if options.corpus is None:
        raise ValueError("--corpus must name a text file or a folder of texts, got none; add it.")
    options.corpus = str(Path(options.corpus).resolve())
    corpus = read_corpus(options.corpus, vocabulary_size=options.vocabulary or VOCABULARY_SIZE)
    needed = settings.batch_size * (settings.num_steps + 1)
    if len(corpus.train) < needed:
        raise ValueError(
            f"--batch {settings.batch_size} rows of --window {settings.num_steps} need a training "
            f"text of at least {needed:,} words, got {len(corpus.train):,}; lower one of them."
        )
    return LanguageModelTask(corpus, settings)


def _make_settings(options: argparse.Namespace) -> Settings:
    from samplesoft.training.settings import Settings

    optimizer = options.optimizer or ("sgd" if options.normalize is False else "adam")
    return Settings(
        epochs=options.epochs or EPOCHS,
        optimizer=optimizer,
        learning_rate=learning_rate(options, optimizer, RATES),
        schedule="zaremba",
        schedule_options={"hold": options.hold or HOLD, "decay": options.decay or DECAY},
        clip=options.clip or CLIP,
        patience=options.patience,
        checkpoint_every=options.checkpoint_every,
    )


MODEL = Model(
    help="a recurrent language model",
    description="Train an LSTM language model of the size of the small one of Zaremba et al. "
    "(2014), with a sampled softmax over vectors of norm 1. Their own model is --loss full "
    "--no-normalize.",
    epochs=EPOCHS,
    learning_rate=rates_in_words(RATES),
    headline="perplexity",
    add_options=_add_options,
    make_task=_make_task,
    make_settings=_make_settings,
    checkpoint_every=500,
    results=lambda task: {"test": task.evaluate(task.corpus.test)},
)
