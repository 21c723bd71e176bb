"""The verification report: frozen rows, and their forms for programs and for readers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from samplesoft._validation import FloatArray, IntArray
from samplesoft.bias.blocks import Coordinates
from samplesoft.bias.tables import markdown


@dataclass(frozen=True)
class VerificationRow:
    """One sampler, one number of draws, one block of parameters.

    Norms are those of each example's bias, averaged over the examples; counts are totals over
    the examples. A field is None where the block or the scheme has no such figure, or where
    it is not a finite number.

    Attributes
    ----------
    sampler, num_sampled, wrt
        Which row it is; `wrt` is ``logits``, ``h`` or ``class_embeddings``.
    num_coordinates : int
        Coordinates of the block, over all examples.
    max_bias, l1_bias : float
        Largest absolute value and sum of absolute values of the exact bias, in units of the
        gradient.
    monte_carlo_max, monte_carlo_l1 : float or None
        Unbiased estimates of both norms; for ``logits`` only.
    monte_carlo_max_stderr, monte_carlo_l1_stderr : float or None
        Their standard errors.
    max_abs_z : float or None
        Largest |Monte Carlo - exact| in standard errors; ``class_embeddings`` shows that of the
        logits, from which its bias follows by a product. None where nothing could be tested.
    num_tested, num_untested : int
        Statistics that were tested; statistics left out because they rest on too few effective
        draws.
    p_value : float or None
        Bonferroni's chance of so large a |z| among the `num_tested` of this row.
    printed_max : float or None
        Largest absolute value that the printed LB and UB leave to a coordinate.
    outside_printed, outside_printed_limit : int or None
        Coordinates outside the printed bounds at this m, and in the limit of many draws.
    sign_condition : int or None
        Number of examples with g >= 0 in every coordinate.
    finite_hold : bool or None
        Whether all coordinates are within the finite-m bounds.
    finite_outside : int or None
        How many are not.
    finite_tightness : float or None
        Sum of the widths of the finite-m intervals divided by the L1 norm of the bias.
    finite_min_max, finite_max_max : float or None
        Between these the finite-m bounds put `max_bias`.
    loss_bias : float
        Exact E[L'] - L in nats, averaged over the examples.
    loss_z : float or None
        Largest |z| of the loss.
    squared_bias, variance, mse : float or None
        Of the gradient in h, exact, summed over its coordinates, averaged over the examples.
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
    finite_hold: bool | None
    finite_outside: int | None
    finite_tightness: float | None
    finite_min_max: float | None
    finite_max_max: float | None
    loss_bias: float
    loss_z: float | None
    squared_bias: float | None = None
    variance: float | None = None
    mse: float | None = None


@dataclass(frozen=True)
class Picture:
    """The coordinates of one example for one sampler, as the figure shows them.

    Attributes
    ----------
    sampler, num_sampled, wrt
        Which they are.
    example : int
        Index of the example.
    order : ndarray of int64, shape (P,)
        Coordinates from left to right.
    position : ndarray, shape (P,)
        Their places: class probability for the logits, rank of the printed UB for h.
    coordinates : Coordinates
        Bias and bounds.
    """

    sampler: str
    num_sampled: int
    wrt: str
    example: int
    order: IntArray
    position: FloatArray
    coordinates: Coordinates


@dataclass(frozen=True)
class VerificationReport:
    """What `samplesoft.verify` found.

    Attributes
    ----------
    rows : tuple of VerificationRow
        One for each sampler, number of draws and block of parameters.
    scheme : str
        The scheme.
    num_classes, num_examples, num_trials : int
        Sizes; the trials are those of each example at each number of draws.
    tau : float
        Inverse temperature.
    alpha : float
        Chance that a correct library fails `agrees`, for normal statistics.
    num_tests : int
        Statistics tested in the whole report.
    max_abs_z, z_limit : float
        Largest |z| of the report, and what Bonferroni's correction allows.
    settings : dict
        What the caller wants to be printed and saved with it.
    pictures : tuple of Picture
        One for each sampler, for the figure; not part of `to_dict`.
    """

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
        """Whether something was tested, and no |z| of the report is too large."""
        return self.num_tests > 0 and self.max_abs_z <= self.z_limit

    @property
    def bounds_hold(self) -> bool:
        """Whether the finite-m bounds hold everywhere; True for schemes that have none."""
        return all(row.finite_hold is not False for row in self.rows)

    @property
    def ok(self) -> bool:
        """Whether both do. A violated printed bound is a finding, and changes nothing here."""
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
        names = ("scheme", "num_classes", "num_examples", "num_trials", "tau", "alpha")
        values = {name: getattr(self, name) for name in names}
        values |= {"num_tests": self.num_tests, "max_abs_z": self.max_abs_z}
        values |= {"z_limit": self.z_limit, "agrees": self.agrees}
        values |= {"bounds_hold": self.bounds_hold, "ok": self.ok, "settings": self.settings}
        values["rows"] = [asdict(row) for row in self.rows]
        plain: dict[str, Any] = _plain(values)
        return plain

    def to_markdown(self) -> str:
        """Return a headline, a table for each block and a legend.

        Returns
        -------
        str
            Markdown whose columns are aligned as plain text too.
        """
        return markdown(self)

    def plot(self, path: str | Path) -> None:
        """Draw |bias| against m, and the coordinates beside their bounds.

        Parameters
        ----------
        path : str or Path
            Where to write it; the ending gives the format (.png, .pdf, .svg).

        Raises
        ------
        ValueError
            If the ending is not one of these.
        OSError
            If the file cannot be written.
        """
        from samplesoft.bias.plots import plot_report

        plot_report(self, path)


def _plain(value: Any) -> Any:
    """Return `value` with NumPy scalars as Python's and numbers that are not finite as None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
