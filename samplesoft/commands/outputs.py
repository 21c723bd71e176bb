"""Files that a command writes its report to: their options, checks before the work, and writing."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samplesoft._files import write_text
from samplesoft._report import FIGURE_FORMATS, Report, figure_path
from samplesoft.commands.options import check_writable, flag, write_json

_OUTPUTS = {
    "json": "write all of the report to FILE",
    "html": "write it as one page, with tables to sort and the figure, that needs no network",
    "csv": "write its rows as CSV",
    "figure": f"draw it; {', '.join(FIGURE_FORMATS)}",
}
_OF_ALL = ("json", "html", "figure")  # commands


def add_outputs(group: Any, names: tuple[str, ...] = _OF_ALL) -> None:
    """Add the options, for `check_outputs` and `write_outputs`."""
    for name in names:
        group.add_argument(flag(name), metavar="FILE", help=_OUTPUTS[name])


def check_outputs(options: argparse.Namespace) -> None:
    """Raise ValueError unless all files that are asked for can be written, each by one option."""
    paths = _paths(options)
    if "figure" in paths:
        figure_path("--figure", paths["figure"])
    written: dict[Path, str] = {}
    for name, path in paths.items():
        other = written.setdefault(Path(path).resolve(), name)
        if other != name:
            raise ValueError(
                f"{flag(other)} and {flag(name)} must name two files, got {path!r} for both; "
                "rename one."
            )
        check_writable(flag(name), path)


def write_outputs(
    options: argparse.Namespace, report: Report, settings: Mapping[str, Any] | None = None
) -> None:
    """Write a report where the options say; `settings` and the options are shown on the page."""
    for name, path in _paths(options).items():
        if name == "json":
            write_json(path, report.to_dict())
        elif name == "figure":
            report.plot(path)
        elif name == "html":
            write_text(path, report.to_html({**(settings or {}), **_chosen(options)}))
        else:
            write_text(path, getattr(report, f"to_{name}")())


def _paths(options: argparse.Namespace) -> dict[str, str]:
    """Return the path of each option that is given."""
    return {name: path for name in _OUTPUTS if (path := getattr(options, name, None))}


def _chosen(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options, given or by default, that make the report what it is."""
    other = (*_OUTPUTS, "command", "run", "details")
    return {
        name: value
        for name, value in vars(options).items()
        if name not in other and value is not None and value is not False
    }
