"""``samplesoft verify``: theory, bounds and Monte Carlo against each other."""

from __future__ import annotations

import argparse
from typing import Any

from samplesoft._progress import progress_phase
from samplesoft._validation import FloatArray
from samplesoft.commands.options import show_part, show_report
from samplesoft.commands.outputs import write_outputs
from samplesoft.commands.source import Source, load_source
from samplesoft.commands.verify_options import DEFAULT_SAMPLERS, add_options, check_options
from samplesoft.samplers.registry import SAMPLERS, SamplerInputs, dense_proposals
from samplesoft.verification.verify import verify


def add(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.description = (
        "Compute the exact bias of sampled softmax on real input, and put Monte Carlo, "
        "the printed bounds of Theorem 1 and bounds that hold for every m beside it. Without "
        "options: tokens of the Python standard library's own sources."
    )
    parser.epilog = (
        "Exit status: 0 if Monte Carlo agrees with the exact values and the finite-m "
        "bounds hold, 1 if not, 2 for bad usage or bad input, 130 if interrupted. A violated "
        "printed bound is a finding, not a failure."
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft verify``.

    The exit status is 0 if Monte Carlo agrees with the exact values and the finite-m bounds hold,
    1 if not.
    """
    check_options(options)
    source = load_source(options)
    show_part(f"input: {source.title}, {source.logits.shape[1]:,} classes")
    vectors = source.embeddings
    features = {
        name: getattr(options, name)
        for name in ("nu", "num_features")
        if getattr(options, name) is not None
    }
    inputs = SamplerInputs(
        None if vectors is None else vectors.class_embeddings,
        source.counts,
        tau=source.tau,
        rng=options.seed,
        h=None if vectors is None else vectors.h,
        logits=source.logits,
        **features,
    )
    left_out: dict[str, str] = {}
    if options.samplers is None:
        left_out = _default_samplers_without_data(inputs, source.unit_vectors)
    names = options.samplers or [name for name in DEFAULT_SAMPLERS if name not in left_out]
    with progress_phase(True, "proposals"):
        proposals = _proposals(names, inputs)
    report = verify(
        source.logits,
        source.labels,
        proposals,
        options.num_sampled,
        h=None if vectors is None else vectors.h,
        class_embeddings=None if vectors is None else vectors.class_embeddings,
        tau=source.tau,
        wrt=options.wrt,
        scheme=options.scheme,
        num_trials=options.trials,
        rng=options.seed,
        progress=show_part,
        settings=_settings(options, source, inputs, left_out),
    )
    show_report(report.to_text(options.details) + "\n")
    write_outputs(options, report)
    return 0 if report.ok else 1


def _default_samplers_without_data(inputs: SamplerInputs, unit_vectors: bool) -> dict[str, str]:
    """Return which default samplers the input does not suffice for, and what each needs."""
    lacks = {name: SAMPLERS[name].lacks(inputs, unit_vectors) for name in DEFAULT_SAMPLERS}
    return {name: reason for name, reason in lacks.items() if reason}


def _proposals(names: list[str], inputs: SamplerInputs) -> dict[str, FloatArray]:
    try:
        return dense_proposals(names, inputs)
    except ValueError as error:
        raise ValueError(
            f"--samplers: {error} Vectors come with --corpus and --embeddings, counts with "
            "--corpus or as `counts` in an --embeddings .npz file."
        ) from None


def _settings(
    options: argparse.Namespace, source: Source, inputs: SamplerInputs, left_out: dict[str, str]
) -> dict[str, Any]:
    settings: dict[str, Any] = {"input": source.title}
    if source.embeddings is not None:
        settings |= {"d": source.embeddings.h.shape[1], "tau": source.tau}
        settings |= {"rff nu": inputs.nu, "random features": inputs.num_features}
    settings |= {"quadratic alpha": inputs.alpha, "unigram power": inputs.power}
    settings["seed"] = options.seed
    if left_out:
        reasons = (f"{name} ({reason})" for name, reason in left_out.items())
        settings["samplers left out"] = ", ".join(reasons)
    return settings
