"""``samplesoft verify``: theory, bounds and Monte Carlo against each other."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from samplesoft._files import write_text
from samplesoft._validation import FloatArray
from samplesoft.bias.inputs import SCHEMES
from samplesoft.commands.options import (
    check_writable,
    draw_counts,
    name_list,
    positive_float,
    positive_int,
    say,
    seed,
    show_part,
    show_report,
    write_json,
)
from samplesoft.commands.source import Source, load_source
from samplesoft.samplers.inputs import SamplerInputs
from samplesoft.samplers.proposals import dense_proposals
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.verification.blocks import WRT
from samplesoft.verification.plots import FORMATS
from samplesoft.verification.verify import verify

ALPHA = 100.0  # of the quadratic sampler
OUTPUTS = ("json", "csv", "latex", "figure")
PAPERS = ("uniform", "log-uniform", "unigram", "softmax", "quadratic", "rff")  # by default
VECTOR_OPTIONS = {"tau": 11.1, "nu": 4.0, "num_features": 1024}  # defaults; without use for logits


def add(commands: Any) -> None:
    """Add the parser of the command."""
    parser = commands.add_parser(
        "verify",
        help="check theory, bounds and Monte Carlo against each other",
        description="Compute the exact bias of sampled softmax on real input, and put Monte Carlo, "
        "the printed bounds of Theorem 1 and bounds that hold for every m beside it. Without "
        "options: tokens of the Python standard library's own sources.",
        epilog="Exit status: 0 if Monte Carlo agrees with the exact values and the finite-m "
        "bounds hold, 1 if not, 2 for bad usage or bad input. A violated printed bound is a "
        "finding, not a failure.",
    )
    source = parser.add_argument_group(
        "input (one of --corpus, --embeddings, --logits, --checkpoint)"
    )
    only = source.add_mutually_exclusive_group()
    only.add_argument("--corpus", metavar="FILE", help="plain text, also .gz, .xz or .bz2")
    only.add_argument(
        "--embeddings",
        metavar="FILE",
        help=".npz with h, class_embeddings, labels and perhaps counts; or word2vec text, 'n d' "
        "and then 'word v_1 ... v_d' on n lines: an example is a word's vector, its label the "
        "nearest other word",
    )
    only.add_argument("--logits", metavar="FILE", help=".npy of logits (B, n); needs --labels")
    only.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="of samplesoft train: contexts that the trained model made, its class vectors and tau",
    )
    source.add_argument(
        "--labels", metavar="FILE", help="labels of --logits: .npy of B integers, or such as 3,0,7"
    )
    source.add_argument(
        "--examples", type=positive_int, default=5, metavar="B", help="examples (default 5)"
    )
    _add_checks(parser.add_argument_group("what is checked"))
    _add_model(parser.add_argument_group("model and samplers (not with --logits)"))
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write the report as JSON")
    output.add_argument("--csv", metavar="FILE", help="write all rows, comma-separated")
    output.add_argument(
        "--latex", metavar="FILE", help="write the tables in LaTeX, for which no package is needed"
    )
    output.add_argument("--figure", metavar="FILE", help=f"write the figure ({', '.join(FORMATS)})")
    parser.set_defaults(run=run)


def _add_checks(group: Any) -> None:
    group.add_argument(
        "--samplers",
        type=name_list,
        metavar="NAMES",
        help=f"of {','.join(SAMPLERS)} (default: of {','.join(PAPERS)} all that the input allows; "
        "unigram needs counts, the kernel samplers h and class vectors of norm 1)",
    )
    group.add_argument(
        "--num-sampled",
        type=draw_counts,
        default=[10, 100, 1000],
        metavar="M",
        help="numbers of draws m, such as 10,100,1000 (default); for --scheme poisson, which draws "
        "no fixed number, class j is included with probability 1 - (1 - q_j)^m",
    )
    group.add_argument(
        "--wrt",
        type=name_list,
        default=list(WRT),
        metavar="BLOCKS",
        help=f"of {','.join(WRT)} (default: all that the input allows)",
    )
    group.add_argument(
        "--scheme", choices=SCHEMES, default="negatives", help="default: %(default)s"
    )
    group.add_argument(
        "--trials",
        type=positive_int,
        default=2000,
        metavar="N",
        help="Monte Carlo trials for each example, sampler and m (default %(default)s)",
    )
    group.add_argument(
        "--seed", type=seed, default=0, help="of examples, random features and trials (default 0)"
    )


def _add_model(group: Any) -> None:
    group.add_argument(
        "--tau",
        type=positive_float,
        help="inverse temperature: logits are tau h . c (default 11.1, that is 1 / 0.3**2; "
        "--checkpoint has its own)",
    )
    group.add_argument(
        "--nu",
        type=positive_float,
        help="sharpness of the Gaussian kernel of the rff samplers (default 4)",
    )
    group.add_argument(
        "--num-features",
        type=positive_int,
        metavar="D",
        help="random frequencies of the rff samplers, features of positive (default 1024)",
    )


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft verify``.

    Parameters
    ----------
    options : argparse.Namespace
        As parsed.

    Returns
    -------
    int
        0 if Monte Carlo agrees with the exact values and the finite-m bounds hold, 1 if not.

    Raises
    ------
    OSError, TypeError, ValueError
        If the input or an option is bad, or an output cannot be written.
    """
    _check_options(options)
    for name, default in VECTOR_OPTIONS.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    source = load_source(options)
    show_part(f"input: {source.title}, {source.logits.shape[1]:,} classes")
    vectors = source.embeddings
    model = SamplerInputs(
        None if vectors is None else vectors.class_embeddings,
        source.counts,
        tau=source.tau,
        nu=options.nu,
        num_features=options.num_features,
        alpha=ALPHA,
        rng=options.seed,
        h=None if vectors is None else vectors.h,
        logits=source.logits,
    )
    say(f"Computing the proposals over {source.logits.shape[1]:,} classes.")
    proposals, left_out = _proposals(options.samplers, model)
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
        settings=_settings(options, source, model, left_out),
    )
    show_report(report.to_markdown())
    if options.json:
        write_json(options.json, report.to_dict())
    if options.csv:
        write_text(options.csv, report.to_csv())
    if options.latex:
        write_text(options.latex, report.to_latex())
    if options.figure:
        report.plot(options.figure)
    return 0 if report.ok else 1


def _check_options(options: argparse.Namespace) -> None:
    """Find what is wrong with the options before the long work."""
    for name in VECTOR_OPTIONS:
        if options.logits and getattr(options, name) is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} does nothing to --logits, which has no vectors; "
                "leave it out, or use --corpus or --embeddings."
            )
    if options.checkpoint and options.tau is not None:
        raise ValueError(
            f"--tau does nothing to --checkpoint, which holds its own, got {options.tau}; "
            "leave it out."
        )
    if (options.logits is None) != (options.labels is None):
        given, absent = ("--logits", "--labels") if options.logits else ("--labels", "--logits")
        raise ValueError(f"{given} needs {absent} with it; give both, or neither.")
    for name in options.samplers or ():
        if name not in SAMPLERS:
            raise ValueError(
                f"--samplers must be of {', '.join(SAMPLERS)}; got {name!r}; correct the name."
            )
    for name in options.wrt:
        if name not in WRT:
            raise ValueError(f"--wrt must be of {', '.join(WRT)}; got {name!r}.")
    if options.logits and "logits" not in options.wrt:
        raise ValueError(
            f"--wrt must include logits for --logits, got {','.join(options.wrt)}; h and "
            "class_embeddings need vectors: use --corpus or --embeddings."
        )
    if len(set(options.num_sampled)) < len(options.num_sampled):
        raise ValueError(
            f"--num-sampled must hold different numbers, got {options.num_sampled}; name each once."
        )
    if options.scheme == "jackknife" and min(options.num_sampled) < 2:
        raise ValueError("--num-sampled must be at least 2 for --scheme jackknife, got 1.")
    if options.trials < 2:
        raise ValueError("--trials must be at least 2, got 1; the default is 2000.")
    if options.figure and Path(options.figure).suffix.lower() not in FORMATS:
        raise ValueError(
            f"--figure must end in {', '.join(FORMATS)}; got {options.figure!r}; "
            "rename it, for example report.png."
        )
    written: dict[Path, str] = {}
    for option in OUTPUTS:
        path = getattr(options, option)
        if path:
            other = written.setdefault(Path(path).resolve(), option)
            if other != option:
                raise ValueError(
                    f"--{other} and --{option} must name two files, got {path!r} for both; "
                    "rename one."
                )
            check_writable(f"--{option}", path)


def _proposals(
    names: list[str] | None, model: SamplerInputs
) -> tuple[dict[str, FloatArray], dict[str, str]]:
    """Return the proposals asked for, or those of the papers that the model allows."""
    if names is not None:
        try:
            return dense_proposals(names, model), {}
        except ValueError as error:
            raise ValueError(
                f"--samplers: {error} Vectors come with --corpus and --embeddings, counts with "
                "--corpus or as `counts` in an --embeddings .npz file."
            ) from None
    proposals: dict[str, FloatArray] = {}
    left_out: dict[str, str] = {}
    for name in PAPERS:
        try:
            proposals |= dense_proposals([name], model)
        except ValueError as error:
            left_out[name] = str(error)
            say(f"Left out: {error}")
    return proposals, left_out


def _settings(
    options: argparse.Namespace, source: Source, model: SamplerInputs, left_out: dict[str, str]
) -> dict[str, Any]:
    settings: dict[str, Any] = {"input": source.title}
    if source.embeddings is not None:
        settings |= {"d": source.embeddings.h.shape[1], "tau": source.tau}
        settings |= {"rff nu": options.nu, "random features": options.num_features}
    settings |= {"quadratic alpha": model.alpha, "unigram power": model.power}
    settings["seed"] = options.seed
    if left_out:
        reasons = (f"{name} ({reason.rstrip('.')})" for name, reason in left_out.items())
        settings["samplers left out"] = ", ".join(reasons)
    return settings
