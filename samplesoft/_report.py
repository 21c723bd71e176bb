"""What all reports have in common: JSON, printing, and figures."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

FORMATS = (".png", ".pdf", ".svg")


class Report(ABC):
    """A result for programs and for readers, which a new one makes of `to_dict` and text."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, numbers and strings."""

    @abstractmethod
    def to_markdown(self) -> str:
        """Return the report as text with tables."""

    @abstractmethod
    def _draw(self, path: Path) -> None:
        """Draw the report into a file of one of the `FORMATS`."""

    def to_json(self) -> str:
        """Return `to_dict` as JSON.

        Returns
        -------
        str
            JSON of several lines.
        """
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def __str__(self) -> str:
        """Return `to_markdown`."""
        return self.to_markdown()

    def plot(self, path: str | Path) -> None:
        """Draw the report.

        Parameters
        ----------
        path : str or Path
            Where to write it; the ending gives the format (.png, .pdf, .svg).

        Raises
        ------
        ValueError
            If the ending is not one of these.
        OSError
            If the file cannot be written.
        """
        self._draw(figure_path("`path`", path))


def figure_path(name: str, path: str | Path) -> Path:
    """Return a path whose ending is one of the `FORMATS`; `name` is that of the argument."""
    found = Path(path)
    if found.suffix.lower() not in FORMATS:
        raise ValueError(
            f"{name} must end in {', '.join(FORMATS)}, got {str(path)!r}; rename it, for example "
            "report.png."
        )
    return found
