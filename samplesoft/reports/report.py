"""The base class of reports."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from samplesoft.reports.figures import figure_path, image, save_figure
from samplesoft.reports.page import page, versions
from samplesoft.reports.parts import Heading, Paragraph, Part, Settings
from samplesoft.reports.values import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Report(ABC):
    """A result for programs and for readers; a new one has values, parts and a figure."""

    _title: ClassVar[str]  # of the page
    _figure_title: ClassVar[str]
    _setting_names: ClassVar[tuple[str, ...]] = ()  # fields that are settings

    @abstractmethod
    def _values(self) -> dict[str, Any]:
        """Return what programs read, by name: numbers and arrays of NumPy too, dicts and lists."""

    @abstractmethod
    def _parts(self) -> list[Part]:
        """Return what the report says, in the order of reading."""

    @abstractmethod
    def _figure(self) -> Figure:
        """Draw the report."""

    def _settings(self) -> dict[str, Any]:
        """Return what the report was made with, for the end of the page; None is not shown."""
        return {name: getattr(self, name) for name in self._setting_names}

    def _details(self) -> list[Part]:
        """Return what only those read who want all of it."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, numbers and strings.

        Returns
        -------
        dict
            Ready for ``json.dumps(..., allow_nan=False)``; numbers that are not finite are None.
        """
        return dict(plain(self._values()))

    def to_json(self) -> str:
        """Return `to_dict` as JSON.

        Returns
        -------
        str
            JSON of several lines.
        """
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_text(self, details: bool = False) -> str:
        """Return the report as sentences and tables.

        Parameters
        ----------
        details : bool
            Add all figures, where the report has more than it shows at first.

        Returns
        -------
        str
            Lines of at most 80 characters, but for tables that are wider.
        """
        more = self._details()
        parts = self._parts() + (more if details else [])
        if more and not details:
            parts.append(Paragraph("All figures: --details, or to_text(details=True)."))
        return "\n\n".join(part.text() for part in parts)

    def to_html(self, settings: Mapping[str, Any] | None = None) -> str:
        """Return the report as a page: text, all tables, and the figure of `plot`.

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
        # the report's own settings win, for they are what was used
        shown = {**(settings or {}), **self._settings()}
        figure = image(self._figure(), self._figure_title)
        parts: list[Part] = [part for part in self._parts() if not isinstance(part, Settings)]
        parts += [*self._details(), Heading(self._figure_title)]
        ending: list[Part] = [
            Heading("Settings"),
            Settings({name: value for name, value in shown.items() if value is not None}),
            Heading("Versions"),
            Settings(versions()),
        ]
        drawing = f'<figure class="scroll" tabindex="0">\n{figure}\n</figure>'
        content = [part.html() for part in parts], [drawing], [part.html() for part in ending]
        return page(self._title, [*chain(*content)])

    def __str__(self) -> str:
        """Return `to_text`."""
        return self.to_text()

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
        save_figure(self._figure(), figure_path("`path`", path))
