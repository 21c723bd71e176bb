"""Parsing of option values, checks of output paths, and printing."""

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
    """Parse names separated by commas, each at most once."""
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got {text!r}")
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"expected each name once, got {text!r}")
    return names


def positive_int(text: str, least: int = 1) -> int:
    """Parse an integer of at least `least`."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
    return value


def draw_count(text: str) -> int:
    """Parse a number of draws."""
    value = positive_int(text)
    if value > LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"expected at most {LARGEST_COUNT} draws, got {value}")
    return value


def draw_counts(text: str) -> list[int]:
    """Parse numbers of draws separated by commas."""
    return [draw_count(part) for part in text.split(",")]


def seed(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")
    return int(text)


def positive_float(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, got {text!r}")
    return value


def rate(text: str) -> float:
    """Parse a number from 0 to below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to below 1, got {text!r}")
    return value


def folder_name(text: str) -> str:
    """Parse the name of a folder, which must not be empty."""
    if not text:
        raise argparse.ArgumentTypeError("expected the name of a folder, got ''")
    return text


def flag(name: str) -> str:
    """Return the option whose value argparse stores under `name`, such as ``--num-sampled``."""
    return f"--{name.replace('_', '-')}"


def given(options: argparse.Namespace, settings: type) -> dict[str, Any]:
    """Return the options that are given, not None, and are fields of the dataclass `settings`."""
    values = {field.name: getattr(options, field.name, None) for field in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}


def check_folder(option: str, folder: str | Path) -> None:
    """Raise ValueError unless `folder` is writable, or can be created."""
    existing = Path(folder)
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        what = "is not writable" if existing.is_dir() else "is a file"
        raise ValueError(
            f"{option} must name a folder that is writable or can be created, got "
            f"{str(folder)!r}, and {str(existing)!r} {what}; choose another."
        )


def check_writable(option: str, path: str | Path) -> None:
    """Raise ValueError unless a file can be written to `path`."""
    folder = Path(path).parent
    if Path(path).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(
            f"{option} must name a file in a writable folder, got {str(path)!r}; create the folder "
            "first, or choose another."
        )


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as JSON."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def show(text: str) -> None:
    """Print text at once; a reader that has closed the pipe, as `head` does, is no error."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:  # the work goes on for the files that it writes
        discard_stdout()


def discard_stdout() -> None:
    """Send what is printed from now on nowhere, as nobody reads it."""
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
    """Print a remark on stderr, if that is a terminal, above the bars that it has."""
    if _is_terminal(sys.stderr):
        from tqdm import tqdm

        tqdm.write(message, file=sys.stderr)


def _on_terminal() -> bool:
    """Return whether both what is printed and the bars, on stderr, go to a terminal."""
    return _is_terminal(sys.stdout) and _is_terminal(sys.stderr)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None if it was closed at the start
