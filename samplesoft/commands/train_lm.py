"""``samplesoft train lm``: a recurrent language model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samplesoft.commands.options import (
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

HELP = "a recurrent language model"
DESCRIPTION = (
    "An LSTM language model of the size of the small one of Zaremba et al. (2014), with a sampled "
    "softmax of vectors of norm 1. Theirs is --loss full --no-normalize."
)
RATES = {"sgd": 1.0, "momentum": 0.1, "adagrad": 0.1, "adam": 0.003}  # others must be given
LEARNING_RATE = ", ".join(f"{rate} for {name}" for name, rate in RATES.items())
EPOCHS, CHECKPOINT_EVERY = 13, 500
CLIP, HOLD, DECAY = 5.0, 4, 2.0
DEFAULTS = LanguageModelSettings()
HEADLINE = "perplexity"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model; None stands for what is not given."""
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
        help="the N most frequent words are told apart, <unk> for the rest among them "
        f"(default {VOCABULARY_SIZE:,})",
    )
    add_softmax(
        parser.add_argument_group("softmax"),
        DEFAULTS,
        tau="1 / 0.3**2, with --no-normalize 1",
        example="word",
        batch="words of a window",
    )
    _add_model(parser.add_argument_group("model"))


def _add_model(group: Any) -> None:
    for flag, name, what in (
        (
            "embedding-dim",
            "embedding_dim",
            "length of the LSTM's state, of word and of class vectors",
        ),
        ("layers", "num_layers", "LSTMs on top of each other"),
        ("batch", "batch_size", "rows of text that are read side by side"),
        ("window", "num_steps", "words of a row that a step reads, and gradients go back"),
    ):
        group.add_argument(
            f"--{flag}",
            dest=name,
            type=positive_int,
            metavar="N",
            help=f"{what} (default {getattr(DEFAULTS, name)})",
        )
    group.add_argument(
        "--dropout",
        type=rate,
        metavar="RATE",
        help="probability to drop an input of a layer or of the softmax "
        f"(default {DEFAULTS.dropout:g})",
    )
    group.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        metavar="NAME",
        help=f"of {', '.join(OPTIMIZERS)} (default: sgd with --no-normalize, else adam; norms of 1 "
        "make gradients of the first steps so large that sgd drives the LSTM into saturation)",
    )
    for name, value, what in (
        ("init-scale", DEFAULTS.init_scale, "bound of all parameters at the start"),
        ("clip", CLIP, "largest norm of the gradients of a step"),
        ("decay", DECAY, "what the learning rate is divided by after each epoch from --hold on"),
    ):
        group.add_argument(
            f"--{name}", type=positive_float, metavar="X", help=f"{what} (default {value:g})"
        )
    group.add_argument(
        "--hold", type=positive_int, metavar="N", help=f"see --decay (default {HOLD})"
    )


def make_task(options: argparse.Namespace) -> LanguageModelTask:
    """Read the corpus and make the model.

    Parameters
    ----------
    options : argparse.Namespace
        As parsed; the path of the corpus is made absolute.

    Returns
    -------
    LanguageModelTask
        The task.

    Raises
    ------
    MemoryError, OSError, TypeError, ValueError
        If the corpus or an option is bad.
    """
    from samplesoft.data.corpus import read_corpus
    from samplesoft.training.language_model import LanguageModelTask

    values = given(options, LanguageModelSettings)
    if not values.get("normalize", DEFAULTS.normalize):
        values.setdefault("tau", 1.0)
    settings = LanguageModelSettings(**check_softmax(values, DEFAULTS))
    check_memory(settings)
    if options.corpus is None:
        raise ValueError("--corpus must name a text or a folder of texts, got none; add it.")
    options.corpus = str(Path(options.corpus).resolve())
    corpus = read_corpus(options.corpus, vocabulary_size=options.vocabulary or VOCABULARY_SIZE)
    needed = settings.batch_size * (settings.num_steps + 1)
    if len(corpus.train) < needed:
        raise ValueError(
            f"--batch {settings.batch_size} rows of --window {settings.num_steps} need a training "
            f"text of at least {needed:,} words, got {len(corpus.train):,}; lower one of them."
        )
    return LanguageModelTask(corpus, settings)


def make_settings(options: argparse.Namespace) -> Settings:
    """Return how the model is trained."""
    from samplesoft.training.settings import Settings

    optimizer = options.optimizer or ("sgd" if options.normalize is False else "adam")
    learning_rate = options.learning_rate or RATES.get(optimizer)
    if learning_rate is None:
        raise ValueError(
            f"--learning-rate must be given with --optimizer {optimizer}, which has no default."
        )
    return Settings(
        epochs=options.epochs or EPOCHS,
        optimizer=optimizer,
        learning_rate=learning_rate,
        schedule="zaremba",
        schedule_options={"hold": options.hold or HOLD, "decay": options.decay or DECAY},
        clip=options.clip or CLIP,
        patience=options.patience,
        checkpoint_every=options.checkpoint_every,
    )


def final(task: LanguageModelTask) -> dict[str, Any]:
    """Return figures of the best epoch's parameters on the test text."""
    return {"test": task.evaluate(task.corpus.test)}
