"""The base class of reports."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from samplesoft.reports.figures import figure_path, html_image, save_figure
from samplesoft.reports.page import environment, html_page
from samplesoft.reports.parts import Heading, Paragraph, Part, Settings
from samplesoft.reports.values import json_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Report(ABC):
    """Base class of reports; a subclass defines the values, the parts and the figure."""

    _title: ClassVar[str]  # title of the HTML page
    _figure_title: ClassVar[str]
    _setting_names: ClassVar[tuple[str, ...]] = ()  # names of the attributes that are settings

    @abstractmethod
    def _values(self) -> dict[str, Any]:
        """Return the values of the report by name; NumPy scalars and arrays are allowed."""

    @abstractmethod
    def _parts(self) -> list[Part]:
        """Return the parts of the report in order, as `to_text` shows them by default."""

    @abstractmethod
    def _figure(self) -> Figure:
        """Return the figure of the report."""

    def _settings(self) -> dict[str, Any]:
        """Return the settings of the report by name; `to_html` omits settings that are None."""
        return {name: getattr(self, name) for name in self._setting_names}

    def _details(self) -> list[Part]:
        """Return further parts of the report, which `to_text` shows only if `details` is True."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, numbers and strings.

        Returns
        -------
        dict
            Values by name, for ``json.dumps(..., allow_nan=False)``; NaN and infinities become
            None.
        """
        return dict(json_value(self._values()))

    def to_json(self) -> str:
        """Return the values of the report, as in `to_dict`, in JSON.

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
            Show all values; otherwise some reports show only a summary.

        Returns
        -------
        str
            Lines of at most 80 characters; tables may be wider.
        """
        details_parts = self._details()
        parts = self._parts() + (details_parts if details else [])
        if details_parts and not details:
            parts.append(Paragraph("All figures: --details, or to_text(details=True)."))
        return "\n\n".join(part.text() for part in parts)

    def to_html(self, settings: Mapping[str, Any] | None = None) -> str:
        """Return the report as an HTML page: text, all tables, and the figure of `plot`.

        The page is a single file without links to other files. A click on a column title sorts the
        table. The page ends with the settings and the versions of the installed libraries.

        Parameters
        ----------
        settings : mapping, optional
            Further settings to show with the report's own, for example the origin of the data. If a
            name occurs in both, the report's value is shown.

        Returns
        -------
        str
            HTML of several lines.
        """
        # the report's settings replace equal names in `settings`
        shown = {**(settings or {}), **self._settings()}
        figure = html_image(self._figure(), self._figure_title)

        parts: list[Part] = [part for part in self._parts() if not isinstance(part, Settings)]
        parts += [*self._details(), Heading(self._figure_title)]

        ending: list[Part] = [
            Heading("Settings"),
            Settings({name: value for name, value in shown.items() if value is not None}),
            Heading("Versions"),
            Settings(environment()),
        ]

        drawing = f'<figure class="scroll" tabindex="0">\n{figure}\n</figure>'
        content = [part.html() for part in parts], [drawing], [part.html() for part in ending]
        return html_page(self._title, [*chain(*content)])

    def __str__(self) -> str:
        """Return the report as text, as `to_text` does."""
        return self.to_text()

    def plot(self, path: str | Path) -> None:
        """Draw the figure of the report, and save it to a file.

        Parameters
        ----------
        path : str or Path
            Path of the file, whose ending is the format: .png, .pdf or .svg.

        Raises
        ------
        ValueError
            If the path has another ending.
        OSError
            If the file cannot be written.
        """
        save_figure(self._figure(), figure_path("`path`", path))
