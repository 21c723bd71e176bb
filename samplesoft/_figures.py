"""Figures as files, and as SVG within a page; Matplotlib is loaded when one is drawn."""

from __future__ import annotations

import io
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samplesoft._files import replaced

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")

_DPI = 130
_NO_METADATA: dict[str, dict[str, Any]] = {  # so that equal figures have equal bytes
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}
_SVG = re.compile(r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>(.*</svg>)', re.DOTALL)
_NOT_DRAWN = re.compile(r"<!--.*?-->|<style.*?</style>|<metadata>.*?</metadata>", re.DOTALL)
_ID = re.compile(r'(?<= id=")|(?<=href="#)|(?<=url\(#)')  # where one begins


def figure_path(name: str, path: str | Path) -> Path:
    """Return a path whose ending is one of the `FORMATS`; `name` is that of the argument."""
    found = Path(path)
    if found.suffix.lower() not in FORMATS:
        raise ValueError(
            f"{name} must end in {', '.join(FORMATS)}, got {str(path)!r}; rename it, for example "
            "report.png."
        )
    return found


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a path with one of the `FORMATS`, whole or not at all."""
    with replaced(path) as draft:
        _save(figure, draft, path.suffix.lower())


def svg_element(figure: Figure, name: str, title: str) -> str:
    """Return a figure as an ``svg`` element that is as wide as its place on a page.

    It has at least a pixel for each of its points, as letters of 8 points must be readable. `name`
    begins all its ids, so that several figures can be on a page. `title` is for those who cannot
    see it.
    """
    file = io.BytesIO()
    _save(figure, file, ".svg")
    found = _SVG.search(file.getvalue().decode())
    assert found is not None, "Matplotlib gives every figure a box"
    width, height, drawn = found.groups()
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {width} {height}" '
        f'style="min-width: {width}px">{_ID.sub(f"{name}-", _NOT_DRAWN.sub("", drawn))}'
    )


def _save(figure: Figure, file: Any, ending: str) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "samplesoft"}):
        figure.savefig(file, format=ending[1:], dpi=_DPI, metadata=_NO_METADATA[ending])
