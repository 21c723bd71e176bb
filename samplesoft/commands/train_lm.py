"""``samplesoft train lm``: a recurrent language model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from samplesoft.commands.options import draw_count, positive_float, positive_int, rate
from samplesoft.samplers.registry import SAMPLERS

if TYPE_CHECKING:
    from samplesoft.training.language_model import LanguageModelTask
    from samplesoft.training.settings import Settings

HELP = "a recurrent language model"
DESCRIPTION = (
    "An LSTM language model of the size of the small one of Zaremba et al. (2014), with a sampled "
    "softmax of vectors of norm 1. Theirs is --loss full --no-normalize."
)
RATES = {"sgd": 1.0, "momentum": 0.1, "adagrad": 0.1, "adam": 0.003}  # defaults
EPOCHS, LEARNING_RATE = 13, ", ".join(f"{rate} for {name}" for name, rate in RATES.items())
SAMPLED = {"sampler": "rff", "num_sampled": 100, "nu": 4.0, "num_features": 1024}  # defaults
TAU = 1.0 / 0.3**2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model."""
    parser.add_argument(
        "--corpus",
        required=True,
        metavar="DIR",
        help="folder with one text each named *train*, *valid*, *test*, .txt, also .gz, .xz, .bz2",
    )
    parser.add_argument(
        "--vocabulary", type=positive_int, default=10_000, metavar="N", help="default: %(default)s"
    )
    _add_softmax(parser.add_argument_group("softmax"))
    _add_model(parser.add_argument_group("model"))


def _add_softmax(group: Any) -> None:
    group.add_argument(
        "--loss",
        default="sampled",
        help="full, sampled, sampled-masked, nce or another name in samplesoft.losses.LOSSES "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--tau",
        type=positive_float,
        help="inverse temperature (default: 1 / 0.3**2, with --no-normalize 1)",
    )
    group.add_argument(
        "--no-normalize",
        dest="normalize",
        action="store_false",
        help="leave contexts and class vectors at their norms",
    )
    group.add_argument(
        "--sampler",
        choices=SAMPLERS,
        metavar="NAME",
        help=f"of {', '.join(SAMPLERS)} (default: rff)",
    )
    group.add_argument(
        "--num-sampled", type=draw_count, metavar="M", help="draws for each word (default 100)"
    )
    group.add_argument(
        "--shared",
        action="store_true",
        help="draw once for all words of a window; with --loss sampled-masked",
    )
    group.add_argument(
        "--nu", type=positive_float, help="sharpness of the kernel of rff samplers (default 4)"
    )
    group.add_argument(
        "--num-features",
        type=positive_int,
        metavar="D",
        help="random frequencies of rff samplers, features of positive (default 1024)",
    )
    group.add_argument(
        "--update-every",
        type=positive_int,
        default=1,
        metavar="N",
        help="steps from one update of the sampler to the next (default 1)",
    )


def _add_model(group: Any) -> None:
    for name, default in (("hidden", 200), ("layers", 2), ("batch", 20), ("steps", 35)):
        group.add_argument(
            f"--{name}", type=positive_int, default=default, metavar="N", help=f"default: {default}"
        )
    group.add_argument("--dropout", type=rate, default=0.0, metavar="RATE", help="default: 0")
    group.add_argument(
        "--optimizer",
        choices=RATES,
        help="default: sgd with --no-normalize, else adam; norms of 1 make gradients of the first "
        "steps so large that sgd drives the LSTM into saturation",
    )
    for name, value, what in (
        ("init-scale", 0.1, "bound of all parameters at the start"),
        ("clip", 5.0, "largest norm of the gradients of a step"),
        ("decay", 2.0, "what the learning rate is divided by after each epoch from --hold on"),
    ):
        group.add_argument(
            f"--{name}",
            type=positive_float,
            default=value,
            metavar="X",
            help=f"{what} (default: {value:g})",
        )
    group.add_argument(
        "--hold", type=positive_int, default=4, metavar="N", help="see --decay (default: 4)"
    )


def make_task(options: argparse.Namespace) -> LanguageModelTask:
    """Read the corpus and make the model.

    Parameters
    ----------
    options : argparse.Namespace
        As parsed.

    Returns
    -------
    LanguageModelTask
        The task.

    Raises
    ------
    OSError, TypeError, ValueError
        If the corpus or an option is bad.
    """
    from samplesoft.data.batches import read_corpus
    from samplesoft.losses.registry import LOSSES, make_loss
    from samplesoft.losses.sampled import SampledLoss
    from samplesoft.training import LanguageModelSettings, LanguageModelTask

    if options.loss not in LOSSES:
        raise ValueError(f"--loss must be of {', '.join(LOSSES)}; got {options.loss!r}.")
    sampled: dict[str, Any] = {
        name: default if getattr(options, name) is None else getattr(options, name)
        for name, default in SAMPLED.items()
    }
    if not isinstance(make_loss(options.loss), SampledLoss):
        given = [name for name in SAMPLED if getattr(options, name) is not None]
        if given:
            raise ValueError(
                f"--{given[0].replace('_', '-')} does nothing to --loss {options.loss}, "
                "which draws nothing; leave it out, or take a sampled loss."
            )
        sampled |= {"sampler": None, "num_sampled": None}
    return LanguageModelTask(
        read_corpus(options.corpus, vocabulary_size=options.vocabulary),
        LanguageModelSettings(
            hidden_size=options.hidden,
            num_layers=options.layers,
            batch_size=options.batch,
            num_steps=options.steps,
            dropout=options.dropout,
            init_scale=options.init_scale,
            loss=options.loss,
            tau=options.tau or (TAU if options.normalize else 1.0),
            normalize=options.normalize,
            shared=options.shared,
            update_every=options.update_every,
            seed=options.seed,
            **sampled,
        ),
    )


def make_settings(options: argparse.Namespace) -> Settings:
    """Return how the model is trained."""
    from samplesoft.training.settings import Settings

    optimizer = options.optimizer or ("adam" if options.normalize else "sgd")
    return Settings(
        epochs=options.epochs,
        optimizer=optimizer,
        learning_rate=options.learning_rate or RATES[optimizer],
        schedule="zaremba",
        schedule_options={"hold": options.hold, "decay": options.decay},
        clip=options.clip,
        patience=options.patience,
        checkpoint_every=options.checkpoint_every,
    )


def final(task: LanguageModelTask) -> dict[str, Any]:
    """Return figures of the best epoch's parameters on the test text."""
    return {"test": task.evaluate(task.corpus.test)}
