"""``samplesoft tune``: choose a sampler and a number of draws by measurement."""

from __future__ import annotations

import argparse
from concurrent.futures import Executor
from inspect import signature

from samplesoft._executors import open_executor
from samplesoft.commands.options import (
    SCHEDULER,
    Option,
    Options,
    add_options,
    add_report_options,
    check_figure_format,
    draw_counts,
    given_options,
    names_parser,
    positive_float,
    positive_int,
    seed,
    show_list_item,
    write_and_show_report,
)
from samplesoft.commands.source import add_source_options, check_source_options, load_source
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.tuning.tune import tune

_DEFAULTS = {name: argument.default for name, argument in signature(tune).parameters.items()}
_LIMIT_OPTIONS: Options = {
    "largest_bias": Option(
        "largest allowed bias of the gradient in the logits: an L1 norm, at most 2, averaged over "
        "contexts; a setting is accepted if its mean plus two standard errors is allowed (default "
        f"{_DEFAULTS['largest_bias']})",
        parse=positive_float,
        metavar="N",
    ),
    "seconds": Option(
        "longest allowed time of a step, in place of a largest bias: choose the setting with the "
        "smallest error within this time",
        parse=positive_float,
        metavar="N",
    ),
}


def _measurement_options() -> Options:
    """Return the options of ``samplesoft tune`` about what to measure.

    A function makes them, so that samplers registered after import are included.
    """
    return {
        "samplers": Option(
            "samplers to measure; a sampler for which the input has no data is skipped, and the "
            f"reason reported (default {','.join(_DEFAULTS['samplers'])})",
            parse=names_parser(SAMPLERS),
            metavar="NAMES",
        ),
        "num_sampled": Option(
            "numbers of draws m, tried per example and per batch (default "
            f"{','.join(map(str, _DEFAULTS['num_sampled']))})",
            parse=draw_counts,
            metavar="N",
        ),
        "batch": Option(
            "number of examples in a step (default: the number of contexts); contexts are repeated "
            "if there are fewer",
            parse=positive_int,
            metavar="N",
        ),
        "tau": Option(
            "inverse temperature of the logits tau h . c (default: 10 if all vectors have norm 1, "
            "else 1)",
            parse=positive_float,
            metavar="N",
        ),
        "seed": Option("seed of samplers and draws (default 0)", parse=seed, default=0),
        "scheduler": SCHEDULER,
    }


def add(parser: argparse.ArgumentParser) -> None:
    """Add description and options of the command to its parser."""
    parser.description = (
        "Measure samplers with several numbers of draws on this machine: the exact bias of "
        "gradients, their error, and the time of a step; and choose the best setting. By default "
        "the input is the source code of Python's standard library, as tokens."
    )

    parser.epilog = "Exit status: 0, or 2 for bad usage or bad input, 130 if interrupted."

    add_source_options(parser, examples=128, logits=False)
    names = f"The samplers are {', '.join(SAMPLERS)}."
    group = parser.add_argument_group("measurement", names)
    add_options(group, _measurement_options())
    group = parser.add_argument_group("limits")
    add_options(group.add_mutually_exclusive_group(), _LIMIT_OPTIONS)
    add_report_options(parser.add_argument_group("output"))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft tune``: measure the settings, print the report, and return 0."""
    check_figure_format(options)
    check_source_options(options)
    with open_executor(options.scheduler) as executor:
        return _tune_and_report(options, executor)


def _tune_and_report(options: argparse.Namespace, executor: Executor | None) -> int:
    source = load_source(options)
    vectors = source.embeddings
    if vectors is None:
        raise ValueError(
            "--checkpoint must be of a model whose logits are tau h . c, got one of absolute "
            "scores; use another."
        )

    show_list_item(f"input: {source.title}, {len(vectors.class_embeddings):,} classes")
    report = tune(
        vectors.class_embeddings.astype("float32"),
        vectors.h.astype("float32"),
        source.labels,
        counts=source.counts,
        progress=True,
        rng=options.seed,
        executor=executor,
        **given_options(options, tune) | {"tau": source.tau},
    )

    write_and_show_report(options, report, {"input": source.title, "tau": source.tau})
    return 0
