"""The command line: ``samplesoft verify``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from samplesoft._validation import LARGEST_COUNT
from samplesoft.bias.inputs import SCHEMES
from samplesoft.proposals import PAPERS, PROPOSALS
from samplesoft.verification.blocks import WRT
from samplesoft.verification.plots import FORMATS

VECTOR_OPTIONS = {"tau": 11.1, "nu": 4.0, "num_features": 1024}  # defaults; without use for logits


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; those of the process by default.

    Returns
    -------
    int
        0 if all checks passed, 1 if one failed, 2 for bad usage or bad input.
    """
    try:
        options = build_parser().parse_args(argv)
    except SystemExit as exit_:  # argparse has printed the reason
        return int(exit_.code or 0)
    try:
        return int(options.run(options))
    except (MemoryError, OSError, OverflowError, TypeError, ValueError) as error:
        print(f"samplesoft {options.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"samplesoft {options.command}: interrupted", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="samplesoft", description="Sampled softmax: exact bias, bounds and Monte Carlo."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    verify = commands.add_parser(
        "verify",
        help="check theory, bounds and Monte Carlo against each other",
        description="Compute the exact bias of sampled softmax on real input, and put Monte Carlo, "
        "the printed bounds of Theorem 1 and bounds that hold for every m beside it. Without "
        "options: tokens of the Python standard library's own sources.",
        epilog="Exit status: 0 if Monte Carlo agrees with the exact values and the finite-m "
        "bounds hold, 1 if not, 2 for bad usage or bad input. A violated printed bound is a "
        "finding, not a failure.",
    )
    source = verify.add_argument_group("input (one of --corpus, --embeddings, --logits)")
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
    source.add_argument(
        "--labels", metavar="FILE", help="labels of --logits: .npy of B integers, or such as 3,0,7"
    )
    source.add_argument(
        "--examples", type=_positive_int, default=5, metavar="B", help="examples (default 5)"
    )
    _add_checks(verify.add_argument_group("what is checked"))
    _add_model(verify.add_argument_group("model and samplers (not with --logits)"))
    output = verify.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write the report as JSON")
    output.add_argument("--figure", metavar="FILE", help=f"write the figure ({', '.join(FORMATS)})")
    verify.set_defaults(run=_verify)
    return parser


def _add_checks(group: Any) -> None:
    group.add_argument(
        "--samplers",
        type=_names,
        metavar="NAMES",
        help=f"of {','.join(PROPOSALS)} (default: of {','.join(PAPERS)} all that the input allows; "
        "unigram needs counts, the kernel samplers h and class vectors of norm 1)",
    )
    group.add_argument(
        "--num-sampled",
        type=_draws,
        default=[10, 100, 1000],
        metavar="M",
        help="numbers of draws m, such as 10,100,1000 (default); for --scheme poisson, which draws "
        "no fixed number, class j is included with probability 1 - (1 - q_j)^m",
    )
    group.add_argument(
        "--wrt",
        type=_names,
        default=list(WRT),
        metavar="BLOCKS",
        help=f"of {','.join(WRT)} (default: all that the input allows)",
    )
    group.add_argument(
        "--scheme", choices=SCHEMES, default="negatives", help="default: %(default)s"
    )
    group.add_argument(
        "--trials",
        type=_positive_int,
        default=2000,
        metavar="N",
        help="Monte Carlo trials for each example, sampler and m (default %(default)s)",
    )
    group.add_argument(
        "--seed", type=_seed, default=0, help="of examples, random features and trials (default 0)"
    )


def _add_model(group: Any) -> None:
    group.add_argument(
        "--tau",
        type=_positive_float,
        help="inverse temperature: logits are tau h . c (default 11.1, that is 1 / 0.3**2)",
    )
    group.add_argument(
        "--nu",
        type=_positive_float,
        help="sharpness of the Gaussian kernel of the rff samplers (default 4)",
    )
    group.add_argument(
        "--num-features",
        type=_positive_int,
        metavar="D",
        help="random frequencies of the rff samplers, features of positive (default 1024)",
    )


def _verify(options: argparse.Namespace) -> int:
    from samplesoft.commands import run_verify

    for name, default in VECTOR_OPTIONS.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
        elif options.logits:
            raise ValueError(
                f"--{name.replace('_', '-')} does nothing to --logits, which has no vectors; "
                "leave it out, or use --corpus or --embeddings."
            )
    return run_verify(options)


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names parted by commas, got {text!r}")
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"expected each name once, got {text!r}")
    return names


def _positive_int(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return value


def _draws(text: str) -> list[int]:
    values = [_positive_int(part) for part in text.split(",")]
    if max(values) > LARGEST_COUNT:
        raise argparse.ArgumentTypeError(
            f"expected at most {LARGEST_COUNT} draws, got {max(values)}"
        )
    return values


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")
    return int(text)


def _positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, got {text!r}")
    return value
