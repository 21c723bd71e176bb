"""Types of options, and what commands say and where."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from samplesoft._files import write_text
from samplesoft._validation import LARGEST_COUNT


def name_list(text: str) -> list[str]:
    """Read names parted by commas, each once."""
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names parted by commas, got {text!r}")
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"expected each name once, got {text!r}")
    return names


def positive_int(text: str, least: int = 1) -> int:
    """Read an integer of at least 1, or `least`."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
    return value


def class_count(text: str) -> int:
    """Read a number of classes, of which there must be two to tell apart."""
    return positive_int(text, 2)


def draw_count(text: str) -> int:
    """Read a number of draws."""
    value = positive_int(text)
    if value > LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"expected at most {LARGEST_COUNT} draws, got {value}")
    return value


def draw_counts(text: str) -> list[int]:
    """Read numbers of draws parted by commas."""
    return [draw_count(part) for part in text.split(",")]


def seed(text: str) -> int:
    """Read an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")
    return int(text)


def positive_float(text: str) -> float:
    """Read a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, got {text!r}")
    return value


def rate(text: str) -> float:
    """Read a number from 0 to below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to below 1, got {text!r}")
    return value


def folder_name(text: str) -> str:
    """Read the name of a folder; none is not the folder that the command runs in."""
    if not text:
        raise argparse.ArgumentTypeError("expected the name of a folder, got ''")
    return text


def flag(name: str) -> str:
    """Return the option whose value argparse stores under `name`, such as ``--num-sampled``."""
    return f"--{name.replace('_', '-')}"


def given(options: argparse.Namespace, settings: type) -> dict[str, Any]:
    """Return the fields of a dataclass that the options of the same names give.

    Parameters
    ----------
    options : argparse.Namespace
        Holds None for what is not given.
    settings : type
        The dataclass.

    Returns
    -------
    dict
        Values by field, for the dataclass to put its defaults beside them.
    """
    values = {field.name: getattr(options, field.name, None) for field in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}


def check_folder(option: str, folder: str | Path) -> None:
    """Raise ValueError unless files can be written to `folder`, which may have to be made."""
    there = Path(folder)
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        what = "cannot be written to" if there.is_dir() else "is a file"
        raise ValueError(
            f"{option} must name a folder that can be written to, or made, got {str(folder)!r}, "
            f"and {str(there)!r} {what}; choose another."
        )


def check_writable(option: str, path: str | Path) -> None:
    """Raise ValueError unless a file can be written at `path`."""
    folder = Path(path).parent
    if Path(path).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(
            f"{option} must name a file in a folder that can be written to, got {str(path)!r}; "
            "create the folder first, or choose another."
        )


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as JSON."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def show(text: str) -> None:
    """Print text at once; a reader that has closed the pipe, as `head` does, is no error."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:  # the work goes on for the files that it writes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_part(text: str) -> None:
    """Print a line about a part of the work that has ended, unless a terminal has progress bars.

    Such lines are a Markdown list.
    """
    if not _on_terminal():
        show(f"- {text}\n")


def show_report(text: str) -> None:
    """Print the report, below the lines of `show_part` if there are some."""
    show(text if _on_terminal() else f"\n{text}")


def say(message: str) -> None:
    """Print on stderr what is being done, if a person sits there."""
    if _is_terminal(sys.stderr):
        print(message, file=sys.stderr)


def _on_terminal() -> bool:
    """Return whether both what is printed and the bars, on stderr, go to a terminal."""
    return _is_terminal(sys.stdout) and _is_terminal(sys.stderr)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None where it was closed before the start
