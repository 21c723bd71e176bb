"""What `tune` found: the table, the front, and the setting to take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from samplesoft._parts import Paragraph, Part, Table
from samplesoft._report import Report
from samplesoft.tuning.measure import Setting
from samplesoft.tuning.plots import draw_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class TuneReport(Report):
    """Settings by their time, and the best of them.

    Attributes
    ----------
    settings : tuple of Setting
        All that were measured, by the time of a step.
    best : Setting
        The quickest whose bias is at most `largest_bias`; or where `seconds` are given, that with
        the least error among those whose step takes no longer.
    largest_bias, seconds : float or None
        As given to `tune`.
    num_classes, batch : int
        Numbers of classes and of examples in a step.
    left_out : dict of str to str
        Samplers that were not measured, and why.
    """

    _title = "Which sampler, and how many draws"
    _figure_title = "Bias against the time of a step"

    settings: tuple[Setting, ...]
    best: Setting
    largest_bias: float | None
    seconds: float | None
    num_classes: int
    batch: int
    left_out: dict[str, str]

    @property
    def full(self) -> Setting:
        """The full softmax."""
        return next(one for one in self.settings if one.sampler is None)

    @property
    def front(self) -> tuple[Setting, ...]:
        """Settings that no other beats in both bias and time, the quickest first."""
        found: list[Setting] = []
        for one in self.settings:
            if not found or one.bias < found[-1].bias:
                found.append(one)
        return tuple(found)

    @property
    def verdict(self) -> str:
        """What to take, and why, in a sentence or two."""
        best, full = self.best, self.full
        if self.seconds is None:
            why = f"the quickest with an L1 bias of at most {self.largest_bias:g}"
        else:
            why = f"the least error of a gradient within {1e3 * self.seconds:g} ms a step"
        if best.sampler is None:
            others = [one for one in self.settings if one.sampler is not None]
            near = min(others, key=lambda one: one.step_seconds, default=None)
            text = f"Take the full softmax: {why}, {1e3 * full.step_seconds:.1f} ms a step."
            if near is not None:
                text += (
                    f" The quickest sampler is {near.title}: {1e3 * near.step_seconds:.1f} ms, "
                    f"L1 bias {near.bias:.3g}."
                )
            return text
        ratio = full.step_seconds / best.step_seconds
        return (
            f"Take {best.title}: {why}. L1 bias {best.bias:.3g}, {1e3 * best.step_seconds:.1f} ms "
            f"a step of {self.batch:,}; the full softmax takes {1e3 * full.step_seconds:.1f} ms, "
            f"{ratio:.3g} times as long."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, numbers and strings.

        Returns
        -------
        dict
            Ready for ``json.dumps(..., allow_nan=False)``.
        """
        front = self.front
        return {
            "verdict": self.verdict,
            "best": _plain(self.best),
            "largest_bias": self.largest_bias,
            "seconds": self.seconds,
            "num_classes": self.num_classes,
            "batch": self.batch,
            "left_out": self.left_out,
            "settings": [_plain(one) | {"front": one in front} for one in self.settings],
        }

    def _parts(self) -> list[Part]:
        front = self.front
        columns = [
            ("sampler", lambda s: s.sampler or "full softmax"),
            ("draws", lambda s: "" if s.num_sampled is None else f"{s.num_sampled:,}"),
            ("for", lambda s: "" if s.sampler is None else "the batch" if s.shared else "each"),
            ("L1 bias", lambda s: f"{s.bias:.2g}"),
            ("error", lambda s: f"{s.error:.2g}"),
            ("draws, ms", lambda s: f"{1e3 * s.draw_seconds:.2f}"),
            ("step, ms", lambda s: f"{1e3 * s.step_seconds:.2f}"),
            ("", lambda s: "best" if s == self.best else "front" if s in front else ""),
        ]
        text = (
            f"{self.num_classes:,} classes, batch {self.batch:,}. L1 bias: exact, of the gradient "
            "in the logits (at most 2); error: of the gradient in h, bias and noise, relative to "
            "its size; times: the least of some calls on this machine. On the front nothing is "
            "better in both bias and time."
        )
        parts: list[Part] = [
            Paragraph(self.verdict, strong=True),
            Table(self.settings, columns, "All settings, by the time of a step"),
            Paragraph(text),
        ]
        if self.left_out:
            reasons = (f"{name} ({why})" for name, why in self.left_out.items())
            parts.append(Paragraph(f"Left out: {', '.join(reasons)}."))
        return parts

    def _figure(self) -> Figure:
        return draw_report(self)

    def _settings(self) -> dict[str, Any]:
        names = ("num_classes", "batch", "largest_bias", "seconds")
        return {name: getattr(self, name) for name in names}


def _plain(setting: Setting) -> dict[str, Any]:
    """Return a setting for JSON, which has no infinity."""
    return asdict(setting) | {"error": setting.error if np.isfinite(setting.error) else None}
