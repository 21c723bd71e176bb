"""Drawing and saving of the figures of reports. Matplotlib is imported only to draw a figure."""

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
# the colours of Okabe and Ito, which colour-blind readers can distinguish
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
GRID: dict[str, Any] = {"color": "0.92", "linewidth": 0.7}

_DPI = 130
# options of Matplotlib that omit dates and versions, so that equal figures have equal bytes
_NO_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}


def figure_path(name: str, path: str | Path) -> Path:
    """Return `path` as a Path; raise ValueError unless it ends in one of the `FIGURE_FORMATS`.

    The error calls the path `name`.
    """
    if Path(path).suffix.lower() not in FIGURE_FORMATS:
        raise ValueError(
            f"{name} must end in {', '.join(FIGURE_FORMATS)}, got {str(path)!r}; rename it, for "
            "example report.png."
        )
    return Path(path)


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure atomically to a path, whose ending, one of `FIGURE_FORMATS`, is the format."""
    with atomic_write(path) as draft:
        _write_figure(figure, draft, path.suffix.lower())


def titled_figure(verdict: str, size: tuple[float, float]) -> tuple[Figure, Any]:
    """Return a new figure with the text `verdict` as title, and its axes; `size` is in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    title = textwrap.fill(verdict.replace("`", ""), 105)
    figure.suptitle(title, fontsize=9.5, x=0.01, ha="left")

    axes = figure.subplots()
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def html_image(figure: Figure, title: str) -> str:
    """Return a figure as an HTML image with the alternative text `title`.

    The image is as wide as its container. It is at least one pixel wide per point of the figure, so
    that 8-point letters are readable.
    """
    file = io.BytesIO()
    _write_figure(figure, file, ".svg")
    content = b64encode(file.getvalue()).decode()
    return (
        f'<img alt="{escape(title)}" style="min-width: {72.0 * figure.get_figwidth():g}px" '
        f'src="data:image/svg+xml;base64,{content}">'
    )


def _write_figure(figure: Figure, file: Any, ending: str) -> None:
    """Write a figure to a path or file in the format `ending`, such as ".svg"."""
    # not imported at the top, because the import takes half a second
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "samplesoft"}):  # otherwise SVG ids are random
        figure.savefig(file, format=ending[1:], dpi=_DPI, metadata=_NO_METADATA[ending])
