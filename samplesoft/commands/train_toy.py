"""``samplesoft train toy``: the toy task of CNTK's tutorial."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from samplesoft.commands.options import class_count, draw_count, flag, given, positive_int
from samplesoft.losses.registry import LOSSES
from samplesoft.training.toy import LEARNING_RATE as RATE
from samplesoft.training.toy import MOMENTUM, TOY_LOSSES, WEIGHTS, ToySettings

if TYPE_CHECKING:
    from samplesoft.training.settings import Settings
    from samplesoft.training.toy import ToyTask

HELP = "the toy task of CNTK's tutorial 207"
DESCRIPTION = (
    "Recover a class from a fixed random projection of it, by momentum SGD and a softmax over "
    "classes drawn without replacement. An epoch is 10 batches of 100."
)
EPOCHS, CHECKPOINT_EVERY = 10, None
LEARNING_RATE = (
    f"{RATE}, for the sum of the losses of a batch; the log has it times 1 - {MOMENTUM:.4f}, for a "
    "momentum whose sums have no such factor"
)
DEFAULTS = ToySettings()
HEADLINE = "perplexity"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the task; None stands for what is not given."""
    parser.add_argument(
        "--classes",
        dest="num_classes",
        type=class_count,
        metavar="N",
        help=f"classes to tell apart (default {DEFAULTS.num_classes})",
    )
    parser.add_argument(
        "--embedding-dim",
        type=positive_int,
        metavar="D",
        help=f"length of their projections (default {DEFAULTS.embedding_dim})",
    )
    for name, what in (("data", "data"), ("proposal", "draws")):
        parser.add_argument(
            f"--{name}",
            choices=WEIGHTS,
            help=f"distribution of the {what}; zipf is 1 / (i + 5) "
            f"(default {getattr(DEFAULTS, name)})",
        )
    parser.add_argument(
        "--loss",
        choices=TOY_LOSSES,
        metavar="NAME",
        help=f"of {', '.join(TOY_LOSSES)} (default {DEFAULTS.loss}, whose label is adjusted as the "
        "draws are)",
    )
    parser.add_argument(
        "--num-sampled",
        type=draw_count,
        metavar="M",
        help=f"distinct classes drawn for a batch (default {DEFAULTS.num_sampled}, or --classes "
        "where that is less)",
    )


def make_task(options: argparse.Namespace) -> ToyTask:
    """Make the task.

    Parameters
    ----------
    options : argparse.Namespace
        As parsed.

    Returns
    -------
    ToyTask
        The task.

    Raises
    ------
    ValueError
        If an option is bad.
    """
    from samplesoft.training.toy import ToyTask

    values = given(options, ToySettings)
    n = values.get("num_classes", DEFAULTS.num_classes)
    name = values.get("loss", DEFAULTS.loss)
    if not LOSSES[name].draws:
        for option in ("num_sampled", "proposal"):
            if option in values:
                raise ValueError(
                    f"{flag(option)} would do nothing to --loss {name}, which draws nothing; leave "
                    "it out."
                )
        values["num_sampled"] = None
    elif values.setdefault("num_sampled", min(DEFAULTS.num_sampled or n, n)) > n:
        raise ValueError(
            f"--num-sampled must be at most {n}, the number of --classes, for draws are distinct, "
            f"got {options.num_sampled}."
        )
    return ToyTask(ToySettings(**values))


def make_settings(options: argparse.Namespace) -> Settings:
    """Return how the task is trained."""
    from samplesoft.training.settings import Settings

    return Settings(
        epochs=options.epochs or EPOCHS,
        optimizer="momentum",
        learning_rate=(options.learning_rate or RATE) * (1.0 - MOMENTUM),
        optimizer_options={"momentum": MOMENTUM},
        patience=options.patience,
        checkpoint_every=options.checkpoint_every,
    )


def final(task: ToyTask) -> dict[str, Any]:
    """Return nothing: the task has no other data than that of validation."""
    return {}
