"""The figure of a verification report; Matplotlib is loaded when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from samplesoft._validation import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from samplesoft.verification.report import Picture, VerificationReport, VerificationRow

# Okabe and Ito's colours, which colour-blind readers can distinguish
_EXACT, _PRINTED, _TRIALS, _BAND = "#0072B2", "#D55E00", "#000000", "#A6CEE3"
_COLUMNS = 3
_NO_BIAS = 1e-13  # below, a bias is rounding
_QUANTILE = 1.96  # of 95% of a normal distribution

Style = dict[str, Any]
_LINE_OF_EXACT: Style = {"color": _EXACT, "linewidth": 2.0, "marker": "s", "markersize": 4}
_LINE_OF_PRINTED: Style = {"color": _PRINTED, "linestyle": "--", "linewidth": 1.6}
_DOTS: Style = {"linestyle": "none", "markersize": 4}


def draw_report(report: VerificationReport) -> Figure:
    """Draw a report; see `VerificationReport.plot`."""
    from matplotlib.figure import Figure

    rows = [row for row in report.rows if row.wrt == report.rows[0].wrt]
    names = list(dict.fromkeys(row.sampler for row in rows))
    columns = min(_COLUMNS, len(names))
    height = 2.7 * -(-len(names) // columns) + 1.3
    groups = 2 if report.pictures else 1
    size = max(3.7 * columns, 8.5), groups * height
    figure = Figure(figsize=size, layout="constrained")
    parts = figure.subfigures(groups, 1, squeeze=False)[:, 0]
    _draw_curves(parts[0], report, {name: [r for r in rows if r.sampler == name] for name in names})
    if report.pictures:
        _draw_pictures(parts[1], report.pictures)
    return figure


def _panels(part: Any, count: int, title: str, below: str) -> list[Any]:
    """Return the axes of `count` panels in rows; `below` is what their x axes show."""
    columns = min(_COLUMNS, count)
    lines = -(-count // columns)
    axes = part.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
    part.suptitle(title, fontsize=11, fontweight="bold", wrap=True)
    for axis in axes[count:]:
        axis.set_visible(False)
    for axis in axes[max(count - columns, 0) : count]:  # nothing is below them
        axis.tick_params(labelbottom=True)
        axis.set_xlabel(below, fontsize=9)
    for axis in axes[:count]:
        axis.grid(True, color="0.9", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8)
    return list(axes[:count])


def _draw_curves(
    part: Any, report: VerificationReport, curves: dict[str, list[VerificationRow]]
) -> None:
    """Draw the largest bias against m, a panel for each sampler."""
    rows = [row for curve in curves.values() for row in curve]
    unit = "probability" if rows[0].wrt == "logits" else "units of the gradient"
    title = f"Largest |bias| of the gradient in the {rows[0].wrt} ({unit}) against the number of"
    axes = _panels(part, len(curves), f"{title} draws m", "m (draws)")
    seen = [row.max_bias for row in rows if row.max_bias > _NO_BIAS]
    floor = min(seen, default=_NO_BIAS) / 8.0
    ceiling = 4.0 * max([*seen, *(row.printed_max or 0.0 for row in rows), 8.0 * floor])
    for axis, (name, curve) in zip(axes, curves.items(), strict=True):
        m = _column(curve, "num_sampled")
        axis.set_title(name, fontsize=10)
        axis.set(xscale="log", yscale="log", ylim=(floor, ceiling))
        axis.set_xlim(m.min() / 1.6, m.max() * 1.6)
        if len(m) <= 6:  # their labels have room
            axis.set_xticks(m, [f"{row.num_sampled:,}" for row in curve])
            axis.set_xticks([], minor=True)
        if curve[0].finite_max_max is not None:
            low = np.maximum(_column(curve, "finite_min_max"), floor / 10.0)
            high = _column(curve, "finite_max_max")
            # an area needs two points, a bar does not: a report of one m shows every mark too
            axis.vlines(m, low, high, color=_BAND, linewidth=8)
            axis.fill_between(m, low, high, color=_BAND, alpha=0.55, linewidth=0)
            printed = _column(curve, "printed_max")
            axis.plot(m, printed, **_LINE_OF_PRINTED, marker="_", markersize=14)
        exact = _column(curve, "max_bias")
        axis.plot(m, exact, **_LINE_OF_EXACT)
        if exact.max() < _NO_BIAS:
            axis.text(0.5, 0.08, "no bias", transform=axis.transAxes, ha="center", fontsize=9)
        elif curve[0].monte_carlo_max is not None:
            _draw_trials(axis, m, curve)
    trials = f"Monte Carlo, 95% ({report.num_trials:,} trials x {report.num_examples})"
    entries = {"exact": _LINE_OF_EXACT, trials: {"color": _TRIALS, "marker": "o", **_DOTS}}
    if report.has_theorem:
        entries["Theorem 1 as printed: largest value that LB, UB allow"] = _LINE_OF_PRINTED
    _legend(part, entries, report.has_bounds)


def _draw_trials(axis: Any, m: Any, curve: list[VerificationRow]) -> None:
    """Draw estimates with 95% intervals; if one is not above 0, the upper end of its interval."""
    mean = _column(curve, "monte_carlo_max")
    reach = _QUANTILE * _column(curve, "monte_carlo_max_stderr")
    shown = mean > 0.0
    below = np.minimum(reach, mean * (1.0 - 1e-6))[shown]  # a logarithm has no 0
    style = {"color": _TRIALS, **_DOTS}
    axis.errorbar(m[shown], mean[shown], yerr=[below, reach[shown]], marker="o", capsize=3, **style)
    axis.plot(m[~shown], (mean + reach)[~shown], marker="v", **style)


def _draw_pictures(part: Any, pictures: tuple[Picture, ...]) -> None:
    """Draw m times the bias of each coordinate of one example, a panel for each sampler."""
    first = pictures[0]
    of_h, m = first.wrt == "h", first.num_sampled
    title = f"m x bias of each coordinate of the gradient in {first.wrt}, m = {m}, example "
    below = "coordinate of h, by rising UB" if of_h else "class probability p"
    axes = _panels(part, len(pictures), f"{title}{first.example + 1} (most outside)", below)
    sizes = np.concatenate([m * np.abs(picture.bias) for picture in pictures])
    sizes = sizes[sizes > _NO_BIAS]
    # the axis is linear around 0, up to where a third of the coordinates are
    linear = 10.0 ** np.floor(np.log10(np.quantile(sizes, 0.3))) if sizes.size else 1.0
    for axis, picture in zip(axes, pictures, strict=True):
        order, x = picture.order, picture.position
        lower, upper = (m * end[order] for end in picture.ends)
        bias, outside = m * picture.bias[order], picture.outside[order]
        axis.vlines(x, lower, upper, color=_BAND, linewidth=2, rasterized=True)
        for bound in picture.printed:
            axis.plot(x, m * bound[order], **_LINE_OF_PRINTED)
        axis.plot(x[~outside], bias[~outside], ".", color=_EXACT, markersize=4, rasterized=True)
        axis.plot(x[outside], bias[outside], "D", color=_PRINTED, markersize=5)
        axis.axhline(0.0, color="0.5", linewidth=0.6)
        title = f"{picture.sampler}: {int(outside.sum()):,} of {len(x):,} outside"
        axis.set_title(title, fontsize=10)
        axis.set_yscale("symlog", linthresh=linear)
        axis.set_xscale("linear" if of_h else "log")
    what = "a coordinate of h" if of_h else "a logit"
    entries: dict[str, Style] = {
        f"{what}, within the printed bounds": {"color": _EXACT, "marker": "o", **_DOTS},
        f"{what}, OUTSIDE the printed bounds": {"color": _PRINTED, "marker": "D", **_DOTS},
        "Theorem 1 as printed: LB and UB": _LINE_OF_PRINTED,
    }
    _legend(part, entries, True)


def _legend(part: Any, entries: dict[str, Style], has_bounds: bool) -> None:
    from matplotlib.lines import Line2D

    if has_bounds:
        text = "finite-m bounds, most often behind the exact values"
        entries = {**entries, text: {"color": _BAND, "linewidth": 8}}
    handles = [Line2D([], [], **style) for style in entries.values()]
    place: Style = {"loc": "outside lower center", "ncols": 2}
    part.legend(handles, list(entries), **place, fontsize=9, frameon=False)


def _column(curve: list[VerificationRow], name: str) -> FloatArray:
    """Return a field of each row, NaN where it is None."""
    return np.array([getattr(row, name) for row in curve], dtype=np.float64)
