"""``samplesoft train toy``: the toy task of CNTK's tutorial."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from samplesoft.commands.options import draw_count, positive_int

if TYPE_CHECKING:
    from samplesoft.training.settings import Settings
    from samplesoft.training.toy import ToyTask

HELP = "the toy task of CNTK's tutorial 207"
DESCRIPTION = (
    "Recover a class from a fixed random projection of it, by momentum SGD and a softmax over "
    "classes drawn without replacement. An epoch is 10 batches of 100."
)
EPOCHS, LEARNING_RATE = 10, "0.03, for the sum of the losses of a batch"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the task."""
    parser.add_argument("--classes", type=positive_int, default=50, metavar="N", help="default: 50")
    parser.add_argument("--dim", type=positive_int, default=10, metavar="D", help="default: 10")
    for name, what in (("data", "data"), ("proposal", "draws")):
        parser.add_argument(
            f"--{name}",
            choices=("uniform", "zipf"),
            default="uniform",
            help=f"distribution of the {what}; zipf is 1 / (i + 5) (default: uniform)",
        )
    parser.add_argument(
        "--loss",
        choices=("sampled-candidate", "full"),
        default="sampled-candidate",
        help="default: %(default)s, whose label is adjusted as the draws are",
    )
    parser.add_argument(
        "--num-sampled", type=draw_count, metavar="M", help="draws for a batch (default 10)"
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
    from samplesoft.training.toy import ToySettings, ToyTask

    if options.loss == "full" and options.num_sampled is not None:
        raise ValueError(
            "--num-sampled does nothing to --loss full, which draws nothing; leave it out."
        )
    return ToyTask(
        ToySettings(
            num_classes=options.classes,
            dim=options.dim,
            data=options.data,
            proposal=options.proposal,
            loss=options.loss,
            num_sampled=None if options.loss == "full" else options.num_sampled or 10,
            seed=options.seed,
        )
    )


def make_settings(options: argparse.Namespace) -> Settings:
    """Return how the task is trained."""
    from samplesoft.training.settings import Settings
    from samplesoft.training.toy import LEARNING_RATE, MOMENTUM

    rate = options.learning_rate or LEARNING_RATE
    return Settings(
        epochs=options.epochs,
        optimizer="momentum",
        learning_rate=rate * (1.0 - MOMENTUM),
        optimizer_options={"momentum": MOMENTUM},
        patience=options.patience,
        checkpoint_every=options.checkpoint_every,
    )


def final(task: ToyTask) -> dict[str, Any]:
    """Return nothing: the task has no other data than that of validation."""
    return {}
