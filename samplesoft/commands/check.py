"""``samplesoft check``: identify the scheme of a sampled loss, and its mistakes."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from inspect import signature
from operator import attrgetter
from typing import Any

import numpy as np

from samplesoft._validation import as_choice
from samplesoft.checking.calls import frames_of_user
from samplesoft.checking.check import check_loss
from samplesoft.checking.estimators import ESTIMATORS
from samplesoft.checking.observe import HALF_PRECISION_UNITS
from samplesoft.checking.problems import NAMED_PROPOSALS
from samplesoft.commands.files import check_files
from samplesoft.commands.options import (
    Option,
    Options,
    add_options,
    add_report_options,
    check_figure_format,
    draw_count,
    given_options,
    positive_float,
    positive_int,
    seed,
    write_and_show_report,
)

_DEFAULT_MAX_CALLS = signature(check_loss).parameters["calls"].default
_OPTIONS: Options = {
    "proposal": Option(
        f"proposal that the loss draws from: {', '.join(NAMED_PROPOSALS)}, or module:name of an "
        "array q, of a function of n, or of a sampler",
        metavar="Q",
        required=True,
    ),
    "scheme": Option(
        f"scheme that the loss should follow: {', '.join(ESTIMATORS)}",
        metavar="NAME",
        choices=ESTIMATORS,
    ),
    "seed": Option(
        "seed of the test problems (default 0)",
        parse=seed,
        default=0,
    ),
    "traceback": Option(
        "print the traceback if the module or the loss raises an error",
        switch="on",
        default=False,
    ),
    "num_sampled": Option(
        "number of draws m (default %(default)s); a loss with in-batch negatives gets batches of "
        "64 examples, and its m is 63",
        parse=draw_count,
        metavar="N",
        default=10,
    ),
    "tau": Option(
        "inverse temperature of the loss, whose logits are tau h . c (default 1)",
        parse=positive_float,
        metavar="N",
    ),
    "biases": Option("the loss takes class biases (n,) as its sixth argument", switch="either"),
    "weights": Option(
        "the loss takes example weights (B,) as its last argument, and multiplies losses and "
        "gradients by them",
        switch="either",
    ),
    "log_sums": Option(
        "the loss has a memory, and takes the log-sums (B,) from which it starts, -inf for a new "
        "example, before the weights",
        switch="either",
    ),
    "gamma": Option(
        "weight of the new draws in the running estimates of a loss with --log-sums",
        parse=positive_float,
        metavar="N",
    ),
    "alpha": Option(
        "step size of the running estimates, in place of --gamma", parse=positive_float, metavar="N"
    ),
    "rounding": Option(
        "lowest precision in which the loss computes, if that cannot be measured: "
        f"{', '.join(HALF_PRECISION_UNITS)}",
        metavar="TYPE",
        choices=HALF_PRECISION_UNITS,
    ),
    "calls": Option(
        f"maximum number of calls (default {_DEFAULT_MAX_CALLS}); with few calls "
        "some wrong hypotheses may remain, and the report says how many",
        parse=positive_int,
        metavar="N",
    ),
}


def add(parser: argparse.ArgumentParser) -> None:
    """Add description and options of the command to its parser."""
    parser.description = (
        "Call a sampled loss on small problems, and compare the means of its losses and "
        "gradients with the exact means of every scheme, without and with each common mistake."
    )

    parser.epilog = (
        "Exit status: 0 if the loss is consistent with --scheme, or by default with any scheme, "
        "and with no mistake; 1 if not; 2 for bad usage, or if the loss could not be checked, "
        "because its module cannot be imported or it raises an error; 130 if interrupted. The "
        "schemes are described in help(samplesoft.schemes), and in 'Ways to draw with replacement' "
        "in the documentation."
    )

    parser.add_argument(
        "loss",
        metavar="module:function",
        help="the function loss(class_embeddings, h, labels, num_sampled, seed), which returns the "
        "losses (B,), or a pair of the losses and their gradient in h; the module may be in the "
        "current folder",
    )

    add_options(parser, _OPTIONS)
    add_report_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft check``; return 0 if the loss follows ``--scheme`` without mistakes, else 1.

    Without ``--scheme``, returns 0 if the loss follows any scheme without mistakes.
    """
    check_figure_format(options)
    # Output of the user's code goes to stderr, so that stdout has only the report. Calls of
    # numpy.seterr in the user's code must not affect the exact means.
    with redirect_stdout(sys.stderr), np.errstate():
        loss = _load_object("module:function", options.loss, options)
        proposal = _load_proposal(options)
        # check again, now that the user's modules are loaded: outputs must not overwrite them
        check_files(options)
        values = given_options(options, check_loss) | {"loss": loss, "proposal": proposal}

    with redirect_stdout(sys.stderr):
        report = _call_and_explain_errors(
            lambda: check_loss(progress=True, rng=options.seed, **values), options
        )

    write_and_show_report(options, report)
    if options.scheme:
        return 0 if report.ok and (options.scheme, None) in report.consistent else 1

    return 0 if report.ok else 1


def _call_and_explain_errors(check: Callable[[], Any], options: argparse.Namespace) -> Any:
    """Return ``check()``; raise ValueError, with an explanation, if the user's code raises.

    For a ValueError the command exits with status 2; the status of a wrong loss is 1.
    """
    try:
        return check()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # also catches SystemExit, because its status could be mistaken for a verdict on the loss
        frames = frames_of_user(error)
        if frames is None:
            if isinstance(error, (MemoryError, OSError, OverflowError, TypeError, ValueError)):
                raise  # an error of samplesoft with a message for users

            traceback.print_exc()  # a bug in samplesoft, not in the loss
            raise ValueError(
                f"the loss could not be checked: {_describe_error(error)}, in samplesoft itself; "
                "please report it, with the traceback above."
            ) from None

        _show_traceback(error, options)
        file, line, _ = frames[-1]
        location = f" in {os.path.basename(file)}, line {line}" if file else ""
        names = dict.fromkeys(name for *_, name in frames if name)
        call_chain = f" ({' > '.join(names)})" if names else ""
        raise ValueError(
            f"`loss` or `--proposal` must not raise, got {_describe_error(error)}{location}"
            f"{call_chain}; the loss could not be checked. --traceback shows more."
        ) from None


def _describe_error(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _show_traceback(error: BaseException, options: argparse.Namespace) -> None:
    if options.traceback:
        traceback.print_exception(error)


def _load_proposal(options: argparse.Namespace) -> Any:
    """Return the proposal of ``--proposal``: a name in `NAMED_PROPOSALS`, or an imported object."""
    text = options.proposal
    if ":" in text:
        return _load_object("--proposal", text, options)
    return as_choice("--proposal", text, NAMED_PROPOSALS)


def _load_object(option: str, text: str, options: argparse.Namespace) -> Any:
    """Import and return the object that `text`, ``module:name``, names.

    The module may be in the current folder. `option` is the name of the option in errors.
    """
    module, _, name = text.partition(":")
    if not (module and name):
        raise ValueError(f"{option} must be written module:name, got {text!r}.")

    # add the current folder to the path, as `python -m` does; console scripts start without it
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())

    try:
        loaded = import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may raise anything, such as SystemExit
        _show_traceback(error, options)
        raise ValueError(
            f"{option} must name a module that can be imported, got {module!r}: "
            f"{_describe_error(error)}{_import_error_location(error)}; "
            f"{_import_advice(module, error)}"
        ) from None

    try:
        return attrgetter(name)(loaded)
    except AttributeError:
        raise ValueError(f"{option} must name something in {module!r}, got {name!r}.") from None
    except Exception as error:  # a property, or the module's __getattr__, may raise anything
        _show_traceback(error, options)
        raise ValueError(
            f"{option} must name something in {module!r}, got {name!r}: {_describe_error(error)}."
        ) from None


def _import_error_location(error: BaseException) -> str:
    """Return the text " in FILE, line N" for the line at which an import failed.

    It is the last line in the user's code, or else in a library. Returns an empty text if the
    message of the error names the line, or if no line is known.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return ""  # the message of a SyntaxError names file and line

    skipped = (os.path.dirname(os.__file__), os.path.abspath(__file__), "<frozen")
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    library_frames = [f for f in frames if "-packages" in f[0]]
    user_frames = [f for f in frames if not f[0].startswith(skipped) and f not in library_frames]
    if not (user_frames or library_frames):
        return ""

    file, line = (user_frames or library_frames)[-1]
    return f" in {os.path.basename(file)}, line {line}"


def _import_advice(module: str, error: BaseException) -> str:
    """Return advice, as a text for the user, on a `module` that could not be imported."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if module.endswith(".py") or "/" in module or "\\" in module:
        return "run the command in its folder, and pass its name without folders and .py."
    if missing and not (module == missing or module.startswith(f"{missing}.")):
        return f"install {missing!r}, or leave it out of the module."
    if isinstance(error, ImportError):
        return "run the command in the folder of the module."
    return "make `python -c 'import ...'` work first. --traceback shows more."
