"""``samplesoft tune``: which sampler to take, and how many draws."""

from __future__ import annotations

import argparse

from samplesoft.commands.options import (
    Options,
    add_options,
    add_outputs,
    check_outputs,
    draw_counts,
    give_report,
    names_of,
    positive_float,
    positive_int,
    seed,
    show_part,
)
from samplesoft.commands.source import add_source, check_source, load_source
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.tuning.tune import DEFAULT_DRAWS, DEFAULT_SAMPLERS, tune

_MEASURED: Options = {
    "samplers": (
        f"names out of {','.join(SAMPLERS)} (default {','.join(DEFAULT_SAMPLERS)})",
        {"type": names_of(SAMPLERS), "default": list(DEFAULT_SAMPLERS), "metavar": "NAMES"},
    ),
    "num_sampled": (
        f"numbers of draws (default {','.join(map(str, DEFAULT_DRAWS))})",
        {"type": draw_counts, "default": list(DEFAULT_DRAWS), "metavar": "M"},
    ),
    "batch": (
        "examples in a step (default --examples)",
        {"type": positive_int, "metavar": "B"},
    ),
    "tau": ("inverse temperature, logits being tau h . c", {"type": positive_float}),
    "seed": ("of samplers and draws (default 0)", {"type": seed, "default": 0}),
}
_ALLOWED: Options = {
    "largest_bias": (
        "take the quickest with at most this bias of the gradient in the logits (default "
        "%(default)s; 2 is the most there is)",
        {"type": positive_float, "default": 0.05, "metavar": "L1"},
    ),
    "seconds": (
        "take the least error of a gradient within this time of a step",
        {"type": positive_float, "metavar": "S"},
    ),
}


def add(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.description = (
        "Measure each sampler with each number of draws on this machine: the exact "
        "bias of its gradients, their error, and the time of a step; and name the one to take. "
        "Without options: tokens of the Python standard library's own sources."
    )
    parser.epilog = "Exit status: 0, or 2 for bad usage or bad input, 130 if interrupted."
    add_source(parser, examples=128, logits=False)
    add_options(parser.add_argument_group("what is measured"), None, _MEASURED)
    group = parser.add_argument_group("what is allowed")
    add_options(group.add_mutually_exclusive_group(), None, _ALLOWED)
    add_outputs(parser.add_argument_group("output"))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft tune``."""
    check_outputs(options)
    check_source(options)
    source = load_source(options)
    vectors = source.embeddings
    if vectors is None:
        raise ValueError(
            "--checkpoint must be of a model whose logits are tau h . c, got one of absolute "
            "scores; take another."
        )
    show_part(f"input: {source.title}, {len(vectors.class_embeddings):,} classes")
    as_given = ("samplers", "num_sampled", "batch", *_ALLOWED)
    report = tune(
        vectors.class_embeddings.astype("float32"),
        vectors.h.astype("float32"),
        source.labels,
        counts=source.counts,
        tau=source.tau,
        progress=True,
        rng=options.seed,
        **{name: getattr(options, name) for name in as_given},
    )
    give_report(options, report, {"input": source.title, "tau": source.tau})
    return 0
