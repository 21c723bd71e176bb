"""``samplesoft train``: the models that can be trained, and what all of them share.

A new model is a file like `train_lm`, and a line in `MODELS`.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samplesoft.commands import train_lm, train_toy
from samplesoft.commands.options import (
    check_writable,
    positive_float,
    positive_int,
    say,
    seed,
    show,
    write_json,
)

if TYPE_CHECKING:
    from samplesoft.training.settings import Progress

MODELS = {"lm": train_lm, "toy": train_toy}


def add(commands: Any) -> None:
    """Add the parser of the command, and one below it for each model."""
    parser = commands.add_parser(
        "train",
        help="train a model with a full or a sampled softmax",
        description="Train a model, with a validation by the full softmax after each epoch. A run "
        "that was interrupted in any way goes on with --resume, and ends with the same bits.",
    )
    models = parser.add_subparsers(dest="model", required=True, metavar="model")
    for name, model in MODELS.items():
        one = models.add_parser(
            name,
            help=model.HELP,
            description=model.DESCRIPTION,
            epilog="Exit status: 0 if training came to its end, 1 if it diverged, 2 for bad usage "
            "or bad input, 130 if it was interrupted.",
        )
        model.add_options(one)
        _add_run(one.add_argument_group("run"), model.EPOCHS, model.LEARNING_RATE)
        one.set_defaults(run=run)


def _add_run(group: Any, epochs: int, learning_rate: str) -> None:
    group.add_argument(
        "--out", required=True, metavar="DIR", help="folder for checkpoint.npz, best.npz, log.jsonl"
    )
    group.add_argument(
        "--resume", action="store_true", help="go on with the run in --out, with its settings"
    )
    group.add_argument(
        "--epochs", type=positive_int, default=epochs, metavar="N", help="default: %(default)s"
    )
    group.add_argument(
        "--patience",
        type=positive_int,
        metavar="N",
        help="stop after N epochs without a lower validation loss",
    )
    group.add_argument(
        "--learning-rate",
        type=positive_float,
        metavar="RATE",
        help=f"default: {learning_rate}",
    )
    group.add_argument(
        "--checkpoint-every",
        type=positive_int,
        metavar="N",
        help="write a checkpoint after each N steps of an epoch too, and not only at its end",
    )
    group.add_argument("--seed", type=seed, default=0, help="of all randomness (default 0)")
    group.add_argument("--json", metavar="FILE", help="write the results as JSON")


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft train``.

    Parameters
    ----------
    options : argparse.Namespace
        As parsed.

    Returns
    -------
    int
        0.

    Raises
    ------
    FloatingPointError
        If training diverged.
    OSError, TypeError, ValueError
        If the input or an option is bad, or an output cannot be written.
    """
    from samplesoft.training import BEST, LOG, load_parameters, read_log, train

    if options.json:
        check_writable("--json", options.json)
    model = MODELS[options.model]
    say(f"Preparing {options.out}.")
    task = model.make_task(options)
    settings = model.make_settings(options)
    at = train(task, settings, options.out, resume=options.resume, progress=True)
    records = [line for line in read_log(Path(options.out, LOG)) if "validation_loss" in line]
    load_parameters(Path(options.out, BEST), task)
    results = {
        "config": task.config(),
        "epochs": records,
        "best_epoch": at.best_epoch,
        "validation": {"loss": at.best_loss, "perplexity": math.exp(at.best_loss or 0.0)},
        **model.final(task),
    }
    show(_table(results, at))
    if options.json:
        write_json(options.json, results)
    return 0


def _table(results: dict[str, Any], at: Progress) -> str:
    rows = ["| epoch | train loss | validation loss | perplexity | examples/s |", "|" + 5 * "---|"]
    rows += [
        f"| {line['epoch']} | {line['train_loss']:.4f} | {line['validation_loss']:.4f} | "
        f"{line['validation_perplexity']:.2f} | {line['examples_per_second']:,.0f} |"
        for line in results["epochs"]
    ]
    best = results["validation"]["perplexity"]
    rows.append(
        f"\nBest epoch {at.best_epoch}: validation perplexity {best:.2f}"
        + (f", test {results['test']['perplexity']:.2f}" if "test" in results else "")
        + f". {at.step:,} steps in {at.seconds:.1f} s. Losses are in nats; that of training is the "
        "one that was minimised, and validation is by the full softmax."
    )
    return "\n".join(rows) + "\n"
