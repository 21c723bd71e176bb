"""What ``train xc`` and ``train items`` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samplesoft.commands.options import given, positive_float, positive_int, rate
from samplesoft.commands.softmax_options import add_softmax, check_softmax
from samplesoft.losses.registry import LOSSES
from samplesoft.models.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from samplesoft.training.retrieval import RetrievalSettings
    from samplesoft.training.settings import Settings

RATES = {"adagrad": 0.1, "adam": 0.01}  # others must be given
LEARNING_RATE = ", ".join(f"{rate} for {name}" for name, rate in RATES.items())
SEVERAL = [name for name, spec in LOSSES.items() if spec.several_labels]


def add_options(parser: argparse.ArgumentParser, defaults: RetrievalSettings, form: str) -> None:
    """Add the options of the model; None stands for what is not given.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        To add to.
    defaults : RetrievalSettings
        What the help texts name.
    form : str
        What the files hold.
    """
    for name, what in (("train", "to train on"), ("test", "to score at the end")):
        parser.add_argument(f"--{name}", metavar="FILE", help=f"{form} {what}, also .gz, .xz, .bz2")
    add_softmax(
        parser.add_argument_group("softmax"),
        defaults,
        tau=f"{defaults.tau:g}, with --no-normalize 1",
        example="example",
        batch="examples of a batch",
        losses=SEVERAL,
    )
    group = parser.add_argument_group("model")
    for flag, name, what in (
        ("embedding-dim", "embedding_dim", "length of embedded inputs and of class vectors"),
        ("batch", "batch_size", "examples in a step"),
    ):
        group.add_argument(
            f"--{flag}",
            dest=name,
            type=positive_int,
            metavar="N",
            help=f"{what} (default {getattr(defaults, name)})",
        )
    group.add_argument(
        "--dropout",
        type=rate,
        metavar="RATE",
        help=f"share of an input's entries that a step leaves out (default {defaults.dropout:g})",
    )
    group.add_argument(
        "--validation",
        type=rate,
        metavar="SHARE",
        help="share of the examples held out, of which 2,000 at most are scored each epoch; with "
        f"0 some that are trained on (default {defaults.validation:g})",
    )
    group.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        metavar="NAME",
        help=f"of {', '.join(OPTIMIZERS)} (default adagrad)",
    )
    group.add_argument(
        "--clip", type=positive_float, metavar="X", help="largest norm of a step's gradients"
    )


def read_settings(options: argparse.Namespace, defaults: RetrievalSettings) -> RetrievalSettings:
    """Return the settings that the options ask for.

    Parameters
    ----------
    options : argparse.Namespace
        As parsed.
    defaults : RetrievalSettings
        The others.

    Returns
    -------
    RetrievalSettings
        Settings.

    Raises
    ------
    ValueError
        If an option is bad, or does nothing.
    """
    values = given(options, type(defaults))
    if not values.get("normalize", True):
        values.setdefault("tau", 1.0)
    return replace(defaults, **check_softmax(values, defaults))


def make_settings(options: argparse.Namespace, epochs: int) -> Settings:
    """Return how the model is trained.

    Parameters
    ----------
    options : argparse.Namespace
        As parsed.
    epochs : int
        Times to go over the data, if the options do not say.

    Returns
    -------
    Settings
        Settings.

    Raises
    ------
    ValueError
        If an optimizer is chosen that needs a learning rate.
    """
    from samplesoft.training.settings import Settings

    optimizer = options.optimizer or "adagrad"
    learning_rate = options.learning_rate or RATES.get(optimizer)
    if learning_rate is None:
        raise ValueError(
            f"--learning-rate must be given with --optimizer {optimizer}, which has no default."
        )
    return Settings(
        epochs=options.epochs or epochs,
        optimizer=optimizer,
        learning_rate=learning_rate,
        clip=options.clip,
        patience=options.patience,
        checkpoint_every=options.checkpoint_every,
    )


def read_files(options: argparse.Namespace, read: Callable[[str], Any]) -> dict[str, Any]:
    """Read ``--train`` and ``--test``, whose paths are made absolute.

    Parameters
    ----------
    options : argparse.Namespace
        As parsed; changed.
    read : callable
        Reads a file.

    Returns
    -------
    dict
        What was read, by option; without ``test`` where no such file is named.

    Raises
    ------
    OSError, ValueError
        If a file is missing or malformed.
    """
    if options.train is None:
        raise ValueError("--train must name a file, got none; add it.")
    found = {}
    for name in ("train", "test"):
        path = getattr(options, name)
        if path is not None:
            setattr(options, name, str(Path(path).resolve()))
            found[name] = read(path)
    return found
