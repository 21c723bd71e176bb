"""What all reports have in common: JSON, Markdown, a page, and figures."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from samplesoft._figures import figure_path, save_figure, svg_element
from samplesoft._page import page, versions
from samplesoft._parts import Heading, Part, Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Report(ABC):
    """A result for programs and for readers; a new one has numbers, parts and a figure."""

    _title: ClassVar[str]  # of the page
    _figure_title: ClassVar[str]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, numbers and strings."""

    @abstractmethod
    def _parts(self) -> list[Part]:
        """Return what the report says, in the order of reading."""

    @abstractmethod
    def _figure(self) -> Figure:
        """Draw the report."""

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """Return what the report was made with, for the end of the page; None is not shown."""

    def to_json(self) -> str:
        """Return `to_dict` as JSON.

        Returns
        -------
        str
            JSON of several lines.
        """
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_markdown(self) -> str:
        """Return the report as text with tables.

        Returns
        -------
        str
            Markdown with aligned columns.
        """
        return "\n\n".join(part.markdown() for part in self._parts())

    def to_html(self, settings: Mapping[str, Any] | None = None) -> str:
        """Return the report as a page: text, tables and the figure of `plot`.

        The page needs no other file and no network. A click on the title of a column sorts its
        table. At its end are the settings and the versions of what is installed.

        Parameters
        ----------
        settings : mapping, optional
            Shown with those of the report, for example where the data came from. Where both have a
            name, the report's value counts.

        Returns
        -------
        str
            HTML of several lines.
        """
        given = {**(settings or {}), **self._settings()}
        parts = [part for part in self._parts() if not isinstance(part, Settings)]
        figure = svg_element(self._figure(), "figure", self._figure_title)
        return page(
            self._title,
            [
                *(part.html() for part in parts),
                Heading(self._figure_title).html(),
                f'<figure class="scroll" tabindex="0">\n{figure}\n</figure>',
                Heading("Settings").html(),
                Settings({k: v for k, v in given.items() if v is not None}).html(),
                Heading("Versions").html(),
                Settings(versions()).html(),
            ],
        )

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
        found = figure_path("`path`", path)
        save_figure(self._figure(), found)
