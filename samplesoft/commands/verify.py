"""``samplesoft verify``: compare exact bias, bounds and Monte Carlo with each other."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samplesoft._executors import open_executor
from samplesoft._jit import COMPILES, num_threads
from samplesoft._progress import progress_phase
from samplesoft._temperature import TAU_OF_OTHER_VECTORS, TAU_OF_UNIT_VECTORS
from samplesoft.bias.certified.balls import import_flint
from samplesoft.bias.with_replacement.laplace import sums_at_nodes
from samplesoft.commands.files import flag
from samplesoft.commands.options import (
    SCHEDULER,
    Option,
    Options,
    add_options,
    add_report_options,
    check_figure_format,
    draw_counts,
    integer_parser,
    names_parser,
    positive_float,
    positive_int,
    seed,
    show_list_item,
    show_row,
    write_and_show_report,
)
from samplesoft.commands.source import add_source_options, check_source_options, load_source
from samplesoft.samplers.registry import SAMPLERS, SamplerInputs, dense_proposals
from samplesoft.schemes import SCHEMES, exact_schemes
from samplesoft.verification.bounds import PARAMETER_BLOCKS
from samplesoft.verification.verify import verify

DEFAULT_SAMPLERS = ("uniform", "log-uniform", "unigram", "softmax", "quadratic", "rff")
_SAMPLER_FIELDS = ("nu", "num_features")  # fields of `SamplerInputs` that options set
_VECTOR_OPTIONS: Options = {
    "tau": Option(
        "inverse temperature of the logits tau h . c (default "
        f"{TAU_OF_UNIT_VECTORS:g} for vectors of norm 1, else {TAU_OF_OTHER_VECTORS:g}; not with "
        "--checkpoint, which stores it)",
        parse=positive_float,
    ),
    "nu": Option(
        f"inverse variance of the Gaussian kernel of the rff samplers (default {SamplerInputs.nu})",
        parse=positive_float,
        metavar="N",
    ),
    "num_features": Option(
        f"random frequencies of the rff samplers, and features of positive (default "
        f"{SamplerInputs.num_features})",
        parse=positive_int,
        metavar="N",
    ),
}
# Python script that compiles the kernels of `verify` that take longest and are needed last
_COMPILE_SCRIPT = """
import sys, numpy as np
from samplesoft import monte_carlo_bias
from samplesoft.bias.with_replacement.laplace import Points, atom_integrals, node_sums
x, points = np.zeros(1), Points(*np.ones((10, 2)))
node_sums(x, points, 0.0, 0.0, with_moments=False)
atom_integrals(x, np.ones((1, 6)), None, points, 0.0)
monte_carlo_bias(np.zeros(2), 0, np.full(2, 0.5), 2, num_trials=2, scheme=sys.argv[1])
"""


def _verification_options() -> Options:
    """Return the options of ``samplesoft verify`` about what to verify.

    A function makes them, so that schemes and samplers registered after import are included.
    """
    return {
        "samplers": Option(
            f"names out of {','.join(SAMPLERS)} (default: {','.join(DEFAULT_SAMPLERS)}, except for "
            "samplers without the data that they need: unigram needs counts, rff needs vectors of "
            "norm 1)",
            parse=names_parser(SAMPLERS),
            metavar="NAMES",
        ),
        "num_sampled": Option(
            "numbers of draws m (default 10,100,1000); --scheme poisson, whose number of draws is "
            "random, includes class j with probability 1 - (1 - q_j)^m",
            parse=draw_counts,
            metavar="M",
            default=[10, 100, 1000],
        ),
        "wrt": Option(
            f"gradients to check, out of {','.join(PARAMETER_BLOCKS)} (default: all that the "
            "input has)",
            parse=names_parser(PARAMETER_BLOCKS),
            metavar="BLOCKS",
            default=list(PARAMETER_BLOCKS),
        ),
        "scheme": Option(
            f"scheme of the loss, one of {', '.join(exact_schemes())} (default %(default)s)",
            metavar="NAME",
            choices=exact_schemes(),
            default="negatives",
        ),
        "trials": Option(
            "number of Monte Carlo trials for each example, sampler and m (default %(default)s)",
            parse=integer_parser(2),
            metavar="N",
            default=2000,
        ),
        "certified": Option(
            "also prove the bias of the logits and what follows from it, by ball arithmetic; needs "
            "python-flint, and some 2 ms for each class, example, sampler and m",
            switch="on",
        ),
        "seed": Option(
            "seed of examples, features and trials (default 0)",
            parse=seed,
            default=0,
        ),
    }


def add(parser: argparse.ArgumentParser) -> None:
    """Add description and options of the command to its parser."""
    parser.description = (
        "Compute the exact bias of sampled softmax on real input, and compare it with Monte Carlo, "
        "with the published bounds of Theorem 1, and with bounds that hold for every m. By default "
        "the input is the source code of Python's standard library, as tokens."
    )

    parser.epilog = (
        "Exit status: 0 if Monte Carlo agrees with the exact values and the finite-m "
        "bounds hold, 1 if not, 2 for bad usage or bad input, 130 if interrupted. A violated "
        "published bound is reported, but is not a failure."
    )

    add_source_options(parser, examples=5, logits=True)
    group = parser.add_argument_group("verification")
    add_options(group, {**_verification_options(), "scheduler": SCHEDULER})
    group = parser.add_argument_group("model and samplers (not with --logits)")
    add_options(group, _VECTOR_OPTIONS)

    group = parser.add_argument_group("output")
    add_options(group, {"details": Option("print all tables of the report", switch="on")})
    add_report_options(group, ("json", "html", "csv", "figure"))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft verify``.

    Returns the exit status: 0 if Monte Carlo agrees with the exact values and the finite-m bounds
    hold, 1 if not.
    """
    _check_options(options)
    with open_executor(options.scheduler) as executor, _compile_ahead(options.scheme):
        return _verify_and_report(options, executor)


@contextmanager
def _compile_ahead(scheme: str) -> Iterator[None]:
    """Compile kernels of `verify` in another process during the body of ``with``, to save time.

    The body then loads the kernels from the cache on disk. Does nothing if the cache already has
    them, if kernels are not cached, or with a single thread.
    """
    kernel: Any = sums_at_nodes
    # None if kernels are not compiled, or no folder for the cache is writable
    cache = kernel.stats.cache_path if COMPILES else None
    if cache is None or num_threads() < 2 or any(Path(cache).glob("*.sums_at_nodes-*.nbi")):
        yield
        return

    command = (sys.executable, "-c", _COMPILE_SCRIPT, scheme)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def _verify_and_report(options: argparse.Namespace, executor: Executor | None) -> int:
    source = load_source(options)
    show_list_item(f"input: {source.title}, {source.logits.shape[1]:,} classes")
    vectors = source.embeddings
    vector_arguments: dict[str, Any] = {}
    if vectors is not None:
        vector_arguments = {"h": vectors.h, "class_embeddings": vectors.class_embeddings}

    sampler_fields = {
        name: value for name in _SAMPLER_FIELDS if (value := getattr(options, name)) is not None
    }
    sampler_arguments = {"counts": source.counts, "logits": source.logits, "rng": options.seed}
    inputs = SamplerInputs(
        tau=source.tau, **sampler_arguments, **vector_arguments, **sampler_fields
    )

    # Default samplers whose data the input lacks are left out of the report. If --samplers names
    # such a sampler, an error is raised.
    left_out: dict[str, str] = {}
    if options.samplers is None:
        reasons_by_sampler = {
            name: SAMPLERS[name].reason_if_inputs_lack(inputs, source.unit_vectors)
            for name in DEFAULT_SAMPLERS
        }
        left_out = {name: reason for name, reason in reasons_by_sampler.items() if reason}

    names = options.samplers or [name for name in DEFAULT_SAMPLERS if name not in left_out]
    with progress_phase(True, "proposals"):
        try:
            proposals = dense_proposals(names, inputs)
        except ValueError as error:
            raise ValueError(
                f"--samplers: {error} Vectors come with --corpus and --embeddings, counts with "
                "--corpus or as `counts` in an --embeddings .npz file."
            ) from None

    settings: dict[str, Any] = {"input": source.title}
    if vectors is not None:
        settings |= {"d": vectors.h.shape[1], "tau": source.tau}
        settings |= {"rff nu": inputs.nu, "random features": inputs.num_features}

    settings |= {"quadratic alpha": inputs.alpha, "unigram power": inputs.power}
    settings["seed"] = options.seed
    if left_out:
        reasons = (f"{name} ({reason})" for name, reason in left_out.items())
        settings["samplers left out"] = ", ".join(reasons)

    report = verify(
        source.logits,
        source.labels,
        proposals,
        options.num_sampled,
        **vector_arguments,
        tau=source.tau,
        wrt=options.wrt,
        scheme=options.scheme,
        num_trials=options.trials,
        certified=bool(options.certified),
        rng=options.seed,
        progress=show_row,
        settings=settings,
        executor=executor,
    )

    write_and_show_report(options, report)
    return 0 if report.ok else 1


def _check_options(options: argparse.Namespace) -> None:
    """Raise ValueError for options without effect, conflicting options, and unusable files."""
    for name in ("tau", *_SAMPLER_FIELDS):
        if options.logits and getattr(options, name) is not None:
            raise ValueError(
                f"{flag(name)} has no effect with --logits, which has no vectors; leave it out, or "
                "use --corpus or --embeddings."
            )

    check_source_options(options)
    if (options.logits is None) != (options.labels is None):
        present, absent = ("--logits", "--labels")[:: 1 if options.logits else -1]
        raise ValueError(f"{present} needs {absent} with it; give both, or neither.")
    if options.logits and "logits" not in options.wrt:
        raise ValueError(
            f"--wrt must include logits for --logits, got {','.join(options.wrt)}; h and "
            "class_embeddings need vectors: use --corpus or --embeddings."
        )
    if options.certified:
        try:
            import_flint()
        except ImportError as error:
            raise ValueError(f"--certified: {error}") from None
        if "logits" not in options.wrt:
            raise ValueError(
                f"--wrt must include logits for --certified, got {','.join(options.wrt)}."
            )

    # checked before reading the input, which takes seconds
    min_draws = SCHEMES[options.scheme].min_draws
    if min(options.num_sampled) < min_draws:
        raise ValueError(
            f"--num-sampled must be at least {min_draws} for --scheme {options.scheme}, got "
            f"{min(options.num_sampled)}."
        )

    check_figure_format(options)
