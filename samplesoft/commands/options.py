"""Types of options, and what commands say and where."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

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


def positive_int(text: str) -> int:
    """Read an integer of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return value


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
    """Print to a reader that may have had enough, as `head` has; the exit status stays."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit


def say(message: str) -> None:
    """Tell a waiting reader what is being done; a script that reads stdout is not disturbed."""
    if sys.stderr.isatty():
        print(message, file=sys.stderr)
