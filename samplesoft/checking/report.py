"""`LossReport`: the result of `check_loss` as text, JSON, HTML and a plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from samplesoft.checking.candidates import Candidate
from samplesoft.checking.estimators import ESTIMATORS, MEMORY_SCHEMES
from samplesoft.checking.faults import ALL_FAULTS
from samplesoft.reports.figures import COLOURS, GRID, titled_figure
from samplesoft.reports.parts import Column, Paragraph, Part, Table
from samplesoft.reports.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NUM_TABLE_ROWS = 12  # largest number of hypotheses in the table
_ALLOWED, _EXCLUDED = COLOURS[:2]
_NUM_PLOT_ROWS = 20  # largest number of hypotheses in the plot
_MIN_Z = 0.1  # lower end of the axis of |z| in the plot
_MAX_Z = 1e6  # larger |z| are drawn at this value
_MIN_DIFFERENCE = 1e-4  # lower end of the axis of differences, for a deterministic loss
# a larger autocorrelation is not explained by rare draws in successive calls: the report warns
_MAX_AUTOCORRELATION = 0.25
# If the nearest hypothesis has a |z| above this factor times the limit, the report suggests that
# draws follow another proposal.
_FAR_FACTOR = 3.0


@dataclass(frozen=True)
class LossReport(Report):
    """The result of `check_loss`: which hypotheses about a loss its means allow.

    Attributes
    ----------
    scheme, fault : str or None
        The best hypothesis that fits, by its names in `samplesoft.checking.estimators.ESTIMATORS`
        and `samplesoft.checking.faults.FAULTS`. The best one has the fewest mistakes, and then the
        smallest distance. `fault` is None for a right loss, and ``"one + other"`` for two mistakes.
        Both are None if no hypothesis fits.
    consistent : tuple of (str, str or None)
        Scheme and fault of all hypotheses that the means allow.
    scores : tuple of Candidate
        All tested hypotheses: allowed ones first, then by their distance.
    limit : float
        The ``|z|`` above which a hypothesis is excluded; a right one exceeds it with a probability
        below 1e-4. It is 0 for a deterministic loss, which must be equal up to rounding.
    loss_bias, gradient_bias : float or None
        Bias of the best hypothesis with respect to the full softmax, averaged over the examples: of
        the loss (nats), and of the gradient in the logits (L1 norm). None if no closed form is
        known, or if it holds for one batch only (mixed negatives).
    of_ordinary : tuple of str
        If no hypothesis fits on an extreme problem: the right schemes that fit on ordinary logits.
    of_losses : tuple of str
        If no hypothesis fits losses and gradients: the right schemes that fit the losses alone.
    with_gradient : bool
        Whether the loss returned gradients.
    divides_by_norms : bool
        Whether the loss divides vectors by their norms; it was then called with unit vectors.
    in_half_precision : bool
        Whether results are rounded like float16 or bfloat16, whatever type they have.
    is_random : bool
        Whether different seeds gave different losses.
    follows_seed : bool
        Whether the same seed gave the same losses.
    num_sampled, num_classes, calls : int
        Numbers of draws per example, of classes, and of calls of the loss.
    num_results : int
        Number of calls with different results. It is smaller than `calls` if m and n are small, or
        if seeds repeat.
    num_sets : float
        Number of independent sets of draws of 16 copies of an example in a batch, estimated by the
        variance of their mean: 1 if the batch shares its draws, 16 if each copy has its own draws,
        0 if nothing is drawn.
    autocorrelation : float
        Correlation of the losses of a call with the losses of the next call; it should be near 0.
    seconds : float
        Time of the check.
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
        """Whether the loss is right: a scheme without a mistake fits, and none with a mistake.

        If it is True, ``samplesoft check`` without ``--scheme`` has the exit status 0.
        """
        return self.scheme is not None and self.fault is None and not self.undecided

    @property
    def undecided(self) -> int:
        """Number of allowed hypotheses with a mistake that have other means than the best one."""
        return len(self._remaining_mistakes)

    @property
    def _remaining_mistakes(self) -> list[str]:
        """Titles of allowed hypotheses with a mistake whose means differ from the best one's."""
        return list(
            dict.fromkeys(score.title for score in self.scores[1:] if score.allowed and score.fault)
        )

    @property
    def verdict(self) -> str:
        """Up to three lines of text: what the loss estimates, the evidence, and what to do."""
        return "\n".join(self._verdict_lines())

    def _verdict_lines(self) -> list[str]:
        """Return the verdict as one to three lines."""
        best = self.scores[0]
        calls = f"{self.calls:,} calls"
        distance = f"max |z| {best.z:.3g}, limit {self.limit:.3g}, {calls}"
        if not self.is_random:
            off = f"root mean square difference {best.z:.2g}"
            distance = off if best.z else "equal up to rounding"
        if self.scheme is None and self.of_losses:
            fit = ", ".join(f"`{name}`" for name in dict.fromkeys(self.of_losses))
            return [
                f"The losses are those of {fit}, but the gradient is not the gradient of these "
                f"losses ({calls})."
            ]
        if self.scheme is None:
            lines = [
                "The loss is consistent with no known scheme.",
                f"Nearest: {best.title} ({distance}).",
                "See first that `proposal`, `tau` and `num_sampled` are those of the loss, and "
                "that it does not divide vectors of one kind alone by their norms. Or it is a "
                "variant that is not on the list: a focal or hinge loss, or label smoothing over "
                "other classes.",
            ]
            if best.scheme in MEMORY_SCHEMES:
                lines[2] += (
                    " Its state must start from `log_sums`, the log of an estimate of the sum over "
                    "j of exp(o_j - o_t), where t is the label."
                )
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
            elif best.z > _FAR_FACTOR * self.limit:
                lines[2] += (
                    " Draws may follow another proposal: count what the loss draws, "
                    f"numpy.bincount(ids.ravel(), minlength={self.num_classes}) / ids.size, and "
                    "compare it with `proposal`."
                )

            lines[1] += self._warning_of_repeats
            return lines

        found = f"; {best.detail}" if best.detail else ""
        means = "means" if self.is_random else "values"
        within = " within rounding of half precision" if self.in_half_precision else ""
        evidence = f"Its {means} equal those of this hypothesis{within} ({distance}{found})."

        # for a right loss, leave out mistakes in the same scheme that have no effect on its means
        same = [
            candidate.title
            for candidate in best.equivalents
            if self.fault or candidate.scheme != self.scheme
        ]

        # names of allowed hypotheses; `names` below lists them in the order of `ESTIMATORS`, in
        # which the usual name comes first
        allowed = {score.name for score in self.scores if score.allowed}

        # other allowed hypotheses, without variants of the best one, which have the same title
        others = [title for title in self._remaining_mistakes if title != best.title]
        other_candidates = (
            [f"Equivalent hypotheses, with the same means: {'; '.join(same)}."] if same else []
        )
        if others:
            other_candidates.append(f"The means are also consistent with: {'; '.join(others)}.")
        if self.fault is None:
            names = " or ".join(f"`{name}`" for name in ESTIMATORS if (name, None) in allowed)
            estimand = ESTIMATORS[self.scheme].estimand
            lines = [f"The loss is right. Its scheme is {names}: {estimand}.", evidence]
            if self.undecided:
                fit = "1 mistake fits" if self.undecided == 1 else f"{self.undecided} mistakes fit"
                lines[0] = (
                    f"Not decided after {calls}: the loss may be right ({names}), but {fit} as "
                    "well. Call the loss more often (`calls`), and return gradients."
                )

            return [*lines, *([" ".join(other_candidates)] if other_candidates else [])]

        right = next((score for score in self.scores if score.name == (self.scheme, None)), None)
        if right is not None and right.z > best.z and self.is_random:
            which = "this mistake" if len(self.faults) == 1 else "these mistakes"
            evidence += f" Without {which}, max |z| would be {right.z:.3g}."

        evidence += self._warning_of_repeats if self.fault == "dependent_draws" else ""
        if self.fault == "gradient_scaled":
            estimand = ESTIMATORS[self.scheme].estimand
            first = (
                f"The losses are right (scheme `{self.scheme}`: {estimand}), but "
                f"{best.detail.split(', ')[0]}."
            )
            return [first, evidence, " ".join([self.remedy, *other_candidates])]

        return [
            f"The loss is wrong: {best.title}.",
            evidence,
            " ".join([self.remedy, *other_candidates]),
        ]

    @property
    def remedy(self) -> str:
        """How to correct the loss; empty if it is right, or if no hypothesis fits."""
        remedies = [ALL_FAULTS[name].remedy for name in self.faults]
        if "uncorrected" in self.faults and self.scheme == "candidate":
            remedies.append(
                "Then either subtract log(m q) from the label's logit too, or leave out draws of "
                "the label (accidental hits)."
            )
        return " ".join(remedies)

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of the zero, one or two mistakes of the loss, which are keys of `FAULTS`."""
        return () if self.fault is None else self.scores[0].faults

    @property
    def _warning_of_repeats(self) -> str:
        """A warning as text, if at most half of the calls gave different results, else empty."""
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
        nearest = first_of_each_name(self.scores, _NUM_TABLE_ROWS)
        columns = [
            Column("scheme", lambda s: s.scheme),
            Column("mistake", lambda s: s.fault or ""),
            Column("max |z|" if self.is_random else "off by", lambda s: s.z, ".3g"),
            Column("sd / exact", lambda s: s.sd_ratio, ".3f"),
            Column("", lambda s: "allowed" if s.allowed else "excluded"),
        ]
        notes_above = []
        notes_below = []
        if self.divides_by_norms:
            notes_above.append(
                "It divides vectors by their norms: logits are `tau` times a cosine."
            )
        if not self.follows_seed:
            notes_above.append(
                "Calls with the same seed gave different losses: draws do not depend on `seed` "
                "alone."
            )
        if self.autocorrelation > _MAX_AUTOCORRELATION:
            notes_above.append(
                f"Losses of a call have a correlation of {self.autocorrelation:.2f} with those of "
                "the next, as if draws were used again: standard errors are too small, and |z| is "
                "too large."
            )

        limit = f"if |z| > {self.limit:.2f}; a right one is excluded with a probability below 1e-4"
        if not self.is_random:
            limit = "if the root mean square difference is larger than rounding errors"

        notes_below.append(
            f"{self.calls:,} calls in {self.seconds:.1f} s; m = {self.num_sampled:,}, "
            f"n = {self.num_classes:,}; losses {'and gradients ' if self.with_gradient else ''}of "
            f"4 examples. A hypothesis is excluded {limit}. sd: standard deviation of single "
            "losses."
        )
        if self.num_sets:
            notes_below.append(
                f"16 copies of an example in a batch vary like {self.num_sets:.1f} sets of draws "
                "(16: each copy has its own draws; 1: all copies share one set)."
            )

        if self.scheme is not None and self.loss_bias is not None:
            notes_below.append(
                f"Relative to the full softmax, the loss has a bias of {self.loss_bias:+.4f} nats, "
                f"and its gradient in the logits an L1 bias of {self.gradient_bias:.4f} (exact "
                "means of the hypothesis over these examples)."
            )

        table = Table(nearest, columns, "The nearest hypotheses")
        first_line, *more_lines = self._verdict_lines()
        verdict = Paragraph(first_line, is_verdict=True)

        return [
            verdict,
            *map(Paragraph, [*more_lines, *notes_above]),
            table,
            *map(Paragraph, notes_below),
        ]

    def _figure(self) -> Figure:
        nearest = first_of_each_name(self.scores, _NUM_PLOT_ROWS)[::-1]
        figure, axes = titled_figure(self._verdict_lines()[0], (8.5, 1.7 + 0.27 * len(nearest)))
        axes.spines["left"].set_visible(False)

        # clip the distances to the ends of the logarithmic axis
        axis_start = _MIN_Z if self.is_random else _MIN_DIFFERENCE
        z = np.clip([s.z for s in nearest], axis_start, _MAX_Z)
        colours = [_ALLOWED if s.allowed else _EXCLUDED for s in nearest]
        positions = np.arange(len(nearest))
        axes.hlines(positions, axis_start, z, colors="0.85", linewidth=1.0)
        axes.scatter(z, positions, c=colours, s=28, zorder=3)
        if self.is_random:
            axes.axvline(self.limit, color="0.3", linewidth=1.0, linestyle="--")
            axes.text(self.limit * 1.08, len(nearest) - 0.35, "excluded", fontsize=8, color="0.3")

        axes.set_xscale("log")
        axes.set_xlim(axis_start, max(float(z.max()) * 2.0, self.limit * 8.0))
        axes.set_ylim(-0.7, len(nearest) + 0.3)
        mistakes = [f": {s.fault.replace('_', ' ')}" if s.fault else "" for s in nearest]
        labels = [f"{s.scheme}{mistake}" for s, mistake in zip(nearest, mistakes, strict=True)]
        axes.set_yticks(positions, labels)
        axes.tick_params(axis="y", labelsize=8, length=0)
        axes.set_xlabel(
            "max |z|: distance of a mean from the hypothesis, in standard errors"
            if self.is_random
            else "root mean square difference of single values from the hypothesis"
        )
        axes.grid(True, axis="x", **GRID)

        return figure


def first_of_each_name(scores: tuple[Candidate, ...], num: int) -> list[Candidate]:
    """Return the first candidate for each pair of scheme and fault, at most `num` candidates."""
    first_scores: dict[tuple[str, str | None], Candidate] = {}
    for score in scores:
        first_scores.setdefault(score.name, score)
    return list(first_scores.values())[:num]
