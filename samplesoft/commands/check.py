"""``samplesoft check``: what an implementation of a sampled loss estimates."""

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
from samplesoft.checking.observe import ROUNDINGS
from samplesoft.checking.problems import NAMED
from samplesoft.commands.files import check_files
from samplesoft.commands.options import (
    Option,
    Options,
    add_options,
    add_outputs,
    check_outputs,
    draw_count,
    give_report,
    given,
    positive_float,
    positive_int,
    seed,
)

_CALLS = signature(check_loss).parameters["calls"].default
_OPTIONS: Options = {
    "proposal": Option(
        f"what it draws from: {', '.join(NAMED)}, or module:name of an array q, of a function "
        "of n, or of a sampler",
        metavar="Q",
        required=True,
    ),
    "scheme": Option(
        f"the scheme that it is meant to follow: {', '.join(ESTIMATORS)}",
        metavar="NAME",
        choices=ESTIMATORS,
    ),
    "seed": Option(
        "of the problems (default 0)",
        parse=seed,
        default=0,
    ),
    "traceback": Option(
        "print the traceback of an error in the module or in the loss",
        switch="on",
        default=False,
    ),
    "num_sampled": Option(
        "number of draws m that the loss is asked for (default %(default)s); a loss whose "
        "negatives are the labels of its batch is called on batches of 64, and its m is 63",
        parse=draw_count,
        metavar="N",
        default=10,
    ),
    "tau": Option(
        "inverse temperature that the loss puts before h . c (default 1)",
        parse=positive_float,
        metavar="N",
    ),
    "biases": Option("the loss takes class biases (n,) as a sixth argument", switch="either"),
    "weights": Option(
        "the loss takes weights (B,) of the examples as its last argument, and multiplies losses "
        "and gradients by them",
        switch="either",
    ),
    "rounding": Option(
        "type in which part of the loss is computed, where it cannot be measured: "
        f"{', '.join(ROUNDINGS)}",
        metavar="TYPE",
        choices=ROUNDINGS,
    ),
    "calls": Option(
        f"calls at most, a power of two (default {_CALLS}); with few, wrong hypotheses may be left "
        "too, and the report says how many",
        parse=positive_int,
        metavar="N",
    ),
}


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
        "that could not be checked: its module cannot be imported, or it raises; 130 if "
        "interrupted. What the schemes are: help(samplesoft.schemes), and 'Ways to draw with "
        "replacement' in the documentation."
    )
    parser.add_argument(
        "loss",
        metavar="module:function",
        help="the function loss(class_embeddings, h, labels, num_sampled, seed), which returns the "
        "losses (B,), or these and their gradient in h; the module is found from the current "
        "folder too",
    )
    add_options(parser, _OPTIONS)
    add_outputs(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft check``; 0 if the loss is right, and what was asked for, else 1."""
    check_outputs(options)
    # What the user's code prints goes to stderr: the report alone is on stdout. What it says
    # numpy.seterr is about itself, and not about the exact means.
    with redirect_stdout(sys.stderr), np.errstate():
        loss = _named("module:function", options.loss, options)
        proposal = _proposal(options)
        check_files(options)  # once more, as modules have been loaded
        values = given(options, check_loss) | {"loss": loss, "proposal": proposal}
    with redirect_stdout(sys.stderr):
        report = _checked(lambda: check_loss(progress=True, rng=options.seed, **values), options)
    give_report(options, report)
    if options.scheme:
        return 0 if report.ok and (options.scheme, None) in report.consistent else 1
    return 0 if report.ok else 1


def _checked(check: Callable[[], Any], options: argparse.Namespace) -> Any:
    """Return what `check` does; ValueError, which is no verdict, where the user's code raises."""
    try:
        return check()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too, whose status would be a verdict
        frames = frames_of_user(error)
        if frames is None:
            if isinstance(error, (MemoryError, OSError, OverflowError, TypeError, ValueError)):
                raise  # in words already
            traceback.print_exc()  # a mistake in samplesoft, and not in the loss
            raise ValueError(
                f"the loss could not be checked: {_named_error(error)}, in samplesoft itself; "
                "please report it with what stands above."
            ) from None
        _show_traceback(error, options)
        what, (file, line, _) = "`loss` or `--proposal` must not raise", frames[-1]
        where = f" in {os.path.basename(file)}, line {line}" if file else ""
        names = dict.fromkeys(name for *_, name in frames if name)
        through = f" ({' > '.join(names)})" if names else ""
        raise ValueError(
            f"{what}, got {_named_error(error)}{where}{through}; the loss could not be checked. "
            "--traceback shows more."
        ) from None


def _named_error(error: BaseException) -> str:
    """Return the type of an error and the first line of what it says."""
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0]}" if words else type(error).__name__


def _show_traceback(error: BaseException, options: argparse.Namespace) -> None:
    if options.traceback:
        traceback.print_exception(error)


def _proposal(options: argparse.Namespace) -> Any:
    """Return a proposal by its name, or what a module holds."""
    text = options.proposal
    if ":" in text:
        return _named("--proposal", text, options)
    return as_choice("--proposal", text, NAMED)


def _named(option: str, text: str, options: argparse.Namespace) -> Any:
    """Return what ``module:name`` stands for; the module may be in the current folder."""
    module, _, name = text.partition(":")
    if not (module and name):
        raise ValueError(f"{option} must be written module:name, got {text!r}.")
    # as python -m does; a console script starts without the current folder
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        holder = import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the module does: SystemExit, SyntaxError, ...
        _show_traceback(error, options)
        raise ValueError(
            f"{option} must name a module that can be imported, got {module!r}: "
            f"{_named_error(error)}{_line_of(error)}; {_remedy(module, error)}"
        ) from None
    try:
        return attrgetter(name)(holder)
    except AttributeError:
        raise ValueError(f"{option} must name something in {module!r}, got {name!r}.") from None
    except Exception as error:  # of a property, or of the module's own __getattr__
        _show_traceback(error, options)
        raise ValueError(
            f"{option} must name something in {module!r}, got {name!r}: {_named_error(error)}."
        ) from None


def _line_of(error: BaseException) -> str:
    """Return where an import failed, in words: the last line outside of libraries, if any is."""
    if isinstance(error, SyntaxError) and error.filename:
        return ""  # it says so itself
    own = (os.path.dirname(os.__file__), os.path.abspath(__file__), "<frozen")
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    of_libraries = [f for f in frames if "-packages" in f[0]]
    of_user = [f for f in frames if not f[0].startswith(own) and f not in of_libraries]
    if not (of_user or of_libraries):
        return ""
    file, line = (of_user or of_libraries)[-1]
    return f" in {os.path.basename(file)}, line {line}"


def _remedy(module: str, error: BaseException) -> str:
    """Return what to do about a module that cannot be imported."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if module.endswith(".py") or "/" in module or "\\" in module:
        return "write its name, without folders and without .py, where it lies."
    if missing and not (module == missing or module.startswith(f"{missing}.")):
        return f"install {missing!r}, or leave it out of the module."
    if isinstance(error, ImportError):
        return "run the command where the module lies."
    return "see that `python -c 'import ...'` of it works. --traceback shows more."
