"""The options of a run in a file beside its checkpoint, so that ``--resume`` needs none of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from samplesoft._json import read_json
from samplesoft.commands.options import write_json
from samplesoft.tuning.pilot import is_auto

FILE = "options.json"
_NOT_SAVED = ("command", "run", "out", "resume", "json")
_MAY_CHANGE = ("epochs", "patience", "corpus", "train", "test")  # training refuses other changes


def fill_in_saved_options(options: argparse.Namespace) -> None:
    """Set the options that are not given, which are None, to those that were saved in ``--out``."""
    found = _read(options)
    if not found:  # of a run that was begun from Python
        return
    if found.get("model") != options.model:
        raise ValueError(
            f"{str(options.out)!r} holds a run of samplesoft train {found.get('model')}, but train "
            f"{options.model} was asked to resume it; correct the model or --out."
        )
    chosen = found.get("auto")
    for name in chosen if isinstance(chosen, list) else ():
        if is_auto(getattr(options, str(name), None)):
            setattr(options, name, None)
    for name, value in found.items():
        if getattr(options, name, None) is None:
            setattr(options, name, value)


def save_options(options: argparse.Namespace) -> None:
    """Write the options into ``--out``, which is made; on resuming, only those that may change."""
    values = {
        name: value
        for name, value in vars(options).items()
        if value is not None and name not in _NOT_SAVED
    }
    if options.resume:
        found = _read(options)
        if not found:
            return
        values = found | {name: values[name] for name in _MAY_CHANGE if name in values}
    Path(options.out).mkdir(parents=True, exist_ok=True)
    write_json(Path(options.out, FILE), values)


def _read(options: argparse.Namespace) -> dict[str, Any]:
    path = Path(options.out, FILE)
    if not path.exists():
        return {}
    try:
        return dict(read_json(path.read_bytes()))
    except (TypeError, ValueError):
        raise ValueError(
            f"{str(path)!r} must hold the options of the run as JSON, but does not; delete it, and "
            "give all options of the run with --resume."
        ) from None
