"""``samplesoft tune``: which sampler to take, and how many draws."""

from __future__ import annotations

import argparse
from concurrent.futures import Executor

from samplesoft._executors import open_scheduler
from samplesoft.commands.options import (
    add_fields,
    add_outputs,
    add_scheduler,
    check_outputs,
    draw_counts,
    give_report,
    given,
    names_of,
    seed,
    show_part,
)
from samplesoft.commands.source import add_source, check_source, load_source
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.tuning.tune import tune

_MEASURED = ("samplers", "num_sampled", "batch", "tau")
_ALLOWED = ("largest_bias", "seconds")
_KINDS = {"samplers": names_of(SAMPLERS), "num_sampled": draw_counts}


def add(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.description = (
        "Measure each sampler with each number of draws on this machine: the exact "
        "bias of its gradients, their error, and the time of a step; and name the one to take. "
        "Without options: tokens of the Python standard library's own sources."
    )
    parser.epilog = "Exit status: 0, or 2 for bad usage or bad input, 130 if interrupted."
    add_source(parser, examples=128, logits=False)
    names = f"The samplers are {', '.join(SAMPLERS)}."
    group = parser.add_argument_group("what is measured", names)
    add_fields(group, tune, _MEASURED, _KINDS)
    group.add_argument("--seed", type=seed, default=0, help="of samplers and draws (default 0)")
    add_scheduler(group)
    group = parser.add_argument_group("what is allowed")
    add_fields(group.add_mutually_exclusive_group(), tune, _ALLOWED)
    add_outputs(parser.add_argument_group("output"))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft tune``."""
    check_outputs(options)
    check_source(options)
    with open_scheduler(options.scheduler) as executor:
        return _run(options, executor)


def _run(options: argparse.Namespace, executor: Executor | None) -> int:
    source = load_source(options)
    vectors = source.embeddings
    if vectors is None:
        raise ValueError(
            "--checkpoint must be of a model whose logits are tau h . c, got one of absolute "
            "scores; take another."
        )
    show_part(f"input: {source.title}, {len(vectors.class_embeddings):,} classes")
    report = tune(
        vectors.class_embeddings.astype("float32"),
        vectors.h.astype("float32"),
        source.labels,
        counts=source.counts,
        progress=True,
        rng=options.seed,
        executor=executor,
        **given(options, tune) | {"tau": source.tau},
    )
    give_report(options, report, {"input": source.title, "tau": source.tau})
    return 0
