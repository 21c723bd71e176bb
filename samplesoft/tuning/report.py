"""The report of `tune`: a table of all settings, the Pareto front, and the best setting."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from math import inf
from typing import TYPE_CHECKING, Any

from samplesoft.reports.figures import COLOURS, GRID, titled_figure
from samplesoft.reports.parts import Column, Paragraph, Part, Table
from samplesoft.reports.report import Report
from samplesoft.tuning.measure import Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# settings with a smaller bias are not drawn, because the axis has a log scale
_MIN_DRAWN_BIAS = 1e-6


@dataclass(frozen=True)
class TuneReport(Report):
    """The measured settings, and the best one.

    Attributes
    ----------
    settings : tuple of Setting
        All measured settings, sorted by the time of a step.
    best : Setting
        The fastest setting whose bias plus two standard errors is at most `largest_bias`. If
        `seconds` was given, the setting with the smallest error whose step takes at most `seconds`.
    largest_bias, seconds : float or None
        Arguments of `tune`.
    num_classes, dim, batch : int
        Number of classes, dimension of the vectors, and examples in a step.
    left_out : dict of str to str
        Samplers that were not measured, and the reasons.
    crossover : int or None
        Number of classes above which a step of `contender` is faster than a step of the full
        softmax on this machine. None if there is no `contender`, if the number was not measured, or
        if it is larger than the number of classes that can be timed.
    """

    _title = "Which sampler, and how many draws"
    _figure_title = "Bias against the time of a step"
    _setting_names = ("largest_bias", "seconds", "num_classes", "dim", "batch")

    settings: tuple[Setting, ...]
    best: Setting
    largest_bias: float | None
    seconds: float | None
    num_classes: int
    dim: int
    batch: int
    left_out: dict[str, str]
    crossover: int | None = None

    @property
    def full(self) -> Setting:
        """The setting of the full softmax."""
        return next(setting for setting in self.settings if setting.sampler is None)

    @property
    def front(self) -> tuple[Setting, ...]:
        """The Pareto front: settings for which no other is better in both bias and time.

        The fastest setting comes first.
        """
        front: list[Setting] = []  # settings are sorted by time, so only biases are compared
        for setting in self.settings:
            if not front or setting.bias < front[-1].bias:
                front.append(setting)
        return tuple(front)

    @property
    def contender(self) -> Setting | None:
        """The setting with draws that is compared with the full softmax.

        It is `best` if that has draws, otherwise the fastest setting with draws and an allowed
        bias; None if there is none.
        """
        limit = inf if self.largest_bias is None else self.largest_bias
        allowed = [
            setting
            for setting in self.settings
            if setting.sampler and setting.bias_plus_two_stderrs <= limit
        ]
        return self.best if self.best in allowed else next(iter(allowed), None)

    @property
    def where_it_pays(self) -> str:
        """A sentence about the number of classes above which sampling saves time.

        It is empty if this number was not measured.
        """
        if self.contender is None and self.largest_bias is not None:
            return (
                f"No measured setting with draws has a bias of at most {self.largest_bias:g}, so "
                "the number of classes from which sampling saves time is not known. Try more "
                "draws, or other samplers."
            )

        if (n := self.crossover) is None or self.contender is None:
            return ""
        return (
            f"On this machine sampling saves time from about {float(f'{n:.2g}'):,.0f} classes on, "
            f"for vectors of dimension {self.dim} and batches of {self.batch:,}: "
            f"{self.contender.title}."
        )

    @property
    def verdict(self) -> str:
        """The recommended setting, and the reason, in two or three sentences."""
        best = self.best
        full = self.full
        if self.seconds is None:
            why = f"this is the fastest setting with an L1 bias of at most {self.largest_bias:g}"
        else:
            why = (
                "this setting has the smallest error of the gradient among those whose step takes "
                f"at most {1e3 * self.seconds:g} ms"
            )
        step = f"A step of {self.batch:,} examples takes {1e3 * best.step_seconds:.1f} ms"

        if best.sampler is None:
            near = next((one for one in self.settings if one.sampler is not None), None)
            text = f"Take the full softmax: {why}. {step}."
            if near is not None:
                text += (
                    f" The fastest setting with draws is {near.title}: a step takes "
                    f"{1e3 * near.step_seconds:.1f} ms, and the L1 bias is {near.bias:.3g}."
                )
            return text

        ratio = full.step_seconds / best.step_seconds
        return (
            f"Take {best.title}: {why}. The L1 bias is {best.bias:.3g} +- {best.bias_stderr:.1g}. "
            f"{step}; with the full softmax it takes {1e3 * full.step_seconds:.1f} ms, {ratio:.3g} "
            "times as long."
        )

    def _values(self) -> dict[str, Any]:
        front = self.front
        return {
            "verdict": self.verdict,
            "best": asdict(self.best),
            **self._settings(),
            "crossover": self.crossover,
            "where_it_pays": self.where_it_pays,
            "left_out": self.left_out,
            "settings": [asdict(one) | {"front": one in front} for one in self.settings],
        }

    def _parts(self) -> list[Part]:
        front = self.front
        columns = [
            Column("sampler", lambda s: s.sampler or "full softmax"),
            Column("draws", lambda s: s.num_sampled, ","),
            Column("for", lambda s: ("the batch" if s.shared else "each") if s.sampler else ""),
            Column("L1 bias", lambda s: s.bias, ".2g"),
            Column("+-", lambda s: s.bias_stderr or None, ".1g"),
            Column("error", lambda s: s.error, ".2g"),
            Column("draws, ms", lambda s: 1e3 * s.draw_seconds, ".2f"),
            Column("step, ms", lambda s: 1e3 * s.step_seconds, ".2f"),
            Column("", lambda s: "best" if s == self.best else "front" if s in front else ""),
        ]

        text = (
            f"{self.num_classes:,} classes, batch {self.batch:,}. L1 bias: exact, of the gradient "
            "in the logits (at most 2), with the standard error of its mean over contexts; error: "
            "of the gradient in h, bias and noise, relative to its size; times: the least of some "
            "calls on this machine. On the front nothing is better in both bias and time."
        )

        parts: list[Part] = [
            Paragraph(f"{self.verdict} {self.where_it_pays}".rstrip(), is_verdict=True),
            Table(self.settings, columns, "All settings, by the time of a step"),
            Paragraph(text),
        ]

        if self.left_out:
            reasons = (f"{name} ({why})" for name, why in self.left_out.items())
            parts.append(Paragraph(f"Left out: {', '.join(reasons)}."))
        return parts

    def _figure(self) -> Figure:
        figure, axes = titled_figure(self.verdict, (8.2, 4.8))
        drawn_settings = [
            s for s in self.settings if s.sampler is not None and s.bias > _MIN_DRAWN_BIAS
        ]
        names = list(dict.fromkeys(str(s.sampler) for s in drawn_settings))

        for (k, name), shared in product(enumerate(names), (False, True)):
            points = [s for s in drawn_settings if (s.sampler, s.shared) == (name, shared)]
            points.sort(key=lambda s: s.num_sampled or 0)
            if points:
                axes.plot(
                    [1e3 * s.step_seconds for s in points],
                    [s.bias for s in points],
                    "s--" if shared else "o-",
                    color=COLOURS[k % len(COLOURS)],
                    markersize=5,
                    linewidth=1.0,
                    label=f"{name}, shared" if shared else name,
                )

        # a vertical line at the full softmax; settings to its right are slower
        x = 1e3 * self.full.step_seconds
        transform = axes.get_xaxis_transform()
        axes.axvline(x, color="black", linewidth=1.2)
        axes.text(x, 1.01, "full softmax", fontsize=8.5, ha="center", transform=transform)

        # a circle around the best setting
        if self.best in drawn_settings:
            x = 1e3 * self.best.step_seconds
            axes.plot([x], [self.best.bias], "ko", markersize=13, fillstyle="none")

        if self.largest_bias is not None and self.seconds is None:
            axes.axhline(self.largest_bias, color="0.5", linestyle=":", linewidth=1.2)

        axes.set(
            xscale="log",
            yscale="log",
            xlabel=f"step of a batch of {self.batch:,} (milliseconds)",
            ylabel="exact L1 bias of the gradient in the logits",
        )
        axes.grid(True, which="major", **GRID)
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))

        return figure
