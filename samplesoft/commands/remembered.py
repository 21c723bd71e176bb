"""The options of a run, remembered beside its checkpoint: ``--resume`` needs none of them again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from samplesoft.commands.options import write_json

FILE = "options.json"
_OF_ONE_CALL = ("command", "run", "out", "resume", "json")
_FREE = (
    "epochs",
    "patience",
    "corpus",
    "train",
    "test",
)  # may be others on resuming; training refuses the rest


def recall(options: argparse.Namespace) -> None:
    """Fill in from ``--out`` what is not given; what is given stands.

    Parameters
    ----------
    options : argparse.Namespace
        Of ``samplesoft train``, with None for what is not given; changed.

    Raises
    ------
    ValueError
        If the run is of another model, or the file has been damaged.
    """
    found = _read(options)
    if not found:  # of a run that was begun from Python
        return
    if found.get("model") != options.model:
        raise ValueError(
            f"{str(options.out)!r} holds a run of samplesoft train {found.get('model')}, and train "
            f"{options.model} is asked to resume it; correct the model or --out."
        )
    for name, value in found.items():
        if getattr(options, name, None) is None:
            setattr(options, name, value)


def remember(options: argparse.Namespace) -> None:
    """Write into ``--out``, which is made, what `recall` needs, or what of it has changed.

    Parameters
    ----------
    options : argparse.Namespace
        Of ``samplesoft train``.

    Raises
    ------
    OSError, ValueError
        If the file cannot be written, or has been damaged.
    """
    values = {
        name: value
        for name, value in vars(options).items()
        if value is not None and name not in _OF_ONE_CALL
    }
    if options.resume:
        found = _read(options)
        if not found:
            return
        values = found | {name: values[name] for name in _FREE if name in values}
    Path(options.out).mkdir(parents=True, exist_ok=True)
    write_json(Path(options.out, FILE), values)


def _read(options: argparse.Namespace) -> dict[str, Any]:
    path = Path(options.out, FILE)
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError):
        raise ValueError(
            f"{str(path)!r} must hold the options of the run in JSON, and does not; delete it, "
            "and give with --resume all options that the run was begun with."
        ) from None
