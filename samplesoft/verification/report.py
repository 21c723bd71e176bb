"""The verification report, and how it is written for programs and for readers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from samplesoft._parts import Part
from samplesoft._report import Report
from samplesoft.verification.plots import draw_report
from samplesoft.verification.rows import Picture, VerificationRow
from samplesoft.verification.tables import comma_separated, latex, parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        names = [part.name for part in fields(self) if part.name not in ("rows", "pictures")]
        values = {name: getattr(self, name) for name in (*names, "agrees", "bounds_hold", "ok")}
        values["rows"] = [asdict(row) for row in self.rows]
        plain: dict[str, Any] = _plain(values)
        return plain

    def to_latex(self) -> str:
        """Return a ``table`` for each block, with the columns of `to_markdown`.

        Returns
        -------
        str
            LaTeX that needs no package, with the headline and the settings as comments.
        """
        return latex(self)

    def to_csv(self) -> str:
        """Return all fields of all rows, to 8 significant digits.

        Returns
        -------
        str
            A line of names, those of `VerificationRow` after ``scheme``, and a line for each row.
        """
        return comma_separated(self)

    def _parts(self) -> list[Part]:
        return parts(self)

    def _figure(self) -> Figure:
        return draw_report(self)

    def _settings(self) -> dict[str, Any]:
        names = ("scheme", "num_classes", "num_examples", "num_trials", "tau", "alpha")
        return {name: getattr(self, name) for name in names} | self.settings


def _plain(value: Any) -> Any:
    """Return `value` with Python's numbers for NumPy's, and None for those that are not finite."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
