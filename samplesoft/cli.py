"""The command line: ``samplesoft`` and its commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from samplesoft import __version__
from samplesoft.commands import COMMANDS
from samplesoft.commands.files import check_files
from samplesoft.commands.options import all_printable, discard_stdout, until_nobody_reads


def main(argv: Sequence[str] | None = None) -> int:
    r"""Run the command line with the arguments `argv`, by default those of the process.

    Returns 0 if all went well, 1 if a check failed or training diverged, 2 for bad usage or input,
    130 if interrupted by KeyboardInterrupt. Signals are handled by `samplesoft.__main__` alone.
    What the streams have no code for is printed as an escape of Python, such as ``\u6a21``.
    """
    with all_printable():
        status = _run(argv)
        if sys.stdout is not None:
            # here and not at the exit of Python, where an error has a traceback
            try:
                with until_nobody_reads():
                    sys.stdout.flush()
            except OSError as error:  # of a full disk
                _complain(f"samplesoft: error: what is printed cannot be written: {_reason(error)}")
                discard_stdout()
                status = status or 2
        return status


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments = sys.argv[1:] if argv is None else argv
        options = build_parser(arguments).parse_args(arguments)
    except SystemExit as exit_:  # argparse has printed the reason
        return int(exit_.code or 0)
    # not at the top: importing Numba takes a second, which `--help` need not wait for
    from samplesoft._jit import report_compilation

    try:
        check_files(options)
        with report_compilation(True):
            return int(options.run(options))
    # training that diverged is a result, and no wrong input
    except FloatingPointError as error:
        _complain(f"samplesoft {options.command}: failed: {error}")
        return 1
    except (MemoryError, OSError, OverflowError, TypeError, ValueError) as error:
        _complain(f"samplesoft {options.command}: error: {_reason(error)}")
        return 2
    except KeyboardInterrupt as error:
        _complain(f"samplesoft {options.command}: {str(error) or 'interrupted'}")
        return 130


def _complain(words: str) -> None:
    """Print on stderr; the exit status tells what happened where nobody reads that."""
    with suppress(OSError):
        print(words, file=sys.stderr, flush=True)


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands; only that of the arguments is loaded, to start fast."""
    parser = argparse.ArgumentParser(
        prog="samplesoft",
        description="Sampled softmax: exact bias, bounds, Monte Carlo, and training.",
    )
    parser.add_argument("--version", action="version", version=f"samplesoft {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, what in COMMANDS.items():
        one = commands.add_parser(name, help=what)
        # the other commands' imports would take a second
        if name in arguments:
            import_module(f"samplesoft.commands.{name}").add(one)
    return parser


def _reason(error: Exception) -> str:
    """Return what went wrong in one line, with a remedy for errors of the operating system."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    where = "" if error.filename is None else f"{error.filename!r}: "
    return f"{where}{error.strerror}; check the path, its permissions, and the space on the disk."
