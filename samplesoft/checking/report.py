"""What `check_loss` found, for programs and for readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from samplesoft.checking.candidates import Candidate
from samplesoft.checking.estimators import ESTIMATORS
from samplesoft.checking.faults import FAULTS
from samplesoft.reports.figures import COLOURS, GRID, titled_figure
from samplesoft.reports.parts import Column, Paragraph, Part, Table
from samplesoft.reports.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_SHOWN = 12  # lines of the table
_ALLOWED, _EXCLUDED = COLOURS[:2]
_DRAWN = 20
_LEAST, _MOST = 0.1, 1e6  # of |z| on the axis
_LEAST_OFF = 1e-4  # of differences there
_CORRELATED = 0.25  # of which rare draws that happen to be neighbours stay below
_FAR = 3.0  # times the limit, from where on the nearest hypothesis says little


@dataclass(frozen=True)
class LossReport(Report):
    """What a loss estimates, as far as its means tell.

    Attributes
    ----------
    scheme, fault : str or None
        Names in `samplesoft.checking.estimators.ESTIMATORS` and `samplesoft.checking.faults.FAULTS`
        of the candidate that fits, of several that with the fewest mistakes, and then the nearest;
        `fault` is None where the scheme is as it should be, ``"one + other"`` where two mistakes
        were made, and both are None where no hypothesis fits.
    consistent : tuple of (str, str or None)
        All hypotheses, scheme and fault, that the means allow.
    scores : tuple of Candidate
        All hypotheses, those that are allowed first, then by their distance.
    limit : float
        The ``|z|`` above which a hypothesis is excluded: a right one with a probability below 1e-4.
        0 where nothing is random: then losses must be equal but for rounding.
    loss_bias, gradient_bias : float or None
        Mean over the examples of what the best hypothesis has above the full softmax: in the loss
        (nats), and in the gradient in the logits (L1 norm). None where no closed form is known,
        and where it is one of the batch at hand (mixed negatives).
    of_ordinary : tuple of str
        Where nothing fits on an extreme problem: the right schemes that ordinary logits fit.
    of_losses : tuple of str
        Where nothing fits losses and gradients both: the schemes that the losses alone fit.
    with_gradient : bool
        Whether the loss gave gradients.
    divides_by_norms : bool
        Whether the loss is one of cosines, which vectors of norm 1 were made for.
    in_half_precision : bool
        Whether its results are rounded as float16 or bfloat16 are, whatever type they have.
    is_random : bool
        Whether other seeds gave other losses.
    follows_seed : bool
        Whether the same seed gave the same losses.
    num_sampled, num_classes, calls : int
        Draws of an example, classes, and calls of the loss.
    num_results : int
        How many of the calls gave different results; fewer than calls where m and n are small, or
        seeds repeat.
    num_sets : float
        How many sets of draws 16 copies of an example in a batch have, by the variance of their
        mean: 1 where the batch shares one set, 16 where each has its own, 0 where nothing is drawn.
    autocorrelation : float
        Correlation of the losses of a call with those of the next, which should be near 0.
    seconds : float
        Time of the calls.
    """

    _title = "What a sampled loss estimates"
    _figure_title = "Distance of the nearest hypotheses"
    _setting_names = ("num_sampled", "num_classes", "calls")

    scheme: str | None
    fault: str | None
    consistent: tuple[tuple[str, str | None], ...]
    scores: tuple[Candidate, ...]
    limit: float
    loss_bias: float | None
    gradient_bias: float | None
    of_ordinary: tuple[str, ...]
    of_losses: tuple[str, ...]
    with_gradient: bool
    divides_by_norms: bool
    in_half_precision: bool
    is_random: bool
    follows_seed: bool
    num_sampled: int
    num_classes: int
    calls: int
    num_results: int
    num_sets: float
    autocorrelation: float
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the loss is right: it follows a scheme as it should be, and nothing wrong fits.

        Without ``--scheme`` that is the exit status 0 of ``samplesoft check``.
        """
        return self.scheme is not None and self.fault is None and not self.undecided

    @property
    def undecided(self) -> int:
        """How many hypotheses with a mistake, and with other means than the best, are left."""
        return len(self._remaining_mistakes)

    @property
    def _remaining_mistakes(self) -> list[str]:
        """What is said of those hypotheses, each once."""
        return list(dict.fromkeys(s.title for s in self.scores[1:] if s.allowed and s.fault))

    @property
    def verdict(self) -> str:
        """What the loss estimates, by what evidence, and what to do: up to three lines."""
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        best, calls = self.scores[0], f"{self.calls:,} calls"
        distance = f"max |z| {best.z:.3g}, limit {self.limit:.3g}, {calls}"
        if not self.is_random:
            distance = f"off by {best.z:.2g}, root mean square" if best.z else "equal to rounding"
        if self.scheme is None and self.of_losses:
            fit = ", ".join(f"`{name}`" for name in self.of_losses)
            return [f"The losses are those of {fit}; the gradient is not theirs ({calls})."]
        if self.scheme is None:
            lines = [
                "The loss is consistent with no known scheme.",
                f"Nearest: {best.title} ({distance}).",
                "See first that `proposal`, `tau` and `num_sampled` are those of the loss, and "
                "that it does not divide vectors of one kind alone by their norms. Or it is a "
                "variant that is not on the list: a focal or hinge loss, or label smoothing over "
                "other classes.",
            ]
            if self.of_ordinary:
                names = " or ".join(f"`{name}`" for name in self.of_ordinary)
                lines[2] = (
                    f"On ordinary logits it follows {names}, and not where all logits are low, "
                    "where the label is far ahead of the others or far behind, where one class is "
                    "far above all others, or where q is tiny: look for numbers in logarithms, "
                    "clipped values, masks that are no -inf, and classes that are never drawn."
                )
                return lines
            if not self.is_random:
                lines[0] += " Its negatives are labels of the batch."
                lines[2] += (
                    " In a batch of B each example has B - 1 negatives: look at what is subtracted "
                    "from their logits and from the label's, and at negatives that are the label."
                )
            elif best.z > _FAR * self.limit:
                lines[2] += (
                    " Draws may follow another proposal: count what the loss draws, "
                    f"numpy.bincount(ids.ravel(), minlength={self.num_classes}) / ids.size, and "
                    "compare it with `proposal`."
                )
            lines[1] += self._warning_of_repeats
            return lines
        found = f"; {best.detail}" if best.detail else ""
        means = "means" if self.is_random else "values"  # of batches
        within = " within rounding of half precision" if self.in_half_precision else ""
        evidence = f"Its {means} are the exact ones{within} ({distance}{found})."
        # without mistakes that have no effect here
        same = [one.title for one in best.equivalents if self.fault or one.scheme != self.scheme]
        # by the order of `ESTIMATORS`, of which the first name is the usual one
        allowed = {s.name for s in self.scores if s.allowed}
        others = [
            title for title in self._remaining_mistakes if title != best.title
        ]  # one in other words
        beside = [f"The same is: {'; '.join(same)}."] if same else []
        if others:
            beside.append(f"These means do not tell it from: {'; '.join(others)}.")
        if self.fault is None:
            names = " or ".join(f"`{name}`" for name in ESTIMATORS if (name, None) in allowed)
            lines = [f"The loss is right: {names}, {ESTIMATORS[self.scheme].estimand}.", evidence]
            if self.undecided:
                lines[0] = (
                    f"Not decided after {calls}: the loss may be right ({names}), but mistakes fit "
                    f"too ({self.undecided}). Take more calls, and return gradients."
                )
            return [*lines, *([" ".join(beside)] if beside else [])]
        right = next((s for s in self.scores if s.name == (self.scheme, None)), None)
        if right is not None and right.z > best.z and self.is_random:
            evidence += f" As it should be, |z| would be {right.z:.3g}."
        evidence += self._warning_of_repeats if self.fault == "dependent_draws" else ""
        if self.fault == "gradient_scaled":
            estimand = ESTIMATORS[self.scheme].estimand
            first = (
                f"The losses are right: `{self.scheme}`, {estimand}; {best.detail.split(', ')[0]}."
            )
            return [first, evidence, " ".join([self.remedy, *beside])]
        return [f"The loss is wrong: {best.title}.", evidence, " ".join([self.remedy, *beside])]

    @property
    def remedy(self) -> str:
        """What to change; empty if nothing is wrong, or nobody knows."""
        remedies = [FAULTS[name].remedy for name in self.faults]
        if "uncorrected" in self.faults and self.scheme == "candidate":
            remedies.append("Subtract it from the label's too, or leave out draws of the label.")
        return " ".join(remedies)

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of the mistakes: none, one or two."""
        return () if self.fault is None else self.scores[0].faults

    @property
    def _warning_of_repeats(self) -> str:
        """What may be wrong where many calls gave the same; empty if few did."""
        if not self.is_random or 2 * self.num_results > self.calls:
            return ""
        return (
            f" Only {self.num_results:,} of {self.calls:,} calls gave different results: see "
            "whether draws follow the whole of `seed`."
        )

    def _values(self) -> dict[str, Any]:
        names = ("verdict", "ok", "undecided", "remedy", "faults", *self.__dataclass_fields__)
        values = {name: getattr(self, name) for name in names if name != "scores"}
        names = ("scheme", "fault", "z", "sd_ratio", "allowed")
        values["hypotheses"] = [
            {name: getattr(s, name) for name in names} | {"fitted": s.detail} for s in self.scores
        ]
        return values

    def _parts(self) -> list[Part]:
        shown = first_by_name(self.scores, _SHOWN)
        columns = [
            Column("scheme", lambda s: s.scheme),
            Column("mistake", lambda s: s.fault or ""),
            Column("max |z|" if self.is_random else "off by", lambda s: s.z, ".3g"),
            Column("sd / exact", lambda s: s.sd_ratio, ".3f"),
            Column("", lambda s: "allowed" if s.allowed else "excluded"),
        ]
        above, below = [], []
        if self.divides_by_norms:
            above.append("It divides vectors by their norms: logits are `tau` times a cosine.")
        if not self.follows_seed:
            above.append("The same seed gave other losses: draws do not follow `seed`.")
        if self.autocorrelation > _CORRELATED:
            above.append(
                f"Losses of a call have a correlation of {self.autocorrelation:.2f} with those of "
                "the next, as if draws were used again: standard errors are too small, and |z| is "
                "too large."
            )
        limit = f"above |z| = {self.limit:.2f}: a right one with a chance below 1e-4"
        if not self.is_random:
            limit = "that is off by more than rounding (root mean square)"
        below.append(
            f"{self.calls:,} calls in {self.seconds:.1f} s; m = {self.num_sampled:,}, "
            f"n = {self.num_classes:,}; losses {'and gradients ' if self.with_gradient else ''}of "
            f"4 examples. A hypothesis is excluded {limit}. sd: standard deviation of single "
            "losses."
        )
        if self.num_sets:
            below.append(
                f"16 copies of an example in a batch vary like {self.num_sets:.1f} sets of draws "
                "(16: each has its own; 1: one serves all)."
            )
        if self.scheme is not None and self.loss_bias is not None:
            below.append(
                f"Beside the full softmax this loss has {self.loss_bias:+.4f} nats, and its "
                f"gradient in the logits an L1 bias of {self.gradient_bias:.4f} (exact means of "
                "the hypothesis over these examples)."
            )
        table = Table(shown, columns, "The nearest hypotheses")
        first, *more = self._lines()
        verdict = Paragraph(first, is_verdict=True)
        return [verdict, *map(Paragraph, [*more, *above]), table, *map(Paragraph, below)]

    def _figure(self) -> Figure:
        shown = first_by_name(self.scores, _DRAWN)[::-1]
        figure, axes = titled_figure(self._lines()[0], (8.5, 1.7 + 0.27 * len(shown)))
        axes.spines["left"].set_visible(False)
        # distances from 0.1 to a million fit on one logarithmic axis
        least = _LEAST if self.is_random else _LEAST_OFF
        z = np.clip([s.z for s in shown], least, _MOST)
        colours = [_ALLOWED if s.allowed else _EXCLUDED for s in shown]
        places = np.arange(len(shown))
        axes.hlines(places, least, z, colors="0.85", linewidth=1.0)
        axes.scatter(z, places, c=colours, s=28, zorder=3)
        if self.is_random:
            axes.axvline(self.limit, color="0.3", linewidth=1.0, linestyle="--")
            axes.text(self.limit * 1.08, len(shown) - 0.35, "excluded", fontsize=8, color="0.3")
        axes.set_xscale("log")
        axes.set_xlim(least, max(float(z.max()) * 2.0, self.limit * 8.0))
        axes.set_ylim(-0.7, len(shown) + 0.3)
        mistakes = [f": {s.fault.replace('_', ' ')}" if s.fault else "" for s in shown]
        labels = [f"{s.scheme}{mistake}" for s, mistake in zip(shown, mistakes, strict=True)]
        axes.set_yticks(places, labels)
        axes.tick_params(axis="y", labelsize=8, length=0)
        axes.set_xlabel(
            "max |z|: distance of a mean from the hypothesis, in standard errors"
            if self.is_random
            else "what single values are off by, root mean square"
        )
        axes.grid(True, axis="x", **GRID)
        return figure


def first_by_name(scores: tuple[Candidate, ...], num: int) -> list[Candidate]:
    """Return the first scores, one for each scheme and fault."""
    first: dict[tuple[str, str | None], Candidate] = {}
    for s in scores:
        first.setdefault(s.name, s)
    return list(first.values())[:num]
