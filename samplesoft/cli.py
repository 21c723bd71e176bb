"""The command line ``samplesoft``: parsing, errors, and the exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from samplesoft import __version__
from samplesoft.commands import COMMANDS
from samplesoft.commands.files import check_files
from samplesoft.commands.options import discard_stdout, escape_unprintable, suppress_closed_pipe


def main(argv: Sequence[str] | None = None) -> int:
    r"""Run the command line and return its exit status.

    `argv` are the arguments, by default the arguments of the process. The status is 0 for success,
    1 if a check failed or training diverged, 2 for bad usage or input, and 130 after a
    KeyboardInterrupt. Only `samplesoft.__main__` handles signals. Characters that the streams
    cannot encode are printed as Python escapes, such as ``\u6a21``.
    """
    with escape_unprintable():
        status = _run_command(argv)

        if sys.stdout is not None:
            # flush now, because an error when the interpreter exits would print a traceback
            try:
                with suppress_closed_pipe():
                    sys.stdout.flush()
            except OSError as error:  # such as a full disk
                _print_error(
                    f"samplesoft: error: what is printed cannot be written: {_error_message(error)}"
                )
                discard_stdout()
                status = status or 2
        return status


def _run_command(argv: Sequence[str] | None) -> int:
    """Parse the arguments, run the command, and return the exit status; print errors on stderr."""
    try:
        arguments = sys.argv[1:] if argv is None else argv
        options = build_parser(arguments).parse_args(arguments)
    except SystemExit as exit_:  # argparse has printed the reason
        return int(exit_.code or 0)

    # not imported at the top, because importing Numba takes a second, which would delay `--help`
    from samplesoft._jit import report_compilation

    try:
        check_files(options)
        with report_compilation(True):
            return int(options.run(options))
    # training that diverges is a result and not a wrong input, so its status differs
    except FloatingPointError as error:
        _print_error(f"samplesoft {options.command}: failed: {error}")
        return 1
    except (MemoryError, OSError, OverflowError, TypeError, ValueError) as error:
        _print_error(f"samplesoft {options.command}: error: {_error_message(error)}")
        return 2
    except KeyboardInterrupt as error:
        _print_error(f"samplesoft {options.command}: {str(error) or 'interrupted'}")
        return 130


def _print_error(message: str) -> None:
    """Print a message on stderr; ignore a closed stream, because the exit status is nonzero too."""
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the argument parser of the command line, with the options of the command in use.

    Only commands that occur in `arguments` are imported, because importing all takes a second.
    """
    parser = argparse.ArgumentParser(
        prog="samplesoft",
        description="Sampled softmax: exact bias, bounds, Monte Carlo, and training.",
    )
    parser.add_argument("--version", action="version", version=f"samplesoft {__version__}")

    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, description in COMMANDS.items():
        command_parser = commands.add_parser(name, help=description)
        if name in arguments:
            import_module(f"samplesoft.commands.{name}").add(command_parser)
    return parser


def _error_message(error: Exception) -> str:
    """Return the message of an error; for errors of the operating system, with path and remedy."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    path_text = "" if error.filename is None else f"{error.filename!r}: "
    return (
        f"{path_text}{error.strerror}; check the path, its permissions, and the space on the disk."
    )
