"""``samplesoft train toy``: the toy task of CNTK's tutorial."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from samplesoft.commands.model import Model
from samplesoft.commands.options import class_count, draw_count, flag, given, positive_int
from samplesoft.losses.registry import LOSSES
from samplesoft.training.toy import LEARNING_RATE as RATE
from samplesoft.training.toy import MOMENTUM, TOY_LOSSES, WEIGHTS, ToySettings

if TYPE_CHECKING:
    from samplesoft.training.settings import Settings
    from samplesoft.training.toy import ToyTask

EPOCHS = 10
DEFAULTS = ToySettings()


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--classes",
        dest="num_classes",
        type=class_count,
        metavar="N",
        help=f"number of classes (default {DEFAULTS.num_classes})",
    )
    parser.add_argument(
        "--embedding-dim",
        type=positive_int,
        metavar="D",
        help=f"length of the projections (default {DEFAULTS.embedding_dim})",
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
        help=f"one of {', '.join(TOY_LOSSES)} (default {DEFAULTS.loss}, which corrects the label's "
        "score as it does those of the draws)",
    )
    parser.add_argument(
        "--num-sampled",
        type=draw_count,
        metavar="M",
        help=f"distinct classes drawn for a batch (default {DEFAULTS.num_sampled}, or --classes "
        "where that is less)",
    )


def _make_task(options: argparse.Namespace) -> ToyTask:
    from samplesoft.training.toy import ToyTask

    values = given(options, ToySettings)
    n = values.get("num_classes", DEFAULTS.num_classes)
    name = values.get("loss", DEFAULTS.loss)
    if not LOSSES[name].draws:
        for option in ("num_sampled", "proposal"):
            if option in values:
                raise ValueError(
                    f"{flag(option)} has no effect with --loss {name}, which draws nothing; leave "
                    "it out."
                )
        values["num_sampled"] = None
    elif values.setdefault("num_sampled", min(DEFAULTS.num_sampled or n, n)) > n:
        raise ValueError(
            f"--num-sampled must be at most {n}, the number of --classes, as draws are distinct, "
            f"got {options.num_sampled}."
        )
    return ToyTask(ToySettings(**values))


def _make_settings(options: argparse.Namespace) -> Settings:
    from samplesoft.training.settings import Settings

    return Settings(
        epochs=options.epochs or EPOCHS,
        optimizer="momentum",
        learning_rate=(options.learning_rate or RATE) * (1.0 - MOMENTUM),
        optimizer_options={"momentum": MOMENTUM},
        patience=options.patience,
        checkpoint_every=options.checkpoint_every,
    )


MODEL = Model(
    help="the toy task of CNTK's tutorial 207",
    description="Recover a class from a fixed random projection of it, by SGD with momentum and a "
    "softmax over classes drawn without replacement. An epoch is 10 batches of 100 examples.",
    epochs=EPOCHS,
    learning_rate=f"{RATE}, for the sum of the losses of a batch; the log shows it multiplied by "
    f"1 - {MOMENTUM:.4f}, as our momentum does not have that factor",
    headline="perplexity",
    add_options=_add_options,
    make_task=_make_task,
    make_settings=_make_settings,
)
