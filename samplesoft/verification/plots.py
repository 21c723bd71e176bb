"""The figure of a verification report; Matplotlib is loaded when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from samplesoft.verification.report import Picture, VerificationReport, VerificationRow

# Okabe and Ito's colours, which colour-blind readers can distinguish
_EXACT, _PRINTED, _TRIALS, _BAND = "#0072B2", "#D55E00", "#000000", "#A6CEE3"
_COLUMNS = 3
_NO_BIAS = 1e-13  # below, a bias is rounding
_QUANTILE = 1.96


def draw_report(report: VerificationReport) -> Figure:
    """Draw a report; see `VerificationReport.plot`."""
    from matplotlib.figure import Figure

    curves = [row for row in report.rows if row.wrt == report.rows[0].wrt]
    names = list(dict.fromkeys(row.sampler for row in curves))
    columns = min(_COLUMNS, len(names))
    lines = -(-len(names) // columns)
    groups = 2 if report.pictures else 1
    figure = Figure(
        figsize=(max(3.7 * columns, 8.5), groups * (2.7 * lines + 1.3)), layout="constrained"
    )
    parts = figure.subfigures(groups, 1, squeeze=False)[:, 0]
    _draw_curves(parts[0], report, curves, names, columns)
    if report.pictures:
        _draw_pictures(parts[1], report, columns)
    return figure


def _panels(part: Any, count: int, columns: int, title: str, **shared: Any) -> list[Any]:
    lines = -(-count // columns)
    axes = part.subplots(lines, columns, squeeze=False, **shared).ravel()
    part.suptitle(title, fontsize=11, fontweight="bold", wrap=True)
    for extra in axes[count:]:
        extra.set_visible(False)
    for axis in axes[max(count - columns, 0) : count]:
        axis.tick_params(labelbottom=True)
    for axis in axes[:count]:
        axis.grid(True, color="0.9", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8)
    return list(axes[:count])


def _draw_curves(
    part: Any,
    report: VerificationReport,
    rows: list[VerificationRow],
    names: list[str],
    columns: int,
) -> None:
    unit = "probability" if rows[0].wrt == "logits" else "units of the gradient"
    axes = _panels(
        part,
        len(names),
        columns,
        f"Largest |bias| of the gradient in the {rows[0].wrt} ({unit}) against the number of "
        "draws m",
        sharex=True,
        sharey=True,
    )
    seen = [row.max_bias for row in rows if row.max_bias > _NO_BIAS]
    floor = min(seen, default=_NO_BIAS) / 8.0
    ceiling = 4.0 * max([*seen, *(_or(row.printed_max) for row in rows), 8.0 * floor])
    for axis, name in zip(axes, names, strict=True):
        mine = [row for row in rows if row.sampler == name]
        m = np.array([row.num_sampled for row in mine], dtype=float)
        alone = len(m) == 1  # a line or an area needs two points
        axis.set_title(name, fontsize=10)
        axis.set(xscale="log", yscale="log", ylim=(floor, ceiling))
        axis.set_xlim(m.min() / 1.6, m.max() * 1.6)
        if len(m) <= 6:  # their labels have room
            axis.set_xticks(m, [f"{row.num_sampled:,}" for row in mine])
            axis.set_xticks([], minor=True)
        exact = np.array([row.max_bias for row in mine])
        if mine[0].finite_max_max is not None:
            low = [max(_or(row.finite_min_max), floor / 10.0) for row in mine]
            high = [_or(row.finite_max_max) for row in mine]
            printed = [np.nan if (most := row.printed_max) is None else most for row in mine]
            if alone:
                axis.vlines(m, low, high, color=_BAND, linewidth=14)
                axis.plot(m, printed, "_", color=_PRINTED, markersize=28, markeredgewidth=2)
            else:
                axis.fill_between(m, low, high, color=_BAND, alpha=0.55, linewidth=0)
                axis.plot(m, printed, color=_PRINTED, linestyle="--", linewidth=1.6)
        axis.plot(m, exact, color=_EXACT, linewidth=2.0, marker="s" if alone else "", markersize=9)
        if exact.max() < _NO_BIAS:
            axis.text(0.5, 0.08, "no bias", transform=axis.transAxes, ha="center", fontsize=9)
        else:
            _draw_trials(axis, m, mine)
    for axis in axes[-columns:]:
        axis.set_xlabel("m (draws)", fontsize=9)
    _legend(
        part,
        [
            ({"color": _EXACT, "linewidth": 2.0, "marker": "s" if alone else ""}, "exact"),
            (
                {"color": _TRIALS, "marker": "o", "markersize": 4, "linestyle": "none"},
                f"Monte Carlo, 95% ({report.num_trials:,} trials x {report.num_examples})",
            ),
            *_bounds_entries(
                report.has_bounds,
                "largest value that LB, UB allow" if report.has_theorem else None,
            ),
        ],
    )


def _draw_trials(axis: Any, m: Any, rows: list[VerificationRow]) -> None:
    """Draw estimates with 95% intervals; if one is not above 0, the upper end of its interval."""
    if rows[0].monte_carlo_max is None:
        return
    mean = np.array([_or(row.monte_carlo_max) for row in rows])
    reach = _QUANTILE * np.array([_or(row.monte_carlo_max_stderr) for row in rows])
    shown = mean > 0.0
    below = np.minimum(reach, mean * (1.0 - 1e-6))[shown]
    style = {"color": _TRIALS, "linestyle": "none", "markersize": 4}
    axis.errorbar(m[shown], mean[shown], yerr=[below, reach[shown]], marker="o", capsize=3, **style)
    axis.plot(m[~shown], (mean + reach)[~shown], marker="v", **style)


def _draw_pictures(part: Any, report: VerificationReport, columns: int) -> None:
    first = report.pictures[0]
    what = "a coordinate of h" if first.wrt == "h" else "a logit"
    axes = _panels(
        part,
        len(report.pictures),
        columns,
        f"m x bias of each coordinate of the gradient in {first.wrt}, m = {first.num_sampled}, "
        f"example {first.example + 1} (most outside)",
        sharex=True,
        sharey=True,
    )
    values = np.concatenate([np.abs(p.bias) * p.num_sampled for p in report.pictures])
    values = values[values > _NO_BIAS]
    linear = 10.0 ** np.floor(np.log10(np.quantile(values, 0.3))) if values.size else 1.0
    for axis, picture in zip(axes, report.pictures, strict=True):
        _draw_picture(axis, picture)
        axis.set_yscale("symlog", linthresh=linear)
        if first.wrt != "h":
            axis.set_xscale("log")
    place = "coordinate of h, by rising UB" if first.wrt == "h" else "class probability p"
    for axis in axes[-columns:]:
        axis.set_xlabel(place, fontsize=9)
    marker = {"marker": "o", "markersize": 4, "linestyle": "none"}
    _legend(
        part,
        [
            ({"color": _EXACT, **marker}, f"{what}, within the printed bounds"),
            (
                {"color": _PRINTED, **marker, "marker": "D", "markersize": 5},
                f"{what}, OUTSIDE the printed bounds",
            ),
            *_bounds_entries(True, "LB and UB"),
        ],
    )


def _draw_picture(axis: Any, picture: Picture) -> None:
    order, x, m = picture.order, picture.position, picture.num_sampled
    lower, upper = (m * end[order] for end in picture.ends)
    bias, outside = m * picture.bias[order], picture.outside[order]
    axis.vlines(x, lower, upper, color=_BAND, linewidth=2, rasterized=True)
    for bound in picture.printed:
        axis.plot(x, m * bound[order], color=_PRINTED, linestyle="--", linewidth=1.4)
    axis.plot(x[~outside], bias[~outside], ".", color=_EXACT, markersize=4, rasterized=True)
    axis.plot(x[outside], bias[outside], "D", color=_PRINTED, markersize=5)
    axis.axhline(0.0, color="0.5", linewidth=0.6)
    axis.set_title(f"{picture.sampler}: {int(outside.sum()):,} of {len(x):,} outside", fontsize=10)


def _bounds_entries(shown: bool, printed: str | None) -> list[tuple[dict[str, Any], str]]:
    line = {"color": _PRINTED, "linestyle": "--", "linewidth": 1.6}
    entries: list[tuple[dict[str, Any], str]] = []
    if printed is not None:
        entries.append((line, f"Theorem 1 as printed: {printed}"))
    if shown:
        entries.append(
            (
                {"color": _BAND, "linewidth": 8},
                "finite-m bounds, most often behind the exact values",
            )
        )
    return entries


def _legend(part: Any, entries: list[tuple[dict[str, Any], str]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **style) for style, _ in entries]
    labels = [label for _, label in entries]
    part.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9, frameon=False)


def _or(value: float | None) -> float:
    return float("nan") if value is None else value
