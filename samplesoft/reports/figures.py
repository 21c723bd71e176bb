"""Figures of reports; Matplotlib is imported when one is drawn."""

from __future__ import annotations

import io
import textwrap
from base64 import b64encode
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samplesoft._files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_FORMATS = (".png", ".pdf", ".svg")
# Okabe and Ito's colours, which colour-blind readers can distinguish
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
GRID: dict[str, Any] = {"color": "0.92", "linewidth": 0.7}

_DPI = 130
_NO_METADATA: dict[str, dict[str, Any]] = {  # so that equal figures have equal bytes
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}


def figure_path(name: str, path: str | Path) -> Path:
    """Return `path`, which must end in one of the `FIGURE_FORMATS`; `name` is for the message."""
    if Path(path).suffix.lower() not in FIGURE_FORMATS:
        raise ValueError(
            f"{name} must end in {', '.join(FIGURE_FORMATS)}, got {str(path)!r}; rename it, for "
            "example report.png."
        )
    return Path(path)


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure to a path with one of the `FIGURE_FORMATS`, atomically."""
    with atomic_write(path) as draft:
        _save(figure, draft, path.suffix.lower())


def titled_figure(verdict: str, size: tuple[float, float]) -> tuple[Figure, Any]:
    """Return a figure of `size` (inches) with the verdict as title, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    title = textwrap.fill(verdict.replace("`", ""), 105)
    figure.suptitle(title, fontsize=9.5, x=0.01, ha="left")
    axes = figure.subplots()
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def image(figure: Figure, title: str) -> str:
    """Return a figure as an HTML image with alternative text `title`.

    It is as wide as its container, and at least one pixel for each point, so that 8-point letters
    are readable.
    """
    file = io.BytesIO()
    _save(figure, file, ".svg")
    content = b64encode(file.getvalue()).decode()
    return (
        f'<img alt="{escape(title)}" style="min-width: {72.0 * figure.get_figwidth():g}px" '
        f'src="data:image/svg+xml;base64,{content}">'
    )


def _save(figure: Figure, file: Any, ending: str) -> None:
    # imported here: it takes half a second, which a report without figure does not need
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "samplesoft"}):  # otherwise ids are random
        figure.savefig(file, format=ending[1:], dpi=_DPI, metadata=_NO_METADATA[ending])
