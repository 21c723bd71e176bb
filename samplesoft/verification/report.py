"""The verification report: its rows, what it says of them, and its tables."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from samplesoft._report import (
    Column,
    Heading,
    Items,
    Paragraph,
    Part,
    Report,
    Settings,
    Table,
    csv_table,
    plain,
)
from samplesoft._validation import FloatArray, IntArray
from samplesoft.verification.blocks import Coordinates
from samplesoft.verification.plots import draw_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = {
    "logits": "Gradient in the logits (bias in probability)",
    "h": "Gradient in h",
    "class_embeddings": "Gradient in the class vectors",
}
_NAMES = {"logits": "the logits", "h": "h", "class_embeddings": "the class vectors"}


@dataclass(frozen=True)
class VerificationRow:
    """One sampler, one number of draws, one block of parameters.

    Norms are averaged over the examples, and counts are summed. A field is None if the block or
    the scheme does not have that figure, or if it is not finite.

    Attributes
    ----------
    sampler, num_sampled, wrt
        What the row is about; `wrt` is ``logits``, ``h`` or ``class_embeddings``.
    num_coordinates : int
        Coordinates of the block, over all examples.
    max_bias, l1_bias : float
        Largest absolute value and sum of absolute values of the exact bias, in units of the
        gradient.
    monte_carlo_max, monte_carlo_l1 : float or None
        Unbiased estimates of both norms, for ``logits`` only.
    monte_carlo_max_stderr, monte_carlo_l1_stderr : float or None
        Their standard errors.
    max_abs_z : float or None
        Largest |Monte Carlo - exact| in standard errors, or None if nothing was tested. For
        ``class_embeddings`` that of the logits, as its bias is a product with theirs.
    num_tested, num_untested : int
        Statistics that were tested, and those that were not as they have too few effective draws.
    p_value : float or None
        p-value of `max_abs_z` by Bonferroni, for the `num_tested` of this row.
    printed_max : float or None
        Largest absolute value that the printed LB and UB allow for a coordinate.
    outside_printed, outside_printed_limit : int or None
        Coordinates outside the printed bounds at this m, and in the limit of many draws.
    sign_condition : int or None
        Number of examples with g >= 0 in every coordinate.
    corrected_max : float or None
        The bound of the corrected theorem on every coordinate, which knows M but not g.
    corrected_outside : int or None
        Number of coordinates outside its bounds, which know g.
    finite_hold : bool or None
        Whether all coordinates are within the finite-m bounds.
    finite_outside : int or None
        Number of coordinates that are not.
    draws_per_moment : float or None
        m / rho with ``rho = E[r^2] / Z^2``, in the mean: a large bias needs a small one.
    finite_tightness : float or None
        Sum of the widths of the finite-m intervals divided by the L1 norm of the bias.
    finite_min_max, finite_max_max : float or None
        Bounds on `max_bias` that follow from the finite-m bounds.
    leading_ratio, agapiou_ratio : float or None
        L1 norm of the leading term of the bias, and the bound ``12 rho / m`` on that of the bias,
        of `self_normalized_terms`, divided by the L1 norm of the bias; for ``logits`` only.
    effective_sample_size : float or None
        Its m / rho with ``rho = 1 + Var[r] / Z^2``, in draws; for ``logits`` only.
    loss_bias : float
        Exact E[L'] - L in nats, averaged over the examples.
    loss_z : float or None
        Largest |z| of the loss.
    squared_bias, variance, mse : float or None
        Exact moments of the gradient in h, summed over coordinates, averaged over examples.
    """

    sampler: str
    num_sampled: int
    wrt: str
    num_coordinates: int
    max_bias: float
    l1_bias: float
    monte_carlo_max: float | None
    monte_carlo_max_stderr: float | None
    monte_carlo_l1: float | None
    monte_carlo_l1_stderr: float | None
    max_abs_z: float | None
    num_tested: int
    num_untested: int
    p_value: float | None
    printed_max: float | None
    outside_printed: int | None
    outside_printed_limit: int | None
    sign_condition: int | None
    corrected_max: float | None
    corrected_outside: int | None
    finite_hold: bool | None
    finite_outside: int | None
    draws_per_moment: float | None
    finite_tightness: float | None
    finite_min_max: float | None
    finite_max_max: float | None
    leading_ratio: float | None
    agapiou_ratio: float | None
    effective_sample_size: float | None
    loss_bias: float
    loss_z: float | None
    squared_bias: float | None = None
    variance: float | None = None
    mse: float | None = None


@dataclass(frozen=True)
class Picture:
    """The coordinates of one example for one sampler, in the order of the figure."""

    sampler: str
    num_sampled: int
    wrt: str
    example: int
    order: IntArray  # (P,): coordinates from left to right
    position: FloatArray  # (P,): probability of the class, or rank of the printed UB for h
    coordinates: Coordinates


@dataclass(frozen=True)
class VerificationReport(Report):
    """What `samplesoft.verify` found.

    Attributes
    ----------
    rows : tuple of VerificationRow
        One for each sampler, number of draws and block of parameters.
    scheme : str
        The scheme.
    num_classes, num_examples, num_trials : int
        Numbers of classes, of examples, and of trials for each example, sampler and m.
    tau : float
        Inverse temperature.
    alpha : float
        Probability that `agrees` is False by chance, if all statistics are normal.
    num_tests : int
        Number of statistics tested in the whole report.
    max_abs_z, z_limit : float
        Largest |z| of the report, and the limit by Bonferroni's correction.
    settings : dict
        What is printed and saved with it, as given to `verify`.
    pictures : tuple of Picture
        One for each sampler, for the figure; not part of `to_dict`.
    """

    _title = "Exact bias, bounds and Monte Carlo"
    _figure_title = "Bias, bounds and Monte Carlo of each sampler"

    rows: tuple[VerificationRow, ...]
    scheme: str
    num_classes: int
    num_examples: int
    num_trials: int
    tau: float
    alpha: float
    num_tests: int
    max_abs_z: float
    z_limit: float
    settings: dict[str, Any] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether statistics were tested and every |z| is within the limit."""
        return self.num_tests > 0 and self.max_abs_z <= self.z_limit

    @property
    def has_bounds(self) -> bool:
        """Whether the bounds are about this scheme, and rows tell of them."""
        return any(row.finite_hold is not None for row in self.rows)

    @property
    def has_theorem(self) -> bool:
        """Whether Theorem 1 is about this scheme, and rows tell of it."""
        return any(row.outside_printed is not None for row in self.rows)

    @property
    def bounds_hold(self) -> bool:
        """Whether the finite-m bounds and the corrected theorem hold; True where there are none."""
        return all(row.finite_hold is not False and not row.corrected_outside for row in self.rows)

    @property
    def ok(self) -> bool:
        """Whether `agrees` and `bounds_hold`. Violated printed bounds are findings, not errors."""
        return self.agrees and self.bounds_hold

    @property
    def outside_printed(self) -> tuple[int, int]:
        """Coordinates outside the printed bounds, at their m and in the limit, of all rows."""
        return (
            sum(row.outside_printed or 0 for row in self.rows),
            sum(row.outside_printed_limit or 0 for row in self.rows),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, numbers and strings.

        Returns
        -------
        dict
            Ready for ``json.dumps(..., allow_nan=False)``; numbers that are not finite are None.
        """
        names = [one.name for one in fields(self) if one.name not in ("rows", "pictures")]
        values = {name: getattr(self, name) for name in (*names, "agrees", "bounds_hold", "ok")}
        values["rows"] = [asdict(row) for row in self.rows]
        return dict(plain(values))

    def to_csv(self) -> str:
        """Return all fields of all rows, to 8 significant digits.

        Returns
        -------
        str
            A line of names, those of `VerificationRow` after ``scheme``, and a line for each row.
        """
        names = [one.name for one in fields(VerificationRow)]
        rows = [[self.scheme, *(getattr(row, name) for name in names)] for row in self.rows]
        return csv_table(["scheme", *names], rows)

    def _parts(self) -> list[Part]:
        parts: list[Part] = [Paragraph(headline(self), is_verdict=True)]
        if self.settings:
            parts.append(Settings(self.settings))
        for wrt, title in _TITLES.items():
            rows = [row for row in self.rows if row.wrt == wrt]
            if rows:
                caption = f"Bias in {_NAMES[wrt]}, by sampler and number of draws m"
                parts += [Heading(title), Table(rows, columns_of(self, wrt), caption)]
        return [*parts, Items(legend(self))]

    def _figure(self) -> Figure:
        return draw_report(self)

    def _settings(self) -> dict[str, Any]:
        names = ("scheme", "num_classes", "num_examples", "num_trials", "tau", "alpha")
        return {name: getattr(self, name) for name in names} | self.settings


def headline(report: VerificationReport) -> str:
    """Return the verdict in a few sentences."""
    agrees = "agrees" if report.agrees else "DISAGREES"
    sign = "<=" if report.agrees else ">"
    if report.num_tests == 0:
        return (
            f"NOTHING was tested: {report.num_trials:,} trials are too few for any statistic of "
            "this input; give more trials."
        )
    examples = f"{report.num_examples} example{'s' if report.num_examples > 1 else ''}"
    lines = [
        f"Monte Carlo {agrees} with the exact bias: largest |z| {report.max_abs_z:.2f} {sign} "
        f"{report.z_limit:.2f} among {report.num_tests:,} statistics "
        f"(scheme {report.scheme}, {report.num_classes:,} classes, {examples}, "
        f"{report.num_trials:,} trials each).",
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


def one_line(row: VerificationRow) -> str:
    """Return what a reader wants to see of a row as soon as it is there."""
    z = "nothing could be tested" if row.max_abs_z is None else f"largest |z| {row.max_abs_z:.2f}"
    return f"{row.sampler}, m = {row.num_sampled}: L1 bias {row.l1_bias:.2e} in {row.wrt}, {z}"


def columns_of(report: VerificationReport, wrt: str) -> list[Column]:
    """Return the columns of the table of a block."""
    columns = [
        Column("sampler", lambda row: row.sampler),
        Column("m", lambda row: row.num_sampled),
        Column("max bias", lambda row: row.max_bias, ".2e"),
        Column("L1 bias", lambda row: row.l1_bias, ".2e"),
    ]
    if wrt != "class_embeddings":
        columns.append(Column("max z", lambda row: row.max_abs_z, ".2f"))
        columns.append(Column("tests", lambda row: row.num_tested, _tests))
    if report.has_theorem:
        columns += [
            Column("outside LB/UB", lambda row: row.outside_printed, ","),
            Column("in limit", lambda row: row.outside_printed_limit, ","),
            Column(
                "g >= 0",
                lambda row: row.sign_condition,
                lambda row: f"{row.sign_condition}/{report.num_examples}",
            ),
            Column("corrected/max", _corrected, _corrected_text),
            Column("m/rho", lambda row: row.draws_per_moment, ".3g"),
        ]
    if report.has_bounds:
        columns += [
            Column("finite-m", lambda row: row.finite_outside, _finite_text),
            Column("width/L1", lambda row: row.finite_tightness, ".1e"),
        ]
    if wrt == "logits":
        if _has_classical(report):
            columns += [
                Column("leading/L1", lambda row: row.leading_ratio, ".3g"),
                Column("Agapiou/L1", lambda row: row.agapiou_ratio, ".3g"),
                Column("ESS", lambda row: row.effective_sample_size, ".3g"),
            ]
        columns.append(Column("loss bias", lambda row: row.loss_bias, ".2e"))
        columns.append(Column("loss z", lambda row: row.loss_z, ".2f"))
    if wrt == "h" and report.has_bounds:
        columns.append(Column("squared bias", lambda row: row.squared_bias, ".2e"))
        columns.append(Column("variance", lambda row: row.variance, ".2e"))
        columns.append(Column("MSE", lambda row: row.mse, ".2e"))
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


def _corrected(row: VerificationRow) -> float | None:
    """Return the corrected theorem's bound over the bias; infinite where it does not hold."""
    if row.corrected_outside:
        return math.inf
    if row.corrected_max is None or row.finite_tightness is None:
        return None
    return row.corrected_max / row.max_bias


def _corrected_text(row: VerificationRow) -> str:
    return f"{row.corrected_outside} OUT" if row.corrected_outside else f"{_corrected(row):.3g}"


def _finite_text(row: VerificationRow) -> str:
    return "hold" if row.finite_hold else f"{row.finite_outside} OUT"


def _tests(row: VerificationRow) -> str:
    return f"{row.num_tested}" + (f" (+{row.num_untested})" if row.num_untested else "")
