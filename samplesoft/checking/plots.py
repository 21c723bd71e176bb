"""The figure of a loss report; Matplotlib is loaded when one is drawn."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from samplesoft.checking.verdict import nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from samplesoft.checking.report import LossReport

_ALLOWED, _EXCLUDED = "#0072B2", "#D55E00"
_SHOWN = 20
_LEAST, _MOST = 0.1, 1e6  # of |z| on the axis


def draw_report(report: LossReport) -> Figure:
    """Draw a report; see `LossReport.plot`."""
    from matplotlib.figure import Figure

    shown = nearest(report.scores, _SHOWN)[::-1]
    figure = Figure(figsize=(8.5, 1.7 + 0.27 * len(shown)), layout="constrained")
    axes = figure.subplots()
    z = np.clip([s.z for s in shown], _LEAST, _MOST)
    colours = [_ALLOWED if s.allowed else _EXCLUDED for s in shown]
    places = np.arange(len(shown))
    axes.hlines(places, _LEAST, z, colors="0.85", linewidth=1.0)
    axes.scatter(z, places, c=colours, s=28, zorder=3)
    axes.axvline(report.limit, color="0.3", linewidth=1.0, linestyle="--")
    axes.text(report.limit * 1.08, len(shown) - 0.35, "excluded", fontsize=8, color="0.3")
    axes.set_xscale("log")
    axes.set_xlim(_LEAST, max(float(z.max()) * 2.0, report.limit * 8.0))
    axes.set_ylim(-0.7, len(shown) + 0.3)
    axes.set_yticks(places, [_label(s.hypothesis.scheme, s.hypothesis.fault) for s in shown])
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.set_xlabel("greatest |z|: distance of a mean from the hypothesis, in standard errors")
    axes.grid(True, axis="x", color="0.92", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle(
        textwrap.fill(report.verdict.replace("`", ""), 105), fontsize=9.5, x=0.01, ha="left"
    )
    return figure


def _label(scheme: str, fault: str | None) -> str:
    return scheme if fault is None else f"{scheme}: {fault.replace('_', ' ')}"
