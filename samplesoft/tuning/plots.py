"""The figure of `tune`; Matplotlib is loaded when one is drawn."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from samplesoft.tuning.report import TuneReport

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
_LEAST_BIAS = 1e-6  # drawn for settings without any


def draw_report(report: TuneReport) -> Figure:
    """Draw a report; see `TuneReport.plot`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.2, 4.8), layout="constrained")
    axes = figure.subplots()
    named = [s for s in report.settings if s.sampler is not None and s.bias > _LEAST_BIAS]
    names = list(dict.fromkeys(str(s.sampler) for s in named))
    for k, (name, shared) in enumerate((n, s) for n in names for s in (False, True)):
        points = sorted(
            (s for s in named if (s.sampler, s.shared) == (name, shared)),
            key=lambda s: s.num_sampled or 0,
        )
        if points:
            axes.plot(
                [1e3 * s.step_seconds for s in points],
                [s.bias for s in points],
                "s--" if shared else "o-",
                color=_COLOURS[k // 2 % len(_COLOURS)],
                markersize=5,
                linewidth=1.0,
                label=f"{name}, shared" if shared else name,
            )
    axes.axvline(1e3 * report.full.step_seconds, color="black", linewidth=1.2)
    axes.text(
        1e3 * report.full.step_seconds,
        1.01,
        "full softmax",
        fontsize=8.5,
        ha="center",
        transform=axes.get_xaxis_transform(),
    )
    best = report.best
    if best in named:
        at = 1e3 * best.step_seconds
        axes.plot([at], [best.bias], "o", markersize=13, fillstyle="none", color="black")
    if report.largest_bias is not None and report.seconds is None:
        axes.axhline(report.largest_bias, color="0.5", linestyle=":", linewidth=1.2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"step of a batch of {report.batch:,} (milliseconds)")
    axes.set_ylabel("exact L1 bias of the gradient in the logits")
    axes.grid(True, which="major", color="0.92", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(textwrap.fill(report.verdict, 105), fontsize=9.5, x=0.01, ha="left")
    return figure
