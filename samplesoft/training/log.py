"""The log of a run: a file of JSON lines that ends where the checkpoint does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samplesoft._json import read_json
from samplesoft._validation import shown
from samplesoft.data.files import missing
from samplesoft.training.checkpoint import writing


class Log:
    """A file of JSON lines, one for each record; created if there is none.

    Lines of steps after `step`, that of the checkpoint from which the run continues, are removed,
    and so is a last line that is incomplete.
    """

    def __init__(self, path: str | Path, step: int) -> None:
        self.path = Path(path)
        with writing(self.path), open(self.path, "a+b") as stream:
            stream.seek(0)
            stream.truncate(_end(self.path, stream.read(), step))

    def write(self, record: dict[str, Any]) -> None:
        """Append a record, which is in the file at once, even if the process is killed then."""
        with writing(self.path), open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(record, allow_nan=False) + "\n")


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Return the records of a log.

    Parameters
    ----------
    path : str or Path
        A file of `Log`.

    Returns
    -------
    list of dict
        One for each complete line. ``epoch`` is counted from 1. ``step`` counts the steps since
        the run began, and ``seconds`` is their time. ``train_loss`` and ``gradient_norm`` (before
        clipping) are means over the epoch so far, and so is ``examples_per_second``.
        ``learning_rate`` is that of the optimizer, which in the toy task multiplies the gradient
        of the sum over a batch. The last line of an epoch also has ``validation_...``.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a line is damaged, with its number.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise missing(path) from None
    return [record for _, record in _records(Path(path), content)]


def _end(path: Path, content: bytes, step: int) -> int:
    """Return the number of bytes of the lines up to `step`."""
    end = 0
    for size, record in _records(path, content):
        if record["step"] > step:
            break
        end += size
    return end


def _records(path: Path, content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the size and the record of each complete line."""
    *lines, _ = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            record = read_json(line)
            sound = all(isinstance(value, (int, float)) for value in record.values())
            sound &= isinstance(record["step"], int)
        except (AttributeError, KeyError, ValueError):
            sound = False
        if not sound:
            raise ValueError(
                f"{str(path)!r}, line {number}: expected a JSON object of numbers with a step, got "
                f"{shown(line)}; repair the line, or move the file away."
            )
        yield len(line) + 1, record
