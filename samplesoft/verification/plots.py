"""The plot of a verification report; Matplotlib is imported only when a plot is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.reports.figures import COLOURS
from samplesoft.verification.row import VerificationRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EXACT_COLOUR, _PRINTED_COLOUR = COLOURS[:2]
_TRIALS_COLOUR = "#000000"
_BOUNDS_COLOUR = "#A6CEE3"
_MAX_COLUMNS = 3
_MIN_BIAS = 1e-13  # smaller biases are rounding errors; a panel of only these says "no bias"
_QUANTILE_OF_95 = 1.96  # half width of the 95% interval of a normal distribution

Style = dict[str, Any]
_LINE_OF_EXACT: Style = {"color": _EXACT_COLOUR, "linewidth": 2.0, "marker": "s", "markersize": 4}
_LINE_OF_PRINTED: Style = {"color": _PRINTED_COLOUR, "linestyle": "--", "linewidth": 1.6}
_DOTS: Style = {"color": _TRIALS_COLOUR, "linestyle": "none", "markersize": 4}


def plot_rows(
    rows: Sequence[VerificationRow], *, trials: str, has_theorem: bool, has_bounds: bool
) -> Figure:
    """Plot the largest bias against m, one panel for each sampler.

    Parameters
    ----------
    rows : sequence of VerificationRow
        The rows of a report. Only rows of the first block of parameters are shown.
    trials : str
        Number of trials of a Monte Carlo estimate, as text for the legend.
    has_theorem, has_bounds : bool
        Whether rows have values for Theorem 1, and for the finite-m bounds.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.
    """
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.wrt == rows[0].wrt]
    names = list(dict.fromkeys(row.sampler for row in shown))
    num_columns = min(_MAX_COLUMNS, len(names))
    num_lines = -(-len(names) // num_columns)

    figure_size = max(3.7 * num_columns, 8.5), 2.7 * num_lines + 1.3
    figure = Figure(figsize=figure_size, layout="constrained")

    unit = "probability" if shown[0].wrt == "logits" else "units of the gradient"
    title = f"Largest |bias| of the gradient in the {shown[0].wrt} ({unit}) against the number of"
    figure.suptitle(f"{title} draws m", fontsize=11, fontweight="bold", wrap=True)

    axes = figure.subplots(num_lines, num_columns, squeeze=False, sharex=True, sharey=True).ravel()

    visible_biases = [row.max_bias for row in shown if row.max_bias > _MIN_BIAS]
    floor = min(visible_biases, default=_MIN_BIAS) / 8.0
    ceiling = 4.0 * max([*visible_biases, *(row.printed_max or 0.0 for row in shown), 8.0 * floor])

    for k, (axis, name) in enumerate(zip(axes, names, strict=False)):
        axis.grid(True, color="0.9", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8)
        if k + num_columns >= len(names):  # the lowest panel of a column
            axis.tick_params(labelbottom=True)
            axis.set_xlabel("m (draws)", fontsize=9)

        curve = [row for row in shown if row.sampler == name]
        # The title counts violations in all blocks of parameters, not only in the block with a
        # curve: most are in h.
        num_outside = sum(row.outside_printed or 0 for row in rows if row.sampler == name)
        violations = f": Theorem 1 fails in {num_outside:,} coordinates" if num_outside else ""
        axis.set_title(f"{name}{violations}", fontsize=9)
        axis.set(xscale="log", yscale="log", ylim=(floor, ceiling))
        _plot_sampler(axis, curve, floor)

    for axis in axes[len(names) :]:
        axis.set_visible(False)
    _add_legend(figure, trials, has_theorem, has_bounds)
    return figure


def _plot_sampler(axis: Any, curve: list[VerificationRow], floor: float) -> None:
    """Plot the panel of one sampler: the exact bias, its bounds, and Monte Carlo estimates."""
    m = _field_values(curve, "num_sampled")
    axis.set_xlim(m.min() / 1.6, m.max() * 1.6)
    if len(m) <= 6:  # more labels would overlap
        axis.set_xticks(m, [f"{row.num_sampled:,}" for row in curve])
        axis.set_xticks([], minor=True)

    if curve[0].finite_max_max is not None:
        low = np.maximum(_field_values(curve, "finite_min_max"), floor / 10.0)
        high = _field_values(curve, "finite_max_max")

        # with a single m the filled area is empty, and only the bars show the interval
        axis.vlines(m, low, high, color=_BOUNDS_COLOUR, linewidth=8)
        axis.fill_between(m, low, high, color=_BOUNDS_COLOUR, alpha=0.55, linewidth=0)

        printed = _field_values(curve, "printed_max")
        axis.plot(m, printed, **_LINE_OF_PRINTED, marker="_", markersize=14)

    exact = _field_values(curve, "max_bias")
    axis.plot(m, exact, **_LINE_OF_EXACT)

    if exact.max() < _MIN_BIAS:
        axis.text(0.5, 0.08, "no bias", transform=axis.transAxes, ha="center", fontsize=9)
    elif curve[0].monte_carlo_max is not None:
        _plot_monte_carlo(axis, m, curve)


def _plot_monte_carlo(axis: Any, m: Any, curve: list[VerificationRow]) -> None:
    """Plot Monte Carlo estimates with 95% intervals.

    The axis is logarithmic, so that for an estimate <= 0 only the upper end of its interval is
    shown.
    """
    mean = _field_values(curve, "monte_carlo_max")
    half_width = _QUANTILE_OF_95 * _field_values(curve, "monte_carlo_max_stderr")
    is_positive = mean > 0.0

    # shorten intervals that reach 0, so that their lower ends are positive
    lower_width = np.minimum(half_width, mean * (1.0 - 1e-6))[is_positive]
    ends = [lower_width.tolist(), half_width[is_positive].tolist()]
    axis.errorbar(m[is_positive], mean[is_positive], yerr=ends, marker="o", capsize=3, **_DOTS)
    axis.plot(m[~is_positive], (mean + half_width)[~is_positive], marker="v", **_DOTS)


def _add_legend(figure: Figure, trials: str, has_theorem: bool, has_bounds: bool) -> None:
    """Add one legend for all panels below the figure."""
    from matplotlib.lines import Line2D

    entries: dict[str, Style] = {"exact": _LINE_OF_EXACT}
    entries[f"Monte Carlo, 95% ({trials})"] = {"marker": "o", **_DOTS}
    if has_theorem:
        entries["Theorem 1 as printed: largest value that LB, UB allow"] = _LINE_OF_PRINTED
    if has_bounds:
        text = "finite-m bounds, most often behind the exact values"
        entries[text] = {"color": _BOUNDS_COLOUR, "linewidth": 8}

    handles = [Line2D([], [], **style) for style in entries.values()]
    position: Style = {"loc": "outside lower center", "ncols": 2}
    figure.legend(handles, list(entries), **position, fontsize=9, frameon=False)


def _field_values(curve: list[VerificationRow], name: str) -> FloatArray:
    """Return the values of a field of all rows as an array, with NaN for None."""
    return np.array([getattr(row, name) for row in curve], dtype=np.float64)
