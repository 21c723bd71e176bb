"""`VerificationReport`, the result of `verify`: rows, summary, verdict, tables and a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from decimal import ROUND_UP, Decimal, localcontext
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from samplesoft.reports.parts import Column, Heading, Items, Paragraph, Part, Settings, Table
from samplesoft.reports.report import Report
from samplesoft.reports.values import csv_table, field_descriptions
from samplesoft.verification.plots import plot_rows
from samplesoft.verification.row import VerificationRow as VerificationRow  # public here too

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# the summary shows the number of draws with which the L1 bias in the logits is at most this
TARGET_BIAS = 0.01

# if a bias is not larger than its numerical error, values below this are shown as 0
_MAX_ROUNDING = 1e-12
_NAMES = {"logits": "the logits", "h": "h", "class_embeddings": "the class vectors"}


@dataclass(frozen=True)
class VerificationReport(Report):
    """The result of `samplesoft.verify`.

    Attributes
    ----------
    rows : tuple of VerificationRow
        One row for each sampler, number of draws and block of parameters.
    scheme : str
        Name of the sampling scheme, see `samplesoft.exact_bias`.
    num_classes, num_examples, num_trials : int
        Number of classes; number of examples; number of trials for each example, sampler and m.
    tau : float
        Inverse temperature.
    alpha : float
        Probability that `agrees` is False by chance, if all statistics are normal.
    num_tests, num_untested : int
        Number of statistics that were tested in the whole report; number of statistics that were
        not, because a few rare trials may be most of their variance.
    max_abs_z, z_limit : float
        Largest ``|z|`` of the report, and its limit, with Bonferroni's correction.
    settings : dict
        The argument `settings` of `verify`, which is printed and saved with the report.
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
    num_untested: int
    max_abs_z: float
    z_limit: float
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether at least one statistic was tested, and every ``|z|`` is within the limit."""
        return self.num_tests > 0 and self.max_abs_z <= self.z_limit

    @property
    def has_bounds(self) -> bool:
        """Whether rows have bounds that hold for every m, which exist only for some schemes."""
        return any(row.finite_hold is not None for row in self.rows)

    @property
    def has_theorem(self) -> bool:
        """Whether rows have bounds of Theorem 1, which covers only some schemes."""
        return any(row.outside_printed is not None for row in self.rows)

    @property
    def bounds_hold(self) -> bool:
        """Whether the bounds for every m and the corrected theorem hold; True without bounds."""
        return all(row.finite_hold is not False and not row.corrected_outside for row in self.rows)

    @property
    def ok(self) -> bool:
        """Whether `agrees` and `bounds_hold` are True; Theorem 1 as printed may be violated."""
        return self.agrees and self.bounds_hold

    @property
    def verdict(self) -> str:
        """The result in up to four sentences: Monte Carlo, bounds, what is proved, and draws."""
        return " ".join(
            filter(
                None,
                (
                    _agreement_sentence(self),
                    _bounds_sentence(self),
                    _certified_sentence(self),
                    _draws_sentence(self),
                ),
            )
        )

    def _values(self) -> dict[str, Any]:
        findings = {
            name: getattr(self, name) for name in ("agrees", "bounds_hold", "ok", "verdict")
        }
        values = asdict(self) | findings
        rows = values.pop("rows")  # put the rows, which are the longest item, last
        return values | {"rows": rows}

    def to_csv(self) -> str:
        """Return all fields of all rows, to 8 significant digits.

        Returns
        -------
        str
            A header line, ``scheme`` and the fields of `VerificationRow`, and a line for each row.
        """
        names = [column.name for column in fields(VerificationRow)]
        rows = [[self.scheme, *(getattr(row, name) for name in names)] for row in self.rows]
        return csv_table(["scheme", *names], rows)

    def _parts(self) -> list[Part]:
        return [
            Settings(self._settings()),
            _summary_table(self),
            Items(_summary_legend(self)),
            Paragraph(self.verdict, is_verdict=True),
        ]

    def _details(self) -> list[Part]:
        parts: list[Part] = []
        shown_names: list[str] = []
        for wrt in _block_names(self):
            rows = [row for row in self.rows if row.wrt == wrt]
            names = [
                key
                for key in _VALUE_FIELDS
                if any(_field_value(row, key) is not None for row in rows)
            ]
            shown_names += names
            num_coordinates = f"{rows[0].num_coordinates:,} coordinates"
            caption = f"Bias in {_NAMES[wrt]}, by sampler and number of draws m"
            table = Table(names, [Column("figure", str), *map(_row_as_column, rows)], caption)
            parts += [Heading(f"Gradient in {_NAMES[wrt]}: {num_coordinates}"), table]

        meanings = field_descriptions(VerificationRow)
        names = [name for name in _VALUE_FIELDS if name in shown_names]

        # print a description that adjacent fields share only once, after all their names
        descriptions = [
            f"{', '.join(group)}: {meaning}."
            for meaning, group in groupby(names, lambda name: meanings.get(name, name))
        ]
        agreement = (
            "Monte Carlo agrees where every |z| of the report is within Bonferroni's limit for a "
            f"chance of {self.alpha:g} of one false alarm in all."
        )

        return [*parts, Items([*descriptions, agreement])]

    def _figure(self) -> Figure:
        return plot_rows(
            self.rows,
            trials=f"{self.num_trials:,} trials x {self.num_examples}",
            has_theorem=self.has_theorem,
            has_bounds=self.has_bounds,
        )

    def _settings(self) -> dict[str, Any]:
        own_settings = {
            "scheme": self.scheme,
            "classes": f"{self.num_classes:,}",
            "examples": f"{self.num_examples:,}",
            "trials of each": f"{self.num_trials:,}",
            "tau": self.tau,
        }
        return own_settings | self.settings


# the summary -------------------------------------------------------------------------------------

# the rows of one sampler at one m, one for each block of parameters
Group = Sequence[VerificationRow]


def _rows_by_sampler_and_m(report: VerificationReport) -> list[Group]:
    """Return the rows of a report in groups, one for each sampler and m."""
    groups = groupby(report.rows, attrgetter("sampler", "num_sampled"))
    return [list(rows) for _, rows in groups]


def _rows_with_own_tests(group: Group) -> Group:
    """Return the rows of a group without those that repeat the tests of another row.

    Rows for class vectors repeat the tests of the logits, and are left out if there are other rows.
    """
    return [row for row in group if row.wrt != "class_embeddings"] or group


def _summary_table(report: VerificationReport) -> Table:
    """Return the summary table, with a line for each sampler and number of draws."""
    columns = [
        Column("proposal", lambda group: group[0].sampler),
        Column("m", lambda group: group[0].num_sampled),
        Column(
            "exact\nbias", lambda group: _zero_unless_resolved(group[0], group[0].l1_bias), "#.3g"
        ),
        Column("Monte Carlo\nagrees", lambda group: _agreement_text(report, group)),
    ]
    if report.has_theorem:
        columns.append(Column("printed\nTheorem 1", _num_outside_printed, _theorem_text))
    if report.rows[0].certified_error is not None:
        columns.append(
            Column(
                "proved\nerror",
                lambda group: group[0].certified_error,
                lambda group: _rounded_up(group[0].certified_error),
            )
        )
    if report.has_bounds:
        columns += [
            Column("bound for\nevery m", lambda group: group[0].finite_max_l1, _bound_text),
            Column(f"draws for\na bias of {TARGET_BIAS:g}", lambda g: g[0].draws_needed, ","),
        ]

    return Table(_rows_by_sampler_and_m(report), columns, "Each proposal at each number of draws m")


def _zero_unless_resolved(row: VerificationRow, bias: float | None) -> float | None:
    """Return `bias`, or 0 if the bias of the row is within its numerical error."""
    return bias if row.resolved or bias is None else 0.0


def _agreement_text(report: VerificationReport, group: Group) -> str:
    """Return text: whether Monte Carlo agrees, and the percentage of tested statistics."""
    rows = _rows_with_own_tests(group)
    num_tested = sum(row.num_tested for row in rows)
    if not num_tested:
        return "not tested"

    abs_scores = [row.max_abs_z or 0.0 for row in rows] + [group[0].loss_z or 0.0]

    # the limit is for all tests of the report, not only those of this group
    if max(abs_scores) > report.z_limit:
        return f"NO, |z| = {max(abs_scores):.3g}"

    # round the percentage down, so that 100% means that all statistics were tested
    fraction = num_tested / (num_tested + sum(row.num_untested for row in rows))
    return f"yes, {math.floor(100.0 * fraction)}%" if fraction >= 0.01 else "yes, < 1%"


def _rounded_up(value: float) -> str:
    """Return a positive number with two digits that is not below it."""
    with localcontext(prec=2, rounding=ROUND_UP):
        return f"{+Decimal(value):.1e}"


def _num_outside_printed(group: Group) -> int:
    """Return the number of coordinates outside the bounds of Theorem 1 as printed, in a group."""
    return sum(row.outside_printed or 0 for row in group)


def _theorem_text(group: Group) -> str:
    num_outside = _num_outside_printed(group)
    return f"{num_outside:,} outside" if num_outside else "holds"


def _bound_text(group: Group) -> str:
    if any(row.finite_hold is False for row in group):
        return "VIOLATED"
    return f"{group[0].finite_max_l1:#.3g}" if group[0].resolved else "0"


def _summary_legend(report: VerificationReport) -> list[str]:
    """Return explanations of the columns of the summary table, one line for each."""
    wrt = report.rows[0].wrt
    upper_limit = ", which is at most 2" if wrt == "logits" else ""
    lines = [
        f"exact bias: of the gradient in {_NAMES[wrt]}, summed over its coordinates without their "
        f"signs (L1 norm){upper_limit}; the mean of {_counted(report.num_examples, 'example')}.",
        f"Monte Carlo agrees: all of {report.num_trials:,} trials within {report.z_limit:.2f} "
        "standard errors; in % the statistics with enough effective draws to be tested.",
    ]
    if report.has_theorem:
        lines.append(
            "printed Theorem 1: of Rawat et al. (2019), a bound to leading order; else how many "
            f"coordinates of {_joined([_NAMES[wrt] for wrt in _block_names(report)])} are outside."
        )

    if report.rows[0].certified_error is not None:
        lines.append(
            "proved error: a proved bound on the numerical error of the exact bias in the logits, "
            "L1 norm, of the worst example."
        )

    if report.has_bounds:
        lines.append(
            "bound for every m: on the same norm, proved; draws: the least m with a bias of at "
            f"most {TARGET_BIAS:g} in the logits."
        )

    return lines


def _block_names(report: VerificationReport) -> list[str]:
    """Return the names of the blocks of parameters in a report, in the order of its rows."""
    return list(dict.fromkeys(row.wrt for row in report.rows))


def _counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 draw" or "2 draws"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _joined(words: Sequence[str]) -> str:
    """Return words joined as "a", "a and b" or "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


# the verdict -------------------------------------------------------------------------------------


def _agreement_sentence(report: VerificationReport) -> str:
    """Return a sentence that says whether Monte Carlo agrees, and what could not be tested."""
    if report.num_tests == 0:
        return (
            f"NOTHING was tested: {report.num_trials:,} trials are too few for any statistic of "
            "this input; give more trials."
        )
    if not report.agrees:
        return (
            f"Monte Carlo DISAGREES with the exact bias: of {report.num_tests:,} statistics the "
            f"largest |z| is {report.max_abs_z:.2f}, where {report.z_limit:.2f} is the limit."
        )

    text = f"Monte Carlo agrees with the exact bias in all {report.num_tests:,} statistics"
    if not report.num_untested:
        return f"{text}."

    percent = 100.0 * report.num_untested / (report.num_untested + report.num_tests)
    rows = [r for group in _rows_by_sampler_and_m(report) for r in _rows_with_own_tests(group)]

    # the row with the smallest fraction of tested statistics
    row = min(rows, key=lambda r: r.num_tested / (r.num_tested + r.num_untested))

    return (
        f"{text} that could be tested; {report.num_untested:,} ({percent:.2g}%) could not, for "
        f"lack of effective draws ({row.sampler}, m = {row.num_sampled:,}: only "
        f"{row.num_tested:,} of {row.num_tested + row.num_untested:,} in "
        f"{_NAMES[row.wrt]} could)."
    )


def _bounds_sentence(report: VerificationReport) -> str:
    """Return a sentence that says whether the bounds and the printed theorem hold."""
    if not report.has_bounds:
        return ""

    subject = "The bounds for every m" + " and the corrected Theorem 1" * report.has_theorem
    text = f"{subject} {'hold' if report.bounds_hold else 'are VIOLATED'}"
    if not report.has_theorem:
        return f"{text}."

    outside = _num_outside_printed(report.rows)
    if not outside:
        return f"{text}; nothing is outside Theorem 1 as printed."

    # the proof in the paper needs g >= 0: count also the violations where g >= 0 holds
    num_with_sign = sum(row.outside_with_sign or 0 for row in report.rows)
    where = f"{num_with_sign:,} of them" if num_with_sign else "none"

    return (
        f"{text}; as printed, Theorem 1 fails in {_counted(outside, 'coordinate')}, {where} where "
        "its condition g >= 0 is met."
    )


def _certified_sentence(report: VerificationReport) -> str:
    """Return a sentence that says which other sentences are proved, for the logits; or ""."""
    rows = [row for row in report.rows if row.certified_error is not None]
    if not rows:
        return ""

    largest = max(row.certified_error or 0.0 for row in rows)
    text = (
        f"Proved for the logits: the exact bias is right to {_rounded_up(largest)} in the L1 norm"
    )
    total = sum(row.num_coordinates for row in rows)
    claims = []
    if report.has_bounds:
        claims.append(("finite", "the bounds for every m"))
    if report.has_theorem:
        claims.append(("printed", "Theorem 1 as printed"))
    for name, subject in claims:
        inside = sum(getattr(row, f"certified_{name}_inside") for row in rows)
        outside = sum(getattr(row, f"certified_{name}_outside") for row in rows)
        counts = {"proved": inside, "refuted": outside, "open": total - inside - outside}
        told = ", ".join(f"{word} in {count:,}" for word, count in counts.items() if count)
        text += f"; {subject}: {told} of {_counted(total, 'coordinate')}"
    return f"{text}."


def _draws_sentence(report: VerificationReport) -> str:
    """Return a sentence that compares proposals by the draws that they need for `TARGET_BIAS`."""
    needed = {row.sampler: row.draws_needed for row in report.rows if row.draws_needed}

    # exclude the softmax itself, which needs one draw, but is too expensive as a proposal
    biased = {name: m for name, m in needed.items() if m > 1}
    if not biased:
        return ""

    best = min(biased, key=biased.__getitem__)
    worst = max(biased, key=biased.__getitem__)
    if biased[best] == biased[worst]:
        return f"A bias of {TARGET_BIAS:g} takes {biased[best]:,} draws of {best}."

    return (
        f"For a bias of {TARGET_BIAS:g}, {biased[best]:,} draws of {best} are as good as "
        f"{biased[worst]:,} of {worst}."
    )


# all values --------------------------------------------------------------------------------------

# the fields that are values, without the first four: sampler, m, block, number of coordinates
_VALUE_FIELDS = [column.name for column in fields(VerificationRow)][4:]


def _field_value(row: VerificationRow, name: str) -> Any:
    """Return the value of a field of a row; 0 if it is only numerical error of the bias."""
    value = getattr(row, name)
    is_zero = isinstance(value, float) and abs(value) < _MAX_ROUNDING and not row.resolved
    return 0.0 if is_zero else value


def _row_as_column(row: VerificationRow) -> Column:
    """Return the values of a row as a column of a table, which has a line for each field."""

    def format_field(name: str) -> str:
        value = _field_value(row, name)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"

    sampler = " ".join(row.sampler.split())
    return Column(f"{sampler}\nm = {row.num_sampled}", partial(_field_value, row), format_field)


def row_as_line(row: VerificationRow) -> str:
    """Return a summary of a row as one line of text, for progress output."""
    bias = f"{row.l1_bias:.2e}" if row.resolved else "0"
    z = "nothing could be tested" if row.max_abs_z is None else f"largest |z| {row.max_abs_z:.2f}"
    return f"{row.sampler}, m = {row.num_sampled}: L1 bias {bias} in {row.wrt}, {z}"
