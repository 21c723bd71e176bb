"""What a verification report says, and its tables as LaTeX and comma-separated values."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from samplesoft._parts import Heading, Items, Paragraph, Part, Settings, Table
from samplesoft._tables import Column, csv_table, escape_latex, latex_table

if TYPE_CHECKING:
    from samplesoft.verification.report import VerificationReport
    from samplesoft.verification.rows import VerificationRow

_TITLES = {
    "logits": "Gradient in the logits (bias in probability)",
    "h": "Gradient in h",
    "class_embeddings": "Gradient in the class vectors",
}
_NAMES = {"logits": "the logits", "h": "h", "class_embeddings": "the class vectors"}


def parts(report: VerificationReport) -> list[Part]:
    """Return the whole report: headline, settings, a table for each block, legend."""
    found: list[Part] = [Paragraph(headline(report))]
    if report.settings:
        found.append(Settings(report.settings))
    for wrt, rows in _blocks(report):
        caption = f"Bias in {_NAMES[wrt]}, by sampler and number of draws m"
        found += [Heading(_TITLES[wrt]), Table(rows, columns_of(report, wrt), caption)]
    found.append(Items(legend(report)))
    return found


def _sizes(report: VerificationReport) -> str:
    examples = f"{report.num_examples} example{'s' if report.num_examples > 1 else ''}"
    return (
        f"scheme {report.scheme}, {report.num_classes:,} classes, {examples}, "
        f"{report.num_trials:,} trials each"
    )


def _blocks(report: VerificationReport) -> list[tuple[str, list[VerificationRow]]]:
    """Return the blocks that the report has, each with its rows."""
    blocks = ((wrt, [row for row in report.rows if row.wrt == wrt]) for wrt in _TITLES)
    return [(wrt, rows) for wrt, rows in blocks if rows]


def headline(report: VerificationReport) -> str:
    """Return the verdict in a few sentences."""
    agrees = "agrees" if report.agrees else "DISAGREES"
    sign = "<=" if report.agrees else ">"
    if report.num_tests == 0:
        return (
            f"NOTHING was tested: {report.num_trials:,} trials are too few for any statistic of "
            "this input; give more trials."
        )
    lines = [
        f"Monte Carlo {agrees} with the exact bias: largest |z| {report.max_abs_z:.2f} {sign} "
        f"{report.z_limit:.2f} among {report.num_tests:,} statistics "
        f"({_sizes(report)}).",
    ]
    if report.has_bounds:
        hold = "hold everywhere" if report.bounds_hold else "are VIOLATED"
        what = " and the corrected Theorem 1" if report.has_theorem else ""
        lines.append(f"The finite-m bounds{what} {hold}.")
    if report.has_theorem:
        now, limit = report.outside_printed
        lines.append(
            f"Outside the printed bounds of Theorem 1 lie {now:,} coordinates at these m and "
            f"{limit:,} in the limit."
        )
    return " ".join(lines)


def latex(report: VerificationReport) -> str:
    """Return a LaTeX ``table`` for each block, with what it shows as its caption."""
    lines = ["% samplesoft verify; needs no package", f"% {headline(report)}"]
    if report.settings:
        lines.append(f"% {Settings(report.settings).markdown()}")
    for wrt, rows in _blocks(report):
        lines += [
            r"\begin{table}",
            r"\centering\scriptsize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{escape_latex(f'{_TITLES[wrt]}: {_sizes(report)}.')}}}",
            r"\makebox[\textwidth][c]{%",  # a table may be wider than the text
            latex_table(rows, columns_of(report, wrt)) + "}",
            r"\end{table}",
        ]
    return "\n".join(lines) + "\n"


def comma_separated(report: VerificationReport) -> str:
    """Return all fields of all rows as comma-separated values."""
    names = [field.name for field in fields(report.rows[0])]
    rows = [[report.scheme, *(getattr(row, name) for name in names)] for row in report.rows]
    return csv_table(["scheme", *names], rows)


def one_line(row: VerificationRow) -> str:
    """Return what a reader wants to see of a row as soon as it is there."""
    z = "nothing could be tested" if row.max_abs_z is None else f"largest |z| {row.max_abs_z:.2f}"
    return f"{row.sampler}, m = {row.num_sampled}: L1 bias {row.l1_bias:.2e} in {row.wrt}, {z}"


def columns_of(report: VerificationReport, wrt: str) -> list[Column]:
    """Return the columns of the table of a block."""
    columns: list[Column] = [
        ("sampler", lambda row: row.sampler),
        ("m", lambda row: str(row.num_sampled)),
        ("max bias", lambda row: _show(row.max_bias, ".2e")),
        ("L1 bias", lambda row: _show(row.l1_bias, ".2e")),
    ]
    if wrt != "class_embeddings":
        columns.append(("max z", lambda row: _show(row.max_abs_z, ".2f")))
        columns.append(("tests", _tests))
    if report.has_theorem:
        columns += [
            ("outside LB/UB", lambda row: _show(row.outside_printed, ",")),
            ("in limit", lambda row: _show(row.outside_printed_limit, ",")),
            ("g >= 0", lambda row: f"{row.sign_condition}/{report.num_examples}"),
            ("corrected/max", _corrected),
            ("m/rho", lambda row: _show(row.draws_per_moment, ".3g")),
        ]
    if report.has_bounds:
        columns += [
            ("finite-m", lambda row: "hold" if row.finite_hold else f"{row.finite_outside} OUT"),
            ("width/L1", lambda row: _show(row.finite_tightness, ".1e")),
        ]
    if wrt == "logits":
        if _has_classical(report):
            columns += [
                ("leading/L1", lambda row: _show(row.leading_ratio, ".3g")),
                ("Agapiou/L1", lambda row: _show(row.agapiou_ratio, ".3g")),
                ("ESS", lambda row: _show(row.effective_sample_size, ".3g")),
            ]
        columns.append(("loss bias", lambda row: _show(row.loss_bias, ".2e")))
        columns.append(("loss z", lambda row: _show(row.loss_z, ".2f")))
    if wrt == "h" and report.has_bounds:
        columns.append(("squared bias", lambda row: _show(row.squared_bias, ".2e")))
        columns.append(("variance", lambda row: _show(row.variance, ".2e")))
        columns.append(("MSE", lambda row: _show(row.mse, ".2e")))
    return columns


def legend(report: VerificationReport) -> list[str]:
    """Return what the columns mean and in which units they are."""
    sizes = {row.wrt: row.num_coordinates for row in report.rows}
    units = ["in probability for the logits"] if "logits" in sizes else []
    vectors = " and ".join(_NAMES[wrt] for wrt in ("h", "class_embeddings") if wrt in sizes)
    units += [f"in units of the gradient for {vectors}"] if vectors else []
    lines = [
        "max bias, L1 bias: norms of E[gradient] - gradient, exact, averaged over the examples; "
        + ", ".join(units)
        + ".",
        "max z: largest |Monte Carlo - exact| in standard errors; tests: statistics tested "
        "(+ left out, having too few effective draws)."
        + (" Class vectors share those of the logits." if "class_embeddings" in sizes else ""),
    ]
    if report.has_theorem:
        totals = ", ".join(f"{size:,} of {_NAMES[wrt]}" for wrt, size in sizes.items())
        lines.append(
            f"outside LB/UB: coordinates outside the printed bounds at this m, in limit: as m "
            f"grows; out of {totals}. g >= 0: examples where the sign condition of the printed UB "
            "holds. corrected/max: the bound of the corrected Theorem 1, which holds for every m, "
            "over the max bias. m/rho: rho = E[r^2]/Z^2 with r = exp(o)/q; a large bias needs a "
            "small one."
        )
    if report.has_bounds:
        lines.append(
            "finite-m: the two-sided bounds that hold for every m; width/L1: sum of their widths "
            "over the L1 bias, most often below 1e-6."
        )
    if report.has_bounds and "h" in sizes:
        lines.append(
            "squared bias, variance, MSE: of the gradient in h, exact, summed over its coordinates."
        )
    if _has_classical(report):
        lines.append(
            "Of self-normalised importance sampling, leading/L1: L1 norm of the bias's term of "
            "order 1/m, Agapiou/L1: the bound 12 (1 + Var[r]/Z^2)/m, over the L1 bias; "
            "ESS: effective sample size m/(1 + Var[r]/Z^2)."
        )
    if "logits" in sizes:
        lines.append("loss bias: E[L'] - L in nats.")
    lines.append(
        "Verdict: every |z| of the report within Bonferroni's limit for a chance of "
        f"{report.alpha:g} of one false alarm in all."
    )
    return lines


def _has_classical(report: VerificationReport) -> bool:
    return any(row.effective_sample_size is not None for row in report.rows)


def _corrected(row: VerificationRow) -> str:
    if row.corrected_outside:
        return f"{row.corrected_outside} OUT"
    if row.corrected_max is None or row.finite_tightness is None:
        return "-"
    return f"{row.corrected_max / row.max_bias:.3g}"


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _tests(row: VerificationRow) -> str:
    return f"{row.num_tested}" + (f" (+{row.num_untested})" if row.num_untested else "")
