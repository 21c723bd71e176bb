"""The common frame of ``train xc`` and ``train items``: classes ranked for sparse inputs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samplesoft.commands.model import Model, learning_rate, rates_in_words
from samplesoft.commands.options import add_sizes, given, positive_float, rate
from samplesoft.commands.softmax_options import add_softmax, check_softmax, refuse
from samplesoft.losses.base import LABEL_REDUCTIONS
from samplesoft.losses.registry import LOSSES
from samplesoft.models.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from samplesoft.training.retrieval import RetrievalSettings, RetrievalTask
    from samplesoft.training.settings import Settings

EPOCHS = 20
RATES = {"adagrad": 0.1, "adam": 0.01}  # others must be given
RATES_OF_INPUTS = {"adagrad": 2.0}  # without an embedding
SEVERAL_LABELS = [name for name, spec in LOSSES.items() if spec.several_labels]


def retrieval_model(
    *,
    help: str,
    description: str,
    headline: str,
    defaults: RetrievalSettings,
    form: str,
    make_task: Callable[[dict[str, str], RetrievalSettings], RetrievalTask],
) -> Model:
    """Return a model that ranks classes for sparse inputs.

    `defaults` holds for options that are not given, `form` says what the lines of its files are.
    `make_task` reads the files ``train`` and, if given, ``test``, and makes the task, whose
    attribute ``test`` gets the test data.
    """

    def add_options(parser: argparse.ArgumentParser) -> None:
        _add_options(parser, defaults, form)

    def make(options: argparse.Namespace) -> RetrievalTask:
        values = given(options, type(defaults))
        if options.no_embedding:
            refuse(values, ["embedding_dim"], "--no-embedding")
            values = {"normalize": False, **values}
            if LOSSES[values.get("loss", defaults.loss)].draws:
                values = {"sampler": "unigram", **values}
            values = {**check_softmax(values, defaults), "embedding_dim": None}
        else:
            refuse(values, ["alpha"], "an embedding, but is for --no-embedding")
            values = check_softmax(values, defaults)
        settings = type(defaults)(**{"dropout": defaults.dropout, **values})
        return make_task(_absolute_paths(options), settings)

    return Model(
        help=help,
        description=description,
        epochs=EPOCHS,
        learning_rate=rates_in_words(RATES),
        headline=headline,
        add_options=add_options,
        make_task=make,
        make_settings=_make_settings,
        results=_results,
    )


def _add_options(parser: argparse.ArgumentParser, defaults: RetrievalSettings, form: str) -> None:
    for name, what in (("train", "training data"), ("test", "data to evaluate at the end")):
        parser.add_argument(
            f"--{name}", metavar="FILE", help=f"{what}: {form}; also .gz, .xz, .bz2"
        )
    add_softmax(
        parser.add_argument_group("softmax"),
        defaults,
        example="example",
        batch="examples of a batch",
        losses=SEVERAL_LABELS,
    )
    group = parser.add_argument_group("model")
    sizes = (
        ("--embedding-dim", "embedding_dim", "length of embedded inputs and of class vectors"),
        ("--batch", "batch_size", "examples in a batch"),
    )
    add_sizes(group, defaults, sizes)
    group.add_argument(
        "--no-embedding",
        action="store_true",
        default=None,
        help="class vectors on the inputs themselves, for labels of bags of words; draws are by "
        "counts (--sampler unigram) or uniform, and the learning rate is 2 for adagrad",
    )
    group.add_argument(
        "--alpha",
        type=positive_float,
        metavar="X",
        help="L2 penalty with --no-embedding (default 0.003 / number of classes)",
    )
    group.add_argument(
        "--dropout",
        type=rate,
        metavar="RATE",
        help="probability with which an entry of an input is dropped in a step "
        f"(default {defaults.dropout:g})",
    )
    group.add_argument(
        "--label-reduction",
        choices=LABEL_REDUCTIONS,
        metavar="NAME",
        help="loss of an example with several labels: pal-n, the mean of theirs, for recall; pal, "
        "the sum, for precision; ova, one versus all, with --loss nce or negative-sampling-masked "
        f"(default {defaults.label_reduction})",
    )
    group.add_argument(
        "--mask-other-labels",
        action=argparse.BooleanOptionalAction,
        help="leave the other labels of an example out of the negatives of a label (the default)",
    )
    group.add_argument(
        "--validation",
        type=rate,
        metavar="SHARE",
        help="share of the examples that are held out; after each epoch at most 2,000 of them are "
        "evaluated, or with a share of 0 as many of the training data "
        f"(default {defaults.validation:g})",
    )
    group.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        metavar="NAME",
        help=f"one of {', '.join(OPTIMIZERS)} (default adagrad)",
    )
    group.add_argument(
        "--clip",
        type=positive_float,
        metavar="X",
        help="largest norm of the gradients of a step; larger ones are scaled down "
        "(default: no limit)",
    )


def _make_settings(options: argparse.Namespace) -> Settings:
    from samplesoft.training.settings import Settings

    optimizer = options.optimizer or "adagrad"
    return Settings(
        epochs=options.epochs or EPOCHS,
        optimizer=optimizer,
        learning_rate=learning_rate(
            options, optimizer, RATES_OF_INPUTS if options.no_embedding else RATES
        ),
        clip=options.clip,
        patience=options.patience,
        checkpoint_every=options.checkpoint_every,
    )


def _absolute_paths(options: argparse.Namespace) -> dict[str, str]:
    """Return the paths of ``--train`` and ``--test``, which become absolute in `options` too."""
    if options.train is None:
        raise ValueError("--train must name a file, got none; add it.")
    paths = {}
    for name in ("train", "test"):
        if getattr(options, name) is not None:
            paths[name] = str(Path(getattr(options, name)).resolve())
            setattr(options, name, paths[name])
    return paths


def _results(task: RetrievalTask) -> dict[str, Any]:
    found: dict[str, Any] = {"num_unlabeled": task.num_unlabeled}
    return found if task.test is None else {**found, "test": task.evaluate(*task.test)}
