"""The files of the figures; not a script."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from samplesoft._files import atomic_write


def ends_of_epochs(log: Path) -> list[dict[str, Any]]:
    """Return the lines of the log of a run that end an epoch; none where there is no log."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    lines = map(json.loads, text.splitlines())
    return [line for line in lines if "validation_loss" in line]


def write_csv(
    path: Path,
    rows: Iterable[Mapping[str, Any]],
    fields: tuple[str, ...],
    *notes: str,
    digits: int = 6,
) -> None:
    """Write rows, whole or not at all.

    Parameters
    ----------
    path : Path
        The file.
    rows : iterable of mapping
        Values by field; others are left out.
    fields : tuple of str
        Columns.
    *notes : str
        Lines for the top, after ``#``: what the numbers are of.
    digits : int
        Significant digits of floats.
    """
    with atomic_write(path) as draft, draft.open("w", encoding="utf-8", newline="") as stream:
        stream.writelines(f"# {note}\n" for note in notes)
        table = csv.DictWriter(stream, fields, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        for row in rows:
            table.writerow(
                {k: f"{v:.{digits}g}" if isinstance(v, float) else v for k, v in row.items()}
            )


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Return rows that `write_csv` has written, numbers as numbers, and None where there is none.

    There are none where there is no file.
    """
    if not path.exists():
        return []
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    return [{k: _number(v) for k, v in row.items()} for row in csv.DictReader(lines)]


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


def write_both(
    folder: Path,
    name: str,
    rows: Iterable[Mapping[str, Any]],
    fields: tuple[str, ...],
    description: str,
    figure: Figure,
) -> None:
    """Write ``name.csv`` and ``name.png`` into a folder, and say so."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / f"{name}.csv", rows, fields, description)
    with atomic_write(folder / f"{name}.png") as path:
        figure.savefig(path, metadata={"Software": None})
    print(f"wrote {folder / f'{name}.csv'} and {folder / f'{name}.png'}")
