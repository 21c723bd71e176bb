"""``samplesoft check``: what an implementation of a sampled loss estimates."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from operator import attrgetter
from typing import Any

from samplesoft._validation import as_choice
from samplesoft.checking.check import check_loss
from samplesoft.checking.faults import METHODS
from samplesoft.checking.observe import NAMED
from samplesoft.commands.files import check_files
from samplesoft.commands.options import (
    Options,
    add_fields,
    add_options,
    add_outputs,
    check_outputs,
    draw_count,
    give_report,
    given,
    seed,
)

_OPTIONS: Options = {
    "proposal": (
        f"what it draws from: {', '.join(NAMED)}, or module:name of an array q, of a function "
        "of n, or of a sampler",
        {"required": True, "metavar": "Q"},
    ),
    "scheme": (
        f"the scheme that it is meant to follow: {', '.join(METHODS)}",
        {"choices": METHODS, "metavar": "NAME"},
    ),
    "seed": ("of the problems (default 0)", {"type": seed, "default": 0}),
}
_DEFAULT_DRAWS = 10


def add(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.description = (
        "Call a sampled loss on small problems and hold the means of what it returns "
        "against the exact means of every scheme, as it should be and with each of the usual "
        "mistakes."
    )
    parser.epilog = (
        "Exit status: 0 if the loss is consistent with --scheme, or without that with any "
        "scheme as it should be, and nothing wrong fits too; 1 if not; 2 for bad usage or a loss "
        "that cannot be called; 130 if interrupted. What the schemes are: "
        "help(samplesoft.schemes), and 'Ways to draw with replacement' in the documentation."
    )
    parser.add_argument(
        "loss",
        metavar="module:function",
        help="the function loss(class_embeddings, h, labels, num_sampled, seed), which returns the "
        "losses (B,), or these and their gradient in h; the module is found from the current "
        "folder too",
    )
    add_options(parser, _OPTIONS)
    names, kinds = ("num_sampled", "tau", "biases", "weights", "calls"), {"num_sampled": draw_count}
    add_fields(parser, check_loss, names, kinds, num_sampled=_DEFAULT_DRAWS)
    add_outputs(parser)
    parser.set_defaults(run=run, num_sampled=_DEFAULT_DRAWS)


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft check``; 0 if the loss is right, and what was asked for, else 1."""
    check_outputs(options)
    loss, proposal = _named("module:function", options.loss), _proposal(options.proposal)
    check_files(options)  # once more, as modules have been loaded
    values = given(options, check_loss) | {"loss": loss, "proposal": proposal}
    report = check_loss(progress=True, rng=options.seed, **values)
    give_report(options, report)
    if options.scheme:
        return 0 if report.ok and (options.scheme, None) in report.consistent else 1
    return 0 if report.ok else 1


def _proposal(text: str) -> Any:
    """Return a proposal by its name, or what a module holds."""
    return _named("--proposal", text) if ":" in text else as_choice("--proposal", text, NAMED)


def _named(option: str, text: str) -> Any:
    """Return what ``module:name`` stands for; the module may be in the current folder."""
    module, _, name = text.partition(":")
    if not (module and name):
        raise ValueError(f"{option} must be written module:name, got {text!r}.")
    # as python -m does; a console script starts without the current folder
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        holder = import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{option} must name a module that can be imported, got {module!r}: {error}; run the "
            "command where the module lies."
        ) from None
    try:
        return attrgetter(name)(holder)
    except AttributeError:
        raise ValueError(f"{option} must name something in {module!r}, got {name!r}.") from None
