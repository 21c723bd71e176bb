"""Options of ``samplesoft verify``, and those that do not go together."""

from __future__ import annotations

import argparse
from typing import Any

from samplesoft._temperature import TAU_OF_OTHER_VECTORS, TAU_OF_UNIT_VECTORS
from samplesoft.commands.options import (
    draw_counts,
    flag,
    name_list,
    positive_float,
    positive_int,
    seed,
)
from samplesoft.commands.outputs import add_outputs, check_outputs
from samplesoft.commands.source import add_source, check_source
from samplesoft.commands.train_options import add_random_features
from samplesoft.samplers.registry import SAMPLERS, SamplerInputs
from samplesoft.schemes import SCHEMES, exact_schemes
from samplesoft.verification.bounds import BLOCKS

DEFAULT_SAMPLERS = ("uniform", "log-uniform", "unigram", "softmax", "quadratic", "rff")
OF_VECTORS = ("tau", "nu", "num_features")  # without use for logits


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options of the command."""
    add_source(parser, examples=5, logits=True)
    _add_checks(parser.add_argument_group("what is checked"))
    _add_model(parser.add_argument_group("model and samplers (not with --logits)"))
    output = parser.add_argument_group("output")
    output.add_argument("--details", action="store_true", help="print the tables of all columns")
    add_outputs(output, ("json", "html", "csv", "figure"))


def _add_checks(group: Any) -> None:
    group.add_argument(
        "--samplers",
        type=name_list,
        metavar="NAMES",
        help=f"names out of {','.join(SAMPLERS)} (default: {','.join(DEFAULT_SAMPLERS)}, without "
        "those that the input has no data for: unigram needs counts, rff vectors of norm 1)",
    )
    group.add_argument(
        "--num-sampled",
        type=draw_counts,
        default=[10, 100, 1000],
        metavar="M",
        help="numbers of draws m (default 10,100,1000); --scheme poisson, which draws no fixed "
        "number, includes class j with probability 1 - (1 - q_j)^m",
    )
    group.add_argument(
        "--wrt",
        type=name_list,
        default=list(BLOCKS),
        metavar="BLOCKS",
        help=f"gradients to check, out of {','.join(BLOCKS)} (default: all that the input allows)",
    )
    group.add_argument(
        "--scheme",
        choices=exact_schemes(),
        default="negatives",
        metavar="NAME",
        help=f"how draws become a sum: {', '.join(exact_schemes())} (default %(default)s)",
    )
    group.add_argument(
        "--trials",
        type=positive_int,
        default=2000,
        metavar="N",
        help="Monte Carlo trials for each example, sampler and m (default %(default)s)",
    )
    group.add_argument(
        "--seed", type=seed, default=0, help="seed of examples, features and trials (default 0)"
    )


def _add_model(group: Any) -> None:
    group.add_argument(
        "--tau",
        type=positive_float,
        help="inverse temperature, logits being tau h . c (default "
        f"{TAU_OF_UNIT_VECTORS:g} for vectors of norm 1, else {TAU_OF_OTHER_VECTORS:g}; "
        "--checkpoint has its own)",
    )
    add_random_features(group, SamplerInputs)


def check_options(options: argparse.Namespace) -> None:
    """Raise ValueError if an option has no effect, two do not go together, or a file is no use."""
    _check_input(options)
    _check_what_is_checked(options)
    check_outputs(options)


def _check_input(options: argparse.Namespace) -> None:
    for name in OF_VECTORS:
        if options.logits and getattr(options, name) is not None:
            raise ValueError(
                f"{flag(name)} has no effect with --logits, which has no vectors; leave it out, or "
                "use --corpus or --embeddings."
            )
    check_source(options)
    if (options.logits is None) != (options.labels is None):
        given, absent = ("--logits", "--labels") if options.logits else ("--labels", "--logits")
        raise ValueError(f"{given} needs {absent} with it; give both, or neither.")


def _check_what_is_checked(options: argparse.Namespace) -> None:
    for name in options.samplers or ():
        if name not in SAMPLERS:
            raise ValueError(
                f"--samplers must be of {', '.join(SAMPLERS)}; got {name!r}; correct the name."
            )
    for name in options.wrt:
        if name not in BLOCKS:
            raise ValueError(f"--wrt must be of {', '.join(BLOCKS)}; got {name!r}.")
    if options.logits and "logits" not in options.wrt:
        raise ValueError(
            f"--wrt must include logits for --logits, got {','.join(options.wrt)}; h and "
            "class_embeddings need vectors: use --corpus or --embeddings."
        )
    if len(set(options.num_sampled)) < len(options.num_sampled):
        raise ValueError(
            f"--num-sampled must hold different numbers, got {options.num_sampled}; name each once."
        )
    least = SCHEMES[options.scheme].least_draws
    if min(options.num_sampled) < least:
        raise ValueError(
            f"--num-sampled must be at least {least} for --scheme {options.scheme}, got "
            f"{min(options.num_sampled)}."
        )
    if options.trials < 2:
        raise ValueError("--trials must be at least 2, got 1; the default is 2000.")
