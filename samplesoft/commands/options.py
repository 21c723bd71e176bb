"""What commands share: parsing of values, the files of a report, and printing."""

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


def number_of(
    wanted: str, holds: Callable[[Any], bool], kind: Callable[[str], Any] = float
) -> Callable[[str], Any]:
    """Return a parser of what `wanted` describes: a text of this kind for which `holds` is true."""

    def parse(text: str) -> Any:
        """Parse such a text, or refuse it in words."""
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not holds(value):
            raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}")
        return value

    return parse


def integer_of(least: int) -> Callable[[str], Any]:
    """Return a parser of integers of at least `least`."""
    return number_of(f"an integer of at least {least}", lambda value: value >= least, int)


positive_int = integer_of(1)
seed = integer_of(0)
positive_float = number_of("a finite number above 0", lambda value: 0.0 < value < float("inf"))
rate = number_of("a number from 0 to below 1", lambda value: 0.0 <= value < 1.0)
address = number_of("the address of a scheduler", bool, str)


def draw_count(text: str) -> int:
    """Parse a number of draws."""
    value: int = positive_int(text)
    if value > LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"expected at most {LARGEST_COUNT} draws, got {value}")
    return value


def list_of(parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a parser of what `parse` takes, separated by commas and each at most once."""

    def parse_all(text: str) -> list[Any]:
        """Parse such a list, or refuse it in words."""
        values = [parse(part.strip()) for part in text.split(",")]
        if len(set(values)) < len(values):
            raise argparse.ArgumentTypeError(f"expected different values, got {text!r}")
        return values

    return parse_all


def names_of(choices: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a parser of names out of `choices`."""
    known = list(choices)
    wanted = f"names out of {', '.join(known)}, separated by commas"
    return list_of(number_of(wanted, known.__contains__, str))


draw_counts = list_of(draw_count)


def given(options: argparse.Namespace, taker: Callable[..., Any]) -> dict[str, Any]:
    """Return the options that are given, not None, and that a function or a class takes."""
    values = {name: getattr(options, name, None) for name in signature(taker).parameters}
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Option:
    """An option of a command: what it says of itself, and how its value is read.

    Attributes
    ----------
    help : str
        What it is; ``%`` is doubled.
    parse : callable or None
        Makes a value of a text, or raises ``argparse.ArgumentTypeError``.
    metavar : str or None
        What stands for the value in the help; the name in capitals by default.
    choices : iterable of str
        Names that it may have.
    default : object
        Its value where it is not given.
    switch : {"", "on", "either"}
        Without a value: ``--name`` alone, or also ``--no-name``.
    required : bool
        Whether it must be given.
    flag : str or None
        How it is written, where that is not its name.
    """

    help: str
    parse: Callable[[str], Any] | None = None
    metavar: str | None = None
    choices: Iterable[str] = ()
    default: Any = None
    switch: str = ""
    required: bool = False
    flag: str | None = None


Options = Mapping[str, Option]  # by the name under which argparse keeps the value


def add_options(group: Any, options: Options) -> None:
    """Add the options of a table."""
    for name, option in options.items():
        given: dict[str, Any] = {"default": option.default, "required": option.required}
        if option.switch == "on":
            given["action"] = "store_true"
        elif option.switch:
            given["action"] = argparse.BooleanOptionalAction
        else:
            given |= {"type": option.parse, "metavar": option.metavar}
        if option.choices:
            given["choices"] = list(option.choices)
        group.add_argument(option.flag or flag(name), dest=name, help=option.help, **given)


# for `samplesoft._executors.open_scheduler`
SCHEDULER = Option(
    "whose workers share the examples out: threads, processes, or a scheduler of Dask by its "
    "address, such as tcp://10.0.0.1:8786; results are the same",
    parse=address,
    metavar="WHERE",
)


# files of a report -------------------------------------------------------------------------------

_OUTPUTS = {
    "json": "write all of the report to FILE",
    "html": "write it as one page, with tables to sort and the figure, that needs no network",
    "csv": "write its rows as CSV",
    "figure": f"draw it; {', '.join(FIGURE_FORMATS)}",
}


def add_outputs(group: Any, names: Sequence[str] = ("json", "html", "figure")) -> None:
    """Add the options, for `check_files`, `check_outputs` and `give_report`."""
    add_options(group, {name: Option(_OUTPUTS[name], OutputFile, "FILE") for name in names})


def check_outputs(options: argparse.Namespace) -> None:
    """Raise ValueError for a figure of a format that cannot be drawn; others are checked before."""
    paths = _paths(options)
    if "figure" in paths:
        figure_path("--figure", paths["figure"])


def give_report(
    options: argparse.Namespace, report: Report, settings: Mapping[str, Any] | None = None
) -> None:
    """Write a report where the options say, and print it.

    `settings` and the options are shown on the page.
    """
    # before it is printed, which may fail where the files are none the worse
    for name, path in _paths(options).items():
        if name == "json":
            write_json(path, report.to_dict())
        elif name == "figure":
            report.plot(path)
        elif name == "html":
            write_text(path, report.to_html({**(settings or {}), **_chosen(options)}))
        else:
            write_text(path, getattr(report, f"to_{name}")())
    show_report(report.to_text(getattr(options, "details", False)) + "\n")


def _paths(options: argparse.Namespace) -> dict[str, str]:
    """Return the path of each option that is given."""
    return {name: path for name in _OUTPUTS if (path := getattr(options, name, None))}


def _chosen(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options, given or by default, that make the report what it is."""
    other = (*_OUTPUTS, "command", "run", "details", "scheduler")
    return {
        name: value
        for name, value in vars(options).items()
        if name not in other and value is not None and value is not False
    }


# what is printed ---------------------------------------------------------------------------------

# a pipe that is closed, as Windows says too, and a terminal that has gone
_NOBODY_READS = {errno.EPIPE, errno.EINVAL, errno.EIO}


@contextmanager
def all_printable() -> Iterator[None]:
    r"""Let stdout and stderr print any text in the body, whatever their encoding.

    What it has no code for becomes an escape of Python, such as ``\u6a21``: a name that cannot be
    printed must not end the work.
    """
    before = []
    for stream in (sys.stdout, sys.stderr):
        # others, such as those of notebooks, take any text, or `show` sees to it
        if isinstance(stream, io.TextIOWrapper):
            before.append((stream, stream.errors))
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in before:
            with suppress(OSError, ValueError):  # nobody reads it, or it has been closed
                stream.reconfigure(errors=errors)


def show(text: str) -> None:
    """Print text at once; a reader that has closed the pipe, as `head` does, is no error."""
    with until_nobody_reads():
        try:
            print(text, end="", flush=True)
        except UnicodeEncodeError as error:
            seen = text.encode(error.encoding, "backslashreplace").decode(error.encoding)
            print(seen, end="", flush=True)


@contextmanager
def until_nobody_reads() -> Iterator[None]:
    """Leave the body where nobody reads stdout any more: the work goes on for its files."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NOBODY_READS:
            raise
        discard_stdout()


def discard_stdout() -> None:
    """Send what is printed from now on nowhere, as nobody reads it."""
    # Python flushes its buffer at exit, and would report the closed pipe once more
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def show_part(text: str) -> None:
    """Print a line about a part of the work that has ended, unless a terminal has progress bars.

    Such lines are a Markdown list.
    """
    if not _on_terminal():
        show(f"- {text}\n")


def show_row(text: str) -> None:
    """Print a row of a report as soon as it is known, unless a terminal has progress bars.

    On stderr, as the report repeats it: a log of a killed run keeps the rows that it had.
    """
    if sys.stderr is not None and not sys.stderr.isatty():
        with suppress(OSError, ValueError):  # closed, or nobody reads it
            print(f"- {text}", file=sys.stderr, flush=True)


def show_report(text: str) -> None:
    """Print the report, below the lines of `show_part` if there are some."""
    show(text if _on_terminal() else f"\n{text}")


def say(message: str) -> None:
    """Print a remark on stderr, if that is a terminal, above the bars that it has."""
    if _is_terminal(sys.stderr):
        from tqdm import tqdm

        tqdm.write(message, file=sys.stderr)


def _on_terminal() -> bool:
    """Return whether both what is printed and the bars, on stderr, go to a terminal."""
    return _is_terminal(sys.stdout) and _is_terminal(sys.stderr)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None if it was closed at the start
