"""Functions shared by all commands: parsers of values, option tables, report files, printing."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import signature
from typing import Any, TextIO

from samplesoft._files import write_text
from samplesoft._validation import LARGEST_COUNT
from samplesoft.commands.files import OutputFile, flag, write_json
from samplesoft.reports.figures import FIGURE_FORMATS, figure_path
from samplesoft.reports.report import Report


def value_parser(
    expected: str, is_valid: Callable[[Any], bool], convert: Callable[[str], Any] = float
) -> Callable[[str], Any]:
    """Return a parser of option values: it converts a text, and raises unless the value is valid.

    `convert` converts the text, `is_valid` tests the value, and `expected` describes valid values
    in errors.
    """

    def parse(text: str) -> Any:
        """Return the value of a text; raise ArgumentTypeError if it is not valid."""
        try:
            value = convert(text)
        except ValueError:
            value = None
        if value is None or not is_valid(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return parse


def integer_parser(minimum: int) -> Callable[[str], Any]:
    """Return a parser of integers of at least `minimum`."""
    return value_parser(f"an integer of at least {minimum}", lambda value: value >= minimum, int)


positive_int = integer_parser(1)
seed = integer_parser(0)
positive_float = value_parser("a finite number above 0", lambda value: 0.0 < value < float("inf"))
fraction_below_one = value_parser("a number from 0 to below 1", lambda value: 0.0 <= value < 1.0)
address = value_parser("the address of a scheduler", bool, str)


def draw_count(text: str) -> int:
    """Return the number of draws in a text; raise ArgumentTypeError if it is not valid."""
    value: int = positive_int(text)
    if value > LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"expected at most {LARGEST_COUNT} draws, got {value}")
    return value


def list_parser(parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a parser of a comma-separated list of distinct values, each parsed by `parse`."""

    def parse_all(text: str) -> list[Any]:
        """Return the values in a text; raise ArgumentTypeError if it is not valid."""
        values = [parse(item.strip()) for item in text.split(",")]
        if len(set(values)) < len(values):
            raise argparse.ArgumentTypeError(f"expected different values, got {text!r}")
        return values

    return parse_all


def names_parser(choices: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a parser of a comma-separated list of names from `choices`."""
    names = list(choices)
    expected = f"names out of {', '.join(names)}, separated by commas"
    return list_parser(value_parser(expected, names.__contains__, str))


draw_counts = list_parser(draw_count)


def given_options(options: argparse.Namespace, function: Callable[..., Any]) -> dict[str, Any]:
    """Return, by name, the options that are parameters of `function`, and that are not None.

    `function` may also be a class.
    """
    values = {name: getattr(options, name, None) for name in signature(function).parameters}
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Option:
    """An option of a command, for argparse.

    Attributes
    ----------
    help : str
        Help text, in which ``%`` must be doubled.
    parse : callable or None
        Function that converts a text to a value, or raises ``argparse.ArgumentTypeError``.
    metavar : str or None
        Placeholder of the value in the help; by default the name in capitals.
    choices : iterable of str
        Allowed values.
    default : object
        Default value.
    switch : {"", "on", "either"}
        Empty for options with a value. ``"on"`` adds the flag ``--name``, ``"either"`` the flags
        ``--name`` and ``--no-name``.
    required : bool
        Whether the option must be given.
    flag : str or None
        The flag, if it is not derived from the name.
    """

    help: str
    parse: Callable[[str], Any] | None = None
    metavar: str | None = None
    choices: Iterable[str] = ()
    default: Any = None
    switch: str = ""
    required: bool = False
    flag: str | None = None


Options = Mapping[str, Option]  # options by their attribute of the argparse namespace


def add_options(group: Any, options: Options) -> None:
    """Add all `options` to `group`, an argparse parser or argument group."""
    for name, option in options.items():
        arguments: dict[str, Any] = {"default": option.default, "required": option.required}
        if option.switch == "on":
            arguments["action"] = "store_true"
        elif option.switch:
            arguments["action"] = argparse.BooleanOptionalAction
        else:
            arguments |= {"type": option.parse, "metavar": option.metavar}
        if option.choices:
            arguments["choices"] = list(option.choices)
        group.add_argument(option.flag or flag(name), dest=name, help=option.help, **arguments)


# its value is passed to `samplesoft._executors.open_executor`
SCHEDULER = Option(
    "distribute the examples over workers: threads, processes, or the address of a Dask "
    "scheduler, such as tcp://10.0.0.1:8786; results are the same",
    parse=address,
    metavar="WHERE",
)


# files to which a report is written --------------------------------------------------------------

_REPORT_FILE_HELP = {
    "json": "write the whole report to FILE as JSON",
    "html": "write the report as an HTML page, with sortable tables and the figure, that needs no "
    "network",
    "csv": "write the rows of the report as CSV",
    "figure": f"write the figure of the report, as {', '.join(FIGURE_FORMATS)}",
}


def add_report_options(group: Any, names: Sequence[str] = ("json", "html", "figure")) -> None:
    """Add the options that name the files of a report.

    `check_files` and `check_figure_format` validate the values; `write_and_show_report` uses them.
    """
    add_options(
        group, {name: Option(_REPORT_FILE_HELP[name], OutputFile, "FILE") for name in names}
    )


def check_figure_format(options: argparse.Namespace) -> None:
    """Raise ValueError if the format of ``--figure`` is not supported."""
    paths = _report_paths(options)
    if "figure" in paths:
        figure_path("--figure", paths["figure"])


def write_and_show_report(
    options: argparse.Namespace, report: Report, settings: Mapping[str, Any] | None = None
) -> None:
    """Write a report to the files that the options name, and print it.

    The HTML page lists `settings` and the options.
    """
    # write the files before printing, because printing may fail
    for name, path in _report_paths(options).items():
        if name == "json":
            write_json(path, report.to_dict())
        elif name == "figure":
            report.plot(path)
        elif name == "html":
            write_text(path, report.to_html({**(settings or {}), **_report_settings(options)}))
        else:
            write_text(path, getattr(report, f"to_{name}")())
    show_report(report.to_text(getattr(options, "details", False)) + "\n")


def _report_paths(options: argparse.Namespace) -> dict[str, str]:
    """Return, by option name, the paths of the report files that the user has asked for."""
    return {name: path for name in _REPORT_FILE_HELP if (path := getattr(options, name, None))}


def _report_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return, by name, the values of the options that influence the content of a report."""
    excluded = (*_REPORT_FILE_HELP, "command", "run", "details", "scheduler")
    return {
        name: value
        for name, value in vars(options).items()
        if name not in excluded and value is not None and value is not False
    }


# printing ----------------------------------------------------------------------------------------

# error numbers when writing to a closed pipe (EINVAL on Windows) or to a closed terminal (EIO)
_CLOSED_ERRORS = {errno.EPIPE, errno.EINVAL, errno.EIO}


@contextmanager
def escape_unprintable() -> Iterator[None]:
    r"""Make stdout and stderr replace characters that they cannot encode, in the body of ``with``.

    Such a character is printed as its Python escape, for example ``\u6a21``. A file name that
    cannot be printed must not end the command.
    """
    previous = []
    for stream in (sys.stdout, sys.stderr):
        # streams of other types, as in notebooks, have no encoding to change: they accept any text,
        # or `show` handles the error
        if isinstance(stream, io.TextIOWrapper):
            previous.append((stream, stream.errors))
            stream.reconfigure(errors="backslashreplace")

    try:
        yield
    finally:
        for stream, errors in previous:
            # raised if the reader of the pipe has gone, or the stream is closed
            with suppress(OSError, ValueError):
                stream.reconfigure(errors=errors)


def show(text: str) -> None:
    """Print text and flush; print nothing if stdout is a pipe whose reader, as `head`, has gone."""
    with suppress_closed_pipe():
        try:
            print(text, end="", flush=True)
        except UnicodeEncodeError as error:
            escaped = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
            print(escaped, end="", flush=True)


@contextmanager
def suppress_closed_pipe() -> Iterator[None]:
    """Suppress the error of a closed pipe in the body of ``with``, and discard all further output.

    The command continues after the body, because it may write files.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _CLOSED_ERRORS:
            raise
        discard_stdout()


def discard_stdout() -> None:
    """Redirect stdout to the null device."""
    # otherwise Python, which flushes its buffer at exit, would report the closed pipe again
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    os.close(null_device)


def show_list_item(text: str) -> None:
    """Print a line about finished work as a Markdown list item, unless output is to a terminal.

    A terminal shows progress bars instead.
    """
    if not _on_terminal():
        show(f"- {text}\n")


def show_row(text: str) -> None:
    """Print a row of a report on stderr as soon as it is computed, unless stderr is a terminal.

    The report contains all rows again. If the run is killed before the report, stderr has the rows
    that have been computed.
    """
    if sys.stderr is not None and not sys.stderr.isatty():
        # raised if the stream is closed, or the reader of the pipe has gone
        with suppress(OSError, ValueError):
            print(f"- {text}", file=sys.stderr, flush=True)


def show_report(text: str) -> None:
    """Print the report; before it a blank line, if `show_list_item` may have printed lines."""
    show(text if _on_terminal() else f"\n{text}")


def show_remark(message: str) -> None:
    """Print a remark above the progress bars on stderr; do nothing if stderr is no terminal."""
    if _is_terminal(sys.stderr):
        from tqdm import tqdm

        tqdm.write(message, file=sys.stderr)


def _on_terminal() -> bool:
    """Return whether both stdout and stderr are terminals."""
    return _is_terminal(sys.stdout) and _is_terminal(sys.stderr)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None if closed when Python started
