"""The log of a run: JSON lines, cut back to the checkpoint where a run resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from samplesoft.training.checkpoint import writing


class Log:
    r"""A file of JSON lines, one more for each record.

    Parameters
    ----------
    path : str or Path
        The file; made where there is none.
    step : int
        The step of the checkpoint that the run goes on from. Lines of later steps are cut off,
        and so is a last line that was not written to its end.

    Raises
    ------
    OSError
        If the file cannot be written.
    ValueError
        If another line than the last is no record with a step.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "log.jsonl")
    ...     _ = path.write_text('{"step": 10}\n{"step": 20}\n{"st')
    ...     Log(path, step=10).write({"step": 20, "train_loss": 1.5})
    ...     read_log(path)
    [{'step': 10}, {'step': 20, 'train_loss': 1.5}]
    """

    def __init__(self, path: str | Path, step: int) -> None:
        self.path = Path(path)
        with writing(self.path), open(self.path, "a+b") as stream:
            stream.seek(0)
            stream.truncate(_end(self.path, stream.read(), step))

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; it outlives this process, killed or not.

        Parameters
        ----------
        record : dict
            Plain JSON with a ``step``.
        """
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
        One for each whole line: ``epoch``, counted from 1; ``step`` and ``seconds`` since the run
        began, the time of its steps alone; ``train_loss`` and ``gradient_norm``, before clipping,
        as means over the epoch so far; ``learning_rate`` as the optimizer has it, which for the
        toy task multiplies the gradient of the sum over a batch; ``examples_per_second`` of the
        epoch so far; and at the end of an epoch ``validation_...``.
    """
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def _end(path: Path, content: bytes, step: int) -> int:
    """Return how many bytes of the log belong to steps up to `step`."""
    end = 0
    *lines, _ = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            late = json.loads(line)["step"] > step
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                f"{str(path)!r}, line {number}: expected a JSON object with a step, got "
                f"{line[:60]!r}; repair the line, or move the file away."
            ) from None
        if late:
            break
        end += len(line) + 1
    return end
